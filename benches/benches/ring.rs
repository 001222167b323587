//! Rate of a ring between two threads, beside rtrb, crossbeam's `ArrayQueue` and heapless.
//!
//! One item is 32 bytes. Each round runs all of them, ours between any two of theirs, so that other load on the
//! machine slows all alike. The figures are medians over the rounds. A ratio is the median of our rate divided by
//! the rate of the run beside it: above 1 ours is faster.
//!
//! ```text
//! cargo bench -p doorbell-benches --bench ring -- [ROUNDS]
//! ```
#![expect(
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    clippy::cast_precision_loss,
    reason = "a benchmark that cannot run has nothing to measure"
)]

use core::hint::{black_box, spin_loop};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use doorbell_hotpath::ring::{Consumer, Descriptor, MpscProducer, MpscRing, Slot, SpscRing};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const CAPACITY: usize = 1024;
const BATCH: usize = 16;
/// How many items one turn moves.
const ITEMS: u64 = 200_000;

fn item(number: u64) -> Descriptor {
    Descriptor {
        words: [number, number ^ 1, number ^ 2],
        index: 3,
        kind: 4,
    }
}

/// The items from a number on.
fn items(from: u64) -> [Descriptor; BATCH] {
    let mut next = from;
    [(); BATCH].map(|()| {
        next += 1;
        item(next - 1)
    })
}

fn digest(item: &Descriptor) -> u64 {
    let [a, b, c] = item.words;
    a ^ b ^ c ^ u64::from(item.index) ^ u64::from(item.kind)
}

