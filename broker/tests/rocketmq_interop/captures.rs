//! A session between two RocketMQ replicas, recorded on its way: what `fixtures/ha-sessions` holds.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::java::Replica;

/// What went one way.
type Tape = Arc<Mutex<Vec<u8>>>;

/// Passes the first connection on to `to`, and keeps what goes each way.
fn record(to: SocketAddr) -> (SocketAddr, Tape, Tape) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let addr = listener.local_addr().expect("bound");
    let (from_slave, from_master) = (Tape::default(), Tape::default());
    let tapes = (Arc::clone(&from_slave), Arc::clone(&from_master));
    std::thread::spawn(move || {
        let (slave, _) = listener.accept().expect("the slave connects");
        let master = TcpStream::connect(to).expect("the master listens");
        let back = (
            slave.try_clone().expect("a socket"),
            master.try_clone().expect("a socket"),
        );
        std::thread::spawn(move || pass(slave, master, &tapes.0));
        pass(back.1, back.0, &tapes.1);
    });
    (addr, from_slave, from_master)
}

fn pass(mut from: TcpStream, mut to: TcpStream, tape: &Tape) {
    let mut bytes = [0; 4096];
    while let Ok(n) = from.read(&mut bytes) {
        if n == 0 || to.write_all(&bytes[..n]).is_err() {
            break;
        }
        held(tape).extend_from_slice(&bytes[..n]);
    }
    // It may be closed already.
    let _ = to.shutdown(Shutdown::Both);
}

fn held(tape: &Tape) -> std::sync::MutexGuard<'_, Vec<u8>> {
    tape.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A slave far behind catches up over two epochs, both sides are silent until they send heartbeats,
/// and a few more messages follow live.
#[test]
#[ignore = "needs a JVM; .ci/interop runs it"]
fn a_session_between_two_java_replicas_is_recorded() {
    let (one, two) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    );
    let small = ["--max-body", "200"];
    let mut master = Replica::start(one.path(), 1, &small);
    master.order("master 1");
    master.put(4);
    master.order("master 2");
    let behind = master.put(4).end;
    let (addr, from_slave, from_master) = record(master.ha_addr);
    let mut slave = Replica::start(two.path(), 2, &small);
    slave.follow(2, 1, addr);
    slave.wait_for(behind);
    let (caught_up, said) = (held(&from_master).len(), held(&from_slave).len());
    let give_up = Instant::now() + Duration::from_secs(60);
    while held(&from_master).len() < caught_up + 36 || held(&from_slave).len() < said + 12 {
        assert!(Instant::now() < give_up, "no heartbeats");
        std::thread::sleep(Duration::from_millis(50));
    }
    let end = master.put(2).end;
    slave.wait_for(end);
    // The report of the last bytes is the last thing said.
    std::thread::sleep(Duration::from_secs(1));
    let (from_slave, from_master) = (held(&from_slave).clone(), held(&from_master).clone());
    slave.stop();
    master.stop();
    assert_eq!(from_slave[..4], [0, 0, 0, 1]);
    assert_eq!(from_master[..4], [0, 0, 0, 1]);
    if let Some(dir) = std::env::var_os("EPOCHLOG_CAPTURE_DIR") {
        let dir = Path::new(&dir);
        std::fs::create_dir_all(dir).expect("a folder");
        std::fs::write(dir.join("from-slave"), &from_slave).expect("written");
        std::fs::write(dir.join("from-master"), &from_master).expect("written");
    }
}
