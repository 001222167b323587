//! Helper threads that close what clients sent. The last close of a descriptor may block as long as its sender likes: a file in the
//! sender's FUSE file system, a TCP socket that lingers, a memfd of many GiB.
//!
//! There is at most one thread for each user. While a user's thread runs, no other process of the user can attach.

use core::mem;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::socket::PacketSocket;
use crate::router::Retired;

/// Maximum number of threads.
const THREADS_MAX: usize = 64;

/// Maximum number of things to close, counting all users. At the limit no connection is accepted.
const HELD_MAX: usize = 1024;

/// Maximum number of queued packets that are discarded. Each may have descriptors.
const PACKETS_MAX: usize = 1024;

/// Stack size of a thread.
const STACK_BYTES: usize = 64 << 10;

/// Something to close.
#[derive(Debug)]
pub(super) enum Burden {
    /// A socket in whose queue there may be descriptors, and descriptors that were taken from it.
    Socket(PacketSocket, Vec<OwnedFd>),
    /// The memory of a client.
    Memory(Retired),
}

impl Burden {
    /// Closes it, however long that takes.
    fn let_go(self) {
        let (socket, descriptors) = match self {
            Self::Memory(retired) => return drop(retired),
            Self::Socket(socket, descriptors) => (socket, descriptors),
        };
        drop(descriptors);
        // Empties the queue, so that the other side reads the reason for its refusal, not a connection reset for unread packets.
        for _ in 0..PACKETS_MAX {
            if socket.drain() {
                break;
            }
            socket.pass();
        }
    }
}

/// The things of one user.
#[derive(Debug, Default)]
struct OfUser {
    waiting: VecDeque<Burden>,
    /// Number of things that the user's thread is closing.
    running: usize,
}

/// The helper threads, by user.
#[derive(Debug)]
pub(super) struct Closer {
    users: BTreeMap<u32, OfUser>,
    threads: usize,
    done: (Sender<u32>, Receiver<u32>),
}

impl Default for Closer {
    fn default() -> Self {
        Self {
            users: BTreeMap::new(),
            threads: 0,
            done: channel(),
        }
    }
}

impl Closer {
    /// Passes something to the thread of its user.
    pub(super) fn give(&mut self, user: u32, burden: Burden) {
        let is_busy = self.users.contains_key(&user);
        if self.threads >= THREADS_MAX && !is_busy && matches!(burden, Burden::Memory(_)) {
            // All threads serve hostile users. Unmapping here takes a second at most.
            drop(burden);
            return;
        }
        self.users.entry(user).or_default().waiting.push_back(burden);
        self.advance();
    }

    /// Records the threads that have finished, and starts new ones.
    pub(super) fn advance(&mut self) {
        while let Ok(user) = self.done.1.try_recv() {
            self.threads = self.threads.saturating_sub(1);
            if let Some(of) = self.users.get_mut(&user) {
                of.running = 0;
            }
        }
        self.users
            .retain(|_, of| of.running > 0 || !of.waiting.is_empty());
        for (user, of) in &mut self.users {
            if self.threads >= THREADS_MAX {
                break;
            }
            if of.running == 0 && start(*user, &mut of.waiting, &mut of.running, &self.done.0) {
                self.threads = self.threads.saturating_add(1);
            }
        }
    }

    /// Whether something of a user is not closed yet.
    pub(super) fn is_busy(&self, user: u32) -> bool {
        self.users.contains_key(&user)
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

/// Starts a thread for everything that waits. Returns `false` if no thread can be started now.
fn start(user: u32, waiting: &mut VecDeque<Burden>, running: &mut usize, done: &Sender<u32>) -> bool {
    // The thread is started before it gets the queue: if it cannot start, the queue is not dropped here.
    let (give, take) = channel::<VecDeque<Burden>>();
    let done = done.clone();
    let run = move || {
        take.into_iter().flatten().for_each(Burden::let_go);
        // Fails only if the daemon has ended.
        let _ = done.send(user);
    };
    let builder = thread::Builder::new().name("doorbell-closer".into());
    if builder.stack_size(STACK_BYTES).spawn(run).is_err() {
        return false;
    }
    *running = waiting.len();
    let _ = give.send(mem::take(waiting));
    // Ends the thread's loop after this queue.
    drop(give);
    true
}

impl Drop for Closer {
    fn drop(&mut self) {
        // Closing could block, so the things that wait are closed by the end of the process.
        for of in self.users.values_mut() {
            mem::forget(mem::take(&mut of.waiting));
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::os::fd::OwnedFd;

    use super::{Burden, Closer};
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
        let mut closer = Closer::default();
        let socket = || PacketSocket::pair().unwrap().0;
        closer.give(1, Burden::Socket(socket(), vec![descriptor]));
        assert!(closer.is_busy(1) && !closer.is_busy(2) && !closer.is_full());
        closer.give(2, Burden::Socket(socket(), Vec::new()));
        // The peer stays until the second descriptor is closed. The first one waits for its time.
        while closer.is_busy(2) {
            std::thread::yield_now();
            closer.advance();
        }
        assert!(closer.is_busy(1), "one thread for each");
        drop(peer);
        while closer.is_busy(1) {
            std::thread::yield_now();
            closer.advance();
        }
        assert_eq!(closer.threads, 0);
    }
}
