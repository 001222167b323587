//! An event's turn: its channel, the Worker's others, and memory to answer from.

use core::fmt;

use doorbell_core::Ticket;
use doorbell_core::provider::{Arena as _, Provider};
use doorbell_ffi::Rdma;

use super::channel_table::Others;
use crate::worker::channel::{Channel, ChannelId, SendErrorKind};
use crate::worker::half::{SendHalf, Sends, usable};
use crate::worker::lease::Lease;

/// Access to the Worker in the callback of a poll: the channel of the event (or the polled half of it), the other channels, and
/// memory for answers.
pub struct Turn<'w, P: Provider = Rdma, C = Channel<P>> {
    /// The channel.
    pub channel: &'w mut C,
    others: Others<'w, C>,
    arena: &'w mut P::Arena,
}

impl<'w, P: Provider, C> Turn<'w, P, C> {
    #[inline(always)]
    pub(super) const fn new(channel: &'w mut C, others: Others<'w, C>, arena: &'w mut P::Arena) -> Self {
        Self {
            channel,
            others,
            arena,
        }
    }

    /// Leases memory; `None` is backpressure, as of [`Worker::lease`](crate::Worker::lease).
    #[inline]
    pub fn lease(&mut self) -> Option<Lease<P>> {
        self.arena.lease().map(|slot| Lease { slot })
    }

    /// Returns a lease to its Worker. This is cheaper than dropping it.
    #[inline]
    pub fn release(&mut self, lease: Lease<P>) {
        self.arena.release(lease.slot);
    }

    /// A channel of the Worker, the one that the event is for among them: to forward a message within the poll that brought it.
    /// `None` for one that is closed.
    ///
    /// ```
    /// # use doorbell::{ChannelId, Event, Worker};
    /// # use doorbell::provider::Provider;
    /// # fn f<P: Provider>(worker: &mut Worker<P>, to: ChannelId) -> Result<(), Box<dyn core::error::Error>> {
    /// let mut lost = 0;
    /// worker.poll(|mut turn, event| {
    ///     if let Event::Received { message, .. } = event {
    ///         // The memory that came is the memory that goes: nothing is copied.
    ///         let sent = turn.other(to).map(|other| other.send_lease(message.keep()));
    ///         lost += u32::from(!matches!(sent, Some(Ok(_))));
    ///     }
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn other(&mut self, id: ChannelId) -> Option<&mut C> {
        if self.others.is_between(id) {
            return Some(self.channel);
        }
        self.others.named(id)
    }

    /// All channels of the Worker but the one that the event is for, in the order of [`ChannelId::index`].
    pub fn others(&mut self) -> impl Iterator<Item = &mut C> {
        self.others.all()
    }
}

#[expect(
    private_bounds,
    reason = "a channel and its half that sends are all there are"
)]
impl<P: Provider, C: Sends<P>> Turn<'_, P, C> {
    /// Sends one message of these bytes on the channel that the event is for; see [`Worker::send`](crate::Worker::send).
    ///
    /// # Errors
    /// As for [`Worker::send`](crate::Worker::send).
    #[inline]
    pub fn send(&mut self, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        usable(Some(&mut *self.channel))?.send_bytes(self.arena, bytes)
    }

    /// Sends one message of these bytes on a channel of the Worker, within the poll; see [`Worker::send`](crate::Worker::send).
    ///
    /// # Errors
    /// As for [`Worker::send`](crate::Worker::send).
    #[inline]
    pub fn send_to(&mut self, id: ChannelId, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        let (half, arena) = self.sending(id)?;
        half.send_bytes(arena, bytes)
    }

    /// Sends one message of these bytes on every channel but the one that the event is for. Says of how many it was refused:
    /// those without room or credit for it, and those that failed.
    pub fn send_to_others(&mut self, bytes: &[u8]) -> u32 {
        let mut refused = 0_u32;
        for other in self.others.all() {
            let sent = usable(Some(other)).and_then(|half| half.send_bytes(self.arena, bytes));
            refused = refused.saturating_add(sent.is_err().into());
        }
        refused
    }

    /// Leases memory for a message that a channel of the Worker could send now; see
    /// [`Worker::lease_for`](crate::Worker::lease_for).
    ///
    /// # Errors
    /// As for [`Worker::lease_for`](crate::Worker::lease_for).
    #[inline]
    pub fn lease_for(&mut self, id: ChannelId) -> Result<Lease<P>, SendErrorKind> {
        let (half, arena) = self.sending(id)?;
        half.lease_for(arena)
    }

    /// The half of a channel that sends, and the memory to send from.
    #[inline]
    fn sending(&mut self, id: ChannelId) -> Result<(&mut SendHalf<P>, &mut P::Arena), SendErrorKind> {
        let channel = match self.others.is_between(id) {
            true => Some(&mut *self.channel),
            false => self.others.named(id),
        };
        Ok((usable(channel)?, self.arena))
    }
}

impl<P: Provider, C: fmt::Debug> fmt::Debug for Turn<'_, P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}
