//! A planned hand-over under traffic, on real processes: short, and without the loss of a write, be it
//! acknowledged or refused.
//!
//! The time is asserted in release builds, on a machine that is not busy; others print it:
//! `cargo test --release -p epochlog-broker --test hand_over -- --nocapture`

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{Cluster, LIMIT, plan};
use epochlog_broker::group::BROKER_NAME;
use epochlog_broker::observe::{MasterView, Observer};
use epochlog_broker::producer::{Producer, Receipt};
use epochlog_raft_glue::client::{ControllerClient, ControllerClientConfig};
use epochlog_raft_glue::remoting::{
    Client, ClientConfig, ElectMasterRequest, HandOverRequest, RemotingCommand, request_code,
};
use parking_lot::Mutex;

const HAND_OVERS: usize = 5;
const SENDERS: usize = 4;

/// From the request to the first write the new master acknowledges.
const BAR: Duration = Duration::from_millis(300);

/// An acknowledged attempt.
struct Acked {
    attempt: String,
    receipt: Receipt,
    epoch: u32,
    at: Instant,
}

#[derive(Default)]
struct Traffic {
    master: Mutex<Option<MasterView>>,
    acked: Mutex<Vec<Acked>>,
    /// Attempts that are not in the log, by their answers.
    refused: Mutex<BTreeSet<String>>,
    /// Attempts that may be.
    unknown: AtomicU64,
    messages: AtomicU64,
    stop: AtomicBool,
}

