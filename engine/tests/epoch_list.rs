//! The epoch list as tables: what each operation keeps and drops, and the text it reads and writes.
//! Every operation also runs with epoch 0 and with the largest epoch (e07).

#![expect(
    clippy::unwrap_used,
    reason = "a test stops where its own input is wrong"
)]

use epochlog_engine::{
    EpochEntry, EpochList, EpochListError, EpochSpan, EpochTextError, MAX_EPOCH, MAX_OFFSET,
};
use proptest::prelude::*;

fn entry(epoch: u32, start: u64) -> EpochEntry {
    EpochEntry { epoch, start }
}

fn list(entries: &[(u32, u64)]) -> EpochList {
    EpochList::from_entries(entries.iter().map(|&(e, s)| entry(e, s)).collect()).unwrap()
}

fn pairs(list: &EpochList) -> Vec<(u32, u64)> {
    list.entries()
        .iter()
        .map(|entry| (entry.epoch, entry.start))
        .collect()
}

#[test]
fn a08_elections_without_writes_keep_every_epoch_and_label_with_the_newest() {
    let mut epochs = list(&[(1, 0)]);
    epochs.append(entry(2, 0)).unwrap();
    epochs.append(entry(3, 0)).unwrap();
    assert_eq!(pairs(&epochs), [(1, 0), (2, 0), (3, 0)]);
    assert_eq!(
        epochs.covering(0),
        Some(EpochSpan {
            entry: entry(3, 0),
            end: None
        })
    );

    let mut epochs = list(&[(1, 0), (2, 100)]);
    epochs.append(entry(3, 100)).unwrap();
    assert_eq!(pairs(&epochs), [(1, 0), (2, 100), (3, 100)]);
    assert_eq!(
        epochs.covering(99),
        Some(EpochSpan {
            entry: entry(1, 0),
            end: Some(100)
        })
    );
    assert_eq!(
        epochs.covering(100),
        Some(EpochSpan {
            entry: entry(3, 100),
            end: None
        })
    );

    let slave = list(&[(1, 0), (2, 100)]);
    assert_eq!(slave.adopt(&epochs, 100).unwrap(), epochs);
}

#[test]
fn an_entry_follows_only_a_smaller_epoch_that_does_not_start_later() {
    let mut epochs = list(&[(5, 100)]);
    for refused in [entry(5, 200), entry(4, 200), entry(6, 99), entry(0, 0)] {
        let error = EpochListError::Order {
            last: entry(5, 100),
            next: refused,
        };
        assert_eq!(epochs.append(refused), Err(error));
        assert_eq!(
            EpochList::from_entries(vec![entry(5, 100), refused]),
            Err(error)
        );
    }
    for refused in [entry(MAX_EPOCH + 1, 200), entry(6, MAX_OFFSET + 1)] {
        assert_eq!(epochs.append(refused), Err(EpochListError::Range(refused)));
    }
    assert_eq!(
        pairs(&epochs),
        [(5, 100)],
        "a refused entry changes nothing"
    );
    epochs.append(entry(MAX_EPOCH, MAX_OFFSET)).unwrap();
    assert_eq!(epochs.last(), Some(entry(MAX_EPOCH, MAX_OFFSET)));
}

#[test]
fn covering_finds_the_newest_entry_at_or_below_the_offset() {
    let epochs = list(&[(0, 50), (2, 100), (3, 100), (4, 100), (9, 300)]);
    let cases = [
        (0, None),
        (49, None),
        (50, Some((entry(0, 50), Some(100)))),
        (99, Some((entry(0, 50), Some(100)))),
        (100, Some((entry(4, 100), Some(300)))),
        (299, Some((entry(4, 100), Some(300)))),
        (300, Some((entry(9, 300), None))),
        (MAX_OFFSET, Some((entry(9, 300), None))),
        (u64::MAX, Some((entry(9, 300), None))),
    ];
    for (offset, expected) in cases {
        let expected = expected.map(|(entry, end)| EpochSpan { entry, end });
        assert_eq!(epochs.covering(offset), expected, "at {offset}");
    }
    assert_eq!(EpochList::new().covering(0), None);
    assert_eq!(epochs.find(0), Some(entry(0, 50)));
    assert_eq!(epochs.find(3), Some(entry(3, 100)));
    assert_eq!(epochs.find(5), None);
}

