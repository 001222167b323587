//! Requests of ranges of windows: what keeps a window's memory, and when it is let go of.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use doorbell_core::WcStatus;
use doorbell_core::provider::{
    Arena as _, CellsError, Completion as _, Context as _, Operation, PostFlags, ProtectionDomain as _,
    PushError, ReceiveBatch as _, ReceiveQueue as _, RemoteAccess, RemoteAddress, SendBatch as _,
    SendQueue as _, Slot as _, Window as _, WindowRange,
};
use doorbell_ffi::{Arena, Slot, StableMemory, Window};

use super::bench::{Bench, End, bench, poll, poll_success, post_receives, slot_with, take_arrival};
use super::lifetimes::nothing_refused;

const BYTES: usize = 4096;

/// Memory of the test's own, which counts that it was given back.
struct Counted {
    start: NonNull<u8>,
    freed: Arc<AtomicU32>,
    /// Whether it panics as it is given back.
    panics: bool,
}
// SAFETY: leaked bytes that only the value has.
unsafe impl Send for Counted {}
// SAFETY: as above.
unsafe impl Sync for Counted {}
// SAFETY: leaked, initialised, and reached through nothing else; tests do not fork.
unsafe impl StableMemory for Counted {
    fn region(&self) -> (NonNull<u8>, usize) {
        (self.start, BYTES)
    }
}
impl Drop for Counted {
    fn drop(&mut self) {
        self.freed.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "planted by the test");
    }
}

/// A window that no peer may reach, over memory that says whether it was given back.
fn window(bench: &Bench, bytes: &[u8]) -> (Window, Arc<AtomicU32>) {
    window_that(bench, bytes, false)
}

fn window_that(bench: &Bench, bytes: &[u8], panics: bool) -> (Window, Arc<AtomicU32>) {
    let memory = Box::leak(vec![0_u8; BYTES].into_boxed_slice());
    let freed = Arc::new(AtomicU32::new(0));
    let memory = Counted {
        start: NonNull::from(memory).cast(),
        freed: Arc::clone(&freed),
        panics,
    };
    let window = bench.domain.adopt_window(memory, RemoteAccess::NONE).unwrap();
    window.copy_in(0, bytes).unwrap();
    (window, freed)
}

const fn range(window: &Window, offset: usize, bytes: u32) -> WindowRange<'_, Window> {
    WindowRange {
        window,
        offset,
        bytes,
    }
}

fn post<const N: usize>(end: &mut End, ranges: [WindowRange<'_, Window>; N]) {
    let mut batch = end.parts.send.stage();
    batch
        .push_ranges(Operation::Send, ranges, PostFlags::SIGNALED)
        .unwrap();
    assert_eq!(batch.ring(), Ok(1));
}

/// The slots that the request gives back which completed with success.
fn given_back(end: &mut End) -> Vec<Slot> {
    let completion = poll_success(&mut end.sends);
    let mut back = Vec::new();
    end.parts
        .send
        .retire(completion.lend(), |_, slot| back.push(slot))
        .unwrap();
    back
}

fn freed(count: &AtomicU32) -> bool {
    count.load(Ordering::SeqCst) != 0
}

#[test]
fn a_request_keeps_the_windows_of_its_ranges() {
    let Some(bench) = bench("a_request_keeps_the_windows_of_its_ranges") else {
        return;
    };
    let mut arena = bench.arena(4, 64);
    let (mut sender, mut receiver) = bench.pair();
    let (one, one_freed) = window(&bench, b"....kept by ");
    let (two, two_freed) = window(&bench, b"its request");
    // It waits for a receive.
    post(&mut sender, [range(&one, 4, 8), range(&two, 0, 11)]);
    assert!(one.is_in_flight() && two.is_in_flight());
    drop(one);
    assert!(!freed(&one_freed) && two.is_in_flight());
    post_receives(&mut receiver.parts.receive, &mut arena, 1);
    let completion = poll_success(&mut receiver.receives);
    assert_eq!(
        take_arrival(&mut receiver, completion).1,
        [b"kept by its request"]
    );
    assert!(!freed(&one_freed), "the request is not retired");
    let back = given_back(&mut sender);
    assert_eq!(back.len(), 2);
    assert!(
        back.iter()
            .all(|slot| slot.capacity_bytes() == 0 && slot.payload().is_empty())
    );
    assert!(!freed(&one_freed), "its slots are kept");
    std::thread::spawn(move || drop(back)).join().unwrap();
    assert!(freed(&one_freed) && !freed(&two_freed) && !two.is_in_flight());
    drop(two);
    assert!(freed(&two_freed));
    nothing_refused();
}

#[test]
fn what_is_not_posted_lets_go_of_its_windows() {
    let Some(bench) = bench("what_is_not_posted_lets_go_of_its_windows") else {
        return;
    };
    let (mut sender, _receiver) = bench.pair();
    let (window, memory) = window(&bench, b"");
    let push = |batch: &mut doorbell_ffi::SendBatch<'_>| {
        let ranges = [range(&window, 0, 8); 3];
        batch
            .push_ranges(Operation::Send, ranges, PostFlags::SIGNALED)
            .unwrap();
        assert!(window.is_in_flight());
    };
    let mut batch = sender.parts.send.stage();
    push(&mut batch);
    drop(batch);
    assert!(!window.is_in_flight());
    let mut batch = sender.parts.send.stage();
    push(&mut batch);
    core::mem::forget(batch);
    drop(sender.parts.send.stage());
    assert!(!window.is_in_flight());
    // A queue that is full takes no hold.
    let mut batch = sender.parts.send.stage();
    while batch
        .push_ranges(Operation::Send, [range(&window, 0, 0)], PostFlags::SIGNALED)
        .is_ok()
    {}
    let refused = batch.push_ranges(Operation::Send, [range(&window, 0, 8)], PostFlags::SIGNALED);
    assert_eq!(refused, Err(PushError::Full));
    drop(batch);
    assert!(!window.is_in_flight());
    drop(window);
    assert!(freed(&memory));
}