impl Traffic {
    /// Sends each message again until it is acknowledged.
    async fn send(self: Arc<Self>) {
        let producer = Producer::new("orders", 4, Duration::from_secs(3));
        while !self.stop.load(Ordering::Relaxed) {
            let message = self.messages.fetch_add(1, Ordering::Relaxed);
            for attempt in 0.. {
                let Some(master) = self.master.lock().clone() else {
                    panic!("a master is known from the start")
                };
                let attempt = format!("h{message}.{attempt}");
                let properties = format!("ATTEMPT\u{1}{attempt}\u{2}");
                let body = Bytes::from_static(&[b'x'; 100]);
                match producer.send(&master.address, body, &properties).await {
                    Ok(receipt) => {
                        self.acked.lock().push(Acked {
                            attempt,
                            receipt,
                            epoch: master.epoch,
                            at: Instant::now(),
                        });
                        break;
                    }
                    Err(error) if error.may_be_stored() => {
                        self.unknown.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(_) => {
                        self.refused.lock().insert(attempt);
                    }
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn follow(self: Arc<Self>, observer: Observer) {
        while !self.stop.load(Ordering::Relaxed) {
            if let Ok(Some(seen)) = observer.master().await {
                *self.master.lock() = Some(seen);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn first_now(&self, epoch: u32) -> Option<Instant> {
        let acked = self.acked.lock();
        let later = acked.iter().filter(|it| it.epoch > epoch);
        later.map(|it| it.at).min()
    }

    /// When the first write of an epoch above this one was acknowledged.
    async fn first_above(&self, epoch: u32) -> Option<Instant> {
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            let first = self.first_now(epoch);
            if first.is_some() {
                return first;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        None
    }

    /// The longest time without an acknowledgement in this span.
    fn silence(&self, from: Instant, to: Instant) -> Duration {
        let acked = self.acked.lock();
        let mut times: Vec<Instant> = acked.iter().map(|it| it.at).collect();
        times.retain(|at| *at >= from && *at <= to);
        times.push(to);
        times.sort_unstable();
        let mut last = from;
        let mut longest = Duration::ZERO;
        for at in times {
            longest = longest.max(at - last);
            last = at;
        }
        longest
    }
}

/// Hands over to another member in sync; gives the time to the first write, and the longest silence
/// in it.
async fn hand_over(
    cluster: &Cluster,
    controllers: &ControllerClient,
    traffic: &Traffic,
) -> (Duration, Duration) {
    let before = cluster.in_sync(3, 0).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let to = before.in_sync.iter().find(|id| **id != before.id);
    let request = ElectMasterRequest {
        broker_name: BROKER_NAME.to_owned(),
        broker_id: to.and_then(|id| i64::try_from(*id).ok()),
        designate_elect: Some(true),
        ..ElectMasterRequest::default()
    };
    controllers.find_leader().await.expect("leads");
    let begin = Instant::now();
    let elected = controllers.elect_master(&request).await;
    let elected = elected.unwrap_or_else(|error| panic!("{error}\n{}", cluster.logs()));
    assert_eq!(elected.master.master_broker_id, request.broker_id);
    let first = traffic.first_above(before.epoch).await;
    let first = first.unwrap_or_else(|| panic!("no write\n{}", cluster.logs()));
    if first - begin >= BAR {
        println!("a slow one: {:?}\n{}", first - begin, cluster.logs());
    }
    (first - begin, traffic.silence(begin, first))
}

/// Three brokers, three controllers, and traffic.
struct Story {
    cluster: Cluster,
    first: MasterView,
    controllers: ControllerClient,
    traffic: Arc<Traffic>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Story {
    async fn begin(dir: &Path) -> Self {
        let mut plan = plan(dir, 3);
        plan.controllers = 3;
        let cluster = Cluster::start(&plan);
        let first = cluster.in_sync(3, 0).await;
        let addr = cluster.group.controller_addr.clone();
        let traffic = Arc::new(Traffic::default());
        *traffic.master.lock() = Some(first.clone());
        let observer = Observer::new(BROKER_NAME, &addr).expect("addresses");
        let mut tasks = vec![tokio::spawn(Arc::clone(&traffic).follow(observer))];
        tasks.extend((0..SENDERS).map(|_| tokio::spawn(Arc::clone(&traffic).send())));
        let mut config = ControllerClientConfig::new(&*addr);
        config.request_timeout = Duration::from_secs(10);
        let controllers = ControllerClient::new(config).expect("addresses");
        Self {
            cluster,
            first,
            controllers,
            traffic,
            tasks,
        }
    }

    /// Stops all; what was acknowledged is in every log, and what was refused in none. Returns how many
    /// attempts had no known outcome.
    async fn end(mut self) -> u64 {
        let last = self.cluster.in_sync(3, 0).await;
        self.traffic.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("no panic");
        }
        let acked = std::mem::take(&mut *self.traffic.acked.lock());
        let refused = std::mem::take(&mut *self.traffic.refused.lock());
        let (messages, unknown) = (
            self.traffic.messages.load(Ordering::Relaxed),
            self.traffic.unknown.load(Ordering::Relaxed),
        );
        assert_eq!(
            acked.len() as u64,
            messages,
            "each was acknowledged in the end"
        );
        self.cluster.acked = acked
            .into_iter()
            .map(|it| (it.attempt, it.receipt))
            .collect();
        let stores = self.cluster.stop_and_compare(&last).await;
        for attempt in &refused {
            let stored = stores[0].attempts.get(attempt);
            assert_eq!(stored, None, "{attempt} was refused and is in the log");
        }
        println!(
            "{messages} messages, {} refused attempts, {unknown} of unknown outcome",
            refused.len()
        );
        assert!(!refused.is_empty(), "some write met the hand-over");
        unknown
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_hand_over_is_short_and_loses_no_write() {
    let dir = tempfile::tempdir().expect("temp dir");
    let story = Story::begin(dir.path()).await;
    let mut took = Vec::new();
    for _ in 0..HAND_OVERS {
        took.push(hand_over(&story.cluster, &story.controllers, &story.traffic).await);
    }
    let unknown = story.end().await;
    for (took, silence) in &took {
        println!("hand-over: first write after {took:?}, longest silence {silence:?}");
    }
    if cfg!(not(debug_assertions)) {
        assert_eq!(
            unknown, 0,
            "what was taken was acknowledged before the hand-over"
        );
        assert!(took.iter().all(|(took, _)| *took < BAR), "{took:?}");
    }
}

/// The master is asked to hand over, and then nobody is elected: it takes writes again in its epoch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_that_comes_to_nothing_ends_where_it_began() {
    let dir = tempfile::tempdir().expect("temp dir");
    let story = Story::begin(dir.path()).await;
    let (cluster, before) = (&story.cluster, &story.first);
    let to = before.in_sync.iter().find(|id| **id != before.id);
    let header = HandOverRequest {
        broker_name: BROKER_NAME.to_owned(),
        master_epoch: i32::try_from(before.epoch).expect("small"),
        to: i64::try_from(*to.expect("three members")).expect("small"),
    };
    let request = RemotingCommand::request_with(request_code::HAND_OVER, &header);
    let client = Client::new(ClientConfig::default());
    let answer = client.request(&before.address, request, LIMIT).await;
    let answer = answer.expect("the master answers");
    assert_eq!(answer.code, 0, "{:?}\n{}", answer.remark, cluster.logs());

    let (laid_down, end) = (Instant::now(), Instant::now() + LIMIT);
    let goes_on = |at: &Acked| at.epoch == before.epoch && at.at > laid_down;
    // Answers that were under way come at once; later ones need authority again.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let quiet = story.traffic.acked.lock().len();
    while story.traffic.acked.lock().len() <= quiet + 10 {
        assert!(Instant::now() < end, "no writes again\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let silence = story.traffic.silence(laid_down, Instant::now());
    assert!(
        silence > Duration::from_secs(1),
        "it never stopped: {silence:?}"
    );
    assert!(story.traffic.acked.lock().iter().any(goes_on));
    let after = cluster.in_sync(3, 0).await;
    assert_eq!((after.id, after.epoch), (before.id, before.epoch));
    story.end().await;
}
