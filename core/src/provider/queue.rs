//! The data path of the provider traits: posting guards, completions, and how slots are returned.

use core::borrow::Borrow;
use core::time::Duration;

use crate::remote::RemoteAddress;
use crate::{Qpn, SharedReceiveId, Ticket, WcStatus, WorkId};

use super::{
    CellsError, LoneCell, PostError, ProviderError, PushError, Refused, Rejected, Slot, Window, WindowRange,
};

/// The maximum number of gather or scatter elements of a request.
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
    /// SEND with an immediate value, which the peer's completion carries; here it is in host order.
    SendWithImmediate(u32),
    /// WRITE into a peer's window.
    Write(RemoteAddress),
    /// WRITE with an immediate value, which consumes the peer's next receive.
    WriteWithImmediate(RemoteAddress, u32),
    /// READ from a peer's window into the slots, as many bytes as the lengths of the slots. For leases without a length, a
    /// channel reads all bytes of the address that fit into them.
    Read(RemoteAddress),
    /// Adds to an aligned word of the peer; the slot receives the previous value.
    FetchAndAdd {
        /// The word.
        remote: RemoteAddress,
        /// The number to add, wrapping.
        add: u64,
    },
    /// Replaces an aligned word of the peer if it equals `compare`; the slot receives the previous value.
    CompareAndSwap {
        /// The word.
        remote: RemoteAddress,
        /// The value that the word has to equal.
        compare: u64,
        /// The value that replaces it.
        swap: u64,
    },
}

/// The bytes of the word of an atomic, whose address must be a multiple of this number.
pub const ATOMIC_BYTES: u32 = 8;

impl Operation {
    /// Whether the operation returns data into the slots.
    #[must_use]
    #[inline]
    pub const fn writes_slots(self) -> bool {
        matches!(
            self,
            Self::Read(_) | Self::FetchAndAdd { .. } | Self::CompareAndSwap { .. }
        )
    }

    /// Whether the operation consumes one of the peer's receives (S17), as a message does.
    #[must_use]
    #[inline]
    pub const fn takes_receive(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendWithImmediate(_) | Self::WriteWithImmediate(..)
        )
    }

    /// Whether the operation is an atomic.
    #[must_use]
    #[inline]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAndAdd { .. } | Self::CompareAndSwap { .. })
    }
}

bitflags::bitflags! {
    /// The flags of a request, with the bits of verbs. Source: `ibv_post_send(3)`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct PostFlags: u8 {
        /// A successful request also generates a completion; a failed one always does (S5).
        const SIGNALED = 1 << 1;
        /// The request waits until earlier READs and atomics of this queue are done.
        const FENCE = 1;
        /// The message wakes a peer that armed its completion queue for solicited completions.
        const SOLICITED = 1 << 2;
        /// The bytes are copied into the request when the doorbell rings.
        const INLINE = 1 << 3;
    }
}

/// The send half of a queue pair; with its completion queue it belongs to one thread.
pub trait SendQueue: Send + Sized + 'static {
    /// The memory to post.
    type Slot: Slot;
    /// A kept completion.
    type Completion: Completion;
    /// The windows whose ranges can be posted.
    type Window: Window;
    /// The posting guard.
    type Batch<'q>: SendBatch<'q, Slot = Self::Slot, Window = Self::Window>;
    /// The cell of a request that is posted alone.
    type Cell<'q>: LoneCell;

    /// Gives the queue its cells: its own memory, from which requests are sent without a copy ([`SendBatch::cell`]). It takes
    /// one slot for each request that may be in flight, rounded up to a power of two. The slots must be of one arena, in the
    /// protection domain of the queue pair. They return to their arena when the queue pair is destroyed.
    ///
    /// # Errors
    /// [`CellsError`] has the reason. The slots return to their arena, and the queue is unchanged.
    fn furnish<I: IntoIterator<Item = Self::Slot>>(&mut self, slots: I) -> Result<(), CellsError>;

    /// Returns the bytes of each cell, or 0 before the queue has cells.
    fn cell_bytes(&self) -> u32;

    /// Lends the cell of the next request, which is posted alone. If an earlier batch was forgotten, its staged requests are
    /// unstaged first.
    ///
    /// # Errors
    /// As for [`SendBatch::cell`].
    fn cell(&mut self) -> Result<Self::Cell<'_>, PushError>;

    /// Begins a batch. If an earlier batch was forgotten, its staged requests are unstaged first.
    fn stage(&mut self) -> Self::Batch<'_>;

    /// Retires all requests up to the one that this completion names.
    ///
    /// A completion proves that all earlier requests of the queue are done, too, signaled or not.
    /// `each` gets their slots in posting order, each with the ticket of its request. If it panics, all
    /// requests are retired, and the slots that it did not get return to their arena.
    ///
    /// # Errors
    /// The completion names no request in flight here; nothing was retired.
    fn retire<F: FnMut(Ticket, Self::Slot)>(
        &mut self,
        completion: Lent<'_, Self::Completion>,
        each: F,
    ) -> Result<Retired, Rejected>;

    /// Retires all requests up to the one that this completion names, as [`SendQueue::retire`] does, if the request succeeded. Returns
    /// its ticket. Otherwise nothing is retired, the result is `None`, and the caller calls [`SendQueue::retire`].
    fn retire_done<F: FnMut(Ticket, Self::Slot)>(
        &mut self,
        completion: &Lent<'_, Self::Completion>,
        each: F,
    ) -> Option<Ticket>;

    /// The number of requests in flight.
    fn in_flight(&self) -> u32;

    /// How many more can be staged now.
    fn room(&self) -> u32;

    /// The number of rejected completions: stale, duplicate, or of another queue.
    fn rejected(&self) -> u64;
}

