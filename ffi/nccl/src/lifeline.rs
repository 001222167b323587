//! Lifelines: a TCP stream to each peer's process, over which nothing is sent. The kernel closes it when the process ends, however that is.
//!
//! A stream that breaks proves nothing, since something between may have broken it. So the port is connected to again. A port that
//! refuses then has nobody who listens: the process is gone, and so are its links. One that refused from the beginning proves nothing: a
//! firewall may. A process that is stopped keeps both its port and its streams,
//! and a host that is silent refuses nothing: the rails and their deadlines are for those.
//!
//! Each link has a thread, which sleeps in the kernel.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::num::NonZeroU16;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use doorbell::link::LinkId;

/// Streams of peers that are held at most; beyond, the oldest is closed, and its peer connects again.
const HELD_MAX: usize = 256;

/// Streams that are taken at a time: the callers of the context wait meanwhile.
const TAKEN_MAX: usize = 16;

/// How long one attempt to connect may take.
const DIALED_WITHIN: Duration = Duration::from_millis(200);

/// The first wait between attempts, doubled each time up to the longest.
const WAIT: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(500));

/// A stream that lived so long was no accident of its beginning: waits begin anew.
const SETTLED: Duration = Duration::from_secs(1);

/// Bytes of a watching thread's stack.
const STACK_BYTES: usize = 64 << 10;

/// The lifelines of a context, both ways.
#[derive(Debug)]
pub(crate) struct Lifelines {
    listener: TcpListener,
    port: NonZeroU16,
    /// Streams of peers: closed at this process's end, by the kernel.
    held: VecDeque<TcpStream>,
    watches: Vec<(LinkId, Arc<Watch>)>,
    gone: Arc<Gone>,
}

/// Links whose peers' processes were found to be gone.
#[derive(Debug, Default)]
struct Gone {
    is_any: AtomicBool,
    links: Mutex<Vec<LinkId>>,
}

/// A peer that is watched.
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

/// The answer of a peer's addresses.
enum Dialed {
    Connected(TcpStream),
    /// Nobody listens.
    Refused,
    /// No answer.
    Silent,
}

impl Lifelines {
    /// Listens at a port of the system's choice.
    pub(crate) fn open() -> std::io::Result<Self> {
        let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let listener = TcpListener::bind(both).or_else(|_| TcpListener::bind(ipv4))?;
        listener.set_nonblocking(true)?;
        let port = NonZeroU16::new(listener.local_addr()?.port());
        Ok(Self {
            port: port.ok_or(ErrorKind::AddrNotAvailable)?,
            listener,
            held: VecDeque::with_capacity(HELD_MAX),
            watches: Vec::new(),
            gone: Arc::default(),
        })
    }

    /// The port that peers connect to.
    pub(crate) const fn port(&self) -> NonZeroU16 {
        self.port
    }

    /// Takes the streams of peers that have connected, some at a time. A system call: for a thread that is no caller's.
    pub(crate) fn accept(&mut self) {
        let mut came = (0..TAKEN_MAX)
            .map_while(|_| self.listener.accept().ok())
            .peekable();
        if came.peek().is_some() {
            // Nothing is ever sent, so what can be read is the end.
            self.held.retain(|held| {
                let peeked = held.peek(&mut [0]);
                peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            });
        }
        for (stream, _) in came {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.held.len() >= HELD_MAX {
                self.held.pop_front();
            }
            self.held.push_back(stream);
        }
    }

    /// Watches the process at a port of these addresses.
    pub(crate) fn watch(
        &mut self,
        link: LinkId,
        addresses: impl Iterator<Item = IpAddr>,
        port: NonZeroU16,
    ) -> std::io::Result<()> {
        let needs_interface =
            |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let addresses = addresses.filter(|address| !needs_interface(address));
        let addresses: Vec<_> = addresses
            .map(|address| SocketAddr::new(address, port.get()))
            .collect();
        let watch = Arc::new(Watch::default());
        self.watches.push((link, Arc::clone(&watch)));
        let gone = Arc::clone(&self.gone);
        let thread = thread::Builder::new()
            .name("doorbell-line".into())
            .stack_size(STACK_BYTES);
        let run = move || {
            if watch.run(&addresses) {
                gone.links
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(link);
                // The list before the word that there is one.
                gone.is_any.store(true, Ordering::Release);
            }
        };
        thread.spawn(run).map(drop)
    }

    /// Watches the peer of a link no more.
    pub(crate) fn forget(&mut self, link: LinkId) {
        self.watches.retain(|(of, watch)| {
            if *of == link {
                watch.end();
            }
            *of != link
        });
    }

