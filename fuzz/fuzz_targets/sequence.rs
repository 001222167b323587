//! Any bytes as what becomes of a handshake on a hostile wire.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::sequence(bytes));
