//! What must hold when a storm is over: a leader in time, everybody with everything, and nobody who seeks
//! votes under a healthy leader.

use super::*;

/// A healed majority has a leader within this many ticks. An election takes 6 to 12; split votes
/// among four of which one is gone needed more than 300 once in thousands of seeds.
const ELECTION_BOUND: u64 = 600;

/// Ticks until everybody has everything, snapshots and changes of members included.
const CATCH_UP_BOUND: u64 = 400;

fn fair() -> Weather {
    Weather {
        max_delay: 2,
        ..Weather::default()
    }
}

impl Life {
    /// The storm ends, for all or for all but one without whom there is a majority.
    pub(super) fn heal(&mut self) {
        self.sim.cut.clear();
        self.sim.deaf.clear();
        self.sim.paused.clear();
        self.sim.weather = fair();
        self.sim.cuts_between = 0;
        let all: Vec<u64> = self.sim.seats.keys().copied().collect();
        for &id in &all {
            self.sim.seats[&id].disk.fail_after(u64::MAX);
            if !self.is_up(id) {
                self.sim.start(id);
            }
        }
        let gone = self.any();
        let is_spared = all.iter().all(|id| {
            // A change of members on its way could make the one that is gone count.
            if self.sim.node(*id).has_unapplied_change() {
                return false;
            }
            let rest = all.iter().copied().filter(|id| *id != gone).collect();
            let prs = self.sim.node(*id).raw.raft.prs();
            prs.conf().voters().ids().iter().next().is_none() || prs.has_quorum(&rest)
        });
        let stays_away = is_spared && self.rng.chance(500);
        if stays_away {
            self.sim.crash(gone);
            self.tally.powerless += 1;
        }
        self.sim
            .run_until("a healed majority has a leader", ELECTION_BOUND, |sim| {
                sim.leader().is_some()
            });
        if stays_away {
            self.sim.start(gone);
        }
        self.settle();
    }

    /// Everybody has everything, and nothing is under way any more.
    fn settle(&mut self) {
        self.sim
            .run_until("everybody has everything", CATCH_UP_BOUND, settled);
        // Transfers are given up, and appends and reads in doubt told so.
        self.sim.run(70);
        self.sim
            .run_until("everybody still has everything", CATCH_UP_BOUND, settled);
        self.collect();
        assert!(self.open.is_empty(), "appends without an outcome");
        assert!(self.reads.is_empty(), "reads without an outcome");
        assert!(self.changes.is_empty(), "changes without an outcome");
    }

    pub(super) fn terms(&mut self) -> BTreeMap<u64, u64> {
        let leader = self.sim.leader().unwrap();
        let members: Vec<u64> = self.sim.node(leader).members.keys().copied().collect();
        let mut terms = BTreeMap::new();
        for id in members {
            terms.insert(id, self.sim.node(id).raw.raft.term);
        }
        terms
    }

    /// Under a healthy leader nobody seeks votes and every append succeeds; a member that was away
    /// comes back in the term it left in, and the leader stays.
    pub(super) fn calm(&mut self) {
        let leader = self.sim.leader().unwrap();
        let terms = self.terms();
        let away = self.any();
        let goes_away = away != leader && self.rng.chance(700) && self.spares(leader, away);
        if goes_away {
            let kind = self.rng.below(3);
            let others: Vec<u64> = self.sim.seats.keys().copied().collect();
            for other in others.into_iter().filter(|id| *id != away) {
                match kind {
                    0 => drop(self.sim.cut.insert((away, other))),
                    1 => drop(self.sim.deaf.insert((away, other))),
                    _ => drop(self.sim.deaf.insert((other, away))),
                }
            }
            self.tally.away += 1;
        }
        let ticks = 30 + self.rng.below(60);
        self.calm_ticks(leader, ticks);
        assert_eq!(self.terms(), terms, "terms grew under a healthy leader");
        self.sim.cut.clear();
        self.sim.deaf.clear();
        self.calm_ticks(leader, 30);
        self.settle();
        assert_eq!(self.terms(), terms, "a member that came back raised a term");
    }

    /// Is there a majority without this member?
    fn spares(&mut self, leader: u64, away: u64) -> bool {
        let conf = self.sim.node(leader).raw.raft.prs().conf();
        let voters: BTreeSet<u64> = conf.voters().ids().iter().collect();
        let rest = voters.iter().filter(|id| **id != away).count();
        2 * rest > voters.len()
    }

    fn calm_ticks(&mut self, leader: u64, ticks: u64) {
        let acked = self.history.acked_count();
        let mut begun = 0;
        for tick in 0..ticks {
            if tick % 6 == 0 {
                self.append(leader, 1);
                begun += 1;
            }
            self.sim.tick();
            self.collect();
            assert_eq!(self.sim.leader(), Some(leader), "a healthy leader was left");
        }
        for _ in 0..30 {
            self.sim.tick();
            self.collect();
        }
        let acked = self.history.acked_count() - acked;
        assert_eq!(acked, begun, "appends on a healthy leader that failed");
    }
}

impl<M: StateMachine> Node<M> {
    fn has_unapplied_change(&self) -> bool {
        let last = self.raw.raft.raft_log.last_index();
        (self.applied + 1..=last).any(|index| {
            let entry = self.store.entry(index).unwrap();
            entry.is_some_and(|entry| entry.get_entry_type() != EntryType::EntryNormal)
        })
    }
}

/// Every member has applied the leader's last entry in the leader's term, and one membership counts.
fn settled(sim: &mut Sim) -> bool {
    let Some(leader) = sim.leader() else {
        return false;
    };
    let node = sim.node(leader);
    let (last, term, is_joint) = (
        node.raw.raft.raft_log.last_index(),
        node.raw.raft.term,
        node.is_joint,
    );
    let members: Vec<u64> = node.members.keys().copied().collect();
    !is_joint
        && members.into_iter().all(|id| {
            let node = sim.node(id);
            (node.applied, node.raw.raft.term, node.is_joint) == (last, term, false)
        })
}
