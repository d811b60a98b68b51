//! The locks, atomics and threads that the engine is made of, behind one name.
//!
//! They are parking_lot's and std's. With the feature `interleave`, which is for the engine's own tests,
//! they are those of shuttle, whose scheduler runs one thread at a time and changes between them at every
//! use of any of them: the tests then see orders that a machine shows once in a million runs, and can
//! replay each. What is static, and lives longer than one such run, uses parking_lot and std directly.

#[cfg(not(feature = "interleave"))]
mod moves;
#[cfg(not(feature = "interleave"))]
mod runs;

#[cfg(not(feature = "interleave"))]
pub(crate) use moves::Moves;
#[cfg(not(feature = "interleave"))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(feature = "interleave"))]
pub(crate) use runs::lock_in_runs;
#[cfg(not(feature = "interleave"))]
pub(crate) use std::{sync::atomic, thread};

#[cfg(feature = "interleave")]
mod interleaved;
#[cfg(feature = "interleave")]
pub(crate) use interleaved::{Condvar, Moves, Mutex, MutexGuard, RwLock, lock_in_runs};
#[cfg(feature = "interleave")]
pub(crate) use shuttle::{sync::atomic, thread};
