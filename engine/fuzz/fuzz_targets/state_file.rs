//! The two slots of the state file: see `small_files.rs` of this crate.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epochlog_engine_fuzz::state_file(data));
