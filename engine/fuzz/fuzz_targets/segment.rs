//! A store folder with arbitrary segments: see `segment.rs` of this crate.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| epochlog_engine_fuzz::segment(data));
