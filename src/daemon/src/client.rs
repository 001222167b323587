//! The client side of the daemon: the endpoint of a process, and the socket on which it sleeps and by which it wakes the daemon.
//!
//! If the daemon ends, the client attaches to the next daemon, under the same name and with the contents of its arena.

use core::fmt;
use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use doorbell::interprocess::{SharedArena, SharedMemoryError};
use doorbell::{Deadline, RemoteAccess, now, within};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::endpoint::{ArenaTransfer, Endpoint, EndpointEvent, EndpointRefusal};
use crate::name::{EndpointAddress, NodeNumber};
use crate::one_sided::{ArenaGrant, ArenaOffer, ArenaOperation, ArenaRange};
use crate::packet::{AttachRequest, Packet};
use crate::reason::{AttachRefusal, CutReason};
use crate::serving::socket::{Came, PacketSocket};

/// Interval between connection attempts while the daemon's backlog is full, or while no daemon listens.
const RETRY_EVERY: Duration = Duration::from_millis(1);

/// Default time within which a client has to find the next daemon.
const REATTACH_WITHIN: Duration = Duration::from_secs(5);

/// Longest time that [`Client::detach`] waits for room in the socket.
const DETACHED_WITHIN: Duration = Duration::from_secs(1);

/// Reason why a client cannot attach, or cannot continue.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// The daemon refused to attach the process.
    Refused(AttachRefusal),
    /// The daemon cut this client off, since the client violated the protocol.
    Cut(CutReason),
    /// The daemon ended, and no other daemon came in time ([`Client::set_reattach_within`]): attach again once there is another.
    DaemonGone,
    /// The daemon did not answer by the deadline.
    TooLate,
    /// The memory could not be created.
    Memory(SharedMemoryError),
    /// The daemon violated the protocol of the rings, or did not seal their memory.
    Broken(EndpointRefusal),
    /// No daemon listens at the path, or this user has no permission to connect to it.
    Connect {
        /// The path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The process that listens at the path may belong to any user, so the job's key is not sent to it.
    Stranger {
        /// The path.
        path: PathBuf,
        /// The user ID of that process.
        uid: u32,
    },
    /// A system call failed.
    System {
        /// The name of the system call.
        call: &'static str,
        /// The error.
        error: io::Error,
    },
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(reason) => write!(f, "the daemon refuses this process: {reason}"),
            Self::Cut(reason) => write!(f, "the daemon cut this process off: {reason}"),
            Self::DaemonGone => f.write_str("the daemon is gone: attach again once there is another"),
            Self::TooLate => f.write_str("the daemon did not answer by the deadline"),
            Self::Memory(error) => error.fmt(f),
            Self::Broken(refusal) => refusal.fmt(f),
            Self::Connect { path, error } => write!(f, "no daemon at {}: {error}", path.display()),
            Self::Stranger { path, uid } => write!(
                f,
                "the process that listens at {} is of user {uid}, and others may write to a folder of that path; run the daemon as root or \
                 as this user, or in a folder that its user alone may write to",
                path.display()
            ),
            Self::System { call, error } => write!(f, "{call}: {error}"),
        }
    }
}

impl core::error::Error for ClientError {}

fn failed(call: &'static str) -> impl FnOnce(io::Error) -> ClientError {
    move |error| ClientError::System { call, error }
}

/// A process that is attached to its node's daemon. After [`Client::detach`] its peers receive the reason "detached"; after a drop they
/// receive "died".
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    socket: PacketSocket,
    address: EndpointAddress,
    path: PathBuf,
    request: AttachRequest,
    epoch: u64,
    reattach_within: Duration,
    /// Set while the daemon is gone.
    lost: Option<Lost>,
}

/// State of a client whose daemon is gone.
#[derive(Debug)]
struct Lost {
    until: Deadline,
    /// New memory that was sent with an attach packet, and the socket of that attempt.
    attempt: Option<(Endpoint, PacketSocket)>,
    /// Memory of a failed attempt, to be used for the next one.
    spare: Option<Endpoint>,
    /// Reason for which the last attempt was refused, if a later attempt may succeed.
    refusal: Option<AttachRefusal>,
}

/// Answer to an attach packet.
struct Answer {
    node: NodeNumber,
    epoch: u64,
    incarnation: u64,
}

