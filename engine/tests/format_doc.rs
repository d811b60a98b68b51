//! Holds docs/format.md to the code: every position, length and constant in its tables is compared
//! with bytes that the engine wrote. A table that drifts, a row that is missing or one that nobody
//! checks fails here.

#![expect(
    clippy::unwrap_used,
    reason = "a test stops where its own input is wrong"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use epochlog_engine as engine;
use epochlog_engine::{
    Checkpoint, CheckpointFile, CleanStop, EncodeOptions, EpochEntry, EpochList, Message,
    MessageBatch, QueueUnit, QueuesMark, Stamp, State, StateFile, encode_into, encoded_len,
    sys_flag, write_filler,
};

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/format.md");
    fs::read_to_string(path).unwrap()
}

/// The rows of the `index`-th table under `heading`, without its head.
fn table(page: &str, heading: &str, index: usize) -> Vec<Vec<String>> {
    let start = page
        .find(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("{heading} is gone"));
    let section = &page[start + heading.len() + 2..];
    let level = heading.split(' ').next().unwrap().len();
    let ends = |line: &&str| {
        let hashes = line.bytes().take_while(|byte| *byte == b'#').count();
        hashes > 0 && hashes <= level
    };
    let end = section
        .lines()
        .position(|line| ends(&line))
        .unwrap_or(usize::MAX);
    let lines: Vec<_> = section.lines().take(end).collect();
    let mut tables = lines
        .split(|line| !line.starts_with('|'))
        .filter(|lines| !lines.is_empty());
    let rows = tables
        .nth(index)
        .unwrap_or_else(|| panic!("{heading} has no table {index}"));
    let cells = |row: &&str| {
        row.trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    rows.iter().skip(2).map(cells).collect()
}

/// A field as a table has it.
#[derive(Clone, Debug)]
struct Field {
    position: String,
    len: String,
    name: String,
}

fn fields(page: &str, heading: &str, index: usize) -> Vec<Field> {
    let field = |row: Vec<String>| Field {
        position: row[0].clone(),
        len: row[1].clone(),
        name: row[2].clone(),
    };
    table(page, heading, index).into_iter().map(field).collect()
}

/// Reads the named fields of `bytes` where the table says they are, and holds the positions together:
/// each field begins where the one before it ends. `lengths` says what the words in the length column
/// stand for.
fn read(bytes: &[u8], table: &[Field], lengths: &[(&str, usize)]) -> BTreeMap<String, Vec<u8>> {
    let number = |text: &str| -> usize {
        let of = |part: &str| {
            let known = lengths.iter().find(|(word, _)| *word == part);
            known.map_or_else(|| part.parse().unwrap(), |(_, len)| *len)
        };
        lengths
            .iter()
            .find(|(word, _)| *word == text)
            .map_or_else(|| text.split('+').map(of).sum(), |(_, len)| *len)
    };
    let mut at = 0;
    let mut read = BTreeMap::new();
    for Field {
        position,
        len,
        name,
    } in table
    {
        if !position.is_empty() {
            assert_eq!(number(position), at, "position of {name}");
        }
        let end = at + number(len);
        read.insert(name.clone(), bytes[at..end].to_vec());
        at = end;
    }
    assert_eq!(at, bytes.len(), "the table ends where the bytes end");
    read
}

fn expect(read: &BTreeMap<String, Vec<u8>>, expected: &[(&str, &[u8])]) {
    for (name, bytes) in expected {
        let found = read.get(*name).unwrap_or_else(|| panic!("no row {name}"));
        assert_eq!(found, bytes, "{name}");
    }
    let checked: Vec<_> = expected.iter().map(|(name, _)| *name).collect();
    let unchecked: Vec<_> = read
        .keys()
        .filter(|name| !checked.contains(&name.as_str()))
        .collect();
    assert!(
        unchecked.is_empty(),
        "nothing holds these rows: {unchecked:?}"
    );
}

fn message<'a>(topic: &'a str, properties: &'a [u8]) -> Message<'a> {
    Message {
        topic,
        queue_id: 0x0102_0304,
        flag: 0x0506_0708,
        sys_flag: sys_flag::COMPRESSED,
        born_timestamp_ms: 0x1112_1314_1516_1718,
        born_host: "1.2.3.4:258".parse().unwrap(),
        store_host: "5.6.7.8:772".parse().unwrap(),
        reconsume_times: 0x2122_2324,
        prepared_transaction_offset: 0x3132_3334_3536_3738,
        body: b"hello",
        properties,
    }
}

fn encode(message: &Message<'_>, append_property_crc: bool) -> Vec<u8> {
    let options = EncodeOptions {
        append_property_crc,
    };
    let stamp = Stamp {
        queue_offset: 0x4142_4344_4546_4748,
        physical_offset: 0x5152_5354_5556_5758,
        store_timestamp_ms: 0x6162_6364_6566_6768,
    };
    let mut bytes = vec![0; encoded_len(message, options).unwrap()];
    encode_into(&mut bytes, message, stamp, options).unwrap();
    bytes
}

#[test]
fn the_record_table_is_what_the_encoder_writes() {
    let long_topic = "t".repeat(300);
    let cases = [
        ("topic", false, engine::RECORD_MAGIC_V1, &[5][..]),
        (&long_topic, false, engine::RECORD_MAGIC_V2, &[1, 44][..]),
        ("topic", true, engine::RECORD_MAGIC_V1, &[5][..]),
    ];
    for (topic, v6, magic, topic_len) in cases {
        let mut message = message(topic, b"a\x01b\x02");
        let (mut born, mut store) = (vec![1, 2, 3, 4, 0, 0, 1, 2], vec![5, 6, 7, 8, 0, 0, 3, 4]);
        let mut flags = sys_flag::COMPRESSED;
        let mut table = fields(&page(), "## Record", 0);
        if v6 {
            message.born_host = "[102::304]:258".parse().unwrap();
            message.store_host = "[506::708]:772".parse().unwrap();
            born = [&[1, 2][..], &[0; 12], &[3, 4, 0, 0, 1, 2]].concat();
            store = [&[5, 6][..], &[0; 12], &[7, 8, 0, 0, 3, 4]].concat();
            flags |= sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6;
            // The page gives positions for IPv4 and says how far IPv6 moves them.
            let behind = |table: &mut Vec<Field>, name: &str| {
                let at = table.iter().position(|field| field.name == name).unwrap();
                for field in &mut table[at + 1..] {
                    if !field.position.is_empty() {
                        field.position.push_str("+12");
                    }
                }
            };
            behind(&mut table, "born host");
            behind(&mut table, "store host");
        }
        let bytes = encode(&message, false);
        let host = if v6 { 20 } else { 8 };
        let lengths = [
            ("bh", host),
            ("sh", host),
            ("n", 5),
            ("1 or 2", topic_len.len()),
        ];
        let lengths = [&lengths[..], &[("t", topic.len()), ("p", 4)]].concat();
        let size = i32::try_from(bytes.len()).unwrap();
        expect(
            &read(&bytes, &table, &lengths),
            &[
                ("total size", &size.to_be_bytes()),
                ("magic", &magic.to_be_bytes()),
                ("body CRC", &907_060_870_i32.to_be_bytes()),
                ("queue id", &[1, 2, 3, 4]),
                ("flag", &[5, 6, 7, 8]),
                ("queue offset", b"ABCDEFGH"),
                ("physical offset", b"QRSTUVWX"),
                ("sys flag", &flags.to_be_bytes()),
                (
                    "born timestamp",
                    &[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18],
                ),
                ("born host", &born),
                ("store timestamp", b"abcdefgh"),
                ("store host", &store),
                ("reconsume times", &[0x21, 0x22, 0x23, 0x24]),
                ("prepared transaction offset", b"12345678"),
                ("body length", &[0, 0, 0, 5]),
                ("body", b"hello"),
                ("topic length", topic_len),
                ("topic", topic.as_bytes()),
                ("properties length", &[0, 4]),
                ("properties", b"a\x01b\x02"),
            ],
        );
    }
}

#[test]
fn the_property_crc_table_is_what_the_encoder_writes() {
    let bytes = encode(&message("topic", b""), true);
    let (covered, crc) = bytes.split_at(bytes.len() - engine::PROPERTY_CRC_LEN);
    let digits = format!("{:010}", crc32fast::hash(covered) & 0x7FFF_FFFF);
    let digits: Vec<u8> = digits.bytes().rev().collect();
    let read = read(crc, &fields(&page(), "### Properties", 0), &[]);
    expect(
        &read,
        &[
            ("name", b"__CRC32#"),
            ("separator", &[1]),
            ("digits", &digits),
            ("end", &[2]),
        ],
    );
}

#[test]
fn the_filler_table_is_what_is_written() {
    let mut bytes = [0xEE; 64];
    write_filler(&mut bytes);
    let read = read(&bytes, &fields(&page(), "## Filler", 0), &[("rest", 56)]);
    let magic = engine::FILLER_MAGIC.to_be_bytes();
    expect(
        &read,
        &[
            ("total size", &[0, 0, 0, 64]),
            ("magic", &magic),
            ("unused", &[0; 56]),
        ],
    );
}

#[test]
fn the_batch_table_is_what_is_read() {
    let values: &[(&str, &[u8])] = &[
        ("total size", &[0, 0, 0, 31]),
        ("magic", &[0; 4]),
        ("body CRC", &[0; 4]),
        ("flag", &[1, 2, 3, 4]),
        ("body length", &[0, 0, 0, 5]),
        ("body", b"hello"),
        ("properties length", &[0, 4]),
        ("properties", b"a\x01b\x02"),
    ];
    let table = fields(&page(), "## Batch as a client sends it", 0);
    let value = |field: &Field| {
        values
            .iter()
            .find(|(name, _)| *name == field.name)
            .unwrap()
            .1
    };
    let bytes = table.iter().map(value).collect::<Vec<_>>().concat();
    expect(&read(&bytes, &table, &[("n", 5), ("p", 4)]), values);
    let item = MessageBatch::new(&bytes).unwrap().next().unwrap();
    assert_eq!(
        (item.flag, item.body, item.properties),
        (0x0102_0304, &b"hello"[..], &b"a\x01b\x02"[..])
    );
}

#[test]
fn the_state_table_is_what_is_written() {
    let state = clean_state();
    let end = state.flushed.to_be_bytes();
    let file = state_file(state);
    assert_eq!(file.len(), engine::STATE_FILE_LEN);
    let slot = &file[..engine::STATE_SLOT_LEN];
    let crc = crc32c::crc32c(&slot[..engine::STATE_SLOT_LEN - 4]).to_be_bytes();
    let queues = flag("queues") | flag("complete");
    let all = flag("clean") | flag("max epoch") | flag("served epoch") | queues;
    expect(
        &read(slot, &fields(&page(), "## State file", 0), &[]),
        &[
            ("magic", b"EPOCHLOG"),
            ("version", &engine::STATE_VERSION.to_be_bytes()),
            ("flags", &all.to_be_bytes()),
            ("sequence", &1_u64.to_be_bytes()),
            ("boot id", b"0123456789abcdef"),
            ("incarnation", b"qrstuvwx"),
            ("max epoch", &[1, 2, 3, 4]),
            ("served epoch", &[1, 2, 3, 3]),
            ("flushed", &end),
            ("scan from", &state.scan_from.to_be_bytes()),
            ("generation", &state.generation.to_be_bytes()),
            ("clean end", &end),
            ("clean bases CRC", &[0x21, 0x22, 0x23, 0x24]),
            ("clean last record length", b"1234"),
            ("clean last record CRC", b"ABCD"),
            ("clean epoch file CRC", b"QRST"),
            ("clean checkpoint CRC", b"abcd"),
            ("queues through", b"01234567"),
            ("queue ends CRC", b"efgh"),
            ("unused", &[0; 388]),
            ("CRC", &crc),
        ],
    );
}

#[test]
fn the_state_flags_are_those_that_are_written() {
    let none = State {
        clean: None,
        max_epoch: None,
        served_epoch: None,
        queues: None,
        ..clean_state()
    };
    let max_epoch = State {
        max_epoch: Some(0),
        ..none
    };
    let served_epoch = State {
        served_epoch: Some(0),
        ..max_epoch
    };
    let queues = |complete| State {
        queues: Some(QueuesMark {
            through: 0,
            ends_crc: 0,
            complete,
        }),
        ..none
    };
    let cases = [
        (none, 0),
        (
            State {
                sync_failed: true,
                ..none
            },
            flag("sync failed"),
        ),
        (
            State {
                clean: clean_state().clean,
                ..none
            },
            flag("clean"),
        ),
        (max_epoch, flag("max epoch")),
        (served_epoch, flag("max epoch") | flag("served epoch")),
        (queues(false), flag("queues")),
        (queues(true), flag("queues") | flag("complete")),
    ];
    for (state, flags) in cases {
        assert_eq!(state_file(state)[12..16], flags.to_be_bytes(), "{state:?}");
    }
    let flags = table(&page(), "## State file", 1);
    assert_eq!(flags.len(), cases.len() - 1, "a flag without a check");
}

fn clean_state() -> State {
    let proofs = CleanStop {
        end: 0x1112_1314_1516_1718,
        bases_crc: 0x2122_2324,
        last_record_len: 0x3132_3334,
        last_record_crc: 0x4142_4344,
        epoch_file_crc: 0x5152_5354,
        checkpoint_crc: 0x6162_6364,
    };
    State {
        clean: Some(proofs),
        boot_id: *b"0123456789abcdef",
        incarnation: 0x7172_7374_7576_7778,
        max_epoch: Some(0x0102_0304),
        served_epoch: Some(0x0102_0303),
        flushed: proofs.end,
        scan_from: 0x0112_1314_1516_1718,
        generation: 0x7982_8384_8586_8788,
        sync_failed: false,
        queues: Some(QueuesMark {
            through: u64::from_be_bytes(*b"01234567"),
            ends_crc: u32::from_be_bytes(*b"efgh"),
            complete: true,
        }),
    }
}

/// The bytes of a new state file that holds `state`.
fn state_file(state: State) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(engine::STATE_FILE_NAME);
    StateFile::open(&path, state).unwrap();
    fs::read(&path).unwrap()
}

