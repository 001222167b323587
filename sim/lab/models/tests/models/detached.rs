//! The words by which detached slots are attached again.

use doorbell_core::detached::Detachments;
use doorbell_core::sync::{AtomicU32, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// The words, a way for a tag to go by that orders nothing, and a witness for the memory.
struct Shared {
    words: Detachments<Vec<AtomicU32>>,
    tag: AtomicU32,
    memory: UnsafeCell<()>,
}

#[test]
fn whoever_attaches_a_slot_sees_what_was_written() {
    loom::model(|| {
        let shared = Arc::new(Shared {
            words: Detachments::new(vec![AtomicU32::new(0)], 3),
            tag: AtomicU32::new(0),
            memory: UnsafeCell::new(()),
        });
        let owner = Arc::clone(&shared);
        let detaching = thread::spawn(move || {
            shared.memory.with_mut(|_| ());
            let tag = shared.words.word(0).map_or(0, |word| word.detach());
            shared.tag.store(tag, Ordering::Relaxed);
        });
        // By the tag as it came, or as anyone could have made it up.
        for tag in [owner.tag.load(Ordering::Relaxed), 3 << 16 | 1] {
            if owner.words.attach(0, tag) {
                owner.memory.with_mut(|_| ());
                assert!(!owner.words.attach(0, tag), "once");
                // It goes away and comes back.
                let again = owner.words.word(0).map_or(0, |word| word.detach());
                assert!(!owner.words.attach(0, tag) && owner.words.attach(0, again));
            }
        }
        detaching.join().unwrap();
    });
}

#[test]
fn of_two_that_attach_a_slot_one_owns_it() {
    loom::model(|| {
        let shared = Arc::new(Shared {
            words: Detachments::new(vec![AtomicU32::new(0)], 3),
            tag: AtomicU32::new(0),
            memory: UnsafeCell::new(()),
        });
        shared.memory.with_mut(|_| ());
        let tag = shared.words.word(0).map_or(0, |word| word.detach());
        let attach = move |shared: &Shared| {
            let is_mine = shared.words.attach(0, tag);
            if is_mine {
                shared.memory.with_mut(|_| ());
            }
            is_mine
        };
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || attach(&shared))
        };
        let is_mine = attach(&shared);
        assert!(is_mine != other.join().unwrap(), "one of them");
    });
}
