//! Scripts of acks, disconnections and controller answers.

use proptest::prelude::*;

use super::*;

const LIMITS: SyncStateLimits = SyncStateLimits {
    not_catch_up_ms: 15_000,
    disconnected_ms: 500,
};

fn set(members: &[u64], epoch: u32) -> SyncStateSet {
    SyncStateSet {
        members: members.iter().copied().collect(),
        epoch,
    }
}

fn conn(n: u64) -> ConnId {
    ConnId::new(n)
}

fn state(members: &[u64]) -> SyncState {
    // Tests about the set do not care what was sent: as after a restart in the same epoch.
    SyncState::new(1, set(members, 10), 0, 0, true, LIMITS, 0)
}

/// `id` on connection `id * 10`, level and acked up to `offset` at `now`.
fn level(state: &mut SyncState, id: u64, offset: Offset, now: u64) {
    if state
        .replicas()
        .get(&id)
        .and_then(|r| r.connection)
        .is_none()
    {
        state.joined(id, conn(id * 10), false, now);
    }
    state.acked(id, conn(id * 10), offset);
    state.caught_up(id, conn(id * 10), now);
}

#[test]
fn a02_while_an_expansion_is_open_both_sets_count() {
    let mut s = state(&[1]);
    level(&mut s, 2, 100, 5);
    assert_eq!(s.acked_by(AckPolicy::AllInSync), MAX_OFFSET);
    assert_eq!(s.next_proposal(5), Some(set(&[1, 2], 10)));
    // The controller committed and its answer is lost: a write ending at 200 must wait for 2.
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 100);
    assert_eq!(s.next_proposal(6), None, "one proposal at a time");
    s.proposal_unknown(3000);
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 100);
    // Unknown, then asked again, then success.
    assert_eq!(s.next_proposal(3001), Some(set(&[1, 2], 10)));
    assert!(s.commit(set(&[1, 2], 11), 3002));
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 100);
    level(&mut s, 2, 200, 3003);
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 200);
}

#[test]
fn a02_while_a_shrink_is_open_the_larger_set_counts() {
    let mut s = state(&[1, 2]);
    level(&mut s, 2, 100, 0);
    s.left(2, conn(20), 1000);
    assert_eq!(s.next_proposal(1400), None, "it may still come back");
    assert_eq!(s.next_proposal(1501), Some(set(&[1], 10)));
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 0);
    s.proposal_unknown(4000);
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 0);
    assert_eq!(s.next_proposal(4001), Some(set(&[1], 10)));
    assert!(s.commit(set(&[1], 11), 4002));
    assert_eq!(s.acked_by(AckPolicy::AllInSync), MAX_OFFSET);
}

#[test]
fn a02_an_unknown_expansion_is_settled_even_when_the_new_member_is_gone() {
    let mut s = state(&[1, 2]);
    level(&mut s, 2, 100, 0);
    level(&mut s, 3, 100, 0);
    assert_eq!(s.next_proposal(1), Some(set(&[1, 2, 3], 10)));
    s.proposal_unknown(2);
    s.left(3, conn(30), 3);
    level(&mut s, 2, 200, 4);
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 0, "3 may be electable");
    // What is wanted equals the committed set; it is asked for all the same.
    assert_eq!(s.next_proposal(1000), Some(set(&[1, 2], 10)));
    s.proposal_rejected(1001);
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 200);
    assert_eq!(s.next_proposal(1002), None);
}

#[test]
fn a03_a_member_without_a_connection_freezes_the_confirm_offset() {
    let mut s = SyncState::new(1, set(&[1, 2, 3], 1), 0, 300, true, LIMITS, 0);
    level(&mut s, 2, 500, 0);
    assert_eq!(s.advance_confirm(800, true), 300);
    assert!(s.commit(set(&[1, 2], 2), 1));
    assert_eq!(s.advance_confirm(800, true), 500);
    assert_eq!(s.advance_confirm(400, true), 500, "it never falls");
    level(&mut s, 2, 700, 2);
    assert_eq!(
        s.advance_confirm(800, false),
        500,
        "nor rises without authority"
    );
    assert_eq!(s.advance_confirm(800, true), 700);
    assert!(s.commit(set(&[1], 3), 3));
    assert_eq!(s.advance_confirm(800, true), 800);
}

