//! The listener of a filter: trapped calls, and their answers. Source: `seccomp_unotify(2)`.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "flags of the kernel and numbers of descriptors, of which it takes 32 bits"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;

/// A call that the filter traps, by its purpose. Addresses are the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// A device is to be opened.
    Open {
        /// The path.
        path: u64,
    },
    /// A path is looked at.
    Stat {
        /// The path.
        path: u64,
        /// The structure to fill.
        into: u64,
        /// Its form.
        form: crate::StatForm,
    },
    /// A folder is watched for new files.
    Watch {
        /// The path.
        path: u64,
    },
    /// Bytes as long as a doorbell's are written to a reserved number.
    Write {
        /// The number.
        descriptor: u32,
        /// The bytes.
        bytes: u64,
    },
    /// None of these.
    Other,
}

/// A trapped call, until it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Trapped {
    id: u64,
    /// The thread that made it, by its number here. The number is of another thread once [`Listener::is_waiting`] is false.
    pub thread: u32,
    /// The call.
    pub call: Call,
}

/// The supervisor's end of a filter.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// Source: `linux/seccomp.h`, `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`.
const SYNC_WAKE_UP: libc::c_ulong = 1;

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn call(data: &libc::seccomp_data) -> Call {
    use crate::StatForm;
    let [first, second, third, _, fifth, _] = data.args;
    match libc::c_long::from(data.nr) {
        libc::SYS_openat => Call::Open { path: second },
        libc::SYS_newfstatat => Call::Stat {
            path: second,
            into: third,
            form: StatForm::Plain,
        },
        libc::SYS_statx => Call::Stat {
            path: second,
            into: fifth,
            form: StatForm::Extended,
        },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => Call::Open { path: first },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_stat => Call::Stat {
            path: first,
            into: second,
            form: StatForm::Plain,
        },
        libc::SYS_inotify_add_watch => Call::Watch { path: second },
        // The kernel takes 32 bits of a descriptor.
        libc::SYS_write => Call::Write {
            descriptor: first as u32,
            bytes: second,
        },
        _ => Call::Other,
    }
}

impl Listener {
    /// Takes the listener of a filter that another process made, as a container runtime hands it over.
    ///
    /// # Errors
    /// `InvalidInput` for a descriptor of anything else; or `/proc` is not there.
    pub fn from_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        let file = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
        if file.as_os_str() == "anon_inode:seccomp notify" {
            Ok(Self::new(descriptor))
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }

    /// Takes the listener that a filter gave: no other descriptor, since its requests mean something else there.
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        // The supervisor runs where the program waits, and the other way round: half of the time. Kernels before 6.6 do not have it.
        // SAFETY: a descriptor and a number (seccomp_unotify(2)).
        let _ = unsafe {
            libc::ioctl(
                descriptor.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
                SYNC_WAKE_UP,
            )
        };
        Self(descriptor)
    }

    fn control<T>(&self, request: libc::Ioctl, argument: &mut T) -> Result<u32, Errno> {
        // SAFETY: each caller gives the structure that its request reads and writes, of the size that is a part of the request.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request, core::ptr::from_mut(argument)) };
        u32::try_from(result)
            .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }

    /// Takes the next trapped call; waits for one if none is there. `None` if it is gone: its thread was killed.
    ///
    /// # Errors
    /// The kernel does not have user notification as this build knows it.
    pub fn next(&self) -> Result<Option<Trapped>, Errno> {
        let mut found = libc::seccomp_notif {
            id: 0,
            pid: 0,
            flags: 0,
            data: libc::seccomp_data {
                nr: 0,
                arch: 0,
                instruction_pointer: 0,
                args: [0; 6],
            },
        };
        match self.control(libc::SECCOMP_IOCTL_NOTIF_RECV, &mut found) {
            Ok(_) => Ok(Some(Trapped {
                id: found.id,
                thread: found.pid,
                call: call(&found.data),
            })),
            Err(Errno::NOENT | Errno::INTR) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// If the call still waits for its answer: then the thread lives, and so do its numbers.
    #[must_use]
    pub fn is_waiting(&self, trapped: &Trapped) -> bool {
        let mut id = trapped.id;
        self.control(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut id).is_ok()
    }

    fn send(&self, trapped: &Trapped, value: i64, error: i32, flags: u32) -> Result<(), Errno> {
        let mut answer = libc::seccomp_notif_resp {
            id: trapped.id,
            val: value,
            error,
            flags,
        };
        self.control(libc::SECCOMP_IOCTL_NOTIF_SEND, &mut answer)
            .map(drop)
    }

    /// Has the kernel make the call as if it had not been trapped, with the rights of the program.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn resume(&self, trapped: &Trapped) -> Result<(), Errno> {
        self.send(trapped, 0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32)
    }

    /// Answers with a count of bytes, or 0.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn answer(&self, trapped: &Trapped, bytes: usize) -> Result<(), Errno> {
        self.send(trapped, bytes as i64, 0, 0)
    }

    /// Answers with an error.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn refuse(&self, trapped: &Trapped, error: Errno) -> Result<(), Errno> {
        self.send(trapped, 0, error.raw_os_error().saturating_neg(), 0)
    }

    /// Puts a copy of `descriptor` into the program at `number`, to be closed by an exec, and answers with it, in one step. A descriptor that
    /// is there is replaced.
    ///
    /// # Errors
    /// The thread is gone, or the number is above its limit: nothing was given, and the call waits if the thread is there.
    pub fn give(&self, trapped: &Trapped, descriptor: BorrowedFd<'_>, number: u32) -> Result<(), Errno> {
        let mut request = libc::seccomp_notif_addfd {
            id: trapped.id,
            flags: (libc::SECCOMP_ADDFD_FLAG_SETFD | libc::SECCOMP_ADDFD_FLAG_SEND) as u32,
            srcfd: descriptor.as_raw_fd() as u32,
            newfd: number,
            newfd_flags: libc::O_CLOEXEC as u32,
        };
        self.control(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &mut request)
            .map(drop)
    }
}
