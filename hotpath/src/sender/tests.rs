//! Tests of signaling, credits and announcements, over a queue that refuses the requests a test names.

use std::boxed::Box;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

use doorbell_core::Rkey;
use doorbell_core::provider::{DomainId, Operation, PostError, PostFlags, PushError, RemoteAddress};

use super::{Flow, RequestLimits, Sender, SenderConfig};
use crate::{Announcer, Credits, Granting, Grants, Statistics, WindowWord, marks_for};
pub(crate) use queue::Bytes;
use queue::{CELL_BYTES, Queue, Success, Word};

type Tested = Sender<Queue, Box<[u8]>, Arc<Word>, Arc<Grants>, Arc<Statistics>>;
type TestedBatch<'q> = super::Batch<'q, Queue, Arc<Word>>;

const PEERS_WORD: RemoteAddress = RemoteAddress::new(0x1000, Rkey(7));

/// Count at the start.
const START: u32 = u32::MAX - 3;

/// A sender whose caller may have so many requests in flight, with the peer's and our depth of
/// receives, the word the peer announces in, and the half that receives.
fn sender_with(
    depth: u32,
    unsignaled_max: u32,
    [theirs, ours]: [u32; 2],
) -> (Tested, Arc<Word>, Granting<Arc<Grants>>) {
    let depth = depth + 1;
    let word = Arc::new(Word::default());
    word.announce(START);
    let grants = Arc::new(Grants::new(START, ours));
    let flow = Flow {
        credits: Credits::new(START, theirs),
        word: WindowWord::new(word.clone(), 0).unwrap(),
        announcer: Announcer::new(grants.clone(), ours, PEERS_WORD),
    };
    let words = vec![0; marks_for(depth)].into();
    let sender = Sender::new(
        Queue::new(depth),
        words,
        flow,
        Arc::default(),
        &SenderConfig {
            unsignaled_max,
            limits: RequestLimits::of_memory(DomainId(0)),
        },
    )
    .unwrap();
    (sender, word, Granting::new(grants, ours))
}

fn sender(depth: u32, unsignaled_max: u32) -> Tested {
    sender_with(depth, unsignaled_max, [1 << 16, 0]).0
}

/// Rings one doorbell for this many requests.
fn ring(sender: &mut Tested, count: u32) -> Result<u32, PostError> {
    let mut batch = sender.stage();
    for _ in 0..count {
        batch
            .push(Operation::Send, [Bytes], PostFlags::empty())
            .map_err(|refused| refused.reason)
            .unwrap();
    }
    batch.ring()
}

fn signaled(sender: &Tested) -> Vec<bool> {
    sender
        .queue
        .posted
        .iter()
        .map(|(_, signaled)| *signaled)
        .collect()
}

/// Completes the first signaled request that has not completed.
fn complete(sender: &mut Tested) {
    let position = sender.queue.posted.iter().position(|(_, signaled)| *signaled);
    let (id, _) = sender
        .queue
        .posted
        .drain(..=position.unwrap())
        .next_back()
        .unwrap();
    sender.retire(&Success(id), |_, _| (), |_| ()).unwrap();
}

#[test]
fn the_last_of_a_doorbell_is_signaled_by_policy() {
    let mut each = sender(16, 0);
    ring(&mut each, 3).unwrap();
    ring(&mut each, 1).unwrap();
    assert_eq!(signaled(&each), [false, false, true, true]);
    let mut some = sender(16, 3);
    for _ in 0..3 {
        ring(&mut some, 1).unwrap();
    }
    assert_eq!(signaled(&some), [false, false, true]);
    assert!(some.awaits_completion());
    complete(&mut some);
    assert!(!some.awaits_completion());
}

#[test]
fn the_last_of_a_doorbell_is_signaled_where_it_is_asked_for() {
    let mut sender = sender(16, 1000);
    sender.stage().signal_last();
    for count in [2, 1] {
        let mut batch = sender.stage();
        for _ in 0..count {
            let pushed = batch.push(Operation::Send, [Bytes], PostFlags::empty());
            assert!(pushed.is_ok());
        }
        batch.signal_last();
        batch.ring().unwrap();
        // It counts from there.
        ring(&mut sender, 1).unwrap();
    }
    assert_eq!(signaled(&sender), [false, true, false, true, false]);
}

#[test]
fn a_full_queue_always_has_a_completion_coming() {
    for depth in [1, 2, 3, 8, 16] {
        let mut sender = sender(depth, u32::MAX);
        for _ in 0..100 {
            while sender.room() > 0 {
                ring(&mut sender, 1).unwrap();
            }
            assert!(sender.awaits_completion(), "depth {depth}");
            complete(&mut sender);
        }
    }
}

