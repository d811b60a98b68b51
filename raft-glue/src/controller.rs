//! A controller: its ledger, its endpoint and its scan, started and stopped as one.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::command::GroupView;
use crate::config::{ControllerConfig, member_id};
use crate::decider::Decider;
use crate::error::{AppendError, Error, TransferError};
use crate::ledger::{Ledger, LedgerConfig, LedgerMetadata};
use crate::machine::ControllerMachine;
use crate::peer::PeerTransport;
use crate::raft_codec::MemberStep;
use crate::remoting::{Server, ServerConfig};
use crate::server::Endpoint;

/// Name of the store file in the folder of a controller.
const STORE_FILE: &str = "controller.redb";

/// A running controller. Dropping it stops it without waiting; use [`Controller::shutdown`].
pub struct Controller {
    decider: Arc<Decider>,
    server: Option<Server>,
    scan: JoinHandle<()>,
    address: SocketAddr,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Controller {
    /// Opens the store, listens, and begins to take part in the group. Needs a tokio runtime.
    ///
    /// # Errors
    /// Settings at odds, a store that cannot be opened, or an address that cannot be listened on.
    pub async fn start(config: ControllerConfig) -> Result<Self, Error> {
        config.check()?;
        let (id, me) = config.me()?;
        let listen = match config.listen {
            Some(address) => address,
            None => resolve(&me.address).await?,
        };
        std::fs::create_dir_all(&config.store_path).map_err(|source| Error::Io {
            what: format!("make the folder {}", config.store_path.display()),
            source,
        })?;
        let mut first_members = config.peers.members().clone();
        if config.join {
            first_members.remove(&id);
        }
        let preferred = config.preferred_leaders.iter();
        let ledger = LedgerConfig {
            timings: config.timings,
            preferred: preferred.map(|name| member_id(name)).collect(),
            ..LedgerConfig::new(
                config.group.clone(),
                id,
                config.store_path.join(STORE_FILE),
                first_members,
            )
        };
        let peers = config.peers.members().clone();
        let transport = PeerTransport::new(tokio::runtime::Handle::current(), id, peers);
        let ledger = Ledger::start(ledger, ControllerMachine::default(), transport)?;
        let decider = Arc::new(Decider::new(config, ledger));
        let mut server = ServerConfig::new(listen);
        server.max_connections = decider.config.max_connections;
        let server = match Server::start(server, Arc::new(Endpoint(Arc::clone(&decider)))).await {
            Ok(server) => server,
            Err(source) => {
                decider.ledger.shutdown();
                return Err(Error::Io {
                    what: format!("listen on {listen}"),
                    source,
                });
            }
        };
        let address = server.address();
        let scan = tokio::spawn(crate::scan::run(Arc::clone(&decider)));
        tracing::info!(%address, id, "the controller listens");
        Ok(Self {
            decider,
            server: Some(server),
            scan,
            address,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it stands in its group.
    #[must_use]
    pub fn metadata(&self) -> LedgerMetadata {
        self.decider.metadata()
    }

    /// It leads and answers for the group.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.decider.is_leader()
    }

    /// Every broker set as this controller knows it now; on a follower it may be behind.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupView> {
        self.decider.state(|state| {
            let names: Vec<&str> = state.groups().map(|(name, _)| name).collect();
            names
                .into_iter()
                .filter_map(|name| state.view(name))
                .collect()
        })
    }

    /// Changes the membership of the group, on the leader; ends when the change is in force. Add a
    /// controller as a learner (start it with [`ControllerConfig::join`]), then as a voter; the
    /// dead one may be removed in the same step.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub async fn change_members(&self, steps: Vec<MemberStep>) -> Result<u64, AppendError> {
        self.decider.ledger.change_members(steps).await
    }

    /// Hands the leadership to another controller; ends when that leads.
    ///
    /// # Errors
    /// See [`TransferError`].
    pub async fn transfer_leader(&self, to: u64) -> Result<(), TransferError> {
        self.decider.ledger.transfer_leader(to).await
    }

    /// Ends when the controller stopped by itself, with the reason: its store failed or an
    /// assertion broke. It answers nothing any more then; the process should end.
    pub async fn failed(&self) -> String {
        let mut metadata = self.decider.ledger.watch();
        loop {
            if let Some(why) = &metadata.borrow_and_update().failure {
                return why.clone();
            }
            if metadata.changed().await.is_err() {
                return "the ledger stopped".to_owned();
            }
        }
    }

    /// Stops the endpoint, then the log; what is decided is on disk on return.
    pub async fn shutdown(mut self) {
        // First of all the scan: the connections about to close are no news of their brokers.
        self.scan.abort();
        // It ends as aborted, or it ended before.
        let _ = (&mut self.scan).await;
        self.decider.notifier.stop();
        if let Some(server) = self.server.take() {
            server.shutdown().await;
        }
        let decider = Arc::clone(&self.decider);
        // It waits for a thread, which may wait for the disk.
        if let Err(error) = tokio::task::spawn_blocking(move || decider.ledger.shutdown()).await {
            tracing::error!(%error, "the ledger did not stop well");
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.scan.abort();
        self.decider.notifier.stop();
    }
}

async fn resolve(address: &str) -> Result<SocketAddr, Error> {
    let what = || format!("find the address {address} to listen on");
    let found = tokio::net::lookup_host(address).await;
    let mut found = found.map_err(|source| Error::Io {
        what: what(),
        source,
    })?;
    found.next().ok_or_else(|| Error::Io {
        what: what(),
        source: std::io::Error::from(std::io::ErrorKind::NotFound),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{ApplyBrokerId, Code, Command};

    /// Between the look at the leases and the proposal, another controller may have led and granted one.
    #[tokio::test(flavor = "multi_thread")]
    async fn k15_what_follows_from_the_leases_is_proposed_in_the_term_they_were_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = ControllerConfig::new("n0", "n0-127.0.0.1:9", dir.path()).unwrap();
        config.listen = Some("127.0.0.1:0".parse().unwrap());
        let controller = Controller::start(config).await.unwrap();
        let mut watch = controller.decider.ledger.watch();
        let term = watch.wait_for(|it| it.is_ready).await.unwrap().term;
        let decider = &controller.decider;
        let command = Command::ApplyBrokerId(ApplyBrokerId {
            cluster: "c".to_owned(),
            broker: "b".to_owned(),
            id: 1,
            check_code: "h:1;x".to_owned(),
        });
        for other in [None, Some(term - 1), Some(term + 1)] {
            let mark = decider.marked("b", other);
            let refusal = decider.propose_marked(&command, mark).await.unwrap_err();
            assert_eq!(refusal.code, Code::NotLeader, "{other:?}");
            assert!(decider.state(|state| state.group("b").is_none()));
        }
        let answer = decider.propose_marked(&command, decider.mark("b")).await;
        assert_eq!(answer.unwrap().code, Code::Success);
        controller.shutdown().await;
    }
}
