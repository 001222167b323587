//! Bytes of fragments, each at its place: memory that is there from the beginning.

/// Places of one length.
#[derive(Debug)]
pub(super) struct Store {
    bytes: Box<[u8]>,
    each: usize,
}

impl Store {
    pub(super) fn new(places: usize, each: usize) -> Self {
        let mut bytes = vec![0; places.saturating_mul(each)].into_boxed_slice();
        // Touched now, and not by the first message.
        bytes.fill(1);
        Self { bytes, each }
    }

    /// Puts bytes at a place; says whether they fit.
    pub(super) fn put(&mut self, place: usize, bytes: &[u8]) -> bool {
        let start = place.saturating_mul(self.each);
        let target = self.bytes.get_mut(start..start.saturating_add(bytes.len()));
        match target {
            Some(target) if bytes.len() <= self.each => {
                target.copy_from_slice(bytes);
                true
            }
            _ => false,
        }
    }

    /// So many bytes of a place.
    pub(super) fn get(&self, place: usize, bytes: u32) -> &[u8] {
        let start = place.saturating_mul(self.each);
        let length = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.each);
        self.bytes
            .get(start..start.saturating_add(length))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::Store;

    #[test]
    fn places_do_not_overlap() {
        let mut store = Store::new(3, 4);
        assert!(store.put(0, b"aaaa") && store.put(1, b"bb") && store.put(2, b"cccc"));
        assert!(!store.put(1, b"bbbbb") && !store.put(3, b"d"));
        assert_eq!(
            (store.get(0, 4), store.get(1, 2), store.get(2, 4)),
            (&b"aaaa"[..], &b"bb"[..], &b"cccc"[..])
        );
        assert_eq!(store.get(9, 4), b"");
    }
}
