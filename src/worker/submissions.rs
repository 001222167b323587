//! The Worker's side of submitters: their requests are taken out of the rings, and wait in the order of their
//! channel until they are posted (`posting`), together with what waits at the channel itself.
//!
//! Each waiting request has the place of its own slot, so a place is always free and polling allocates nothing.

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

/// No sleep is longer while something is awaited that no completion reports: credits, memory for
/// receives, the end of a closing. About as long as a peer that found no receive waits by default.
pub(crate) const NAP: Duration = Duration::from_millis(1);

/// All submitters of a Worker, and what they submitted and is not posted.
pub(crate) struct Submissions<P: Provider> {
    inlets: Inlets<P>,
    /// By the index of the channel.
    queues: Vec<Queue>,
    /// Channels for which something waits, here or at the channel itself.
    waiting: ChannelList,
    /// The order of channels, if the Worker has classes.
    ordered: Option<Box<Ordered>>,
    /// Channels on which something was submitted since the last poll; `None` until there are submitters.
    due: Option<Arc<Due>>,
    channels_max: u32,
    /// Whose turn it is to be taken from first.
    first: usize,
    /// Requests taken by one poll at most.
    per_poll: u32,
    /// Whether the last poll took as many, so that there may be more.
    is_behind: bool,
    registry: Arc<Registry<P>>,
    /// There once there are submitters, and where the Worker can sleep.
    bell: Option<Arc<Bell<P>>>,
    /// There once there are submitters.
    reaper: Option<Reaper>,
}

/// The rings. A place is empty once nothing comes out of it any more and nothing of it waits.
pub(super) struct Inlets<P: Provider>(Vec<Option<Inlet<P>>>);

/// A ring that requests come out of.
struct Inlet<P: Provider> {
    requests: RequestConsumer,
    /// All that was submitted was taken, and those who did are gone.
    is_over: bool,
    states: Box<[SubmitterState<P>]>,
    intake: Arc<Intake<P>>,
}

/// State of one submitter.
struct SubmitterState<P: Provider> {
    return_path: Arc<ReturnPath<P>>,
    /// One for each slot.
    nodes: Box<[RequestNode<P>]>,
}

/// A waiting request. Its slot is there as long as the request waits.
pub(super) struct RequestNode<P: Provider> {
    pub(super) slot: Option<P::Slot>,
    pub(super) request: Request,
    /// The next request that waits for the same channel.
    next: Link,
}

