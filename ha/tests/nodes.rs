//! Nodes on real stores that replicate over sockets of the loopback address: what two and three of
//! them do together, and what one does with peers that are slow, confused or hostile.
#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

#[path = "nodes/as_master.rs"]
mod as_master;
#[path = "nodes/as_slave.rs"]
mod as_slave;
#[path = "nodes/bed.rs"]
mod bed;
#[path = "nodes/churn.rs"]
mod churn;
#[path = "nodes/extension.rs"]
mod extension;
#[path = "nodes/fakes.rs"]
mod fakes;
#[path = "nodes/link.rs"]
mod link;
#[path = "nodes/resync.rs"]
mod resync;
#[path = "nodes/stories.rs"]
mod stories;

use epochlog_ha::TransportKind;

macro_rules! told_for_each_transport {
    ($($story:ident),* $(,)?) => {
        mod over_the_ring {
            $(#[test] fn $story() { super::stories::$story(super::TransportKind::Uring); })*
        }
        mod over_tokio_uring {
            $(#[test] fn $story() { super::stories::$story(super::TransportKind::TokioUring); })*
        }
        mod over_plain_sockets {
            $(#[test] fn $story() { super::stories::$story(super::TransportKind::Std); })*
        }
    };
}

told_for_each_transport!(
    slaves_get_every_byte_and_every_epoch,
    a_link_cut_again_and_again_loses_no_ack,
    divergent_tails_are_cut_after_a_fail_over,
    a08_elections_without_writes_leave_equal_lists,
    a09_a_master_again_in_a_newer_epoch_keeps_its_slaves,
    a_killed_slave_comes_back_and_catches_up,
    a_killed_master_serves_its_epoch_again_or_follows,
    writes_that_wait_end_as_unknown_when_the_role_ends,
);
