//! Sleeping for links: the order of arming and polling, the length of a sleep, and the descriptors that end it.
//!
//! `doorbell_hotpath::prepare_sleep` sets the order, for all Workers together: their queues are armed, and the links poll once more. A
//! poll may leave work to the next poll. For example, a rail that it connects may have early messages, which only the next poll
//! reports. So a thread sleeps only after a poll that left no work.

use core::hash::{Hash as _, Hasher as _};
use core::time::Duration;
use std::hash::DefaultHasher;
use std::os::fd::BorrowedFd;

use doorbell_core::network::{Network, NetworkError, WaitBeside, Waited};
use doorbell_core::provider::{Provider, ProviderError};
use doorbell_core::{Deadline, Instant};
use doorbell_hotpath::{Wait, Waitable, Waiter, Woken, prepare_sleep};

use super::acceptor::PeerAcceptor;
use super::event::{LinkEvent, LinkId};
use super::links::Links;
use crate::connect::handshakes::Handshakes;
use crate::connect::node::Node;
use crate::machine::tcp::Tcp;
use crate::worker::event::Event;
use crate::worker::{Turn, WaitError, Watched, Worker};

/// Limit on polls after arming, until one leaves no work to the next.
const SETTLING_POLLS: u32 = 16;

/// Interval of polls for peers whose handshakes the caller polls ([`Links::accept_from`]), since no descriptor announces them.
const LOOKS_EVERY: Duration = Duration::from_millis(1);

/// A network whose waits also end when a descriptor is readable, so that one sleep covers both: [`Tcp`], and the network of a
/// simulated host.
pub trait WatchedNetwork: for<'d> WaitBeside<BorrowedFd<'d>> {}

impl<N: for<'d> WaitBeside<BorrowedFd<'d>>> WatchedNetwork for N {}

/// A descriptor that an event loop watches for links.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LinkDescriptor<'l> {
    /// The descriptor, to be watched for input.
    pub descriptor: BorrowedFd<'l>,
    /// Whether it is to be watched for output, too: the stream is not connected yet, or has unsent bytes.
    pub awaits_room: bool,
}

impl<'l> LinkDescriptor<'l> {
    const fn input(descriptor: BorrowedFd<'l>) -> Self {
        Self {
            descriptor,
            awaits_room: false,
        }
    }

    /// The descriptor of a stream.
    pub(crate) fn of_stream(waited: &Waited<'l, <Tcp as Network>::Stream>) -> Self {
        use doorbell_core::network::Stream as _;
        use std::os::fd::AsFd as _;
        Self {
            descriptor: waited.stream.as_fd(),
            awaits_room: waited.has_unsent || waited.stream.is_connecting(),
        }
    }
}

/// The completions that a poll took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    /// The number.
    count: u32,
    /// Whether the poll left completions or connections that no notification announces again.
    is_behind: bool,
}

impl Taken {
    pub(super) fn note(&mut self, count: u32, is_behind: bool) {
        self.count = self.count.saturating_add(count);
        self.is_behind |= is_behind;
    }
}

/// State of links between waits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) waiter: Waiter,
    /// Whether a call was refused as full. No event reports that room is available again.
    is_refused: bool,
}

impl Waiting {
    pub(super) const fn note_refused(&mut self, is_refused: bool) {
        self.is_refused |= is_refused;
    }
}

/// Links, or a mesh, in the form that a [`Waiter`] waits for.
pub(crate) struct WaitTarget<'w, P: Provider, N: Network, O, F, S> {
    owner: &'w mut O,
    node: &'w Node<P, N>,
    workers: &'w mut [Worker<P>],
    deadline: Deadline,
    /// Whether the next poll is the first one after arming.
    is_armed: bool,
    poll: F,
    sleep: S,
}

