//! Helper threads that adopt and close what clients sent. Both may block as long as the sender likes. The last close of a descriptor does so
//! for a file in the sender's FUSE file system, a TCP socket that lingers, or a memfd of many GiB. A memfd cannot be sealed while another
//! thread changes it, for example by a write from memory whose pages the sender never delivers.
//!
//! Each share of a user has at most one thread: each of its jobs, and its connections without a job. While the thread of a job runs, no other
//! process of that job can attach. If a daemon is killed while such a thread waits, it ends once the file of the descriptor is closed or
//! free.

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

use super::pending::{Pending, Share};
use super::socket::PacketSocket;
use crate::layout::{EndpointMemory, or};
use crate::name::JobNumber;
use crate::packet::{AttachRequest, STATUS_BYTES_MAX};
use crate::reason::AttachRefusal;
use crate::router::Retired;

/// Maximum number of users with a thread.
const USERS_MAX: usize = 64;

/// Maximum number of further threads, counting all users.
const FURTHER_MAX: usize = 64;

/// Maximum number of threads of one user.
const OF_USER_MAX: usize = 8;

/// Maximum number of queued packets that are discarded. Each may have descriptors.
const PACKETS_MAX: usize = 1024;

/// Stack size of a thread.
const STACK_BYTES: usize = 64 << 10;

/// Work of the thread of a user's share.
#[derive(Debug)]
pub(super) enum Work {
    /// To close a socket in whose queue there may be descriptors.
    Close(PacketSocket),
    /// To unmap the memory of a client.
    Unmap(Retired),
    /// To adopt the memory that came with the first packet of a connection.
    Adopt(Box<(Pending, Wanted)>),
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
    /// The thread of this share of a user has done its work.
    All((u32, Share)),
}

impl Work {
    /// Does it, however long that takes.
    fn run(self) -> Option<Box<(Pending, Adopted)>> {
        let socket = match self {
            Self::Unmap(retired) => {
                drop(retired);
                return None;
            }
            Self::Adopt(asked) => {
                let (pending, wanted) = *asked;
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

/// The work of one share of a user.
#[derive(Debug, Default)]
struct OfShare {
    waiting: VecDeque<Work>,
    /// Number of pieces of work of the thread.
    running: usize,
    /// The time since which the share has had work.
    since: Option<Instant>,
}

/// The helper threads, by user and share.
#[derive(Debug)]
pub(super) struct Helpers {
    shares: BTreeMap<(u32, Share), OfShare>,
    /// Maximum number of pieces of work, counting all users.
    held_max: usize,
    done: (Sender<Done>, Receiver<Done>),
    /// Readable when a thread has reported.
    reported: Arc<OwnedFd>,
    adopted: VecDeque<(Pending, Adopted)>,
}

impl Helpers {
    /// Creates the set, without a thread, for this many pieces of work. At that limit no connection is accepted.
    ///
    /// Most pieces are sockets with descriptors in their queues. The kernel counts such descriptors for each user, up to that user's limit of
    /// open files. So no user alone has more pieces than that.
    pub(super) fn new(held_max: usize) -> std::io::Result<Self> {
        let reported = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            shares: BTreeMap::new(),
            held_max,
            done: channel(),
            reported: Arc::new(reported),
            adopted: VecDeque::new(),
        })
    }

    /// Passes work to the thread of a user's share.
    pub(super) fn give(&mut self, owner: (u32, Share), work: Work) {
        let is_busy = self.of_user(owner.0).next().is_some();
        if !is_busy && !self.has_thread(owner.0) && matches!(work, Work::Unmap(_)) {
            // All threads serve hostile users. Unmapping here takes a second at most.
            drop(work);
            return;
        }
        let of = self.shares.entry(owner).or_default();
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
                Done::All(owner) => {
                    if let Some(of) = self.shares.get_mut(&owner) {
                        of.running = 0;
                    }
                }
            }
        }
        self.start();
    }

    /// Starts the threads of shares that have work and no thread.
    fn start(&mut self) {
        self.shares
            .retain(|_, of| of.running > 0 || !of.waiting.is_empty());
        let waiting = self.shares.iter().filter(|(_, of)| of.running == 0);
        let waiting: Vec<_> = waiting.map(|(owner, _)| *owner).collect();
        for owner in waiting {
            if !self.has_thread(owner.0) {
                continue;
            }
            let report = (self.done.0.clone(), Arc::clone(&self.reported));
            if let Some(of) = self.shares.get_mut(&owner) {
                start(owner, of, report);
            }
        }
    }

