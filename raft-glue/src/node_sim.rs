//! A group of nodes in memory: a network that drops, delays, doubles and cuts, disks that lose what
//! was not synced or fail in the middle of a transaction, members that stand still or lose power
//! between writing and sending, one clock, one seed.
//!
//! What it checks all the time: one leader for each term; no vote or acknowledgement leaves before
//! the disk holds it; no index is ever applied with two payloads, or twice in one life.

#![expect(clippy::cast_possible_truncation, reason = "drawn numbers are small")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use parking_lot::Mutex;

use super::disk::{Disk, Loss};
use super::*;
use crate::raft_codec::decode_message;
use crate::store::{Identity, RowChanges, Rows};

/// xorshift64*.
#[derive(Clone)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }

    pub(super) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    pub(super) fn chance(&mut self, in_thousand: u64) -> bool {
        self.below(1000) < in_thousand
    }
}

/// What was applied where, by anybody.
type Oracle = Arc<Mutex<BTreeMap<u64, Vec<u8>>>>;

/// A state machine that keeps every payload.
pub(super) struct Kept {
    oracle: Oracle,
    pub(super) payloads: BTreeMap<u64, Vec<u8>>,
}

impl StateMachine for Kept {
    type Answer = usize;

    fn apply(&mut self, index: u64, payload: &[u8], rows: &mut RowChanges) -> usize {
        let mut oracle = self.oracle.lock();
        let known = oracle.entry(index).or_insert_with(|| payload.to_vec());
        assert_eq!(
            known, payload,
            "index {index} was applied with two payloads"
        );
        assert!(
            self.payloads.insert(index, payload.to_vec()).is_none(),
            "{index} applied twice"
        );
        rows.insert(index.to_be_bytes().to_vec(), Some(payload.to_vec()));
        self.payloads.len()
    }

    fn load(&mut self, rows: Rows) -> Result<(), String> {
        self.payloads = rows
            .into_iter()
            .map(|(key, value)| (u64::from_be_bytes(key.try_into().unwrap()), value))
            .collect();
        let oracle = self.oracle.lock();
        for (index, payload) in &self.payloads {
            assert_eq!(
                oracle.get(index),
                Some(payload),
                "index {index} was loaded with what nobody applied there"
            );
        }
        Ok(())
    }
}

pub(super) struct Seat {
    pub(super) node: Option<Node<Kept>>,
    pub(super) machine: Arc<RwLock<Kept>>,
    pub(super) disk: Disk,
    identity: Identity,
    timeout: usize,
    /// What its election clock shows at the next tick, unless it begins anew.
    next_elapsed: usize,
}

struct Flight {
    from: u64,
    to: u64,
    frame: Bytes,
    is_snapshot: bool,
    is_lost: bool,
}

/// Faults, each in a thousand.
#[derive(Clone, Copy, Default)]
pub(super) struct Weather {
    pub(super) drop: u64,
    pub(super) double: u64,
    pub(super) max_delay: u64,
}

pub(super) struct Sim {
    pub(super) rng: Rng,
    pub(super) seats: BTreeMap<u64, Seat>,
    pub(super) weather: Weather,
    /// Pairs that cannot hear each other, both ways.
    pub(super) cut: BTreeSet<(u64, u64)>,
    /// From whom to whom nothing comes through.
    pub(super) deaf: BTreeSet<(u64, u64)>,
    /// Members that stand still until then: no ticks, and their messages wait.
    pub(super) paused: BTreeMap<u64, u64>,
    /// How often in a thousand a member loses power after it wrote and while it sends.
    pub(super) cuts_between: u64,
    pub(super) now: u64,
    pub(super) snapshots_sent: u64,
    flights: BTreeMap<(u64, u64), Flight>,
    next_flight: u64,
    leaders: BTreeMap<u64, u64>,
    oracle: Oracle,
    settings: NodeSettings,
}

pub(super) fn member(id: u64) -> Member {
    Member {
        name: format!("n{id}"),
        address: format!("h:{id}"),
    }
}

impl Sim {
    /// Members 1 to `count`, all running.
    pub(super) fn new(seed: u64, count: u64) -> Self {
        let mut sim = Self {
            rng: Rng::new(seed),
            seats: BTreeMap::new(),
            weather: Weather {
                max_delay: 2,
                ..Weather::default()
            },
            cut: BTreeSet::new(),
            deaf: BTreeSet::new(),
            paused: BTreeMap::new(),
            cuts_between: 0,
            now: 0,
            snapshots_sent: 0,
            flights: BTreeMap::new(),
            next_flight: 0,
            leaders: BTreeMap::new(),
            oracle: Arc::default(),
            settings: NodeSettings {
                group: "g".to_owned(),
                id: 0,
                heartbeat_ticks: 1,
                election_ticks: (6, 12),
                timeout_ticks: 60,
                flush_ticks: 20,
                keep_entries: 10,
                max_pending: 64,
                prefer_ticks: 20,
                preferred: BTreeSet::new(),
            },
        };
        let first: BTreeMap<u64, Member> = (1..=count).map(|id| (id, member(id))).collect();
        for id in 1..=count {
            sim.seat(id, first.clone());
        }
        sim
    }

