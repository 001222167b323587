//! Any bytes as what a peer sends in a whole handshake, in either role. What must hold is in `core/tests/wire/oracle`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../core/tests/wire/oracle/handshake.rs"]
mod oracle;

fuzz_target!(|bytes: &[u8]| {
    let _ = oracle::check(bytes);
});
