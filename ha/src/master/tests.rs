//! Scripts of one connection.

use epochlog_engine::EpochEntry;

use super::*;

const CONFIG: MasterConnectionConfig = MasterConnectionConfig {
    transfer_batch_size: 100,
    extended_batch_size: 800,
    max_unacked_bytes: 1 << 40,
    extension: Some(Capabilities::ALL),
    log_id: LogId::UNKNOWN,
    heartbeat_interval_ms: 5000,
    housekeeping_interval_ms: 20_000,
    handshake_wait_ms: 15_000,
    answer_form: HandshakeAnswerForm::Short,
};

fn list(entries: &[(Epoch, Offset)]) -> EpochList {
    let entries = entries.iter().map(|(epoch, start)| EpochEntry {
        epoch: *epoch,
        start: *start,
    });
    EpochList::from_entries(entries.collect()).unwrap()
}

fn log(epochs: &EpochList, min: Offset, end: Offset) -> MasterLog<'_> {
    let bounds = LogBounds {
        min,
        end,
        segment_size: 1000,
    };
    MasterLog {
        epochs,
        bounds,
        confirm: min,
        serving: Some(1),
    }
}

fn handshake(id: u64) -> FrameFromSlave {
    FrameFromSlave::Handshake(SlaveHandshake {
        sync_from_last_file: false,
        async_learner: false,
        identity: SlaveIdentity::BrokerId(id),
        asks: None,
    })
}

/// A connection whose handshake is answered.
fn answered(log: &MasterLog<'_>) -> MasterConnection {
    let mut c = MasterConnection::new(CONFIG, 0);
    assert_eq!(c.frame(handshake(2), log), Ok(Heard::Nothing));
    assert!(matches!(
        c.next_send(log, 0),
        Ok(Some(MasterSend::Handshake(_)))
    ));
    c.sent();
    c
}

fn started(log: &MasterLog<'_>, offset: Offset) -> MasterConnection {
    let mut c = answered(log);
    assert_eq!(
        c.frame(FrameFromSlave::Report(offset), log),
        Ok(Heard::Started {
            offset,
            flushed: None
        })
    );
    c
}

