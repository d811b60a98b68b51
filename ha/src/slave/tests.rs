//! Scripts of one slave: frames in, actions out.

use super::*;
use crate::frame::SlaveIdentity;
use crate::handshake::Refusal;

const SEGMENT: u64 = 1000;

pub(super) fn config() -> SlaveConnectionConfig {
    SlaveConnectionConfig {
        handshake: SlaveHandshake {
            sync_from_last_file: false,
            async_learner: false,
            identity: SlaveIdentity::BrokerId(2),
            asks: None,
        },
        log_id: LogId::UNKNOWN,
        segment_size: SEGMENT,
        heartbeat_interval_ms: 5000,
        housekeeping_interval_ms: 20_000,
        reconnect_min_ms: 100,
        reconnect_max_ms: 5000,
        report_flushed: false,
    }
}

fn entry(epoch: u32, start: Offset) -> EpochEntry {
    EpochEntry { epoch, start }
}

fn answer(end: Offset, entries: &[(u32, Offset)]) -> HandshakeAnswer {
    HandshakeAnswer {
        end,
        entries: entries.iter().map(|(e, s)| entry(*e, *s)).collect(),
        extension: None,
    }
}

pub(super) fn frame(
    offset: Offset,
    len: u32,
    epoch: (u32, Offset),
    confirm: Offset,
) -> FrameFromMaster {
    FrameFromMaster::Transfer(TransferHeader {
        body_len: len,
        offset: Some(offset),
        epoch: epoch.0,
        epoch_start: epoch.1,
        confirm: Some(confirm),
    })
}

pub(super) fn actions(s: &mut SlaveConnection) -> Vec<SlaveAction> {
    std::iter::from_fn(|| s.next_action(0)).collect()
}

fn closed_for(s: &mut SlaveConnection) -> SlaveClose {
    match &actions(s)[..] {
        [.., SlaveAction::Close(reason)] => reason.clone(),
        other => panic!("{other:?}"),
    }
}

/// A slave that has just been told `answer`.
fn asked(answer: HandshakeAnswer) -> SlaveConnection {
    let mut s = SlaveConnection::new(config(), 0);
    assert_eq!(actions(&mut s), [SlaveAction::Connect]);
    s.connected(0);
    assert_eq!(actions(&mut s), [SlaveAction::SendHandshake]);
    assert_eq!(s.state_name(), "HANDSHAKE");
    s.frame(FrameFromMaster::Handshake(answer.clone()));
    let lookback = Lookback::LastRecord;
    assert_eq!(actions(&mut s), [SlaveAction::Decide { answer, lookback }]);
    s
}

fn joined(end: Offset, last: (u32, Offset)) -> Joined {
    Joined {
        end,
        is_empty: end == 0,
        last_epoch: Some(entry(last.0, last.1)),
        overlap_from: None,
        overlap_floor: last.1,
    }
}

/// A slave in TRANSFER at `end`, with its first report out.
pub(super) fn at(end: Offset, last: (u32, Offset)) -> SlaveConnection {
    let mut s = asked(answer(5000, &[(1, 0), last]));
    s.decided(joined(end, last), 0);
    assert_eq!(actions(&mut s), [SlaveAction::Report(end)]);
    assert_eq!((s.state_name(), s.reported()), ("TRANSFER", Some(end)));
    s
}

#[test]
fn a_session_reports_the_point_at_once_and_every_growth() {
    let mut s = at(100, (2, 50));
    s.frame(frame(100, 30, (2, 50), 90));
    assert_eq!(
        actions(&mut s),
        [SlaveAction::Receive { len: 30 }, SlaveAction::Confirm(90)]
    );
    s.received(130, 10);
    assert_eq!(actions(&mut s), [SlaveAction::Report(130)]);
    // A body that ends inside a record moves the received end, not the report.
    s.frame(frame(130, 20, (2, 50), 130));
    assert_eq!(actions(&mut s).len(), 2);
    s.received(140, 20);
    assert_eq!(actions(&mut s), [SlaveAction::Report(140)]);
    s.frame(frame(150, 5, (2, 50), 130));
    assert_eq!(actions(&mut s).len(), 2);
    s.received(140, 30);
    assert_eq!(actions(&mut s), []);
}

