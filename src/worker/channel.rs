//! One connection to a peer: posting, by message or one-sidedly.

use core::fmt;
use std::sync::Arc;

use doorbell_core::Ticket;
use doorbell_core::provider::{
    Operation, PostError, PostFlags, Provider, ProviderError, PushError, QueuePairLimits,
};
use doorbell_ffi::Rdma;
use doorbell_hotpath::UnpostedReason;

use crate::worker::Reservation;
use crate::worker::batch::Batch;
use crate::worker::claim::Claim;
use crate::worker::event::{ChannelState, Event};
use crate::worker::half::{Held, Lost, ReceiveHalf, Receives, SendHalf, Sends};
use crate::worker::lease::Lease;
use crate::worker::peer::Peer;

/// One reliable connection to a peer, on the Worker that made it.
pub struct Channel<P: Provider = Rdma> {
    // Dropped first: the sending half owns the queue pair.
    pub(crate) receive: ReceiveHalf<P>,
    pub(crate) send: SendHalf<P>,
}

/// Identifies a channel of a Worker. The id is invalid after the channel is closed, and no later channel gets the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChannelId {
    pub(crate) index: u32,
    /// Distinguishes channels that used the same index one after the other.
    pub(crate) generation: u32,
}

impl ChannelId {
    /// Returns the index of the channel on its Worker. The index is below
    /// [`WorkerConfig::channels_max`](crate::WorkerConfig::channels_max), so the application may use it as an array index. After
    /// the channel is closed, a later channel may get the same index.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// A send that failed: the item that was not sent, and the reason.
///
/// [`SendErrorKind::WouldBlock`] is backpressure: poll the Worker and try again.
#[derive(Debug)]
pub struct SendError<T> {
    /// The reason.
    pub kind: SendErrorKind,
    /// The item, handed back. `None` if the device refused the post without naming the failed request. The device may still have
    /// the request then, so the memory returns to its Worker only when the request is retired or the queue pair is destroyed.
    pub item: Option<T>,
}

/// Reason why a send or a post was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// Backpressure: the send queue is full, or there is no credit for a message. Poll the Worker and try again. See
    /// [`Channel::room`] and [`Channel::credits`].
    WouldBlock,
    /// Caller misuse, or the queue pair failed.
    Refused(PushError),
    /// Caller misuse: the message exceeds a limit. The limits are the peer's receives ([`Peer::message_bytes_max`]), a cell of
    /// the peer's ring, the cell or lease that the message is sent from, and the largest request of the port.
    TooLong {
        /// The size of the message in bytes.
        bytes: usize,
        /// The limit that it exceeds.
        bytes_max: usize,
    },
    /// The device refused the post.
    Post(PostError),
    /// No slot is free now: every slot that may be leased is in flight or held by the application. Poll the Worker and try again;
    /// see [`Worker::lease`](crate::Worker::lease).
    NoMemory,
    /// No slot can be leased while the Worker has these channels: their receives take every slot
    /// ([`Worker::leases_max`](crate::Worker::leases_max) is 0), because
    /// [`lease_share_percent`](crate::WorkerConfig::lease_share_percent) is 0.
    NoLeases,
    /// The Worker has no open channel with this id: the channel was closed.
    Closed,
    /// The peer closed the channel: see [`Event::PeerClosed`](crate::Event::PeerClosed).
    PeerClosed,
}

impl SendErrorKind {
    /// Returns whether the error goes away by polling, so that the caller can retry. Any other error has a cause that polling
    /// does not remove: a closed or failed channel, a refusal of the device, the configuration, or a mistake of the caller.
    #[must_use]
    pub const fn is_temporary(self) -> bool {
        matches!(self, Self::WouldBlock | Self::NoMemory)
    }
}

impl fmt::Display for SendErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WouldBlock => {
                f.write_str("the send queue is full, or the peer has no receive left: poll, and try again")
            }
            Self::Refused(reason) => write!(f, "not sent: {reason}"),
            Self::TooLong { bytes, bytes_max } => write!(
                f,
                "the message has {bytes} bytes, and the peer's receive, the cell or the lease holds {bytes_max}: send less, or raise \
                 slot_bytes or cell_bytes"
            ),
            Self::Post(error) => write!(f, "the device refused the post: {error}"),
            Self::NoMemory => f.write_str("no slot of the Worker is free now: poll, and try again"),
            Self::NoLeases => f.write_str(
                "every slot of the Worker is a receive of its channels: raise slots or lease_share_percent",
            ),
            Self::Closed => {
                f.write_str("not sent: this Worker has no open channel of that id; connect again")
            }
            Self::PeerClosed => f.write_str("not sent: the peer closed the channel; connect again"),
        }
    }
}

