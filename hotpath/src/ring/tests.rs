use std::collections::VecDeque;
use std::sync::Arc;
use std::vec::Vec;
use std::{thread, vec};

use proptest::prelude::*;

use super::{
    CapacityError, ClaimError, Closed, Consumer, Descriptor, MpscProducer, MpscRing, PushError, Slot,
    SpscProducer, SpscRing, TakeError,
};

fn item(number: u64) -> Descriptor {
    Descriptor {
        words: [number, u64::MAX - number, number << 32],
        index: u32::MAX - u32::try_from(number % 1000).unwrap(),
        kind: u16::MAX,
    }
}

fn slots(count: usize) -> Vec<Slot> {
    (0..count).map(|_| Slot::new()).collect()
}

fn spsc(capacity: usize) -> Arc<SpscRing<Vec<Slot>>> {
    Arc::new(SpscRing::new(slots(capacity)).unwrap())
}

fn mpsc(capacity: usize) -> Arc<MpscRing<Vec<Slot>>> {
    Arc::new(MpscRing::new(slots(capacity)).unwrap())
}

fn assert_send<T: Send>(value: T) -> T {
    value
}

#[test]
fn a_capacity_is_a_power_of_two() {
    for count in [0, 3, 6] {
        assert_eq!(
            SpscRing::new(slots(count)).unwrap_err(),
            CapacityError { slots: count }
        );
        assert_eq!(
            MpscRing::new(slots(count)).unwrap_err(),
            CapacityError { slots: count }
        );
    }
    for count in [1, 2, 64] {
        assert_eq!(spsc(count).capacity(), count);
        assert_eq!(mpsc(count).capacity(), count);
    }
}

#[test]
fn halves_may_be_static_or_borrowed_or_shared() {
    static SPSC: SpscRing<[Slot; 4]> = SpscRing::in_place();
    static MPSC: MpscRing<[Slot; 4]> = MpscRing::in_place();
    let (mut producer, mut consumer) = assert_send(SpscRing::split(&SPSC).unwrap());
    producer.push(item(1)).unwrap();
    assert_eq!(consumer.take(), Ok(item(1)));
    let (mut producer, mut consumer) =
        assert_send((MpscProducer::new(&MPSC), Consumer::claim(&MPSC).unwrap()));
    producer.push(item(1)).unwrap();
    assert_eq!(consumer.take(), Ok(item(1)));

    let storage = slots(4);
    let ring = SpscRing::new(&storage[..]).unwrap();
    let (mut producer, mut consumer) = SpscRing::split(&ring).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || producer.push(item(1)).unwrap());
    });
    assert_eq!(consumer.take(), Ok(item(1)));
}

#[test]
fn every_bit_of_a_descriptor_comes_through() {
    let all = Descriptor {
        words: [u64::MAX; 3],
        index: u32::MAX,
        kind: u16::MAX,
    };
    let (mut producer, mut consumer) = SpscRing::split(spsc(2)).unwrap();
    // Several laps, since the ring has a bit of its own that changes with each.
    for next in [all, Descriptor::default(), all, all, Descriptor::default()] {
        producer.push(next).unwrap();
        assert_eq!(consumer.take(), Ok(next));
        assert_eq!(consumer.take(), Err(TakeError::Empty));
    }
}

#[test]
fn a_half_can_be_had_once() {
    let ring = spsc(2);
    let (producer, consumer) = SpscRing::split(Arc::clone(&ring)).unwrap();
    assert_eq!(
        SpscProducer::claim(Arc::clone(&ring)).unwrap_err(),
        ClaimError::Claimed
    );
    assert_eq!(
        Consumer::claim(Arc::clone(&ring)).unwrap_err(),
        ClaimError::Claimed
    );
    drop(producer);
    let mut producer = SpscProducer::claim(Arc::clone(&ring)).unwrap();
    producer.push(item(1)).unwrap();
    drop(consumer);
    assert_eq!(Consumer::claim(Arc::clone(&ring)).unwrap().take(), Ok(item(1)));

    let ring = mpsc(2);
    let consumer = Consumer::claim(Arc::clone(&ring)).unwrap();
    assert_eq!(
        Consumer::claim(Arc::clone(&ring)).unwrap_err(),
        ClaimError::Claimed
    );
    drop(consumer);
    assert!(Consumer::claim(ring).is_ok());
}

