//! Memory shared by two processes of one host that do not trust each other, and rings in that memory.
//!
//! [`SharedMemory`] and [`SharedArena`] are sealed memfds. A [`SharedRing`] uses the words of a [`SharedMemory`]: one process holds the
//! [`SharedProducer`], the other the [`SharedConsumer`]. A process that is about to sleep sets a flag. The other process wakes it only
//! if the flag is set.
//!
//! ```
//! use doorbell::interprocess::{SharedConsumer, SharedMemory, SharedProducer, SharedRing};
//!
//! let ring = SharedRing::new(0, 64).ok_or("no power of two")?;
//! let ours = SharedMemory::create(ring.words())?;
//! // The other process gets the descriptor over a socket.
//! let descriptor = ours.descriptor().ok_or("adopted")?;
//! let theirs = SharedMemory::adopt(descriptor, ring.words())?;
//! // Otherwise it may have shrunk the memory, and an access would raise SIGBUS.
//! assert!(ours.is_sealed());
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
