//! The parts of the binary `epochlog`: configuration, a broker's life, its endpoint, and processes
//! as tests and the demo start them.

pub mod group;
