//! Errors between having nothing and having a channel.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::io;

use doorbell_core::handshake::{HandshakeError, Misuse};
use doorbell_core::network::NetworkError;
use doorbell_core::provider::{LookFailure, MemoryError, ProviderError};
use doorbell_core::rail::NotChosen;
use doorbell_core::wire::{NoRails, TooManyRails};

/// Reason why a Node cannot be opened, or has no usable device.
#[derive(Debug)]
#[non_exhaustive]
pub enum NodeError {
    /// There is no RDMA stack: what is missing, and what to install.
    Library(doorbell_ffi::LoadError),
    /// The devices could not be listed, or one not opened.
    Provider(ProviderError),
    /// There is no memory for a Worker, or none of the kind that is required.
    Memory(MemoryError),
    /// A Worker has fewer slots for receives than it is to share.
    SharedReceives {
        /// [`SharedReceivesConfig::depth`](crate::worker::SharedReceivesConfig::depth).
        depth: u32,
        /// The slots without those that are kept for leases.
        slots: u32,
    },
    /// There is no device, or none that works: each port with its reason.
    NothingUsable(String),
    /// There is no such device; the names there are.
    NoSuchDevice {
        /// The name asked for.
        device: String,
        /// The devices there are.
        known: Vec<String>,
    },
    /// The system gave no random bytes: its error number.
    Entropy(i32),
    /// The system gave no thread: its error number.
    Thread(i32),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(error) => fmt::Display::fmt(error, f),
            Self::Provider(error) => fmt::Display::fmt(error, f),
            Self::Memory(error) => fmt::Display::fmt(error, f),
            Self::SharedReceives { depth, slots } => write!(
                f,
                "{depth} shared receives, where {slots} slots are left for receives: raise slots, or lower shared_receives.depth or \
                 lease_share_percent"
            ),
            Self::NothingUsable(why) => write!(f, "no usable RDMA device: {why}"),
            Self::NoSuchDevice { device, known } if known.is_empty() => {
                write!(f, "no RDMA device {device}: there are none")
            }
            Self::NoSuchDevice { device, known } => {
                write!(f, "no RDMA device {device}: there are {}", known.join(", "))
            }
            Self::Entropy(errno) => write!(f, "the system gave no random bytes (errno {errno})"),
            Self::Thread(errno) => write!(f, "the system gave no thread (errno {errno})"),
        }
    }
}

impl core::error::Error for NodeError {}

impl From<ProviderError> for NodeError {
    fn from(error: ProviderError) -> Self {
        Self::Provider(error)
    }
}

impl From<MemoryError> for NodeError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}

