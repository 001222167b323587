//! Errors of opening a Node or a Worker ([`NodeError`]), and of connecting and accepting ([`ConnectError`]).

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

/// The errno for a lack of memory. doorbell reports its own lack of memory with the errno that a device would use.
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
    /// The Worker has too few slots for its shared receives.
    SharedReceives {
        /// [`SharedReceivesConfig::depth`](crate::worker::SharedReceivesConfig::depth).
        depth: u32,
        /// The slots that are left for receives: all slots minus the slots kept for leases.
        slots: u32,
    },
    /// There is no usable device. The text lists each port with the reason.
    NothingUsable(String),
    /// There is no device of this name.
    NoSuchDevice {
        /// The requested name.
        device: String,
        /// The names of the existing devices.
        known: Vec<String>,
    },
    /// The system call for random bytes failed with this errno.
    Entropy(i32),
    /// The system could not start a thread; the value is the errno.
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
    /// No rail of this side reaches a rail of the peer. The report has the reason for each rail.
    NoRoute(Box<NoRoute>),
    /// The TCP socket failed.
    Tcp(io::Error),
    /// No TCP connection to this address was established in time: the host is down, or a firewall drops the packets.
    Unanswered(SocketAddr),
    /// A call of the device failed.
    Provider(ProviderError),
    /// The port scan had no result before the deadline: a device does not answer, or the machine is overloaded.
    PortsTimedOut,
    /// The completion queues have too few free entries for a channel of this depth.
    NoRoom {
        /// The free entries for send completions.
        sends_left: u32,
        /// The free entries for receive completions.
        receives_left: u32,
    },
    /// The Worker's shared receives have too few receives left for the channel.
    NoShare {
        /// The shared receives that are not reserved for a channel.
        receives_left: u32,
        /// The receives that the channel needs.
        receives_needed: u32,
    },
    /// The Worker has too few slots for the receives of another channel. Slots kept for leases
    /// ([`WorkerConfig::lease_share_percent`](crate::WorkerConfig)) do not count. A closed channel gives its slots back.
    NoSlots {
        /// The number of further receives that there are slots for.
        receives_left: u32,
        /// All slots of the Worker.
        slots: u32,
        /// The number of these slots that are kept for leases.
        leases_kept: u32,
    },
    /// The Worker has slots for all receives of the channel, but too few of them are free now: the others are leased.
    NoMemory,
    /// There is no memory for the cells of the channel ([`ChannelConfig::cell_bytes`](crate::ChannelConfig::cell_bytes)).
    Cells(MemoryError),
    /// The Worker already has `channels_max` channels.
    TooManyChannels {
        /// [`WorkerConfig::channels_max`](crate::WorkerConfig).
        channels_max: u32,
    },
    /// The peers at this address already have `channels_per_address` channels on the Worker.
    TooManyChannelsFrom {
        /// The address of the peers.
        address: IpAddr,
        /// [`WorkerConfig::channels_per_address`](crate::WorkerConfig).
        channels_per_address: u32,
    },
    /// No peer connected before the deadline.
    TimedOut {
        /// The failure of the last attempt, if any peer tried.
        last_failure: Option<Box<ConnectError>>,
    },
    /// The call got other Workers than the handshake began with, or the same Workers in another order.
    OtherWorkers,
    /// The queue of connections that wait to be accepted is full. Connections in progress that reserved a place count, too.
    TooManyUnaccepted {
        /// The capacity of the queue: [`HandshakeLimits::unaccepted`](crate::connect::HandshakeLimits).
        unaccepted: usize,
    },
    /// Unfinished handshakes from this address already hold as much of a scarce resource as is left for all other addresses. If other
    /// IPv6 addresses of its /64 network have unfinished handshakes, the last place is refused, too.
    TooManyUnfinishedFrom {
        /// The address of the peer.
        address: IpAddr,
        /// The number of unfinished handshakes from this address.
        unfinished: usize,
        /// The number of further handshakes that there is room for, from all addresses.
        room: usize,
    },
    /// There are already `links_max` links. Links that peers are about to begin count, too.
    TooManyLinks {
        /// [`LinkConfig::links_max`](crate::link::LinkConfig).
        links_max: u32,
    },
    /// Peers at this address have already begun `links_per_address` links.
    TooManyLinksFrom {
        /// The address of the peer.
        address: IpAddr,
        /// [`LinkConfig::links_per_address`](crate::link::LinkConfig).
        links_per_address: u32,
    },
    /// The listener is closed, and all its connections were accepted. No further connection will come.
    ListenerClosed,
    /// A Worker belongs to another Node, and so to another trust domain.
    OtherTrust,
    /// The address of the peer or of its rail is outside all allowed subnets ([`Trust::only_from`](crate::Trust::only_from)).
    NotAllowed(IpAddr),
    /// The Workers' devices have no usable rail to advertise.
    NoRails,
    /// The port of the rail could not be queried. Other ports may still be usable.
    Port(LookFailure),
    /// The address of a listener has port 0, which is no port to connect to.
    NoPort(SocketAddr),
    /// The peer advertises only IPv6 link-local addresses, and its handle does not name the interface that reaches them.
    OnlyLinkLocal,
    /// The configuration cannot be sent to a peer.
    Configuration(Misuse),
    /// Caller misuse: a setting of [`ChannelConfig`](crate::ChannelConfig) is out of its range.
    Setting(SettingError),
    /// The call does not fit the object that it was made on. The text names the call, and the call to use instead.
    Misuse(&'static str),
    /// A state that doorbell's own code rules out. The text describes the state for a bug report.
    Unreachable(&'static str),
    /// The system call for random bytes failed with this errno.
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
    HandshakeError => Handshake, ProviderError => Provider,
    Misuse => Configuration, SettingError => Setting
);

impl From<NoRoute> for ConnectError {
    fn from(report: NoRoute) -> Self {
        Self::NoRoute(Box::new(report))
    }
}

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

/// Report that no rail of this side reaches a rail of the peer, with the reason for each local rail.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoRoute {
    /// The local rails: device, port and address, if the rail has one; and the reason why the rail was not chosen.
    pub ours: Vec<(String, NotChosen)>,
    /// The local ports that could not be queried or have no rail to the peer: device, port, and the device's error or the reason.
    pub failed: Vec<String>,
    /// The addresses that the peer advertises.
    pub peers: Vec<String>,
    /// The address of the only rail of the peer that may be used, if the peer no longer advertises it.
    pub gone: Option<String>,
}

impl fmt::Display for NoRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no rail reaches the peer, which ")?;
        match (&*self.peers, &self.gone) {
            ([], None) => f.write_str("advertises no rail")?,
            ([], Some(gone)) => write!(f, "is no longer at {gone}")?,
            (peers, None) => write!(f, "is at {}", peers.join(", "))?,
            (peers, Some(gone)) => write!(f, "is at {} and no longer at {gone}", peers.join(", "))?,
        }
        for (rail, reason) in &self.ours {
            write!(f, "; {rail}: {reason}")?;
        }
        self.failed.iter().try_for_each(|failed| write!(f, "; {failed}"))
    }
}

impl core::error::Error for NoRoute {}

/// The errno of a network that could not supply random bytes.
pub(crate) struct Unrandom(pub(crate) i32);
