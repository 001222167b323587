//! A host's RDMA stack, and its connections: made and accepted, blocking, polled and on a thread.
//!
//! The responder is connected first, and may send before the initiator reads Ready. A Worker that is polled in between keeps
//! such completions (`worker::early`) until the channel is admitted or given up.
//!
//! A thread that polls to connect or accept makes no slow device call. A Node of `Node::open` has threads for them
//! (`machine::makers`), and a look at the ports serves all callers that asked before it began (`look`). A Node on another provider
//! has no such threads, and does all of it at once where it is polled. `Links::new`, `Mesh::new` and `Listener::bind` still look at the
//! ports on the thread that calls. A program that polls without pause on few processors has to pause now and then while it waits to be
//! connected, so that those threads run.

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
pub use doorbell_ffi::LoadError;
pub use handshakes::{HandshakeCounts, HandshakeLimits, Handshakes};
pub use listener::Listener;
pub use node::{Connection, Node};

pub use crate::error::{ConnectError, NoRoute, NodeError};
pub use crate::machine::tcp::{Tcp, TcpAcceptor, TcpHandshake};
