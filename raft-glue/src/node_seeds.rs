//! Seeded storms over groups of three and five: everything that can go wrong goes wrong, changes of
//! members among it, and then the weather clears. What clients saw is checked against one log
//! (node_history.rs), and what a calm group must not do is watched for.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::history::{History, Outcome};
use super::sim::{Rng, Sim, Weather, member};
use super::*;
use crate::lease_sim::number;
use crate::ledger::{GetError, PendingAppend, committed_entry};
use crate::raft_codec::{MemberChange, MemberStep};

#[path = "node_seeds_calm.rs"]
mod calm;

/// Steps of one storm, and how many storms a life has.
const STEPS: u64 = 400;
const STORMS: u64 = 2;

/// Members a group may grow to, and places in all.
const MEMBERS_MAX: usize = 7;
const SEATS_MAX: u64 = 12;

/// An append under way: its number in the history and the member that has it.
struct Open {
    number: usize,
    at: u64,
    pending: PendingAppend<usize>,
}

/// A read under way: when it was called, and where.
struct Reading {
    called: u64,
    at: u64,
    outcome: oneshot::Receiver<Result<(), ReadError>>,
}

/// What happened over many seeds: a test that saw none of it would prove nothing.
#[derive(Debug, Default)]
struct Tally {
    acked: usize,
    reads: usize,
    gets: usize,
    members_changed: usize,
    snapshots: u64,
    powerless: u64,
    away: u64,
}

