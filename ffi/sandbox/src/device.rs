//! A device node: a fresh open of it, facts about it, and its doorbell.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "constants of the kernel, and sizes of its structures"
)]

use core::mem::MaybeUninit;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::filter::DOORBELL_BYTES;

/// The form of facts about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatForm {
    /// `struct stat`.
    Plain,
    /// `struct statx`.
    Extended,
}

/// The kind of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DescriptorKind {
    /// A character device, with its number.
    Device(u64),
    /// Anything else.
    Other,
}

impl DescriptorKind {
    /// The kind of a descriptor.
    #[must_use]
    pub fn of(descriptor: BorrowedFd<'_>) -> Self {
        match rustix::fs::fstat(descriptor) {
            Ok(facts) if FileType::from_raw_mode(facts.st_mode) == FileType::CharacterDevice => {
                Self::Device(facts.st_rdev)
            }
            _ => Self::Other,
        }
    }
}

/// The provider of a device that rings by a write, as the kernel numbers it. Source: `rdma/ib_user_ioctl_verbs.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Driver {
    /// Soft-RoCE.
    Rxe = 14,
    /// Soft-iWARP.
    Siw = 18,
}

/// The bytes of a doorbell, checked: a post of no requests, so that they have no address that means anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    queue_pair: u32,
}

/// Source: `rdma/ib_user_verbs.h`.
const POST_SEND: u32 = 28;

impl Doorbell {
    /// Reads the bytes of a write. `None` unless they are a post of no requests and nothing else.
    #[must_use]
    pub fn parse(bytes: &[u8; DOORBELL_BYTES]) -> Option<Self> {
        let mut words = [0; DOORBELL_BYTES / 4];
        for (word, four) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes(four.try_into().ok()?);
        }
        let [command, sizes, _, _, queue_pair, requests, elements, _] = words;
        // The upper half is the size of the answer, which is not written where no request failed.
        let is_whole = sizes & 0xFFFF == DOORBELL_BYTES as u32 / 4;
        (command == POST_SEND && is_whole && requests == 0 && elements == 0).then_some(Self { queue_pair })
    }

    /// Rings a queue pair of the context that the descriptor is of. Its own credentials do not count, as they do for a write.
    ///
    /// # Errors
    /// `INVAL` if the device is of another driver or has no such queue pair; `NOTTY` if it is no RDMA device.
    pub fn ring(self, device: BorrowedFd<'_>, driver: Driver) -> Result<(), Errno> {
        let mut failed: u32 = 0;
        let post = PostSend {
            response: 0,
            queue_pair: self.queue_pair,
            requests: 0,
            elements: 0,
            request_bytes: REQUEST_BYTES,
        };
        let attribute = |id, bytes: usize, data| Attribute {
            id,
            bytes: bytes as u16,
            flags: MANDATORY,
            reserved: 0,
            data,
        };
        let mut command = Command {
            length: size_of::<Command>() as u16,
            object: 0,
            method: 0,
            attributes: 3,
            reserved: 0,
            driver: driver as u32,
            reserved_too: 0,
            list: [
                attribute(
                    CORE_IN,
                    size_of::<PostSend>(),
                    (&raw const post).expose_provenance() as u64,
                ),
                attribute(
                    CORE_OUT,
                    size_of::<u32>(),
                    (&raw mut failed).expose_provenance() as u64,
                ),
                attribute(WRITE_COMMAND, size_of::<u64>(), POST_SEND.into()),
            ],
        };
        // SAFETY: a command as `rdma/rdma_user_ioctl_cmds.h` has it. The two structures that it points to outlive the call, and are of the sizes
        // that stand beside them.
        let status = unsafe { libc::ioctl(device.as_raw_fd(), RDMA_VERBS_IOCTL, &raw mut command) };
        if status == 0 { Ok(()) } else { Err(last_error()) }
    }
}

