//! Memory that two processes map, and rings in it: for processes of one host that do not trust each other.
//!
//! [`SharedMemory`] and [`SharedArena`] are sealed memfds. A [`SharedRing`] lies in the words of a [`SharedMemory`]: one process has its
//! [`SharedProducer`], the other its [`SharedConsumer`]. A process that is about to sleep announces it at a flag, so that the other
//! wakes it only then.
//!
//! ```
//! use doorbell::interprocess::{SharedConsumer, SharedMemory, SharedProducer, SharedRing};
//!
//! let ring = SharedRing::new(0, 64).ok_or("no power of two")?;
//! let ours = SharedMemory::create(ring.words())?;
//! // The other process gets the descriptor over a socket.
//! let descriptor = ours.descriptor().ok_or("adopted")?;
//! let theirs = SharedMemory::adopt(descriptor, ring.words())?;
//!
//! let (mut producer, mut consumer) = (SharedProducer::new(ours, ring), SharedConsumer::new(theirs, ring));
//! assert!(producer.stage(&[1, 2, 3, 4, 5, 6, 7, 8])?);
//! producer.publish();
//! assert_eq!(consumer.peek()?, Some([1, 2, 3, 4, 5, 6, 7, 8]));
//! consumer.advance();
//! consumer.hand_back();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use doorbell_core::interprocess::{SharedBytes, SharedWords};
pub use doorbell_ffi::{PeerCredentials, SharedArena, SharedMemory, SharedMemoryError};
pub use doorbell_hotpath::{
    DESCRIPTOR_WORDS, RingViolation, SHARED_RING_SLOTS_MAX, SharedConsumer, SharedProducer, SharedRing,
    announce_sleep, must_wake, withdraw_sleep,
};