/// Keeps a thread on the processor of a number.
fn pin(number: usize) {
    let allowed = sched_getaffinity(None).expect("the allowed processors can be asked for");
    let cpu = (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .nth(number)
        .expect("two processors");
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("the processor is allowed");
}

/// Moves the items from one thread to another; gives the nanoseconds an item takes. `push` is
/// told the number of the next item and says how many it pushed; `take` digests what it takes
/// and says how many that was.
fn race(mut push: impl FnMut(u64) -> usize + Send, mut take: impl FnMut(&mut u64) -> usize + Send) -> f64 {
    let start = Barrier::new(2);
    let nanoseconds = std::thread::scope(|scope| {
        let start = &start;
        scope.spawn(move || {
            pin(1);
            start.wait();
            let mut pushed = 0;
            while pushed < ITEMS {
                match push(pushed) {
                    0 => spin_loop(),
                    count => pushed += count as u64,
                }
            }
        });
        let consumer = scope.spawn(move || {
            pin(0);
            start.wait();
            let began = Instant::now();
            let (mut taken, mut sum) = (0, 0);
            while taken < ITEMS {
                match take(&mut sum) {
                    0 => spin_loop(),
                    count => taken += count as u64,
                }
            }
            black_box(sum);
            began.elapsed().as_nanos()
        });
        consumer.join().expect("the consumer ends")
    });
    nanoseconds as f64 / ITEMS as f64
}

fn slots() -> Vec<Slot> {
    (0..CAPACITY).map(|_| Slot::new()).collect()
}

fn spsc_ring() -> SpscRing<Vec<Slot>> {
    SpscRing::new(slots()).expect("a power of two")
}

fn mpsc_ring() -> MpscRing<Vec<Slot>> {
    MpscRing::new(slots()).expect("a power of two")
}

mod one {
    //! One item at a time.

    use super::*;

    fn race_one(
        mut push: impl FnMut(Descriptor) -> bool + Send,
        mut take: impl FnMut() -> Option<Descriptor> + Send,
    ) -> f64 {
        race(
            move |number| usize::from(push(item(number))),
            move |sum| {
                take().map_or(0, |item| {
                    *sum ^= digest(&item);
                    1
                })
            },
        )
    }

    pub(super) fn spsc() -> f64 {
        let (mut producer, mut consumer) = SpscRing::split(Arc::new(spsc_ring())).expect("nobody has a half");
        race_one(
            move |item| producer.push(item).is_ok(),
            move || consumer.take().ok(),
        )
    }

    pub(super) fn mpsc() -> f64 {
        let ring = Arc::new(mpsc_ring());
        let mut producer = MpscProducer::new(Arc::clone(&ring));
        let mut consumer = Consumer::claim(ring).expect("nobody has it");
        race_one(
            move |item| producer.push(item).is_ok(),
            move || consumer.take().ok(),
        )
    }

    pub(super) fn rtrb() -> f64 {
        let (mut producer, mut consumer) = rtrb::RingBuffer::<Descriptor>::new(CAPACITY);
        race_one(
            move |item| producer.push(item).is_ok(),
            move || consumer.pop().ok(),
        )
    }

    pub(super) fn crossbeam() -> f64 {
        let queue = &ArrayQueue::<Descriptor>::new(CAPACITY);
        race_one(move |item| queue.push(item).is_ok(), move || queue.pop())
    }

    pub(super) fn heapless() -> f64 {
        let mut queue = Box::new(heapless::spsc::Queue::<Descriptor, CAPACITY>::new());
        let (mut producer, mut consumer) = queue.split();
        race_one(
            move |item| producer.enqueue(item).is_ok(),
            move || consumer.dequeue(),
        )
    }

    pub(super) fn heapless_mpmc() -> f64 {
        let queue = &heapless::mpmc::Queue::<Descriptor, CAPACITY>::new();
        race_one(move |item| queue.enqueue(item).is_ok(), move || queue.dequeue())
    }
}

mod sixteen {
    //! Sixteen at a time; what has no call for it is called sixteen times.

    use super::*;

    /// For a queue without batches: sixteen calls for sixteen items.
    fn race_calls(
        mut push: impl FnMut(Descriptor) -> bool + Send,
        mut take: impl FnMut() -> Option<Descriptor> + Send,
    ) -> f64 {
        race(
            move |number| items(number).into_iter().take_while(|item| push(*item)).count(),
            move |sum| {
                (0..BATCH)
                    .map_while(|_| take())
                    .map(|item| *sum ^= digest(&item))
                    .count()
            },
        )
    }

    pub(super) fn spsc() -> f64 {
        let (mut producer, mut consumer) = SpscRing::split(Arc::new(spsc_ring())).expect("nobody has a half");
        race(
            move |number| producer.push_batch(&items(number)).unwrap_or(0),
            move |sum| {
                consumer
                    .take_batch(BATCH)
                    .map_or(0, |batch| batch.map(|item| *sum ^= digest(&item)).count())
            },
        )
    }

    pub(super) fn mpsc() -> f64 {
        let ring = Arc::new(mpsc_ring());
        let mut producer = MpscProducer::new(Arc::clone(&ring));
        let mut consumer = Consumer::claim(ring).expect("nobody has it");
        race(
            move |number| producer.push_batch(&items(number)).unwrap_or(0),
            move |sum| {
                consumer
                    .take_batch(BATCH)
                    .map_or(0, |batch| batch.map(|item| *sum ^= digest(&item)).count())
            },
        )
    }

    pub(super) fn rtrb_chunks() -> f64 {
        let (mut producer, mut consumer) = rtrb::RingBuffer::<Descriptor>::new(CAPACITY);
        race(
            move |number| {
                producer
                    .write_chunk_uninit(BATCH)
                    .map_or(0, |chunk| chunk.fill_from_iter(items(number)))
            },
            move |sum| {
                consumer.read_chunk(BATCH).map_or(0, |chunk| {
                    chunk.into_iter().map(|item| *sum ^= digest(&item)).count()
                })
            },
        )
    }

    pub(super) fn rtrb_slices() -> f64 {
        let (mut producer, mut consumer) = rtrb::RingBuffer::<Descriptor>::new(CAPACITY);
        race(
            move |number| producer.push_entire_slice(&items(number)).map_or(0, |()| BATCH),
            move |sum| {
                let mut taken = [Descriptor::default(); BATCH];
                consumer.pop_entire_slice(&mut taken).map_or(0, |()| {
                    taken.iter().for_each(|item| *sum ^= digest(item));
                    BATCH
                })
            },
        )
    }

    pub(super) fn crossbeam() -> f64 {
        let queue = &ArrayQueue::<Descriptor>::new(CAPACITY);
        race_calls(move |item| queue.push(item).is_ok(), move || queue.pop())
    }

    pub(super) fn heapless() -> f64 {
        let mut queue = Box::new(heapless::spsc::Queue::<Descriptor, CAPACITY>::new());
        let (mut producer, mut consumer) = queue.split();
        race_calls(
            move |item| producer.enqueue(item).is_ok(),
            move || consumer.dequeue(),
        )
    }

    pub(super) fn heapless_mpmc() -> f64 {
        let queue = &heapless::mpmc::Queue::<Descriptor, CAPACITY>::new();
        race_calls(move |item| queue.enqueue(item).is_ok(), move || queue.dequeue())
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

type Turn = (&'static str, fn() -> f64);

/// Runs one of ours against each of theirs, and prints what came out.
fn compare(title: &str, ours: Turn, theirs: &[Turn], rounds: usize) {
    let mut own = Vec::new();
    let mut rivals = vec![(Vec::new(), Vec::new()); theirs.len()];
    for _ in 0..rounds {
        for ((_, turn), (times, ratios)) in theirs.iter().zip(&mut rivals) {
            let (before, their_time, after) = (ours.1(), turn(), ours.1());
            own.extend([before, after]);
            times.push(their_time);
            ratios.push(2.0 * their_time / (before + after));
        }
    }
    println!("{title}: {} {:.2} ns an item", ours.0, median(&mut own));
    for ((name, _), (times, ratios)) in theirs.iter().zip(&mut rivals) {
        let ratio = median(ratios);
        let quartile = |part: usize| ratios.get(ratios.len() * part / 4).copied().unwrap_or(f64::NAN);
        println!(
            "    {name:<24} {:6.2} ns an item, ratio {ratio:.2} (half of the rounds {:.2} to {:.2})",
            median(times),
            quartile(1),
            quartile(3),
        );
    }
}

fn main() {
    let rounds = std::env::args().find_map(|word| word.parse().ok()).unwrap_or(31);
    if std::thread::available_parallelism().map_or(1, |count| count.get()) < 2 {
        println!("skipped: two threads need two processors");
        return;
    }
    compare(
        "one at a time",
        ("SpscRing", one::spsc),
        &[
            ("rtrb", one::rtrb),
            ("heapless spsc", one::heapless),
            ("crossbeam ArrayQueue", one::crossbeam),
        ],
        rounds,
    );
    compare(
        "sixteen at a time",
        ("SpscRing", sixteen::spsc),
        &[
            ("rtrb, chunks", sixteen::rtrb_chunks),
            ("rtrb, slices", sixteen::rtrb_slices),
            ("heapless spsc", sixteen::heapless),
            ("crossbeam ArrayQueue", sixteen::crossbeam),
        ],
        rounds,
    );
    compare(
        "one at a time",
        ("MpscRing", one::mpsc),
        &[
            ("heapless mpmc", one::heapless_mpmc),
            ("crossbeam ArrayQueue", one::crossbeam),
        ],
        rounds,
    );
    compare(
        "sixteen at a time",
        ("MpscRing", sixteen::mpsc),
        &[
            ("heapless mpmc", sixteen::heapless_mpmc),
            ("crossbeam ArrayQueue", sixteen::crossbeam),
        ],
        rounds,
    );
}
