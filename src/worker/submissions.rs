//! The Worker's side of submission. Requests are taken out of the rings, and wait in a queue for each channel until they are
//! posted (`posting`), together with requests that wait at the channel itself.
//!
//! The node of a waiting request belongs to its slot, so a node is always free and polling allocates nothing.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use doorbell_core::provider::{
    Arena as _, ArenaConfig, MemoryError, ProtectionDomain, Provider, SettingError, Slot as _,
};
use doorbell_core::{Instant, WcStatus, in_place};
use doorbell_hotpath::ring::TakeError;

use super::Turn;
use super::channel_list::{ChannelList, Due, due};
use super::channel_table::{ChannelEntry, Others, channel_apart};
use super::ordered::Ordered;
use super::posting::post;
use crate::machine::reaper::Reaper;
use crate::worker::arena::Arena;
use crate::worker::channel::ChannelId;
use crate::worker::class::Classes;
use crate::worker::config::SubmitterConfig;
use crate::worker::event::Event;
use crate::worker::half::{SendHalf, Sends};
use crate::worker::lease::Lease;
use crate::worker::schedule::ClassCounts;
use crate::worker::submission::{
    Bell, Deferred, Intake, LastOfAll, Record, Registry, Request, RequestConsumer, RequestRing, ReturnPath,
    SHARING_MAX,
};
use crate::worker::submission::{SubmissionError, Submitter};

/// Maximum sleep while something is awaited that no completion reports: credits, memory for receives, or the end of a closing.
/// The time is about the default RNR timer.
pub(crate) const NAP: Duration = Duration::from_millis(1);

/// All submitters of a Worker, and the submitted requests that are not posted yet.
pub(crate) struct Submissions<P: Provider> {
    inlets: Inlets<P>,
    /// By the index of the channel.
    queues: Vec<Queue>,
    /// Channels for which requests wait, in `queues` or at the channel itself.
    waiting: ChannelList,
    /// The schedule of channels, if the Worker has classes.
    ordered: Option<Box<Ordered>>,
    /// Channels to which the Worker's thread submitted since the last poll; `None` until there are submitters.
    due: Option<Arc<Due>>,
    channels_max: u32,
    /// The ring that the next poll takes from first.
    first: usize,
    /// Maximum number of requests that one poll takes out of the rings.
    per_poll: u32,
    /// Whether the last poll took this maximum, so that more requests may be in the rings.
    is_behind: bool,
    registry: Arc<Registry<P>>,
    /// `Some` once there are submitters, if the Worker can sleep.
    bell: Option<Arc<Bell<P>>>,
    /// `Some` once there are submitters.
    reaper: Option<Reaper>,
}

/// The rings. An entry is `None` after its submitters are gone and all their requests were taken and posted.
pub(super) struct Inlets<P: Provider>(Vec<Option<Inlet<P>>>);

/// A ring of requests, with the Worker's state of its submitters.
struct Inlet<P: Provider> {
    requests: RequestConsumer,
    /// Whether the submitters are gone and all their requests were taken.
    is_over: bool,
    states: Box<[SubmitterState<P>]>,
    intake: Arc<Intake<P>>,
}

/// State of one submitter.
struct SubmitterState<P: Provider> {
    return_path: Arc<ReturnPath<P>>,
    /// One node for each slot.
    nodes: Box<[RequestNode<P>]>,
}

/// A node for a waiting request. `slot` is `Some` while the request waits.
pub(super) struct RequestNode<P: Provider> {
    pub(super) slot: Option<P::Slot>,
    pub(super) request: Request,
    /// The next request that waits for the same channel.
    next: Link,
}

/// Reference to a waiting request: the index of its inlet, of its submitter there, and of its slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    inlet: u32,
    submitter: u32,
    slot: u32,
}

impl Link {
    const NONE: Self = Self {
        inlet: u32::MAX,
        submitter: u32::MAX,
        slot: u32::MAX,
    };
}

/// Requests that wait for one channel, the oldest first.
#[derive(Clone, Copy)]
pub(super) struct Queue {
    pub(super) head: Link,
    /// The youngest request; meaningless if the queue is empty.
    tail: Link,
    pub(super) count: u32,
    /// Whether the channel is on the list of channels with waiting requests.
    is_listed: bool,
    /// Whether requests of the Worker's thread left no room for these last time, so that these get the room first now.
    pub(super) is_their_turn: bool,
}