/// One life of a group.
struct Life {
    sim: Sim,
    rng: Rng,
    history: History,
    next_payload: u64,
    open: Vec<Open>,
    reads: Vec<Reading>,
    changes: Vec<oneshot::Receiver<Result<u64, AppendError>>>,
    tally: Tally,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let count = if rng.chance(400) { 5 } else { 3 };
        Self {
            sim: Sim::new(seed, count),
            rng,
            history: History::default(),
            next_payload: 0,
            open: Vec::new(),
            reads: Vec::new(),
            changes: Vec::new(),
            tally: Tally::default(),
        }
    }

    fn any(&mut self) -> u64 {
        let ids: Vec<u64> = self.sim.seats.keys().copied().collect();
        ids[self.rng.index(ids.len())]
    }

    fn is_up(&self, id: u64) -> bool {
        self.sim.seats[&id].node.is_some()
    }

    fn storm(&mut self) {
        self.sim.weather = Weather {
            drop: self.rng.below(150),
            double: self.rng.below(100),
            max_delay: 1 + self.rng.below(4),
        };
        self.sim.cuts_between = self.rng.below(6);
        let moves_members = self.rng.chance(600);
        for _ in 0..STEPS {
            let (any, other) = (self.any(), self.any());
            let is_up = self.is_up(any);
            match self.rng.below(200) {
                0..40 => self.append_somewhere(1),
                40..44 => self.append_somewhere(3),
                44..56 => self.read_somewhere(any),
                56..64 if is_up => self.get(any),
                64..67 if is_up => self.sim.crash(any),
                67 if is_up => {
                    let writes = self.rng.below(40);
                    self.sim.seats[&any].disk.fail_after(writes);
                }
                56..86 if !is_up => self.sim.start(any),
                86..88 => drop(self.sim.cut.insert((any, other))),
                88 | 89 => drop(self.sim.deaf.insert((any, other))),
                90..95 => {
                    self.sim.cut.clear();
                    self.sim.deaf.clear();
                }
                95 if is_up => {
                    let until = self.sim.now + 1 + self.rng.below(40);
                    self.sim.paused.insert(any, until);
                }
                96 if is_up => {
                    let reply = oneshot::channel().0;
                    self.sim.node(any).transfer_leader(other, reply);
                }
                97..101 if moves_members => self.change_members(),
                _ => self.sim.tick(),
            }
            self.collect();
        }
    }

    /// Mostly on who seems to lead, and sometimes on who does not.
    fn append_somewhere(&mut self, count: u64) {
        let any = self.any();
        let at = match self.sim.leader() {
            Some(leader) if self.rng.chance(700) => leader,
            _ => any,
        };
        if self.is_up(at) {
            self.append(at, count);
        }
    }

    fn append(&mut self, at: u64, count: u64) {
        let batch = (count > 1).then(|| self.history.batch());
        let mut replies = Vec::new();
        for place in 0..count {
            self.next_payload += 1;
            let payload = format!("p{}", self.next_payload);
            let number = self
                .history
                .append(payload.clone(), batch.map(|batch| (batch, place)));
            let (reply, pending) = AppendReply::new(None);
            replies.push((Bytes::from(payload), reply));
            self.open.push(Open {
                number,
                at,
                pending,
            });
        }
        let node = self.sim.node(at);
        if batch.is_some() {
            node.append_batch(replies);
        } else {
            for (payload, reply) in replies {
                node.append(&payload, reply);
            }
        }
        self.turn(at);
    }

    /// A member that stands still does what it was told when it goes on.
    fn turn(&mut self, at: u64) {
        if !self.sim.paused.contains_key(&at) {
            self.sim.turn(at);
        }
    }

    /// Mostly on who takes itself for the leader, be it wrong: one that stood still is asked as it
    /// wakes.
    fn read_somewhere(&mut self, any: u64) {
        let mut at: Vec<u64> = self.sim.running();
        if self.rng.chance(800) {
            at.retain(|id| self.sim.node(*id).is_ready());
        } else {
            at.retain(|id| *id == any);
        }
        if !at.is_empty() {
            let at = at[self.rng.index(at.len())];
            self.read(at);
        }
    }

    fn read(&mut self, at: u64) {
        let (reply, outcome) = oneshot::channel();
        let called = self.history.now();
        self.sim.node(at).read_barrier(reply);
        self.reads.push(Reading {
            called,
            at,
            outcome,
        });
        self.turn(at);
    }

    /// Any member gives what is committed, be it old.
    fn get(&mut self, at: u64) {
        let node = self.sim.node(at);
        let (store, applied) = (Arc::clone(&node.store), node.applied);
        let index = 1 + self.rng.below(applied + 5);
        match committed_entry(&store, applied, index) {
            Ok(entry) => {
                assert!(index <= applied);
                if let Some(payload) = entry.payload {
                    self.history.got(index, payload.to_vec());
                    self.tally.gets += 1;
                }
            }
            Err(GetError::NotCommitted { .. }) => assert!(index > applied),
            Err(GetError::Compacted { first, .. }) => {
                assert!(index < first && first <= applied + 1);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Steps that a sound operator might ask for, of a leader that may be none any more.
    fn change_members(&mut self) {
        let leads = |sim: &Sim, id: u64| {
            let node = sim.seats[&id].node.as_ref();
            node.is_some_and(|node| node.raw.raft.state == StateRole::Leader)
        };
        let mut leaders: Vec<u64> = self.sim.running();
        leaders.retain(|id| leads(&self.sim, *id));
        if leaders.is_empty() {
            return;
        }
        let at = leaders[self.rng.index(leaders.len())];
        let node = self.sim.node(at);
        let members: BTreeSet<u64> = node.members.keys().copied().collect();
        let learners = node.raw.raft.prs().conf().learners().clone();
        let others: Vec<u64> = members
            .iter()
            .copied()
            .filter(|id| *id != at && !learners.contains(id))
            .collect();
        let is_small = others.len() < 2;
        let mut steps = Vec::new();
        let what = self.rng.below(6);
        if members.len() < MEMBERS_MAX && (is_small || what < 3) {
            let id = self.newcomer(&members);
            steps.push(if what == 0 {
                MemberStep::AddLearner {
                    id,
                    member: member(id),
                }
            } else {
                voter(id)
            });
        }
        match what {
            2 | 3 if !is_small => {
                let id = others[self.rng.index(others.len())];
                steps.push(MemberStep::Remove { id });
            }
            4 if !is_small => {
                let id = others[self.rng.index(others.len())];
                steps.push(MemberStep::AddLearner {
                    id,
                    member: member(id),
                });
            }
            5 => steps.extend(learners.into_iter().map(voter)),
            _ => {}
        }
        let (reply, outcome) = oneshot::channel();
        self.sim
            .node(at)
            .change_members(&MemberChange { steps }, reply);
        self.changes.push(outcome);
        self.turn(at);
    }

    /// Somebody who is no member: with an empty disk, or one who was a member once.
    fn newcomer(&mut self, members: &BTreeSet<u64>) -> u64 {
        let mut known: Vec<u64> = self.sim.seats.keys().copied().collect();
        let next = known.len() as u64 + 1;
        known.retain(|id| !members.contains(id));
        if next > SEATS_MAX || (!known.is_empty() && self.rng.chance(500)) {
            return known[self.rng.index(known.len())];
        }
        self.sim.seat(next, BTreeMap::new());
        next
    }

    fn collect(&mut self) {
        let mut open = std::mem::take(&mut self.open);
        open.retain_mut(|it| match it.pending.try_take() {
            Some(outcome) => {
                self.append_ended(it.number, it.at, outcome);
                false
            }
            None => true,
        });
        self.open = open;
        let (seats, history) = (&self.sim.seats, &mut self.history);
        self.reads.retain_mut(|it| match it.outcome.try_recv() {
            Ok(Ok(())) => {
                let payloads = &seats[&it.at].machine.read().payloads;
                let newest = payloads.last_key_value().map_or(0, |(index, _)| *index);
                history.read(it.called, (newest, payloads.len()));
                false
            }
            Ok(Err(_)) | Err(oneshot::error::TryRecvError::Closed) => false,
            Err(oneshot::error::TryRecvError::Empty) => true,
        });
        let tally = &mut self.tally;
        self.changes.retain_mut(|it| {
            let outcome = it.try_recv();
            tally.members_changed += usize::from(matches!(outcome, Ok(Ok(_))));
            outcome == Err(oneshot::error::TryRecvError::Empty)
        });
    }

    fn append_ended(
        &mut self,
        number: usize,
        at: u64,
        outcome: Result<crate::ledger::Appended<usize>, AppendError>,
    ) {
        let outcome = match outcome {
            Ok(appended) => Outcome::Acked(appended.index),
            Err(error) if error.is_refusal() => Outcome::Refused,
            Err(_) => Outcome::Unknown,
        };
        self.history.append_ended(number, outcome);
        let Outcome::Acked(index) = outcome else {
            return;
        };
        // Success is told from apply: whoever told it has the entry, if it still runs.
        if let Some(node) = &self.sim.seats[&at].node {
            match committed_entry(&node.store, node.applied, index) {
                Ok(entry) => assert_eq!(
                    entry.payload.as_deref(),
                    Some(self.history.payload(number).as_bytes())
                ),
                Err(GetError::Compacted { .. }) => {}
                Err(error) => panic!("acknowledged at {index}: {error}"),
            }
        }
    }

    /// All members have the same; returns what clients saw, checked against it.
    fn check(mut self) -> Tally {
        let leader = self.sim.leader().unwrap();
        let log = self.sim.seats[&leader].machine.read().payloads.clone();
        for id in self.terms().into_keys() {
            let payloads = &self.sim.seats[&id].machine.read().payloads;
            assert_eq!(*payloads, log, "member {id} has another state");
        }
        if let Err(why) = self.history.check(&log) {
            panic!("no one log explains what was seen: {why}");
        }
        Tally {
            acked: self.history.acked_count(),
            reads: self.history.read_count(),
            gets: self.history.get_count(),
            snapshots: self.sim.snapshots_sent,
            ..self.tally
        }
    }
}

fn voter(id: u64) -> MemberStep {
    MemberStep::AddVoter {
        id,
        member: member(id),
    }
}

struct SaySeed(u64);

impl Drop for SaySeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0;
            eprintln!("failed with seed {seed}: EPOCHLOG_SEED={seed} runs it alone");
        }
    }
}