#[test]
fn a10_a_new_connection_counts_as_unknown_not_as_zero() {
    let mut s = state(&[1, 2]);
    level(&mut s, 2, 5000, 0);
    assert_eq!(s.advance_confirm(9000, true), 5000);
    assert_eq!(s.joined(2, conn(21), false, 1), Joining::Replaces(conn(20)));
    assert_eq!(s.advance_confirm(9000, true), 5000);
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 0, "not satisfied either");
    assert_eq!(s.acked(2, conn(21), 0), AckCounted::Yes);
    assert_eq!(s.advance_confirm(9000, true), 5000);
}

#[test]
fn a21_two_removals_at_once_end_in_a_set_that_lacks_both() {
    for (first, second) in [(3, 4), (4, 3)] {
        for answered in 0..3 {
            let mut s = state(&[1, 2, 3, 4]);
            for id in [2, 3, 4] {
                level(&mut s, id, 100, 0);
            }
            s.left(first, conn(first * 10), 100);
            let one = s.next_proposal(700).unwrap();
            assert!(!one.members.contains(&first));
            s.left(second, conn(second * 10), 701);
            level(&mut s, 2, 100, 1300);
            assert_eq!(s.next_proposal(1300), None, "serialised");
            let committed = match answered {
                0 => s.commit(SyncStateSet { epoch: 11, ..one }, 1301),
                1 => {
                    s.proposal_unknown(1301);
                    false
                }
                _ => {
                    s.proposal_rejected(1301);
                    false
                }
            };
            let two = s.next_proposal(1302).unwrap();
            assert_eq!(two, set(&[1, 2], if committed { 11 } else { 10 }));
        }
    }
}

#[test]
fn a22_self_is_always_in_and_a_member_that_never_connected_leaves_at_the_limit() {
    let mut s = state(&[1, 2]);
    assert_eq!(s.next_proposal(15_000), None);
    assert_eq!(s.next_proposal(15_001), Some(set(&[1], 10)));
    // Self is in even when the controller's set lacks it.
    let mut s = state(&[2]);
    assert!(s.members().contains(&1));
    level(&mut s, 2, 0, 1);
    assert_eq!(s.next_proposal(2), Some(set(&[1, 2], 10)));
}

#[test]
fn a23_a_set_of_an_equal_or_lower_epoch_changes_nothing() {
    let mut s = state(&[1, 2]);
    assert!(!s.commit(set(&[1], 10), 0));
    assert!(!s.commit(set(&[1], 9), 0));
    assert_eq!(s.committed(), &set(&[1, 2], 10));
    level(&mut s, 3, 10, 0);
    s.next_proposal(1).unwrap();
    assert!(
        !s.commit(set(&[1, 2], 10), 1),
        "a push of the old set settles no proposal"
    );
    assert!(s.members().contains(&3));
}

#[test]
fn the_end_of_an_older_connection_does_not_remove_its_replica() {
    let mut s = state(&[1, 2]);
    level(&mut s, 2, 100, 0);
    assert_eq!(
        s.joined(2, conn(21), false, 10),
        Joining::Replaces(conn(20))
    );
    s.acked(2, conn(21), 100);
    s.left(2, conn(20), 11);
    assert_eq!(s.acked(2, conn(20), 500), AckCounted::Stale);
    s.caught_up(2, conn(21), 2000);
    assert_eq!(s.next_proposal(2000), None);
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 100);
}

#[test]
fn a_rejected_proposal_leaves_no_trace() {
    let mut s = state(&[1]);
    level(&mut s, 2, 50, 0);
    s.next_proposal(1).unwrap();
    s.proposal_rejected(2);
    assert_eq!(s.acked_by(AckPolicy::AllInSync), MAX_OFFSET);
    assert_eq!(
        s.next_proposal(3),
        Some(set(&[1, 2], 10)),
        "and may be asked again"
    );
}

#[test]
fn a_newcomer_that_the_controller_refuses_does_not_keep_a_lost_member_in() {
    let mut s = state(&[1, 2]);
    level(&mut s, 2, 100, 0);
    level(&mut s, 3, 100, 0);
    s.left(2, conn(20), 0);
    assert_eq!(s.next_proposal(600), Some(set(&[1, 3], 10)));
    // 3 replicates, but the controller does not hear of it.
    s.proposal_rejected(601);
    assert_eq!(s.next_proposal(602), Some(set(&[1], 10)));
    assert!(s.commit(set(&[1], 11), 603));
    assert_eq!(s.next_proposal(604), Some(set(&[1, 3], 11)));
    s.proposal_rejected(605);
    assert_eq!(s.next_proposal(606), Some(set(&[1, 3], 11)));
}