#[test]
fn an_epoch_entry_comes_before_its_first_byte() {
    let mut s = at(100, (2, 50));
    s.frame(frame(100, 30, (3, 100), 90));
    assert_eq!(
        actions(&mut s),
        [
            SlaveAction::AdoptEpoch(entry(3, 100)),
            SlaveAction::Receive { len: 30 },
            SlaveAction::Confirm(90)
        ]
    );
    s.received(130, 0);
    actions(&mut s);
    // From a heartbeat just as well.
    s.frame(frame(130, 0, (5, 130), 100));
    assert_eq!(
        actions(&mut s),
        [
            SlaveAction::AdoptEpoch(entry(5, 130)),
            SlaveAction::Confirm(100)
        ]
    );
    s.frame(frame(130, 10, (5, 130), 100));
    assert_eq!(actions(&mut s)[0], SlaveAction::Receive { len: 10 });
}

#[test]
fn a08_epochs_without_bytes_come_along_with_the_one_that_labels_the_data() {
    let table = [(1, 0), (2, 50), (3, 120), (4, 120), (5, 120), (6, 200)];
    let mut s = asked(answer(5000, &table));
    s.decided(joined(100, (2, 50)), 0);
    actions(&mut s);
    s.frame(frame(100, 20, (2, 50), 90));
    actions(&mut s);
    s.received(120, 0);
    actions(&mut s);
    s.frame(frame(120, 10, (5, 120), 90));
    assert_eq!(
        actions(&mut s)[..4],
        [
            SlaveAction::AdoptEpoch(entry(3, 120)),
            SlaveAction::AdoptEpoch(entry(4, 120)),
            SlaveAction::AdoptEpoch(entry(5, 120)),
            SlaveAction::Receive { len: 10 },
        ]
    );
}

#[test]
fn an_entry_past_the_received_end_is_kept_aside_until_the_log_is_there() {
    // Java labels the last piece of an epoch with the next one.
    let mut s = at(100, (2, 50));
    s.frame(frame(100, 30, (3, 160), 90));
    assert_eq!(actions(&mut s)[0], SlaveAction::Receive { len: 30 });
    s.received(130, 0);
    actions(&mut s);
    s.frame(frame(130, 30, (3, 160), 90));
    assert_eq!(actions(&mut s)[0], SlaveAction::Receive { len: 30 });
    s.received(160, 0);
    assert_eq!(
        actions(&mut s),
        [
            SlaveAction::AdoptEpoch(entry(3, 160)),
            SlaveAction::Report(160)
        ]
    );
    s.frame(frame(160, 10, (3, 160), 90));
    assert_eq!(actions(&mut s)[0], SlaveAction::Receive { len: 10 });

    // A body across the start of the entry kept aside, or of another one, is no frame of a master.
    let mut s = at(100, (2, 50));
    s.frame(frame(100, 61, (3, 160), 90));
    assert!(matches!(closed_for(&mut s), SlaveClose::EpochStart { .. }));
    let mut s = at(100, (2, 50));
    s.frame(frame(100, 0, (3, 160), 90));
    s.frame(frame(100, 10, (4, 170), 90));
    assert!(matches!(closed_for(&mut s), SlaveClose::EpochStart { .. }));
    // So is one where the entry begins inside a record.
    let mut s = at(100, (2, 50));
    s.frame(frame(100, 60, (3, 160), 90));
    actions(&mut s);
    s.received(150, 0);
    assert!(matches!(
        closed_for(&mut s),
        SlaveClose::PartialRecord {
            published_end: 150,
            ..
        }
    ));
}

#[test]
fn a_new_epoch_below_the_received_end_asks_for_a_new_handshake() {
    let mut s = at(100, (2, 50));
    s.frame(frame(100, 10, (3, 90), 90));
    assert_eq!(
        closed_for(&mut s),
        SlaveClose::EpochStart {
            entry: entry(3, 90),
            received_end: 100
        }
    );
    let mut s = at(100, (2, 50));
    s.frame(frame(100, 0, (3, 90), 90));
    assert!(matches!(closed_for(&mut s), SlaveClose::EpochStart { .. }));
    // The same epoch with another start is another epoch.
    let mut s = at(100, (2, 50));
    s.frame(frame(100, 10, (2, 60), 90));
    assert!(matches!(closed_for(&mut s), SlaveClose::EpochStart { .. }));
    // A partial record at the end cannot belong to two epochs.
    let mut s = at(100, (2, 50));
    s.frame(frame(100, 30, (2, 50), 90));
    actions(&mut s);
    s.received(120, 0);
    actions(&mut s);
    s.frame(frame(130, 10, (3, 130), 90));
    assert!(matches!(
        closed_for(&mut s),
        SlaveClose::PartialRecord { .. }
    ));
}

