//! A seeded world of controllers and brokers that drives the very code of the lease: networks that
//! part, leaders that do not know they are none, delays, clocks that run wrong. Two brokers must
//! never have authority at a time; each condition left out makes some seed find two that do.
//!
//! Consensus itself is not simulated here (that is `node_sim.rs`): a term has one leader, which
//! commits what a majority of its term or an older one can be reached for.

use std::collections::BTreeMap;

use crate::command::{Command, ElectMaster, Report};
use crate::elect::Incarnation;
use crate::group::{BrokerGroup, Replica};
use crate::lease::{Asked, LeaseHolder, LeaseNews, LeaseTimes};
use crate::liveness::{Heartbeat, Liveness, Verdict};
use crate::state_machine::ControllerState;

const TICK_MS: u64 = 5;
const SPAN_MS: u64 = 30_000;
const WAIT_MS: u64 = 1_500;
const ELECTION_MS: u64 = 300;
const SET: &str = "b";
const CLUSTER: &str = "c";

/// A condition left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    ReadBarrier,
    ElectionMark,
    LeaderSince,
    Receipt,
    SendTime,
    Inequality,
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Mostly short, now and then long.
    fn delay(&mut self) -> u64 {
        match self.below(12) {
            0 => self.below(900),
            1 => self.below(200),
            _ => 1 + self.below(15),
        }
    }
}

struct Controller {
    liveness: Liveness,
    state: ControllerState,
    /// The newest term it voted in.
    term: u64,
    leads: Option<u64>,
    /// When it last had a majority (as leader) or heard of a leader.
    contact_ms: u64,
    part: u8,
    rate: i64,
}

struct Broker {
    lease: LeaseHolder,
    part: u8,
    rate: i64,
    /// Until when its authority lasts, in true time, with δ.
    until_ms: u64,
}

enum Happens {
    Beat {
        from: usize,
        to: usize,
        news: LeaseNews,
        asked: Option<Asked>,
    },
    Barrier {
        at: usize,
        term: u64,
        from: usize,
        asked: Asked,
        ask: crate::liveness::LeaseAsk,
    },
    Answer {
        to: usize,
        asked: Asked,
    },
    Commit {
        at: usize,
        term: u64,
        command: Box<Command>,
    },
    Told {
        broker: usize,
        master: usize,
        epoch: u32,
    },
}

struct World {
    without: Without,
    random: Random,
    now_ms: u64,
    next_term: u64,
    controllers: Vec<Controller>,
    brokers: Vec<Broker>,
    queue: BTreeMap<(u64, u64), Happens>,
    count: u64,
    committed: ControllerState,
    elections: u32,
    grants: u32,
    violation: Option<String>,
}

fn report() -> Report {
    Report {
        epoch: 1,
        max_epoch: 1,
        max_offset: 100,
        priority: 1,
        incarnation: Some(1),
        unclean: true,
    }
}

/// Master 1 of epoch 1 that serves; both brokers in the set.
fn begin_state() -> ControllerState {
    let replica = |id: u64| Replica {
        address: format!("h{id}:1"),
        check_code: "x".to_owned(),
        registrations: 0,
    };
    let mut state = ControllerState::new();
    let group = BrokerGroup {
        cluster: CLUSTER.to_owned(),
        next_broker_id: 3,
        replicas: (1..=2).map(|id| (id, replica(id))).collect(),
        master: Some(1),
        master_epoch: 1,
        sync_state_set: (1..=2).map(|id| (id, Incarnation::Opened(1))).collect(),
        sync_state_set_epoch: 1,
        former_set: BTreeMap::new(),
    };
    state.put_group(SET.to_owned(), Some(group));
    state
}

/// A clock that runs wrong by `rate` parts in ten thousand.
fn clock(rate: i64, true_ms: u64) -> u64 {
    let true_ms = i64::try_from(true_ms).expect("small");
    u64::try_from(1_000_000 + true_ms + true_ms * rate / 10_000).expect("positive")
}