impl<P, N, O, F, S> Waitable for WaitTarget<'_, P, N, O, F, S>
where
    P: Provider,
    N: Network,
    F: FnMut(&mut O, &mut [Worker<P>], bool) -> Result<u32, ProviderError>,
    S: FnMut(&O, &[Worker<P>], Deadline) -> Result<Woken, WaitError>,
{
    type Error = WaitError;

    fn poll(&mut self) -> Result<u32, WaitError> {
        let is_armed = core::mem::take(&mut self.is_armed);
        (self.poll)(self.owner, self.workers, is_armed).map_err(WaitError::Provider)
    }

    /// Does nothing: each Worker acknowledges its notifications when it is armed.
    fn acknowledge(&mut self) -> Result<(), WaitError> {
        Ok(())
    }

    fn arm(&mut self) -> Result<(), WaitError> {
        for worker in &mut *self.workers {
            // Frames of a link are not marked as solicited, so every completion has to notify.
            worker.arm_for(false)?;
        }
        self.is_armed = true;
        Ok(())
    }

    fn is_over(&mut self) -> bool {
        self.deadline.has_passed(self.node.network().now())
    }

    fn sleep(&mut self) -> Result<(), WaitError> {
        (self.sleep)(self.owner, self.workers, self.deadline).map(drop)
    }
}

impl<'w, P, N, O, F, S> WaitTarget<'w, P, N, O, F, S>
where
    P: Provider,
    N: Network,
    F: FnMut(&mut O, &mut [Worker<P>], bool) -> Result<u32, ProviderError>,
    S: FnMut(&O, &[Worker<P>], Deadline) -> Result<Woken, WaitError>,
{
    /// Calls `poll` with whether to poll until no work is left, and `sleep` with the deadline of the wait.
    pub(crate) fn new(
        owner: &'w mut O,
        (node, workers): (&'w Node<P, N>, &'w mut [Worker<P>]),
        deadline: Deadline,
        (poll, sleep): (F, S),
    ) -> Self {
        Self {
            owner,
            node,
            workers,
            deadline,
            is_armed: false,
            poll,
            sleep,
        }
    }

    /// Waits. Returns the waiter and the outcome.
    pub(crate) fn wait(&mut self, how: Wait, mut waiter: Waiter) -> (Waiter, Result<Woken, WaitError>) {
        if how != Wait::Busy && !self.workers.iter().all(Worker::notifies) {
            return (waiter, Err(WaitError::NeverNotified));
        }
        let outcome = waiter.wait(how, self);
        (waiter, outcome)
    }
}

/// Arms the Workers and polls. Returns whether the thread may sleep now.
pub(crate) fn is_ready_to_sleep<P: Provider, N: Network, O>(
    owner: &mut O,
    (node, workers): (&Node<P, N>, &mut [Worker<P>]),
    poll: impl FnMut(&mut O, &mut [Worker<P>], bool) -> Result<u32, ProviderError>,
) -> Result<bool, WaitError> {
    let sleep = |_: &O, _: &[Worker<P>], _| Ok(Woken::Deadline);
    // The deadline is not used here: the event loop has its own.
    let never = Deadline::at(Instant::from_ns(u64::MAX));
    let mut waited_for = WaitTarget::new(owner, (node, workers), never, (poll, sleep));
    prepare_sleep(&mut waited_for).map(|happened| happened == 0)
}

/// Signs of work that a poll left to the next.
pub(crate) struct PendingWork {
    /// A hash of the state that polls change, and that only a further poll acts on.
    pub(crate) mark: u64,
    /// Whether completions or connections are left that no notification announces again.
    pub(crate) is_behind: bool,
}

