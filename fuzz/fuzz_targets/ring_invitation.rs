//! Any bytes as an invitation into a ring.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::ring_invitation(bytes));
