//! A message that came, and its memory.

use core::borrow::Borrow as _;
use core::fmt;

use doorbell_core::provider::{Provider, ReceiveQueue, Slot as _};
use doorbell_ffi::{Loan, Rdma};

use crate::worker::lease::Lease;

/// A received message. When it is dropped, its memory becomes a receive again.
///
/// It is lent for the length of the call that gets it:
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
/// [`Message::keep`] keeps its memory for longer:
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
    /// It goes back to its receive.
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

    /// Keeps its memory: to hold on to it, or to send it on without a copy. Other memory of the Worker takes its place among the
    /// receives; where there is none, the peer may send one message less until there is some.
    ///
    /// It allocates nothing.
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
    /// A message in memory that is kept, whose bytes are what is meant of it.
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
