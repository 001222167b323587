//! Waiting for a Worker's completions: by polling, by sleeping, or in an event loop of the
//! engine's own. The order that loses no wake-up is `doorbell_hotpath::prepare_sleep`.

use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;
use std::os::fd::{AsFd, BorrowedFd};

use doorbell_core::provider::{CompletionQueue, Provider, ProviderError};
use doorbell_core::{Clock, Deadline, Instant};
use doorbell_ffi::Rdma;
use doorbell_hotpath::{Wait, Waitable, Waiter, Woken, prepare_sleep};

use super::channel_table::ChannelEntry;
use super::polling::Polled;
use super::send_side::SendSide;
use super::submissions::{NAP, Submissions};
use super::{Turn, Worker};
use crate::worker::config::Notify;
use crate::worker::event::Event;
use crate::worker::half::{SendHalf, Sends};

/// State of a Worker between waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    notify: Notify,
    waiter: Waiter,
}

impl Waiting {
    pub(super) const fn new(notify: Notify) -> Self {
        Self {
            notify,
            waiter: Waiter::new(),
        }
    }
}

impl<P: Provider> SendSide<P> {
    /// Looks for credits of channels that want some; says how many of them have some now.
    #[inline]
    pub(super) fn credits_came<C: Sends<P>>(&mut self, table: &mut [ChannelEntry<C>]) -> u32 {
        if self.wanting.is_empty() {
            return 0;
        }
        self.find_credits(table)
    }

    /// Says how many of the channels that wanted credits have some now.
    #[cold]
    fn find_credits<C: Sends<P>>(&mut self, table: &mut [ChannelEntry<C>]) -> u32 {
        let Self { wanting, noticed, .. } = self;
        let mut came = 0_u32;
        wanting.retain(|index| {
            let Some(entry) = table.get_mut(index as usize) else {
                return false;
            };
            entry.listed.is_wanting = false;
            let Some((listed, channel)) = entry.split() else {
                return false;
            };
            let SendHalf { sender, notice, .. } = channel.send_half();
            came = came.saturating_add(u32::from(sender.credits_came()));
            listed.is_wanting = notice.keep_wanting(noticed, index, sender.wants_credits());
            listed.is_wanting
        });
        came
    }

    /// Whether credits are awaited, which no completion reports.
    fn awaits_credits(&self) -> bool {
        !self.wanting.is_empty() || !self.noticed.is_empty()
    }
}

/// A Worker, or half of one, that a thread can wait for.
pub(super) trait Sleeper<P: Provider> {
    fn waiting(&mut self) -> &mut Waiting;
    /// The queue that receives complete on, where it has one.
    fn receive_completions(&mut self) -> Option<&mut P::CompletionQueue>;
    /// The queue that sends complete on, where it has one.
    fn send_completions(&mut self) -> Option<&mut P::CompletionQueue>;
    /// Event sources to sleep at, and the longest sleep.
    fn sleep(&self) -> Sleep<'_, P>;
    /// Submissions to it, if it takes any.
    fn submissions(&self) -> Option<&Submissions<P>>;
    /// The clock of deadlines.
    fn clock(&self) -> &P::Context;
    /// It is about to sleep, or to let others: what is done at times is to be looked at before.
    fn note_sleep(&mut self) {}

    /// Waits until `poll` reports that something happened; sleeps if it may.
    ///
    /// # Errors
    /// The queues do not notify and it is to sleep, or a completion queue failed.
    #[inline]
    fn wait_as(
        &mut self,
        how: Wait,
        deadline: Deadline,
        poll: impl FnMut(&mut Self) -> Result<u32, ProviderError>,
    ) -> Result<Woken, WaitError> {
        if how != Wait::Busy && self.waiting().notify == Notify::Never {
            return Err(WaitError::NeverNotified);
        }
        self.wait_until(how, deadline, poll).map_err(WaitError::Provider)
    }

    /// Waits until `poll` says that something happened.
    ///
    /// # Errors
    /// A completion queue failed.
    #[inline]
    fn wait_until(
        &mut self,
        how: Wait,
        deadline: Deadline,
        poll: impl FnMut(&mut Self) -> Result<u32, ProviderError>,
    ) -> Result<Woken, ProviderError> {
        let mut waiter = self.waiting().waiter;
        let outcome = waiter.wait(
            how,
            &mut Waited {
                worker: self,
                deadline,
                poll,
                provider: PhantomData::<P>,
            },
        );
        self.waiting().waiter = waiter;
        outcome
    }

