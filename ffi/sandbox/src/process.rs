//! Memory and descriptors of a program that waits for an answer.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

const PAGE: u64 = 4096;

/// The process of a thread. It is the thread's if the thread's call [waits](crate::Listener::is_waiting) after this was made.
#[derive(Debug)]
pub struct Process(OwnedFd);

impl Process {
    /// Opens the process of a thread.
    ///
    /// # Errors
    /// It is gone, or this process may not look at it.
    pub fn of(thread: u32) -> io::Result<Self> {
        let pid = |number: u32| {
            i32::try_from(number)
                .ok()
                .and_then(Pid::from_raw)
                .ok_or(Errno::SRCH)
        };
        // An error for a thread that is not the first of its process.
        if let Ok(process) = pidfd_open(pid(thread)?, PidfdFlags::empty()) {
            return Ok(Self(process));
        }
        let status = std::fs::read_to_string(format!("/proc/{thread}/status"))?;
        let first = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
        let first = first.and_then(|number| number.trim().parse().ok());
        let process = pidfd_open(pid(first.ok_or(Errno::SRCH)?)?, PidfdFlags::empty())?;
        Ok(Self(process))
    }

    /// A duplicate of the descriptor that has this number there.
    ///
    /// # Errors
    /// `BADF` if the number is free.
    pub fn descriptor(&self, number: u32) -> Result<OwnedFd, Errno> {
        let number = i32::try_from(number).map_err(|_| Errno::BADF)?;
        pidfd_getfd(&self.0, number, PidfdGetfdFlags::empty())
    }

    /// Copies bytes of a thread's memory, once, up to the end of `into` or of what is mapped, and returns how many. The bytes are another process's if the
    /// thread's call does not [wait](crate::Listener::is_waiting) afterwards.
    #[must_use]
    pub fn read(thread: u32, address: u64, into: &mut [u8]) -> usize {
        let Ok(pid) = i32::try_from(thread) else { return 0 };
        // A part is read up to an end of a piece alone: the bytes of each page are a piece.
        let first = usize::try_from(PAGE.wrapping_sub(address % PAGE))
            .map_or(into.len(), |first| first.min(into.len()));
        let Some(address) = usize::try_from(address).ok() else {
            return 0;
        };
        let Some(second) = address.checked_add(first) else {
            return 0;
        };
        let piece = |address: usize, bytes: usize| libc::iovec {
            iov_base: core::ptr::without_provenance_mut(address),
            iov_len: bytes,
        };
        let theirs = [
            piece(address, first),
            piece(second, into.len().saturating_sub(first)),
        ];
        let ours = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        };
        // SAFETY: one piece of ours, which is borrowed for the call alone; the other process's are only looked up there (process_vm_readv(2)).
        let count = unsafe { libc::process_vm_readv(pid, &raw const ours, 1, theirs.as_ptr(), 2, 0) };
        usize::try_from(count).unwrap_or(0)
    }

    /// The memory of a thread, to write to. It stays the same memory, so that a call that [waits](crate::Listener::is_waiting) afterwards is of it.
    ///
    /// # Errors
    /// It is gone, or this process may not write there.
    pub fn memory(thread: u32) -> io::Result<File> {
        File::options().write(true).open(format!("/proc/{thread}/mem"))
    }

    /// Writes to memory that [`Process::memory`] opened.
    ///
    /// # Errors
    /// `FAULT` if not all of it is mapped.
    pub fn write(memory: &File, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        memory.write_all_at(bytes, address).map_err(|_| Errno::FAULT)
    }
}
