//! Repairs: planned without a trace, run once, and stopped after any step.
#![allow(clippy::unwrap_used, reason = "a story ends where it fails")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use common::{SEGMENT, append, config, epochs, image, master, open, segment_path, starts};
use epochlog_engine::inspect::{self, ProblemKind};
use epochlog_engine::repair::{Intent, Removed, Repair};
use epochlog_engine::{EPOCH_FILE_NAME, EpochEntry, Error, STATE_FILE_NAME, Store};

/// Nine records of 1000 bytes: four in each of two segments, one in a third. Epoch 3 begins at 2000.
fn closed(dir: &Path) {
    let store = master(dir, 1);
    append(&store, 2, 1000);
    store.fence();
    store.promote(3).unwrap();
    append(&store, 7, 1000);
    store.close().unwrap();
}

fn end() -> u64 {
    2 * SEGMENT + 1000
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let from = entry.unwrap().path();
        let to = to.join(from.file_name().unwrap());
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

/// Every file with its bytes, and every directory.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
            found.insert(path, Vec::new());
        } else {
            let bytes = fs::read(&path).unwrap();
            found.insert(path, bytes);
        }
    }
    found
}

fn scribble(path: &Path, at: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

type Plan = fn(&Path, Intent) -> Result<Repair, Error>;

fn tail(dir: &Path, intent: Intent) -> Result<Repair, Error> {
    Repair::tail(dir, Removed::Kept, intent)
}

fn resync(dir: &Path, intent: Intent) -> Result<Repair, Error> {
    Repair::resync(dir, Removed::Kept, intent)
}

fn epoch(dir: &Path, intent: Intent) -> Result<Repair, Error> {
    Repair::epoch(dir, None, intent)
}

/// A look changes no byte; a run works; a second one is refused and changes no byte.
fn repaired(dir: &Path, plan: Plan) {
    let before = files(dir);
    let look = plan(dir, Intent::Look).unwrap();
    assert!(!look.findings().is_empty() && !look.steps().is_empty());
    assert!(matches!(look.run(), Err(Error::Repair { .. })));
    assert_eq!(files(dir), before);
    plan(dir, Intent::Run).unwrap().run().unwrap();
    let after = files(dir);
    assert!(matches!(plan(dir, Intent::Run), Err(Error::Repair { .. })));
    assert_eq!(files(dir), after);
}

/// Opens, takes appends as master of a new epoch, and is whole after another open.
fn goes_on(dir: &Path, end: u64) {
    let store = open(dir);
    assert_eq!(store.end_offset(), end);
    let epoch = store.promises().max_epoch.unwrap() + 1;
    store.promote(epoch).unwrap();
    let at = append(&store, 3, 1000)[0];
    assert_eq!(at, end);
    let bytes = image(&store);
    store.close().unwrap();
    drop(store);
    assert_eq!(inspect::scan(dir).unwrap().problems, []);
    assert_eq!(image(&open(dir)), bytes);
}

fn kept(dir: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(dir.join("truncated")).unwrap();
    let into = listed.map(|it| it.unwrap().path()).next().unwrap();
    let mut names: Vec<_> = files(&into).into_keys().collect();
    names
        .iter_mut()
        .for_each(|it| *it = it.strip_prefix(&into).unwrap().to_path_buf());
    names
}

/// The steps of a plan, and the folder after each count of them.
fn after_each_step(damaged: &Path, plan: Plan, check: impl Fn(&Path, usize, usize)) {
    let count = plan(damaged, Intent::Look).unwrap().steps().len();
    assert!(count > 3);
    for steps in 0..=count {
        let dir = tempfile::tempdir().unwrap();
        copy(damaged, dir.path());
        let repair = plan(dir.path(), Intent::Run).unwrap();
        assert_eq!(repair.steps().len(), count);
        repair.run_first(steps).unwrap();
        check(dir.path(), steps, count);
    }
}

/// Closed, and bad at the sixth record in a way that the next open sees.
fn damaged(dir: &Path) {
    closed(dir);
    scribble(&segment_path(dir, SEGMENT), 1500, b"#");
    // Somebody wrote the checkpoint since the clean stop, so all of the log is scanned.
    scribble(&dir.join("checkpoint"), 31, b"\x01");
}

#[test]
fn damage_below_the_flushed_mark_is_refused_by_name_then_cut_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    damaged(dir.path());
    let told = Store::open(config(dir.path())).err().unwrap().to_string();
    let store = fs::canonicalize(dir.path()).unwrap().display().to_string();
    assert!(told.contains("at offset 5096"), "{told}");
    for command in ["verify", "repair tail"] {
        let command = format!("`epochlog {command} {store}`");
        assert!(told.contains(&command), "{told}");
    }
    repaired(dir.path(), tail);
    let segment = fs::read(segment_path(dir.path(), SEGMENT)).unwrap();
    assert!(segment[1000..].iter().all(|byte| *byte == 0));
    let rest = format!("{SEGMENT:020}.from-{}", SEGMENT + 1000);
    let later = format!("{:020}", 2 * SEGMENT);
    assert_eq!(
        kept(dir.path()),
        [&rest, &later, "reason.txt"].map(PathBuf::from)
    );
    let served = open(dir.path()).promote(3);
    assert!(
        matches!(served, Err(Error::NeedsNewerEpoch { epoch: 3 })),
        "bytes of epoch 3 are gone, so it is not served again: {served:?}"
    );
    goes_on(dir.path(), SEGMENT + 1000);
    assert_eq!(
        open(dir.path()).epochs().entries()[..2],
        *epochs(&[(1, 0), (3, 2000)]).entries()
    );
}

