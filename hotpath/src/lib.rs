//! The data path of doorbell: when to signal, when to repost, what may be sent, whose failure it was.
//!
//! Everything here is generic over the provider traits of `doorbell-core`, allocates
//! nothing (storage comes from the caller at set-up), takes no lock and makes no call of
//! its own beyond the provider's. There is no socket, clock or thread here.
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