#[test]
fn a02_a_set_that_has_the_members_asked_for_counts_whatever_its_epoch() {
    let mut s = state(&[1, 2]);
    level(&mut s, 2, 100, 0);
    level(&mut s, 3, 50, 0);
    assert_eq!(s.next_proposal(1), Some(set(&[1, 2, 3], 10)));
    s.proposal_met(2);
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 50, "3 is a member there");
    s.left(3, conn(30), 3);
    assert_eq!(s.next_proposal(1000), Some(set(&[1, 2], 10)));
    s.proposal_met(1001);
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 100);
    assert_eq!(s.next_proposal(1002), None);
}

#[test]
fn a33_a_member_that_stalls_leaves_at_the_catch_up_limit() {
    let mut s = state(&[1, 2, 3]);
    level(&mut s, 2, 100, 0);
    level(&mut s, 3, 100, 0);
    s.caught_up(2, conn(20), 14_000);
    s.caught_up(3, conn(30), 1000);
    assert_eq!(s.next_proposal(16_000), None);
    assert_eq!(s.next_proposal(16_001), Some(set(&[1, 2], 10)));
}

#[test]
fn a_replica_joins_when_level_above_confirm_and_epoch_start() {
    let mut s = SyncState::new(1, set(&[1], 1), 1000, 1200, true, LIMITS, 0);
    for (ack, joins) in [(900, false), (1100, false), (1200, true)] {
        s.joined(2, conn(20), false, 0);
        s.acked(2, conn(20), ack);
        assert_eq!(s.next_proposal(1), None, "not before it was level");
        s.caught_up(2, conn(20), 1);
        assert_eq!(s.next_proposal(2).is_some(), joins, "{ack}");
        s.proposal_rejected(2);
        s.joined(2, conn(21), false, 3);
        s.left(2, conn(21), 3);
        s.replicas.clear();
    }
    // A learner never does, nor does it count for any number of copies.
    s.joined(7, conn(70), true, 0);
    s.acked(7, conn(70), 5000);
    s.caught_up(7, conn(70), 1);
    assert_eq!(s.next_proposal(2), None);
    assert_eq!(s.acked_by(AckPolicy::Replicas(2)), 0);
}

#[test]
fn copies_are_counted_once_per_member() {
    let mut s = state(&[1, 2, 3, 4]);
    level(&mut s, 2, 300, 0);
    level(&mut s, 3, 300, 0);
    level(&mut s, 4, 100, 0);
    s.joined(2, conn(21), false, 1);
    s.acked(2, conn(21), 300);
    let by = |n| s.acked_by(AckPolicy::Replicas(n));
    assert_eq!(
        (by(0), by(1), by(2), by(3), by(4), by(5)),
        (MAX_OFFSET, MAX_OFFSET, 300, 300, 100, 0)
    );
    assert_eq!(s.acked_by(AckPolicy::Local), MAX_OFFSET);
}

#[test]
fn a32_a_first_report_of_bytes_never_sent_does_not_count() {
    let mut s = SyncState::new(1, set(&[1, 2], 1), 700, 0, false, LIMITS, 0);
    s.joined(2, conn(20), false, 0);
    assert_eq!(s.acked(2, conn(20), 1000), AckCounted::NeverSent);
    assert_eq!(s.acked(2, conn(20), 1100), AckCounted::NeverSent);
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 0);
    assert_eq!(s.advance_confirm(2000, true), 0);
    // Below the epoch's start anything is its own affair; what was sent may come back.
    s.joined(2, conn(21), false, 1);
    assert_eq!(s.acked(2, conn(21), 700), AckCounted::Yes);
    s.sent(2, conn(21), 900);
    s.joined(2, conn(22), false, 2);
    assert_eq!(s.acked(2, conn(22), 900), AckCounted::Yes);
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 900);
}

#[test]
fn a_replica_with_the_masters_own_id_is_refused() {
    assert_eq!(state(&[1]).joined(1, conn(9), false, 0), Joining::OwnId);
}

#[test]
fn a07_the_next_term_of_the_same_master_keeps_connections_and_acks() {
    let mut s = SyncState::new(1, set(&[1, 2], 1), 0, 0, false, LIMITS, 0);
    s.joined(2, conn(20), false, 0);
    s.acked(2, conn(20), 0);
    s.sent(2, conn(20), 500);
    s.acked(2, conn(20), 500);
    s.advance_confirm(500, true);
    s.proposal_unknown(0);
    let mut next = s.next_term(set(&[1, 2], 4), 500, 10);
    assert_eq!(next.committed(), &set(&[1, 2], 4));
    assert_eq!(next.acked_by(AckPolicy::AllInSync), 500);
    assert_eq!(next.advance_confirm(900, true), 500);
    assert_eq!(next.acked(2, conn(20), 800), AckCounted::Yes);
    assert!(!next.commit(set(&[1], 4), 11));
}

