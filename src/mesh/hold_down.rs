//! Links that flap: the time after which a link that came back is used for routes again.
//!
//! Each change of neighbours is announced to all members, which compute their routes anew and retransmit messages under way. A cable with
//! a loose contact would make them do that as often as it flaps. So the loss of a link is announced at once, and the return of a link that
//! flaps waits.
//!
//! Source: RFC 2453, section 3.10.1, which has such a wait between triggered updates.

use core::time::Duration;

use doorbell_core::{Deadline, Instant};

/// The links to one member: how steady they are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HoldDown {
    was_lost: bool,
    /// Since when there is one again.
    back_at: Option<Instant>,
    /// Whether the last was lost before it had been back for as long as it takes.
    is_flapping: bool,
    until: Option<Deadline>,
}

impl HoldDown {
    /// The link is over, or has no rail.
    pub(super) fn lost(&mut self, now: Instant, hold_down: Duration) {
        if let Some(back_at) = self.back_at.take() {
            self.is_flapping = !Deadline::after(back_at, hold_down).has_passed(now);
        }
        (self.was_lost, self.until) = (true, None);
    }

    /// There is a link, with a rail; says whether it is held down now.
    pub(super) fn is_back(&mut self, now: Instant, hold_down: Duration) -> bool {
        // One that was never lost is new.
        if self.was_lost {
            self.back_at = Some(now);
            self.until = self.is_flapping.then(|| Deadline::after(now, hold_down));
        }
        self.is_held()
    }

    /// Whether it is to be gone round, though something goes over it.
    pub(super) const fn is_held(&self) -> bool {
        self.until.is_some()
    }

    /// When it is no longer.
    pub(super) const fn until(&self) -> Option<Deadline> {
        self.until
    }

    /// Says whether it was held until now, and is no longer.
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
        // Steady for just as long as it takes.
        link.lost(at(7), LONG);
        assert!(!link.is_back(at(8), LONG));
        // And not quite.
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
            // Without a rail first, and then over.
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
