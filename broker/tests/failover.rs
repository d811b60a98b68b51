//! Rounds of failures on real processes while messages flow: no acknowledged message is lost, two
//! masters never have authority at a time, and writes go on soon.
//!
//! The short form runs with all tests. The long one, with its table:
//! `EPOCHLOG_FAILOVER_ROUNDS=60 cargo test --release -p epochlog-broker --test failover -- --nocapture`
//! (`EPOCHLOG_FAILOVER_PROFILE=fast` or `default` takes the half of one profile).

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{Cluster, LIMIT, plan};
use epochlog_broker::group::{BROKER_NAME, FAST_BROKER, FAST_CONTROLLER};
use epochlog_broker::observe::{MasterView, Observer};
use epochlog_broker::producer::{Producer, Receipt};
use epochlog_raft_glue::client::{ControllerClient, ControllerClientConfig};
use epochlog_raft_glue::remoting::ElectMasterRequest;
use parking_lot::Mutex;
use rustix::process::Signal;

/// What a round does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    KillMaster,
    KillLeader,
    KillBoth,
    StopMaster,
    StopLeader,
    HandOver,
}

const EVENTS: [Event; 6] = [
    Event::KillMaster,
    Event::KillBoth,
    Event::HandOver,
    Event::KillLeader,
    Event::StopMaster,
    Event::StopLeader,
];

/// What the senders know.
struct Traffic {
    master: Mutex<Option<MasterView>>,
    acked: Mutex<BTreeMap<String, Receipt>>,
    /// Epoch and time of every first acknowledgement in an epoch.
    first_acks: Mutex<BTreeMap<u32, Instant>>,
    /// When the newest acknowledgement came.
    last_ack: Mutex<Instant>,
    /// The longest time between two acknowledgements since it was set to nothing.
    silence: Mutex<Duration>,
    next: AtomicU64,
    unknown: AtomicU64,
    stop: AtomicBool,
}

