//! Tables of epoch lists and ends, and a model of replicas that shake hands.

use proptest::prelude::*;

use super::*;

fn list(entries: &[(Epoch, Offset)]) -> EpochList {
    let entries = entries.iter().map(|(epoch, start)| EpochEntry {
        epoch: *epoch,
        start: *start,
    });
    EpochList::from_entries(entries.collect()).unwrap()
}

/// Every offset is a record start.
fn run(
    slave: &[(Epoch, Offset)],
    min: Offset,
    end: Offset,
    master: &[(Epoch, Offset)],
    master_end: Offset,
) -> Result<Decision, Refusal> {
    let (slave, master) = (list(slave), list(master));
    decide(
        SlaveSide {
            epochs: &slave,
            min,
            end,
            role_epoch: None,
        },
        MasterSide {
            epochs: &master,
            end: master_end,
            role_epoch: None,
        },
        |_| true,
    )
}

type Entries<'a> = &'a [(Epoch, Offset)];

/// slave, its end, master, its end, point, list afterwards.
type Row<'a> = (
    &'a str,
    Entries<'a>,
    Offset,
    Entries<'a>,
    Offset,
    Offset,
    Entries<'a>,
);

fn check(rows: &[Row<'_>]) {
    for (name, slave, end, master, master_end, point, after) in rows {
        let got = run(slave, 0, *end, master, *master_end).unwrap();
        assert_eq!((got.point, got.cut_bytes), (*point, end - point), "{name}");
        assert_eq!(got.epochs, list(after), "{name}");
    }
}

#[test]
fn javas_six_consistent_points() {
    check(&[
        (
            "new epoch below the end",
            &[(1, 0)],
            300,
            &[(1, 0), (2, 100)],
            250,
            100,
            &[(1, 0), (2, 100)],
        ),
        (
            "two new epochs",
            &[(1, 0), (2, 100)],
            300,
            &[(1, 0), (3, 200)],
            400,
            100,
            &[(1, 0)],
        ),
        (
            "three equal starts",
            &[(1, 0), (2, 100)],
            100,
            &[(1, 0), (2, 100), (3, 100)],
            400,
            100,
            &[(1, 0), (2, 100), (3, 100)],
        ),
        (
            "the newest of equal starts",
            &[(1, 0), (3, 100)],
            300,
            &[(1, 0), (2, 100), (3, 100)],
            400,
            300,
            &[(1, 0), (2, 100), (3, 100)],
        ),
        (
            "the older of equal starts",
            &[(1, 0), (2, 100)],
            300,
            &[(1, 0), (2, 100), (3, 100)],
            400,
            100,
            &[(1, 0), (2, 100), (3, 100)],
        ),
    ]);
    let none = find_consistent_point(&list(&[(2, 100)]), 300, &list(&[(2, 120)]), 400);
    assert_eq!(none, None);
}

#[test]
fn a08_elections_without_writes() {
    let three = [(1, 0), (2, 0), (3, 0)];
    check(&[
        ("empty slave joins", &[(1, 0)], 0, &three, 0, 0, &three),
        (
            "empty slave with a foreign list joins",
            &[(9, 0)],
            0,
            &three,
            500,
            0,
            &three,
        ),
        (
            "old master of epoch 2",
            &[(1, 0), (2, 0)],
            50,
            &three,
            80,
            0,
            &three,
        ),
        ("only the newest", &[(3, 0)], 50, &three, 80, 50, &three),
        (
            "same end, more epochs",
            &[(1, 0), (2, 100)],
            100,
            &[(1, 0), (2, 100), (3, 100)],
            100,
            100,
            &[(1, 0), (2, 100), (3, 100)],
        ),
        (
            "labelled epoch with a zero-length one before it",
            &[(1, 0), (3, 100)],
            150,
            &[(1, 0), (2, 100), (3, 100), (4, 130)],
            170,
            130,
            &[(1, 0), (2, 100), (3, 100), (4, 130)],
        ),
    ]);
}

#[test]
fn e01_no_confirm_offset_decides_anything() {
    // Two in the log, one confirmed: the tail stays.
    check(&[
        (
            "follower restarts",
            &[(1, 0)],
            200,
            &[(1, 0)],
            200,
            200,
            &[(1, 0)],
        ),
        (
            "leader lost the tail",
            &[(1, 0)],
            200,
            &[(1, 0), (2, 100)],
            100,
            100,
            &[(1, 0), (2, 100)],
        ),
        (
            "leader is ahead",
            &[(1, 0)],
            200,
            &[(1, 0), (2, 200)],
            300,
            200,
            &[(1, 0), (2, 200)],
        ),
    ]);
}

#[test]
fn e03_the_list_is_cut_even_when_no_byte_is() {
    check(&[
        (
            "empty epoch of its own",
            &[(1, 0), (2, 100)],
            100,
            &[(1, 0), (3, 100)],
            150,
            100,
            &[(1, 0), (3, 100)],
        ),
        (
            "two empty ones",
            &[(1, 0), (2, 100), (3, 100)],
            100,
            &[(1, 0), (4, 120)],
            150,
            100,
            &[(1, 0)],
        ),
    ]);
}

#[test]
fn e04_an_epoch_without_writes_counts() {
    check(&[
        (
            "silent master's entry",
            &[(1, 0)],
            120,
            &[(1, 0), (2, 100)],
            100,
            100,
            &[(1, 0), (2, 100)],
        ),
        (
            "silent master as slave",
            &[(1, 0), (2, 100)],
            100,
            &[(1, 0), (2, 100), (3, 100)],
            180,
            100,
            &[(1, 0), (2, 100), (3, 100)],
        ),
    ]);
}

#[test]
fn e07_epoch_zero_and_the_largest_are_epochs() {
    let top = epochlog_engine::MAX_EPOCH;
    check(&[
        (
            "zero",
            &[(0, 0)],
            100,
            &[(0, 0), (1, 60)],
            90,
            60,
            &[(0, 0), (1, 60)],
        ),
        (
            "top",
            &[(0, 0), (top, 10)],
            100,
            &[(0, 0), (top, 10)],
            90,
            90,
            &[(0, 0), (top, 10)],
        ),
    ]);
}

#[test]
fn entries_past_the_end_are_dropped_before_anything_is_compared() {
    let master = [(1, 0), (2, 100), (3, 300)];
    check(&[
        // Counted naively, epoch 2 would end at 300: past the slave's own end.
        (
            "the tail was lost, the list was not",
            &[(1, 0), (2, 100)],
            80,
            &master,
            400,
            80,
            &[(1, 0)],
        ),
        (
            "so on the master",
            &[(1, 0), (2, 100)],
            300,
            &master,
            250,
            250,
            &[(1, 0), (2, 100)],
        ),
    ]);
}

#[test]
fn divergence_over_several_terms() {
    check(&[
        // The newest common epoch is not the newest of either side.
        (
            "fast fail-over, both wrote",
            &[(1, 0), (2, 100), (4, 180)],
            260,
            &[(1, 0), (2, 100), (3, 150), (5, 170)],
            400,
            150,
            &[(1, 0), (2, 100), (3, 150)],
        ),
        (
            "slave lacks two terms",
            &[(1, 0)],
            90,
            &[(1, 0), (2, 100), (3, 200)],
            300,
            90,
            &[(1, 0)],
        ),
        (
            "three logs of one length, one epoch apart",
            &[(1, 0), (2, 10), (4, 20)],
            30,
            &[(1, 0), (2, 10), (3, 15), (5, 20)],
            30,
            15,
            &[(1, 0), (2, 10), (3, 15)],
        ),
        (
            "a lost term newer than the master's list",
            &[(1, 0), (2, 100), (4, 300)],
            350,
            &[(1, 0), (2, 100)],
            320,
            300,
            &[(1, 0), (2, 100)],
        ),
    ]);
}

#[test]
fn own_entries_below_the_masters_first_stay() {
    let got = run(
        &[(1, 0), (2, 100), (3, 200)],
        0,
        260,
        &[(3, 200), (4, 240)],
        300,
    )
    .unwrap();
    assert_eq!(got.epochs, list(&[(1, 0), (2, 100), (3, 200), (4, 240)]));
    assert_eq!((got.point, got.cut_bytes), (240, 20));
}

#[test]
fn the_explanation_names_the_epoch_and_both_ends() {
    let got = run(&[(1, 0), (2, 100)], 0, 300, &[(1, 0), (3, 200)], 400).unwrap();
    let expect = ConsistentPoint {
        point: 100,
        entry: EpochEntry { epoch: 1, start: 0 },
        slave_end: 100,
        master_end: 200,
    };
    assert_eq!(got.why, Why::CommonEpoch(expect));
    let text = got.why.to_string();
    assert!(
        text.contains("epoch 1 starting at 0") && text.contains("at 200 on the master"),
        "{text}"
    );
    assert_eq!(run(&[], 0, 0, &[(1, 0)], 10).unwrap().why, Why::EmptyLog);
}

#[test]
fn refusals_say_what_to_do_next() {
    let cases = [
        (
            run(&[(2, 100)], 0, 300, &[(2, 120)], 400),
            "no-common-epoch",
            "repair resync",
        ),
        (
            run(&[(1, 0)], 0, 300, &[], 0),
            "no-common-epoch",
            "no epochs",
        ),
        (
            run(&[(1, 0)], 200, 300, &[(1, 0), (2, 100)], 400),
            "below-first-segment",
            "first offset 200",
        ),
        (
            run(&[], 1000, 1000, &[(1, 0)], 400),
            "below-first-segment",
            "up to 400",
        ),
        (
            run(&[], 0, 300, &[(1, 0)], 400),
            "epoch-file-missing",
            "repair epoch",
        ),
    ];
    for (got, reason, text) in cases {
        let refusal = got.unwrap_err();
        assert_eq!(refusal.reason(), reason);
        assert!(refusal.to_string().contains(text), "{refusal}");
        assert!(
            refusal.to_string().contains("`epochlog repair"),
            "{refusal}"
        );
    }
    let long: Vec<_> = (0..20).map(|e| (e, u64::from(e) * 7)).collect();
    let text = run(&long, 0, 300, &[(99, 0)], 400).unwrap_err().to_string();
    assert!(
        text.contains("0:0, 1:7, 2:14, 3:21, … 12 more …, 16:112"),
        "{text}"
    );
}

#[test]
fn a_point_inside_a_record_is_refused_and_no_other_point_is_asked_about() {
    let (slave, master) = (list(&[(1, 0)]), list(&[(1, 0)]));
    let ask = |end, master_end, expect_asked: Option<Offset>, answer| {
        let mut asked = None;
        let got = decide(
            SlaveSide {
                epochs: &slave,
                min: 0,
                end,
                role_epoch: None,
            },
            MasterSide {
                epochs: &master,
                end: master_end,
                role_epoch: None,
            },
            |point| {
                asked = Some(point);
                answer
            },
        );
        assert_eq!(asked, expect_asked);
        got
    };
    let refused = ask(300, 250, Some(250), false).unwrap_err();
    assert_eq!(refused, Refusal::OffRecordBoundary { point: 250 });
    assert_eq!(ask(300, 250, Some(250), true).unwrap().cut_bytes, 50);
    assert_eq!(ask(300, 300, None, false).unwrap().cut_bytes, 0);
    assert_eq!(ask(300, 900, None, false).unwrap().point, 300);
    assert_eq!(ask(300, 0, None, false).unwrap().point, 0);
}

#[test]
fn only_a_role_epoch_proves_a_master_old() {
    let (slave, master) = (list(&[(1, 0), (4, 100)]), list(&[(1, 0), (2, 100)]));
    let ask = |own, other| {
        decide(
            SlaveSide {
                epochs: &slave,
                min: 0,
                end: 150,
                role_epoch: own,
            },
            MasterSide {
                epochs: &master,
                end: 150,
                role_epoch: other,
            },
            |_| true,
        )
    };
    assert_eq!(
        ask(Some(5), Some(4)),
        Err(Refusal::MasterOlder { own: 5, master: 4 })
    );
    for (own, other) in [
        (Some(5), None),
        (None, Some(1)),
        (Some(5), Some(5)),
        (Some(5), Some(6)),
    ] {
        assert_eq!(ask(own, other).unwrap().point, 100);
    }
}

/// A replica as bytes that remember their writer: byte value = epoch of its first writer.
#[derive(Clone, Debug)]
struct Model {
    bytes: Vec<u32>,
    epochs: EpochList,
}

impl Model {
    /// Labels are true: each byte carries the newest epoch that starts at or before it.
    fn is_truthful(&self) -> bool {
        self.bytes.iter().enumerate().all(|(at, epoch)| {
            let covering = self.epochs.covering(at as u64);
            covering.is_some_and(|span| span.entry.epoch == *epoch)
        })
    }
}

proptest! {
    /// Replicas elected at random, slaves that follow partly or lose a tail: after a handshake the
    /// slave is a prefix of its master, and every byte still has its first writer's epoch.
    #[test]
    fn after_a_handshake_the_slave_is_a_prefix_of_its_master(
        steps in proptest::collection::vec((0usize..3, 0usize..3, 0u64..5, 0u64..6), 1..40)
    ) {
        let mut nodes = vec![Model { bytes: Vec::new(), epochs: EpochList::new() }; 3];
        for (epoch, (m, s, writes, follows)) in (1..).zip(steps) {
            // A new term of `m`, however much it has.
            let end = nodes[m].bytes.len() as u64;
            nodes[m].epochs.append(EpochEntry { epoch, start: end }).unwrap();
            nodes[m].bytes.extend((0..writes).map(|_| epoch));
            if s == m {
                // Instead of following, lose a tail: entries past the end stay in the file.
                let keep = nodes[m].bytes.len().saturating_sub(usize::try_from(follows).unwrap());
                nodes[m].bytes.truncate(keep);
                let end = keep as u64;
                nodes[m].epochs.drop_starting_after(end);
                continue;
            }
            let (master, slave) = (nodes[m].clone(), nodes[s].clone());
            let (slave_end, master_end) = (slave.bytes.len() as u64, master.bytes.len() as u64);
            let got = decide(
                SlaveSide { epochs: &slave.epochs, min: 0, end: slave_end, role_epoch: None },
                MasterSide { epochs: &master.epochs, end: master_end, role_epoch: None },
                |_| true,
            );
            // Unlike a real fresh cluster the first entries may differ: then nothing may be cut.
            let Ok(got) = got else { continue };
            let point = usize::try_from(got.point).unwrap();
            prop_assert!(point <= master.bytes.len());
            nodes[s].bytes.truncate(point);
            nodes[s].epochs = got.epochs;
            prop_assert_eq!(&nodes[s].bytes[..], &master.bytes[..nodes[s].bytes.len()]);
            prop_assert!(nodes[s].is_truthful());
            // Follow for a while, entry before bytes.
            for _ in 0..follows {
                let at = nodes[s].bytes.len();
                let Some(byte) = master.bytes.get(at) else { break };
                let label = master.epochs.covering(at as u64).unwrap().entry;
                if nodes[s].epochs.last().is_none_or(|last| last.epoch < label.epoch) {
                    nodes[s].epochs.append(label).unwrap();
                }
                nodes[s].bytes.push(*byte);
            }
            prop_assert!(nodes[s].is_truthful());
        }
    }
}
