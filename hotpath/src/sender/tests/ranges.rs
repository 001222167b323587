//! Requests of ranges of windows: checked as those of slots are, and nothing of them is kept.

use doorbell_core::Rkey;
use doorbell_core::provider::{DomainId, Operation, PostFlags, PushError, RemoteAddress, WindowRange};
use doorbell_core::wire::RemoteWindow;

use super::{Success, Tested, Word, sender, sender_with, signaled};
use crate::RequestLimits;
use crate::sender::UnpostedReason;
use crate::sender::limits::Limits;

const fn range(window: &Word, bytes: u32) -> WindowRange<'_, Word> {
    WindowRange {
        window,
        offset: 0,
        bytes,
    }
}

/// An address that was made for so many bytes.
fn of_bytes(bytes: u64) -> RemoteAddress {
    RemoteAddress::within(&RemoteWindow::new(0, 64, Rkey(3)), 0, bytes).unwrap()
}

fn limited(limits: RequestLimits) -> Tested {
    let mut sender = sender(4, 1);
    sender.limits = Limits::new(&limits);
    sender
}

#[test]
fn what_they_bring_back_is_not_handed_out() {
    let window = Word::default();
    for operation in [
        Operation::Read(of_bytes(64)),
        Operation::FetchAndAdd {
            remote: of_bytes(8),
            add: 1,
        },
    ] {
        let mut sender = sender(4, 1);
        let flags = PostFlags::empty();
        sender
            .post_ranges_one(operation, [range(&window, 8)], flags)
            .unwrap();
        assert_eq!((signaled(&sender), sender.fetches_end), (std::vec![true], 0));
        let (id, _) = sender.queue.posted.pop().unwrap();
        let (mut kept, mut spent) = (0, 0);
        sender
            .retire(&Success(id), |_, _| kept += 1, |_| spent += 1)
            .unwrap();
        assert_eq!((kept, spent), (0, 1), "{operation:?}");
    }
}

#[test]
fn their_length_is_that_of_all_ranges() {
    let window = Word::default();
    let mut limits = RequestLimits::of_memory(DomainId(0));
    limits.message_bytes_max = 15;
    let mut sender = limited(limits);
    let mut post = |operation, ranges: [_; 2]| {
        sender
            .post_ranges_one(operation, ranges, PostFlags::empty())
            .map(drop)
    };
    let refused = |reason| Err(UnpostedReason::Push(reason));
    let whole = [range(&window, 8), range(&window, 8)];
    let shorter = [range(&window, 8), range(&window, 7)];
    let too_long = PushError::TooLong {
        bytes: 16,
        bytes_max: 15,
    };
    assert_eq!(post(Operation::Send, whole), refused(too_long));
    assert_eq!(post(Operation::Send, shorter), Ok(()));
    let outside = PushError::OutOfWindow {
        bytes: 16,
        bytes_max: 15,
    };
    for operation in [Operation::Write(of_bytes(15)), Operation::Read(of_bytes(15))] {
        assert_eq!(post(operation, whole), refused(outside));
        assert_eq!(post(operation, shorter), Ok(()));
    }
    let own = PushError::OutOfOwnWindow {
        bytes: 9,
        bytes_left: 8,
    };
    let outside = [range(&window, 0), range(&window, 9)];
    assert_eq!(post(Operation::Write(of_bytes(64)), outside), refused(own));
}

#[test]
fn their_windows_are_of_the_queue_pairs_domain() {
    let window = Word::default();
    let mut sender = limited(RequestLimits::of_memory(DomainId(9)));
    let refused = sender.post_ranges_one(Operation::Send, [range(&window, 8)], PostFlags::empty());
    assert_eq!(refused, Err(UnpostedReason::Push(PushError::OtherMemory)));
    assert_eq!(sender.in_flight(), 0);
}

#[test]
fn a_message_of_them_takes_a_credit_and_a_place() {
    let window = Word::default();
    let (mut sender, ..) = sender_with(4, 1, [2, 0]);
    let mut batch = sender.stage();
    let mut push = |operation| {
        batch
            .push_ranges(operation, [range(&window, 8)], PostFlags::empty())
            .map(drop)
    };
    assert_eq!(push(Operation::Write(of_bytes(64))), Ok(()));
    assert_eq!(push(Operation::Send), Ok(()));
    assert_eq!(push(Operation::WriteWithImmediate(of_bytes(64), 1)), Ok(()));
    assert_eq!(push(Operation::Send), Err(PushError::NoCredit));
    assert_eq!(push(Operation::Read(of_bytes(64))), Ok(()));
    assert_eq!(push(Operation::Read(of_bytes(64))), Err(PushError::Full));
    assert_eq!(batch.ring(), Ok(4));
    assert_eq!(sender.statistics.snapshot().bytes, 32);
}
