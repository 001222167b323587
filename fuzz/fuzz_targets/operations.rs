//! Operations of two hosts on a simulated fabric, one after the other.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::operations(bytes));