/// Source: `rdma/rdma_user_ioctl.h`: direction, size, magic and number.
const RDMA_VERBS_IOCTL: libc::Ioctl = ((3 << 30) | (24 << 16) | (0x1B << 8) | 1) as libc::Ioctl;
/// Source: `rdma/ib_user_ioctl_cmds.h`: attributes of `UVERBS_METHOD_INVOKE_WRITE` of the object of devices; both of these are 0.
const CORE_IN: u16 = 0;
const CORE_OUT: u16 = 1;
const WRITE_COMMAND: u16 = 2;
const MANDATORY: u16 = 1;
/// At least the size of `struct ib_uverbs_send_wr`: the kernel refuses less, also for no requests.
const REQUEST_BYTES: u32 = 128;

#[repr(C)]
struct PostSend {
    response: u64,
    queue_pair: u32,
    requests: u32,
    elements: u32,
    request_bytes: u32,
}

#[repr(C)]
struct Attribute {
    id: u16,
    bytes: u16,
    flags: u16,
    reserved: u16,
    data: u64,
}

#[repr(C)]
struct Command {
    length: u16,
    object: u16,
    method: u16,
    attributes: u16,
    reserved: u64,
    driver: u32,
    reserved_too: u32,
    list: [Attribute; 3],
}

const _: () =
    assert!(size_of::<PostSend>() == 24 && size_of::<Attribute>() == 16 && size_of::<Command>() == 24 + 48);

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Opens a device node anew: a context of its own, and the number of its device.
///
/// # Errors
/// The node is not there, is no character device (`NODEV`), or may not be opened.
pub fn open_node(path: &Path) -> Result<(OwnedFd, u64), Errno> {
    let node = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    match DescriptorKind::of(node.as_fd()) {
        DescriptorKind::Device(device) => Ok((node, device)),
        DescriptorKind::Other => Err(Errno::NODEV),
    }
}

/// The bytes of a structure with facts about a file, as the kernel of this machine gives them.
///
/// # Errors
/// As `stat(2)`.
pub fn node_facts(path: &Path, form: StatForm) -> Result<Vec<u8>, Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    let (mut plain, mut extended) = ([0_u8; size_of::<libc::stat>()], [0_u8; size_of::<libc::statx>()]);
    let status = match form {
        // SAFETY: a path, and room for the kernel's own structure (stat(2)).
        StatForm::Plain => unsafe {
            libc::syscall(
                libc::SYS_newfstatat,
                libc::AT_FDCWD,
                path.as_ptr(),
                plain.as_mut_ptr(),
                0,
            )
        },
        // SAFETY: a path, and room for the kernel's own structure (statx(2)).
        StatForm::Extended => unsafe {
            let all = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
            libc::syscall(
                libc::SYS_statx,
                libc::AT_FDCWD,
                path.as_ptr(),
                0,
                all,
                extended.as_mut_ptr(),
            )
        },
    };
    if status != 0 {
        return Err(last_error());
    }
    Ok(match form {
        StatForm::Plain => plain.to_vec(),
        StatForm::Extended => extended.to_vec(),
    })
}

/// A lock of one byte of a device node, which belongs to an open file: it ends when the last descriptor of that file is closed, in whatever process.
///
/// A program under the filter can neither set nor end such a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(i64);

impl Mark {
    /// Marks an open file, at a byte of this process that no other number has. A number is not used twice: a mark that was looked for at the byte of a later
    /// one would be found. `None` if others hold the byte and those beside it.
    #[must_use]
    pub fn set(file: BorrowedFd<'_>, number: u32) -> Option<Self> {
        // Numbers of processes have 22 bits. The bytes are above those that a lock of a real file would be at.
        let process = i64::from(std::process::id() & 0x3F_FFFF);
        let first = 1_i64 << 60 | process << 36 | i64::from(number) << 4;
        (first..first.saturating_add(16))
            .find(|place| lock(file, libc::F_OFD_SETLK, libc::F_WRLCK, *place).is_some())
            .map(Self)
    }

    /// If the file that was marked is still open. `file` is another open file of the same node.
    #[must_use]
    pub fn is_open(self, file: BorrowedFd<'_>) -> bool {
        lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, self.0) != Some(libc::F_UNLCK)
    }
}

