//! Many producers, and a ring that is closed while they push.

use std::sync::Arc;

use doorbell_hotpath::ring::{Consumer, MpscProducer, MpscRing, PushError, Slot, TakeError};
use shuttle::thread;

use crate::{explore, item, slots};

type Shared = Arc<MpscRing<Vec<Slot>>>;

const PRODUCERS: u16 = 4;
const EACH: u32 = 4;
const CAPACITY: usize = 4;

/// Pushes one by one or two at a time until all are in or the ring is closed; says how many are.
fn push_all(mut producer: MpscProducer<Shared>, from: u16) -> u32 {
    let mut pushed = 0;
    while pushed < EACH {
        if from % 2 == 0 {
            match producer.push(item(from, pushed)) {
                Ok(()) => pushed += 1,
                Err(PushError::Full(back)) => {
                    assert_eq!(back, item(from, pushed));
                    thread::yield_now();
                }
                Err(_) => return pushed,
            }
        } else {
            match producer.push_batch(&[item(from, pushed), item(from, pushed + 1)]) {
                Ok(0) => thread::yield_now(),
                Ok(count) => pushed += u32::try_from(count).unwrap(),
                Err(_) => return pushed,
            }
        }
    }
    pushed
}

/// Takes one by one and in batches to the end; checks that each producer's come in order and
/// complete. Says how many of each came. Calls `at` with how many came so far.
fn take_all(mut consumer: Consumer<Shared>, at: impl Fn(&Consumer<Shared>, u32)) -> Vec<u32> {
    let mut came = vec![0; usize::from(PRODUCERS)];
    let mut total = 0;
    let mut note = |taken: doorbell_hotpath::ring::Descriptor| {
        let next = &mut came[usize::from(taken.kind)];
        assert_eq!(taken, item(taken.kind, *next), "whole, and in order");
        *next += 1;
    };
    loop {
        at(&consumer, total);
        let result = if total % 3 == 0 {
            consumer.take_batch(3).map(|batch| batch.map(&mut note).count())
        } else {
            consumer.take().map(|taken| {
                note(taken);
                1
            })
        };
        match result {
            Ok(count) => total += u32::try_from(count).unwrap(),
            Err(TakeError::Closed) => return came,
            Err(_) => thread::yield_now(),
        }
    }
}

fn start() -> (
    Consumer<Shared>,
    MpscProducer<Shared>,
    Vec<thread::JoinHandle<u32>>,
) {
    let ring = Arc::new(MpscRing::new(slots(CAPACITY)).unwrap());
    let consumer = Consumer::claim(Arc::clone(&ring)).unwrap();
    let producer = MpscProducer::new(ring);
    let threads = (0..PRODUCERS)
        .map(|from| {
            let producer = producer.clone();
            thread::spawn(move || push_all(producer, from))
        })
        .collect();
    (consumer, producer, threads)
}

#[test]
fn all_of_many_producers_come() {
    explore("all_of_many_producers_come", || {
        let (consumer, producer, threads) = start();
        let closer = thread::spawn(move || {
            let pushed: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            producer.close();
            pushed
        });
        let came = take_all(consumer, |_, _| ());
        assert_eq!(came, closer.join().unwrap());
        assert!(came.iter().all(|count| *count >= EACH));
    });
}

#[test]
fn what_was_pushed_until_the_consumer_closed_comes() {
    explore("what_was_pushed_until_the_consumer_closed_comes", || {
        let (consumer, _producer, threads) = start();
        let came = take_all(consumer, |consumer, total| {
            if total > 2 {
                consumer.close();
            }
        });
        let pushed: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(came, pushed);
    });
}

#[test]
fn what_was_pushed_until_another_closed_comes() {
    explore("what_was_pushed_until_another_closed_comes", || {
        let (consumer, producer, threads) = start();
        let closer = thread::spawn(move || producer.close());
        let came = take_all(consumer, |_, _| ());
        let pushed: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        closer.join().unwrap();
        assert_eq!(came, pushed);
    });
}

#[test]
fn consumers_follow_one_another() {
    explore("consumers_follow_one_another", || {
        let ring = Arc::new(MpscRing::new(slots(CAPACITY)).unwrap());
        let producer = MpscProducer::new(Arc::clone(&ring));
        let threads: Vec<_> = (0..PRODUCERS)
            .map(|from| {
                let producer = producer.clone();
                thread::spawn(move || push_all(producer, from))
            })
            .collect();
        // Each takes a few and lets the half go.
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || {
                    let mut taken = 0;
                    loop {
                        let Ok(mut consumer) = Consumer::claim(Arc::clone(&ring)) else {
                            thread::yield_now();
                            continue;
                        };
                        for _ in 0..3 {
                            match consumer.take() {
                                Ok(_) => taken += 1,
                                Err(TakeError::Closed) => return taken,
                                Err(_) => thread::yield_now(),
                            }
                        }
                    }
                })
            })
            .collect();
        let pushed: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        producer.close();
        let taken: u32 = takers.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(taken, pushed);
    });
}
