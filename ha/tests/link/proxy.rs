//! A TCP proxy that is a bad link: it delays, stalls as a loss does until it is sent again, tears writes
//! into pieces, and is cut in several ways. What it does follows from a seed; when, from the machine.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::SockRef;

/// How a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Both ends see a reset at once.
    Reset,
    /// Both ends see an end in order, what is under way comes first.
    Fin,
    /// One direction ends, the other goes on: the master can send and hears no more.
    HalfClosed,
    /// Nothing passes any more and nobody is told, as with a cable that is out.
    Silent,
}

pub(crate) const CUTS: [Cut; 4] = [Cut::Reset, Cut::Fin, Cut::HalfClosed, Cut::Silent];

/// xorshift64*: small and seeded.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }
}

/// One connection through the proxy.
struct Through {
    near: TcpStream,
    far: TcpStream,
    silent: AtomicBool,
}

#[derive(Default)]
struct Shared {
    /// The newest connection; older ones are over.
    through: Mutex<Option<Arc<Through>>>,
    accepted: AtomicU64,
    stalls: AtomicU64,
    ends: AtomicBool,
}

pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Lets connections to its own address through to `target`.
    pub(crate) fn to(target: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        std::thread::spawn(move || {
            for near in listener.incoming() {
                if own.ends.load(Ordering::SeqCst) {
                    return;
                }
                // A target that is gone ends the peer's connection too.
                if let (Ok(near), Ok(far)) = (near, TcpStream::connect(target)) {
                    let number = own.accepted.fetch_add(1, Ordering::SeqCst) + 1;
                    let_through(&own, near, far, seed ^ (number << 32));
                }
            }
        });
        Self { addr, shared }
    }

    /// Cuts the connection that is up, if one is.
    pub(crate) fn cut(&self, how: Cut) -> bool {
        let Some(through) = self.shared.through.lock().unwrap().take() else {
            return false;
        };
        match how {
            Cut::Reset => through.end(Some(Duration::ZERO), Shutdown::Both),
            Cut::Fin => through.end(None, Shutdown::Both),
            // What the slave says goes nowhere; what the master says still arrives.
            Cut::HalfClosed => drop(through.far.shutdown(Shutdown::Write)),
            Cut::Silent => through.silent.store(true, Ordering::SeqCst),
        }
        true
    }

    /// Connections so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How often bytes were held up.
    pub(crate) fn stalls(&self) -> u64 {
        self.shared.stalls.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        self.cut(Cut::Reset);
        // Ends the accept.
        drop(TcpStream::connect(self.addr));
    }
}

impl Through {
    fn end(&self, linger: Option<Duration>, how: Shutdown) {
        for stream in [&self.near, &self.far] {
            // Either may be over already.
            let _ = SockRef::from(stream).set_linger(linger);
            let _ = stream.shutdown(how);
        }
    }
}

fn let_through(shared: &Arc<Shared>, near: TcpStream, far: TcpStream, seed: u64) {
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
    }
    let pumps = [
        (near.try_clone().unwrap(), far.try_clone().unwrap()),
        (far.try_clone().unwrap(), near.try_clone().unwrap()),
    ];
    let through = Arc::new(Through {
        near,
        far,
        silent: AtomicBool::new(false),
    });
    *shared.through.lock().unwrap() = Some(Arc::clone(&through));
    for ((from, to), number) in pumps.into_iter().zip(1..) {
        let (shared, through) = (Arc::clone(shared), Arc::clone(&through));
        let random = Random(seed.wrapping_mul(2 * number + 1) | 1);
        std::thread::spawn(move || pump(from, &to, random, &shared, &through));
    }
}

/// Carries one direction until either end is over.
fn pump(
    mut from: TcpStream,
    mut to: &TcpStream,
    mut random: Random,
    shared: &Shared,
    through: &Through,
) {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let room = match random.below(10) {
            0 => 1 + usize::try_from(random.below(40)).unwrap(),
            _ => bytes.len(),
        };
        let Ok(len @ 1..) = from.read(&mut bytes[..room]) else {
            break;
        };
        match random.below(60) {
            // A segment that was lost and sent again after a while.
            0 => {
                shared.stalls.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(5 + random.below(40)));
            }
            1..20 => std::thread::sleep(Duration::from_micros(random.below(500))),
            _ => (),
        }
        // What comes in is dropped: it was under way when the link went.
        if through.silent.load(Ordering::SeqCst) {
            continue;
        }
        let torn = usize::try_from(random.below(len as u64 + 1)).unwrap();
        let whole = to.write_all(&bytes[..torn]).is_ok();
        if !whole || to.write_all(&bytes[torn..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
