//! Any bytes as what a peer writes into a ring.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::rings(bytes));
