//! The order in which links post, by the classes of their Workers, and the limit on bytes in flight.
//!
//! With classes, a poll first advances all links without posting their messages, one-sided requests and pieces of transfers. Then it
//! posts these one request at a time, each from the link whose turn it is. Acknowledgements, probes and frames about transfers are never
//! held back.

use core::num::NonZeroU64;
use core::time::Duration;

use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::session::{Action, HealthState, SESSION_RAILS_MAX};
use doorbell_core::wire::Handle;
use doorbell_core::{Deadline, Instant};

use super::config::LinkError;
use super::event::LinkId;
use super::links::Links;
use super::moment::Moment;
use super::resting::Resting;
use super::state::Link;
use super::table::{Core, LinkContext, LinkEntry, act};
use crate::connect::node::Node;
use crate::worker::Worker;
use crate::worker::class::{CLASSES_MAX, Classes};
use crate::worker::in_turn::Waiting;
use crate::worker::schedule::{Ahead, Bucket, ClassCounts, Schedule, Turn};

/// The bits of all rails.
const ALL_RAILS: u8 = u8::MAX;

/// A link's class, and its turn among the links of the class.
#[derive(Clone, Copy, Debug)]
pub(super) struct InClass {
    class: u8,
    /// Whether its Workers have classes.
    is_ordered: bool,
    turn: Turn,
    /// The rate limit of the link.
    limit: Option<Bucket>,
    /// When a rate limit permits its next request, if a limit delayed it in the last poll.
    not_before: Option<Instant>,
    /// The rails on which it may not post now, as bits.
    held: u8,
    /// The rail and the bytes that it posted in this turn.
    posted: Option<(u8, u64)>,
}

impl InClass {
    pub(super) const fn new(class: u8) -> Self {
        Self {
            class,
            is_ordered: false,
            turn: Turn::START,
            limit: None,
            not_before: None,
            held: 0,
            posted: None,
        }
    }

    pub(super) const fn class(&self) -> u8 {
        self.class
    }

    pub(super) fn set(&mut self, class: u8) {
        if class != self.class {
            (self.class, self.turn) = (class, Turn::START);
        }
    }

    /// Whether it posts only in its turn.
    pub(super) const fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    pub(super) const fn is_held(&self, rail: u8) -> bool {
        self.held & (1 << rail) != 0
    }

    /// Whether it has posted in its turn.
    pub(super) const fn has_had_turn(&self) -> bool {
        self.is_ordered && self.posted.is_some()
    }

    /// Notes that it posted this many bytes on a rail.
    pub(super) const fn note_posted(&mut self, rail: u8, bytes: u64) {
        if self.is_ordered {
            let before = match self.posted {
                Some((_, before)) => before,
                None => 0,
            };
            self.posted = Some((rail, before.saturating_add(bytes)));
        }
    }

    /// When to poll again at the latest.
    pub(super) fn wake(&self, now: Instant) -> Option<Deadline> {
        self.not_before.map(|at| match Deadline::at(at) {
            passed if passed.has_passed(now) => Deadline::after(now, Duration::from_nanos(1)),
            ahead => ahead,
        })
    }

    fn ready_at(&self, now: Instant) -> Instant {
        self.limit.map_or(now, |limit| limit.ready_at(now))
    }
}

/// The order of all links of some Workers.
#[derive(Debug)]
pub(super) struct Order {
    schedule: Schedule,
    /// Bytes in flight on each Worker, by level of priority.
    ahead: Box<[Ahead]>,
    /// The links of each class that may post more in this poll, by their turns.
    waiting: Waiting,
}

impl Order {
    pub(super) fn new(classes: &Classes, workers: usize, now: Instant) -> Self {
        Self {
            schedule: Schedule::new(classes, now),
            ahead: vec![[0; CLASSES_MAX]; workers].into_boxed_slice(),
            waiting: Waiting::new(),
        }
    }

    pub(super) fn counts(&self, class: u8) -> ClassCounts {
        self.schedule.counts(class)
    }

