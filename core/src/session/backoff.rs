//! The wait before the next attempt to connect.

use core::time::Duration;

/// Exponential back-off with a limit. Each wait is random within its upper half, so that peers that were disconnected at
/// the same moment do not reconnect at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The maximum of the first wait.
    pub first: Duration,
    /// The maximum of every wait.
    pub longest: Duration,
}

impl Backoff {
    /// The wait after this many failed attempts, with a random number.
    #[must_use]
    pub fn wait(&self, attempts_failed: u32, random: u64) -> Duration {
        let doubled = 1_u32
            .checked_shl(attempts_failed.saturating_sub(1))
            .unwrap_or(u32::MAX);
        let most = self.first.saturating_mul(doubled).min(self.longest);
        let half_ns = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX) / 2;
        let drawn_ns = random.checked_rem(half_ns.saturating_add(1)).unwrap_or(0);
        Duration::from_nanos(half_ns.saturating_add(drawn_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::Backoff;
    use core::time::Duration;

    #[test]
    fn doubles_to_its_limit_and_never_less_than_half() {
        let backoff = Backoff {
            first: Duration::from_millis(10),
            longest: Duration::from_millis(100),
        };
        for (attempts, most_ms) in [
            (0, 10),
            (1, 10),
            (2, 20),
            (3, 40),
            (4, 80),
            (5, 100),
            (33, 100),
            (u32::MAX, 100),
        ] {
            let most = Duration::from_millis(most_ms);
            assert_eq!(backoff.wait(attempts, 0), most / 2);
            for random in [1, 12_345_678, u64::MAX / 3, u64::MAX] {
                let wait = backoff.wait(attempts, random);
                assert!(wait >= most / 2 && wait <= most, "{attempts} {random} {wait:?}");
            }
        }
        assert_ne!(backoff.wait(5, 1), backoff.wait(5, 2_000_000));
        let none = Backoff {
            first: Duration::ZERO,
            longest: Duration::ZERO,
        };
        assert_eq!(none.wait(7, u64::MAX), Duration::ZERO);
    }
}
