//! Helper threads that adopt and close what clients sent. Both may block as long as the sender likes. The last close of a descriptor does so
//! for a file in the sender's FUSE file system, a TCP socket that lingers, or a memfd of many GiB. A memfd cannot be sealed while another
//! thread changes it, for example by a write from memory whose pages the sender never delivers.
//!
//! There is at most one thread for each user. While a user's thread runs, no other process of the user can attach. If a daemon is killed while
//! such a thread waits, it ends once the file of the descriptor is closed or free.

use core::mem;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use doorbell::interprocess::SharedArena;
use doorbell::provider::Instant;
use doorbell::{Deadline, now};
use rustix::event::{EventfdFlags, eventfd};

use super::pending::Pending;
use super::socket::PacketSocket;
use crate::layout::{EndpointMemory, or};
use crate::packet::{AttachRequest, STATUS_BYTES_MAX};
use crate::reason::AttachRefusal;
use crate::router::Retired;

/// Maximum number of threads.
const THREADS_MAX: usize = 64;

/// Maximum number of pieces of work, counting all users. At the limit no connection is accepted.
const HELD_MAX: usize = 1024;

/// Maximum number of queued packets that are discarded. Each may have descriptors.
const PACKETS_MAX: usize = 1024;

/// Stack size of a thread.
const STACK_BYTES: usize = 64 << 10;

/// Work of a user's thread.
#[derive(Debug)]
pub(super) enum Work {
    /// To close a socket in whose queue there may be descriptors.
    Close(PacketSocket),
    /// To unmap the memory of a client.
    Unmap(Retired),
    /// To adopt the memory that came with the first packet of a connection.
    Adopt(Pending, Wanted),
}

/// A request that came with memory.
#[derive(Debug)]
pub(super) enum Wanted {
    /// With the pidfd of the process.
    Attach(AttachRequest, Option<OwnedFd>),
    /// A status of at most this many bytes.
    Status(u32),
}

/// Memory that was adopted or refused, with the request that it came with.
#[derive(Debug)]
pub(super) enum Adopted {
    Attach(
        AttachRequest,
        Option<OwnedFd>,
        Result<EndpointMemory, AttachRefusal>,
    ),
    Status(Result<SharedArena, AttachRefusal>),
}

/// Report of a thread.
#[derive(Debug)]
enum Done {
    Adopted(Box<(Pending, Adopted)>),
    /// The thread of this user has done its work.
    All(u32),
}

impl Work {
    /// Does it, however long that takes.
    fn run(self) -> Option<Box<(Pending, Adopted)>> {
        let socket = match self {
            Self::Unmap(retired) => {
                drop(retired);
                return None;
            }
            Self::Adopt(pending, wanted) => {
                let adopted = wanted.adopt(&pending.socket);
                return Some(Box::new((pending, adopted)));
            }
            Self::Close(socket) => socket,
        };
        // Empties the queue, so that the other side reads the reason for its refusal, not a connection reset for unread packets.
        for _ in 0..PACKETS_MAX {
            if socket.drain() {
                break;
            }
            socket.pass();
        }
        None
    }
}

impl Wanted {
    fn adopt(self, socket: &PacketSocket) -> Adopted {
        match self {
            Self::Attach(request, process) => {
                let layout = request.layout;
                let memory = adopt(socket, layout.descriptors(), |memory| layout.adopt(memory));
                Adopted::Attach(request, process, memory)
            }
            Self::Status(bytes) => Adopted::Status(adopt(socket, 1, |memory| match memory {
                [memory] if bytes <= STATUS_BYTES_MAX => {
                    SharedArena::adopt(*memory, bytes as usize).map_err(or(AttachRefusal::Arena))
                }
                _ => Err(AttachRefusal::Descriptors),
            })),
        }
    }
}