impl Queue {
    pub(super) const EMPTY: Self = Self {
        head: Link::NONE,
        tail: Link::NONE,
        count: 0,
        is_listed: false,
        is_their_turn: false,
    };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == Link::NONE
    }

    /// Puts the channel with this index on the list, if it is not listed.
    #[inline]
    fn list(&mut self, index: u32, waiting: &mut ChannelList) {
        if !self.is_listed {
            self.is_listed = waiting.put(index);
        }
    }

    /// Adds the request of a node at the end.
    #[inline]
    fn push<P: Provider>(&mut self, inlets: &mut Inlets<P>, link: Link) {
        if let Some((_, node)) = inlets.at(link) {
            node.next = Link::NONE;
        }
        if self.is_empty() {
            self.head = link;
        } else if let Some((_, last)) = inlets.at(self.tail) {
            last.next = link;
        }
        self.tail = link;
        self.count = self.count.wrapping_add(1);
    }

    /// Adds a request at the end whose slot the device returned, if its submitter still exists.
    #[cold]
    pub(super) fn push_back<P: Provider>(&mut self, inlets: &mut Inlets<P>, record: &Record, slot: P::Slot) {
        if let Some(link) = inlets.of(record.number, slot.index()) {
            if let Some((_, node)) = inlets.at(link) {
                node.slot = Some(slot);
            }
            self.push(inlets, link);
        }
    }

    /// Inserts the requests of another queue at the front.
    #[cold]
    pub(super) fn put_in_front<P: Provider>(&mut self, inlets: &mut Inlets<P>, others: Self) {
        let Some((_, last)) = inlets.at(others.tail).filter(|_| !others.is_empty()) else {
            return;
        };
        last.next = self.head;
        if self.is_empty() {
            self.tail = others.tail;
        }
        self.head = others.head;
        self.count = self.count.wrapping_add(others.count);
    }

    /// Removes the first request. Its slot was taken before.
    #[inline]
    pub(super) fn pop<P: Provider>(&mut self, inlets: &mut Inlets<P>) {
        let first = inlets.at(self.head);
        self.head = first.map_or(Link::NONE, |(_, node)| node.next);
        self.count = self.count.wrapping_sub(1);
    }

    /// Fails all requests. `error` returns the reason for a request's channel.
    #[cold]
    pub(super) fn fail<P: Provider>(
        &mut self,
        inlets: &mut Inlets<P>,
        error: impl Fn(ChannelId) -> SubmissionError,
    ) {
        while let Some((return_path, node)) = inlets.at(self.head) {
            let channel = node.request.channel();
            if let Some(slot) = node.slot.take() {
                return_path.failed(channel, slot, error(channel));
            }
            self.pop(inlets);
        }
    }
}

impl<P: Provider> Inlets<P> {
    #[inline]
    fn inlet(&mut self, at: usize) -> Option<&mut Inlet<P>> {
        self.0.get_mut(at)?.as_mut()
    }

    /// Returns a waiting request, and the return path to its submitter.
    #[inline]
    pub(super) fn at(&mut self, link: Link) -> Option<(&ReturnPath<P>, &mut RequestNode<P>)> {
        let inlet = self.inlet(link.inlet as usize)?;
        let SubmitterState { return_path, nodes } = inlet.states.get_mut(link.submitter as usize)?;
        Some((&**return_path, nodes.get_mut(link.slot as usize)?))
    }

    /// Returns the link to a slot of the submitter whose return path has this number.
    #[cold]
    fn of(&self, number: u64, slot: u32) -> Option<Link> {
        (0..).zip(&self.0).find_map(|(inlet, entry)| {
            let mut states = (0..).zip(&entry.as_ref()?.states);
            let (submitter, _) = states.find(|(_, submitter)| submitter.return_path.number() == number)?;
            Some(Link {
                inlet,
                submitter,
                slot,
            })
        })
    }

    /// Takes the next request out of a ring.
    #[inline]
    fn take(&mut self, at: usize) -> Option<Request> {
        let inlet = self.inlet(at).filter(|inlet| !inlet.is_over)?;
        match inlet.requests.take() {
            Ok(request) => Some(request),
            Err(TakeError::Closed) => {
                inlet.is_over = true;
                None
            }
            Err(_) => None,
        }
    }

