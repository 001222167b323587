//! The argument of a poll's callback that gives access to the Worker: the event's channel, the other channels, and memory for
//! answers.

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
    /// The channel of the event.
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

    /// Leases a slot; `None` is backpressure. See [`Worker::lease`](crate::Worker::lease).
    #[inline]
    pub fn lease(&mut self) -> Option<Lease<P>> {
        self.arena.lease().map(|slot| Lease { slot })
    }

    /// Returns a lease to its Worker. This is cheaper than dropping it.
    #[inline]
    pub fn release(&mut self, lease: Lease<P>) {
        self.arena.release(lease.slot);
    }

    /// Returns any channel of the Worker, also the channel of the event. Use it to forward a message within the same poll. `None`
    /// if the channel is closed.
    ///
    /// ```
    /// # use doorbell::{ChannelId, Event, Worker};
    /// # use doorbell::provider::Provider;
    /// # fn f<P: Provider>(worker: &mut Worker<P>, to: ChannelId) -> Result<(), Box<dyn core::error::Error>> {
    /// let mut lost = 0;
    /// worker.poll(|mut turn, event| {
    ///     if let Event::Received { message, .. } = event {
    ///         // The received memory is sent again, without a copy.
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

    /// Returns all channels of the Worker except the channel of the event, in the order of [`ChannelId::index`].
    pub fn others(&mut self) -> impl Iterator<Item = &mut C> {
        self.others.all()
    }
}

#[expect(
    private_bounds,
    reason = "a channel and its half that sends are all there are"
)]
impl<P: Provider, C: Sends<P>> Turn<'_, P, C> {
    /// Sends one message with a copy of these bytes on the channel of the event; see [`Worker::send`](crate::Worker::send).
    ///
    /// # Errors
    /// As for [`Worker::send`](crate::Worker::send).
    #[inline]
    pub fn send(&mut self, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        usable(Some(&mut *self.channel))?.send_bytes(self.arena, bytes)
    }

    /// Sends one message with a copy of these bytes on any channel of the Worker; see [`Worker::send`](crate::Worker::send).
    ///
    /// # Errors
    /// As for [`Worker::send`](crate::Worker::send).
    #[inline]
    pub fn send_to(&mut self, id: ChannelId, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        let (half, arena) = self.sending(id)?;
        half.send_bytes(arena, bytes)
    }

    /// Sends one message with a copy of these bytes on every channel except the channel of the event. Returns how many channels
    /// refused the message, because they had no room, no credit or no memory, or had failed.
    pub fn send_to_others(&mut self, bytes: &[u8]) -> u32 {
        let mut refused = 0_u32;
        for other in self.others.all() {
            let sent = usable(Some(other)).and_then(|half| half.send_bytes(self.arena, bytes));
            refused = refused.saturating_add(sent.is_err().into());
        }
        refused
    }

    /// Leases a slot for a message, if this channel of the Worker can send one now; see
    /// [`Worker::lease_for`](crate::Worker::lease_for).
    ///
    /// # Errors
    /// As for [`Worker::lease_for`](crate::Worker::lease_for).
    #[inline]
    pub fn lease_for(&mut self, id: ChannelId) -> Result<Lease<P>, SendErrorKind> {
        let (half, arena) = self.sending(id)?;
        half.lease_for(arena)
    }

    /// Returns the sending half of a channel that can be used, and the arena to send from.
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
