//! A port that passes bytes on to another one until it is cut.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// See the file's head.
pub(crate) struct Link {
    pub(crate) addr: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Link {
    pub(crate) fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let (open, stop) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(AtomicBool::new(false)),
        );
        let (streams, stopped) = (Arc::clone(&open), Arc::clone(&stop));
        let accept = std::thread::spawn(move || {
            for near in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(target)) else {
                    continue;
                };
                pass(&near, &far);
                pass(&far, &near);
                streams.lock().extend([near, far]);
            }
        });
        Self {
            addr,
            open,
            stop,
            threads: vec![accept],
        }
    }

    /// Breaks every connection at once, in the middle of whatever is under way.
    pub(crate) fn cut(&self) {
        for stream in self.open.lock().drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.cut();
        // Ends the accept.
        let _ = TcpStream::connect(self.addr);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn pass(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut buffer = [0; 5000];
        while let Ok(n) = from.read(&mut buffer) {
            if n == 0 || to.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
