//! Errors between having nothing and having a channel.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::io;

use doorbell_core::handshake::{HandshakeError, Misuse};
use doorbell_core::network::NetworkError;
use doorbell_core::provider::{LookFailure, MemoryError, ProviderError, SettingError};
use doorbell_core::rail::NotChosen;
use doorbell_core::wire::{NoRails, TooManyRails};

mod kind;

pub use kind::ConnectErrorKind;

/// Number of an error that is reported as a device would.
pub(crate) const ENOMEM: i32 = 12;

/// Reason why a Node or a Worker could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum NodeError {
    /// libibverbs could not be loaded: what is missing, and what to install.
    Library(doorbell_ffi::LoadError),
    /// The devices could not be listed, or one could not be opened.
    Provider(ProviderError),
    /// The memory of a Worker could not be allocated or registered, or not with the required placement.
    Memory(MemoryError),
    /// Caller misuse: a setting of [`WorkerConfig`](crate::WorkerConfig) is out of its range.
    Setting(SettingError),
    /// A Worker has fewer slots for receives than it is to share.
    SharedReceives {
        /// [`SharedReceivesConfig::depth`](crate::worker::SharedReceivesConfig::depth).
        depth: u32,
        /// The slots without those that are kept for leases.
        slots: u32,
    },
    /// There is no usable device: each port with its reason.
    NothingUsable(String),
    /// There is no device of this name: the existing names.
    NoSuchDevice {
        /// The name asked for.
        device: String,
        /// The devices there are.
        known: Vec<String>,
    },
    /// The system call for random bytes failed: its errno.
    Entropy(i32),
    /// The system could not start a thread: its errno.
    Thread(i32),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(error) => fmt::Display::fmt(error, f),
            Self::Provider(error) => fmt::Display::fmt(error, f),
            Self::Memory(error) => fmt::Display::fmt(error, f),
            Self::Setting(error) => fmt::Display::fmt(error, f),
            Self::SharedReceives { depth, slots } => write!(
                f,
                "{depth} shared receives, but only {slots} slots are left for receives: raise slots, or lower shared_receives.depth or \
                 lease_share_percent"
            ),
            Self::NothingUsable(why) => write!(f, "no usable RDMA device: {why}"),
            Self::NoSuchDevice { device, known } if known.is_empty() => {
                write!(f, "no RDMA device {device}: there are none")
            }
            Self::NoSuchDevice { device, known } => {
                write!(f, "no RDMA device {device}: there are {}", known.join(", "))
            }
            Self::Entropy(errno) => write!(
                f,
                "the system call for random bytes failed (errno {errno}): check the seccomp filter"
            ),
            Self::Thread(errno) => {
                write!(
                    f,
                    "cannot start a thread (errno {errno}): raise `ulimit -u` or pids.max"
                )
            }
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

impl From<SettingError> for NodeError {
    fn from(error: SettingError) -> Self {
        Self::Setting(error)
    }
}

