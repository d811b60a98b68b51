//! Consume queues: what they show and when, across cuts, kills and folders that others have touched.

#![expect(
    clippy::unwrap_used,
    reason = "a test stops where its own input is wrong"
)]

#[path = "../common/mod.rs"]
mod common;

mod bed;
mod cuts_and_order;
mod folders;
