//! Any bytes as the text of a handle, and as what one spells.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::text(bytes));
