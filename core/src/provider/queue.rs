//! The data path of the seam: posting guards, completions, and the way slots come back.

use core::borrow::Borrow;
use core::time::Duration;

use crate::remote::RemoteAddress;
use crate::{Qpn, SharedReceiveId, Ticket, WcStatus, WorkId};

use super::{
    CellsError, LoneCell, PostError, ProviderError, PushError, Refused, Rejected, Slot, Window, WindowRange,
};

/// How many gather or scatter elements a request has at most.
pub const GATHER_MAX: usize = 4;

/// The operation of a work request.
///
/// Source: InfiniBand Architecture volume 1, section 9.4; `ibv_post_send(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the reliable-connection operations of verbs"
)]
pub enum Operation {
    /// SEND into the peer's next receive.
    Send,
    /// SEND with a word the peer's completion carries; the word is in host order here.
    SendWithImmediate(u32),
    /// WRITE into a peer's window.
    Write(RemoteAddress),
    /// WRITE, and a word that consumes the peer's next receive.
    WriteWithImmediate(RemoteAddress, u32),
    /// READ from a peer's window into the slots: as many bytes as the slots are meant to have. A channel takes leases
    /// without a length for what the address reaches, as far as it fits into them.
    Read(RemoteAddress),
    /// Adds to an aligned word of the peer; the slot receives what was there before.
    FetchAndAdd {
        /// The word.
        remote: RemoteAddress,
        /// The number to add, wrapping.
        add: u64,
    },
    /// Replaces an aligned word of the peer if it equals `compare`; the slot receives the word's value from before.
    CompareAndSwap {
        /// The word.
        remote: RemoteAddress,
        /// The value that the word must have.
        compare: u64,
        /// The value that replaces it.
        swap: u64,
    },
}

/// Bytes of the word that an atomic works on, and what its address is a multiple of.
pub const ATOMIC_BYTES: u32 = 8;

impl Operation {
    /// Whether it brings data back into the slots.
    #[must_use]
    #[inline]
    pub const fn writes_slots(self) -> bool {
        matches!(
            self,
            Self::Read(_) | Self::FetchAndAdd { .. } | Self::CompareAndSwap { .. }
        )
    }

    /// Whether it consumes one of the peer's receives (S17): a message.
    #[must_use]
    #[inline]
    pub const fn takes_receive(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendWithImmediate(_) | Self::WriteWithImmediate(..)
        )
    }

    /// Whether it is an atomic.
    #[must_use]
    #[inline]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAndAdd { .. } | Self::CompareAndSwap { .. })
    }
}

bitflags::bitflags! {
    /// How a request is to be carried out, in verbs' own bits. Source: `ibv_post_send(3)`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct PostFlags: u8 {
        /// A success makes a completion too; an error always makes one (S5).
        const SIGNALED = 1 << 1;
        /// Waits until earlier READs and atomics of this queue are done.
        const FENCE = 1;
        /// Wakes a peer that armed its completion queue for solicited ones.
        const SOLICITED = 1 << 2;
        /// The bytes are copied into the request when the doorbell rings.
        const INLINE = 1 << 3;
    }
}

