//! Any bytes as a frame of the handshake. What must hold is in `core/tests/wire/oracle`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../core/tests/wire/oracle/frames.rs"]
mod oracle;

fuzz_target!(|bytes: &[u8]| oracle::check(bytes));
