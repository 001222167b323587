//! Memory of devices, which NCCL names by descriptors: the fake takes memory files for them. The addresses are mapped nowhere.

use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, without_provenance_mut};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;

use doorbell_fake::{Call, Control, Without};
use doorbell_nccl::abi::{NcclResult, PTR_CUDA, PTR_DMABUF, PTR_HOST, properties};
use doorbell_nccl::ncclNetPlugin_v12 as V12;

use super::{Listening, OK, comm, eventually};

/// Bytes of a registration.
const ROOM: usize = 1 << 20;

/// The addresses of both sides' memory.
const AT: usize = 0x7fff_0000_0000;

/// Sizes that are copied in host memory, and others.
const SIZES: [usize; 6] = [1, 8, 4056, 4057, 65_521, ROOM - 4096];

/// The memory of one side, and its bytes as the device has them.
enum Room {
    Device(File),
    Host(Box<[u8]>),
}

impl Room {
    fn device() -> Self {
        Self::Device(doorbell_fake::memory_file(ROOM as u64).unwrap())
    }

    fn host() -> Self {
        Self::Host(vec![0; ROOM].into())
    }

    fn at(&mut self, offset: usize) -> *mut c_void {
        match self {
            Self::Device(_) => without_provenance_mut(AT + offset),
            Self::Host(bytes) => bytes.as_mut_ptr().wrapping_add(offset).cast(),
        }
    }

    fn fill(&mut self, byte: u8) {
        match self {
            Self::Device(file) => file.write_all_at(&vec![byte; ROOM], 0).unwrap(),
            Self::Host(bytes) => bytes.fill(byte),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Device(file) => {
                let mut bytes = vec![0; ROOM];
                file.read_exact_at(&mut bytes, 0).unwrap();
                bytes
            }
            Self::Host(bytes) => bytes.to_vec(),
        }
    }

    fn register(&mut self, comm: *mut c_void) -> *mut c_void {
        let mut memory = null_mut();
        let (at, to) = (self.at(0), &raw mut memory);
        let registered = match self {
            Self::Device(file) => {
                // Its descriptor is closed afterwards.
                let file = file.try_clone().unwrap();
                let by = file.as_raw_fd();
                call!(V12, reg_mr_dma_buf, comm, at, ROOM, PTR_CUDA, 0, by, to)
            }
            Self::Host(_) => call!(V12, reg_mr, comm, at, ROOM, PTR_HOST, to),
        };
        assert_eq!(registered, OK);
        memory
    }
}

/// A comm between two ranks of this process.
struct Pair {
    send: *mut c_void,
    receive: *mut c_void,
}

impl Pair {
    fn new(from: &Listening, to: &mut Listening) -> Self {
        let (send, receive) = comm("a comm", to, |handle, send| {
            call!(V12, connect, from.context, 0, handle, send, null_mut())
        });
        Self { send, receive }
    }

    /// Posts receives of these bytes at these places, each with its tag.
    fn receive(&self, parts: &[(*mut c_void, usize, *mut c_void)]) -> *mut c_void {
        let mut data: Vec<_> = parts.iter().map(|part| part.0).collect();
        let mut sizes: Vec<_> = parts.iter().map(|part| part.1).collect();
        let mut memory: Vec<_> = parts.iter().map(|part| part.2).collect();
        let count = c_int::try_from(parts.len()).unwrap();
        let mut tags: Vec<c_int> = (0..count).collect();
        eventually("a receive is posted", || {
            let mut request = null_mut();
            let (data, sizes) = (data.as_mut_ptr(), sizes.as_mut_ptr());
            let (tags, memory) = (tags.as_mut_ptr(), memory.as_mut_ptr());
            let (no, to) = (null_mut(), &raw mut request);
            let posted = call!(V12, irecv, self.receive, count, data, sizes, tags, memory, no, to);
            assert_eq!(posted, OK);
            (!request.is_null()).then_some(request)
        })
    }

    /// Posts a send, while a receive goes on, and waits for the end of it. Returns how many bytes came, if the receive is done, too.
    fn send(
        &self,
        (data, bytes, memory): (*mut c_void, usize, *mut c_void),
        tag: c_int,
        beside: *mut c_void,
    ) -> Option<c_int> {
        let sending = eventually("a send is posted", || {
            assert_eq!(test(beside), Ok(None));
            let mut request = null_mut();
            let (no, to) = (null_mut(), &raw mut request);
            let posted = call!(V12, isend, self.send, data, bytes, tag, memory, no, to);
            assert_eq!(posted, OK);
            (!request.is_null()).then_some(request)
        });
        let mut came = None;
        eventually("a send ends", || {
            came = came.or_else(|| test(beside).unwrap());
            test(sending).unwrap()
        });
        came
    }

