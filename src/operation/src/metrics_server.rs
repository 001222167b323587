//! Serves metrics over HTTP, on a separate thread: one request for each connection, with a deadline.

use core::mem;
use core::net::SocketAddr;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::panic::catch_unwind;
use std::sync::mpsc;
use std::thread;

use doorbell::connect::Tcp;
use doorbell::provider::{Clock as _, Deadline};
use doorbell::within;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::metrics::request::{ParsedRequest, Refusal, answer, read};

/// Maximum duration of a connection.
const CONVERSATION_SPAN: Duration = Duration::from_secs(2);
/// Maximum number of open connections. A further one closes the oldest.
const CONVERSATIONS_MAX: usize = 16;
/// Maximum number of bytes that are read and discarded after a request, so that a connection reset does not lose the answer.
const UNREAD_BYTES_MAX: usize = 64 << 10;
/// Pause after a failed `accept`, for example without free descriptors.
const NAP: Duration = Duration::from_millis(100);
/// Longest time that dropping the server waits for its thread.
const DROP_PATIENCE: Duration = Duration::from_millis(200);

/// Answers `GET /metrics` on a TCP port, on a separate thread, until it is dropped.
///
/// There is no authentication and no encryption: bind it to the loopback address, or to a network whose hosts may see the metrics.
/// A client that is slow, sends too much, or requests anything else gets an error, or is disconnected. At most 16 connections are
/// open at a time, each for at most two seconds.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    /// The thread ends after this socket is closed.
    stop: Option<UnixStream>,
    /// Disconnected after the thread has ended and the port is free.
    over: mpsc::Receiver<()>,
}

impl MetricsServer {
    /// Listens at this address. `render` returns the text for each request, usually from a [`Metrics`](crate::Metrics). If it
    /// panics, the answer has status 500, and the next request calls it again.
    ///
    /// # Errors
    /// The address cannot be bound, or no thread or descriptor can be created.
    pub fn start(at: SocketAddr, render: impl FnMut() -> String + Send + 'static) -> io::Result<Self> {
        Self::start_with(at, CONVERSATION_SPAN, render)
    }

    fn start_with(
        at: SocketAddr,
        span: Duration,
        mut render: impl FnMut() -> String + Send + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopping) = UnixStream::pair()?;
        let (alive, over) = mpsc::channel();
        thread::Builder::new()
            .name("doorbell-metrics".into())
            .spawn(move || {
                let mut port = Port {
                    listener,
                    span,
                    conversations: VecDeque::new(),
                    closed_until: None,
                };
                while !port.wait(&stopping) {
                    port.accept();
                    port.conversations
                        .retain_mut(|conversation| conversation.advance(&mut render));
                }
                drop(port);
                drop(alive);
            })?;
        Ok(Self {
            address,
            stop: Some(stop),
            over,
        })
    }

    /// The local address.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        // `shutdown` rather than close, since child processes may hold copies of the descriptor.
        if let Some(stop) = self.stop.take() {
            let _ = stop.shutdown(Shutdown::Both);
        }
        // A thread that is still rendering ends later by itself.
        let _ = self.over.recv_timeout(DROP_PATIENCE);
    }
}

/// The listening socket and its connections.
struct Port {
    listener: TcpListener,
    span: Duration,
    /// Oldest first.
    conversations: VecDeque<Conversation>,
    /// No connection is accepted before this time.
    closed_until: Option<Deadline>,
}

impl Port {
    /// Waits for an event. Returns whether the other end of `stop` is closed.
    fn wait(&self, stop: &UnixStream) -> bool {
        let (now, closed) = (Tcp.now(), self.closed_until);
        let ends = self.conversations.iter().map(|conversation| conversation.until);
        let span = ends.chain(closed).map(|end| end.remaining(now)).min();
        let span = span.map(|span| Timespec {
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: span.subsec_nanos().into(),
        });
        let port = closed
            .is_none()
            .then(|| PollFd::new(&self.listener, PollFlags::IN));
        let streams = self.conversations.iter().map(Conversation::interest);
        let stop = PollFd::new(stop, PollFlags::IN);
        let mut fds: Vec<_> = core::iter::once(stop).chain(port).chain(streams).collect();
        let waited = poll(&mut fds, span.as_ref());
        if waited.is_err_and(|error| error != rustix::io::Errno::INTR) {
            // For example out of memory.
            thread::sleep(NAP);
        }
        fds.first().is_some_and(|stop| !stop.revents().is_empty())
    }

