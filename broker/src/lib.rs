//! The parts of the binary `epochlog`: configuration, a broker's life, its endpoint, and processes
//! as tests and the demo start them.

pub mod clock;
pub mod cmd;
pub mod conf;
pub mod endpoint;
pub mod group;
pub mod identity;
mod kept;
pub mod node;
pub mod observe;
pub mod producer;
pub mod replay;
pub mod replicas;
pub mod send;
mod slaves;
mod stop;
pub mod tables;
pub mod topics;
pub mod wiring;
