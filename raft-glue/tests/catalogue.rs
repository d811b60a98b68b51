//! Which test holds which field failure of log-replication systems: B, RocketMQ's controller and the
//! brokers that talk to it; D, DLedger; F, raft embedded. A test that is renamed or goes takes its
//! failure out of the table, and this fails.

use std::collections::BTreeSet;
use std::path::Path;

/// Failures that controllers can have, and brokers with them: the file of a test, the test.
const HERE: &[(&str, &str, &str)] = &[
    (
        "B02",
        LIVENESS,
        "b02_b03_b04_the_scan_decides_as_the_table_says",
    ),
    (
        "B02",
        BROKER,
        "b02_an_election_without_winner_fences_and_is_asked_for_again",
    ),
    (
        "B03",
        LIVENESS,
        "b02_b03_b04_the_scan_decides_as_the_table_says",
    ),
    (
        "B03",
        ELECT,
        "b03_a_live_master_stays_unless_another_is_designated",
    ),
    (
        "B03",
        GROUP,
        "b03_healthy_masters_stay_while_controllers_restart",
    ),
    (
        "B04",
        LIVENESS,
        "b02_b03_b04_the_scan_decides_as_the_table_says",
    ),
    (
        "B05",
        LIVENESS,
        "b05_b06_an_election_is_wanted_until_there_is_a_master",
    ),
    ("B05", GROUP, "b05_b06_leader_and_master_die_together"),
    (
        "B06",
        LIVENESS,
        "b05_b06_an_election_is_wanted_until_there_is_a_master",
    ),
    ("B06", GROUP, "b05_b06_leader_and_master_die_together"),
    (
        "B07",
        CLIENT,
        "b07_a_leader_outside_the_list_gets_heartbeats",
    ),
    (
        "B09",
        TABLE,
        "b09_b10_every_command_has_its_code_in_every_state",
    ),
    (
        "B09",
        STATE,
        "b09_b10_a_repeated_alter_is_known_as_done_and_a_stale_one_is_not",
    ),
    (
        "B10",
        TABLE,
        "b09_b10_every_command_has_its_code_in_every_state",
    ),
    (
        "B11",
        STATE,
        "b11_a_broker_keeps_its_membership_when_its_address_changes",
    ),
    (
        "B11",
        STATE,
        "b11_b18_ids_are_granted_once_and_again_to_the_same_check_code",
    ),
    (
        "B11",
        BROKER,
        "b11_a_claim_that_went_to_another_broker_is_dropped_and_the_next_id_is_asked_for",
    ),
    (
        "B11",
        BROKER,
        "b11_a_master_that_moved_within_its_epoch_is_followed_to_its_new_address",
    ),
    (
        "B12",
        ADDRESSES,
        "b12_an_address_that_means_the_other_machine_is_refused",
    ),
    (
        "B12",
        CLIENT,
        "b12_an_advertised_address_of_no_use_is_replaced_by_the_one_reached",
    ),
    ("B12", "raft-glue/src/config.rs", "b12_a_bad_peer_is_named"),
    // Which of two masters counts is for the name server to say: it is told the epoch.
    (
        "B14",
        "broker/tests/naming.rs",
        "name_servers_are_told_of_roles_topics_and_the_end",
    ),
    (
        "B15",
        ADDRESSES,
        "b15_a_failing_resolver_keeps_the_last_addresses",
    ),
    (
        "B16",
        CLIENT,
        "b16_unreachable_controllers_do_not_delay_the_heartbeat_of_the_third",
    ),
    (
        "B16",
        "raft-glue/src/remoting/tests.rs",
        "b16_a_peer_that_does_not_answer_delays_nobody_else",
    ),
    (
        "B17",
        ELECT,
        "b17_in_sync_first_then_epoch_then_offset_never_the_dead",
    ),
    (
        "B17",
        ELECT,
        "b17_ties_go_to_the_lower_priority_number_then_to_the_lower_id",
    ),
    (
        "B18",
        STATE,
        "b11_b18_ids_are_granted_once_and_again_to_the_same_check_code",
    ),
    (
        "B18",
        "broker/src/identity.rs",
        "b18_an_identity_wins_over_a_claim_left_by_a_crash",
    ),
    (
        "B18",
        "broker/src/identity.rs",
        "b18_files_of_others_and_damaged_ones_are_refused_by_name",
    ),
    (
        "D01",
        STORE,
        "d01_terms_and_entries_are_the_same_before_and_after_a_reopen",
    ),
    (
        "D02",
        STORE,
        "d02_f01_a_log_shorter_than_its_commit_does_not_open",
    ),
    (
        "D03",
        FIELD,
        "d03_d04_d17_whatever_a_follower_holds_it_is_brought_up",
    ),
    (
        "D03",
        NODE,
        "f20_a_member_that_lost_its_disk_is_refused_and_nobody_stops",
    ),
    (
        "D04",
        FIELD,
        "d03_d04_d17_whatever_a_follower_holds_it_is_brought_up",
    ),
    (
        "D05",
        LEDGER,
        "d05_d06_a_batch_is_appended_in_a_row_or_not_at_all",
    ),
    (
        "D05",
        HISTORY,
        "a_batch_stands_together_from_its_first_one_on",
    ),
    (
        "D06",
        LEDGER,
        "d05_d06_a_batch_is_appended_in_a_row_or_not_at_all",
    ),
    // No field is ever absent: another version is refused as a whole.
    (
        "D07",
        "raft-glue/src/command.rs",
        "other_versions_trailing_bytes_and_prefixes_are_refused",
    ),
    (
        "D08",
        TRANSFER,
        "d08_the_least_behind_of_the_live_and_preferred_is_chosen",
    ),
    (
        "D08",
        TRANSFER,
        "d08_who_did_not_take_over_is_left_alone_for_longer_each_time",
    ),
    ("D10", SEEDS, STORM),
    ("D11", FIELD, "d11_nothing_beyond_the_own_log_is_applied"),
    (
        "D12",
        LEDGER,
        "d12_what_waits_is_bounded_in_bytes_and_refused_as_full",
    ),
    ("D15", STORE, "only_applied_entries_are_truncated"),
    (
        "D16",
        STORE,
        "a_snapshot_carries_the_rows_of_its_index_and_replaces_everything",
    ),
    (
        "D17",
        FIELD,
        "d03_d04_d17_whatever_a_follower_holds_it_is_brought_up",
    ),
    (
        "D18",
        NODE,
        "f03_f19_after_a_failed_write_nothing_leaves_any_more",
    ),
    (
        "D24",
        NODE,
        "a_member_that_was_cut_off_comes_back_without_unseating_the_leader",
    ),
    ("D24", SEEDS, STORM),
    ("D25", LEDGER, "d25_an_idle_group_uses_hardly_any_time"),
    (
        "D26",
        "raft-glue/src/node/waiting.rs",
        "d26_a_leader_that_steps_down_tells_everybody",
    ),
    (
        "D26",
        NODE,
        "d26_a_leader_that_lost_its_followers_tells_who_waits",
    ),
    (
        "D27",
        FIELD,
        "d27_an_entry_of_an_older_term_does_not_commit_by_being_counted",
    ),
    ("D28", SEEDS, STORM),
    (
        "F01",
        STORE,
        "d02_f01_a_log_shorter_than_its_commit_does_not_open",
    ),
    (
        "F02",
        STORE,
        "f02_f06_what_is_applied_has_its_own_record_and_counts_as_committed",
    ),
    (
        "F03",
        NODE,
        "f03_f19_after_a_failed_write_nothing_leaves_any_more",
    ),
    ("F04", FIELD, "f04_f09_an_older_snapshot_takes_nothing_back"),
    (
        "F06",
        STORE,
        "f02_f06_what_is_applied_has_its_own_record_and_counts_as_committed",
    ),
    // Every frame of every simulation is held against the disk of its sender.
    ("F07", SEEDS, STORM),
    ("F08", SEEDS, STORM),
    ("F09", FIELD, "f04_f09_an_older_snapshot_takes_nothing_back"),
    (
        "F10",
        NODE,
        "f10_a_member_far_behind_gets_a_snapshot_also_when_snapshots_are_lost",
    ),
    (
        "F11",
        FIELD,
        "f11_a_snapshot_that_was_sent_counts_only_when_the_follower_says_so",
    ),
    (
        "F12",
        NODE,
        "f12_f13_members_are_added_promoted_and_removed_across_crashes",
    ),
    (
        "F13",
        NODE,
        "f12_f13_members_are_added_promoted_and_removed_across_crashes",
    ),
    (
        "F13",
        NODE,
        "f13_a_leader_that_an_earlier_leader_removed_stands_down",
    ),
    ("F14", FIELD, "f14_entries_of_every_kind_are_in_every_log"),
    (
        "F15",
        LEDGER,
        "f15_a_change_of_members_that_cannot_be_is_not_answered_with_success",
    ),
    ("F15", SEEDS, STORM),
    (
        "F16",
        FIELD,
        "f16_no_votes_are_sought_before_a_committed_change_is_applied",
    ),
    (
        "F17",
        FIELD,
        "f17_a_late_rejection_does_not_take_an_acknowledgement_back",
    ),
    (
        "F18",
        "raft-glue/src/node/waiting.rs",
        "f18_a_read_waits_for_a_majority_and_for_its_index_or_for_its_time",
    ),
    (
        "F19",
        NODE,
        "f03_f19_after_a_failed_write_nothing_leaves_any_more",
    ),
    (
        "F20",
        NODE,
        "f20_a_member_that_lost_its_disk_is_refused_and_nobody_stops",
    ),
    ("F20", STORE, "f20_the_store_of_another_member_is_refused"),
    (
        "F21",
        STORE,
        "f21_rows_and_applied_index_come_back_together",
    ),
    ("F22", FIELD, "f22_news_of_a_removed_member_changes_nothing"),
    (
        "F23",
        "raft-glue/src/state_machine_replay_tests.rs",
        "f23_snapshot_and_tail_equal_a_full_replay",
    ),
    (
        "F23",
        "raft-glue/src/machine.rs",
        "f23_the_rows_are_the_state",
    ),
];

