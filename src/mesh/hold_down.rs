//! Hold-down of flapping links: how long after its return a link is avoided by routes.
//!
//! Each change of neighbours is announced to all members. They compute their routes anew and retransmit messages in flight. A cable with
//! a loose contact would cause this as often as it flaps. So the loss of a link is announced at once, but the return of a flapping link
//! is announced later.
//!
//! Source: RFC 2453, section 3.10.1, which has such a wait between triggered updates.

use core::time::Duration;

use doorbell_core::{Deadline, Instant};

/// The hold-down of the links to one member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HoldDown {
    was_lost: bool,
    /// When the link came back after a loss.
    back_at: Option<Instant>,
    /// Whether the link was last lost within the hold-down time after it had come back.
    is_flapping: bool,
    /// The end of the hold-down.
    until: Option<Deadline>,
}

impl HoldDown {
    /// Records that the link has ended or has lost its rails.
    pub(super) fn lost(&mut self, now: Instant, hold_down: Duration) {
        if let Some(back_at) = self.back_at.take() {
            self.is_flapping = !Deadline::after(back_at, hold_down).has_passed(now);
        }
        (self.was_lost, self.until) = (true, None);
    }

    /// Records that there is a link with a rail. Returns whether it is held down now.
    pub(super) fn is_back(&mut self, now: Instant, hold_down: Duration) -> bool {
        // A link that was never lost is new, and is not held down.
        if self.was_lost {
            self.back_at = Some(now);
            self.until = self.is_flapping.then(|| Deadline::after(now, hold_down));
        }
        self.is_held()
    }

    /// Whether routes avoid the link although it has a rail.
    pub(super) const fn is_held(&self) -> bool {
        self.until.is_some()
    }

    /// Returns when the hold-down ends.
    pub(super) const fn until(&self) -> Option<Deadline> {
        self.until
    }

    /// Ends the hold-down if its time is over. Returns whether it ended by this call.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        self.until.take_if(|until| until.has_passed(now)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::{Deadline, Duration, HoldDown, Instant};

    const LONG: Duration = Duration::from_millis(5);

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    #[test]
    fn what_is_new_or_was_steady_is_not_held() {
        let mut link = HoldDown::default();
        assert!(!link.is_back(at(0), LONG));
        link.lost(at(1), LONG);
        assert!(!link.is_back(at(2), LONG));
        // The link was up for exactly the hold-down time.
        link.lost(at(7), LONG);
        assert!(!link.is_back(at(8), LONG));
        // The link was up for a shorter time.
        link.lost(at(12), LONG);
        assert!(link.is_back(at(13), LONG) && link.is_held());
    }

    #[test]
    fn what_flaps_is_held_until_it_was_there_for_as_long() {
        let mut link = HoldDown::default();
        link.lost(at(0), LONG);
        link.is_back(at(1), LONG);
        for flap in 1..100 {
            link.lost(at(flap * 4), LONG);
            // The link first loses its rails, and then ends.
            link.lost(at(flap * 4), LONG);
            assert!(!link.is_held() && link.until().is_none());
            assert!(link.is_back(at(flap * 4 + 1), LONG), "{flap}");
            assert!(!link.is_over(at(flap * 4 + 3)));
        }
        assert_eq!(link.until(), Some(Deadline::at(at(402))));
        assert!(!link.is_over(at(401)) && link.is_over(at(402)));
        assert!(!link.is_held() && !link.is_over(at(403)));
        link.lost(at(500), LONG);
        assert!(!link.is_back(at(501), LONG));
    }
}
