//! The RDMA stack of a host ([`Node`]), and its connections.
//!
//! | to | use |
//! |---|---|
//! | connect, and wait | [`Node::connect`] |
//! | connect in an event loop | [`Node::begin_connect`], which returns a [`Connecting`] |
//! | accept, and wait or poll | [`Listener::accept`], [`Listener::poll_accept`] |
//! | do handshakes on threads, and accept on each Worker's own | [`Listener::background`]: a [`Background`] and [`Acceptances`] |
//! | flush what peers wrote into a GPU's memory | [`Node::flusher`], which returns a [`Flusher`] |
//! | poll handshakes on one thread, and accept on others | [`Listener::aside`]: [`Handshakes`] and [`Acceptances`] |
//!
//! A thread that polls to connect or accept makes no slow device call. A Node of [`Node::open`] has threads for them. A Node on another
//! provider has none, and makes such calls at once where it is polled. `Links::new`, `Mesh::new` and [`Listener::bind`] scan the ports
//! on the thread that calls. A program that polls without pause on few processors has to pause now and then while it waits to be
//! connected, so that those threads run.
//!
//! [`ConnectError`] has a variant for each cause. A handshake that failed has its [`Stage`] and [`Cause`].

// The responder is connected first, and may send before the initiator reads Ready. A Worker that is polled in between keeps
// such completions (`worker::early`) until the channel is admitted or given up.

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
