use std::sync::Arc;

use raft::{GetEntriesContext, Storage};
use tempfile::TempDir;

use super::*;

type Log<'a> = redb::Table<'a, u64, &'static [u8]>;

fn identity(id: u64) -> Identity {
    let member = |n: u64| Member {
        name: format!("n{n}"),
        address: format!("h:{n}"),
    };
    Identity {
        group: "g".to_owned(),
        id,
        first_members: (1..=3).map(|n| (n, member(n))).collect(),
    }
}

fn open(dir: &TempDir) -> Arc<Store> {
    Arc::new(Store::open(&dir.path().join("s"), &identity(1)).unwrap())
}

fn entry(term: u64, index: u64) -> eraftpb::Entry {
    let mut entry = eraftpb::Entry::default();
    (entry.term, entry.index) = (term, index);
    entry.data = Bytes::from(format!("{term}.{index}"));
    entry
}

fn entries(term: u64, range: std::ops::RangeInclusive<u64>) -> Batch {
    Batch {
        entries: range.map(|index| entry(term, index)).collect(),
        ..Batch::default()
    }
}

fn hard_state(term: u64, commit: u64) -> Option<eraftpb::HardState> {
    Some(
        HardStateRecord {
            term,
            vote: 2,
            commit,
        }
        .into(),
    )
}

fn applied(index: u64, rows: &[(&str, Option<&str>)]) -> Option<AppliedBatch> {
    let rows = rows
        .iter()
        .map(|(k, v)| (k.as_bytes().to_vec(), v.map(|v| v.into())))
        .collect();
    Some(AppliedBatch {
        index,
        rows,
        ..AppliedBatch::default()
    })
}

fn read(store: &Arc<Store>, low: u64, high: u64, max: Option<u64>) -> Vec<(u64, u64)> {
    LogView(Arc::clone(store))
        .entries(low, high, max, GetEntriesContext::empty(false))
        .unwrap()
        .iter()
        .map(|entry| (entry.term, entry.index))
        .collect()
}

#[test]
fn a_new_store_begins_as_if_from_a_snapshot_of_the_first_members() {
    let dir = TempDir::new().unwrap();
    for _ in 0..2 {
        let view = LogView(open(&dir));
        let state = view.initial_state().unwrap();
        assert_eq!(state.conf_state.voters, [1, 2, 3]);
        assert_eq!((state.hard_state.term, state.hard_state.commit), (1, 1));
        assert_eq!(
            (view.first_index().unwrap(), view.last_index().unwrap()),
            (2, 1)
        );
        assert_eq!(view.term(1).unwrap(), 1);
    }
}

#[test]
fn d01_terms_and_entries_are_the_same_before_and_after_a_reopen() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&entries(5, 2..=9)).unwrap();
    store
        .write(&Batch {
            hard_state: hard_state(7, 4),
            ..entries(6, 6..=7)
        })
        .unwrap();
    let expected = [(5, 2), (5, 3), (5, 4), (5, 5), (6, 6), (6, 7)];
    let check = |store: &Arc<Store>| {
        let view = LogView(Arc::clone(store));
        assert_eq!(read(store, 2, 8, None), expected);
        assert_eq!(read(store, 3, 8, Some(0)), [(5, 3)], "at least one");
        assert_eq!((view.last_index().unwrap(), view.term(7).unwrap()), (7, 6));
        assert_eq!(
            view.term(5).unwrap(),
            5,
            "the entry's term, not the current one"
        );
        assert!(view.term(8).is_err() && view.term(0).is_err());
        let state = view.initial_state().unwrap().hard_state;
        assert_eq!((state.term, state.vote, state.commit), (7, 2, 4));
    };
    check(&store);
    drop(store);
    check(&open(&dir));
}

#[test]
fn f21_rows_and_applied_index_come_back_together() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    let rows = [("a", Some("1")), ("b", Some("2"))];
    store
        .write(&Batch {
            applied: applied(4, &rows),
            ..entries(2, 2..=9)
        })
        .unwrap();
    let rows = [("a", None), ("b", Some("3"))];
    store
        .write(&Batch {
            applied: applied(6, &rows),
            ..Batch::default()
        })
        .unwrap();
    drop(store);
    let store = open(&dir);
    assert_eq!(store.applied(), 6);
    assert_eq!(store.rows().unwrap(), [(b"b".to_vec(), b"3".to_vec())]);
    let commit = LogView(store).initial_state().unwrap().hard_state.commit;
    assert_eq!(commit, 6, "what was applied was committed");
}

#[test]
fn f02_f06_what_is_applied_has_its_own_record_and_counts_as_committed() {
    for (commit, counts_as) in [(3, 5), (5, 5), (8, 8)] {
        let dir = TempDir::new().unwrap();
        let batch = Batch {
            hard_state: hard_state(2, commit),
            applied: applied(5, &[("k", Some("v"))]),
            ..entries(2, 2..=9)
        };
        open(&dir).write(&batch).unwrap();
        let store = open(&dir);
        assert_eq!(store.applied(), 5, "whatever is committed");
        let state = LogView(store).initial_state().unwrap();
        assert_eq!(state.hard_state.commit, counts_as);
    }
}

