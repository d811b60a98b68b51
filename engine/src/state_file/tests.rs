//! The two slots under torn writes, damage, other versions and broken promises.

use std::fs;

use super::*;

fn state(max_epoch: u32) -> State {
    State {
        clean: None,
        boot_id: *b"0123456789abcdef",
        incarnation: 3,
        max_epoch: Some(max_epoch),
        served_epoch: Some(max_epoch.saturating_sub(1)),
        flushed: 4096,
        scan_from: 1024,
        generation: 9,
        sync_failed: false,
        queues: Some(QueuesMark {
            through: 2048,
            ends_crc: max_epoch,
            complete: max_epoch.is_multiple_of(3),
        }),
    }
}

fn clean(end: Offset) -> State {
    let proofs = CleanStop {
        end,
        bases_crc: 1,
        last_record_len: 2,
        last_record_crc: 3,
        epoch_file_crc: 4,
        checkpoint_crc: u32::MAX,
    };
    State {
        clean: Some(proofs),
        flushed: end,
        scan_from: end,
        ..state(7)
    }
}

struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join(STATE_FILE_NAME)
    }

    fn read(&self) -> Result<Option<State>, StateFileError> {
        StateFile::read(&self.path())
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }

    fn put(&self, bytes: &[u8]) {
        fs::write(self.path(), bytes).unwrap();
    }
}

#[test]
fn a_state_reads_back_as_it_was_stored() {
    let states = [
        State::default(),
        State {
            max_epoch: Some(0),
            served_epoch: None,
            ..State::default()
        },
        State {
            max_epoch: Some(0),
            served_epoch: Some(0),
            ..State::default()
        },
        state(5),
        clean(1 << 40),
        State {
            clean: None,
            sync_failed: true,
            generation: MAX_COUNT,
            ..state(8)
        },
        State {
            max_epoch: Some(MAX_EPOCH),
            flushed: MAX_OFFSET,
            ..state(8)
        },
    ];
    let folder = Folder::new();
    assert_eq!(folder.read().unwrap(), None);
    let mut file = StateFile::open(folder.path(), states[0]).unwrap();
    for state in states {
        file.store(state).unwrap();
        assert_eq!(file.current(), &state);
        assert_eq!(folder.read().unwrap(), Some(state));
        assert_eq!(folder.bytes().len(), STATE_FILE_LEN);
    }
}

#[test]
fn the_slots_are_written_in_turn_and_reopening_goes_on_with_the_older_one() {
    let folder = Folder::new();
    let mut file = StateFile::open(folder.path(), state(1)).unwrap();
    let mut before = folder.bytes();
    let mut slots = Vec::new();
    for epoch in 2..8 {
        if epoch == 5 {
            file = StateFile::open(folder.path(), state(epoch)).unwrap();
        } else {
            file.store(state(epoch)).unwrap();
        }
        let after = folder.bytes();
        let (first, second) = (&after[..STATE_SLOT_STRIDE], &after[STATE_SLOT_STRIDE..]);
        let changed = (
            first != &before[..STATE_SLOT_STRIDE],
            second != &before[STATE_SLOT_STRIDE..],
        );
        slots.push(changed);
        before = after;
    }
    let (first, second) = ((true, false), (false, true));
    assert_eq!(slots, [second, first, second, first, second, first]);
}

#[test]
fn a_torn_write_costs_only_the_slot_being_written() {
    let folder = Folder::new();
    let mut file = StateFile::open(folder.path(), state(1)).unwrap();
    file.store(state(2)).unwrap();
    let before = folder.bytes();
    file.store(clean(5000)).unwrap();
    let after = folder.bytes();
    for torn in 0..=STATE_SLOT_LEN {
        let mut bytes = before.clone();
        bytes[..torn].copy_from_slice(&after[..torn]);
        folder.put(&bytes);
        let whole = bytes[..STATE_SLOT_LEN] == after[..STATE_SLOT_LEN];
        let expected = if whole { clean(5000) } else { state(2) };
        assert_eq!(
            folder.read().unwrap(),
            Some(expected),
            "{torn} bytes reached the disk"
        );
    }
}

