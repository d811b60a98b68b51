//! A replicated key-value store in one process: three members of a ledger, one file each.
//!
//! `cargo run -p epochlog-raft-glue --example kv`

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use epochlog_raft_glue::{
    Ledger, LedgerConfig, Member, RowChanges, Rows, SnapshotReceipt, StateMachine, Transport,
};

/// The state: what `apply` changes here it also notes in `rows`, which are the copy on disk.
#[derive(Default)]
struct Pairs(BTreeMap<Vec<u8>, Vec<u8>>);

impl StateMachine for Pairs {
    type Answer = Option<Vec<u8>>;

    /// `key=value` sets, `key` alone removes; the answer is the former value.
    fn apply(&mut self, _index: u64, payload: &[u8], rows: &mut RowChanges) -> Self::Answer {
        match payload.iter().position(|byte| *byte == b'=') {
            Some(at) => {
                let (key, value) = (payload[..at].to_vec(), payload[at + 1..].to_vec());
                rows.insert(key.clone(), Some(value.clone()));
                self.0.insert(key, value)
            }
            None => {
                rows.insert(payload.to_vec(), None);
                self.0.remove(payload)
            }
        }
    }

    fn load(&mut self, rows: Rows) -> Result<(), String> {
        self.0 = rows.into_iter().collect();
        Ok(())
    }
}

/// The network: here, frames go straight to the other members. Over a real one, they may be lost.
#[derive(Clone, Default)]
struct Net(Arc<Mutex<HashMap<u64, Ledger<Pairs>>>>);

impl Transport for Net {
    fn members(&mut self, _members: &BTreeMap<u64, Member>) {}

    fn send(&mut self, to: u64, frame: Bytes, receipt: Option<SnapshotReceipt>) -> bool {
        let peer = self.0.lock().ok().and_then(|net| net.get(&to).cloned());
        let is_taken = peer.is_some_and(|peer| peer.receive(&frame).is_ok());
        if let Some(receipt) = receipt.filter(|_| is_taken) {
            receipt.delivered();
        }
        is_taken
    }
}

/// Opens one member of three.
fn open(dir: &Path, id: u64, net: &Net) -> Result<Ledger<Pairs>, Box<dyn Error>> {
    let member = |id| Member {
        name: format!("n{id}"),
        address: format!("memory:{id}"),
    };
    let members = (1..=3).map(|id| (id, member(id))).collect();
    let config = LedgerConfig::new("kv", id, dir.join(format!("{id}.redb")), members);
    Ok(Ledger::start(config, Pairs::default(), net.clone())?)
}

/// Waits for a leader that knows everything.
async fn leader(members: &[Ledger<Pairs>]) -> Result<&Ledger<Pairs>, Box<dyn Error>> {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        if let Some(leader) = members.iter().find(|member| member.metadata().is_ready) {
            return Ok(leader);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("no leader within 20 s".into())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let net = Net::default();
    let mut members = Vec::new();
    for id in 1..=3 {
        members.push(open(dir.path(), id, &net)?);
    }
    let peers = members.iter().cloned().zip(1..);
    let peers: HashMap<u64, _> = peers.map(|(member, id)| (id, member)).collect();
    *net.0.lock().map_err(|_| "the network is poisoned")? = peers;

    let first = leader(&members).await?;
    first.append_batch(["color=red", "size=7"]).await?;
    let former = first.append("color=blue").await?.answer;
    assert_eq!(former.as_deref(), Some(&b"red"[..]));

    // The leader goes; what it answered with success stays.
    first.shutdown();
    let second = leader(&members).await?;
    second.append("size").await?;
    second.read_barrier().await?;
    let pairs = second.read(|pairs| pairs.0.clone());
    for (key, value) in &pairs {
        let (key, value) = (String::from_utf8_lossy(key), String::from_utf8_lossy(value));
        println!("{key} is {value}");
    }
    let expected = BTreeMap::from([(b"color".to_vec(), b"blue".to_vec())]);
    members.iter().for_each(Ledger::shutdown);
    if pairs == expected {
        Ok(())
    } else {
        Err("pairs were lost".into())
    }
}
