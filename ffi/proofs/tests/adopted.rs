//! An engine's own mapping, adopted by a Worker. One request sends it behind a header of the Worker's memory. It
//! is recognized when it comes home, and given back when nobody uses it any more.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use doorbell::provider::Window as _;
use doorbell::worker::StableMemory;
use doorbell::{Event, Lease, Operation, PostFlags, RemoteAccess, RemoteAddress, within};
use doorbell_proofs::{End, Pair};

const PAGE_BYTES: usize = 4096;
const PAGES: usize = 4;
const HEADER: &[u8] = b"page: ";
const PATIENCE: Duration = Duration::from_secs(20);

/// An engine's mapping, which counts that it is unmapped.
struct Pool {
    base: NonNull<u8>,
    bytes: usize,
    unmapped: Arc<AtomicU32>,
}

impl Pool {
    fn new(bytes: usize, unmapped: &Arc<AtomicU32>) -> Self {
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory
        // that exists (mmap(2)).
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(address, libc::MAP_FAILED);
        // SAFETY: the mapping just made (madvise(2)).
        let status = unsafe { libc::madvise(address, bytes, libc::MADV_DONTFORK) };
        assert_eq!(status, 0);
        Self {
            base: NonNull::new(address.cast()).unwrap(),
            bytes,
            unmapped: Arc::clone(unmapped),
        }
    }
}

// SAFETY: plain bytes, reached through what adopted them alone.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}
// SAFETY: 1. and 2. mapped, zeroed, and where it is until the drop; 3. and 4. the mapping is known here
// alone, and moved into its adoption; 5. advised not to be there in children.
unsafe impl StableMemory for Pool {
    fn region(&self) -> (NonNull<u8>, usize) {
        (self.base, self.bytes)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped, which nobody uses any more (munmap(2)).
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        self.unmapped.fetch_add(1, Ordering::SeqCst);
    }
}

/// Polls both sides until a request of `a` is done, and until `b` got a message where one is to come.
fn settle(pair: &mut Pair, comes: bool) -> Option<Lease> {
    let (mut done, mut message, since) = (false, None, Instant::now());
    while !done || (comes && message.is_none()) {
        let End { worker, .. } = &mut pair.a;
        worker
            .poll_tending(|_, event| done |= matches!(event, Event::Done { .. }))
            .unwrap();
        let End { worker, .. } = &mut pair.b;
        worker
            .poll_tending(|_, event| {
                if let Event::Received { message: came, .. } = event {
                    message = Some(came.keep());
                }
            })
            .unwrap();
        assert!(since.elapsed() < PATIENCE, "nothing came");
    }
    message
}

/// Waits until something is so, which another thread makes so.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_header_and_a_page_of_the_engine_go_out_as_one_gather() {
    let mut pair = Pair::connect().unwrap();
    let unmapped = Arc::default();
    let pool = Pool::new(PAGES * PAGE_BYTES, &unmapped);
    let mut arena = pair.a.worker.adopt(pool, 4096).unwrap();
    assert_eq!((arena.slots(), arena.slot_bytes()), (4, 4096));
    let mut pages: Vec<Option<Lease>> = (0..PAGES).map(|_| arena.lease()).collect();
    assert!(arena.lease().is_none());
    for (place, page) in (0_u32..).zip(&mut pages) {
        let page = page.as_mut().unwrap();
        assert_eq!(page.index(), place);
        page.buffer_mut().fill(b'0' + u8::try_from(place).unwrap());
    }
    // Half a page behind a header: what a receive takes whole.
    let body = PAGE_BYTES / 2;
    for place in [2, 0, 3, 2, 1] {
        let mut header = pair.a.worker.lease().unwrap();
        header.fill(HEADER).unwrap();
        let mut page = pages[place].take().unwrap();
        page.set_len_bytes(body);
        let mut batch = pair.a.channel().unwrap().batch();
        batch
            .push(Operation::Send, [header, page], PostFlags::SIGNALED)
            .unwrap();
        batch.ring().unwrap();
        let came = settle(&mut pair, true).unwrap();
        assert_eq!(&came.payload()[..HEADER.len()], HEADER);
        let sent = vec![b'0' + u8::try_from(place).unwrap(); body];
        assert!(came.payload()[HEADER.len()..] == sent);
        let page = arena.lease().unwrap();
        assert_eq!(
            page.index() as usize,
            place,
            "the page that was sent is home, and no other"
        );
        pages[place] = Some(page);
    }
    // The mapping is given back once the arena is gone and the last of its leases is home.
    let last = pages.pop();
    drop((arena, pages));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(unmapped.load(Ordering::SeqCst), 0);
    drop(last);
    drop(pair);
    // A later drop frees the memory that came home late.
    let other = Pair::connect().unwrap();
    drop(other);
    eventually("the mapping is given back", || {
        unmapped.load(Ordering::SeqCst) == 1
    });
}

#[test]
fn a_mapping_of_the_engine_is_a_window() {
    let mut pair = Pair::connect().unwrap();
    let unmapped = Arc::default();
    let pool = Pool::new(PAGE_BYTES, &unmapped);
    let window = pair.b.worker.adopt_window(pool, RemoteAccess::WRITE).unwrap();
    let at = RemoteAddress::within(&window.remote(), 100, 4).unwrap();
    let mut lease = pair.a.worker.lease().unwrap();
    lease.fill(b"lent").unwrap();
    pair.a
        .channel()
        .unwrap()
        .post(Operation::Write(at), lease, PostFlags::SIGNALED)
        .unwrap();
    settle(&mut pair, false);
    let mut copied = [0; 4];
    window.copy_out(100, &mut copied).unwrap();
    assert_eq!(&copied, b"lent");
    assert_eq!(unmapped.load(Ordering::SeqCst), 0);
    drop(window);
    assert!(pair.node.settle(within(PATIENCE)));
    assert_eq!(unmapped.load(Ordering::SeqCst), 1);
}
