//! A table with places that are used again, each time under another number.

/// Bits of a number that are the place; the others are the generation.
const PLACE_BITS: u32 = 12;

/// Places at most.
pub(crate) const PLACES_MAX: usize = 1 << PLACE_BITS;

const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;

/// Generations: those above the bits of the place.
const GENERATION_MAX: u32 = u32::MAX >> PLACE_BITS;

/// The number of an entry: its place and generation. It is never 0, and names nothing once the entry is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u32);

impl Key {
    fn place(self) -> usize {
        usize::try_from(self.place_bits()).unwrap_or(usize::MAX)
    }

    /// The place alone.
    pub(crate) const fn place_bits(self) -> u32 {
        self.0 & PLACE_MASK
    }

    const fn generation(self) -> u32 {
        self.0 >> PLACE_BITS
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct Places<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Places<T> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.entries.len().saturating_sub(self.free.len())
    }

    /// Adds an entry; `None` if all places are taken.
    pub(crate) fn add(&mut self, value: T) -> Option<Key> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.entries.len() < PLACES_MAX => {
                let place = u32::try_from(self.entries.len()).ok()?;
                self.entries.push((0, None));
                place
            }
            None => return None,
        };
        let (generation, entry) = self.entries.get_mut(usize::try_from(place).ok()?)?;
        *generation = match *generation {
            GENERATION_MAX => 1,
            before => before.saturating_add(1),
        };
        *entry = Some(value);
        Some(Key(*generation << PLACE_BITS | place))
    }

    /// The key of the entry of a place.
    pub(crate) fn key_at(&self, place: u32) -> Option<Key> {
        let (generation, entry) = self.entries.get(usize::try_from(place).ok()?)?;
        entry.as_ref().map(|_| Key(*generation << PLACE_BITS | place))
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let (generation, entry) = self.entries.get(key.place())?;
        entry.as_ref().filter(|_| *generation == key.generation())
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let (generation, entry) = self.entries.get_mut(key.place())?;
        entry.as_mut().filter(|_| *generation == key.generation())
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let (generation, entry) = self.entries.get_mut(key.place())?;
        let taken = if *generation == key.generation() {
            entry.take()
        } else {
            None
        };
        if taken.is_some() {
            self.free.push(key.place_bits());
        }
        taken
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        let entries = (0_u32..).zip(&self.entries);
        entries.filter_map(|(place, (generation, entry))| {
            Some((Key(*generation << PLACE_BITS | place), entry.as_ref()?))
        })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        let entries = (0_u32..).zip(&mut self.entries);
        entries.filter_map(|(place, (generation, entry))| {
            Some((Key(*generation << PLACE_BITS | place), entry.as_mut()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{GENERATION_MAX, Key, PLACES_MAX, Places};

    #[test]
    fn a_number_names_one_entry_and_nothing_after_it() {
        let mut places = Places::new();
        let first = places.add("first").unwrap();
        let second = places.add("second").unwrap();
        assert_ne!(first, second);
        assert_eq!(places.remove(first), Some("first"));
        let third = places.add("third").unwrap();
        assert_eq!(places.get(first), None);
        assert_eq!(places.remove(first), None);
        assert_eq!(places.get(third), Some(&"third"));
        assert_eq!(places.get_mut(second).copied(), Some("second"));
        assert_eq!((places.get(Key(0)), places.get(Key(u32::MAX))), (None, None));
        assert_eq!(places.count(), 2);
        let keys: Vec<_> = places.iter().map(|(key, _)| key).collect();
        assert_eq!(keys, [third, second]);
    }

    #[test]
    fn there_are_so_many_places_and_no_number_is_zero() {
        let mut places = Places::new();
        let keys: Vec<_> = (0..PLACES_MAX).map(|_| places.add(()).unwrap()).collect();
        assert!(keys.iter().all(|key| key.0 != 0));
        assert_eq!(places.add(()), None);
        places.remove(keys[0]).unwrap();
        for _ in 0..GENERATION_MAX {
            let key = places.add(()).unwrap();
            assert_ne!(key.0, 0);
            places.remove(key).unwrap();
        }
    }
}
