//! Scheduling of submitted requests by the traffic classes of their channels.
//!
//! Without classes each poll posts all requests for which there are room and credits. With classes the channels take turns, and
//! the bytes in flight of each priority and the higher ones are limited. In a turn a channel posts one doorbell, which ends with
//! the request that reaches an eighth of [`Classes::bytes_ahead_max`].

use doorbell_core::provider::Provider;
use doorbell_core::{Clock, Instant};

use super::channel_list::ChannelList;
use super::channel_table::{ChannelEntry, channel_apart};
use super::posting::{Limit, post_within};
use super::submissions::{Inlets, Queue};
use crate::worker::class::{CLASSES_MAX, Classes};
use crate::worker::half::{SendHalf, Sends};
use crate::worker::in_turn::Waiting;
use crate::worker::schedule::{Ahead, ClassCounts, Schedule, Turn};

/// Schedule of a Worker's channels.
pub(super) struct Ordered {
    schedule: Schedule,
    /// By the index of the channel.
    flows: Vec<Flow>,
    /// The channels with requests in `flows`, as far as polls have noticed.
    busy: ChannelList,
    /// The channels that may have more to post in this poll.
    waiting: Waiting,
    /// The bytes of one turn. A turn ends with the request that reaches this number.
    turn_bytes: u64,
}

/// The submitted requests of one channel that are in flight.
#[derive(Debug, Default)]
pub(super) struct Flow {
    class: u8,
    turn: Turn,
    /// The bytes of each request, in a ring.
    under_way: Box<[u64]>,
    /// The index of the oldest request in the ring, and the number of requests.
    oldest: usize,
    count: usize,
    /// The bytes of all these requests.
    bytes: u64,
    /// Whether the channel is on the list of busy ones.
    is_busy: bool,
}

impl Flow {
    /// Drops the oldest requests until no more are left than the channel has in flight.
    fn trim(&mut self, in_flight: u32) {
        while self.count > in_flight as usize {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let bytes = self.under_way.get(self.oldest).copied().unwrap_or(0);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.count = self.count.saturating_sub(1);
        self.oldest = self.oldest.saturating_add(1);
        if self.oldest >= self.under_way.len() {
            self.oldest = 0;
        }
    }

    /// Adds a request. The ring has an entry for each request that the send queue holds.
    fn add(&mut self, bytes: u64) {
        let places = self.under_way.len();
        if self.count >= places {
            self.drop_oldest();
        }
        let at = self.oldest.saturating_add(self.count);
        let at = at.checked_sub(places).unwrap_or(at);
        if let Some(place) = self.under_way.get_mut(at) {
            *place = bytes;
            self.count = self.count.saturating_add(1);
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }
}

/// A turn of one channel: the bytes that it may still post, and the bytes that it posted.
struct Taking<'f> {
    flow: &'f mut Flow,
    left: u64,
    posted: u64,
}

impl Limit for Taking<'_> {
    const IS_ONE: bool = true;

    fn admits(&self) -> bool {
        self.left > 0
    }

    fn take(&mut self, bytes: usize) {
        // A message of zero bytes is a packet, too, so it counts as one byte.
        let bytes = (bytes as u64).max(1);
        self.left = self.left.saturating_sub(bytes);
        self.posted = self.posted.saturating_add(bytes);
        self.flow.add(bytes);
    }
}

impl Ordered {
    pub(super) fn new(classes: &Classes, now: Instant) -> Self {
        Self {
            schedule: Schedule::new(classes, now),
            flows: Vec::new(),
            busy: ChannelList::default(),
            waiting: Waiting::new(),
            turn_bytes: u64::from(classes.bytes_ahead_max / 8).max(1),
        }
    }

    /// Makes room for `channels` channels, and begins the flow of this one anew.
    pub(super) fn make_room<P: Provider>(&mut self, channels: usize, half: &SendHalf<P>) {
        self.waiting.make_room(channels);
        self.busy.make_room(channels);
        if channels > self.flows.len() {
            self.flows.resize_with(channels, Flow::default);
        }
        if let Some(flow) = self.flows.get_mut(half.id().index as usize) {
            *flow = Flow {
                class: half.class,
                under_way: vec![0; half.limits().send_depth as usize].into_boxed_slice(),
                is_busy: flow.is_busy,
                ..Flow::default()
            };
        }
    }

    /// Lets the listed channels post, in the order of their classes.
    #[cold]
    pub(super) fn post<P: Provider, C: Sends<P>>(
        &mut self,
        (queues, inlets): (&mut [Queue], &mut Inlets<P>),
        listed: &ChannelList,
        entries: &mut [ChannelEntry<C>],
        clock: &impl Clock,
    ) {
        let Self {
            schedule,
            flows,
            busy,
            waiting,
            turn_bytes,
        } = self;
        let now = clock.now();
        let mut ahead: Ahead = [0; CLASSES_MAX];
        busy.retain(|index| {
            let Some(flow) = flows.get_mut(index as usize) else {
                return false;
            };
            let channel = channel_apart(entries, index as usize).filter(|(channel, _)| channel.is_open());
            flow.trim(channel.map_or(0, |(channel, _)| channel.send_half().sender.in_flight()));
            schedule.note(flow.class, &mut ahead, flow.bytes);
            flow.is_busy = flow.count > 0;
            flow.is_busy
        });
        waiting.clear();
        for index in listed.listed() {
            if let Some(flow) = flows.get(*index as usize) {
                waiting.wait(flow.class, flow.turn, *index);
            }
        }
        while let Some(index) = waiting.next(schedule) {
            let Some(flow) = flows.get_mut(index as usize) else {
                continue;
            };
            let class = flow.class;
            let may = schedule.has_room(class, &ahead) && schedule.ready_at(class, now) <= now;
            let channel = channel_apart(entries, index as usize).map(|(channel, _)| channel);
            // Requests of a failed channel come back at once, whatever the limits.
            let channel = channel.filter(|channel| may || !channel.is_open());
            let (Some(queue), Some(channel)) = (queues.get_mut(index as usize), channel) else {
                continue;
            };
            let mut taking = Taking {
                left: schedule.spare(class, now).min(*turn_bytes).max(1),
                flow,
                posted: 0,
            };
            post_within(queue, inlets, channel, &mut taking);
            let Taking { posted, flow, .. } = taking;
            if posted == 0 {
                continue;
            }
            flow.is_busy = flow.is_busy || busy.put(index);
            schedule.charge((class, &mut flow.turn), posted, now);
            schedule.note(class, &mut ahead, posted);
            waiting.wait(class, flow.turn, index);
        }
    }

    pub(super) fn counts(&self, class: u8) -> ClassCounts {
        self.schedule.counts(class)
    }
}