/// Locks a byte or looks for a lock of it, and returns the kind of lock that the kernel reports. `None` if it refuses.
fn lock(file: BorrowedFd<'_>, command: libc::c_int, kind: libc::c_int, place: i64) -> Option<libc::c_int> {
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut range: libc::flock = unsafe { MaybeUninit::zeroed().assume_init() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    range.l_start = place;
    range.l_len = 1;
    // SAFETY: an open descriptor, and the structure of both commands (fcntl(2)).
    let status = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut range) };
    (status == 0).then_some(range.l_type.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::path::Path;

    use rustix::io::Errno;

    use super::{DOORBELL_BYTES, DescriptorKind, Doorbell, Driver, Mark, StatForm, node_facts, open_node};

    /// The bytes by which rdma-core's providers ring queue pair 7.
    fn bytes() -> [u8; DOORBELL_BYTES] {
        let mut bytes = [0; DOORBELL_BYTES];
        for (at, word) in [(0, 28_u32), (1, 1 << 16 | 8), (2, 0x7F00_0000), (4, 7), (7, 128)] {
            bytes[at * 4..at * 4 + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn a_post_of_no_requests_is_a_doorbell_and_nothing_else_is() {
        assert_eq!(Doorbell::parse(&bytes()), Some(Doorbell { queue_pair: 7 }));
        for (word, value) in [(0, 27_u32), (0, 1 << 31 | 28), (1, 9), (5, 1), (6, 1)] {
            let mut other = bytes();
            other[word * 4..word * 4 + 4].copy_from_slice(&value.to_ne_bytes());
            assert_eq!(Doorbell::parse(&other), None, "word {word} is {value}");
        }
    }

    #[test]
    fn a_doorbell_on_another_device_is_an_error() {
        let (null, _) = open_node(Path::new("/dev/null")).unwrap();
        let doorbell = Doorbell::parse(&bytes()).unwrap();
        assert_eq!(doorbell.ring(null.as_fd(), Driver::Rxe), Err(Errno::NOTTY));
    }

    #[test]
    fn a_mark_lasts_as_long_as_any_descriptor_of_its_file() {
        let path = Path::new("/dev/null");
        let [(one, _), (probe, _)] = [(); 2].map(|()| open_node(path).unwrap());
        let mark = Mark::set(one.as_fd(), 7).unwrap();
        assert!(mark.is_open(probe.as_fd()));
        let copy = one.try_clone().unwrap();
        drop(one);
        assert!(mark.is_open(probe.as_fd()), "a copy is open");
        drop(copy);
        assert!(!mark.is_open(probe.as_fd()));
    }

    #[test]
    fn marks_of_two_files_have_places_of_their_own() {
        let path = Path::new("/dev/null");
        let [(one, _), (two, _), (probe, _)] = [(); 3].map(|()| open_node(path).unwrap());
        let (first, second) = (
            Mark::set(one.as_fd(), 8).unwrap(),
            Mark::set(two.as_fd(), 8).unwrap(),
        );
        assert_ne!(first, second);
        drop(one);
        assert!(!first.is_open(probe.as_fd()) && second.is_open(probe.as_fd()));
    }

    #[test]
    fn a_node_is_a_character_device() {
        assert_eq!(open_node(Path::new("/dev")).unwrap_err(), Errno::ISDIR);
        let file = tempfile(b"");
        assert_eq!(open_node(&file).unwrap_err(), Errno::NODEV);
        std::fs::remove_file(&file).unwrap();
        let (null, _) = open_node(Path::new("/dev/null")).unwrap();
        assert_eq!(DescriptorKind::of(null.as_fd()), DescriptorKind::Device(0x103));
    }

    fn tempfile(bytes: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("doorbell-node-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn facts_have_the_number_of_the_device() {
        let plain = node_facts(Path::new("/dev/null"), StatForm::Plain).unwrap();
        let at = core::mem::offset_of!(libc::stat, st_rdev);
        assert_eq!(plain[at..at + 8], 0x103_u64.to_ne_bytes());
        let extended = node_facts(Path::new("/dev/null"), StatForm::Extended).unwrap();
        let at = core::mem::offset_of!(libc::statx, stx_rdev_minor);
        assert_eq!(extended[at..at + 4], 3_u32.to_ne_bytes());
        assert_eq!(
            node_facts(Path::new("/dev/absent"), StatForm::Plain),
            Err(Errno::NOENT)
        );
    }
}