/// The send half of a queue pair; with its completion queue it belongs to one thread.
pub trait SendQueue: Send + Sized + 'static {
    /// Memory that is posted.
    type Slot: Slot;
    /// Completion that polling lends, where it is kept.
    type Completion: Completion;
    /// Window whose ranges are posted.
    type Window: Window;
    /// The posting guard.
    type Batch<'q>: SendBatch<'q, Slot = Self::Slot, Window = Self::Window>;
    /// The cell of a request that is posted by itself.
    type Cell<'q>: LoneCell;

    /// Gives the queue its cells: memory of its own that requests go out from in place ([`SendBatch::cell`]). It takes as many
    /// of these slots as it needs, one for each request that may be in flight, rounded up to a power of two. They are of one
    /// arena, in the protection domain of the queue pair, and go home when the queue pair is destroyed.
    ///
    /// # Errors
    /// [`CellsError`] says why not. The slots taken so far go home, and the queue is as it was.
    fn furnish<I: IntoIterator<Item = Self::Slot>>(&mut self, slots: I) -> Result<(), CellsError>;

    /// Returns how many bytes each cell has, or 0 before the queue has any.
    fn cell_bytes(&self) -> u32;

    /// Lends the cell of the next request, to be posted by itself. If an earlier batch was forgotten, its staged requests are
    /// unstaged first.
    ///
    /// # Errors
    /// As for [`SendBatch::cell`].
    fn cell(&mut self) -> Result<Self::Cell<'_>, PushError>;

    /// Begins a batch. If an earlier batch was forgotten, its staged requests are unstaged first.
    fn stage(&mut self) -> Self::Batch<'_>;

    /// Gives back everything up to the request this completion names.
    ///
    /// A completion proves all earlier requests of the queue done too, signaled or not.
    /// `each` gets their slots in posting order, each with the ticket of its request. If it panics, all of
    /// them are given back, and the slots it did not get go home.
    ///
    /// # Errors
    /// The completion names nothing that is in flight here; nothing was given back.
    fn retire<F: FnMut(Ticket, Self::Slot)>(
        &mut self,
        completion: Lent<'_, Self::Completion>,
        each: F,
    ) -> Result<Retired, Rejected>;

    /// Gives back everything up to the request that this completion names, as [`SendQueue::retire`] does, if it succeeded. Returns the
    /// ticket of that request. `None` where it is otherwise, and nothing was given back: the completion is for [`SendQueue::retire`].
    fn retire_done<F: FnMut(Ticket, Self::Slot)>(
        &mut self,
        completion: &Lent<'_, Self::Completion>,
        each: F,
    ) -> Option<Ticket>;

    /// How many requests are in flight.
    fn in_flight(&self) -> u32;

    /// How many more can be staged now.
    fn room(&self) -> u32;

    /// How many completions it rejected: stale, duplicate, or another's.
    fn rejected(&self) -> u64;
}

