//! The bodies of SEND_BATCH_MESSAGE: taken whole or refused with the message that is wrong.

use epochlog_engine::{BatchError, BatchItem, MAX_BATCH_MESSAGES, MessageBatch};
use proptest::prelude::*;

fn item(flag: i32, body: &[u8], properties: &[u8]) -> Vec<u8> {
    let number = |number: usize| i32::try_from(number).unwrap().to_be_bytes();
    let mut bytes = Vec::new();
    bytes.extend(number(22 + body.len() + properties.len()));
    bytes.extend([0; 8]);
    bytes.extend(flag.to_be_bytes());
    bytes.extend(number(body.len()));
    bytes.extend(body);
    bytes.extend(&number(properties.len())[2..]);
    bytes.extend(properties);
    bytes
}

#[test]
fn a_batch_is_read_in_the_order_it_was_sent() {
    let mut bytes = item(7, b"hello", b"TAGS\x01A\x02");
    let first = b"\x00\x00\x00\x22\0\0\0\0\0\0\0\0\0\0\0\x07\0\0\0\x05hello\0\x07TAGS\x01A\x02";
    assert_eq!(bytes, first);
    bytes.extend(item(-1, b"", b""));
    let mut batch = MessageBatch::new(&bytes).unwrap();
    assert_eq!(batch.len(), 2);
    let item = BatchItem {
        flag: 7,
        body: b"hello",
        properties: b"TAGS\x01A\x02",
    };
    assert_eq!(batch.next(), Some(item));
    assert_eq!(batch.len(), 1);
    assert_eq!(
        batch.next(),
        Some(BatchItem {
            flag: -1,
            body: b"",
            properties: b""
        })
    );
    assert_eq!((batch.len(), batch.next()), (0, None));
}

#[test]
fn magic_and_crc_are_not_looked_at() {
    let mut bytes = item(1, b"b", b"");
    bytes[4..12].fill(0xAB);
    assert_eq!(
        MessageBatch::new(&bytes).unwrap().next().unwrap().body,
        b"b"
    );
}

#[test]
fn the_message_that_is_wrong_is_named() {
    let good = item(1, b"body", b"a\x01b\x02");
    let wrong = |at: usize, with: &[u8]| {
        let mut bytes = [&good[..], &good].concat();
        bytes[good.len() + at..][..with.len()].copy_from_slice(with);
        MessageBatch::new(&bytes).unwrap_err()
    };
    let at = good.len();
    let second = |size| BatchError::Item { index: 1, at, size };
    let size = i32::try_from(good.len()).unwrap();
    for bad in [0, -1, 21, size - 1, size + 1, i32::MAX, i32::MIN] {
        assert_eq!(wrong(0, &bad.to_be_bytes()), second(bad));
    }
    for bad in [-1, 3, 5, i32::MAX] {
        assert_eq!(wrong(16, &bad.to_be_bytes()), second(size), "body of {bad}");
    }
    for bad in [-1_i16, 3, 5, i16::MAX] {
        assert_eq!(
            wrong(24, &bad.to_be_bytes()),
            second(size),
            "properties of {bad}"
        );
    }
    for len in good.len() + 1..2 * good.len() {
        let bytes = &[&good[..], &good].concat()[..len];
        let error = MessageBatch::new(bytes).unwrap_err();
        let size = if len < good.len() + 4 { 0 } else { size };
        assert_eq!(error, second(size), "{len} bytes");
    }
}

#[test]
fn a_batch_has_at_least_one_message_and_at_most_the_limit() {
    assert_eq!(MessageBatch::new(b"").unwrap_err(), BatchError::Empty);
    let mut bytes = item(0, b"", b"").repeat(MAX_BATCH_MESSAGES);
    assert_eq!(
        MessageBatch::new(&bytes).unwrap().count(),
        MAX_BATCH_MESSAGES
    );
    bytes.extend(item(0, b"", b""));
    assert_eq!(MessageBatch::new(&bytes).unwrap_err(), BatchError::TooMany);
}

proptest! {
    #[test]
    fn items_come_back_as_they_went_in(
        items in prop::collection::vec(
            (any::<i32>(), prop::collection::vec(any::<u8>(), 0..50),
                prop::collection::vec(any::<u8>(), 0..50)),
            1..10,
        )
    ) {
        let bytes: Vec<u8> = items.iter().flat_map(|(f, b, p)| item(*f, b, p)).collect();
        let batch = MessageBatch::new(&bytes).unwrap();
        let read: Vec<_> =
            batch.map(|i| (i.flag, i.body.to_vec(), i.properties.to_vec())).collect();
        prop_assert_eq!(read, items);
    }

    #[test]
    fn a_batch_that_is_taken_can_be_walked_to_its_end(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200), size in 0..60_u8
    ) {
        if let Some(front) = bytes.first_chunk_mut::<4>() {
            *front = [0, 0, 0, size];
        }
        if let Ok(batch) = MessageBatch::new(&bytes) {
            let len = batch.len();
            let walked: usize =
                batch.map(|item| 22 + item.body.len() + item.properties.len()).sum();
            prop_assert_eq!(walked, bytes.len());
            prop_assert!(len > 0);
        }
    }
}
