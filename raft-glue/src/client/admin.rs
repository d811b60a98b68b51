//! The operator's calls: how a controller stands, changes of the members, another leader.
//!
//! Invariant: a change is sent again only when its answer says that nothing was done.

use super::{Answer, ControllerClient, ControllerError, LEADER_PAUSE, refused};
use crate::admin::{ControllerStatus, MemberRequest, MembersRequest, TransferRequest};
use crate::remoting::{RemotingCommand, request_code, response_code};

impl ControllerClient {
    /// 30101: how the controller at `address` stands, by itself; it need not lead.
    ///
    /// # Errors
    /// See [`ControllerError`]; code 3: it is no controller of this project.
    pub async fn status(&self, address: &str) -> Result<ControllerStatus, ControllerError> {
        let request = request_code::CONTROLLER_STATUS;
        let limit = self.shared.config.request_timeout;
        let command = RemotingCommand::request(request);
        let answer = self.shared.client.request(address, command, limit).await?;
        Answer { request, answer }.success(address)?.body(address)
    }

    /// 30102: changes the members of the group; ends when the change is in force. What is so already
    /// counts as done. A learner is added only while it runs and waits to be added.
    ///
    /// # Errors
    /// See [`ControllerError`]; codes: 2, another change is under way; 2005, this change cannot be
    /// made, and nothing was done; 1, it may come into force yet. After an error of the connection it
    /// may have been made.
    pub async fn change_members(&self, steps: Vec<MemberRequest>) -> Result<(), ControllerError> {
        let body = serde_json::to_vec(&MembersRequest { steps });
        self.once(request_code::CONTROLLER_CHANGE_MEMBERS, body)
            .await
    }

    /// 30103: hands the leadership among the controllers to the member with this id; ends when that
    /// leads.
    ///
    /// # Errors
    /// See [`ControllerError`]; codes: 2, another transfer is under way; 2005, it is no member with a
    /// vote, or lags; 1, it did not take over.
    pub async fn transfer_leader(&self, to: u64) -> Result<(), ControllerError> {
        let body = serde_json::to_vec(&TransferRequest { to });
        self.once(request_code::CONTROLLER_TRANSFER_LEADER, body)
            .await
    }

    async fn once(
        &self,
        request: i32,
        body: serde_json::Result<Vec<u8>>,
    ) -> Result<(), ControllerError> {
        // Plain values always serialize.
        let command = RemotingCommand::request(request).with_body(body.unwrap_or_default());
        let limit = self.shared.config.request_timeout;
        let mut last = None;
        for attempt in 0..self.shared.config.attempts.max(1) {
            if attempt > 0 {
                tokio::time::sleep(LEADER_PAUSE).await;
            }
            let leader = match self.find_leader().await {
                Ok(leader) => leader,
                Err(error) => {
                    last = Some(error);
                    continue;
                }
            };
            let command = command.clone();
            let answer = self.shared.client.request(&leader, command, limit).await?;
            if answer.code != response_code::CONTROLLER_NOT_LEADER {
                return Answer { request, answer }.success(&leader).map(drop);
            }
            self.forget(&leader);
            last = Some(refused(&leader, request, &answer));
        }
        Err(last.unwrap_or_else(|| ControllerError::NoLeader {
            addresses: self.addresses().join(";"),
            why: "no attempt was made".into(),
        }))
    }
}
