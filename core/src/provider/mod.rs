//! The seam: what an RDMA device does, in verbs' own words.
//!
//! `doorbell-ffi` implements these traits on rdma-core, `doorbell-sim` on a virtual fabric.
//! Everything above is generic over [`Provider`], by static dispatch.
//!
//! **Every method is safe against any safe caller.** Local memory is an owned, unclonable [`Slot`]: posting moves it
//! in, polling hands it back, and in between no caller can look. Requests may name ranges of a [`Window`], too, to which no
//! reference exists. No sequence of calls, in any order, on any objects,
//! may alias or free memory under the device; that proof is the provider's own, and nothing above it is trusted.

mod cell;
mod config;
mod datagram;
mod device;
mod error;
mod memory;
mod on_demand;
mod placement;
mod queue;

pub use crate::remote::{REQUEST_BYTES_MAX, RemoteAccess, RemoteAddress};
pub use cell::LoneCell;
pub use config::{
    AddressVector, ArenaConfig, CompletionQueueConfig, DatagramConfig, QueuePairConfig, QueuePairLimits,
    ReadyToReceive, ReadyToSend, SharedReceiveQueueConfig, WindowConfig,
};
pub use datagram::{
    Datagram, DatagramBatch, DatagramPairParts, DatagramQueuePair, DatagramReceiveBatch,
    DatagramReceiveQueue, DatagramSendQueue, Destination,
};
pub use device::{
    AsyncEvent, ClaimedQueuePairParts, Context, DataInOrder, DeviceLimits, ProtectionDomain, Provider,
    QueuePair, QueuePairParts, ReceivesClaim, SharedQueuePairParts,
};
pub use error::{
    CellsError, LookFailure, OutOfWindow, PostError, ProviderError, PushError, Refused, Rejected,
    SettingError, UnpostedReason,
};
pub use memory::{Arena, Attacher, DetachedSlot, DomainId, RevokeError, Slot, Window, WindowRange};
pub use on_demand::OnDemand;
pub use placement::{MemoryError, NumaNode, Pages, Placement, PlacementConfig, Seen, Shortfall, Step, Wish};
pub use queue::{
    ATOMIC_BYTES, Arrival, ArrivalKind, Completion, CompletionQueue, GATHER_MAX, Lent, LentCompletion,
    Operation, PostFlags, ReceiveBatch, ReceiveQueue, Retired, SendBatch, SendQueue, SharedReceiveQueue,
    Waker,
};
