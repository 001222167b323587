//! The receiving half of a split Worker.

use core::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use doorbell_core::Deadline;
use doorbell_core::provider::{Arena as _, CompletionQueue as _, Placement, Provider, ProviderError};
use doorbell_ffi::Rdma;
use doorbell_hotpath::{Statistics, Wait, Woken};

use crate::machine::reaper::Reaped;
use crate::worker::Due;
use crate::worker::channel::ChannelId;
use crate::worker::channel_table::{ChannelTable, Listed};
use crate::worker::device_events::DeviceEvents;
use crate::worker::event::Event;
use crate::worker::half::ReceiveHalf;
use crate::worker::lease::Lease;
use crate::worker::receive_side::ReceiveSide;
use crate::worker::submissions::NAP;
use crate::worker::submissions::Submissions;
use crate::worker::waiting::{Sleep, Sleeper, WaitError, Waiting, Watched};
use crate::worker::{Turn, Under};

/// The receiving half of a split [`Worker`](crate::Worker), for one thread. It has the receive completion queue, the Worker's
/// slots, and the receiving half of each channel.
pub struct ReceiveWorker<P: Provider = Rdma> {
    pub(in crate::worker) table: ChannelTable<ReceiveHalf<P>>,
    pub(in crate::worker) receives: ReceiveSide<P>,
    pub(super) arena: Reaped<P::Arena>,
    pub(in crate::worker) context: Arc<P::Context>,
    pub(in crate::worker) device_events: DeviceEvents,
    pub(super) statistics: Arc<Statistics>,
    pub(super) waiting: Waiting,
    /// The list that both halves share. Two halves with the same list belong to one Worker.
    pub(super) due: Arc<Due>,
    pub(super) under: Reaped<Under<P>>,
}

impl<P: Provider> ReceiveWorker<P> {
    /// Polls the receive completion queue in bulk, and reposts receives. `each` gets every event with its channel. Returns the
    /// number of completions. The call never waits.
    ///
    /// # Errors
    /// The completion queue cannot be polled; this half cannot be used any more.
    #[inline]
    pub fn poll(
        &mut self,
        mut each: impl FnMut(Turn<'_, P, ReceiveHalf<P>>, Event<'_, P>),
    ) -> Result<u32, ProviderError> {
        let Self {
            table,
            receives,
            arena,
            statistics,
            due,
            ..
        } = self;
        let table = &mut table.entries;
        let notify = |index: u32, _: &mut Listed| due.notify(index);
        let early = receives.poll_early(table, arena, statistics, notify, &mut each);
        let count = receives.poll(table, arena, statistics, notify, &mut each)?;
        if receives.unfed() != 0 {
            receives.feed(table, arena, notify, &mut each);
        }
        receives.renew_limit();
        Ok(early.saturating_add(count))
    }

    /// Polls until events came or the deadline passed; see [`Worker::wait`](crate::Worker::wait).
    ///
    /// # Errors
    /// `how` allows a sleep and the Worker was made without notification, or the completion queue failed. After the latter this
    /// half cannot be used any more.
    #[inline]
    pub fn wait(
        &mut self,
        how: Wait,
        deadline: Deadline,
        mut each: impl FnMut(Turn<'_, P, ReceiveHalf<P>>, Event<'_, P>),
    ) -> Result<Woken, WaitError> {
        self.wait_as(how, deadline, |half| half.poll(&mut each))
    }

    /// Returns a permission to sleep, or `None` if something happened meanwhile; see
    /// [`Worker::ready_to_sleep`](crate::Worker::ready_to_sleep).
    ///
    /// # Errors
    /// The Worker was made without notification, or the completion queue failed.
    pub fn ready_to_sleep(
        &mut self,
        mut each: impl FnMut(Turn<'_, P, ReceiveHalf<P>>, Event<'_, P>),
    ) -> Result<Option<Sleep<'_, P>>, WaitError> {
        self.prepare(|half| half.poll(&mut each))
    }

    /// Leases a slot of this half's arena; `None` is backpressure.
    #[inline]
    pub fn lease(&mut self) -> Option<Lease<P>> {
        self.arena.lease().map(|slot| Lease { slot })
    }

    /// Returns a lease to its arena, which is cheaper than dropping it if the arena is this half's.
    #[inline]
    pub fn release(&mut self, lease: Lease<P>) {
        self.arena.release(lease.slot);
    }

    /// Returns the bytes of each slot of this half's arena.
    #[must_use]
    pub fn slot_bytes(&self) -> u32 {
        self.arena.slot_bytes()
    }

    /// Returns how the slots of this half's arena were placed in memory; see [`Worker::placement`](crate::Worker::placement).
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.arena.placement()
    }

    /// Returns the receiving half of a channel.
    #[inline]
    pub fn channel(&mut self, id: ChannelId) -> Option<&mut ReceiveHalf<P>> {
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

impl<P: Watched> ReceiveWorker<P> {
    /// Returns the descriptor that becomes readable when the receive completion queue notifies; see
    /// [`Worker::descriptors`](crate::Worker::descriptors).
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.receives.completions.notification()?.as_fd())
    }
}

impl<P: Provider> Sleeper<P> for ReceiveWorker<P> {
    #[inline]
    fn waiting(&mut self) -> &mut Waiting {
        &mut self.waiting
    }
    fn receive_completions(&mut self) -> Option<&mut P::CompletionQueue> {
        Some(&mut self.receives.completions)
    }
    fn send_completions(&mut self) -> Option<&mut P::CompletionQueue> {
        None
    }
    fn sleep(&self) -> Sleep<'_, P> {
        let nap = self.receives.awaits_memory().then_some(NAP);
        let at_most = nap.or_else(|| self.waiting.sleep_at_most());
        Sleep {
            receive_completions: Some(&self.receives.completions),
            send_completions: None,
            clock: &self.context,
            at_most,
        }
    }
    fn submissions(&self) -> Option<&Submissions<P>> {
        None
    }
    #[inline]
    fn clock(&self) -> &P::Context {
        &self.context
    }
}

impl<P: Provider> fmt::Debug for ReceiveWorker<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveWorker")
            .field("channels", &self.channels().count())
            .finish_non_exhaustive()
    }
}
