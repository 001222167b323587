//! The grants that a client has given, by table index.

use crate::name::{EndpointAddress, NodeNumber};
use crate::one_sided::{GRANTS_MAX, GrantPlace};

/// Table entry of a grant.
#[derive(Clone, Copy, Debug)]
struct GivenGrant {
    /// Generation of the last grant in this entry.
    generation: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Stands,
    /// Revocation was requested, and has not been confirmed.
    Ending,
}

/// Table of given grants. Generations increase during the whole life of the process.
#[derive(Debug)]
pub(super) struct Given {
    owner: EndpointAddress,
    /// The generation before the first generation of each entry.
    first: u32,
    places: Vec<GivenGrant>,
    free: Vec<u32>,
}

impl Default for Given {
    fn default() -> Self {
        Self {
            owner: EndpointAddress {
                node: NodeNumber(0),
                endpoint: 0,
            },
            first: 0,
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl Given {
    /// The name of the endpoint, which is part of the names of its grants.
    pub(super) const fn owner(&self) -> EndpointAddress {
        self.owner
    }

    /// Sets the name, and a number that no other process of this name has had. The first generation is derived from that number, so
    /// a grant of an earlier process is not mistaken for one of this process.
    pub(super) fn set_owner(&mut self, owner: EndpointAddress, number: u64) {
        self.owner = owner;
        let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // At least half of all generations are left for later grants.
        self.first = u32::try_from(mixed >> 33).unwrap_or(0);
    }

    /// Returns the next grant. `None` if all entries are in use.
    pub(super) fn next(&self) -> Option<GrantPlace> {
        let index = match self.free.last() {
            Some(index) => *index,
            None => u32::try_from(self.places.len())
                .ok()
                .filter(|index| *index < GRANTS_MAX)?,
        };
        let before = self
            .places
            .get(index as usize)
            .map_or(self.first, |place| place.generation);
        // An entry whose generations are exhausted is not used again.
        let generation = before.checked_add(1)?;
        Some(GrantPlace { index, generation })
    }

    /// Records that the grant from [`Given::next`] was submitted.
    pub(super) fn give(&mut self, place: GrantPlace) {
        let given = GivenGrant {
            generation: place.generation,
            state: State::Stands,
        };
        match self.places.get_mut(place.index as usize) {
            Some(there) => {
                *there = given;
                self.free.pop();
            }
            None => self.places.push(given),
        }
    }

    /// Whether a grant is in force.
    pub(super) fn stands(&self, place: GrantPlace) -> bool {
        self.places
            .get(place.index as usize)
            .is_some_and(|there| there.generation == place.generation && there.state == State::Stands)
    }

    /// Records that the revocation of a grant was requested.
    pub(super) fn end(&mut self, place: GrantPlace) {
        if let Some(there) = self.places.get_mut(place.index as usize) {
            there.state = State::Ending;
        }
    }

    /// Records that a revoked grant has ended.
    pub(super) fn free(&mut self, place: GrantPlace) {
        let there = self.places.get_mut(place.index as usize);
        let there = there.filter(|there| there.generation == place.generation);
        if let Some(there) = there.filter(|there| there.state == State::Ending) {
            there.state = State::Free;
            self.free.push(place.index);
        }
    }

    /// Records that all grants have ended.
    pub(super) fn free_all(&mut self) {
        for (index, place) in (0..).zip(&mut self.places) {
            if place.state != State::Free {
                place.state = State::Free;
                self.free.push(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Given;
    use crate::one_sided::{GRANTS_MAX, GrantPlace};

    #[test]
    fn a_place_is_used_again_after_its_end_alone_and_with_another_generation() {
        let mut given = Given::default();
        for index in 0..GRANTS_MAX {
            let place = given.next().unwrap();
            assert_eq!(place, GrantPlace { index, generation: 1 });
            given.give(place);
        }
        assert_eq!(given.next(), None);
        let place = GrantPlace {
            index: 5,
            generation: 1,
        };
        assert!(given.stands(place));
        given.free(place);
        assert_eq!(given.next(), None, "an end that was not asked for");
        given.end(place);
        assert!(!given.stands(place));
        assert_eq!(given.next(), None);
        given.free(place);
        let again = GrantPlace {
            generation: 2,
            ..place
        };
        assert_eq!(given.next(), Some(again));
        given.give(again);
        given.end(again);
        given.free(place);
        assert_eq!(given.next(), None, "the end of the one before");
        given.free_all();
        let mut all: Vec<_> = (0..GRANTS_MAX)
            .map(|_| {
                let place = given.next().unwrap();
                given.give(place);
                place.index
            })
            .collect();
        all.sort_unstable();
        assert_eq!(all, (0..GRANTS_MAX).collect::<Vec<_>>());
    }
}
