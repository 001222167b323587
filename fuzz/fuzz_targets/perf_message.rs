//! Any bytes as what the two sides of a measurement say.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::perf_message(bytes));
