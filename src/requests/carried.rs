//! Sending of requests, and handling of events, over a channel and over a link.

use core::fmt;

use doorbell_core::provider::{Provider, ProviderError};
use doorbell_core::session::{PushRefusal, SessionEvent};
use doorbell_core::wire::{CorrelationId, RequestKind};
use doorbell_core::{Clock as _, Deadline};

use super::answering::write;
use super::{Ended, Heard, RequestFailure, Requests};
use crate::link::{LinkEvent, LinkId, Links};
use crate::worker::channel::{ChannelId, SendErrorKind};
use crate::worker::event::{ChannelState, Event};
use crate::worker::{Turn, Worker};
use doorbell_core::network::Network;

/// A request that could not be sent, with the reason. The request ends with this error. If the kind is [`SendErrorKind::Post`], the device
/// may have taken the request all the same: the peer may then execute it, and the answer counts as [`RequestCounts::late`].
///
/// [`RequestCounts::late`]: super::RequestCounts::late
#[derive(Debug)]
pub struct NotSent<T> {
    /// The reason.
    pub kind: NotSentKind,
    /// The context of the request.
    pub context: T,
}

/// Reason why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotSentKind {
    /// Back-pressure: the table is full.
    InFlight,
    /// Caller misuse: the body is longer than the table permits, or does not fit into a slot.
    TooLong {
        /// The bytes of the body.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The channel refused the message.
    Channel(SendErrorKind),
    /// The link refused the message.
    Link(PushRefusal),
}

impl NotSentKind {
    /// Returns whether the request can be sent after polling, as for [`SendErrorKind::is_temporary`].
    #[must_use]
    pub const fn is_temporary(self) -> bool {
        match self {
            Self::InFlight => true,
            Self::TooLong { .. } => false,
            Self::Channel(kind) => kind.is_temporary(),
            Self::Link(refusal) => matches!(refusal, PushRefusal::Full | PushRefusal::Recovering),
        }
    }
}

impl fmt::Display for NotSentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFlight => {
                f.write_str("as many requests are in flight as the table holds: poll, and try again")
            }
            Self::TooLong { bytes, bytes_max } => {
                write!(
                    f,
                    "a body of {bytes} bytes, but only {bytes_max} fit: send less, or make the table's bodies and the Worker's slots longer"
                )
            }
            Self::Channel(kind) => kind.fmt(f),
            Self::Link(refusal) => refusal.fmt(f),
        }
    }
}

impl core::error::Error for NotSentKind {}

impl From<SendErrorKind> for NotSentKind {
    fn from(kind: SendErrorKind) -> Self {
        Self::Channel(kind)
    }
}

impl<T> fmt::Display for NotSent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl<T: fmt::Debug> core::error::Error for NotSent<T> {}

impl<T> Requests<T> {
    /// Sends a request over a channel, to be answered by the deadline.
    ///
    /// # Errors
    /// The request was not sent. [`NotSentKind::is_temporary`] returns whether to poll and try again.
    pub fn send<P: Provider>(
        &mut self,
        worker: &mut Worker<P>,
        channel: ChannelId,
        body: &[u8],
        deadline: Deadline,
        context: T,
    ) -> Result<CorrelationId, NotSent<T>> {
        let id = self.begin_body(body, deadline, context)?;
        let copied = match fits_a_cell(worker, channel, body) {
            true => self.framing.message(RequestKind::Request, id, body),
            false => None,
        };
        let outcome = match copied {
            Some(message) => worker.send(channel, message).map(drop).map_err(NotSentKind::from),
            None => post(worker, channel, id, body),
        };
        if let Err(kind) = outcome {
            return self.not_sent(id, kind);
        }
        self.note_sent(id, channel);
        Ok(id)
    }

    /// Sends a request over a link, to be answered by the deadline.
    ///
    /// # Errors
    /// As for [`Requests::send`].
    pub fn send_link<P: Provider, N: Network>(
        &mut self,
        links: &mut Links<P, N>,
        link: LinkId,
        body: &[u8],
        deadline: Deadline,
        context: T,
    ) -> Result<CorrelationId, NotSent<T>> {
        let id = self.begin_body(body, deadline, context)?;
        let too_long = PushRefusal::TooLong {
            bytes: body.len() as u64,
            bytes_max: self.framing.body_bytes_max() as u64,
        };
        let message = self.framing.message(RequestKind::Request, id, body);
        let outcome = message.map_or(Err(too_long), |message| links.send(link, message).map(|_| ()));
        match outcome {
            Ok(()) => Ok(id),
            Err(refusal) => self.not_sent(id, NotSentKind::Link(refusal)),
        }
    }

