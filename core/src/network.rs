//! The part of a host's network that connecting uses: streams, listening ports, waits, and entropy.
//!
//! The handshake and everything above it are generic over [`Network`], by static dispatch: TCP of the
//! operating system, or the streams of a simulation.

use core::fmt;
use core::net::SocketAddr;
use core::task::Waker;

use crate::handshake::Io;
use crate::{Clock, Deadline};

/// The network of a host, limited to the needs of handshakes. Only [`Network::wait`] blocks.
///
/// The host's devices use the same clock.
pub trait Network: Clock + Send + Sync + Sized + 'static {
    /// A stream to a peer, closed when it is dropped. Bytes written before the drop still arrive.
    type Stream: Stream;
    /// A listening port, closed when it is dropped.
    type Acceptor: Acceptor;

    /// Begins to connect. Later reads and writes report whether it succeeded.
    ///
    /// # Errors
    /// The connection fails at once.
    fn connect(&self, to: SocketAddr) -> Result<Self::Stream, NetworkError>;

    /// Listens at an address of this host; port 0 selects any free port.
    ///
    /// # Errors
    /// The port is in use, or the address does not belong to this host.
    fn listen(&self, at: SocketAddr) -> Result<Self::Acceptor, NetworkError>;

    /// Accepts the next connection, if there is one. Connections that are gone by now are skipped.
    ///
    /// # Errors
    /// The port cannot accept any more.
    fn accept(&self, at: &Self::Acceptor) -> Result<Option<Self::Stream>, NetworkError>;

    /// Blocks until a peer connects, one of the streams is ready, or the deadline passes. It may return early, and does not say
    /// why it returned. A stream with unsent bytes is also ready when it has room.
    ///
    /// # Errors
    /// The wait itself failed.
    fn wait<'s>(
        &self,
        acceptor: Option<&'s Self::Acceptor>,
        streams: impl Iterator<Item = Waited<'s, Self::Stream>>,
        deadline: Deadline,
    ) -> Result<(), NetworkError>;

    /// Fills `into` with bytes that no peer can guess. In a simulation, they follow from its seed.
    ///
    /// # Errors
    /// The system has no entropy.
    fn random(&self, into: &mut [u8]) -> Result<(), NetworkError>;
}

/// A network that can also wait for descriptors of the host, such as those of completion queues.
pub trait WaitBeside<D>: Network {
    /// Blocks as [`Network::wait`] does, or until one of these descriptors is readable. Returns `false` only if the deadline ended
    /// the wait.
    ///
    /// # Errors
    /// As for [`Network::wait`].
    fn wait_beside<'s>(
        &self,
        descriptors: impl Iterator<Item = D>,
        acceptor: Option<&'s Self::Acceptor>,
        streams: impl Iterator<Item = Waited<'s, Self::Stream>>,
        deadline: Deadline,
    ) -> Result<bool, NetworkError>;
}

/// A stream to a peer.
pub trait Stream: Io + Send {
    /// Whether the peer has neither accepted nor refused the connection yet.
    fn is_connecting(&self) -> bool;

    /// The address of the peer, if it is known. It may be `None` after the connection is gone.
    fn peer_address(&self) -> Option<SocketAddr>;

    /// Whether the stream may have something new since the last call: bytes, room, or its end. After `true`, the caller
    /// reads the stream until it is empty. A network that does not know returns `true`. Events that the port
    /// [collected](Acceptor::collect) must be included.
    fn is_due(&self) -> bool {
        true
    }
}

/// A listening port.
pub trait Acceptor: Send {
    /// The address that it listens on.
    fn address(&self) -> SocketAddr;

    /// Returns a waker that ends a [`Network::wait`] on this port or on a stream it accepted, from any thread. If no wait is
    /// under way, it ends the next one. `None` if no other thread needs to wake a wait.
    fn waker(&self) -> Option<Waker> {
        None
    }

    /// Takes note of all events until now, so that they end no later wait.
    fn collect(&self) {}
}

/// A stream that is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Waited<'s, S> {
    /// The stream.
    pub stream: &'s S,
    /// Whether unsent bytes wait for room.
    pub has_unsent: bool,
}

/// A failed network call, with the errno of the platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NetworkError {
    /// The errno.
    pub errno: i32,
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the network refused (errno {})", self.errno)
    }
}

impl core::error::Error for NetworkError {}
