//! The traits that a device, its memory and a network are reached by; the units of verbs; reports of ports and devices; placement of memory.
//!
//! [`Provider`] is implemented by [`Rdma`] on libibverbs and by the simulated fabric. [`Network`] is what opens
//! connections for handshakes. Code that is generic over both runs on a card, in the simulator and on the fake.

pub use doorbell_core::address::{ParsePrefixError, PrefixError};
pub use doorbell_core::handshake::{Io, IoError};
pub use doorbell_core::network::{Acceptor, Network, NetworkError, Stream, WaitBeside, Waited};
pub use doorbell_core::port::{GidEntry, GidKind, Name, PORT_GIDS_MAX, PortReport, PortState, Unusable};
pub use doorbell_core::provider::*;
pub use doorbell_core::wire::RECEIVE_DEPTH_MAX;
pub use doorbell_core::work_id::SLOTS_MAX;
pub use doorbell_core::{
    Access, AddressHandle, Clock, Deadline, Gid, Grh, Instant, IpPrefix, Lkey, Mtu, Psn, Qkey, QpState, Qpn,
    Rkey, SharedReceiveId, Ticket, WcStatus, WorkId, WorkKind,
};
pub use doorbell_ffi::{DeviceReport, Interface, Leaks, ProviderKind, Quirks, Rdma, leaks};
pub use doorbell_hotpath::{Waitable, Waiter};
