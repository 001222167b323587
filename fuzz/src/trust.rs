//! Files of keys: of the library itself.
#![expect(dead_code, reason = "whoever connects uses more of it")]

#[path = "../../src/trust/hostile.rs"]
pub(crate) mod hostile;
#[path = "../../src/trust/key.rs"]
mod key;
#[path = "../../src/trust/pattern.rs"]
mod pattern;
#[path = "../../src/trust/ring.rs"]
mod ring;