/// Reason why connecting failed. Everything made for the channel was undone.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The handshake failed: where, why, and by whose fault.
    Handshake(HandshakeError),
    /// None of our rails reaches one of the peer's: why not, for each.
    NoRoute(NoRoute),
    /// The TCP side failed.
    Tcp(io::Error),
    /// Nobody answered at this TCP address: the host is down, or drops what comes.
    Unanswered(SocketAddr),
    /// The device refused.
    Provider(ProviderError),
    /// Our ports were not looked at before the deadline: a device does not answer, or the machine has no time for the threads that ask it.
    PortsTimedOut,
    /// The completion queues have no room for another channel of this depth.
    NoRoom {
        /// Sends there is room for.
        sends_left: u32,
        /// Receives there is room for.
        receives_left: u32,
    },
    /// The receives that the channels of the Worker share have no room for its share.
    NoShare {
        /// Receives there are that no channel has a share in.
        receives_left: u32,
    },
    /// The Worker has too few slots for the receives of another channel, beside those kept for leases
    /// ([`WorkerConfig::lease_share_percent`](crate::WorkerConfig)). Channels that are closed give theirs back.
    NoSlots {
        /// Receives there are slots for.
        receives_left: u32,
        /// All slots of the Worker.
        slots: u32,
        /// The slots of these that are kept for leases.
        leases_kept: u32,
    },
    /// The Worker has slots for all receives of the channel, but too few of them are free now: the others are leased.
    NoMemory,
    /// There is no memory for the cells of the channel ([`ChannelConfig::cell_bytes`](crate::ChannelConfig::cell_bytes)).
    Cells(MemoryError),
    /// The Worker has as many channels as it was made for.
    TooManyChannels,
    /// The Worker has as many channels of peers from this address as one may have.
    TooManyChannelsFrom(IpAddr),
    /// No peer was connected in time.
    TimedOut {
        /// Why the last one that tried was not.
        last_failure: Option<Box<ConnectError>>,
    },
    /// The Workers are not those the handshake began with: they were given in another order,
    /// or others were.
    OtherWorkers,
    /// As many connections as may be wait to be accepted, or are about to.
    TooManyUnaccepted,
    /// Handshakes from this address that are not finished, or from its network, hold as much as they leave to others.
    TooManyUnfinishedFrom(IpAddr),
    /// There are as many links as there may be, those included that peers are on their way to begin.
    TooManyLinks,
    /// The peer has begun as many links from this address as one may.
    TooManyLinksFrom(IpAddr),
    /// The handshakes are over, and none of their connections is left: none comes any more.
    ListenerClosed,
    /// One of the Workers is another Node's: of another trust domain.
    OtherTrust,
    /// The peer, or its rail, is at an address that is in none of the subnets peers are taken from.
    NotAllowed(IpAddr),
    /// There is nothing to advertise: no usable rail on the Workers' devices.
    NoRails,
    /// The port of the rail cannot be queried any more. Other ports can be used.
    Port(LookFailure),
    /// The address of a listener has port 0, at which nobody can listen.
    NoPort(SocketAddr),
    /// The peer advertises IPv6 link-local addresses alone, and its handle does not say by which interface they are reached.
    OnlyLinkLocal,
    /// The configuration cannot be sent to a peer.
    Configuration(Misuse),
    /// The call does not fit the object it was made on: what was called, and what to call.
    Misuse(&'static str),
    /// A state that doorbell's own code rules out. The text names it for a bug report.
    Unreachable(&'static str),
    /// The system gave no random bytes: its error number.
    Entropy(i32),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handshake(error) => fmt::Display::fmt(error, f),
            Self::NoRoute(report) => fmt::Display::fmt(report, f),
            Self::Tcp(error) => write!(f, "TCP: {error}"),
            Self::Unanswered(address) => write!(f, "nobody answers at {address} (TCP): is the host up?"),
            Self::Provider(error) => fmt::Display::fmt(error, f),
            Self::PortsTimedOut => {
                f.write_str("the ports of the devices were not looked at before the deadline")
            }
            Self::NoRoom {
                sends_left,
                receives_left,
            } => write!(
                f,
                "the completion queues have room for {sends_left} sends and {receives_left} receives: \
                 make the Worker's completion_depth larger, or the channel's depths smaller"
            ),
            Self::NoShare { receives_left } => write!(
                f,
                "{receives_left} of the shared receives are left: make the depth of the Worker's \
                 shared_receives larger, or the channel's receive_depth smaller"
            ),
            Self::NoSlots {
                receives_left,
                slots,
                leases_kept,
            } => write!(
                f,
                "the Worker's slots have room for {receives_left} more receives, of {slots} slots with \
                 {leases_kept} kept for leases: give the Worker more slots, or the channel a smaller receive_depth"
            ),
            Self::NoMemory => f.write_str(
                "too few of the Worker's slots are free now for the channel's receives: give leases and messages \
                 back, and try again",
            ),
            Self::Cells(error) => write!(
                f,
                "no memory for the cells of the channel: {error}: raise the limit on locked memory, or lower cell_bytes"
            ),
            Self::TooManyChannels => f.write_str("the Worker has as many channels as its channels_max"),
            Self::TooManyChannelsFrom(address) => {
                write!(
                    f,
                    "the Worker has as many channels from {address} as its channels_per_address"
                )
            }
            Self::TimedOut { last_failure: None } => f.write_str("no peer connected before the deadline"),
            Self::TimedOut {
                last_failure: Some(error),
            } => {
                write!(
                    f,
                    "no peer was connected before the deadline; the last one that tried: {error}"
                )
            }
            Self::OtherWorkers => f.write_str("the Workers are not those the handshake began with"),
            Self::TooManyUnaccepted => {
                f.write_str("as many connections as there is room for wait to be accepted")
            }
            Self::TooManyUnfinishedFrom(address) => {
                write!(
                    f,
                    "unfinished handshakes from {address} hold as much as they leave to others"
                )
            }
            Self::TooManyLinks => {
                f.write_str("there are as many links as links_max, with those that peers are about to begin")
            }
            Self::TooManyLinksFrom(address) => {
                write!(f, "there are as many links from {address} as links_per_address")
            }
            Self::ListenerClosed => f.write_str("no more connections are accepted"),
            Self::OtherTrust => f.write_str("a Worker is another Node's, and so of another trust domain"),
            Self::NotAllowed(address) => {
                write!(f, "{address} is in none of the subnets that peers are taken from")
            }
            Self::NoRails => f.write_str("no usable rail to advertise"),
            Self::Port(failure) => fmt::Display::fmt(failure, f),
            Self::NoPort(address) => write!(f, "the address {address} has port 0: give the port where the peer listens"),
            Self::OnlyLinkLocal => f.write_str(
                "all addresses of the peer are IPv6 link-local, and its handle does not name the interface that reaches them: give the \
                 listener an address in a subnet, or connect to its address and interface",
            ),
            Self::Configuration(misuse) => write!(f, "the configuration cannot be sent to a peer: {misuse}"),
            Self::Misuse(what) => f.write_str(what),
            Self::Unreachable(state) => write!(f, "bug in doorbell, please report it: {state}"),
            Self::Entropy(errno) => write!(f, "the system gave no random bytes (errno {errno})"),
        }
    }
}