/// Which waiting request: its inlet, its submitter there, and its slot.
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
    /// The last, unless there is none.
    tail: Link,
    pub(super) count: u32,
    /// Whether its channel is on the list of those for which something waits.
    is_listed: bool,
    /// Whether own requests left no room for these last time, so that these have the room now.
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

    /// Puts the channel of this index on the list, if it is not there.
    #[inline]
    fn list(&mut self, index: u32, waiting: &mut ChannelList) {
        if !self.is_listed {
            self.is_listed = waiting.put(index);
        }
    }

    /// Puts a request at the end that stands in its place.
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

    /// Puts a request at the end whose slot came back, if its submitter is there.
    #[cold]
    pub(super) fn push_back<P: Provider>(&mut self, inlets: &mut Inlets<P>, record: &Record, slot: P::Slot) {
        if let Some(link) = inlets.of(record.number, slot.index()) {
            if let Some((_, node)) = inlets.at(link) {
                node.slot = Some(slot);
            }
            self.push(inlets, link);
        }
    }

    /// Puts what is in another in front.
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

    /// Takes the first request out, whose slot was taken out of its place.
    #[inline]
    pub(super) fn pop<P: Provider>(&mut self, inlets: &mut Inlets<P>) {
        let first = inlets.at(self.head);
        self.head = first.map_or(Link::NONE, |(_, node)| node.next);
        self.count = self.count.wrapping_sub(1);
    }

    /// Fails all of them, each for the reason of the channel it is for.
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

    /// A waiting request, and the return path to its submitter.
    #[inline]
    pub(super) fn at(&mut self, link: Link) -> Option<(&ReturnPath<P>, &mut RequestNode<P>)> {
        let inlet = self.inlet(link.inlet as usize)?;
        let SubmitterState { return_path, nodes } = inlet.states.get_mut(link.submitter as usize)?;
        Some((&**return_path, nodes.get_mut(link.slot as usize)?))
    }

    /// The place of a slot of the submitter whose return path has this number.
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

    /// The next request out of a ring.
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

    /// Lets go of rings whose submitters are gone, and of which nothing waits: elsewhere, since memory may
    /// go with them.
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
    /// Makes submissions without submitters yet, for so many channels; one poll takes `per_poll` requests at most.
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

    /// Whether there ever were submitters.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.rings() != 0
    }

    /// How many rings there ever were.
    #[inline]
    pub(super) fn rings(&self) -> usize {
        self.inlets.0.len()
    }

    /// Announces a sleep, so that who submits wakes the Worker. It polls once more before.
    pub(super) fn announce_sleep(&self) {
        if let Some(bell) = &self.bell {
            bell.flag().announce();
        }
    }

    /// The sleep is over.
    pub(super) fn withdraw_sleep(&self) {
        if let Some(bell) = &self.bell {
            bell.flag().withdraw();
        }
    }

    /// Longest sleep, since some work wakes nobody: requests that a poll left in the rings or that came later, and requests
    /// that wait for credits.
    pub(super) fn sleep_at_most(&self) -> Option<Duration> {
        if self.is_behind || self.due.as_ref().is_some_and(|due| !due.is_empty()) {
            Some(Duration::ZERO)
        } else {
            (!self.waiting.is_empty()).then_some(NAP)
        }
    }

    /// Makes room for a channel among so many, as the first submitter or the channel is made.
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
        // One place of the queue is never the application's.
        let own = depth.saturating_sub(1);
        let due = self.due.get_or_insert_with(|| due(self.channels_max as usize));
        half.deferred
            .get_or_insert_with(|| Box::new(Deferred::new(index, own, due)));
    }

    /// Takes what was submitted, and posts what can go, each channel's as one doorbell. Requests of the Worker's own thread
    /// that come back are reported to `each`; returns how many.
    // Apart: a Worker without submitters has then nothing of it in its poll. By being cold: see `Sender::retire_fetched`.
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
                        // If channels of two Workers were exchanged, only the list of this place's channel counts.
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

    /// Counts of a class, if the Worker has classes.
    pub(super) fn class_counts(&self, class: u8) -> Option<ClassCounts> {
        Some(self.ordered.as_ref()?.counts(class))
    }

    /// Takes requests out of the rings, each time beginning with another.
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
        // Only a submitter of the inlet pushes a request, and the request names a detached slot: no other code makes such words.
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
        // Empty: the slot was the submitter's.
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

    /// A submitted request ended with an error: reports that to its submitter.
    #[cold]
    pub(super) fn ended(&mut self, channel: ChannelId, record: Record, slot: P::Slot, status: WcStatus) {
        let link = self.inlets.of(record.number, slot.index());
        // If the submitter and its ring are gone, the slot returns to its arena.
        if let Some((return_path, _)) = link.and_then(|link| self.inlets.at(link)) {
            return_path.failed(channel, slot, SubmissionError::Ended(status));
        }
    }

    /// Makes one with a ring of its own.
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

    /// Makes submitters that share a ring, or one with a ring of its own.
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
        let all = entries.len();
        for channel in entries.iter_mut().filter_map(|entry| entry.channel.as_mut()) {
            self.make_room(all, channel.send_half());
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
    /// A queue that the Worker, and its half that sends, sleeps at.
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

/// Reports what was submitted on the channel's own thread and comes back; says how much.
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
    /// ring while it closes is found there by its submitter.
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
            // Memory of submitters that are gone may go with them, which takes long.
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
