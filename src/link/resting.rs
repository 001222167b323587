//! Links that have nothing to do before a known time, so that polls skip them.
//!
//! A link rests once a poll has advanced it and found nothing left to do. Every access that may change a link outside of a poll's round
//! ends its rest: `Core::link_mut`, `link_to_send`, `links_mut` and `add` call [`Resting::stir`]. A link does not rest while it awaits
//! something that no call reports to it, such as a thread, a stream or room on a rail. [`Link::rests_until`] lists these.

use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::{Deadline, Instant};

use super::rail::LinkRail;
use super::state::Link;

/// Number of polls that advance a link after a change. The second one handles the consequences of the first, and finds whether the link
/// may rest.
const TURNS: u8 = 2;

/// Whether a link is to be advanced, or rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// So many more polls advance it, and then each poll until it may rest.
    Turns(u8),
    /// Nothing is to be done before this time.
    Until(Deadline),
}

/// When each link is to be advanced, by the link's index.
#[derive(Debug)]
pub(super) struct Resting {
    of: Vec<Rest>,
    /// No link has anything to do before this time.
    next: Deadline,
}

/// A time that has passed.
const PASSED: Deadline = Deadline::at(Instant::from_ns(0));

/// A time that is never reached.
pub(super) const NEVER: Deadline = Deadline::at(Instant::from_ns(u64::MAX));

impl Default for Resting {
    fn default() -> Self {
        Self {
            of: Vec::new(),
            next: NEVER,
        }
    }
}

impl Resting {
    /// Notes that the link at this index was changed or replaced.
    #[inline]
    pub(super) fn stir(&mut self, place: usize) {
        match self.of.get_mut(place) {
            Some(rest) => *rest = Rest::Turns(TURNS),
            None => self.add(place),
        }
        self.next = PASSED;
    }

    #[cold]
    fn add(&mut self, place: usize) {
        self.of.resize(place.saturating_add(1), Rest::Turns(TURNS));
    }

    /// Notes that all links may have changed.
    pub(super) fn stir_all(&mut self) {
        self.of.fill(Rest::Turns(TURNS));
        self.next = PASSED;
    }

    /// Whether any link is to be advanced now.
    #[inline]
    pub(super) fn is_any_due(&self, now: Instant) -> bool {
        self.next.has_passed(now)
    }

    /// Begins a round of the link at this index. Returns whether the link is to be advanced now.
    pub(super) fn begin(&mut self, place: usize, now: Instant) -> bool {
        let is_due = self.is_due(place, now);
        if let Some(rest) = self.of.get_mut(place).filter(|_| is_due) {
            *rest = Rest::Turns(match *rest {
                Rest::Turns(left) => left.saturating_sub(1),
                Rest::Until(_) => TURNS.saturating_sub(1),
            });
        }
        is_due
    }

    /// Whether the link at this index is to be advanced now.
    pub(super) fn is_due(&self, place: usize, now: Instant) -> bool {
        match self.of.get(place) {
            Some(Rest::Until(until)) => until.has_passed(now),
            Some(Rest::Turns(_)) | None => true,
        }
    }

    /// Ends a round of the link at this index. `until` is asked for the time until which it may rest if no further round is due.
    pub(super) fn end(&mut self, place: usize, until: impl FnOnce() -> Option<Deadline>) {
        if let Some(rest) = self.of.get_mut(place).filter(|rest| **rest == Rest::Turns(0)) {
            *rest = until().map_or(Rest::Turns(0), Rest::Until);
        }
    }

    /// Ends the round of all links, and computes the time of the next one.
    pub(super) fn end_all(&mut self) {
        let next = self.of.iter().map(|rest| match rest {
            Rest::Turns(_) => PASSED,
            Rest::Until(until) => *until,
        });
        self.next = next.min().unwrap_or(NEVER);
    }

    /// The time until which the link at this index rests, if it does.
    pub(super) fn until(&self, place: usize) -> Option<Deadline> {
        match self.of.get(place) {
            Some(Rest::Until(until)) => Some(*until),
            Some(Rest::Turns(_)) | None => None,
        }
    }
}

