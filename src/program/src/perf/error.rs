//! Reasons why a measurement failed.

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use std::io;

use doorbell::provider::{MemoryError, ProviderError};
use doorbell::worker::{CloseError, RingError, RingReadError};
use doorbell::{ChannelState, ConnectError, NodeError, SendErrorKind};

use super::message::MessageError;
use super::pattern::Mismatch;
use super::test::{Kind, Op, OutOfRange};

/// Reason why a measurement failed.
#[derive(Debug)]
pub(crate) enum PerfError {
    /// There is no RDMA stack, or no usable device.
    Node(NodeError),
    /// No channel to the peer could be opened.
    Connect(ConnectError),
    /// The peer's name cannot be resolved.
    Name { name: String, error: io::Error },
    /// The peer's address refuses the connection: no listener is there.
    NobodyListens { address: String, waited: Duration },
    /// The listener is busy with another client.
    Busy,
    /// The address cannot be listened at.
    Listen { address: String, error: ConnectError },
    /// A device refused to register memory.
    Window(MemoryError),
    /// A request was not posted.
    Send(SendErrorKind),
    /// The Worker cannot be polled.
    Poll(ProviderError),
    /// The queue pair failed, with the cause.
    Channel { what: &'static str, state: ChannelState },
    /// Nothing arrived from the peer for this long.
    Stalled { what: &'static str, waited: Duration },
    /// The peer sent an invalid message.
    Message(MessageError),
    /// The peer sent a valid message at the wrong time.
    Unexpected { wanted: &'static str, got: &'static str },
    /// The listener refuses to run the test.
    RefusedByListener(String),
    /// The peer gave up.
    PeerGaveUp(String),
    /// The received bytes differ from those sent.
    Corrupted(Corruption),
    /// Fewer messages were checked than were sent, which is an error of this program.
    Unchecked { checked: u64, total: u64 },
    /// A setting of the test is out of range.
    OutOfRange(OutOfRange),
    /// There is no bandwidth test of this operation.
    NoBandwidthOf(Op),
    /// The one-sided ring cannot be opened.
    Ring(RingError),
    /// A message in the one-sided ring cannot be read.
    RingRead(RingReadError),
    /// The test needs more memory than was planned, which is an error of this program.
    NoMemory,
    /// A connection could not be closed cleanly.
    Close(CloseError),
    /// No random bytes are available.
    Entropy,
    /// Metrics cannot be served at this address.
    Metrics { address: SocketAddr, error: io::Error },
}

/// Wrong bytes in one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corruption {
    pub(crate) kind: Kind,
    pub(crate) op: Op,
    /// Whether this side or the peer detected them.
    pub(crate) seen_here: bool,
    /// Number of messages with a wrong byte.
    pub(crate) messages: u64,
    /// The first wrong byte.
    pub(crate) first: Mismatch,
}

/// Creates [`PerfError::NoMemory`] only on failure: a value that was created in advance would have to be dropped
/// for each message.
#[cold]
pub(super) const fn no_memory() -> PerfError {
    PerfError::NoMemory
}

impl fmt::Display for PerfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(error) => fmt::Display::fmt(error, f),
            Self::Connect(error) => fmt::Display::fmt(error, f),
            Self::Name { name, error } => write!(f, "{name} cannot be resolved: {error}"),
            Self::Busy => f.write_str("the listener is busy with a test of another client: try again later"),
            Self::NobodyListens { address, waited } => write!(
                f,
                "nobody listens at {address}: the connection was refused for {:.1} s; start the same \
                 command without a peer there",
                waited.as_secs_f64()
            ),
            Self::Listen { address, error } => write!(f, "cannot listen at {address}: {error}"),
            Self::Window(error) => write!(f, "no memory for the window of the peer: {error}"),
            Self::Send(kind) => fmt::Display::fmt(kind, f),
            Self::Poll(error) => write!(f, "the completion queue cannot be polled: {error}"),
            Self::Channel { what, state } => match state {
                ChannelState::Failed { cause } => {
                    write!(f, "the {what} failed: {}", cause.status)?;
                    if cause.vendor_error != 0 {
                        write!(f, " (vendor error {:#x})", cause.vendor_error)?;
                    }
                    Ok(())
                }
                _ => write!(f, "the {what} is gone"),
            },
            Self::Stalled { what, waited } => {
                write!(
                    f,
                    "no {what} came for {:.1} s: the peer is gone or stuck",
                    waited.as_secs_f64()
                )
            }
            Self::Message(error) => write!(f, "the peer sent {error}"),
            Self::Unexpected { wanted, got } => write!(f, "the peer sent {got} instead of {wanted}"),
            Self::RefusedByListener(reason) => write!(f, "the listener refused: {reason}"),
            Self::PeerGaveUp(reason) => write!(f, "the peer gave up: {reason}"),
            Self::Corrupted(corruption) => fmt::Display::fmt(corruption, f),
            Self::OutOfRange(unfit) => fmt::Display::fmt(unfit, f),
            Self::NoBandwidthOf(op) => write!(f, "bw does not measure {op}, only lat does"),
            Self::Ring(error) => write!(f, "no one-sided ring: {error}"),
            Self::RingRead(error) => write!(f, "the one-sided ring: {error}"),
            Self::Unchecked { checked, total } => {
                write!(f, "only {checked} of {total} messages were checked")
            }
            Self::NoMemory => f.write_str("the Worker has no memory left for a message"),
            Self::Close(error) => fmt::Display::fmt(error, f),
            Self::Entropy => f.write_str("the system gave no random bytes"),
            Self::Metrics { address, error } => write!(f, "no metrics at {address}: {error}"),
        }
    }
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            op, messages, first, ..
        } = self;
        let kind = match self.kind {
            Kind::Latency => "latency",
            Kind::Bandwidth => "bandwidth",
        };
        let by = if self.seen_here { "" } else { "the peer saw: " };
        write!(f, "{by}{op} {kind}: {messages} corrupt, the first: {first}")
    }
}

impl core::error::Error for PerfError {}

macro_rules! from {
    ($($source:ty => $variant:ident),+) => {$(
        impl From<$source> for PerfError {
            fn from(error: $source) -> Self {
                Self::$variant(error)
            }
        }
    )+};
}

from!(
    NodeError => Node, ConnectError => Connect, SendErrorKind => Send, ProviderError => Poll,
    MessageError => Message, OutOfRange => OutOfRange, CloseError => Close
);
