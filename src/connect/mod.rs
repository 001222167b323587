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

pub use acceptances::Acceptances;
pub use asking::Asking;
pub use background::Background;
pub use connecting::Connecting;
pub use doorbell_core::handshake::{Cause, Fault, HandshakeError, Misuse, Stage};
pub use handshakes::{HandshakeCounts, HandshakeLimits, Handshakes};
pub use listener::Listener;
pub use node::{Connection, Node};

pub use crate::error::{ConnectError, NoRoute, NodeError};
pub use crate::machine::tcp::{Tcp, TcpAcceptor, TcpHandshake};
