//! Queries the status of a daemon, into memory of this process.

use core::fmt;
use core::time::Duration;
use std::io;
use std::path::{Path, PathBuf};

use doorbell::interprocess::{SharedArena, SharedBytes as _, SharedMemoryError};
use doorbell::{Deadline, now};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::socket::{Came, PacketSocket};
use crate::packet::{Packet, STATUS_BYTES_MAX};
use crate::reason::AttachRefusal;
use crate::status::DaemonStatus;

/// Size of the memory, enough for the status of a few thousand endpoints.
const BYTES: u32 = 1 << 20;

/// Interval between attempts while the daemon's backlog is full or it has no time.
const RETRY_EVERY: Duration = Duration::from_millis(1);

/// Reason why the status of a daemon cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum StatusError {
    /// No daemon listens at the path.
    NoDaemon {
        /// The path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// This user has no permission to connect to the daemon's socket.
    NotPermitted {
        /// The path.
        path: PathBuf,
    },
    /// The daemon has another version.
    OtherVersion {
        /// The path.
        path: PathBuf,
    },
    /// The daemon refuses to report its status.
    Refused(AttachRefusal),
    /// The daemon did not answer by the deadline.
    TooLate,
    /// The memory for the answer could not be created.
    Memory(SharedMemoryError),
    /// A system call failed.
    System {
        /// The name of the system call.
        call: &'static str,
        /// The error.
        error: io::Error,
    },
}

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDaemon { path, error } => write!(
                f,
                "no daemon at {}: {error}; start `doorbell serve`, or name its socket with --socket",
                path.display()
            ),
            Self::NotPermitted { path } => write!(
                f,
                "this user may not reach the daemon at {}: ask as its user or as root, or give the socket another --mode",
                path.display()
            ),
            Self::OtherVersion { path } => write!(
                f,
                "the daemon at {} is of another version: use the program that it was started with",
                path.display()
            ),
            Self::Refused(reason) => write!(f, "the daemon refuses to report its status: {reason}"),
            Self::TooLate => f.write_str("the daemon did not report its status by the deadline"),
            Self::Memory(error) => error.fmt(f),
            Self::System { call, error } => write!(f, "{call}: {error}"),
        }
    }
}

impl core::error::Error for StatusError {}

fn failed(call: &'static str) -> impl FnOnce(io::Error) -> StatusError {
    move |error| StatusError::System { call, error }
}

/// Result of one attempt.
enum Asked {
    Given(Box<DaemonStatus>),
    /// The daemon is busy, or its backlog is full.
    Again,
    /// The status does not fit into the memory.
    Longer,
}

impl DaemonStatus {
    /// Queries the daemon that listens at `path`. Blocks until the deadline at most, and makes system calls.
    ///
    /// # Errors
    /// No daemon of this version listens there, this user has no permission to connect, or the daemon does not answer
    /// by the deadline.
    pub fn ask(path: &Path, deadline: Deadline) -> Result<Self, StatusError> {
        let mut bytes = BYTES;
        loop {
            match ask_once(path, bytes, deadline)? {
                Asked::Given(status) => return Ok(*status),
                Asked::Longer => bytes = STATUS_BYTES_MAX,
                Asked::Again if deadline.has_passed(now()) => return Err(StatusError::TooLate),
                Asked::Again => std::thread::sleep(RETRY_EVERY),
            }
        }
    }
}

fn ask_once(path: &Path, bytes: u32, deadline: Deadline) -> Result<Asked, StatusError> {
    // Creates the memory first: the daemon waits for a packet for a limited time.
    let memory = SharedArena::create(bytes as usize).map_err(StatusError::Memory)?;
    let socket = match PacketSocket::connect(path) {
        Ok(socket) => socket,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Asked::Again),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let path = path.to_owned();
            return Err(StatusError::NotPermitted { path });
        }
        Err(error) => {
            let path = path.to_owned();
            return Err(StatusError::NoDaemon { path, error });
        }
    };
    let descriptors: Vec<_> = memory.descriptor().into_iter().collect();
    match socket.send(&Packet::Status { bytes }, &descriptors) {
        // The daemon refused the connection before it read the packet: the reason can still be received.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        sent => drop(sent.map_err(failed("sendmsg"))?),
    }
    let other_version = || StatusError::OtherVersion {
        path: path.to_owned(),
    };
    loop {
        match socket.receive().map_err(failed("recvmsg"))? {
            Came::Nothing if deadline.has_passed(now()) => return Err(StatusError::TooLate),
            Came::Nothing => {
                let timeout = Timespec::try_from(deadline.remaining(now())).ok();
                match rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::IN)], timeout.as_ref()) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(errno) => return Err(failed("poll")(errno.into())),
                }
            }
            Came::Packet(Ok(Packet::StatusGiven { bytes: length })) => {
                let has_more = bytes < STATUS_BYTES_MAX;
                if length == 0 && has_more {
                    return Ok(Asked::Longer);
                }
                // Any process may listen at the path. A daemon seals the memory before it writes. Reading memory that was truncated
                // would raise SIGBUS.
                if !memory.is_sealed() {
                    return Err(other_version());
                }
                let mut text = vec![0; length.min(bytes) as usize];
                let is_copied = memory.copy_out(0, &mut text);
                let status = DaemonStatus::parse(&text).filter(|_| is_copied);
                return Ok(match status.ok_or_else(other_version)? {
                    status if status.left_out > 0 && has_more => Asked::Longer,
                    status => Asked::Given(Box::new(status)),
                });
            }
            Came::Packet(Ok(Packet::Refused(reason))) => {
                return match reason {
                    AttachRefusal::TooManyPending
                    | AttachRefusal::TooLate
                    | AttachRefusal::NoMemory
                    | AttachRefusal::NoDescriptors => Ok(Asked::Again),
                    // An older daemon refuses the unknown packet.
                    AttachRefusal::Packet => Err(other_version()),
                    reason => Err(StatusError::Refused(reason)),
                };
            }
            Came::Packet(..) => return Err(other_version()),
            // The daemon ended just now. Another one may start soon.
            Came::End => return Ok(Asked::Again),
        }
    }
}