    /// Sums up the bytes in flight, and gives turns to all links that are due.
    fn begin<P: Provider, N: Network>(
        &mut self,
        entries: &mut [LinkEntry<P, N>],
        (resting, now): (&Resting, Instant),
    ) {
        self.ahead.fill([0; CLASSES_MAX]);
        self.waiting.make_room(entries.len());
        self.waiting.clear();
        for (index, entry) in entries.iter_mut().enumerate() {
            let Some((_, link)) = entry.named(index) else {
                continue;
            };
            // A resting link has nothing to post, but it may have bytes in flight.
            if resting.is_due(index, now) {
                link.in_class.not_before = None;
                self.wait(&link.in_class, index);
                link.transfers.forget_limits();
            }
            for rail in 0..SESSION_RAILS_MAX {
                // A suspect rail does not answer, so its bytes are assumed not to use the port.
                let is_silent = link.session.rail_state(rail) == HealthState::Suspect;
                let bytes = link.session.backlog_bytes(rail);
                if let Some(worker) = link.worker_of(rail).filter(|_| bytes > 0 && !is_silent) {
                    self.note((worker, link.in_class.class), bytes);
                }
            }
        }
    }

    fn note(&mut self, (worker, class): (usize, u8), bytes: u64) {
        if let Some(ahead) = self.ahead.get_mut(worker) {
            self.schedule.note(class, ahead, bytes);
        }
    }

    /// Lets the link in this place wait for its turn.
    fn wait(&mut self, in_class: &InClass, index: usize) {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        self.waiting.wait(in_class.class, in_class.turn, index);
    }

    /// Removes the link whose turn is next, and returns its place.
    fn next(&mut self) -> Option<usize> {
        Some(self.waiting.next(&self.schedule)? as usize)
    }

    /// The rails, as bits, that have no channel, or on whose Workers the link's class has reached its limit.
    fn held<P: Provider, N: Network>(&self, link: &Link<P, N>) -> u8 {
        (0..SESSION_RAILS_MAX).fold(0, |held, rail| {
            let ahead = link.worker_of(rail).and_then(|worker| self.ahead.get(worker));
            let has_room = ahead.is_some_and(|ahead| self.schedule.has_room(link.in_class.class, ahead));
            if has_room { held } else { held | 1 << rail }
        })
    }
}

impl<P: Provider, N: Network> Link<P, N> {
    /// Makes the link post only in its turns, from now on.
    pub(super) fn begin_order(&mut self) {
        self.in_class.is_ordered = true;
        self.hold(ALL_RAILS);
    }

    fn hold(&mut self, rails: u8) {
        self.in_class.held = rails;
        self.session.hold(rails);
    }

    /// The Worker that a rail's channel is on, if it has one.
    fn worker_of(&self, rail: u8) -> Option<usize> {
        Some(self.rails.get(usize::from(rail))?.at?.worker)
    }

    /// Posts the next fragment of a message, or else a one-sided request, or else a piece of a transfer. Returns the rail and the bytes.
    fn post_next(
        &mut self,
        id: LinkId,
        around: &mut LinkContext<'_, P, N>,
        moment: Moment,
    ) -> Option<(u8, u64)> {
        let Moment { now, random } = moment;
        self.in_class.posted = None;
        while let Some(action) = self.session.poll_action(now, random) {
            let is_posted = act((id, self), &action, around, moment);
            if let (true, Action::Transmit { rail, .. }) = (is_posted, &action) {
                self.in_class.note_posted(*rail, action.backlog_bytes());
                return self.in_class.posted;
            }
        }
        if self.session.over().is_some() {
            return None;
        }
        self.post_requests(around.workers, moment);
        if self.in_class.posted.is_none() {
            self.post_pieces(around.workers, moment);
        }
        self.in_class.posted
    }
}

