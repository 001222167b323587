//! The handshake.
