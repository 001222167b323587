//! The RDMA stack of a host ([`Node`]), and its connections.
//!
//! | to | use |
//! |---|---|
//! | connect, and block | [`Node::connect`] |
//! | connect in an event loop | [`Node::begin_connect`], which returns a [`Connecting`] |
//! | accept, by blocking or polling | [`Listener::accept`], [`Listener::poll_accept`] |
//! | run handshakes on threads, and accept on each Worker's thread | [`Listener::background`]: a [`Background`] and [`Acceptances`] |
//! | poll handshakes on one thread, and accept on others | [`Listener::aside`]: [`Handshakes`] and [`Acceptances`] |
//! | flush received data to the memory of a GPU | [`Node::flusher`], which returns a [`Flusher`] |
//!
//! With a Node of [`Node::open`], a thread that polls to connect or accept makes no slow device call: the Node has threads for them. A
//! Node on another provider has no threads, and makes such calls on the polling thread. `Links::new`, `Mesh::new` and
//! [`Listener::bind`] scan the ports on the calling thread. A program that busy-polls on few processors has to pause from time to time
//! while it connects or accepts, so that the Node's threads run.
//!
//! [`ConnectError`] has a variant for each cause. The error of a failed handshake names its [`Stage`] and [`Cause`].

// The responder is connected first, and may send before the initiator reads Ready. If the initiator's Worker is polled in between, it
// keeps such completions (`worker::early`) until the channel is admitted or given up.

pub(crate) mod acceptances;
pub(crate) mod answer;
pub(crate) mod asking;
pub(crate) mod attempt;
pub(crate) mod background;
#[cfg(test)]
pub(crate) mod connected;
pub(crate) mod connecting;
pub(crate) mod connector;
mod flushing;
pub(crate) mod handshakes;
pub(crate) mod listener;
pub(crate) mod node;
pub(crate) mod port_scan;
mod regions;
pub(crate) mod scan_queue;

pub use acceptances::Acceptances;
pub use asking::Asking;
pub use background::Background;
pub use connecting::Connecting;
pub use doorbell_core::handshake::{Cause, Fault, HandshakeError, Misuse, Stage};
pub use doorbell_ffi::LoadError;
pub use flushing::{Flush, FlushError, FlushTarget, Flusher};
pub use handshakes::{HandshakeCounts, HandshakeLimits, Handshakes};
pub use listener::Listener;
pub use node::{Connection, Node};

pub use crate::error::{ConnectError, ConnectErrorKind, NoRoute, NodeError};
pub use crate::machine::tcp::{Tcp, TcpAcceptor, TcpHandshake};
pub use doorbell_core::provider::SettingError;