#[test]
fn a_queue_pair_that_goes_lets_go_of_its_windows() {
    let Some(bench) = bench("a_queue_pair_that_goes_lets_go_of_its_windows") else {
        return;
    };
    let (mut sender, receiver) = bench.pair();
    let (window, memory) = window(&bench, b"");
    post(&mut sender, [range(&window, 0, 8)]);
    drop(window);
    assert!(!freed(&memory));
    drop((sender, receiver));
    assert!(freed(&memory));
    nothing_refused();
}

#[test]
fn memory_that_panics_as_it_is_given_back_does_not_unwind_a_poll() {
    let Some(bench) = bench("memory_that_panics_as_it_is_given_back_does_not_unwind_a_poll") else {
        return;
    };
    let mut arena = bench.arena(4, 64);
    let (mut sender, mut receiver) = bench.pair();
    let (window, memory) = window_that(&bench, b"kept", true);
    post(&mut sender, [range(&window, 0, 4)]);
    drop(window);
    post_receives(&mut receiver.parts.receive, &mut arena, 1);
    drop(given_back(&mut sender));
    assert!(freed(&memory));
    // The queue works on.
    let (window, _) = self::window(&bench, b"next");
    post(&mut sender, [range(&window, 0, 4)]);
    post_receives(&mut receiver.parts.receive, &mut arena, 1);
    assert_eq!(given_back(&mut sender).len(), 1);
}

/// The slot of a range that was sent and is retired.
fn empty_slot(bench: &Bench, arena: &mut Arena, window: &Window) -> Slot {
    let (mut sender, mut receiver) = bench.pair();
    post_receives(&mut receiver.parts.receive, arena, 1);
    post(&mut sender, [range(window, 0, 8)]);
    given_back(&mut sender).pop().unwrap()
}

#[test]
fn a_slot_without_bytes_serves_nowhere_and_harms_nowhere() {
    let Some(bench) = bench("a_slot_without_bytes_serves_nowhere_and_harms_nowhere") else {
        return;
    };
    let mut arena = bench.arena(4, 64);
    let (window, memory) = window(&bench, b"secret..");
    let mut empty = || empty_slot(&bench, &mut arena, &window);
    // It has no bytes, and gets none.
    let mut slot = empty();
    slot.set_len_bytes(8);
    assert_eq!(
        (slot.len_bytes(), slot.payload().len(), slot.buffer_mut().len()),
        (0, 0, 0)
    );
    assert_eq!(slot.domain(), window.domain());
    // Detached it attaches nothing, and lets go.
    let detached = slot.detach();
    assert!(!window.is_in_flight());
    // An arena that it is released to does not keep it.
    let (stray, posted, received) = (empty(), empty(), empty());
    let cells: Vec<_> = (0..32).map(|_| empty()).collect();
    assert!(arena.attach(detached).is_none());
    let home = arena.free_slots();
    arena.release(stray);
    assert_eq!(arena.free_slots(), home);
    // Sent it is a message without bytes, and received into as well.
    let (mut sender, mut receiver) = bench.pair();
    let mut batch = receiver.parts.receive.stage();
    batch.push([received]).unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let mut batch = sender.parts.send.stage();
    let add = Operation::FetchAndAdd {
        remote: RemoteAddress::new(0, window.remote().rkey()),
        add: 1,
    };
    let refused = batch.push(add, [posted], PostFlags::SIGNALED).unwrap_err();
    assert_eq!(refused.reason, PushError::AtomicNeedsEightBytes);
    batch
        .push(Operation::Send, refused.item, PostFlags::SIGNALED)
        .unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let completion = poll_success(&mut receiver.receives);
    let (arrival, bytes) = take_arrival(&mut receiver, completion);
    assert_eq!((arrival.payload_bytes, bytes), (0, vec![vec![]]));
    assert_eq!(given_back(&mut sender).len(), 1);
    // As cells it is refused.
    assert_eq!(sender.parts.send.furnish(cells), Err(CellsError::NoBytes));
    assert_eq!(sender.parts.send.cell_bytes(), 0);
    assert!(!window.is_in_flight());
    drop(window);
    assert!(freed(&memory));
}

