//! Windows of memory that is lent, by a registration that others use, too: what keeps it, who gives it back, and what may be written.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use doorbell_core::Access;
use doorbell_core::provider::{
    Completion as _, Operation, OutOfWindow, PostFlags, ProtectionDomain as _, PushError, RemoteAccess,
    RemoteAddress, SendBatch as _, SendQueue as _, Slot as _, Window as _, WindowRange,
};
use doorbell_core::registrations::AddressRange;
use doorbell_ffi::{LentMemory, RangeRegistration, Window};

use super::bench::{Bench, End, bench, poll_success, post_receives, take_arrival};
use super::lifetimes::nothing_refused;

const BYTES: usize = 4096;

/// Counts the order in which uses end and memory is given back.
#[derive(Clone, Debug, Default)]
struct Order(Arc<AtomicU32>);

impl Order {
    fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    fn now(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A use. It has to end before its memory goes, and at this place of the order.
struct Use(Order, u32);
impl Drop for Use {
    fn drop(&mut self) {
        assert_eq!(self.0.next(), self.1);
    }
}

/// A page that is lent, and says when it is given back.
#[derive(Debug)]
struct Page {
    start: NonNull<u8>,
    order: Order,
}
// SAFETY: a mapping that only the value has.
unsafe impl Send for Page {}
// SAFETY: 1. to 4. a mapping of its own, which stays, and which nobody else has; 5. no page is in a child. 8. The tests register it
// as it is now.
unsafe impl LentMemory for Page {
    fn region(&self) -> (NonNull<u8>, usize) {
        (self.start, BYTES)
    }
}
impl Drop for Page {
    fn drop(&mut self) {
        self.order.next();
    }
}

/// A page with these bytes at its beginning, which may be written or not.
fn page(order: &Order, bytes: &[u8], is_writable: bool) -> Page {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice (mmap(2)).
    let start = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: the mapping has more bytes, and nobody else has it.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), start.cast(), bytes.len()) };
    if !is_writable {
        // SAFETY: the mapping just made (mprotect(2)).
        assert_eq!(unsafe { libc::mprotect(start, BYTES, libc::PROT_READ) }, 0);
    }
    Page {
        start: NonNull::new(start.cast()).unwrap(),
        order: order.clone(),
    }
}

fn register(bench: &Bench, page: &Page, access: Access) -> Arc<RangeRegistration> {
    let range = AddressRange::new(page.start.addr().get(), BYTES).unwrap();
    Arc::new(bench.domain.register_range(range, access).unwrap())
}

fn post(end: &mut End, window: &Window, bytes: u32) {
    let range = WindowRange {
        window,
        offset: 0,
        bytes,
    };
    let mut batch = end.parts.send.stage();
    batch
        .push_ranges(Operation::Send, [range], PostFlags::SIGNALED)
        .unwrap();
    assert_eq!(batch.ring(), Ok(1));
}

#[test]
fn a_request_keeps_lent_memory_and_its_use_ends_before_the_memory_goes() {
    let Some(bench) = bench("a_request_keeps_lent_memory_and_its_use_ends_before_the_memory_goes") else {
        return;
    };
    let mut arena = bench.arena(4, 64);
    let (mut sender, mut receiver) = bench.pair();
    let order = Order::default();
    let page = page(&order, b"lent", true);
    let registration = register(&bench, &page, Access::LOCAL_WRITE);
    let window = Arc::clone(&registration).lend(page, Use(order.clone(), 0));
    let window = window.ok().unwrap();
    assert!(window.is_writable() && window.domain() == bench.domain.id());
    // It waits for a receive.
    post(&mut sender, &window, 4);
    let window = window.into_lent::<Page>().unwrap_err();
    drop(window);
    assert_eq!((order.now(), Arc::strong_count(&registration)), (0, 2));
    post_receives(&mut receiver.parts.receive, &mut arena, 1);
    let completion = poll_success(&mut receiver.receives);
    assert_eq!(take_arrival(&mut receiver, completion).1, [b"lent"]);
    let completion = poll_success(&mut sender.sends);
    let mut back = Vec::new();
    let send = &mut sender.parts.send;
    send.retire(completion.lend(), |_, slot| back.push(slot)).unwrap();
    assert_eq!(order.now(), 0, "its slot is kept");
    assert!(back.iter().all(|slot| slot.capacity_bytes() == 0));
    drop(back);
    assert_eq!((order.now(), Arc::strong_count(&registration)), (2, 1));
    drop(registration);
    nothing_refused();
}

#[test]
fn a_window_that_is_watched_gives_its_memory_back() {
    let Some(bench) = bench("a_window_that_is_watched_gives_its_memory_back") else {
        return;
    };
    let order = Order::default();
    let page = page(&order, b"lent", true);
    let registration = register(&bench, &page, Access::LOCAL_WRITE);
    let window = Arc::clone(&registration).lend(page, Use(order.clone(), 0));
    let window = window.ok().unwrap();
    let watch = window.release_watch();
    let window = window.into_lent::<Other>().unwrap_err();
    assert!(!watch.is_released());
    let page = window.into_lent::<Page>().ok().unwrap();
    assert!(watch.is_released());
    assert_eq!(order.now(), 1, "the use has ended, and the memory is here");
    drop((page, registration));
    nothing_refused();
}