/// Requests staged for one doorbell. Dropping it rings nothing: what was staged is
/// unstaged, and its slots go home.
pub trait SendBatch<'q>: Sized {
    /// Memory that is posted.
    type Slot: Slot;
    /// Window whose ranges are posted.
    type Window: Window;

    /// Stages one request with `N` slots, up to [`GATHER_MAX`].
    ///
    /// The first [`Slot::len_bytes`] bytes of each slot take part. An atomic takes one slot of at least eight bytes of
    /// capacity.
    ///
    /// # Errors
    /// [`Refused`] hands the slots back with the reason.
    fn push<const N: usize>(
        &mut self,
        operation: Operation,
        slots: [Self::Slot; N],
        flags: PostFlags,
    ) -> Result<Ticket, Refused<[Self::Slot; N]>>;

    /// Stages one request with `N` ranges of windows, up to [`GATHER_MAX`].
    ///
    /// SEND and WRITE take their bytes from the ranges, in order, as they are while the device reads them: a peer or a thread of
    /// this host may write to them meanwhile. READ writes into them. An atomic takes one range of eight bytes. The memory stays
    /// registered until the request is retired, even if the window is dropped. The request gives back one slot without bytes for
    /// each range.
    ///
    /// The device looks at the protection domain of the windows, as at that of slots (S8).
    ///
    /// # Errors
    /// As for [`SendBatch::push`]. Or a range does not lie within its window, or the request is to go inline.
    fn push_ranges<const N: usize>(
        &mut self,
        operation: Operation,
        ranges: [WindowRange<'_, Self::Window>; N],
        flags: PostFlags,
    ) -> Result<Ticket, PushError>;

    /// Stages one request whose bytes are the caller's own and go inline.
    ///
    /// # Errors
    /// The queue is full, the bytes too many, or the operation brings data back.
    fn push_inline(
        &mut self,
        operation: Operation,
        bytes: &'q [u8],
        flags: PostFlags,
    ) -> Result<Ticket, PushError>;

    /// Returns how many bytes each cell has, or 0 where the queue has none.
    fn cell_bytes(&self) -> u32;

    /// Lends the cell of the next request: all its bytes, to be written in place and sent by [`SendBatch::push_cell`]. They
    /// hold what an earlier request left there. Unless it is sent, the next request has it, from whatever memory that goes out.
    ///
    /// # Errors
    /// The queue is full or has no cells, or its state takes no requests.
    fn cell(&mut self) -> Result<&mut [u8], PushError>;

    /// Stages one request of the first `len_bytes` of that cell.
    ///
    /// # Errors
    /// As for [`SendBatch::cell`]. Or the cell has fewer bytes, or the operation brings data back.
    fn push_cell(
        &mut self,
        operation: Operation,
        len_bytes: u32,
        flags: PostFlags,
    ) -> Result<Ticket, PushError>;

    /// The ticket of the request that is staged next. Tickets follow each other.
    fn next(&self) -> Ticket;

    /// How many requests are staged.
    fn staged(&self) -> u32;

    /// Makes the last staged request signaled, whatever it was pushed with.
    fn signal_last(&mut self);

    /// Rings the doorbell once for all that is staged, and returns how many were posted.
    ///
    /// # Errors
    /// The device took only part. `report` gets the error first, and may complete it. Then `unposted` gets the slots of
    /// the rest, in order. If `unposted` panics, the slots it did not get go home.
    fn ring_reporting<T, F>(self, report: T, unposted: F) -> Result<u32, PostError>
    where
        T: FnOnce(&mut PostError),
        F: FnMut(Ticket, Self::Slot);

    /// Rings the doorbell once for all that is staged, and returns how many were posted.
    ///
    /// # Errors
    /// The device took only part. `unposted` gets the slots of the rest, in order, as [`SendBatch::ring_reporting`] says.
    #[inline(always)]
    fn ring_returning<F: FnMut(Ticket, Self::Slot)>(self, unposted: F) -> Result<u32, PostError> {
        self.ring_reporting(|_| {}, unposted)
    }

    /// Rings the doorbell once for all staged requests; returns how many were posted.
    ///
    /// # Errors
    /// The device took only part; the slots of the rest went home.
    #[inline(always)]
    fn ring(self) -> Result<u32, PostError> {
        self.ring_returning(|_, slot| drop(slot))
    }
}

/// The receive half of a queue pair; with its completion queue it belongs to one thread.
pub trait ReceiveQueue: Send + Sized + 'static {
    /// Memory that is posted.
    type Slot: Slot;
    /// Completion that polling lends, where it is kept.
    type Completion: Completion;
    /// Slot of a message that was taken. The queue may know of it that it is still as the receive left it.
    type Message: From<Self::Slot> + Into<Self::Slot> + Borrow<Self::Slot> + Send + 'static;
    /// The posting guard.
    type Batch<'q>: ReceiveBatch<Slot = Self::Slot>;

    /// Begins a batch, behind what an earlier one left staged ([`ReceiveBatch::leave`]). If an earlier batch was forgotten, its
    /// staged receives are unstaged first, and what was left before it.
    fn stage(&mut self) -> Self::Batch<'_>;

    /// Stages one receive into this slot, and leaves it to the next batch ([`ReceiveBatch::leave`]), which sees whether the
    /// queue pair takes receives.
    ///
    /// # Errors
    /// There is no room; the slot is handed back.
    #[inline]
    fn restage(&mut self, slot: Self::Slot) -> Result<(), Self::Slot> {
        let mut batch = self.stage();
        let pushed = batch.push([slot]);
        batch.leave();
        pushed.map(|_| ()).map_err(|refused| {
            let [slot] = refused.item;
            slot
        })
    }

    /// Stages one receive into the slot of a message, as [`ReceiveQueue::restage`] does. It is cheapest of the message that was taken
    /// last.
    ///
    /// # Errors
    /// As for [`ReceiveQueue::restage`].
    #[inline]
    fn put_back(&mut self, message: Self::Message) -> Result<(), Self::Slot> {
        self.restage(message.into())
    }

    /// Takes the receive this completion names; `each` gets its slots in order, their
    /// lengths set to what arrived in each. If it panics, the receive is taken, and the slots it did not get go home.
    ///
    /// # Errors
    /// The completion names nothing that is in flight here; nothing was given back.
    fn retire<F: FnMut(Ticket, Self::Slot)>(
        &mut self,
        completion: Lent<'_, Self::Completion>,
        each: F,
    ) -> Result<Arrival, Rejected>;

    /// Takes the receive this completion names, as [`ReceiveQueue::retire`] does, if a message is in its one slot and no receive
    /// before it is left to redeem. Returns the slot, and the sender's word. `None` where it is otherwise, and nothing was given
    /// back: the completion is for [`ReceiveQueue::retire`].
    fn retire_message(
        &mut self,
        completion: &Lent<'_, Self::Completion>,
    ) -> Option<(Self::Message, Option<u32>)>;

    /// How many receives are posted.
    fn in_flight(&self) -> u32;

    /// How many more can be staged now.
    fn room(&self) -> u32;

    /// How many more can be posted: those that can be staged, and those that are.
    fn missing(&self) -> u32;

    /// How many completions it rejected: stale, duplicate, or another's.
    fn rejected(&self) -> u64;
}