/// Sends an attach packet to the daemon at a path, with the spare memory or new memory. Returns `None` while the backlog is full.
fn begin(
    path: &Path,
    request: &AttachRequest,
    spare: &mut Option<Endpoint>,
) -> Result<Option<(Endpoint, PacketSocket)>, ClientError> {
    // Allocates the memory first, which takes long: the daemon waits for an attach packet for a limited time, and limits the connections
    // without one.
    let endpoint = match spare.take() {
        Some(endpoint) => endpoint,
        None => Endpoint::new(request.layout).map_err(ClientError::Memory)?,
    };
    let socket = match PacketSocket::connect(path) {
        Ok(socket) => socket,
        Err(error) => {
            *spare = Some(endpoint);
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(ClientError::Connect {
                    path: path.to_owned(),
                    error,
                }),
            };
        }
    };
    let uid = socket.credentials().map_err(failed("getsockopt"))?.uid;
    if !may_know(path, uid).map_err(failed("stat"))? {
        let path = path.to_owned();
        return Err(ClientError::Stranger { path, uid });
    }
    match socket.send(&Packet::Attach(*request), &endpoint.descriptors()) {
        // The daemon refused the connection before it read the packet: the reason can still be received.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        sent => drop(sent.map_err(failed("sendmsg"))?),
    }
    Ok(Some((endpoint, socket)))
}

/// Whether the job's key may be sent to a process of this user that listens at this path. The user has to be root, this process's user, or
/// the owner of a folder in which no other user can have created the socket.
fn may_know(path: &Path, uid: u32) -> io::Result<bool> {
    if uid == 0 || uid == rustix::process::geteuid().as_raw() {
        return Ok(true);
    }
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let named = std::path::absolute(folder.unwrap_or_else(|| Path::new(".")))?;
    let real = std::fs::canonicalize(&named)?;
    let mut folders = Vec::new();
    // Both paths are checked: a user who can place a symbolic link in the named path chooses the real folders.
    for folder in real.ancestors().chain(named.ancestors()) {
        let stat = rustix::fs::stat(folder)?;
        folders.push((stat.st_uid, stat.st_mode));
    }
    Ok(is_of(uid, &folders))
}

/// Whether the first folder belongs to a user, and only this user and root can write to it and to the folders above it. Each entry is owner
/// and mode.
fn is_of(uid: u32, folders: &[(u32, u32)]) -> bool {
    let is_closed = |(of, mode): &(u32, u32)| (*of == 0 || *of == uid) && mode & 0o022 == 0;
    folders.first().is_some_and(|(of, _)| *of == uid) && folders.iter().all(is_closed)
}

/// Whether a later attempt may succeed.
const fn is_for_now(refusal: AttachRefusal) -> bool {
    leaves_memory(refusal) || matches!(refusal, AttachRefusal::NoMemory)
}

/// Whether a later attempt may succeed, and the daemon has not touched the memory, so that it can be sent again.
const fn leaves_memory(refusal: AttachRefusal) -> bool {
    matches!(
        refusal,
        AttachRefusal::NameTaken
            | AttachRefusal::TooManyPending
            | AttachRefusal::TooLate
            | AttachRefusal::NoDescriptors
    )
}

/// Waits for the answer to an attach packet with this endpoint's memory. Returns `None` if it has not come by the deadline.
fn answer(
    endpoint: &Endpoint,
    socket: &PacketSocket,
    deadline: Deadline,
) -> Result<Option<Answer>, ClientError> {
    loop {
        match socket.receive().map_err(failed("recvmsg"))? {
            Came::Nothing => {
                if !sleep(socket, deadline)? && deadline.has_passed(now()) {
                    return Ok(None);
                }
            }
            // A daemon seals the memory before it answers. Accesses to memory that was truncated would raise SIGBUS.
            Came::Packet(Ok(Packet::Attached { .. })) if !endpoint.is_sealed() => {
                return Err(ClientError::Broken(EndpointRefusal::Broken));
            }
            Came::Packet(Ok(Packet::Attached {
                node,
                epoch,
                incarnation,
            })) => {
                return Ok(Some(Answer {
                    node,
                    epoch,
                    incarnation,
                }));
            }
            Came::Packet(Ok(Packet::Refused(reason))) => return Err(ClientError::Refused(reason)),
            Came::Packet(..) => return Err(ClientError::Refused(AttachRefusal::Packet)),
            Came::End => return Err(ClientError::DaemonGone),
        }
    }
}

