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
    // Goes first: the queue pair is the other half's.
    pub(crate) receive: ReceiveHalf<P>,
    pub(crate) send: SendHalf<P>,
}

/// Identifies a channel of a Worker. After the channel is closed the id is invalid, and no later channel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChannelId {
    pub(crate) index: u32,
    /// Distinguishes channels that used the same index one after the other.
    pub(crate) generation: u32,
}

impl ChannelId {
    /// Returns the index of the channel on its Worker: below [`WorkerConfig::channels_max`](crate::WorkerConfig::channels_max), so
    /// that the application may have an array by it. A channel that is opened later may have the place of one that is closed.
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
    /// Why.
    pub kind: SendErrorKind,
    /// The item, handed back. `None` where the device refused without saying which
    /// request: it may have it, and the memory stays with it until its queue pair is gone.
    pub item: Option<T>,
}

/// Reason why a send or a post was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// As many requests are in flight as the queue holds, or as many messages as the peer has
    /// receives for: poll the Worker and try again. See [`Channel::room`] and [`Channel::credits`].
    WouldBlock,
    /// Caller misuse, or a queue pair that failed.
    Refused(PushError),
    /// Caller misuse: more bytes than each of the peer's receives holds ([`Peer::message_bytes_max`]), than its ring's cell,
    /// than the message's memory, or than the port carries in one request.
    TooLong {
        /// The bytes there were.
        bytes: usize,
        /// The most there may be.
        bytes_max: usize,
    },
    /// The device refused the post.
    Post(PostError),
    /// No memory is free now: every slot that may be leased is in flight, or in the application's hands. Poll the Worker and
    /// try again; see [`Worker::lease`](crate::Worker::lease).
    NoMemory,
    /// There is no memory to lease while these channels live: their receives take every slot of the Worker
    /// ([`Worker::leases_max`](crate::Worker::leases_max) is 0), since its
    /// [`lease_share_percent`](crate::WorkerConfig::lease_share_percent) is 0.
    NoLeases,
    /// There is no such channel any more: it was closed.
    Closed,
    /// The peer closed the channel: see [`Event::PeerClosed`](crate::Event::PeerClosed).
    PeerClosed,
}

impl SendErrorKind {
    /// Returns whether the error goes away by polling, so that the caller can retry. Any other error ends the channel, or is a
    /// mistake of the caller.
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
    /// Lets go of what was to be sent: memory goes home.
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

    /// Returns the number of its port on the device, from 1.
    #[must_use]
    pub const fn port(&self) -> u8 {
        self.send.port
    }

    /// Returns its traffic class, as an index into [`WorkerConfig::classes`](crate::WorkerConfig::classes).
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

    /// How many receives have their memory, and wait for others to be posted with them: fewer than
    /// [`ChannelConfig::repost_batch`](crate::ChannelConfig::repost_batch). None of shared ones.
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
    /// [`SendErrorKind::TooLong`]: they are more than a cell has ([`ChannelConfig::cell_bytes`](crate::ChannelConfig::cell_bytes)), or
    /// than the peer takes. [`Channel::send_lease`] sends longer ones. Else as for [`Channel::post`].
    #[inline(always)]
    pub fn send(&mut self, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        self.send.send(bytes)
    }

