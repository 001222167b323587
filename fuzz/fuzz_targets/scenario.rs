//! Any bytes as a scenario of the lab.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::scenario(bytes));
