//! Members of traffic classes that wait for their turn. The next member is found in amortized logarithmic time.
//!
//! Each class has a skew heap. The nodes of all heaps are in one array with an entry for each member, so no operation allocates
//! or panics after [`Waiting::make_room`].

use core::mem;

use super::class::{CLASSES_MAX, Classes};
use super::schedule::{Schedule, Turn};

/// Index of no member: an empty heap.
const NONE: u32 = u32::MAX;

/// The waiting members, in a heap for each class.
#[derive(Debug)]
pub(crate) struct Waiting {
    places: Vec<TurnNode>,
    /// The root of each class's heap: the member with the earliest turn.
    firsts: [u32; CLASSES_MAX],
    /// Number of the current round; [`Waiting::clear`] changes it.
    round: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct TurnNode {
    turn: Turn,
    /// The round in which the member waits; 0 if it does not wait.
    round: u32,
    left: u32,
    right: u32,
}

impl Waiting {
    pub(crate) const fn new() -> Self {
        Self {
            places: Vec::new(),
            firsts: [NONE; CLASSES_MAX],
            round: 1,
        }
    }

    /// Makes room for `count` members.
    pub(crate) fn make_room(&mut self, count: usize) {
        if count > self.places.len() {
            self.places.resize(count, TurnNode::default());
        }
    }

    /// Removes all waiting members.
    pub(crate) fn clear(&mut self) {
        self.firsts = [NONE; CLASSES_MAX];
        self.round = self.round.wrapping_add(1).max(1);
    }

    /// Adds the member with this index to the heap of its class. A member that waits already keeps its turn.
    pub(crate) fn wait(&mut self, class: u8, turn: Turn, place: u32) {
        let round = self.round;
        let Some(own) = self
            .places
            .get_mut(place as usize)
            .filter(|own| own.round != round)
        else {
            return;
        };
        *own = TurnNode {
            turn,
            round,
            left: NONE,
            right: NONE,
        };
        self.put_back(class, place, NONE);
    }

    /// Removes and returns the member whose turn is next, over all classes.
    pub(crate) fn next(&mut self, schedule: &Schedule) -> Option<u32> {
        let firsts = (0_u8..).zip(&self.firsts);
        let first = firsts.filter_map(|(class, first)| {
            let place = self.places.get(*first as usize)?;
            Some((schedule.order(class, place.turn), class, *first))
        });
        let (_, class, place) = first.min()?;
        let taken = mem::take(self.places.get_mut(place as usize)?);
        *self.firsts.get_mut(usize::from(class))? = NONE;
        self.put_back(class, taken.left, taken.right);
        Some(place)
    }

    /// Merges two heaps into the heap of a class.
    fn put_back(&mut self, class: u8, one: u32, other: u32) {
        let merged = self.merged(one, other);
        let class = Classes::place(class);
        let all = self.merged(merged, self.firsts.get(class).copied().unwrap_or(NONE));
        if let Some(first) = self.firsts.get_mut(class) {
            *first = all;
        }
    }

    /// Merges two heaps. The branches swap sides on the way, which keeps the amortized cost logarithmic.
    fn merged(&mut self, one: u32, other: u32) -> u32 {
        let (first, mut rest) = self.sorted(one, other);
        let mut at = first;
        while rest != NONE {
            let Some(place) = self.places.get_mut(at as usize) else {
                break;
            };
            let branch = mem::replace(&mut place.right, place.left);
            let (next, left) = self.sorted(branch, rest);
            if let Some(place) = self.places.get_mut(at as usize) {
                place.left = next;
            }
            (at, rest) = (next, left);
        }
        first
    }

    /// Returns two heaps with the earlier root first; an empty heap comes last.
    fn sorted(&self, one: u32, other: u32) -> (u32, u32) {
        let turn = |at: u32| {
            let place = self.places.get(at as usize);
            (place.is_none(), place.map(|place| place.turn), at)
        };
        if turn(other) < turn(one) {
            (other, one)
        } else {
            (one, other)
        }
    }
}

#[cfg(test)]
mod tests {
    use doorbell_core::Instant;

    use super::Waiting;
    use crate::worker::class::Classes;
    use crate::worker::schedule::{ClassCounts, Schedule, Turn};

    #[test]
    fn the_earliest_of_those_who_wait_is_next() {
        let (mut classes, now) = (Classes::default(), Instant::from_ns(0));
        (classes.table[1].priority, classes.table[2].weight) = (3, 5);
        let mut schedule = Schedule::new(&classes, now);
        let mut turns = vec![Turn::START; 500];
        let class = |place: u32| (place % 3) as u8;
        let mut waiting = Waiting::new();
        waiting.make_room(turns.len());
        let mut numbers = 1_u64;
        for _ in 0..20 {
            waiting.clear();
            let mut all: Vec<u32> = Vec::new();
            for place in (0..500).filter(|place| place % 7 != 2) {
                waiting.wait(class(place), turns[place as usize], place);
                // The second call changes nothing, since the member waits already.
                waiting.wait(class(place), Turn::START, place);
                all.push(place);
            }
            while let Some(place) = waiting.next(&schedule) {
                let order = |place: &u32| {
                    let turn = turns[*place as usize];
                    (schedule.order(class(*place), Turn::START), turn, *place)
                };
                let at = (0..all.len()).min_by_key(|at| order(&all[*at])).unwrap();
                assert_eq!(all.swap_remove(at), place);
                numbers = numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if numbers >> 62 != 0 {
                    let posted = ClassCounts::one(numbers >> 50);
                    schedule.charge((class(place), &mut turns[place as usize]), posted, now);
                    waiting.wait(class(place), turns[place as usize], place);
                    all.push(place);
                }
            }
            assert!(all.is_empty());
        }
    }
}