/// Reason why connecting or accepting failed. Everything made for the channel was destroyed. [`kind`](Self::kind) returns the group
/// of the reason.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The handshake failed: its stage, the cause, and whose fault it is.
    Handshake(HandshakeError),
    /// No rail of this side reaches a rail of the peer: the reason for each.
    NoRoute(NoRoute),
    /// The TCP socket failed.
    Tcp(io::Error),
    /// No TCP connection to this address was established in time: the host is down, or a firewall drops the packets.
    Unanswered(SocketAddr),
    /// The device refused.
    Provider(ProviderError),
    /// The port scan had no result before the deadline: a device does not answer, or the machine is overloaded.
    PortsTimedOut,
    /// The completion queues have too few free entries for a channel of this depth.
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
        /// Receives the channel is to have.
        receives_needed: u32,
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
    TooManyChannels {
        /// [`WorkerConfig::channels_max`](crate::WorkerConfig).
        channels_max: u32,
    },
    /// The Worker has as many channels of peers from this address as one may have.
    TooManyChannelsFrom {
        /// The address of the peers.
        address: IpAddr,
        /// [`WorkerConfig::channels_per_address`](crate::WorkerConfig).
        channels_per_address: u32,
    },
    /// No peer was connected in time.
    TimedOut {
        /// Why the last one that tried was not.
        last_failure: Option<Box<ConnectError>>,
    },
    /// The Workers are not those the handshake began with: they were given in another order,
    /// or others were.
    OtherWorkers,
    /// As many connections as may be wait to be accepted, or are about to.
    TooManyUnaccepted {
        /// The connections there is room for: [`HandshakeLimits::unaccepted`](crate::connect::HandshakeLimits).
        unaccepted: usize,
    },
    /// Handshakes from this address that are not finished, or from its network, hold as much as they leave to others.
    TooManyUnfinishedFrom {
        /// The address of the peer.
        address: IpAddr,
        /// The unfinished handshakes from it.
        unfinished: usize,
        /// The handshakes that there is room for beside them.
        room: usize,
    },
    /// There are as many links as there may be, those included that peers are on their way to begin.
    TooManyLinks {
        /// [`LinkConfig::links_max`](crate::link::LinkConfig).
        links_max: u32,
    },
    /// The peer has begun as many links from this address as one may.
    TooManyLinksFrom {
        /// The address of the peer.
        address: IpAddr,
        /// [`LinkConfig::links_per_address`](crate::link::LinkConfig).
        links_per_address: u32,
    },
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
    /// Caller misuse: a setting of [`ChannelConfig`](crate::ChannelConfig) is out of its range.
    Setting(SettingError),
    /// The call does not fit the object it was made on: what was called, and what to call.
    Misuse(&'static str),
    /// A state that doorbell's own code rules out. The text names it for a bug report.
    Unreachable(&'static str),
    /// The system call for random bytes failed: its errno.
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
            Self::PortsTimedOut => f.write_str(
                "no result of the port scan before the deadline: a device does not answer, or the host is overloaded; \
                 see `doorbell devices`",
            ),
            Self::NoRoom {
                sends_left,
                receives_left,
            } => write!(
                f,
                "the completion queues have room for {sends_left} sends and {receives_left} receives: \
                 make the Worker's completion_depth larger, or the channel's depths smaller"
            ),
            Self::NoShare {
                receives_left,
                receives_needed,
            } => write!(
                f,
                "the shared receives have {receives_left} left, and the channel needs {receives_needed}: raise \
                 shared_receives.depth or lower receive_depth"
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
            Self::TooManyChannels { channels_max } => write!(
                f,
                "the Worker has {channels_max} of {channels_max} channels: close some, call Worker::tend, or raise channels_max"
            ),
            Self::TooManyChannelsFrom {
                address,
                channels_per_address: most,
            } => write!(
                f,
                "{most} of {most} channels from {address}: close some, or raise channels_per_address"
            ),
            Self::TimedOut { last_failure: None } => f.write_str("no peer connected before the deadline"),
            Self::TimedOut {
                last_failure: Some(error),
            } => {
                write!(
                    f,
                    "no peer was connected before the deadline; the last one that tried: {error}"
                )
            }
            Self::OtherWorkers => f.write_str(
                "the call got other Workers than earlier calls, or another order: pass the same slice each time",
            ),
            Self::TooManyUnaccepted { unaccepted } => write!(
                f,
                "{unaccepted} of {unaccepted} connections wait to be accepted: accept more often, or raise handshakes.unaccepted"
            ),
            Self::TooManyUnfinishedFrom {
                address,
                unfinished,
                room,
            } => write!(
                f,
                "{unfinished} unfinished handshakes from {address}, and room for {room} more from all addresses: retry when one \
                 finishes, or make the Worker larger"
            ),
            Self::TooManyLinks { links_max } => write!(
                f,
                "{links_max} of {links_max} links, pending ones included: close some, or raise links_max"
            ),
            Self::TooManyLinksFrom {
                address,
                links_per_address: most,
            } => write!(
                f,
                "{most} of {most} links from {address}: close some, or raise links_per_address"
            ),
            Self::ListenerClosed => f.write_str("the listener is closed: bind a new one"),
            Self::OtherTrust => f.write_str("a Worker belongs to another Node: use Workers of this Node"),
            Self::NotAllowed(address) => {
                write!(f, "{address} is outside the subnets of Trust::only_from: add its subnet there if it may connect")
            }
            Self::NoRails => f.write_str("no usable rail on the Workers' devices: run `doorbell preflight`"),
            Self::Port(failure) => fmt::Display::fmt(failure, f),
            Self::NoPort(address) => write!(f, "the address {address} has port 0: give the port where the peer listens"),
            Self::OnlyLinkLocal => f.write_str(
                "all addresses of the peer are IPv6 link-local, and its handle does not name the interface that reaches them: give the \
                 listener an address in a subnet, or connect to its address and interface",
            ),
            Self::Configuration(misuse) => write!(f, "the configuration cannot be sent to a peer: {misuse}"),
            Self::Setting(error) => fmt::Display::fmt(error, f),
            Self::Misuse(what) => f.write_str(what),
            Self::Unreachable(state) => write!(f, "bug in doorbell, please report it: {state}"),
            Self::Entropy(errno) => write!(f, "the system call for random bytes failed (errno {errno}): check the seccomp filter"),
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
    Misuse => Configuration, SettingError => Setting
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
