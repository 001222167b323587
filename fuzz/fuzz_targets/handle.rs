//! Any bytes as a handle, or as the text of one. What must hold is in `core/tests/wire/oracle`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../core/tests/wire/oracle/handle.rs"]
mod oracle;

fuzz_target!(|bytes: &[u8]| oracle::check(bytes));
