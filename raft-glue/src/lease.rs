//! The lease: for how long a master may acknowledge, and when another may be elected (pure).
//!
//! Invariant: what a broker takes for its authority ends before any controller elects away from it.
//! A broker has authority until `s + L_b`, where `s` is when it *sent* the heartbeat that was
//! granted; an acknowledgement leaves at most `δ` after the last look at it. A controller elects at
//! the earliest at `max(last receipt of such a heartbeat, its own begin as leader) + L_c`. With
//! clocks that run wrong by at most `ρ` this is safe exactly when
//! `(L_b + δ)·(1 + ρ) <= L_c·(1 − ρ)`.
//!
//! What a controller knows and grants is in [`crate::Liveness`].

/// How long a controller waits by default before it elects away from a leased master, in ms (L_c).
pub const DEFAULT_LEASE_WAIT_MS: u64 = 1_500;

/// Longest wait a controller may be set to, in ms.
pub const LEASE_WAIT_LIMIT_MS: u64 = 60_000;

/// Clocks are taken to run wrong by at most one in so many (ρ).
const CLOCK_ERROR: u64 = 1_000;

/// The times a broker keeps, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// How often it sends heartbeats (h).
    pub heartbeat_ms: u64,
    /// How long one granted heartbeat lasts, from its sending on (L_b).
    pub lease_ms: u64,
    /// How long an acknowledgement may take from the last look at the authority until the kernel
    /// has it (δ).
    pub ack_ms: u64,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self {
            heartbeat_ms: 250,
            lease_ms: 1_200,
            ack_ms: 100,
        }
    }
}

/// Why times do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// A lost heartbeat would already stop the master.
    #[error(
        "a lease of {lease_ms} ms leaves no room for three heartbeats of {heartbeat_ms} ms and an \
         answer: lengthen the lease or send heartbeats more often"
    )]
    TooShort {
        /// L_b.
        lease_ms: u64,
        /// h.
        heartbeat_ms: u64,
    },
    /// Two masters could acknowledge at a time.
    #[error(
        "a lease of {lease_ms} ms, with {ack_ms} ms for an acknowledgement on its way, needs a \
         controller that waits {needed_ms} ms, and this one waits {wait_ms} ms"
    )]
    Unsafe {
        /// L_b.
        lease_ms: u64,
        /// δ.
        ack_ms: u64,
        /// L_c.
        wait_ms: u64,
        /// The smallest L_c that would do.
        needed_ms: u64,
    },
}

impl LeaseTimes {
    /// Checks that a master does not stop for one lost heartbeat.
    ///
    /// # Errors
    /// [`LeaseError::TooShort`].
    pub fn check(&self) -> Result<(), LeaseError> {
        if self.lease_ms <= self.heartbeat_ms.saturating_mul(3) {
            return Err(LeaseError::TooShort {
                lease_ms: self.lease_ms,
                heartbeat_ms: self.heartbeat_ms,
            });
        }
        Ok(())
    }
}

/// The shortest wait of a controller that is safe with these times: the smallest L_c for L_b and δ.
#[must_use]
pub fn needed_wait_ms(lease_ms: u64, ack_ms: u64) -> u64 {
    let span = u128::from(lease_ms) + u128::from(ack_ms);
    let needed = (span * u128::from(CLOCK_ERROR + 1)).div_ceil(u128::from(CLOCK_ERROR - 1));
    u64::try_from(needed).unwrap_or(u64::MAX)
}

/// Checks the inequality of the module for a broker's times and a controller's wait.
///
/// # Errors
/// [`LeaseError::Unsafe`].
pub fn check_wait(lease_ms: u64, ack_ms: u64, wait_ms: u64) -> Result<(), LeaseError> {
    let needed_ms = needed_wait_ms(lease_ms, ack_ms);
    if needed_ms <= wait_ms {
        return Ok(());
    }
    Err(LeaseError::Unsafe {
        lease_ms,
        ack_ms,
        wait_ms,
        needed_ms,
    })
}

