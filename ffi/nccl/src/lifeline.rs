//! Lifelines: a TCP connection to each peer's process that carries no data. The kernel closes the connection when the process ends for any
//! reason.
//!
//! A broken connection alone proves nothing, since the network may have broken it. The watcher therefore connects again. If an address then
//! refuses the connection, no process listens there: the peer has ended, and its link is closed. An address that has never accepted a
//! connection proves nothing, since a firewall may refuse for it. A stopped process keeps its port and its connections, and a host that is
//! down does not refuse: the rails and their timeouts cover these cases.
//!
//! Each link has a thread, which sleeps in the kernel. One more thread holds the connections of peers, in a descriptor table of its own.
//! The kernel frees the memory of a killed process before its descriptors, which takes long if there is much memory. A thread with its own
//! descriptor table closes these descriptors as soon as the thread itself has ended.

use core::ffi::{c_int, c_uint};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::num::NonZeroU16;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use doorbell::link::LinkId;

use crate::signals::block_signals;

/// Maximum number of connections of peers that are held if the limit on links is low, else twice that limit. Beyond it, the oldest is
/// closed, and its peer connects again.
const HELD_MAX: usize = 256;

/// Number of connections accepted at a time, and the pause after them. They limit the processor time that unknown clients can use.
const TAKEN_MAX: usize = 16;
const TAKEN_EVERY: Duration = Duration::from_millis(10);

/// Longest time that the holding thread runs after its context has ended.
const LOOK_EVERY_MS: c_int = 250;

/// Timeout of a connection attempt.
const DIALED_WITHIN: Duration = Duration::from_millis(200);

/// The first pause between attempts, and the longest. Each pause is twice the one before.
const WAIT: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(500));

/// A connection that lasted longer than this resets the pause to the first one.
const SETTLED: Duration = Duration::from_secs(1);

/// Stack size of the threads, in bytes.
const STACK_BYTES: usize = 64 << 10;

/// Maximum number of connections that are held for this many links: each peer may have two, while one of them is replaced.
fn held_max(links_max: u32) -> usize {
    let links_max = usize::try_from(links_max).unwrap_or(usize::MAX);
    let most = links_max.saturating_mul(2).max(HELD_MAX);
    // Without a free descriptor no connection is accepted, and none is closed for another.
    most.min(descriptors_max())
}

/// Number of descriptors that a thread's own table has for connections: all but some for the listener and the standard streams.
fn descriptors_max() -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a structure to write to (getrlimit(2)).
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return HELD_MAX;
    }
    let most = usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX);
    most.saturating_sub(16).max(1)
}

/// The lifelines of a context in both directions.
#[derive(Debug)]
pub(crate) struct Lifelines {
    port: NonZeroU16,
    /// Whether the thread that holds connections must end.
    is_over: Arc<AtomicBool>,
    watches: Vec<(LinkId, Arc<Watch>)>,
    gone: Arc<Gone>,
}

/// Links whose peers' processes have ended.
#[derive(Debug, Default)]
struct Gone {
    is_any: AtomicBool,
    links: Mutex<Vec<LinkId>>,
}

/// A watched peer.
#[derive(Debug, Default)]
struct Watch {
    state: Mutex<WatchState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WatchState {
    is_over: bool,
    stream: Option<TcpStream>,
}

/// Result of an attempt to connect to the addresses of a peer.
#[derive(Debug)]
enum Dialed {
    Connected(TcpStream),
    /// An address refused the connection that had accepted one before.
    Refused,
    /// There was no answer that proves anything.
    Silent,
}

/// An address of a peer.
#[derive(Clone, Copy, Debug)]
struct PeerAddress {
    address: SocketAddr,
    was_connected: bool,
}

impl Lifelines {
    /// Listens on a port that the system chooses, for the peers of so many links.
    pub(crate) fn open(links_max: u32) -> std::io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (said, port) = channel();
        let until = Arc::clone(&is_over);
        let thread = thread::Builder::new()
            .name("doorbell-lines".into())
            .stack_size(STACK_BYTES);
        let most = held_max(links_max);
        thread.spawn(move || hold(most, &until, &said))?;
        let port = port.recv().map_err(|_| ErrorKind::Other)?;
        Ok(Self {
            port: port?,
            is_over,
            watches: Vec::new(),
            gone: Arc::default(),
        })
    }