    /// Lends the memory that the next message of so many bytes goes out from: it is written in place, and nothing is copied.
    ///
    /// The message could be sent now: room and credit are there. Receives that are to be announced beside it are announced by
    /// themselves here.
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
    /// [`SendErrorKind::WouldBlock`]: there is no room or no credit. [`SendErrorKind::TooLong`]: a cell has fewer bytes
    /// ([`ChannelConfig::cell_bytes`](crate::ChannelConfig::cell_bytes)).
    #[inline(always)]
    pub fn claim(&mut self, len_bytes: usize) -> Result<Claim<'_, P>, SendErrorKind> {
        self.send.claim(len_bytes)
    }

    /// Sends one message from a lease, without a copy. Use it for messages that are longer than a cell, or already in a lease.
    ///
    /// # Errors
    /// [`SendError`] hands the lease back.
    #[inline(always)]
    pub fn send_lease(&mut self, message: Lease<P>) -> Result<Ticket, SendError<Lease<P>>> {
        self.send.send_lease(message)
    }

    /// Posts one request of any kind, with its own doorbell.
    ///
    /// A READ fetches as many bytes as its lease has ([`Lease::set_len_bytes`]). A lease without a length, as
    /// [`Worker::lease`](crate::Worker::lease) gives it, takes all that the address was made for
    /// ([`RemoteAddress::within`](crate::RemoteAddress::within)), as far as that fits into it. An atomic takes a lease of
    /// any length, that holds eight bytes.
    ///
    /// # Errors
    /// [`SendError`] hands the lease back. A request that the peer or the device would refuse is refused here: the book has the
    /// table of it (`docs/posting.md`).
    #[inline(always)]
    pub fn post(
        &mut self,
        operation: Operation,
        lease: Lease<P>,
        flags: PostFlags,
    ) -> Result<Ticket, SendError<Lease<P>>> {
        self.send.post(operation, lease, flags)
    }

    /// Queues one request for the next poll of the Worker, which posts it in one doorbell together with the other requests queued
    /// for the channel. Requests submitted here go first and in order, then those of [`Submitter`](crate::worker::Submitter)s.
    /// Within a poll, the poll under way posts it, so that all answers given during that poll are one doorbell. A request submitted
    /// in response to [`Event::Unsent`](crate::Event::Unsent) or [`Event::AnnouncementRefused`](crate::Event::AnnouncementRefused)
    /// goes with the poll after that.
    ///
    /// The poll waits for no further requests: a short request that is alone goes inline and by itself. A message that lacks
    /// credits or room waits, and so do the requests submitted here behind it. Requests of submitters go meanwhile if they can,
    /// and go first next time if they were left over. [`Channel::send`], [`Channel::post`] and batches ring at once, and so go
    /// in front. [`Channel::room`], [`Channel::credits`] and [`Channel::in_flight`] do not count waiting requests.
    ///
    /// Once posted it is like any other request, with a ticket that is not known before the request ends. A message that cannot
    /// be posted comes back by [`Event::Unsent`](crate::Event::Unsent). Requests that wait when the Worker is dropped are
    /// dropped with it, without an event.
    ///
    /// On a Worker that never had a submitter no other thread shares a doorbell: the request is posted at once, as by
    /// [`Channel::post`].
    ///
    /// # Errors
    /// [`SendError`] returns the lease. The peer or the device would refuse the request, or it was posted at once and failed as
    /// by [`Channel::post`]. [`SendErrorKind::WouldBlock`]: as many requests wait as the queue takes.
    /// [`SendErrorKind::PeerClosed`]: the peer closed the channel. [`SendErrorKind::Refused`]: the channel is being closed, and
    /// was failed for it.
    #[inline]
    pub fn submit(
        &mut self,
        operation: Operation,
        lease: Lease<P>,
        flags: PostFlags,
    ) -> Result<(), SendError<Lease<P>>> {
        self.send.submit(operation, lease, flags)
    }

    /// Posts one request whose bytes are copied into it: no lease is needed, and they may
    /// be reused at once. At most [`QueuePairLimits::inline_bytes_max`] of them.
    ///
    /// # Errors
    /// The bytes are the caller's still.
    #[inline]
    pub fn post_inline(&mut self, operation: Operation, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        self.send.post_inline(operation, bytes)
    }

    /// Asks the peer's device, and not its process, for a sign of life: a WRITE of no bytes to the word in which receives are
    /// announced to it. It changes nothing and needs no receive. Without an answer the request fails, and the channel with it,
    /// once the transport has retried. [`ChannelConfig::timeout`](crate::ChannelConfig::timeout) and
    /// [`ChannelConfig::retry_count`](crate::ChannelConfig::retry_count) set how long that takes. So a side that only receives
    /// learns that its peer is dead.
    ///
    /// # Errors
    /// As for [`Channel::post_inline`].
    pub fn probe(&mut self) -> Result<Ticket, SendErrorKind> {
        self.send.probe()
    }

    /// Fails the queue pair, so that everything posted is flushed and comes back by polling.
    ///
    /// # Errors
    /// The device refused.
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
    fn ending(&mut self, is_emptied: bool) -> Lost<P> {
        if self.is_reported() {
            return Lost::Reported;
        }
        // A failure once it is being closed is a consequence of that.
        if self.send.is_closed {
            return Lost::No;
        }
        let ChannelState::Failed { cause } = self.state() else {
            return Lost::No;
        };
        // A peer that found no receive for its last message left its word.
        let event = match self.receive.farewell_found() {
            Some(false) if !is_emptied => return Lost::Soon,
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
    /// Whether its end was reported to the application, by either half.
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
        // If the device refuses even that, the channel counts as failed all the same.
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
        // Reported once both queues were polled: the cause may be in the other.
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
