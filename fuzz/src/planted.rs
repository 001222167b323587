//! A mistake that is made on purpose: a fuzzer that does not find it finds nothing.

use doorbell_core::wire::Handle;

/// As the target `handle`, by one who takes a prefix that no seed has for an error.
pub fn handle(bytes: &[u8]) {
    super::handle(bytes);
    let Ok(handle) = Handle::parse(bytes) else {
        return;
    };
    for rail in handle.rails() {
        assert_ne!(rail.address().prefix_bits(), 29, "planted");
    }
}
