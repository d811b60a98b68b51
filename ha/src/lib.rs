//! Replication for RocketMQ-style brokers: a master ships epoch-bounded batches of its commit log
//! to slaves, byte- and wire-compatible with Apache RocketMQ's controller mode.
//!
//! Everything that decides is pure; loops around it own sockets, files and clocks.

mod transport;

pub use transport::{
    Body, Close, CloseReason, ConnId, Event, FrameBytes, RecvInto, Transport, TransportConfig,
    TransportKind, TransportStats, Window,
};
