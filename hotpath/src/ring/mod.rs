//! Rings of small descriptors between threads: one producer or many, one consumer.
//!
//! A ring has a fixed capacity, in storage of the caller's. It takes no lock, allocates
//! nothing and never waits: full gives the descriptor back, empty says so. Its halves are
//! generic over how they refer to it (a `&'static`, a `&'a`, an `Arc`), and no more of them
//! can be had than the ring is made for, so that safe code cannot misuse it.
//!
//! A slot says itself whether it is written, in the word that is published last. So a
//! descriptor moves with the one cache line it lies on, and the consumer polls nothing else;
//! the producer looks how far slots were handed back only when all it knew of are used up.
//! The orderings have names and stand in [`crate::ordering`].
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
