//! A group under a controller made of a few lines, with members killed and masters changed at
//! random: no write acknowledged by all of the SyncStateSet is lost, and all become equal.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use epochlog_ha::{AckPolicy, AckRequest, Outcome, SyncStateSet, TransportKind};

use crate::bed::{Node, assert_equal, wait_until};

struct Group {
    nodes: Vec<Node>,
    set: SyncStateSet,
    master: usize,
    epoch: u32,
    /// Where each acknowledged write was put, and its body.
    acked: Vec<(u64, Vec<u8>)>,
    random: u64,
}

impl Group {
    fn new(seed: u64) -> Self {
        let tuned = |id| {
            Node::tuned(id, TransportKind::Auto, |config| {
                config.disconnected_member_ms = 50;
                config.max_time_slave_not_catchup_ms = 2000;
            })
        };
        let nodes = (1..=3).map(tuned).collect();
        let set = SyncStateSet::new([1, 2, 3], 1);
        let mut group = Self {
            nodes,
            set,
            master: 0,
            epoch: 0,
            acked: Vec::new(),
            random: seed,
        };
        group.elect(0, [1, 2, 3].into());
        group
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % limit as u64).unwrap()
    }

    fn elect(&mut self, master: usize, members: std::collections::BTreeSet<u64>) {
        self.epoch += 1;
        self.master = master;
        self.set = SyncStateSet {
            members,
            epoch: self.set.epoch + 1,
        };
        self.nodes[master]
            .ha
            .become_master(self.epoch, self.set.clone())
            .unwrap();
        for id in (0..3).filter(|id| *id != master) {
            self.nodes[id].follow(self.epoch, &self.nodes[master]);
        }
    }

    /// What a controller does with the master's proposal.
    fn decide(&mut self) {
        let ha = &self.nodes[self.master].ha;
        if let Some(proposal) = ha.next_proposal() {
            assert_eq!(proposal.epoch, self.set.epoch);
            self.set = SyncStateSet {
                epoch: proposal.epoch + 1,
                ..proposal
            };
            ha.set_sync_state_set(self.set.clone());
        }
    }

    fn write(&mut self, policy: AckPolicy) {
        let body = vec![u8::try_from(self.below(256)).unwrap(); 20 + self.below(2000)];
        let ack = AckRequest::new(policy, Duration::from_millis(400));
        let outcome = self.nodes[self.master].write_within(&body, ack);
        if let (Outcome::Acked(appended), AckPolicy::AllInSync) = (outcome, policy) {
            self.acked.push((appended.offset, body));
        }
    }

    fn disturb(&mut self) {
        match self.below(10) {
            0..2 => {
                let id = (self.master + 1 + self.below(2)) % 3;
                self.nodes[id].kill_and_restart();
                self.write(AckPolicy::AllInSync);
                self.nodes[id].follow(self.epoch, &self.nodes[self.master]);
            }
            2..5 => {
                // The master dies with a tail of its own; a member of the set takes over.
                for _ in 0..self.below(4) {
                    self.write(AckPolicy::Local);
                }
                let old = self.master;
                self.nodes[old].kill_and_restart();
                let mut heirs: Vec<u64> = self.set.members.iter().copied().collect();
                heirs.retain(|id| *id != old as u64 + 1);
                let heir = match heirs.len() {
                    // Alone in the set, only itself may go on.
                    0 => old,
                    n => usize::try_from(heirs[self.below(n)]).unwrap() - 1,
                };
                self.elect(heir, [heir as u64 + 1].into());
            }
            5 => self.elect(self.master, self.set.members.clone()),
            _ => (),
        }
    }
}

#[test]
fn acknowledged_writes_survive_kills_and_fail_overs() {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .subsec_nanos();
    let seed = std::env::var("CHURN_SEED").map_or(u64::from(now) | 1, |seed| seed.parse().unwrap());
    eprintln!("CHURN_SEED={seed}");
    let mut group = Group::new(seed);
    for _ in 0..25 {
        for _ in 0..8 {
            group.write(AckPolicy::AllInSync);
            group.decide();
        }
        group.disturb();
        group.decide();
    }
    let master = &group.nodes[group.master];
    wait_until(
        || format!("{:#?}", master.ha.runtime_info()),
        || {
            group
                .nodes
                .iter()
                .all(|it| it.store.end_offset() == master.store.end_offset())
        },
    );
    assert_equal(&[master, &group.nodes[0], &group.nodes[1], &group.nodes[2]]);
    assert!(
        group.acked.len() >= 50,
        "only {} writes were acknowledged",
        group.acked.len()
    );
    for node in &group.nodes {
        for (offset, body) in &group.acked {
            let view = node.store.record(*offset).unwrap();
            assert!(
                view.record().body() == body,
                "the write at {offset} is lost on {}",
                node.id
            );
        }
    }
}
