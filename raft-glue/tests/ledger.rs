//! The ledger by itself: append, get, read, restart, and what happens when its state machine fails.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use epochlog_raft_glue::{
    AppendError, GetError, Ledger, LedgerConfig, Member, MemberStep, ReadError, Role, RowChanges,
    Rows, SnapshotReceipt, StateMachine, TransferError, Transport,
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
    start_with(dir, room, id, count, |_| {})
}

fn start_with(
    dir: &Path,
    room: &Room,
    id: u64,
    count: u64,
    change: impl FnOnce(&mut LedgerConfig),
) -> Ledger<Pairs> {
    let mut config = LedgerConfig::new("room", id, dir.join(format!("{id}.redb")), members(count));
    config.keep_entries = 50;
    config.timings.flush_ms = 100;
    change(&mut config);
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
    let to = heir.metadata().id;
    lead.transfer_leader(to).await.expect("taken over");
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

async fn until(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "waited too long for {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn d05_d06_a_batch_is_appended_in_a_row_or_not_at_all() {
    let dir = TempDir::new().expect("dir");
    let room = Room::default();
    let ledgers: Vec<_> = (1..=3)
        .map(|id| start_with(dir.path(), &room, id, 3, |config| config.max_pending = 8))
        .collect();
    let lead = leader(&room);
    let batches: Vec<_> = (0..2)
        .map(|batch| {
            let payloads = (0..4).map(move |n| format!("b{batch}={n}"));
            lead.start_batch(payloads).expect("begun")
        })
        .collect();
    let mut indexes = Vec::new();
    for batch in batches {
        let appended = batch.await.expect("appended");
        assert_eq!(appended.len(), 4);
        indexes.extend(appended.iter().map(|one| one.index));
    }
    let first = indexes[0];
    assert_eq!(indexes, (first..first + 8).collect::<Vec<_>>());
    let payloads = (0..9).map(|n| format!("too={n}"));
    assert_eq!(lead.append_batch(payloads).await, Err(AppendError::Full));
    let follower = ledgers
        .iter()
        .find(|ledger| ledger.metadata().role == Role::Follower)
        .expect("a follower");
    assert!(matches!(
        follower.append_batch(["too=1", "too=2"]).await,
        Err(AppendError::NotLeader { .. })
    ));
    assert_eq!(lead.append_batch(Vec::<Bytes>::new()).await, Ok(Vec::new()));
    assert!(lead.read(|pairs| !pairs.0.contains_key(&b"too"[..])));
    let counters = lead.counters();
    assert_eq!((counters.appends_done, counters.appends_refused), (8, 9));
    assert_eq!((counters.elections_won, counters.appends_pending), (1, 0));
    assert!(counters.syncs > 0 && counters.sync_us >= counters.sync_us_max);
    ledgers.iter().for_each(Ledger::shutdown);
}

#[tokio::test]
async fn d12_what_waits_is_bounded_in_bytes_and_refused_as_full() {
    let dir = TempDir::new().expect("dir");
    let room = Room::default();
    let limit = epochlog_raft_glue::PAYLOAD_LIMIT;
    let ledgers: Vec<_> = (1..=3)
        .map(|id| {
            start_with(dir.path(), &room, id, 3, |config| {
                config.max_pending_bytes = limit as u64;
            })
        })
        .collect();
    let lead = leader(&room);
    // Nobody hears the leader any more.
    room.0.lock().expect("lock").clear();
    let half = vec![b'x'; limit / 2 + 1];
    let first = lead.start_append(half.clone()).expect("begun");
    assert_eq!(
        lead.start_append(half.clone()).map(|_| ()),
        Err(AppendError::Full)
    );
    assert_eq!(lead.counters().pending_bytes, limit as u64 / 2 + 1);
    // It steps down, as nobody answers: the outcome says that it may be committed.
    let outcome = first.await.map(|_| ()).expect_err("no majority");
    assert!(!outcome.is_refusal(), "{outcome}");
    let outcome = lead.append(half).await.map(|_| ()).expect_err("no leader");
    assert!(outcome.is_refusal(), "{outcome}");
    assert_eq!(
        lead.counters().pending_bytes,
        0,
        "what is refused takes no room"
    );
    ledgers.iter().for_each(Ledger::shutdown);
}

#[tokio::test]
async fn a_preferred_member_takes_over_and_impossible_transfers_are_refused() {
    let dir = TempDir::new().expect("dir");
    let room = Room::default();
    let ledgers: Vec<_> = (1..=3).map(|id| start(dir.path(), &room, id, 3)).collect();
    let lead = leader(&room);
    let me = lead.metadata().id;
    let (next, third) = (me % 3 + 1, (me + 1) % 3 + 1);
    let at = |id: u64| {
        ledgers
            .iter()
            .find(|l| l.metadata().id == id)
            .expect("one of ours")
    };
    assert_eq!(lead.transfer_leader(me).await, Ok(()), "it leads already");
    assert_eq!(
        lead.transfer_leader(9).await,
        Err(TransferError::NotAVoter { id: 9 })
    );
    assert!(matches!(
        at(next).transfer_leader(third).await,
        Err(TransferError::NotLeader { .. })
    ));
    for ledger in &ledgers {
        ledger.prefer_leaders([third].into()).expect("told");
    }
    until("the preferred one to lead", || {
        at(third).metadata().is_ready
    })
    .await;
    at(third).append("a=1").await.expect("appended");
    let progress = at(third).progress().await.expect("it leads");
    assert_eq!(progress.keys().copied().collect::<Vec<_>>().len(), 2);
    assert_eq!(at(me).progress().await, None);

    // A dead member does not take over, and the leader stays.
    at(next).shutdown();
    room.0.lock().expect("lock").remove(&next);
    at(third).prefer_leaders([].into()).expect("told");
    at(me).prefer_leaders([].into()).expect("told");
    let term = at(third).metadata().term;
    assert_eq!(
        at(third).transfer_leader(next).await,
        Err(TransferError::NotTaken { id: next })
    );
    at(third).append("b=1").await.expect("appended");
    assert_eq!(at(third).metadata().term, term);
    ledgers.iter().for_each(Ledger::shutdown);
}

#[tokio::test]
async fn f15_a_change_of_members_that_cannot_be_is_not_answered_with_success() {
    let dir = TempDir::new().expect("dir");
    let room = Room::default();
    let ledgers: Vec<_> = (1..=3).map(|id| start(dir.path(), &room, id, 3)).collect();
    let lead = leader(&room);
    let me = lead.metadata().id;
    let refused = lead
        .change_members(vec![MemberStep::Remove { id: me }])
        .await;
    assert!(
        matches!(refused, Err(AppendError::MembersRefused { .. })),
        "{refused:?}"
    );
    let learner = |id: u64| MemberStep::AddLearner {
        id,
        member: Member {
            name: format!("n{id}"),
            address: format!("room:{id}"),
        },
    };
    let (one, two) = tokio::join!(
        lead.change_members(vec![learner(4)]),
        lead.change_members(vec![learner(5)])
    );
    one.expect("the first is made");
    assert_eq!(two, Err(AppendError::MembersBusy));
    until("the learner", || lead.metadata().learners.contains(&4)).await;
    assert!(!lead.metadata().members.contains_key(&5));
    ledgers.iter().for_each(Ledger::shutdown);
}
