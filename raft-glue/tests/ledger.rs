//! The ledger by itself: append, get, read, restart, and what happens when its state machine fails.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use epochlog_raft_glue::{
    AppendError, GetError, Ledger, LedgerConfig, Member, ReadError, Role, RowChanges, Rows,
    SnapshotReceipt, StateMachine, Transport,
};
use tempfile::TempDir;

/// `key=value` payloads; the answer is the former value.
#[derive(Default)]
struct Pairs(BTreeMap<Vec<u8>, Vec<u8>>);

impl StateMachine for Pairs {
    type Answer = Option<Vec<u8>>;

    fn apply(&mut self, _index: u64, payload: &[u8], rows: &mut RowChanges) -> Self::Answer {
        assert_ne!(payload, b"panic", "this payload is fatal");
        let at = payload
            .iter()
            .position(|byte| *byte == b'=')
            .unwrap_or(payload.len());
        let (key, value) = (payload[..at].to_vec(), payload[at..].to_vec());
        rows.insert(key.clone(), Some(value.clone()));
        self.0.insert(key, value)
    }

    fn load(&mut self, rows: Rows) -> Result<(), String> {
        self.0 = rows.into_iter().collect();
        Ok(())
    }
}

/// Frames go straight to the other ledgers of the process.
#[derive(Clone, Default)]
struct Room(Arc<Mutex<HashMap<u64, Ledger<Pairs>>>>);

impl Transport for Room {
    fn members(&mut self, _members: &BTreeMap<u64, Member>) {}

    fn send(&mut self, to: u64, frame: Bytes, receipt: Option<SnapshotReceipt>) -> bool {
        let Some(ledger) = self.0.lock().expect("lock").get(&to).cloned() else {
            return false;
        };
        let is_taken = ledger.receive(&frame).is_ok();
        if let Some(receipt) = receipt.filter(|_| is_taken) {
            receipt.delivered();
        }
        is_taken
    }
}

fn members(count: u64) -> BTreeMap<u64, Member> {
    let member = |id| Member {
        name: format!("n{id}"),
        address: format!("room:{id}"),
    };
    (1..=count).map(|id| (id, member(id))).collect()
}

fn start(dir: &Path, room: &Room, id: u64, count: u64) -> Ledger<Pairs> {
    let mut config = LedgerConfig::new("room", id, dir.join(format!("{id}.redb")), members(count));
    config.keep_entries = 50;
    config.timings.flush_ms = 100;
    let ledger = Ledger::start(config, Pairs::default(), room.clone()).expect("starts");
    room.0.lock().expect("lock").insert(id, ledger.clone());
    ledger
}