    /// Whether a user may have another thread. A user's first one does not depend on the number of others' further ones.
    fn has_thread(&self, user: u32) -> bool {
        let of_user = self.of_user(user).filter(|of| of.running > 0).count();
        let running = self.shares.iter().filter(|(_, of)| of.running > 0);
        // In ascending order, as the shares are.
        let mut users: Vec<_> = running.map(|((user, _), _)| *user).collect();
        let threads = users.len();
        users.dedup();
        match of_user {
            0 => users.len() < USERS_MAX,
            OF_USER_MAX.. => false,
            _ => threads.saturating_sub(users.len()) < FURTHER_MAX,
        }
    }

    fn of_user(&self, user: u32) -> impl Iterator<Item = &OfShare> {
        let all = (user, Share::Unmapping)..=(user, Share::Job(JobNumber(u64::MAX)));
        self.shares.range(all).map(|(_, of)| of)
    }

    /// Returns the next connection whose memory was adopted or refused.
    pub(super) fn take_adopted(&mut self) -> Option<(Pending, Adopted)> {
        self.adopted.pop_front()
    }

    /// Whether work waits for a thread that could not be started. Nothing reports when one can be.
    pub(super) fn lacks_threads(&self) -> bool {
        self.shares
            .iter()
            .any(|((user, _), of)| of.running == 0 && self.has_thread(*user))
    }

    /// Whether memory of a user's share can be adopted now: a thread is free, the share's work is done, and no ended process of the user is
    /// still mapped.
    pub(super) fn is_free(&self, user: u32, share: Share) -> bool {
        let is_idle = |share| !self.shares.contains_key(&(user, share));
        is_idle(share) && is_idle(Share::Unmapping) && self.has_thread(user)
    }

    /// Whether a user's share has not been free for at least this long.
    pub(super) fn is_stuck(&self, user: u32, share: Share, span: Duration) -> bool {
        let is_old = |of: &OfShare| {
            of.since
                .is_some_and(|since| Deadline::after(since, span).has_passed(now()))
        };
        let is_in_work = |share| self.shares.get(&(user, share)).is_some_and(is_old);
        let mut of_user = self.of_user(user).peekable();
        is_in_work(share)
            || is_in_work(Share::Unmapping)
            || !self.has_thread(user) && (of_user.peek().is_none() || of_user.any(is_old))
    }

    /// Whether the limit is reached.
    pub(super) fn is_full(&self) -> bool {
        let held = self
            .shares
            .values()
            .map(|of| of.waiting.len().saturating_add(of.running));
        held.fold(0, usize::saturating_add) >= self.held_max
    }
}

/// Starts a thread for all work that waits. It stays there if no thread can be started now.
fn start(owner: (u32, Share), of: &mut OfShare, (done, reported): (Sender<Done>, Arc<OwnedFd>)) {
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
        report(Done::All(owner));
    };
    let builder = thread::Builder::new().name("doorbell-helper".into());
    if builder.stack_size(STACK_BYTES).spawn(run).is_err() {
        return;
    }
    of.running = of.waiting.len();
    let _ = give.send(mem::take(&mut of.waiting));
    // Ends the thread's loop after this queue.
    drop(give);
}

