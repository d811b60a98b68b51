use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::command::Report;

fn any_reports() -> impl Strategy<Value = Reports> {
    let report = (
        -1..4i32,
        0..3i64,
        0..2i32,
        prop::option::of(0..3u64),
        any::<bool>(),
    )
        .prop_map(
            |(epoch, max_offset, priority, incarnation, unclean)| Report {
                epoch,
                max_epoch: epoch,
                max_offset,
                priority,
                incarnation,
                unclean,
            },
        );
    prop::collection::btree_map(0..5u64, report, 0..5)
}

fn any_ids() -> impl Strategy<Value = BTreeSet<u64>> {
    prop::collection::btree_set(0..5u64, 0..5)
}

fn any_command() -> impl Strategy<Value = Command> {
    let broker = || prop::sample::select(vec!["a", "b"]).prop_map(str::to_owned);
    let text = || prop::sample::select(vec!["", "h:1;x", "h:2;y", "c"]).prop_map(str::to_owned);
    prop_oneof![
        4 => (text(), broker(), 0..5u64, text()).prop_map(|(cluster, broker, id, check_code)| {
            Command::ApplyBrokerId(ApplyBrokerId { cluster, broker, id, check_code })
        }),
        2 => (text(), broker(), 0..5u64, text(), prop::option::of(0..3u64), any::<bool>(), any_ids())
            .prop_map(|(cluster, broker, id, address, incarnation, unclean, alive)| {
                Command::RegisterBroker(RegisterBroker {
                    cluster, broker, id, address, incarnation, unclean, alive,
                })
            }),
        1 => (broker(), 0..5u64, text()).prop_map(|(broker, id, address)| {
            Command::UpdateAddress(UpdateAddress { broker, id, address })
        }),
        4 => (broker(), prop::option::of(0..5u64), any::<(bool, bool)>(), prop::option::of(0..4u32),
              any_reports())
            .prop_map(|(broker, broker_id, (designate, allow_unclean), expected, alive)| {
                Command::ElectMaster(ElectMaster {
                    broker, broker_id, designate, allow_unclean,
                    expected_master_epoch: expected, alive,
                })
            }),
        4 => (broker(), 0..5u64, 0..4u32, 0..6u32, any_ids(), any_reports()).prop_map(
            |(broker, master_id, master_epoch, sync_state_set_epoch, new_set, alive)| {
                Command::AlterSyncStateSet(AlterSyncStateSet {
                    broker, master_id, master_epoch, sync_state_set_epoch, new_set, alive, seen_in: None,
                })
            }
        ),
        1 => (broker(), prop::option::of(any_ids()), prop::bool::weighted(0.1), any_ids()).prop_map(
            |(broker, ids, clean_living, alive)| {
                Command::CleanBrokerData(CleanBrokerData { broker, ids, clean_living, alive })
            }
        ),
        2 => (broker(), 0..4u32, 0..6u32, any_reports()).prop_map(
            |(broker, master_epoch, sync_state_set_epoch, alive)| {
                Command::ReviewMembers(ReviewMembers {
                    broker, master_epoch, sync_state_set_epoch, alive,
                })
            }
        ),
        1 => (broker(), 0..5u64, 0..4u32, prop::option::of(0..3u64), any::<bool>()).prop_map(
            |(broker, id, master_epoch, incarnation, unclean)| {
                Command::ConfirmMaster(ConfirmMaster {
                    broker, id, master_epoch, incarnation, unclean,
                })
            }
        ),
    ]
}

fn check_invariants(state: &ControllerState) {
    for (name, group) in state.groups() {
        assert!(!group.replicas.is_empty(), "{name} is empty");
        let largest = *group.replicas.last_key_value().unwrap().0;
        assert!(group.next_broker_id > largest);
        if let Some(master) = group.master {
            assert!(!group.replicas[&master].address.is_empty());
            assert!(group.sync_state_set.contains_key(&master));
            assert!(group.master_epoch > 0);
        }
        for id in group.sync_state_set.keys().chain(group.former_set.keys()) {
            assert!(group.replicas.contains_key(id));
        }
    }
}

proptest! {
    #[test]
    fn f23_snapshot_and_tail_equal_a_full_replay(
        commands in prop::collection::vec(any_command(), 1..80),
        cut in 0..80usize,
    ) {
        let mut whole = ControllerState::new();
        let mut from_snapshot = ControllerState::new();
        for (at, command) in commands.iter().enumerate() {
            if at == cut {
                from_snapshot = ControllerState::restore(&whole.snapshot().unwrap()).unwrap();
            }
            let bytes = command.encode().unwrap();
            let before = whole.clone();
            let answer = whole.apply(&Command::decode(&bytes).unwrap());
            prop_assert_eq!(answer.changed, whole != before, "{:?}", command);
            check_invariants(&whole);
            for (name, old) in before.groups() {
                if let Some(new) = whole.group(name) {
                    prop_assert!(new.master_epoch >= old.master_epoch);
                    prop_assert!(new.sync_state_set_epoch >= old.sync_state_set_epoch);
                }
            }
            if at >= cut {
                prop_assert_eq!(from_snapshot.apply(command), answer);
            }
        }
        if cut < commands.len() {
            prop_assert_eq!(from_snapshot.snapshot().unwrap(), whole.snapshot().unwrap());
        }
    }
}
