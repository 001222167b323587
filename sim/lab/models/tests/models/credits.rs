//! The counts by which receives are announced.

use doorbell_hotpath::{Granting, Grants};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const DEPTH: u32 = 2;

#[test]
fn whoever_reads_the_count_finds_the_receives_posted() {
    loom::model(|| {
        let grants = Arc::new(Grants::new(0, DEPTH));
        let receives = Arc::new(UnsafeCell::new(()));
        let posting = {
            // Made here: loom compares a store with the last access alone, and a load of the same
            // thread right before would hide from it the one of the other.
            let mut granting = Granting::new(Arc::clone(&grants), DEPTH);
            let receives = Arc::clone(&receives);
            thread::spawn(move || {
                receives.with_mut(|_| ());
                granting.note_posted(1);
            })
        };
        // Nothing was announced, so one is due if it was seen to be posted. What refers to the
        // counts is kept to the end: letting it go would order the one behind the other.
        let granting = Granting::new(grants, DEPTH);
        if granting.is_due(DEPTH) {
            receives.with_mut(|_| ());
        }
        posting.join().unwrap();
    });
}
