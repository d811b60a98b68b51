//! Who waits for what: appends for their index, reads for a majority and then for theirs (pure).
//!
//! Invariant: each waiter gets exactly one outcome; a success only when its entry, in the term it was
//! proposed in, or the index its read needs, is applied.

use std::collections::BTreeMap;

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::error::{AppendError, ReadError};
use crate::ledger::{AppendReply, Appended, Counters};

pub(crate) type MemberReply = oneshot::Sender<Result<u64, AppendError>>;
pub(crate) type ReadReply = oneshot::Sender<Result<(), ReadError>>;

/// Where the outcome of a proposal goes. Who stopped waiting needs no answer.
pub(super) enum Reply<A> {
    Append(AppendReply<A>),
    Members(MemberReply),
}

impl<A> Reply<A> {
    pub(super) fn fail(self, why: AppendError) {
        match self {
            Self::Append(reply) => reply.end(Err(why)),
            Self::Members(reply) => drop(reply.send(Err(why))),
        }
    }
}

struct Pending<A> {
    term: u64,
    deadline: u64,
    reply: Reply<A>,
}

#[derive(Default)]
struct Reading {
    deadline: u64,
    replies: Vec<ReadReply>,
}

impl Reading {
    fn end(self, counters: &Counters, outcome: &Result<(), ReadError>) {
        let count = self.replies.len() as u64;
        match outcome {
            Ok(()) => counters.reads_done.add(count),
            Err(_) => counters.reads_failed.add(count),
        }
        for reply in self.replies {
            drop(reply.send(outcome.clone()));
        }
    }
}

/// See the module. Deadlines are in ticks.
pub(super) struct Waiting<A> {
    /// By index.
    appends: BTreeMap<u64, Pending<A>>,
    /// Not yet asked for.
    new_reads: Vec<ReadReply>,
    /// Asked for, by the number of the question.
    reads: BTreeMap<u64, Reading>,
    next_read: u64,
    /// Confirmed by a majority, by the index they need.
    confirmed: BTreeMap<u64, Reading>,
    /// Member changes that are applied, while both memberships still count; by index.
    joint: BTreeMap<u64, (u64, MemberReply)>,
    counters: Arc<Counters>,
}