#[test]
fn an_older_label_is_a_sign_of_life_on_a_heartbeat_only() {
    let mut s = at(100, (2, 50));
    s.frame(frame(100, 0, (1, 0), 90));
    assert_eq!(actions(&mut s), [SlaveAction::Confirm(90)]);
    s.frame(frame(100, 10, (1, 0), 90));
    assert_eq!(
        closed_for(&mut s),
        SlaveClose::EpochFell { got: 1, last: 2 }
    );
}

#[test]
fn a_frame_for_another_place_closes() {
    for (offset, len) in [(99, 10), (101, 10), (0, 10), (99, 0), (200, 0)] {
        let mut s = at(100, (2, 50));
        s.frame(frame(offset, len, (2, 50), 90));
        assert_eq!(
            closed_for(&mut s),
            SlaveClose::OffsetMismatch {
                got: Some(offset),
                expected: 100
            }
        );
    }
    let mut s = at(100, (2, 50));
    let nowhere = TransferHeader {
        body_len: 0,
        offset: None,
        epoch: 2,
        epoch_start: 50,
        confirm: None,
    };
    s.frame(FrameFromMaster::Transfer(nowhere));
    assert_eq!(actions(&mut s), []);
    let mut s = at(900, (2, 50));
    s.frame(frame(900, 101, (2, 50), 90));
    assert!(matches!(
        closed_for(&mut s),
        SlaveClose::SegmentSize { len: 101, .. }
    ));
}

#[test]
fn frames_of_a_new_replica_may_begin_at_any_segment() {
    let entries = [(3, 500), (4, 1500), (5, 2500)];
    let mut s = asked(answer(5000, &entries));
    s.decided(
        Joined {
            last_epoch: None,
            ..joined(0, (0, 0))
        },
        0,
    );
    assert_eq!(actions(&mut s), [SlaveAction::Report(0)]);
    let mut inside = asked(answer(5000, &entries));
    inside.decided(
        Joined {
            last_epoch: None,
            ..joined(0, (0, 0))
        },
        0,
    );
    s.frame(frame(2000, 100, (4, 1500), 1000));
    assert_eq!(
        actions(&mut s),
        [
            SlaveAction::StartAt(2000),
            SlaveAction::Receive { len: 100 },
            SlaveAction::Confirm(1000)
        ]
    );
    s.received(2100, 0);
    assert_eq!(actions(&mut s), [SlaveAction::Report(2100)]);
    s.frame(frame(2100, 10, (4, 1500), 1000));
    assert_eq!(actions(&mut s)[0], SlaveAction::Receive { len: 10 });

    inside.frame(frame(2001, 10, (4, 1500), 1000));
    assert!(matches!(
        closed_for(&mut inside),
        SlaveClose::StartsInsideSegment { .. }
    ));
}

/// At point 100, with the overlap check from `from`.
fn comparing(from: Offset) -> SlaveConnection {
    let mut s = asked(answer(5000, &[(1, 0), (2, 50)]));
    s.decided(
        Joined {
            overlap_from: Some(from),
            ..joined(100, (2, 50))
        },
        0,
    );
    assert_eq!(actions(&mut s), [SlaveAction::Report(from)]);
    s
}

#[test]
fn the_overlap_is_compared_before_the_point_is_acked() {
    let mut s = comparing(70);
    s.frame(frame(70, 20, (2, 50), 60));
    assert_eq!(actions(&mut s), [SlaveAction::Compare { at: 70, len: 20 }]);
    s.compared(1);
    assert_eq!(actions(&mut s), [], "not acked yet");
    s.frame(frame(90, 0, (2, 50), 60));
    assert_eq!(actions(&mut s), [], "a heartbeat in between");
    // A frame across the point: first the rest of the overlap, then bytes of its own.
    s.frame(frame(90, 40, (2, 50), 60));
    assert_eq!(actions(&mut s), [SlaveAction::Compare { at: 90, len: 10 }]);
    s.compared(2);
    assert_eq!(
        actions(&mut s),
        [
            SlaveAction::Report(100),
            SlaveAction::Receive { len: 30 },
            SlaveAction::Confirm(60)
        ]
    );
    s.received(130, 3);
    assert_eq!(actions(&mut s), [SlaveAction::Report(130)]);
    // The check runs from the reported offset, not from the point.
    let mut s = comparing(70);
    s.frame(frame(100, 20, (2, 50), 60));
    assert!(matches!(
        closed_for(&mut s),
        SlaveClose::OffsetMismatch { expected: 70, .. }
    ));
}

