//! Replication for RocketMQ-style brokers: a master ships epoch-bounded batches of its commit log
//! to slaves, byte- and wire-compatible with Apache RocketMQ's controller mode.
//!
//! Everything that decides is pure; loops around it own sockets, files and clocks.

mod acks;
mod batch;
mod error;
mod frame;
mod handshake;
mod master;
mod service;
mod slave;
mod sync_state;
mod transport;

pub use acks::{AckPolicy, Durability, Ended, PutStatus, UnknownReason, Waiter, Waiters};
pub use batch::{Batch, CursorError, LogBounds, TransferCursor};
pub use error::Error;
pub use frame::{
    BOTH_OFFSETS_REPORT_LEN, CHECKED_HEADER_LEN, Capabilities, Decoded, Extension, FrameChecksum,
    FrameError, FrameFromMaster, FrameFromSlave, HandshakeAnswer, HandshakeAnswerForm,
    JAVA_SLAVE_BUFFER_LEN, LogId, MAX_BODY_LEN, MAX_EXTENDED_BODY_LEN, MasterFrameDecoder,
    REPORT_LEN, SLAVE_HANDSHAKE_LEN, SlaveFrameDecoder, SlaveHandshake, SlaveIdentity,
    TRANSFER_HEADER_LEN, TransferHeader,
};
pub use handshake::{
    ConsistentPoint, Decision, MasterSide, Refusal, SlaveSide, Why, decide, find_consistent_point,
};
pub use master::{
    Heard, MasterClose, MasterConnection, MasterConnectionConfig, MasterLog, MasterSend,
};
pub use service::{
    AckRequest, ClientInfo, ConnectionInfo, HaConfig, HaMetrics, HaRuntimeInfo, HaService,
    JoinInfo, Outcome, PendingWrite, Refused, RoleInfo, RoleOutcome,
};
pub use slave::{
    Joined, Lookback, SlaveAction, SlaveClose, SlaveConnection, SlaveConnectionConfig,
};
pub use sync_state::{AckCounted, Joining, Replica, SyncState, SyncStateLimits, SyncStateSet};
pub use transport::{
    Body, Close, CloseReason, ConnId, Event, FrameBytes, OpenError, RecvInto, RingRefused,
    SimConfig, SimNet, SimTransport, StdTransport, TokioUringTransport, Transport, TransportConfig,
    TransportKind, TransportStats, UringTransport, Window,
};