const ADDRESSES: &str = "raft-glue/src/client/addresses.rs";
const BROKER: &str = "broker/src/replicas/tests.rs";
const CLIENT: &str = "raft-glue/src/client/tests.rs";
const ELECT: &str = "raft-glue/src/elect_tests.rs";
const FIELD: &str = "raft-glue/src/node_field_tests.rs";
const GROUP: &str = "raft-glue/tests/group.rs";
const HISTORY: &str = "raft-glue/src/node_history.rs";
const LEDGER: &str = "raft-glue/tests/ledger.rs";
const LIVENESS: &str = "raft-glue/src/liveness_tests.rs";
const NODE: &str = "raft-glue/src/node_tests.rs";
const SEEDS: &str = "raft-glue/src/node_seeds.rs";
const STATE: &str = "raft-glue/src/state_machine_tests.rs";
const STORE: &str = "raft-glue/src/store_tests.rs";
const STORM: &str = "groups_of_three_and_five_keep_their_promises_in_every_storm";
const TABLE: &str = "raft-glue/src/state_machine_table_tests.rs";
const TRANSFER: &str = "raft-glue/src/node/transfer.rs";

/// Damage and loss of the files of a log, which are the engine's (its C01 to C33 and D19): the
/// controllers' log is in a redb file.
const ELSEWHERE: &[&str] = &["D13", "D14", "D19", "D20", "D21", "D22", "D23"];

#[test]
fn every_failure_of_controllers_has_its_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (id, path, name) in HERE {
        let text = std::fs::read_to_string(root.join(path)).unwrap();
        assert!(
            text.contains(&format!("fn {name}(")),
            "{id}: {name} is not in {path}"
        );
    }
    let here: BTreeSet<&str> = HERE.iter().map(|(id, ..)| *id).collect();
    let others = || ELSEWHERE.iter().copied();
    assert!(others().all(|id| !here.contains(id)), "listed twice");
    let b = (2..=18).filter(|n| ![8, 13].contains(n));
    let d = (1..=28).filter(|n| *n != 9);
    let f = (1..=23).filter(|n| *n != 5);
    let all: BTreeSet<String> = b
        .map(|n| format!("B{n:02}"))
        .chain(d.map(|n| format!("D{n:02}")))
        .chain(f.map(|n| format!("F{n:02}")))
        .collect();
    let listed = here.into_iter().chain(others()).map(str::to_owned);
    assert_eq!(listed.collect::<BTreeSet<_>>(), all);
}
