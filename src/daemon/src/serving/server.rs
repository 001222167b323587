//! The server: one thread that accepts clients, moves their messages, and sleeps while there is nothing to do.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use doorbell::{Deadline, Handle, WaitError, now, within};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::helpers::{Helpers, Work};
use super::pace::Pace;
use super::pending::{PENDING_MAX, Pending, Share, pend};
use super::replacing::{is_owner, replace};
use super::shortage::shortage;
use super::socket::{Listening, PacketSocket, Seen, listen};
use crate::name::NodeNumber;
use crate::packet::Packet;
use crate::peers::Peers;
use crate::reason::{AttachRefusal, CutReason, GoneReason};
use crate::router::{ClientId, Ended, Router, RouterCounts, RouterLimits};

mod attaching;
mod watching;

use watching::Watch;

/// Maximum number of packets that are taken from a socket in one turn.
const PACKETS_MAX: usize = 4;

/// Interval at which a busy daemon checks its sockets.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Time limit for moving the last messages of a process that ended.
const LAST_WITHIN: Duration = Duration::from_millis(100);

/// Pause of accepting while this process lacks descriptors.
const SHORT_OF_DESCRIPTORS: Duration = Duration::from_millis(10);

/// Settings of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Path of the socket. Its folder has to exist.
    pub socket: PathBuf,
    /// Mode of the socket file, which decides which users may connect. `0o600` by default.
    pub mode: u32,
    /// The number of this node: 0 by default.
    pub node: NodeNumber,
    /// Limits of clients.
    pub limits: RouterLimits,
    /// Time within which a connection has to send its attach packet: one second by default.
    pub attach_within: Duration,
    /// Whether to replace a daemon that listens at the path, and take over its clients: not by default. Requires its user, or root.
    pub replace: bool,
    /// Time within which processes of the previous daemon may attach again: one second by default. There is no such time if the previous
    /// daemon left no socket file. Meanwhile messages to absent endpoints wait, and no frames from other nodes are processed.
    pub reattach_within: Duration,
    /// How long the server polls without success before it sleeps: 50 us by default. A server with a dedicated processor can poll longer.
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

/// Reason why the server cannot start, or cannot continue.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServerError {
    /// The server cannot listen at the path, for example since another daemon does.
    Listen {
        /// The path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// A system call failed.
    System {
        /// The name of the system call.
        call: &'static str,
        /// The error.
        error: io::Error,
    },
    /// A device failed, or cannot deliver completion notifications.
    Peers(WaitError),
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { path, error } => {
                write!(f, "cannot listen at {}: {error}", path.display())?;
                f.write_str(match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        "; a daemon listens there: end it, or take over from it with --replace"
                    }
                    io::ErrorKind::AlreadyExists => {
                        "; the file there is no socket, and is not replaced: name another path, or remove it"
                    }
                    io::ErrorKind::PermissionDenied => {
                        "; the folder, the .lock file beside the socket, or the daemon that listens there is of another user"
                    }
                    _ => "",
                })
            }
            Self::System { call, error } => write!(f, "{call}: {error}"),
            Self::Peers(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ServerError {}

/// The socket and the process of a client.
#[derive(Debug)]
struct Attached {
    socket: PacketSocket,
    user: u32,
    /// Whole seconds between the start of the daemon and the attach.
    since_s: u32,
    /// Number of announced sleeps before it attached, and number of its packets that woke the daemon.
    sleeps_before: u64,
    wakes: u64,
    /// Pidfd, which becomes readable when the process dies, even if another one keeps the socket open. `None` if its namespace is not visible.
    process: Option<OwnedFd>,
}

impl Attached {
    /// Whether it may send another wake packet: one for each announced sleep.
    const fn may_wake(&self, sleeps: u64) -> bool {
        self.wakes < sleeps.saturating_sub(self.sleeps_before)
    }
}

/// A client whose process has ended, and whose last messages are being moved.
#[derive(Debug)]
struct Ending {
    id: ClientId,
    reason: GoneReason,
    until: Deadline,
}

/// A running daemon. Dropping it ends all endpoints, unless another daemon takes over in time.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    listening: Listening,
    router: Router,
    pending: Vec<Pending>,
    attached: BTreeMap<ClientId, Attached>,
    ending: Vec<Ending>,
    helpers: Helpers,
    /// Number of announced sleeps.
    sleeps: u64,
    looked: Deadline,
    /// No connection is accepted before this time: the process lacks descriptors, or too many wait to be closed.
    accept_after: Option<Deadline>,
    peers: Option<Peers>,
    /// Times at which users that attached a process may attach the next.
    pace: Pace,
    /// Epoch: it increases with each daemon until the machine reboots.
    epoch: u64,
    /// Time until which processes of the previous daemon may attach again.
    expecting: Option<Deadline>,
    /// Connection of the daemon that takes over. It is closed last, which tells that daemon to listen.
    successor: Option<PacketSocket>,
    watch: Watch,
}