/// Requests staged for one doorbell. Dropping the batch posts nothing: its requests are
/// unstaged, and their slots return to their arena.
pub trait SendBatch<'q>: Sized {
    /// The memory to post.
    type Slot: Slot;
    /// The windows whose ranges can be posted.
    type Window: Window;

    /// Stages one request with `N` slots, up to [`GATHER_MAX`].
    ///
    /// The request uses the first [`Slot::len_bytes`] bytes of each slot. An atomic needs one slot with a capacity of at least
    /// eight bytes.
    ///
    /// # Errors
    /// [`Refused`] returns the slots with the reason.
    fn push<const N: usize>(
        &mut self,
        operation: Operation,
        slots: [Self::Slot; N],
        flags: PostFlags,
    ) -> Result<Ticket, Refused<[Self::Slot; N]>>;

    /// Stages one request with `N` ranges of windows, up to [`GATHER_MAX`].
    ///
    /// SEND and WRITE take their bytes from the ranges, in order. A peer or a thread of this host may write to the ranges while
    /// the device reads them. READ writes into the ranges. An atomic needs one range of eight bytes. The memory stays registered
    /// until the request is retired, even if the window is dropped. The request returns one slot without bytes for each range.
    ///
    /// The device checks the protection domain of the windows, as it does for slots (S8).
    ///
    /// # Errors
    /// As for [`SendBatch::push`]. Or a range is not within its window, or the flags ask for an inline request.
    fn push_ranges<const N: usize>(
        &mut self,
        operation: Operation,
        ranges: [WindowRange<'_, Self::Window>; N],
        flags: PostFlags,
    ) -> Result<Ticket, PushError>;

    /// Stages one request with inline bytes of the caller.
    ///
    /// # Errors
    /// The queue is full, there are too many bytes, or the operation returns data.
    fn push_inline(
        &mut self,
        operation: Operation,
        bytes: &'q [u8],
        flags: PostFlags,
    ) -> Result<Ticket, PushError>;

    /// Returns the bytes of each cell, or 0 if the queue has none.
    fn cell_bytes(&self) -> u32;

    /// Lends all bytes of the next request's cell, to be written in place and sent by [`SendBatch::push_cell`]. They have the
    /// content that an earlier request left. A cell that is not sent belongs to the next request, even if that is sent from other
    /// memory.
    ///
    /// # Errors
    /// The queue is full or has no cells, or its state does not accept requests.
    fn cell(&mut self) -> Result<&mut [u8], PushError>;

    /// Stages one request of the first `len_bytes` of that cell.
    ///
    /// # Errors
    /// As for [`SendBatch::cell`]. Or the cell has fewer bytes, or the operation returns data.
    fn push_cell(
        &mut self,
        operation: Operation,
        len_bytes: u32,
        flags: PostFlags,
    ) -> Result<Ticket, PushError>;

    /// The ticket of the next request to stage. Tickets are consecutive.
    fn next(&self) -> Ticket;

    /// The number of staged requests.
    fn staged(&self) -> u32;

    /// Makes the last staged request signaled, whatever its flags.
    fn signal_last(&mut self);

    /// Rings the doorbell once for all staged requests. Returns the number of posted requests.
    ///
    /// # Errors
    /// The device accepted only a part. `report` gets the error first, and may complete it. Then `unposted` gets the slots of
    /// the rest, in order. If `unposted` panics, the slots that it did not get return to their arena.
    fn ring_reporting<T, F>(self, report: T, unposted: F) -> Result<u32, PostError>
    where
        T: FnOnce(&mut PostError),
        F: FnMut(Ticket, Self::Slot);

    /// Rings the doorbell once for all staged requests. Returns the number of posted requests.
    ///
    /// # Errors
    /// The device accepted only a part. `unposted` gets the slots of the rest, as in [`SendBatch::ring_reporting`].
    #[inline(always)]
    fn ring_returning<F: FnMut(Ticket, Self::Slot)>(self, unposted: F) -> Result<u32, PostError> {
        self.ring_reporting(|_| {}, unposted)
    }

    /// Rings the doorbell once for all staged requests. Returns the number of posted requests.
    ///
    /// # Errors
    /// The device accepted only a part; the slots of the rest returned to their arena.
    #[inline(always)]
    fn ring(self) -> Result<u32, PostError> {
        self.ring_returning(|_, slot| drop(slot))
    }
}