impl core::error::Error for SendErrorKind {}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.kind, f)
    }
}

impl<T: fmt::Debug> core::error::Error for SendError<T> {}

impl<T> From<SendError<T>> for SendErrorKind {
    /// Drops the item that was to be sent, so a lease returns to its Worker.
    fn from(error: SendError<T>) -> Self {
        error.kind
    }
}

impl From<PushError> for SendErrorKind {
    fn from(reason: PushError) -> Self {
        match reason {
            PushError::Full | PushError::NoCredit => Self::WouldBlock,
            PushError::TooLong { bytes, bytes_max } => Self::TooLong {
                bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
                bytes_max: bytes_max as usize,
            },
            other => Self::Refused(other),
        }
    }
}

impl From<UnpostedReason> for SendErrorKind {
    fn from(reason: UnpostedReason) -> Self {
        match reason {
            UnpostedReason::Push(reason) => reason.into(),
            UnpostedReason::Post(error) => Self::Post(error),
        }
    }
}

impl<P: Provider> Channel<P> {
    /// Returns the channel's id on its Worker.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.send.id()
    }

    /// Returns the peer, and the parameters negotiated with it.
    #[must_use]
    pub const fn peer(&self) -> &Peer {
        self.send.peer()
    }

    /// Returns the word that the application attached to the channel, 0 by default: an index or a key, for example, to identify the
    /// sender of a message.
    #[must_use]
    #[inline]
    pub const fn user(&self) -> u64 {
        self.receive.user
    }

    /// Attaches a word of the application to the channel. After a split both halves have it.
    #[inline]
    pub const fn set_user(&mut self, user: u64) {
        self.send.user = user;
        self.receive.user = user;
    }

    /// Returns the port number of the channel on its device, from 1.
    #[must_use]
    pub const fn port(&self) -> u8 {
        self.send.port
    }

    /// Returns the traffic class of the channel, as an index into [`WorkerConfig::classes`](crate::WorkerConfig::classes).
    #[must_use]
    pub const fn class(&self) -> u8 {
        self.send.class
    }

    /// Returns the limits that the device granted to the queue pair.
    #[must_use]
    pub fn limits(&self) -> QueuePairLimits {
        self.send.limits()
    }

    /// Returns whether the channel can be used, or the reason why not, as of the last poll.
    #[must_use]
    pub fn state(&self) -> ChannelState {
        let causes = [self.send.sender.cause(), self.receive.receiver.cause()];
        ChannelState::of(self.receive.ending.peer_closed, causes)
    }

    /// Returns the credits: how many messages may be sent now. Each credit is a receive that the peer has posted and announced. A
    /// SEND or a WRITE with immediate consumes one.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.send.credits()
    }

    /// Returns the bytes of each cell, the limit of [`Channel::claim`]. It is 0 if the channel has no cells.
    #[must_use]
    pub fn cell_bytes(&self) -> u32 {
        self.send.sender.cell_bytes()
    }

    /// Returns how many requests are in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.send.in_flight()
    }

    /// Returns how many more requests can be posted now. Messages also need [`Channel::credits`]. A poll may use one request to
    /// announce receives to the peer.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.send.room()
    }

    /// Returns how many receives are posted for the peer. With shared receives, returns how many the peer was granted.
    #[must_use]
    pub fn receives_posted(&self) -> u32 {
        self.receive.receives_posted()
    }

    /// Returns how many receives have memory and wait to be posted together with others. The number is below
    /// [`ChannelConfig::repost_batch`](crate::ChannelConfig::repost_batch), unless the device refuses receives. With shared
    /// receives, returns 0.
    #[must_use]
    pub fn receives_staged(&self) -> u32 {
        self.receive.receives_staged()
    }

    /// Begins a batch: stage requests with it, then ring the doorbell once.
    #[inline(always)]
    pub fn batch(&mut self) -> Batch<'_, P> {
        self.send.batch()
    }

    /// Sends one message with a copy of these bytes, which may be reused at once. Short messages are copied inline into the request
    /// ([`ChannelConfig::inline_alone_bytes_max`](crate::ChannelConfig::inline_alone_bytes_max)), else into a cell of the channel.
    ///
    /// # Errors
    /// [`SendErrorKind::TooLong`]: the message fits neither inline nor into a cell
    /// ([`ChannelConfig::cell_bytes`](crate::ChannelConfig::cell_bytes)), or it exceeds the peer's receives.
    /// [`Channel::send_lease`] sends messages that are longer than a cell. Other errors are as for [`Channel::post`].
    #[inline(always)]
    pub fn send(&mut self, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        self.send.send(bytes)
    }

    /// Lends `len_bytes` bytes of the next cell of the send queue, so that the application writes the message in place without a
    /// copy.
    ///
    /// Succeeds only if the send queue has room and the peer granted a credit. If an announcement of receives is due with the
    /// next send, this call posts it first, with its own doorbell.
    ///
    /// ```
    /// # fn f(channel: &mut doorbell::Channel) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut claim = channel.claim(8)?;
    /// claim.bytes().copy_from_slice(&7_u64.to_le_bytes());
    /// claim.send()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SendErrorKind::WouldBlock`]: there is no room or no credit. [`SendErrorKind::TooLong`]: the length exceeds
    /// [`ChannelConfig::cell_bytes`](crate::ChannelConfig::cell_bytes).
    #[inline(always)]
    pub fn claim(&mut self, len_bytes: usize) -> Result<Claim<'_, P>, SendErrorKind> {
        self.send.claim(len_bytes)
    }

    /// Sends one message from a lease, without a copy. Use this call for messages that are longer than a cell, or already in a
    /// lease. A message of up to [`ChannelConfig::inline_alone_bytes_max`](crate::ChannelConfig::inline_alone_bytes_max) bytes
    /// goes inline.
    ///
    /// # Errors
    /// [`SendError`] hands the lease back.
    #[inline(always)]
    pub fn send_lease(&mut self, message: Lease<P>) -> Result<Ticket, SendError<Lease<P>>> {
        self.send.send_lease(message)
    }

    /// Posts one request of any kind, with its own doorbell.
    ///
    /// A READ fetches as many bytes as the length of its lease ([`Lease::set_len_bytes`]). With a length of 0, as in a new lease
    /// of [`Worker::lease`](crate::Worker::lease), the READ fetches the whole range of the address
    /// ([`RemoteAddress::within`](crate::RemoteAddress::within)), at most the capacity of the lease. An atomic ignores the length
    /// of its lease, which must have a capacity of at least eight bytes.
    ///
    /// # Errors
    /// [`SendError`] hands the lease back. A request that the peer or the device would refuse is rejected here; `docs/posting.md`
    /// has the table of these checks.
    #[inline(always)]
    pub fn post(
        &mut self,
        operation: Operation,
        lease: Lease<P>,
        flags: PostFlags,
    ) -> Result<Ticket, SendError<Lease<P>>> {
        self.send.post(operation, lease, flags)
    }

    /// Queues one request for the next poll of the Worker. The poll posts all requests queued for the channel with one doorbell:
    /// first the requests submitted by this call, in order, then the requests of [`Submitter`](crate::worker::Submitter)s. If a
    /// callback of a poll calls this, the same poll posts the request, so all answers of one poll share one doorbell. A request
    /// submitted in response to [`Event::Unsent`](crate::Event::Unsent) or
    /// [`Event::AnnouncementRefused`](crate::Event::AnnouncementRefused) is posted by the poll after that.
    ///
    /// A poll does not wait for more requests: a short request that is alone goes inline, with its own doorbell. A message
    /// without credits or room waits, and so do the later requests submitted by this call. Requests of submitters may overtake
    /// them meanwhile. If requests of this call left no room for those of submitters, the submitters' requests go first at the
    /// next poll. [`Channel::send`], [`Channel::post`] and batches ring at once, so they overtake waiting requests.
    /// [`Channel::room`], [`Channel::credits`] and [`Channel::in_flight`] do not count waiting requests.
    ///
    /// A posted request is like any other, but its ticket is unknown until an event names it. A request that cannot be posted
    /// comes back by [`Event::Unsent`](crate::Event::Unsent). If the Worker is dropped, waiting requests are dropped without an
    /// event.
    ///
    /// On a Worker that never had a submitter, no other thread shares a doorbell, so the request is posted at once, as by
    /// [`Channel::post`].
    ///
    /// # Errors
    /// [`SendError`] returns the lease. The peer or the device would refuse the request, or the request was posted at once and
    /// failed as by [`Channel::post`]. [`SendErrorKind::WouldBlock`]: the queue of waiting requests is full.
    /// [`SendErrorKind::PeerClosed`]: the peer closed the channel. [`SendErrorKind::Refused`]: the channel is being closed and
    /// accepts no more requests.
    #[inline]
    pub fn submit(
        &mut self,
        operation: Operation,
        lease: Lease<P>,
        flags: PostFlags,
    ) -> Result<(), SendError<Lease<P>>> {
        self.send.submit(operation, lease, flags)
    }

    /// Posts one inline request with a copy of these bytes, which may be reused at once. No lease is needed. The limit is
    /// [`QueuePairLimits::inline_bytes_max`].
    ///
    /// # Errors
    /// As for [`Channel::post`].
    #[inline]
    pub fn post_inline(&mut self, operation: Operation, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        self.send.post_inline(operation, bytes)
    }

    /// Probes whether the peer's device is alive, by a WRITE of zero bytes to the peer's credit word. The WRITE changes no memory
    /// and needs no receive. The peer's device acknowledges it, whatever the peer's process does. Without an acknowledgement the
    /// request fails after the retransmissions, and the channel fails with it.
    /// [`ChannelConfig::timeout`](crate::ChannelConfig::timeout) and
    /// [`ChannelConfig::retry_count`](crate::ChannelConfig::retry_count) set how long that takes. A side that only receives can
    /// detect a dead peer this way.
    ///
    /// # Errors
    /// As for [`Channel::post_inline`].
    pub fn probe(&mut self) -> Result<Ticket, SendErrorKind> {
        self.send.probe()
    }

    /// Moves the queue pair to ERR. All posted requests are flushed, and polling reports them.
    ///
    /// # Errors
    /// The device refused the change of state.
    pub fn shut(&mut self) -> Result<(), ProviderError> {
        self.send.shut()
    }
}

