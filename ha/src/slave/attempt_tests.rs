//! Attempts at a connection, one after the other.

use super::tests::{actions, config};
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