/// Receives that several queue pairs take from; with its completion queue it belongs to one
/// thread.
///
/// A queue pair that fails flushes none of them. Receives that it had begun to take complete in error, and the others
/// stay for the other queue pairs (S22).
///
/// If a queue pair is destroyed after it had begun a receive, that receive may never complete. It comes back when the
/// shared queue is destroyed: once this half and all queue pairs on the queue are gone.
///
/// Source: InfiniBand Architecture volume 1, section 10.2.9.
pub trait SharedReceiveQueue: Send + Sized + 'static {
    /// Memory that is posted.
    type Slot: Slot;
    /// Completion that polling lends, where it is kept.
    type Completion: Completion;
    /// The posting guard.
    type Batch<'q>: ReceiveBatch<Slot = Self::Slot>;
    /// Right of one queue pair to take receives from this queue. It keeps the queue in the device.
    type Claim: Send + Sized + 'static;

    /// Makes a claim for a queue pair that is made later, on whichever thread:
    /// [`super::ProtectionDomain::queue_pair_of`].
    fn claim(&self) -> Self::Claim;

    /// Begins a batch. If an earlier batch was forgotten, its staged receives are unstaged first. Tickets identify
    /// receives; their order has no meaning.
    fn stage(&mut self) -> Self::Batch<'_>;

    /// Takes the receive this completion names, and no other: completions may be redeemed in
    /// any order. `each` gets its slots in order, their lengths set to what arrived in each.
    /// If it panics, the receive is taken, and the slots it did not get go home.
    /// The completion names the queue pair that took it ([`Completion::qpn`]).
    ///
    /// # Errors
    /// The completion names nothing that is in flight here; nothing was given back.
    fn retire<F: FnMut(Ticket, Self::Slot)>(
        &mut self,
        completion: Lent<'_, Self::Completion>,
        each: F,
    ) -> Result<Arrival, Rejected>;

    /// How many receives are posted.
    fn in_flight(&self) -> u32;

    /// How many more can be staged now.
    fn room(&self) -> u32;

    /// How many completions it rejected: stale, duplicate, or another's.
    fn rejected(&self) -> u64;

    /// Returns the id that its events carry.
    fn id(&self) -> SharedReceiveId;

    /// Returns the number that its completions carry in the place of the channel: unique on its completion queue.
    fn number(&self) -> u32;

    /// Asks for one [`super::AsyncEvent::SharedReceiveLimit`] when fewer receives than this are left; zero asks for
    /// none. After the event, none follows until this is called again (S22). If fewer are left already, the event may
    /// come at once or with the next message.
    ///
    /// # Errors
    /// It is more than the depth (`EINVAL`), or the device refused.
    fn set_limit(&mut self, receives: u32) -> Result<(), ProviderError>;
}