impl Client {
    /// Attaches this process to the daemon that listens at `path`. Blocks until the deadline at most, and makes system calls.
    ///
    /// # Errors
    /// No daemon listens there; the listening process may belong to any user; the daemon refuses this process, with its reason; or the daemon
    /// does not answer by the deadline, or did not seal the memory. After a refusal for now, the client tries again until the deadline, and
    /// returns the last refusal.
    pub fn attach(path: &Path, request: &AttachRequest, deadline: Deadline) -> Result<Self, ClientError> {
        let (mut spare, mut refused) = (None, None);
        let late =
            |refused: Option<AttachRefusal>| refused.map_or(ClientError::TooLate, ClientError::Refused);
        let (mut endpoint, socket, answer) = loop {
            if let Some((endpoint, socket)) = begin(path, request, &mut spare)? {
                match answer(&endpoint, &socket, deadline) {
                    // Other processes of this user are attaching, or their connections are not closed yet.
                    Err(ClientError::Refused(
                        refusal @ (AttachRefusal::TooManyPending | AttachRefusal::TooLate),
                    )) => (spare, refused) = (Some(endpoint), Some(refusal)),
                    // The daemon lacks descriptors or memory.
                    Err(ClientError::Refused(
                        refusal @ (AttachRefusal::NoDescriptors | AttachRefusal::NoMemory),
                    )) => refused = Some(refusal),
                    answer => break (endpoint, socket, answer?.ok_or_else(|| late(refused))?),
                }
            }
            if deadline.has_passed(now()) {
                return Err(late(refused));
            }
            std::thread::sleep(RETRY_EVERY);
        };
        let address = EndpointAddress {
            node: answer.node,
            endpoint: request.endpoint,
        };
        endpoint.set_name(address, answer.epoch ^ answer.incarnation.rotate_left(32));
        Ok(Self {
            endpoint,
            socket,
            address,
            path: path.to_owned(),
            request: *request,
            epoch: answer.epoch,
            reattach_within: REATTACH_WITHIN,
            lost: None,
        })
    }

    /// Sets how long [`Client::wait`] looks for another daemon after its daemon has ended. The default is five seconds; zero disables it.
    pub const fn set_reattach_within(&mut self, time: Duration) {
        self.reattach_within = time;
    }

    /// Epoch of the daemon. It increases each time this client attaches to another daemon.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Address of this endpoint for the other endpoints of its job.
    #[must_use]
    pub const fn address(&self) -> EndpointAddress {
        self.address
    }

    /// Queues a message, as [`Endpoint::send`] does. [`Client::poll`] publishes it.
    ///
    /// # Errors
    /// As for [`Endpoint::send`].
    #[inline]
    pub fn send(&mut self, to: EndpointAddress, message: &[u8]) -> Result<u64, EndpointRefusal> {
        self.check()?;
        self.endpoint.send(to, message)
    }

    /// Grants access to a range of the arena, as [`Endpoint::grant`] does. [`Client::poll`] publishes the grant.
    ///
    /// # Errors
    /// As for [`Endpoint::grant`].
    pub fn grant(
        &mut self,
        to: EndpointAddress,
        range: ArenaRange,
        access: RemoteAccess,
    ) -> Result<ArenaGrant, EndpointRefusal> {
        self.check()?;
        self.endpoint.grant(to, range, access)
    }

    /// Revokes a grant, as [`Endpoint::revoke`] does. [`Client::poll`] publishes the revocation.
    ///
    /// # Errors
    /// As for [`Endpoint::revoke`].
    pub fn revoke(&mut self, grant: &ArenaGrant) -> Result<(), EndpointRefusal> {
        self.check()?;
        self.endpoint.revoke(grant)
    }

    /// Queues an operation on the arena of another process, as [`Endpoint::request`] does. [`Client::poll`] publishes it.
    ///
    /// # Errors
    /// As for [`Endpoint::request`].
    #[inline]
    pub fn request(
        &mut self,
        grant: &ArenaGrant,
        offset: u64,
        operation: &ArenaOperation,
    ) -> Result<u64, EndpointRefusal> {
        self.check()?;
        self.endpoint.request(grant, offset, operation)
    }

