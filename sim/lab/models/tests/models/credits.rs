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
            // Made here: loom compares a store with the last access alone. A load by the same thread right before
            // the store would hide the access of the other thread.
            let mut granting = Granting::new(Arc::clone(&grants), DEPTH);
            let receives = Arc::clone(&receives);
            thread::spawn(move || {
                receives.with_mut(|_| ());
                granting.note_posted(1);
            })
        };
        // Nothing was announced, so an announcement is due if the posted receive was seen. `granting` lives to the end
        // of the model: dropping its reference to the counts would order one thread behind the other.
        let granting = Granting::new(grants, DEPTH);
        if granting.is_due(DEPTH) {
            receives.with_mut(|_| ());
        }
        posting.join().unwrap();
    });
}
