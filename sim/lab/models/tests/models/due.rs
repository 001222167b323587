//! The list of channels that have receives to announce: entering it, and taking what it has.

use doorbell_hotpath::{DueList, NotifyFlag};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

type List = DueList<Box<[AtomicU32]>, Box<[NotifyFlag]>>;

fn list(channels: u32) -> Arc<List> {
    Arc::new(DueList::new(
        (0..channels).map(|_| AtomicU32::new(0)).collect(),
        (0..channels).map(|_| NotifyFlag::new()).collect(),
    ))
}

/// Receives posted, and known to the one who announces.
///
/// The count is relaxed, so that the list alone orders it.
struct Posted(AtomicU32);

/// One thread posts receives and enters their channel, `times` times. The polling thread announces all of them in the end. A missed
/// one would leave it waiting for ever, which loom reports.
fn announced(times: u32) {
    loom::model(move || {
        let due = list(1);
        let posted = Arc::new(Posted(AtomicU32::new(0)));
        let receiving = {
            let (due, posted) = (Arc::clone(&due), Arc::clone(&posted));
            thread::spawn(move || {
                for count in 1..=times {
                    posted.0.store(count, Ordering::Relaxed);
                    due.notify(0);
                }
            })
        };
        let mut announced = 0;
        while announced < times {
            due.take(|_| announced = posted.0.load(Ordering::Relaxed));
            thread::yield_now();
        }
        receiving.join().unwrap();
        // An entry that is still on the list brings no new count.
        due.take(|_| announced = posted.0.load(Ordering::Relaxed));
        assert_eq!(announced, times, "an announcement was lost");
    });
}

#[test]
fn no_announcement_is_lost() {
    announced(2);
}

#[test]
fn however_often_it_is_notified() {
    announced(3);
}

#[test]
fn channels_are_taken_apart_from_each_other() {
    loom::model(|| {
        let due = list(2);
        let receiving = {
            let due = Arc::clone(&due);
            thread::spawn(move || {
                due.notify(0);
                due.notify(1);
                due.notify(0);
            })
        };
        let mut taken = [0; 2];
        let mut take = || due.take(|channel| taken[channel as usize] += 1);
        take();
        receiving.join().unwrap();
        take();
        // Once at least, and no more often than notified.
        assert!((1..=2).contains(&taken[0]) && taken[1] == 1, "{taken:?}");
    });
}
