//! The files beside the log: epoch file, Java's checkpoint, state file.

use std::fs;

use epochlog_engine::{
    CHECKPOINT_FIELDS_LEN, CHECKPOINT_FILE_NAME, Checkpoint, CheckpointFile, EPOCH_FILE_NAME,
    EpochEntry, EpochFile, EpochFileError, EpochList, STATE_FILE_NAME, STATE_SLOT_LEN,
    STATE_SLOT_STRIDE, State, StateFile, StateFileError,
};

use super::{header, scratch};

/// The first byte says whether count and CRC of the main file are mended, the second how much of the
/// data is the backup's.
pub fn epoch_file(data: &[u8]) {
    let Some((&[how, backup_len], rest)) = header::<2>(data) else {
        return;
    };
    let (backup, text) = rest.split_at(usize::from(backup_len).min(rest.len()));
    let mut text = text.to_vec();
    if how & 1 != 0 {
        text = with_head(&text);
    }
    let list = EpochList::decode(&text);
    if let Ok(list) = &list {
        one_list(list, u64::from(how) << 2);
    }
    let dir = scratch();
    let file = EpochFile::new(dir.path().join(EPOCH_FILE_NAME));
    fs::write(file.path(), &text).unwrap();
    let has_backup = how & 2 != 0;
    if has_backup {
        fs::write(file.backup_path(), backup).unwrap();
    }
    match (file.load(), &list) {
        (Ok(Some(loaded)), Ok(list)) => assert_eq!(loaded, *list),
        (Err(EpochFileError::Damaged { why, .. }), Err(error)) => {
            assert_eq!(why.to_string(), error.to_string());
        }
        (loaded, list) => panic!("{loaded:?}, but the text says {list:?}"),
    }
    assert_eq!(
        fs::read(file.path()).unwrap(),
        text,
        "reading changes nothing"
    );
    if has_backup {
        assert_eq!(fs::read(file.backup_path()).unwrap(), backup);
    }
    if let Ok(list) = list {
        file.replace(&list).unwrap();
        let (main, copy) = (fs::read(file.path()), fs::read(file.backup_path()));
        assert_eq!(main.unwrap(), copy.unwrap());
        assert_eq!(file.load().unwrap(), Some(list));
    }
}

/// The lines of an epoch file with the count and the CRC that belong to them.
fn with_head(lines: &[u8]) -> Vec<u8> {
    let count = lines.split_inclusive(|byte| *byte == b'\n').count();
    let crc = crc32fast::hash(lines) & 0x7FFF_FFFF;
    let mut text = format!("{count}\n{crc}\n").into_bytes();
    text.extend_from_slice(lines);
    text
}

fn one_list(list: &EpochList, place: u64) {
    let entries = list.entries();
    for pair in entries.windows(2) {
        assert!(pair[0].epoch < pair[1].epoch && pair[0].start <= pair[1].start);
    }
    assert_eq!(
        EpochList::decode(list.encode().as_bytes()).as_ref(),
        Ok(list)
    );
    assert_eq!(EpochList::from_entries(entries.to_vec()).as_ref(), Ok(list));
    for entry in entries {
        assert_eq!(list.find(entry.epoch), Some(*entry));
    }
    let places = entries.iter().map(|entry| entry.start).chain([place]);
    for at in places {
        let newest = entries.iter().rev().find(|entry| entry.start <= at);
        let covering = list.covering(at);
        assert_eq!(covering.map(|span| span.entry), newest.copied());
        if let Some(end) = covering.and_then(|span| span.end) {
            assert!(at < end);
        }
        let mut cut = list.clone();
        cut.cut_suffix(at);
        assert!(cut.entries().iter().all(|entry| entry.start < at));
        assert!(entries.starts_with(cut.entries()));
        let mut cut = list.clone();
        cut.drop_starting_after(at);
        assert!(cut.last().is_none_or(|last| last.start <= at));
        let mut cut = list.clone();
        cut.cut_prefix(at);
        assert_eq!(
            cut.covering(at),
            list.covering(at),
            "the label of the new first byte"
        );
        assert!(entries.ends_with(cut.entries()));
        let mut own = EpochList::new();
        own.append(EpochEntry { epoch: 0, start: 0 }).unwrap();
        if let Ok(adopted) = own.adopt(list, at) {
            assert!(adopted.last().is_none_or(|last| last.start <= at));
        }
    }
    let plain = list.without_zero_length();
    assert!(
        plain
            .entries()
            .windows(2)
            .all(|pair| pair[0].start < pair[1].start)
    );
}