/// What kind of refusal it is that a broker gets instead of a lease: the field `leaseCode` of the
/// answer to its heartbeat. The text beside it is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[non_exhaustive]
pub enum LeaseRefusal {
    /// The heartbeat asked for none.
    NotAsked = 1,
    /// The controller does not lead, as all but one do.
    NotLeader = 2,
    /// Another master may be elected this moment.
    Electing = 3,
    /// The recorded master or its epoch is another one.
    NotMaster = 4,
    /// The role is not confirmed in the broker's present life.
    NotConfirmed = 5,
    /// The broker's times do not fit the controller's: the settings of one must be corrected.
    Times = 6,
    /// The controllers could not decide in time.
    NotDecided = 7,
}

impl LeaseRefusal {
    /// The number on the wire.
    #[must_use]
    pub const fn value(self) -> i32 {
        self as i32
    }
}

/// What a heartbeat says of its sender's lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseNews {
    /// Nothing: the sender knows of no leases (a Java broker).
    #[default]
    Silent,
    /// It is master of this epoch and asks for authority.
    Asks {
        /// The epoch it serves.
        epoch: u32,
        /// L_b.
        lease_ms: u64,
        /// δ.
        ack_ms: u64,
    },
    /// In this life of its store it will never ask for this epoch or an older one again, and has no
    /// authority in them.
    GivenBack {
        /// The newest such epoch; 0: it served none.
        epoch: u32,
    },
}

/// What a heartbeat is to carry, and the key to its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The epoch served.
    pub epoch: u32,
    /// When it was sent, in ms of a clock that goes on while the machine sleeps.
    pub sent_ms: u64,
    turn: u64,
}

/// A broker's side: which authority it has. Times are ms of a clock that goes on while the machine
/// sleeps.
#[derive(Clone, Debug)]
pub struct LeaseHolder {
    times: LeaseTimes,
    /// The epoch being served.
    epoch: Option<u32>,
    /// Every begin and end of asking is a turn; an answer counts in its own only.
    turn: u64,
    /// Asks are held back: a hand-over is under way.
    paused: bool,
    /// Epochs up to here are over for good in this process.
    given_back: u32,
    until_ms: u64,
}

impl LeaseHolder {
    /// Without authority.
    #[must_use]
    pub fn new(times: LeaseTimes) -> Self {
        Self {
            times,
            epoch: None,
            turn: 0,
            paused: false,
            given_back: 0,
            until_ms: 0,
        }
    }

    /// The times kept.
    #[must_use]
    pub fn times(&self) -> LeaseTimes {
        self.times
    }

    /// This broker serves `epoch` from now on; it has no authority yet. False: that epoch was given
    /// back in this process and must not be served again.
    pub fn begin(&mut self, epoch: u32) -> bool {
        if self.epoch == Some(epoch) {
            return true;
        }
        if epoch <= self.given_back {
            return false;
        }
        self.end();
        self.epoch = Some(epoch);
        true
    }

    /// This broker is master no more: authority ends now, for good in this epoch.
    pub fn end(&mut self) {
        if let Some(epoch) = self.epoch.take() {
            self.given_back = self.given_back.max(epoch);
        }
        self.turn += 1;
        self.paused = false;
        self.until_ms = 0;
    }

    /// Lays authority down for a hand-over; answers that are on their way count no more.
    pub fn pause(&mut self) {
        self.turn += 1;
        self.paused = true;
        self.until_ms = 0;
    }

    /// The hand-over came to nothing: asks again.
    pub fn resume(&mut self) {
        self.paused = false;
    }

    /// Whether a hand-over holds the asking back.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// The epoch being served.
    #[must_use]
    pub fn serving(&self) -> Option<u32> {
        self.epoch
    }

    /// What a heartbeat sent at `now_ms` is to ask for, if anything.
    #[must_use]
    pub fn ask(&self, now_ms: u64) -> Option<Asked> {
        let epoch = self.epoch.filter(|_| !self.paused)?;
        Some(Asked {
            epoch,
            sent_ms: now_ms,
            turn: self.turn,
        })
    }

    /// What a heartbeat that asks for nothing says. `Silent` while a hand-over is under way: it may
    /// come to nothing.
    #[must_use]
    pub fn news(&self) -> LeaseNews {
        match self.epoch {
            Some(_) if self.paused => LeaseNews::Silent,
            Some(epoch) => LeaseNews::Asks {
                epoch,
                lease_ms: self.times.lease_ms,
                ack_ms: self.times.ack_ms,
            },
            None => LeaseNews::GivenBack {
                epoch: self.given_back,
            },
        }
    }

