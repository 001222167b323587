//! The target `handle` with a mistake in it, which has to be found.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| doorbell_fuzz::planted::handle(bytes));
