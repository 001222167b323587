//! Rings of small descriptors between threads: one producer or many, one consumer.
//!
//! A ring has a fixed capacity, in storage of the caller's. It takes no lock, allocates nothing and never waits:
//! a full ring gives the descriptor back, an empty one says so. Its halves are generic over how they refer to it
//! (a `&'static`, a `&'a`, an `Arc`). No more halves exist at once than the ring is made for, so safe code cannot
//! misuse it.
//!
//! The word of a slot that is published last marks the slot as written. So a descriptor moves with the one cache
//! line that it lies on, and the consumer polls nothing else. The producer reads how far slots were handed back
//! only after it has used up all the slots it knew of. The orderings have names and are listed in
//! [`crate::ordering`].
//!
//! ```
//! use doorbell_hotpath::ring::{Descriptor, Slot, SpscRing, TakeError};
//!
//! static RING: SpscRing<[Slot; 64]> = SpscRing::in_place();
//!
//! let (mut producer, mut consumer) = SpscRing::split(&RING)?;
//! let item = Descriptor {
//!     words: [1, 2, 3],
//!     index: 4,
//!     kind: 5,
//! };
//! producer.push(item)?;
//! producer.close();
//! assert_eq!(consumer.take(), Ok(item));
//! assert_eq!(consumer.take(), Err(TakeError::Closed));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod consumer;
mod descriptor;
mod error;
mod lane;
mod mpsc;
mod slot;
mod spsc;

pub use consumer::{Batch, Consumer, Ring};
pub use descriptor::Descriptor;
pub use error::{CapacityError, ClaimError, Closed, PushError, TakeError};
pub use mpsc::{MpscHandle, MpscProducer, MpscRing};
pub use slot::Slot;
pub use spsc::{SpscHandle, SpscProducer, SpscRing};

#[cfg(all(test, not(any(doorbell_loom, doorbell_shuttle))))]
mod tests;
