use std::collections::BTreeMap;

use tokio::sync::oneshot;

use super::sim::{Sim, Weather, member};
use super::*;
use crate::ledger::{PendingAppend, Role};
use crate::raft_codec::{MemberChange, MemberStep};

type Outcome = PendingAppend<usize>;

pub(super) fn append(sim: &mut Sim, id: u64, payload: &str) -> Outcome {
    let (reply, outcome) = AppendReply::new(None);
    sim.node(id).append(payload.as_bytes(), reply);
    sim.turn(id);
    outcome
}

pub(super) fn change(sim: &mut Sim, id: u64, steps: Vec<MemberStep>) {
    let (reply, mut outcome) = oneshot::channel();
    sim.node(id).change_members(&MemberChange { steps }, reply);
    sim.turn(id);
    for _ in 0..100 {
        sim.tick();
        match outcome.try_recv() {
            Ok(Ok(_)) => return,
            Ok(Err(why)) => panic!("{why}"),
            Err(_) => {}
        }
    }
    panic!("the change of members did not come into force");
}

/// Appends on the leader until it holds.
pub(super) fn append_all(sim: &mut Sim, payloads: std::ops::Range<u64>) {
    for number in payloads {
        let leader = sim.wait_leader();
        let mut outcome = append(sim, leader, &format!("p{number}"));
        let mut ended = false;
        for _ in 0..100 {
            sim.tick();
            if let Some(result) = outcome.try_take() {
                result.unwrap();
                ended = true;
                break;
            }
        }
        assert!(ended, "append {number} has no outcome");
    }
}

pub(super) fn converged(sim: &mut Sim) -> bool {
    let Some(leader) = sim.leader() else {
        return false;
    };
    let last = sim.node(leader).raw.raft.raft_log.last_index();
    sim.running()
        .into_iter()
        .all(|id| sim.node(id).applied == last)
}

#[test]
fn a_single_member_leads_at_once() {
    let mut sim = Sim::new(1, 1);
    sim.tick();
    assert_eq!(sim.leader(), Some(1));
    append_all(&mut sim, 0..3);
    sim.crash(1);
    sim.start(1);
    sim.run(3);
    assert_eq!(sim.leader(), Some(1));
    assert_eq!(sim.seats[&1].machine.read().payloads.len(), 3);
}

#[test]
fn a_member_that_was_cut_off_comes_back_without_unseating_the_leader() {
    for seed in 0..10 {
        let mut sim = Sim::new(seed, 3);
        let leader = sim.wait_leader();
        let away = leader % 3 + 1;
        let third = away % 3 + 1;
        sim.cut.extend([(away, leader), (away, third)]);
        let term = sim.node(leader).raw.raft.term;
        for _ in 0..20 {
            drop(append(&mut sim, leader, "x"));
            sim.run(10);
        }
        assert_eq!(
            sim.node(away).raw.raft.term,
            term,
            "seed {seed}: its term did not grow"
        );
        sim.cut.clear();
        sim.run_until("everybody has everything", 100, converged);
        assert_eq!(sim.leader(), Some(leader), "seed {seed}");
        assert_eq!(sim.node(leader).raw.raft.term, term, "seed {seed}");
    }
}

#[test]
fn d26_a_leader_that_lost_its_followers_tells_who_waits() {
    let mut sim = Sim::new(3, 3);
    let leader = sim.wait_leader();
    let others = [leader % 3 + 1, (leader + 1) % 3 + 1];
    sim.cut.extend(others.map(|other| (leader, other)));
    let mut outcomes: Vec<Outcome> = (0..50)
        .map(|n| append(&mut sim, leader, &format!("p{n}")))
        .collect();
    let (reply, mut read) = oneshot::channel();
    sim.node(leader).read_barrier(reply);
    sim.run(40);
    for outcome in &mut outcomes {
        assert_eq!(outcome.try_take(), Some(Err(AppendError::LostLeadership)));
    }
    assert!(matches!(
        read.try_recv().unwrap(),
        Err(ReadError::NotLeader { .. })
    ));
    let mut late = append(&mut sim, leader, "late");
    assert!(matches!(
        late.try_take(),
        Some(Err(AppendError::NotLeader { .. }))
    ));
}