impl Server {
    /// Creates the socket and listens. The socket file of a daemon that has ended is replaced. With [`ServerConfig::replace`], a daemon that
    /// listens at the path is asked to end, which may take up to 30 seconds.
    ///
    /// # Errors
    /// Another daemon listens at the path, or a system call failed.
    pub fn bind(config: &ServerConfig) -> Result<Self, ServerError> {
        let failed = |error| ServerError::Listen {
            path: config.socket.clone(),
            error,
        };
        let is_replacing = config.replace && replace(&config.socket).map_err(failed)?;
        let listening = listen(&config.socket, config.mode).map_err(failed)?;
        let is_expecting = is_replacing || listening.is_left_behind;
        // The other descriptors are left to processes that attach.
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
        let helpers = Helpers::new(files.saturating_sub(files / 4)).map_err(|error| ServerError::System {
            call: "eventfd",
            error,
        })?;
        let mut router = Router::new(config.node, &config.limits);
        router.set_expecting(is_expecting);
        Ok(Self {
            config: config.clone(),
            listening,
            router,
            pending: Vec::new(),
            attached: BTreeMap::new(),
            ending: Vec::new(),
            helpers,
            sleeps: 0,
            looked: within(Duration::ZERO),
            accept_after: None,
            peers: None,
            pace: Pace::default(),
            epoch: epoch(),
            expecting: is_expecting.then(|| within(config.reattach_within)),
            successor: None,
            watch: Watch::new(),
        })
    }

    /// Sets the links to other nodes. Their Workers have to support notification.
    pub fn set_peers(&mut self, peers: Peers) {
        self.peers = Some(peers);
    }

    /// Sets the handle by which a node is reached. Does nothing without [`Server::set_peers`].
    pub fn add_peer(&mut self, node: NodeNumber, handle: Handle) {
        if let Some(peers) = &mut self.peers {
            peers.add(&mut self.router, node, handle);
        }
    }

