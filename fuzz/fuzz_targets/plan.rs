//! Any bytes as the text of a plan of faults.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::plan(bytes));
