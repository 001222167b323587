//! Needs of connecting from a host's network: streams, ports at which peers arrive, waits, and entropy.
//!
//! The handshake and everything above it are generic over [`Network`], by static dispatch: TCP of the
//! operating system, or the streams of a simulation.

use core::fmt;
use core::net::SocketAddr;
use core::task::Waker;

use crate::handshake::Io;
use crate::{Clock, Deadline};

/// The network of a host, limited to what handshakes need. Nothing here blocks but [`Network::wait`].
///
/// Its clock is that of the host's devices, too.
pub trait Network: Clock + Send + Sync + Sized + 'static {
    /// A stream to a peer, closed when it is dropped. Bytes written before the drop still arrive.
    type Stream: Stream;
    /// A port at which peers arrive, given up when it is dropped.
    type Acceptor: Acceptor;

    /// Begins to connect. Later reads and writes report whether it succeeded.
    ///
    /// # Errors
    /// It is known at once that it cannot.
    fn connect(&self, to: SocketAddr) -> Result<Self::Stream, NetworkError>;

    /// Opens a port at an address of this host; port 0 is any free one.
    ///
    /// # Errors
    /// The port is taken, or the address is not of this host.
    fn listen(&self, at: SocketAddr) -> Result<Self::Acceptor, NetworkError>;

    /// Takes the next peer that has arrived, if there is one. Peers that are gone by now are passed over.
    ///
    /// # Errors
    /// The port is of no further use.
    fn accept(&self, at: &Self::Acceptor) -> Result<Option<Self::Stream>, NetworkError>;

    /// Blocks until a peer arrived, or one of the streams may move, or the deadline. It may end early, and does not say
    /// which it was. A stream with unsent bytes is also waited for to take some.
    ///
    /// # Errors
    /// Nothing can be waited for.
    fn wait<'s>(
        &self,
        acceptor: Option<&'s Self::Acceptor>,
        streams: impl Iterator<Item = Waited<'s, Self::Stream>>,
        deadline: Deadline,
    ) -> Result<(), NetworkError>;

    /// Fills `into` with bytes that no peer can guess; in a simulation, with those of its seed.
    ///
    /// # Errors
    /// The system gave none.
    fn random(&self, into: &mut [u8]) -> Result<(), NetworkError>;
}

/// A network whose waits also end for descriptors of the host, as completion queues have them.
pub trait WaitBeside<D>: Network {
    /// Blocks as [`Network::wait`] does, and until one of these descriptors is readable. Returns whether it ended for anything but
    /// the deadline.
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

    /// Address of the other end, as far as it is known; it may be `None` once the connection is gone.
    fn peer_address(&self) -> Option<SocketAddr>;

    /// Whether the stream may have something new since the last call: bytes, room, or its end. After `true`, the caller
    /// reads the stream until nothing is there. A network that does not know returns `true`. It knows at the latest of
    /// events that its port [collected](Acceptor::collect).
    fn is_due(&self) -> bool {
        true
    }
}

/// A port at which peers arrive.
pub trait Acceptor: Send {
    /// The address that it listens on.
    fn address(&self) -> SocketAddr;

    /// Returns a waker that ends a [`Network::wait`] on this port or on a stream it accepted, from any thread: the wait
    /// under way, or else the next one. `None` if no other thread needs to wake a wait.
    fn waker(&self) -> Option<Waker> {
        None
    }

    /// Notes the events until now, so that no wait ends for them.
    fn collect(&self) {}
}

/// A stream that is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Waited<'s, S> {
    /// The stream.
    pub stream: &'s S,
    /// Whether there are bytes to be written once there is room.
    pub has_unsent: bool,
}

/// Failure of a network call, by the errno of the platform.
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