    /// Handles an event of the channel. Returns events that are not answers, such as requests of the peer, or the failure of the channel.
    /// An answer ends a request only if the request was sent over this channel, or was begun by [`Requests::begin`].
    /// A failure ends the requests that were sent over that channel, and those that [`Requests::begin`] began.
    /// Late answers are dropped and counted. To get their bodies, pass each message to [`Requests::hear_from`] instead.
    #[inline]
    pub fn take<'m, P: Provider>(
        &mut self,
        turn: &mut Turn<'_, P>,
        event: Event<'m, P>,
        mut each: impl FnMut(T, Ended<'_>),
    ) -> Option<Event<'m, P>> {
        match event {
            Event::Received { message, immediate } => {
                match self.hear_from(turn.channel.id(), message.payload()) {
                    Heard::Answer(context, body) => each(context, Ended::Answered(body)),
                    Heard::Late(..) | Heard::Unasked => {}
                    Heard::Request(..) | Heard::Other(_) => {
                        return Some(Event::Received { message, immediate });
                    }
                }
                None
            }
            Event::Failed { status, .. } => {
                let cause = match turn.channel.state() {
                    ChannelState::Failed { cause } => cause.status,
                    _ => status,
                };
                self.note_failure(turn.channel.id(), RequestFailure::Channel(cause), each);
                Some(event)
            }
            Event::ChannelFailed { cause } => {
                self.note_failure(turn.channel.id(), RequestFailure::Channel(cause.status), each);
                Some(event)
            }
            // No further answer can arrive.
            Event::PeerClosed { .. } => {
                self.note_failure(turn.channel.id(), RequestFailure::PeerClosed, each);
                Some(event)
            }
            other => Some(other),
        }
    }

    /// Handles an event of the link. Returns events that are not answers, including the end of the link, which ends all requests.
    pub fn take_link<'m>(
        &mut self,
        event: LinkEvent<'m>,
        mut each: impl FnMut(T, Ended<'_>),
    ) -> Option<LinkEvent<'m>> {
        match event {
            LinkEvent::Received { message } => match self.hear(message) {
                Heard::Answer(context, body) => {
                    each(context, Ended::Answered(body));
                    None
                }
                Heard::Late(..) | Heard::Unasked => None,
                Heard::Request(..) | Heard::Other(_) => Some(event),
            },
            LinkEvent::Session(SessionEvent::Final { reason }) => {
                self.fail(RequestFailure::Link(reason), each);
                Some(event)
            }
            other => Some(other),
        }
    }

    /// Polls a Worker by [`Worker::poll`], handles its events, and ends requests whose deadline has passed by the Worker's clock. Returns the
    /// number of completions. The channel to this peer has to be the Worker's only channel: all messages that are not answers are dropped.
    ///
    /// # Errors
    /// As for [`Worker::poll`].
    pub fn poll<P: Provider>(
        &mut self,
        worker: &mut Worker<P>,
        mut each: impl FnMut(T, Ended<'_>),
    ) -> Result<u32, ProviderError> {
        let count = worker.poll(|mut turn, event| {
            self.take(&mut turn, event, &mut each);
        })?;
        if self.wake().is_some() {
            self.expire(worker.context().now(), each);
        }
        Ok(count)
    }

    /// Begins a request, if its body is not too long.
    fn begin_body(
        &mut self,
        body: &[u8],
        deadline: Deadline,
        context: T,
    ) -> Result<CorrelationId, NotSent<T>> {
        let (bytes, bytes_max) = (body.len(), self.framing.body_bytes_max());
        if bytes > bytes_max {
            let kind = NotSentKind::TooLong { bytes, bytes_max };
            return Err(NotSent { kind, context });
        }
        self.begin(deadline, context).map_err(|context| NotSent {
            kind: NotSentKind::InFlight,
            context,
        })
    }

    fn not_sent(&mut self, id: CorrelationId, kind: NotSentKind) -> Result<CorrelationId, NotSent<T>> {
        // The request was begun just now, so `take_back` finds it.
        self.take_back(id)
            .map_or(Ok(id), |context| Err(NotSent { kind, context }))
    }
}

/// Whether a request with this body fits into a cell of the channel.
fn fits_a_cell<P: Provider>(worker: &mut Worker<P>, channel: ChannelId, body: &[u8]) -> bool {
    let cell_bytes = worker.channel(channel).map_or(0, |channel| channel.cell_bytes());
    super::REQUEST_HEADER_BYTES.saturating_add(body.len()) <= cell_bytes as usize
}

/// Sends a request from a lease.
fn post<P: Provider>(
    worker: &mut Worker<P>,
    channel: ChannelId,
    id: CorrelationId,
    body: &[u8],
) -> Result<(), NotSentKind> {
    let mut lease = worker.lease_for(channel)?;
    if write(&mut lease, RequestKind::Request, id, body).is_none() {
        let bytes_max = lease.capacity_bytes().saturating_sub(super::REQUEST_HEADER_BYTES);
        worker.release(lease);
        let bytes = body.len();
        return Err(NotSentKind::TooLong { bytes, bytes_max });
    }
    let channel = worker.channel(channel).ok_or(SendErrorKind::Closed)?;
    channel.send_lease(lease).map_err(SendErrorKind::from)?;
    Ok(())
}