#[test]
fn a_snapshot_carries_the_rows_of_its_index_and_replaces_everything() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store
        .write(&Batch {
            applied: applied(4, &[("a", Some("1"))]),
            ..entries(2, 2..=9)
        })
        .unwrap();
    let view = LogView(Arc::clone(&store));
    let snapshot = view.snapshot(3, 2).unwrap();
    assert_eq!(
        (snapshot.get_metadata().index, snapshot.get_metadata().term),
        (4, 2)
    );
    assert!(view.snapshot(5, 2).is_err(), "not there yet");

    let other = TempDir::new().unwrap();
    let joined = open(&other);
    joined
        .write(&Batch {
            applied: applied(3, &[("z", Some("9"))]),
            ..entries(1, 2..=5)
        })
        .unwrap();
    let body: SnapshotBody = decode(&snapshot.data).unwrap();
    joined
        .write(&Batch {
            snapshot: Some((snapshot, body)),
            ..Batch::default()
        })
        .unwrap();
    drop(joined);
    let joined = open(&other);
    assert_eq!(joined.rows().unwrap(), [(b"a".to_vec(), b"1".to_vec())]);
    assert_eq!((joined.range(), joined.applied()), ((4, 4), 4));
    assert_eq!(
        LogView(Arc::clone(&joined)).term(4).unwrap(),
        2,
        "d16: the term before the log"
    );
    joined.write(&entries(2, 5..=6)).unwrap();
    assert_eq!(read(&joined, 5, 7, None), [(2, 5), (2, 6)]);
}

#[test]
fn only_applied_entries_are_truncated() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store
        .write(&Batch {
            applied: applied(5, &[]),
            ..entries(2, 2..=9)
        })
        .unwrap();
    let truncate = |to| {
        store
            .write(&Batch {
                truncate_to: to,
                ..Batch::default()
            })
            .unwrap()
    };
    truncate(Some((8, 2)));
    assert_eq!(store.range(), (1, 9), "8 is not applied");
    truncate(Some((5, 2)));
    let check = |store: &Arc<Store>| {
        assert_eq!(store.range(), (5, 9));
        let view = LogView(Arc::clone(store));
        assert_eq!(view.term(5).unwrap(), 2);
        assert!(view.term(4).is_err());
        assert!(
            view.entries(5, 7, None, GetEntriesContext::empty(false))
                .is_err()
        );
        assert_eq!(read(store, 6, 8, None), [(2, 6), (2, 7)]);
        assert!(store.entry(5).unwrap().is_none());
    };
    check(&store);
    drop(store);
    check(&open(&dir));
}

#[test]
fn f20_the_store_of_another_member_is_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s");
    drop(Store::open(&path, &identity(1)).unwrap());
    let error = Store::open(&path, &identity(2)).unwrap_err();
    assert!(matches!(error, Error::WrongStore { .. }), "{error}");
    let other = Identity {
        group: "h".to_owned(),
        ..identity(1)
    };
    assert!(matches!(
        Store::open(&path, &other).unwrap_err(),
        Error::WrongStore { .. }
    ));
}

#[test]
fn two_stores_have_two_numbers_and_one_keeps_its_own() {
    let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let first = open(&one).store_id();
    assert_eq!(open(&one).store_id(), first);
    assert_ne!(open(&two).store_id(), first);
}

#[test]
fn d02_f01_a_log_shorter_than_its_commit_does_not_open() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store
        .write(&Batch {
            hard_state: hard_state(2, 8),
            ..entries(2, 2..=9)
        })
        .unwrap();
    drop(store);
    let damage = |change: &dyn Fn(&mut Log<'_>)| {
        let copy = dir.path().join("copy");
        std::fs::copy(dir.path().join("s"), &copy).unwrap();
        let db = Database::create(&copy).unwrap();
        let transaction = db.begin_write().unwrap();
        change(&mut transaction.open_table(LOG).unwrap());
        transaction.commit().unwrap();
        drop(db);
        Store::open(&copy, &identity(1))
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let tail = damage(&|log| log.retain_in(8.., |_, _| false).unwrap());
    assert!(tail.contains("committed entries are missing"), "{tail}");
    let gap = damage(&|log| log.retain_in(5..=5, |_, _| false).unwrap());
    assert!(gap.contains("the log holds 7 entries"), "{gap}");
    let head = damage(&|log| log.retain_in(2..=2, |_, _| false).unwrap());
    assert!(head.contains("should begin after 1"), "{head}");
}

#[test]
fn a_file_that_is_no_store_is_refused_by_name() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("s");
    std::fs::write(&path, b"not a store").unwrap();
    let error = Store::open(&path, &identity(1)).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
}

#[test]
fn old_entries_are_read_from_disk() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    let count = 6_000;
    store.write(&entries(3, 2..=count)).unwrap();
    assert!(
        store.mirror.lock().recent(2).is_none(),
        "only the newest are kept in memory"
    );
    assert_eq!(read(&store, 2, 5, None), [(3, 2), (3, 3), (3, 4)]);
    assert_eq!(LogView(Arc::clone(&store)).term(10).unwrap(), 3);
    assert_eq!(store.entry(2).unwrap().unwrap().index, 2);
    assert_eq!(
        read(&store, count - 1, count + 1, None),
        [(3, count - 1), (3, count)]
    );
}