type Cut = fn(&mut EpochList, u64) -> bool;
const AFTER: Cut = EpochList::drop_starting_after;
const SUFFIX: Cut = EpochList::cut_suffix;
const PREFIX: Cut = EpochList::cut_prefix;

#[test]
fn cuts_drop_exactly_what_they_say() {
    let five: &[(u32, u64)] = &[(0, 0), (2, 100), (3, 100), (4, 300), (MAX_EPOCH, 400)];
    // What is kept, as a range of `five`.
    let cases = [
        ("after", AFTER, 0, 0..1),
        ("after", AFTER, 99, 0..1),
        ("after", AFTER, 100, 0..3),
        ("after", AFTER, 399, 0..4),
        ("after", AFTER, 400, 0..5),
        ("after", AFTER, u64::MAX, 0..5),
        ("suffix", SUFFIX, 0, 0..0),
        ("suffix", SUFFIX, 1, 0..1),
        ("suffix", SUFFIX, 100, 0..1),
        ("suffix", SUFFIX, 101, 0..3),
        ("suffix", SUFFIX, 400, 0..4),
        ("suffix", SUFFIX, 401, 0..5),
        ("prefix", PREFIX, 0, 0..5),
        ("prefix", PREFIX, 100, 0..5),
        ("prefix", PREFIX, 101, 2..5),
        ("prefix", PREFIX, 300, 2..5),
        ("prefix", PREFIX, 301, 3..5),
        ("prefix", PREFIX, 400, 3..5),
        ("prefix", PREFIX, 401, 4..5),
        ("prefix", PREFIX, u64::MAX, 4..5),
    ];
    for (name, cut, at, kept) in cases {
        let mut epochs = list(five);
        let dropped = cut(&mut epochs, at);
        assert_eq!(pairs(&epochs), five[kept.clone()], "{name} at {at}");
        assert_eq!(dropped, kept.len() < five.len(), "{name} at {at}");
        assert!(!cut(&mut epochs, at), "{name} at {at} twice");
        assert!(!cut(&mut EpochList::new(), at));
    }
}

#[test]
fn after_a_suffix_cut_the_last_entry_is_open_again() {
    let mut epochs = list(&[(1, 0), (2, 100), (3, 200)]);
    assert!(epochs.cut_suffix(200));
    assert_eq!(
        epochs.covering(250),
        Some(EpochSpan {
            entry: entry(2, 100),
            end: None
        })
    );
}

#[test]
fn adopting_takes_the_masters_entries_up_to_the_point() {
    type Entries = &'static [(u32, u64)];
    let cases: &[(Entries, Entries, u64, Entries)] = &[
        // Own, master's, point, result.
        (&[(1, 0)], &[(1, 0), (2, 100)], 100, &[(1, 0), (2, 100)]),
        (&[(1, 0)], &[(1, 0), (2, 100)], 99, &[(1, 0)]),
        (&[(1, 0), (2, 100)], &[(1, 0), (3, 200)], 100, &[(1, 0)]),
        (
            &[(1, 0), (3, 100)],
            &[(1, 0), (2, 100), (3, 100)],
            300,
            &[(1, 0), (2, 100), (3, 100)],
        ),
        // The master has cut its oldest segments, the slave has not.
        (
            &[(1, 0), (2, 50), (3, 80)],
            &[(3, 80), (4, 90)],
            95,
            &[(1, 0), (2, 50), (3, 80), (4, 90)],
        ),
        // The slave has cut its oldest segments, the master has not.
        (
            &[(3, 80)],
            &[(1, 0), (2, 50), (3, 80)],
            95,
            &[(1, 0), (2, 50), (3, 80)],
        ),
        // The point lies below the master's first entry.
        (
            &[(1, 0), (2, 50), (3, 60)],
            &[(4, 80)],
            55,
            &[(1, 0), (2, 50)],
        ),
        (&[], &[(1, 0), (2, 100)], 0, &[(1, 0)]),
        (&[(1, 0), (2, 100)], &[], 99, &[(1, 0)]),
        (
            &[(0, 0)],
            &[(0, 0), (MAX_EPOCH, 10)],
            10,
            &[(0, 0), (MAX_EPOCH, 10)],
        ),
    ];
    for (own, master, point, expected) in cases {
        let adopted = list(own).adopt(&list(master), *point).unwrap();
        assert_eq!(
            pairs(&adopted),
            *expected,
            "{own:?} adopts {master:?} up to {point}"
        );
    }
    let error = list(&[(5, 0)]).adopt(&list(&[(3, 100)]), 100).unwrap_err();
    assert_eq!(
        error,
        EpochListError::Order {
            last: entry(5, 0),
            next: entry(3, 100)
        }
    );
}

