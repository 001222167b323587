//! The server: one thread that accepts clients, moves their messages, and sleeps while there is nothing to do.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use doorbell::{Deadline, Handle, WaitError, now, within};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::socket::{Came, PacketSocket, listen};
use crate::name::{Credentials, NodeNumber};
use crate::packet::{AttachRequest, Packet};
use crate::peers::Peers;
use crate::reason::{AttachRefusal, CutReason, GoneReason};
use crate::router::{ClientId, Router, RouterCounts, RouterLimits};

/// The most connections without an attach packet. More wait in the listener's queue.
const PENDING_MAX: usize = 16;

/// The most packets that are taken of a socket in one turn.
const PACKETS_MAX: usize = 4;

/// How often a busy daemon looks at its sockets.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How long nobody is accepted while this process has as many descriptors as it may.
const SHORT_OF_DESCRIPTORS: Duration = Duration::from_millis(10);

/// Settings of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Path of the socket. Its folder exists.
    pub socket: PathBuf,
    /// Mode of the socket's file: which users may attach. `0o600` by default.
    pub mode: u32,
    /// The number of this node: 0 by default.
    pub node: NodeNumber,
    /// Limits of the clients.
    pub limits: RouterLimits,
    /// How long a connection may take to send its attach packet: a second by default.
    pub attach_within: Duration,
    /// How long the server polls in vain before it sleeps: 50 us by default. A server with a processor of its own takes more.
    pub spin: Duration,
}

impl ServerConfig {
    /// The default settings, for a socket at this path.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            mode: 0o600,
            node: NodeNumber(0),
            limits: RouterLimits::default(),
            attach_within: Duration::from_secs(1),
            spin: Duration::from_micros(50),
        }
    }
}