#[test]
fn a_cut_below_an_epoch_takes_its_entry_along() {
    let dir = tempfile::tempdir().unwrap();
    closed(dir.path());
    scribble(&segment_path(dir.path(), 0), 500, b"#");
    repaired(dir.path(), tail);
    let store = open(dir.path());
    assert_eq!(
        (store.end_offset(), &*store.epochs()),
        (0, &epochs(&[(1, 0)]))
    );
    drop(store);
    goes_on(dir.path(), 0);
}

#[test]
fn a_missing_segment_is_cut_at_and_what_lies_behind_is_kept_or_discarded() {
    for removed in [Removed::Kept, Removed::Discarded] {
        let dir = tempfile::tempdir().unwrap();
        closed(dir.path());
        fs::remove_file(segment_path(dir.path(), SEGMENT)).unwrap();
        assert!(matches!(
            Store::open(config(dir.path())),
            Err(Error::Damaged { .. })
        ));
        Repair::tail(dir.path(), removed, Intent::Run)
            .unwrap()
            .run()
            .unwrap();
        assert!(!segment_path(dir.path(), 2 * SEGMENT).exists());
        assert_eq!(
            dir.path().join("truncated").exists(),
            removed == Removed::Kept
        );
        goes_on(dir.path(), SEGMENT);
    }
}

#[test]
fn a_torn_tail_is_cut_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 3, 1000);
    store.abandon();
    drop(store);
    scribble(&segment_path(dir.path(), 0), 2500, b"#");
    repaired(dir.path(), tail);
    assert_eq!(kept(dir.path()).len(), 2);
    goes_on(dir.path(), 2000);
}

#[test]
fn a_tail_repair_needs_damage_an_epoch_file_and_a_log() {
    let dir = tempfile::tempdir().unwrap();
    closed(dir.path());
    let told = |plan: Plan| plan(dir.path(), Intent::Run).err().unwrap().to_string();
    assert!(
        told(tail).contains("no record is damaged"),
        "{}",
        told(tail)
    );
    assert!(told(epoch).contains("whole"), "{}", told(epoch));
    scribble(&segment_path(dir.path(), SEGMENT), 1500, b"#");
    fs::write(dir.path().join(EPOCH_FILE_NAME), "junk").unwrap();
    assert!(
        told(tail).contains("`epochlog repair epoch /"),
        "{}",
        told(tail)
    );
    fs::remove_dir_all(dir.path().join("commitlog")).unwrap();
    assert!(
        told(tail).contains("`epochlog repair resync /"),
        "{}",
        told(tail)
    );
}

#[test]
fn a_store_that_is_open_is_not_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let store = master(dir.path(), 1);
    append(&store, 1, 1000);
    for plan in [tail, resync, epoch] as [Plan; 3] {
        for intent in [Intent::Look, Intent::Run] {
            let refused = plan(dir.path(), intent);
            assert!(matches!(refused, Err(Error::OpenInThisProcess { .. })));
        }
    }
    store.close().unwrap();
    let plan = resync(dir.path(), Intent::Run).unwrap();
    assert!(matches!(
        Store::open(config(dir.path())),
        Err(Error::OpenInThisProcess { .. })
    ));
    drop(plan);
    assert_eq!(starts(&open(dir.path())), [0]);
}

#[test]
fn a_crash_in_a_tail_repair_leaves_the_refusal_or_the_cut() {
    let dir = tempfile::tempdir().unwrap();
    damaged(dir.path());
    after_each_step(dir.path(), tail, |dir, steps, count| {
        match Store::open(config(dir)) {
            Err(Error::Damaged { offset, .. }) => {
                // Java's marks alone have come down.
                assert!(steps <= 1, "{steps} of {count}");
                assert_eq!(offset, SEGMENT + 1000);
                tail(dir, Intent::Run).unwrap().run().unwrap();
            }
            opened => drop(opened.unwrap()),
        }
        goes_on(dir, SEGMENT + 1000);
    });
}