/// What a leader decided in one term is not appended in another: in between, somebody else led.
#[test]
fn an_append_of_a_term_is_refused_in_every_other_term() {
    let mut sim = Sim::new(5, 3);
    let leader = sim.wait_leader();
    let before = sim.node(leader).raw.raft.term;
    let others = [leader % 3 + 1, (leader + 1) % 3 + 1];
    sim.cut.extend(others.map(|other| (leader, other)));
    sim.run_until("another leader", 100, |sim| {
        sim.leader().is_some_and(|id| id != leader)
    });
    sim.cut.clear();
    sim.run_until("everybody has everything", 100, converged);
    let other = sim.leader().unwrap();
    let (reply, _outcome) = oneshot::channel();
    sim.node(other).transfer_leader(leader, reply);
    sim.turn(other);
    sim.run_until("it leads again", 100, |sim| sim.leader() == Some(leader));

    let now = sim.node(leader).raw.raft.term;
    let mut append_in = |term| {
        let (reply, mut outcome) = AppendReply::new(None);
        sim.node(leader).append_in(term, b"decided", reply);
        sim.turn(leader);
        sim.run(10);
        outcome.try_take().unwrap()
    };
    for other in [before, now - 1, now + 1] {
        let refusal = append_in(Some(other)).unwrap_err();
        assert!(
            matches!(refusal, AppendError::NotLeader { .. }),
            "{refusal}"
        );
    }
    let index = append_in(Some(now)).unwrap().index;
    assert_eq!(
        append_in(None).unwrap().index,
        index + 1,
        "none was appended"
    );
}

#[test]
fn too_many_appends_are_refused_as_such() {
    let mut sim = Sim::new(4, 3);
    let leader = sim.wait_leader();
    let others = [leader % 3 + 1, (leader + 1) % 3 + 1];
    sim.cut.extend(others.map(|other| (leader, other)));
    let mut outcomes: Vec<Outcome> = (0..65).map(|_| append(&mut sim, leader, "x")).collect();
    assert_eq!(
        outcomes.pop().unwrap().try_take(),
        Some(Err(AppendError::Full))
    );
}

#[test]
fn f10_a_member_far_behind_gets_a_snapshot_also_when_snapshots_are_lost() {
    for seed in 0..5 {
        let mut sim = Sim::new(seed, 3);
        let leader = sim.wait_leader();
        let behind = leader % 3 + 1;
        sim.crash(behind);
        append_all(&mut sim, 0..40);
        sim.run(25);
        append_all(&mut sim, 40..45);
        sim.run(25);
        sim.weather = Weather {
            drop: 400,
            max_delay: 3,
            double: 100,
        };
        sim.start(behind);
        sim.run(200);
        sim.weather = Weather {
            max_delay: 2,
            ..Weather::default()
        };
        sim.run_until("everybody has everything", 200, converged);
        assert!(
            sim.snapshots_sent > 0,
            "seed {seed}: the log still reached back"
        );
        assert_eq!(sim.seats[&behind].machine.read().payloads.len(), 45);
        sim.crash(behind);
        sim.start(behind);
        assert_eq!(
            sim.node(behind).store.range().1,
            sim.node(behind).raw.raft.raft_log.last_index()
        );
    }
}