#[test]
fn a_split_that_fails_claims_nothing() {
    let ring = spsc(2);
    let consumer = Consumer::claim(Arc::clone(&ring)).unwrap();
    assert_eq!(
        SpscRing::split(Arc::clone(&ring)).unwrap_err(),
        ClaimError::Claimed
    );
    drop(consumer);
    assert!(SpscRing::split(ring).is_ok());
}

#[test]
fn halves_go_on_where_the_ones_before_ended() {
    let ring = spsc(2);
    for number in 0..7 {
        let (mut producer, mut consumer) = SpscRing::split(Arc::clone(&ring)).unwrap();
        producer.push(item(number)).unwrap();
        assert_eq!(consumer.take(), Ok(item(number)));
        assert_eq!(consumer.take(), Err(TakeError::Empty));
    }
}

#[test]
fn what_a_batch_does_not_take_stays() {
    let (mut producer, mut consumer) = SpscRing::split(spsc(4)).unwrap();
    let items: Vec<_> = (0..4).map(item).collect();
    assert_eq!(producer.push_batch(&items), Ok(4));
    assert_eq!(producer.reserve(1), 0);
    let mut batch = consumer.take_batch(3).unwrap();
    assert_eq!(batch.next(), Some(item(0)));
    drop(batch);
    assert_eq!(producer.reserve(4), 1, "one was handed back");
    assert_eq!(
        consumer.take_batch(9).unwrap().collect::<Vec<_>>(),
        items.get(1..).unwrap()
    );
    assert_eq!(consumer.take_batch(9).unwrap_err(), TakeError::Empty);
    assert_eq!(producer.reserve(9), 4);
}

#[test]
fn a_forgotten_batch_gives_nothing_twice() {
    let (mut producer, mut consumer) = SpscRing::split(spsc(4)).unwrap();
    assert_eq!(producer.push_batch(&[item(0), item(1), item(2)]), Ok(3));
    let mut batch = consumer.take_batch(3).unwrap();
    assert_eq!(batch.next(), Some(item(0)));
    core::mem::forget(batch);
    assert_eq!(consumer.take(), Ok(item(1)));
    assert_eq!(producer.reserve(9), 3);
}

#[test]
fn a_producer_closes_an_spsc_ring() {
    let ring = spsc(2);
    let (mut producer, mut consumer) = SpscRing::split(Arc::clone(&ring)).unwrap();
    producer.push(item(1)).unwrap();
    producer.close();
    assert!(consumer.is_closed());
    assert_eq!(consumer.take(), Ok(item(1)));
    assert_eq!(consumer.take(), Err(TakeError::Closed));
    assert_eq!(consumer.take_batch(1).unwrap_err(), TakeError::Closed);
    assert_eq!(SpscProducer::claim(ring).unwrap_err(), ClaimError::Closed);
}

#[test]
fn a_consumer_closes_an_spsc_ring() {
    let (mut producer, mut consumer) = SpscRing::split(spsc(2)).unwrap();
    producer.push(item(1)).unwrap();
    consumer.close();
    assert!(producer.is_closed());
    assert_eq!(consumer.take(), Ok(item(1)));
    // The producer may be in the middle of a push: it has not learned it yet.
    assert_eq!(consumer.take(), Err(TakeError::Empty));
    assert_eq!(producer.push(item(2)), Err(PushError::Closed(item(2))));
    assert_eq!(producer.push_batch(&[item(2)]), Err(Closed));
    assert_eq!(consumer.take(), Err(TakeError::Closed));
}

#[test]
fn a_producer_that_goes_from_a_closed_ring_was_the_last() {
    let (producer, mut consumer) = SpscRing::split(spsc(2)).unwrap();
    consumer.close();
    drop(producer);
    assert_eq!(consumer.take(), Err(TakeError::Closed));

    let mut consumer = Consumer::claim(spsc(2)).unwrap();
    consumer.close();
    assert_eq!(consumer.take(), Err(TakeError::Closed), "there was none");
}

