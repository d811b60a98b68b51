//! Field failures of raft logs and of how raft is embedded, where one member is fed the very messages
//! that did the harm. Which failure is held where: tests/catalogue.rs.

use raft::Storage;
use raft::eraftpb::Snapshot;

use super::sim::{Sim, member};
use super::tests::{append, append_all, change, converged};
use super::*;
use crate::raft_codec::{EntryRecord, MemberChange, MemberStep, encode};

fn message(kind: MessageType, from: u64, to: u64, term: u64) -> Message {
    let mut message = Message {
        from,
        to,
        term,
        ..Message::default()
    };
    message.set_msg_type(kind);
    message
}

/// Gives `message.to` a message as if from the store of `message.from`.
fn deliver(sim: &mut Sim, message: Message) {
    let (to, store) = (message.to, sim.node(message.from).store.store_id());
    sim.node(to).step(PeerMessage {
        group: "g".to_owned(),
        store,
        message,
    });
    sim.turn(to);
}

fn acknowledge(sim: &mut Sim, from: u64, to: u64, term: u64, index: u64) {
    let mut reply = message(MessageType::MsgAppendResponse, from, to, term);
    reply.index = index;
    deliver(sim, reply);
}

/// Cuts everybody off from everybody.
fn silence(sim: &mut Sim) {
    let ids: Vec<u64> = sim.seats.keys().copied().collect();
    for &a in &ids {
        sim.cut.extend(ids.iter().map(|&b| (a, b)));
    }
}

/// A follower of a group of three whose log ends where the leader's does.
fn follower_of(sim: &mut Sim) -> (u64, u64) {
    append_all(sim, 0..3);
    sim.run_until("everybody has everything", 100, converged);
    let leader = sim.leader().unwrap();
    (leader, leader % 3 + 1)
}

fn last_index(sim: &mut Sim, id: u64) -> u64 {
    sim.node(id).raw.raft.raft_log.last_index()
}

/// The log of a follower that comes back: behind, at the end, longer, different, behind the oldest entry
/// kept; under a leader that is busy or idle. Each has everything within a bounded time.
#[test]
fn d03_d04_d17_whatever_a_follower_holds_it_is_brought_up() {
    for (behind, is_different, is_busy) in [
        (0, false, false),
        (3, false, true),
        (3, true, false),
        (60, false, false),
        (60, true, true),
    ] {
        let mut sim = Sim::new(21, 3);
        append_all(&mut sim, 0..20);
        let old = sim.wait_leader();
        silence(&mut sim);
        let extra = if is_different { 15 } else { 0 };
        for _ in 0..extra {
            // Nobody else ever hears of these.
            drop(append(&mut sim, old, &format!("lost {is_busy}{behind}")));
        }
        sim.run(3);
        sim.crash(old);
        sim.cut.clear();
        append_all(&mut sim, 20..20 + behind);
        sim.run(60);
        let sent = sim.snapshots_sent;
        sim.start(old);
        if is_busy {
            append_all(&mut sim, 1000..1030);
        }
        sim.run_until("everybody has everything", 100, converged);
        assert_eq!(
            sim.snapshots_sent > sent,
            behind == 60,
            "{behind} {is_different} {is_busy}"
        );
    }
}

/// The leader's commit index may be beyond what a follower has: it applies what it has.
#[test]
fn d11_nothing_beyond_the_own_log_is_applied() {
    let mut sim = Sim::new(22, 3);
    let (leader, follower) = follower_of(&mut sim);
    let last = last_index(&mut sim, follower);
    let term = sim.node(leader).raw.raft.term;
    let mut append = message(MessageType::MsgAppend, leader, follower, term);
    (append.index, append.log_term, append.commit) = (last, term, last + 50);
    let entry = Entry {
        index: last + 1,
        term,
        data: tagged(b"x").into(),
        ..Entry::default()
    };
    append.entries.push(entry);
    deliver(&mut sim, append);
    assert_eq!(sim.node(follower).applied, last + 1);
    assert_eq!(sim.node(follower).raw.raft.raft_log.committed, last + 1);
}