#[test]
fn a_message_does_not_go_into_a_slot_without_bytes() {
    let Some(bench) = bench("a_message_does_not_go_into_a_slot_without_bytes") else {
        return;
    };
    let mut arena = bench.arena(4, 64);
    let (window, _) = window(&bench, b"secret..");
    let slot = empty_slot(&bench, &mut arena, &window);
    let (mut sender, mut receiver) = bench.pair();
    let mut batch = receiver.parts.receive.stage();
    batch.push([slot]).unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let mut batch = sender.parts.send.stage();
    let slot = slot_with(&mut arena, b"too long");
    batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let failed = poll(&mut receiver.receives, 1).pop().unwrap();
    // The book says the first, and rxe the second (`docs/conformance.md`, S10).
    let is_too_long = [WcStatus::LOC_LEN_ERR, WcStatus::LOC_QP_OP_ERR].contains(&failed.status());
    assert!(is_too_long, "{:?}", failed.status());
    let mut bytes = [0; 8];
    window.copy_out(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"secret..");
}

#[test]
fn ranges_that_cannot_be_are_refused() {
    let Some(bench) = bench("ranges_that_cannot_be_are_refused") else {
        return;
    };
    let (mut sender, _receiver) = bench.pair();
    let (window, _) = window(&bench, b"");
    let mut batch = sender.parts.send.stage();
    let flags = PostFlags::empty();
    for (offset, bytes, bytes_left) in [
        (0, 4097, 4096),
        (4095, 2, 1),
        (4096, 1, 0),
        (4097, 0, 0),
        (usize::MAX, 1, 0),
        (usize::MAX, u32::MAX, 0),
    ] {
        let ranges = [range(&window, 0, 1), range(&window, offset, bytes)];
        assert_eq!(
            batch.push_ranges(Operation::Send, ranges, flags),
            Err(PushError::OutOfOwnWindow { bytes, bytes_left }),
            "{bytes} at {offset}"
        );
    }
    for (offset, bytes) in [(0, 4096), (4095, 1), (4096, 0)] {
        let ranges = [range(&window, offset, bytes)];
        batch.push_ranges(Operation::Send, ranges, flags).unwrap();
    }
    let add = Operation::FetchAndAdd {
        remote: RemoteAddress::new(0, window.remote().rkey()),
        add: 1,
    };
    for bytes in [7, 9] {
        let refused = batch.push_ranges(add, [range(&window, 0, bytes)], flags);
        assert_eq!(refused, Err(PushError::AtomicNeedsEightBytes));
    }
    let refused = batch.push_ranges(add, [range(&window, 0, 8); 2], flags);
    assert_eq!(refused, Err(PushError::AtomicNeedsEightBytes));
    batch.push_ranges(add, [range(&window, 0, 8)], flags).unwrap();
    let refused = batch.push_ranges(Operation::Send, [range(&window, 0, 8)], PostFlags::INLINE);
    assert_eq!(refused, Err(PushError::NotInline));
    assert_eq!(batch.staged(), 4);
}

#[test]
fn the_memory_of_several_registrations_goes_with_the_last() {
    let Some(bench) = bench("the_memory_of_several_registrations_goes_with_the_last") else {
        return;
    };
    // One of the same domain, and one of a domain of another context.
    let (first, memory) = window(&bench, b"");
    let second = bench
        .domain
        .window_of(&first, 0..first.bytes(), RemoteAccess::ALL)
        .unwrap();
    let port = bench.port.device;
    let context = doorbell_core::provider::Provider::open(&bench.rdma, &port).unwrap();
    let other = context.protection_domain().unwrap();
    let third = other
        .window_of(&second, 0..second.bytes(), RemoteAccess::READ)
        .unwrap();
    assert_eq!((second.domain(), third.domain()), (bench.domain.id(), other.id()));
    drop((first, other, context));
    third.store_u64(8, 7).unwrap();
    assert_eq!(second.load_u64(8), Ok(7));
    drop(second);
    assert!(!freed(&memory));
    drop(third);
    assert!(freed(&memory));
    nothing_refused();
}
