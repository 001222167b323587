//! Memory for the bytes of fragments, allocated when the link is created, with a place for each fragment.

use std::collections::VecDeque;

use super::config::LinkError;

/// Places of equal length.
#[derive(Debug)]
pub(super) struct Store {
    bytes: Box<[u8]>,
    each: usize,
}

impl Store {
    pub(super) fn new(places: usize, each: usize) -> Result<Self, LinkError> {
        let length = places.saturating_mul(each);
        let mut bytes = room_for(length)?;
        // The pages are touched now, and not by the first message.
        bytes.resize(length, 1);
        Ok(Self {
            bytes: bytes.into_boxed_slice(),
            each,
        })
    }

    /// The length of a place.
    pub(super) const fn each(&self) -> usize {
        self.each
    }

    /// Copies bytes into a place. Returns whether they fit.
    pub(super) fn put(&mut self, place: usize, bytes: &[u8]) -> bool {
        if bytes.len() > self.each {
            return false;
        }
        let room = self.room(place, bytes.len());
        room.map(|room| room.copy_from_slice(bytes)).is_some()
    }

    /// Returns the first bytes of a place: at most its length, which the caller checks. `None` if there is no such place.
    #[inline(always)]
    pub(super) fn room(&mut self, place: usize, bytes: usize) -> Option<&mut [u8]> {
        debug_assert!(bytes <= self.each);
        // A place begins within the memory, so its product does not wrap.
        let start = place.wrapping_mul(self.each);
        self.bytes.get_mut(start..start.checked_add(bytes)?)
    }

    /// Returns the first bytes of a place, at most its length.
    pub(super) fn get(&self, place: usize, bytes: u32) -> &[u8] {
        let start = place.saturating_mul(self.each);
        let length = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.each);
        self.bytes
            .get(start..start.saturating_add(length))
            .unwrap_or_default()
    }
}

/// Returns an empty vector with this capacity in bytes.
pub(super) fn room_for(bytes: usize) -> Result<Vec<u8>, LinkError> {
    let mut room = Vec::new();
    let reserved = room.try_reserve_exact(bytes);
    reserved.map_err(|_| LinkError::NoMemory { bytes })?;
    Ok(room)
}

/// Returns an empty queue with this capacity.
pub(super) fn room_in_line<T>(places: usize) -> Result<VecDeque<T>, LinkError> {
    let mut room = VecDeque::new();
    let bytes = places.saturating_mul(size_of::<T>());
    let reserved = room.try_reserve_exact(places);
    reserved.map_err(|_| LinkError::NoMemory { bytes })?;
    Ok(room)
}

#[cfg(test)]
mod tests {
    use super::{LinkError, Store, room_for, room_in_line};

    #[test]
    fn places_do_not_overlap() {
        let mut store = Store::new(3, 4).unwrap();
        assert!(store.put(0, b"aaaa") && store.put(1, b"bb") && store.put(2, b"cccc"));
        assert!(!store.put(1, b"bbbbb") && !store.put(3, b"d"));
        assert_eq!(
            (store.get(0, 4), store.get(1, 2), store.get(2, 4)),
            (&b"aaaa"[..], &b"bb"[..], &b"cccc"[..])
        );
        assert_eq!(store.get(9, 4), b"");
    }

    #[test]
    fn more_than_there_is_is_an_error() {
        let all = usize::MAX;
        for asked in [
            Store::new(2, all / 2 + 1).err(),
            Store::new(1 << 16, 1 << 46).err(),
            room_for(all).err(),
        ] {
            assert!(matches!(asked, Some(LinkError::NoMemory { .. })), "{asked:?}");
        }
        assert!(matches!(room_in_line::<u64>(all), Err(LinkError::NoMemory { bytes }) if bytes == all));
    }
}
