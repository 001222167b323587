//! One producer and one consumer, longer than loom could follow, and closed by either.

use std::sync::Arc;

use doorbell_hotpath::ring::{Consumer, PushError, Slot, SpscProducer, SpscRing, TakeError};
use shuttle::thread;

use crate::{explore, item, slots};

type Shared = Arc<SpscRing<Vec<Slot>>>;

const ITEMS: u32 = 12;

fn push_all(producer: &mut SpscProducer<Shared>) -> u32 {
    let mut pushed = 0;
    while pushed < ITEMS {
        let result = if pushed % 4 == 0 {
            let batch = [0, 1, 2].map(|ahead| item(1, pushed + ahead));
            producer.push_batch(&batch).map_err(|_| ())
        } else {
            match producer.push(item(1, pushed)) {
                Ok(()) => Ok(1),
                Err(PushError::Full(_)) => Ok(0),
                Err(_) => Err(()),
            }
        };
        match result {
            Ok(0) => thread::yield_now(),
            Ok(count) => pushed += u32::try_from(count).unwrap(),
            Err(()) => break,
        }
    }
    pushed
}

fn take_all(mut consumer: Consumer<Shared>, close_at: u32) -> u32 {
    let mut taken = 0;
    loop {
        if taken >= close_at {
            consumer.close();
        }
        let result = if taken % 3 == 0 {
            consumer.take_batch(2).map(Iterator::collect)
        } else {
            consumer.take().map(|one| vec![one])
        };
        match result {
            Ok(batch) => {
                for one in batch {
                    assert_eq!(one, item(1, taken), "whole, and in order");
                    taken += 1;
                }
            }
            Err(TakeError::Closed) => return taken,
            Err(_) => thread::yield_now(),
        }
    }
}

fn ring() -> (SpscProducer<Shared>, Consumer<Shared>) {
    SpscRing::split(Arc::new(SpscRing::new(slots(4)).unwrap())).unwrap()
}

#[test]
fn all_come_round_and_round() {
    explore("all_come_round_and_round", || {
        let (mut producer, consumer) = ring();
        let pusher = thread::spawn(move || {
            let pushed = push_all(&mut producer);
            producer.close();
            pushed
        });
        let taken = take_all(consumer, u32::MAX);
        assert_eq!(pusher.join().unwrap(), taken);
        assert!(taken >= ITEMS);
    });
}

#[test]
fn the_consumer_closes_and_takes_the_rest() {
    explore("the_consumer_closes_and_takes_the_rest", || {
        let (mut producer, consumer) = ring();
        let pusher = thread::spawn(move || push_all(&mut producer));
        let taken = take_all(consumer, 3);
        // A producer that was done before it could learn it has reported by going.
        assert_eq!(pusher.join().unwrap(), taken);
    });
}

#[test]
fn both_close_at_once() {
    explore("both_close_at_once", || {
        let (mut producer, consumer) = ring();
        let pusher = thread::spawn(move || {
            let pushed = producer.push_batch(&[item(1, 0), item(1, 1)]).unwrap_or_default();
            producer.close();
            u32::try_from(pushed).unwrap()
        });
        let taken = take_all(consumer, 0);
        assert_eq!(pusher.join().unwrap(), taken);
    });
}
