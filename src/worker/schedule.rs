//! Scheduling of traffic classes: strict priorities, shares by weight, and rate limits.
//!
//! Shares use start-time fair queueing. Each class has a virtual time that advances by bytes / weight, and the class with the
//! earliest virtual time is next. A class that was idle continues at the virtual time of the others, so idle time earns nothing.

use core::cmp::Reverse;
use core::time::Duration;

use doorbell_core::Instant;

use crate::worker::class::{CLASSES_MAX, Class, Classes};

/// Rate limit: a token bucket that fills at `bytes_per_second` and holds `burst_bytes`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    bytes_per_second: u64,
    burst_bytes: u64,
    /// Bytes that may be sent at the time `at`; negative after a request that exceeded the level.
    level: i64,
    /// The time of the level.
    at: Instant,
}

impl Bucket {
    /// Makes an empty bucket that holds `burst_bytes`; 0 stands for the bytes of 10 ms.
    pub(crate) const fn new(bytes_per_second: u64, burst_bytes: u32, now: Instant) -> Self {
        Self {
            bytes_per_second,
            burst_bytes: match burst_bytes {
                0 => bytes_per_second / 100,
                bytes => bytes as u64,
            },
            level: 0,
            at: now,
        }
    }

    fn level(&self, now: Instant) -> i64 {
        let ns = now.to_ns().saturating_sub(self.at.to_ns());
        let came = u128::from(ns).saturating_mul(self.bytes_per_second.into()) / 1_000_000_000;
        let most = i64::try_from(self.burst_bytes).unwrap_or(i64::MAX);
        self.level
            .saturating_add(i64::try_from(came).unwrap_or(i64::MAX))
            .min(most)
    }

    /// Returns the time at which the next request may be sent: now, unless the level is negative.
    pub(crate) fn ready_at(&self, now: Instant) -> Instant {
        let lacks = u128::from(self.level(now).min(0).unsigned_abs());
        let rate = u128::from(self.bytes_per_second.max(1));
        let billionths = lacks
            .saturating_mul(1_000_000_000)
            .saturating_add(rate.saturating_sub(1));
        let ns = billionths.checked_div(rate).unwrap_or(0);
        now.after(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
    }

    /// Returns the bytes that may be sent now without exceeding the level.
    fn spare(&self, now: Instant) -> u64 {
        u64::try_from(self.level(now)).unwrap_or(0)
    }

    pub(crate) fn take(&mut self, bytes: u64, now: Instant) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.level = self.level(now).saturating_sub(bytes);
        self.at = now;
    }
}

/// Counts of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClassCounts {
    /// Posted requests of the class. A request of a link is a fragment of a message, a one-sided request or a piece of a transfer.
    pub requests: u64,
    /// Bytes of these requests. Links include the headers of their messages. A Worker counts an empty request as one byte.
    pub bytes: u64,
}

/// Virtual clock that several members share: the virtual time of the service so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turns {
    now: u128,
}

/// Virtual time of a member's next turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(u128);

impl Turn {
    pub(crate) const START: Self = Self(0);

    /// Returns the time of the turn on this clock: not before the clock's current time.
    pub(crate) fn among(self, turns: Turns) -> u128 {
        self.0.max(turns.now)
    }

    /// Charges the member for `bytes` bytes at this weight, and advances the clock.
    pub(crate) fn served(&mut self, turns: &mut Turns, bytes: u64, weight: u16) {
        turns.now = self.among(*turns);
        let span = u128::from(bytes) << 16;
        self.0 = turns
            .now
            .saturating_add(span.checked_div(u128::from(weight.max(1))).unwrap_or(span));
    }
}

#[derive(Clone, Copy, Debug)]
struct ClassState {
    weight: u16,
    /// The number of different priorities below that of the class.
    level: usize,
    turn: Turn,
    /// The virtual clock of the class's members.
    members: Turns,
    bucket: Option<Bucket>,
    counts: ClassCounts,
}

/// The schedule of all classes, and their counts.
#[derive(Debug)]
pub(crate) struct Schedule {
    places: [ClassState; CLASSES_MAX],
    /// The virtual clock of each level.
    turns: [Turns; CLASSES_MAX],
    bytes_ahead_max: u64,
}

/// Bytes in flight, by the level of their class.
pub(crate) type Ahead = [u64; CLASSES_MAX];

