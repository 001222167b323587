//! What connecting needs of a host's network: streams, ports at which peers arrive, waits, and chance.
//!
//! The handshake and everything above it are generic over [`Network`], by static dispatch: TCP of the
//! operating system, or the streams of a simulation.

use core::fmt;
use core::net::SocketAddr;
use core::task::Waker;

use crate::handshake::Io;
use crate::{Clock, Deadline};

/// A host's network, as little of it as connecting needs. Nothing here blocks but [`Network::wait`].
///
/// Its clock is that of the host's devices, too.
pub trait Network: Clock + Send + Sync + Sized + 'static {
    /// A stream to a peer, closed when it is dropped. What was written before still arrives.
    type Stream: Stream;
    /// A port at which peers arrive, given up when it is dropped.
    type Acceptor: Acceptor;

    /// Begins to connect. Whether it succeeds, reading and writing tell.
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

    /// Blocks until a peer arrived, or one of the streams may move, or the deadline. It may end early,
    /// and does not say which it was. A stream that is told to have unsent bytes is waited for to take
    /// some, too.
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

/// A stream to a peer.
pub trait Stream: Io + Send {
    /// Whether nobody has answered yet, by yes or by no.
    fn is_connecting(&self) -> bool;

    /// Where its other end is, as far as that is known: not where it is gone.
    fn peer_address(&self) -> Option<SocketAddr>;

    /// Whether something may have come since this was asked last: bytes, room, or its end. Once it says so, the stream is
    /// read until nothing is there. A network that does not know says yes. It knows at the latest what its port
    /// [collected](Acceptor::collect).
    fn is_due(&self) -> bool {
        true
    }
}

/// A port at which peers arrive.
pub trait Acceptor: Send {
    /// Where it listens.
    fn address(&self) -> SocketAddr;

    /// What ends a [`Network::wait`] at this port or at a stream that came by it, from any thread: the one that goes on, or
    /// else the next. `None` where no other thread has anything to say.
    fn waker(&self) -> Option<Waker> {
        None
    }

    /// Notes what came until now, so that no wait ends for that.
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

/// What the network refused, by the errno of the platform.
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
