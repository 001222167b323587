//! The control connection between the two sides, in addition to the connection under test: requests and
//! responses with deadlines.

use core::time::Duration;
use std::collections::VecDeque;
use std::thread;
use std::time::Instant;

use doorbell::provider::Provider;
use doorbell::wire::PrivateData;
use doorbell::{Channel, ChannelConfig, ChannelId, Event, Operation, PostFlags, Worker, WorkerConfig};

use super::error::PerfError;
use super::message::{CONTROL_BYTES_MAX, Message, Purpose, Verdict};

/// Pause between polls of a connection without urgent traffic.
pub(crate) const NAP: Duration = Duration::from_micros(50);

/// Maximum number of messages that wait. A peer has at most two on their way.
const INBOX_MAX: usize = 16;

/// The connection for control messages.
pub(crate) struct Control<P: Provider> {
    /// One Worker on each device that may reach the peer.
    workers: Vec<Worker<P>>,
    at: usize,
    id: ChannelId,
    inbox: VecDeque<Result<Message, PerfError>>,
    /// Whether the peer closed it. Earlier messages are in the inbox.
    is_closed: bool,
    timeout: Duration,
}

/// The configuration of the Workers of control connections.
pub(crate) fn worker_config() -> WorkerConfig {
    let mut config = WorkerConfig::default();
    config.slots = 32;
    config.slot_bytes = CONTROL_BYTES_MAX;
    config.completion_depth = 64;
    config
}

/// The configuration of control connections.
pub(crate) fn channel_config() -> ChannelConfig {
    let mut config = ChannelConfig::default();
    config.send_depth = 8;
    config.receive_depth = 8;
    config.gather_max = 1;
    config.inline_bytes_max = 0;
    config.cell_bytes = CONTROL_BYTES_MAX;
    config.repost_batch = 1;
    // The side that receives the last response closes at once, while the other may still wait for an
    // acknowledgement.
    config.close_when_lost = false;
    config.private_data = private_data(Purpose::Control);
    config
}

pub(crate) fn private_data(purpose: Purpose) -> PrivateData {
    // The purpose has sixteen bytes, which fit.
    PrivateData::new(&purpose.encode()).unwrap_or(PrivateData::EMPTY)
}

impl<P: Provider> Control<P> {
    pub(crate) fn new(workers: Vec<Worker<P>>, at: usize, id: ChannelId, timeout: Duration) -> Self {
        Self {
            workers,
            at,
            id,
            inbox: VecDeque::new(),
            is_closed: false,
            timeout,
        }
    }

    /// Returns the channel.
    ///
    /// # Errors
    /// The channel does not exist any more.
    pub(crate) fn channel(&mut self) -> Result<&mut Channel<P>, PerfError> {
        let worker = self.workers.get_mut(self.at);
        worker.and_then(|worker| worker.channel(self.id)).ok_or(GONE)
    }

    /// The device of the connection.
    pub(crate) fn device(&self) -> String {
        self.workers
            .get(self.at)
            .map(|worker| worker.device().to_owned())
            .unwrap_or_default()
    }

    /// The limit of the peer's silence.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends a message, and waits until the peer's device has acknowledged it.
    ///
    /// # Errors
    /// The message did not arrive in time, or the connection failed.
    pub(crate) fn send(&mut self, message: &Message) -> Result<(), PerfError> {
        let begun = Instant::now();
        while self.channel()?.credits() == 0 {
            if self.poll()? == 0 {
                self.check_open()?;
                self.nap(begun, "receive")?;
            }
        }
        let bytes = message.encode();
        let mut claim = self.channel()?.claim(bytes.len())?;
        claim.bytes().copy_from_slice(&bytes);
        claim.post(Operation::Send, PostFlags::SIGNALED)?;
        while self.channel()?.in_flight() > 0 {
            if self.poll()? == 0 {
                self.nap(begun, "acknowledgement")?;
            }
        }
        Ok(())
    }

    /// Waits for the peer's next message.
    ///
    /// # Errors
    /// No message arrived in time, the message is invalid, or the connection failed.
    pub(crate) fn receive(&mut self) -> Result<Message, PerfError> {
        let begun = Instant::now();
        loop {
            if let Some(message) = self.inbox.pop_front() {
                return message;
            }
            if self.poll()? == 0 {
                self.check_open()?;
                self.nap(begun, "message")?;
            }
        }
    }

    /// Checks whether the peer has given up. Does not block.
    ///
    /// # Errors
    /// The peer has given up, or the connection failed.
    pub(crate) fn check_peer(&mut self) -> Result<(), PerfError> {
        self.poll()?;
        let gave_up = self.inbox.iter().any(|message| {
            matches!(
                message,
                Err(_)
                    | Ok(Message::Finished | Message::Refused(_))
                    | Ok(Message::Verdict(Verdict { gave_up: Some(_), .. }))
            )
        });
        if !gave_up {
            return self.check_open();
        }
        match self.inbox.pop_front() {
            Some(Ok(Message::Verdict(Verdict {
                gave_up: Some(reason),
                ..
            })))
            | Some(Ok(Message::Refused(reason))) => Err(PerfError::PeerGaveUp(reason)),
            Some(Err(error)) => Err(error),
            Some(Ok(message)) => Err(PerfError::Unexpected {
                wanted: "the test",
                got: message.name(),
            }),
            None => Ok(()),
        }
    }

    /// Polls the connection.
    fn poll(&mut self) -> Result<u32, PerfError> {
        let Self {
            workers,
            at,
            inbox,
            is_closed,
            ..
        } = self;
        let worker = workers.get_mut(*at).ok_or(GONE)?;
        let (mut failed, mut is_flooded) = (false, false);
        let count = worker.poll_tending(|_, event| match event {
            Event::Received { message, .. } if inbox.len() < INBOX_MAX => {
                inbox.push_back(Message::parse(message.payload()).map_err(PerfError::from));
            }
            Event::Received { .. } => is_flooded = true,
            Event::PeerClosed { .. } => *is_closed = true,
            Event::Failed { .. } | Event::ChannelFailed { .. } => failed = true,
            _ => {}
        })?;
        if failed {
            let state = self.channel()?.state();
            return Err(PerfError::Channel { what: WHAT, state });
        }
        if is_flooded {
            return Err(PerfError::Unexpected {
                wanted: "one message at a time",
                got: "many",
            });
        }
        Ok(count)
    }

    /// Fails if the peer has closed the connection and all its messages were taken.
    fn check_open(&mut self) -> Result<(), PerfError> {
        if self.is_closed && self.inbox.is_empty() {
            let state = self.channel()?.state();
            return Err(PerfError::Channel { what: WHAT, state });
        }
        Ok(())
    }

    fn nap(&self, begun: Instant, what: &'static str) -> Result<(), PerfError> {
        if begun.elapsed() >= self.timeout {
            return Err(PerfError::Stalled {
                what,
                waited: self.timeout,
            });
        }
        thread::sleep(NAP);
        Ok(())
    }
}

const WHAT: &str = "control connection";

const GONE: PerfError = PerfError::Channel {
    what: WHAT,
    state: doorbell::ChannelState::Open,
};