    /// A heartbeat was granted. Returns until when there is authority now.
    pub fn granted(&mut self, asked: Asked) -> u64 {
        if self.epoch == Some(asked.epoch) && self.turn == asked.turn && !self.paused {
            let until_ms = asked.sent_ms.saturating_add(self.times.lease_ms);
            self.until_ms = self.until_ms.max(until_ms);
        }
        self.until_ms
    }

    /// What was granted counts no more (a Java controller's line broke).
    pub fn drop_authority(&mut self) {
        self.turn += 1;
        self.until_ms = 0;
    }

    /// Until when there is authority; 0: none.
    #[must_use]
    pub fn until_ms(&self) -> u64 {
        self.until_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inequality_holds_for_the_documented_profiles_and_at_its_edge() {
        // L_b, δ, L_c, safe
        let cases = [
            (1_200, 100, 1_500, true),
            (250, 40, 300, true),
            (1_200, 100, 1_302, false),
            (1_200, 100, 1_303, true),
            (1_500, 100, 1_500, false),
            (998, 0, 1_000, true),
            (999, 0, 1_000, false),
            (0, 0, 0, true),
            (u64::MAX, 1, u64::MAX - 1, false),
            (u64::MAX, u64::MAX, 1_500, false),
        ];
        for (lease_ms, ack_ms, wait_ms, safe) in cases {
            let checked = check_wait(lease_ms, ack_ms, wait_ms);
            assert_eq!(checked.is_ok(), safe, "{lease_ms} {ack_ms} {wait_ms}");
            if lease_ms < 1 << 32 {
                let (left, right) = ((lease_ms + ack_ms) * 1_001, wait_ms * 999);
                assert_eq!(left <= right, safe, "{lease_ms} {ack_ms} {wait_ms}");
            }
        }
    }

    #[test]
    fn a_lease_outlives_three_heartbeats() {
        let check = |heartbeat_ms, lease_ms| {
            let times = LeaseTimes {
                heartbeat_ms,
                lease_ms,
                ack_ms: 40,
            };
            times.check().is_ok()
        };
        assert!(LeaseTimes::default().check().is_ok() && check(50, 250));
        assert!(!check(400, 1_200) && check(399, 1_200) && !check(u64::MAX, 1_200));
    }

    fn holder() -> LeaseHolder {
        LeaseHolder::new(LeaseTimes::default())
    }

    #[test]
    fn authority_runs_from_the_sending_of_what_was_granted() {
        let mut lease = holder();
        assert_eq!(lease.ask(5), None, "no master asks");
        assert!(lease.begin(3));
        assert_eq!(lease.until_ms(), 0, "a role alone gives none");
        let (first, second) = (lease.ask(1_000).unwrap(), lease.ask(1_250).unwrap());
        assert_eq!(lease.granted(second), 2_450);
        assert_eq!(
            lease.granted(first),
            2_450,
            "an older answer takes nothing away"
        );
        assert!(lease.begin(3), "the same role again changes nothing");
        assert_eq!(lease.until_ms(), 2_450);
    }

    #[test]
    fn an_answer_counts_in_the_turn_it_was_asked_in() {
        let mut lease = holder();
        lease.begin(3);
        let old = lease.ask(1_000).unwrap();
        lease.begin(4);
        assert_eq!(lease.granted(old), 0, "another epoch");
        let before = lease.ask(1_100).unwrap();
        lease.pause();
        assert_eq!((lease.ask(1_200), lease.granted(before)), (None, 0));
        assert_eq!(lease.news(), LeaseNews::Silent);
        lease.resume();
        assert_eq!(lease.granted(before), 0, "asked before it was laid down");
        let after = lease.ask(1_300).unwrap();
        assert_eq!(lease.granted(after), 2_500);
        lease.drop_authority();
        assert_eq!(lease.granted(after), 0);
    }

    #[test]
    fn what_was_given_back_is_not_served_again() {
        let mut lease = holder();
        assert_eq!(lease.news(), LeaseNews::GivenBack { epoch: 0 });
        assert!(lease.begin(3));
        let asked = lease.ask(1_000).unwrap();
        lease.granted(asked);
        lease.end();
        assert_eq!((lease.until_ms(), lease.serving()), (0, None));
        assert_eq!(lease.news(), LeaseNews::GivenBack { epoch: 3 });
        assert!(!lease.begin(3) && !lease.begin(2) && lease.begin(4));
    }
}