    /// Asks the peer of a link for a sign of life, since no rail has one.
    pub(crate) fn ask(&self, link: LinkId) {
        if let Some((_, watch)) = self.watches.iter().find(|(of, _)| *of == link) {
            watch.interrupt();
        }
    }

    /// The links whose peers are gone, each once.
    pub(crate) fn take_gone(&self) -> Vec<LinkId> {
        // After the word the list is there.
        if !self.gone.is_any.load(Ordering::Relaxed) || !self.gone.is_any.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        core::mem::take(&mut *self.gone.links.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Lifelines {
    fn drop(&mut self) {
        for (_, watch) in &self.watches {
            watch.end();
        }
    }
}

impl Watch {
    /// Watches until the peer is gone, which is true, or until nothing is to be known any more.
    fn run(&self, addresses: &[SocketAddr]) -> bool {
        let (mut wait, mut was_connected) = (WAIT.0, false);
        loop {
            match dial(addresses) {
                Dialed::Refused if was_connected => return !self.is_over(),
                // A firewall may refuse for a peer that is there.
                Dialed::Refused | Dialed::Silent => {}
                Dialed::Connected(mut stream) => {
                    was_connected = true;
                    let began = Instant::now();
                    if !self.keep(&stream) {
                        return false;
                    }
                    // A peer that says anything is none of this plugin's.
                    if matches!(stream.read(&mut [0]), Ok(1..)) {
                        return false;
                    }
                    if began.elapsed() > SETTLED {
                        wait = WAIT.0;
                        continue;
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

    /// Lets others break a stream. Says whether it is of use still.
    fn keep(&self, stream: &TcpStream) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.stream = stream.try_clone().ok();
        !state.is_over && state.stream.is_some()
    }

    /// Waits so long at most. Says whether it is over.
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
            // A stream that is broken already is as good.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Connects to the first address that answers.
fn dial(addresses: &[SocketAddr]) -> Dialed {
    let mut dialed = Dialed::Silent;
    for address in addresses {
        match TcpStream::connect_timeout(address, DIALED_WITHIN) {
            Ok(stream) => return Dialed::Connected(stream),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => dialed = Dialed::Refused,
            Err(_) => {}
        }
    }
    dialed
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, SocketAddr};
    use core::time::Duration;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;
    use std::time::Instant;

    use super::{HELD_MAX, Lifelines, Watch};

    /// A watch of a listener, and its outcome.
    fn watched(listener: &TcpListener) -> (Arc<Watch>, Receiver<bool>) {
        watched_at(vec![listener.local_addr().unwrap()])
    }

    fn watched_at(addresses: Vec<SocketAddr>) -> (Arc<Watch>, Receiver<bool>) {
        let (watch, (said, outcome)) = (Arc::new(Watch::default()), channel());
        let of = Arc::clone(&watch);
        thread::spawn(move || said.send(of.run(&addresses)));
        (watch, outcome)
    }

    fn listener() -> TcpListener {
        TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap()
    }

    const LONG: Duration = Duration::from_secs(30);

    /// The next stream; a watch that gives up makes none.
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
        let mut lifelines = Lifelines::open().unwrap();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, lifelines.port().get()));
        // The kernel may have a stream some time after its peer does.
        let mut accept_until = |holds: &mut dyn FnMut(&Lifelines) -> bool| {
            let began = Instant::now();
            while !holds(&lifelines) {
                assert!(began.elapsed() < LONG, "{} are held", lifelines.held.len());
                lifelines.accept();
                thread::sleep(Duration::from_millis(1));
            }
        };
        let mut streams: Vec<_> = (0..HELD_MAX)
            .map(|count| {
                let stream = TcpStream::connect(to).unwrap();
                stream.set_nonblocking(true).unwrap();
                accept_until(&mut |lifelines| lifelines.held.len() > count);
                stream
            })
            .collect();
        let mut last = TcpStream::connect(to).unwrap();
        last.set_nonblocking(true).unwrap();
        // The oldest is closed, and its peer would connect again.
        accept_until(&mut |_| matches!(streams[0].read(&mut [0]), Ok(0)));
        assert!(last.read(&mut [0]).is_err() && streams[1].read(&mut [0]).is_err());
        // Streams that their peers close are held no longer than until others come.
        drop(streams);
        accept_until(&mut |lifelines| {
            drop(TcpStream::connect(to));
            lifelines.held.len() < HELD_MAX / 2
        });
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
        // Asked for a sign of life, it connects once more; nobody need accept.
        let _held = accepted(&listener);
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
