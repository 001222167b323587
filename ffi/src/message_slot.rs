//! The slot of a message that was taken out of a receive queue, and has not been put back or kept yet.

use core::borrow::Borrow;
use core::fmt;

use doorbell_core::ledger::{Origin, QueueId};

use crate::Slot;

/// The slot of a message. It knows which completion brought it, so that its queue knows the place that it came from.
///
/// No other slot can be put in its place:
/// ```compile_fail,E0594
/// # use core::borrow::Borrow as _;
/// # fn f(message: doorbell_ffi::MessageSlot, other: doorbell_ffi::Slot) {
/// let slot: &doorbell_ffi::Slot = message.borrow();
/// *slot = other;
/// # }
/// ```
/// and it cannot be put back twice:
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
    /// The completion that brought it, or none that there can be. No two values have that of one completion.
    origin: Origin,
}

impl MessageSlot {
    /// Makes the value of a slot that a receive queue took for this completion, which it redeemed just now.
    #[inline(always)]
    pub(crate) const fn new(slot: Slot, origin: Origin) -> Self {
        Self { slot, origin }
    }

    /// The completion that brought it.
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
