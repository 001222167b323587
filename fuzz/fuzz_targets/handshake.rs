//! Any bytes as what a peer sends in a whole handshake, in either role.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::handshake(bytes));