/// The receive half of a queue pair; with its completion queue it belongs to one thread.
pub trait ReceiveQueue: Send + Sized + 'static {
    /// The memory to post.
    type Slot: Slot;
    /// A kept completion.
    type Completion: Completion;
    /// The slot of a received message. The queue may know that it is unchanged since the receive.
    type Message: From<Self::Slot> + Into<Self::Slot> + Borrow<Self::Slot> + Send + 'static;
    /// The posting guard.
    type Batch<'q>: ReceiveBatch<Slot = Self::Slot>;

    /// Begins a batch, after the receives that an earlier one left staged ([`ReceiveBatch::leave`]). If an earlier batch was
    /// forgotten, its staged receives are unstaged first, and so are those left before it.
    fn stage(&mut self) -> Self::Batch<'_>;

    /// Stages one receive into this slot, and leaves it to the next batch ([`ReceiveBatch::leave`]), which checks whether the
    /// queue pair accepts receives.
    ///
    /// # Errors
    /// There is no room; the slot is returned.
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

    /// Stages one receive into the slot of a message, as [`ReceiveQueue::restage`] does. This is cheapest for the last received
    /// message.
    ///
    /// # Errors
    /// As for [`ReceiveQueue::restage`].
    #[inline]
    fn put_back(&mut self, message: Self::Message) -> Result<(), Self::Slot> {
        self.restage(message.into())
    }

    /// Retires the receive that this completion names. `each` gets its slots in order, with the
    /// lengths of the received bytes. If it panics, the receive is retired, and the slots that it did not get return to their
    /// arena.
    ///
    /// # Errors
    /// The completion names no receive in flight here; nothing was retired.
    fn retire<F: FnMut(Ticket, Self::Slot)>(
        &mut self,
        completion: Lent<'_, Self::Completion>,
        each: F,
    ) -> Result<Arrival, Rejected>;

    /// Retires the receive that this completion names, as [`ReceiveQueue::retire`] does, if it got a message in one slot and is the
    /// oldest posted receive. Returns the slot, and the immediate value. Otherwise nothing is retired, the result is `None`, and
    /// the caller calls [`ReceiveQueue::retire`].
    fn retire_message(
        &mut self,
        completion: &Lent<'_, Self::Completion>,
    ) -> Option<(Self::Message, Option<u32>)>;

    /// The number of posted receives.
    fn in_flight(&self) -> u32;

    /// How many more can be staged now.
    fn room(&self) -> u32;

    /// How many more can be posted: the staged receives, and those that can still be staged.
    fn missing(&self) -> u32;

    /// The number of rejected completions: stale, duplicate, or of another queue.
    fn rejected(&self) -> u64;
}