/// The bit of the state flag whose text begins with `name`.
fn flag(name: &str) -> u32 {
    let rows = table(&page(), "## State file", 1);
    let row = rows.iter().find(|row| row[1].starts_with(name)).unwrap();
    hex(&row[0])
}

fn hex(cell: &str) -> u32 {
    u32::from_str_radix(cell.trim_matches('`').trim_start_matches("0x"), 16).unwrap()
}

#[test]
fn the_checkpoint_table_is_what_is_written() {
    let checkpoint = Checkpoint {
        physic_msg_timestamp_ms: 0x1112_1314_1516_1718,
        logics_msg_timestamp_ms: 0x2122_2324_2526_2728,
        index_msg_timestamp_ms: 0x3132_3334_3536_3738,
        master_flushed_offset: 0x4142_4344_4546_4748,
        confirm_offset: 0x5152_5354_5556_5758,
        logics_physical_offset: 0x6162_6364_6566_6768,
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(engine::CHECKPOINT_FILE_NAME);
    CheckpointFile::open(&path)
        .unwrap()
        .store(checkpoint)
        .unwrap();
    let file = fs::read(&path).unwrap();
    assert_eq!(file.len(), engine::CHECKPOINT_FILE_LEN);
    let fields = fields(&page(), "## Checkpoint", 0);
    expect(
        &read(&file[..engine::CHECKPOINT_FIELDS_LEN], &fields, &[]),
        &[
            (
                "physic message timestamp",
                &[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18],
            ),
            ("logics message timestamp", b"!\"#$%&'("),
            ("index message timestamp", b"12345678"),
            ("master flushed offset", b"ABCDEFGH"),
            ("confirm offset", b"QRSTUVWX"),
            ("logics physical offset", b"abcdefgh"),
        ],
    );
}

#[test]
fn the_queue_unit_table_is_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = common::master(dir.path(), 1);
    let mut message = common::message(b"hello");
    message.properties = b"TAGS\x01TagA\x02";
    store.append(&message).unwrap();
    store.append(&message).unwrap();
    let end = store.end_offset();
    store.set_confirm(end);
    store.close().unwrap();
    let file = fs::read(dir.path().join("consumequeue/topic/0/00000000000000000000")).unwrap();
    assert_eq!(file.len() as u64, engine::DEFAULT_QUEUE_FILE_SIZE);
    let unit = &file[engine::QUEUE_UNIT_LEN..2 * engine::QUEUE_UNIT_LEN];
    let size = u32::try_from(end / 2).unwrap();
    expect(
        &read(unit, &fields(&page(), "## Consume queue", 0), &[]),
        &[
            ("offset", &(end / 2).to_be_bytes()),
            ("size", &size.to_be_bytes()),
            ("tags code", &2_598_919_i64.to_be_bytes()),
        ],
    );
    assert!(
        file[2 * engine::QUEUE_UNIT_LEN..]
            .iter()
            .all(|byte| *byte == 0)
    );
    assert_eq!(QueueUnit::decode(&engine::QUEUE_PRE_FILL), None);
    let pre_fill = (0_i64, i32::MAX, 0_i64);
    let bytes: Vec<_> = [
        &pre_fill.0.to_be_bytes()[..],
        &pre_fill.1.to_be_bytes(),
        &pre_fill.2.to_be_bytes(),
    ]
    .concat();
    assert_eq!(engine::QUEUE_PRE_FILL[..], bytes);
    assert!(page().contains("(0, 2147483647, 0)"));
}