/// Reconnects until the next handshake's decision; returns its lookback.
fn again(s: &mut SlaveConnection) -> Lookback {
    s.closed(0, 0);
    s.hurry(0);
    let got = actions(s);
    assert_eq!(got.last(), Some(&SlaveAction::Connect), "{got:?}");
    s.connected(0);
    actions(s);
    s.frame(FrameFromMaster::Handshake(answer(5000, &[(1, 0), (2, 50)])));
    match &actions(s)[..] {
        [SlaveAction::Decide { lookback, .. }] => *lookback,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_that_differ_send_the_check_further_back_until_the_first_is_found() {
    let mut s = comparing(70);
    s.frame(frame(70, 30, (2, 50), 60));
    actions(&mut s);
    s.differs(None);
    assert_eq!(
        closed_for(&mut s),
        SlaveClose::Differs {
            point: 100,
            record: None
        }
    );
    assert_eq!(again(&mut s), Lookback::Bytes(1 << 20));
    s.decided(
        Joined {
            overlap_from: Some(60),
            ..joined(100, (2, 50))
        },
        0,
    );
    s.frame(frame(60, 40, (2, 50), 60));
    actions(&mut s);
    s.differs(Some(80));
    assert_eq!(
        actions(&mut s),
        [SlaveAction::Close(SlaveClose::Differs {
            point: 100,
            record: Some(80)
        })],
        "the cut waits until the connection is over"
    );
    s.closed(0, 0);
    assert_eq!(actions(&mut s), [SlaveAction::Cut(80)]);
    assert_eq!(again(&mut s), Lookback::LastRecord);

    // Differing from the lowest place of all leaves nothing to go back to.
    s.decided(
        Joined {
            overlap_from: Some(50),
            ..joined(80, (2, 50))
        },
        0,
    );
    s.frame(frame(50, 30, (2, 50), 60));
    actions(&mut s);
    s.differs(None);
    let reason = closed_for(&mut s);
    assert_eq!(reason, SlaveClose::DiffersThroughout { from: 50 });
    assert!(reason.needs_operator());
}

#[test]
fn the_lookback_goes_a_mebibyte_then_64_then_to_the_epoch() {
    let mut steps = vec![Lookback::default()];
    while let Some(next) = steps.last().unwrap().further() {
        steps.push(next);
    }
    let expect = [
        Lookback::LastRecord,
        Lookback::Bytes(1 << 20),
        Lookback::Bytes(64 << 20),
        Lookback::EpochStart,
    ];
    assert_eq!(steps, expect);
    let begin = |step: Lookback| step.begin(100 << 20, 10 << 20, || Some(99 << 20));
    let got: Vec<_> = steps.into_iter().map(begin).collect();
    assert_eq!(
        got,
        [
            Some(99 << 20),
            Some(99 << 20),
            Some(36 << 20),
            Some(10 << 20)
        ]
    );
    assert_eq!(
        Lookback::LastRecord.begin(100, 0, || Some(0)),
        None,
        "0 cannot be reported"
    );
    assert_eq!(Lookback::LastRecord.begin(100, 100, || Some(50)), None);
    assert_eq!(Lookback::LastRecord.begin(100, 0, || None), None);
    assert_eq!(Lookback::Bytes(64 << 20).begin(100, 0, || None), Some(0));
}

#[test]
fn a_master_that_sends_heartbeats_only_while_it_has_more_is_left() {
    let mut s = at(100, (2, 50));
    for _ in 0..2 {
        s.frame(frame(100, 0, (2, 50), 90));
        assert_eq!(actions(&mut s), [SlaveAction::Confirm(90)]);
    }
    s.frame(frame(100, 0, (2, 50), 90));
    let reason = closed_for(&mut s);
    assert_eq!(
        reason,
        SlaveClose::NotServed {
            master_end: 5000,
            end: 100
        }
    );
    assert!(reason.needs_operator());
    // At the master's end heartbeats are all there is.
    let mut s = asked(answer(100, &[(2, 50)]));
    s.decided(joined(100, (2, 50)), 0);
    actions(&mut s);
    for _ in 0..100 {
        s.frame(frame(100, 0, (2, 50), 90));
        assert_eq!(actions(&mut s), [SlaveAction::Confirm(90)]);
    }
}

#[test]
fn a26_the_report_is_repeated_and_a_silent_master_is_left() {
    let mut s = at(100, (2, 50));
    s.tick(4999);
    assert_eq!(actions(&mut s), []);
    assert_eq!(s.next_due_ms(), 5000);
    s.tick(5000);
    assert_eq!(actions(&mut s), [SlaveAction::Report(100)]);
    s.tick(9999);
    assert_eq!(actions(&mut s), []);
    s.heard(10_000);
    s.tick(30_000);
    assert_eq!(actions(&mut s), [SlaveAction::Report(100)]);
    s.tick(30_001);
    assert_eq!(closed_for(&mut s), SlaveClose::Silent { silent_ms: 20_001 });
    // Connecting and waiting for the handshake end as well.
    let mut s = SlaveConnection::new(config(), 0);
    actions(&mut s);
    s.tick(20_001);
    assert_eq!(closed_for(&mut s), SlaveClose::Silent { silent_ms: 20_001 });
}

#[test]
fn attempts_back_off_with_jitter_and_refusals_wait_longest() {
    let pause = |s: &mut SlaveConnection, jitter| {
        s.closed(1000, jitter);
        let due = s.next_due_ms() - 1000;
        assert_eq!(s.next_action(1000 + due - 1), None);
        assert_eq!(s.next_action(1000 + due), Some(SlaveAction::Connect));
        due
    };
    let mut s = SlaveConnection::new(config(), 0);
    actions(&mut s);
    let pauses: Vec<_> = (0..8).map(|_| pause(&mut s, 0)).collect();
    assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 2500, 2500]);
    for jitter in [1, 77, u64::MAX] {
        let due = pause(&mut s, jitter);
        assert!((2500..=5000).contains(&due), "{due}");
    }
    s.hurry(1000);
    assert_eq!(pause(&mut s, 0), 50, "news of the master starts over");

    let mut s = asked(answer(10, &[]));
    let refusal = Refusal::BelowFirstSegment { point: 1, min: 2 };
    s.failed(refusal.clone().into());
    assert_eq!(closed_for(&mut s), SlaveClose::Refused(refusal));
    assert_eq!(pause(&mut s, 0), 2500);
}

