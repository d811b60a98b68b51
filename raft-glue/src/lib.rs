//! The controller of RocketMQ's controller mode on a raft log: it decides who is master in which
//! epoch, and never carries messages.

pub mod remoting;