#[test]
fn the_epoch_file_on_the_page_is_one_that_is_written() {
    let page = page();
    let text = page
        .split("```text\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let entries = vec![
        EpochEntry { epoch: 1, start: 0 },
        EpochEntry {
            epoch: 2,
            start: 1024,
        },
    ];
    assert_eq!(EpochList::from_entries(entries).unwrap().encode(), text);
    assert!(page.contains(r"The empty list is `0\n0\n`"));
    assert_eq!(EpochList::new().encode(), "0\n0\n");
}

#[test]
fn the_constants_on_the_page_are_those_of_the_code() {
    let magic = |magic: i32| {
        let bytes = magic.to_be_bytes();
        format!(
            "`{:02X} {:02X} {:02X} {:02X}`",
            bytes[0], bytes[1], bytes[2], bytes[3]
        )
    };
    let expected = [
        ("RECORD_MAGIC_V1", magic(engine::RECORD_MAGIC_V1)),
        ("RECORD_MAGIC_V2", magic(engine::RECORD_MAGIC_V2)),
        ("FILLER_MAGIC", magic(engine::FILLER_MAGIC)),
        ("FILLER_MIN_LEN", engine::FILLER_MIN_LEN.to_string()),
        ("MIN_RECORD_LEN", engine::MIN_RECORD_LEN.to_string()),
        ("MAX_RECORD_LEN", engine::MAX_RECORD_LEN.to_string()),
        ("MAX_V1_TOPIC_LEN", engine::MAX_V1_TOPIC_LEN.to_string()),
        ("MAX_TOPIC_LEN", engine::MAX_TOPIC_LEN.to_string()),
        ("MAX_PROPERTIES_LEN", engine::MAX_PROPERTIES_LEN.to_string()),
        ("PROPERTY_CRC_LEN", engine::PROPERTY_CRC_LEN.to_string()),
        ("MAX_BATCH_MESSAGES", engine::MAX_BATCH_MESSAGES.to_string()),
    ];
    let expected: Vec<_> = expected
        .map(|(name, value)| vec![format!("`{name}`"), value])
        .into();
    assert_eq!(table(&page(), "## Record", 1), expected);
    let in_text = [
        ("MAX_EPOCH_FILE_LEN", engine::MAX_EPOCH_FILE_LEN),
        ("STATE_SLOT_LEN", engine::STATE_SLOT_LEN as u64),
        ("QUEUE_UNIT_LEN", engine::QUEUE_UNIT_LEN as u64),
        ("DEFAULT_QUEUE_FILE_SIZE", engine::DEFAULT_QUEUE_FILE_SIZE),
        ("STATE_SLOT_STRIDE", engine::STATE_SLOT_STRIDE as u64),
        ("STATE_FILE_LEN", engine::STATE_FILE_LEN as u64),
        ("CHECKPOINT_FILE_LEN", engine::CHECKPOINT_FILE_LEN as u64),
        (
            "CHECKPOINT_FIELDS_LEN",
            engine::CHECKPOINT_FIELDS_LEN as u64,
        ),
    ];
    let page = page();
    for (name, value) in in_text {
        let before = page.split(&format!("(`{name}`)")).next().unwrap();
        let words = before.split_whitespace().rev().take(3).collect::<Vec<_>>();
        assert!(
            words.contains(&value.to_string().as_str()),
            "{name} is {value}, not {words:?}"
        );
    }
}

