//! The real provider: RDMA devices through rdma-core's libibverbs, behind `doorbell-core`'s traits.
//!
//! Every unsafe verbs call of doorbell is in this crate, each behind a safe wrapper that names the call it makes.
//! Begin with [`Rdma`]. The crate is sound because:
//!
//! 1. Memory that a device may touch is a [`Slot`] or a [`Window`]. Posting moves a slot into a queue, and only a
//!    completion of the device gives it back. Safe code can neither clone nor make a [`Completion`]. The bytes of a
//!    window are never borrowed as a reference, and a window over a dma-buf is not mapped at all.
//! 2. Every object holds its parents, so drop order does not matter: the device is closed last.
//! 3. An object that a device does not destroy is leaked and counted ([`leaks`]), with everything that it may still
//!    touch.
//!
//! Decisions about connections, timeouts and routing do not live here.

mod address;
mod arena;
mod attacher;
mod cells;
mod channels;
mod clock;
mod completion;
mod completion_queue;
mod context;
mod datagram;
mod descriptor;
mod dmabuf;
mod domain;
mod errno;
mod events;
mod interface;
mod kernel_view;
mod leak;
mod loan;
mod mapping;
mod mapping_watch;
mod memory_region;
mod message_slot;
mod orphan;
#[cfg(test)]
mod page_faults;
mod peer_credentials;
mod placement;
mod port;
mod queue_pair;
mod quirk;
mod range_registration;
mod rdma;
mod receive_queue;
mod receive_ring;
mod release_watch;
mod send_queue;
mod send_ring;
mod shared_memory;
mod shared_receive_queue;
mod signals;
mod slot;
mod sysfs;
mod unposted;
mod waker;
mod window;
mod work_list;

pub use arena::Arena;
pub use attacher::Attacher;
pub use cells::LoneCell;
pub use clock::now;
pub use completion::{Completion, LentCompletion};
pub use completion_queue::CompletionQueue;
pub use context::Context;
pub use datagram::{
    DatagramBatch, DatagramQueuePair, DatagramReceiveBatch, DatagramReceiveQueue, DatagramSendQueue,
};
pub use descriptor::Descriptor;
pub use dmabuf::{DmabufError, DmabufRange};
pub use domain::ProtectionDomain;
pub use interface::Interface;
pub use leak::{Leaks, leaks};
pub use loan::Loan;
pub use mapping::{LentMemory, StableMemory};
pub use mapping_watch::MappingWatch;
pub use message_slot::MessageSlot;
pub use peer_credentials::PeerCredentials;
pub use queue_pair::{Claim, QueuePair, SharedClaim};
pub use quirk::{ProviderKind, Quirks};
pub use range_registration::{PinnedMemory, RangeRegistration, is_watchable, pinned_memory};
pub use rdma::{DeviceReport, Rdma};
pub use rdma_sys::LoadError;
pub use receive_queue::{ReceiveBatch, ReceiveQueue};
pub use release_watch::ReleaseWatch;
pub use send_queue::{SendBatch, SendQueue};
pub use shared_memory::{SharedArena, SharedMemory, SharedMemoryError};
pub use shared_receive_queue::{SharedReceiveBatch, SharedReceiveQueue};
pub use slot::Slot;
pub use waker::Waker;
pub use window::Window;