    /// Accepts waiting connections, up to the limit.
    fn accept(&mut self) {
        self.closed_until = self
            .closed_until
            .filter(|until| !until.remaining(Tcp.now()).is_zero());
        if self.closed_until.is_some() {
            return;
        }
        for _ in 0..CONVERSATIONS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    while self.conversations.len() >= CONVERSATIONS_MAX {
                        self.conversations.pop_front();
                    }
                    self.conversations
                        .push_back(Conversation::new(stream, within(self.span)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The connection may have failed. Or no descriptor is free, and another attempt would fail immediately.
                Err(_) => {
                    self.closed_until = Some(within(NAP));
                    return;
                }
            }
        }
    }
}

/// One connection.
struct Conversation {
    stream: TcpStream,
    until: Deadline,
    stage: Stage,
}

enum Stage {
    /// The received bytes.
    Asking(Vec<u8>),
    /// The answer, and the number of bytes already written.
    Answering(Vec<u8>, usize),
    /// The answer is sent; counts the bytes discarded since.
    Leaving(usize),
}

/// Progress of a connection. The error "would block" means that it cannot advance now.
enum Step {
    Further,
    Over,
}

impl Conversation {
    const fn new(stream: TcpStream, until: Deadline) -> Self {
        Self {
            stream,
            until,
            stage: Stage::Asking(Vec::new()),
        }
    }

    fn interest(&self) -> PollFd<'_> {
        let flags = match self.stage {
            Stage::Answering(..) => PollFlags::OUT,
            Stage::Asking(_) | Stage::Leaving(_) => PollFlags::IN,
        };
        PollFd::new(&self.stream, flags)
    }

    /// Advances as far as possible. Returns whether the connection continues.
    fn advance(&mut self, render: &mut impl FnMut() -> String) -> bool {
        loop {
            match self.step(render) {
                Ok(Step::Further) => {}
                Ok(Step::Over) => return false,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => break,
                    _ => return false,
                },
            }
        }
        let is_late = self.until.remaining(Tcp.now()).is_zero();
        if is_late && matches!(self.stage, Stage::Asking(_)) {
            // Sent without waiting: bytes that do not fit into the socket buffer are lost.
            let _ = self.stream.write(Refusal::TooSlow.answer().as_bytes());
        }
        !is_late
    }

    fn step(&mut self, render: &mut impl FnMut() -> String) -> io::Result<Step> {
        let mut bytes = [0; 1024];
        match &mut self.stage {
            Stage::Asking(request) => {
                let count = self.stream.read(&mut bytes)?;
                if count == 0 {
                    return Ok(Step::Over);
                }
                request.extend_from_slice(bytes.get(..count).unwrap_or_default());
                let answer = match read(request) {
                    ParsedRequest::More => return Ok(Step::Further),
                    ParsedRequest::Refused(refusal) => refusal.answer(),
                    ParsedRequest::Metrics { is_head_only } => match catch_unwind(AssertUnwindSafe(render)) {
                        Ok(text) if is_head_only => answer(&text),
                        Ok(text) => answer(&text) + &text,
                        Err(panic) => {
                            // Its destructor could panic, too, and would end the thread.
                            mem::forget(panic);
                            Refusal::Panicked.answer()
                        }
                    },
                };
                self.stage = Stage::Answering(answer.into_bytes(), 0);
            }
            Stage::Answering(answer, written) => {
                let rest = answer.get(*written..).unwrap_or_default();
                if rest.is_empty() {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.stage = Stage::Leaving(0);
                    return Ok(Step::Further);
                }
                // std sends with MSG_NOSIGNAL, so that a closed peer causes an error, not a signal.
                let count = self.stream.write(rest)?;
                *written = written.saturating_add(count);
            }
            Stage::Leaving(unread) => {
                let count = self.stream.read(&mut bytes)?;
                *unread = unread.saturating_add(count);
                if count == 0 || *unread > UNREAD_BYTES_MAX {
                    return Ok(Step::Over);
                }
            }
        }
        Ok(Step::Further)
    }
}

#[cfg(test)]
mod tests;