impl ClassCounts {
    /// Returns the counts of one request.
    pub(crate) const fn one(bytes: u64) -> Self {
        Self { requests: 1, bytes }
    }
}

impl Schedule {
    pub(crate) fn new(classes: &Classes, now: Instant) -> Self {
        let mut priorities = classes.table.map(|class| class.priority);
        priorities.sort_unstable();
        let level = |class: &Class| {
            let before = core::iter::once(None).chain(priorities.iter().map(Some));
            let below = before.zip(&priorities);
            let below =
                below.filter(|(before, priority)| *before != Some(*priority) && **priority < class.priority);
            below.count()
        };
        Self {
            places: classes.table.map(|class| ClassState {
                weight: class.weight,
                level: level(&class),
                turn: Turn::default(),
                members: Turns::default(),
                bucket: class
                    .bytes_per_second_max
                    .map(|rate| Bucket::new(rate.get(), class.burst_bytes, now)),
                counts: ClassCounts::default(),
            }),
            turns: [Turns::default(); CLASSES_MAX],
            bytes_ahead_max: classes.bytes_ahead_max.into(),
        }
    }

    fn place(&self, class: u8) -> Option<&ClassState> {
        self.places.get(Classes::place(class))
    }

    fn level(&self, class: u8) -> usize {
        self.place(class).map_or(0, |place| place.level)
    }

    /// Returns the sort key of a member with this turn. The member with the least key is next.
    pub(crate) fn order(&self, class: u8, member: Turn) -> (Reverse<usize>, u128, u8, u128) {
        let Some(place) = self.place(class) else {
            return (Reverse(0), 0, class, 0);
        };
        let turns = self.turns.get(place.level).copied().unwrap_or_default();
        (
            Reverse(place.level),
            place.turn.among(turns),
            class,
            member.among(place.members),
        )
    }

    /// Adds bytes of a class to the bytes in flight.
    pub(crate) fn note(&self, class: u8, ahead: &mut Ahead, bytes: u64) {
        if let Some(of_level) = ahead.get_mut(self.level(class)) {
            *of_level = of_level.saturating_add(bytes);
        }
    }

