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

use super::pace::Pace;
use super::socket::{Came, PacketSocket, listen};
use crate::name::{Credentials, NodeNumber};
use crate::packet::{AttachRequest, Packet};
use crate::peers::Peers;
use crate::reason::{AttachRefusal, CutReason, GoneReason};
use crate::router::{ClientId, Router, RouterCounts, RouterLimits};

/// The most connections without an attach packet. More wait in the listener's queue.
const PENDING_MAX: usize = 16;

/// The most of those of one user: it leaves places to others.
const PENDING_OF_USER_MAX: usize = 8;

/// The most packets that are taken of a socket in one turn.
const PACKETS_MAX: usize = 4;

/// How long a daemon that is replaced may take to end.
const REPLACED_WITHIN: Duration = Duration::from_secs(30);

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
    /// Whether a daemon that listens at the path is asked to end, and this one goes on with its clients: not by default. It has to be of
    /// the same user.
    pub replace: bool,
    /// How long the processes of a daemon that died or was replaced may take to come back: a second by default. Meanwhile what is for
    /// one that is not there yet waits, and nothing is taken from other nodes.
    pub reattach_within: Duration,
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
            replace: false,
            reattach_within: Duration::from_secs(1),
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
    who: Credentials,
    until: Deadline,
}

/// The socket and the process of a client.
#[derive(Debug)]
struct Attached {
    socket: PacketSocket,
    /// Readable once the process is dead, even if another one keeps its socket open. `None` for a process of another namespace.
    process: Option<OwnedFd>,
}

/// A running daemon. Dropping it ends all clients' endpoints, unless another one takes over in time.
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
    /// When processes of a user that attached may be followed by the next.
    pace: Pace,
    /// A number that rises with each daemon of this machine's boot.
    epoch: u64,
    /// Until then, processes of a daemon before may come back.
    expecting: Option<Deadline>,
    /// The daemon that takes over. Its connection is closed last: then it listens.
    successor: Option<PacketSocket>,
}

