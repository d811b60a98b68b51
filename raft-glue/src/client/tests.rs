//! A client against controllers that are played by a table of answers.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use super::*;
use crate::remoting::{Handler, Peer, Server, ServerConfig};

/// Answers 1005 with what `leader` holds, counts heartbeats, and the rest if it leads.
struct Played {
    leader: Mutex<Option<String>>,
    leads: Mutex<bool>,
    heartbeats: Mutex<u32>,
}

struct PlayedHandler(Arc<Played>);

impl PlayedHandler {
    fn answer(&self, request: &RemotingCommand) -> RemotingCommand {
        match request.code {
            request_code::CONTROLLER_GET_METADATA_INFO => {
                request.answer(0).with_header(&GetMetadataResponse {
                    controller_leader_address: self.0.leader.lock().clone(),
                    is_leader: Some(*self.0.leads.lock()),
                    ..GetMetadataResponse::default()
                })
            }
            request_code::BROKER_HEARTBEAT => {
                *self.0.heartbeats.lock() += 1;
                request.answer(0)
            }
            _ if !*self.0.leads.lock() => request.refuse(2007, "not leader"),
            request_code::CONTROLLER_GET_NEXT_BROKER_ID => {
                request.answer(0).with_field("nextBrokerId", "3")
            }
            request_code::CONTROLLER_ELECT_MASTER => request
                .answer(2011)
                .with_field("masterBrokerId", "2")
                .with_field("masterEpoch", "5")
                .with_body(&b"{\"syncStateSet\":[2]}"[..]),
            request_code::CONTROLLER_GET_REPLICA_INFO => request.answer(0),
            code => request.refuse(3, format!("request type {code} not supported")),
        }
    }
}

impl Handler for PlayedHandler {
    fn handle(
        &self,
        _peer: &Peer,
        request: RemotingCommand,
    ) -> impl Future<Output = Option<RemotingCommand>> + Send + 'static {
        std::future::ready(Some(self.answer(&request)))
    }
}

async fn controller() -> (Server, Arc<Played>, String) {
    let played = Arc::new(Played {
        leader: Mutex::new(None),
        leads: Mutex::new(false),
        heartbeats: Mutex::new(0),
    });
    let config = ServerConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let handler = Arc::new(PlayedHandler(Arc::clone(&played)));
    let server = Server::start(config, handler).await.expect("binds");
    let address = server.address().to_string();
    (server, played, address)
}

fn lead(played: &[&Arc<Played>], leader: usize, address: &str) {
    for (at, one) in played.iter().enumerate() {
        *one.leads.lock() = at == leader;
        *one.leader.lock() = Some(address.to_owned());
    }
}

fn client(addresses: &[&str]) -> ControllerClient {
    let mut config = ControllerClientConfig::new(addresses.join(";"));
    config.request_timeout = Duration::from_millis(500);
    ControllerClient::new(config).expect("addresses")
}

#[tokio::test]
async fn a_call_follows_the_leader() {
    let (one, first, first_address) = controller().await;
    let (two, second, second_address) = controller().await;
    lead(&[&first, &second], 0, &first_address);
    let client = client(&[&first_address, &second_address]);
    assert_eq!(client.next_broker_id("c", "b").await.expect("answered"), 3);
    assert_eq!(client.leader(), Some(first_address.clone()));
    lead(&[&first, &second], 1, &second_address);
    assert_eq!(client.next_broker_id("c", "b").await.expect("answered"), 3);
    assert_eq!(client.leader(), Some(second_address.clone()));
    two.shutdown().await;
    lead(&[&first], 0, &first_address);
    assert_eq!(client.next_broker_id("c", "b").await.expect("answered"), 3);
    assert_eq!(client.leader(), Some(first_address));
    one.shutdown().await;
}

#[tokio::test]
async fn without_a_leader_a_call_ends_and_says_who_was_asked() {
    let (one, _played, address) = controller().await;
    let client = client(&[&address]);
    let error = client
        .next_broker_id("c", "b")
        .await
        .expect_err("nobody leads")
        .to_string();
    assert!(
        error.contains(&address) && error.contains("knows no leader"),
        "{error}"
    );
    one.shutdown().await;
}

#[tokio::test]
async fn the_old_master_that_stays_is_a_success_and_an_empty_body_is_named() {
    let (one, played, address) = controller().await;
    lead(&[&played], 0, &address);
    let client = client(&[&address]);
    let request = ElectMasterRequest {
        broker_name: "b".into(),
        ..Default::default()
    };
    let elected = client.elect_master(&request).await.expect("2011 is fine");
    assert_eq!(elected.master.master_epoch, Some(5));
    assert_eq!(elected.body.sync_state_set, BTreeSet::from([2]));
    let error = client
        .replica_info("b")
        .await
        .expect_err("no body")
        .to_string();
    assert!(
        error.contains("1004") && error.contains(&address),
        "{error}"
    );
    let refused = client
        .sync_state_data(&["b".into()])
        .await
        .expect_err("code 3");
    assert_eq!(refused.code(), Some(3));
    one.shutdown().await;
}

#[tokio::test]
async fn b07_a_leader_outside_the_list_gets_heartbeats() {
    let (one, first, first_address) = controller().await;
    let (two, second, second_address) = controller().await;
    lead(&[&first, &second], 1, &second_address);
    let client = client(&[&first_address]);
    client.find_leader().await.expect("named by the first");
    client.heartbeat(&BrokerHeartbeatRequest::default());
    wait_for(|| *first.heartbeats.lock() == 1 && *second.heartbeats.lock() == 1).await;
    one.shutdown().await;
    two.shutdown().await;
}

#[tokio::test]
async fn b12_an_advertised_address_of_no_use_is_replaced_by_the_one_reached() {
    let (one, played, address) = controller().await;
    lead(&[&played], 0, "0.0.0.0:9878");
    let client = client(&[&address]);
    assert_eq!(client.find_leader().await.expect("reached"), address);
    one.shutdown().await;
}

#[tokio::test]
async fn b16_unreachable_controllers_do_not_delay_the_heartbeat_of_the_third() {
    let (one, played, address) = controller().await;
    // Bound and never accepted from: connecting hangs or idles.
    let mute = [
        std::net::TcpListener::bind("127.0.0.1:0").expect("binds"),
        std::net::TcpListener::bind("127.0.0.1:0").expect("binds"),
    ];
    let mute: Vec<String> = mute
        .iter()
        .map(|one| one.local_addr().expect("bound").to_string())
        .collect();
    let client = client(&[&mute[0], &mute[1], &address]);
    let begin = Instant::now();
    for round in 1..=40_u32 {
        client.heartbeat(&BrokerHeartbeatRequest::default());
        wait_for(|| *played.heartbeats.lock() == round).await;
    }
    assert!(
        begin.elapsed() < Duration::from_secs(2),
        "{:?}",
        begin.elapsed()
    );
    one.shutdown().await;
}

async fn wait_for(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(5);
    while !done() {
        assert!(Instant::now() < end, "did not happen");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
