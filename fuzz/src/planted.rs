//! A mistake that is made on purpose: a fuzzer that does not find it finds nothing.

use doorbell_core::wire::Handle;

/// Checks a handle as the target `handle` does, but takes subnets of few hosts, which no seed has, for
/// errors.
pub fn handle(bytes: &[u8]) {
    super::handle(bytes);
    let Ok(handle) = Handle::parse(bytes) else {
        return;
    };
    for rail in handle.rails() {
        let prefix_bits = rail.address().prefix_bits();
        assert!(!(25..=30).contains(&prefix_bits), "planted");
    }
}
