//! A Worker whose events are awaited.

use core::fmt;
use core::net::SocketAddr;
use core::slice;
use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use doorbell::connect::{Acceptances, Background, HandshakeLimits};
use doorbell::provider::{Clock as _, Network, Provider};
use doorbell::worker::{CloseError, CloseProgress, Watched as HasDescriptors};
use doorbell::{
    ChannelConfig, ChannelId, ChannelState, ConnectError, Deadline, Event, Handle, Listener, Node, NodeError,
    Notify, Rdma, Turn, WaitError, Worker, WorkerConfig,
};

use crate::watched::{Watched, ready};

/// Longest sleep while a channel is being closed or lacks a credit, which no descriptor reports.
const NAP: Duration = Duration::from_millis(1);

/// The next thing that happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Next<P: Provider = Rdma> {
    /// A peer connected.
    Accepted(ChannelId),
    /// Something happened on a channel.
    Event(ChannelId, Event<'static, P>),
}

/// Why a Worker cannot go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No device can be used.
    Node(NodeError),
    /// The Worker was made without notification, or its device failed.
    Wait(WaitError),
    /// No peer can be accepted.
    Accept(ConnectError),
    /// The operating system or the runtime refused.
    Io(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(error) => error.fmt(f),
            Self::Wait(error) => error.fmt(f),
            Self::Accept(error) => error.fmt(f),
            Self::Io(error) => write!(f, "descriptors cannot be watched: {error}"),
        }
    }
}

impl core::error::Error for Error {}

