//! Waiting for a Worker's completions: by polling, by sleeping, or in an event loop of the application.
//! `doorbell_hotpath::prepare_sleep` documents the order of calls that loses no wake-up.

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

/// Longest sleep with [`Notify::Solicited`]. Soft-RoCE of Linux 6.12 and later does not notify for flushed receives then (S23 in
/// `docs/conformance.md`). If a channel failed and has no request of this side in flight, only a poll finds that. Default 1 s: a
/// wake-up a second costs nothing, and a silent peer is probed only after 10 s.
const SOLICITED_NAP: Duration = Duration::from_secs(1);

/// State that a Worker keeps from one wait to the next.
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

    /// Returns the longest sleep, if failures may not notify; `None` is no limit.
    pub(super) fn sleep_at_most(&self) -> Option<Duration> {
        (self.notify == Notify::Solicited).then_some(SOLICITED_NAP)
    }
}

impl<P: Provider> SendSide<P> {
    /// Checks the credits of channels that want some. Returns how many of them have credits now.
    #[inline]
    pub(super) fn credits_came<C: Sends<P>>(&mut self, table: &mut [ChannelEntry<C>]) -> u32 {
        if self.wanting.is_empty() {
            return 0;
        }
        self.find_credits(table)
    }

    /// Does the work of [`SendSide::credits_came`].
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
            let is_open = channel.is_open();
            let SendHalf { sender, notice, .. } = channel.send_half();
            came = came.saturating_add(u32::from(sender.credits_came()));
            // No credits come to a lost channel, which may stay until the application closes it.
            listed.is_wanting = notice.keep_wanting(noticed, index, is_open && sender.wants_credits());
            listed.is_wanting
        });
        came
    }

    /// Whether a channel may want credits. No completion reports when credits arrive.
    fn awaits_credits(&self) -> bool {
        !self.wanting.is_empty() || !self.noticed.is_empty()
    }
}

/// A Worker, or half of one, that a thread can wait for.
pub(super) trait Sleeper<P: Provider> {
    fn waiting(&mut self) -> &mut Waiting;
    /// Returns the receive completion queue, unless this is the sending half.
    fn receive_completions(&mut self) -> Option<&mut P::CompletionQueue>;
    /// Returns the send completion queue, unless this is the receiving half.
    fn send_completions(&mut self) -> Option<&mut P::CompletionQueue>;
    /// Returns the event sources to sleep at, and the longest sleep.
    fn sleep(&self) -> Sleep<'_, P>;
    /// Returns the submissions, unless this is the receiving half.
    fn submissions(&self) -> Option<&Submissions<P>>;
    /// Returns the clock of deadlines.
    fn clock(&self) -> &P::Context;
    /// Notes that a sleep is about to begin, so that the upkeep is done before.
    fn note_sleep(&mut self) {}

    /// Waits until `poll` reports that something happened, or until the deadline. Sleeps only if `how` allows it.
    ///
    /// # Errors
    /// `how` allows a sleep and the queues do not notify, or a completion queue failed.
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

    /// Waits as [`Sleeper::wait_as`] does. The caller has checked that the queues notify, or that `how` does not sleep.
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

    /// Arms the queues and polls once more. Returns a permission to sleep if that poll found nothing.
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
            // Not used here: the event loop has its own deadline.
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
    /// Polls until events came, or a message that was refused for lack of a credit can be sent, or the deadline passed. `each`
    /// gets the events, as from [`Worker::poll`].
    ///
    /// Data that only appears in memory does not end the wait and wakes no thread. Examples are messages of a
    /// [`RingChannel`](crate::worker::RingChannel) with trailers, and requests in a ring of the application. Poll such memory
    /// together with [`Worker::poll`], or have the data reported by immediates or by a descriptor in the same event loop.
    ///
    /// A request of a [`Submitter`](crate::worker::Submitter) does wake the Worker.
    ///
    /// The call reads the clock once in 256 polls and before a sleep, also while events keep coming. The call does not allocate
    /// or panic, and makes system calls only to sleep, with the exceptions of [`Worker::poll`].
    ///
    /// Channels that are being closed do not advance; use [`Worker::wait_tending`] for that.
    ///
    /// # Errors
    /// `how` allows a sleep and the Worker was made without notification, or a completion queue failed. After the latter the
    /// Worker cannot be used any more.
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

