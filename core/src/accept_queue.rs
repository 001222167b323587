//! Queue of connections whose handshake is done, from the threads that do handshakes to the threads that accept.
//!
//! A queue pair does not fit a word of a ring, so the queue carries an index into a table of the caller's. A handshake
//! thread reserves a place in the table before it accepts the peer ([`AcceptQueue::reserve`]). It then publishes the
//! reservation, or drops it to give it up. An accepted peer therefore always has room, and publishing never fails.
//!
//! The storage bounds the queue. Any number of threads reserve and any number take. No call waits: timeouts are the
//! caller's. A closed queue takes no more reservations, and reports that it is over once the existing ones are settled.
//!
//! The queue stands in `core`, beside the lists that return memory: it belongs to the control plane and knows no
//! provider. A ring of `hotpath` holds a place for an instant and has one consumer. This queue holds a place for as
//! long as a peer takes to answer. Each place has a word of its own that says who has it. The search for a free place
//! goes through all of them, which costs far less than a connection.
//!
//! ```
//! use doorbell_core::accept_queue::{AcceptQueue, AcceptSlot, TakeError};
//!
//! let queue = AcceptQueue::new([AcceptSlot::new(), AcceptSlot::new()]);
//! let place = AcceptQueue::reserve(&queue)?;
//! let index = place.index(); // the connection goes there in the caller's table
//! place.publish();
//! queue.close();
//! let taken = AcceptQueue::take(&queue)?;
//! assert_eq!(taken.index(), index);
//! drop(taken); // it went from the table, the place is free
//! assert_eq!(AcceptQueue::take(&queue).err(), Some(TakeError::Closed));
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```

use core::fmt;
use core::ops::Deref;

use static_assertions::const_assert_eq;

use crate::ordering::{
    ACCEPT_CLOSE, ACCEPT_CLOSED, ACCEPT_FREE, ACCEPT_PUBLISH, ACCEPT_RESERVE, ACCEPT_SETTLE, ACCEPT_TAKE,
};
use crate::sync::{AtomicU64, Ordering};

/// The most places a queue has: the largest number that fits its part of the counts.
pub const ACCEPT_SLOTS_MAX: usize = (1 << 31) - 1;

/// The place is free.
const FREE: u64 = 0;
/// The place is reserved.
const RESERVED: u64 = 1;
/// The connection in the place is taken.
const TAKEN: u64 = 2;
/// The connection in the place is published; the bits above hold the order of publishing.
const PUBLISHED: u64 = 3;
const STATE_BITS: u32 = 2;

/// One more place that is not free: bits 0 to 30 of the counts.
const HELD_ONE: u64 = 1;
/// One more place that is reserved or published: bits 31 to 61.
const PENDING_ONE: u64 = 1 << 31;
const COUNT_MASK: u64 = PENDING_ONE - 1;
const_assert_eq!(ACCEPT_SLOTS_MAX as u64, COUNT_MASK);
/// No place can be reserved any more.
const CLOSED: u64 = 1 << 63;

/// One place of an [`AcceptQueue`].
pub struct AcceptSlot(AtomicU64);

impl AcceptSlot {
    /// A free place.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(FREE))
    }

    /// Takes the place from one state to another, if it is in that one.
    fn pass(&self, from: u64, to: u64, ordering: Ordering) -> bool {
        // Relaxed where it is another's: nothing is read.
        self.0
            .compare_exchange(from, to, ordering, Ordering::Relaxed)
            .is_ok()
    }
}

/// The queue, over `Slots`: an array, a `Vec`, or anything else that always gives the same slice.
///
/// Progress: all calls are lock-free; a call repeats a step only if another thread got ahead. A stopped thread that
/// holds a reservation keeps its place, and hinders the others in nothing else.
///
/// Order: about that of publishing, so that none is passed over for long.
pub struct AcceptQueue<Slots> {
    /// Places that are not free, places that are pending, and [`CLOSED`]: one word, so that closing and
    /// reserving come one after the other.
    counts: AtomicU64,
    /// How many were published.
    published: AtomicU64,
    slots: Slots,
}

/// A way to refer to a queue: a `&'static`, a `&'a`, an `Arc`, or the like.
pub trait AcceptHandle: Deref<Target = AcceptQueue<<Self as AcceptHandle>::Slots>> {
    /// The queue's storage.
    type Slots: AsRef<[AcceptSlot]>;
}

impl<Q, Slots> AcceptHandle for Q
where
    Q: Deref<Target = AcceptQueue<Slots>>,
    Slots: AsRef<[AcceptSlot]>,
{
    type Slots = Slots;
}

impl<Slots: AsRef<[AcceptSlot]>> AcceptQueue<Slots> {
    /// An empty queue of as many places as there are slots, at most [`ACCEPT_SLOTS_MAX`].
    pub fn new(slots: Slots) -> Self {
        Self {
            counts: AtomicU64::new(0),
            published: AtomicU64::new(0),
            slots,
        }
    }

    /// How many connections it holds at most, those included whose place is only reserved.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots().len()
    }

    /// How many places are free. Other threads reserve and free places meanwhile.
    #[must_use]
    pub fn free(&self) -> usize {
        // Relaxed: nothing is done by it that a place would be needed for.
        let held = held(self.counts.load(Ordering::Relaxed));
        self.capacity()
            .saturating_sub(usize::try_from(held).unwrap_or(usize::MAX))
    }

    /// Reserves a place, before the peer is accepted.
    ///
    /// # Errors
    /// All places are held, or the queue is closed: the peer has to be rejected.
    ///
    /// Ordering: `ACCEPT_RESERVE` pairs with `ACCEPT_FREE` where the place was left, so what was done
    /// with it in the caller's table is done.
    pub fn reserve<Q>(queue: Q) -> Result<Reservation<Q>, ReserveError>
    where
        Q: AcceptHandle<Slots = Slots> + Deref<Target = Self>,
    {
        queue.count_in()?;
        let index = queue.find_free();
        Ok(Reservation {
            queue,
            index,
            is_published: false,
        })
    }

    /// Takes a connection that was published, the oldest of those seen.
    ///
    /// # Errors
    /// [`TakeError`]: no connection is there now, or none will come any more.
    ///
    /// Ordering: `ACCEPT_TAKE` pairs with `ACCEPT_PUBLISH`, so the entry in the caller's table is there. If none will
    /// come any more: as for [`is_over`](Self::is_over).
    pub fn take<Q>(queue: Q) -> Result<Taken<Q>, TakeError>
    where
        Q: AcceptHandle<Slots = Slots> + Deref<Target = Self>,
    {
        let counts = queue.counts.load(ACCEPT_CLOSED.get());
        if pending(counts) == 0 {
            return Err(if counts & CLOSED == 0 {
                TakeError::Empty
            } else {
                TakeError::Closed
            });
        }
        let index = queue.take_oldest().ok_or(TakeError::Empty)?;
        Ok(Taken { queue, index })
    }

    /// Closes the queue for good: no new place can be reserved. A reserved place may still be published, and a
    /// published connection may still be taken. Any thread may call this.
    ///
    /// Ordering: `ACCEPT_CLOSE` pairs with `ACCEPT_CLOSED` wherever it is learned.
    pub fn close(&self) {
        self.counts.fetch_or(CLOSED, ACCEPT_CLOSE.get());
    }

    /// Whether the queue is closed. There may be connections in it.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.counts.load(ACCEPT_CLOSED.get()) & CLOSED != 0
    }

    /// Whether the queue is closed and every place is free again: no other thread uses the caller's table any more.
    ///
    /// Ordering: `ACCEPT_CLOSED` pairs with `ACCEPT_SETTLE` of every place that was left, and with
    /// `ACCEPT_CLOSE`.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.counts.load(ACCEPT_CLOSED.get()) == CLOSED
    }

    fn slots(&self) -> &[AcceptSlot] {
        let slots = self.slots.as_ref();
        slots.get(..ACCEPT_SLOTS_MAX).unwrap_or(slots)
    }

    /// Counts one more that is reserved, if there is a place for it.
    fn count_in(&self) -> Result<(), ReserveError> {
        // Relaxed, here and below: each place's own word says who has it, and orders what is done with it.
        let mut counts = self.counts.load(Ordering::Relaxed);
        loop {
            if counts & CLOSED != 0 {
                // Learns what was done before it was closed.
                let _ = self.is_closed();
                return Err(ReserveError::Closed);
            }
            if held(counts) >= self.capacity() as u64 {
                return Err(ReserveError::Full);
            }
            let more = counts.wrapping_add(HELD_ONE | PENDING_ONE);
            match self
                .counts
                .compare_exchange(counts, more, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Ok(()),
                Err(current) => counts = current,
            }
        }
    }

    /// Gets one of the places that are free. There is one for each that was counted in: a place is free
    /// before it is no longer counted.
    fn find_free(&self) -> u32 {
        let slots = self.slots();
        loop {
            // From another one each time, so that the first are not gone through in vain.
            let start = self.published.load(Ordering::Relaxed);
            for (index, slot) in around(slots, start) {
                if slot.pass(FREE, RESERVED, ACCEPT_RESERVE.get()) {
                    return index;
                }
            }
            // Another got ahead, or a place that was freed is not seen yet.
            core::hint::spin_loop();
        }
    }

    fn take_oldest(&self) -> Option<u32> {
        loop {
            // Relaxed: a caller that takes looks again.
            let published = around(self.slots(), 0)
                .map(|(index, slot)| (slot.0.load(Ordering::Relaxed), index, slot))
                .filter(|(state, ..)| state & PUBLISHED == PUBLISHED);
            let (state, index, slot) = published.min_by_key(|(state, ..)| *state)?;
            if slot.pass(state, TAKEN, ACCEPT_TAKE.get()) {
                // Relaxed: the place is still held, and orders what is done with it once it is left.
                self.counts.fetch_sub(PENDING_ONE, Ordering::Relaxed);
                return Some(index);
            }
        }
    }

    /// Frees a place, and takes it out of the counts that it was part of.
    fn leave(&self, index: u32, counted: u64) {
        if let Some(slot) = self.slots().get(index as usize) {
            slot.0.store(FREE, ACCEPT_FREE.get());
        }
        self.counts.fetch_sub(counted, ACCEPT_SETTLE.get());
    }
}

/// All slots with their indices, once round from one on.
fn around(slots: &[AcceptSlot], start: u64) -> impl Iterator<Item = (u32, &AcceptSlot)> {
    let start = start.checked_rem(slots.len() as u64).unwrap_or(0);
    let (before, after) = usize::try_from(start)
        .ok()
        .and_then(|start| slots.split_at_checked(start))
        .unwrap_or((&[], slots));
    // There are no more slots than these numbers.
    let from = |start: usize| u32::try_from(start).unwrap_or(0)..;
    let after = from(before.len()).zip(after);
    after.chain((0..).zip(before))
}

const fn held(counts: u64) -> u64 {
    counts & COUNT_MASK
}

const fn pending(counts: u64) -> u64 {
    (counts / PENDING_ONE) & COUNT_MASK
}

/// A place for a connection whose peer may be accepted. Dropping it gives the place up.
#[must_use = "dropped, it is given up"]
pub struct Reservation<Q: AcceptHandle> {
    queue: Q,
    index: u32,
    is_published: bool,
}

impl<Q: AcceptHandle> Reservation<Q> {
    /// Index in the caller's table at which to put the connection; no other thread uses that place meanwhile.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Lets the connection be taken. It was put into the table before, and is no longer this thread's.
    ///
    /// Ordering: `ACCEPT_PUBLISH` pairs with `ACCEPT_TAKE` in [`AcceptQueue::take`].
    pub fn publish(mut self) {
        // The place is the taker's from here on: it must not be given up.
        self.is_published = true;
        // Relaxed: the number only decides the order, which is about that of publishing.
        let number = self.queue.published.fetch_add(1, Ordering::Relaxed);
        if let Some(slot) = self.queue.slots().get(self.index as usize) {
            slot.0
                .store(number << STATE_BITS | PUBLISHED, ACCEPT_PUBLISH.get());
        }
    }
}

impl<Q: AcceptHandle> Drop for Reservation<Q> {
    fn drop(&mut self) {
        if !self.is_published {
            self.queue.leave(self.index, HELD_ONE | PENDING_ONE);
        }
    }
}

/// A connection that was taken. Once it is dropped, its place may be reserved again.
#[must_use = "dropped, its place is free"]
pub struct Taken<Q: AcceptHandle> {
    queue: Q,
    index: u32,
}

impl<Q: AcceptHandle> Taken<Q> {
    /// Index of the connection in the caller's table; no other thread uses that place meanwhile.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl<Q: AcceptHandle> Drop for Taken<Q> {
    fn drop(&mut self) {
        self.queue.leave(self.index, HELD_ONE);
    }
}

/// Why no place was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReserveError {
    /// Back-pressure: all places are held. Try again once connections were accepted.
    Full,
    /// The queue was closed: there will be no more places.
    Closed,
}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the queue of connections that wait to be accepted is full: accept more often",
            Self::Closed => "the queue of connections is closed",
        })
    }
}

impl core::error::Error for ReserveError {}

/// Why no connection was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TakeError {
    /// None is there now.
    Empty,
    /// None is there, and none comes any more.
    Closed,
}

impl fmt::Display for TakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "no connection waits to be accepted",
            Self::Closed => "no connection waits to be accepted, and none will",
        })
    }
}

impl core::error::Error for TakeError {}

impl Default for AcceptSlot {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for AcceptSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceptSlot").finish_non_exhaustive()
    }
}

impl<Slots> fmt::Debug for AcceptQueue<Slots> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.counts.load(Ordering::Relaxed);
        f.debug_struct("AcceptQueue")
            .field("held", &held(counts))
            .field("pending", &pending(counts))
            .field("is_closed", &(counts & CLOSED != 0))
            .finish_non_exhaustive()
    }
}

impl<Q: AcceptHandle> fmt::Debug for Reservation<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({})", self.index)
    }
}

impl<Q: AcceptHandle> fmt::Debug for Taken<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Taken({})", self.index)
    }
}

#[cfg(all(test, not(any(doorbell_loom, doorbell_shuttle))))]
mod tests;
