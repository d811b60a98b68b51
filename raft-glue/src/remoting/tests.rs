//! Client and server against each other over loopback.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::*;

const ECHO: i32 = 1;
const WAIT: i32 = 2;
const PUSH: i32 = 3;
const LIMIT: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Echo {
    seen: Mutex<Vec<i32>>,
    gone: Mutex<Vec<u64>>,
    open: Notify,
}

/// Answers ECHO at once, WAIT when `open` is notified, PUSH with a pushed command first.
struct EchoHandler(Arc<Echo>);

type Answering = Pin<Box<dyn Future<Output = Option<RemotingCommand>> + Send>>;

impl Handler for EchoHandler {
    fn handle(
        &self,
        peer: &Peer,
        request: RemotingCommand,
    ) -> impl Future<Output = Option<RemotingCommand>> + Send + 'static {
        let answer = request.answer(0).with_body(request.body.clone());
        self.0.seen.lock().push(request.opaque);
        let shared = Arc::clone(&self.0);
        let pushed = request.code == PUSH && peer.push(RemotingCommand::request(99));
        let future: Answering = match request.code {
            ECHO => Box::pin(async { Some(answer) }),
            PUSH => Box::pin(async move { pushed.then_some(answer) }),
            WAIT => Box::pin(async move {
                shared.open.notified().await;
                Some(answer)
            }),
            code => {
                let answer = request.refuse(3, format!("request type {code} not supported"));
                Box::pin(async { Some(answer) })
            }
        };
        future
    }

    fn disconnected(&self, peer: &Peer) {
        self.0.gone.lock().push(peer.id());
    }
}

