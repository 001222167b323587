//! The listener for container runtimes. For each container, the runtime sends the listener of its seccomp filter, and a thread supervises it.
//!
//! Source: the OCI runtime specification, `linux.seccomp.listenerPath` and the container process state.

use core::fmt;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use doorbell_sandbox::{BlockedSignals, Listener, Reserved};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, geteuid};

use crate::container_state::{StateError, receive};
use crate::limits::{Limits, LimitsError};
use crate::policies::{Policies, PoliciesError};
use crate::sandbox::{Counts, Sandbox};

/// Pause after an error of `accept`, such as too many open files.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Settings of a listener for container runtimes.
#[derive(Clone, Debug)]
pub struct Listening {
    /// The path of the socket. The profile of a container has it as its `listenerPath`.
    pub socket: PathBuf,
    /// One policy for all containers, or a folder of policy files, from which `listenerMetadata` selects one.
    pub policies: PathBuf,
    /// Maximum number of containers at a time. Each has a thread and a descriptor.
    pub containers: usize,
}

/// The start, the end or the refusal of a container.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The broker supervises a container.
    Supervised {
        /// The ID that the runtime gave it.
        container: String,
        /// The name of its policy.
        policy: String,
    },
    /// All processes of a container have ended. Some kernels release the filter before the last process has closed its descriptors, so that a device
    /// may still be in use for a moment.
    Ended {
        /// The ID that the runtime gave it.
        container: String,
        /// Counts of all its processes.
        counts: Counts,
    },
    /// A container is not supervised. Its runtime fails to start it, or the trapped calls of the container fail with `ENOSYS`.
    Refused(ContainerRefusal),
}

/// Reason why a container is not supervised.
#[derive(Debug)]
#[non_exhaustive]
pub enum ContainerRefusal {
    /// The runtime's user is neither root nor the broker's user.
    Foreign {
        /// The user ID.
        user: u32,
    },
    /// The maximum number of containers is reached.
    Full {
        /// The limit.
        limit: usize,
    },
    /// No valid container process state was received.
    State(StateError),
    /// The descriptor is not a seccomp listener, or `/proc` is not mounted.
    NotAListener {
        /// The container.
        container: String,
        /// The reason.
        error: io::Error,
    },
    /// There is no valid policy for the container.
    Policy {
        /// The container.
        container: String,
        /// The reason.
        error: PoliciesError,
    },
    /// The container does not have the limits that its policy requires.
    Limits {
        /// The container.
        container: String,
        /// The reason.
        error: LimitsError,
    },
    /// This process lacks a resource.
    Host(io::Error),
}

impl fmt::Display for ContainerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign { user } => write!(
                f,
                "a runtime of user {user}: only root and the broker's user are served"
            ),
            Self::Full { limit } => write!(f, "{limit} containers are supervised, which is the limit"),
            Self::State(error) => error.fmt(f),
            Self::NotAListener { container, error } => {
                write!(
                    f,
                    "container {container:?}: its seccompFd is no listener of a filter: {error}"
                )
            }
            Self::Policy { container, error } => write!(f, "container {container:?}: {error}"),
            Self::Limits { container, error } => write!(f, "container {container:?}: {error}"),
            Self::Host(error) => write!(f, "cannot supervise: {error}"),
        }
    }
}

impl core::error::Error for ContainerRefusal {}

/// Reason why the listener cannot start, or cannot continue.
#[derive(Debug)]
#[non_exhaustive]
pub enum ListenError {
    /// The policy is invalid.
    Policy(PoliciesError),
    /// The socket cannot be created.
    Socket {
        /// Its path.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// This process lacks a resource.
    Host(io::Error),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(error) => error.fmt(f),
            Self::Socket { path, error } => {
                write!(f, "cannot listen at {}: {error}", path.display())?;
                f.write_str(match error.kind() {
                    io::ErrorKind::AddrInUse => "; a process listens there: end it, or name another path",
                    io::ErrorKind::AlreadyExists => {
                        "; the file there is no socket, and is not replaced: name another path, or remove it"
                    }
                    _ => "",
                })
            }
            Self::Host(error) => write!(f, "cannot listen: {error}"),
        }
    }
}

impl core::error::Error for ListenError {}

