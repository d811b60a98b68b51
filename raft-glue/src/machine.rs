//! The controller's state as the state machine of a ledger: one row for each broker set.

use crate::command::{Answer, Code, Command};
use crate::group::BrokerGroup;
use crate::ledger::StateMachine;
use crate::raft_codec::{decode, encode};
use crate::state_machine::ControllerState;
use crate::store::{RowChanges, Rows};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ControllerMachine {
    pub(crate) state: ControllerState,
}

impl StateMachine for ControllerMachine {
    type Answer = Answer;

    fn apply(&mut self, _index: u64, payload: &[u8], rows: &mut RowChanges) -> Answer {
        let command = match Command::decode(payload) {
            Ok(command) => command,
            Err(error) => return Answer::refused(Code::SystemError, error.to_string()),
        };
        let answer = self.state.apply(&command);
        if answer.changed {
            let broker = command.broker();
            // A group always encodes: it is nothing but numbers and texts.
            let row = self
                .state
                .group(broker)
                .and_then(|group| encode(group).ok());
            rows.insert(broker.as_bytes().to_vec(), row);
        }
        answer
    }

    fn load(&mut self, rows: Rows) -> Result<(), String> {
        let mut state = ControllerState::new();
        for (key, value) in rows {
            let broker = String::from_utf8(key).map_err(|error| error.to_string())?;
            let group: BrokerGroup =
                decode(&value).map_err(|error| format!("broker set {broker}: {error}"))?;
            state.put_group(broker, Some(group));
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{ApplyBrokerId, CleanBrokerData};

    #[test]
    fn f23_the_rows_are_the_state() {
        let mut machine = ControllerMachine::default();
        let mut rows = RowChanges::new();
        let mut apply = |command: Command| {
            machine.apply(2, &command.encode().unwrap(), &mut rows);
            let mut loaded = ControllerMachine::default();
            let kept = rows
                .iter()
                .filter_map(|(k, v)| Some((k.clone(), v.clone()?)));
            loaded.load(kept.collect()).unwrap();
            assert_eq!(loaded.state, machine.state);
        };
        for (broker, id) in [("a", 1), ("b", 1), ("a", 2), ("a", 2), ("b", 9)] {
            apply(Command::ApplyBrokerId(ApplyBrokerId {
                cluster: "c".to_owned(),
                broker: broker.to_owned(),
                id,
                check_code: "h:1;x".to_owned(),
            }));
        }
        apply(Command::CleanBrokerData(CleanBrokerData {
            broker: "a".to_owned(),
            ids: None,
            clean_living: true,
            alive: Default::default(),
        }));
        assert_eq!(machine.state.groups().count(), 1);
    }

    #[test]
    fn an_entry_that_is_no_command_is_answered_and_changes_nothing() {
        let mut machine = ControllerMachine::default();
        let mut rows = RowChanges::new();
        let answer = machine.apply(2, b"\xff", &mut rows);
        assert_eq!(answer.code, Code::SystemError);
        assert!(rows.is_empty());
        assert!(
            machine
                .load(vec![(b"a".to_vec(), b"\x01\xff".to_vec())])
                .is_err()
        );
    }
}
