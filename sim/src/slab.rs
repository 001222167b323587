//! Objects in a table, found by their place in one step.
//!
//! A key names one object and never the next in its place, so that what refers to an object
//! that is gone (a packet under way, a timer) finds nothing.

use core::fmt;
use core::marker::PhantomData;

/// Names an object of a [`Slab`].
pub(crate) struct Key<T> {
    place: u32,
    generation: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.place, self.generation) == (other.place, other.generation)
    }
}

impl<T> Eq for Key<T> {}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.place, self.generation)
    }
}

struct SlabEntry<T> {
    generation: u32,
    object: Option<T>,
}

/// The table.
pub(crate) struct Slab<T> {
    places: Vec<SlabEntry<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    /// Puts an object in, at the place that was left last.
    pub(crate) fn insert(&mut self, object: T) -> Key<T> {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(SlabEntry {
                generation: 0,
                object: None,
            });
            // No table has 2^32 objects.
            u32::try_from(self.places.len().saturating_sub(1)).unwrap_or(u32::MAX)
        });
        let mut generation = 0;
        if let Some(found) = self.places.get_mut(place as usize) {
            generation = found.generation;
            found.object = Some(object);
        }
        Key {
            place,
            generation,
            of: PhantomData,
        }
    }

    pub(crate) fn get(&self, key: Key<T>) -> Option<&T> {
        let place = self.places.get(key.place as usize)?;
        place
            .object
            .as_ref()
            .filter(|_| place.generation == key.generation)
    }

    pub(crate) fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let place = self.places.get_mut(key.place as usize)?;
        place
            .object
            .as_mut()
            .filter(|_| place.generation == key.generation)
    }

    /// Takes an object out.
    pub(crate) fn remove(&mut self, key: Key<T>) -> Option<T> {
        let place = self.places.get_mut(key.place as usize)?;
        if place.generation != key.generation {
            return None;
        }
        let object = place.object.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(key.place);
        Some(object)
    }

    /// How many objects there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len().saturating_sub(self.free.len())
    }

    /// Every object, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|found| found.object.as_mut())
    }

    /// Every object, in the order of their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key<T>, &T)> {
        (0..).zip(&self.places).filter_map(|(place, found)| {
            let key = Key {
                place,
                generation: found.generation,
                of: PhantomData,
            };
            found.object.as_ref().map(|object| (key, object))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

    #[test]
    fn a_key_names_one_object_and_not_the_next_in_its_place() {
        let mut slab = Slab::default();
        let first = slab.insert('a');
        let second = slab.insert('b');
        assert_eq!((slab.get(first), slab.len()), (Some(&'a'), 2));
        assert_eq!(slab.remove(first), Some('a'));
        assert_eq!((slab.remove(first), slab.get_mut(first)), (None, None));
        let third = slab.insert('c');
        assert_eq!(slab.get(first), None);
        assert_eq!((slab.get(third), slab.get(second)), (Some(&'c'), Some(&'b')));
        let all: Vec<_> = slab.iter().collect();
        assert_eq!(all, [(third, &'c'), (second, &'b')]);
    }
}
