//! What clients of a simulated group did and saw, and whether one log explains all of it (pure).
//!
//! Appends say where they stand and reads how much they saw, so the order in which everything took
//! effect is known: by place in the log, reads right behind the last entry they saw. The history is
//! linearizable exactly when that order agrees with time: nothing that began after another thing had
//! ended stands before it. An append without a known outcome may take effect at any later time, once
//! or never; a refused one never.

use std::collections::{BTreeMap, BTreeSet};

/// What became of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Committed and applied at this index.
    Acked(u64),
    /// Surely not appended.
    Refused,
    /// It may have been appended, or may still be.
    Unknown,
}

#[derive(Debug)]
struct Append {
    payload: String,
    called: u64,
    outcome: Option<(u64, Outcome)>,
    /// Which batch it is of, and its place there.
    batch: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Read {
    called: u64,
    returned: u64,
    /// Index of the newest entry seen, and how many were seen.
    seen: (u64, usize),
}

#[derive(Debug)]
struct Get {
    at: u64,
    index: u64,
    payload: Vec<u8>,
}

/// See the module. Every call and every return has a time of its own.
#[derive(Debug, Default)]
pub(super) struct History {
    clock: u64,
    appends: Vec<Append>,
    reads: Vec<Read>,
    gets: Vec<Get>,
    batches: u64,
}

/// One thing that took effect: not before it was called, not after it returned.
struct Effect {
    called: u64,
    returned: u64,
    /// Twice the index, and one more for reads.
    place: u64,
}

impl History {
    pub(super) fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// An append begins; returns its number.
    pub(super) fn append(&mut self, payload: String, batch: Option<(u64, u64)>) -> usize {
        let called = self.now();
        self.appends.push(Append {
            payload,
            called,
            outcome: None,
            batch,
        });
        self.appends.len() - 1
    }

    /// A number for a new batch.
    pub(super) fn batch(&mut self) -> u64 {
        self.batches += 1;
        self.batches
    }

    pub(super) fn append_ended(&mut self, number: usize, outcome: Outcome) {
        let now = self.now();
        self.appends[number].outcome = Some((now, outcome));
    }

    pub(super) fn payload(&self, number: usize) -> &str {
        &self.appends[number].payload
    }

    /// A read that began at `called` ended and saw this.
    pub(super) fn read(&mut self, called: u64, seen: (u64, usize)) {
        let returned = self.now();
        self.reads.push(Read {
            called,
            returned,
            seen,
        });
    }

    /// A committed entry was got, by no matter how old a member.
    pub(super) fn got(&mut self, index: u64, payload: Vec<u8>) {
        let at = self.now();
        self.gets.push(Get { at, index, payload });
    }

    pub(super) fn acked_count(&self) -> usize {
        let acked = |append: &&Append| matches!(append.outcome, Some((_, Outcome::Acked(_))));
        self.appends.iter().filter(acked).count()
    }

    pub(super) fn read_count(&self) -> usize {
        self.reads.len()
    }

    pub(super) fn get_count(&self) -> usize {
        self.gets.len()
    }

    /// Whether this log, the one the group ended with, explains everything.
    pub(super) fn check(&self, log: &BTreeMap<u64, Vec<u8>>) -> Result<(), String> {
        let mut places = BTreeMap::new();
        for (&index, payload) in log {
            if let Some(first) = places.insert(payload.as_slice(), index) {
                return Err(format!(
                    "{:?} is there twice, at {first} and {index}",
                    String::from_utf8_lossy(payload)
                ));
            }
        }
        let mut effects = Vec::new();
        for append in &self.appends {
            let place = places.remove(append.payload.as_bytes());
            effects.extend(append.effect(place)?);
        }
        if let Some((payload, index)) = places.first_key_value() {
            let payload = String::from_utf8_lossy(payload);
            return Err(format!("nobody appended {payload:?}, at {index}"));
        }
        for read in &self.reads {
            let (index, len) = read.seen;
            let count = log.range(..=index).count();
            if count != len {
                return Err(format!(
                    "a read saw {len} entries up to {index}, there are {count}"
                ));
            }
            effects.push(Effect {
                called: read.called,
                returned: read.returned,
                place: 2 * index + 1,
            });
        }
        for get in &self.gets {
            if log.get(&get.index) != Some(&get.payload) {
                return Err(format!("a get at {} gave what is not there", get.index));
            }
            effects.push(Effect {
                // It may be as old as it likes.
                called: 0,
                returned: get.at,
                place: 2 * get.index,
            });
        }
        self.check_batches(log)?;
        in_order(&effects)
    }