pub fn checkpoint(data: &[u8]) {
    let decoded = Checkpoint::decode(data);
    let encoded = decoded.encode();
    assert_eq!(Checkpoint::decode(&encoded), decoded);
    let fields = data.len().min(CHECKPOINT_FIELDS_LEN);
    assert_eq!(encoded[..fields], data[..fields]);
    assert!(encoded[fields..].iter().all(|byte| *byte == 0));
    assert!(decoded.min_timestamp_ms() >= 0);
    let dir = scratch();
    let path = dir.path().join(CHECKPOINT_FILE_NAME);
    fs::write(&path, data).unwrap();
    assert_eq!(CheckpointFile::read(&path).unwrap(), Some(decoded));
    assert_eq!(fs::read(&path).unwrap(), data, "reading changes nothing");
    let mut file = CheckpointFile::open(&path).unwrap();
    assert_eq!(file.current(), decoded);
    let mut other = decoded;
    other.confirm_offset = !decoded.confirm_offset;
    file.store(other).unwrap();
    assert_eq!(CheckpointFile::read(&path).unwrap(), Some(other));
    let bytes = fs::read(&path).unwrap();
    let behind = data.get(CHECKPOINT_FIELDS_LEN..).unwrap_or_default();
    assert_eq!(bytes[CHECKPOINT_FIELDS_LEN..][..behind.len()], *behind);
}

/// The first byte says which slots get the CRC they need and which magic is mended.
pub fn state_file(data: &[u8]) {
    let Some((&[how], rest)) = header::<1>(data) else {
        return;
    };
    let mut bytes = vec![0; 2 * STATE_SLOT_STRIDE];
    let (first, second) = rest.split_at(rest.len().min(STATE_SLOT_LEN));
    bytes[..first.len()].copy_from_slice(first);
    let second = &second[..second.len().min(STATE_SLOT_LEN)];
    bytes[STATE_SLOT_STRIDE..][..second.len()].copy_from_slice(second);
    for (bit, at) in [(1, 0), (2, STATE_SLOT_STRIDE)] {
        let slot = &mut bytes[at..at + STATE_SLOT_LEN];
        if how & bit != 0 {
            slot[..8].copy_from_slice(b"EPOCHLOG");
            slot[8..11].fill(0);
            let crc = crc32c::crc32c(&slot[..STATE_SLOT_LEN - 4]);
            slot[STATE_SLOT_LEN - 4..].copy_from_slice(&crc.to_be_bytes());
        }
    }
    if how & 4 != 0 {
        bytes.truncate(usize::from(how) * 32);
    }
    let dir = scratch();
    let path = dir.path().join(STATE_FILE_NAME);
    fs::write(&path, &bytes).unwrap();
    let found = StateFile::read(&path);
    assert_eq!(fs::read(&path).unwrap(), bytes, "reading changes nothing");
    match found {
        Err(StateFileError::File(error)) => panic!("{error}"),
        Err(error) => {
            assert!(error.to_string().contains(STATE_FILE_NAME));
            assert!(StateFile::open(&path, State::default()).is_err());
            assert_eq!(
                fs::read(&path).unwrap(),
                bytes,
                "a damaged file is not replaced"
            );
        }
        Ok(None) => panic!("there is a file"),
        Ok(Some(state)) => keep_promises(&path, state),
    }
}

/// What was read can be stored again, a state that takes a promise back cannot, and the newest counts.
fn keep_promises(path: &std::path::Path, state: State) {
    assert!(state.scan_from <= state.flushed && state.served_epoch <= state.max_epoch);
    let mut file = match StateFile::open(path, state) {
        Ok(file) => file,
        // The sequence or a counter has reached its end.
        Err(error) => {
            assert!(
                matches!(error, StateFileError::Contradiction { .. }),
                "{error}"
            );
            return;
        }
    };
    assert_eq!(StateFile::read(path).unwrap(), Some(state));
    let mut later = state;
    later.clean = None;
    later.scan_from = 0;
    if file.store(later).is_ok() {
        assert_eq!(StateFile::read(path).unwrap(), Some(later));
    }
    if let Some(epoch) = state.max_epoch.filter(|epoch| *epoch > 0) {
        let mut taken_back = later;
        taken_back.max_epoch = Some(epoch - 1);
        taken_back.served_epoch = state.served_epoch.filter(|served| *served < epoch);
        assert!(file.store(taken_back).is_err(), "max_epoch never falls");
        assert_eq!(*file.current(), later);
    }
}
