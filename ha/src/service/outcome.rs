//! What a write is asked for, and how it ends.

use std::time::Duration;

use epochlog_engine::Appended;

use crate::acks::{AckPolicy, Durability, Ended, PutStatus, UnknownReason};

/// How a write is to be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckRequest {
    /// Whose copies it waits for.
    pub policy: AckPolicy,
    /// In which durability.
    pub durability: Durability,
    /// How long it waits at most. RocketMQ: slaveTimeout, syncFlushTimeout.
    pub timeout: Duration,
}

impl AckRequest {
    /// In the memory of those `policy` names, within `timeout`.
    pub fn new(policy: AckPolicy, timeout: Duration) -> Self {
        Self {
            policy,
            durability: Durability::Memory,
            timeout,
        }
    }

    /// The same, with the master's copy on disk.
    #[must_use]
    pub fn flushed(self) -> Self {
        Self {
            durability: Durability::Flushed,
            ..self
        }
    }
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// This node is not master.
    #[error("this broker is not the master of its group")]
    NotMaster,
    /// The controller's grant has run out: another master may have been elected.
    #[error(
        "this master has not heard from the controller in time and may no longer be the master"
    )]
    NoAuthority,
    /// The role is being handed to another replica, which takes writes in a moment.
    #[error("this master is handing its role over; send again in a moment")]
    HandingOver,
    /// The SyncStateSet is too small.
    #[error("the SyncStateSet has {have} members, minInSyncReplicas is {need}")]
    NotEnoughInSync {
        /// Members of the committed set.
        have: usize,
        /// Members needed.
        need: usize,
    },
    /// Too many writes wait already.
    #[error("{waiting} writes wait for their acks already")]
    Overloaded {
        /// How many.
        waiting: usize,
    },
    /// The store refused, or failed before it wrote anything.
    #[error(transparent)]
    Store(epochlog_engine::Error),
}

impl Refused {
    /// RocketMQ's name for it.
    pub fn put_status(&self) -> PutStatus {
        use epochlog_engine::Error;
        match self {
            Self::NotMaster | Self::NoAuthority | Self::HandingOver => {
                PutStatus::ServiceNotAvailable
            }
            Self::NotEnoughInSync { .. } => PutStatus::InSyncReplicasNotEnough,
            Self::Overloaded { .. } => PutStatus::OsPageCacheBusy,
            Self::Store(error) => match error {
                Error::Message(_) | Error::TooLarge { .. } => PutStatus::MessageIllegal,
                Error::NotWritable { .. }
                | Error::DiskFull { .. }
                | Error::Failed { .. }
                | Error::Closed => PutStatus::ServiceNotAvailable,
                Error::NoSpace { .. } => PutStatus::CreateMappedFileFailed,
                _ => PutStatus::UnknownError,
            },
        }
    }
}

/// How a write ended; `A` says where it was put.
#[derive(Debug)]
pub enum Outcome<A = Appended> {
    /// As many copies as asked for hold it.
    Acked(A),
    /// Nothing was written.
    Refused(Refused),
    /// It is in this log; whether it survives is not known. It may be sent again, and may then be
    /// there twice.
    Unknown(A, UnknownReason),
}

impl<A> Outcome<A> {
    pub(super) fn of(appended: A, ended: Ended) -> Self {
        match ended {
            Ended::Acked => Self::Acked(appended),
            Ended::Unknown(reason) => Self::Unknown(appended, reason),
        }
    }

    /// RocketMQ's name for it.
    pub fn put_status(&self) -> PutStatus {
        match self {
            Self::Acked(_) => PutStatus::Ok,
            Self::Refused(refused) => refused.put_status(),
            Self::Unknown(_, reason) => Ended::Unknown(*reason).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use epochlog_engine::Error;

    use super::*;

    #[test]
    fn refusals_have_rocketmqs_codes() {
        let too_large = Error::TooLarge {
            len: 9,
            segment_size: 8,
        };
        let cases = [
            (Refused::NotMaster, PutStatus::ServiceNotAvailable),
            (Refused::NoAuthority, PutStatus::ServiceNotAvailable),
            (Refused::HandingOver, PutStatus::ServiceNotAvailable),
            (
                Refused::NotEnoughInSync { have: 1, need: 2 },
                PutStatus::InSyncReplicasNotEnough,
            ),
            (
                Refused::Overloaded { waiting: 7 },
                PutStatus::OsPageCacheBusy,
            ),
            (Refused::Store(too_large), PutStatus::MessageIllegal),
            (
                Refused::Store(Error::NotWritable { why: "" }),
                PutStatus::ServiceNotAvailable,
            ),
            (
                Refused::Store(Error::DiskFull {
                    path: "store".into(),
                    used_percent: 91,
                }),
                PutStatus::ServiceNotAvailable,
            ),
            (
                Refused::Store(Error::Closed),
                PutStatus::ServiceNotAvailable,
            ),
            (
                Refused::Store(Error::ReceiverActive),
                PutStatus::UnknownError,
            ),
        ];
        for (refused, expect) in cases {
            assert_eq!(refused.put_status(), expect, "{refused}");
            assert!(!Outcome::<()>::Refused(refused).put_status().is_stored());
        }
        let unknown = Outcome::of((), Ended::Unknown(UnknownReason::ReplicasTimeout));
        assert_eq!(unknown.put_status(), PutStatus::FlushSlaveTimeout);
        assert_eq!(Outcome::of((), Ended::Acked).put_status(), PutStatus::Ok);
    }
}