fn live(seed: u64) -> Tally {
    let _say = SaySeed(seed);
    let mut life = Life::new(seed);
    for _ in 0..STORMS {
        life.storm();
        life.heal();
        life.calm();
    }
    life.check()
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.acked += other.acked;
        self.reads += other.reads;
        self.gets += other.gets;
        self.members_changed += other.members_changed;
        self.snapshots += other.snapshots;
        self.powerless += other.powerless;
        self.away += other.away;
    }

    fn is_rich(&self) -> bool {
        self.reads > 0
            && self.gets > 0
            && self.members_changed > 0
            && self.snapshots > 0
            && self.powerless > 0
            && self.away > 0
    }
}

/// `EPOCHLOG_SEEDS` says how many; `EPOCHLOG_SEED` names one.
#[test]
fn groups_of_three_and_five_keep_their_promises_in_every_storm() {
    let only = number("EPOCHLOG_SEED");
    let seeds = match only {
        Some(seed) => seed..seed + 1,
        None => 0..number("EPOCHLOG_SEEDS").unwrap_or(8),
    };
    let count = seeds.end - seeds.start;
    let all = Mutex::new(Tally::default());
    let next = AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let one = live(seed);
                    all.lock().add(&one);
                }
            });
        }
    });
    let all = all.into_inner();
    eprintln!("{count} seeds: {all:?}");
    assert!(all.acked > 0 && (count < 8 || all.is_rich()), "{all:?}");
}