#[test]
fn f12_f13_members_are_added_promoted_and_removed_across_crashes() {
    let mut sim = Sim::new(7, 3);
    append_all(&mut sim, 0..40);
    sim.run(30);
    let first: BTreeMap<u64, Member> = (1..=3).map(|id| (id, member(id))).collect();
    sim.seat(4, first);
    let leader = sim.wait_leader();
    change(
        &mut sim,
        leader,
        vec![MemberStep::AddLearner {
            id: 4,
            member: member(4),
        }],
    );
    sim.run_until("the learner has everything", 200, converged);
    assert_eq!(sim.node(4).metadata().role, Role::Learner);
    sim.crash(4);
    sim.start(4);
    sim.run_until("the learner is back", 200, converged);

    let leader = sim.wait_leader();
    let gone = leader % 3 + 1;
    let steps = vec![
        MemberStep::AddVoter {
            id: 4,
            member: member(4),
        },
        MemberStep::Remove { id: gone },
    ];
    change(&mut sim, leader, steps);
    sim.run_until("out of the joint configuration", 100, |sim| {
        let prs = sim.node(leader).raw.raft.prs();
        prs.conf().voters().ids().iter().count() == 3
    });
    sim.crash(gone);
    for id in sim.running() {
        sim.crash(id);
        sim.start(id);
    }
    append_all(&mut sim, 40..45);
    sim.run_until("everybody has everything", 200, converged);
    let expected: BTreeSet<u64> = (1..=4).filter(|id| *id != gone).collect();
    for id in sim.running() {
        let node = sim.node(id);
        let voters: BTreeSet<u64> = node.raw.raft.prs().conf().voters().ids().iter().collect();
        assert_eq!(voters, expected, "member {id}");
        assert_eq!(
            node.members.keys().copied().collect::<BTreeSet<_>>(),
            expected
        );
    }
}

/// The old leader sends the removal of a member and is gone; that member may be elected with the removal in
/// its log, and puts it into force.
#[test]
fn f13_a_leader_that_an_earlier_leader_removed_stands_down() {
    let mut led_out = 0;
    for seed in 0..40 {
        let mut sim = Sim::new(seed, 5);
        append_all(&mut sim, 0..3);
        let old = sim.wait_leader();
        let gone = old % 5 + 1;
        let (reply, _outcome) = oneshot::channel();
        let steps = vec![MemberStep::Remove { id: gone }];
        sim.node(old).change_members(&MemberChange { steps }, reply);
        sim.turn(old);
        sim.run(seed % 4);
        sim.crash(old);
        for _ in 0..120 {
            sim.tick();
            if sim.node(gone).raw.raft.state == StateRole::Leader {
                led_out += 1;
                append(&mut sim, gone, "from the last of its days");
            }
        }
        sim.start(old);
        sim.run_until("a leader that is a member", 300, |sim| {
            sim.leader()
                .is_some_and(|id| id != gone || sim.node(id).members.contains_key(&id))
        });
        append_all(&mut sim, 3..6);
    }
    assert!(led_out > 0, "no seed elected the member to be removed");
}

#[test]
fn f20_a_member_that_lost_its_disk_is_refused_and_nobody_stops() {
    let mut sim = Sim::new(8, 3);
    let leader = sim.wait_leader();
    append_all(&mut sim, 0..5);
    sim.run(30);
    let wiped = leader % 3 + 1;
    sim.crash(wiped);
    sim.seat(wiped, (1..=3).map(|id| (id, member(id))).collect());
    sim.run(100);
    assert_eq!(sim.running().len(), 3);
    assert_eq!(sim.leader(), Some(leader));
    assert!(sim.node(leader).strangers.contains(&wiped));
    assert_eq!(sim.seats[&wiped].machine.read().payloads.len(), 0);
    append_all(&mut sim, 5..7);
}

#[test]
fn f03_f19_after_a_failed_write_nothing_leaves_any_more() {
    for writes in 0..12 {
        let mut sim = Sim::new(9, 3);
        let leader = sim.wait_leader();
        let follower = leader % 3 + 1;
        sim.seats[&follower].disk.fail_after(writes);
        drop(append(&mut sim, leader, "x"));
        // What leaves is checked against the disk by the simulation.
        sim.run(10);
        if sim.seats[&follower].node.is_none() {
            sim.start(follower);
        }
        sim.seats[&follower].disk.fail_after(u64::MAX);
        append_all(&mut sim, 0..2);
        sim.run_until("everybody has everything", 200, converged);
    }
}