    /// Hands rings to the reaper whose submitters are gone and whose requests were all posted. The reaper drops them, since
    /// dropping may deregister memory.
    fn forget_gone(&mut self, reaper: &Reaper) {
        for entry in &mut self.0 {
            let is_gone = entry.as_ref().is_some_and(|inlet| {
                let mut nodes = inlet.states.iter().flat_map(|submitter| &submitter.nodes);
                inlet.is_over && nodes.all(|node| node.slot.is_none())
            });
            if is_gone {
                reaper.take(entry.take());
            }
        }
    }
}

impl<P: Provider> Submissions<P> {
    /// Makes submissions without submitters, for up to `channels_max` channels. One poll takes at most `per_poll` requests.
    pub(super) fn new(channels_max: u32, per_poll: u32, classes: Option<(&Classes, Instant)>) -> Self {
        Self {
            inlets: Inlets(Vec::new()),
            queues: Vec::new(),
            waiting: ChannelList::default(),
            ordered: classes.map(|(classes, now)| Box::new(Ordered::new(classes, now))),
            due: None,
            channels_max,
            first: 0,
            per_poll: per_poll.max(1),
            is_behind: false,
            registry: Arc::new(Registry::new()),
            bell: None,
            reaper: None,
        }
    }

    /// Whether the Worker ever had submitters.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.rings() != 0
    }

    /// Returns the number of entries for rings. It is 0 only if there never was a submitter.
    #[inline]
    pub(super) fn rings(&self) -> usize {
        self.inlets.0.len()
    }

    /// Announces a sleep, so that submitters wake the Worker. The caller polls once more before it sleeps.
    pub(super) fn announce_sleep(&self) {
        if let Some(bell) = &self.bell {
            bell.flag().announce();
        }
    }

    /// Ends an announced sleep.
    pub(super) fn withdraw_sleep(&self) {
        if let Some(bell) = &self.bell {
            bell.flag().withdraw();
        }
    }

    /// Returns the longest sleep, since some work wakes no thread: requests that a poll left in the rings, requests that the
    /// Worker's thread submitted since, and requests that wait for credits. `None` is no limit.
    pub(super) fn sleep_at_most(&self) -> Option<Duration> {
        if self.is_behind || self.due.as_ref().is_some_and(|due| !due.is_empty()) {
            Some(Duration::ZERO)
        } else {
            (!self.waiting.is_empty()).then_some(NAP)
        }
    }

    /// Makes room for a channel, in tables for `channels` channels. Called when a channel or the first submitter is made.
    pub(super) fn make_room(&mut self, channels: usize, half: &mut SendHalf<P>) {
        self.waiting.make_room(channels);
        if channels > self.queues.len() {
            self.queues.resize(channels, Queue::EMPTY);
        }
        if let Some(ordered) = &mut self.ordered {
            ordered.make_room(channels, half);
        }
        let depth = half.limits().send_depth;
        half.records.make_room(depth, &self.registry);
        let index = half.id().index;
        // One entry of the send queue is reserved for announcements.
        let own = depth.saturating_sub(1);
        let due = self.due.get_or_insert_with(|| due(self.channels_max as usize));
        half.deferred
            .get_or_insert_with(|| Box::new(Deferred::new(index, own, due)));
    }

    /// Takes requests out of the rings, and posts those that have room and credits, with one doorbell for each channel. Requests
    /// of the Worker's own thread that come back are reported to `each`. Returns how many were reported.
    // A separate function, so that the poll of a Worker without submitters has none of this code. For `#[cold]` see
    // `Sender::retire_fetched`.
    #[cold]
    pub(super) fn run<C: Sends<P>>(
        &mut self,
        entries: &mut [ChannelEntry<C>],
        arena: &mut P::Arena,
        clock: &P::Context,
        each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
    ) -> u32 {
        self.take_in();
        let Self {
            inlets,
            queues,
            waiting,
            ordered,
            due,
            ..
        } = self;
        if let Some(due) = due {
            due.take(|index| {
                if let Some(queue) = queues.get_mut(index as usize) {
                    queue.list(index, waiting);
                }
            });
        }
        let mut reported = 0_u32;
        if waiting.is_empty() {
            return reported;
        }
        if let Some(ordered) = ordered {
            ordered.post((queues, inlets), waiting, entries, clock);
        }
        waiting.retain(|index| {
            let Some(queue) = queues.get_mut(index as usize) else {
                return false;
            };
            let mut waits = false;
            match channel_apart(entries, index as usize) {
                Some((channel, others)) => {
                    if ordered.is_none() {
                        post(queue, inlets, channel);
                    }
                    reported = reported.saturating_add(report_refused(channel, others, arena, each));
                    waits = channel.send_half().deferred.as_ref().is_none_or(|deferred| {
                        // If the application swapped channels of two Workers, this channel reports itself to the other Worker,
                        // and so stays listed here.
                        deferred.waiting() > 0
                            || !due.as_ref().is_some_and(|due| deferred.notifies(due, index))
                    });
                }
                None => queue.fail(inlets, |_| SubmissionError::NoChannel),
            }
            queue.is_listed = waits || !queue.is_empty();
            queue.is_listed
        });
        reported
    }

    /// Returns the counts of a class, if the Worker has classes.
    pub(super) fn class_counts(&self, class: u8) -> Option<ClassCounts> {
        Some(self.ordered.as_ref()?.counts(class))
    }

    /// Takes requests out of the rings. Each call begins with the next ring, for fairness.
    #[inline]
    fn take_in(&mut self) {
        let rings = self.inlets.0.len();
        let mut left = self.per_poll;
        let mut at = self.first;
        for _ in 0..rings {
            if at >= rings {
                at = 0;
            }
            while left > 0 {
                let Some(request) = self.inlets.take(at) else {
                    break;
                };
                self.enqueue(at, request);
                left = left.wrapping_sub(1);
            }
            at = at.wrapping_add(1);
        }
        self.is_behind = left == 0;
        self.first = self.first.wrapping_add(1);
        if self.first >= rings {
            self.first = 0;
        }
    }

    /// Puts a request at the end of its channel's queue.
    #[inline]
    fn enqueue(&mut self, at: usize, request: Request) {
        let Self {
            inlets,
            queues,
            waiting,
            ..
        } = self;
        // The look-ups below cannot fail: only submitters of the inlet push requests, and each request names a detached slot.
        let inlet = inlets.inlet(at);
        let Some(submitter) = inlet.and_then(|inlet| inlet.states.get_mut(request.who())) else {
            return;
        };
        let Some(slot) = submitter.return_path.attach(&request) else {
            return;
        };
        let channel = request.channel();
        let index = slot.index();
        let (Some(queue), Some(node)) = (
            queues.get_mut(channel.index as usize),
            submitter.nodes.get_mut(index as usize),
        ) else {
            return submitter
                .return_path
                .failed(channel, slot, SubmissionError::NoChannel);
        };
        // The node is free, since its slot belonged to the submitter until now.
        node.slot = Some(slot);
        node.request = request;
        queue.list(channel.index, waiting);
        #[expect(clippy::cast_possible_truncation, reason = "there are never as many")]
        let link = Link {
            inlet: at as u32,
            submitter: request.who() as u32,
            slot: index,
        };
        queue.push(inlets, link);
    }

    /// Reports to its submitter that a posted request failed.
    #[cold]
    pub(super) fn ended(&mut self, channel: ChannelId, record: Record, slot: P::Slot, status: WcStatus) {
        let link = self.inlets.of(record.number, slot.index());
        // If the submitter and its ring are gone, the slot returns to its arena.
        if let Some((return_path, _)) = link.and_then(|link| self.inlets.at(link)) {
            return_path.failed(channel, slot, SubmissionError::Ended(status));
        }
    }

    /// Makes one submitter with its own ring.
    ///
    /// # Errors
    /// As for [`Submissions::add`].
    pub(super) fn add_one<C: Sends<P>>(
        &mut self,
        entries: &mut [ChannelEntry<C>],
        maker: &Maker<'_, P>,
    ) -> Result<Submitter<P>, MemoryError> {
        let mut made = self.add(entries, 1, false, maker)?;
        made.pop().ok_or(NOT_MADE)
    }

    /// Makes `count` submitters: several that share a ring, or one with its own ring.
    ///
    /// # Errors
    /// There is no memory, or a setting is out of its range.
    pub(super) fn add<C: Sends<P>>(
        &mut self,
        entries: &mut [ChannelEntry<C>],
        count: usize,
        is_shared: bool,
        maker: &Maker<'_, P>,
    ) -> Result<Vec<Submitter<P>>, MemoryError> {
        let config = maker.config;
        config.check()?;
        SettingError::check("count", count as u64, 1..=SHARING_MAX as u64)?;
        let mut arenas = Vec::with_capacity(count);
        let mut return_paths = Vec::with_capacity(count);
        let mut states = Vec::with_capacity(count);
        for _ in 0..count {
            let arena = maker.domain.arena(&ArenaConfig {
                slots: config.slots,
                slot_bytes: config.slot_bytes,
                placement: config.placement,
            })?;
            let return_path = Arc::new(ReturnPath::new(&arena).ok_or(NOT_MADE)?);
            let mut nodes: Box<[_]> = (0..arena.slots()).map(|_| RequestNode::empty()).collect();
            in_place::put(&mut nodes, RequestNode::empty);
            self.registry.enter(&return_path);
            states.push(SubmitterState {
                return_path: Arc::clone(&return_path),
                nodes,
            });
            return_paths.push(return_path);
            arenas.push(Arena::new(arena, maker.reaper.clone()));
        }
        let ring = RequestRing::new(config.depth, is_shared).ok_or(NOT_MADE)?;
        let requests = ring.consumer().map_err(|_| NOT_MADE)?;
        let last = Arc::new(LastOfAll(ring.clone()));
        if self.bell.is_none() {
            self.bell = Bell::new(maker.sleeps_at).map(Arc::new);
        }
        let intake = Arc::new(Intake {
            ring,
            return_paths: return_paths.into(),
            bell: self.bell.clone(),
        });
        let submitters: Option<Vec<_>> = (0..)
            .zip(arenas)
            .map(|(who, arena)| Submitter::new(&intake, &last, who, arena, maker.reaper))
            .collect();
        let submitters = submitters.ok_or(NOT_MADE)?;
        // Once there was a submitter, each channel has room, and its requests in flight are counted there.
        if !self.is_used() {
            let all = entries.len();
            for channel in entries.iter_mut().filter_map(|entry| entry.channel.as_mut()) {
                self.make_room(all, channel.send_half());
            }
        }
        self.inlets.forget_gone(maker.reaper);
        self.reaper = Some(maker.reaper.clone());
        let inlet = Some(Inlet {
            requests,
            is_over: false,
            states: states.into(),
            intake,
        });
        match self.inlets.0.iter_mut().find(|entry| entry.is_none()) {
            Some(free) => *free = inlet,
            None => self.inlets.0.push(inlet),
        }
        Ok(submitters)
    }
}

