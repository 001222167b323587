//! Wire formats: the handle, and the frames of handshakes, links and rings. Each is parsed in place and checked.

pub use doorbell_core::wire::*;
