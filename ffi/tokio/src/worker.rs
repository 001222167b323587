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

/// How long after its deadline a closing is over at the latest, as for [`Worker::close`].
const OVER_AFTER: Duration = Duration::from_millis(500);

/// Peers that are accepted while something else is awaited, at most.
const ACCEPTED_MAX: usize = 64;

/// The next thing that happened.
#[non_exhaustive]
pub enum Next<P: Provider = Rdma> {
    /// A peer connected.
    Accepted(ChannelId),
    /// Something happened on a channel.
    Event(ChannelId, Event<'static, P>),
}

/// A derived one would ask for a provider that can be printed.
impl<P: Provider> fmt::Debug for Next<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted(channel) => f.debug_tuple("Accepted").field(channel).finish(),
            Self::Event(channel, event) => f.debug_tuple("Event").field(channel).field(event).finish(),
        }
    }
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
    acceptances: Option<(Watched, Acceptances<P>)>,
    /// Peers that connected while something else was awaited, or why they did not.
    accepted: VecDeque<Result<ChannelId, ConnectError>>,
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
    /// There is no tokio runtime with `enable_io`. All that is awaited here also needs `enable_time`.
    pub fn new(worker: Worker<P>) -> Result<Self, Error> {
        let descriptors = worker.descriptors().ok_or(WaitError::NeverNotified)?;
        let watched = descriptors
            .into_iter()
            .map(|descriptor| Watched::new(descriptor, false));
        Ok(Self {
            watched: watched.collect::<Result<_, _>>()?,
            acceptances: None,
            accepted: VecDeque::new(),
            happened: VecDeque::with_capacity(64),
            worker,
        })
    }

    /// A Worker on the device of the node's best usable rail, which notifies of everything where the configuration says nothing else.
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
        let rails = node.rails().map_err(Error::Node)?;
        let Some(rail) = rails.iter().find(|rail| rail.source.is_ok()) else {
            // The error names each port, and why it cannot be used.
            let refused = node.workers(&config).err();
            return Err(refused.map_or(WaitError::NeverNotified.into(), Error::Node));
        };
        Self::new(node.worker(rail.device.as_str(), &config).map_err(Error::Node)?)
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
    /// [`Listener::background`](doorbell::Listener::background). The Worker has one such port: those of an earlier call are
    /// dropped, with peers that were not accepted by then.
    ///
    /// # Errors
    /// The handshakes are polled and have no descriptor, or the system gave none.
    ///
    /// # Panics
    /// As for [`AsyncWorker::new`].
    pub fn accept_from(&mut self, acceptances: Acceptances<P>) -> Result<(), Error> {
        let descriptor = acceptances.descriptor().ok_or(WaitError::NeverNotified)?;
        let watched = Watched::new(descriptor, false)?;
        self.acceptances = Some((watched, acceptances));
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
            if let Some(accepted) = self.accepted.pop_front().or_else(|| self.accept()) {
                return accepted.map(Next::Accepted).map_err(Error::Accept);
            }
            if let Some((channel, event)) = self.happened.pop_front() {
                return Ok(Next::Event(channel, event));
            }
            self.gather(None, None).await?;
        }
    }

    /// Lends what happened to `each`, or waits until something does. It may end early. Peers are accepted by [`AsyncWorker::next`],
    /// and kept for it by [`AsyncWorker::connect`].
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
        Ok(ready(self.descriptors(None), at_most).await?)
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
            self.accept_beside();
            self.gather(Some(left.min(NAP)), None).await?;
        }
    }

    /// Connects to the listener that handed out `handle`. Events that come meanwhile are kept for [`AsyncWorker::next`], and so are
    /// peers that connect to this Worker.
    ///
    /// # Errors
    /// As for [`Node::connect`], or the Worker is of no further use.
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
            self.accept_beside();
            let room = connecting.awaits_room();
            let stream = Watched::new(connecting.descriptor(), room).map_err(ConnectError::Tcp)?;
            let at_most = connecting.deadline().remaining(self.worker.context().now());
            self.gather(Some(at_most), Some(&stream))
                .await
                .map_err(|error| match error {
                    Error::Wait(WaitError::Provider(error)) => ConnectError::Provider(error),
                    Error::Io(error) => ConnectError::Tcp(error),
                    other => ConnectError::Tcp(io::Error::other(other)),
                })?;
        }
    }

    /// Closes a channel once all that was posted on it is done, and by the deadline in any case. Events that come meanwhile are kept for
    /// [`AsyncWorker::next`]. A closing that is under way is awaited.
    ///
    /// # Errors
    /// As for [`Worker::close`].
    pub async fn close(&mut self, channel: ChannelId, deadline: Deadline) -> Result<(), CloseError> {
        self.begin_close(channel, deadline)?;
        self.closed(channel, deadline).await
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
            outcome = outcome.and(self.begin_close(channel, deadline));
        }
        for channel in open {
            outcome = outcome.and(self.closed(channel, deadline).await);
        }
        self.watched.clear();
        (self.worker, self.happened, outcome)
    }

    /// Begins to close a channel, unless that is under way or over: whoever began may have been dropped.
    fn begin_close(&mut self, channel: ChannelId, deadline: Deadline) -> Result<(), CloseError> {
        match self.worker.begin_close(channel, deadline) {
            Err(CloseError::Unknown) if self.worker.close_progress(channel) != CloseProgress::Unknown => {
                Ok(())
            }
            begun => begun,
        }
    }

    /// Waits until a channel is closed.
    async fn closed(&mut self, channel: ChannelId, deadline: Deadline) -> Result<(), CloseError> {
        let over = Deadline::after(deadline.instant(), OVER_AFTER);
        loop {
            match self.worker.close_progress(channel) {
                CloseProgress::Closed(outcome) => return outcome,
                CloseProgress::UnderWay if over.has_passed(self.worker.context().now()) => {
                    return Err(CloseError::TimedOut);
                }
                CloseProgress::UnderWay => {}
                _ => return Err(CloseError::Unknown),
            }
            self.accept_beside();
            match self.gather(Some(NAP), None).await {
                Ok(()) => {}
                Err(Error::Wait(WaitError::Provider(error))) => return Err(CloseError::Poll(error)),
                Err(_) => tokio::time::sleep(NAP).await,
            }
        }
    }

    /// Takes in peers that connect while something else is awaited, and keeps them for [`AsyncWorker::next`]. Otherwise two that wait for
    /// each other would not grant each other places.
    fn accept_beside(&mut self) {
        while self.accepted.len() < ACCEPTED_MAX {
            let Some(accepted) = self.accept() else { break };
            self.accepted.push_back(accepted);
        }
    }

    /// Takes in the next peer that connected.
    fn accept(&mut self) -> Option<Result<ChannelId, ConnectError>> {
        let (_, acceptances) = self.acceptances.as_mut()?;
        match acceptances.poll_accept(&mut self.worker) {
            Err(ConnectError::ListenerClosed) => {
                self.acceptances = None;
                None
            }
            outcome => outcome.transpose(),
        }
    }

    /// Keeps what happened, or waits until something does, here or on a stream, or for so long.
    async fn gather(&mut self, at_most: Option<Duration>, stream: Option<&Watched>) -> Result<(), Error> {
        let Self { worker, happened, .. } = self;
        let keep =
            |turn: Turn<'_, P>, event: Event<'_, P>| happened.push_back((turn.channel.id(), event.keep()));
        let Some(leave) = worker.ready_to_sleep(keep)? else {
            tokio::task::yield_now().await;
            return Ok(());
        };
        let at_most = leave.at_most().into_iter().chain(at_most).min();
        Ok(ready(self.descriptors(stream), at_most).await?)
    }

    /// All descriptors that wake the task, and those of a stream.
    fn descriptors<'w>(&'w self, stream: Option<&'w Watched>) -> impl Iterator<Item = &'w Watched> + Clone {
        let acceptances = self.acceptances.as_ref().map(|(watched, _)| watched);
        self.watched.iter().chain(acceptances).chain(stream)
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