    /// Offers a range of the arena to another process, as [`Endpoint::offer`] does. [`Client::poll`] publishes the offer.
    ///
    /// # Errors
    /// As for [`Endpoint::offer`].
    pub fn offer(
        &mut self,
        to: EndpointAddress,
        range: ArenaRange,
        deadline: Deadline,
    ) -> Result<(ArenaTransfer, ArenaOffer), EndpointRefusal> {
        self.check()?;
        self.endpoint.offer(to, range, deadline)
    }

    /// Takes a range that another process offered, as [`Endpoint::take`] does. [`Client::poll`] and [`Client::wait`] advance the transfer.
    ///
    /// # Errors
    /// As for [`Endpoint::take`].
    pub fn take(
        &mut self,
        offer: &ArenaOffer,
        offset: usize,
        deadline: Deadline,
    ) -> Result<ArenaTransfer, EndpointRefusal> {
        self.check()?;
        self.endpoint.take(offer, offset, deadline)
    }

    /// Cancels a transfer, as [`Endpoint::cancel`] does.
    pub fn cancel(&mut self, transfer: ArenaTransfer) -> bool {
        self.endpoint.cancel(transfer)
    }

    /// Number of bytes of a transfer that have arrived, as [`Endpoint::landed`] returns it.
    #[must_use]
    pub fn landed(&self, transfer: ArenaTransfer) -> Option<u64> {
        self.endpoint.landed(transfer)
    }

    /// The arena of this process. `None` if it attached without one.
    #[must_use]
    pub const fn arena(&self) -> Option<&SharedArena> {
        self.endpoint.arena()
    }