#[test]
fn a_crash_in_a_resync_leaves_a_prefix_of_the_old_log_and_the_next_one_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    closed(dir.path());
    let old = image(&open(dir.path()));
    after_each_step(dir.path(), resync, |dir, steps, count| {
        let again = tempfile::tempdir().unwrap();
        copy(dir, again.path());
        let store = open(dir);
        let now = image(&store);
        assert!(old.starts_with(&now), "after {steps} of {count}");
        assert!(
            store
                .epochs()
                .last()
                .is_none_or(|it| it.start <= now.len() as u64)
        );
        assert_eq!(now.is_empty(), store.end_offset() == 0);
        assert_eq!(store.promises().max_epoch, Some(3));
        drop(store);
        // Finished without an open in between, and after one.
        for dir in [dir, again.path()] {
            match resync(dir, Intent::Run) {
                Ok(repair) => repair.run().unwrap(),
                Err(why) => assert!(matches!(why, Error::Repair { .. }), "{why}"),
            }
            comes_back_empty(dir);
        }
    });
}

fn comes_back_empty(dir: &Path) {
    let store = open(dir);
    assert_eq!((store.min_offset(), store.end_offset()), (0, 0));
    assert!(store.epochs().is_empty());
    assert_eq!(store.promises().max_epoch, Some(3));
    assert!(matches!(
        store.promote(3),
        Err(Error::NeedsNewerEpoch { .. })
    ));
    drop(store);
    goes_on(dir, 0);
}

#[test]
fn a_resync_gives_up_the_log_and_keeps_who_the_replica_is() {
    let dir = tempfile::tempdir().unwrap();
    closed(dir.path());
    fs::write(dir.path().join("brokerIdentity"), "me").unwrap();
    fs::create_dir(dir.path().join("index")).unwrap();
    let log = files(&dir.path().join("commitlog"));
    repaired(dir.path(), resync);
    let names = kept(dir.path());
    assert_eq!(
        names.len(),
        log.len() + 2,
        "segments, epoch file, reason: {names:?}"
    );
    assert!(dir.path().join("aside/index").exists());
    assert_eq!(fs::read(dir.path().join("brokerIdentity")).unwrap(), b"me");
    assert_eq!(
        fs::read(dir.path().join(EPOCH_FILE_NAME)).unwrap(),
        b"0\n0\n"
    );
    assert!(files(&dir.path().join("commitlog")).is_empty());
    comes_back_empty(dir.path());
}

#[test]
fn a_resync_can_discard() {
    let dir = tempfile::tempdir().unwrap();
    closed(dir.path());
    let plan = Repair::resync(dir.path(), Removed::Discarded, Intent::Run);
    plan.unwrap().run().unwrap();
    assert!(!dir.path().join("truncated").exists());
    comes_back_empty(dir.path());
}

#[test]
fn a_damaged_state_file_keeps_the_folder_shut_until_a_resync_is_through() {
    let dir = tempfile::tempdir().unwrap();
    closed(dir.path());
    let state = dir.path().join(STATE_FILE_NAME);
    let len = usize::try_from(fs::metadata(&state).unwrap().len()).unwrap();
    fs::write(&state, vec![7; len]).unwrap();
    let told = Store::open(config(dir.path())).err().unwrap().to_string();
    assert!(told.contains("`epochlog repair resync /"), "{told}");
    after_each_step(dir.path(), resync, |dir, steps, count| {
        // The new epoch file is the last step; the state file is whole before it.
        if steps + 1 < count {
            let refused = Store::open(config(dir));
            assert!(
                matches!(refused, Err(Error::StateFile(_))),
                "{steps} of {count}"
            );
        }
        if steps < count {
            resync(dir, Intent::Run).unwrap().run().unwrap();
        }
        // Without the old promises the epoch file says what the newest was.
        let told = open(dir).promises().max_epoch;
        assert_eq!(told, Some(3), "{steps} of {count}");
    });
    repaired(dir.path(), resync);
    comes_back_empty(dir.path());
}