/// A queue of receives that several queue pairs consume; with its completion queue it belongs to one
/// thread.
///
/// A failed queue pair does not flush the queue. Receives that it had begun to consume complete with an error, and all
/// others stay for the other queue pairs (S22).
///
/// If a queue pair is destroyed after it had begun a receive, that receive may never complete. Its slots return when the
/// shared queue is destroyed: after this half and all queue pairs on the queue are gone.
///
/// Source: InfiniBand Architecture volume 1, section 10.2.9.
pub trait SharedReceiveQueue: Send + Sized + 'static {
    /// The memory to post.
    type Slot: Slot;
    /// A kept completion.
    type Completion: Completion;
    /// The posting guard.
    type Batch<'q>: ReceiveBatch<Slot = Self::Slot>;
    /// The right of one queue pair to consume receives of this queue. It keeps the device's queue alive.
    type Claim: Send + Sized + 'static;

    /// Makes a claim for a queue pair that any thread makes later
    /// ([`super::ProtectionDomain::queue_pair_of`]).
    fn claim(&self) -> Self::Claim;

    /// Begins a batch. If an earlier batch was forgotten, its staged receives are unstaged first. Tickets identify
    /// receives; their order has no meaning.
    fn stage(&mut self) -> Self::Batch<'_>;

    /// Retires only the receive that this completion names: completions may be redeemed in
    /// any order. `each` gets its slots in order, with the lengths of the received bytes.
    /// If it panics, the receive is retired, and the slots that it did not get return to their arena.
    /// The completion names the queue pair that consumed the receive ([`Completion::qpn`]).
    ///
    /// # Errors
    /// The completion names no receive in flight here; nothing was retired.
    fn retire<F: FnMut(Ticket, Self::Slot)>(
        &mut self,
        completion: Lent<'_, Self::Completion>,
        each: F,
    ) -> Result<Arrival, Rejected>;

    /// The number of posted receives.
    fn in_flight(&self) -> u32;

    /// How many more can be staged now.
    fn room(&self) -> u32;

    /// The number of rejected completions: stale, duplicate, or of another queue.
    fn rejected(&self) -> u64;

    /// Returns the id in events of the queue.
    fn id(&self) -> SharedReceiveId;

    /// Returns the number that its completions carry in the channel field: unique on its completion queue.
    fn number(&self) -> u32;

    /// Requests one [`super::AsyncEvent::SharedReceiveLimit`] when fewer receives than this are left; zero turns it off.
    /// After the event, no other follows until the next call (S22). If fewer receives are left already, the event may come
    /// at once or with the next message.
    ///
    /// # Errors
    /// The limit exceeds the depth (`EINVAL`), or the device refused.
    fn set_limit(&mut self, receives: u32) -> Result<(), ProviderError>;
}

/// Receives staged for one post. Dropping the batch posts nothing: all slots return to their arena, also those that earlier
/// batches left.
pub trait ReceiveBatch: Sized {
    /// The memory to post.
    type Slot: Slot;

    /// Stages one receive that scatters into `N` slots, up to [`GATHER_MAX`], and uses the
    /// whole capacity of each.
    ///
    /// # Errors
    /// [`Refused`] returns the slots with the reason.
    fn push<const N: usize>(&mut self, slots: [Self::Slot; N]) -> Result<Ticket, Refused<[Self::Slot; N]>>;

    /// The number of staged receives, including those that an earlier batch left.
    fn staged(&self) -> u32;

    /// Ends the batch without posting. The next batch of the queue begins with all staged receives.
    fn leave(self);

    /// Posts all staged receives in one call. Returns the number of posted receives.
    ///
    /// # Errors
    /// The device accepted only a part; the slots of the rest returned to their arena.
    fn ring(self) -> Result<u32, PostError>;
}

/// A polled completion: a token that exactly one queue can redeem, once. It is lent to the callback, which redeems or keeps
/// it.
///
/// Callers can neither clone nor create it. A kept completion may be lent again, but its queue rejects it after it was
/// redeemed. So redeeming is a proof. If it is dropped unredeemed, its slots stay in the queue until a later completion
/// covers them.
pub trait LentCompletion: Sized {
    /// The kept completion.
    type Kept: Completion;

    /// Returns the work id that the request was posted with.
    fn work_id(&self) -> WorkId;

    /// The status.
    fn status(&self) -> WcStatus;

    /// Returns the number of the queue pair.
    fn qpn(&self) -> Qpn;

    /// Keeps it beyond the callback, by a copy.
    fn keep(self) -> Self::Kept;
}

/// A completion that was kept, to be redeemed later.
pub trait Completion: Send + Sized + 'static {
    /// The lent completion, which a queue redeems.
    type Lent<'c>: LentCompletion<Kept = Self>;

    /// Lends it to the queue that redeems it. After that the queue rejects it.
    fn lend(&self) -> Self::Lent<'_>;

    /// Returns the work id that the request was posted with.
    fn work_id(&self) -> WorkId {
        self.lend().work_id()
    }

    /// The status.
    fn status(&self) -> WcStatus {
        self.lend().status()
    }

    /// Returns the number of the queue pair.
    fn qpn(&self) -> Qpn {
        self.lend().qpn()
    }
}