impl<P: Provider> Held for Channel<P> {
    fn reservation(&self) -> &Arc<Reservation> {
        &self.send.reservation
    }
    fn is_open(&self) -> bool {
        self.send.is_open() && self.receive.is_open()
    }
    fn part(&mut self) -> bool {
        self.is_open() && self.send.part()
    }
}

impl<P: Provider> Sends<P> for Channel<P> {
    #[inline]
    fn send_half(&mut self) -> &mut SendHalf<P> {
        &mut self.send
    }
    fn is_announcement_due(&self) -> bool {
        self.receive.receiver.is_announcement_due()
    }
    fn ending(&mut self, received: u32, is_round_over: bool) -> Lost<P> {
        if self.is_reported() {
            return Lost::Reported;
        }
        // A failure of a channel that is being closed is a consequence of the closing.
        if self.send.is_closed {
            return Lost::No;
        }
        let ChannelState::Failed { cause } = self.state() else {
            return Lost::No;
        };
        // A peer that has no credit for its farewell writes the farewell into the credit word instead.
        let event = match self.receive.farewell_found() {
            Some(false) if !self.receive.missing.note_poll(received, is_round_over) => return Lost::Soon,
            Some(all_arrived) => {
                self.note_peer_closed_as(all_arrived);
                Event::PeerClosed { all_arrived }
            }
            None => Event::ChannelFailed { cause },
        };
        self.send.ending.is_reported = true;
        Lost::Now(event)
    }
}