#[test]
fn a_damaged_or_missing_epoch_file_comes_back_from_its_backup() {
    for missing in [false, true] {
        for clean in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            closed(dir.path());
            if !clean {
                open(dir.path()).abandon();
            }
            let main = dir.path().join(EPOCH_FILE_NAME);
            let text = fs::read(&main).unwrap();
            if missing {
                fs::remove_file(&main).unwrap();
            } else {
                fs::write(&main, b"3\n").unwrap();
            }
            let told = Store::open(config(dir.path())).err().unwrap().to_string();
            assert!(told.contains("`epochlog repair epoch /"), "{told}");
            let problems = inspect::scan(dir.path()).unwrap().problems;
            let told = problems[0].to_string();
            let named = format!("{}: ", main.display());
            assert_eq!(told.matches(&named).count(), 1, "{told}");
            repaired(dir.path(), epoch);
            assert_eq!(fs::read(&main).unwrap(), text);
            let beside = fs::read_dir(dir.path())
                .unwrap()
                .map(|it| it.unwrap().path());
            let name = format!("{EPOCH_FILE_NAME}.damaged-");
            let named = |it: &PathBuf| it.display().to_string().contains(&name);
            let beside: Vec<_> = beside.filter(named).collect();
            assert_eq!(beside.len(), usize::from(!missing));
            assert!(beside.iter().all(|it| fs::read(it).unwrap() == b"3\n"));
            goes_on(dir.path(), end());
        }
    }
}

#[test]
fn an_older_backup_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    closed(dir.path());
    let older = epochs(&[(1, 0)]).encode();
    let bak = dir.path().join(format!("{EPOCH_FILE_NAME}.bak"));
    let entry = |epoch, start| EpochEntry { epoch, start };
    let given = vec![entry(1, 0), entry(3, 2000)];
    for (backup, why) in [
        (Some(older.as_str()), "the last clean stop had another list"),
        (Some("junk"), "is damaged too"),
        (None, "is missing too"),
    ] {
        fs::write(dir.path().join(EPOCH_FILE_NAME), "junk").unwrap();
        match backup {
            Some(text) => fs::write(&bak, text).unwrap(),
            None => fs::remove_file(&bak).unwrap(),
        }
        let before = files(dir.path());
        let told = epoch(dir.path(), Intent::Run).err().unwrap().to_string();
        assert!(told.contains(why) && told.contains("--entries"), "{told}");
        for (bad, why) in [
            (vec![], "covers the log's first byte"),
            (vec![entry(3, 0), entry(1, 2000)], ""),
            (vec![entry(1, 1000)], "covers the log's first byte"),
            (
                vec![entry(1, 0), entry(3, end() + 1)],
                "the log ends at 9192",
            ),
        ] {
            let refused = Repair::epoch(dir.path(), Some(bad), Intent::Run);
            let told = refused.err().unwrap().to_string();
            assert!(told.contains(why), "{told}");
        }
        assert_eq!(files(dir.path()), before);
        let repair = Repair::epoch(dir.path(), Some(given.clone()), Intent::Run);
        repair.unwrap().run().unwrap();
        assert_eq!(
            fs::read(&bak).unwrap(),
            epochs(&[(1, 0), (3, 2000)]).encode().as_bytes()
        );
    }
    // After a crash no stop says which list was the last, but the node knows what it was master of.
    open(dir.path()).abandon();
    fs::write(dir.path().join(EPOCH_FILE_NAME), "junk").unwrap();
    fs::write(&bak, older).unwrap();
    let told = epoch(dir.path(), Intent::Run).err().unwrap().to_string();
    assert!(told.contains("master of a newer epoch"), "{told}");
    // Java keeps the list before the last change as its backup.
    fs::remove_file(dir.path().join(STATE_FILE_NAME)).unwrap();
    let told = epoch(dir.path(), Intent::Run).err().unwrap().to_string();
    assert!(told.contains("one change older"), "{told}");
    Repair::epoch(dir.path(), Some(given), Intent::Run)
        .unwrap()
        .run()
        .unwrap();
    goes_on(dir.path(), end());
}

#[test]
fn every_problem_names_what_helps() {
    let dir = tempfile::tempdir().unwrap();
    closed(dir.path());
    scribble(&segment_path(dir.path(), SEGMENT), 1500, b"#");
    fs::remove_file(dir.path().join(EPOCH_FILE_NAME)).unwrap();
    let found = inspect::scan(dir.path()).unwrap();
    let helps = |kind: ProblemKind| kind.remedy(Path::new("/s"));
    let told: Vec<_> = found
        .problems
        .iter()
        .map(|it| (it.kind, helps(it.kind)))
        .collect();
    assert!(told.iter().any(|(kind, it)| {
        *kind == ProblemKind::Damage && it.contains("`epochlog repair tail /s`")
    }));
    assert!(told.iter().any(|(kind, it)| {
        *kind == ProblemKind::EpochFileMissing && it.contains("`epochlog repair epoch /s`")
    }));
}
