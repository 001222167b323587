//! One connection to a peer: posting, by message or one-sidedly.

use core::fmt;
use std::sync::Arc;

use doorbell_core::Ticket;
use doorbell_core::provider::{
    Arena, ArrivalKind, Operation, PostError, PostFlags, Provider, ProviderError, PushError, QueuePair,
    QueuePairLimits,
};
use doorbell_ffi::Rdma;
use doorbell_hotpath::{Grants, Receiver, Sender, Statistics};

use crate::worker::{Reservation, Turn};
use crate::{Batch, ChannelState, Event, Lease, Peer};

/// The half of a channel that sends.
pub(crate) type Sending<P> = Sender<
    <P as Provider>::SendQueue,
    Box<[u64]>,
    Arc<<P as Provider>::Window>,
    Arc<Grants>,
    Arc<Statistics>,
>;

/// The half of a channel that receives.
pub(crate) type Receiving<P> = Receiver<<P as Provider>::ReceiveQueue, Arc<Grants>, Arc<Statistics>>;

/// One connection to a peer, on the Worker it was made on.
pub struct Channel<P: Provider = Rdma> {
    // The halves go before the control side: the order in which nothing is left to fail.
    pub(crate) sender: Sending<P>,
    pub(crate) receiver: Receiving<P>,
    pub(crate) control: P::QueuePair,
    pub(crate) reservation: Arc<Reservation>,
    pub(crate) peer: Peer,
}

/// Names a channel of a Worker. It names nothing once the channel is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChannelId {
    pub(crate) index: u32,
    /// Tells channels apart that used the same index one after the other.
    pub(crate) generation: u32,
}

/// What was to be sent and was not, with the reason.
///
/// [`SendErrorKind::WouldBlock`] is back-pressure: poll the Worker and try again.
#[derive(Debug)]
pub struct SendError<T> {
    /// Why.
    pub kind: SendErrorKind,
    /// What was to be sent, handed back. `None` where the device refused without saying which
    /// request: it may have it, and the memory stays with it until its queue pair is gone.
    pub item: Option<T>,
}

/// Why something was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// As many requests are in flight as the queue holds, or as many messages as the peer has
    /// receives for: poll the Worker and try again. See [`Channel::room`] and [`Channel::credits`].
    WouldBlock,
    /// Caller misuse, or a queue pair that failed.
    Refused(PushError),
    /// Caller misuse: more bytes than the peer's ring or the message's memory holds.
    TooLong {
        /// The bytes there were.
        bytes: usize,
        /// The most there may be.
        bytes_max: usize,
    },
    /// The device refused the post.
    Post(PostError),
}

impl fmt::Display for SendErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WouldBlock => {
                f.write_str("the send queue is full, or the peer has no receive left: poll, and try again")
            }
            Self::Refused(reason) => write!(f, "not sent: {reason}"),
            Self::TooLong { bytes, bytes_max } => write!(f, "{bytes} bytes, where {bytes_max} fit"),
            Self::Post(error) => write!(f, "the device refused the post: {error}"),
        }
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.kind, f)
    }
}

impl<T: fmt::Debug> core::error::Error for SendError<T> {}

impl From<PushError> for SendErrorKind {
    fn from(reason: PushError) -> Self {
        match reason {
            PushError::Full | PushError::NoCredit => Self::WouldBlock,
            other => Self::Refused(other),
        }
    }
}