    /// Of each batch the first ones are there, one behind the other, or none.
    fn check_batches(&self, log: &BTreeMap<u64, Vec<u8>>) -> Result<(), String> {
        let index_of: BTreeMap<&[u8], u64> = log.iter().map(|(i, p)| (p.as_slice(), *i)).collect();
        let mut batches: BTreeMap<u64, BTreeMap<u64, Option<u64>>> = BTreeMap::new();
        for append in &self.appends {
            if let Some((batch, place)) = append.batch {
                let index = index_of.get(append.payload.as_bytes()).copied();
                batches.entry(batch).or_default().insert(place, index);
            }
        }
        for (batch, places) in batches {
            let mut next = None;
            for (count, index) in places.values().enumerate() {
                if count > 0 && index.is_some() && *index != next {
                    return Err(format!("batch {batch} has gaps: {places:?}"));
                }
                next = index.map(|index| index + 1);
            }
        }
        Ok(())
    }
}

impl Append {
    fn effect(&self, place: Option<u64>) -> Result<Option<Effect>, String> {
        let payload = &self.payload;
        let returned = match (self.outcome, place) {
            (None, _) => return Err(format!("the append of {payload} has no outcome")),
            (Some((_, Outcome::Acked(index))), place) if place != Some(index) => {
                return Err(format!(
                    "{payload} was acknowledged at {index} and is at {place:?}"
                ));
            }
            (Some((_, Outcome::Refused)), Some(index)) => {
                return Err(format!("{payload} was refused and is at {index}"));
            }
            (Some((at, Outcome::Acked(_))), _) => at,
            _ => u64::MAX,
        };
        Ok(place.map(|index| Effect {
            called: self.called,
            returned,
            place: 2 * index,
        }))
    }
}

/// Nothing that began after another thing had ended stands before it.
fn in_order(effects: &[Effect]) -> Result<(), String> {
    let by_end: BTreeSet<(u64, u64)> = effects.iter().map(|e| (e.returned, e.place)).collect();
    let mut by_call: Vec<&Effect> = effects.iter().filter(|e| e.called > 0).collect();
    by_call.sort_by_key(|effect| effect.called);
    let (mut ended, mut highest) = (by_end.into_iter().peekable(), None);
    for effect in by_call {
        while let Some((_, place)) = ended.next_if(|(at, _)| *at < effect.called) {
            highest = highest.max(Some(place));
        }
        // Two reads may stand at one place; an append has its place for itself.
        let is_read = effect.place % 2 == 1;
        let is_fine = highest.is_none_or(|h| h < effect.place || (is_read && h == effect.place));
        if !is_fine {
            return Err(format!(
                "what began at time {} took effect at index {}, but index {:?} was known before",
                effect.called,
                effect.place / 2,
                highest.map(|place| place / 2)
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(payloads: &[(u64, &str)]) -> BTreeMap<u64, Vec<u8>> {
        let own = |(index, payload): &(u64, &str)| (*index, payload.as_bytes().to_vec());
        payloads.iter().map(own).collect()
    }

    fn refused(history: &History, payloads: &[(u64, &str)], why: &str) {
        let error = history.check(&log(payloads)).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    /// `a` at 2 ended before `b` at 3 began.
    fn two() -> History {
        let mut history = History::default();
        let a = history.append("a".into(), None);
        history.append_ended(a, Outcome::Acked(2));
        let b = history.append("b".into(), None);
        history.append_ended(b, Outcome::Acked(3));
        history
    }

    #[test]
    fn what_was_acknowledged_is_there_once_and_where_it_was_said_to_be() {
        let history = two();
        history.check(&log(&[(2, "a"), (3, "b")])).unwrap();
        refused(&history, &[(2, "a")], "acknowledged at 3 and is at None");
        refused(&history, &[(2, "a"), (4, "b")], "is at Some(4)");
        refused(&history, &[(2, "a"), (3, "b"), (4, "a")], "twice");
        refused(&history, &[(2, "a"), (3, "b"), (4, "x")], "nobody");
    }

    #[test]
    fn later_appends_stand_behind_earlier_ones() {
        let mut history = History::default();
        let a = history.append("a".into(), None);
        history.append_ended(a, Outcome::Acked(3));
        let b = history.append("b".into(), None);
        let c = history.append("c".into(), None);
        history.append_ended(b, Outcome::Unknown);
        history.append_ended(c, Outcome::Refused);
        history.check(&log(&[(3, "a")])).unwrap();
        history.check(&log(&[(3, "a"), (9, "b")])).unwrap();
        refused(
            &history,
            &[(2, "b"), (3, "a")],
            "index 2, but index Some(3)",
        );
        refused(&history, &[(3, "a"), (4, "c")], "was refused");
        history.append("d".into(), None);
        refused(&history, &[(3, "a")], "no outcome");
    }

    #[test]
    fn appends_at_the_same_time_may_stand_either_way() {
        for (a_at, b_at) in [(2, 3), (3, 2)] {
            let mut history = History::default();
            let a = history.append("a".into(), None);
            let b = history.append("b".into(), None);
            history.append_ended(a, Outcome::Acked(a_at));
            history.append_ended(b, Outcome::Acked(b_at));
            history.check(&log(&[(a_at, "a"), (b_at, "b")])).unwrap();
        }
    }

    #[test]
    fn a_read_sees_all_that_ended_before_it_and_nothing_that_began_after() {
        let all = [(2, "a"), (3, "b")];
        let mut history = two();
        let called = history.now();
        history.read(called, (3, 2));
        history.check(&log(&all)).unwrap();

        let mut stale = two();
        let called = stale.now();
        stale.read(called, (2, 1));
        refused(&stale, &all, "index 2, but index Some(3)");

        let mut backwards = two();
        let old = backwards.now();
        backwards.read(1, (3, 2));
        backwards.read(old, (2, 1));
        refused(&backwards, &all, "index 2, but index Some(3)");

        let mut miscounted = two();
        let called = miscounted.now();
        miscounted.read(called, (3, 1));
        refused(&miscounted, &all, "saw 1 entries up to 3");

        let mut early = History::default();
        early.read(0, (2, 1));
        let a = early.append("a".into(), None);
        early.append_ended(a, Outcome::Acked(2));
        refused(&early, &[(2, "a")], "index 2, but index Some(2)");
    }

    #[test]
    fn a_get_gives_what_stays_there() {
        let mut history = two();
        history.got(2, b"a".to_vec());
        history.check(&log(&[(2, "a"), (3, "b")])).unwrap();
        history.got(3, b"a".to_vec());
        refused(&history, &[(2, "a"), (3, "b")], "what is not there");

        let mut early = History::default();
        early.got(2, b"a".to_vec());
        let a = early.append("a".into(), None);
        early.append_ended(a, Outcome::Unknown);
        refused(&early, &[(2, "a")], "index 2, but index Some(2)");
    }

    #[test]
    fn a_batch_stands_together_from_its_first_one_on() {
        let mut history = History::default();
        let batch = history.batch();
        for place in 0..3 {
            let number = history.append(format!("p{place}"), Some((batch, place)));
            history.append_ended(number, Outcome::Unknown);
        }
        history.check(&log(&[])).unwrap();
        history.check(&log(&[(5, "p0"), (6, "p1")])).unwrap();
        refused(&history, &[(5, "p0"), (7, "p1")], "has gaps");
        refused(&history, &[(5, "p0"), (6, "p2")], "has gaps");
        refused(&history, &[(6, "p1")], "has gaps");
    }
}