    /// A member with an empty disk.
    pub(super) fn seat(&mut self, id: u64, first_members: BTreeMap<u64, Member>) {
        let kept = Kept {
            oracle: Arc::clone(&self.oracle),
            payloads: BTreeMap::new(),
        };
        let seat = Seat {
            node: None,
            machine: Arc::new(RwLock::new(kept)),
            disk: Disk::default(),
            identity: Identity {
                group: "g".to_owned(),
                id,
                first_members,
            },
            timeout: 0,
            next_elapsed: 0,
        };
        self.seats.insert(id, seat);
        self.start(id);
    }

    pub(super) fn start(&mut self, id: u64) {
        let seat = self.seats.get_mut(&id).unwrap();
        let db = redb::Builder::new()
            .set_cache_size(1 << 20)
            .create_with_backend(seat.disk.handle())
            .unwrap();
        let store = Arc::new(Store::open_on(Path::new("disk"), db, &seat.identity).unwrap());
        let settings = NodeSettings {
            id,
            ..self.settings.clone()
        };
        let applied = Arc::new(AtomicU64::new(store.applied()));
        let node = Node::new(settings, store, Arc::clone(&seat.machine), applied).unwrap();
        seat.node = Some(node);
        seat.timeout = 0;
    }

    /// Power goes on one member, or its process dies: what was not synced may be lost.
    pub(super) fn crash(&mut self, id: u64) {
        let loss = match self.rng.below(4) {
            0 => Loss::Nothing,
            1 => Loss::Some(self.rng.below(1 << 30) << 30),
            _ => Loss::Everything,
        };
        let seat = self.seats.get_mut(&id).unwrap();
        seat.disk.crash(loss);
        seat.node = None;
        self.paused.remove(&id);
    }

    pub(super) fn node(&mut self, id: u64) -> &mut Node<Kept> {
        self.seats.get_mut(&id).unwrap().node.as_mut().unwrap()
    }

    pub(super) fn running(&self) -> Vec<u64> {
        self.seats
            .iter()
            .filter(|(_, seat)| seat.node.is_some())
            .map(|(&id, _)| id)
            .collect()
    }