/// The lent form of a completion.
pub type Lent<'c, C> = <C as Completion>::Lent<'c>;

/// The requests that a completion retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// The first request.
    pub first: Ticket,
    /// The request that the completion names. All before it succeeded.
    pub last: Ticket,
    /// The status of the last request.
    pub status: WcStatus,
    /// The device's own code for an error; the vendor defines its meaning.
    pub vendor_error: u32,
}

impl Retired {
    /// The number of retired requests.
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
    /// A WRITE with immediate: the bytes are in the window, and the slots are unchanged.
    WriteWithImmediate,
    /// The receive failed; its content is undefined.
    Failed,
}

/// A retired receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The receive.
    pub ticket: Ticket,
    /// The status. Without success, only `vendor_error` is valid among the fields below (S7).
    pub status: WcStatus,
    /// The operation that consumed it.
    pub kind: ArrivalKind,
    /// The number of received bytes.
    pub payload_bytes: u32,
    /// The immediate value, in host order.
    pub immediate: Option<u32>,
    /// The device's own code for an error; the vendor defines its meaning.
    pub vendor_error: u32,
}

/// A completion queue, polled by one thread.
pub trait CompletionQueue: Send + Sized + 'static {
    /// A kept completion.
    type Completion: Completion;
    /// A handle that wakes a thread asleep at the queue.
    type Waker: Waker;
    /// A channel that is reserved for a queue pair; dropping the claim frees the channel.
    type Claim: Send + Sized + 'static;
    /// A descriptor of the operating system for an event loop (`AsFd`), if the provider has any.
    type Descriptor: Sized + 'static;

    /// Polls completions, at most a provider's batch, and passes each to `each`. Zero
    /// means that nothing had completed.
    ///
    /// If `each` panics, its completion is consumed. The next poll begins with the rest of the batch.
    ///
    /// # Errors
    /// The device could not be polled; the queue cannot be used any more.
    fn poll<F: FnMut(Lent<'_, Self::Completion>)>(&mut self, each: F) -> Result<u32, ProviderError>;

    /// The number of completions that the queue can hold.
    fn depth(&self) -> u32;

    /// Reserves a channel for the sends of a queue pair that any thread makes later
    /// ([`super::ProtectionDomain::queue_pair_of`]). The call is cheap, and does not call the device.
    ///
    /// # Errors
    /// The channel is not unique here (`EEXIST`), or the queue must be polled first (`EBUSY`).
    fn claim_sends(&self, channel: u32) -> Result<Self::Claim, ProviderError>;

    /// Reserves a channel for the receives of a queue pair that is made later, like
    /// [`CompletionQueue::claim_sends`].
    ///
    /// # Errors
    /// As for [`CompletionQueue::claim_sends`].
    fn claim_receives(&self, channel: u32) -> Result<Self::Claim, ProviderError>;

    /// Whether the sends of this channel are reserved for a queue pair, or in use by one. They stay in use forever if
    /// the queue pair was dropped and the device refused to destroy it.
    ///
    /// # Ordering
    /// A lock orders this call and the end of a queue pair. A thread that sees an effect of that end also sees the
    /// channel free.
    fn is_claimed(&self, channel: u32) -> bool;

    /// The descriptor that becomes readable for a notification after [`CompletionQueue::arm`], if the
    /// queue was made with notification and the provider has one.
    fn notification(&self) -> Option<&Self::Descriptor>;

    /// The descriptor that becomes readable when a [`Waker`] wakes, if the queue was made with notification and the
    /// provider has one.
    fn waking(&self) -> Option<&Self::Descriptor>;

    /// Requests one notification at the next completion, or at the next solicited or failed
    /// one. After arming, poll again for completions that came before (S23).
    ///
    /// # Errors
    /// The queue was made without notification, or the device refused.
    fn arm(&mut self, solicited_only: bool) -> Result<(), ProviderError>;

    /// Takes the waiting notifications and wake-ups, without blocking. Returns the number of notifications.
    ///
    /// # Errors
    /// The queue was made without notification, or the descriptor failed.
    fn acknowledge(&mut self) -> Result<u32, ProviderError>;

    /// Returns a handle that wakes a thread asleep at this queue, from any thread. After the end of the queue it does
    /// nothing. `None` if the queue was made without notification.
    fn waker(&self) -> Option<Self::Waker>;

    /// Sleeps until one of these queues has a notification or a wake-up that was not taken yet, or
    /// for `span`. It may end early without a reason.
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
    /// Operations before the call happen before the woken thread continues.
    fn wake(&self);
}
