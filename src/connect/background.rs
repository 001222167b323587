//! A listener whose handshakes run on a separate thread.

use core::fmt;
use core::net::SocketAddr;
use core::task::Waker;
use core::time::Duration;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use doorbell_core::provider::Provider;
use doorbell_core::sync::{AtomicU32, Ordering};
use doorbell_core::wire::Handle;
use doorbell_core::{Clock as _, Deadline};

use crate::connect::acceptances::Acceptances;
use crate::connect::handshakes::{Counts, HandshakeCounts, HandshakeLimits, Handshakes, Port, Settings};
use crate::connect::node::Node;
use crate::error::ConnectError;
use crate::machine::makers::Makers;
use crate::machine::signal::Signal;
use crate::machine::tcp::Tcp;
use crate::worker::Worker;
use crate::worker::config::ChannelConfig;

/// How long a drop waits for the thread to end.
const DROP_PATIENCE: Duration = Duration::from_millis(200);

/// How long the thread sleeps if waiting for its streams fails.
const NAP: Duration = Duration::from_millis(10);

/// A listener whose handshakes run on a separate thread.
///
/// Stopping or dropping it closes the port and ends all handshakes in progress. Connections that wait to be accepted can still be
/// accepted.
pub struct Background {
    handle: Handle,
    address: SocketAddr,
    counts: Arc<Counts>,
    settings: Arc<Mutex<Settings>>,
    stop: Arc<Stop>,
    /// Disconnected when the thread has dropped everything.
    over: mpsc::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

/// Request for the thread to end.
struct Stop {
    is_asked: AtomicU32,
    waker: Option<Waker>,
}

impl Background {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system gave no thread, or no descriptor.
    pub(crate) fn start<P: Provider>(
        port: Port<Tcp>,
        node: &Arc<Node<P>>,
        workers: &[Worker<P>],
        limits: &HandshakeLimits,
    ) -> io::Result<(Self, Vec<Acceptances<P>>)> {
        let makers = Makers::background(limits.making, node.reaper())?;
        let (handshakes, acceptances) = Handshakes::new(port, node, workers, limits, Some(makers), || {
            Signal::new().map(Some)
        })?;
        let stop = Arc::new(Stop {
            is_asked: AtomicU32::new(0),
            waker: handshakes.waker(),
        });
        let (alive, over) = mpsc::channel();
        let mut background = Self {
            handle: *handshakes.handle(),
            address: handshakes.address(),
            counts: Arc::clone(handshakes.counting()),
            settings: Arc::clone(handshakes.shared_settings()),
            stop: Arc::clone(&stop),
            over,
            thread: None,
        };
        let thread = thread::Builder::new()
            .name("doorbell-handshakes".into())
            .spawn(move || {
                run(handshakes, &stop);
                drop(alive);
            })?;
        background.thread = Some(thread);
        Ok((background, acceptances))
    }

    /// Returns the handle to give to peers: at most 128 bytes, or a line of text.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the TCP address of the listener.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the counts of handshakes by outcome.
    #[must_use]
    pub fn counts(&self) -> HandshakeCounts {
        self.counts.snapshot()
    }

    /// Returns the reason of the last failed handshake, or of the port's last failure, once.
    #[must_use]
    pub fn take_failure(&self) -> Option<ConnectError> {
        self.counts.take_failure()
    }

    /// Sets the configuration for channels of peers that connect from now on. Handshakes in progress keep the configuration that
    /// they began with.
    pub fn reconfigure(&self, config: &ChannelConfig) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = Settings::new(config);
    }

    /// Ends the listener, and waits until the port is closed, all handshakes have ended and the threads have exited. Returns whether
    /// this was done by the deadline. Otherwise the threads end by themselves, as soon as the current calls of the device return.
    /// Queue pairs of failed handshakes are destroyed on another thread: [`Node::settle`](crate::Node::settle) waits for that.
    pub fn stop(mut self, deadline: Deadline) -> bool {
        self.end(deadline.remaining(Tcp.now()))
    }

    fn end(&mut self, patience: Duration) -> bool {
        // Relaxed: the system calls of waking and of waiting order this store before the load.
        self.stop.is_asked.store(1, Ordering::Relaxed);
        self.stop.waker.iter().for_each(Waker::wake_by_ref);
        let is_over = self.over.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Disconnected);
        if let Some(thread) = self.thread.take().filter(|_| is_over) {
            let _ = thread.join();
        }
        is_over
    }
}

fn run<P: Provider>(mut handshakes: Handshakes<P, Tcp>, stop: &Stop) {
    loop {
        // The poll consumes the wake-up. So the flag is loaded after the poll.
        handshakes.poll();
        // Relaxed: see the store.
        if stop.is_asked.load(Ordering::Relaxed) != 0 {
            break;
        }
        let deadline = Deadline::after(Tcp.now(), Duration::MAX);
        if handshakes.wait(deadline).is_err() {
            // For example, the system is out of memory.
            thread::sleep(NAP);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end(DROP_PATIENCE);
        }
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background")
            .field("address", &self.address)
            .field("handle", &self.handle)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}