    /// One tick of every running member, with all messages that are due.
    pub(super) fn tick(&mut self) {
        self.now += 1;
        let now = self.now;
        self.paused.retain(|_, until| *until > now);
        for id in self.running() {
            if self.paused.contains_key(&id) {
                continue;
            }
            let seat = self.seats.get_mut(&id).unwrap();
            let node = seat.node.as_mut().unwrap();
            // The library draws election timeouts of its own, each time its clock begins anew; ours
            // make the seed tell all.
            let raft = &mut node.raw.raft;
            if raft.election_elapsed < seat.next_elapsed || seat.timeout == 0 {
                seat.timeout = 6 + self.rng.below(6) as usize;
            }
            seat.next_elapsed = raft.election_elapsed + 1;
            raft.set_randomized_election_timeout(seat.timeout);
            node.tick();
            self.turn(id);
        }
        while let Some(entry) = self.flights.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let flight = entry.remove();
            match self.paused.get(&flight.to) {
                Some(&until) => self.fly(until, flight),
                None => self.land(flight),
            }
        }
    }

    pub(super) fn run(&mut self, ticks: u64) {
        for _ in 0..ticks {
            self.tick();
        }
    }

    /// Ticks until `done`, at most so often.
    pub(super) fn run_until(&mut self, what: &str, limit: u64, done: impl Fn(&mut Self) -> bool) {
        for _ in 0..limit {
            if done(self) {
                return;
            }
            self.tick();
        }
        for id in self.running() {
            eprintln!("{:?}", self.node(id).metadata());
            eprintln!("  {:?}", self.node(id).strangers);
            for (peer, progress) in self.node(id).raw.raft.prs().iter() {
                eprintln!("  progress of {peer}: {progress:?}");
            }
        }
        panic!("not within {limit} ticks: {what}");
    }

    fn is_cut(&self, a: u64, b: u64) -> bool {
        self.cut.contains(&(a, b)) || self.cut.contains(&(b, a))
    }

    fn land(&mut self, flight: Flight) {
        let is_lost = flight.is_lost
            || self.is_cut(flight.from, flight.to)
            || self.deaf.contains(&(flight.from, flight.to));
        let target = self
            .seats
            .get_mut(&flight.to)
            .and_then(|seat| seat.node.as_mut());
        let mut delivered = false;
        if let Some(node) = target.filter(|_| !is_lost) {
            node.step(decode_message(&flight.frame).unwrap());
            delivered = true;
            self.turn(flight.to);
        }
        if flight.is_snapshot
            && let Some(node) = self
                .seats
                .get_mut(&flight.from)
                .and_then(|s| s.node.as_mut())
        {
            node.report_snapshot(flight.to, delivered);
        }
    }

    /// Lets a member do what is to be done. A failed disk ends it, as it should.
    pub(super) fn turn(&mut self, id: u64) {
        let mut out = Vec::new();
        let seat = self.seats.get_mut(&id).unwrap();
        let Some(node) = seat.node.as_mut() else {
            return;
        };
        let store = Arc::clone(&node.store);
        let applied = node.applied;
        let outcome = node.turn(&mut |outgoing| {
            check_covered(&store, &outgoing);
            out.push(outgoing);
        });
        let raft = &node.raw.raft;
        let (is_leader, term) = (raft.state == StateRole::Leader, raft.term);
        check_positions(node, applied);
        if outcome.is_err() {
            self.crash(id);
        } else if is_leader {
            let known = *self.leaders.entry(term).or_insert(id);
            assert_eq!(known, id, "two leaders in term {term}");
        }
        if !out.is_empty() && self.rng.chance(self.cuts_between) {
            out.truncate(self.rng.index(out.len()));
            self.crash(id);
        }
        for outgoing in out {
            self.send(id, outgoing);
        }
    }

    fn send(&mut self, from: u64, outgoing: Outgoing) {
        self.snapshots_sent += u64::from(outgoing.is_snapshot);
        let copies = 1 + u64::from(self.rng.chance(self.weather.double));
        let is_lost = self.rng.chance(self.weather.drop);
        for _ in 0..copies {
            let due = self.now + 1 + self.rng.below(self.weather.max_delay.max(1));
            let flight = Flight {
                from,
                to: outgoing.to,
                frame: outgoing.frame.clone(),
                is_snapshot: outgoing.is_snapshot,
                is_lost,
            };
            self.fly(due, flight);
        }
    }

    fn fly(&mut self, due: u64, flight: Flight) {
        self.next_flight += 1;
        self.flights.insert((due, self.next_flight), flight);
    }

    /// Who leads and knows everything, if somebody does.
    pub(super) fn leader(&self) -> Option<u64> {
        let ready = |seat: &Seat| seat.node.as_ref().is_some_and(Node::is_ready);
        self.seats
            .iter()
            .filter(|(_, seat)| ready(seat))
            .map(|(&id, _)| id)
            .max_by_key(|id| {
                self.seats[id]
                    .node
                    .as_ref()
                    .map_or(0, |node| node.raw.raft.term)
            })
    }

    pub(super) fn wait_leader(&mut self) -> u64 {
        self.run_until("a leader", 200, |sim| sim.leader().is_some());
        self.leader().unwrap()
    }
}

/// What is applied only grows, and is committed and in the log; a leader never sends what a follower
/// has said to have.
fn check_positions(node: &Node<Kept>, before: u64) {
    let raft = &node.raw.raft;
    let log = &raft.raft_log;
    assert!(
        node.applied >= before,
        "applied went back to {}",
        node.applied
    );
    assert!(node.applied <= log.committed && log.committed <= log.last_index());
    assert!(node.store.applied() <= node.applied);
    if raft.state == StateRole::Leader {
        for (peer, progress) in raft.prs().iter() {
            assert!(progress.next_idx > progress.matched, "{peer}: {progress:?}");
        }
    }
}

/// Nothing leaves that the disk does not hold.
fn check_covered(store: &Store, outgoing: &Outgoing) {
    let message = decode_message(&outgoing.frame).unwrap().message;
    let (term, vote, last) = store.durable();
    match message.get_msg_type() {
        MessageType::MsgRequestVoteResponse if !message.reject => {
            assert_eq!(
                (term, vote),
                (message.term, message.to),
                "a vote that is not on disk"
            );
        }
        MessageType::MsgRequestVote => {
            assert_eq!(
                (term, vote),
                (message.term, message.from),
                "own vote is not on disk"
            );
        }
        MessageType::MsgAppendResponse if !message.reject => {
            assert!(
                message.index <= last,
                "{} acknowledged, {last} on disk",
                message.index
            );
            assert!(message.term <= term);
        }
        MessageType::MsgAppend | MessageType::MsgHeartbeat => assert!(message.term <= term),
        _ => {}
    }
}