    /// The port to which peers connect.
    pub(crate) const fn port(&self) -> NonZeroU16 {
        self.port
    }

    /// Watches the process that listens on this port of these addresses.
    pub(crate) fn watch(
        &mut self,
        link: LinkId,
        addresses: impl Iterator<Item = IpAddr>,
        port: NonZeroU16,
    ) -> std::io::Result<()> {
        let needs_interface =
            |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let addresses = addresses.filter(|address| !needs_interface(address));
        let mut addresses: Vec<_> = addresses
            .map(|address| PeerAddress::new(SocketAddr::new(address, port.get())))
            .collect();
        let watch = Arc::new(Watch::default());
        self.watches.push((link, Arc::clone(&watch)));
        let gone = Arc::clone(&self.gone);
        let thread = thread::Builder::new()
            .name("doorbell-line".into())
            .stack_size(STACK_BYTES);
        let run = move || {
            if watch.run(&mut addresses) {
                gone.links
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(link);
                // The list is filled before the flag is set.
                gone.is_any.store(true, Ordering::Release);
            }
        };
        thread.spawn(run).map(drop)
    }

    /// Stops watching the peer of a link.
    pub(crate) fn forget(&mut self, link: LinkId) {
        self.watches.retain(|(of, watch)| {
            if *of == link {
                watch.end();
            }
            *of != link
        });
    }

    /// Breaks the connection to a peer, so that its port is tried again. The caller does so when no rail of the link is up.
    pub(crate) fn ask(&self, link: LinkId) {
        if let Some((_, watch)) = self.watches.iter().find(|(of, _)| *of == link) {
            watch.interrupt();
        }
    }

    /// Takes the links whose peers have ended. Each is returned once.
    pub(crate) fn take_gone(&self) -> Vec<LinkId> {
        // The list is filled when the flag is set.
        if !self.gone.is_any.load(Ordering::Relaxed) || !self.gone.is_any.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        core::mem::take(&mut *self.gone.links.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Lifelines {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for (_, watch) in &self.watches {
            watch.end();
        }
    }
}

/// The connections of peers. The kernel closes them when the thread that holds them ends.
#[derive(Debug)]
struct Held {
    listener: TcpListener,
    streams: VecDeque<TcpStream>,
    most: usize,
}

/// Holds so many connections of peers until `is_over` is set. First sends the port.
fn hold(most: usize, is_over: &AtomicBool, said: &Sender<std::io::Result<NonZeroU16>>) {
    // A signal handler of the application would otherwise use descriptor numbers that mean other files in this thread.
    block_signals();
    own_table();
    let (mut held, port) = match Held::open(most) {
        Ok(opened) => opened,
        Err(error) => {
            let _ = said.send(Err(error));
            return;
        }
    };
    let _ = said.send(Ok(port));
    while !is_over.load(Ordering::Relaxed) {
        if held.wait() {
            held.accept();
            thread::sleep(TAKEN_EVERY);
        }
    }
}

/// Gives this thread its own descriptor table, without the descriptors of the process. If that fails, the connections are in the process's
/// table.
///
/// From here on this thread uses no descriptor of the process. In particular it does not log, since its standard streams lead nowhere.
fn own_table() {
    let (first, last) = (0_u32, c_uint::MAX);
    // SAFETY: the table becomes this thread's own before anything is closed (close_range(2)): it is shared with the thread that waits for
    // the port. This thread has no descriptor yet, and all other threads keep theirs.
    let is_own = unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_UNSHARE) } == 0;
    for _ in 0..if is_own { 3 } else { 0 } {
        // Takes the numbers of the standard streams, so that the text of a panic does not go to a peer's connection.
        // SAFETY: a new descriptor, which stays open (eventfd(2)).
        unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    }
}

impl Held {
    fn open(most: usize) -> std::io::Result<(Self, NonZeroU16)> {
        let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let listener = TcpListener::bind(both).or_else(|_| TcpListener::bind(ipv4))?;
        listener.set_nonblocking(true)?;
        let port = NonZeroU16::new(listener.local_addr()?.port());
        let port = port.ok_or(ErrorKind::AddrNotAvailable)?;
        let held = Self {
            listener,
            streams: VecDeque::new(),
            most,
        };
        Ok((held, port))
    }