impl AsFd for Helpers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reported.as_fd()
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        // Closing could block, so everything that waits is left to the end of the process.
        for of in self.shares.values_mut() {
            mem::forget(mem::take(&mut of.waiting));
        }
        self.done.1.try_iter().for_each(mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::os::fd::{AsFd as _, OwnedFd};

    use super::{FURTHER_MAX, Helpers, OF_USER_MAX, USERS_MAX, Work};
    use crate::name::JobNumber;
    use crate::packet::Packet;
    use crate::serving::pending::Share;
    use crate::serving::socket::PacketSocket;

    /// Creates a TCP socket whose last close takes a minute: it lingers, and its peer reads nothing.
    fn lingering() -> (OwnedFd, impl Sized) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_secs(60))).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, 4096).unwrap();
        stream.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &stream, &[0; 1 << 16]).is_ok() {}
        stream.set_nonblocking(false).unwrap();
        (stream.into(), peer)
    }

    fn job(number: usize) -> Share {
        Share::Job(JobNumber(number as u64))
    }

    /// A socket with this descriptor in its queue, which nothing else keeps open.
    fn with(descriptor: OwnedFd) -> Work {
        let (socket, other) = PacketSocket::pair().unwrap();
        other.send(&Packet::Wake, &[descriptor.as_fd()]).unwrap();
        Work::Close(socket)
    }

    /// Lets threads work until this is so.
    fn until(helpers: &mut Helpers, is_so: impl Fn(&Helpers) -> bool) {
        while !is_so(helpers) {
            std::thread::yield_now();
            helpers.advance();
        }
    }

    #[test]
    fn a_share_whose_descriptor_is_not_closed_yet_is_not_free_and_all_others_are() {
        let (descriptor, peer) = lingering();
        let mut helpers = Helpers::new(4).unwrap();
        helpers.give((1, job(7)), with(descriptor));
        let others = [(1, job(8)), (1, Share::Status), (1, Share::Unknown), (2, job(7))];
        for (user, share) in others {
            assert!(helpers.is_free(user, share), "{user} {share:?}");
            helpers.give((user, share), Work::Close(PacketSocket::pair().unwrap().0));
        }
        // The peer stays until the other descriptors are closed. The first one waits for its time.
        until(&mut helpers, |helpers| {
            others.iter().all(|(user, share)| helpers.is_free(*user, *share))
        });
        assert!(!helpers.is_free(1, job(7)) && !helpers.is_full());
        assert!(helpers.is_stuck(1, job(7), Duration::ZERO));
        assert!(!helpers.is_stuck(1, job(7), Duration::from_secs(600)));
        assert!(!helpers.is_stuck(1, job(8), Duration::ZERO) && !helpers.is_stuck(2, job(7), Duration::ZERO));
        for _ in 0..3 {
            helpers.give((1, job(7)), Work::Close(PacketSocket::pair().unwrap().0));
        }
        assert!(helpers.is_full());
        drop(peer);
        until(&mut helpers, |helpers| helpers.shares.is_empty());
        assert!(helpers.is_free(1, job(7)));
    }

    #[test]
    fn a_user_has_a_few_threads_and_further_ones_of_others_take_no_first_one() {
        let mut helpers = Helpers::new(usize::MAX).unwrap();
        let mut peers = Vec::new();
        let mut stop = |helpers: &mut Helpers, user: u32, job| {
            let (descriptor, peer) = lingering();
            peers.push(peer);
            helpers.give((user, job), with(descriptor));
        };
        for number in 0..OF_USER_MAX {
            assert!(helpers.is_free(1, job(100)), "{number}");
            stop(&mut helpers, 1, job(number));
        }
        assert!(!helpers.is_free(1, job(100)) && helpers.is_stuck(1, job(100), Duration::ZERO));
        stop(&mut helpers, 1, job(100));
        assert!(!helpers.lacks_threads(), "it has all that it may have");
        // Users with all further threads.
        let users = 1 + FURTHER_MAX / (OF_USER_MAX - 1);
        for user in 2..=users {
            for number in 0..OF_USER_MAX {
                stop(&mut helpers, user as u32, job(number));
            }
        }
        stop(&mut helpers, users as u32 + 1, job(0));
        stop(&mut helpers, users as u32 + 1, job(1));
        assert!(!helpers.is_free(2, job(100)));
        for user in users + 2..=USERS_MAX {
            assert!(helpers.is_free(user as u32, job(0)), "{user}");
            stop(&mut helpers, user as u32, job(0));
        }
        assert_eq!(helpers.threads(), USERS_MAX + FURTHER_MAX);
        let next = USERS_MAX as u32 + 1;
        assert!(!helpers.is_free(next, job(0)) && helpers.is_stuck(next, job(0), Duration::ZERO));
        drop(peers);
        until(&mut helpers, |helpers| helpers.shares.is_empty());
    }

    impl Helpers {
        fn threads(&self) -> usize {
            self.shares.values().filter(|of| of.running > 0).count()
        }
    }
}
