//! Shared pieces of the benches: message sets and the raw limits the figures are compared with.