/// Receives staged for one post. Dropping it posts nothing, and the slots go home: those that earlier batches left, too.
pub trait ReceiveBatch: Sized {
    /// Memory that is posted.
    type Slot: Slot;

    /// Stages one receive that scatters into `N` slots, up to [`GATHER_MAX`], each to its
    /// whole capacity.
    ///
    /// # Errors
    /// [`Refused`] hands the slots back with the reason.
    fn push<const N: usize>(&mut self, slots: [Self::Slot; N]) -> Result<Ticket, Refused<[Self::Slot; N]>>;

    /// How many receives are staged, those that an earlier batch left among them.
    fn staged(&self) -> u32;

    /// Ends the batch without posting. The next batch of the queue begins with all that is staged.
    fn leave(self);

    /// Posts all staged receives in one call; returns how many were posted.
    ///
    /// # Errors
    /// The device took only part; the slots of the rest went home.
    fn ring(self) -> Result<u32, PostError>;
}

/// A completion as polled: a token that exactly one queue can redeem, once. It is lent for the length of the callback
/// that gets it, and redeemed there or kept.
///
/// It can be neither cloned nor made. One that is kept may be lent again, and its queue rejects it once it is redeemed: so
/// redeeming is proof. Dropped unredeemed, the slots it stands for stay with the device's side until a later one covers them.
pub trait LentCompletion: Sized {
    /// The completion, where it is kept for longer.
    type Kept: Completion;

    /// Returns the work id that the request was posted with.
    fn work_id(&self) -> WorkId;

    /// How it ended.
    fn status(&self) -> WcStatus;

    /// Returns the number of its queue pair.
    fn qpn(&self) -> Qpn;

    /// Keeps it beyond the callback. It is copied.
    fn keep(self) -> Self::Kept;
}

/// A completion that was kept, to be redeemed later.
pub trait Completion: Send + Sized + 'static {
    /// The completion, as a queue redeems it.
    type Lent<'c>: LentCompletion<Kept = Self>;

    /// Lends it to the queue that redeems it. A queue that redeemed it rejects it from then on.
    fn lend(&self) -> Self::Lent<'_>;

    /// Returns the work id that the request was posted with.
    fn work_id(&self) -> WorkId {
        self.lend().work_id()
    }

    /// How it ended.
    fn status(&self) -> WcStatus {
        self.lend().status()
    }

    /// Returns the number of its queue pair.
    fn qpn(&self) -> Qpn {
        self.lend().qpn()
    }
}

/// A completion of this type, as it is lent.
pub type Lent<'c, C> = <C as Completion>::Lent<'c>;

/// Requests a completion gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// The first of them.
    pub first: Ticket,
    /// The request that the completion names. All before it ended in success.
    pub last: Ticket,
    /// How the last one ended.
    pub status: WcStatus,
    /// The device's own code for an error; the vendor defines its meaning.
    pub vendor_error: u32,
}

impl Retired {
    /// How many requests were given back.
    #[must_use]
    #[inline]
    pub const fn count(&self) -> u64 {
        self.last.0.wrapping_sub(self.first.0).wrapping_add(1)
    }
}

/// The operation that consumed a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArrivalKind {
    /// A SEND: the bytes are in the slots.
    Send,
    /// A WRITE with immediate: the bytes are in the window, the slots were not touched.
    WriteWithImmediate,
    /// The receive failed; what it holds is not to be read.
    Failed,
}

/// A receive that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The receive.
    pub ticket: Ticket,
    /// How it ended. If that is no success, no field below holds but `vendor_error` (S7).
    pub status: WcStatus,
    /// The operation that consumed it.
    pub kind: ArrivalKind,
    /// How many bytes came.
    pub payload_bytes: u32,
    /// The sender's word, in host order.
    pub immediate: Option<u32>,
    /// The device's own code for an error; the vendor defines its meaning.
    pub vendor_error: u32,
}

