//! Transfers of memory that engines lend, over `ffi` on the fake libibverbs: by registrations that caches keep, from and into memory that
//! is mapped anew between them. Each comes back once its transfer has ended and its region is gone.
//!
//! One test, since the fake is loaded for the whole process.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::ptr::{self, NonNull};
use core::time::Duration;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use doorbell::link::{
    EndReason, LinkConfig, LinkEvent, LinkId, Links, SessionEvent, TransferEnd, TransferEvent, TransferId,
    TransferOptions, TransferRefusal,
};
use doorbell::memory::{
    DmabufError, DmabufRange, LentMemory, Region, RegionCache, RegistrationCacheConfig, RegistrationError,
};
use doorbell::provider::Access;
use doorbell::{Node, Trust, Worker, WorkerConfig};

const BYTES: usize = 1 << 20;
const ROUNDS: usize = 24;
const SOON: Duration = Duration::from_secs(60);

/// A mapping that is lent, and comes back through a channel.
struct Lent {
    start: usize,
    home: Sender<usize>,
}

// SAFETY: 1. to 4. a mapping of the test's own, which is changed, written and read only after it came back; 5. nothing forks here; 8. it
// goes to caches alone.
unsafe impl LentMemory for Lent {
    fn region(&self) -> (NonNull<u8>, usize) {
        (NonNull::new(at(self.start).cast()).unwrap(), BYTES)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.send(self.start).unwrap();
    }
}

fn at(address: usize) -> *mut libc::c_void {
    ptr::with_exposed_provenance_mut(address)
}

