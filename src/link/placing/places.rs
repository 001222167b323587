//! Places in memory that the peer lent: which have a fragment, and which may yet be written by a request of ours.

use std::collections::VecDeque;

use doorbell_core::session::{Epoch, SESSION_RAILS_MAX, Sequence};

const RAILS: usize = SESSION_RAILS_MAX as usize;

/// A place, and the WRITEs into it that may yet be carried out.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// For each rail, the connection of such a WRITE.
    on: [Option<Epoch>; RAILS],
    /// The rails of which that connection is lost, as bits.
    lost: u8,
}

impl Place {
    fn is_quiet(&self) -> bool {
        self.on.iter().all(Option::is_none)
    }

    /// Nothing of the rail's lost connection is awaited any more. Says whether that was so and nothing of other rails' is either.
    const fn found(&mut self, rail: u8) -> bool {
        let before = self.lost;
        self.lost &= !(1 << rail);
        before != 0 && self.lost == 0
    }
}

/// The places, each as long as the longest fragment that is written. Their number does not change.
#[derive(Debug)]
pub(super) struct Places {
    table: Box<[Place]>,
    free: Vec<u32>,
    /// The fragments that are not acknowledged, in order, each with its place.
    taken: VecDeque<(Sequence, u32)>,
    /// Places of fragments that the peer has, into which WRITEs may yet be carried out.
    leaving: Vec<u32>,
    /// Places into which WRITEs of lost connections may yet be carried out.
    fencing: usize,
}

impl Places {
    pub(super) fn new(count: u32) -> Self {
        let places = usize::try_from(count).unwrap_or(0);
        Self {
            table: vec![Place::default(); places].into_boxed_slice(),
            free: (0..count).rev().collect(),
            taken: VecDeque::with_capacity(places),
            leaving: Vec::with_capacity(places),
            fencing: 0,
        }
    }

    /// The number of free ones.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// The number that will be free without a fence's answer: the peer need only go on.
    pub(super) fn expected(&self) -> usize {
        let all = self.taken.iter().map(|(_, place)| place).chain(&self.leaving);
        let lost = |place: &&u32| {
            self.table
                .get(**place as usize)
                .is_some_and(|place| place.lost != 0)
        };
        self.free
            .len()
            .saturating_add(all.filter(|place| !lost(place)).count())
    }

    /// Takes one for a fragment, which comes behind all that have one.
    pub(super) fn take(&mut self, sequence: Sequence) -> Option<u32> {
        let place = self.free.pop()?;
        self.taken.push_back((sequence, place));
        Some(place)
    }

    /// The place of a fragment.
    pub(super) fn of(&self, sequence: Sequence) -> Option<u32> {
        let mut taken = self.taken.iter();
        taken.find(|(of, _)| *of == sequence).map(|(_, place)| *place)
    }

    /// Lets go of the fragments that the peer has, by `is_kept`, from the oldest on.
    pub(super) fn let_go(&mut self, is_kept: impl Fn(Sequence) -> bool) {
        while let Some((_, place)) = self.taken.front().filter(|(sequence, _)| !is_kept(*sequence)) {
            self.leaving.push(*place);
            self.taken.pop_front();
        }
        self.settle();
    }

    /// Notes that a WRITE into a place is posted on a connection, or may be. With the connection the peer has let go of those that the rail
    /// had before.
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

    /// Notes that it is carried out.
    pub(super) fn completed(&mut self, place: u32, (rail, epoch): (u8, Epoch)) {
        let on = self.table.get_mut(place as usize);
        if let Some(on) = on.and_then(|place| place.on.get_mut(usize::from(rail))) {
            on.take_if(|of| *of == epoch);
        }
    }

    /// Notes that a rail's connection is lost, of this epoch. Says whether a WRITE on it may yet be carried out: the peer has to take nothing
    /// more of the connection.
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

    /// Notes that the peer takes nothing more of a rail's connections up to this one.
    pub(super) fn fenced(&mut self, rail: u8, through: Epoch) {
        if self.fencing == 0 {
            return;
        }
        for place in &mut self.table {
            let on = place.on.get_mut(usize::from(rail));
            let is_fenced = on.is_some_and(|on| on.take_if(|of| *of <= through).is_some());
            if is_fenced && place.found(rail) {
                self.fencing = self.fencing.saturating_sub(1);
            }
        }
        self.settle();
    }

    /// Frees the places into which nothing is written any more.
    fn settle(&mut self) {
        let Self {
            table, free, leaving, ..
        } = self;
        leaving.retain(|place| {
            let is_quiet = table.get(*place as usize).is_some_and(Place::is_quiet);
            if is_quiet {
                free.push(*place);
            }
            !is_quiet
        });
    }
}

#[cfg(test)]
mod tests {
    use super::Places;
    use doorbell_core::session::{Epoch, Sequence};

    const fn on(rail: u8, epoch: u32) -> (u8, Epoch) {
        (rail, Epoch::from_wire(epoch))
    }

    /// Two places, both taken, of which the peer has all up to a fragment.
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
        // Completions of other connections say nothing.
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
        // The fragment goes again over the other rail, and that is done.
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
    fn the_fence_of_an_earlier_connection_is_not_that_of_the_next() {
        let (mut places, of) = taken(0);
        assert!(places.lost(0, Epoch::from_wire(1)));
        // With its next connection the rail's last one is fenced, and that is lost, too.
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
