//! Which test holds which field failure of log-replication systems: A, RocketMQ's controller mode; E,
//! epochs, truncation and recovery elsewhere; G, io_uring. A test that is renamed or goes takes its
//! failure out of the table, and this fails.

use std::collections::BTreeSet;
use std::path::Path;

/// A failure, the file of a test, the test.
type Row = (&'static str, &'static str, &'static str);

/// Failures that replication and its transports can have.
const HERE: &[Row] = &[
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
        "A30",
        "tests/nodes/beside.rs",
        "a30_what_is_visible_follows_the_set_and_not_what_a_write_asked_for",
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
        "E16",
        "src/sync_state/tests.rs",
        "e16_a_replica_joins_in_a_life_it_was_seen_in_on_its_connection",
    ),
    (
        "G02",
        "tests/nodes/as_slave.rs",
        "g02_a_sync_covers_no_byte_whose_receive_is_under_way",
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

/// Failures of the log, its recovery, its queues, or of roles and reads: as above, from the folder of the
/// workspace.
const ELSEWHERE: &[Row] = &[
    (
        "A01",
        "engine/tests/cut_stories.rs",
        "a01_a_cut_tail_does_not_come_back",
    ),
    (
        "A06",
        "engine/tests/queue_stories/cuts_and_order.rs",
        "a06_queue_offsets_go_on_behind_messages_that_are_not_dispatched_yet",
    ),
    (
        "A11",
        "engine/src/store/tests/power.rs",
        "a11_a12_confirm_is_on_a_record_inside_what_survived",
    ),
    (
        "A12",
        "engine/src/store/tests/power.rs",
        "a11_a12_confirm_is_on_a_record_inside_what_survived",
    ),
    (
        "A13",
        "engine/tests/cut_stories.rs",
        "a13_all_marks_are_at_or_below_the_cut",
    ),
    (
        "A14",
        "engine/tests/queue_stories/cuts_and_order.rs",
        "a14_a_record_across_the_confirm_offset_stays_hidden",
    ),
    (
        "A15",
        "engine/tests/field_failures/queues.rs",
        "a15_a_consumer_above_a_cut_is_told_and_misses_nothing",
    ),
    (
        "A16",
        "engine/tests/queue_stories/cuts_and_order.rs",
        "a16_a_queue_whose_messages_were_all_cut_can_be_read_again",
    ),
    (
        "A17",
        "engine/tests/field_failures/ends_and_roles.rs",
        "a17_a_full_log_takes_no_append_before_a_role_is_given_in_this_life",
    ),
    (
        "A29",
        "engine/tests/field_failures/ends_and_roles.rs",
        "a29_nothing_waits_outside_the_log_when_the_role_changes",
    ),
    (
        "E05",
        "engine/src/store/tests/every_call.rs",
        "e05_what_a_recovery_showed_survives_the_next_power_loss",
    ),
    (
        "E06",
        "engine/src/epoch_file/tests.rs",
        "e06_an_entry_is_on_disk_once_replace_returned_and_never_half_of_it",
    ),
    (
        "E09",
        "engine/tests/log_stories.rs",
        "e09_an_empty_segment_behind_a_roll_is_an_end_of_its_own",
    ),
    (
        "E10",
        "engine/src/store/tests/interleavings.rs",
        "interleavings_e10_a_sync_and_a_cut_in_any_order_leave_a_mark_that_is_true",
    ),
    (
        "E11",
        "engine/tests/queue_stories/folders.rs",
        "e11_a_cut_under_the_dispatcher_is_a_cut_after_it",
    ),
    (
        "E12",
        "engine/tests/field_failures/ends_and_roles.rs",
        "e12_an_open_shows_nothing_that_it_has_not_recovered_and_made_durable",
    ),
    (
        "E13",
        "engine/src/store/tests/crash_points.rs",
        "e13_e20_an_open_stopped_anywhere_and_repeated_gives_what_it_would_have",
    ),
    (
        "E15",
        "engine/src/consume_queue/tests.rs",
        "e15_what_was_loaded_is_not_written_again",
    ),
    (
        "E17",
        "engine/tests/cut_stories.rs",
        "e17_two_cuts_in_a_row_both_hold",
    ),
    (
        "E19",
        "engine/tests/cut_stories.rs",
        "e19_appends_go_on_at_the_cut_without_a_gap",
    ),
    (
        "E20",
        "engine/src/store/tests/power.rs",
        "e20_a_hole_above_the_mark_ends_the_log_and_what_lies_behind_it_goes",
    ),
    (
        "E21",
        "engine/tests/field_failures/ends_and_roles.rs",
        "e21_a_reader_from_before_a_cut_sees_the_old_bytes_or_none_and_never_a_mixture",
    ),
];

/// Of what a broker keeps beside the log: topics and subscriptions are not replicated by this crate.
const NOT_OF_THE_LOG: &[&str] = &["A18"];

#[test]
fn every_failure_of_replication_has_its_test() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = here.parent().unwrap();
    let in_folder = |folder, list: &[Row]| {
        for (id, path, name) in list {
            let path = Path::join(folder, path);
            let text = std::fs::read_to_string(&path).unwrap();
            let test = format!("fn {name}(");
            assert!(
                text.contains(&test),
                "{id}: {name} is not in {}",
                path.display()
            );
        }
    };
    in_folder(here, HERE);
    in_folder(workspace, ELSEWHERE);
    let ids = |list: &'static [Row]| list.iter().map(|(id, ..)| *id).collect::<BTreeSet<_>>();
    let (here, elsewhere) = (ids(HERE), ids(ELSEWHERE));
    assert!(here.is_disjoint(&elsewhere), "listed twice");
    let gaps = [24, 25, 31];
    let a = (1..=34).filter(|n| !gaps.contains(n));
    let e = (1..=21).filter(|n| ![2, 14, 18].contains(n));
    let g = (1..=19).filter(|n| *n != 13);
    let all: BTreeSet<String> = a
        .map(|n| format!("A{n:02}"))
        .chain(e.map(|n| format!("E{n:02}")))
        .chain(g.map(|n| format!("G{n:02}")))
        .collect();
    let rest = NOT_OF_THE_LOG.iter().copied();
    let listed = here.into_iter().chain(elsewhere).chain(rest);
    assert_eq!(listed.map(str::to_owned).collect::<BTreeSet<_>>(), all);
}