#[test]
fn the_sys_flag_bits_on_the_page_are_those_of_the_code() {
    let expected = [
        ("COMPRESSED", sys_flag::COMPRESSED),
        ("MULTI_TAGS", sys_flag::MULTI_TAGS),
        ("TRANSACTION_MASK", sys_flag::TRANSACTION_MASK),
        ("BORN_HOST_V6", sys_flag::BORN_HOST_V6),
        ("STORE_HOST_V6", sys_flag::STORE_HOST_V6),
        ("NEED_UNWRAP", sys_flag::NEED_UNWRAP),
        ("INNER_BATCH", sys_flag::INNER_BATCH),
        ("COMPRESSION_TYPE_MASK", sys_flag::COMPRESSION_TYPE_MASK),
    ];
    let rows = table(&page(), "### Sys flag", 0);
    let found: Vec<_> = rows
        .iter()
        .map(|row| (row[1].trim_matches('`'), hex(&row[0]).cast_signed()))
        .collect();
    assert_eq!(found, expected);
    let transactions = [
        sys_flag::TRANSACTION_PREPARED,
        sys_flag::TRANSACTION_COMMIT,
        sys_flag::TRANSACTION_ROLLBACK,
    ];
    let [prepared, commit, rollback] = transactions;
    let text = format!("0 none, {prepared} prepared, {commit} commit, {rollback} rollback");
    assert_eq!(rows[2][2], text);
}

#[test]
fn the_names_on_the_page_are_those_in_a_store_folder() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("index")).unwrap();
    let store = common::master(dir.path(), 1);
    common::append(&store, 9, 1000);
    store.set_confirm(1000);
    store.demote(2).unwrap();
    store
        .truncate(1000, common::epochs(&[(1, 0)]), "a test")
        .unwrap();
    store.close().unwrap();
    let name = |entry: fs::DirEntry| {
        let slash = if entry.path().is_dir() { "/" } else { "" };
        format!("{}{slash}", entry.file_name().to_str().unwrap())
    };
    let found: BTreeSet<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| name(entry.unwrap()))
        .collect();
    let rows = table(&page(), "## The store folder", 0);
    let on_page: BTreeSet<_> = rows
        .iter()
        .map(|row| row[0].trim_matches('`').to_owned())
        .collect();
    assert_eq!(found, on_page);
    assert_eq!(rows.len(), on_page.len(), "each name once");
}
