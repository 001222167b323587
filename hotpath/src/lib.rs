//! The data path of doorbell: signaling, reposting, flow control, and the cause of failures.
//!
//! The crate is generic over the provider traits of `doorbell-core`. It allocates nothing
//! (storage comes from the caller at set-up), takes no lock, and calls only the provider. It
//! uses no socket, clock or thread.
#![no_std]

#[cfg(test)]
extern crate std;

mod credits;
mod due;
mod failure;
mod failures;
mod marks;
mod notify_flag;
mod one_sided;
pub mod ordering;
mod receiver;
pub mod ring;
mod sender;
mod shared;
mod shared_ring;
mod sleeping;
mod statistics;
mod waiting;

pub use credits::{Announcer, Credits, FarewellWord, Granting, Grants, WindowWord};
pub use due::DueList;
pub use failure::FirstCause;
pub use failures::{FailureTaker, Failures, take_late};
pub use marks::{StorageError, marks_for};
pub use notify_flag::NotifyFlag;
pub use one_sided::{RingMessage, RingReadError, RingReader, RingRefusal, RingWriter};
pub use receiver::{Receiver, ReceiverConfig};
pub use sender::{
    Batch, FAREWELL, FAREWELL_BYTES, Flow, LoneCell, Outcome, RequestLimits, Sender, SenderConfig, Unposted,
    UnpostedReason,
};
pub use shared::{Share, SharedReceiver, Taken};
pub use shared_ring::{
    DESCRIPTOR_WORDS, RingViolation, SHARED_RING_SLOTS_MAX, SharedConsumer, SharedProducer, SharedRing,
};
pub use sleeping::{SleepFlag, announce_sleep, must_wake, withdraw_sleep};
pub use statistics::{BATCH_BUCKETS, Counter, Statistics, StatisticsSnapshot};
pub use waiting::{Wait, Waitable, Waiter, Woken, prepare_sleep};