#[test]
fn without_zero_length_epochs_the_newest_of_equal_starts_is_left() {
    let epochs = list(&[(1, 0), (2, 0), (3, 100), (4, 200), (5, 200), (6, 200)]);
    assert_eq!(
        pairs(&epochs.without_zero_length()),
        [(2, 0), (3, 100), (6, 200)]
    );
    assert_eq!(EpochList::new().without_zero_length(), EpochList::new());
}

#[test]
fn the_text_is_what_java_writes() {
    let cases: [(&[(u32, u64)], &str); 5] = [
        (&[], "0\n0\n"),
        (&[(1, 0)], "1\n1725254278\n1-0\n"),
        (&[(1, 0), (2, 1024)], "2\n327520601\n1-0\n2-1024\n"),
        (&[(7, 7000), (8, 8000)], "2\n773307083\n7-7000\n8-8000\n"),
        (
            &[(0, 0), (MAX_EPOCH, MAX_OFFSET)],
            "2\n2099719924\n0-0\n2147483647-9223372036854775807\n",
        ),
    ];
    for (entries, text) in cases {
        assert_eq!(list(entries).encode(), text);
        assert_eq!(EpochList::decode(text.as_bytes()), Ok(list(entries)));
    }
}

#[test]
fn either_line_end_is_read_and_a_crc_of_zero_is_not_checked() {
    let expected = list(&[(7, 7000), (8, 8000)]);
    let windows_crc = crc32fast::hash(b"7-7000\r\n8-8000\r\n") & 0x7FFF_FFFF;
    let windows = format!("2\r\n{windows_crc}\r\n7-7000\r\n8-8000\r\n");
    // A file that changed platforms keeps its CRC and changes its line ends.
    let moved_here = format!("2\n{windows_crc}\n7-7000\n8-8000\n");
    let texts = [
        &windows,
        &moved_here,
        "2\r\n773307083\r\n7-7000\r\n8-8000\r\n",
        "2\n773307083\n7-7000\n8-8000",
        "2\n0\n7-7000\n8-8000\n",
    ];
    for text in texts {
        assert_eq!(
            EpochList::decode(text.as_bytes()),
            Ok(expected.clone()),
            "{text:?}"
        );
    }
}

fn assert_decode_fails(cases: &[(&str, EpochTextError)]) {
    for (text, expected) in cases {
        assert_eq!(
            EpochList::decode(text.as_bytes()).as_ref(),
            Err(expected),
            "{text:?}"
        );
    }
}

#[test]
fn what_is_wrong_with_the_first_two_lines_is_said() {
    let count = || EpochTextError::Line {
        line: 1,
        expected: "the number of entries",
    };
    let crc = || EpochTextError::Line {
        line: 2,
        expected: "the CRC of the entries",
    };
    assert_decode_fails(&[
        ("", count()),
        ("\n", count()),
        ("2", count()),
        ("-1\n0\n", count()),
        ("+1\n0\n1-0\n", count()),
        ("99999999999999999999\n0\n", count()),
        ("1\n", crc()),
        ("1\n12", crc()),
        ("1\nx\n1-0\n", crc()),
        (
            "1\n0\n",
            EpochTextError::Count {
                stated: 1,
                found: 0,
            },
        ),
        (
            "1\n0\n1-0\n2-5\n",
            EpochTextError::Count {
                stated: 1,
                found: 2,
            },
        ),
        (
            "1\n0\n1-0\n\n",
            EpochTextError::Count {
                stated: 1,
                found: 2,
            },
        ),
        (
            "1\n1725254279\n1-0\n",
            EpochTextError::Crc {
                stated: 1_725_254_279,
                computed: 1_725_254_278,
            },
        ),
    ]);
}

