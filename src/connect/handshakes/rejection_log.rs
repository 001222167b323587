//! Rate limit for log events about refused handshakes, so that a flood of handshakes does not cause a flood of events.

use core::mem::{Discriminant, discriminant};
use core::time::Duration;

use doorbell_core::handshake::Cause;
use doorbell_core::{Deadline, Instant};

use crate::error::ConnectError;
use crate::machine::log::log;

/// Interval of the event that counts the rejections without a separate event.
const EVERY: Duration = Duration::from_secs(1);

/// Kind of a rejection, without the values in the error. So repeated attempts of one peer have the same kind.
type Reason = Option<(Discriminant<ConnectError>, Option<Discriminant<Cause>>)>;

/// Rate limit: the first rejection of each kind gets an event with all details. Further rejections are counted, and one event each second
/// reports the count. After a second without such rejections, the next rejection of each kind gets an event again.
#[derive(Debug, Default)]
pub(crate) struct RejectionLog {
    /// Kinds that had an event. Their number is bounded by the number of variants.
    logged: Vec<Reason>,
    /// Rejections without an event.
    more: u64,
    /// End of the current second.
    until: Option<Deadline>,
}

impl RejectionLog {
    /// Returns whether this rejection gets an event with details; otherwise it is counted. An `error` of `None` is a rejection for too
    /// many handshakes.
    pub(crate) fn is_first(&mut self, now: Instant, error: Option<&ConnectError>) -> bool {
        self.poll(now);
        self.until.get_or_insert_with(|| Deadline::after(now, EVERY));
        let reason = error.map(|error| {
            let within = match error {
                ConnectError::Handshake(error) => Some(discriminant(&error.cause)),
                _ => None,
            };
            (discriminant(error), within)
        });
        let is_first = !self.logged.contains(&reason);
        if is_first {
            self.logged.push(reason);
        } else {
            self.more = self.more.saturating_add(1);
        }
        is_first
    }

    /// Logs the count when its second is over.
    pub(crate) fn poll(&mut self, now: Instant) {
        if self.until.is_none_or(|until| !until.has_passed(now)) {
            return;
        }
        if self.more > 0 {
            log!(warn, "more handshakes refused", count = self.more);
            self.more = 0;
            self.until = Some(Deadline::after(now, EVERY));
        } else {
            self.logged.clear();
            self.until = None;
        }
    }

    /// Returns the latest time of the next poll, if there is a count to log.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        self.until.filter(|_| self.more > 0)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use doorbell_core::Instant;

    use super::{ConnectError, RejectionLog};

    #[test]
    fn a_flood_is_logged_once_for_each_reason_and_then_counted() {
        let mut log = RejectionLog::default();
        let at = |milliseconds| Instant::from_ns(0).after(Duration::from_millis(milliseconds));
        let errors = [ConnectError::NoRails, ConnectError::NoMemory];
        let firsts =
            (0..2000).filter(|index| log.is_first(at(index / 4), Some(&errors[(index % 2) as usize])));
        assert_eq!(firsts.count(), 2);
        assert!(log.is_first(at(500), None) && !log.is_first(at(500), None));
        assert_eq!(log.more, 1999);
        // The flood continues: no rejection is a first one again, and the count begins anew each second.
        assert!(!log.is_first(at(1000), None));
        assert_eq!((log.more, log.deadline()), (1, log.until));
        log.poll(at(2000));
        assert_eq!((log.more, log.deadline()), (0, None));
        // A second without rejections has passed.
        assert!(log.is_first(at(3000), None) && log.logged.len() == 1);
    }
}
