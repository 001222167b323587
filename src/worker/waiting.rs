//! Waiting for a Worker's completions: by polling, by sleeping, or in an event loop of the
//! engine's own. The order that loses no wake-up is `doorbell_hotpath::prepare_sleep`.

use core::fmt;
use core::time::Duration;
use std::os::fd::BorrowedFd;

use doorbell_core::provider::{CompletionQueue, Provider, ProviderError};
use doorbell_core::{Deadline, Instant};
use doorbell_ffi::Rdma;
use doorbell_hotpath::{Wait, Waitable, Waiter, Woken, prepare_sleep};

use super::{Turn, Worker};
use crate::{Event, Notify, edge};

/// No sleep is longer while something is awaited that no completion tells: credits, memory for
/// receives, the end of a closing. About as long as a peer that found no receive waits by default.
const NAP: Duration = Duration::from_millis(1);

/// What a Worker keeps from one wait to the next.
#[derive(Debug)]
pub(super) struct Waiting {
    notify: Notify,
    waiter: Waiter,
    /// Channels on which a message was refused for want of a credit, as of `refusals`.
    wanting: Vec<u32>,
    /// How many requests had been refused when `wanting` was made.
    refusals: u64,
}

impl Waiting {
    pub(super) const fn new(notify: Notify) -> Self {
        Self {
            notify,
            waiter: Waiter::new(),
            wanting: Vec::new(),
            refusals: 0,
        }
    }

    /// The list that can grow as long as there are channels.
    pub(super) const fn list_mut(&mut self) -> &mut Vec<u32> {
        &mut self.wanting
    }
}

impl<P: Provider> Worker<P> {
    /// Polls until something happened: events came, which `each` gets as from
    /// [`Worker::poll`], or a message that was refused for want of a credit can be sent now. Ends
    /// at the deadline, too.
    ///
    /// What only shows in memory is not waited for here, and wakes nobody: messages of a
    /// [`RingChannel`](crate::RingChannel) that are told by trailers, and what other threads put
    /// into a ring of the engine's. Poll for it, with [`Worker::poll`] beside it; or have it told
    /// by immediates, or by a descriptor in the same event loop.
    ///
    /// The clock is looked at once in 256 polls, and [`Wait::Busy`] makes no other call of its
    /// own. The deadline holds however much comes.
    ///
    /// # Errors
    /// The Worker was made without notification and is to sleep, or a completion queue failed;
    /// after the latter the Worker is of no further use.
    #[inline]
    pub fn wait(
        &mut self,
        how: Wait,
        deadline: Deadline,
        mut each: impl FnMut(Turn<'_, P>, Event<P>),
    ) -> Result<Woken, WaitError> {
        if how != Wait::Busy && self.waiting.notify == Notify::Never {
            return Err(WaitError::NeverNotified);
        }
        self.wait_until(how, deadline, |worker| worker.poll_all(&mut each))
            .map_err(WaitError::Provider)
    }

    /// Waits until `poll` says that something happened.
    ///
    /// # Errors
    /// A completion queue failed.
    #[inline]
    pub(super) fn wait_until(
        &mut self,
        how: Wait,
        deadline: Deadline,
        poll: impl FnMut(&mut Self) -> Result<u32, ProviderError>,
    ) -> Result<Woken, ProviderError> {
        let mut waiter = self.waiting.waiter;
        let outcome = waiter.wait(
            how,
            &mut Waited {
                worker: self,
                deadline,
                poll,
            },
        );
        self.waiting.waiter = waiter;
        outcome
    }

    /// Makes the completion queues wake whoever sleeps at them, and polls once more. Gives leave
    /// to sleep, or `None` where something happened meanwhile: act on it, and ask again.
    ///
    /// It is for event loops; [`Worker::wait`] does it by itself. What has to be watched is in
    /// [`Worker::descriptors`]; after having been woken, ask again.
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
        mut each: impl FnMut(Turn<'_, P>, Event<P>),
    ) -> Result<Option<Sleep<'_, P>>, WaitError> {
        if self.waiting.notify == Notify::Never {
            return Err(WaitError::NeverNotified);
        }
        // Nothing here looks at it: the deadline is the event loop's.
        let deadline = Deadline::at(Instant::from_ns(0));
        let happened = prepare_sleep(&mut Waited {
            worker: self,
            deadline,
            poll: |worker: &mut Self| worker.poll_all(&mut each),
        })
        .map_err(WaitError::Provider)?;
        Ok((happened == 0).then_some(Sleep { worker: self }))
    }