fn batch(c: &mut MasterConnection, log: &MasterLog<'_>, now: u64) -> Option<(Offset, u32, Epoch)> {
    match c.next_send(log, now).unwrap()? {
        MasterSend::Transfer(head, batch) => {
            assert_eq!(
                (head.offset, head.body_len),
                (Some(batch.offset), batch.len)
            );
            assert_eq!(
                (head.epoch, head.epoch_start),
                (batch.epoch.epoch, batch.epoch.start)
            );
            c.sent();
            Some((batch.offset, batch.len, batch.epoch.epoch))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_from_handshake_to_heartbeat() {
    let epochs = list(&[(1, 0), (2, 150)]);
    let l = log(&epochs, 0, 250);
    let mut c = MasterConnection::new(CONFIG, 0);
    assert_eq!(c.next_send(&l, 0), Ok(None), "nothing before the handshake");
    c.frame(handshake(2), &l).unwrap();
    assert_eq!((c.broker_id(), c.is_learner()), (Some(2), false));
    let answer = HandshakeAnswer::encode(250, epochs.entries(), CONFIG.answer_form).unwrap();
    assert_eq!(c.next_send(&l, 0), Ok(Some(MasterSend::Handshake(answer))));
    assert_eq!(c.next_send(&l, 0), Ok(None), "one send in flight");
    c.sent();
    assert_eq!(
        c.next_send(&l, 9000),
        Ok(None),
        "nothing before the first report"
    );
    assert_eq!(
        c.frame(FrameFromSlave::Report(50), &l),
        Ok(Heard::Started {
            offset: 50,
            flushed: None
        })
    );
    assert_eq!(batch(&mut c, &l, 9000), Some((50, 100, 1)));
    assert_eq!(batch(&mut c, &l, 9000), Some((150, 100, 2)));
    assert_eq!(batch(&mut c, &l, 9001), None);
    assert_eq!(c.next_due_ms(), 14_000);
    assert_eq!(c.next_send(&l, 13_999), Ok(None));
    match c.next_send(&l, 14_000).unwrap() {
        Some(MasterSend::Heartbeat(head)) => {
            assert_eq!((head.offset, head.body_len, head.epoch), (Some(250), 0, 2));
        }
        other => panic!("{other:?}"),
    }
    c.sent();
    assert_eq!(
        c.frame(FrameFromSlave::Report(250), &l),
        Ok(Heard::Acked {
            flushed: None,
            offset: 250
        })
    );
    assert_eq!(c.ack(), Some(250));
}

#[test]
fn a09_an_epoch_closed_while_connected_bounds_the_next_frame() {
    let old = list(&[(1, 0)]);
    let mut c = started(&log(&old, 0, 100), 0);
    assert_eq!(batch(&mut c, &log(&old, 0, 100), 1), Some((0, 100, 1)));
    let new = list(&[(1, 0), (2, 150)]);
    let l = log(&new, 0, 300);
    assert_eq!(batch(&mut c, &l, 2), Some((100, 50, 1)));
    assert_eq!(batch(&mut c, &l, 3), Some((150, 100, 2)));
}

#[test]
fn a_handshake_waits_until_the_role_is_durable() {
    let epochs = list(&[(1, 0)]);
    let held = MasterLog {
        serving: None,
        ..log(&epochs, 0, 0)
    };
    let mut c = MasterConnection::new(CONFIG, 0);
    c.frame(handshake(2), &held).unwrap();
    c.heard(10_000);
    assert_eq!(c.next_send(&held, 10_000), Ok(None));
    assert_eq!(c.tick(15_000), Ok(()));
    assert_eq!(c.next_due_ms(), 15_001);
    assert_eq!(
        c.tick(15_001),
        Err(MasterClose::NotMaster { waited_ms: 15_001 })
    );
    assert!(c.next_send(&log(&epochs, 0, 0), 15_001).unwrap().is_some());
}

#[test]
fn a_repeated_handshake_is_ignored_before_the_first_report_only() {
    let epochs = list(&[(1, 0)]);
    let l = log(&epochs, 0, 100);
    let mut c = MasterConnection::new(CONFIG, 0);
    c.frame(handshake(2), &l).unwrap();
    assert_eq!(c.frame(handshake(2), &l), Ok(Heard::Nothing));
    c.next_send(&l, 0).unwrap().unwrap();
    c.sent();
    assert_eq!(c.frame(handshake(2), &l), Ok(Heard::Nothing));
    assert_eq!(c.next_send(&l, 0), Ok(None), "and not answered again");
    assert_eq!(
        c.clone().frame(handshake(3), &l),
        Err(MasterClose::SecondHandshake)
    );
    c.frame(FrameFromSlave::Report(100), &l).unwrap();
    assert_eq!(c.frame(handshake(2), &l), Err(MasterClose::SecondHandshake));
}

#[test]
fn e08_the_first_report_must_lie_inside_the_log() {
    let epochs = list(&[(1, 0)]);
    let l = log(&epochs, 1000, 2500);
    let first = |offset| answered(&l).frame(FrameFromSlave::Report(offset), &l);
    assert_eq!(
        first(999),
        Err(MasterClose::StartsBelowMin {
            offset: 999,
            min: 1000
        })
    );
    assert_eq!(
        first(2501),
        Err(MasterClose::StartsPastEnd {
            offset: 2501,
            end: 2500
        })
    );
    let max = epochlog_engine::MAX_OFFSET;
    assert_eq!(
        first(max),
        Err(MasterClose::StartsPastEnd {
            offset: max,
            end: 2500
        })
    );
    for offset in [0, 1000, 2500] {
        assert_eq!(
            first(offset),
            Ok(Heard::Started {
                offset,
                flushed: None
            })
        );
    }
    let mut fresh = MasterConnection::new(CONFIG, 0);
    let early = fresh.frame(FrameFromSlave::Report(0), &l);
    assert_eq!(early, Err(MasterClose::ReportTooEarly { offset: 0 }));
    fresh.frame(handshake(2), &l).unwrap();
    let early = fresh.frame(FrameFromSlave::Report(1000), &l);
    assert_eq!(early, Err(MasterClose::ReportTooEarly { offset: 1000 }));
}

#[test]
fn a_new_replica_begins_at_the_first_offset_or_the_last_file() {
    let epochs = list(&[(1, 0)]);
    for (last_file, min, end, expect) in [
        (false, 1000, 2500, 1000),
        (true, 1000, 2500, 2000),
        (true, 0, 500, 0),
        (true, 2000, 2000, 2000),
        (false, 0, 0, 0),
    ] {
        let l = log(&epochs, min, end);
        let mut c = MasterConnection::new(CONFIG, 0);
        let hello = SlaveHandshake {
            sync_from_last_file: last_file,
            async_learner: true,
            identity: SlaveIdentity::BrokerId(9),
            asks: None,
        };
        c.frame(FrameFromSlave::Handshake(hello), &l).unwrap();
        assert!(c.is_learner());
        c.next_send(&l, 0).unwrap().unwrap();
        c.frame(FrameFromSlave::Report(0), &l).unwrap();
        assert_eq!(
            c.cursor().unwrap().next(),
            expect,
            "{last_file} {min} {end}"
        );
    }
}

#[test]
fn a05_an_ack_of_bytes_not_sent_closes_and_counts_nothing() {
    let epochs = list(&[(1, 0)]);
    let l = log(&epochs, 0, 150);
    let mut c = started(&l, 0);
    assert_eq!(batch(&mut c, &l, 0), Some((0, 100, 1)));
    let forged = c.clone().frame(FrameFromSlave::Report(1 << 40), &l);
    assert_eq!(
        forged,
        Err(MasterClose::AckNotSent {
            offset: 1 << 40,
            sent: 100
        })
    );
    // Inside the log, but not sent to this connection.
    let ahead = c.frame(FrameFromSlave::Report(101), &l);
    assert_eq!(
        ahead,
        Err(MasterClose::AckNotSent {
            offset: 101,
            sent: 100
        })
    );
    assert_eq!(c.ack(), Some(0));
    assert_eq!(
        c.frame(FrameFromSlave::Report(100), &l),
        Ok(Heard::Acked {
            flushed: None,
            offset: 100
        })
    );
    // After a cut the log's own end is the limit.
    let cut = log(&epochs, 0, 60);
    let stale = c.frame(FrameFromSlave::Report(100), &cut);
    assert_eq!(
        stale,
        Err(MasterClose::AckNotSent {
            offset: 100,
            sent: 60
        })
    );
    let fell = c.frame(FrameFromSlave::Report(99), &l);
    assert_eq!(
        fell,
        Err(MasterClose::AckFell {
            offset: 99,
            before: 100
        })
    );
    assert_eq!(
        c.frame(FrameFromSlave::Report(100), &l),
        Ok(Heard::Acked {
            flushed: None,
            offset: 100
        })
    );
}

#[test]
fn a26_an_idle_pair_lives_and_a_silent_peer_does_not() {
    let epochs = list(&[(1, 0)]);
    let l = log(&epochs, 0, 100);
    let mut c = started(&l, 100);
    let mut beats = 0;
    for now in (0..=60_000).step_by(500) {
        if now % 5000 == 0 {
            c.heard(now);
            c.frame(FrameFromSlave::Report(100), &l).unwrap();
        }
        assert_eq!(c.tick(now), Ok(()));
        if c.next_send(&l, now).unwrap().is_some() {
            beats += 1;
            c.sent();
        }
    }
    assert_eq!(beats, 12);
    assert_eq!(c.tick(80_000), Ok(()));
    assert_eq!(
        c.tick(80_001),
        Err(MasterClose::Silent { silent_ms: 20_001 })
    );
}

#[test]
fn a_position_deleted_or_cut_away_ends_the_connection() {
    let epochs = list(&[(1, 0)]);
    let l = log(&epochs, 0, 100);
    let mut c = started(&l, 50);
    let gone = c.clone().next_send(&log(&epochs, 60, 100), 0).unwrap_err();
    assert_eq!(gone, CursorError::BelowMin { next: 50, min: 60 }.into());
    let cut = c.clone().next_send(&log(&epochs, 0, 40), 0).unwrap_err();
    assert_eq!(cut, CursorError::PastEnd { next: 50, end: 40 }.into());
    let late = list(&[(2, 60)]);
    let none = c.next_send(&log(&late, 0, 100), 0).unwrap_err();
    assert_eq!(none, CursorError::NoEpoch { next: 50 }.into());
}

#[test]
fn a_slave_that_never_reaches_the_moving_end_still_proves_when_it_was_level() {
    let epochs = list(&[(1, 0)]);
    let mut c = started(&log(&epochs, 0, 100), 0);
    assert_eq!(c.level_at(100, 10), None);
    let l = log(&epochs, 0, 200);
    while batch(&mut c, &l, 20).is_some() {}
    c.frame(FrameFromSlave::Report(99), &l).unwrap();
    assert_eq!(c.level_at(200, 30), None);
    c.frame(FrameFromSlave::Report(150), &l).unwrap();
    assert_eq!(c.level_at(200, 40), Some(10), "100 was the end at 10");
    c.frame(FrameFromSlave::Report(199), &l).unwrap();
    assert_eq!(c.level_at(300, 50), None);
    c.frame(FrameFromSlave::Report(200), &l).unwrap();
    assert_eq!(c.level_at(300, 60), Some(40));
    assert_eq!(c.level_at(200, 70), Some(70), "level now");
    // Sent is not acked: a stalled slave does not count as level.
    assert_eq!(c.level_at(250, 80), None);
    assert_eq!(c.level_at(250, 50_000), None);
}

fn joined_as(
    asks: Option<Capabilities>,
    extension: Option<Capabilities>,
) -> (MasterConnection, Vec<u8>) {
    let epochs = list(&[(1, 0)]);
    let l = log(&epochs, 0, 900);
    let config = MasterConnectionConfig {
        extension,
        ..CONFIG
    };
    let mut c = MasterConnection::new(config, 0);
    let hello = SlaveHandshake {
        sync_from_last_file: false,
        async_learner: false,
        identity: SlaveIdentity::BrokerId(2),
        asks,
    };
    c.frame(FrameFromSlave::Handshake(hello), &l).unwrap();
    let Ok(Some(MasterSend::Handshake(bytes))) = c.next_send(&l, 0) else {
        panic!("no answer");
    };
    c.sent();
    (c, bytes)
}

#[test]
fn the_extension_is_spoken_only_if_both_sides_know_it() {
    let all = Some(Capabilities::ALL);
    let epochs = list(&[(1, 0)]);
    let plain = HandshakeAnswer::encode(900, epochs.entries(), CONFIG.answer_form).unwrap();
    for (asks, own) in [(None, all), (all, None), (None, None)] {
        let (c, bytes) = joined_as(asks, own);
        assert_eq!(bytes, plain);
        assert_eq!(c.agreed(), Capabilities::NONE);
    }
    let (c, bytes) = joined_as(all, Some(Capabilities::CHECKSUM));
    assert_eq!(c.agreed(), Capabilities::CHECKSUM);
    let expect = Extension {
        capabilities: Capabilities::CHECKSUM,
        role_epoch: 1,
        segment_size: 1000,
        log_id: LogId::UNKNOWN,
    };
    let expect = HandshakeAnswer::encode_extended(900, epochs.entries(), &expect).unwrap();
    assert_eq!(bytes, expect);
}

#[test]
fn frames_grow_with_the_lag_of_our_own_peers_only() {
    let epochs = list(&[(1, 0)]);
    let wide = |end| MasterLog {
        bounds: LogBounds {
            min: 0,
            end,
            segment_size: 1 << 20,
        },
        ..log(&epochs, 0, end)
    };
    let lens = |asks| {
        let (mut c, _) = joined_as(asks, Some(Capabilities::ALL));
        c.frame(FrameFromSlave::Report(100), &wide(5000)).unwrap();
        let mut lens = Vec::new();
        while let Some(send) = c.next_send(&wide(5000), 0).unwrap() {
            let MasterSend::Transfer(_, batch) = send else {
                break;
            };
            lens.push(batch.len);
            c.sent();
        }
        // Level again: a little is sent at once, and the next lag begins small.
        let sizes: Vec<u32> = (1..=4)
            .map(|step| {
                c.sent();
                let send = c.next_send(&wide(5000 + step * 10), 0).unwrap();
                let Some(MasterSend::Transfer(_, batch)) = send else {
                    panic!("{send:?}");
                };
                assert_eq!(batch.len, 10);
                c.batch_size
            })
            .collect();
        (lens, sizes)
    };
    let (lens_of_ours, sizes) = lens(Some(Capabilities::ALL));
    assert_eq!(lens_of_ours, [200, 400, 800, 800, 800, 800, 800, 300]);
    assert_eq!(sizes.last(), Some(&100), "{sizes:?}");
    let (lens_of_java, _) = lens(None);
    assert_eq!(lens_of_java, [100; 49]);
}

#[test]
fn what_is_on_disk_counts_only_from_a_slave_that_syncs_at_once() {
    let epochs = list(&[(1, 0)]);
    let l = log(&epochs, 0, 900);
    let report = |published, flushed| FrameFromSlave::ReportBoth { published, flushed };
    let durable = Capabilities::ALL;
    for (asks, first, second) in [
        (durable, Some(40), Some(60)),
        (durable.without(Capabilities::DURABLE), None, None),
    ] {
        let (mut c, _) = joined_as(Some(asks), Some(Capabilities::ALL));
        let heard = c.frame(report(50, 40), &l).unwrap();
        assert_eq!(
            heard,
            Heard::Started {
                offset: 50,
                flushed: first
            }
        );
        c.next_send(&l, 0).unwrap();
        let heard = c.frame(report(100, 60), &l).unwrap();
        assert_eq!(
            heard,
            Heard::Acked {
                offset: 100,
                flushed: second
            }
        );
        assert_eq!((c.ack(), c.flushed()), (Some(100), Some(60)));
    }
}

#[test]
fn a_slave_that_does_not_ack_gets_no_more_than_the_limit() {
    let epochs = list(&[(1, 0)]);
    let l = log(&epochs, 0, 900);
    let config = MasterConnectionConfig {
        max_unacked_bytes: 300,
        ..CONFIG
    };
    let ours = |asks| {
        let mut c = MasterConnection::new(config, 0);
        let hello = SlaveHandshake {
            sync_from_last_file: false,
            async_learner: false,
            identity: SlaveIdentity::BrokerId(2),
            asks,
        };
        c.frame(FrameFromSlave::Handshake(hello), &l).unwrap();
        c.next_send(&l, 0).unwrap();
        c.sent();
        c.frame(FrameFromSlave::Report(50), &l).unwrap();
        c
    };
    let mut javas = ours(None);
    for _ in 0..8 {
        javas.next_send(&l, 0).unwrap();
        javas.sent();
    }
    assert_eq!(javas.cursor().unwrap().next(), 850);
    let mut c = ours(Some(Capabilities::CHECKSUM));
    let mut sent = 0;
    while let Some(MasterSend::Transfer(_, batch)) = c.next_send(&l, 0).unwrap() {
        sent += batch.len;
        c.sent();
    }
    assert!((300..=600).contains(&sent), "{sent}");
    // Heartbeats go on.
    let beat = c.next_send(&l, 5000).unwrap();
    assert!(matches!(beat, Some(MasterSend::Heartbeat(_))), "{beat:?}");
    c.sent();
    let acked = c.cursor().unwrap().next() - 100;
    c.frame(FrameFromSlave::Report(acked), &l).unwrap();
    let more = c.next_send(&l, 5000).unwrap();
    assert!(matches!(more, Some(MasterSend::Transfer(..))), "{more:?}");
}

#[test]
fn a_peer_that_never_says_who_it_is_is_left() {
    let c = MasterConnection::new(CONFIG, 100);
    assert_eq!(c.next_due_ms(), 15_101);
    assert_eq!(c.tick(15_100), Ok(()));
    let left = c.tick(15_101).unwrap_err();
    assert_eq!(left, MasterClose::NoHandshake { waited_ms: 15_001 });
}