#[test]
fn every_damaged_byte_of_a_slot_is_noticed() {
    let folder = Folder::new();
    let file = StateFile::open(folder.path(), state(3)).unwrap();
    drop(file);
    let good = folder.bytes();
    for at in 0..STATE_SLOT_LEN {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        folder.put(&bytes);
        let error = folder.read().unwrap_err();
        assert!(
            matches!(error, StateFileError::Damaged { .. }),
            "byte {at}: {error}"
        );
    }
    let error = folder.read().unwrap_err().to_string();
    assert!(error.contains("epochlog.state: damaged"), "{error}");
    assert!(
        error.contains("never written") && error.contains("repair resync"),
        "{error}"
    );
}

#[test]
fn a_file_cut_short_or_grown_has_a_defined_result() {
    let folder = Folder::new();
    let mut file = StateFile::open(folder.path(), state(3)).unwrap();
    file.store(state(4)).unwrap();
    let good = folder.bytes();
    for len in [0, 1, STATE_SLOT_LEN - 1] {
        folder.put(&good[..len]);
        assert!(
            matches!(folder.read(), Err(StateFileError::Damaged { .. })),
            "{len}"
        );
    }
    for len in [
        STATE_SLOT_LEN,
        STATE_SLOT_STRIDE,
        STATE_SLOT_STRIDE + STATE_SLOT_LEN - 1,
    ] {
        folder.put(&good[..len]);
        assert_eq!(folder.read().unwrap(), Some(state(3)), "{len}");
    }
    folder.put(&good[..STATE_SLOT_STRIDE + STATE_SLOT_LEN]);
    assert_eq!(folder.read().unwrap(), Some(state(4)));
    folder.put(&[&good[..], &[0]].concat());
    assert!(matches!(folder.read(), Err(StateFileError::File(_))));
    folder.put(&[0; STATE_FILE_LEN]);
    assert!(matches!(folder.read(), Err(StateFileError::Damaged { .. })));
}

#[test]
fn m10_a_newer_version_is_refused_even_if_the_other_slot_is_known() {
    let folder = Folder::new();
    drop(StateFile::open(folder.path(), state(3)).unwrap());
    let good = folder.bytes();
    let mut newer = good[..STATE_SLOT_LEN].to_vec();
    newer[8..12].copy_from_slice(&(STATE_VERSION + 1).to_be_bytes());
    let crc = crc32c::crc32c(&newer[..STATE_SLOT_LEN - 4]);
    newer[STATE_SLOT_LEN - 4..].copy_from_slice(&crc.to_be_bytes());
    for at in [0, STATE_SLOT_STRIDE] {
        let mut bytes = good.clone();
        bytes[at..at + STATE_SLOT_LEN].copy_from_slice(&newer);
        folder.put(&bytes);
        let error = folder.read().unwrap_err();
        assert!(
            matches!(error, StateFileError::Newer { version: 2, .. }),
            "{error}"
        );
        assert!(StateFile::open(folder.path(), state(9)).is_err());
        assert_eq!(folder.bytes(), bytes, "nothing was changed");
    }
}

#[test]
fn k09_a_promise_is_never_taken_back() {
    let folder = Folder::new();
    let mut file = StateFile::open(folder.path(), state(5)).unwrap();
    let before = folder.bytes();
    let lowered = [
        (
            State {
                max_epoch: Some(4),
                served_epoch: Some(4),
                ..state(5)
            },
            "max_epoch would fall",
        ),
        (
            State {
                max_epoch: None,
                served_epoch: None,
                ..state(5)
            },
            "max_epoch would fall",
        ),
        (
            State {
                served_epoch: Some(3),
                ..state(5)
            },
            "served_epoch would fall",
        ),
        (
            State {
                served_epoch: None,
                ..state(5)
            },
            "served_epoch would fall",
        ),
        (
            State {
                incarnation: 2,
                ..state(5)
            },
            "incarnation would fall",
        ),
    ];
    for (state, expected) in lowered {
        let error = file.store(state).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let error = StateFile::open(folder.path(), state)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(folder.bytes(), before);
    }
    assert_eq!(file.current(), &state(5));
    file.store(state(6)).unwrap();
}

