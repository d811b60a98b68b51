//! How the controllers of a group reach each other: raft frames as one-way commands on the same
//! port brokers use, under a request code of our own.
//!
//! Invariants: each peer has one connection with a bounded queue of its own, so a slow or dead peer
//! delays nobody; a snapshot goes as a request that is answered, so that its fate is always known.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;

use crate::ledger::{SnapshotReceipt, Transport};
use crate::raft_codec::Member;
use crate::remoting::{Client, ClientConfig, Coding, RemotingCommand, response_code};

/// Request code of a frame between controllers. RocketMQ uses no code near it.
pub(crate) const RAFT_MESSAGE: i32 = 30_100;

/// Frames that wait for one peer.
const QUEUE_LEN: usize = 512;

const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_000);
const WRITE_TIMEOUT: Duration = Duration::from_millis(2_000);
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(15);

/// See the module.
pub(crate) struct PeerTransport {
    client: Client,
    runtime: Handle,
    self_id: u64,
    addresses: BTreeMap<u64, String>,
    /// Addresses from the settings: they win over those the group remembers.
    configured: BTreeMap<u64, Member>,
}

impl PeerTransport {
    pub(crate) fn new(runtime: Handle, self_id: u64, configured: BTreeMap<u64, Member>) -> Self {
        let client = Client::new(ClientConfig {
            connect_timeout: CONNECT_TIMEOUT,
            write_timeout: WRITE_TIMEOUT,
            queue_len: QUEUE_LEN,
            coding: Coding::RocketMq,
            ..ClientConfig::default()
        });
        Self {
            client,
            runtime,
            self_id,
            addresses: BTreeMap::new(),
            configured,
        }
    }
}

impl Transport for PeerTransport {
    fn members(&mut self, members: &BTreeMap<u64, Member>) {
        let addresses: BTreeMap<u64, String> = members
            .iter()
            .filter(|(id, _)| **id != self.self_id)
            .map(|(id, member)| {
                let member = self.configured.get(id).unwrap_or(member);
                (*id, member.address.clone())
            })
            .collect();
        for (id, address) in &self.addresses {
            if addresses.get(id) != Some(address) {
                self.client.forget(address);
            }
        }
        self.addresses = addresses;
    }

    fn send(&mut self, to: u64, frame: Bytes, receipt: Option<SnapshotReceipt>) -> bool {
        let Some(address) = self.addresses.get(&to) else {
            return false;
        };
        // The client starts its connections on the runtime.
        let _entered = self.runtime.enter();
        let command = RemotingCommand::request(RAFT_MESSAGE).with_body(frame);
        let Some(receipt) = receipt else {
            return self.client.one_way(address, command).is_ok();
        };
        let (client, address) = (self.client.clone(), address.clone());
        self.runtime.spawn(async move {
            match client.request(&address, command, SNAPSHOT_TIMEOUT).await {
                Ok(answer) if answer.code == response_code::SUCCESS => receipt.delivered(),
                Ok(answer) => {
                    tracing::warn!(%address, code = answer.code, "a snapshot was refused");
                }
                Err(error) => tracing::warn!(%error, "a snapshot was not delivered"),
            }
        });
        true
    }
}
