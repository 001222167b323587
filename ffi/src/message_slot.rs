//! The slot of a message that was taken out of a receive queue, and that has not yet been put back or kept.

use core::borrow::Borrow;
use core::fmt;

use doorbell_core::ledger::{Origin, QueueId};

use crate::Slot;

/// The slot of a message. It records the completion that brought it, so that its queue can find the place it came from.
///
/// No other slot can be put in its place:
/// ```compile_fail,E0594
/// # use core::borrow::Borrow as _;
/// # fn f(message: doorbell_ffi::MessageSlot, other: doorbell_ffi::Slot) {
/// let slot: &doorbell_ffi::Slot = message.borrow();
/// *slot = other;
/// # }
/// ```
/// and a message cannot be put back twice:
/// ```compile_fail,E0382
/// # use doorbell_core::provider::ReceiveQueue as _;
/// # fn f(receive: &mut doorbell_ffi::ReceiveQueue, message: doorbell_ffi::MessageSlot) {
/// receive.put_back(message).ok();
/// receive.put_back(message).ok();
/// # }
/// ```
/// nor put back once it was kept:
/// ```compile_fail,E0382
/// # use doorbell_core::provider::ReceiveQueue as _;
/// # fn f(receive: &mut doorbell_ffi::ReceiveQueue, message: doorbell_ffi::MessageSlot) {
/// let kept: doorbell_ffi::Slot = message.into();
/// receive.put_back(message).ok();
/// # }
/// ```
pub struct MessageSlot {
    slot: Slot,
    /// The completion that brought the slot, or an origin that no completion has. No two values have the origin of one
    /// completion.
    origin: Origin,
}

impl MessageSlot {
    /// Makes the value for a slot that a receive queue took for this completion, which the queue has just redeemed.
    #[inline(always)]
    pub(crate) const fn new(slot: Slot, origin: Origin) -> Self {
        Self { slot, origin }
    }

    /// The completion that brought the slot.
    #[inline(always)]
    pub(crate) const fn origin(&self) -> Origin {
        self.origin
    }
}

impl From<Slot> for MessageSlot {
    #[inline]
    fn from(slot: Slot) -> Self {
        // Completions are numbered from 1.
        let origin = Origin {
            queue: QueueId(u64::MAX),
            sequence: 0,
        };
        Self { slot, origin }
    }
}

impl From<MessageSlot> for Slot {
    #[inline(always)]
    fn from(message: MessageSlot) -> Self {
        message.slot
    }
}

impl Borrow<Slot> for MessageSlot {
    #[inline(always)]
    fn borrow(&self) -> &Slot {
        &self.slot
    }
}

impl fmt::Debug for MessageSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MessageSlot").field(&self.slot).finish()
    }
}