    /// Waits by [`Worker::wait_tending`] until `each` returns a value, and returns the first value; `None` at the deadline.
    /// `each` also gets the later events of the same poll, and further values are dropped. To wait for several events, collect
    /// them in `each`, and return a value with the last one. The arrival of credits does not end this wait.
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
            // A refused post is an event, too, and polls do not count it.
            let woken = self.wait_as(how, deadline, |worker| {
                let events = worker.poll_all(&mut |turn: Turn<'_, P>, event: Event<'_, P>| {
                    let value = each(turn, event);
                    found = found.take().or(value);
                })?;
                Ok(events.max(u32::from(found.is_some())))
            });
            // The value is found. If a queue failed meanwhile, the next call fails, too.
            if found.is_some() {
                return Ok(found);
            }
            if woken? == Woken::Deadline {
                return Ok(None);
            }
        }
    }

    /// Arms the completion queues, polls once more, and tends. Returns a permission to sleep, or `None` if something happened
    /// meanwhile. After `None`, handle the events and call this again.
    ///
    /// Event loops call this before each sleep; [`Worker::wait_tending`] does it by itself. [`Worker::descriptors`] lists the
    /// descriptors to watch.
    ///
    /// # Errors
    /// The Worker was made without notification, or a completion queue failed.
    ///
    /// # Ordering
    /// The permission borrows the Worker, so nothing can poll between this call and the sleep. An event loop with edge-triggered
    /// readiness that it remembers, such as tokio's `AsyncFd`, has to clear the readiness before this call, not after.
    pub fn ready_to_sleep(
        &mut self,
        mut each: impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) -> Result<Option<Sleep<'_, P>>, WaitError> {
        self.prepare(|worker| worker.poll_all(&mut each))
    }

    /// Arms the completion queues without polling. Returns whether work is known to wait: a queue notified since it was armed
    /// last, or a request of a [`Submitter`](crate::worker::Submitter) waits.
    ///
    /// This call is for layers that have their own polling calls, such as [`Links`](crate::link::Links). After it, poll once
    /// more, and sleep only if that poll finds nothing, for at most [`Worker::sleep_at_most`]. [`Worker::ready_to_sleep`] does
    /// all of this.
    ///
    /// `false` does not permit a sleep. A completion from before the arming does not notify, so only a poll finds it.
    ///
    /// # Errors
    /// The Worker was made without notification, or a completion queue failed.
    ///
    /// # Ordering
    /// Old notifications are taken before the queues are armed. The poll that follows finds completions from before the arming,
    /// and later completions notify (S23 in `docs/conformance.md`).
    pub fn arm(&mut self) -> Result<bool, WaitError> {
        let solicited_only = self.waiting.notify == Notify::Solicited;
        self.arm_for(solicited_only)
    }

    /// Arms as [`Worker::arm`] does, for all receive completions or only for solicited ones.
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

    /// Whether the Worker's completion queues notify.
    pub(crate) fn notifies(&self) -> bool {
        self.waiting.notify != Notify::Never
    }

    /// Ends the sleep that [`Worker::arm`] announced, so that submitters do not wake the Worker.
    pub(crate) fn end_sleep(&self) {
        self.sends.submissions.withdraw_sleep();
    }

    /// Returns the longest time that a thread may sleep before it polls again, even if no descriptor is ready; `None` is no
    /// limit. There is a limit while the Worker waits for something that no completion reports: credits, memory, or the end of a
    /// closing. With [`Notify::Solicited`] the limit is always a second or less, since a failure may not notify.
    #[must_use]
    pub fn sleep_at_most(&self) -> Option<Duration> {
        let quiet = !self.sends.awaits_credits()
            && !self.receives.awaits_memory()
            && self.sends.unannounced.is_empty()
            && self.closing.is_empty();
        let submitted = self.sends.submissions.sleep_at_most();
        let probed = self.upkeep.sleep_at_most(|| self.context.now());
        let nap = (!quiet).then_some(NAP);
        let unnotified = self.waiting.sleep_at_most();
        let limits = nap.into_iter().chain(submitted).chain(probed);
        limits.chain(unnotified).min()
    }

    /// Checks the credits of channels that want some. Returns how many of them have credits now.
    pub(crate) fn find_credits(&mut self) -> u32 {
        let table = &mut self.table.entries;
        self.sends.credits_came(table)
    }

    /// Polls, tends, and checks for credits. Returns a number that is not 0 if anything happened.
    #[inline(always)]
    fn poll_all(&mut self, each: &mut impl FnMut(Turn<'_, P>, Event<'_, P>)) -> Result<u32, ProviderError> {
        let polled = self.poll_and_tend(each)?;
        Ok(self.or_credits(polled))
    }

    /// Returns the number of events of a poll, or if there are none, the number of channels that got credits.
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
    /// Returns three descriptors to watch together. They become readable when the receive completion queue notifies, when the
    /// send completion queue notifies, and when a [`Submitter`](crate::worker::Submitter) submits a request. `None` if the Worker
    /// was made without notification.
    ///
    /// Watch the descriptors for input, level-triggered or edge-triggered. Only the Worker may read from them.
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

/// A provider whose completion queues have file descriptors that an event loop can watch: [`Rdma`], and a simulated host.
pub trait Watched: Provider<CompletionQueue: CompletionQueue<Descriptor: AsFd>> {}

impl<P: Provider<CompletionQueue: CompletionQueue<Descriptor: AsFd>>> Watched for P {}

/// Permission to sleep: the Worker's completion queues are armed, and a poll after the arming found nothing.
#[must_use = "the Worker is armed: sleep, or poll on"]
pub struct Sleep<'w, P: Provider = Rdma> {
    pub(super) receive_completions: Option<&'w P::CompletionQueue>,
    pub(super) send_completions: Option<&'w P::CompletionQueue>,
    pub(super) clock: &'w P::Context,
    pub(super) at_most: Option<Duration>,
}

impl<P: Provider> Sleep<'_, P> {
    /// Sleeps until a completion queue notifies, a submitter wakes the Worker, or the deadline passes. The sleep may end early.
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

    /// Returns the longest time that an event loop may sleep before it polls again, even if no descriptor is ready; `None` is no
    /// limit. See [`Worker::sleep_at_most`].
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

/// Adapter that makes a Worker, or a half of one, the object of a wait.
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
    /// The Worker was made without notification, so no thread may sleep at it: see [`WorkerConfig::notify`](crate::WorkerConfig).
    NeverNotified,
    /// A completion queue failed; the Worker cannot be used any more.
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