impl World {
    fn new(seed: u64, without: Without) -> Self {
        let mut random = Random(seed);
        let wait_ms = match without {
            Without::Inequality => 300,
            _ => WAIT_MS,
        };
        let controllers = (0..3)
            .map(|_| Controller {
                liveness: Liveness::new(10_000, 1_000_000).with_lease_wait(wait_ms),
                state: begin_state(),
                term: 1,
                leads: None,
                contact_ms: 0,
                part: 0,
                rate: random.below(21) as i64 - 10,
            })
            .collect();
        let brokers = (0..2)
            .map(|_| Broker {
                lease: LeaseHolder::new(LeaseTimes::default()),
                part: 0,
                rate: random.below(21) as i64 - 10,
                until_ms: 0,
            })
            .collect();
        let mut world = Self {
            without,
            random,
            now_ms: 0,
            next_term: 2,
            controllers,
            brokers,
            queue: BTreeMap::new(),
            count: 0,
            committed: begin_state(),
            elections: 0,
            grants: 0,
            violation: None,
        };
        world.brokers[0].lease.begin(1);
        world
    }

    fn later(&mut self, delay: u64, what: Happens) {
        self.count += 1;
        self.queue.insert((self.now_ms + delay, self.count), what);
    }

    /// Whether `at` has a majority of controllers that know of no newer term than `term`.
    fn has_majority(&self, at: usize, term: u64) -> bool {
        let part = self.controllers[at].part;
        let with = |it: &&Controller| it.part == part && it.term <= term;
        self.controllers.iter().filter(with).count() >= 2
    }

    fn run(&mut self) {
        while self.now_ms < SPAN_MS && self.violation.is_none() {
            self.now_ms += TICK_MS;
            while let Some(first) = self.queue.first_entry() {
                if first.key().0 > self.now_ms {
                    break;
                }
                let what = first.remove();
                self.happens(what);
            }
            if self.now_ms % 700 < TICK_MS && self.random.below(2) == 0 {
                self.part();
            }
            self.controllers_tick();
            if self.now_ms % 250 < TICK_MS {
                for at in 0..2 {
                    self.beat(at);
                }
            }
            if self.now_ms % 50 < TICK_MS {
                for at in 0..3 {
                    self.scan(at);
                }
            }
        }
    }

    /// The network parts anew: one controller, a broker, both, or none stands alone.
    fn part(&mut self) {
        let alone = usize::try_from(self.random.below(5)).expect("small");
        let broker = usize::try_from(self.random.below(4)).expect("small");
        for (at, controller) in self.controllers.iter_mut().enumerate() {
            controller.part = u8::from(at == alone);
        }
        for (at, it) in self.brokers.iter_mut().enumerate() {
            it.part = u8::from(at == broker);
        }
    }

    fn controllers_tick(&mut self) {
        for at in 0..3 {
            let (part, leads) = (self.controllers[at].part, self.controllers[at].leads);
            if let Some(term) = leads {
                if self.has_majority(at, term) {
                    self.controllers[at].contact_ms = self.now_ms;
                    for other in 0..3 {
                        let it = &mut self.controllers[other];
                        if it.part == part && it.term <= term {
                            (it.contact_ms, it.term) = (self.now_ms, term);
                            if other != at {
                                it.leads = None;
                            }
                        }
                    }
                } else if self.now_ms - self.controllers[at].contact_ms > 2 * ELECTION_MS {
                    self.controllers[at].leads = None;
                }
                continue;
            }
            let silent = self.now_ms - self.controllers[at].contact_ms;
            let seeks = silent > ELECTION_MS + self.random.below(ELECTION_MS);
            let term = self.next_term;
            if seeks && self.has_majority(at, term) {
                self.next_term += 1;
                for it in self.controllers.iter_mut().filter(|it| it.part == part) {
                    (it.term, it.leads, it.contact_ms) = (term, None, self.now_ms);
                }
                self.controllers[at].leads = Some(term);
                self.controllers[at].state = self.committed.clone();
            }
        }
    }

    fn beat(&mut self, from: usize) {
        let (news, asked) = {
            let broker = &self.brokers[from];
            (
                broker.lease.news(),
                broker.lease.ask(clock(broker.rate, self.now_ms)),
            )
        };
        for to in 0..3 {
            let beat = Happens::Beat {
                from,
                to,
                news,
                asked,
            };
            let delay = self.random.delay();
            self.later(delay, beat);
        }
    }