/// Maps anonymous memory: at this address, over what is there, unless it is 0.
fn map(address: usize) -> usize {
    let fixed = if address == 0 { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: a new mapping at an address of the kernel's choice, or over memory of this test that came back (mmap(2)).
    let address = unsafe {
        libc::mmap(
            at(address),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    assert_ne!(address, libc::MAP_FAILED);
    address.expose_provenance()
}

fn fill(start: usize, number: usize) {
    let bytes: Vec<u8> = (0..BYTES)
        .map(|at| (at * 13 + number * 7 + at / 509) as u8)
        .collect();
    // SAFETY: mapped, as long, and nobody's meanwhile.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at(start).cast(), BYTES) };
}

fn look(start: usize) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    // SAFETY: as in `fill`.
    unsafe { ptr::copy_nonoverlapping(at(start).cast(), bytes.as_mut_ptr(), BYTES) };
    bytes
}

/// One side of a link, and memory of its own.
struct Side {
    node: Arc<Node>,
    workers: Vec<Worker>,
    links: Links,
    cache: RegionCache,
    home: (Sender<usize>, Receiver<usize>),
    start: usize,
    link: Option<LinkId>,
    offered: Option<TransferId>,
    end: Option<TransferEnd>,
}

impl Side {
    fn new() -> Self {
        let node = Arc::new(Node::open(Trust::unauthenticated_on_purpose()).unwrap());
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let links = Links::new(&node, &workers, &LinkConfig::default()).unwrap();
        let cache = node.region_cache(&workers, &RegistrationCacheConfig::default());
        Self {
            links,
            cache: cache.unwrap(),
            node,
            workers,
            home: channel(),
            start: map(0),
            link: None,
            offered: None,
            end: None,
        }
    }

    fn lend(&self, access: Access) -> Region {
        let lent = Lent {
            start: self.start,
            home: self.home.0.clone(),
        };
        self.cache.lend_region(lent, access).unwrap()
    }

    /// Kept registrations in use.
    fn used(&self) -> u32 {
        let caches = self.cache.caches().iter();
        caches.map(|cache| cache.statistics().entries_used).sum()
    }

    /// Waits until the memory is here again.
    fn comes_home(&self) {
        assert_eq!(self.home.1.recv_timeout(SOON), Ok(self.start));
        assert_eq!(self.used(), 0);
    }

    fn poll(&mut self) {
        let (links, link) = (&mut self.links, &mut self.link);
        let (offered, end) = (&mut self.offered, &mut self.end);
        links
            .poll(&self.node, &mut self.workers, |id, event| match event {
                LinkEvent::Session(SessionEvent::Connected) => *link = Some(id),
                LinkEvent::Transfer { transfer, event } => match event {
                    TransferEvent::Offered { .. } => *offered = Some(transfer),
                    TransferEvent::Ended { end: how, .. } => *end = Some(how),
                    _ => {}
                },
                _ => {}
            })
            .unwrap();
    }
}

fn until(a: &mut Side, b: &mut Side, mut is_so: impl FnMut(&Side, &Side) -> bool) {
    let since = Instant::now();
    while !is_so(a, b) {
        a.poll();
        b.poll();
        assert!(since.elapsed() < SOON, "nothing came");
    }
}

/// A memory file, which the fake takes for a dma-buf, and a region of its middle.
fn of_dmabuf(side: &Side) -> (File, Region) {
    let file = doorbell_fake::memory_file(BYTES as u64).unwrap();
    let range = DmabufRange {
        offset: 4096,
        bytes: BYTES - 2 * 4096,
        iova: 1 << 40,
    };
    let region = side.node.dmabuf_region(&side.workers, file.as_fd(), range);
    (file, region.unwrap())
}

/// Memory that is mapped nowhere in this process is given and taken, into a loan and without one, and nothing beside it is touched.
fn memory_of_another_device_is_given_and_taken(a: &mut Side, b: &mut Side) {
    let ((from_file, from), (to_file, to)) = (of_dmabuf(a), of_dmabuf(b));
    assert!(from.copy_out(0, &mut [0]).is_err() && to.copy_in(0, &[1]).is_err() && to.is_writable());
    let (link, at_b) = (a.link.unwrap(), b.link.unwrap());
    let whole = (&to, 0, to.bytes());
    let loan = b.links.lend(&b.node, at_b, whole).unwrap();
    for (round, loan) in [None, Some(loan)].into_iter().enumerate() {
        fill(a.start, 100 + round);
        let sent = look(a.start);
        from_file.write_all_at(&sent, 0).unwrap();
        to_file.write_all_at(&[0; BYTES], 0).unwrap();
        let mut options = TransferOptions::default();
        let bytes = from.bytes() as u64;
        a.links.offer(&a.node, link, (&from, 0, bytes), &options).unwrap();
        until(a, b, |_, b| b.offered.is_some());
        options.loan = loan;
        let offer = (at_b, b.offered.take().unwrap());
        b.links.join(&b.node, offer, (&to, 0), &options).unwrap();
        until(a, b, |a, b| a.end.is_some() && b.end.is_some());
        assert_eq!(a.end.take(), Some(TransferEnd::Done));
        assert_eq!(b.end.take(), Some(TransferEnd::Done));
        let mut landed = vec![1; BYTES];
        to_file.read_exact_at(&mut landed, 0).unwrap();
        assert!(landed[4096..BYTES - 4096] == sent[4096..BYTES - 4096]);
        assert!(landed[..4096] == [0; 4096] && landed[BYTES - 4096..] == [0; 4096]);
    }
    let too_long = DmabufRange {
        offset: 0,
        bytes: BYTES + 1,
        iova: 4096,
    };
    let refused = a.node.dmabuf_region(&a.workers, from_file.as_fd(), too_long);
    assert!(matches!(refused, Err(DmabufError::OutOfBuffer { .. })));
}

#[test]
fn lent_memory_is_given_and_taken_and_comes_back() {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    let (mut a, mut b) = (Side::new(), Side::new());
    let handle = b
        .links
        .listen_polled(&b.node, &b.workers, "[::]:0".parse().unwrap());
    a.links.connect(&a.node, &a.workers, &handle.unwrap()).unwrap();
    until(&mut a, &mut b, |a, b| a.link.is_some() && b.link.is_some());
    let is_watched = a.cache.caches().iter().all(|cache| cache.watches().is_ok());
    let mut used = 0;
    for round in 0..ROUNDS {
        if round % 3 == 2 {
            map(a.start);
            map(b.start);
        }
        fill(a.start, round);
        let sent = look(a.start);
        // The bytes that are given may be read by others meanwhile.
        let (from, to) = (a.lend(Access::empty()), b.lend(Access::LOCAL_WRITE));
        assert!(!from.is_writable() && from.copy_in(0, &[1]).is_err() && to.is_writable());
        let options = TransferOptions::default();
        let link = a.link.unwrap();
        let refused = a.links.ask(&a.node, link, (&from, 0, 8), &options);
        assert_eq!(refused, Err(TransferRefusal::ReadOnly));
        let id = a
            .links
            .offer(&a.node, link, (&from, 0, BYTES as u64), &options)
            .unwrap();
        // The transfer keeps it.
        drop(from);
        until(&mut a, &mut b, |_, b| b.offered.is_some());
        assert!(a.home.1.try_recv().is_err());
        used += a.used().min(1);
        let offer = (b.link.unwrap(), b.offered.take().unwrap());
        b.links.join(&b.node, offer, (&to, 0), &options).unwrap();
        drop(to);
        if round % 4 == 3 {
            a.links.cancel(&a.node, (link, id)).unwrap();
        }
        until(&mut a, &mut b, |a, b| a.end.is_some() && b.end.is_some());
        let (end, at_b) = (a.end.take().unwrap(), b.end.take().unwrap());
        a.comes_home();
        b.comes_home();
        match end {
            TransferEnd::Done => assert!(look(b.start) == sent, "round {round}: bytes of another time"),
            TransferEnd::Here(EndReason::CANCELLED) => {
                assert_eq!(at_b, TransferEnd::ByPeer(EndReason::CANCELLED));
            }
            other => panic!("round {round}: {other}"),
        }
    }
    assert!(!is_watched || used >= 8, "in use in {used} rounds");
    for side in [&a, &b] {
        for cache in side.cache.caches() {
            let counts = cache.statistics();
            println!("{counts:?}");
            assert!(
                !is_watched || counts.hits >= 8 && counts.invalidations >= 4,
                "{counts:?}"
            );
        }
        let refused = side.cache.lend_region(
            Lent {
                start: side.start,
                home: side.home.0.clone(),
            },
            Access::REMOTE_WRITE,
        );
        assert_eq!(refused.unwrap_err().error, RegistrationError::RemoteAccess);
    }
    memory_of_another_device_is_given_and_taken(&mut a, &mut b);
}
