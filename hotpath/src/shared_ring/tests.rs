//! A ring takes what an honest process writes, and refuses the rest.

use std::vec::Vec;

use doorbell_core::interprocess::SharedWords;
use doorbell_core::sync::{AtomicU32, AtomicU64, Ordering};

use super::{DESCRIPTOR_WORDS, RingViolation, SharedConsumer, SharedProducer, SharedRing};

struct Plain(Vec<AtomicU64>);

impl SharedWords for &Plain {
    fn word(&self, index: usize) -> Option<&AtomicU64> {
        self.0.get(index)
    }

    fn line(&self, first: usize) -> Option<&[AtomicU64; 8]> {
        self.0.get(first..first.checked_add(8)?)?.try_into().ok()
    }

    fn flag(&self, _index: usize) -> Option<&AtomicU32> {
        None
    }
}

const SLOTS: u32 = 4;

fn ring() -> SharedRing {
    SharedRing::new(3, SLOTS).unwrap()
}

fn memory() -> Plain {
    Plain((0..3 + ring().words()).map(|_| AtomicU64::new(0)).collect())
}

fn item(number: u64) -> [u64; DESCRIPTOR_WORDS] {
    core::array::from_fn(|word| number * 100 + word as u64)
}

#[test]
fn settled_descriptors_are_counted_beside_the_positions() {
    let memory = memory();
    let mut producer = SharedProducer::new(&memory, ring());
    let consumer = SharedConsumer::new(&memory, ring());
    assert_eq!(producer.settled(), 0);
    consumer.settle(u64::MAX);
    assert_eq!((producer.settled(), producer.room()), (u64::MAX, Ok(SLOTS)));
}

#[test]
fn batches_go_round_in_order() {
    let memory = memory();
    let mut producer = SharedProducer::new(&memory, ring());
    let mut consumer = SharedConsumer::new(&memory, ring());
    let (mut next, mut expected) = (0, 0);
    for batch in [1, 3, 4, 2, 4, 4, 1] {
        for _ in 0..batch {
            assert!(producer.stage(&item(next)).unwrap());
            next += 1;
        }
        assert_eq!(consumer.peek(), Ok(None), "nothing before it is published");
        assert_eq!(consumer.peek_pair(), None);
        assert!(producer.publish() && !producer.publish());
        while let Some(found) = consumer.peek().unwrap() {
            assert_eq!(found, item(expected));
            assert_eq!(consumer.peek_pair().as_ref(), found.first_chunk());
            consumer.advance();
            expected += 1;
        }
        // At the end of what is there, nothing more is taken.
        consumer.advance();
        assert!(consumer.hand_back() && !consumer.hand_back());
    }
    assert_eq!(next, expected);
}

#[test]
fn a_full_ring_takes_nothing_until_slots_are_handed_back() {
    let memory = memory();
    let mut producer = SharedProducer::new(&memory, ring());
    let mut consumer = SharedConsumer::new(&memory, ring());
    for number in 0..u64::from(SLOTS) {
        assert_eq!(producer.stage(&item(number)), Ok(true));
    }
    assert_eq!(producer.stage(&item(9)), Ok(false));
    producer.publish();
    assert_eq!(consumer.look(), Ok(SLOTS));
    consumer.advance();
    assert_eq!(producer.stage(&item(9)), Ok(false), "taken, and not handed back");
    consumer.hand_back();
    assert_eq!(producer.room(), Ok(1));
    assert_eq!(producer.stage(&item(9)), Ok(true));
}

#[test]
fn an_index_that_jumps_or_goes_back_is_refused_and_one_at_the_limit_is_not() {
    let (limit, word) = (u64::from(SLOTS), ring().producer_word());
    for (read, is_right) in [(limit, true), (limit + 1, false), (u64::MAX, false)] {
        let memory = memory();
        let mut consumer = SharedConsumer::new(&memory, ring());
        memory.0[word].store(read, Ordering::Relaxed);
        assert_eq!(consumer.look().is_ok(), is_right, "{read}");
    }
    let memory = memory();
    let mut producer = SharedProducer::new(&memory, ring());
    let mut consumer = SharedConsumer::new(&memory, ring());
    producer.stage(&item(1)).unwrap();
    producer.publish();
    assert_eq!(consumer.look(), Ok(1));
    consumer.advance();
    memory.0[word].store(0, Ordering::Relaxed);
    let back = RingViolation::Index {
        read: 0,
        known: 1,
        limit,
    };
    assert_eq!(consumer.look(), Err(back));
    // The consumer's position, as the producer sees it: not further than was published.
    for number in 2..=u64::from(SLOTS) {
        producer.stage(&item(number)).unwrap();
    }
    memory.0[ring().consumer_word()].store(2, Ordering::Relaxed);
    let jumped = RingViolation::Index {
        read: 2,
        known: 0,
        limit: 1,
    };
    assert_eq!(producer.room(), Err(jumped));
}

#[test]
fn memory_that_is_too_small_is_refused() {
    let small = Plain((0..20).map(|_| AtomicU64::new(0)).collect());
    assert_eq!(
        SharedProducer::new(&small, ring()).stage(&item(1)),
        Err(RingViolation::Memory)
    );
    for slots in [0, 3, 1 << 17] {
        assert!(SharedRing::new(0, slots).is_none(), "{slots}");
    }
}
