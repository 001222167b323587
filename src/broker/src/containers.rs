//! The listener for container runtimes: each container whose filter a runtime hands over has a thread that supervises it.
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

/// How long an error of accepting lasts, such as too many open files, until the next try.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// A listener for container runtimes.
#[derive(Clone, Debug)]
pub struct Listening {
    /// The path of the socket, which the profile of a container names as its `listenerPath`.
    pub socket: PathBuf,
    /// A policy for all containers, or a folder with one policy a file, of which `listenerMetadata` names one.
    pub policies: PathBuf,
    /// Containers at once, each with a thread and a descriptor.
    pub containers: usize,
}

/// The start or the end of a container.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A container is supervised.
    Supervised {
        /// Its name, as the runtime has it.
        container: String,
        /// The name of its policy.
        policy: String,
    },
    /// No process of a container makes calls any more. Some kernels release the filter before the last one has closed its descriptors, so that a
    /// device may still be in use for a moment.
    Ended {
        /// Its name, as the runtime has it.
        container: String,
        /// Counts of all its processes.
        counts: Counts,
    },
    /// A container is not supervised. Its runtime fails, or each trapped call of the container is `ENOSYS`.
    Refused(ContainerRefusal),
}

/// The reason why a container is not supervised.
#[derive(Debug)]
#[non_exhaustive]
pub enum ContainerRefusal {
    /// The runtime's user is neither root nor that of the broker.
    Foreign {
        /// The user.
        user: u32,
    },
    /// As many containers as are allowed are supervised.
    Full {
        /// The limit.
        limit: usize,
    },
    /// The container process state did not come, or is invalid.
    State(StateError),
    /// The descriptor is no listener of a filter, or `/proc` is not there.
    NotAListener {
        /// The container.
        container: String,
        /// The reason.
        error: io::Error,
    },
    /// The container has no policy.
    Policy {
        /// The container.
        container: String,
        /// The reason.
        error: PoliciesError,
    },
    /// The container has not the limits that its policy asks for.
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

/// The listener did not start, or cannot go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum ListenError {
    /// The policy is invalid.
    Policy(PoliciesError),
    /// The socket cannot be made.
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

/// Supervises the containers that runtimes hand over, until SIGTERM, SIGINT, SIGHUP or SIGQUIT comes. All signals of this thread are blocked meanwhile.
/// `ready` is called once the socket is there. `report` is called by several threads.
///
/// A container that runs then has a thread of this process, which is expected to end: the container's trapped calls are `ENOSYS` afterwards.
///
/// # Errors
/// The policy is invalid, the socket cannot be made, or this process lacks a resource.
pub fn listen(
    listening: &Listening,
    ready: impl FnOnce(),
    report: impl Fn(Event) + Send + Sync + 'static,
) -> Result<(), ListenError> {
    let policies = Policies::new(&listening.policies).map_err(ListenError::Policy)?;
    // Threads have the mask of this one: no signal interrupts the hand-over of a descriptor.
    let signals = BlockedSignals::new().map_err(ListenError::Host)?;
    let socket = Bound::new(&listening.socket).map_err(|error| ListenError::Socket {
        path: listening.socket.clone(),
        error,
    })?;
    ready();
    let shared = Arc::new(Shared { policies, report });
    // One reference is this thread's, and one each container's.
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

/// A socket that is removed at the end.
struct Bound<'p> {
    listener: UnixListener,
    path: &'p Path,
}

impl<'p> Bound<'p> {
    fn new(path: &'p Path) -> io::Result<Self> {
        // The system reports the same for a file as for a socket.
        if std::fs::metadata(path).is_ok_and(|file| !file.file_type().is_socket()) {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        let listener = match UnixListener::bind(path) {
            // A socket that nobody listens at was left by a process that was killed.
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
    /// Supervises the container of one connection until its last process ended.
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
        // A process that was killed leaves its socket behind.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        drop(Bound::new(&path).unwrap());
        assert!(!path.exists());
    }
}