impl From<WaitError> for Error {
    fn from(error: WaitError) -> Self {
        Self::Wait(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A Worker in a task.
pub struct AsyncWorker<P: HasDescriptors = Rdma> {
    // Copies of descriptors go first: nothing is destroyed under them.
    watched: Vec<Watched>,
    acceptances: Option<Acceptances<P>>,
    /// Events that were polled and not yet given out: no more than one poll finds, or than came while something else was awaited.
    happened: VecDeque<(ChannelId, Event<'static, P>)>,
    worker: Worker<P>,
}

impl<P: HasDescriptors> AsyncWorker<P> {
    /// Watches a Worker. It was made with [`Notify::Every`](doorbell::Notify::Every) or [`Notify::Solicited`](doorbell::Notify::Solicited).
    ///
    /// # Errors
    /// It was made without notification, or the system gave no descriptor.
    ///
    /// # Panics
    /// There is no tokio runtime with `enable_io`.
    pub fn new(worker: Worker<P>) -> Result<Self, Error> {
        let descriptors = worker.descriptors().ok_or(WaitError::NeverNotified)?;
        let watched = descriptors
            .into_iter()
            .map(|descriptor| Watched::new(descriptor, false));
        Ok(Self {
            watched: watched.collect::<Result<_, _>>()?,
            acceptances: None,
            happened: VecDeque::with_capacity(64),
            worker,
        })
    }

    /// A Worker on the node's first device, which notifies of everything where the configuration says nothing else.
    ///
    /// # Errors
    /// No device can be used, or the system gave no descriptor.
    ///
    /// # Panics
    /// As for [`AsyncWorker::new`].
    pub fn open<N: Network>(node: &Node<P, N>, config: &WorkerConfig) -> Result<Self, Error> {
        let mut config = *config;
        if config.notify == Notify::Never {
            config.notify = Notify::Every;
        }
        let workers = node.workers(&config).map_err(Error::Node)?;
        // There is one at least, where that is no error.
        let worker = workers.into_iter().next().ok_or(WaitError::NeverNotified)?;
        Self::new(worker)
    }

    /// Listens at `address` (port 0: any free one), with handshakes on threads of their own, and accepts from now on. The listener has the
    /// handle for peers; dropped, it gives up the port.
    ///
    /// # Errors
    /// The port cannot be had, or the system gave no thread or no descriptor.
    ///
    /// # Panics
    /// As for [`AsyncWorker::new`].
    pub fn listen(
        &mut self,
        node: &Arc<Node<P>>,
        address: SocketAddr,
        config: &ChannelConfig,
    ) -> Result<Background, Error> {
        let workers = slice::from_ref(&self.worker);
        let listener = Listener::bind(node, workers, address, config).map_err(Error::Accept)?;
        let (background, acceptances) = listener
            .background(node, workers, &HandshakeLimits::default())
            .map_err(Error::Accept)?;
        for acceptances in acceptances {
            self.accept_from(acceptances)?;
        }
        Ok(background)
    }

    /// Accepts peers from now on, each as [`Next::Accepted`]: the Worker's own acceptances, of
    /// [`Listener::background`](doorbell::Listener::background).
    ///
    /// # Errors
    /// The handshakes are polled and have no descriptor, or the system gave none.
    ///
    /// # Panics
    /// As for [`AsyncWorker::new`].
    pub fn accept_from(&mut self, acceptances: Acceptances<P>) -> Result<(), Error> {
        let descriptor = acceptances.descriptor().ok_or(WaitError::NeverNotified)?;
        self.watched.push(Watched::new(descriptor, false)?);
        self.acceptances = Some(acceptances);
        Ok(())
    }

    /// The Worker, for all that does not wait: leases, channels, sending.
    #[must_use]
    pub const fn worker(&mut self) -> &mut Worker<P> {
        &mut self.worker
    }

    /// Waits for the next thing to happen.
    ///
    /// # Errors
    /// The Worker is of no further use.
    pub async fn next(&mut self) -> Result<Next<P>, Error> {
        loop {
            if let Some(channel) = self.accept()? {
                return Ok(Next::Accepted(channel));
            }
            if let Some((channel, event)) = self.happened.pop_front() {
                return Ok(Next::Event(channel, event));
            }
            self.gather(None).await?;
        }
    }

    /// Lends what happened to `each`, or waits until something does. It may end early. Peers are accepted by [`AsyncWorker::next`] alone.
    ///
    /// # Errors
    /// The Worker is of no further use.
    pub async fn turn(&mut self, each: impl FnMut(Turn<'_, P>, Event<'_, P>)) -> Result<(), Error> {
        let Some(leave) = self.worker.ready_to_sleep(each)? else {
            // Other tasks have their turn, however much comes.
            tokio::task::yield_now().await;
            return Ok(());
        };
        let at_most = leave.at_most();
        Ok(ready(self.watched.iter(), false, at_most).await?)
    }

    /// Waits until `channel` takes one more message: it has room in its queue, and a credit of the peer. Returns `false` if the
    /// channel is not open, or the deadline passes first. All events that come meanwhile are kept for [`AsyncWorker::next`], with
    /// their leases.
    ///
    /// A credit comes by a WRITE without a completion. So [`AsyncWorker::next`] does not return for it, and this call looks every
    /// millisecond.
    ///
    /// # Errors
    /// The Worker is of no further use.
    pub async fn room(&mut self, channel: ChannelId, deadline: Deadline) -> Result<bool, Error> {
        loop {
            let Some(open) = self.worker.channel(channel) else {
                return Ok(false);
            };
            if open.state() != ChannelState::Open {
                return Ok(false);
            }
            if open.room() > 0 && open.credits() > 0 {
                return Ok(true);
            }
            let left = deadline.remaining(self.worker.context().now());
            if left.is_zero() {
                return Ok(false);
            }
            self.gather(Some(left.min(NAP))).await?;
        }
    }

    /// Connects to the listener that handed out `handle`. Events that come meanwhile are kept for [`AsyncWorker::next`].
    ///
    /// # Errors
    /// As for [`Node::connect`].
    pub async fn connect(
        &mut self,
        node: &Node<P>,
        handle: &Handle,
        config: &ChannelConfig,
        deadline: Deadline,
    ) -> Result<ChannelId, ConnectError> {
        let worker = slice::from_ref(&self.worker);
        let mut connecting = node.begin_connect(worker, handle, config, deadline)?;
        loop {
            let worker = slice::from_mut(&mut self.worker);
            if let Some(outcome) = connecting.poll(node, worker) {
                return outcome.map(|connection| connection.channel);
            }
            let room = connecting.awaits_room();
            let stream = Watched::new(connecting.descriptor(), room).map_err(ConnectError::Tcp)?;
            let at_most = connecting.deadline().remaining(self.worker.context().now());
            ready(core::iter::once(&stream), room, Some(at_most))
                .await
                .map_err(ConnectError::Tcp)?;
        }
    }

    /// Closes a channel once all that was posted on it is done, and by the deadline in any case. Events that come meanwhile are kept for
    /// [`AsyncWorker::next`].
    ///
    /// # Errors
    /// As for [`Worker::close`].
    pub async fn close(&mut self, channel: ChannelId, deadline: Deadline) -> Result<(), CloseError> {
        self.worker.begin_close(channel, deadline)?;
        loop {
            match self.worker.close_progress(channel) {
                CloseProgress::Closed(outcome) => return outcome,
                CloseProgress::UnderWay => {}
                _ => return Err(CloseError::Unknown),
            }
            // A failure here fails the closing, too, and is its outcome.
            if self.gather(Some(NAP)).await.is_err() {
                tokio::time::sleep(NAP).await;
            }
        }
    }

    /// Ends gracefully: accepts no more, and closes all channels side by side, each as [`AsyncWorker::close`]
    /// does. Returns the Worker with the events that came meanwhile, and the first failure.
    ///
    /// # Errors
    /// A channel was not closed cleanly; all are closed all the same.
    pub async fn close_all(
        mut self,
        deadline: Deadline,
    ) -> (
        Worker<P>,
        VecDeque<(ChannelId, Event<'static, P>)>,
        Result<(), CloseError>,
    ) {
        self.acceptances = None;
        let open: Vec<ChannelId> = self.worker.channels().collect();
        let mut outcome = Ok(());
        for &channel in &open {
            outcome = outcome.and(self.worker.begin_close(channel, deadline));
        }
        for channel in open {
            while self.worker.close_progress(channel) == CloseProgress::UnderWay {
                if self.gather(Some(NAP)).await.is_err() {
                    tokio::time::sleep(NAP).await;
                }
            }
            if let CloseProgress::Closed(closed) = self.worker.close_progress(channel) {
                outcome = outcome.and(closed);
            }
        }
        self.watched.clear();
        (self.worker, self.happened, outcome)
    }

    /// Takes in the next peer that connected.
    fn accept(&mut self) -> Result<Option<ChannelId>, Error> {
        let Some(acceptances) = &mut self.acceptances else {
            return Ok(None);
        };
        match acceptances.poll_accept(&mut self.worker) {
            Err(ConnectError::ListenerClosed) => {
                self.acceptances = None;
                Ok(None)
            }
            outcome => outcome.map_err(Error::Accept),
        }
    }

    /// Keeps what happened, or waits until something does, or for so long.
    async fn gather(&mut self, at_most: Option<Duration>) -> Result<(), Error> {
        let Self {
            worker,
            happened,
            watched,
            ..
        } = self;
        let keep =
            |turn: Turn<'_, P>, event: Event<'_, P>| happened.push_back((turn.channel.id(), event.keep()));
        let Some(leave) = worker.ready_to_sleep(keep)? else {
            tokio::task::yield_now().await;
            return Ok(());
        };
        let at_most = leave.at_most().into_iter().chain(at_most).min();
        Ok(ready(watched.iter(), false, at_most).await?)
    }
}

impl<P: HasDescriptors> fmt::Debug for AsyncWorker<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncWorker")
            .field("accepts", &self.acceptances.is_some())
            .field("happened", &self.happened.len())
            .finish_non_exhaustive()
    }
}