impl core::error::Error for ConnectError {}

macro_rules! from {
    ($($source:ty => $variant:ident),+) => {$(
        impl From<$source> for ConnectError {
            fn from(error: $source) -> Self {
                Self::$variant(error)
            }
        }
    )+};
}

from!(
    HandshakeError => Handshake, NoRoute => NoRoute, ProviderError => Provider,
    Misuse => Configuration
);

impl From<NetworkError> for ConnectError {
    fn from(error: NetworkError) -> Self {
        Self::Tcp(io::Error::from_raw_os_error(error.errno))
    }
}

impl From<Unrandom> for ConnectError {
    fn from(Unrandom(errno): Unrandom) -> Self {
        Self::Entropy(errno)
    }
}

impl From<TooManyRails> for ConnectError {
    fn from(_: TooManyRails) -> Self {
        Self::Unreachable("a node advertises more rails than a frame lists")
    }
}

impl From<NoRails> for ConnectError {
    fn from(_: NoRails) -> Self {
        Self::NoRails
    }
}

/// No rail of ours reaches one of the peer's: each with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoRoute {
    /// Our rails, as device, port and address where it has one.
    pub ours: Vec<(String, NotChosen)>,
    /// Ports of ours that could not be looked at: device, port and the device's error.
    pub failed: Vec<String>,
    /// The addresses the peer advertises.
    pub peers: Vec<String>,
}

impl fmt::Display for NoRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no rail reaches the peer, which is at {}",
            self.peers.join(", ")
        )?;
        for (rail, reason) in &self.ours {
            write!(f, "; {rail}: {reason}")?;
        }
        self.failed.iter().try_for_each(|failed| write!(f, "; {failed}"))
    }
}

impl core::error::Error for NoRoute {}

/// The error number of a network without random bytes.
pub(crate) struct Unrandom(pub(crate) i32);
