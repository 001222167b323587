//! Any bytes as the route header in front of a datagram.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::grh(bytes));