#[test]
fn several_windows_have_one_memory_which_the_only_one_gives_back() {
    let Some(bench) = bench("several_windows_have_one_memory_which_the_only_one_gives_back") else {
        return;
    };
    let order = Order::default();
    let page = page(&order, b"lent", true);
    let registrations = [0, 1].map(|_| register(&bench, &page, Access::LOCAL_WRITE));
    assert_ne!(registrations[0].lkey(), registrations[1].lkey());
    let uses = |uses: core::ops::Range<u32>| {
        let registrations = registrations.iter().cloned();
        registrations
            .zip(uses.map(|number| Use(order.clone(), number)))
            .collect::<Vec<_>>()
    };
    let mut windows = RangeRegistration::lend_by(uses(0..2), page).ok().unwrap();
    let (second, first) = (windows.pop().unwrap(), windows.pop().unwrap());
    first.copy_in(0, b"both").unwrap();
    let mut bytes = [0; 4];
    second.copy_out(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"both");
    // It is no memory of another type, and another window has it.
    let first = first.into_lent::<Other>().unwrap_err();
    let first = first.into_lent::<Page>().unwrap_err();
    drop(first);
    assert_eq!(order.now(), 1);
    let page = second.into_lent::<Page>().ok().unwrap();
    assert_eq!(order.now(), 2, "the use has ended, and the memory is here");
    // A part that a peer reaches has the memory, too.
    let mut windows = RangeRegistration::lend_by(uses(2..4), page).ok().unwrap();
    let granted = bench
        .domain
        .window_of(&windows[1], 8..16, RemoteAccess::WRITE)
        .unwrap();
    windows.remove(0);
    let window = windows.remove(0).into_lent::<Page>().unwrap_err();
    drop(granted);
    drop(window.into_lent::<Page>().ok().unwrap());
    assert_eq!(order.now(), 5);
    nothing_refused();
}

/// Memory of another type.
#[derive(Debug)]
struct Other;
// SAFETY: nobody lends one.
unsafe impl LentMemory for Other {
    fn region(&self) -> (NonNull<u8>, usize) {
        (NonNull::dangling(), 0)
    }
}

#[test]
fn memory_is_lent_by_a_registration_of_its_range_and_rights_alone() {
    let Some(bench) = bench("memory_is_lent_by_a_registration_of_its_range_and_rights_alone") else {
        return;
    };
    let order = Order::default();
    let (page, other) = (page(&order, b"", true), page(&order, b"", true));
    let [writable, readable] =
        [Access::LOCAL_WRITE, Access::empty()].map(|access| register(&bench, &page, access));
    let of_other = register(&bench, &other, Access::LOCAL_WRITE);
    let mut page = Arc::clone(&of_other).lend(page, ()).unwrap_err();
    for others in [&of_other, &readable] {
        let uses = vec![(Arc::clone(&writable), ()), (Arc::clone(others), ())];
        page = RangeRegistration::lend_by(uses, page).unwrap_err();
    }
    page = RangeRegistration::lend_by(Vec::<(_, ())>::new(), page).unwrap_err();
    assert_eq!(order.now(), 0);
    drop((page, other));
}

#[test]
fn memory_that_is_lent_for_reading_is_read_alone() {
    let Some(bench) = bench("memory_that_is_lent_for_reading_is_read_alone") else {
        return;
    };
    let mut arena = bench.arena(4, 64);
    let (mut sender, mut receiver) = bench.pair();
    let page = page(&Order::default(), b"read alone", false);
    let registration = register(&bench, &page, Access::empty());
    let window = registration.lend(page, ()).ok().unwrap();
    assert!(!window.is_writable());
    let none = |offset, bytes| {
        Err(OutOfWindow {
            offset,
            bytes,
            window_bytes: 0,
        })
    };
    assert_eq!(window.copy_in(0, b"x"), none(0, 1));
    assert_eq!(window.store_u64(8, 1), none(8, 8));
    assert_eq!(window.compare_exchange_u64(0, 0, 1).map(|_| ()), none(0, 8));
    let mut bytes = [0; 10];
    window.copy_out(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"read alone");
    assert_eq!(window.load_u8(0), Ok(b'r'));
    assert_eq!(window.load_u64(0), Ok(u64::from_ne_bytes(*b"read alo")));
    let range = WindowRange {
        window: &window,
        offset: 0,
        bytes: 8,
    };
    let remote = RemoteAddress::new(0, window.remote().rkey());
    let mut batch = sender.parts.send.stage();
    let add = Operation::FetchAndAdd { remote, add: 1 };
    for operation in [Operation::Read(remote), add] {
        let refused = batch.push_ranges(operation, [range], PostFlags::SIGNALED);
        assert_eq!(refused, Err(PushError::ReadOnly));
    }
    drop(batch);
    for remote in [RemoteAccess::WRITE, RemoteAccess::ALL] {
        let refused = bench.domain.window_of(&window, 0..8, remote).unwrap_err();
        assert_eq!(refused.errno, libc::EACCES);
    }
    let readable = bench.domain.window_of(&window, 0..8, RemoteAccess::NONE).unwrap();
    assert!(!readable.is_writable());
    post_receives(&mut receiver.parts.receive, &mut arena, 1);
    post(&mut sender, &window, 10);
    let completion = poll_success(&mut receiver.receives);
    assert_eq!(take_arrival(&mut receiver, completion).1, [b"read alone"]);
    nothing_refused();
}
