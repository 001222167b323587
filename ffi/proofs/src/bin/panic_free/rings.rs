//! The rings between threads.

use doorbell_hotpath::ring::{
    Closed, Consumer, Descriptor, MpscProducer, MpscRing, PushError, Slot, SpscProducer, SpscRing, TakeError,
};

#[cfg(feature = "panic_free")]
use no_panic::no_panic;

type Single = SpscRing<[Slot; 8]>;
type Many = MpscRing<[Slot; 8]>;

static SINGLE: Single = Single::in_place();
static MANY: Many = Many::in_place();

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn push_single(producer: &mut SpscProducer<&'static Single>, item: Descriptor) -> Result<(), PushError> {
    producer.push(item)
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn push_batch_single(
    producer: &mut SpscProducer<&'static Single>,
    items: &[Descriptor],
) -> Result<usize, Closed> {
    producer.push_batch(items)
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn take_single(consumer: &mut Consumer<&'static Single>) -> Result<Descriptor, TakeError> {
    consumer.take()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn take_batch_single(consumer: &mut Consumer<&'static Single>, max: usize) -> u64 {
    let batch = consumer.take_batch(max);
    batch.map_or(0, |batch| {
        batch.fold(0, |sum, item| sum.wrapping_add(item.index.into()))
    })
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn push_many(producer: &mut MpscProducer<&'static Many>, item: Descriptor) -> Result<(), PushError> {
    producer.push(item)
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn push_batch_many(
    producer: &mut MpscProducer<&'static Many>,
    items: &[Descriptor],
) -> Result<usize, Closed> {
    producer.push_batch(items)
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn take_many(consumer: &mut Consumer<&'static Many>) -> Result<Descriptor, TakeError> {
    consumer.take()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn take_batch_many(consumer: &mut Consumer<&'static Many>, max: usize) -> u64 {
    let batch = consumer.take_batch(max);
    batch.map_or(0, |batch| {
        batch.fold(0, |sum, item| sum.wrapping_add(item.index.into()))
    })
}

/// So many descriptors, of index one each.
const fn items<const N: usize>() -> [Descriptor; N] {
    [Descriptor {
        words: [0; 3],
        index: 1,
        kind: 0,
    }; N]
}

fn single() -> Option<bool> {
    let (mut producer, mut consumer) = SpscRing::split(&SINGLE).ok()?;
    let [one] = items();
    for _ in 0..100 {
        push_single(&mut producer, one).ok()?;
        // There is room for seven of nine.
        if push_batch_single(&mut producer, &items::<9>()) != Ok(7)
            || push_single(&mut producer, one) != Err(PushError::Full(one))
            || take_single(&mut consumer) != Ok(one)
            || take_batch_single(&mut consumer, 16) != 7
            || take_single(&mut consumer) != Err(TakeError::Empty)
        {
            return Some(false);
        }
    }
    Some(true)
}

fn many() -> Option<bool> {
    let mut producers = [MpscProducer::new(&MANY), MpscProducer::new(&MANY)];
    let mut consumer = Consumer::claim(&MANY).ok()?;
    let [one] = items();
    for _ in 0..100 {
        let [first, second] = &mut producers;
        push_many(first, one).ok()?;
        if push_batch_many(second, &items::<9>()) != Ok(7)
            || push_many(first, one) != Err(PushError::Full(one))
            || take_many(&mut consumer) != Ok(one)
            || take_batch_many(&mut consumer, 16) != 7
            || take_many(&mut consumer) != Err(TakeError::Empty)
        {
            return Some(false);
        }
    }
    Some(true)
}

/// Runs all of it; says whether it did what it should.
pub(crate) fn run() -> bool {
    single() == Some(true) && many() == Some(true)
}
