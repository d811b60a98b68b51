//! Nodes on real stores that replicate over sockets of the loopback address: what two and three of
//! them do together, and what one does with peers that are slow, confused or hostile.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

#[path = "nodes/as_master.rs"]
mod as_master;
#[path = "nodes/as_slave.rs"]
mod as_slave;
#[path = "nodes/bare.rs"]
mod bare;
#[path = "nodes/bed.rs"]
mod bed;
#[path = "nodes/beside.rs"]
mod beside;
#[path = "nodes/churn.rs"]
mod churn;
#[path = "nodes/confirm.rs"]
mod confirm;
#[path = "nodes/extension.rs"]
mod extension;
#[path = "nodes/fakes.rs"]
mod fakes;
#[path = "nodes/generations.rs"]
mod generations;
#[path = "nodes/link.rs"]
mod link;
#[path = "nodes/reports.rs"]
mod reports;
#[path = "nodes/resync.rs"]
mod resync;
#[path = "nodes/stories.rs"]
mod stories;

use epochlog_ha::TransportKind;

macro_rules! told_for_each_transport {
    ($($from:ident::$story:ident),* $(,)?) => {
        mod over_the_ring {
            $(#[test] fn $story() { super::$from::$story(super::TransportKind::Uring); })*
        }
        mod over_tokio_uring {
            $(#[test] fn $story() { super::$from::$story(super::TransportKind::TokioUring); })*
        }
        mod over_plain_sockets {
            $(#[test] fn $story() { super::$from::$story(super::TransportKind::Std); })*
        }
    };
}

told_for_each_transport!(
    stories::slaves_get_every_byte_and_every_epoch,
    stories::a_link_cut_again_and_again_loses_no_ack,
    stories::divergent_tails_are_cut_after_a_fail_over,
    stories::a08_elections_without_writes_leave_equal_lists,
    stories::a09_a_master_again_in_a_newer_epoch_keeps_its_slaves,
    stories::a_killed_slave_comes_back_and_catches_up,
    stories::a_killed_master_serves_its_epoch_again_or_follows,
    stories::writes_that_wait_end_as_unknown_when_the_role_ends,
    reports::a_report_does_not_wait_for_a_body_that_does_not_come,
    bare::a_slave_that_says_and_reads_single_bytes_is_served,
    bare::slaves_that_stall_flood_or_break_off_hold_nobody_up,
    bare::a_master_that_says_single_bytes_is_followed,
    bare::a_master_that_stalls_or_breaks_off_leaves_nothing_behind,
    beside::catching_up_from_far_behind_does_not_hold_live_acks_up,
    reports::reports_of_a_stream_come_while_it_goes_on,
);