#[test]
fn what_is_wrong_with_an_entry_is_said_by_line() {
    let shape = |line| EpochTextError::Line {
        line,
        expected: "epoch-start in decimal digits",
    };
    let order = |line, last, next| EpochTextError::Entry {
        line,
        source: EpochListError::Order { last, next },
    };
    assert_decode_fails(&[
        ("1\n0\n1\n", shape(3)),
        ("1\n0\n1-\n", shape(3)),
        ("1\n0\n-0\n", shape(3)),
        ("2\n0\n1-0\n1-2-3\n", shape(4)),
        ("1\n0\n1--5\n", shape(3)),
        ("1\n0\n 1-0\n", shape(3)),
        ("1\n0\n4294967296-0\n", shape(3)),
        ("2\n0\n3-0\n2-5\n", order(4, entry(3, 0), entry(2, 5))),
        ("2\n0\n2-5\n3-4\n", order(4, entry(2, 5), entry(3, 4))),
        (
            "1\n0\n2147483648-0\n",
            EpochTextError::Entry {
                line: 3,
                source: EpochListError::Range(entry(1 << 31, 0)),
            },
        ),
    ]);
}

fn any_list() -> impl Strategy<Value = EpochList> {
    let steps = prop::collection::vec((1..1000_u32, prop_oneof![Just(0), 0..1_000_000_u64]), 0..20);
    (any::<bool>(), steps).prop_map(|(from_zero, steps)| {
        let (mut epoch, mut start) = (0, 0);
        let mut epochs = EpochList::new();
        if from_zero {
            epochs.append(entry(0, 0)).unwrap();
        }
        for (more_epochs, more_bytes) in steps {
            (epoch, start) = (epoch + more_epochs, start + more_bytes);
            epochs.append(entry(epoch, start)).unwrap();
        }
        epochs
    })
}

proptest! {
    #[test]
    fn any_list_survives_its_text(epochs in any_list()) {
        let text = epochs.encode();
        prop_assert_eq!(EpochList::decode(text.as_bytes()), Ok(epochs.clone()));
        prop_assert_eq!(epochs.fingerprint(), crc32c::crc32c(text.as_bytes()));
    }

    #[test]
    fn no_prefix_and_no_flipped_byte_of_a_text_gives_another_list(
        epochs in any_list(), bit in 0..8_u8
    ) {
        let text = epochs.encode().into_bytes();
        for len in 0..text.len() {
            let cut = EpochList::decode(&text[..len]);
            // Only the last line end may be missing.
            prop_assert!(cut.is_err() || cut == Ok(epochs.clone()), "{} of {}", len, text.len());
        }
        let first_entry = text.iter().enumerate().filter(|(_, b)| **b == b'\n').nth(1).unwrap().0 + 1;
        for at in 0..text.len() {
            let mut damaged = text.clone();
            damaged[at] ^= 1 << bit;
            let read = EpochList::decode(&damaged);
            if at >= first_entry {
                prop_assert!(read.is_err() || read == Ok(epochs.clone()), "byte {}", at);
            }
        }
    }

    #[test]
    fn random_bytes_have_a_defined_result(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = EpochList::decode(&bytes);
    }

    #[test]
    fn each_offset_belongs_to_one_span_and_a_cut_keeps_the_labels_it_should(
        epochs in any_list(), cut in 0..4_000_000_u64, offset in 0..4_000_000_u64
    ) {
        let before = epochs.covering(offset);
        if let Some(span) = before {
            prop_assert!(span.entry.start <= offset);
            prop_assert!(span.end.is_none_or(|end| offset < end));
        }
        let label = |epochs: &EpochList| epochs.covering(offset).map(|span| span.entry);
        let mut suffix = epochs.clone();
        suffix.cut_suffix(cut);
        let mut prefix = epochs.clone();
        prefix.cut_prefix(cut);
        if offset < cut {
            prop_assert_eq!(label(&suffix), label(&epochs));
        } else {
            prop_assert_eq!(label(&prefix), label(&epochs));
        }
        prop_assert_eq!(label(&epochs.without_zero_length()), label(&epochs));
    }
}
