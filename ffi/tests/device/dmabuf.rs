//! Regions of dma-bufs: a peer's WRITE, READ and atomics in memory that this process knows by a descriptor alone.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use doorbell_core::WcStatus;
use doorbell_core::provider::{
    Arena as _, Completion as _, Operation, PostFlags, ProtectionDomain as _, RemoteAccess, RemoteAddress,
    SendBatch as _, SendQueue as _, Slot as _, Window as _, WindowConfig, WindowRange,
};
use doorbell_fake::memory_file;
use doorbell_ffi::{DmabufError, DmabufRange, Window, leaks};

use super::bench::{Bench, End, bench, poll, slot_with};

/// Pages of a buffer.
const PAGES: u64 = 4;
/// The first address of a region: not the offset, and no address of this process.
const IOVA: u64 = 0x7fff_0000_0000_0000;

fn page_bytes() -> u64 {
    // SAFETY: takes a number and gives one (sysconf(3)).
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    bytes.try_into().unwrap()
}

/// A buffer, and the memory file that is under it.
struct Buffer {
    fd: OwnedFd,
    file: File,
}

/// A memory file of four pages.
fn file() -> File {
    memory_file(PAGES * page_bytes()).expect("memory files are there")
}

/// `struct udmabuf_create` of linux/udmabuf.h.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`: `_IOW('u', 0x42, struct udmabuf_create)`.
const UDMABUF_CREATE: libc::Ioctl = 0x4018_7542;
/// `UDMABUF_FLAGS_CLOEXEC`.
const CLOEXEC: u32 = 1;

impl Buffer {
    /// A memory file that stands for a dma-buf, which the fake takes.
    fn stand_in() -> Self {
        let file = file();
        Self {
            fd: file.try_clone().unwrap().into(),
            file,
        }
    }