#[test]
fn a_state_that_contradicts_itself_is_neither_stored_nor_believed() {
    let cases = [
        State {
            served_epoch: Some(6),
            ..state(5)
        },
        State {
            scan_from: 4097,
            ..state(5)
        },
        State {
            flushed: MAX_OFFSET + 1,
            ..state(5)
        },
        State {
            max_epoch: Some(MAX_EPOCH + 1),
            ..state(5)
        },
        State {
            flushed: 5001,
            ..clean(5000)
        },
        State {
            sync_failed: true,
            ..clean(5000)
        },
    ];
    for bad in cases {
        let folder = Folder::new();
        let error = StateFile::open(folder.path(), bad).unwrap_err();
        assert!(
            matches!(error, StateFileError::Contradiction { .. }),
            "{error}"
        );
        assert!(!folder.path().exists());
        let mut bytes = vec![0; STATE_FILE_LEN];
        bytes[..STATE_SLOT_LEN].copy_from_slice(&slot::encode(&bad, 1));
        folder.put(&bytes);
        assert!(
            matches!(folder.read(), Err(StateFileError::Damaged { .. })),
            "{bad:?}"
        );
    }
}

#[test]
fn a_failed_store_leaves_the_last_good_slot_alone() {
    let folder = Folder::new();
    let mut file = StateFile::open(folder.path(), state(1)).unwrap();
    file.store(state(2)).unwrap();
    let writable = std::mem::replace(&mut file.file, File::open(folder.path()).unwrap());
    for _ in 0..3 {
        let error = file.store(state(3)).unwrap_err();
        assert!(
            error.to_string().contains("epochlog.state: cannot write"),
            "{error}"
        );
        assert_eq!(file.current(), &state(2));
    }
    file.file = writable;
    file.store(state(4)).unwrap();
    // The slot of state 2 must be the one that was left alone.
    let bytes = folder.bytes();
    assert_eq!(
        slot::decode(&bytes[..STATE_SLOT_LEN]).unwrap(),
        (state(4), 3)
    );
    let second = &bytes[STATE_SLOT_STRIDE..][..STATE_SLOT_LEN];
    assert_eq!(slot::decode(second).unwrap(), (state(2), 2));
}

#[test]
fn p8_a_counter_at_its_end_is_an_error_and_never_wraps() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(STATE_FILE_NAME);
    let slots = |state: &State, sequence| {
        let mut bytes = vec![0; STATE_FILE_LEN];
        bytes[..STATE_SLOT_LEN].copy_from_slice(&slot::encode(state, sequence));
        bytes
    };
    for sequence in [u64::MAX, MAX_COUNT + 1] {
        fs::write(&path, slots(&state(3), sequence)).unwrap();
        let error = StateFile::read(&path).unwrap_err();
        assert!(matches!(error, StateFileError::Damaged { .. }), "{error}");
    }
    fs::write(&path, slots(&state(3), MAX_COUNT)).unwrap();
    assert_eq!(StateFile::read(&path).unwrap(), Some(state(3)));
    let error = StateFile::open(&path, state(3)).unwrap_err();
    assert!(error.to_string().contains("sequence"), "{error}");
    for (incarnation, generation) in [(u64::MAX, 1), (1, MAX_COUNT + 1)] {
        let over = State {
            incarnation,
            generation,
            ..state(3)
        };
        fs::write(&path, slots(&over, 1)).unwrap();
        let error = StateFile::read(&path).unwrap_err();
        assert!(error.to_string().contains("a counter is beyond"), "{error}");
    }
}