/// Raft's figure 8: an entry of an older term that a majority holds is committed only together with
/// one of the leader's own.
#[test]
fn d27_an_entry_of_an_older_term_does_not_commit_by_being_counted() {
    let mut sim = Sim::new(23, 5);
    append_all(&mut sim, 0..3);
    sim.run_until("everybody has everything", 100, converged);
    let leader = sim.leader().unwrap();
    let others: Vec<u64> = (1..=5).filter(|id| *id != leader).collect();
    silence(&mut sim);
    drop(append(&mut sim, leader, "of the older term"));
    let old = last_index(&mut sim, leader);
    sim.run(30);
    assert_ne!(sim.node(leader).raw.raft.state, StateRole::Leader);
    // Elected again by two that do not have the entry.
    sim.node(leader).raw.campaign().unwrap();
    let term = sim.node(leader).raw.raft.term + 1;
    for kind in [
        MessageType::MsgRequestPreVoteResponse,
        MessageType::MsgRequestVoteResponse,
    ] {
        sim.turn(leader);
        for &other in &others[..2] {
            deliver(&mut sim, message(kind, other, leader, term));
        }
    }
    let raft = &sim.node(leader).raw.raft;
    assert_eq!((raft.state, raft.term), (StateRole::Leader, term));
    assert_eq!(raft.raft_log.last_index(), old + 1, "the entry of its own");
    for &other in &others[..2] {
        acknowledge(&mut sim, other, leader, term, old);
    }
    assert!(
        sim.node(leader).raw.raft.raft_log.committed < old,
        "three of five hold it, and yet another could be elected without it"
    );
    for &other in &others[..2] {
        acknowledge(&mut sim, other, leader, term, old + 1);
    }
    assert_eq!(sim.node(leader).raw.raft.raft_log.committed, old + 1);
}

/// What was sent is not what is there: only the follower's own reply counts.
#[test]
fn f11_a_snapshot_that_was_sent_counts_only_when_the_follower_says_so() {
    let mut sim = Sim::new(24, 3);
    let (leader, behind) = follower_of(&mut sim);
    sim.crash(behind);
    append_all(&mut sim, 3..40);
    sim.run(30);
    append_all(&mut sim, 40..45);
    let third = 6 - leader - behind;
    sim.cut.extend([(leader, behind), (third, behind)]);
    sim.start(behind);
    let matched = |sim: &mut Sim| sim.node(leader).progress().unwrap()[&behind].matched;
    let before = matched(&mut sim);
    // It answers, and from then on what it is sent is lost.
    sim.cut.clear();
    let sent = sim.snapshots_sent;
    sim.run_until("a snapshot is sent", 50, |sim| sim.snapshots_sent > sent);
    sim.cut.extend([(leader, behind), (third, behind)]);
    sim.node(leader).report_snapshot(behind, true);
    sim.run(1);
    assert_eq!(matched(&mut sim), before);
    sim.cut.clear();
    sim.run_until("everybody has everything", 100, converged);
    assert!(matched(&mut sim) > before);
}

/// Two snapshots come in the wrong order: the newer state stays.
#[test]
fn f04_f09_an_older_snapshot_takes_nothing_back() {
    let mut sim = Sim::new(25, 3);
    let (leader, follower) = follower_of(&mut sim);
    let snapshot_of = |sim: &mut Sim| -> Snapshot {
        sim.node(leader).flush().unwrap();
        let view = LogView(Arc::clone(&sim.node(leader).store));
        view.snapshot(0, follower).unwrap()
    };
    sim.crash(follower);
    append_all(&mut sim, 3..6);
    let old = snapshot_of(&mut sim);
    append_all(&mut sim, 6..9);
    let new = snapshot_of(&mut sim);
    silence(&mut sim);
    sim.start(follower);
    let term = sim.node(leader).raw.raft.term;
    let (old_at, new_at) = (old.get_metadata().index, new.get_metadata().index);
    assert!(old_at < new_at);
    for (snapshot, at) in [(new, new_at), (old, new_at)] {
        let mut send = message(MessageType::MsgSnapshot, leader, follower, term);
        send.set_snapshot(snapshot);
        deliver(&mut sim, send);
        assert_eq!(sim.node(follower).applied, at);
        assert_eq!(sim.node(follower).store.applied(), at);
        assert_eq!(sim.seats[&follower].machine.read().payloads.len(), 9);
    }
}

/// An entry as it is written and sent.
fn bytes_of(entry: &Entry) -> Vec<u8> {
    encode(&EntryRecord::from(entry)).unwrap()
}

/// Appends, changes of members, and the entries that raft makes for itself stand in every log alike.
#[test]
fn f14_entries_of_every_kind_are_in_every_log() {
    let mut sim = Sim::new(26, 3);
    append_all(&mut sim, 0..2);
    sim.seat(4, BTreeMap::new());
    let leader = sim.wait_leader();
    let steps = vec![MemberStep::AddLearner {
        id: 4,
        member: member(4),
    }];
    change(&mut sim, leader, steps);
    drop(append(&mut sim, leader, ""));
    append_all(&mut sim, 2..4);
    sim.run_until("everybody has everything", 200, converged);
    let (first, last) = sim.node(1).store.range();
    let mut kinds = BTreeSet::new();
    for index in first + 1..=last {
        let one = sim.node(1).store.entry(index).unwrap().unwrap();
        kinds.insert((
            one.get_entry_type() as i32,
            one.data.len().min(2),
            one.context.is_empty(),
        ));
        for id in 2..=4 {
            let other = sim.node(id).store.entry(index).unwrap();
            let (truncated, _) = sim.node(id).store.range();
            if index > truncated {
                assert_eq!(bytes_of(&other.unwrap()), bytes_of(&one), "{id} at {index}");
            }
        }
    }
    assert!(kinds.len() >= 4, "{kinds:?}");
}

