//! Limits the rate of attaching. Mapping and unmapping memory takes time of the daemon's only thread, so a user that attaches in a loop gets
//! only a share of it.

use core::time::Duration;
use std::collections::BTreeMap;

use doorbell::Deadline;
use doorbell::provider::Instant;

use super::pending::Share;

/// After a process attached, its user waits for a time that grows with the size of the memory, plus the time of the calls. 4 GiB cost half a
/// second.
const BYTES_PER_NANOSECOND: u64 = 8;
const CALLS: Duration = Duration::from_micros(200);

/// For each user, the time at which its next process may attach, and the share that attached last.
#[derive(Debug, Default)]
pub(super) struct Pace(BTreeMap<u32, (Deadline, Share)>);

impl Pace {
    /// Records that a process with this many bytes was attached.
    pub(super) fn attached(&mut self, (user, share): (u32, Share), bytes: u64, now: Instant) {
        let time = CALLS.saturating_add(Duration::from_nanos(bytes / BYTES_PER_NANOSECOND));
        self.0.insert(user, (Deadline::after(now, time), share));
    }

    /// Time at which the next process of a user may attach. `None` if it may attach now, as of the last [`Pace::forget`].
    pub(super) fn next(&self, user: u32) -> Option<Deadline> {
        self.0.get(&user).map(|(until, _)| *until)
    }

    /// Whether a user's last process was of this share. Then its other shares come first.
    pub(super) fn was_last(&self, user: u32, share: Share) -> bool {
        self.0.get(&user).is_some_and(|(_, last)| *last == share)
    }

    /// Removes users whose waiting time has passed.
    pub(super) fn forget(&mut self, now: Instant) {
        self.0.retain(|_, (until, _)| !until.has_passed(now));
    }
}

#[cfg(test)]
mod tests {
    use doorbell::Deadline;
    use doorbell::provider::Instant;

    use super::{Pace, Share};
    use crate::name::JobNumber;

    #[test]
    fn a_user_waits_by_the_bytes_that_it_attached_and_others_do_not() {
        let mut pace = Pace::default();
        let job = |job| Share::Job(JobNumber(job));
        pace.attached((1, job(7)), 1 << 20, Instant::from_ns(1000));
        assert!(pace.was_last(1, job(7)) && !pace.was_last(1, job(8)) && !pace.was_last(2, job(7)));
        let until = Instant::from_ns(1000 + 200_000 + (1 << 17));
        assert_eq!((pace.next(1), pace.next(2)), (Some(Deadline::at(until)), None));
        pace.forget(Instant::from_ns(until.to_ns() - 1));
        assert!(pace.next(1).is_some());
        pace.forget(until);
        assert!(pace.next(1).is_none());
    }
}
