//! Any bytes as a command line of the `doorbell` program.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::arguments(bytes));