fn leader(room: &Room) -> Ledger<Pairs> {
    let begin = Instant::now();
    loop {
        let ledgers: Vec<_> = room.0.lock().expect("lock").values().cloned().collect();
        if let Some(ledger) = ledgers
            .into_iter()
            .find(|ledger| ledger.metadata().is_ready)
        {
            return ledger;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "no leader");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn appends_are_answered_read_and_kept_over_a_restart() {
    let dir = TempDir::new().expect("dir");
    let room = Room::default();
    let ledger = start(dir.path(), &room, 1, 1);
    leader(&room);
    let first = ledger.append("a=1").await.expect("appended");
    assert_eq!(first.answer, None);
    let pending: Vec<_> = (0..200)
        .map(|n| ledger.start_append(format!("a={n}")).expect("begun"))
        .collect();
    let mut last = first.index;
    for outcome in pending {
        let appended = outcome.await.expect("appended");
        assert_eq!(appended.index, last + 1, "in the order begun, one by one");
        assert!(appended.answer.is_some());
        last = appended.index;
        let entry = ledger
            .get(last)
            .expect("committed entries are there at once");
        assert!(entry.payload.expect("ours").starts_with(b"a="));
    }
    assert!(matches!(
        ledger.get(last + 1),
        Err(GetError::NotCommitted { .. })
    ));
    ledger.read_barrier().await.expect("leads");
    assert_eq!(ledger.read(|pairs| pairs.0[&b"a"[..]].clone()), b"=199");
    ledger.shutdown();
    assert_eq!(
        ledger.append("a=x").await.map(|_| ()),
        Err(AppendError::Stopped)
    );
    assert_eq!(ledger.read_barrier().await, Err(ReadError::Stopped));
    room.0.lock().expect("lock").clear();
    drop(ledger);

    let ledger = start(dir.path(), &room, 1, 1);
    assert_eq!(ledger.read(|pairs| pairs.0[&b"a"[..]].clone()), b"=199");
    leader(&room);
    assert!(ledger.metadata().applied > last);
    assert_eq!(
        ledger.append("a=2").await.expect("appended").answer,
        Some(b"=199".to_vec())
    );
}

#[tokio::test]
async fn three_members_agree_and_only_the_leader_appends() {
    let dir = TempDir::new().expect("dir");
    let room = Room::default();
    let ledgers: Vec<_> = (1..=3).map(|id| start(dir.path(), &room, id, 3)).collect();
    let lead = leader(&room);
    let mut last = 0;
    for n in 0..20 {
        last = lead
            .append(format!("k{n}=v"))
            .await
            .expect("appended")
            .index;
    }
    for ledger in &ledgers {
        let begin = Instant::now();
        while ledger.get(last).is_err() {
            assert!(
                begin.elapsed() < Duration::from_secs(10),
                "a member lags for ever"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(ledger.read(|pairs| pairs.0.len()), 20);
        let metadata = ledger.metadata();
        assert_eq!(metadata.leader, Some(lead.metadata().id));
        if metadata.role != Role::Leader {
            let refused = ledger.append("x=1").await.map(|_| ());
            assert_eq!(
                refused,
                Err(AppendError::NotLeader {
                    leader: metadata.leader
                })
            );
            assert!(matches!(
                ledger.read_barrier().await,
                Err(ReadError::NotLeader { .. })
            ));
        }
    }
    let heir = ledgers
        .iter()
        .find(|l| l.metadata().role == Role::Follower)
        .expect("a follower");
    lead.transfer_leader(heir.metadata().id);
    let begin = Instant::now();
    while !heir.metadata().is_ready {
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "leadership was not handed over"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    heir.append("after=1").await.expect("appended");
    for ledger in ledgers {
        ledger.shutdown();
    }
}

#[tokio::test]
async fn a_state_machine_that_panics_ends_the_ledger_with_its_words() {
    let dir = TempDir::new().expect("dir");
    let room = Room::default();
    let ledger = start(dir.path(), &room, 1, 1);
    leader(&room);
    let watch = ledger.watch();
    assert_eq!(
        ledger.append("panic").await.map(|_| ()),
        Err(AppendError::Stopped)
    );
    let begin = Instant::now();
    while watch.borrow().failure.is_none() {
        assert!(begin.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let failure = watch.borrow().failure.clone().expect("a reason");
    assert!(failure.contains("this payload is fatal"), "{failure}");
    assert!(!ledger.metadata().is_ready);
    assert_eq!(
        ledger.append("a=1").await.map(|_| ()),
        Err(AppendError::Stopped)
    );
}

#[tokio::test]
async fn d25_an_idle_group_uses_hardly_any_time() {
    let cpu = || {
        let text = std::fs::read_to_string("/proc/self/stat").expect("proc");
        let fields: Vec<&str> = text
            .rsplit(')')
            .next()
            .expect("fields")
            .split(' ')
            .collect();
        fields[12].parse::<u64>().expect("user") + fields[13].parse::<u64>().expect("system")
    };
    let dir = TempDir::new().expect("dir");
    let room = Room::default();
    let ledgers: Vec<_> = (1..=3).map(|id| start(dir.path(), &room, id, 3)).collect();
    leader(&room);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = cpu();
    tokio::time::sleep(Duration::from_secs(2)).await;
    // Hundredths of a second; the other tests of this file run in the same process.
    let used = cpu() - before;
    assert!(used < 150, "{used} hundredths of a second of 200");
    for ledger in ledgers {
        ledger.shutdown();
    }
}

#[test]
fn a_payload_over_the_limit_is_refused_before_anything_happens() {
    let dir = TempDir::new().expect("dir");
    let room = Room::default();
    let ledger = start(dir.path(), &room, 1, 1);
    let long = vec![0; epochlog_raft_glue::PAYLOAD_LIMIT + 1];
    assert!(matches!(
        ledger.start_append(long),
        Err(AppendError::TooLong { .. })
    ));
    ledger.shutdown();
}