#[test]
fn what_was_signaled_before_a_refusal_is_still_awaited() {
    let mut sender = sender(16, 0);
    ring(&mut sender, 1).unwrap();
    sender.queue.takes = 0;
    ring(&mut sender, 2).unwrap_err();
    assert!(sender.awaits_completion());
    complete(&mut sender);
    assert!(!sender.awaits_completion());
}

#[test]
fn what_was_posted_of_a_refused_doorbell_is_known_done_by_the_next() {
    let mut sender = sender(16, u32::MAX);
    sender.queue.takes = 2;
    ring(&mut sender, 4).unwrap_err();
    assert_eq!(signaled(&sender), [false, false]);
    sender.queue.takes = usize::MAX;
    // A doorbell for nothing settles nothing.
    assert_eq!(ring(&mut sender, 0), Ok(0));
    ring(&mut sender, 1).unwrap();
    assert_eq!(signaled(&sender), [false, false, true]);
    ring(&mut sender, 1).unwrap();
    assert_eq!(signaled(&sender), [false, false, true, false]);
    complete(&mut sender);
    assert_eq!(sender.in_flight(), 1);
}

#[test]
fn one_request_that_is_all_a_refused_doorbell_posted_is_reported_by_an_announcement() {
    let mut sender = sender(16, u32::MAX);
    sender.queue.takes = 1;
    ring(&mut sender, 2).unwrap_err();
    assert!(sender.has_unreported() && sender.awaits_completion());
    sender.queue.takes = usize::MAX;
    assert_eq!(sender.announce(), Ok(true));
    assert_eq!(signaled(&sender), [false, true]);
    complete(&mut sender);
    assert!(!sender.has_unreported() && !sender.awaits_completion());
    assert_eq!(sender.in_flight(), 0);
}

#[test]
fn what_was_posted_of_a_refused_doorbell_is_reported_by_an_announcement() {
    for unsignaled_max in [0, 3, u32::MAX] {
        let (mut sender, _, _) = sender_with(16, unsignaled_max, [64, 4]);
        ring(&mut sender, 1).unwrap();
        assert!(!sender.has_unreported());
        sender.queue.takes = 0;
        ring(&mut sender, 4).unwrap_err();
        assert!(!sender.has_unreported(), "nothing was taken");
        assert_eq!(sender.announce(), Ok(true));
        assert_eq!(announced(&sender), []);
        sender.queue.takes = 2;
        ring(&mut sender, 4).unwrap_err();
        assert!(sender.has_unreported() && sender.awaits_completion());
        // Refused, it is still to be made.
        sender.queue.takes = 0;
        sender.announce().unwrap_err();
        assert!(sender.has_unreported());
        sender.queue.takes = usize::MAX;
        // The announcement carries a count that the peer knows, since there is no higher one.
        assert_eq!(sender.announce(), Ok(true));
        assert_eq!(announced(&sender), [4]);
        assert_eq!(signaled(&sender).last(), Some(&true));
        assert!(!sender.has_unreported() && sender.awaits_completion());
        while sender.awaits_completion() {
            complete(&mut sender);
        }
        assert_eq!((sender.in_flight(), sender.credits()), (0, 61));
        assert_eq!(sender.announce(), Ok(true));
        assert_eq!(announced(&sender), [4], "once");
        assert_eq!(sender.statistics.refused.value(), 3);
    }
}

/// Counts that were announced, in order.
fn announced(sender: &Tested) -> Vec<u32> {
    sender
        .queue
        .inline
        .iter()
        .map(|bytes| u32::from_be_bytes(bytes[..4].try_into().unwrap()))
        .map(|count| count.wrapping_sub(START))
        .collect()
}

#[test]
fn a_message_without_a_receive_is_handed_back() {
    let (mut sender, word, _) = sender_with(16, 0, [3, 0]);
    let mut batch = sender.stage();
    for _ in 0..3 {
        batch
            .push(Operation::Send, [Bytes], PostFlags::empty())
            .map_err(|refused| refused.reason)
            .unwrap();
    }
    let at = RemoteAddress::new(0, Rkey(0));
    for message in [
        Operation::Send,
        Operation::SendWithImmediate(1),
        Operation::WriteWithImmediate(at, 1),
    ] {
        let refused = batch.push(message, [Bytes], PostFlags::empty()).unwrap_err();
        assert_eq!(refused.reason, PushError::NoCredit);
        assert_eq!(
            batch.push_inline(message, b"", PostFlags::empty()),
            Err(PushError::NoCredit)
        );
    }
    // An operation that takes no receive needs no credit.
    for other in [Operation::Write(at), Operation::Read(at)] {
        assert!(batch.push(other, [Bytes], PostFlags::empty()).is_ok());
    }
    assert_eq!(batch.ring(), Ok(5));
    assert_eq!(sender.credits(), 0);
    assert!(ring_one(&mut sender).is_err());
    word.announce(START.wrapping_add(4));
    assert_eq!(sender.credits(), 1);
    ring_one(&mut sender).unwrap();
    assert_eq!(ring_one(&mut sender), Err(PushError::NoCredit));
}