/// Polls, and returns the number of things to report to the caller. If `is_all`, it polls until a poll leaves no work to the next.
pub(crate) fn poll_settling<O>(
    owner: &mut O,
    is_all: bool,
    left: impl Fn(&O) -> PendingWork,
    mut poll: impl FnMut(&mut O) -> Result<u32, ProviderError>,
) -> Result<u32, ProviderError> {
    let mut before = is_all.then(|| left(owner).mark);
    for _ in 0..SETTLING_POLLS {
        let happened = poll(owner)?;
        if happened > 0 {
            return Ok(happened);
        }
        let Some(last) = before else {
            return Ok(0);
        };
        let PendingWork { mark, is_behind } = left(owner);
        if last == mark && !is_behind {
            return Ok(0);
        }
        before = Some(mark);
    }
    // Work might never end, so the caller checks its deadline.
    Ok(1)
}

impl<P: Provider, N: Network> Links<P, N> {
    /// Polls as [`poll_settling`] does.
    fn poll_settling(
        &mut self,
        (node, workers): (&Node<P, N>, &mut [Worker<P>]),
        is_all: bool,
        mut each: impl FnMut(LinkId, LinkEvent<'_>),
        mut other: impl FnMut(usize, Turn<'_, P>, Event<'_, P>),
    ) -> Result<u32, ProviderError> {
        let reports = self.reports();
        poll_settling(self, is_all, Self::left, |links| {
            let count = core::cell::Cell::new(0_u32);
            let note = || count.set(count.get().saturating_add(1));
            links.poll_beside(
                node,
                workers,
                |id, event| {
                    note();
                    each(id, event);
                },
                |index, turn, event| {
                    note();
                    other(index, turn, event);
                },
            )?;
            let mut happened = count.get();
            for worker in &mut *workers {
                happened = happened.saturating_add(worker.find_credits());
            }
            if links.waiting.is_refused && links.core.taken.count > 0 {
                links.waiting.is_refused = false;
                happened = happened.saturating_add(1);
            }
            Ok(happened.max(u32::from(links.reports() != reports)))
        })
    }

    /// Whether there are results that callers query, and that no event reports.
    fn reports(&self) -> (bool, bool) {
        (self.has_refreshed(), self.closed_to_peers().is_some())
    }

    /// Whether there is a result of a refresh that was not taken.
    pub(crate) const fn has_refreshed(&self) -> bool {
        self.refreshed.is_some()
    }

    /// Work that the last poll left to the next.
    pub(crate) fn left(&self) -> PendingWork {
        let mut mark = DefaultHasher::new();
        for (id, link) in self.core.links() {
            let finding = link.finding.as_ref().map(super::dialing::Finding::is_on);
            (id, finding, link.question.is_asked()).hash(&mut mark);
            for rail in &link.rails {
                let (connecting, asking) = (rail.connecting.is_some(), rail.asking.is_some());
                (connecting, asking, rail.counts.connections).hash(&mut mark);
            }
        }
        self.refreshing.is_some().hash(&mut mark);
        PendingWork {
            mark: mark.finish(),
            is_behind: self.core.taken.is_behind,
        }
    }

    /// When to poll again at the latest, even if no descriptor is ready.
    pub(crate) fn sleeps_until(&self, workers: &[Worker<P>], now: Instant) -> Deadline {
        let at_most = workers.iter().filter_map(Worker::sleep_at_most).min();
        let is_unnoticed = self.acceptor.as_ref().is_some_and(PeerAcceptor::is_unnoticed);
        let at_most = at_most
            .into_iter()
            .chain(is_unnoticed.then_some(LOOKS_EVERY))
            .min();
        let nap = at_most.map(|span| Deadline::after(now, span));
        let wake = self.wake(now).into_iter().chain(nap).min();
        wake.unwrap_or(Deadline::at(Instant::from_ns(u64::MAX)))
    }

    /// The streams of rails that are being connected, and of peers that are being asked.
    pub(crate) fn streams(&self) -> impl Iterator<Item = Waited<'_, N::Stream>> {
        let links = || self.core.links().map(|(_, link)| link);
        let rails = links().flat_map(|link| &link.rails).flat_map(|rail| {
            let connecting = rail.connecting.as_ref().filter(|one| one.making().is_none());
            let connecting = connecting.and_then(|connecting| connecting.waited());
            let asking = rail.asking.as_ref().map(|(asking, _)| asking.waited());
            connecting.into_iter().chain(asking)
        });
        rails.chain(links().filter_map(|link| link.question.waited()))
    }
}