impl Server {
    /// Listens. A socket that a daemon left behind at the path is replaced. With [`ServerConfig::replace`], it first waits up to 30
    /// seconds for the end of a daemon that listens there.
    ///
    /// # Errors
    /// Another daemon listens at the path, or the system refuses.
    pub fn bind(config: &ServerConfig) -> Result<Self, ServerError> {
        let failed = |error| ServerError::Listen {
            path: config.socket.clone(),
            error,
        };
        let is_replacing = config.replace && replace(&config.socket).map_err(failed)?;
        let (listener, is_left_behind) = listen(&config.socket, config.mode).map_err(failed)?;
        let is_expecting = is_replacing || is_left_behind;
        let mut router = Router::new(config.node, &config.limits);
        router.set_expecting(is_expecting);
        Ok(Self {
            config: config.clone(),
            listener,
            router,
            pending: Vec::new(),
            attached: BTreeMap::new(),
            looked: within(Duration::ZERO),
            accept_after: None,
            peers: None,
            pace: Pace::default(),
            epoch: epoch(),
            expecting: is_expecting.then(|| within(config.reattach_within)),
            successor: None,
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

    /// Serves until `stop` is readable, or until another daemon takes over.
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
        let is_taking = !is_awake && self.expecting.is_none();
        if let Some(peers) = self.peers.as_mut().filter(|_| is_taking) {
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

    /// Whether another daemon takes over once this one is dropped.
    #[must_use]
    pub const fn is_replaced(&self) -> bool {
        self.successor.is_some()
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
        if self.expecting.is_some_and(|until| until.has_passed(now())) {
            self.expecting = None;
            self.router.set_expecting(false);
        }
        let peers = self.peers.as_mut().filter(|_| self.expecting.is_none());
        let peers = peers.map(|peers| peers.poll(&mut self.router));
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
        // One whose packet waits is not refused for its time.
        let pending = self
            .pending
            .iter()
            .map(|pending| self.pace.next(pending.who.uid).unwrap_or(pending.until));
        pending.chain(self.accept_after).chain(self.expecting).min()
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
            let is_next = |pending: &&Pending| self.pace.next(pending.who.uid).is_none();
            let pending = self.pending.iter().filter(is_next);
            polled.extend(pending.map(|pending| input(pending.socket.as_fd())));
            if let Some(peers) = self.peers.as_ref().filter(|_| self.expecting.is_none()) {
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
        Ok(is_stopped || self.is_replaced())
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
                Ok(Some(socket)) => self.pend(socket),
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

    /// Lets a connection wait for its packet, unless as many of its user do as may.
    fn pend(&mut self, socket: PacketSocket) {
        let Ok(who) = socket.credentials() else { return };
        let of_user = self.pending.iter().filter(|pending| pending.who.uid == who.uid);
        if of_user.count() >= PENDING_OF_USER_MAX {
            let _ = socket.send(&Packet::Refused(AttachRefusal::TooManyPending), &[]);
            return;
        }
        let until = within(self.config.attach_within);
        self.pending.push(Pending { socket, who, until });
    }

    /// Attaches the connections whose packet came, and refuses those that had their time.
    fn take_pending(&mut self) {
        let time = now();
        self.pace.forget(time);
        for pending in core::mem::take(&mut self.pending) {
            // Its packet waits, with the time that it had for it.
            if self.pace.next(pending.who.uid).is_some() {
                self.pending.push(pending);
                continue;
            }
            match pending.socket.receive() {
                Ok(Came::Nothing) if pending.until.has_passed(now()) => {
                    let _ = pending.socket.send(&Packet::Refused(AttachRefusal::TooLate), &[]);
                }
                Ok(Came::Nothing) => self.pending.push(pending),
                Ok(Came::End) | Err(_) => {}
                Ok(Came::Packet(Ok(Packet::Replace), _)) if may_replace(pending.who) => {
                    self.successor = Some(pending.socket);
                }
                Ok(Came::Packet(packet, descriptors)) => {
                    let request = match packet {
                        Ok(Packet::Attach(request)) => Ok(request),
                        Ok(_) => Err(AttachRefusal::Packet),
                        Err(refusal) => Err(refusal),
                    };
                    let attached =
                        request.and_then(|request| self.attach(pending.who, &request, descriptors));
                    match attached {
                        Ok((id, process)) => {
                            let answer = Packet::Attached {
                                node: self.router.node(),
                                epoch: self.epoch,
                                incarnation: id.incarnation(),
                            };
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
        who: Credentials,
        request: &AttachRequest,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(ClientId, Option<OwnedFd>), AttachRefusal> {
        if descriptors.len() != request.layout.descriptors() {
            return Err(AttachRefusal::Descriptors);
        }
        // Before its memory is mapped, which costs more.
        self.router.admit(who, request)?;
        let process = process_of(who)?;
        self.pace.attached(who.uid, request.layout.bytes(), now());
        let memory = request.layout.adopt(descriptors)?;
        let id = self.router.attach(who, request, memory)?;
        Ok((id, process))
    }
}

/// A number that rises with time: the time since the machine was started.
fn epoch() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let [seconds, nanoseconds] = [time.tv_sec, time.tv_nsec].map(|of| u64::try_from(of).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// Whether the process behind a socket may end this daemon: one of the same user, or of the root user.
fn may_replace(who: Credentials) -> bool {
    who.uid == rustix::process::geteuid().as_raw() || who.uid == 0
}

/// Asks the daemon at a path to end, and waits for that. `false` if there is none.
fn replace(path: &Path) -> io::Result<bool> {
    let deadline = within(REPLACED_WITHIN);
    loop {
        match ask_for_place(path, deadline) {
            // Others of this user are about to attach, or as many connections wait as fit: there is a place soon.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if deadline.has_passed(now()) {
                    return Err(io::Error::from(io::ErrorKind::TimedOut));
                }
                std::thread::sleep(LOOK_EVERY);
            }
            answered => return answered,
        }
    }
}

/// Asks once. `WouldBlock` if the daemon has no place for the question now.
fn ask_for_place(path: &Path, deadline: Deadline) -> io::Result<bool> {
    let running = match PacketSocket::connect(path) {
        Ok(running) => running,
        Err(error) => {
            let is_none = matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            );
            return if is_none { Ok(false) } else { Err(error) };
        }
    };
    match running.send(&Packet::Replace, &[]) {
        // Refused before it was read: the reason is there.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        sent => drop(sent?),
    }
    loop {
        match running.receive()? {
            Came::End => return Ok(true),
            Came::Packet(Ok(Packet::Refused(AttachRefusal::TooManyPending)), _) => {
                return Err(io::Error::from(io::ErrorKind::WouldBlock));
            }
            Came::Packet(..) => return Err(io::Error::from(io::ErrorKind::PermissionDenied)),
            Came::Nothing if deadline.has_passed(now()) => {
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
            Came::Nothing => {
                let timeout = Timespec::try_from(deadline.remaining(now())).ok();
                match rustix::event::poll(&mut [PollFd::new(&running, PollFlags::IN)], timeout.as_ref()) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
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