    /// Publishes the queued submissions and passes all pending events to `each`. It makes a system call only to wake a sleeping daemon. Only
    /// [`Client::wait`] detects that the daemon has ended, and looks for the next daemon. So call it when no event arrives, or while there is
    /// no room.
    ///
    /// # Errors
    /// The daemon violated the protocol, or it cut this process off.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(EndpointEvent<'_>)) -> Result<(), ClientError> {
        let mut must_wake = self.endpoint.poll(&mut each).map_err(ClientError::Broken)?;
        if self.endpoint.has_transfers() && self.lost.is_none() {
            must_wake |= self.endpoint.advance(now(), each).map_err(ClientError::Broken)?;
        }
        if must_wake && self.lost.is_none() {
            self.wake_daemon()?;
        }
        Ok(())
    }

    /// Polls, and sleeps if there is nothing to do: until an event arrives, until there is room again (if there was none), or until the
    /// deadline. Returns whether there was an event or there is room again.
    ///
    /// If the daemon has ended, the client attaches to the next daemon and reports [`EndpointEvent::Restarted`]. Until then it accepts no
    /// submissions.
    ///
    /// # Errors
    /// As for [`Client::poll`]; no other daemon came in time, or the next daemon refuses this process.
    pub fn wait(
        &mut self,
        deadline: Deadline,
        mut each: impl FnMut(EndpointEvent<'_>),
    ) -> Result<bool, ClientError> {
        let mut had_room = None;
        loop {
            let mut count = 0_u32;
            let was_lost = self.lost.is_some();
            // A daemon that has ended may have left events in the ring.
            self.poll(|event| {
                count = count.saturating_add(1);
                each(event);
            })?;
            if count == 0 && self.lost.is_some() {
                // The daemon may have published more events after that poll and before its end.
                if !was_lost {
                    continue;
                }
                let event = self.reattach(deadline)?;
                return Ok(event.map(each).is_some());
            }
            let has_room = self.endpoint.has_room().map_err(ClientError::Broken)?;
            if count > 0 || (has_room && had_room == Some(false)) {
                return Ok(true);
            }
            had_room = Some(has_room);
            if self
                .endpoint
                .prepare_sleep(!has_room)
                .map_err(ClientError::Broken)?
            {
                // A transfer may end by its own deadline.
                let until = self.endpoint.transfers_until();
                let slept = sleep(&self.socket, until.map_or(deadline, |until| deadline.min(until)));
                self.endpoint.end_sleep();
                let is_woken = slept?;
                self.take_packets()?;
                if !is_woken && deadline.has_passed(now()) {
                    return Ok(false);
                }
            }
        }
    }

    /// Detaches this process, and reports so to its peers. The daemon first routes all messages that were published before, as far as there
    /// is room for them; the others are lost.
    ///
    /// # Errors
    /// The daemon is gone, it cut this process off, or the socket has no room for a second.
    pub fn detach(mut self) -> Result<(), ClientError> {
        self.poll(|_| {})?;
        let deadline = within(DETACHED_WITHIN);
        loop {
            match self.socket.send(&Packet::Detach, &[]) {
                Ok(true) => return Ok(()),
                // The socket is full of packets that wake the daemon.
                Ok(false) if deadline.has_passed(now()) => return Err(ClientError::TooLate),
                Ok(false) => std::thread::sleep(RETRY_EVERY),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    return Err(ClientError::DaemonGone);
                }
                Err(error) => return Err(failed("sendmsg")(error)),
            }
        }
    }

    /// The endpoint. If the caller writes into its memory directly, the daemon may cut this process off.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    #[cold]
    fn wake_daemon(&mut self) -> Result<(), ClientError> {
        if self.socket.send(&Packet::Wake, &[]).is_err() {
            self.take_packets()?;
            self.lose()?;
        }
        Ok(())
    }

    fn take_packets(&mut self) -> Result<(), ClientError> {
        loop {
            match self.socket.receive().map_err(failed("recvmsg"))? {
                Came::Nothing => return Ok(()),
                Came::Packet(Ok(Packet::Wake)) => {}
                Came::Packet(Ok(Packet::Cut(reason))) => return Err(ClientError::Cut(reason)),
                Came::Packet(..) => return Err(ClientError::DaemonGone),
                Came::End => return self.lose(),
            }
        }
    }

    /// Records that the daemon is gone.
    fn lose(&mut self) -> Result<(), ClientError> {
        if self.reattach_within.is_zero() {
            return Err(ClientError::DaemonGone);
        }
        if self.lost.is_none() {
            self.lost = Some(Lost {
                until: within(self.reattach_within),
                attempt: None,
                spare: None,
                refusal: None,
            });
        }
        Ok(())
    }

    /// Backpressure while there is no daemon.
    const fn check(&self) -> Result<(), EndpointRefusal> {
        if self.lost.is_some() {
            return Err(EndpointRefusal::Full);
        }
        Ok(())
    }

    /// Attaches to the next daemon. Returns `None` at the deadline; the next call continues.
    fn reattach(&mut self, deadline: Deadline) -> Result<Option<EndpointEvent<'static>>, ClientError> {
        while let Some(lost) = &mut self.lost {
            if lost.until.has_passed(now()) {
                return Err(lost.refusal.map_or(ClientError::DaemonGone, ClientError::Refused));
            }
            let Some((mut endpoint, socket)) = lost.attempt.take() else {
                // No connection, whatever the reason: another daemon may start soon.
                lost.attempt = match begin(&self.path, &self.request, &mut lost.spare) {
                    Err(stranger @ ClientError::Stranger { .. }) => return Err(stranger),
                    begun => begun.unwrap_or_default(),
                };
                if lost.attempt.is_none() {
                    if deadline.has_passed(now()) {
                        break;
                    }
                    std::thread::sleep(RETRY_EVERY);
                }
                continue;
            };
            let answer = match answer(&endpoint, &socket, deadline.min(lost.until)) {
                Ok(Some(answer)) => answer,
                Ok(None) => {
                    lost.attempt = Some((endpoint, socket));
                    break;
                }
                // The daemon may not have noticed yet that the previous attempt of this client ended.
                Err(ClientError::Refused(refusal)) if is_for_now(refusal) => {
                    lost.spare = leaves_memory(refusal).then_some(endpoint);
                    lost.refusal = Some(refusal);
                    std::thread::sleep(RETRY_EVERY);
                    continue;
                }
                // The daemon ended, and may have sealed the memory before.
                Err(ClientError::DaemonGone) => {
                    std::thread::sleep(RETRY_EVERY);
                    continue;
                }
                Err(error) => return Err(error),
            };
            // A daemon with a lower epoch is not a successor of this client's daemon.
            if answer.epoch <= self.epoch || answer.node != self.address.node {
                std::thread::sleep(RETRY_EVERY);
                continue;
            }
            let unknown_from = endpoint.take_over(&mut self.endpoint);
            (self.endpoint, self.socket, self.epoch) = (endpoint, socket, answer.epoch);
            self.lost = None;
            return Ok(Some(EndpointEvent::Restarted {
                epoch: self.epoch,
                unknown_from,
            }));
        }
        Ok(None)
    }
}

