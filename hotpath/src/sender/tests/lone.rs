//! A request by itself beside a batch of one: whatever happens, both leave the same behind.

use doorbell_core::provider::{Operation, PostFlags, RemoteAddress};
use doorbell_core::{Rkey, Ticket};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};

use super::{Bytes, START, Tested, announced, complete, ring, sender_with, signaled};
use crate::sender::UnpostedReason;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Posts a request of the caller's, signaled or not.
    Post(Operation, bool),
    /// The same with bytes that go inline.
    PostInline(bool),
    /// The oldest signaled request completes, where one is in flight.
    Complete,
    /// The peer announces so many receives since the beginning.
    Announced(u32),
    /// So many receives of ours are posted again.
    Received(u32),
    /// The device takes so many of a doorbell from now on.
    Takes(usize),
}

/// Outcome of a request, and whether its slot came back.
type Posted = Result<Ticket, (UnpostedReason, bool)>;

fn by_itself(sender: &mut Tested, operation: Operation, flags: PostFlags) -> Posted {
    sender
        .post_one(operation, Bytes, flags)
        .map_err(|unposted| (unposted.reason, unposted.slot.is_some()))
}

fn as_a_batch(sender: &mut Tested, operation: Operation, flags: PostFlags) -> Posted {
    let mut batch = sender.stage();
    let ticket = batch
        .push(operation, [Bytes], flags)
        .map_err(|refused| (UnpostedReason::Push(refused.reason), true))?;
    let mut back = false;
    batch
        .ring_returning(|_, _| back = true)
        .map_err(|error| (UnpostedReason::Post(error), back))?;
    Ok(ticket)
}

fn inline_as_a_batch(sender: &mut Tested, bytes: &[u8], flags: PostFlags) -> Result<Ticket, UnpostedReason> {
    let mut batch = sender.stage();
    let ticket = batch.push_inline(Operation::Send, bytes, flags)?;
    batch.ring()?;
    Ok(ticket)
}

fn flags(is_signaled: bool) -> PostFlags {
    if is_signaled {
        PostFlags::SIGNALED
    } else {
        PostFlags::empty()
    }
}

fn step() -> impl Strategy<Value = Step> {
    let at = RemoteAddress::new(0, Rkey(0));
    let operation = prop_oneof![
        Just(Operation::Send),
        Just(Operation::Write(at)),
        Just(Operation::Read(at)),
        Just(Operation::WriteWithImmediate(at, 5)),
    ];
    prop_oneof![
        6 => (operation, any::<bool>()).prop_map(|(operation, is_signaled)| Step::Post(operation, is_signaled)),
        2 => any::<bool>().prop_map(Step::PostInline),
        4 => Just(Step::Complete),
        1 => (0..12_u32).prop_map(Step::Announced),
        1 => (1..4_u32).prop_map(Step::Received),
        1 => prop_oneof![Just(0), Just(1), Just(usize::MAX), Just(usize::MAX)].prop_map(Step::Takes),
    ]
}

#[test]
fn a_post_of_which_nothing_is_taken_rings_no_doorbell() {
    let (mut sender, ..) = sender_with(16, 0, [64, 4]);
    sender.queue.takes = 0;
    by_itself(&mut sender, Operation::Send, PostFlags::empty()).unwrap_err();
    ring(&mut sender, 3).unwrap_err();
    let none = sender.statistics.snapshot();
    assert_eq!((none.doorbells, none.requests, none.refused), (0, 0, 2));
    assert_eq!(none.batches.iter().sum::<u64>(), 0);
    sender.queue.takes = 2;
    ring(&mut sender, 3).unwrap_err();
    let some = sender.statistics.snapshot().since(&none);
    assert_eq!((some.doorbells, some.requests, some.refused), (1, 2, 1));
    assert_eq!(some.batches[1], 1);
}

proptest! {
    #[test]
    fn both_leave_the_same(
        depth in 1..9_u32,
        unsignaled_max in 0..6_u32,
        receives in [1..9_u32, 1..9_u32],
        steps in vec(step(), 1..60),
    ) {
        let (mut lone, lone_word, mut lone_granting) = sender_with(depth, unsignaled_max, receives);
        let (mut batch, batch_word, mut batch_granting) = sender_with(depth, unsignaled_max, receives);
        for step in steps {
            match step {
                Step::Post(operation, is_signaled) => prop_assert_eq!(
                    by_itself(&mut lone, operation, flags(is_signaled)),
                    as_a_batch(&mut batch, operation, flags(is_signaled))
                ),
                Step::PostInline(is_signaled) => prop_assert_eq!(
                    lone.post_inline_one(Operation::Send, b"four", flags(is_signaled)),
                    inline_as_a_batch(&mut batch, b"four", flags(is_signaled))
                ),
                Step::Complete => {
                    if lone.queue.posted.iter().any(|(_, signaled)| *signaled) {
                        complete(&mut lone);
                        complete(&mut batch);
                    }
                }
                Step::Announced(receives) => {
                    lone_word.announce(START.wrapping_add(receives));
                    batch_word.announce(START.wrapping_add(receives));
                }
                Step::Received(receives) => {
                    lone_granting.note_posted(receives);
                    batch_granting.note_posted(receives);
                }
                Step::Takes(requests) => {
                    lone.queue.takes = requests;
                    batch.queue.takes = requests;
                }
            }
            prop_assert_eq!(signaled(&lone), signaled(&batch));
            prop_assert_eq!(announced(&lone), announced(&batch));
            prop_assert_eq!(
                (lone.in_flight(), lone.room(), lone.credits(), lone.awaits_completion(), lone.wants_credits()),
                (batch.in_flight(), batch.room(), batch.credits(), batch.awaits_completion(), batch.wants_credits())
            );
            prop_assert_eq!(lone.statistics.snapshot(), batch.statistics.snapshot());
        }
    }
}
