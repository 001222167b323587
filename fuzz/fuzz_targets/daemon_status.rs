//! Any bytes as the status that a hostile node daemon gives.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::daemon_status(bytes));
