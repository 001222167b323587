//! Any bytes as what peers of a relay of the NCCL plugin say and do.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::circuits(bytes));
