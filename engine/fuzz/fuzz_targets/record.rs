//! Records, client batches, properties and consume queue units: see `record.rs` of this crate.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epochlog_engine_fuzz::record(data));
