//! Formats on the wire: the handle, and the frames of handshakes, links and rings, each parsed in place and checked.

pub use doorbell_core::wire::*;
