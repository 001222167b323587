//! A table whose places are reused, each time under a new number.

/// Number of bits of the place in a key, in most tables. The other bits are the generation.
const PLACE_BITS: u32 = 12;

/// Maximum number of entries in such a table.
pub(crate) const PLACES_MAX: usize = 1 << PLACE_BITS;

/// The number of an entry, made of its place and generation. A key is never 0, and becomes invalid when the
/// entry is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u32);

impl Key {
    /// The number that names no entry.
    pub(crate) const NONE: Self = Self(0);
}

/// The table. More bits for the place allow more entries, but fewer generations, so numbers repeat sooner.
#[derive(Debug)]
pub(crate) struct Places<T, const BITS: u32 = PLACE_BITS> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T, const BITS: u32> Places<T, BITS> {
    const MASK: u32 = (1 << BITS) - 1;
    const GENERATION_MAX: u32 = u32::MAX >> BITS;

    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.entries.len().saturating_sub(self.free.len())
    }

    /// Adds an entry. Returns `None` if the table is full.
    pub(crate) fn add(&mut self, value: T) -> Option<Key> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                let place = u32::try_from(self.entries.len()).ok();
                let place = place.filter(|place| *place <= Self::MASK)?;
                self.entries.push((0, None));
                place
            }
        };
        let (generation, entry) = self.entries.get_mut(usize::try_from(place).ok()?)?;
        *generation = if *generation >= Self::GENERATION_MAX {
            1
        } else {
            generation.saturating_add(1)
        };
        *entry = Some(value);
        Some(Key(*generation << BITS | place))
    }

    /// Returns the entry at a place, whatever its generation.
    #[inline]
    pub(crate) fn at_mut(&mut self, place: usize) -> Option<&mut T> {
        self.entries.get_mut(place)?.1.as_mut()
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let (generation, entry) = self.entries.get(Self::place(key))?;
        if *generation != key.0 >> BITS {
            return None;
        }
        entry.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let (generation, entry) = self.entries.get_mut(Self::place(key))?;
        if *generation != key.0 >> BITS {
            return None;
        }
        entry.as_mut()
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let (generation, entry) = self.entries.get_mut(Self::place(key))?;
        let taken = if *generation == key.0 >> BITS {
            entry.take()
        } else {
            None
        };
        if taken.is_some() {
            self.free.push(key.0 & Self::MASK);
        }
        taken
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        let entries = (0_u32..).zip(&self.entries);
        entries.filter_map(|(place, (generation, entry))| {
            Some((Key(*generation << BITS | place), entry.as_ref()?))
        })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        let entries = (0_u32..).zip(&mut self.entries);
        entries.filter_map(|(place, (generation, entry))| {
            Some((Key(*generation << BITS | place), entry.as_mut()?))
        })
    }

    /// Returns the place of a key.
    #[inline]
    pub(crate) fn place(key: Key) -> usize {
        usize::try_from(key.0 & Self::MASK).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, PLACES_MAX, Places};

    #[test]
    fn a_number_names_one_entry_and_nothing_after_it() {
        let mut places = Places::<_>::new();
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
        let mut places = Places::<_>::new();
        let keys: Vec<_> = (0..PLACES_MAX).map(|_| places.add(()).unwrap()).collect();
        assert!(keys.iter().all(|key| key.0 != 0));
        assert_eq!(places.add(()), None);
        places.remove(keys[0]).unwrap();
        for _ in 0..Places::<()>::GENERATION_MAX {
            let key = places.add(()).unwrap();
            assert_ne!(key.0, 0);
            places.remove(key).unwrap();
        }
    }
}