proptest! {
    /// A10: the confirm offset never falls, whatever comes in whatever order, and never passes a
    /// member's ack.
    #[test]
    fn a10_confirm_is_monotonic(
        steps in proptest::collection::vec((0u8..6, 2u64..5, 0u64..1000), 1..80)
    ) {
        let mut s = state(&[1, 2, 3]);
        let (mut confirm, mut epoch, mut connections) = (0, 10, 100u64);
        for (i, (what, id, x)) in steps.into_iter().enumerate() {
            let now = i as u64 * 100;
            let live = s.replicas().get(&id).and_then(|r| r.connection);
            match (what, live) {
                (0, _) => {
                    connections += 1;
                    s.joined(id, conn(connections), false, now);
                }
                (1, Some(c)) => { s.acked(id, c, x); }
                (2, Some(c)) => s.left(id, c, now),
                (3, _) => {
                    epoch += 1;
                    let members = [1, id, 2 + x % 3];
                    s.commit(set(&members, epoch), now);
                }
                (4, _) => { let _ = s.next_proposal(now); }
                _ => s.proposal_unknown(now),
            }
            let next = s.advance_confirm(1000, true);
            prop_assert!(next >= confirm);
            if next > confirm {
                let low = s.members().iter().filter(|id| **id != 1)
                    .map(|id| s.replicas()[id].ack.unwrap_or(0)).min().unwrap_or(1000);
                prop_assert!(next <= low);
            }
            confirm = next;
        }
    }
}

#[test]
fn on_disk_a_replica_that_syncs_at_once_counts_as_far_as_it_says() {
    let mut s = state(&[1, 2, 3]);
    level(&mut s, 2, 100, 0);
    level(&mut s, 3, 200, 0);
    let on_disk = |s: &SyncState, policy| s.acked_in(policy, Durability::Flushed);
    assert_eq!(
        on_disk(&s, AckPolicy::AllInSync),
        100,
        "acks are all there is"
    );
    s.flushed(3, conn(30), 40);
    assert_eq!(on_disk(&s, AckPolicy::AllInSync), 40);
    assert_eq!(on_disk(&s, AckPolicy::Replicas(2)), 100);
    assert_eq!(s.acked_by(AckPolicy::AllInSync), 100, "in memory");
    assert_eq!(
        s.advance_confirm(1000, true),
        40,
        "consumers wait for the disk"
    );
    s.flushed(3, conn(30), 30);
    assert_eq!(on_disk(&s, AckPolicy::AllInSync), 40, "it never falls");
    s.flushed(3, conn(30), 500);
    assert_eq!(
        on_disk(&s, AckPolicy::Replicas(2)),
        200,
        "at most what it acked"
    );
    s.flushed(3, conn(31), 500);
    // A new connection says it anew.
    s.joined(3, conn(33), false, 1);
    assert_eq!(on_disk(&s, AckPolicy::AllInSync), 0);
    s.acked(3, conn(33), 200);
    assert_eq!(on_disk(&s, AckPolicy::AllInSync), 100);
}

#[test]
fn e16_a_replica_joins_in_a_life_it_was_seen_in_on_its_connection() {
    let mut state = state(&[1]);
    let (conn, second) = (conn(1), conn(2));
    state.joined(2, conn, false, 0);
    state.reported(2, conn, 0);
    state.acked(2, conn, 100);
    state.caught_up(2, conn, 0);
    assert!(state.next_proposal(1).is_some(), "nobody tells lives");
    state.proposal_rejected(1);

    // The controller's word comes long after its last sign of life: it may be another's.
    state.set_lives([(2, 6)].into(), 1_002);
    assert_eq!((state.life(2), state.wants_lives(1_002)), (None, true));
    assert_eq!(state.next_proposal(1_002), None);
    state.reported(2, conn, 1_100);
    assert_eq!((state.life(2), state.wants_lives(1_100)), (Some(6), false));
    assert!(state.next_proposal(1_100).is_some());
    // It lives on elsewhere while this connection hangs: what was seen stays.
    state.set_lives([(2, 7)].into(), 2_101);
    assert_eq!(state.life(2), Some(6));
    // A new connection has to be seen anew.
    state.joined(2, second, false, 2_200);
    assert_eq!(state.life(2), None);
    state.reported(2, second, 2_200);
    assert_eq!(state.life(2), Some(7));
}
