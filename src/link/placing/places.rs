//! Places in memory that the peer lent: the fragment in each, and the WRITEs of this side that may still be executed into it.

use std::collections::VecDeque;

use doorbell_core::session::{Epoch, SESSION_RAILS_MAX, Sequence};

const RAILS: usize = SESSION_RAILS_MAX as usize;

/// State of a place, with the WRITEs into it that may still be executed.
#[derive(Clone, Copy, Debug, Default)]
struct PlaceState {
    /// For each rail, the connection of such a WRITE.
    on: [Option<Epoch>; RAILS],
    /// The rails whose connection in `on` is lost, as bits.
    lost: u8,
    /// Whether the peer has acknowledged its fragment, and the place is not free yet.
    is_leaving: bool,
}

impl PlaceState {
    fn is_quiet(&self) -> bool {
        self.on.iter().all(Option::is_none)
    }

    /// Notes that no WRITE of the rail's lost connection may be executed any more. Returns whether this was the last lost connection.
    const fn found(&mut self, rail: u8) -> bool {
        let before = self.lost;
        self.lost &= !(1 << rail);
        before != 0 && self.lost == 0
    }

    /// Returns whether the place becomes free: its fragment is acknowledged, and no WRITE into it may still be executed.
    fn leaves(&mut self) -> bool {
        let leaves = self.is_leaving && self.is_quiet();
        self.is_leaving &= !leaves;
        leaves
    }
}

/// The places, each as long as the longest placed fragment. Their number is constant. Calls for a message or a completion do not search
/// the table: only the loss of a connection and a fence do.
#[derive(Debug)]
pub(super) struct Places {
    table: Box<[PlaceState]>,
    free: Vec<u32>,
    /// The fragments that are not acknowledged, in order, with the place of each.
    taken: VecDeque<(Sequence, u32)>,
    /// Number of places into which WRITEs of lost connections may still be executed.
    fencing: usize,
}

impl Places {
    pub(super) fn new(count: u32) -> Self {
        let places = usize::try_from(count).unwrap_or(0);
        Self {
            table: vec![PlaceState::default(); places].into_boxed_slice(),
            free: (0..count).rev().collect(),
            taken: VecDeque::with_capacity(places),
            fencing: 0,
        }
    }

    /// The number of free places.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Whether every place is free.
    pub(super) fn are_all_free(&self) -> bool {
        self.free.len() == self.table.len()
    }

    /// The number of places that become free without a fence, once the peer acknowledges their fragments.
    pub(super) fn expected(&self) -> usize {
        self.table.len().saturating_sub(self.fencing)
    }

    /// Takes a place for a fragment, whose number is above those of all fragments with a place.
    pub(super) fn take(&mut self, sequence: Sequence) -> Option<u32> {
        let place = self.free.pop()?;
        self.taken.push_back((sequence, place));
        Some(place)
    }

    /// Returns the place of a fragment.
    pub(super) fn of(&self, sequence: Sequence) -> Option<u32> {
        let found = self.taken.binary_search_by_key(&sequence, |(of, _)| *of);
        self.taken.get(found.ok()?).map(|(_, place)| *place)
    }

    /// Releases the fragments, from the oldest on, that the peer has acknowledged and `is_kept` denies.
    pub(super) fn let_go(&mut self, is_kept: impl Fn(Sequence) -> bool) {
        while let Some((_, place)) = self.taken.front().filter(|(sequence, _)| !is_kept(*sequence)) {
            let place = *place;
            self.taken.pop_front();
            if let Some(of) = self.table.get_mut(place as usize) {
                of.is_leaving = true;
                if of.leaves() {
                    self.free.push(place);
                }
            }
        }
    }

    /// Notes that a WRITE into a place is posted on a connection, or may be. A peer that attached this connection accepts nothing more from
    /// earlier ones of the rail.
    pub(super) fn posted(&mut self, place: u32, (rail, epoch): (u8, Epoch)) {
        let Some(place) = self.table.get_mut(place as usize) else {
            return;
        };
        if let Some(on) = place.on.get_mut(usize::from(rail)) {
            *on = Some(epoch);
        }
        if place.found(rail) {
            self.fencing = self.fencing.saturating_sub(1);
        }
    }

    /// Notes that the WRITE into a place on a connection is done.
    pub(super) fn completed(&mut self, place: u32, (rail, epoch): (u8, Epoch)) {
        let Some(of) = self.table.get_mut(place as usize) else {
            return;
        };
        let on = of.on.get_mut(usize::from(rail));
        let is_done = on.is_some_and(|on| on.take_if(|of| *of == epoch).is_some());
        if is_done && of.found(rail) {
            self.fencing = self.fencing.saturating_sub(1);
        }
        if of.leaves() {
            self.free.push(place);
        }
    }

    /// Notes that a rail's connection of this epoch is lost. Returns whether a WRITE on it may still be executed, so that it needs a fence.
    pub(super) fn lost(&mut self, rail: u8, epoch: Epoch) -> bool {
        let mut is_any = false;
        for place in &mut self.table {
            let on = place.on.get(usize::from(rail)).copied().flatten();
            if on.is_some_and(|of| of <= epoch) {
                self.fencing = self.fencing.saturating_add(usize::from(place.lost == 0));
                place.lost |= 1 << rail;
                is_any = true;
            }
        }
        is_any
    }

