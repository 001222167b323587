//! The sending half of a split Worker.

use core::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use doorbell_core::provider::{
    CompletionQueue as _, MemoryError, Placement, ProtectionDomain, Provider, ProviderError, RemoteAccess,
    Window as _, WindowConfig,
};
use doorbell_core::wire::InstanceId;
use doorbell_core::{Deadline, Ticket};
use doorbell_ffi::Rdma;
use doorbell_hotpath::{Statistics, Wait, Woken};

use crate::machine::reaper::Reaped;
use crate::memory::NO_BYTES;
use crate::worker::Due;
use crate::worker::arena::Arena;
use crate::worker::cells::Cells;
use crate::worker::channel::{ChannelId, SendErrorKind};
use crate::worker::channel_table::ChannelTable;
use crate::worker::class::Classes;
use crate::worker::event::Event;
use crate::worker::half::{SendHalf, usable};
use crate::worker::lease::Lease;
use crate::worker::send_side::SendSide;
use crate::worker::submissions::NAP;
use crate::worker::submissions::Submissions;
use crate::worker::waiting::{Sleep, Sleeper, WaitError, Waiting, Watched};
use crate::worker::window::LocalWindow;
use crate::worker::{PEER_CLOSED, PEER_CLOSED_EARLY, REFUSED, Turn, Under};

/// The sending half of a split [`Worker`](crate::Worker), for one thread. It has the send completion queue, a separate arena, and
/// the sending half of each channel.
///
/// The sending half also announces the receives that the receiving half posts. So poll it from time to time even if nothing is to
/// be sent. Otherwise the peers run out of credits.
pub struct SendWorker<P: Provider = Rdma> {
    // Dropped first: the queue pairs of the channels return their slots to the arena.
    pub(in crate::worker) table: ChannelTable<SendHalf<P>>,
    pub(in crate::worker) sends: SendSide<P>,
    pub(super) arena: Arena<P>,
    pub(super) credit_words: Arc<P::Window>,
    pub(super) cells: Arc<Cells<P>>,
    pub(in crate::worker) domain: Arc<P::ProtectionDomain>,
    pub(super) context: Arc<P::Context>,
    pub(super) device: String,
    pub(super) node: InstanceId,
    pub(super) channels_max: u32,
    pub(super) channels_per_address: u32,
    pub(super) leases_kept: u32,
    pub(super) classes: Option<Box<Classes>>,
    pub(super) statistics: Arc<Statistics>,
    pub(super) waiting: Waiting,
    /// The list that both halves share. Two halves with the same list belong to one Worker.
    pub(super) due: Arc<Due>,
    #[expect(dead_code, reason = "it is there to be dropped")]
    pub(super) under: Reaped<Under<P>>,
}

impl<P: Provider> SendWorker<P> {
    /// Polls the send completion queue in bulk, posts submitted requests, and announces receives that the other half posted.
    /// `each` gets every event with its channel. Returns the number of completions. The call never waits.
    ///
    /// The call also fails the queue pairs of channels on which the other half reported [`Event::Overdrawn`](crate::Event).
    ///
    /// # Errors
    /// The completion queue cannot be polled; this half cannot be used any more.
    #[inline]
    pub fn poll(
        &mut self,
        mut each: impl FnMut(Turn<'_, P, SendHalf<P>>, Event<'_, P>),
    ) -> Result<u32, ProviderError> {
        let (sent, _) = self.poll_saying(&mut each)?;
        Ok(sent)
    }

    /// Polls as [`SendWorker::poll`] does. Returns the number of completions, and the number of events without a completion.
    #[inline]
    fn poll_saying(
        &mut self,
        each: &mut impl FnMut(Turn<'_, P, SendHalf<P>>, Event<'_, P>),
    ) -> Result<(u32, u32), ProviderError> {
        let sent = match &mut self.arena.inner {
            Some(arena) => self
                .sends
                .poll(&mut self.table.entries, arena, &self.statistics, each)?,
            None => 0,
        };
        // After the completions, which made room in the send queues.
        let mut unsent = 0;
        if let (true, Some(arena)) = (self.sends.submissions.is_used(), &mut self.arena.inner) {
            let submissions = &mut self.sends.submissions;
            unsent = submissions.run(&mut self.table.entries, arena, &self.context, each);
        }
        self.sends.look_noticed(&mut self.table.entries, 0, sent);
        // Last, so that requests sent above can carry the announcements.
        self.take_due();
        if let (false, Some(arena)) = (self.sends.unannounced.is_empty(), &mut self.arena.inner) {
            let late = self.sends.announce(&mut self.table.entries, arena, each);
            unsent = u32::saturating_add(unsent, late);
        }
        Ok((sent, unsent))
    }

