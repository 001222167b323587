//! Rows of requests of ranges of windows.

use core::fmt::Debug;

use doorbell::provider::{Provider, PushError, WindowRange};
use doorbell::{LocalWindow, Operation, PostFlags, RemoteAccess, RemoteAddress, SendErrorKind, WindowConfig};

use super::{Two, WINDOW_BYTES, past, refused};

/// A window of the Worker that posts.
fn own<P: Provider + Debug>(two: &Two<P>) -> LocalWindow<P> {
    let config = WindowConfig::new(WINDOW_BYTES, RemoteAccess::NONE);
    two.near.window(&config).unwrap()
}

/// Posts the ranges by themselves and in a batch. Each refuses them so.
fn refused_ranges<P: Provider + Debug, const N: usize>(
    two: &mut Two<P>,
    operation: Operation,
    ranges: [WindowRange<'_, P::Window>; N],
    flags: PostFlags,
    kind: SendErrorKind,
) {
    let channel = two.channel();
    let outcome = channel.post_ranges(operation, ranges, flags);
    assert_eq!(outcome, Err(kind), "{operation:?}");
    let mut batch = channel.batch();
    assert_eq!(batch.push_ranges(operation, ranges, flags), Err(kind));
    assert_eq!(batch.staged(), 0);
}

pub(super) fn range_past_the_own_window<P: Provider + Debug>(two: &mut Two<P>) {
    let window = own(two);
    let remote = two.at(0, WINDOW_BYTES as u64);
    for (offset, bytes, bytes_left) in [(1, 4096, 4095), (4096, 1, 0), (usize::MAX, 1, 0)] {
        let kind = refused(PushError::OutOfOwnWindow { bytes, bytes_left });
        for operation in [Operation::Write(remote), Operation::Read(remote)] {
            let range = window.range(offset, bytes);
            refused_ranges(two, operation, [range], PostFlags::empty(), kind);
        }
    }
}

pub(super) fn range_of_another_worker<P: Provider + Debug>(two: &mut Two<P>) {
    let config = WindowConfig::new(WINDOW_BYTES, RemoteAccess::ALL);
    let (ours, theirs) = (own(two), two.other.window(&config).unwrap());
    let remote = two.at(0, WINDOW_BYTES as u64);
    let kind = refused(PushError::OtherMemory);
    for operation in [Operation::Send, Operation::Write(remote), Operation::Read(remote)] {
        let ranges = [ours.range(0, 8), theirs.range(0, 8)];
        refused_ranges(two, operation, ranges, PostFlags::empty(), kind);
    }
    // Registered here as well, it is posted.
    let again = two.near.window_of(&theirs, RemoteAccess::NONE).unwrap();
    let ranges = [ours.range(0, 8), again.range(0, 8)];
    two.channel()
        .post_ranges(Operation::Write(remote), ranges, PostFlags::empty())
        .unwrap();
}

pub(super) fn range_inline<P: Provider + Debug>(two: &mut Two<P>) {
    let window = own(two);
    let kind = refused(PushError::NotInline);
    let ranges = [window.range(0, 8)];
    refused_ranges(two, Operation::Send, ranges, PostFlags::INLINE, kind);
}

pub(super) fn range_with_a_fault_of_leases<P: Provider + Debug>(two: &mut Two<P>) {
    let window = own(two);
    let flags = PostFlags::empty();
    let place = two.at(0, 15);
    let add = |remote: RemoteAddress| Operation::FetchAndAdd { remote, add: 1 };
    for operation in [Operation::Write(place), Operation::Read(place)] {
        let ranges = [window.range(0, 8), window.range(8, 8)];
        refused_ranges(two, operation, ranges, flags, past(16, 15));
    }
    let bytes_max = two.message_bytes_max();
    let bytes = u32::try_from(bytes_max + 1).unwrap();
    let kind = SendErrorKind::TooLong {
        bytes: bytes_max + 1,
        bytes_max,
    };
    refused_ranges(two, Operation::Send, [window.range(0, bytes)], flags, kind);
    let kind = refused(PushError::AtomicNeedsEightBytes);
    for ranges in [window.range(0, 7), window.range(0, 9)] {
        let operation = add(two.at(0, 8));
        refused_ranges(two, operation, [ranges], flags, kind);
    }
    let kind = refused(PushError::Misaligned {
        address: two.at(4, 8).address(),
    });
    let operation = add(two.at(4, 8));
    refused_ranges(two, operation, [window.range(0, 8)], flags, kind);
}