impl<A> Waiting<A> {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self {
            counters,
            appends: BTreeMap::new(),
            new_reads: Vec::new(),
            reads: BTreeMap::new(),
            next_read: 1,
            confirmed: BTreeMap::new(),
            joint: BTreeMap::new(),
        }
    }

    pub(super) fn append_count(&self) -> usize {
        self.appends.len()
    }

    pub(super) fn add_append(&mut self, index: u64, term: u64, deadline: u64, reply: Reply<A>) {
        self.appends.insert(
            index,
            Pending {
                term,
                deadline,
                reply,
            },
        );
    }

    pub(super) fn read_count(&self) -> usize {
        self.new_reads.len()
    }

    pub(super) fn add_read(&mut self, reply: ReadReply) {
        self.new_reads.push(reply);
    }

    /// One question for all reads that came since the last one.
    pub(super) fn ask(&mut self, deadline: u64) -> Option<u64> {
        if self.new_reads.is_empty() {
            return None;
        }
        let replies = std::mem::take(&mut self.new_reads);
        let number = self.next_read;
        self.next_read += 1;
        self.reads.insert(number, Reading { deadline, replies });
        Some(number)
    }

    /// A majority confirmed the leader for this question: its reads need `index`.
    pub(super) fn confirm(&mut self, number: u64, index: u64, applied: u64) {
        let Some(reading) = self.reads.remove(&number) else {
            return;
        };
        if index <= applied {
            reading.end(&self.counters, &Ok(()));
            return;
        }
        let known = self.confirmed.entry(index).or_default();
        known.deadline = known.deadline.max(reading.deadline);
        known.replies.extend(reading.replies);
    }

    /// The change of members at this index came to nothing.
    pub(super) fn refused(&mut self, index: u64, why: String) {
        if let Some(pending) = self.appends.remove(&index) {
            pending.reply.fail(AppendError::MembersRefused { why });
        }
    }

    /// An entry is applied: ends what waited for it or for a lower one. While `is_joint`, a change
    /// of members is not in force yet.
    pub(super) fn applied(&mut self, index: u64, term: u64, mut answer: Option<A>, is_joint: bool) {
        while let Some(first) = self.appends.first_entry() {
            if *first.key() > index {
                break;
            }
            let (at, pending) = first.remove_entry();
            if at != index || pending.term != term {
                self.counters.appends_failed.one();
                pending.reply.fail(AppendError::Replaced);
                continue;
            }
            match (pending.reply, answer.take()) {
                (Reply::Append(reply), Some(answer)) => {
                    self.counters.appends_done.one();
                    reply.end(Ok(Appended { index, answer }));
                }
                (Reply::Members(reply), _) => {
                    self.joint.insert(index, (pending.deadline, reply));
                }
                (reply @ Reply::Append(_), None) => reply.fail(AppendError::Replaced),
            }
        }
        if !is_joint {
            for (index, (_, reply)) in std::mem::take(&mut self.joint) {
                drop(reply.send(Ok(index)));
            }
        }
        self.settled(index);
    }

    /// All up to here is applied, by entries or by a snapshot.
    pub(super) fn settled(&mut self, index: u64) {
        let later = self.confirmed.split_off(&(index + 1));
        for (_, reading) in std::mem::replace(&mut self.confirmed, later) {
            reading.end(&self.counters, &Ok(()));
        }
    }

    /// Ends what is late.
    pub(super) fn expire(&mut self, now: u64) {
        for (_, pending) in self
            .appends
            .extract_if(.., |_, pending| pending.deadline <= now)
        {
            self.counters.appends_failed.one();
            pending.reply.fail(AppendError::Timeout);
        }
        for (_, (_, reply)) in self
            .joint
            .extract_if(.., |_, (deadline, _)| *deadline <= now)
        {
            drop(reply.send(Err(AppendError::Timeout)));
        }
        for table in [&mut self.reads, &mut self.confirmed] {
            for (_, reading) in table.extract_if(.., |_, reading| reading.deadline <= now) {
                reading.end(&self.counters, &Err(ReadError::Timeout));
            }
        }
    }

    /// This member does not lead any more. Reads already confirmed stay: they only need to be
    /// applied.
    pub(super) fn stepped_down(&mut self, leader: Option<u64>) {
        for (_, pending) in std::mem::take(&mut self.appends) {
            self.counters.appends_failed.one();
            pending.reply.fail(AppendError::LostLeadership);
        }
        for (_, (_, reply)) in std::mem::take(&mut self.joint) {
            drop(reply.send(Err(AppendError::LostLeadership)));
        }
        let outcome = Err(ReadError::NotLeader { leader });
        let replies = std::mem::take(&mut self.new_reads);
        Reading {
            deadline: 0,
            replies,
        }
        .end(&self.counters, &outcome);
        for (_, reading) in std::mem::take(&mut self.reads) {
            reading.end(&self.counters, &outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::PendingAppend;

    fn waiting() -> Waiting<u8> {
        Waiting::new(Arc::default())
    }

    fn append(waiting: &mut Waiting<u8>, index: u64) -> PendingAppend<u8> {
        let (reply, outcome) = AppendReply::new(None);
        waiting.add_append(index, 3, 10, Reply::Append(reply));
        outcome
    }

    #[test]
    fn success_needs_the_index_and_the_term() {
        let mut waiting = waiting();
        let [mut a, mut b, mut c] = [5, 6, 7].map(|index| append(&mut waiting, index));
        waiting.applied(5, 3, Some(9), false);
        assert_eq!(
            a.try_take(),
            Some(Ok(Appended {
                index: 5,
                answer: 9
            }))
        );
        assert!(b.try_take().is_none(), "still waits");
        waiting.applied(6, 4, Some(9), false);
        assert_eq!(b.try_take(), Some(Err(AppendError::Replaced)));
        waiting.applied(7, 3, None, false);
        assert_eq!(
            c.try_take(),
            Some(Err(AppendError::Replaced)),
            "not what was appended"
        );
    }

    #[test]
    fn d26_a_leader_that_steps_down_tells_everybody() {
        let mut waiting = waiting();
        let mut outcomes: Vec<_> = (0..1000).map(|index| append(&mut waiting, index)).collect();
        let (reply, mut read) = oneshot::channel();
        waiting.add_read(reply);
        waiting.stepped_down(Some(2));
        for outcome in &mut outcomes {
            assert_eq!(outcome.try_take(), Some(Err(AppendError::LostLeadership)));
        }
        assert_eq!(waiting.counters.appends_failed.get(), 1000);
        assert_eq!(
            read.try_recv().unwrap(),
            Err(ReadError::NotLeader { leader: Some(2) })
        );
        assert_eq!((waiting.append_count(), waiting.read_count()), (0, 0));
    }

    #[test]
    fn a_change_of_members_is_in_force_when_the_old_ones_no_longer_count() {
        let mut waiting = waiting();
        let (reply, mut outcome) = oneshot::channel();
        waiting.add_append(5, 3, 10, Reply::Members(reply));
        waiting.applied(5, 3, None, true);
        assert!(outcome.try_recv().is_err());
        waiting.applied(6, 3, None, false);
        assert_eq!(outcome.try_recv().unwrap(), Ok(5));
    }

    #[test]
    fn f18_a_read_waits_for_a_majority_and_for_its_index_or_for_its_time() {
        let mut waiting = waiting();
        let read = || {
            let (reply, outcome) = oneshot::channel();
            (reply, outcome)
        };
        let ((one, mut first), (two, mut second), (three, mut third)) = (read(), read(), read());
        waiting.add_read(one);
        waiting.add_read(two);
        let question = waiting.ask(10).unwrap();
        assert_eq!(waiting.ask(10), None, "one question for both");
        waiting.confirm(question, 8, 7);
        assert!(first.try_recv().is_err() && second.try_recv().is_err());
        waiting.applied(8, 1, None, false);
        assert_eq!(
            (first.try_recv().unwrap(), second.try_recv().unwrap()),
            (Ok(()), Ok(()))
        );
        waiting.add_read(three);
        waiting.ask(10);
        waiting.expire(9);
        assert!(third.try_recv().is_err());
        waiting.expire(10);
        assert_eq!(third.try_recv().unwrap(), Err(ReadError::Timeout));
    }
}
