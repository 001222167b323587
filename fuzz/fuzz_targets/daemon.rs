//! Any bytes as what a hostile client and a hostile peer of a node daemon say.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::daemon(bytes));
