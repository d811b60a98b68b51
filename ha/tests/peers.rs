//! Nodes against peers that are slow, confused or hostile.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

#[path = "peers/as_master.rs"]
mod as_master;
#[path = "peers/as_slave.rs"]
mod as_slave;
#[path = "replication/bed.rs"]
mod bed;
#[path = "peers/fakes.rs"]
mod fakes;
