//! Attempts at a connection, one after the other.

use super::tests::{actions, at, config, frame};
use super::*;

#[test]
fn an_attempt_has_its_own_time_however_long_the_master_was_away() {
    let mut s = SlaveConnection::new(config(), 0);
    assert_eq!(s.next_action(0), Some(SlaveAction::Connect));
    s.closed(0, 0);
    // The master is away for much longer than a silent one would be endured.
    assert_eq!(s.next_action(100_000), Some(SlaveAction::Connect));
    assert!(s.next_due_ms() > 100_000, "or the loop would not sleep");
    // The network takes its time; other events wake the loop meanwhile.
    s.tick(100_000);
    s.tick(110_000);
    assert_eq!(s.next_action(110_000), None);
    s.tick(120_001);
    let silent = SlaveClose::Silent { silent_ms: 20_001 };
    assert_eq!(s.next_action(120_001), Some(SlaveAction::Close(silent)));
    s.closed(120_001, 0);
    assert_eq!(s.next_action(130_000), Some(SlaveAction::Connect));
    s.connected(149_000);
    assert_eq!(actions(&mut s), [SlaveAction::SendHandshake]);
}

/// Ends the connection and returns the pause before the next attempt, which comes to TRANSFER again.
fn again(s: &mut SlaveConnection, now_ms: u64, end: Offset) -> u64 {
    s.closed(now_ms, 0);
    let pause = s.next_due_ms() - now_ms;
    assert_eq!(s.next_action(now_ms + pause), Some(SlaveAction::Connect));
    join(s, now_ms + pause, end);
    pause
}

fn join(s: &mut SlaveConnection, now_ms: u64, end: Offset) {
    s.connected(now_ms);
    let entries = vec![EpochEntry { epoch: 1, start: 0 }];
    s.frame(FrameFromMaster::Handshake(HandshakeAnswer {
        end: 5000,
        entries,
        extension: None,
    }));
    s.decided(
        Joined {
            end,
            is_empty: false,
            last_epoch: Some(EpochEntry { epoch: 1, start: 0 }),
            overlap_from: None,
            overlap_floor: 0,
        },
        now_ms,
    );
    actions(s);
}

#[test]
fn a_master_that_sends_what_the_log_cannot_take_is_asked_at_longer_and_longer_intervals() {
    let mut s = at(100, (1, 0));
    let mut pauses = Vec::new();
    for _ in 0..6 {
        // The frame itself is in order; no whole record comes of it.
        s.frame(frame(100, 30, (1, 0), 90));
        actions(&mut s);
        s.received(100, 0);
        pauses.push(again(&mut s, 1000, 100));
    }
    assert_eq!(pauses, [50, 100, 200, 400, 800, 1600]);
    // Bytes that count, or a connection that lasts, make up for that.
    s.frame(frame(100, 30, (1, 0), 90));
    actions(&mut s);
    s.received(130, 2000);
    assert_eq!(again(&mut s, 2000, 130), 50);
    assert_eq!(again(&mut s, 3000, 130), 100);
    s.tick(3000 + 100 + 4999);
    assert_eq!(again(&mut s, 8100, 130), 200);
    s.tick(8100 + 200 + 5000);
    assert_eq!(again(&mut s, 13_300, 130), 50);
}