impl<P: Provider> Channel<P> {
    /// Whether either half reported the end of the channel to the application.
    pub(crate) const fn is_reported(&self) -> bool {
        self.send.ending.is_reported || self.receive.ending.is_reported
    }

    fn note_peer_closed_as(&mut self, all_arrived: bool) {
        self.receive.ending.peer_closed = Some(all_arrived);
        self.send.note_peer_closed(all_arrived);
    }
}

impl<P: Provider> Receives<P> for Channel<P> {
    #[inline]
    fn receive_half(&mut self) -> &mut ReceiveHalf<P> {
        &mut self.receive
    }
    fn refuse(&mut self) {
        // If the device refuses, the channel counts as failed anyway.
        let _ = self.send.shut();
    }
    fn note_peer_closed(&mut self) -> bool {
        let is_reported = self.is_reported();
        self.note_peer_closed_as(true);
        self.send.ending.is_reported = true;
        self.send.notice.note_lost();
        !is_reported
    }
    fn note_failed(&mut self) -> Option<Event<'static, P>> {
        // The failure is reported after both queues were polled, since the cause may be in the send queue.
        self.send.notice.note_lost();
        None
    }
}

impl<P: Provider> fmt::Debug for Channel<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("id", &self.id())
            .field("peer", self.peer())
            .field("sender", &self.send.sender)
            .field("receiver", &self.receive.receiver)
            .finish_non_exhaustive()
    }
}