/// The socket to the daemon. [`Client::wait`] sleeps on it, and the client wakes the daemon by it. After attaching, the process uses no other
/// descriptor. Each daemon has a new socket. If a seccomp filter allows only this descriptor, set [`Client::set_reattach_within`] to zero.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sleeps until the socket is readable. Returns `false` at the deadline, or after a signal.
fn sleep(socket: &PacketSocket, deadline: Deadline) -> Result<bool, ClientError> {
    let timeout = Timespec::try_from(deadline.remaining(now())).ok();
    match rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(failed("poll")(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicBool, Ordering};
    use core::time::Duration;
    use std::path::Path;

    use doorbell::within;

    use super::{Client, ClientError, is_of};
    use crate::packet::Packet;
    use crate::reason::AttachRefusal;
    use crate::serving::socket::{PacketSocket, listen};
    use crate::tests::world::request;

    /// Attaches at a listener that refuses each attempt, by the next of these reasons. Returns the error, and whether each refusal was sent.
    fn refused(
        path: &Path,
        within_s: u64,
        mut answers: impl Iterator<Item = AttachRefusal> + Send,
    ) -> (String, bool) {
        let listening = listen(path, 0o600).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let listener = scope.spawn(|| {
                let (mut held, mut all_sent) = (Vec::new(), true);
                while !is_over.load(Ordering::Relaxed) {
                    if let Some(socket) = PacketSocket::accept(&listening.listener).unwrap() {
                        let sent = socket.send(&Packet::Refused(answers.next().unwrap()), &[]);
                        all_sent &= matches!(sent, Ok(true));
                        held.push(socket);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                all_sent
            });
            let attached = Client::attach(path, &request(1, 0), within(Duration::from_secs(within_s)));
            is_over.store(true, Ordering::Relaxed);
            (attached.unwrap_err().to_string(), listener.join().unwrap())
        })
    }

    #[test]
    fn a_refusal_that_lasts_until_the_deadline_is_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = AttachRefusal::TooManyPending;
        let path = folder.path().join("socket");
        // The client leaves at its deadline, perhaps before it is sent a refusal.
        let (error, _) = refused(&path, 2, core::iter::repeat(refusal));
        assert_eq!(error, ClientError::Refused(refusal).to_string());
    }

    #[test]
    fn a_refusal_for_now_is_followed_by_another_attempt() {
        let folder = tempfile::tempdir().unwrap();
        for for_now in [
            AttachRefusal::TooManyPending,
            AttachRefusal::TooLate,
            AttachRefusal::NoDescriptors,
            AttachRefusal::NoMemory,
        ] {
            let path = folder.path().join(format!("{for_now:?}"));
            let refused = refused(&path, 60, [for_now, AttachRefusal::Packet].into_iter());
            let last = ClientError::Refused(AttachRefusal::Packet).to_string();
            assert_eq!(refused, (last, true), "{for_now:?}");
        }
    }

    #[test]
    fn a_stranger_listens_in_a_folder_that_nobody_else_can_have_made_or_is_not_trusted() {
        let root = (0, 0o40755);
        for (folders, is_right) in [
            (&[(7, 0o40755), root, root][..], true),
            (&[(7, 0o40755), (7, 0o40700), root], true),
            (&[(7, 0o40755), (0, 0o41777), root], false),
            (&[(7, 0o40775), root], false),
            (&[(7, 0o40757), root], false),
            (&[(7, 0o40755), (8, 0o40755), root], false),
            (&[(8, 0o40755), root], false),
            (&[root], false),
            (&[], false),
        ] {
            assert_eq!(is_of(7, folders), is_right, "{folders:?}");
        }
    }
}