    /// Notes that the peer accepts nothing more from a rail's connections up to this one.
    pub(super) fn fenced(&mut self, rail: u8, through: Epoch) {
        if self.fencing == 0 {
            return;
        }
        for (number, place) in (0_u32..).zip(&mut self.table) {
            let on = place.on.get_mut(usize::from(rail));
            let is_fenced = on.is_some_and(|on| on.take_if(|of| *of <= through).is_some());
            if is_fenced && place.found(rail) {
                self.fencing = self.fencing.saturating_sub(1);
            }
            if place.leaves() {
                self.free.push(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Places;
    use doorbell_core::session::{Epoch, Sequence};

    const fn on(rail: u8, epoch: u32) -> (u8, Epoch) {
        (rail, Epoch::from_wire(epoch))
    }

    /// Two places, both taken, and the peer has acknowledged all fragments before this one.
    fn taken(through: u64) -> (Places, [u32; 2]) {
        let mut places = Places::new(2);
        let of = [0, 1].map(|sequence| places.take(Sequence(sequence)).unwrap());
        assert_eq!(
            (places.take(Sequence(2)), places.free(), places.expected()),
            (None, 0, 2)
        );
        places.posted(of[0], on(0, 1));
        places.posted(of[1], on(1, 2));
        places.let_go(|sequence| sequence.0 >= through);
        (places, of)
    }

    #[test]
    fn one_is_free_once_the_peer_has_the_fragment_and_the_write_is_done() {
        let (mut places, of) = taken(1);
        assert_eq!(
            (places.of(Sequence(0)), places.of(Sequence(1))),
            (None, Some(of[1]))
        );
        assert_eq!((places.free(), places.expected()), (0, 2));
        // Completions on other connections have no effect.
        places.completed(of[0], on(0, 3));
        places.completed(of[0], on(1, 1));
        places.let_go(|_| true);
        assert_eq!(places.free(), 0);
        places.completed(of[0], on(0, 1));
        places.completed(of[1], on(1, 2));
        places.let_go(|_| true);
        assert_eq!((places.free(), places.of(Sequence(1))), (1, Some(of[1])));
        assert_eq!(places.take(Sequence(2)), Some(of[0]));
    }

    #[test]
    fn one_that_a_lost_connection_may_write_to_waits_for_the_fence() {
        let (mut places, of) = taken(0);
        assert!(places.lost(0, Epoch::from_wire(1)));
        assert!(!places.lost(2, Epoch::from_wire(9)));
        // The fragment is sent again over the other rail, and completes there.
        places.posted(of[0], on(1, 2));
        places.completed(of[0], on(1, 2));
        places.completed(of[1], on(1, 2));
        places.let_go(|_| false);
        assert_eq!((places.free(), places.expected()), (1, 1));
        places.fenced(1, Epoch::from_wire(9));
        places.fenced(0, Epoch::NONE);
        assert_eq!(places.free(), 1);
        places.fenced(0, Epoch::from_wire(1));
        assert_eq!((places.free(), places.expected(), places.fencing), (2, 2, 0));
    }

    #[test]
    fn a_write_that_is_done_after_its_connection_was_lost_needs_no_fence() {
        let (mut places, of) = taken(0);
        assert!(places.lost(0, Epoch::from_wire(1)));
        places.let_go(|_| false);
        assert_eq!((places.free(), places.expected(), places.fencing), (0, 1, 1));
        places.completed(of[0], on(0, 1));
        assert_eq!((places.free(), places.expected(), places.fencing), (1, 2, 0));
        // The place is not freed twice.
        places.completed(of[0], on(0, 1));
        places.fenced(0, Epoch::from_wire(1));
        assert_eq!(places.free(), 1);
    }

    #[test]
    fn fragments_are_found_among_many_by_their_numbers() {
        let mut places = Places::new(100);
        let of: Vec<_> = (0..100)
            .map(|number| places.take(Sequence(3 * number)).unwrap())
            .collect();
        places.let_go(|sequence| sequence.0 >= 120);
        let found = |number: u64| places.of(Sequence(number));
        assert_eq!((found(117), found(120), found(121)), (None, Some(of[40]), None));
        assert_eq!((found(297), found(300), places.free()), (Some(of[99]), None, 40));
    }

    #[test]
    fn the_fence_of_an_earlier_connection_is_not_that_of_the_next() {
        let (mut places, of) = taken(0);
        assert!(places.lost(0, Epoch::from_wire(1)));
        // The rail's next connection fences the previous one, and is lost, too.
        places.posted(of[0], on(0, 5));
        assert_eq!(places.fencing, 0);
        assert!(places.lost(0, Epoch::from_wire(5)));
        places.completed(of[1], on(1, 2));
        places.let_go(|_| false);
        places.fenced(0, Epoch::from_wire(4));
        assert_eq!((places.free(), places.expected()), (1, 1));
        places.fenced(0, Epoch::from_wire(5));
        assert_eq!((places.free(), places.fencing), (2, 0));
    }
}