    /// Sends what one receive is for, and waits for it.
    fn message(&self, from: (*mut c_void, usize, *mut c_void), into: *mut c_void) {
        let came = self.send(from, 0, into);
        let came = came.unwrap_or_else(|| eventually("the receive ends", || test(into).unwrap()));
        assert_eq!(usize::try_from(came).unwrap(), from.1);
    }

    fn close(self) {
        assert_eq!(call!(V12, close_send, self.send), OK);
        assert_eq!(call!(V12, close_recv, self.receive), OK);
    }
}

fn test(request: *mut c_void) -> Result<Option<c_int>, NcclResult> {
    let (mut done, mut sizes) = (0, [-1; 8]);
    match call!(V12, test, request, &raw mut done, sizes.as_mut_ptr()) {
        NcclResult::SUCCESS => Ok((done == 1).then_some(sizes[0])),
        failed => Err(failed),
    }
}

pub(super) fn memory_of_devices() {
    let (from, mut to) = (Listening::new(), Listening::new());
    // SAFETY: integers and pointers alone.
    let mut facts: properties::PropertiesV12 = unsafe { core::mem::zeroed() };
    assert_eq!(call!(V12, get_properties, 0, &raw mut facts), OK);
    assert_eq!(facts.pointer_support, PTR_HOST | PTR_DMABUF);
    let pair = Pair::new(&from, &mut to);
    for (mut here, mut there) in [
        (Room::device(), Room::device()),
        (Room::device(), Room::host()),
        (Room::host(), Room::device()),
    ] {
        let memory = (here.register(pair.send), there.register(pair.receive));
        for (round, bytes) in (1..).zip(SIZES) {
            here.fill(round);
            there.fill(0);
            let into = pair.receive(&[(there.at(4096), bytes, memory.1)]);
            pair.message((here.at(1), bytes, memory.0), into);
            let landed = there.bytes();
            assert!(
                landed[4096..4096 + bytes].iter().all(|byte| *byte == round),
                "{bytes}"
            );
            let beside = landed[..4096].iter().chain(&landed[4096 + bytes..]);
            assert!(beside.into_iter().all(|byte| *byte == 0), "{bytes}");
        }
        let is_of_device = matches!(there, Room::Device(_));
        flushed(&pair, &[memory.1], is_of_device);
        // Nothing is no transfer.
        let into = pair.receive(&[(there.at(0), 8, memory.1)]);
        pair.message((here.at(0), 0, null_mut()), into);
        assert_eq!(call!(V12, dereg_mr, pair.send, memory.0), OK);
        assert_eq!(call!(V12, dereg_mr, pair.receive, memory.1), OK);
    }
    grouped(&pair);
    wrong_arguments(&pair);
    pair.close();
    from.close();
    // A device of another kind.
    let control = Control::of(&doorbell_fake::library_path().unwrap()).unwrap();
    control.lack(Without::Dmabuf);
    let from = Listening::new();
    control.heal();
    let pair = Pair::new(&from, &mut to);
    let room = doorbell_fake::memory_file(ROOM as u64).unwrap();
    assert_eq!(
        by(&pair, &room, (AT, ROOM, 0), PTR_CUDA),
        NcclResult::INVALID_USAGE
    );
    pair.close();
    from.close();
    // A device that makes no queue for flushes, once.
    let from = Listening::new();
    let pair = Pair::new(&from, &mut to);
    control.fail(Call::CreateCq, 0, 12);
    for registered in [NcclResult::SYSTEM_ERROR, OK] {
        assert_eq!(by(&pair, &room, (AT, ROOM, 0), PTR_CUDA), registered);
    }
    pair.close();
    from.close();
    to.close();
}