impl<P: Watched, N: WatchedNetwork> Links<P, N> {
    /// Polls until an event occurred, or until the deadline; `each` gets the events as from [`Links::poll`]. In between the thread polls
    /// continuously, or sleeps, as `how` says.
    ///
    /// The call returns for events, for the result of [`Links::refresh`], and if [`Links::send`], [`Links::request`] or a call that begins a
    /// transfer was refused as full and may succeed now. Spurious returns are possible. For heartbeats, acknowledgements and rails that are
    /// being connected the thread wakes, acts, and sleeps again.
    ///
    /// # Wake-ups
    /// A completion on one of the Workers ends a sleep: a message, an acknowledgement, the failure of a rail. So do a request of a
    /// [`Submitter`](crate::worker::Submitter), a peer that is to be accepted, the streams of handshakes that polling the links advances, and
    /// each step of connecting a rail. The sleep ends at the latest when links have something to do ([`Links::wake`]), or a Worker has
    /// ([`Worker::sleep_at_most`]).
    ///
    /// With default settings an idle rail sends a probe to the peer's device every 50 ms. Each probe wakes the thread twice: to send it, and
    /// for its completion. So idle links cost at most 40 wake-ups a second for each rail. An idle process without links sleeps until its
    /// deadline.
    ///
    /// Other threads do not call `Links`, but wake the thread by a submitter of one of the Workers.
    ///
    /// # Errors
    /// A Worker was made without notification and the thread is to sleep, or a poll failed ([`Links::poll`]).
    ///
    /// # Panics
    /// As for [`Links::poll`].
    pub fn wait(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        how: Wait,
        deadline: Deadline,
        each: impl FnMut(LinkId, LinkEvent<'_>),
    ) -> Result<Woken, WaitError> {
        self.wait_beside(node, workers, how, deadline, each, |_, _, _| {})
    }

    /// Waits as [`Links::wait`] does; `other` gets the events of channels that belong to no link, each with the index of its
    /// Worker. The call also returns for these events, and for new credits of such channels.
    ///
    /// # Errors
    /// As for [`Links::wait`].
    pub fn wait_beside(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        how: Wait,
        deadline: Deadline,
        mut each: impl FnMut(LinkId, LinkEvent<'_>),
        mut other: impl FnMut(usize, Turn<'_, P>, Event<'_, P>),
    ) -> Result<Woken, WaitError> {
        let waiter = self.waiting.waiter;
        let poll = |links: &mut Self, workers: &mut [Worker<P>], is_all| {
            links.poll_settling((node, workers), is_all, &mut each, &mut other)
        };
        let sleep = |links: &Self, workers: &[Worker<P>], until| links.sleep(node, workers, until);
        let (waiter, outcome) =
            WaitTarget::new(&mut *self, (node, workers), deadline, (poll, sleep)).wait(how, waiter);
        self.waiting.waiter = waiter;
        outcome
    }

    /// Arms the Workers' completion queues, and polls once more. Returns the time until which the thread may sleep at the latest, or
    /// `None` if an event occurred meanwhile: act on it, and call again.
    ///
    /// The call is for event loops; [`Links::wait`] includes it. The loop sleeps on the descriptors of [`Links::watched`]. After each wake-up
    /// it calls again, and also after every call that gives the links something to do, such as [`Links::send`].
    ///
    /// # Errors
    /// As for [`Links::wait`].
    pub fn ready_to_sleep(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        each: impl FnMut(LinkId, LinkEvent<'_>),
    ) -> Result<Option<Deadline>, WaitError> {
        self.ready_to_sleep_beside(node, workers, each, |_, _, _| {})
    }

    /// Prepares a sleep as [`Links::ready_to_sleep`] does; `other` gets the events of channels that belong to no link.
    ///
    /// # Errors
    /// As for [`Links::wait`].
    pub fn ready_to_sleep_beside(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        mut each: impl FnMut(LinkId, LinkEvent<'_>),
        mut other: impl FnMut(usize, Turn<'_, P>, Event<'_, P>),
    ) -> Result<Option<Deadline>, WaitError> {
        let poll = |links: &mut Self, workers: &mut [Worker<P>], is_all| {
            links.poll_settling((node, workers), is_all, &mut each, &mut other)
        };
        let is_ready = is_ready_to_sleep(self, (node, &mut *workers), poll)?;
        Ok(is_ready.then(|| self.sleeps_until(workers, node.network().now())))
    }

    /// Sleeps until a descriptor of [`Links::watched`] is ready, until this time, or until the links have something to do. The call does not
    /// poll, and may end early. Call it directly after [`Links::ready_to_sleep`] returned a time.
    ///
    /// # Errors
    /// A Worker was made without notification, or nothing can be waited for.
    pub fn sleep(
        &self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        until: Deadline,
    ) -> Result<Woken, WaitError> {
        let streams = self.streams();
        self.sleep_with(
            node,
            workers,
            streams,
            until.min(self.sleeps_until(workers, node.network().now())),
        )
    }

    /// Sleeps until a descriptor of the links or one of these streams is ready, or until this time.
    pub(crate) fn sleep_with<'l>(
        &'l self,
        node: &Node<P, N>,
        workers: &'l [Worker<P>],
        streams: impl Iterator<Item = Waited<'l, N::Stream>>,
        until: Deadline,
    ) -> Result<Woken, WaitError> {
        let descriptors = descriptors_of(workers)?.chain(self.descriptors());
        let here = self.acceptor.as_ref().and_then(PeerAcceptor::polled_here);
        let (acceptor, handshakes) = here.map(Handshakes::waited).unzip();
        let streams = streams.chain(handshakes.into_iter().flatten());
        let slept = node
            .network()
            .wait_beside(descriptors, acceptor.flatten(), streams, until);
        workers.iter().for_each(Worker::end_sleep);
        match slept.map_err(cannot_wait)? {
            true => Ok(Woken::Progress),
            false => Ok(Woken::Deadline),
        }
    }
}

impl<P: Watched> Links<P, Tcp> {
    /// Every descriptor that ends a sleep for these links, including those of the Workers. Watch them level-triggered, and do not read
    /// them. The set changes with each poll: list it again after [`Links::ready_to_sleep`].
    ///
    /// # Errors
    /// A Worker was made without notification.
    pub fn watched<'l>(
        &'l self,
        workers: &'l [Worker<P>],
    ) -> Result<impl Iterator<Item = LinkDescriptor<'l>>, WaitError> {
        let here = self.acceptor.as_ref().and_then(PeerAcceptor::polled_here);
        let inputs = descriptors_of(workers)?
            .chain(self.descriptors())
            .chain(here.map(Handshakes::descriptor));
        let streams = self.streams().map(|waited| LinkDescriptor::of_stream(&waited));
        Ok(inputs.map(LinkDescriptor::input).chain(streams))
    }
}

/// The descriptors of these Workers.
fn descriptors_of<P: Watched>(
    workers: &[Worker<P>],
) -> Result<impl Iterator<Item = BorrowedFd<'_>>, WaitError> {
    let mut descriptors = Vec::with_capacity(workers.len().saturating_mul(3));
    for worker in workers {
        descriptors.extend(worker.descriptors().ok_or(WaitError::NeverNotified)?);
    }
    Ok(descriptors.into_iter())
}

const fn cannot_wait(error: NetworkError) -> WaitError {
    WaitError::Provider(ProviderError {
        call: "poll",
        errno: error.errno,
    })
}