    /// Arms, polls once more, and gives leave to sleep where nothing happened.
    ///
    /// # Errors
    /// The queues do not notify, or a completion queue failed.
    fn prepare(
        &mut self,
        poll: impl FnMut(&mut Self) -> Result<u32, ProviderError>,
    ) -> Result<Option<Sleep<'_, P>>, WaitError> {
        if self.waiting().notify == Notify::Never {
            return Err(WaitError::NeverNotified);
        }
        let happened = prepare_sleep(&mut Waited {
            worker: &mut *self,
            // Nothing here looks at it: the deadline is the event loop's.
            deadline: Deadline::at(Instant::from_ns(0)),
            poll,
            provider: PhantomData::<P>,
        })
        .map_err(WaitError::Provider)?;
        Ok((happened == 0).then(|| self.sleep()))
    }
}

impl<P: Provider> Sleeper<P> for Worker<P> {
    #[inline]
    fn waiting(&mut self) -> &mut Waiting {
        &mut self.waiting
    }
    fn receive_completions(&mut self) -> Option<&mut P::CompletionQueue> {
        Some(&mut self.receives.completions)
    }
    fn send_completions(&mut self) -> Option<&mut P::CompletionQueue> {
        Some(&mut self.sends.completions)
    }
    fn sleep(&self) -> Sleep<'_, P> {
        Sleep {
            receive_completions: Some(&self.receives.completions),
            send_completions: Some(&self.sends.completions),
            clock: &self.context,
            at_most: self.sleep_at_most(),
        }
    }
    fn submissions(&self) -> Option<&Submissions<P>> {
        Some(&self.sends.submissions)
    }
    #[inline]
    fn clock(&self) -> &P::Context {
        &self.context
    }
    fn note_sleep(&mut self) {
        self.upkeep.is_wanted();
    }
}

impl<P: Provider> Worker<P> {
    /// Polls until something happened: events came, which `each` gets as from
    /// [`Worker::poll`], or a message that was refused for want of a credit can be sent now. Ends
    /// at the deadline, too.
    ///
    /// Data that only appears in memory is not waited for, and wakes nobody: messages of a [`RingChannel`](crate::worker::RingChannel)
    /// that are reported by trailers, and requests in a ring of the engine's own. Poll for it, with [`Worker::poll`] beside it.
    /// Or have it reported by immediates, or by a descriptor in the same event loop.
    ///
    /// A request of a [`Submitter`](crate::worker::Submitter) does wake the Worker.
    ///
    /// The clock is looked at once in 256 polls, and [`Wait::Busy`] makes no other call of its
    /// own. The deadline holds however much comes. Nothing here allocates or panics, and only a sleep makes system calls.
    ///
    /// Channels that are being closed do not advance by it: that is [`Worker::wait_tending`].
    ///
    /// # Errors
    /// The Worker was made without notification and is to sleep, or a completion queue failed;
    /// after the latter the Worker is of no further use.
    #[inline]
    pub fn wait(
        &mut self,
        how: Wait,
        deadline: Deadline,
        mut each: impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) -> Result<Woken, WaitError> {
        self.wait_as(how, deadline, |worker| {
            let polled = worker.poll_queues(&mut each)?;
            Ok(worker.or_credits(polled))
        })
    }

    /// Waits by [`Worker::wait`], and calls [`Worker::tend`] after each of its polls.
    ///
    /// # Errors
    /// As for [`Worker::wait`].
    #[inline]
    pub fn wait_tending(
        &mut self,
        how: Wait,
        deadline: Deadline,
        mut each: impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) -> Result<Woken, WaitError> {
        self.wait_as(how, deadline, |worker| worker.poll_all(&mut each))
    }