    /// Whether a class may post with these bytes in flight. Only bytes of its own and of higher priorities count.
    pub(crate) fn has_room(&self, class: u8, ahead: &Ahead) -> bool {
        let own = ahead.get(self.level(class)..).unwrap_or_default();
        own.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes)) < self.bytes_ahead_max.max(1)
    }

    /// Returns the time at which the rate limit of a class allows the next request.
    pub(crate) fn ready_at(&self, class: u8, now: Instant) -> Instant {
        let bucket = self.place(class).and_then(|place| place.bucket);
        bucket.map_or(now, |bucket| bucket.ready_at(now))
    }

    /// Returns the bytes that the rate limit of a class allows now.
    pub(crate) fn spare(&self, class: u8, now: Instant) -> u64 {
        let bucket = self.place(class).and_then(|place| place.bucket);
        bucket.map_or(u64::MAX, |bucket| bucket.spare(now))
    }

    /// Charges a member of a class for the requests that it posted in its turn.
    pub(crate) fn charge(&mut self, (class, member): (u8, &mut Turn), posted: ClassCounts, now: Instant) {
        let ClassCounts { requests, bytes } = posted;
        let Some(place) = self.places.get_mut(Classes::place(class)) else {
            return;
        };
        member.served(&mut place.members, bytes, 1);
        if let Some(turns) = self.turns.get_mut(place.level) {
            place.turn.served(turns, bytes, place.weight);
        }
        if let Some(bucket) = &mut place.bucket {
            bucket.take(bytes, now);
        }
        place.counts.requests = place.counts.requests.wrapping_add(requests);
        place.counts.bytes = place.counts.bytes.wrapping_add(bytes);
    }

    pub(crate) fn counts(&self, class: u8) -> ClassCounts {
        self.place(class)
            .map_or_else(ClassCounts::default, |place| place.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::{Bucket, ClassCounts, Schedule, Turn};
    use crate::worker::class::Classes;
    use core::time::Duration;
    use doorbell_core::Instant;

    #[test]
    fn a_bucket_gives_as_many_bytes_as_its_rate_and_saves_few() {
        let mut now = Instant::from_ns(0);
        let mut bucket = Bucket::new(10 << 20, 0, now);
        let mut bytes = 0;
        while now.to_ns() < 2_000_000_000 {
            bucket.take(1 << 18, now);
            bytes += 1 << 18;
            let ready = bucket.ready_at(now);
            assert!(ready > now);
            now = ready;
        }
        assert_eq!(bytes, 20 << 20);
        // An idle second earns only a burst of 10 ms.
        now = now.after(Duration::from_secs(1));
        let mut count = 0;
        while bucket.ready_at(now) == now {
            bucket.take(1 << 16, now);
            count += 1;
        }
        assert_eq!(count, 2);
    }

    /// Returns the bytes that each member sends in so many turns. Every member always has something to send. A member is given by
    /// its class and the size of its requests.
    fn shares(classes: &Classes, members: &[(u8, u64)], turns: u32) -> Vec<u64> {
        let now = Instant::from_ns(0);
        let mut schedule = Schedule::new(classes, now);
        let mut state = vec![(Turn::default(), 0_u64); members.len()];
        for _ in 0..turns {
            let next = (0..members.len()).min_by_key(|at| schedule.order(members[*at].0, state[*at].0));
            let at = next.unwrap();
            let (class, bytes) = members[at];
            schedule.charge((class, &mut state[at].0), ClassCounts::one(bytes), now);
            state[at].1 += bytes;
        }
        state.iter().map(|(_, bytes)| *bytes).collect()
    }

    #[test]
    fn equals_share_by_weight_in_bytes_and_members_of_a_class_alike() {
        let mut classes = Classes::default();
        classes.table[1].weight = 3;
        let got = shares(&classes, &[(0, 1000), (1, 4000), (1, 500)], 10_000);
        let all = got.iter().sum::<u64>();
        let within = |bytes: u64, of_8: u64| bytes.abs_diff(all * of_8 / 8) < all / 1000;
        assert!(
            within(got[0], 2) && within(got[1], 3) && within(got[2], 3),
            "{got:?}"
        );
    }

    #[test]
    fn a_higher_priority_leaves_nothing_and_what_is_idle_saves_nothing() {
        let mut classes = Classes::default();
        (classes.table[0].priority, classes.table[1].priority) = (5, 9);
        assert_eq!(shares(&classes, &[(0, 100), (1, 100)], 50), [0, 5000]);
        // A class that begins later gets its share from then on, and no compensation for the past.
        let (now, classes) = (Instant::from_ns(0), Classes::default());
        let mut schedule = Schedule::new(&classes, now);
        let (mut first, mut late) = (Turn::default(), Turn::default());
        for _ in 0..1000 {
            schedule.charge((0, &mut first), ClassCounts::one(100), now);
        }
        let mut bytes = [0, 0];
        for _ in 0..100 {
            if schedule.order(1, late) < schedule.order(0, first) {
                schedule.charge((1, &mut late), ClassCounts::one(100), now);
                bytes[1] += 100;
            } else {
                schedule.charge((0, &mut first), ClassCounts::one(100), now);
                bytes[0] += 100;
            }
        }
        assert_eq!(bytes, [5000, 5000]);
    }

    #[test]
    fn a_class_has_room_by_what_is_under_way_of_its_own_and_above() {
        let mut classes = Classes {
            bytes_ahead_max: 1000,
            ..Classes::default()
        };
        for (class, priority) in [(0, 0), (1, 7), (2, 7), (3, 200)] {
            classes.table[class].priority = priority;
        }
        let schedule = Schedule::new(&classes, Instant::from_ns(0));
        assert_eq!(
            [0, 1, 2, 3, 7, 255].map(|class| schedule.level(class)),
            [0, 1, 1, 2, 0, 0]
        );
        let room = |ahead: [u64; 3]| {
            let mut all = [0; 8];
            all[..3].copy_from_slice(&ahead);
            [0, 1, 3].map(|class| schedule.has_room(class, &all))
        };
        assert_eq!(room([999, 0, 0]), [true, true, true]);
        assert_eq!(room([1000, 0, 0]), [false, true, true]);
        assert_eq!(room([0, 999, 0]), [true, true, true]);
        assert_eq!(room([1, 999, 0]), [false, true, true]);
        assert_eq!(room([0, 999, 1]), [false, false, true]);
        assert_eq!(room([0, 0, 1000]), [false, false, false]);
    }
}
