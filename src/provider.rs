//! The traits of devices, memory and networks; the units of verbs; reports of ports and devices; placement of memory.
//!
//! [`Rdma`] implements [`Provider`] on libibverbs, and the simulated fabric implements it, too. [`Network`] opens the stream
//! connections for handshakes. Code that is generic over both traits runs on a real device and in the simulator. With [`Rdma`] it
//! also runs on the fake libibverbs of the tests.

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
