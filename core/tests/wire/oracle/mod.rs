//! Oracles: properties that hold for any bytes. Property tests, corpora and the fuzzer all run these.

mod choices;
pub(crate) mod frames;
pub(crate) mod grh;
pub(crate) mod handle;
pub(crate) mod handshake;
pub(crate) mod keys;
pub(crate) mod plain;
pub(crate) mod ring;
pub(crate) mod sequence;
pub(crate) mod session;
pub(crate) mod text;
pub(crate) mod transfer;
