//! Time: what happens next, and how far it goes.
//!
//! If nobody drives the world, time passes in calls. Each call runs every event that is under way. Events of
//! a later time, as a retransmission or a receiver that gets ready, wait until a caller looks and finds
//! nothing.

use super::World;
use crate::event::Event;
use crate::queue_pair::QueuePairKey;

/// How many timers one call lets run out at most while packets are under way: where many queue
/// pairs wait for receivers, there may be packets for ever.
const STORM_TIMERS: u32 = 64;

/// Cost of a look that finds nothing: a little longer than on a real host, so that a caller that looks until
/// a deadline gets there.
const LOOK_NS: u64 = 1000;

impl World {
    /// Returns the present time.
    pub(crate) const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Runs the events that are under way; if the fabric is driven, the ones due while the call lasts.
    pub(crate) fn settle(&mut self) {
        self.fail_pending();
        if !self.is_driven {
            let mut timers_left = STORM_TIMERS;
            self.run(&mut timers_left);
        } else if self.call_ns > 0 {
            self.run_until(self.now_ns.saturating_add(self.call_ns));
        }
    }

    /// Lets happen what is under way, until more timers ran out than are left to.
    fn run(&mut self, timers_left: &mut u32) {
        while self.events.work() > 0 && *timers_left > 0 {
            match self.step(u64::MAX) {
                Some(Event::Timer(_) | Event::StreamTimer(..) | Event::Step(..)) => {
                    *timers_left = timers_left.saturating_sub(1);
                }
                Some(_) => (),
                None => return,
            }
        }
    }

    /// Lets time pass until the condition holds, there is news, or so many timers ran out; not if the fabric
    /// is driven.
    pub(crate) fn idle(&mut self, is_found: impl Fn(&Self) -> bool, patience: u32) {
        self.settle();
        if self.is_driven {
            return;
        }
        self.news = false;
        let mut timers_left = patience;
        while timers_left > 0 && !self.news && !is_found(self) {
            if self.step(u64::MAX).is_none() {
                self.now_ns = self.now_ns.saturating_add(LOOK_NS);
                return;
            }
            timers_left = timers_left.saturating_sub(1);
            self.run(&mut timers_left);
        }
    }

    /// Runs events until the condition holds, or up to this time, which it then is.
    pub(crate) fn pass(&mut self, is_found: impl Fn(&Self) -> bool, until_ns: u64) {
        while !is_found(self) {
            if self.step(until_ns).is_none() {
                self.now_ns = self.now_ns.max(until_ns);
                return;
            }
        }
    }

    /// Lets the next thing happen, unless it is later than this. Says what it was.
    pub(crate) fn step(&mut self, until_ns: u64) -> Option<Event> {
        let (at_ns, event) = self.next(until_ns)?;
        // An event that was planned for a past time happens now.
        self.now_ns = self.now_ns.max(at_ns);
        self.moved = true;
        if self.is_put_off(event) {
            return Some(event);
        }
        match event {
            Event::Arrive(packet, port) => self.arrive(packet, port),
            Event::Segment(segment, port) => self.hear_segment(segment, port),
            Event::StreamTimer(key, _) => self.on_stream_timer(key),
            Event::Release(link, hold) => self.release(link, hold),
            Event::Step(step, begins) => self.take_step(step, begins),
            Event::Transmit(key) => {
                if let Some(qp) = self.queue_pairs.get_mut(key) {
                    qp.is_transmitting = false;
                    self.attend(key);
                }
            }
            Event::Timer(key) => {
                if let Some(qp) = self.queue_pairs.get_mut(key) {
                    qp.requester.on_timer(self.now_ns);
                    self.attend(key);
                }
            }
        }
        self.fail_pending();
        Some(event)
    }

    /// Lets everything happen up to this time, which it then is.
    pub(crate) fn run_until(&mut self, until_ns: u64) {
        self.fail_pending();
        while self.step(until_ns).is_some() {}
        self.now_ns = self.now_ns.max(until_ns);
    }

    /// When the next thing happens.
    pub(crate) fn next_at_ns(&mut self) -> Option<u64> {
        self.skip(u64::MAX);
        let (at_ns, _) = self.events.peek()?;
        Some(at_ns.max(self.now_ns))
    }

    /// The next thing to happen.
    fn next(&mut self, until_ns: u64) -> Option<(u64, Event)> {
        self.skip(until_ns);
        self.events.peek().filter(|(at_ns, _)| *at_ns <= until_ns)?;
        let (at_ns, event) = self.events.pop()?;
        if let Event::Timer(key) = event {
            self.queue_pairs.get_mut(key)?.timer_at_ns = None;
        }
        Some((at_ns, event))
    }

    /// Passes over timers of queue pairs and streams that wait no longer, or for longer.
    fn skip(&mut self, until_ns: u64) {
        while let Some((at_ns, event)) = self.events.peek() {
            if at_ns > until_ns {
                return;
            }
            let key = match event {
                Event::Timer(key) => key,
                Event::StreamTimer(key, number) if !self.is_stream_timer(key, number) => {
                    self.events.pop();
                    continue;
                }
                _ => return,
            };
            let qp = self.queue_pairs.get_mut(key);
            // A different time means that another timer runs out earlier.
            let is_its_own = qp.as_ref().is_some_and(|qp| qp.timer_at_ns == Some(at_ns));
            let deadline_ns = qp.as_ref().and_then(|qp| qp.requester.deadline_ns());
            if is_its_own && deadline_ns.is_some_and(|deadline_ns| deadline_ns <= at_ns) {
                return;
            }
            self.events.pop();
            if let Some(qp) = qp.filter(|_| is_its_own) {
                qp.timer_at_ns = None;
                self.arm(key);
            }
        }
    }

    /// Sees to it that a queue pair is woken when it wants to be.
    pub(super) fn arm(&mut self, key: QueuePairKey) {
        let Some(qp) = self.queue_pairs.get_mut(key) else {
            return;
        };
        let Some(deadline_ns) = qp.requester.deadline_ns() else {
            return;
        };
        // One that runs out too early is pushed on then, which spares a timer for each packet.
        if qp.timer_at_ns.is_none_or(|at_ns| at_ns > deadline_ns) {
            qp.timer_at_ns = Some(deadline_ns);
            self.events.push(deadline_ns, Event::Timer(key));
        }
    }
}