#[test]
fn either_side_closes_an_mpsc_ring() {
    for by_consumer in [false, true] {
        let ring = mpsc(2);
        let mut consumer = Consumer::claim(Arc::clone(&ring)).unwrap();
        let mut producer = MpscProducer::new(Arc::clone(&ring));
        let mut other = producer.clone();
        producer.push(item(1)).unwrap();
        if by_consumer {
            consumer.close();
        } else {
            producer.close();
        }
        assert!(other.is_closed() && consumer.is_closed());
        assert_eq!(other.push(item(2)), Err(PushError::Closed(item(2))));
        assert_eq!(other.push_batch(&[item(2)]), Err(Closed));
        assert_eq!(consumer.take(), Ok(item(1)));
        assert_eq!(consumer.take(), Err(TakeError::Closed));
        assert_eq!(consumer.take_batch(1).unwrap_err(), TakeError::Closed);
    }
}

/// Operation on a ring in one thread.
#[derive(Clone, Debug)]
enum Step {
    Push,
    PushBatch(usize),
    Take,
    TakeBatch { max: usize, taken: usize },
    NewHalves,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Push),
        3 => (0_usize..12).prop_map(Step::PushBatch),
        3 => Just(Step::Take),
        3 => (0_usize..12, 0_usize..12).prop_map(|(max, taken)| Step::TakeBatch { max, taken }),
        1 => Just(Step::NewHalves),
    ];
    prop::collection::vec(step, 0..200)
}

/// Either kind of ring, as one that takes the same steps.
trait AnyRing {
    fn push(&mut self, item: Descriptor) -> Result<(), PushError>;
    fn push_batch(&mut self, items: &[Descriptor]) -> Result<usize, Closed>;
    fn take(&mut self) -> Result<Descriptor, TakeError>;
    fn take_batch(&mut self, max: usize, taken: usize) -> Vec<Descriptor>;
    fn new_halves(&mut self);
}

struct Halves<R, P, C> {
    ring: R,
    halves: Option<(P, C)>,
}

macro_rules! any_ring {
    ($ring:ident, $producer:ident, $claim:expr) => {
        impl AnyRing
            for Halves<
                Arc<$ring<Vec<Slot>>>,
                $producer<Arc<$ring<Vec<Slot>>>>,
                Consumer<Arc<$ring<Vec<Slot>>>>,
            >
        {
            fn push(&mut self, item: Descriptor) -> Result<(), PushError> {
                self.halves.as_mut().unwrap().0.push(item)
            }
            fn push_batch(&mut self, items: &[Descriptor]) -> Result<usize, Closed> {
                self.halves.as_mut().unwrap().0.push_batch(items)
            }
            fn take(&mut self) -> Result<Descriptor, TakeError> {
                self.halves.as_mut().unwrap().1.take()
            }
            fn take_batch(&mut self, max: usize, taken: usize) -> Vec<Descriptor> {
                let batch = self.halves.as_mut().unwrap().1.take_batch(max);
                batch.map_or(Vec::new(), |batch| batch.take(taken).collect())
            }
            fn new_halves(&mut self) {
                self.halves = None;
                self.halves = Some((
                    $claim(&self.ring),
                    Consumer::claim(Arc::clone(&self.ring)).unwrap(),
                ));
            }
        }
    };
}

any_ring!(SpscRing, SpscProducer, |ring: &Arc<_>| SpscProducer::claim(
    Arc::clone(ring)
)
.unwrap());
any_ring!(MpscRing, MpscProducer, |ring: &Arc<_>| MpscProducer::new(
    Arc::clone(ring)
));

fn agree_with_a_queue(ring: &mut dyn AnyRing, capacity: usize, steps: &[Step]) {
    let mut queue = VecDeque::new();
    let mut number = 0;
    ring.new_halves();
    for step in steps {
        match *step {
            Step::Push => {
                number += 1;
                if queue.len() < capacity {
                    assert_eq!(ring.push(item(number)), Ok(()));
                    queue.push_back(item(number));
                } else {
                    assert_eq!(ring.push(item(number)), Err(PushError::Full(item(number))));
                }
            }
            Step::PushBatch(count) => {
                let items: Vec<_> = (0..count as u64).map(|ahead| item(number + ahead)).collect();
                number += count as u64;
                let fits = count.min(capacity - queue.len());
                assert_eq!(ring.push_batch(&items), Ok(fits));
                queue.extend(items.into_iter().take(fits));
            }
            Step::Take => assert_eq!(ring.take(), queue.pop_front().ok_or(TakeError::Empty)),
            Step::TakeBatch { max, taken } => {
                let count = max.min(taken).min(queue.len());
                let expected: Vec<_> = queue.drain(..count).collect();
                assert_eq!(ring.take_batch(max, taken), expected);
            }
            Step::NewHalves => ring.new_halves(),
        }
    }
}

