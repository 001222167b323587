//! Regions of dma-bufs, for which memory files stand: the kernel's rules, and bytes that move by addresses of the region.

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use doorbell_fake::{Control, Without, library_path, memory_file};
use rdma_sys::*;

use crate::rig::{ALL, Device, FLUSHED, SUCCESS, last_errno, send};

/// A device lacks the import if it is opened while a test says so, and tests run beside each other.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const PAGE: u64 = 4096;
const PAGES: u64 = 4;
const IOVA: u64 = 0x7000_0000_0000;

/// A memory file of four pages, which cannot shrink, and has these seals beside.
fn sealed(seals: i32) -> File {
    let file = memory_file(PAGES * PAGE).unwrap();
    // SAFETY: an open descriptor (fcntl(2)).
    let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    assert_eq!(status, 0);
    file
}

/// A memory file of four pages that may shrink.
fn shrinking() -> File {
    // SAFETY: a C string and known flags (memfd_create(2)).
    let fd = unsafe { libc::memfd_create(c"doorbell".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: a descriptor just made, which nobody else has.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(PAGES * PAGE).unwrap();
    file
}

/// Arguments of a registration.
#[derive(Clone, Copy)]
struct Wanted {
    offset: u64,
    bytes: usize,
    iova: u64,
    fd: i32,
    access: i32,
}

impl Wanted {
    /// The two pages in the middle, from their third byte on.
    fn of(file: &File) -> Self {
        Self {
            offset: PAGE + 2,
            bytes: 8190,
            iova: IOVA + 2,
            fd: file.as_raw_fd(),
            access: ALL,
        }
    }

    fn register(self, device: &Device) -> Result<*mut ibv_mr, i32> {
        // SAFETY: the domain is there until `close`; nobody has a reference to the file's memory.
        let mr = unsafe {
            ibv_reg_dmabuf_mr(
                device.pd,
                self.offset,
                self.bytes,
                self.iova,
                self.fd,
                self.access,
            )
        };
        if mr.is_null() { Err(last_errno()) } else { Ok(mr) }
    }
}

fn deregister(mr: *mut ibv_mr) {
    // SAFETY: the registration is there, and no caller uses it after this call.
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
}

#[test]
fn the_rules_are_the_kernels() {
    let _alone = alone();
    let device = Device::open();
    let file = memory_file(PAGES * PAGE).unwrap();
    let good = Wanted::of(&file);
    let shrinking = shrinking();
    let unmapped = sealed(libc::F_SEAL_WRITE);
    let null = File::open("/dev/null").unwrap();
    let refusals = [
        (libc::EBADF, Wanted { fd: -1, ..good }),
        (libc::EINVAL, Wanted { iova: IOVA, ..good }),
        (
            libc::EINVAL,
            Wanted {
                iova: IOVA,
                fd: -1,
                ..good
            },
        ),
        (libc::EINVAL, Wanted { bytes: 0, ..good }),
        (
            libc::EINVAL,
            Wanted {
                bytes: 3 * 4096 - 1,
                ..good
            },
        ),
        (
            libc::EINVAL,
            Wanted {
                offset: PAGES * PAGE + 2,
                ..good
            },
        ),
        (
            libc::EINVAL,
            Wanted {
                offset: !PAGE + 3,
                ..good
            },
        ),
        (
            libc::EINVAL,
            Wanted {
                bytes: usize::MAX,
                ..good
            },
        ),
        // WRITE without LOCAL_WRITE, MW_BIND, ON_DEMAND, HUGETLB, and an optional flag that the page does not list.
        (libc::EINVAL, Wanted { access: 2, ..good }),
        (
            libc::EINVAL,
            Wanted {
                access: 1 | 1 << 4,
                ..good
            },
        ),
        (
            libc::EINVAL,
            Wanted {
                access: 1 | 1 << 6,
                ..good
            },
        ),
        (
            libc::EINVAL,
            Wanted {
                access: 1 | 1 << 7,
                ..good
            },
        ),
        (
            libc::EINVAL,
            Wanted {
                access: 1 | 1 << 21,
                ..good
            },
        ),
        (
            libc::EINVAL,
            Wanted {
                fd: shrinking.as_raw_fd(),
                ..good
            },
        ),
        (
            libc::EINVAL,
            Wanted {
                fd: null.as_raw_fd(),
                ..good
            },
        ),
        (
            libc::EPERM,
            Wanted {
                fd: unmapped.as_raw_fd(),
                ..good
            },
        ),
    ];
    for (place, (errno, wanted)) in refusals.into_iter().enumerate() {
        assert_eq!(wanted.register(&device), Err(errno), "{place}");
    }
    // At the limit of each rule.
    for wanted in [
        good,
        Wanted {
            bytes: 3 * 4096 - 2,
            ..good
        },
        Wanted {
            bytes: 1,
            offset: PAGES * PAGE - 1,
            iova: PAGE - 1,
            ..good
        },
        Wanted {
            access: ALL | 1 << 20,
            ..good
        },
        Wanted { access: 0, ..good },
        Wanted {
            access: 4,
            fd: unmapped.as_raw_fd(),
            ..good
        },
    ] {
        let mr = wanted.register(&device).unwrap();
        // SAFETY: the registration is there, and its fields never change.
        let shown = unsafe { ((*mr).addr.addr() as u64, (*mr).length) };
        assert_eq!(shown, (wanted.offset, wanted.bytes));
        deregister(mr);
    }
    let control = Control::of(&library_path().unwrap()).unwrap();
    control.lack(Without::Dmabuf);
    let lacking = Device::open();
    control.lack(Without::Nothing);
    for wanted in [good, Wanted { fd: -1, ..good }, Wanted { iova: IOVA, ..good }] {
        assert_eq!(wanted.register(&lacking), Err(libc::EOPNOTSUPP));
    }
    // A device that was open before goes on.
    deregister(good.register(&device).unwrap());
    lacking.close();
    device.close();
}

#[test]
fn bytes_move_by_addresses_of_the_region() {
    let _alone = alone();
    let device = Device::open();
    let file = memory_file(PAGES * PAGE).unwrap();
    let local = device.region(64);
    let mr = Wanted::of(&file).register(&device).unwrap();
    // SAFETY: the registration is there, and its fields never change.
    let key = unsafe { (*mr).rkey };
    let read = |offset: u64, length: usize| {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    };
    let element = |addr: u64, length: u32| ibv_sge {
        addr,
        length,
        lkey: key,
    };
    let one_sided = |opcode, local: ibv_sge, address: u64| {
        let mut request = send(1, &[local]);
        request.opcode = opcode;
        request.remote = (address, key);
        request
    };
    let (one, other) = device.pair();
    let run = |request| {
        one.post(&[request]).unwrap();
        assert_eq!(one.polled(), [(1, SUCCESS)]);
    };
    let write = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    local.write(0, b"to the start, and to the end");
    // The first byte of the region is the third of the second page; the last is that of the third page.
    run(one_sided(write, local.element(0, 12), IOVA + 2));
    run(one_sided(write, local.element(14, 14), IOVA + 8192 - 14));
    assert_eq!(read(PAGE, 15), b"\0\0to the start\0");
    assert_eq!(read(3 * PAGE - 15, 16), b"\0and to the end\0");
    file.write_all_at(&41_u64.to_ne_bytes(), PAGE + 8).unwrap();
    run(one_sided(
        ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
        local.element(32, 8),
        IOVA + 8,
    ));
    assert_eq!(local.read(32, 8), 41_u64.to_ne_bytes());
    assert_eq!(read(PAGE + 8, 8), 42_u64.to_ne_bytes());
    run(one_sided(
        ibv_wr_opcode::IBV_WR_RDMA_READ,
        local.element(40, 6),
        IOVA + 2,
    ));
    assert_eq!(local.read(40, 6), b"to the");
    // The local side of a READ, of a SEND and of a receive.
    run(one_sided(
        ibv_wr_opcode::IBV_WR_RDMA_READ,
        element(IOVA + 100, 6),
        IOVA + 2,
    ));
    assert_eq!(read(PAGE + 100, 7), b"to the\0");
    other.receive(2, &[element(IOVA + 200, 16)]).unwrap();
    run(send(1, &[element(IOVA + 2, 6), local.element(0, 2)]));
    assert_eq!(other.polled(), [(2, SUCCESS)]);
    assert_eq!(read(PAGE + 200, 9), b"to theto\0");
    // The pages around it are not the region's.
    assert_eq!(
        (read(0, 4096), read(3 * PAGE, 4096)),
        (vec![0; 4096], vec![0; 4096])
    );
    deregister(mr);
    // The key opens nothing any more.
    one.post(&[one_sided(write, local.element(0, 1), IOVA + 2)])
        .unwrap();
    assert_eq!(one.polled(), [(1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR)]);
    assert!(other.polled().iter().all(|(_, status)| *status == FLUSHED));
    [one, other].into_iter().for_each(crate::rig::QueuePair::destroy);
    local.release();
    device.close();
}

#[test]
fn a_byte_outside_is_refused_and_a_closed_descriptor_is_not_missed() {
    let _alone = alone();
    let device = Device::open();
    let file = memory_file(PAGES * PAGE).unwrap();
    let copy = file.try_clone().unwrap();
    let mr = Wanted::of(&file).register(&device).unwrap();
    drop(file);
    // SAFETY: the registration is there, and its fields never change.
    let key = unsafe { (*mr).rkey };
    let local = device.region(8);
    local.write(0, b"8 bytes.");
    for (address, expected) in [
        (IOVA + 8192 - 8, SUCCESS),
        (IOVA + 8192 - 7, ibv_wc_status::IBV_WC_REM_ACCESS_ERR),
        (IOVA + 1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR),
        (PAGE + 2, ibv_wc_status::IBV_WC_REM_ACCESS_ERR),
    ] {
        let (one, other) = device.pair();
        let mut request = send(1, &[local.element(0, 8)]);
        request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        request.remote = (address, key);
        one.post(&[request]).unwrap();
        assert_eq!(one.polled(), [(1, expected)], "{address:#x}");
        [one, other].into_iter().for_each(crate::rig::QueuePair::destroy);
    }
    let mut bytes = [0; 8];
    copy.read_exact_at(&mut bytes, 3 * PAGE - 8).unwrap();
    assert_eq!(&bytes, b"8 bytes.");
    deregister(mr);
    local.release();
    let _three = device.events();
    device.close();
}

#[test]
fn a_deregistered_region_is_unmapped() {
    let _alone = alone();
    let device = Device::open();
    let file = memory_file(PAGES * PAGE).unwrap();
    let inode = file.metadata().unwrap().ino();
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let is_of_it = |line: &&str| line.split_whitespace().nth(4) == Some(&inode.to_string());
        maps.lines().filter(is_of_it).count()
    };
    assert_eq!(mappings(), 0);
    let mr = Wanted::of(&file).register(&device).unwrap();
    assert_eq!(mappings(), 1);
    deregister(mr);
    assert_eq!(mappings(), 0);
    // A refused one leaves none, either.
    let refused = Wanted {
        access: 2,
        ..Wanted::of(&file)
    };
    assert_eq!(refused.register(&device), Err(libc::EINVAL));
    assert_eq!(mappings(), 0);
    device.close();
}
