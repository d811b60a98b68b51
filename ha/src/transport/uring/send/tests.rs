//! Completions in any order.
