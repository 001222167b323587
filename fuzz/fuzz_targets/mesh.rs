//! Any bytes as a frame of a mesh.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::mesh(bytes));
