//! The ring of many producers and one consumer.

use doorbell_hotpath::ring::{
    ClaimError, Closed, Consumer, MpscProducer, MpscRing, PushError, Slot, TakeError,
};
use loom::sync::Arc;
use loom::thread;

use crate::ring::{Reason, item, slots, take};

type Shared = Arc<MpscRing<Vec<Slot>>>;

fn ring(capacity: usize) -> (MpscProducer<Shared>, Consumer<Shared>) {
    let ring = Arc::new(MpscRing::new(slots(capacity)).unwrap());
    let consumer = Consumer::claim(Arc::clone(&ring)).unwrap();
    (MpscProducer::new(ring), consumer)
}

#[test]
fn two_producers_lose_nothing() {
    loom::model(|| {
        let (producer, mut consumer) = ring(2);
        let threads: Vec<_> = (1..=2)
            .map(|number| {
                let mut producer = producer.clone();
                thread::spawn(move || producer.push(item(number)).unwrap())
            })
            .collect();
        let mut taken: Vec<_> = consumer.take().into_iter().collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        taken.extend(consumer.take_batch(2).into_iter().flatten());
        let mut taken: Vec<_> = taken.into_iter().map(|item| item.kind).collect();
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
    });
}

#[test]
fn slots_are_used_again() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(1);
        let pusher = thread::spawn(move || {
            for number in 1..=2 {
                let mut next = item(number);
                while let Err(PushError::Full(back)) = producer.push(next) {
                    next = back;
                    thread::yield_now();
                }
            }
        });
        assert_eq!(take(&mut consumer), Some(item(1)));
        assert_eq!(take(&mut consumer), Some(item(2)));
        assert_eq!(consumer.take(), Err(TakeError::Empty));
        pusher.join().unwrap();
    });
}

#[test]
fn a_batch_lies_in_one_piece() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(4);
        let other = {
            let mut producer = producer.clone();
            thread::spawn(move || producer.push(item(9)).unwrap())
        };
        assert_eq!(producer.push_batch(&[item(1), item(2)]), Ok(2));
        other.join().unwrap();
        let taken: Vec<_> = consumer.take_batch(4).unwrap().map(|item| item.kind).collect();
        assert!(taken == [9, 1, 2] || taken == [1, 2, 9], "{taken:?}");
    });
}

#[test]
fn a_full_ring_gives_back_while_two_push() {
    loom::model(|| {
        let (producer, mut consumer) = ring(1);
        let threads: Vec<_> = (1..=2)
            .map(|number| {
                let mut producer = producer.clone();
                thread::spawn(move || match producer.push(item(number)) {
                    Ok(()) => 1,
                    Err(error) => {
                        assert_eq!(error, PushError::Full(item(number)));
                        0
                    }
                })
            })
            .collect();
        let pushed: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(pushed, 1);
        assert!(consumer.take().is_ok());
        assert_eq!(consumer.take(), Err(TakeError::Empty));
    });
}

#[test]
fn nothing_is_lost_when_the_ring_is_closed_while_one_pushes() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let reason = Arc::new(Reason::new());
        let pusher = {
            let reason = Arc::clone(&reason);
            thread::spawn(move || match producer.push_batch(&[item(1), item(2)]) {
                Ok(pushed) => pushed,
                Err(Closed) => {
                    reason.touch();
                    0
                }
            })
        };
        reason.touch();
        consumer.close();
        let mut taken = 0;
        while take(&mut consumer).is_some() {
            taken += 1;
        }
        assert_eq!(pusher.join().unwrap(), taken, "pushed and taken");
    });
}

#[test]
fn the_consumer_learns_that_a_producer_closed() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(1);
        let reason = Arc::new(Reason::new());
        let pusher = {
            let reason = Arc::clone(&reason);
            thread::spawn(move || {
                producer.push(item(1)).unwrap();
                reason.touch();
                producer.close();
            })
        };
        assert_eq!(take(&mut consumer), Some(item(1)));
        assert_eq!(take(&mut consumer), None);
        reason.touch();
        pusher.join().unwrap();
    });
}

#[test]
fn a_consumer_goes_on_where_the_one_before_ended() {
    loom::model(|| {
        let ring = Arc::new(MpscRing::new(slots(2)).unwrap());
        let mut producer = MpscProducer::new(Arc::clone(&ring));
        assert_eq!(producer.push_batch(&[item(1), item(2)]), Ok(2));
        let mut consumer = Consumer::claim(Arc::clone(&ring)).unwrap();
        let other = thread::spawn(move || assert_eq!(consumer.take(), Ok(item(1))));
        match Consumer::claim(Arc::clone(&ring)) {
            Ok(mut consumer) => assert_eq!(consumer.take(), Ok(item(2))),
            Err(error) => assert_eq!(error, ClaimError::Claimed),
        }
        other.join().unwrap();
    });
}
