//! Any bytes as a frame of the handshake.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::frames(bytes));