impl Traffic {
    fn start(addr: &str, first: &MasterView) -> (Arc<Self>, Vec<tokio::task::JoinHandle<()>>) {
        let traffic = Arc::new(Self {
            master: Mutex::new(Some(first.clone())),
            acked: Mutex::default(),
            first_acks: Mutex::default(),
            last_ack: Mutex::new(Instant::now()),
            silence: Mutex::default(),
            next: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let mut tasks: Vec<_> = (0..2)
            .map(|_| tokio::spawn(Arc::clone(&traffic).send()))
            .collect();
        let observer = Observer::new(BROKER_NAME, addr).expect("addresses");
        tasks.push(tokio::spawn(Arc::clone(&traffic).follow(observer)));
        (traffic, tasks)
    }

    /// Looks for the master again and again.
    async fn follow(self: Arc<Self>, observer: Observer) {
        while !self.stop.load(Ordering::Relaxed) {
            if let Ok(Some(seen)) = observer.master().await {
                let mut master = self.master.lock();
                if master
                    .as_ref()
                    .is_none_or(|known| known.epoch <= seen.epoch)
                {
                    *master = Some(seen);
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn send(self: Arc<Self>) {
        let producer = Producer::new("orders", 4, Duration::from_secs(1));
        while !self.stop.load(Ordering::Relaxed) {
            let master = self.master.lock().clone().expect("set at the start");
            let id = format!("m{}", self.next.fetch_add(1, Ordering::Relaxed));
            let properties = format!("ATTEMPT\u{1}{id}\u{2}");
            let body = Bytes::from_static(&[b'x'; 100]);
            let sent = tokio::select! {
                sent = producer.send(&master.address, body, &properties) => sent,
                // Nobody waits for a stopped process when there is another master.
                () = self.newer(master.epoch) => {
                    self.unknown.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
            };
            match sent {
                Ok(receipt) => {
                    let now = Instant::now();
                    self.acked.lock().insert(id, receipt);
                    self.first_acks.lock().entry(master.epoch).or_insert(now);
                    let mut last = self.last_ack.lock();
                    let mut silence = self.silence.lock();
                    *silence = now.saturating_duration_since(*last).max(*silence);
                    *last = now;
                }
                Err(error) => {
                    let unknown = u64::from(error.may_be_stored());
                    self.unknown.fetch_add(unknown, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until a master of a later epoch is known.
    async fn newer(&self, epoch: u32) {
        let is_newer = |it: &MasterView| it.epoch > epoch;
        while !self.master.lock().as_ref().is_some_and(is_newer) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits for the first acknowledgement of an epoch above `epoch`; gives how long after `begin` it
    /// came.
    async fn ack_above(&self, epoch: u32, begin: Instant) -> Option<Duration> {
        while begin.elapsed() < LIMIT {
            let first = self
                .first_acks
                .lock()
                .range(epoch + 1..)
                .next()
                .map(|it| *it.1);
            if let Some(at) = first {
                return Some(at.saturating_duration_since(begin));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        None
    }

    /// Waits for an acknowledgement after `begin`, of whatever epoch.
    async fn ack_after(&self, begin: Instant) -> Option<Duration> {
        while begin.elapsed() < LIMIT {
            let last = *self.last_ack.lock();
            if last > begin {
                return Some(last - begin);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        None
    }
}

/// How long the traffic is watched for a silence after a controller stopped: longer than a lease and
/// an election together.
const WATCH: Duration = Duration::from_secs(4);

impl Traffic {
    /// The longest time without an acknowledgement in the next [`WATCH`]; none when even then no
    /// further one came.
    async fn longest_silence(&self) -> Option<Duration> {
        let begin = Instant::now();
        *self.last_ack.lock() = begin;
        *self.silence.lock() = Duration::ZERO;
        tokio::time::sleep(WATCH).await;
        self.ack_after(Instant::now()).await?;
        Some(*self.silence.lock())
    }
}

struct Rounds {
    cluster: Cluster,
    traffic: Arc<Traffic>,
    pause: Duration,
    times: BTreeMap<Event, Vec<Duration>>,
}

impl Rounds {
    async fn leader(&self) -> usize {
        let addresses: Vec<&str> = self.cluster.group.controller_addr.split(';').collect();
        let end = Instant::now() + LIMIT;
        loop {
            let found = self.cluster.observer.controller().find_leader().await;
            if let Some(at) = found
                .ok()
                .and_then(|it| addresses.iter().position(|a| *a == it))
            {
                return at;
            }
            assert!(
                Instant::now() < end,
                "nobody leads\n{}",
                self.cluster.logs()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn round(&mut self, event: Event) {
        let before = self.cluster.in_sync(3, 0).await;
        let leader = self.leader().await;
        let at = self
            .cluster
            .group
            .broker_at(&before.address)
            .expect("one of ours");
        // It flows again before anything happens.
        let flows = self.traffic.ack_after(Instant::now()).await;
        assert!(
            flows.is_some(),
            "{event:?}: nothing flows\n{}",
            self.cluster.logs()
        );
        let group = &mut self.cluster.group;
        let begin = Instant::now();
        let time = match event {
            Event::KillMaster | Event::KillBoth => {
                if event == Event::KillBoth {
                    group.controllers[leader].kill().expect("killed");
                }
                group.brokers[at].process.kill().expect("killed");
                self.traffic.ack_above(before.epoch, begin).await
            }
            Event::KillLeader => {
                group.controllers[leader].kill().expect("killed");
                self.traffic.longest_silence().await
            }
            Event::StopMaster => {
                group.brokers[at]
                    .process
                    .signal(Signal::STOP)
                    .expect("stopped");
                let time = self.traffic.ack_above(before.epoch, begin).await;
                tokio::time::sleep(self.pause.saturating_sub(begin.elapsed())).await;
                let group = &self.cluster.group;
                group.brokers[at]
                    .process
                    .signal(Signal::CONT)
                    .expect("goes on");
                time
            }
            Event::StopLeader => {
                group.controllers[leader]
                    .signal(Signal::STOP)
                    .expect("stopped");
                let silence = self.traffic.longest_silence().await;
                tokio::time::sleep(self.pause.saturating_sub(begin.elapsed())).await;
                let group = &self.cluster.group;
                group.controllers[leader]
                    .signal(Signal::CONT)
                    .expect("goes on");
                silence
            }
            Event::HandOver => self.hand_over(&before).await,
        };
        let time = time.unwrap_or_else(|| panic!("{event:?}: no write\n{}", self.cluster.logs()));
        self.times.entry(event).or_default().push(time);
        self.restart(event, leader, at);
    }

    fn restart(&mut self, event: Event, leader: usize, at: usize) {
        let group = &mut self.cluster.group;
        if matches!(event, Event::KillLeader | Event::KillBoth) {
            group.controllers[leader].start().expect("starts");
        }
        if matches!(event, Event::KillMaster | Event::KillBoth) {
            group.brokers[at].process.start().expect("starts");
        }
    }

    /// From the question to the first write the new master acknowledged.
    async fn hand_over(&self, before: &MasterView) -> Option<Duration> {
        let to = before.in_sync.iter().find(|id| **id != before.id);
        let request = ElectMasterRequest {
            broker_name: BROKER_NAME.to_owned(),
            broker_id: to.and_then(|id| i64::try_from(*id).ok()),
            designate_elect: Some(true),
            ..ElectMasterRequest::default()
        };
        let mut config = ControllerClientConfig::new(&*self.cluster.group.controller_addr);
        config.request_timeout = Duration::from_secs(5);
        let controller = ControllerClient::new(config).expect("addresses");
        controller.find_leader().await.expect("leads");
        let begin = Instant::now();
        let asked = controller.elect_master(&request).await;
        asked.unwrap_or_else(|error| panic!("{error}\n{}", self.cluster.logs()));
        self.traffic.ack_above(before.epoch, begin).await
    }

    fn table(&self, profile: &str) -> String {
        let mut text = format!(
            "{profile}: ms from the event to the first write acknowledged in the next epoch; of \
             KillLeader and StopLeader the longest time without an acknowledged write\n\
             | event | rounds | least | median | most |\n|---|---|---|---|---|\n"
        );
        for (event, times) in &self.times {
            let mut ms: Vec<u128> = times.iter().map(Duration::as_millis).collect();
            ms.sort_unstable();
            text += &format!(
                "| {event:?} | {} | {} | {} | {} |\n",
                ms.len(),
                ms[0],
                median(times).as_millis(),
                ms[ms.len() - 1]
            );
        }
        text
    }

    /// How long the rounds in which a master was killed took, shortest first.
    fn master_kills(&self) -> Vec<Duration> {
        let killed = [Event::KillMaster, Event::KillBoth].into_iter();
        let times = killed.filter_map(|event| self.times.get(&event));
        let mut all: Vec<Duration> = times.flatten().copied().collect();
        all.sort_unstable();
        all
    }
}

/// The middle one, or halfway between the two in the middle.
fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    (times[(times.len() - 1) / 2] + times[times.len() / 2]) / 2
}

#[test]
fn the_median_is_in_the_middle() {
    let ms = |list: &[u64]| -> Vec<Duration> {
        list.iter().copied().map(Duration::from_millis).collect()
    };
    assert_eq!(median(&ms(&[9, 1, 2])), Duration::from_millis(2));
    assert_eq!(median(&ms(&[9, 1, 2, 4])), Duration::from_millis(3));
}

/// A span of authority as a broker logged it, in ms of CLOCK_BOOTTIME.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    broker: usize,
    epoch: u64,
    from_ms: u64,
    until_ms: u64,
}

fn field(line: &str, name: &str) -> Option<u64> {
    let rest = &line[line.find(&format!("{name}="))? + name.len() + 1..];
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// One span for each broker and epoch: from the first grant to the end of the last, or to where it
/// was laid down.
fn spans(cluster: &Cluster) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (broker, it) in cluster.group.brokers.iter().enumerate() {
        let text = std::fs::read_to_string(it.process.log()).expect("a log");
        for line in text.lines().filter(|line| line.contains("authority ")) {
            let Some(epoch) = field(line, "epoch") else {
                continue;
            };
            let known = spans
                .iter_mut()
                .find(|span| span.broker == broker && span.epoch == epoch);
            match (field(line, "from_ms"), field(line, "until_ms"), known) {
                (Some(_), Some(until_ms), Some(span)) => span.until_ms = until_ms,
                (Some(from_ms), Some(until_ms), None) => spans.push(Span {
                    broker,
                    epoch,
                    from_ms,
                    until_ms,
                }),
                (_, _, Some(span)) => {
                    if let Some(at_ms) = field(line, "at_ms") {
                        span.until_ms = span.until_ms.min(at_ms);
                    }
                }
                (_, _, None) => {}
            }
        }
    }
    spans
}

/// The pairs of spans of two brokers that meet.
fn overlaps(spans: &[Span]) -> Vec<(Span, Span)> {
    let mut found = Vec::new();
    for one in spans {
        for other in spans.iter().filter(|other| other.broker > one.broker) {
            if one.from_ms < other.until_ms && other.from_ms < one.until_ms {
                found.push((*one, *other));
            }
        }
    }
    found
}

#[test]
fn spans_that_meet_are_found() {
    let span = |broker, epoch, from_ms, until_ms| Span {
        broker,
        epoch,
        from_ms,
        until_ms,
    };
    let spans = [span(0, 1, 10, 20), span(1, 2, 20, 30), span(0, 3, 30, 40)];
    assert_eq!(overlaps(&spans), []);
    let late = [spans[0], span(1, 2, 19, 30)];
    assert_eq!(overlaps(&late), [(late[0], late[1])]);
    let line = "x DEBUG y: authority goes on epoch=3 from_ms=17 until_ms=1217";
    assert_eq!(
        (field(line, "epoch"), field(line, "until_ms")),
        (Some(3), Some(1217))
    );
}

async fn rounds(name: &str, fast: bool, events: &[Event], pause: Duration) -> Rounds {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut plan = plan(dir.path(), 3);
    plan.controllers = 3;
    plan.log_filter = Some("info,epochlog_broker::wiring::authority=debug".to_owned());
    if fast {
        plan.broker_extra = FAST_BROKER.to_owned();
        plan.controller_extra = FAST_CONTROLLER.to_owned();
    }
    let cluster = Cluster::start(&plan);
    let first = cluster.in_sync(3, 0).await;
    let (traffic, tasks) = Traffic::start(&cluster.group.controller_addr, &first);
    let mut rounds = Rounds {
        cluster,
        traffic,
        pause,
        times: BTreeMap::new(),
    };
    for (at, event) in events.iter().enumerate() {
        let begin = Instant::now();
        rounds.round(*event).await;
        let took = rounds.times[event].last().expect("pushed").as_millis();
        let is_kill = matches!(event, Event::KillMaster | Event::KillBoth);
        if is_kill && took >= if fast { 1_000 } else { 3_000 } {
            // What made it slow is in there.
            println!("{}", rounds.cluster.logs());
        }
        println!(
            "{name} round {at}: {event:?} {took} ms, {:?} in all",
            begin.elapsed()
        );
    }
    let last = rounds.cluster.in_sync(3, 0).await;
    rounds.traffic.stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no panic");
    }
    rounds.cluster.acked = std::mem::take(&mut *rounds.traffic.acked.lock());
    println!(
        "{name}: {} acknowledged, {} unknown",
        rounds.cluster.acked.len(),
        rounds.traffic.unknown.load(Ordering::Relaxed)
    );
    rounds.cluster.stop_and_compare(&last).await;
    let spans = spans(&rounds.cluster);
    let epochs: std::collections::BTreeSet<u64> = spans.iter().map(|span| span.epoch).collect();
    assert!(epochs.len() > 1, "masters changed: {spans:?}");
    assert_eq!(overlaps(&spans), [], "{spans:?}");
    println!("{}", rounds.table(name));
    rounds
}

fn count() -> usize {
    let rounds = std::env::var("EPOCHLOG_FAILOVER_ROUNDS");
    rounds.ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k15_failures_of_every_kind_lose_nothing_and_never_make_two_masters() {
    if count() == 0 {
        // Two of the events in this form: the others are in the long one.
        let events = [Event::KillMaster, Event::HandOver, Event::KillBoth];
        rounds("short", false, &events, Duration::from_secs(2)).await;
        return;
    }
    // Each stopped process stands still for this long.
    let pause = Duration::from_secs(20);
    let only = std::env::var("EPOCHLOG_FAILOVER_PROFILE").ok();
    let profiles = [("default", false), ("fast", true)].into_iter();
    for (name, fast) in profiles.filter(|(name, _)| only.as_ref().is_none_or(|it| it == name)) {
        let events: Vec<Event> = EVENTS.iter().copied().cycle().take(count() / 2).collect();
        let done = rounds(name, fast, &events, pause).await;
        let all = done.master_kills();
        assert!(!all.is_empty(), "2 rounds are the least");
        let (median, most) = (median(&all), all[all.len() - 1]);
        println!(
            "{name}: a killed master, {} rounds: median {median:?}, most {most:?}",
            all.len()
        );
        let is_soon = match fast {
            false => most <= Duration::from_secs(3),
            true => median < Duration::from_secs(1) && most <= Duration::from_secs(2),
        };
        assert!(
            is_soon,
            "{name}: median {median:?}, most {most:?} of {all:?}"
        );
    }
}