/// The server cannot begin, or go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServerError {
    /// The socket cannot be had: another daemon may listen there.
    Listen {
        /// The path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// A call of the system failed.
    System {
        /// The call.
        call: &'static str,
        /// The error.
        error: io::Error,
    },
    /// A device failed, or cannot notify.
    Peers(WaitError),
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { path, error } => write!(f, "no socket at {}: {error}", path.display()),
            Self::System { call, error } => write!(f, "{call}: {error}"),
            Self::Peers(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ServerError {}

/// A connection that has not attached yet.
#[derive(Debug)]
struct Pending {
    socket: PacketSocket,
    until: Deadline,
}

/// The socket and the process of a client.
#[derive(Debug)]
struct Attached {
    socket: PacketSocket,
    /// Readable once the process is dead, even if another one keeps its socket open. `None` for a process of another namespace.
    process: Option<OwnedFd>,
}

/// A running daemon. Dropping it ends all clients' endpoints.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    listener: OwnedFd,
    router: Router,
    pending: Vec<Pending>,
    attached: BTreeMap<ClientId, Attached>,
    looked: Deadline,
    /// Until then, nobody is accepted: the process has as many descriptors as it may.
    accept_after: Option<Deadline>,
    peers: Option<Peers>,
}

impl Server {
    /// Listens. A socket that a daemon left behind at the path is replaced.
    ///
    /// # Errors
    /// Another daemon listens at the path, or the system refuses.
    pub fn bind(config: &ServerConfig) -> Result<Self, ServerError> {
        let listener = listen(&config.socket, config.mode).map_err(|error| ServerError::Listen {
            path: config.socket.clone(),
            error,
        })?;
        Ok(Self {
            config: config.clone(),
            listener,
            router: Router::new(config.node, &config.limits),
            pending: Vec::new(),
            attached: BTreeMap::new(),
            looked: within(Duration::ZERO),
            accept_after: None,
            peers: None,
        })
    }

    /// Gives the daemon links to other nodes, whose Workers notify.
    pub fn set_peers(&mut self, peers: Peers) {
        self.peers = Some(peers);
    }

    /// Says by which handle a node is reached; nothing without [`Server::set_peers`].
    pub fn add_peer(&mut self, node: NodeNumber, handle: Handle) {
        if let Some(peers) = &mut self.peers {
            peers.add(&mut self.router, node, handle);
        }
    }

    /// Serves until `stop` is readable.
    ///
    /// # Errors
    /// The system refuses to wait, or a device fails.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> Result<(), ServerError> {
        while !self.run_until(stop, within(Duration::from_secs(3600)))? {}
        Ok(())
    }

    /// Serves until `stop` is readable, or until this moment. Returns whether to stop.
    ///
    /// # Errors
    /// As for [`Server::run`].
    pub fn run_until(&mut self, stop: BorrowedFd<'_>, until: Deadline) -> Result<bool, ServerError> {
        let mut idle_since = now();
        loop {
            if self.move_messages()? {
                idle_since = now();
            }
            let time = now();
            if until.has_passed(time) {
                return Ok(false);
            }
            if Deadline::after(idle_since, self.config.spin).has_passed(time) {
                if self.sleep(stop, until)? {
                    return Ok(true);
                }
                idle_since = now();
            } else if self.looked.has_passed(time) && self.look(stop, within(Duration::ZERO))? {
                return Ok(true);
            }
        }
    }

    /// Sleeps until there is something to do, or until this moment. Returns whether to stop.
    fn sleep(&mut self, stop: BorrowedFd<'_>, until: Deadline) -> Result<bool, ServerError> {
        self.router.announce_sleep();
        let mut until = self.wakes().map_or(until, |wake| until.min(wake));
        // Once more, now that clients wake it: it sleeps only if nothing is to be done.
        let mut is_awake = self.move_messages()?;
        if let Some(peers) = self.peers.as_mut().filter(|_| !is_awake) {
            match peers
                .ready_to_sleep(&mut self.router)
                .map_err(ServerError::Peers)?
            {
                Some(wake) => until = until.min(wake),
                None => is_awake = true,
            }
        }
        let is_stopped = if is_awake {
            Ok(false)
        } else {
            self.look(stop, until)
        };
        self.router.withdraw_sleep();
        is_stopped
    }

    /// The path of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.config.socket
    }

    /// Counts since the beginning.
    #[must_use]
    pub const fn counts(&self) -> RouterCounts {
        self.router.counts()
    }

    /// The number of clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.attached.len()
    }

    /// Moves messages, and wakes the clients that sleep.
    fn move_messages(&mut self) -> Result<bool, ServerError> {
        let attached = &self.attached;
        let is_moved = self.router.poll(|id| {
            if let Some(client) = attached.get(&id) {
                // A client that is gone is found by its socket. One whose queue is full has something to read.
                let _ = client.socket.send(&Packet::Wake, &[]);
            }
        });
        while let Some((id, reason)) = self.router.take_cut() {
            self.tell_cut(id, reason);
        }
        let peers = self.peers.as_mut().map(|peers| peers.poll(&mut self.router));
        let is_carried = peers
            .transpose()
            .map_err(WaitError::Provider)
            .map_err(ServerError::Peers)?;
        Ok(is_moved || is_carried.unwrap_or(false))
    }

    fn tell_cut(&mut self, id: ClientId, reason: CutReason) {
        if let Some(client) = self.attached.remove(&id) {
            let _ = client.socket.send(&Packet::Cut(reason), &[]);
        }
    }

    /// When a connection that has not attached has had its time, or the next is accepted.
    fn wakes(&self) -> Option<Deadline> {
        let pending = self.pending.iter().map(|pending| pending.until);
        pending.chain(self.accept_after).min()
    }

    /// Waits until a socket has something, or until this moment, and acts on all that is there. Returns whether to stop.
    fn look(&mut self, stop: BorrowedFd<'_>, until: Deadline) -> Result<bool, ServerError> {
        let timeout = Timespec::try_from(until.remaining(now())).ok();
        let ids: Vec<_> = self.attached.keys().copied().collect();
        let (is_stopped, is_asked, ready) = {
            let mut polled = Vec::with_capacity(ids.len().saturating_mul(2).saturating_add(PENDING_MAX));
            let input = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            polled.push(input(stop));
            let first = polled.len();
            polled.push(input(self.listener.as_fd()));
            self.accept_after = self.accept_after.filter(|after| !after.has_passed(now()));
            if self.pending.len() >= PENDING_MAX || self.accept_after.is_some() {
                polled.truncate(first);
            }
            let first_client = polled.len();
            for client in self.attached.values() {
                polled.push(input(client.socket.as_fd()));
                // Without a process, its socket twice: so that places are even.
                polled.push(input(
                    client.process.as_ref().map_or(client.socket.as_fd(), AsFd::as_fd),
                ));
            }
            polled.extend(self.pending.iter().map(|pending| input(pending.socket.as_fd())));
            if let Some(peers) = &self.peers {
                for watched in peers.watched().map_err(ServerError::Peers)? {
                    let output = if watched.awaits_room {
                        PollFlags::OUT
                    } else {
                        PollFlags::empty()
                    };
                    polled.push(PollFd::from_borrowed_fd(
                        watched.descriptor,
                        PollFlags::IN | output,
                    ));
                }
            }
            match rustix::event::poll(&mut polled, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    return Err(ServerError::System {
                        call: "poll",
                        error: errno.into(),
                    });
                }
            }
            let is_ready = |at: usize| polled.get(at).is_some_and(|fd| !fd.revents().is_empty());
            let place = |at: usize| first_client.saturating_add(at.saturating_mul(2));
            let ready: Vec<_> = (0..ids.len())
                .map(|at| (is_ready(place(at)), is_ready(place(at).saturating_add(1))))
                .collect();
            (is_ready(0), first_client > first && is_ready(first), ready)
        };
        self.looked = within(LOOK_EVERY);
        for (id, (has_packets, is_dead)) in ids.into_iter().zip(ready) {
            if has_packets {
                self.take_packets(id);
            }
            let has_process = self
                .attached
                .get(&id)
                .is_some_and(|client| client.process.is_some());
            if is_dead && has_process {
                self.end(id, GoneReason::Died);
            }
        }
        self.take_pending();
        if is_asked {
            self.accept()?;
        }
        Ok(is_stopped)
    }

    fn end(&mut self, id: ClientId, reason: GoneReason) {
        if self.attached.remove(&id).is_some() {
            // Messages that it published before its end are still routed.
            self.router.poll_last(id);
            self.router.detach(id, reason);
        }
    }

    fn take_packets(&mut self, id: ClientId) {
        for _ in 0..PACKETS_MAX {
            let Some(client) = self.attached.get(&id) else {
                return;
            };
            match client.socket.receive() {
                Ok(Came::Nothing) => return,
                Ok(Came::Packet(Ok(Packet::Wake), descriptors)) if descriptors.is_empty() => {}
                Ok(Came::Packet(Ok(Packet::Detach), _)) => self.end(id, GoneReason::Detached),
                Ok(Came::Packet(..)) => {
                    self.tell_cut(id, CutReason::Packet);
                    self.router.detach(id, GoneReason::CutOff);
                }
                Ok(Came::End) | Err(_) => self.end(id, GoneReason::Died),
            }
        }
    }

    fn accept(&mut self) -> Result<(), ServerError> {
        while self.pending.len() < PENDING_MAX {
            match PacketSocket::accept(&self.listener) {
                Ok(Some(socket)) => self.pending.push(Pending {
                    socket,
                    until: within(self.config.attach_within),
                }),
                Ok(None) => break,
                // Without descriptors, the connection waits in the queue until some are free.
                Err(error) if is_short_of_descriptors(&error) => {
                    self.accept_after = Some(within(SHORT_OF_DESCRIPTORS));
                    break;
                }
                Err(error) => {
                    return Err(ServerError::System {
                        call: "accept4",
                        error,
                    });
                }
            }
        }
        Ok(())
    }

    /// Attaches the connections whose packet came, and refuses those that had their time.
    fn take_pending(&mut self) {
        for pending in core::mem::take(&mut self.pending) {
            match pending.socket.receive() {
                Ok(Came::Nothing) if pending.until.has_passed(now()) => {
                    let _ = pending.socket.send(&Packet::Refused(AttachRefusal::TooLate), &[]);
                }
                Ok(Came::Nothing) => self.pending.push(pending),
                Ok(Came::End) | Err(_) => {}
                Ok(Came::Packet(packet, descriptors)) => {
                    let request = match packet {
                        Ok(Packet::Attach(request)) => Ok(request),
                        Ok(_) => Err(AttachRefusal::Packet),
                        Err(refusal) => Err(refusal),
                    };
                    let attached =
                        request.and_then(|request| self.attach(&pending.socket, &request, descriptors));
                    match attached {
                        Ok((id, process)) => {
                            let answer = Packet::Attached(self.router.node());
                            // A process that is gone by now is found by its socket.
                            let _ = pending.socket.send(&answer, &[]);
                            let socket = pending.socket;
                            self.attached.insert(id, Attached { socket, process });
                        }
                        Err(refusal) => {
                            let _ = pending.socket.send(&Packet::Refused(refusal), &[]);
                        }
                    }
                }
            }
        }
    }

    fn attach(
        &mut self,
        socket: &PacketSocket,
        request: &AttachRequest,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(ClientId, Option<OwnedFd>), AttachRefusal> {
        let who = socket.credentials().map_err(|_| AttachRefusal::Gone)?;
        let Ok([rings, arena]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return Err(AttachRefusal::Descriptors);
        };
        // Before its memory is mapped, which costs more.
        self.router.admit(who, request)?;
        let process = process_of(who)?;
        let memory = request.layout.adopt(rings, arena)?;
        let id = self.router.attach(who, request, memory)?;
        Ok((id, process))
    }
}

fn is_short_of_descriptors(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE]
        .iter()
        .any(|of| errno == Some(of.raw_os_error()))
}

/// A descriptor of the process. A process that died meanwhile, and whose number another has, is found by the end of its socket.
fn process_of(who: Credentials) -> Result<Option<OwnedFd>, AttachRefusal> {
    let Some(pid) = who
        .pid
        .and_then(|pid| Pid::from_raw(i32::try_from(pid.get()).ok()?))
    else {
        return Ok(None);
    };
    let process = pidfd_open(pid, PidfdFlags::empty());
    process.map(Some).map_err(|_| AttachRefusal::Gone)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.config.socket);
    }
}