    /// Waits a limited time for a peer to connect. Returns whether one may have.
    fn wait(&self) -> bool {
        let mut polled = libc::pollfd {
            fd: self.listener.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor of this thread, which stays open during the call (poll(2)).
        let count = unsafe { libc::poll(&raw mut polled, 1, LOOK_EVERY_MS) };
        count != 0
    }

    /// Accepts connections of peers, at most [`TAKEN_MAX`] at a time.
    fn accept(&mut self) {
        let mut came = (0..TAKEN_MAX)
            .map_while(|_| self.listener.accept().ok())
            .peekable();
        if came.peek().is_some() {
            // Peers send nothing, so a readable connection has ended.
            self.streams.retain(|held| {
                let peeked = held.peek(&mut [0]);
                peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            });
        }
        for (stream, _) in came {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.streams.len() >= self.most {
                self.streams.pop_front();
            }
            self.streams.push_back(stream);
        }
    }
}

impl Watch {
    /// Watches until the peer has ended, and returns true. Returns false if watching is no longer useful.
    fn run(&self, addresses: &mut [PeerAddress]) -> bool {
        let mut wait = WAIT.0;
        loop {
            match dial(addresses) {
                Dialed::Refused => return !self.is_over(),
                Dialed::Silent => {}
                Dialed::Connected(mut stream) => {
                    let began = Instant::now();
                    if !self.keep(&stream) {
                        return false;
                    }
                    // A peer that sends data is not this plugin.
                    if matches!(stream.read(&mut [0]), Ok(1..)) {
                        return false;
                    }
                    if began.elapsed() > SETTLED {
                        wait = WAIT.0;
                    }
                }
            }
            if self.sleep(wait) {
                return false;
            }
            wait = wait.saturating_mul(2).min(WAIT.1);
        }
    }

    fn is_over(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_over
    }

    /// Stores a connection, so that others can break it. Returns whether watching is still needed.
    fn keep(&self, stream: &TcpStream) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.stream = stream.try_clone().ok();
        !state.is_over && state.stream.is_some()
    }

    /// Sleeps at most this long. Returns whether watching has ended.
    fn sleep(&self, wait: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .changed
            .wait_timeout_while(state, wait, |state| !state.is_over);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_over
    }

    fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.interrupt();
        self.changed.notify_all();
    }

    fn interrupt(&self) {
        if let Some(stream) = &self.state.lock().unwrap_or_else(PoisonError::into_inner).stream {
            // An error means that the connection is already broken.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl PeerAddress {
    const fn new(address: SocketAddr) -> Self {
        Self {
            address,
            was_connected: false,
        }
    }
}

/// Connects to the first address that accepts.
fn dial(addresses: &mut [PeerAddress]) -> Dialed {
    let mut dialed = Dialed::Silent;
    for peer in addresses {
        match TcpStream::connect_timeout(&peer.address, DIALED_WITHIN) {
            Ok(stream) => {
                peer.was_connected = true;
                return Dialed::Connected(stream);
            }
            // Before the first connection, a firewall may refuse although the peer runs.
            Err(error) if peer.was_connected && error.kind() == ErrorKind::ConnectionRefused => {
                dialed = Dialed::Refused;
            }
            Err(_) => {}
        }
    }
    dialed
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, SocketAddr};
    use core::time::Duration;
    use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;
    use std::time::Instant;

    use super::{Dialed, HELD_MAX, Held, Lifelines, PeerAddress, Watch, dial, held_max};

    /// Starts a watch of a listener. Returns it, and a channel for its result.
    fn watched(listener: &TcpListener) -> (Arc<Watch>, Receiver<bool>) {
        watched_at(vec![listener.local_addr().unwrap()])
    }

    fn watched_at(addresses: Vec<SocketAddr>) -> (Arc<Watch>, Receiver<bool>) {
        let (watch, (said, outcome)) = (Arc::new(Watch::default()), channel());
        let of = Arc::clone(&watch);
        let mut addresses: Vec<_> = addresses.into_iter().map(PeerAddress::new).collect();
        thread::spawn(move || said.send(of.run(&mut addresses)));
        (watch, outcome)
    }

    fn listener() -> TcpListener {
        TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap()
    }

    const LONG: Duration = Duration::from_secs(30);

    /// Waits until the watch has a connection for which this holds: its thread may be slower than the kernel.
    fn keeps(watch: &Watch, holds: impl Fn(&TcpStream) -> bool) {
        let began = Instant::now();
        while !watch.state.lock().unwrap().stream.as_ref().is_some_and(&holds) {
            assert!(began.elapsed() < LONG, "the watch keeps no such stream");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Accepts the next connection. A watch that gives up makes none.
    fn accepted(listener: &TcpListener) -> TcpStream {
        listener.set_nonblocking(true).unwrap();
        let began = Instant::now();
        loop {
            match listener.accept() {
                Ok((stream, _)) => return stream,
                Err(error) => assert!(began.elapsed() < LONG, "{error}"),
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn strangers_have_so_many_streams_and_no_more() {
        assert_eq!((held_max(1), held_max(300)), (HELD_MAX, 600));
        let (mut held, port) = Held::open(held_max(1)).unwrap();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port.get()));
        // The kernel may complete a connection some time after it has for the peer.
        let mut accept_until = |holds: &mut dyn FnMut(&Held) -> bool| {
            let began = Instant::now();
            while !holds(&held) {
                assert!(began.elapsed() < LONG, "{} are held", held.streams.len());
                held.accept();
                thread::sleep(Duration::from_millis(1));
            }
        };
        let mut streams: Vec<_> = (0..HELD_MAX)
            .map(|count| {
                let stream = TcpStream::connect(to).unwrap();
                stream.set_nonblocking(true).unwrap();
                accept_until(&mut |held| held.streams.len() > count);
                stream
            })
            .collect();
        let mut last = TcpStream::connect(to).unwrap();
        last.set_nonblocking(true).unwrap();
        // The oldest connection is closed. Its peer would connect again.
        accept_until(&mut |_| matches!(streams[0].read(&mut [0]), Ok(0)));
        assert!(last.read(&mut [0]).is_err() && streams[1].read(&mut [0]).is_err());
        // Connections that peers have closed are dropped when new ones arrive.
        drop(streams);
        accept_until(&mut |held| {
            drop(TcpStream::connect(to));
            held.streams.len() < HELD_MAX / 2
        });
    }

    /// Whether a listening socket of this process has this port, among the descriptors of this thread.
    fn has_socket_at(port: u16) -> bool {
        let listening = std::fs::read_to_string("/proc/self/net/tcp6").unwrap_or_default()
            + &std::fs::read_to_string("/proc/self/net/tcp").unwrap_or_default();
        let at = format!(":{port:04X}");
        let inodes: Vec<_> = listening
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .filter(|words| words.len() > 9 && words[1].ends_with(&at) && words[3] == "0A")
            .map(|words| format!("socket:[{}]", words[9]))
            .collect();
        assert!(!inodes.is_empty(), "nobody listens at {port}");
        let descriptors = std::fs::read_dir("/proc/thread-self/fd").unwrap();
        let mut links = descriptors.filter_map(|of| std::fs::read_link(of.ok()?.path()).ok());
        links.any(|link| inodes.iter().any(|inode| link.as_os_str() == inode.as_str()))
    }

    #[test]
    fn streams_are_in_no_table_but_that_of_the_thread_that_holds_them() {
        let lifelines = Lifelines::open(1).unwrap();
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        assert!(has_socket_at(listener.local_addr().unwrap().port()));
        assert!(!has_socket_at(lifelines.port().get()));
        // The connections stay open exactly as long as the thread runs.
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, lifelines.port().get()));
        let mut stream = TcpStream::connect(to).unwrap();
        stream.set_nonblocking(true).unwrap();
        thread::sleep(Duration::from_millis(30));
        assert!(stream.read(&mut [0]).is_err());
        drop(lifelines);
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        // The connection may not have been accepted yet.
        let end = stream.read(&mut [0]).map_err(|error| error.kind());
        assert!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)), "{end:?}");
        let began = Instant::now();
        while TcpStream::connect(to).is_ok() {
            assert!(began.elapsed() < LONG, "the port is open still");
        }
    }

    /// Memory of the process that another test kills, in MiB.
    const HOLDS_MIB: &str = "DOORBELL_TEST_HOLDS_MIB";

    /// Holds connections, memory and threads until it is killed, as a rank does.
    fn hold_much(mib: usize) {
        let lifelines = Lifelines::open(1).unwrap();
        let memory = vec![1_u8; mib << 20];
        for _ in 0..16 {
            thread::spawn(|| thread::sleep(LONG));
        }
        println!("port {}.", lifelines.port());
        thread::sleep(LONG);
        drop(core::hint::black_box(memory));
    }

    /// Returns the times from the kill of a process until its peer knows, and until the kernel has ended the process.
    fn killed(mib: usize) -> [Duration; 2] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["a_peer_that_is_killed_is_gone", "--nocapture"])
            .env(HOLDS_MIB, mib.to_string())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, port) = line.split_once("port ")?;
            port.strip_suffix('.')?.parse::<u16>().ok()
        });
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap()));
        let (watch, outcome) = watched_at(vec![address]);
        // A port that refuses before the first connection proves nothing.
        keeps(&watch, |_| true);
        assert!(outcome.try_recv().is_err());
        let began = Instant::now();
        child.kill().unwrap();
        let ended = thread::spawn(move || {
            child.wait().unwrap();
            began.elapsed()
        });
        assert_eq!(outcome.recv_timeout(LONG), Ok(true));
        let known = began.elapsed();
        [known, ended.join().unwrap()]
    }

    #[test]
    fn a_peer_that_is_killed_is_gone() {
        if let Ok(mib) = std::env::var(HOLDS_MIB) {
            hold_much(mib.parse().unwrap());
            return;
        }
        for mib in [1, 256] {
            let times = [0; 3].map(|_| killed(mib));
            let [known, ended] = [0, 1].map(|which| {
                let mut all = times.map(|times| times[which]);
                all.sort_unstable();
                all[1]
            });
            println!(
                "a process of {mib} MiB is killed: its peer knows after {known:.1?}, its kernel is done with it after {ended:.1?}"
            );
        }
    }

    #[test]
    fn a_port_that_refuses_from_the_beginning_proves_nothing() {
        let listener = listener();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let (watch, outcome) = watched_at(vec![address]);
        assert!(outcome.recv_timeout(Duration::from_millis(50)).is_err());
        watch.end();
        assert_eq!(outcome.recv_timeout(LONG), Ok(false));
    }

    #[test]
    fn only_an_address_that_accepted_before_can_say_that_the_peer_is_gone() {
        let refusing = PeerAddress::new(listener().local_addr().unwrap());
        // TCP has no route to the broadcast address: such an attempt fails without a refusal, as one without an answer does.
        let silent = PeerAddress {
            address: SocketAddr::from((Ipv4Addr::BROADCAST, 1)),
            was_connected: true,
        };
        let gone = PeerAddress {
            was_connected: true,
            ..refusing
        };
        let listener = listener();
        let there = PeerAddress::new(listener.local_addr().unwrap());
        assert!(matches!(dial(&mut [refusing, silent]), Dialed::Silent));
        assert!(matches!(dial(&mut [silent, gone]), Dialed::Refused));
        assert!(matches!(dial(&mut [gone, silent, there]), Dialed::Connected(_)));
        // The second of two addresses connects, and refuses later.
        let mut both = [refusing, there];
        assert!(matches!(dial(&mut both), Dialed::Connected(_)));
        drop(listener);
        assert!(matches!(dial(&mut both), Dialed::Refused));
    }

    #[test]
    fn a_peer_whose_port_is_gone_is_gone() {
        let listener = listener();
        let (_watch, outcome) = watched(&listener);
        let held = accepted(&listener);
        drop(listener);
        drop(held);
        assert_eq!(outcome.recv_timeout(LONG), Ok(true));
    }

    #[test]
    fn a_stream_that_breaks_is_made_again_while_somebody_listens() {
        let listener = listener();
        let (watch, outcome) = watched(&listener);
        for _ in 0..5 {
            drop(accepted(&listener));
        }
        // After `ask`, the watch connects again. The listener need not accept.
        let held = accepted(&listener);
        keeps(&watch, |stream| stream.local_addr().ok() == held.peer_addr().ok());
        watch.interrupt();
        let _again = accepted(&listener);
        assert!(outcome.try_recv().is_err());
        watch.end();
        assert_eq!(outcome.recv_timeout(LONG), Ok(false));
    }

    #[test]
    fn one_that_talks_is_no_peer_and_no_answer_is_no_end() {
        let listener = listener();
        let (_watch, outcome) = watched(&listener);
        accepted(&listener).write_all(b"x").unwrap();
        assert_eq!(outcome.recv_timeout(LONG), Ok(false));
        let (nowhere, outcome) = watched_at(Vec::new());
        assert!(outcome.recv_timeout(Duration::from_millis(20)).is_err());
        nowhere.end();
        assert_eq!(outcome.recv_timeout(LONG), Ok(false));
    }
}
