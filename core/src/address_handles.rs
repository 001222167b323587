//! Address handles of one datagram queue pair. Callers name each by plain integers.
//!
//! A request names a handle, and the device may read the handle until the request is done. A released handle therefore
//! stays until every request posted before the release is retired. The name of a released handle never names another
//! one until its place was used 2^32 times.

use core::marker::PhantomData;
use core::{fmt, mem};

use crate::Ticket;

/// The name of an address handle of a datagram queue pair: integers without ownership. A copy, or invented integers, name
/// a handle only if it exists and was not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressHandle {
    /// Distinguishes the queue pair from others of the process.
    pub of: u64,
    /// The index of its place there.
    pub place: u32,
    /// How often that place was used before.
    pub uses: u32,
}

/// A place for one address handle.
pub struct Place<A> {
    held: Option<A>,
    uses: u32,
    /// After the release: the first request that cannot name the handle.
    until: Option<Ticket>,
}

impl<A> Default for Place<A> {
    fn default() -> Self {
        Self {
            held: None,
            uses: 0,
            until: None,
        }
    }
}

/// The handles of one queue pair. Their storage comes from the caller: a [`Place`] for each.
pub struct AddressHandles<A, Places> {
    of: u64,
    places: Places,
    held: PhantomData<A>,
}

impl<A, Places: AsRef<[Place<A>]> + AsMut<[Place<A>]>> AddressHandles<A, Places> {
    /// Makes an empty set for a queue pair. Its provider never gives the number `of` to another queue pair.
    #[must_use]
    pub const fn new(of: u64, places: Places) -> Self {
        Self {
            of,
            places,
            held: PhantomData,
        }
    }

    /// Whether there is a free place.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.places.as_ref().iter().any(|place| place.held.is_none())
    }

    /// Keeps an address handle.
    ///
    /// # Errors
    /// No place is free; the address handle is returned.
    pub fn insert(&mut self, address: A) -> Result<AddressHandle, A> {
        let mut places = (0..).zip(self.places.as_mut());
        let Some((index, place)) = places.find(|(_, place)| place.held.is_none()) else {
            return Err(address);
        };
        place.held = Some(address);
        place.until = None;
        Ok(AddressHandle {
            of: self.of,
            place: index,
            uses: place.uses,
        })
    }

    /// Returns the address that a handle names; `None` if the handle is another queue pair's or was released.
    #[must_use]
    #[inline]
    pub fn get(&self, handle: AddressHandle) -> Option<&A> {
        let place = self.places.as_ref().get(handle.place as usize)?;
        let is_named = handle.of == self.of && handle.uses == place.uses && place.until.is_none();
        place.held.as_ref().filter(|_| is_named)
    }

    /// Releases a handle: it can no longer be named. [`AddressHandles::reclaim`] drops it once no request before `next`
    /// is in flight. Returns whether the handle named anything.
    pub fn release(&mut self, handle: AddressHandle, next: Ticket) -> bool {
        if self.get(handle).is_none() {
            return false;
        }
        if let Some(place) = self.places.as_mut().get_mut(handle.place as usize) {
            place.until = Some(next);
        }
        true
    }

    /// Drops the released handles that no request in flight names. `oldest` is the first request in flight.
    pub fn reclaim(&mut self, oldest: Ticket) {
        for place in self.places.as_mut() {
            if place.until.is_some_and(|until| until <= oldest) {
                place.held = None;
                place.until = None;
                place.uses = place.uses.wrapping_add(1);
            }
        }
    }

    /// Takes the storage with the handles in it. The caller keeps them as long as the device has requests.
    pub fn take_places(&mut self) -> Places
    where
        Places: Default,
    {
        mem::take(&mut self.places)
    }
}

impl<A, Places: AsRef<[Place<A>]>> fmt::Debug for AddressHandles<A, Places> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = self.places.as_ref();
        let held = places.iter().filter(|place| place.held.is_some()).count();
        write!(f, "AddressHandles({held} of {})", places.len())
    }
}

impl<A> fmt::Debug for Place<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place")
            .field("is_held", &self.held.is_some())
            .field("uses", &self.uses)
            .field("until", &self.until)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{AddressHandle, AddressHandles, Place};
    use crate::Ticket;
    use std::vec::Vec;

    const OURS: u64 = 17;

    fn of_two() -> AddressHandles<char, Vec<Place<char>>> {
        AddressHandles::new(OURS, (0..2).map(|_| Place::default()).collect())
    }

    #[test]
    fn words_name_what_is_there_and_nothing_else() {
        let mut handles = of_two();
        let [a, b] = ['a', 'b'].map(|address| handles.insert(address).unwrap());
        assert_eq!((handles.get(a), handles.get(b)), (Some(&'a'), Some(&'b')));
        assert!(!handles.has_room());
        assert_eq!(handles.insert('c'), Err('c'));
        let strange = [
            AddressHandle { of: 18, ..a },
            AddressHandle { place: 2, ..a },
            AddressHandle { uses: 1, ..a },
        ];
        for handle in strange {
            assert_eq!(handles.get(handle), None);
            assert!(!handles.release(handle, Ticket(0)));
        }
    }

    #[test]
    fn what_a_request_names_stays_until_that_is_retired() {
        let mut handles = of_two();
        let [a, _] = ['a', 'b'].map(|address| handles.insert(address).unwrap());
        assert!(handles.release(a, Ticket(3)));
        assert!(!handles.release(a, Ticket(3)), "once");
        assert_eq!(handles.get(a), None);
        // Request 2 is in flight, and may name it.
        handles.reclaim(Ticket(2));
        assert!(!handles.has_room());
        handles.reclaim(Ticket(3));
        let again = handles.insert('c').unwrap();
        assert_eq!((again.place, handles.get(a)), (a.place, None));
        assert_eq!(handles.get(again), Some(&'c'));
    }
}