    fn set_leader(&mut self, at: usize) {
        let controller = &mut self.controllers[at];
        let now = clock(controller.rate, self.now_ms);
        match (self.without, controller.leads) {
            (Without::LeaderSince, Some(_)) => controller.liveness.set_leader(0, Some(1)),
            (_, term) => controller.liveness.set_leader(now, term),
        }
    }

    fn scan(&mut self, at: usize) {
        self.set_leader(at);
        let controller = &mut self.controllers[at];
        let now = clock(controller.rate, self.now_ms);
        controller.liveness.tick(now);
        let Some(term) = controller.leads else {
            return;
        };
        for (broker, count) in controller.liveness.unsettled() {
            // A majority of this term takes whatever was proposed in it before, or it is lost.
            if self.controllers[at].state == self.committed && self.has_majority(at, term) {
                self.controllers[at].liveness.settle(&broker, count);
            }
        }
        let controller = &mut self.controllers[at];
        let group = controller.state.group(SET).expect("there").clone();
        if controller.liveness.verdict(now, SET, &group, false) != Verdict::Elect {
            return;
        }
        if self.without != Without::ElectionMark {
            controller.liveness.begin_election(SET);
        }
        let command = Command::ElectMaster(ElectMaster {
            broker: SET.to_owned(),
            broker_id: None,
            designate: false,
            allow_unclean: false,
            expected_master_epoch: Some(group.master_epoch),
            alive: controller.liveness.reports(now, CLUSTER, SET),
        });
        // A slow disk: long enough for the master to be heard of again.
        let delay = match self.random.below(2) {
            0 => self.random.delay(),
            _ => self.random.below(2_000),
        };
        let command = Box::new(command);
        self.later(delay, Happens::Commit { at, term, command });
    }

    fn happens(&mut self, what: Happens) {
        match what {
            Happens::Beat {
                from,
                to,
                news,
                asked,
            } => self.heard(from, to, news, asked),
            Happens::Barrier {
                at,
                term,
                from,
                asked,
                ask,
            } => {
                if self.controllers[at].leads == Some(term) && self.has_majority(at, term) {
                    self.grant(at, from, asked, &ask);
                }
            }
            Happens::Answer { to, asked } => self.answered(to, asked),
            Happens::Commit { at, term, command } => self.commit(at, term, &command),
            Happens::Told {
                broker,
                master,
                epoch,
            } => {
                let it = &mut self.brokers[broker];
                if broker == master {
                    it.lease.begin(epoch);
                    self.beat(broker);
                } else if it.lease.serving().is_some_and(|serving| serving < epoch) {
                    it.lease.end();
                    it.until_ms = it.until_ms.min(self.now_ms);
                }
            }
        }
    }

    fn heard(&mut self, from: usize, to: usize, news: LeaseNews, asked: Option<Asked>) {
        if self.brokers[from].part != self.controllers[to].part {
            return;
        }
        let lease = match (self.without, news) {
            (Without::Receipt, LeaseNews::Asks { .. }) => LeaseNews::GivenBack { epoch: 0 },
            (Without::Inequality, LeaseNews::Asks { epoch, .. }) => LeaseNews::Asks {
                epoch,
                lease_ms: 100,
                ack_ms: 10,
            },
            (_, news) => news,
        };
        self.set_leader(to);
        let id = from as u64 + 1;
        let controller = &mut self.controllers[to];
        let now = clock(controller.rate, self.now_ms);
        let beat = |lease| Heartbeat {
            cluster: CLUSTER.to_owned(),
            broker: SET.to_owned(),
            id,
            address: format!("h{id}:1"),
            report: report(),
            confirm_offset: 0,
            timeout_ms: if self.without == Without::Inequality {
                300
            } else {
                800
            },
            connection: id,
            lease,
            leaving: false,
        };
        controller
            .liveness
            .heartbeat(now, beat(lease))
            .expect("taken");
        let Some((asked, term)) = asked.zip(controller.leads) else {
            return;
        };
        let ask = match controller.liveness.asked(CLUSTER, SET, id) {
            Some(ask) => ask,
            None => {
                // The receipt was not noted, but it is granted all the same.
                let mut other = Liveness::new(0, 0);
                other.heartbeat(now, beat(news)).expect("taken");
                other.asked(CLUSTER, SET, id).expect("asks")
            }
        };
        if self.without == Without::ReadBarrier {
            self.grant(to, from, asked, &ask);
        } else {
            let delay = self.random.delay();
            let at = to;
            self.later(
                delay,
                Happens::Barrier {
                    at,
                    term,
                    from,
                    asked,
                    ask,
                },
            );
        }
    }