#[test]
fn an_epoch_is_compared_with_the_list_not_with_the_last_connection() {
    // The list was cut meanwhile: the same epoch number must be adopted again.
    let mut s = at(100, (2, 50));
    s.frame(frame(100, 10, (3, 100), 90));
    actions(&mut s);
    s.received(110, 0);
    again(&mut s);
    s.decided(joined(100, (2, 50)), 0);
    actions(&mut s);
    s.frame(frame(100, 10, (3, 100), 90));
    assert_eq!(actions(&mut s)[0], SlaveAction::AdoptEpoch(entry(3, 100)));
}

#[test]
fn in_durable_mode_only_flushed_bytes_are_reported() {
    let durable = SlaveConnectionConfig {
        report_flushed: true,
        ..config()
    };
    let mut s = SlaveConnection::new(durable, 0);
    actions(&mut s);
    s.connected(0);
    s.frame(FrameFromMaster::Handshake(answer(500, &[(2, 50)])));
    actions(&mut s);
    s.decided(joined(100, (2, 50)), 0);
    assert_eq!(actions(&mut s), [SlaveAction::Report(100)]);
    s.frame(frame(100, 30, (2, 50), 90));
    actions(&mut s);
    s.received(130, 0);
    assert_eq!(actions(&mut s), []);
    s.flushed(120, 1);
    assert_eq!(actions(&mut s), [SlaveAction::Report(120)]);
    s.flushed(120, 2);
    assert_eq!(actions(&mut s), []);
    s.flushed(500, 3);
    assert_eq!(actions(&mut s), [SlaveAction::Report(130)]);
}

#[test]
fn an_illegal_frame_or_one_out_of_order_closes() {
    let mut s = at(100, (2, 50));
    s.frame(FrameFromMaster::Handshake(answer(10, &[])));
    assert!(matches!(
        closed_for(&mut s),
        SlaveClose::Frame(FrameError::State { word: 1, .. })
    ));
    let mut s = at(100, (2, 50));
    let bad = FrameError::Field {
        what: "x",
        value: -1,
    };
    s.failed(bad.clone().into());
    s.failed(bad.clone().into());
    s.frame(frame(100, 10, (2, 50), 0));
    assert_eq!(
        actions(&mut s),
        [SlaveAction::Close(SlaveClose::Frame(bad))],
        "once"
    );
}