/// Supervises the containers that runtimes pass to it, until SIGTERM, SIGINT, SIGHUP or SIGQUIT arrives. All signals of this thread are blocked
/// meanwhile. Calls `ready` once the socket exists. Several threads call `report`.
///
/// After the return, running containers still have threads in this process. The caller should exit: then the trapped calls of these containers fail
/// with `ENOSYS`.
///
/// # Errors
/// The policy is invalid, the socket cannot be created, or this process lacks a resource.
pub fn listen(
    listening: &Listening,
    ready: impl FnOnce(),
    report: impl Fn(Event) + Send + Sync + 'static,
) -> Result<(), ListenError> {
    let policies = Policies::new(&listening.policies).map_err(ListenError::Policy)?;
    // Threads inherit the signal mask, so that no signal interrupts the transfer of a descriptor.
    let signals = BlockedSignals::new().map_err(ListenError::Host)?;
    let socket = Bound::new(&listening.socket).map_err(|error| ListenError::Socket {
        path: listening.socket.clone(),
        error,
    })?;
    ready();
    let shared = Arc::new(Shared { policies, report });
    // One reference belongs to this thread, and one to each container.
    let places = Arc::new(());
    loop {
        let mut watched = [
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(socket.listener.as_fd(), PollFlags::IN),
        ];
        poll(&mut watched, None).map_err(|error| ListenError::Host(error.into()))?;
        if is_asked_to_end(&signals) {
            return Ok(());
        }
        let stream = match socket.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => {
                (shared.report)(Event::Refused(ContainerRefusal::Host(error)));
                let _ = poll(watched.get_mut(..1).unwrap_or_default(), Some(&PAUSE));
                continue;
            }
        };
        let place = Arc::clone(&places);
        if Arc::strong_count(&places).saturating_sub(1) > listening.containers {
            let limit = listening.containers;
            (shared.report)(Event::Refused(ContainerRefusal::Full { limit }));
            continue;
        }
        let of_thread = Arc::clone(&shared);
        let started = thread::Builder::new()
            .name("container".to_owned())
            .spawn(move || {
                if let Err(refusal) = of_thread.supervise(stream) {
                    (of_thread.report)(Event::Refused(refusal));
                }
                drop(place);
            });
        if let Err(error) = started {
            (shared.report)(Event::Refused(ContainerRefusal::Host(error)));
        }
    }
}

fn is_asked_to_end(signals: &BlockedSignals) -> bool {
    let ends = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].map(Signal::as_raw);
    let mut is_asked = false;
    while let Some(received) = signals.next() {
        is_asked |= ends.contains(&received.signal);
    }
    is_asked
}

/// A socket whose file is removed on drop.
struct Bound<'p> {
    listener: UnixListener,
    path: &'p Path,
}

impl<'p> Bound<'p> {
    fn new(path: &'p Path) -> io::Result<Self> {
        // `bind` reports the same error for any file as for a socket.
        if std::fs::metadata(path).is_ok_and(|file| !file.file_type().is_socket()) {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        let listener = match UnixListener::bind(path) {
            // A socket file without a listener was left by a process that was killed.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let is_left = UnixStream::connect(path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
                if !is_left {
                    return Err(error);
                }
                std::fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            other => other?,
        };
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path })
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.path);
    }
}

struct Shared<R> {
    policies: Policies,
    report: R,
}

impl<R: Fn(Event)> Shared<R> {
    /// Supervises the container of one connection until its last process has ended.
    fn supervise(&self, stream: UnixStream) -> Result<(), ContainerRefusal> {
        let of_host = |error: Errno| ContainerRefusal::Host(error.into());
        let user = rustix::net::sockopt::socket_peercred(&stream)
            .map_err(of_host)?
            .uid;
        if !user.is_root() && user != geteuid() {
            return Err(ContainerRefusal::Foreign { user: user.as_raw() });
        }
        let (state, descriptor) = receive(&stream).map_err(ContainerRefusal::State)?;
        drop(stream);
        let container = state.container().to_owned();
        let listener =
            Listener::from_descriptor(descriptor).map_err(|error| ContainerRefusal::NotAListener {
                container: container.clone(),
                error,
            })?;
        let (name, mut policy) =
            self.policies
                .choose(state.metadata())
                .map_err(|error| ContainerRefusal::Policy {
                    container: container.clone(),
                    error,
                })?;
        let checked = Limits::of(&policy).and_then(|limits| {
            limits.check(state.process())?;
            limits.narrow(&mut policy);
            Ok(())
        });
        checked.map_err(|error| ContainerRefusal::Limits {
            container: container.clone(),
            error,
        })?;
        (self.report)(Event::Supervised {
            container: container.clone(),
            policy: name,
        });
        let reserved = Reserved::of_containers(policy.contexts);
        let mut sandbox = Sandbox::new(listener, reserved, policy);
        loop {
            let mut watched = [PollFd::from_borrowed_fd(sandbox.as_fd(), PollFlags::IN)];
            poll(&mut watched, None).map_err(of_host)?;
            let [trapped] = watched.each_ref().map(PollFd::revents);
            if trapped.contains(PollFlags::IN) {
                sandbox.answer_next().map_err(of_host)?;
            } else {
                break;
            }
        }
        let counts = sandbox.counts;
        (self.report)(Event::Ended { container, counts });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Bound, ListenError};

    #[test]
    fn a_file_that_is_no_socket_stays_where_runtimes_are_to_be_served() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "kept").unwrap();
        let error = Bound::new(&path).err().unwrap();
        let error = ListenError::Socket {
            path: path.clone(),
            error,
        };
        assert!(
            error.to_string().contains("the file there is no socket"),
            "{error}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
        std::fs::remove_file(&path).unwrap();
        // A killed process leaves its socket behind.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        drop(Bound::new(&path).unwrap());
        assert!(!path.exists());
    }
}