async fn server(change: impl FnOnce(&mut ServerConfig)) -> (Server, Arc<Echo>, String) {
    let mut config = ServerConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    change(&mut config);
    let echo = Arc::new(Echo::default());
    let handler = Arc::new(EchoHandler(Arc::clone(&echo)));
    let server = Server::start(config, handler).await.expect("binds");
    let address = server.address().to_string();
    (server, echo, address)
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn pipelined_requests_get_their_own_answers() {
    let (server, echo, address) = server(|_| {}).await;
    let client = Client::new(ClientConfig::default());
    let mut calls = Vec::new();
    for at in 0..200_u32 {
        let (client, address) = (client.clone(), address.clone());
        calls.push(tokio::spawn(async move {
            let body = Bytes::copy_from_slice(&at.to_be_bytes());
            let request = RemotingCommand::request(ECHO).with_body(body.clone());
            let answer = client
                .request(&address, request, LIMIT)
                .await
                .expect("answered");
            assert_eq!(answer.body, body);
        }));
    }
    for call in calls {
        call.await.expect("no panic");
    }
    let seen: BTreeSet<i32> = echo.seen.lock().iter().copied().collect();
    assert_eq!(seen.len(), 200);
    server.shutdown().await;
}

#[tokio::test]
async fn a_waiting_request_does_not_hold_up_later_ones() {
    let (server, echo, address) = server(|_| {}).await;
    let client = Client::new(ClientConfig::default());
    let waiting = client.request(&address, RemotingCommand::request(WAIT), LIMIT);
    let later = async {
        until("the first request", || !echo.seen.lock().is_empty()).await;
        let answer = client
            .request(&address, RemotingCommand::request(ECHO), LIMIT)
            .await;
        echo.open.notify_one();
        answer
    };
    let (waiting, later) = tokio::join!(waiting, later);
    assert_eq!(waiting.expect("answered").code, 0);
    assert_eq!(later.expect("answered").code, 0);
    server.shutdown().await;
}

#[tokio::test]
async fn a_request_without_an_answer_times_out_and_leaves_nothing_behind() {
    let (server, _echo, address) = server(|_| {}).await;
    let client = Client::new(ClientConfig {
        max_in_flight: 1,
        ..ClientConfig::default()
    });
    for _ in 0..3 {
        let limit = Duration::from_millis(20);
        let late = client
            .request(&address, RemotingCommand::request(WAIT), limit)
            .await;
        assert!(
            matches!(late, Err(RemotingError::Timeout { code: WAIT, .. })),
            "{late:?}"
        );
    }
    let answer = client
        .request(&address, RemotingCommand::request(ECHO), LIMIT)
        .await;
    assert_eq!(answer.expect("the permit came back").code, 0);
    server.shutdown().await;
}

#[tokio::test]
async fn a_large_body_goes_both_ways_and_unknown_codes_are_named() {
    let (server, _echo, address) = server(|_| {}).await;
    let client = Client::new(ClientConfig {
        coding: Coding::RocketMq,
        ..Default::default()
    });
    let body = Bytes::from(vec![7; 4 * 1024 * 1024]);
    let request = RemotingCommand::request(ECHO).with_body(body.clone());
    let answer = client
        .request(&address, request, LIMIT)
        .await
        .expect("answered");
    assert_eq!((answer.body, answer.coding), (body, Coding::RocketMq));
    let unknown = client
        .request(&address, RemotingCommand::request(77), LIMIT)
        .await;
    let unknown = unknown.expect("answered");
    assert_eq!((unknown.code, unknown.is_response()), (3, true));
    server.shutdown().await;
}

#[tokio::test]
async fn a_restarted_server_is_found_again() {
    let (first, echo, address) = server(|_| {}).await;
    let client = Client::new(ClientConfig::default());
    client
        .request(&address, RemotingCommand::request(ECHO), LIMIT)
        .await
        .expect("answered");
    first.shutdown().await;
    assert_eq!(echo.gone.lock().len(), 1);
    let refused = client
        .request(&address, RemotingCommand::request(ECHO), LIMIT)
        .await;
    let refused = refused.expect_err("nobody listens").to_string();
    assert!(refused.contains(&address), "{refused}");
    let listen = address.parse().expect("an address");
    let (second, _echo, _) = server(|config| config.listen = listen).await;
    let answer = client
        .request(&address, RemotingCommand::request(ECHO), LIMIT)
        .await;
    assert_eq!(answer.expect("answered").code, 0);
    second.shutdown().await;
}

#[tokio::test]
async fn b16_a_peer_that_does_not_answer_delays_nobody_else() {
    let (server, echo, address) = server(|_| {}).await;
    // A listener with a full backlog neither accepts nor refuses.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("binds");
    let stuck = silent.local_addr().expect("bound").to_string();
    let client = Client::new(ClientConfig {
        queue_len: 4,
        ..ClientConfig::default()
    });
    let body = Bytes::from(vec![0; 1024 * 1024]);
    let begin = Instant::now();
    let mut refused = 0;
    for _ in 0..64 {
        let command = RemotingCommand::request(ECHO).with_body(body.clone());
        refused += usize::from(client.one_way(&stuck, command).is_err());
        tokio::task::yield_now().await;
    }
    client
        .one_way(&address, RemotingCommand::request(ECHO))
        .expect("its own queue");
    until("the heartbeat", || echo.seen.lock().len() == 1).await;
    assert!(begin.elapsed() < Duration::from_secs(1));
    assert!(refused > 0, "the queue of the stuck peer is bounded");
    server.shutdown().await;
}

#[tokio::test]
async fn a_kept_peer_can_be_pushed_to_and_tells_that_it_is_gone() {
    let (server, echo, address) = server(|_| {}).await;
    let mut stream = TcpStream::connect(&address).await.expect("connects");
    let mut out = bytes::BytesMut::new();
    encode(&RemotingCommand::request(PUSH), &mut out).expect("fits");
    stream.write_all(&out).await.expect("writes");
    let mut buffer = bytes::BytesMut::new();
    let mut codes = Vec::new();
    while codes.len() < 2 {
        assert_ne!(stream.read_buf(&mut buffer).await.expect("reads"), 0);
        while let Some(command) = decode(&mut buffer).expect("a frame") {
            codes.push((command.code, command.is_one_way(), command.is_response()));
        }
    }
    assert_eq!(codes, [(99, true, false), (0, false, true)]);
    drop(stream);
    until("the goodbye", || echo.gone.lock().len() == 1).await;
    server.shutdown().await;
}

#[tokio::test]
async fn garbage_and_idleness_close_a_connection() {
    let (server, _echo, address) =
        server(|config| config.idle_timeout = Duration::from_millis(50)).await;
    let mut garbage = TcpStream::connect(&address).await.expect("connects");
    garbage
        .write_all(b"GET / HTTP/1.1\r\n\r\n")
        .await
        .expect("writes");
    let mut idle = TcpStream::connect(&address).await.expect("connects");
    let mut byte = [0; 1];
    for stream in [&mut garbage, &mut idle] {
        let read = tokio::time::timeout(LIMIT, stream.read(&mut byte))
            .await
            .expect("closed");
        assert!(matches!(read, Ok(0) | Err(_)));
    }
    server.shutdown().await;
}

#[tokio::test]
async fn a_connection_over_the_limit_is_closed_and_a_freed_place_is_used() {
    let (server, echo, address) = server(|config| config.max_connections = 1).await;
    let client = Client::new(ClientConfig::default());
    client
        .request(&address, RemotingCommand::request(ECHO), LIMIT)
        .await
        .expect("answered");
    let mut second = TcpStream::connect(&address)
        .await
        .expect("the kernel accepts");
    assert_eq!(second.read(&mut [0; 1]).await.expect("closed"), 0);
    drop(client);
    until("the first to go", || echo.gone.lock().len() == 1).await;
    let client = Client::new(ClientConfig::default());
    let answer = client
        .request(&address, RemotingCommand::request(ECHO), LIMIT)
        .await;
    assert_eq!(answer.expect("answered").code, 0);
    server.shutdown().await;
}

#[tokio::test]
async fn shutdown_lets_a_request_under_way_end() {
    let (server, echo, address) = server(|_| {}).await;
    let client = Client::new(ClientConfig::default());
    let waiting = client.request(&address, RemotingCommand::request(WAIT), LIMIT);
    let stop = async {
        until("the request", || !echo.seen.lock().is_empty()).await;
        let open = async {
            // Longer than a connection that nobody waits for gets to write its answers.
            tokio::time::sleep(Duration::from_millis(400)).await;
            echo.open.notify_one();
        };
        tokio::join!(server.shutdown(), open);
    };
    let (answer, ()) = tokio::join!(waiting, stop);
    assert_eq!(answer.expect("answered").code, 0);
}

#[tokio::test]
async fn a_request_ends_with_the_connection_it_went_over() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("binds");
    let address = listener.local_addr().expect("bound").to_string();
    let peer = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accepts");
        let mut buffer = bytes::BytesMut::new();
        while decode(&mut buffer).expect("a frame").is_none() {
            assert_ne!(stream.read_buf(&mut buffer).await.expect("reads"), 0);
        }
    });
    let client = Client::new(ClientConfig::default());
    let begin = Instant::now();
    let ended = client
        .request(&address, RemotingCommand::request(ECHO), LIMIT)
        .await;
    assert!(
        matches!(ended, Err(RemotingError::Closed { .. })),
        "{ended:?}"
    );
    assert!(
        begin.elapsed() < LIMIT,
        "it does not wait for its time to run out"
    );
    peer.await.expect("no panic");
}

/// Answers with the time limit the request's field names.
struct InTime;

impl Handler for InTime {
    fn handle(
        &self,
        _peer: &Peer,
        request: RemotingCommand,
    ) -> impl Future<Output = Option<RemotingCommand>> + Send + 'static {
        let send_by_ms = request.field("by").and_then(|text| text.parse().ok());
        let answer = RemotingCommand {
            send_by_ms,
            ..request.answer(0)
        };
        async move { Some(answer) }
    }
}

#[tokio::test]
async fn an_answer_that_would_leave_late_says_that_nothing_is_sure() {
    let config = ServerConfig::new("127.0.0.1:0".parse().expect("address"));
    let server = Server::start(config, Arc::new(InTime))
        .await
        .expect("starts");
    let client = Client::new(ClientConfig::default());
    let address = server.address().to_string();
    for (by, code) in [("0", 12), ("1", 12), ("18446744073709551615", 0), ("", 0)] {
        let request = RemotingCommand::request(10).with_field("by", by);
        let limit = Duration::from_secs(10);
        let answer = client
            .request(&address, request, limit)
            .await
            .expect("answers");
        assert_eq!(answer.code, code, "{by}");
    }
    server.shutdown().await;
}
