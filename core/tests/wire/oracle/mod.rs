//! What must hold for any bytes whatever. Property tests, corpora and the fuzzer all run these.

pub(crate) mod frames;
pub(crate) mod handle;
pub(crate) mod handshake;