impl<P: Provider> Channel<P> {
    /// Its name on its Worker.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.reservation.id
    }

    /// Who is at the other end, and what was agreed.
    #[must_use]
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// What the queue pair was granted.
    #[must_use]
    pub fn limits(&self) -> QueuePairLimits {
        self.control.limits()
    }

    /// Whether it can still be used, and if not, why, as far as was polled.
    #[must_use]
    pub fn state(&self) -> ChannelState {
        let causes = [self.sender.cause(), self.receiver.cause()];
        let real = causes.iter().flatten().find(|cause| !cause.status.is_flush());
        match real.or_else(|| causes.iter().flatten().next()) {
            Some(cause) => ChannelState::Failed { cause: *cause },
            None => ChannelState::Open,
        }
    }

    /// How many messages may be sent now: receives the peer posted and announced that were not
    /// used. SENDs and WRITEs with immediate use one each.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.sender.credits()
    }

    /// How many requests are in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.sender.in_flight()
    }

    /// How many more requests can be posted now. Messages take [`Channel::credits`] too.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.sender.room()
    }

    /// How many receives are posted.
    #[must_use]
    pub fn receives_posted(&self) -> u32 {
        self.receiver.in_flight()
    }

    /// Begins a batch: push requests, then ring the doorbell once.
    #[inline]
    pub fn batch(&mut self) -> Batch<'_, P> {
        Batch {
            inner: self.sender.stage(),
        }
    }

    /// Sends one message by itself.
    ///
    /// # Errors
    /// [`SendError`] hands the lease back.
    #[inline]
    pub fn send(&mut self, message: Lease<P>) -> Result<Ticket, SendError<Lease<P>>> {
        self.post(Operation::Send, message, PostFlags::empty())
    }

    /// Posts one request of any kind by itself.
    ///
    /// # Errors
    /// [`SendError`] hands the lease back.
    #[inline]
    pub fn post(
        &mut self,
        operation: Operation,
        lease: Lease<P>,
        flags: PostFlags,
    ) -> Result<Ticket, SendError<Lease<P>>> {
        let mut batch = self.sender.stage();
        let ticket = match batch.push(operation, [lease.slot], flags) {
            Ok(ticket) => ticket,
            Err(refused) => {
                let [slot] = refused.item;
                return Err(SendError {
                    kind: refused.reason.into(),
                    item: Some(Lease { slot }),
                });
            }
        };
        let mut back = None;
        match batch.ring_returning(|_, slot| back = Some(Lease { slot })) {
            Ok(_) => Ok(ticket),
            Err(error) => Err(SendError {
                kind: SendErrorKind::Post(error),
                item: back,
            }),
        }
    }

    /// Posts one request whose bytes are copied into it: no lease is needed, and they may
    /// be reused at once. At most [`QueuePairLimits::inline_bytes_max`] of them.
    ///
    /// # Errors
    /// The bytes are the caller's still.
    #[inline]
    pub fn post_inline(&mut self, operation: Operation, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        let mut batch = self.sender.stage();
        let ticket = batch.push_inline(operation, bytes, PostFlags::empty())?;
        batch.ring().map(|_| ticket).map_err(SendErrorKind::Post)
    }

    /// Takes the receive a completion names, as an event. `None` where it names none.
    #[inline]
    pub(crate) fn retire_receive(
        &mut self,
        completion: P::Completion,
        arena: &mut P::Arena,
    ) -> Option<Event<P>> {
        let mut message = None;
        let arrival = self
            .receiver
            .retire(completion, |_, slot| {
                // Receives complete in order, so there is one slot. Were completions lost, the
                // earlier ones would hold nothing that could still be told apart.
                if let Some(Lease { slot }) = message.replace(Lease { slot }) {
                    arena.release(slot);
                }
            })
            .ok()?;
        if let (ArrivalKind::Send, Some(message)) = (arrival.kind, message.take()) {
            return Some(Event::Received {
                message,
                immediate: arrival.immediate,
            });
        }
        if let Some(Lease { slot }) = message {
            arena.release(slot);
        }
        Some(match arrival.kind {
            ArrivalKind::WriteWithImmediate => Event::Written {
                payload_bytes: arrival.payload_bytes,
                immediate: arrival.immediate.unwrap_or_default(),
            },
            _ => Event::ReceiveFailed {
                status: arrival.status,
            },
        })
    }

    /// Posts the receives that are missing, and says whether none is left to post. A refusal
    /// of the device is told to `each`.
    #[inline]
    pub(crate) fn replenish(
        &mut self,
        arena: &mut P::Arena,
        each: &mut impl FnMut(Turn<'_, P>, Event<P>),
    ) -> bool {
        if let Err(error) = self.receiver.replenish(arena) {
            each(Turn { channel: self, arena }, Event::ReceivesRefused { error });
        }
        !self.receiver.is_short()
    }

    /// Announces by itself what receives the peer does not know of, and says whether none is left
    /// to announce. A refusal of the device is told to `each`.
    pub(crate) fn announce(
        &mut self,
        arena: &mut P::Arena,
        each: &mut impl FnMut(Turn<'_, P>, Event<P>),
    ) -> bool {
        match self.sender.announce() {
            Ok(is_done) => is_done,
            Err(error) => {
                each(
                    Turn { channel: self, arena },
                    Event::AnnouncementRefused { error },
                );
                false
            }
        }
    }

    /// Fails the queue pair, so that everything posted is flushed and comes back by polling.
    ///
    /// # Errors
    /// The device refused.
    pub fn shut(&mut self) -> Result<(), ProviderError> {
        self.control.fail()
    }
}

impl<P: Provider> fmt::Debug for Channel<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("id", &self.id())
            .field("peer", &self.peer)
            .field("sender", &self.sender)
            .field("receiver", &self.receiver)
            .finish_non_exhaustive()
    }
}