    fn grant(&mut self, at: usize, from: usize, asked: Asked, ask: &crate::liveness::LeaseAsk) {
        self.set_leader(at);
        let id = from as u64 + 1;
        let controller = &mut self.controllers[at];
        let mut group = controller.state.group(SET).expect("there").clone();
        if group.master == Some(id) && group.master_epoch == ask.epoch {
            // Confirming is one more command; its conditions have tests of their own.
            group.former_set.clear();
        }
        if controller.liveness.may_grant(SET, &group, id, ask).is_ok() {
            self.grants += 1;
            let delay = self.random.delay();
            self.later(delay, Happens::Answer { to: from, asked });
        }
    }

    fn answered(&mut self, to: usize, mut asked: Asked) {
        let now_ms = self.now_ms;
        let broker = &mut self.brokers[to];
        if self.without == Without::SendTime {
            asked.sent_ms = clock(broker.rate, now_ms);
        }
        let until_ms = broker.lease.granted(asked);
        let left = until_ms.saturating_sub(clock(broker.rate, now_ms));
        if until_ms == 0 || left == 0 {
            return;
        }
        broker.until_ms = now_ms + left + broker.lease.times().ack_ms;
        let (epoch, other) = (broker.lease.serving(), &self.brokers[1 - to]);
        if other.until_ms > now_ms {
            self.violation = Some(format!(
                "at {now_ms} broker {} has authority in epoch {epoch:?}, and the other until {}",
                to + 1,
                other.until_ms
            ));
        }
    }

    fn commit(&mut self, at: usize, term: u64, command: &Command) {
        let commits = self.controllers[at].leads == Some(term) && self.has_majority(at, term);
        if self.without != Without::ElectionMark {
            self.controllers[at].liveness.end_election(SET, commits);
        }
        if !commits {
            return;
        }
        let answer = self.committed.apply(command);
        let part = self.controllers[at].part;
        for it in self.controllers.iter_mut().filter(|it| it.part == part) {
            it.state = self.committed.clone();
        }
        let Some(view) = answer.group.filter(|_| answer.changed) else {
            return;
        };
        self.elections += 1;
        let master = usize::try_from(view.master.expect("elected").id).expect("small") - 1;
        for broker in 0..2 {
            // Whoever is cut off learns of it much later.
            let delay = match self.brokers[broker].part == part {
                true if broker == master || self.random.below(3) > 0 => self.random.delay(),
                _ => 5_000,
            };
            let epoch = view.master_epoch;
            self.later(
                delay,
                Happens::Told {
                    broker,
                    master,
                    epoch,
                },
            );
        }
    }
}

/// A setting of the random tests.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn p2_authority_of_two_masters_never_meets_in_any_seed() {
    let seeds = match number("EPOCHLOG_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("EPOCHLOG_SEEDS").unwrap_or(100),
    };
    let (mut elections, mut grants) = (0, 0);
    for seed in seeds.clone() {
        let mut world = World::new(seed, Without::Nothing);
        world.run();
        assert_eq!(world.violation, None, "EPOCHLOG_SEED={seed}");
        elections += world.elections;
        grants += world.grants;
    }
    let count = u32::try_from(seeds.count()).expect("small");
    assert!(
        elections > count && grants > 10 * count,
        "{elections} {grants}"
    );
}

#[test]
fn each_condition_left_out_makes_two_masters_in_some_seed() {
    for without in [
        Without::ElectionMark,
        Without::ReadBarrier,
        Without::LeaderSince,
        Without::Receipt,
        Without::SendTime,
        Without::Inequality,
    ] {
        let found = (0..300).find(|seed| {
            let mut world = World::new(*seed, without);
            world.run();
            world.violation.is_some()
        });
        assert!(found.is_some(), "{without:?} is not needed in any seed");
        println!("{without:?}: seed {found:?}");
    }
}