/// Adopts memory from duplicates of the descriptors of the first packet, which keeps its own.
fn adopt<M>(
    socket: &PacketSocket,
    expected: usize,
    adopt: impl FnOnce(&[BorrowedFd<'_>]) -> Result<M, AttachRefusal>,
) -> Result<M, AttachRefusal> {
    let (descriptors, are_all) = socket.descriptors().map_err(|_| AttachRefusal::Gone)?;
    if !are_all && descriptors.len() < expected {
        return Err(AttachRefusal::NoDescriptors);
    }
    if !are_all || descriptors.len() != expected {
        return Err(AttachRefusal::Descriptors);
    }
    let memory: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    adopt(&memory)
}

/// The work of one user.
#[derive(Debug, Default)]
struct OfUser {
    waiting: VecDeque<Work>,
    /// Number of pieces of work of the user's thread.
    running: usize,
    /// The time since which the user has had work.
    since: Option<Instant>,
}

/// The helper threads, by user.
#[derive(Debug)]
pub(super) struct Helpers {
    users: BTreeMap<u32, OfUser>,
    threads: usize,
    done: (Sender<Done>, Receiver<Done>),
    /// Readable when a thread has reported.
    reported: Arc<OwnedFd>,
    adopted: VecDeque<(Pending, Adopted)>,
}

impl Helpers {
    /// Creates the set, without a thread.
    pub(super) fn new() -> std::io::Result<Self> {
        let reported = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            users: BTreeMap::new(),
            threads: 0,
            done: channel(),
            reported: Arc::new(reported),
            adopted: VecDeque::new(),
        })
    }

    /// Passes work to the thread of its user.
    pub(super) fn give(&mut self, user: u32, work: Work) {
        let is_busy = self.users.contains_key(&user);
        if self.threads >= THREADS_MAX && !is_busy && matches!(work, Work::Unmap(_)) {
            // All threads serve hostile users. Unmapping here takes a second at most.
            drop(work);
            return;
        }
        let of = self.users.entry(user).or_default();
        of.since.get_or_insert_with(now);
        of.waiting.push_back(work);
        self.start();
    }

    /// Takes the reports of threads, and starts new threads.
    pub(super) fn advance(&mut self) {
        // Before the reports: a later one makes it readable again.
        let _ = rustix::io::read(&self.reported, &mut [0; 8][..]);
        while let Ok(done) = self.done.1.try_recv() {
            match done {
                Done::Adopted(adopted) => self.adopted.push_back(*adopted),
                Done::All(user) => {
                    self.threads = self.threads.saturating_sub(1);
                    if let Some(of) = self.users.get_mut(&user) {
                        of.running = 0;
                    }
                }
            }
        }
        self.start();
    }

    /// Starts the threads of users that have work and no thread.
    fn start(&mut self) {
        self.users
            .retain(|_, of| of.running > 0 || !of.waiting.is_empty());
        for (user, of) in &mut self.users {
            if self.threads >= THREADS_MAX {
                break;
            }
            let report = (self.done.0.clone(), Arc::clone(&self.reported));
            if of.running == 0 && start(*user, &mut of.waiting, &mut of.running, report) {
                self.threads = self.threads.saturating_add(1);
            }
        }
    }

    /// Returns the next connection whose memory was adopted or refused.
    pub(super) fn take_adopted(&mut self) -> Option<(Pending, Adopted)> {
        self.adopted.pop_front()
    }

    /// Whether work waits for a thread that could not be started. Nothing reports when one can be.
    pub(super) fn lacks_threads(&self) -> bool {
        self.users.values().any(|of| of.running == 0)
    }

    /// Whether work of a user is not done yet.
    pub(super) fn is_busy(&self, user: u32) -> bool {
        self.users.contains_key(&user)
    }

    /// Whether a user has had work for at least this long.
    pub(super) fn is_stuck(&self, user: u32, span: Duration) -> bool {
        let since = self.users.get(&user).and_then(|of| of.since);
        since.is_some_and(|since| Deadline::after(since, span).has_passed(now()))
    }

    /// Whether the limit is reached.
    pub(super) fn is_full(&self) -> bool {
        let held = self
            .users
            .values()
            .map(|of| of.waiting.len().saturating_add(of.running));
        held.fold(0, usize::saturating_add) >= HELD_MAX
    }
}

/// Starts a thread for all work that waits. Returns `false` if no thread can be started now.
fn start(
    user: u32,
    waiting: &mut VecDeque<Work>,
    running: &mut usize,
    (done, reported): (Sender<Done>, Arc<OwnedFd>),
) -> bool {
    // The thread is started before it gets the queue: if it cannot start, the queue is not dropped here.
    let (give, take) = channel::<VecDeque<Work>>();
    let report = move |what| {
        // Fails only if the daemon has ended.
        let _ = done.send(what);
        let _ = rustix::io::write(&reported, &1_u64.to_ne_bytes());
    };
    let run = move || {
        for adopted in take.into_iter().flatten().filter_map(Work::run) {
            report(Done::Adopted(adopted));
        }
        report(Done::All(user));
    };
    let builder = thread::Builder::new().name("doorbell-helper".into());
    if builder.stack_size(STACK_BYTES).spawn(run).is_err() {
        return false;
    }
    *running = waiting.len();
    let _ = give.send(mem::take(waiting));
    // Ends the thread's loop after this queue.
    drop(give);
    true
}

impl AsFd for Helpers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reported.as_fd()
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        // Closing could block, so everything that waits is left to the end of the process.
        for of in self.users.values_mut() {
            mem::forget(mem::take(&mut of.waiting));
        }
        self.done.1.try_iter().for_each(mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::os::fd::{AsFd as _, OwnedFd};

    use super::{Helpers, Work};
    use crate::packet::Packet;
    use crate::serving::socket::PacketSocket;

    /// Creates a TCP socket whose last close takes a minute: it lingers, and its peer reads nothing.
    fn lingering() -> (OwnedFd, impl Sized) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_secs(60))).unwrap();
        stream.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &stream, &[0; 1 << 16]).is_ok() {}
        stream.set_nonblocking(false).unwrap();
        (stream.into(), peer)
    }

    #[test]
    fn a_user_whose_descriptor_is_not_closed_yet_is_busy_and_no_other_is() {
        let (descriptor, peer) = lingering();
        let mut helpers = Helpers::new().unwrap();
        // The last copy is in the queue of the socket.
        let (socket, other) = PacketSocket::pair().unwrap();
        other.send(&Packet::Wake, &[descriptor.as_fd()]).unwrap();
        drop((descriptor, other));
        helpers.give(1, Work::Close(socket));
        assert!(helpers.is_busy(1) && !helpers.is_busy(2) && !helpers.is_full());
        helpers.give(2, Work::Close(PacketSocket::pair().unwrap().0));
        // The peer stays until the second descriptor is closed. The first one waits for its time.
        while helpers.is_busy(2) {
            std::thread::yield_now();
            helpers.advance();
        }
        assert!(helpers.is_busy(1), "one thread for each");
        assert!(helpers.is_stuck(1, Duration::ZERO) && !helpers.is_stuck(2, Duration::ZERO));
        assert!(!helpers.is_stuck(1, Duration::from_secs(600)));
        drop(peer);
        while helpers.is_busy(1) {
            std::thread::yield_now();
            helpers.advance();
        }
        assert_eq!(helpers.threads, 0);
    }
}
