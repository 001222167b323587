//! Queue of future events, ordered by time, and at the same time by when they were planned.

use core::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::packet::pool::PacketKey;
use crate::queue_pair::QueuePairKey;
use crate::stream::StreamKey;
use crate::world::SegmentKey;

/// Something that happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A packet comes in at a port.
    Arrive(PacketKey, u32),
    /// A segment of a stream comes in at a port.
    Segment(SegmentKey, u32),
    /// An end of a stream waited for something: the timer of this number.
    StreamTimer(StreamKey, u32),
    /// A queue pair may send on.
    Transmit(QueuePairKey),
    /// A queue pair waited for something.
    Timer(QueuePairKey),
    /// A packet that a link holds was not overtaken: the link, and the number of the packet among those it
    /// held.
    Release(u32, u32),
    /// A step of the plan begins, or ends.
    Step(usize, bool),
}

impl Event {
    /// Whether it is under way by itself. The others come of waiting alone.
    const fn is_work(self) -> bool {
        matches!(
            self,
            Self::Arrive(..) | Self::Segment(..) | Self::Transmit(_) | Self::Release(..)
        )
    }
}

struct TimedEvent {
    at_ns: u64,
    sequence: u64,
    event: Event,
}

impl TimedEvent {
    const fn rank(&self) -> (u64, u64) {
        (self.at_ns, self.sequence)
    }
}

impl PartialEq for TimedEvent {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for TimedEvent {}

impl PartialOrd for TimedEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TimedEvent {
    /// The earliest is the greatest, as the heap has the greatest on top.
    fn cmp(&self, other: &Self) -> Ordering {
        other.rank().cmp(&self.rank())
    }
}

/// The queue.
#[derive(Default)]
pub(crate) struct Events {
    heap: BinaryHeap<TimedEvent>,
    next_sequence: u64,
    work: usize,
}

impl Events {
    pub(crate) fn push(&mut self, at_ns: u64, event: Event) {
        let sequence = self.next_sequence;
        self.next_sequence = sequence.wrapping_add(1);
        self.work = self.work.wrapping_add(usize::from(event.is_work()));
        self.heap.push(TimedEvent {
            at_ns,
            sequence,
            event,
        });
    }

    /// The next one, and when it is.
    pub(crate) fn peek(&self) -> Option<(u64, Event)> {
        self.heap.peek().map(|entry| (entry.at_ns, entry.event))
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        let entry = self.heap.pop()?;
        self.work = self.work.wrapping_sub(usize::from(entry.event.is_work()));
        Some((entry.at_ns, entry.event))
    }

    /// How many were planned so far.
    pub(crate) const fn planned(&self) -> u64 {
        self.next_sequence
    }

    /// How many are under way by themselves.
    pub(crate) const fn work(&self) -> usize {
        self.work
    }
}

#[cfg(test)]
mod tests {
    use super::{Event, Events};
    use crate::packet::pool::Pool;

    #[test]
    fn by_time_then_by_order_of_planning() {
        let mut events = Events::default();
        let arrive = |port| Event::Arrive(Pool::default().take(), port);
        for (at, number) in [(5, 0), (3, 1), (5, 2), (3, 3), (4, 4)] {
            events.push(at, arrive(number));
        }
        assert_eq!(events.work(), 5);
        let order: Vec<_> = core::iter::from_fn(|| events.pop()).collect();
        let expected = [(3, 1), (3, 3), (4, 4), (5, 0), (5, 2)].map(|(at, number)| (at, arrive(number)));
        assert_eq!(order, expected);
        assert_eq!(events.work(), 0);
    }
}