    /// Serves until `stop` is readable, or until another daemon takes over.
    ///
    /// # Errors
    /// A system call failed, or a device failed.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> Result<(), ServerError> {
        while !self.run_until(stop, within(Duration::from_secs(3600)))? {}
        Ok(())
    }

    /// Serves until `stop` is readable, until another daemon takes over, or until this time. Returns whether to stop.
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

    /// Sleeps until there is something to do, or until this time. Returns whether to stop.
    fn sleep(&mut self, stop: BorrowedFd<'_>, until: Deadline) -> Result<bool, ServerError> {
        self.sleeps = self.sleeps.saturating_add(1);
        self.router.announce_sleep();
        let mut until = self.wakes().map_or(until, |wake| until.min(wake));
        // Polls once more after the announcement, and sleeps only if there is nothing to do.
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

    /// Whether another daemon takes over as soon as this one is dropped.
    #[must_use]
    pub const fn is_replaced(&self) -> bool {
        self.successor.is_some()
    }

    /// Counts since the start.
    #[must_use]
    pub const fn counts(&self) -> RouterCounts {
        self.router.counts()
    }

    /// Number of attached clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.attached.len()
    }

    /// Moves messages, and wakes clients that sleep.
    fn move_messages(&mut self) -> Result<bool, ServerError> {
        let attached = &self.attached;
        let mut is_moved = self.router.poll(|id| {
            if let Some(client) = attached.get(&id) {
                // A send error is ignored: the end of a client is noticed at its socket. A full queue has packets to read.
                let _ = client.socket.send(&Packet::Wake, &[]);
            }
        });
        while let Some((id, reason, ended)) = self.router.take_cut() {
            self.tell_cut(id, reason, &ended);
        }
        is_moved |= self.move_last();
        self.free_retired();
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

    /// Moves the last messages of clients that ended, one turn each, and detaches clients without any. Returns whether any had ended.
    fn move_last(&mut self) -> bool {
        let is_any = !self.ending.is_empty();
        for ending in core::mem::take(&mut self.ending) {
            let has_more = self.router.poll_last(ending.id);
            if has_more && !ending.until.has_passed(now()) {
                self.ending.push(ending);
            } else {
                let ended = self.router.detach(ending.id, ending.reason);
                ended.inspect(|ended| self.watch.gone(ended, ending.reason));
            }
            // Called for each client, since the router holds only a limited number of retired clients, and unmaps others itself.
            self.free_retired();
        }
        is_any
    }

    /// Passes the memory of detached clients to the threads of their users.
    fn free_retired(&mut self) {
        while let Some(retired) = self.router.take_retired() {
            let owner = (retired.user(), Share::Unmapping);
            self.helpers.give(owner, Work::Unmap(retired));
        }
    }

    fn tell_cut(&mut self, id: ClientId, reason: CutReason, ended: &Ended) {
        self.watch.cut_off(ended, reason);
        if let Some(client) = self.attached.remove(&id) {
            let _ = client.socket.send(&Packet::Cut(reason), &[]);
            self.let_go((client.user, Share::Job(ended.job)), client.socket);
        }
    }

    /// Closes a socket. If descriptors may be in its queue, the thread of its user's share does so.
    fn let_go(&mut self, owner: (u32, Share), socket: PacketSocket) {
        if !socket.drain() {
            self.helpers.give(owner, Work::Close(socket));
        }
    }

    fn refuse(&mut self, pending: Pending, refusal: AttachRefusal) {
        self.watch.refused(pending.who, refusal);
        let _ = pending.socket.send(&Packet::Refused(refusal), &[]);
        self.let_go((pending.who.uid, pending.share), pending.socket);
    }

    /// Time of the next timeout: of a pending connection, or of an event below.
    fn wakes(&self) -> Option<Deadline> {
        // A connection whose packet has arrived is not refused for its timeout.
        let pending = self.pending.iter().map(|pending| {
            let user = pending.who.uid;
            if pending.share == Share::Unknown {
                pending.until
            } else if self.helpers.is_free(user, pending.share) {
                self.pace.next(user).unwrap_or(pending.until)
            } else {
                within(LOOK_EVERY)
            }
        });
        let retry = self.helpers.lacks_threads().then(|| within(LOOK_EVERY));
        let others = [self.accept_after, self.expecting, self.watch.due(), retry];
        pending.chain(others.into_iter().flatten()).min()
    }

    /// Waits until a descriptor is ready, or until this time, and handles everything that is ready. Returns whether to stop.
    fn look(&mut self, stop: BorrowedFd<'_>, until: Deadline) -> Result<bool, ServerError> {
        let timeout = Timespec::try_from(until.remaining(now())).ok();
        let ids: Vec<_> = self.attached.keys().copied().collect();
        let (is_stopped, is_asked, ready) = {
            let mut polled = Vec::with_capacity(ids.len().saturating_mul(2).saturating_add(PENDING_MAX));
            let input = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            polled.extend([input(stop), input(self.helpers.as_fd())]);
            let first = polled.len();
            polled.push(input(self.listening.listener.as_fd()));
            self.accept_after = self.accept_after.filter(|after| !after.has_passed(now()));
            if self.accept_after.is_some() {
                polled.truncate(first);
            }
            let first_client = polled.len();
            for client in self.attached.values() {
                // The number of entries does not exceed the limit of descriptors, as `poll` requires.
                polled.push(input(client.socket.as_fd()));
                polled.extend(client.process.as_ref().map(|process| input(process.as_fd())));
            }
            // The packets of all others have arrived.
            let is_silent = |pending: &&Pending| pending.share == Share::Unknown;
            let pending = self.pending.iter().filter(is_silent);
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
                Ok(_) | Err(rustix::io::Errno::INTR | rustix::io::Errno::NOMEM) => {}
                Err(errno) => {
                    return Err(ServerError::System {
                        call: "poll",
                        error: errno.into(),
                    });
                }
            }
            let is_ready = |at: usize| polled.get(at).is_some_and(|fd| !fd.revents().is_empty());
            let mut places = first_client..;
            let mut is_next_ready = || places.next().is_some_and(is_ready);
            let ready: Vec<_> = self
                .attached
                .values()
                .map(|client| {
                    let has_packets = is_next_ready();
                    (has_packets, client.process.is_some() && is_next_ready())
                })
                .collect();
            (is_ready(0), first_client > first && is_ready(first), ready)
        };
        self.looked = within(LOOK_EVERY);
        // Events after a sleep count for the next second.
        self.watch.end_second();
        for (id, (has_packets, is_dead)) in ids.into_iter().zip(ready) {
            if has_packets {
                self.take_packets(id);
            }
            if is_dead {
                self.end(id, GoneReason::Died);
            }
        }
        self.helpers.advance();
        self.take_adopted();
        self.take_pending();
        if is_asked {
            self.accept()?;
        }
        Ok(is_stopped || self.is_replaced())
    }

    fn end(&mut self, id: ClientId, reason: GoneReason) {
        if let Some(client) = self.attached.remove(&id) {
            let job = self.router.job_of(id);
            self.let_go(
                (client.user, job.map_or(Share::Unknown, Share::Job)),
                client.socket,
            );
            // Messages that the process published before its end are still routed.
            let until = within(LAST_WITHIN);
            self.ending.push(Ending { id, reason, until });
        }
    }

    fn take_packets(&mut self, id: ClientId) {
        for _ in 0..PACKETS_MAX {
            let Some(client) = self.attached.get_mut(&id) else {
                return;
            };
            match client.socket.look() {
                Ok(Seen::Nothing) => return,
                Ok(Seen::Packet {
                    packet: Ok(Packet::Wake),
                    has_descriptors: false,
                }) if client.may_wake(self.sleeps) => {
                    client.wakes = client.wakes.saturating_add(1);
                    client.socket.pass();
                }
                Ok(Seen::Packet {
                    packet: Ok(Packet::Detach),
                    has_descriptors: false,
                }) => {
                    client.socket.pass();
                    self.end(id, GoneReason::Detached);
                }
                Ok(Seen::Packet { .. }) => {
                    if let Some(ended) = self.router.detach(id, GoneReason::CutOff) {
                        self.tell_cut(id, CutReason::Packet, &ended);
                    }
                }
                Ok(Seen::End) | Err(_) => self.end(id, GoneReason::Died),
            }
        }
    }

    fn accept(&mut self) -> Result<(), ServerError> {
        for _ in 0..PENDING_MAX {
            if self.helpers.is_full() {
                self.accept_after = Some(within(SHORT_OF_DESCRIPTORS));
                break;
            }
            match PacketSocket::accept(&self.listening.listener) {
                Ok(Some(socket)) => self.pend(socket),
                Ok(None) => break,
                // The process lacks descriptors or memory: the connection waits in the backlog.
                Err(error) if is_short(&error) => {
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

    /// Takes a new connection. If it has to wait, it is added to the pending ones, if there is room for it.
    fn pend(&mut self, socket: PacketSocket) {
        let share = Share::Unknown;
        let Ok(who) = socket.credentials() else {
            return self.let_go((u32::MAX, share), socket);
        };
        let until = within(self.config.attach_within);
        let pending = Pending {
            socket,
            who,
            until,
            share,
        };
        // A packet that is there already takes no place without one.
        let waiting = self.advance(pending);
        if let Some(without) = waiting.and_then(|pending| pend(&mut self.pending, pending)) {
            self.refuse(without, AttachRefusal::TooManyPending);
        }
    }

    /// Attaches the connections whose packet has arrived, and refuses those whose time has passed. The jobs of a user take turns.
    fn take_pending(&mut self) {
        let mut pending = core::mem::take(&mut self.pending);
        pending.sort_by_key(|pending| self.pace.was_last(pending.who.uid, pending.share));
        self.pace.forget(now());
        for pending in pending {
            let waiting = self.advance(pending);
            self.pending.extend(waiting);
        }
    }

    /// Attaches or refuses a connection. Returns it if it has to wait.
    fn advance(&mut self, mut pending: Pending) -> Option<Pending> {
        let user = pending.who.uid;
        let is_late = pending.until.has_passed(now());
        let packet = match pending.socket.look() {
            Ok(Seen::Packet {
                packet: Ok(Packet::Replace),
                has_descriptors: false,
            }) if is_owner(pending.who) => {
                pending.socket.pass();
                Watch::replaced(pending.who);
                self.successor = Some(pending.socket);
                return None;
            }
            Ok(Seen::Nothing) if is_late => {
                self.refuse(pending, AttachRefusal::TooLate);
                return None;
            }
            Ok(Seen::Nothing) => return Some(pending),
            Ok(Seen::End) | Err(_) => {
                self.let_go((user, pending.share), pending.socket);
                return None;
            }
            Ok(Seen::Packet { packet, .. }) => packet,
        };
        // A process without the key of a job takes nothing of that job.
        let admitted = packet.and_then(|packet| match &packet {
            Packet::Attach(request) => {
                self.router.admit(pending.who, request)?;
                Ok((Share::Job(request.job), packet))
            }
            Packet::Status { .. } => Ok((Share::Status, packet)),
            _ => Err(AttachRefusal::Packet),
        });
        let (share, packet) = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => {
                self.refuse(pending, refusal);
                return None;
            }
        };
        pending.share = share;
        if !self.helpers.is_free(user, share) {
            // It waits for the memory and descriptors of its share, but not for work that does not end.
            if !is_late || !self.helpers.is_stuck(user, share, self.config.attach_within) {
                return Some(pending);
            }
            self.refuse(pending, AttachRefusal::TooLate);
            return None;
        }
        match packet {
            // It waits until its user may attach again.
            Packet::Attach(_) if self.pace.next(user).is_some() => return Some(pending),
            Packet::Attach(request) => self.ask_to_attach(pending, request),
            Packet::Status { bytes } => self.ask_for_status(pending, bytes),
            _ => {}
        }
        None
    }
}

/// A number that increases with time: the time since boot.
fn epoch() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let [seconds, nanoseconds] = [time.tv_sec, time.tv_nsec].map(|of| u64::try_from(of).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// Whether the error means that the system lacks descriptors or memory for now.
fn is_short(error: &io::Error) -> bool {
    error.raw_os_error().and_then(shortage).is_some()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.listening.end();
        // No socket with descriptors in its queue is closed here, which could block: the next daemon waits for this.
        while let Ok(Some(socket)) = PacketSocket::accept(&self.listening.listener) {
            self.let_go((u32::MAX, Share::Unknown), socket);
        }
        for pending in core::mem::take(&mut self.pending) {
            self.let_go((pending.who.uid, pending.share), pending.socket);
        }
        for client in core::mem::take(&mut self.attached).into_values() {
            self.let_go((client.user, Share::Unknown), client.socket);
        }
    }
}