impl<P: Provider, N: Network> Core<P, N> {
    /// Makes the links post in the order of their classes, as far as rails have room and the limits on bytes in flight permit.
    pub(super) fn post_in_order(&mut self, node: &Node<P, N>, workers: &mut [Worker<P>], now: Instant) {
        let random = self.draw();
        let Self {
            entries,
            resting,
            order: Some(order),
            routes,
            closing,
            config,
            ..
        } = self
        else {
            return;
        };
        let around = &mut LinkContext {
            node,
            workers,
            config,
            routes,
            closing,
        };
        order.begin(entries, (resting, now));
        while let Some(index) = order.next() {
            let Some((id, link)) = entries.get_mut(index).and_then(|entry| entry.named(index)) else {
                continue;
            };
            let class = link.in_class.class;
            let ready = order
                .schedule
                .ready_at(class, now)
                .max(link.in_class.ready_at(now));
            let held = order.held(link);
            let is_late = ready > now;
            if is_late {
                link.in_class.not_before = Some(ready);
            }
            if is_late || held == ALL_RAILS {
                continue;
            }
            link.hold(held);
            let posted = link.post_next(id, around, Moment { now, random });
            link.hold(ALL_RAILS);
            let Some((rail, bytes)) = posted else {
                continue;
            };
            let worker = link.worker_of(rail);
            let InClass { turn, limit, .. } = &mut link.in_class;
            order.schedule.charge((class, turn), ClassCounts::one(bytes), now);
            if let Some(limit) = limit {
                limit.take(bytes, now);
            }
            order.wait(&link.in_class, index);
            if let Some(worker) = worker {
                order.note((worker, class), bytes);
            }
        }
    }
}

impl<P: Provider, N: Network> Links<P, N> {
    /// Begins a link as [`Links::connect`] does, in a class of its Workers ([`WorkerConfig::classes`](crate::WorkerConfig::classes)),
    /// by its number. The peer accepts it in its class with the same traffic class and service level, if there is one.
    ///
    /// # Errors
    /// As for [`Links::connect`].
    pub fn connect_in(
        &mut self,
        class: u8,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        handle: &Handle,
    ) -> Result<LinkId, LinkError> {
        let id = self.connect(node, workers, handle)?;
        self.set_class(id, class);
        Ok(id)
    }

    /// Puts a link into a class of its Workers ([`WorkerConfig::classes`](crate::WorkerConfig::classes)), by its number. From the next
    /// poll on it has the turns of that class. Its connections keep their traffic class and service level. Later connections that begin here
    /// have those of the class. Returns whether there is such a link.
    pub fn set_class(&mut self, id: LinkId, class: u8) -> bool {
        let link = self.core.link_mut(id);
        link.map(|link| link.in_class.set(class)).is_some()
    }

    /// The class of a link.
    #[must_use]
    pub fn class(&self, id: LinkId) -> Option<u8> {
        Some(self.core.link(id)?.in_class.class)
    }

    /// Limits the bytes a second that a link sends, in addition to the limit of its class. After a pause, the link may send the bytes of
    /// 10 ms at once. `None` is no limit. The limit has an effect only if the Workers have classes. Returns whether there is such a link.
    pub fn set_limit(
        &mut self,
        node: &Node<P, N>,
        id: LinkId,
        bytes_per_second_max: Option<NonZeroU64>,
    ) -> bool {
        let now = node.network.now();
        let link = self.core.link_mut(id);
        let limit = bytes_per_second_max.map(|rate| Bucket::new(rate.get(), 0, now));
        link.map(|link| link.in_class.limit = limit).is_some()
    }

    /// Counts of a class over all links of these Workers; `None` if the Workers have no classes.
    #[must_use]
    pub fn class_counts(&self, class: u8) -> Option<ClassCounts> {
        Some(self.core.order.as_ref()?.counts(class))
    }
}

/// The classes of these Workers, and the order of links by them.
pub(super) fn order_of<P: Provider>(
    workers: &[Worker<P>],
    now: Instant,
) -> Result<Option<(Classes, Box<Order>)>, LinkError> {
    let mut classes = workers.iter().map(|worker| worker.classes.as_deref());
    let first = classes.next().flatten();
    if !classes.all(|classes| classes == first) {
        return Err(LinkError::OtherClasses);
    }
    Ok(first.map(|first| (*first, Box::new(Order::new(first, workers.len(), now)))))
}
