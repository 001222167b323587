//! Acts of a dishonest member of a mesh, one after the other.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::mesh_stranger(bytes));