    /// A true dma-buf over a memory file, or the reason why there is none.
    fn udmabuf() -> Result<Self, String> {
        let path = "/dev/udmabuf";
        let device = OpenOptions::new().read(true).write(true).open(path);
        let device = device.map_err(|error| format!("{path}: {error}"))?;
        let file = file();
        let create = Create {
            memfd: file.as_raw_fd().try_into().unwrap(),
            flags: CLOEXEC,
            offset: 0,
            size: PAGES * page_bytes(),
        };
        // SAFETY: an open device, and the structure that this request takes.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &raw const create) };
        if fd < 0 {
            return Err(format!("UDMABUF_CREATE: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: a descriptor just made, which nobody else has.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, file })
    }

    /// The bytes in the file, which are those of the buffer.
    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).unwrap();
    }
}

/// The buffers to test with: what the device takes of what this machine makes. Each that is missing is named.
fn buffers(test: &str) -> Vec<Buffer> {
    let mut buffers = Vec::new();
    match Buffer::udmabuf() {
        Ok(buffer) => buffers.push(buffer),
        Err(reason) => eprintln!("UNTESTED: {test}: true dma-bufs: {reason}"),
    }
    if crate::takes_memory_files() {
        buffers.push(Buffer::stand_in());
    }
    buffers
}

/// The bench on a device that registers dma-bufs. On another one, the refusal is all that a test looks at.
fn importing(test: &str) -> Option<Bench> {
    let bench = bench(test)?;
    if bench.context.imports_dmabuf().unwrap() {
        return Some(bench);
    }
    assert!(!crate::takes_memory_files(), "the fake imports them");
    let buffer = Buffer::udmabuf().unwrap_or_else(|_| Buffer::stand_in());
    let fd = buffer.fd.as_fd();
    let refused = bench
        .domain
        .register_dmabuf(fd, middle(), RemoteAccess::READ)
        .unwrap_err();
    assert!(matches!(refused, DmabufError::Unsupported(_)), "{refused}");
    eprintln!("UNTESTED: {test}: {}: {refused}", bench.port.device);
    None
}

/// The two pages in the middle, but for seven bytes on either side.
fn middle() -> DmabufRange {
    DmabufRange {
        offset: page_bytes() + 7,
        bytes: usize::try_from(2 * page_bytes() - 14).unwrap(),
        iova: IOVA + 7,
    }
}

fn address(region: &Window, offset: u64) -> RemoteAddress {
    let left = region.remote().length_bytes() - offset;
    RemoteAddress::within(&region.remote(), offset, left).expect("within the region")
}

/// Posts one request over a slot with these bytes. Returns the status, and the bytes of the slot afterwards.
fn run(bench: &Bench, end: &mut End, operation: Operation, bytes: &[u8]) -> (WcStatus, Vec<u8>) {
    let mut arena = bench.arena(1, 4096);
    let slot = slot_with(&mut arena, bytes);
    let mut batch = end.parts.send.stage();
    batch.push(operation, [slot], PostFlags::SIGNALED).unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let completion = poll(&mut end.sends, 1).pop().unwrap();
    let (status, mut back) = (completion.status(), Vec::new());
    let retired = end.parts.send.retire(completion.lend(), |_, slot| {
        back = slot.payload().to_vec();
        arena.release(slot);
    });
    retired.unwrap();
    (status, back)
}

/// As [`run`], of a request that succeeds.
#[track_caller]
fn done(bench: &Bench, end: &mut End, operation: Operation, bytes: &[u8]) -> Vec<u8> {
    let (status, back) = run(bench, end, operation, bytes);
    assert!(status.is_success(), "{status:?}");
    back
}

#[test]
fn a_peer_writes_into_a_buffer_and_reads_from_it() {
    let test = "a_peer_writes_into_a_buffer_and_reads_from_it";
    let Some(bench) = importing(test) else { return };
    for buffer in buffers(test) {
        let range = middle();
        let region = bench
            .domain
            .register_dmabuf(buffer.fd.as_fd(), range, RemoteAccess::ALL)
            .unwrap();
        let remote = region.remote();
        assert_eq!(
            (remote.address(), remote.length_bytes()),
            (range.iova, range.bytes as u64)
        );
        assert_eq!(remote.access(), Some(RemoteAccess::ALL));
        assert_eq!(region.bytes(), range.bytes);
        let (mut one, _other) = bench.pair();
        let last = range.bytes as u64 - 10;
        done(
            &bench,
            &mut one,
            Operation::Write(address(&region, 0)),
            b"at the start",
        );
        done(
            &bench,
            &mut one,
            Operation::Write(address(&region, last)),
            b"at the end",
        );
        assert_eq!(buffer.read(range.offset - 1, 14), b"\0at the start\0");
        assert_eq!(buffer.read(range.offset + last - 1, 12), b"\0at the end\0");
        buffer.write(range.offset + 64, b"of the file");
        let read = done(&bench, &mut one, Operation::Read(address(&region, 64)), &[1; 11]);
        assert_eq!(read, b"of the file");
        // A word at a multiple of eight, and so it is in the file.
        buffer.write(range.offset + 1 + 512, &41_u64.to_ne_bytes());
        let add = Operation::FetchAndAdd {
            remote: address(&region, 513),
            add: 1,
        };
        assert_eq!(done(&bench, &mut one, add, &[0; 8]), 41_u64.to_ne_bytes());
        assert_eq!(buffer.read(range.offset + 513, 8), 42_u64.to_ne_bytes());
        // No other page was touched.
        let page = usize::try_from(page_bytes()).unwrap();
        assert_eq!(buffer.read(0, page), vec![0; page]);
        assert_eq!(buffer.read(3 * page_bytes(), page), vec![0; page]);
    }
}

/// Posts one request of a range of a window, which succeeds.
fn run_range(end: &mut End, operation: Operation, window: &Window, (offset, bytes): (usize, u32)) {
    let range = WindowRange {
        window,
        offset,
        bytes,
    };
    let mut batch = end.parts.send.stage();
    batch
        .push_ranges(operation, [range], PostFlags::SIGNALED)
        .unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let completion = poll(&mut end.sends, 1).pop().unwrap();
    let retired = end.parts.send.retire(completion.lend(), |_, _| {});
    assert!(retired.unwrap().status.is_success());
}

#[test]
fn this_host_sends_from_a_buffer_and_reads_into_it() {
    let test = "this_host_sends_from_a_buffer_and_reads_into_it";
    let Some(bench) = importing(test) else { return };
    for buffer in buffers(test) {
        let range = middle();
        let local = bench
            .domain
            .register_dmabuf(buffer.fd.as_fd(), range, RemoteAccess::NONE)
            .unwrap();
        let config = WindowConfig::new(4096, RemoteAccess::ALL);
        let peers = bench.domain.window(&config).unwrap();
        let (mut one, _other) = bench.pair();
        buffer.write(range.offset + 100, b"of the buffer");
        let to = RemoteAddress::within(&peers.remote(), 8, 13).unwrap();
        run_range(&mut one, Operation::Write(to), &local, (100, 13));
        let mut bytes = [0; 13];
        peers.copy_out(8, &mut bytes).unwrap();
        assert_eq!(&bytes, b"of the buffer");
        run_range(&mut one, Operation::Read(to), &local, (range.bytes - 13, 13));
        let last = range.offset + range.bytes as u64 - 13;
        assert_eq!(buffer.read(last - 1, 15), b"\0of the buffer\0");
        // A part of it, and a part of that, for a peer alone.
        let part = bench
            .domain
            .window_of(&local, 93..1000, RemoteAccess::NONE)
            .unwrap();
        let part = bench.domain.window_of(&part, 7..20, RemoteAccess::READ).unwrap();
        assert_eq!((part.remote().address(), part.bytes()), (range.iova + 100, 13));
        let read = done(&bench, &mut one, Operation::Read(address(&part, 0)), &[1; 13]);
        assert_eq!(read, b"of the buffer");
        assert!(bench.domain.window_of(&part, 7..14, RemoteAccess::READ).is_err());
        // Nothing is mapped here.
        assert!(local.is_writable());
        for refused in [
            local.copy_in(0, b"x").unwrap_err(),
            local.copy_out(0, &mut [0]).unwrap_err(),
            local.load_u8(0).unwrap_err(),
            local.load_u64(1).unwrap_err(),
            local.store_u64(1, 0).unwrap_err(),
            local.compare_exchange_u64(1, 0, 1).unwrap_err(),
        ] {
            assert_eq!(refused.window_bytes, 0);
        }
    }
}

#[test]
fn the_descriptor_may_be_closed() {
    let test = "the_descriptor_may_be_closed";
    let Some(bench) = importing(test) else { return };
    for buffer in buffers(test) {
        let fd = buffer.fd.try_clone().unwrap();
        let region = bench
            .domain
            .register_dmabuf(fd.as_fd(), middle(), RemoteAccess::WRITE)
            .unwrap();
        drop(fd);
        let Buffer { fd, file } = buffer;
        drop(fd);
        let (mut one, _other) = bench.pair();
        done(&bench, &mut one, Operation::Write(address(&region, 0)), b"closed");
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes, middle().offset).unwrap();
        assert_eq!(&bytes, b"closed");
    }
}

