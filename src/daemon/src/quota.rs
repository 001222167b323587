//! Limits the log events that processes and nodes can cause: per second for each user or node, and per second for all together.

use core::time::Duration;
use std::collections::BTreeMap;

use doorbell::Deadline;
use doorbell::provider::Instant;

/// Maximum number of events of one user in a second.
const OF_USER_MAX: u32 = 8;

/// Maximum number of events of all users in a second.
const OF_ALL_MAX: u32 = 64;

const SECOND: Duration = Duration::from_secs(1);

/// Counts of events in the current second. A user without events takes no memory.
#[derive(Debug, Default)]
pub(crate) struct Quota {
    ends: Option<Deadline>,
    users: BTreeMap<u32, u32>,
    all: u32,
    passed_over: u64,
}

impl Quota {
    /// Whether an event of a user may be logged. Suppressed events are counted.
    pub(crate) fn allows(&mut self, user: u32, now: Instant) -> bool {
        self.ends.get_or_insert_with(|| Deadline::after(now, SECOND));
        let of_user = self.users.get(&user).copied().unwrap_or(0);
        if of_user >= OF_USER_MAX || self.all >= OF_ALL_MAX {
            self.passed_over = self.passed_over.saturating_add(1);
            return false;
        }
        self.users.insert(user, of_user.saturating_add(1));
        self.all = self.all.saturating_add(1);
        true
    }

    /// Whether an event may be logged, in a new second if the current one has passed. Suppressed events are not reported.
    pub(crate) fn allows_next(&mut self, of: u32, now: Instant) -> bool {
        let _ = self.end(now);
        self.allows(of, now)
    }

    /// Ends the second if it has passed. Returns how many events were suppressed in it. `None` if there were none, or the second goes on.
    pub(crate) fn end(&mut self, now: Instant) -> Option<u64> {
        self.ends.filter(|ends| ends.has_passed(now))?;
        let passed_over = core::mem::take(self).passed_over;
        (passed_over > 0).then_some(passed_over)
    }

    /// Time at which the number of suppressed events is to be reported.
    pub(crate) fn due(&self) -> Option<Deadline> {
        self.ends.filter(|_| self.passed_over > 0)
    }
}

#[cfg(test)]
mod tests {
    use doorbell::provider::Instant;

    use super::{OF_ALL_MAX, OF_USER_MAX, Quota};

    #[test]
    fn a_user_has_its_part_of_a_second_and_all_of_them_have_theirs() {
        let mut quota = Quota::default();
        let at = |time: u64| Instant::from_ns(time);
        let allowed =
            |quota: &mut Quota, user, time| (0..100).filter(|_| quota.allows(user, at(time))).count();
        assert_eq!(allowed(&mut quota, 1, 5), OF_USER_MAX as usize);
        assert_eq!(
            allowed(&mut quota, 2, 6),
            OF_USER_MAX as usize,
            "another user has its own"
        );
        let others = (3..100).map(|user| allowed(&mut quota, user, 7)).sum::<usize>();
        assert_eq!(others, (OF_ALL_MAX - 2 * OF_USER_MAX) as usize);
        assert!(quota.users.len() <= OF_ALL_MAX as usize);
        let end = 5 + 1_000_000_000;
        assert_eq!((quota.due().is_some(), quota.end(at(end - 1))), (true, None));
        assert_eq!(quota.end(at(end)), Some(99 * 100 - u64::from(OF_ALL_MAX)));
        assert_eq!((quota.due(), quota.end(at(2 * end))), (None, None));
        assert_eq!(allowed(&mut quota, 1, end), OF_USER_MAX as usize);
    }

    #[test]
    fn a_second_without_events_that_were_passed_over_ends_in_silence() {
        let mut quota = Quota::default();
        assert!(quota.allows(1, Instant::from_ns(1)));
        assert_eq!(quota.due(), None);
        assert_eq!(quota.end(Instant::from_ns(u64::MAX)), None);
    }
}
