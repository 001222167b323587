//! One side of a transfer, and a peer and a caller that do whatever the bytes say.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::transfers(bytes));