proptest! {
    #[test]
    fn an_spsc_ring_is_a_queue(bits in 0_u32..5, steps in steps()) {
        let capacity = 1 << bits;
        let mut ring = Halves { ring: spsc(capacity), halves: None };
        agree_with_a_queue(&mut ring, capacity, &steps);
    }

    #[test]
    fn an_mpsc_ring_is_a_queue(bits in 0_u32..5, steps in steps()) {
        let capacity = 1 << bits;
        let mut ring = Halves { ring: mpsc(capacity), halves: None };
        agree_with_a_queue(&mut ring, capacity, &steps);
    }
}

/// Takes to the end; gives the numbers of each producer in the order they came.
fn take_all<R: core::ops::Deref<Target: super::Ring>>(
    mut consumer: Consumer<R>,
    producers: usize,
) -> Vec<u64> {
    let mut next = vec![0; producers];
    loop {
        match consumer.take_batch(7) {
            Ok(batch) => {
                for taken in batch {
                    let [from, number, check] = taken.words;
                    let next = &mut next[usize::try_from(from).unwrap()];
                    assert_eq!((number, check), (*next, !number), "whole, and in order");
                    *next += 1;
                }
            }
            Err(TakeError::Closed) => return next,
            Err(TakeError::Empty) => thread::yield_now(),
        }
    }
}

fn from(producer: u64, number: u64) -> Descriptor {
    Descriptor {
        words: [producer, number, !number],
        ..Descriptor::default()
    }
}

#[test]
fn an_spsc_ring_loses_nothing_between_threads() {
    const ITEMS: u64 = 200_000;
    let (mut producer, consumer) = SpscRing::split(spsc(64)).unwrap();
    let taker = thread::spawn(move || take_all(consumer, 1));
    let mut number = 0;
    while number < ITEMS {
        let pushed = if number % 3 == 0 {
            let items: Vec<_> = (0..5).map(|ahead| from(0, number + ahead)).collect();
            producer.push_batch(&items).unwrap() as u64
        } else {
            u64::from(producer.push(from(0, number)).is_ok())
        };
        number += pushed;
        if pushed == 0 {
            thread::yield_now();
        }
    }
    producer.close();
    assert_eq!(taker.join().unwrap(), [number]);
}

#[test]
fn an_mpsc_ring_loses_nothing_between_threads() {
    const EACH: u64 = 50_000;
    let ring = mpsc(64);
    let consumer = Consumer::claim(Arc::clone(&ring)).unwrap();
    let producer = MpscProducer::new(ring);
    let threads: Vec<_> = (0..4)
        .map(|name| {
            let mut producer = producer.clone();
            thread::spawn(move || {
                let mut number = 0;
                while number < EACH {
                    let pushed = if name % 2 == 0 {
                        let items: Vec<_> = (0..5).map(|ahead| from(name, number + ahead)).collect();
                        producer.push_batch(&items).unwrap() as u64
                    } else {
                        u64::from(producer.push(from(name, number)).is_ok())
                    };
                    number += pushed;
                    if pushed == 0 {
                        thread::yield_now();
                    }
                }
                number
            })
        })
        .collect();
    let taker = thread::spawn(move || take_all(consumer, 4));
    let pushed: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    producer.close();
    assert_eq!(taker.join().unwrap(), pushed);
}

#[test]
fn closing_while_all_push_loses_nothing() {
    for round in 0..50 {
        let ring = mpsc(8);
        let consumer = Consumer::claim(Arc::clone(&ring)).unwrap();
        let producer = MpscProducer::new(ring);
        let threads: Vec<_> = (0..3)
            .map(|name| {
                let mut producer = producer.clone();
                thread::spawn(move || {
                    let mut number = 0;
                    loop {
                        match producer.push(from(name, number)) {
                            Ok(()) => number += 1,
                            Err(PushError::Full(_)) => thread::yield_now(),
                            Err(PushError::Closed(_)) => return number,
                        }
                    }
                })
            })
            .collect();
        let taker = thread::spawn(move || take_all(consumer, 3));
        (0..round).for_each(|_| thread::yield_now());
        producer.close();
        let pushed: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(taker.join().unwrap(), pushed);
    }
}