    /// Polls, and looks for credits of channels that want some; says whether anything happened.
    #[inline]
    fn poll_all(&mut self, each: &mut impl FnMut(Turn<'_, P>, Event<P>)) -> Result<u32, ProviderError> {
        let count = self.poll(each)?;
        if count > 0 {
            return Ok(count);
        }
        let refusals = self.statistics.would_block.value();
        if self.waiting.refusals != refusals {
            self.find_wanting();
            self.waiting.refusals = refusals;
        }
        if self.waiting.wanting.is_empty() {
            return Ok(0);
        }
        Ok(self.find_credits())
    }

    /// Lists the channels that want credits. Room for all of them was reserved at admission.
    #[cold]
    fn find_wanting(&mut self) {
        let Self {
            channels, waiting, ..
        } = self;
        waiting.wanting.clear();
        let wanting = (0..).zip(channels).filter_map(|(index, entry)| {
            let channel = entry.channel.as_ref()?;
            channel.sender.wants_credits().then_some(index)
        });
        waiting.wanting.extend(wanting);
    }

    /// Says how many of the channels that wanted credits have some now, or are gone.
    #[cold]
    fn find_credits(&mut self) -> u32 {
        let Self {
            channels, waiting, ..
        } = self;
        let mut came = 0_u32;
        waiting.wanting.retain(|index| {
            let entry = channels.get_mut(*index as usize);
            let channel = entry.and_then(|entry| entry.channel.as_mut());
            channel.is_some_and(|channel| {
                let has_some = channel.sender.credits_came();
                came = came.saturating_add(u32::from(has_some));
                channel.sender.wants_credits()
            })
        });
        came
    }

    /// The most that may be slept while things go on that no completion tells.
    fn nap(&self) -> Option<Duration> {
        let quiet = self.waiting.wanting.is_empty()
            && self.hungry.is_empty()
            && self.unannounced.is_empty()
            && self.closing.is_empty();
        (!quiet).then_some(NAP)
    }

    fn sleep_for(&self, span: Duration) -> Result<(), ProviderError> {
        let span = self.nap().map_or(span, |nap| nap.min(span));
        P::CompletionQueue::sleep([&self.receive_completions, &self.send_completions], span)
    }
}

impl Worker<Rdma> {
    /// The descriptors that become readable when the receive or the send completion queue
    /// notifies, to be watched together; `None` where the Worker was made without notification.
    ///
    /// They are watched for input, by levels or by edges, and read by nobody but the Worker.
    #[must_use]
    pub fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        Some([
            self.receive_completions.notification()?,
            self.send_completions.notification()?,
        ])
    }
}

/// Leave to sleep: the Worker's completion queues are armed, and nothing is in them.
#[derive(Debug)]
#[must_use = "the Worker is armed: sleep, or poll on"]
pub struct Sleep<'w, P: Provider = Rdma> {
    worker: &'w Worker<P>,
}

impl<P: Provider> Sleep<'_, P> {
    /// Sleeps until something completed or the deadline passes. It may end early.
    ///
    /// # Errors
    /// A completion queue failed.
    pub fn until(self, deadline: Deadline) -> Result<(), WaitError> {
        let span = deadline.remaining(edge::clock::now());
        self.worker.sleep_for(span).map_err(WaitError::Provider)
    }

    /// The most an event loop may sleep before it asks again, whatever the descriptors say:
    /// something is awaited that no completion tells, as credits and memory. `None` is no limit.
    #[must_use]
    pub fn at_most(&self) -> Option<Duration> {
        self.worker.nap()
    }
}

/// A Worker as what is waited for.
struct Waited<'w, P: Provider, F> {
    worker: &'w mut Worker<P>,
    deadline: Deadline,
    poll: F,
}

impl<P, F> Waitable for Waited<'_, P, F>
where
    P: Provider,
    F: FnMut(&mut Worker<P>) -> Result<u32, ProviderError>,
{
    type Error = ProviderError;

    #[inline]
    fn poll(&mut self) -> Result<u32, ProviderError> {
        (self.poll)(self.worker)
    }

    fn acknowledge(&mut self) -> Result<(), ProviderError> {
        self.worker.receive_completions.acknowledge()?;
        self.worker.send_completions.acknowledge()?;
        Ok(())
    }

    fn arm(&mut self) -> Result<(), ProviderError> {
        let solicited_only = self.worker.waiting.notify == Notify::Solicited;
        self.worker.receive_completions.arm(solicited_only)?;
        self.worker.send_completions.arm(false)
    }

    fn is_over(&mut self) -> bool {
        self.deadline.has_passed(edge::clock::now())
    }

    fn sleep(&mut self) -> Result<(), ProviderError> {
        self.worker.sleep_for(self.deadline.remaining(edge::clock::now()))
    }
}

/// Why a Worker could not be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// It was made without notification, so nobody may sleep at it: see
    /// [`WorkerConfig::notify`](crate::WorkerConfig).
    NeverNotified,
    /// A completion queue failed; the Worker is of no further use.
    Provider(ProviderError),
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverNotified => {
                f.write_str("nothing would wake who sleeps: the Worker was made with notify set to Never")
            }
            Self::Provider(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl core::error::Error for WaitError {}