    /// Takes the channels that the receiving half reported, and acts on its notes.
    #[inline]
    pub(super) fn take_due(&mut self) {
        let Self {
            table, sends, due, ..
        } = self;
        due.take(|index| {
            if let Some(entry) = table.entries.get_mut(index as usize) {
                let news = entry.channel.as_ref().map(|half| half.reservation.take_news());
                match (news, &mut entry.channel) {
                    (Some(REFUSED), Some(half)) => {
                        // If the device refuses, the receiving half counts the channel as failed anyway.
                        let _ = half.shut();
                        return;
                    }
                    (Some(news @ (PEER_CLOSED | PEER_CLOSED_EARLY)), Some(half)) => {
                        half.note_peer_closed(news == PEER_CLOSED);
                        return;
                    }
                    _ => {}
                }
                entry.listed.note_unannounced(index, &mut sends.unannounced);
            }
        });
    }

    /// Polls until events came, or a message that was refused for lack of a credit can be sent, or the deadline passed; see
    /// [`Worker::wait`](crate::Worker::wait).
    ///
    /// Each sleep lasts at most a millisecond, since no completion reports that receives of the other half are to be announced.
    ///
    /// # Errors
    /// `how` allows a sleep and the Worker was made without notification, or the completion queue failed. After the latter this
    /// half cannot be used any more.
    #[inline]
    pub fn wait(
        &mut self,
        how: Wait,
        deadline: Deadline,
        mut each: impl FnMut(Turn<'_, P, SendHalf<P>>, Event<'_, P>),
    ) -> Result<Woken, WaitError> {
        self.wait_as(how, deadline, |half| half.poll_all(&mut each))
    }