#[test]
fn a_region_gives_no_more_than_its_rights_and_its_bytes() {
    let test = "a_region_gives_no_more_than_its_rights_and_its_bytes";
    let Some(bench) = importing(test) else { return };
    for buffer in buffers(test) {
        let range = middle();
        let register = |access| {
            let region = bench.domain.register_dmabuf(buffer.fd.as_fd(), range, access);
            region.unwrap()
        };
        let (readable, writable) = (register(RemoteAccess::READ), register(RemoteAccess::WRITE));
        let at = |region: &Window, address| RemoteAddress::new(address, region.remote().rkey());
        let end = range.iova + range.bytes as u64;
        for (operation, length) in [
            (Operation::Write(at(&readable, range.iova)), 1),
            (Operation::Read(at(&writable, range.iova)), 1),
            (Operation::Write(at(&writable, range.iova - 1)), 1),
            (Operation::Write(at(&writable, end - 1)), 2),
            (Operation::Write(at(&writable, range.offset)), 1),
        ] {
            let (mut one, _other) = bench.pair();
            let (status, _) = run(&bench, &mut one, operation, &vec![9; length]);
            assert_eq!(status, WcStatus::REM_ACCESS_ERR, "{operation:?}");
        }
        // One byte less is within.
        let (mut one, _other) = bench.pair();
        done(&bench, &mut one, Operation::Write(at(&writable, end - 1)), &[9]);
        let whole = buffer.read(0, usize::try_from(PAGES * page_bytes()).unwrap());
        assert_eq!(whole.iter().filter(|byte| **byte != 0).count(), 1);
    }
}

#[test]
fn dropping_takes_the_right_away() {
    let test = "dropping_takes_the_right_away";
    let Some(bench) = importing(test) else { return };
    for buffer in buffers(test) {
        let before = leaks();
        let region = bench
            .domain
            .register_dmabuf(buffer.fd.as_fd(), middle(), RemoteAccess::ALL)
            .unwrap();
        let remote = address(&region, 0);
        let (mut one, _other) = bench.pair();
        done(&bench, &mut one, Operation::Write(remote), b"before");
        drop(region);
        let (status, _) = run(&bench, &mut one, Operation::Write(remote), b"behind");
        assert_eq!(status, WcStatus::REM_ACCESS_ERR);
        assert_eq!(buffer.read(middle().offset, 6), b"before");
        assert_eq!(leaks(), before);
    }
}

