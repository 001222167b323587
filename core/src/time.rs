//! Instants and deadlines as plain numbers, and clocks that read the time. The caller supplies the time.

use core::time::Duration;

/// A point in time: nanoseconds since an origin that the driver chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    ns: u64,
}

impl Instant {
    /// The instant `ns` nanoseconds after the driver's origin.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self { ns }
    }

    /// Nanoseconds since the driver's origin.
    #[must_use]
    pub const fn to_ns(self) -> u64 {
        self.ns
    }

    /// The instant `span` later, at most the last representable one.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self {
            ns: self.ns.saturating_add(span_ns),
        }
    }
}

/// The instant at which an operation times out. There is no infinite deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline at `instant`.
    #[must_use]
    pub const fn at(instant: Instant) -> Self {
        Self(instant)
    }

    /// The deadline `span` after `now`.
    #[must_use]
    pub fn after(now: Instant, span: Duration) -> Self {
        Self(now.after(span))
    }

    /// Whether the deadline has passed; at the deadline itself it has.
    #[must_use]
    pub fn has_passed(self, now: Instant) -> bool {
        now >= self.0
    }

    /// Returns the time left, zero once the deadline has passed.
    #[must_use]
    pub const fn remaining(self, now: Instant) -> Duration {
        Duration::from_nanos(self.0.ns.saturating_sub(now.ns))
    }

    /// The instant of the deadline.
    #[must_use]
    pub const fn instant(self) -> Instant {
        self.0
    }
}

/// A source of time for deadlines: a host's monotonic clock, or the time of a simulation.
pub trait Clock {
    /// Returns the time since an origin that all clocks of one host share.
    fn now(&self) -> Instant;

    /// The deadline this long from now.
    fn within(&self, span: Duration) -> Deadline {
        Deadline::after(self.now(), span)
    }
}

impl<C: Clock + ?Sized> Clock for &C {
    fn now(&self) -> Instant {
        (**self).now()
    }
}

#[cfg(test)]
mod tests {
    use super::{Deadline, Instant};
    use core::time::Duration;

    #[test]
    fn passes_at_the_instant_itself() {
        let deadline = Deadline::after(Instant::from_ns(100), Duration::from_nanos(50));
        assert!(!deadline.has_passed(Instant::from_ns(149)));
        assert!(deadline.has_passed(Instant::from_ns(150)));
        assert_eq!(
            deadline.remaining(Instant::from_ns(120)),
            Duration::from_nanos(30)
        );
        assert_eq!(deadline.remaining(Instant::from_ns(200)), Duration::ZERO);
        let never = Deadline::after(Instant::from_ns(1), Duration::MAX);
        assert_eq!(never.instant(), Instant::from_ns(u64::MAX));
    }
}
