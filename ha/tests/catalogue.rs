//! Which test holds which field failure of log-replication systems: A, RocketMQ's controller mode; E,
//! epochs, truncation and recovery elsewhere; G, io_uring. A test that is renamed or goes takes its
//! failure out of the table, and this fails.

use std::collections::BTreeSet;
use std::path::Path;

/// Failures that replication and its transports can have, the file of a test, the test.
const HERE: &[(&str, &str, &str)] = &[
    (
        "A02",
        "src/sync_state/tests.rs",
        "a02_while_an_expansion_is_open_both_sets_count",
    ),
    (
        "A02",
        "tests/nodes/as_master.rs",
        "a02_a_lost_answer_to_an_expansion_loses_no_write",
    ),
    (
        "A03",
        "src/sync_state/tests.rs",
        "a03_a_member_without_a_connection_freezes_the_confirm_offset",
    ),
    (
        "A04",
        "tests/nodes/as_master.rs",
        "a04_without_authority_nothing_is_written_or_acknowledged",
    ),
    (
        "A05",
        "src/master/tests.rs",
        "a05_an_ack_of_bytes_not_sent_closes_and_counts_nothing",
    ),
    (
        "A05",
        "tests/nodes/as_master.rs",
        "a05_a_forged_ack_closes_and_releases_nothing",
    ),
    (
        "A07",
        "src/sync_state/tests.rs",
        "a07_the_next_term_of_the_same_master_keeps_connections_and_acks",
    ),
    (
        "A08",
        "tests/nodes/stories.rs",
        "a08_elections_without_writes_leave_equal_lists",
    ),
    (
        "A09",
        "tests/nodes/stories.rs",
        "a09_a_master_again_in_a_newer_epoch_keeps_its_slaves",
    ),
    (
        "A10",
        "src/sync_state/tests.rs",
        "a10_a_new_connection_counts_as_unknown_not_as_zero",
    ),
    (
        "A19",
        "src/frame/tests.rs",
        "a19_frames_split_at_every_byte_equal_the_unsplit_run",
    ),
    (
        "A20",
        "src/frame/tests.rs",
        "a20_a_state_word_that_is_not_due_is_refused_as_soon_as_it_is_there",
    ),
    (
        "A21",
        "src/sync_state/tests.rs",
        "a21_two_removals_at_once_end_in_a_set_that_lacks_both",
    ),
    (
        "A22",
        "src/sync_state/tests.rs",
        "a22_self_is_always_in_and_a_member_that_never_connected_leaves_at_the_limit",
    ),
    (
        "A23",
        "src/sync_state/tests.rs",
        "a23_a_set_of_an_equal_or_lower_epoch_changes_nothing",
    ),
    (
        "A26",
        "src/master/tests.rs",
        "a26_an_idle_pair_lives_and_a_silent_peer_does_not",
    ),
    (
        "A26",
        "src/slave/tests.rs",
        "a26_the_report_is_repeated_and_a_silent_master_is_left",
    ),
    (
        "A27",
        "tests/nodes/as_master.rs",
        "a27_a_disconnected_member_is_proposed_out_and_comes_back",
    ),
    (
        "A28",
        "tests/nodes/as_master.rs",
        "a28_a_write_for_three_replicas_ends_with_the_second_ack",
    ),
    (
        "A32",
        "src/sync_state/tests.rs",
        "a32_a_first_report_of_bytes_never_sent_does_not_count",
    ),
    (
        "A33",
        "tests/nodes/as_master.rs",
        "a33_a_stalled_member_leaves_within_the_limit",
    ),
    (
        "A34",
        "src/acks/tests.rs",
        "a34_each_write_has_its_own_deadline",
    ),
    (
        "E01",
        "src/handshake/tests.rs",
        "e01_no_confirm_offset_decides_anything",
    ),
    (
        "E03",
        "src/handshake/tests.rs",
        "e03_the_list_is_cut_even_when_no_byte_is",
    ),
    (
        "E04",
        "src/handshake/tests.rs",
        "e04_an_epoch_without_writes_counts",
    ),
    (
        "E07",
        "src/handshake/tests.rs",
        "e07_epoch_zero_and_the_largest_are_epochs",
    ),
    (
        "E08",
        "src/master/tests.rs",
        "e08_the_first_report_must_lie_inside_the_log",
    ),
    (
        "E08",
        "tests/nodes/as_slave.rs",
        "e08_a_master_that_breaks_the_protocol_is_left_and_tried_again",
    ),
    (
        "G01",
        "tests/transport/stories.rs",
        "dropping_with_everything_pending_is_quick_and_complete",
    ),
    (
        "G03",
        "src/transport/uring/send/tests.rs",
        "g04_a_short_send_goes_on_behind_its_last_byte_while_the_first_part_is_pinned",
    ),
    (
        "G04",
        "src/transport/uring/send/tests.rs",
        "g04_the_lease_ends_with_the_last_notification_in_any_order",
    ),
    (
        "G04",
        "src/transport/uring/send/tests.rs",
        "g04_a_failure_without_the_promise_of_a_notification_ends_the_lease",
    ),
    (
        "G05",
        "src/transport/uring/send/tests.rs",
        "g04_a_cancelled_send_with_a_notification_to_come_keeps_its_lease_and_holds_closed_back",
    ),
    (
        "G06",
        "src/transport/uring/send/tests.rs",
        "g06_a_cancelled_receive_reports_what_the_kernel_had_written",
    ),
    (
        "G07",
        "tests/transport_descriptors.rs",
        "g07_g10_g15_descriptors_come_back_and_64_rings_fit",
    ),
    (
        "G08",
        "src/transport/uring/send/tests.rs",
        "g08_a_completion_for_a_connection_that_is_gone_changes_nothing",
    ),
    (
        "G09",
        "tests/transport_rings.rs",
        "g09_a_queue_of_sixteen_entries_takes_a_thousand_operations",
    ),
    (
        "G10",
        "src/transport/uring/refused.rs",
        "g10_too_little_locked_memory_names_the_limit",
    ),
    (
        "G11",
        "src/transport/uring/refused.rs",
        "g11_a_refusal_says_whether_kernel_setting_or_container_is_the_cause",
    ),
    (
        "G12",
        "src/transport/uring/send/tests.rs",
        "g12_again_and_interrupted_are_retried_in_order_and_not_for_ever",
    ),
    (
        "G14",
        "src/transport/uring/send/tests.rs",
        "g14_a_second_chain_waits_for_the_whole_of_the_first",
    ),
    (
        "G15",
        "tests/transport_descriptors.rs",
        "g07_g10_g15_descriptors_come_back_and_64_rings_fit",
    ),
    (
        "G16",
        "tests/transport/peers.rs",
        "g16_a_reset_of_the_peer_is_one_error_that_names_it",
    ),
    (
        "G17",
        "src/transport/socket.rs",
        "g17_an_errno_keeps_its_kind_and_names_the_peer",
    ),
    (
        "G18",
        "src/transport/uring/send/tests.rs",
        "g18_the_first_refusal_of_zero_copy_turns_it_off_and_loses_nothing",
    ),
    (
        "G19",
        "tests/transport_rings.rs",
        "g19_a_fork_gets_no_ring_and_a_child_no_descriptor",
    ),
];