/// A completion queue; polled by one thread.
pub trait CompletionQueue: Send + Sized + 'static {
    /// Completion that polling lends, where it is kept.
    type Completion: Completion;
    /// Handle that wakes a thread asleep at the queue.
    type Waker: Waker;
    /// A channel of it that was promised to a queue pair; dropped, it is free again.
    type Claim: Send + Sized + 'static;
    /// A descriptor of the operating system that an event loop watches: one that lends itself (`AsFd`), where the
    /// provider has any.
    type Descriptor: Sized + 'static;

    /// Takes what completed, at most a provider's batch, and hands each to `each`. Zero
    /// means that nothing had completed.
    ///
    /// If `each` panics, the completion it had is taken. The next poll begins with the rest of the batch.
    ///
    /// # Errors
    /// The device could not be polled; the queue is of no further use.
    fn poll<F: FnMut(Lent<'_, Self::Completion>)>(&mut self, each: F) -> Result<u32, ProviderError>;

    /// How many completions it holds.
    fn depth(&self) -> u32;

    /// Promises a channel to the sends of a queue pair that is made later, on whichever thread:
    /// [`super::ProtectionDomain::queue_pair_of`]. It is cheap, and calls no device.
    ///
    /// # Errors
    /// The channel is not unique here (`EEXIST`), or the queue must be polled first (`EBUSY`).
    fn claim_sends(&self, channel: u32) -> Result<Self::Claim, ProviderError>;

    /// Promises a channel to the receives of a queue pair that is made later; otherwise as
    /// [`CompletionQueue::claim_sends`].
    ///
    /// # Errors
    /// As for [`CompletionQueue::claim_sends`].
    fn claim_receives(&self, channel: u32) -> Result<Self::Claim, ProviderError>;

    /// Whether the sends of this channel are promised to a queue pair, or in use by one. They stay in use for good if
    /// the queue pair was dropped and the device refused to destroy it.
    ///
    /// # Ordering
    /// By a lock, which the end of a queue pair takes, too. A thread that sees anything done after that end also sees
    /// the channel free.
    fn is_claimed(&self, channel: u32) -> bool;

    /// The descriptor that becomes readable after [`CompletionQueue::arm`], where the
    /// queue was made with notification and the provider has it.
    fn notification(&self) -> Option<&Self::Descriptor>;

    /// The descriptor that becomes readable when a [`Waker`] wakes, where the queue was made with notification and the
    /// provider has it.
    fn waking(&self) -> Option<&Self::Descriptor>;

    /// Asks for one notification at the next completion (or the next solicited or failed
    /// one). One-shot: poll again after arming, for what came in between (S23).
    ///
    /// # Errors
    /// The queue was made without notification, or the device refused.
    fn arm(&mut self, solicited_only: bool) -> Result<(), ProviderError>;

    /// Takes the waiting notifications and wake-ups, without blocking; returns how many notifications there were.
    ///
    /// # Errors
    /// The queue was made without notification, or the descriptor failed.
    fn acknowledge(&mut self) -> Result<u32, ProviderError>;

    /// Returns a handle that wakes a thread asleep at this queue. It works from any thread, for as long as it is kept;
    /// after the queue's end it does nothing. `None` if the queue was made without notification.
    fn waker(&self) -> Option<Self::Waker>;

    /// Sleeps until one of these queues has a notification or a wake-up that was not taken yet, or
    /// for `span`. It may end early for no reason.
    ///
    /// # Errors
    /// A queue was made without notification, or its descriptor failed.
    fn sleep<const N: usize>(queues: [&Self; N], span: Duration) -> Result<(), ProviderError>;
}

/// Wakes a thread that sleeps at a completion queue.
pub trait Waker: Clone + Send + Sync + Sized + 'static {
    /// Ends a sleep at the queue. If no thread sleeps, it ends the next sleep, unless the wake-up is taken before
    /// ([`CompletionQueue::acknowledge`]).
    ///
    /// # Ordering
    /// Operations before the call happen before the woken thread goes on.
    fn wake(&self);
}