    /// Returns a permission to sleep for at most a millisecond, or `None` if something happened meanwhile; see
    /// [`Worker::ready_to_sleep`](crate::Worker::ready_to_sleep).
    ///
    /// # Errors
    /// The Worker was made without notification, or the completion queue failed.
    pub fn ready_to_sleep(
        &mut self,
        mut each: impl FnMut(Turn<'_, P, SendHalf<P>>, Event<'_, P>),
    ) -> Result<Option<Sleep<'_, P>>, WaitError> {
        self.prepare(|half| half.poll_all(&mut each))
    }

    #[inline]
    fn poll_all(
        &mut self,
        each: &mut impl FnMut(Turn<'_, P, SendHalf<P>>, Event<'_, P>),
    ) -> Result<u32, ProviderError> {
        let (sent, unsent) = self.poll_saying(each)?;
        let events = sent.saturating_add(unsent);
        if events > 0 {
            return Ok(events);
        }
        Ok(self.sends.credits_came(&mut self.table.entries))
    }

    /// Returns the name of the RDMA device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Returns the open device, with its ports and limits. Read its asynchronous events on the other half, by
    /// [`ReceiveWorker::next_event`](crate::worker::ReceiveWorker::next_event).
    #[must_use]
    pub fn context(&self) -> &P::Context {
        &self.context
    }

    /// Leases a slot of this half's arena; `None` is backpressure.
    #[inline]
    pub fn lease(&mut self) -> Option<Lease<P>> {
        self.arena.lease()
    }

    /// Sends one message with a copy of these bytes; see [`Worker::send`](crate::Worker::send).
    ///
    /// # Errors
    /// As for [`Worker::send`](crate::Worker::send).
    #[inline]
    pub fn send(&mut self, id: ChannelId, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        let half = usable(self.table.named(id))?;
        let arena = self.arena.inner.as_mut().ok_or(SendErrorKind::NoMemory)?;
        half.send_bytes(arena, bytes)
    }

    /// Leases a slot for a message, if the channel can send one now; see [`Worker::lease_for`](crate::Worker::lease_for).
    ///
    /// # Errors
    /// As for [`Worker::lease_for`](crate::Worker::lease_for).
    #[inline]
    pub fn lease_for(&mut self, id: ChannelId) -> Result<Lease<P>, SendErrorKind> {
        let half = usable(self.table.named(id))?;
        let arena = self.arena.inner.as_mut().ok_or(SendErrorKind::NoMemory)?;
        half.lease_for(arena)
    }

    /// Returns a lease to its arena, which is cheaper than dropping it if the arena is this half's.
    #[inline]
    pub fn release(&mut self, lease: Lease<P>) {
        self.arena.release(lease);
    }

    /// Returns the bytes of each slot of this half's arena.
    #[must_use]
    pub const fn slot_bytes(&self) -> u32 {
        self.arena.slot_bytes()
    }

    /// Returns how the slots of this half's arena were placed in memory; see [`Worker::placement`](crate::Worker::placement).
    #[must_use]
    pub const fn placement(&self) -> Placement {
        self.arena.placement()
    }

    /// Allocates and registers zeroed memory that peers may access once they have its key.
    ///
    /// # Errors
    /// The size is zero, the device refused, or a required placement is not available.
    pub fn window(&self, config: &WindowConfig) -> Result<LocalWindow<P>, MemoryError> {
        if config.bytes == 0 {
            return Err(NO_BYTES);
        }
        Ok(LocalWindow::new(self.domain.window(config)?, &self.table.reaper))
    }

    /// Registers the memory of a window once more; see [`Worker::window_of`](crate::Worker::window_of).
    ///
    /// # Errors
    /// As for [`Worker::window_of`](crate::Worker::window_of).
    pub fn window_of(
        &self,
        window: &LocalWindow<P>,
        remote: RemoteAccess,
    ) -> Result<LocalWindow<P>, ProviderError> {
        let window = self
            .domain
            .window_of(window.inner(), 0..window.inner().bytes(), remote)?;
        Ok(LocalWindow::new(window, &self.table.reaper))
    }

    /// Returns the sending half of a channel.
    #[inline]
    pub fn channel(&mut self, id: ChannelId) -> Option<&mut SendHalf<P>> {
        self.table.named(id)
    }

    /// Returns the ids of all channels.
    pub fn channels(&self) -> impl Iterator<Item = ChannelId> {
        self.table.names()
    }

    /// Returns the counters of both halves. A clone may be read on any thread, at any time.
    #[must_use]
    pub const fn statistics(&self) -> &Arc<Statistics> {
        &self.statistics
    }
}

impl<P: Watched> SendWorker<P> {
    /// Returns two descriptors to watch together. They become readable when the send completion queue notifies, and when a
    /// [`Submitter`](crate::worker::Submitter) submits a request. See [`Worker::descriptors`](crate::Worker::descriptors).
    #[must_use]
    pub fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        let sends = &self.sends.completions;
        Some([sends.notification()?.as_fd(), sends.waking()?.as_fd()])
    }
}

impl<P: Provider> Sleeper<P> for SendWorker<P> {
    #[inline]
    fn waiting(&mut self) -> &mut Waiting {
        &mut self.waiting
    }
    fn receive_completions(&mut self) -> Option<&mut P::CompletionQueue> {
        None
    }
    fn send_completions(&mut self) -> Option<&mut P::CompletionQueue> {
        Some(&mut self.sends.completions)
    }
    fn sleep(&self) -> Sleep<'_, P> {
        let submitted = self.sends.submissions.sleep_at_most();
        Sleep {
            receive_completions: None,
            send_completions: Some(&self.sends.completions),
            clock: &self.context,
            at_most: Some(NAP).into_iter().chain(submitted).min(),
        }
    }
    fn submissions(&self) -> Option<&Submissions<P>> {
        Some(&self.sends.submissions)
    }
    #[inline]
    fn clock(&self) -> &P::Context {
        &self.context
    }
}

impl<P: Provider> fmt::Debug for SendWorker<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendWorker")
            .field("device", &self.device)
            .field("channels", &self.channels().count())
            .finish_non_exhaustive()
    }
}