#[test]
fn a_region_outlives_its_domain_and_context() {
    let test = "a_region_outlives_its_domain_and_context";
    let Some(bench) = importing(test) else { return };
    for buffer in buffers(test) {
        use doorbell_core::provider::{Context as _, Provider as _};
        let before = leaks();
        let context = bench.rdma.open(&bench.port.device).unwrap();
        let domain = context.protection_domain().unwrap();
        let region = domain
            .register_dmabuf(buffer.fd.as_fd(), middle(), RemoteAccess::READ)
            .unwrap();
        drop((context, domain, buffer));
        drop(region);
        assert_eq!(leaks(), before);
    }
}

#[test]
fn ranges_that_break_a_rule_are_refused_before_the_device_is_asked() {
    let test = "ranges_that_break_a_rule_are_refused_before_the_device_is_asked";
    let Some(bench) = importing(test) else { return };
    for buffer in buffers(test) {
        let (page_bytes, good) = (page_bytes(), middle());
        let buffer_bytes = PAGES * page_bytes;
        let register = |range| {
            let fd = buffer.fd.as_fd();
            bench.domain.register_dmabuf(fd, range, RemoteAccess::ALL)
        };
        let whole = DmabufRange {
            offset: 0,
            bytes: usize::try_from(buffer_bytes).unwrap(),
            iova: 0,
        };
        let too_long = whole.bytes + 1;
        let last = !(page_bytes - 1);
        for (range, expected) in [
            (DmabufRange { bytes: 0, ..good }, DmabufError::Empty),
            (
                DmabufRange { iova: IOVA, ..good },
                DmabufError::PageOffset {
                    offset: good.offset,
                    iova: IOVA,
                    page_bytes,
                },
            ),
            (
                DmabufRange {
                    bytes: too_long,
                    iova: page_bytes,
                    ..whole
                },
                DmabufError::OutOfBuffer {
                    offset: 0,
                    bytes: too_long,
                    buffer_bytes,
                },
            ),
            (
                DmabufRange {
                    bytes: 4096,
                    iova: last + (page_bytes - 4096),
                    offset: page_bytes - 4096,
                },
                DmabufError::OutOfAddresses {
                    iova: last + (page_bytes - 4096),
                    bytes: 4096,
                },
            ),
            (whole, DmabufError::NoAddress),
        ] {
            assert_eq!(register(range).unwrap_err(), expected);
        }
        let first = DmabufRange {
            iova: page_bytes,
            ..whole
        };
        for range in [first, good] {
            assert!(register(range).is_ok());
        }
    }
}

#[test]
fn a_descriptor_of_another_kind_is_refused_by_the_device() {
    let test = "a_descriptor_of_another_kind_is_refused_by_the_device";
    let Some(bench) = importing(test) else { return };
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGES * page_bytes()).unwrap();
    let register = |range| {
        let fd = file.as_fd();
        bench.domain.register_dmabuf(fd, range, RemoteAccess::READ)
    };
    let refused = register(middle()).unwrap_err();
    assert!(
        matches!(refused, DmabufError::Provider(error) if error.errno == libc::EINVAL),
        "{refused}"
    );
    assert!(
        refused
            .to_string()
            .ends_with("is the descriptor a dma-buf that this device can reach?")
    );
}

/// On any device.
#[test]
fn what_a_device_says_is_what_it_does() {
    let test = "what_a_device_says_is_what_it_does";
    let Some(bench) = bench(test) else { return };
    let imports = bench.context.imports_dmabuf().unwrap();
    let reports = bench.rdma.devices().unwrap();
    let report = reports.iter().find(|report| report.name == bench.port.device);
    assert_eq!(report.unwrap().imports_dmabuf, Some(imports));
    let buffer = Buffer::stand_in();
    let outcome = bench
        .domain
        .register_dmabuf(buffer.fd.as_fd(), middle(), RemoteAccess::READ);
    match outcome {
        Ok(_) => assert!(imports && crate::takes_memory_files()),
        Err(DmabufError::Unsupported(_)) => assert!(!imports),
        // A memory file is none.
        Err(error) => assert!(imports && !crate::takes_memory_files(), "{error}"),
    }
}
