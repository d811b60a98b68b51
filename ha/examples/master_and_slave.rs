//! A master and a slave in one process, no controller:
//! `cargo run -p epochlog-ha --example master_and_slave`.
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use epochlog_engine::{Message, Store, StoreConfig};
use epochlog_ha::{AckPolicy, AckRequest, HaConfig, HaService, Outcome, SyncStateSet};

fn node(id: u64, root: &std::path::Path) -> Result<HaService, Box<dyn Error>> {
    let store = Store::open(StoreConfig::new(root.join(id.to_string())))?;
    Ok(HaService::start(
        Arc::new(store),
        HaConfig::on_loopback(id),
    )?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let root = std::env::temp_dir().join(format!("epochlog-{}", std::process::id()));
    let (master, slave) = (node(1, &root)?, node(2, &root)?);
    master.become_master(1, SyncStateSet::new([1, 2], 1))?;
    slave.become_slave(1, 1, master.listen_addr())?;

    let ack = AckRequest::new(AckPolicy::AllInSync, Duration::from_secs(5));
    let message = Message::new("greetings", b"hello", master.listen_addr(), 0);
    match master.append_and_wait(&message, ack) {
        Outcome::Acked(put) => println!("both hold offset {}", put.offset),
        other => println!("not acknowledged: {other:?}"),
    }
    let held = slave.store().record(0)?;
    let body = str::from_utf8(held.record().body())?;
    println!("the slave reads {body:?}");

    for node in [slave, master] {
        node.shutdown();
        node.store().close()?;
    }
    Ok(std::fs::remove_dir_all(root)?)
}