/// Failures of the log, its recovery, its queues, or of roles and reads: the engine's and the broker's.
const ELSEWHERE: &[&str] = &[
    "A01", "A06", "A11", "A12", "A13", "A14", "A15", "A16", "A17", "A18", "A29", "A30", "E05",
    "E06", "E09", "E10", "E11", "E12", "E13", "E15", "E16", "E17", "E19", "E20", "E21", "G02",
];

#[test]
fn every_failure_of_replication_has_its_test() {
    for (id, path, name) in HERE {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.contains(&format!("fn {name}(")),
            "{id}: {name} is not in {}",
            path.display()
        );
    }
    let here: BTreeSet<&str> = HERE.iter().map(|(id, ..)| *id).collect();
    let others = || ELSEWHERE.iter().copied();
    assert!(others().all(|id| !here.contains(id)), "listed twice");
    let gaps = [24, 25, 31];
    let a = (1..=34).filter(|n| !gaps.contains(n));
    let e = (1..=21).filter(|n| ![2, 14, 18].contains(n));
    let g = (1..=19).filter(|n| *n != 13);
    let all: BTreeSet<String> = a
        .map(|n| format!("A{n:02}"))
        .chain(e.map(|n| format!("E{n:02}")))
        .chain(g.map(|n| format!("G{n:02}")))
        .collect();
    let listed = here.into_iter().chain(others()).map(str::to_owned);
    assert_eq!(listed.collect::<BTreeSet<_>>(), all);
}