/// A batch of these.
fn staged<'q>(sender: &'q mut Tested, operations: &[Operation]) -> super::Batch<'q, Queue, Arc<Word>> {
    let mut batch = sender.stage();
    for operation in operations {
        assert!(batch.push(*operation, [Bytes], PostFlags::empty()).is_ok());
    }
    batch
}

fn ring_one(sender: &mut Tested) -> Result<(), PushError> {
    let mut batch = sender.stage();
    batch
        .push(Operation::Send, [Bytes], PostFlags::empty())
        .map_err(|refused| refused.reason)?;
    batch.ring().unwrap();
    Ok(())
}

#[test]
fn credits_come_back_of_what_was_not_posted() {
    let (mut sender, _, _) = sender_with(16, 0, [4, 0]);
    // Dropped.
    let _ = staged(&mut sender, &[Operation::Send; 4]);
    assert_eq!(sender.credits(), 4);
    // The last two are refused, one of them a message.
    let write = Operation::Write(PEERS_WORD);
    sender.queue.takes = 3;
    let mixed = [Operation::Send, write, Operation::Send, write, Operation::Send];
    let error = staged(&mut sender, &mixed).ring().unwrap_err();
    assert_eq!((error.posted, error.unposted), (3, 2));
    assert_eq!(sender.credits(), 2);
}

#[test]
fn what_no_honest_peer_announces_is_not_believed() {
    let (mut sender, word, _) = sender_with(16, 0, [4, 0]);
    for _ in 0..4 {
        ring_one(&mut sender).unwrap();
    }
    for lie in [0, 3, 9, 1 << 30, u32::MAX] {
        word.announce(START.wrapping_add(lie));
        assert_eq!(sender.credits(), 0, "{lie}");
        assert_eq!(ring_one(&mut sender), Err(PushError::NoCredit), "{lie}");
    }
    word.announce(START.wrapping_add(8));
    assert_eq!(sender.credits(), 4);
}

#[test]
fn a_quarter_is_announced_with_what_goes_out() {
    let (mut sender, _, mut granting) = sender_with(16, 0, [64, 8]);
    granting.note_posted(1);
    ring(&mut sender, 1).unwrap();
    assert_eq!(announced(&sender), []);
    granting.note_posted(1);
    // Nothing goes out with a batch of nothing, nor with one that is dropped.
    assert_eq!(ring(&mut sender, 0), Ok(0));
    assert_eq!(staged(&mut sender, &[Operation::Send]).staged(), 1);
    assert_eq!(announced(&sender), []);
    assert_eq!(ring(&mut sender, 3), Ok(3));
    assert_eq!(announced(&sender), [10]);
    assert_eq!(
        signaled(&sender),
        [true, false, false, false, true],
        "in front, and not signaled"
    );
    assert_eq!(sender.in_flight(), 4);
    ring(&mut sender, 1).unwrap();
    assert_eq!(announced(&sender), [10], "once");
}

#[test]
fn announcements_by_themselves_are_nobodys_requests() {
    let (mut sender, _, mut granting) = sender_with(16, 0, [64, 4]);
    let before = sender.went_out();
    assert_eq!(sender.announce(), Ok(true));
    assert_eq!(announced(&sender), []);
    assert!(sender.went_out() == before && sender.announcements == 0);
    granting.note_posted(1);
    assert!(!granting.is_due(4));
    granting.note_posted(1);
    assert!(granting.is_due(4));
    assert_eq!(sender.announce(), Ok(true));
    assert!(!granting.is_due(4));
    assert_eq!(announced(&sender), [6]);
    assert_eq!(sender.went_out().wrapping_sub(before), 2, "receives");
    assert_eq!(sender.announcements, 1);
    assert_eq!(signaled(&sender), [false]);
    assert_eq!((sender.in_flight(), sender.room()), (0, 15));
    assert!(!sender.awaits_completion());
    let first = {
        let mut batch = sender.stage();
        let pushed = batch.push(Operation::Send, [Bytes], PostFlags::empty());
        let ticket = pushed.map_err(|refused| refused.reason).unwrap();
        batch.ring().unwrap();
        ticket
    };
    assert_eq!(sender.went_out().wrapping_sub(before), 3, "and a message");
    let outcome = retire_next(&mut sender);
    assert_eq!((outcome.retired.count(), outcome.through), (2, Some(first)));
    assert_eq!((sender.in_flight(), sender.room()), (0, 16));
    assert_eq!(sender.announcements, 0);
}

