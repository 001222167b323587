//! Records which slots of an arena are detached. A detached slot has no slot value; only plain integers name it.
//!
//! Each slot has a word for this. The owner of the slot's value detaches it and gets a tag. Any thread may attach the
//! slot that a tag names, and exactly one call succeeds. Each provider embeds this table privately.
//!
//! | bits of a tag | field |
//! |---|---|
//! | 31..16 | the arena, modulo 65,536 |
//! | 15..1 | how many times the slot was detached before, modulo 32,768 |
//! | 0 | set while the slot is detached |

use core::fmt;

use crate::ordering::{ATTACH, DETACH};
use crate::sync::{AtomicU32, Ordering};

const DETACHED: u32 = 1;
/// Bits of a word that count the rounds; the lowest of them is set while the slot is detached.
const ROUND_MASK: u32 = 0xffff;

/// The words of one arena, in storage from the caller.
pub struct Detachments<Words> {
    words: Words,
}

impl<Words: AsRef<[AtomicU32]>> Detachments<Words> {
    /// A table in which no slot of `0..words.len()` is detached. `arena` distinguishes the arena from others.
    pub fn new(words: Words, arena: u16) -> Self {
        for word in words.as_ref() {
            // Relaxed: no other thread has the word yet.
            word.store(u32::from(arena) << 16, Ordering::Relaxed);
        }
        Self { words }
    }

    /// The word of a slot; `None` if there is no such slot.
    ///
    /// The returned value borrows only this atomic and not the table, so another thread may free the
    /// table as soon as the slot is detached.
    #[inline]
    pub fn word(&self, index: u32) -> Option<Word<'_>> {
        self.words.as_ref().get(index as usize).map(Word)
    }

    /// Attaches the slot if the tag is that of its present detachment, and returns whether it did. Only the caller that
    /// gets `true` may make the slot's value. Any thread may call this.
    ///
    /// Ordering: [`ATTACH`] pairs with [`DETACH`] in [`Word::detach`].
    #[inline]
    pub fn attach(&self, index: u32, tag: u32) -> bool {
        let Some(word) = self.words.as_ref().get(index as usize) else {
            return false;
        };
        if tag & DETACHED == 0 {
            return false;
        }
        // The tag is odd, so adding one yields the even number of the next round. The mask keeps it in the lower half.
        let next = tag & !ROUND_MASK | tag.wrapping_add(1) & ROUND_MASK;
        // An exchange, so that only one of several threads succeeds. Relaxed on failure: nothing is read then.
        word.compare_exchange(tag, next, ATTACH.get(), Ordering::Relaxed)
            .is_ok()
    }

    /// How many slots are detached.
    pub fn count(&self) -> usize {
        let detached = |word: &&AtomicU32| word.load(Ordering::Relaxed) & DETACHED != 0;
        self.words.as_ref().iter().filter(detached).count()
    }
}

/// The word of one slot.
#[derive(Debug)]
pub struct Word<'w>(&'w AtomicU32);

impl Word<'_> {
    /// Notes that the slot is detached, and returns the tag that attaches it. Only the holder of the slot's value may
    /// call this, and must have given the value up.
    ///
    /// Ordering: [`DETACH`] pairs with [`ATTACH`] in [`Detachments::attach`]. Bytes written to the slot before
    /// are visible to the thread that attaches it, however it got the tag.
    #[inline]
    pub fn detach(self) -> u32 {
        // Relaxed: the last writer of the word had the slot before this thread. No other thread writes the word now,
        // since an attach fails while it is even.
        let tag = self.0.load(Ordering::Relaxed) | DETACHED;
        self.0.store(tag, DETACH.get());
        tag
    }
}

impl<Words> fmt::Debug for Detachments<Words> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detachments").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(doorbell_loom, doorbell_shuttle))))]
mod tests {
    use super::Detachments;
    use crate::sync::AtomicU32;
    use std::vec::Vec;

    fn words(arena: u16) -> Detachments<Vec<AtomicU32>> {
        Detachments::new((0..3).map(|_| AtomicU32::new(7)).collect(), arena)
    }

    fn detach(words: &Detachments<Vec<AtomicU32>>, index: u32) -> u32 {
        words.word(index).unwrap().detach()
    }

    #[test]
    fn a_tag_attaches_once() {
        let words = words(9);
        let tag = detach(&words, 1);
        assert_eq!(words.count(), 1);
        assert!(!words.attach(0, tag), "another slot's");
        assert!(!words.attach(3, tag), "no slot's");
        assert!(words.attach(1, tag));
        assert!(!words.attach(1, tag), "spent");
        assert_eq!(words.count(), 0);
    }

    #[test]
    fn nothing_attaches_what_is_not_detached() {
        let words = words(0);
        for tag in [0, 1, 2, u32::MAX] {
            assert!(!words.attach(0, tag));
        }
        let tag = detach(&words, 0);
        assert!(words.attach(0, tag));
        assert!(!words.attach(0, tag.wrapping_add(1)), "the word as it stands");
        assert!(words.word(3).is_none());
    }

    #[test]
    fn of_threads_that_attach_one_gets_it() {
        let words = words(5);
        for _ in 0..200 {
            let tag = detach(&words, 1);
            let attached: usize = std::thread::scope(|scope| {
                let threads = [(); 4].map(|()| scope.spawn(|| usize::from(words.attach(1, tag))));
                threads.map(|thread| thread.join().unwrap()).iter().sum()
            });
            assert_eq!(attached, 1);
        }
    }

    #[test]
    fn an_older_tag_of_the_slot_is_spent() {
        let words = words(0xffff);
        let mut older = Vec::new();
        for _ in 0..0x8000 {
            let tag = detach(&words, 2);
            assert_eq!(tag >> 16, 0xffff, "rounds stay in their half");
            assert!(older.last().is_none_or(|last| !words.attach(2, *last)));
            assert!(words.attach(2, tag));
            older.push(tag);
        }
        older.sort_unstable();
        older.dedup();
        assert_eq!(older.len(), 0x8000, "each round has a tag of its own");
    }

    #[test]
    fn a_tag_of_another_arena_attaches_nothing() {
        let (ours, theirs) = (words(1), words(2));
        let (mine, yours) = (detach(&ours, 0), detach(&theirs, 0));
        assert!(!ours.attach(0, yours));
        assert!(!theirs.attach(0, mine));
        assert!(ours.attach(0, mine) && theirs.attach(0, yours));
    }
}