/// A flush of memory is done at once on hosts, and by READs on devices; memory may be given up under it.
fn flushed(pair: &Pair, memories: &[*mut c_void], is_of_device: bool) {
    let mut memories = memories.to_vec();
    let (count, memory) = (memories.len() as c_int, memories.as_mut_ptr());
    let (mut sizes, mut none) = ([8; 8], [0; 8]);
    let flush = |sizes: *mut c_int| {
        let (no, mut request) = (null_mut(), null_mut());
        let begun = call!(
            V12,
            iflush,
            pair.receive,
            count,
            no,
            sizes,
            memory,
            &raw mut request
        );
        assert_eq!(begun, OK);
        request
    };
    let sizes = sizes.as_mut_ptr();
    assert!(flush(none.as_mut_ptr()).is_null(), "no byte came");
    // More than devices read at once: each is a request, and none is refused.
    for _ in 0..if is_of_device { 2 } else { 0 } {
        let mut requests: Vec<_> = (0..100).map(|_| flush(sizes)).collect();
        let all = requests.clone();
        eventually("all flushes end", || {
            requests.retain(|request| test(*request).unwrap().is_none());
            requests.is_empty().then_some(())
        });
        assert!(
            all.iter()
                .all(|request| test(*request) == Err(NcclResult::INVALID_ARGUMENT))
        );
    }
    assert_eq!(flush(sizes).is_null(), !is_of_device);
}

/// One receive of memory of both kinds, each part of which comes its own way.
fn grouped(pair: &Pair) {
    let (mut here, mut host, mut device) = (Room::host(), Room::host(), Room::device());
    here.fill(7);
    let from = here.register(pair.send);
    let (a, b) = (host.register(pair.receive), device.register(pair.receive));
    let into = pair.receive(&[(host.at(0), 8, a), (device.at(8), 16, b), (host.at(64), 8, a)]);
    for (tag, bytes) in [(1, 16), (2, 8)] {
        assert_eq!(pair.send((here.at(0), bytes, from), tag, into), None);
    }
    pair.message((here.at(0), 8, from), into);
    flushed(pair, &[a, b, a], true);
    let (host, device) = (host.bytes(), device.bytes());
    assert_eq!(
        (&host[..9], &host[63..73]),
        (
            &[7, 7, 7, 7, 7, 7, 7, 7, 0][..],
            &[0, 7, 7, 7, 7, 7, 7, 7, 7, 0][..]
        )
    );
    assert!(device[..8] == [0; 8] && device[8..24] == [7; 16] && device[24..32] == [0; 8]);
    assert_eq!(call!(V12, dereg_mr, pair.send, from), OK);
    for memory in [a, b] {
        assert_eq!(call!(V12, dereg_mr, pair.receive, memory), OK);
    }
}

/// Registers by this descriptor.
fn by(pair: &Pair, file: &File, (at, bytes, offset): (usize, usize, u64), kind: c_int) -> NcclResult {
    let mut memory = null_mut();
    let (at, to) = (without_provenance_mut(at), &raw mut memory);
    let by = file.as_raw_fd();
    let registered = call!(V12, reg_mr_dma_buf, pair.send, at, bytes, kind, offset, by, to);
    assert_eq!(memory.is_null(), registered != OK);
    registered
}

fn wrong_arguments(pair: &Pair) {
    let room = doorbell_fake::memory_file(ROOM as u64).unwrap();
    for (what, range, kind) in [
        ("host memory", (AT, ROOM, 0), PTR_HOST),
        ("another place of its page", (AT + 8, 4096, 0), PTR_CUDA),
        ("address 0", (0, 4096, 0), PTR_CUDA),
        ("no bytes", (AT, 0, 0), PTR_CUDA),
        ("more than the buffer has", (AT, ROOM, 4096), PTR_CUDA),
        (
            "more than addresses are there",
            (usize::MAX - 4095, 8192, 0),
            PTR_CUDA,
        ),
    ] {
        assert_eq!(
            by(pair, &room, range, kind),
            NcclResult::INVALID_ARGUMENT,
            "{what}"
        );
    }
    let other = File::open("/dev/null").unwrap();
    assert_eq!(
        by(pair, &other, (AT, 4096, 0), PTR_CUDA),
        NcclResult::SYSTEM_ERROR
    );
    let mut memory = null_mut();
    let (at, to) = (without_provenance_mut(AT), &raw mut memory);
    let none = call!(V12, reg_mr_dma_buf, pair.send, at, 4096, PTR_CUDA, 0, -1, to);
    assert_eq!(none, NcclResult::INVALID_USAGE);
}