    /// Waits by [`Worker::wait_tending`] until `each` returns a value, and returns the first one; `None` at the deadline. `each` gets
    /// every event, those behind it in the same poll too. A value for one of those is dropped: to wait for several events, collect them
    /// in `each`, and return a value with the last one. Credits end no wait by this call.
    ///
    /// ```
    /// # use doorbell::{Deadline, Event, Wait, WaitError, Worker};
    /// # fn f(worker: &mut Worker, deadline: Deadline) -> Result<(), WaitError> {
    /// // One message is on its way.
    /// let message = worker.wait_for(Wait::Busy, deadline, |_, event| match event {
    ///     Event::Received { message, .. } => Some(message.payload().to_vec()),
    ///     _ => None,
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Worker::wait`]. A failed channel or request is an event.
    pub fn wait_for<T>(
        &mut self,
        how: Wait,
        deadline: Deadline,
        mut each: impl FnMut(Turn<'_, P>, Event<'_, P>) -> Option<T>,
    ) -> Result<Option<T>, WaitError> {
        let mut found = None;
        loop {
            let woken = self.wait_tending(how, deadline, |turn, event| {
                let value = each(turn, event);
                found = found.take().or(value);
            });
            // A queue that failed meanwhile fails at the next call, too.
            if found.is_some() {
                return Ok(found);
            }
            if woken? == Woken::Deadline {
                return Ok(None);
            }
        }
    }

    /// Makes the completion queues wake the thread that sleeps at them, and polls once more. Permits to sleep, or returns
    /// `None` if something happened meanwhile: act on it, and ask again.
    ///
    /// It is for event loops, and tends; [`Worker::wait_tending`] does it by itself. [`Worker::descriptors`] lists the descriptors to watch; ask
    /// again after each wake-up.
    ///
    /// # Errors
    /// The Worker was made without notification, or a completion queue failed.
    ///
    /// # Ordering
    /// The borrow keeps everybody from polling between asking and sleeping. With a loop that
    /// is woken by edges and remembers them, as tokio's `AsyncFd`, clear what it remembers before
    /// asking, not after.
    pub fn ready_to_sleep(
        &mut self,
        mut each: impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) -> Result<Option<Sleep<'_, P>>, WaitError> {
        self.prepare(|worker| worker.poll_all(&mut each))
    }

    /// Makes the completion queues wake the thread that sleeps at them, and takes nothing. Returns whether something is known to be
    /// there: a queue notified since it was armed last, or a request of a [`Submitter`](crate::worker::Submitter) waits.
    ///
    /// It is for layers that poll by calls of their own, as [`Links`](crate::link::Links) do. After it they poll once more, and sleep
    /// only if that poll finds nothing, [`Worker::sleep_at_most`] at the longest. [`Worker::ready_to_sleep`] does all of it.
    ///
    /// `false` is no leave to sleep. A completion that came before the arming notifies nobody, and a device reports it to polls alone.
    ///
    /// # Errors
    /// The Worker was made without notification, or a completion queue failed.
    ///
    /// # Ordering
    /// Old notifications are taken before the queues are armed. A completion that came before the arming is found by the poll
    /// that follows, and a later one notifies (S23).
    pub fn arm(&mut self) -> Result<bool, WaitError> {
        let solicited_only = self.waiting.notify == Notify::Solicited;
        self.arm_for(solicited_only)
    }

    /// Arms as [`Worker::arm`] does, for every completion, or for solicited ones alone.
    pub(crate) fn arm_for(&mut self, solicited_only: bool) -> Result<bool, WaitError> {
        if self.waiting.notify == Notify::Never {
            return Err(WaitError::NeverNotified);
        }
        self.arm_queues(solicited_only).map_err(WaitError::Provider)
    }

    fn arm_queues(&mut self, solicited_only: bool) -> Result<bool, ProviderError> {
        let (receives, sends) = (&mut self.receives.completions, &mut self.sends.completions);
        let notified = receives.acknowledge()?.saturating_add(sends.acknowledge()?);
        receives.arm(solicited_only)?;
        sends.arm(false)?;
        self.sends.submissions.announce_sleep();
        self.upkeep.is_wanted();
        let submitted = self.sends.submissions.sleep_at_most();
        Ok(notified > 0 || submitted.is_some())
    }

    /// Whether its completion queues notify.
    pub(crate) fn notifies(&self) -> bool {
        self.waiting.notify != Notify::Never
    }

    /// The sleep that [`Worker::arm`] announced is over: a thread that submits need not wake anybody.
    pub(crate) fn end_sleep(&self) {
        self.sends.submissions.withdraw_sleep();
    }

    /// The most a thread may sleep before it polls again, whatever the descriptors report: something is awaited that no completion
    /// reports, as credits, memory and the end of closings. `None` is no limit.
    #[must_use]
    pub fn sleep_at_most(&self) -> Option<Duration> {
        let quiet = !self.sends.awaits_credits()
            && !self.receives.awaits_memory()
            && self.sends.unannounced.is_empty()
            && self.closing.is_empty();
        let submitted = self.sends.submissions.sleep_at_most();
        let probed = self.upkeep.sleep_at_most(|| self.context.now());
        let nap = (!quiet).then_some(NAP);
        nap.into_iter().chain(submitted).chain(probed).min()
    }

    /// Looks for credits of channels that want some; says how many of them have some now.
    pub(crate) fn find_credits(&mut self) -> u32 {
        let table = &mut self.table.entries;
        self.sends.credits_came(table)
    }

    /// Polls and tends, and looks for credits of channels that want some; says whether anything happened.
    #[inline(always)]
    fn poll_all(&mut self, each: &mut impl FnMut(Turn<'_, P>, Event<'_, P>)) -> Result<u32, ProviderError> {
        let polled = self.poll_and_tend(each)?;
        Ok(self.or_credits(polled))
    }

    /// How much polling found, or for how many channels credits came where it found nothing.
    #[inline]
    fn or_credits(&mut self, polled: Polled) -> u32 {
        let events = polled.events();
        if events > 0 {
            return events;
        }
        let table = &mut self.table.entries;
        self.sends.credits_came(table)
    }
}

impl<P: Watched> Worker<P> {
    /// The descriptors that become readable when the receive or the send completion queue
    /// notifies, and when a [`Submitter`](crate::worker::Submitter) submitted something, to be watched together;
    /// `None` where the Worker was made without notification.
    ///
    /// They are watched for input, by levels or by edges, and read by nobody but the Worker.
    #[must_use]
    pub fn descriptors(&self) -> Option<[BorrowedFd<'_>; 3]> {
        let sends = &self.sends.completions;
        Some([
            self.receives.completions.notification()?.as_fd(),
            sends.notification()?.as_fd(),
            sends.waking()?.as_fd(),
        ])
    }
}

/// A provider with descriptors of the operating system, which an event loop watches: [`Rdma`], and a simulated host.
pub trait Watched: Provider<CompletionQueue: CompletionQueue<Descriptor: AsFd>> {}

impl<P: Provider<CompletionQueue: CompletionQueue<Descriptor: AsFd>>> Watched for P {}

/// Leave to sleep: the Worker's completion queues are armed, and nothing is in them.
#[must_use = "the Worker is armed: sleep, or poll on"]
pub struct Sleep<'w, P: Provider = Rdma> {
    pub(super) receive_completions: Option<&'w P::CompletionQueue>,
    pub(super) send_completions: Option<&'w P::CompletionQueue>,
    pub(super) clock: &'w P::Context,
    pub(super) at_most: Option<Duration>,
}

impl<P: Provider> Sleep<'_, P> {
    /// Sleeps until something completed or the deadline passes. It may end early.
    ///
    /// # Errors
    /// A completion queue failed.
    pub fn until(self, deadline: Deadline) -> Result<(), WaitError> {
        self.sleep_until(deadline).map_err(WaitError::Provider)
    }

    fn sleep_until(self, deadline: Deadline) -> Result<(), ProviderError> {
        let span = deadline.remaining(self.clock.now());
        let span = self.at_most.map_or(span, |at_most| at_most.min(span));
        match (self.receive_completions, self.send_completions) {
            (Some(receives), Some(sends)) => P::CompletionQueue::sleep([receives, sends], span),
            (Some(queue), None) | (None, Some(queue)) => P::CompletionQueue::sleep([queue], span),
            (None, None) => Ok(()),
        }
    }

    /// The most an event loop may sleep before it asks again, whatever the descriptors say:
    /// something is awaited that no completion reports, as credits and memory. `None` is no limit.
    #[must_use]
    pub const fn at_most(&self) -> Option<Duration> {
        self.at_most
    }
}

impl<P: Provider> fmt::Debug for Sleep<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("at_most", &self.at_most)
            .finish_non_exhaustive()
    }
}

/// A Worker as what is waited for.
struct Waited<'w, P, W: ?Sized, F> {
    worker: &'w mut W,
    deadline: Deadline,
    poll: F,
    provider: PhantomData<P>,
}

impl<P, W, F> Waitable for Waited<'_, P, W, F>
where
    P: Provider,
    W: Sleeper<P> + ?Sized,
    F: FnMut(&mut W) -> Result<u32, ProviderError>,
{
    type Error = ProviderError;

    #[inline(always)]
    fn poll(&mut self) -> Result<u32, ProviderError> {
        (self.poll)(self.worker)
    }

    fn acknowledge(&mut self) -> Result<(), ProviderError> {
        if let Some(receives) = self.worker.receive_completions() {
            receives.acknowledge()?;
        }
        if let Some(sends) = self.worker.send_completions() {
            sends.acknowledge()?;
        }
        Ok(())
    }

    fn arm(&mut self) -> Result<(), ProviderError> {
        let solicited_only = self.worker.waiting().notify == Notify::Solicited;
        if let Some(receives) = self.worker.receive_completions() {
            receives.arm(solicited_only)?;
        }
        if let Some(sends) = self.worker.send_completions() {
            sends.arm(false)?;
        }
        if let Some(submissions) = self.worker.submissions() {
            submissions.announce_sleep();
        }
        self.worker.note_sleep();
        Ok(())
    }

    fn is_over(&mut self) -> bool {
        self.deadline.has_passed(self.worker.clock().now())
    }

    fn sleep(&mut self) -> Result<(), ProviderError> {
        let outcome = self.worker.sleep().sleep_until(self.deadline);
        if let Some(submissions) = self.worker.submissions() {
            submissions.withdraw_sleep();
        }
        outcome
    }
}

/// Reason why a wait for a Worker failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// The Worker was made without notification, so nobody may sleep at it: see
    /// [`WorkerConfig::notify`](crate::WorkerConfig).
    NeverNotified,
    /// A completion queue failed; the Worker is of no further use.
    Provider(ProviderError),
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverNotified => f.write_str(
                "this Worker cannot sleep: set WorkerConfig::notify to Every or Solicited, or wait by Wait::Busy",
            ),
            Self::Provider(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl core::error::Error for WaitError {}