#[test]
fn a_probe_is_awaited_until_it_completes_or_a_request_goes_behind_it() {
    let mut sender = sender(16, 0);
    assert!(!sender.awaits_probe());
    sender.probe().unwrap();
    assert!(sender.awaits_probe());
    retire_next(&mut sender);
    assert!(!sender.awaits_probe());
    sender.probe().unwrap();
    ring(&mut sender, 1).unwrap();
    assert!(!sender.awaits_probe(), "the transport gives up what is behind it");
}

/// No completion of such a request comes: without one that is signaled behind it, it would be awaited for good.
#[test]
fn a_request_aside_that_a_device_may_have_is_reported_by_the_next() {
    let asides: [fn(&mut Tested) -> bool; 3] = [
        |sender| sender.probe().is_err(),
        |sender| sender.say_farewell().is_err(),
        |sender| sender.leave_farewell().is_err(),
    ];
    for aside in asides {
        let mut sender = sender(16, 0);
        sender.queue.is_unclear = true;
        assert!(aside(&mut sender));
        sender.queue.is_unclear = false;
        assert!(sender.has_unreported() && !sender.awaits_probe());
        assert_eq!(sender.announce(), Ok(true));
        assert_eq!(signaled(&sender), [true]);
        let outcome = retire_next(&mut sender);
        assert_eq!((outcome.retired.count(), outcome.through), (2, None));
        assert!(!sender.awaits_completion());
        assert_eq!((sender.in_flight(), sender.announcements), (0, 0));
        assert_eq!(sender.statistics.refused.value(), 1);
    }
}

/// Completes the first signaled request that has not completed.
fn retire_next(sender: &mut Tested) -> super::Outcome {
    let position = sender.queue.posted.iter().position(|(_, signaled)| *signaled);
    let (id, _) = sender
        .queue
        .posted
        .drain(..=position.unwrap())
        .next_back()
        .unwrap();
    sender.retire(&Success(id), |_, _| (), |_| ()).unwrap()
}

#[test]
fn a_side_that_only_receives_announces_without_end() {
    for depth in [1, 2, 3, 16] {
        let (mut sender, _, mut granting) = sender_with(depth, 0, [4, 4]);
        for round in 1..=1000 {
            granting.note_posted(2);
            while sender.announce() == Ok(false) {
                // One of the requests in flight is signaled, and it is no request of the caller.
                assert_eq!(retire_next(&mut sender).through, None);
            }
            assert_eq!(announced(&sender).last(), Some(&(4 + 2 * round)), "depth {depth}");
        }
        assert_eq!(sender.in_flight(), 0);
    }
}

#[test]
fn a_place_is_kept_for_an_announcement_whatever_is_posted() {
    for depth in [1, 2, 7, 16] {
        let (mut sender, _, mut granting) = sender_with(depth, u32::MAX, [1 << 16, 4]);
        assert_eq!(sender.room(), depth);
        for _ in 0..depth {
            ring_one(&mut sender).unwrap();
        }
        assert_eq!(sender.room(), 0);
        assert_eq!(ring_one(&mut sender), Err(PushError::Full));
        granting.note_posted(2);
        assert_eq!(sender.announce(), Ok(true), "depth {depth}");
        granting.note_posted(2);
        assert_eq!(sender.announce(), Ok(false), "the place is taken");
        assert!(sender.awaits_completion());
        while sender.announce() == Ok(false) {
            retire_next(&mut sender);
        }
        assert_eq!(announced(&sender), [6, 8]);
    }
}

#[test]
fn with_an_announcement_in_front_there_is_as_much_room_as_was_announced() {
    let (mut sender, _, mut granting) = sender_with(4, 0, [64, 4]);
    ring(&mut sender, 3).unwrap();
    granting.note_posted(1);
    assert_eq!(sender.room(), 1);
    ring(&mut sender, 1).unwrap();
    assert_eq!(announced(&sender), [5]);
    assert_eq!(sender.room(), 0);
}

#[test]
fn a_refused_announcement_is_made_again() {
    let (mut sender, _, mut granting) = sender_with(16, 0, [64, 4]);
    granting.note_posted(2);
    sender.queue.takes = 0;
    let error = sender.announce().unwrap_err();
    assert_eq!((error.posted, error.unposted), (0, 0), "none of the caller's");
    let error = ring(&mut sender, 2).unwrap_err();
    assert_eq!((error.posted, error.unposted), (0, 2));
    assert!(granting.is_due(4));
    sender.queue.takes = 2;
    let error = ring(&mut sender, 2).unwrap_err();
    assert_eq!((error.posted, error.unposted), (1, 1));
    assert_eq!(announced(&sender), [6]);
    assert_eq!((sender.credits(), sender.in_flight()), (63, 1));
    sender.queue.takes = usize::MAX;
    ring(&mut sender, 1).unwrap();
    assert_eq!(announced(&sender), [6], "once");
}

mod cells;
mod lone;
mod queue;
mod ranges;
