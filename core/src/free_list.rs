//! A lock-free list of indices: many threads put indices, one thread takes all of them.
//!
//! Slots that are dropped on another thread than their arena's owner return through it. The owner takes all indices at
//! once, so there is no ABA problem: no thread ever unlinks a single index that another thread could put back
//! meanwhile.

use core::fmt;

use crate::ordering::{FREE_LIST_PUT, FREE_LIST_TAKE};
use crate::sync::{AtomicU32, Ordering};

/// The end of the list, and an empty list.
const NONE: u32 = u32::MAX;

/// The list: a head, and in storage from the caller the next index below each index.
pub struct FreeList<Links> {
    head: AtomicU32,
    links: Links,
}

impl<Links: AsRef<[AtomicU32]>> FreeList<Links> {
    /// An empty list for the indices `0..links.len()`.
    pub fn new(links: Links) -> Self {
        Self {
            head: AtomicU32::new(NONE),
            links,
        }
    }

    /// Puts an index on the list. The caller owns the index: no other thread puts it, and it is not on the list
    /// already. An index beyond the storage is ignored.
    ///
    /// Ordering: [`FREE_LIST_PUT`] pairs with [`FREE_LIST_TAKE`] in [`FreeList::take_all`]. So earlier uses of the index
    /// happen before those of the thread that takes it.
    #[inline]
    pub fn put(&self, index: u32) {
        if let Some(place) = self.place(index) {
            place.put();
        }
    }

    /// Returns the place at which to put an index; `None` for an index beyond the storage.
    ///
    /// This is for a caller whose put allows another thread to free the list. The place borrows two words of the list, not
    /// the list itself. So only references to atomics are live while the index is put.
    #[must_use]
    #[inline]
    pub fn place(&self, index: u32) -> Option<Place<'_>> {
        let link = self.links.as_ref().get(index as usize)?;
        Some(Place {
            head: &self.head,
            link,
            index,
        })
    }

    /// Whether the list looks empty. An index that was put a moment ago may not be seen yet.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Relaxed: nothing is ordered by the result, and `take_all` reads the head again.
        self.head.load(Ordering::Relaxed) == NONE
    }

    /// Takes all indices off the list, the latest first.
    ///
    /// Ordering: [`FREE_LIST_TAKE`] pairs with the [`FREE_LIST_PUT`] of every put on the list.
    pub fn take_all(&self, mut each: impl FnMut(u32)) {
        let mut index = self.head.swap(NONE, FREE_LIST_TAKE.get());
        while let Some(link) = self.links.as_ref().get(index as usize) {
            // Read before `each` gets the index: its new owner may put it back at once.
            let below = link.load(Ordering::Relaxed);
            each(index);
            index = below;
        }
    }
}

/// One index of a [`FreeList`], about to be put on it.
#[derive(Debug)]
pub struct Place<'l> {
    head: &'l AtomicU32,
    link: &'l AtomicU32,
    index: u32,
}

impl Place<'_> {
    /// Puts the index on the list, under the rules of [`FreeList::put`]. After that it does not
    /// access the list.
    pub fn put(self) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the release below.
            self.link.store(head, Ordering::Relaxed);
            match self
                .head
                .compare_exchange_weak(head, self.index, FREE_LIST_PUT.get(), Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(current) => head = current,
            }
        }
    }
}

impl<Links> fmt::Debug for FreeList<Links> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FreeList").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(doorbell_loom, doorbell_shuttle))))]
mod tests {
    use super::FreeList;
    use crate::sync::AtomicU32;
    use std::sync::Arc;
    use std::vec::Vec;

    fn list(length: u32) -> FreeList<Vec<AtomicU32>> {
        FreeList::new((0..length).map(|_| AtomicU32::new(0)).collect())
    }

    #[test]
    fn gives_back_each_index_once() {
        let list = list(4);
        for index in [2, 0, 3] {
            list.put(index);
        }
        list.put(4);
        assert!(!list.is_empty());
        let mut taken = Vec::new();
        list.take_all(|index| taken.push(index));
        assert_eq!(taken, [3, 0, 2]);
        assert!(list.is_empty());
        list.take_all(|_| unreachable!("the list is empty"));
    }

    #[test]
    fn loses_nothing_between_threads() {
        const EACH: u32 = 1000;
        let list = Arc::new(list(4 * EACH));
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let list = Arc::clone(&list);
                std::thread::spawn(move || (0..EACH).for_each(|i| list.put(thread * EACH + i)))
            })
            .collect();
        let mut taken = Vec::new();
        while taken.len() < 4 * EACH as usize {
            list.take_all(|index| taken.push(index));
            std::thread::yield_now();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..4 * EACH));
    }
}