impl<P: Provider, N: Network> Link<P, N> {
    /// Returns the time before which the link has nothing to do, if nothing is reported to it and no call changes it. `None` if the time is
    /// not known: then each poll advances the link.
    pub(super) fn rests_until(&mut self, now: Instant) -> Option<Deadline> {
        let is_connecting = |rail: &LinkRail<P, N>| rail.connecting.is_some() || rail.asking.is_some();
        let awaits_others = self.finding.is_some()
            || self.question.is_asked()
            || self.rails.iter().any(is_connecting)
            || self.in_class.wake(now).is_some();
        let is_at_rest = !awaits_others
            && self.has_noted_rails()
            && self.last_event.is_none()
            && self.one_sided.is_at_rest()
            && !self.awaits_beside()
            && self.transfers.is_at_rest()
            && self.placing.is_at_rest();
        if !is_at_rest {
            return None;
        }
        let session = self.session.rests_until(now)?;
        Some(self.question.wake().into_iter().fold(session, Deadline::min))
    }
}

#[cfg(test)]
mod tests {
    use super::{Deadline, Instant, NEVER, Resting};

    const fn at(ns: u64) -> Instant {
        Instant::from_ns(ns)
    }

    /// Polls once at this time, after which links may rest until `until`. Returns the indices of the links that were advanced.
    fn poll(resting: &mut Resting, now: u64, until: Option<u64>) -> Vec<usize> {
        if !resting.is_any_due(at(now)) {
            return Vec::new();
        }
        let moved: Vec<_> = (0..resting.of.len())
            .filter(|place| resting.begin(*place, at(now)))
            .collect();
        for place in &moved {
            resting.end(*place, || until.map(|until| Deadline::at(at(until))));
        }
        resting.end_all();
        moved
    }

    #[test]
    fn a_link_is_moved_on_twice_and_again_at_its_moment() {
        let mut resting = Resting::default();
        assert!(!resting.is_any_due(at(1)));
        resting.stir(1);
        assert_eq!(poll(&mut resting, 10, Some(100)), [0, 1]);
        assert_eq!(poll(&mut resting, 11, Some(100)), [0, 1]);
        for now in [12, 99] {
            assert_eq!(poll(&mut resting, now, Some(100)), [0; 0]);
        }
        // The links are advanced at that time, and once more for the consequences.
        assert_eq!(poll(&mut resting, 100, Some(200)), [0, 1]);
        assert_eq!(poll(&mut resting, 100, Some(200)), [0, 1]);
        assert_eq!(poll(&mut resting, 101, Some(200)), [0; 0]);
        resting.stir(1);
        assert_eq!(poll(&mut resting, 102, Some(300)), [1]);
        assert_eq!(poll(&mut resting, 103, Some(300)), [1]);
        // The other link still has its own time.
        assert_eq!(poll(&mut resting, 200, Some(300)), [0]);
        resting.stir_all();
        assert_eq!(poll(&mut resting, 201, Some(300)), [0, 1]);
    }

    #[test]
    fn one_that_may_not_rest_is_moved_on_by_each_poll() {
        let mut resting = Resting::default();
        resting.stir(0);
        for now in 0..5 {
            assert_eq!(poll(&mut resting, now, None), [0]);
        }
        assert_eq!(resting.until(0), None);
        assert_eq!(poll(&mut resting, 5, Some(u64::MAX)), [0]);
        assert_eq!((resting.until(0), resting.next), (Some(NEVER), NEVER));
    }

    #[test]
    fn one_that_is_stirred_in_its_round_does_not_rest_after_it() {
        let mut resting = Resting::default();
        resting.stir(0);
        assert_eq!(poll(&mut resting, 0, None), [0]);
        assert!(resting.begin(0, at(1)));
        resting.stir(0);
        resting.end(0, || Some(NEVER));
        resting.end_all();
        assert_eq!(resting.until(0), None);
        assert!(resting.is_any_due(at(1)));
    }
}
