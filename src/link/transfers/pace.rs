//! The limit on the pieces of a link's transfers in flight on a rail.

use doorbell_core::Instant;

/// The measured rate of a rail, and the pieces that are in flight on it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    in_flight_bytes: u64,
    /// Number of pieces in flight.
    in_flight: u32,
    /// When the rail became busy, or a WRITE of pieces last completed.
    since: Option<Instant>,
    /// Bytes that completed since then.
    completed_bytes: u64,
    /// The rate, smoothed over some completions; 0 if unknown.
    bytes_per_second: u64,
}

impl Pace {
    /// Whether a WRITE of this many bytes and pieces may be posted. An idle rail always accepts one. On another rail the limit on pieces has to
    /// permit the WRITE, and with it all bytes in flight may take no longer than `most_ns` at the measured rate.
    pub(super) fn has_room(&self, pieces_max: u32, (bytes, pieces): (u32, u16), most_ns: u64) -> bool {
        if self.in_flight == 0 {
            return true;
        }
        let bytes = self.in_flight_bytes.saturating_add(bytes.into());
        let pieces = self.in_flight.saturating_add(pieces.into());
        pieces <= pieces_max && self.carries(bytes, most_ns)
    }

    /// Whether the limit on pieces is reached.
    pub(super) const fn is_full(&self, pieces_max: u32) -> bool {
        self.in_flight > 0 && self.in_flight >= pieces_max
    }

    /// Whether this many bytes take no longer than `most_ns` at the measured rate.
    pub(super) fn is_fast_for(&self, bytes: u32, most_ns: u64) -> bool {
        self.carries(bytes.into(), most_ns)
    }

    fn carries(&self, bytes: u64, within_ns: u64) -> bool {
        // A product of two numbers of 64 bits fits, so nothing wraps.
        let bytes = u128::from(bytes).wrapping_mul(1_000_000_000);
        bytes <= u128::from(self.bytes_per_second).wrapping_mul(within_ns.into())
    }

    pub(super) fn posted(&mut self, (bytes, pieces): (u32, u16), now: Instant) {
        if self.in_flight == 0 {
            self.since = Some(now);
            self.completed_bytes = 0;
        }
        self.in_flight = self.in_flight.saturating_add(pieces.into());
        self.in_flight_bytes = self.in_flight_bytes.saturating_add(bytes.into());
    }

    pub(super) fn completed(&mut self, (bytes, pieces): (u32, u16), now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(pieces.into());
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(bytes.into());
        let Some(since) = self.since else {
            return;
        };
        // One poll may handle several completions at the same time.
        self.completed_bytes = self.completed_bytes.saturating_add(bytes.into());
        let ns = now.to_ns().saturating_sub(since.to_ns());
        if ns == 0 {
            return;
        }
        let bytes = core::mem::take(&mut self.completed_bytes);
        self.since = Some(now);
        let rate = bytes
            .saturating_mul(1_000_000_000)
            .checked_div(ns)
            .unwrap_or(u64::MAX);
        self.bytes_per_second = match self.bytes_per_second {
            0 => rate,
            // The average moves by an eighth of the difference.
            known => known.saturating_sub(known / 8).saturating_add(rate / 8).max(1),
        };
    }

    /// Notes that the connection is lost. The rate is kept if nothing was in flight, since the next connection uses the same port. Otherwise
    /// the rail may have become slower, and the bytes in flight too many for it. So the rate is unknown, and the next piece is posted in parts.
    pub(super) const fn lost(&mut self) {
        if self.in_flight > 0 {
            self.bytes_per_second = 0;
        }
        self.in_flight = 0;
        self.in_flight_bytes = 0;
        self.since = None;
        self.completed_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;
    use doorbell_core::Instant;

    /// The next connection begins with nothing in flight. The rate is unknown if pieces were in flight.
    #[test]
    fn a_rail_that_is_lost_has_nothing_under_way() {
        let mut pace = Pace::default();
        for at in 0..40 {
            pace.posted((1 << 18, 1), Instant::from_ns(at));
            pace.completed((1 << 18, 1), Instant::from_ns(at + 1));
        }
        let rate = pace.bytes_per_second;
        pace.lost();
        assert_eq!(pace.bytes_per_second, rate, "the port is the same");
        pace.posted((2 << 18, 2), Instant::from_ns(50));
        pace.lost();
        let left = (pace.in_flight, pace.in_flight_bytes, pace.bytes_per_second);
        assert_eq!(left, (0, 0, 0));
    }

    #[test]
    fn a_slow_rail_has_one_piece_and_a_fast_one_as_many_as_may_be() {
        let mut slow = Pace::default();
        let most_ns = 10_000_000;
        let mut now = 0_u64;
        for (ns_a_piece, pieces) in [(20_000_000, 1), (1_000_000, 4)] {
            for _ in 0..40 {
                slow.posted((1 << 18, 1), Instant::from_ns(now));
                now += ns_a_piece;
                slow.completed((1 << 18, 1), Instant::from_ns(now));
            }
            let mut count = 0;
            while slow.has_room(4, (1 << 18, 1), most_ns) {
                slow.posted((1 << 18, 1), Instant::from_ns(now));
                count += 1;
            }
            assert_eq!(count, pieces);
            // Pieces that are posted together count individually.
            slow.completed((2 << 18, 2), Instant::from_ns(now));
            assert_eq!(
                slow.has_room(4, (2 << 18, 2), most_ns),
                count > 1 || slow.in_flight == 0
            );
            assert_eq!(slow.has_room(4, (3 << 18, 3), most_ns), slow.in_flight == 0);
            slow.lost();
        }
        // Before the first completion only one piece may be in flight.
        let mut new = Pace::default();
        assert!(new.has_room(4, (1 << 18, 1), most_ns));
        new.posted((1 << 18, 1), Instant::from_ns(0));
        assert!(!new.has_room(4, (1 << 18, 1), most_ns));
    }
}
