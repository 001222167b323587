//! What two hosts do on a simulated fabric, one thing after the other.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::operations(bytes));
