//! A host's RDMA stack, and its connections: made and accepted, blocking, polled and on a thread.

pub(crate) mod acceptances;
pub(crate) mod answer;
pub(crate) mod asking;
pub(crate) mod background;
pub(crate) mod bring_up;
#[cfg(test)]
pub(crate) mod connected;
pub(crate) mod connecting;
pub(crate) mod dial;
pub(crate) mod handshakes;
pub(crate) mod listener;
pub(crate) mod lobby;
pub(crate) mod look;
pub(crate) mod node;