/// A rejection of what the follower has acknowledged since, late or doubled: the library would begin
/// again behind that (tikv/raft-rs#555).
#[test]
fn f17_a_late_rejection_does_not_take_an_acknowledgement_back() {
    let mut sim = Sim::new(29, 3);
    let (leader, follower) = follower_of(&mut sim);
    silence(&mut sim);
    let (term, last) = (sim.node(leader).raw.raft.term, last_index(&mut sim, leader));
    // Sends one by one from behind what is acknowledged.
    sim.node(leader).report_unreachable(follower);
    let mut late = message(MessageType::MsgAppendResponse, follower, leader, term);
    (late.index, late.reject, late.reject_hint) = (last, true, last - 3);
    deliver(&mut sim, late);
    let progress = sim.node(leader).raw.raft.prs().get(follower).unwrap();
    assert_eq!((progress.matched, progress.next_idx), (last, last + 1));
    sim.cut.clear();
    append_all(&mut sim, 3..5);
}

/// A member whose log holds a change of members that it has not applied seeks no votes.
#[test]
fn f16_no_votes_are_sought_before_a_committed_change_is_applied() {
    let mut sim = Sim::new(27, 3);
    let (leader, follower) = follower_of(&mut sim);
    sim.run(30);
    sim.deaf.insert((leader, follower));
    let (reply, _outcome) = tokio::sync::oneshot::channel();
    let steps = vec![MemberStep::AddLearner {
        id: 9,
        member: member(9),
    }];
    sim.node(leader)
        .change_members(&MemberChange { steps }, reply);
    sim.turn(leader);
    sim.run(5);
    assert!(sim.node(leader).members.contains_key(&9));
    // The entry comes with the news that it is committed: both are on disk before it is applied.
    sim.deaf.clear();
    drop(append(&mut sim, leader, "behind it"));
    sim.run_until("the follower applied the change", 30, |sim| {
        sim.node(follower).members.contains_key(&9)
    });
    let applied = sim.node(follower).store.applied();
    sim.seats[&follower].disk.crash(disk::Loss::Nothing);
    sim.crash(follower);
    sim.start(follower);
    let node = sim.node(follower);
    let commit = node.raw.raft.raft_log.committed;
    assert!(applied < commit, "{applied} {commit}: nothing to apply");
    assert!(!node.members.contains_key(&9));
    // What the library says of it does not matter: it must not become a candidate.
    let _ = node.raw.campaign();
    assert_eq!(node.raw.raft.state, StateRole::Follower);
    sim.turn(follower);
    assert!(sim.node(follower).members.contains_key(&9));
}

/// A peer that is no member any more may still be talked of.
#[test]
fn f22_news_of_a_removed_member_changes_nothing() {
    let mut sim = Sim::new(28, 3);
    let (leader, gone) = follower_of(&mut sim);
    change(&mut sim, leader, vec![MemberStep::Remove { id: gone }]);
    let term = sim.node(leader).raw.raft.term;
    let last = last_index(&mut sim, leader);
    for is_sent in [true, false] {
        sim.node(leader).report_snapshot(gone, is_sent);
        sim.node(leader).report_snapshot(99, is_sent);
    }
    sim.node(leader).report_unreachable(gone);
    sim.node(leader).report_unreachable(99);
    for kind in [
        MessageType::MsgAppendResponse,
        MessageType::MsgHeartbeatResponse,
        MessageType::MsgRequestVote,
        MessageType::MsgRequestPreVote,
        MessageType::MsgRequestVoteResponse,
        MessageType::MsgTransferLeader,
        MessageType::MsgTimeoutNow,
        MessageType::MsgUnreachable,
        MessageType::MsgSnapStatus,
    ] {
        // Votes are asked for in terms to come.
        let is_ask = matches!(
            kind,
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote
        );
        for term in [term, term + 5].into_iter().take(1 + usize::from(is_ask)) {
            let mut late = message(kind, gone, leader, term);
            late.index = last;
            deliver(&mut sim, late);
        }
    }
    let raft = &sim.node(leader).raw.raft;
    assert_eq!((raft.state, raft.term), (StateRole::Leader, term));
    append_all(&mut sim, 3..5);
    assert_eq!(sim.leader(), Some(leader));
}
