//! The writes of our side: paced, as fast as one thread can, and with so many waiting for their acks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use epochlog_ha::{AckPolicy, AckRequest, Outcome};
use serde_json::json;

use super::{Answer, LOOK, Node};

const PATIENCE: Duration = Duration::from_secs(30);

/// How the writes of one command went.
#[derive(Default)]
struct Told {
    acked: AtomicUsize,
    failed: AtomicBool,
}

impl Told {
    /// Counts a write; returns how many are acknowledged.
    fn tell<A: std::fmt::Debug>(&self, outcome: &Outcome<A>) -> usize {
        if !matches!(outcome, Outcome::Acked(_)) && !self.failed.swap(true, Ordering::AcqRel) {
            eprintln!("a write came to {outcome:?}");
        }
        self.acked.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn check(&self, count: usize) -> Result<(), String> {
        let acked = self.acked.load(Ordering::Acquire);
        if self.failed.load(Ordering::Acquire) || acked != count {
            return Err(format!("{acked} of {count} writes ended, not all well"));
        }
        Ok(())
    }
}

impl Node {
    fn ack(&self) -> AckRequest {
        AckRequest::new(self.policy, PATIENCE)
    }

    fn single(&self, n: usize, told: &Arc<Told>) {
        let told = Arc::clone(told);
        self.service
            .append(&self.messages.single(n), self.ack(), move |outcome| {
                told.tell(&outcome);
            });
    }

    /// Writes one by one, evenly spread over a time.
    pub(super) fn warm(&self, ms: u64, count: usize) -> Answer {
        self.only_own_acks()?;
        let from = self.store.end_offset();
        let told = Arc::new(Told::default());
        let began = Instant::now();
        let mut done = 0;
        while done < count {
            let share = began.elapsed().as_secs_f64() * 1e3 / ms.max(1) as f64;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share of a count"
            )]
            let due = (count as f64 * share.min(1.0)) as usize;
            (done..due).for_each(|n| self.single(n, &told));
            done = due;
            thread::sleep(LOOK);
        }
        told.check(count)?;
        Ok(self.timed(began, from))
    }

    /// Writes as fast as one thread can, one by one or in batches.
    pub(super) fn append(&self, count: usize, batch: usize) -> Answer {
        self.only_own_acks()?;
        let from = self.store.end_offset();
        let told = Arc::new(Told::default());
        if batch == 1 {
            let began = Instant::now();
            (0..count).for_each(|n| self.single(n, &told));
            told.check(count)?;
            return Ok(self.timed(began, from));
        }
        let batches = self.messages.batches(batch)?;
        if !count.is_multiple_of(batch) {
            return Err(format!("{count} messages are no whole batches of {batch}").into());
        }
        let began = Instant::now();
        for b in 0..count / batch {
            let told = Arc::clone(&told);
            self.service
                .append_batch(batches.nth(b), self.ack(), move |outcome| {
                    told.tell(&outcome);
                });
        }
        told.check(count / batch)?;
        Ok(self.timed(began, from))
    }

    /// Such a write has ended when the call returns; others would be counted too early.
    fn only_own_acks(&self) -> Result<(), &'static str> {
        match self.policy {
            AckPolicy::Local => Ok(()),
            _ => Err("warm and append do not wait for acks: say `acks one` before"),
        }
    }

    /// Writes with so many waiting for their acks at a time.
    pub(super) fn puts(&self, count: usize, in_flight: usize) -> Answer {
        let from = self.store.end_offset();
        let began = Instant::now();
        if in_flight > 1 {
            self.many_at_once(count, in_flight)?;
            return Ok(self.timed(began, from));
        }
        let mut micros = Vec::with_capacity(count);
        for n in 0..count {
            let began = Instant::now();
            let message = self.messages.single(n);
            match self.service.append_and_wait(&message, self.ack()) {
                Outcome::Acked(_) => micros.push(began.elapsed().as_secs_f64() * 1e6),
                other => return Err(format!("a write came to {other:?}").into()),
            }
        }
        let mut answer = self.timed(began, from);
        micros.sort_by(f64::total_cmp);
        answer["p50_us"] = json!(micros.get(count / 2));
        answer["p99_us"] = json!(micros.get(count * 99 / 100));
        Ok(answer)
    }

    fn many_at_once(&self, count: usize, in_flight: usize) -> Result<(), String> {
        let told = Arc::new(Told::default());
        let caller = thread::current();
        let waits = |below: usize| {
            while told.acked.load(Ordering::Acquire) < below && !told.failed.load(Ordering::Acquire)
            {
                thread::park_timeout(LOOK);
            }
        };
        for n in 0..count {
            waits((n + 1).saturating_sub(in_flight));
            let (told, caller) = (Arc::clone(&told), caller.clone());
            self.service
                .append(&self.messages.single(n), self.ack(), move |outcome| {
                    // Not for each: a caller that is woken for one write does no more than that one.
                    if told.tell(&outcome).is_multiple_of((in_flight / 4).max(1)) {
                        caller.unpark();
                    }
                });
        }
        waits(count);
        told.check(count)
    }
}
