//! Taking messages.

mod check;