/// Resources that submitters are made from.
pub(super) struct Maker<'w, P: Provider> {
    pub(super) domain: &'w P::ProtectionDomain,
    pub(super) reaper: &'w Reaper,
    /// The completion queue at which the Worker, or its sending half, sleeps.
    pub(super) sleeps_at: &'w P::CompletionQueue,
    pub(super) config: &'w SubmitterConfig,
}

/// Error for a ring or a submitter that was not made, though its settings are in range.
const NOT_MADE: MemoryError = MemoryError::Unreachable("no ring for submitters whose settings are in range");

impl<P: Provider> RequestNode<P> {
    fn empty() -> Self {
        Self {
            slot: None,
            request: Request::default(),
            next: Link::NONE,
        }
    }
}

/// Reports requests of the Worker's own thread that come back. Returns how many.
#[inline]
fn report_refused<P: Provider, C: Sends<P>>(
    channel: &mut C,
    mut others: Others<'_, C>,
    arena: &mut P::Arena,
    each: &mut impl FnMut(Turn<'_, P, C>, Event<'_, P>),
) -> u32 {
    let mut reported = 0_u32;
    while let Some((slot, error)) = channel
        .send_half()
        .deferred
        .as_mut()
        .and_then(|deferred| deferred.take_refused())
    {
        let lease = slot.map(|slot| Lease { slot });
        let turn = Turn::new(channel, others.again(), arena);
        each(turn, Event::Unsent { lease, error });
        reported = reported.saturating_add(1);
    }
    reported
}

impl<P: Provider> Drop for Submissions<P> {
    /// Returns unposted requests to their submitters: first the waiting ones, then those in the rings. A request that enters a
    /// ring during the close is taken out again by its submitter.
    fn drop(&mut self) {
        let Self {
            inlets,
            queues,
            reaper,
            ..
        } = self;
        for queue in queues {
            queue.fail(inlets, |_| SubmissionError::WorkerGone);
        }
        for inlet in inlets.0.iter_mut().flatten() {
            inlet.requests.close();
            inlet.intake.return_all(&mut inlet.requests);
        }
        if let Some(reaper) = reaper {
            // Dropping the rings may deregister memory of submitters that are gone, which takes long.
            reaper.take(core::mem::take(&mut inlets.0));
        }
    }
}

impl<P: Provider> fmt::Debug for Submissions<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submissions")
            .field("rings", &self.inlets.0.iter().flatten().count())
            .finish_non_exhaustive()
    }
}
