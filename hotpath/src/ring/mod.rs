//! Rings of small descriptors between threads: one producer or many, one consumer.
//!
//! A ring has a fixed capacity, in storage from the caller. It takes no lock, allocates nothing and never waits: a
//! full ring returns the descriptor, and an empty one reports that it is empty. Its halves are generic over the
//! reference to the ring (a `&'static`, a `&'a`, an `Arc`). The ring limits the number of its halves, so safe code
//! cannot misuse it.
//!
//! The last published word of a slot marks the slot as written. So a descriptor moves with its one cache line, and the
//! consumer polls nothing else. The producer reads the position of returned slots only after it has used all slots that
//! it knew to be free. The orderings have names, and are listed in [`crate::ordering`].
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
