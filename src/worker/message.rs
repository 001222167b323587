//! Received messages and their memory.

use core::borrow::Borrow as _;
use core::fmt;

use doorbell_core::provider::{Provider, ReceiveQueue, Slot as _};
use doorbell_ffi::{Loan, Rdma};

use crate::worker::lease::Lease;

/// A received message. When it is dropped, its memory is used for a receive again.
///
/// The message is lent for the duration of the callback and cannot be stored:
/// ```compile_fail,E0521
/// # use doorbell::{Event, Message, Rdma, Worker};
/// # fn f(worker: &mut Worker, kept: &mut Vec<Message<'static, Rdma>>) {
/// worker.poll(|_, event| {
///     if let Event::Received { message, .. } = event {
///         kept.push(message);
///     }
/// }).ok();
/// # }
/// ```
/// [`Message::keep`] turns the message into a lease, which can be stored:
/// ```
/// # use doorbell::{Event, Lease, Worker};
/// # fn f(worker: &mut Worker, kept: &mut Vec<Lease>) {
/// worker.poll(|_, event| {
///     if let Event::Received { message, .. } = event {
///         kept.push(message.keep());
///     }
/// }).ok();
/// # }
/// ```
pub struct Message<'m, P: Provider = Rdma>(Memory<'m, P>);

/// The memory of a message.
enum Memory<'m, P: Provider> {
    /// Memory that returns to the receive queue.
    Lent(Loan<'m, Taken<P>>),
    Kept(Lease<P>),
}

/// Slot of a message that was taken out of a receive queue.
pub(crate) type Taken<P> = <<P as Provider>::ReceiveQueue as ReceiveQueue>::Message;

impl<'m, P: Provider> Message<'m, P> {
    #[inline(always)]
    pub(crate) const fn lent(memory: Loan<'m, Taken<P>>) -> Self {
        Self(Memory::Lent(memory))
    }

    #[inline(always)]
    fn slot(&self) -> &P::Slot {
        match &self.0 {
            Memory::Lent(message) => (**message).borrow(),
            Memory::Kept(Lease { slot }) => slot,
        }
    }

    /// Returns the bytes of the message.
    #[must_use]
    #[inline(always)]
    pub fn payload(&self) -> &[u8] {
        self.slot().payload()
    }

    /// Returns the length of the message in bytes.
    #[must_use]
    #[inline(always)]
    pub fn len_bytes(&self) -> usize {
        self.slot().len_bytes()
    }

    /// Turns the message into a lease, to keep it or to forward it without a copy. Another slot of the Worker replaces its memory
    /// in the receive queue. If no slot is free, the peer has one credit less until a slot is released.
    ///
    /// The call allocates nothing.
    #[must_use]
    #[inline(always)]
    pub fn keep(self) -> Lease<P> {
        match self.0 {
            Memory::Lent(message) => Lease {
                slot: message.keep().into(),
            },
            Memory::Kept(lease) => lease,
        }
    }
}

impl<P: Provider> From<Lease<P>> for Message<'_, P> {
    /// Makes a message of a lease, with the bytes and the length of the lease.
    fn from(lease: Lease<P>) -> Self {
        Self(Memory::Kept(lease))
    }
}

impl<P: Provider> fmt::Debug for Message<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("len_bytes", &self.len_bytes())
            .finish_non_exhaustive()
    }
}
