//! The ring of one producer and one consumer.

use doorbell_hotpath::ring::{ClaimError, Consumer, PushError, SpscProducer, SpscRing, TakeError};
use loom::sync::Arc;
use loom::thread;

use crate::ring::{Reason, item, slots, take};

fn ring(capacity: usize) -> Arc<SpscRing<Vec<doorbell_hotpath::ring::Slot>>> {
    Arc::new(SpscRing::new(slots(capacity)).unwrap())
}

#[test]
fn what_is_pushed_is_taken_in_order_and_slots_are_used_again() {
    loom::model(|| {
        let (mut producer, mut consumer) = SpscRing::split(ring(1)).unwrap();
        let pusher = thread::spawn(move || {
            for number in 1..=2 {
                let mut next = item(number);
                while let Err(PushError::Full(back)) = producer.push(next) {
                    next = back;
                    thread::yield_now();
                }
            }
        });
        for number in 1..=2 {
            assert_eq!(take(&mut consumer), Some(item(number)));
        }
        assert_eq!(consumer.take(), Err(TakeError::Empty));
        pusher.join().unwrap();
    });
}

#[test]
fn a_batch_is_seen_at_once() {
    loom::model(|| {
        let (mut producer, mut consumer) = SpscRing::split(ring(2)).unwrap();
        // Behind the first slot, so that the batch goes round the end.
        producer.push(item(1)).unwrap();
        assert_eq!(consumer.take(), Ok(item(1)));
        let pusher = thread::spawn(move || {
            assert_eq!(producer.push_batch(&[item(2), item(3), item(4)]), Ok(2));
        });
        let seen: Vec<_> = consumer.take_batch(4).map_or(Vec::new(), Iterator::collect);
        assert!(seen.is_empty() || seen == [item(2), item(3)], "{seen:?}");
        pusher.join().unwrap();
    });
}

#[test]
fn a_batch_hands_its_slots_back() {
    loom::model(|| {
        let (mut producer, mut consumer) = SpscRing::split(ring(2)).unwrap();
        assert_eq!(producer.push_batch(&[item(1), item(2)]), Ok(2));
        let taker = thread::spawn(move || {
            let taken: Vec<_> = consumer.take_batch(2).unwrap().collect();
            assert_eq!(taken, [item(1), item(2)]);
            consumer
        });
        let pushed = producer.push_batch(&[item(3), item(4)]).unwrap();
        assert!(pushed == 0 || pushed == 2, "{pushed}");
        let mut consumer = taker.join().unwrap();
        let rest: Vec<_> = consumer.take_batch(2).map_or(Vec::new(), Iterator::collect);
        assert_eq!(rest.len(), pushed);
    });
}

#[test]
fn what_was_pushed_before_the_producer_closed_is_taken() {
    loom::model(|| {
        let (mut producer, mut consumer) = SpscRing::split(ring(2)).unwrap();
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
fn the_end_is_not_seen_before_the_last() {
    loom::model(|| {
        let (mut producer, mut consumer) = SpscRing::split(ring(1)).unwrap();
        let pusher = thread::spawn(move || {
            producer.push(item(1)).unwrap();
            producer.close();
        });
        match consumer.take() {
            Ok(taken) => assert_eq!(taken, item(1)),
            Err(error) => assert_eq!(error, TakeError::Empty),
        }
        pusher.join().unwrap();
    });
}

#[test]
fn the_producer_learns_that_the_consumer_closed_and_nothing_is_lost() {
    loom::model(|| {
        let (mut producer, mut consumer) = SpscRing::split(ring(2)).unwrap();
        let reason = Arc::new(Reason::new());
        let pusher = {
            let reason = Arc::clone(&reason);
            thread::spawn(move || {
                let mut pushed = 0;
                for number in 1..=2 {
                    match producer.push(item(number)) {
                        Ok(()) => pushed += 1,
                        Err(error) => {
                            assert_eq!(error, PushError::Closed(item(number)));
                            reason.touch();
                            break;
                        }
                    }
                }
                pushed
            })
        };
        reason.touch();
        consumer.close();
        let mut taken = 0;
        while let Some(next) = take(&mut consumer) {
            taken += 1;
            assert_eq!(next, item(taken));
        }
        assert_eq!(pusher.join().unwrap(), taken, "pushed and taken");
    });
}

#[test]
fn a_half_goes_on_where_the_one_before_ended() {
    loom::model(|| {
        let ring = ring(1);
        let (mut producer, mut consumer) = SpscRing::split(Arc::clone(&ring)).unwrap();
        producer.push(item(1)).unwrap();
        let other = thread::spawn(move || {
            assert_eq!(consumer.take(), Ok(item(1)));
            producer.push(item(2)).unwrap();
            drop(consumer);
            drop(producer);
        });
        // A half that is free is as its last owner left it.
        match SpscProducer::claim(Arc::clone(&ring)) {
            Ok(mut producer) => assert_eq!(producer.push(item(3)), Err(PushError::Full(item(3)))),
            Err(error) => assert_eq!(error, ClaimError::Claimed),
        }
        match Consumer::claim(Arc::clone(&ring)) {
            Ok(mut consumer) => assert_eq!(consumer.take(), Ok(item(2))),
            Err(error) => assert_eq!(error, ClaimError::Claimed),
        }
        other.join().unwrap();
    });
}
