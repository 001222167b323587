//! The sending half and the receiving half of a channel, which may be on different threads.

use core::fmt;
use std::sync::Arc;

use doorbell_core::provider::{
    Arena, Arrival, ArrivalKind, Lent, Operation, PostError, PostFlags, Provider, ProviderError, PushError,
    QueuePair, QueuePairLimits,
};
use doorbell_core::{QpState, Ticket, WcStatus};
use doorbell_ffi::Rdma;
use doorbell_hotpath::{
    FAREWELL, FAREWELL_BYTES, FarewellWord, FirstCause, Grants, Receiver, Sender, Share, Statistics,
    Unposted, UnpostedReason,
};

use crate::worker::batch::Batch;
use crate::worker::channel::{ChannelId, SendError, SendErrorKind};
use crate::worker::ending::{Care, Ending, MissingMessages};
use crate::worker::event::{ChannelState, Event};
use crate::worker::lease::Lease;
use crate::worker::message::Taken;
use crate::worker::peer::Peer;
use crate::worker::submission::{Deferred, Records, SubmissionError};
use crate::worker::{Notice, Reservation};

/// A send queue with its signaling policy and its credits.
pub(crate) type Sending<P> =
    Sender<<P as Provider>::SendQueue, Box<[u8]>, Arc<<P as Provider>::Window>, Arc<Grants>, Arc<Statistics>>;

/// The source of a channel's receives.
pub(crate) enum Receiving<P: Provider> {
    /// The channel's own receive queue, which is kept filled.
    Own(Receiver<P::ReceiveQueue, Arc<Grants>, Arc<Statistics>>),
    /// A share of the receive queue that all channels of the Worker share.
    Shared {
        share: Share<Arc<Grants>>,
        /// Whether the device reported that the failed queue pair takes no more receives (`IBV_EVENT_QP_LAST_WQE_REACHED`).
        has_ended: bool,
    },
}

impl<P: Provider> Receiving<P> {
    /// Returns the first cause of the queue pair's failure that this half knows.
    pub(crate) const fn cause(&self) -> Option<FirstCause> {
        match self {
            Self::Own(receiver) => receiver.cause(),
            Self::Shared { share, .. } => share.cause(),
        }
    }

    /// Whether receives are to be announced to the peer without waiting for another send.
    #[inline]
    pub(crate) fn is_announcement_due(&self) -> bool {
        match self {
            Self::Own(receiver) => receiver.is_announcement_due(),
            Self::Shared { share, .. } => share.is_announcement_due(),
        }
    }

    /// Returns how many messages arrived, as a count that is comparable with the peer's count of sent messages.
    pub(crate) fn received(&self) -> u32 {
        match self {
            Self::Own(receiver) => receiver.received(),
            Self::Shared { share, .. } => share.received(),
        }
    }

    /// Takes the memory of a message back. Returns whether receives of the channel's own queue are to be posted or announced.
    #[inline(always)]
    pub(crate) fn put_back(&mut self, message: Option<Taken<P>>, arena: &mut P::Arena) -> bool {
        match self {
            Self::Own(receiver) => receiver.put_back(message, arena),
            // The Worker reposts shared receives for all channels.
            Self::Shared { .. } => false,
        }
    }

    /// Posts missing receives of the own queue. Returns whether less than a batch is missing now, and an error of the device.
    pub(crate) fn repost(&mut self, arena: &mut P::Arena) -> (bool, Option<PostError>) {
        match self {
            Self::Own(receiver) => {
                let refused = receiver.repost(arena).err();
                (!receiver.is_short(), refused)
            }
            Self::Shared { .. } => (true, None),
        }
    }
}

impl<P: Provider> fmt::Debug for Receiving<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(receiver) => fmt::Debug::fmt(receiver, f),
            Self::Shared { share, .. } => fmt::Debug::fmt(share, f),
        }
    }
}

/// The sending half of a channel, on a [`SendWorker`](crate::worker::SendWorker).
pub struct SendHalf<P: Provider = Rdma> {
    // Dropped first: requests in flight are reported before their slots return to an arena.
    pub(crate) records: Records<P>,
    /// Requests that wait for the Worker's poll; `Some` once the Worker has submitters.
    pub(crate) deferred: Option<Box<Deferred<P>>>,
    /// Whether the channel is being closed, so that no request may wait any more.
    pub(crate) is_closed: bool,
    /// Whether the receives of the Worker's channels use all slots, so that none can be leased.
    pub(crate) is_without_leases: bool,
    // Dropped before the control side. The last part that is dropped destroys the queue pair, so any order is sound.
    pub(crate) sender: Sending<P>,
    pub(crate) control: P::QueuePair,
    pub(crate) notice: Notice,
    pub(crate) reservation: Arc<Reservation>,
    pub(crate) peer: Peer,
    /// The device port of the queue pair.
    pub(crate) port: u8,
    pub(crate) class: u8,
    /// A request that is alone in its doorbell goes inline up to this length.
    pub(crate) inline_alone_bytes_max: u16,
    /// The word of the application.
    pub(crate) user: u64,
    pub(crate) ending: Ending,
    pub(crate) care: Care,
}

/// The receiving half of a channel, on a [`ReceiveWorker`](crate::worker::ReceiveWorker).
pub struct ReceiveHalf<P: Provider = Rdma> {
    pub(crate) receiver: Receiving<P>,
    /// The credit word, in which the peer writes its farewell.
    pub(crate) farewell: FarewellWord<Arc<P::Window>>,
    pub(crate) ending: Ending,
    pub(crate) missing: MissingMessages,
    pub(crate) reservation: Arc<Reservation>,
    /// The word of the application.
    pub(crate) user: u64,
}

impl<P: Provider> SendHalf<P> {
    /// Returns the channel's id, which both halves share.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.reservation.id
    }

    /// Returns the word that the application attached to this half; see [`Channel::user`](crate::Channel::user).
    #[must_use]
    #[inline]
    pub const fn user(&self) -> u64 {
        self.user
    }

    /// Attaches a word of the application to this half. The other half keeps its own word.
    #[inline]
    pub const fn set_user(&mut self, user: u64) {
        self.user = user;
    }

    /// Returns the peer, and the parameters negotiated with it.
    #[must_use]
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns the limits that the device granted to the queue pair.
    #[must_use]
    pub fn limits(&self) -> QueuePairLimits {
        self.control.limits()
    }

    /// Returns whether the channel can be used, or the reason why not, as of this half's last poll.
    #[must_use]
    pub fn state(&self) -> ChannelState {
        ChannelState::of(self.ending.peer_closed, [self.sender.cause()])
    }

    /// Returns the credits: how many messages may be sent now; see [`Channel::credits`](crate::Channel::credits).
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.sender.credits()
    }

    /// Returns how many requests are in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.sender.in_flight()
    }

    /// Returns how many more requests can be posted now. Messages also need [`SendHalf::credits`]. A poll may use one request to
    /// announce receives to the peer.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.sender.room()
    }

    /// Begins a batch: stage requests with it, then ring the doorbell once.
    #[inline]
    pub fn batch(&mut self) -> Batch<'_, P> {
        Batch {
            inner: self.sender.stage(),
            notice: &mut self.notice,
        }
    }

    /// Sends one message with a copy of these bytes; see [`Channel::send`](crate::Channel::send).
    ///
    /// # Errors
    /// As for [`Channel::send`](crate::Channel::send).
    #[inline]
    pub fn send(&mut self, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        if bytes.len() <= usize::from(self.inline_alone_bytes_max) {
            return self.post_inline(Operation::Send, bytes);
        }
        if bytes.len() > self.sender.cell_bytes() as usize {
            return self.send_without_cell(bytes);
        }
        let mut claim = self.claim(bytes.len())?;
        claim.fill(bytes);
        claim.send()
    }

    /// Sends one message that is longer than a cell: inline, if it fits.
    #[cold]
    fn send_without_cell(&mut self, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        let inline_bytes_max = self.limits().inline_bytes_max;
        if bytes.len() <= inline_bytes_max as usize {
            return self.post_inline(Operation::Send, bytes);
        }
        Err(SendErrorKind::TooLong {
            bytes: bytes.len(),
            bytes_max: inline_bytes_max.max(self.sender.cell_bytes()) as usize,
        })
    }

    /// Sends one message from a lease; see [`Channel::send_lease`](crate::Channel::send_lease).
    ///
    /// # Errors
    /// [`SendError`] hands the lease back.
    #[inline]
    pub fn send_lease(&mut self, message: Lease<P>) -> Result<Ticket, SendError<Lease<P>>> {
        self.post(Operation::Send, message, PostFlags::empty())
    }

    /// Posts one request of any kind, with its own doorbell; see [`Channel::post`](crate::Channel::post).
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
        let is_short = lease.len_bytes() <= usize::from(self.inline_alone_bytes_max);
        let flags = if is_short && !operation.writes_slots() {
            flags | PostFlags::INLINE
        } else {
            flags
        };
        self.sender
            .post_one(operation, lease.slot, flags)
            .map_err(|Unposted { reason, slot, .. }| SendError {
                kind: unposted(&mut self.notice, reason),
                item: slot.map(|slot| Lease { slot }),
            })
    }

    /// Queues one request for the next poll of the Worker; see [`Channel::submit`](crate::Channel::submit).
    ///
    /// # Errors
    /// As for [`Channel::submit`](crate::Channel::submit).
    #[inline]
    pub fn submit(
        &mut self,
        operation: Operation,
        lease: Lease<P>,
        flags: PostFlags,
    ) -> Result<(), SendError<Lease<P>>> {
        if self.is_closed {
            let kind = match self.ending.peer_closed {
                Some(_) => SendErrorKind::PeerClosed,
                None => SendErrorKind::Refused(PushError::State(QpState::Error)),
            };
            return Err(SendError {
                kind,
                item: Some(lease),
            });
        }
        if let Err(reason) = self.sender.check(operation, &lease.slot, flags) {
            return Err(SendError {
                kind: reason.into(),
                item: Some(lease),
            });
        }
        match &mut self.deferred {
            Some(deferred) => deferred
                .submit(operation, lease.slot, flags)
                .map_err(|slot| SendError {
                    kind: SendErrorKind::WouldBlock,
                    item: Some(Lease { slot }),
                }),
            None => self.post(operation, lease, flags).map(drop),
        }
    }

    /// Whether submitted requests wait for the poll, to be posted or to come back.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.deferred
            .as_ref()
            .is_some_and(|deferred| !deferred.is_empty())
    }

    /// Makes the next poll return the requests that wait for it, since the queue pair failed with this status.
    #[cold]
    pub(crate) fn refuse_deferred(&mut self, status: WcStatus) {
        if let Some(deferred) = &mut self.deferred {
            deferred.refuse(SubmissionError::ChannelFailed(status));
        }
    }

    /// Begins the end of the channel: the next poll returns waiting requests, and no new request may wait.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.refuse_deferred(WcStatus::WR_FLUSH_ERR);
    }

    /// Posts one inline request with a copy of these bytes, which may be reused at once. No lease is needed. The limit is
    /// [`QueuePairLimits::inline_bytes_max`].
    ///
    /// # Errors
    /// As for [`Channel::post`](crate::Channel::post).
    #[inline]
    pub fn post_inline(&mut self, operation: Operation, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        self.sender
            .post_inline_one(operation, bytes, PostFlags::empty())
            .map_err(|reason| unposted(&mut self.notice, reason))
    }

    /// Sends one message with a copy of these bytes: inline, from a cell, or from a slot of this arena if they do not fit there.
    #[inline]
    pub(crate) fn send_bytes(&mut self, arena: &mut P::Arena, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        let in_place_bytes_max = self.limits().inline_bytes_max.max(self.sender.cell_bytes());
        if bytes.len() <= in_place_bytes_max as usize {
            return self.send(bytes);
        }
        let bytes_max = arena.slot_bytes().min(self.peer.message_bytes_max()) as usize;
        let too_long = SendErrorKind::TooLong {
            bytes: bytes.len(),
            bytes_max,
        };
        if bytes.len() > bytes_max {
            return Err(too_long);
        }
        let mut lease = self.lease_for(arena)?;
        // The bytes fit: they are at most `slot_bytes`.
        lease.fill(bytes).map_err(|_| too_long)?;
        Ok(self.send_lease(lease)?)
    }

    /// Leases a slot of this arena, if the channel can send a message now.
    #[inline]
    pub(crate) fn lease_for(&mut self, arena: &mut P::Arena) -> Result<Lease<P>, SendErrorKind> {
        self.sender
            .admit_message()
            .map_err(|reason| unposted(&mut self.notice, reason.into()))?;
        match arena.lease() {
            Some(slot) => Ok(Lease { slot }),
            None if self.is_without_leases => Err(SendErrorKind::NoLeases),
            None => Err(SendErrorKind::NoMemory),
        }
    }

    /// Moves the queue pair to ERR. All requests and receives of both halves are flushed, and polling reports them.
    ///
    /// # Errors
    /// The device refused the change of state.
    pub fn shut(&mut self) -> Result<(), ProviderError> {
        self.control.fail()
    }

    /// Probes whether the peer's device is alive; see [`Channel::probe`](crate::Channel::probe).
    ///
    /// # Errors
    /// As for [`SendHalf::post_inline`].
    pub fn probe(&mut self) -> Result<Ticket, SendErrorKind> {
        let remote = self.peer.announcements();
        self.post_inline(Operation::Write(remote), &[])
    }

    /// Notes that the peer closed the channel: sends are refused from now on.
    #[cold]
    pub(crate) fn note_peer_closed(&mut self, all_arrived: bool) {
        self.ending.peer_closed = Some(all_arrived);
        self.notice.note_peer_closed();
        self.sender.leave();
        self.close();
    }

    /// Notifies the peer of the close, if the peer understands a farewell and the queue pair works: by a WRITE with immediate, or
    /// in the peer's credit word if there is no credit. Returns whether the notice was posted.
    #[cold]
    pub(crate) fn part(&mut self) -> bool {
        if !self.may_part() {
            return false;
        }
        let said = self.sender.say_farewell();
        said.or_else(|_| self.sender.leave_farewell()).is_ok()
    }

    /// Whether a farewell can still be sent.
    pub(crate) fn may_part(&self) -> bool {
        self.care.says_farewell && !self.sender.has_left() && self.sender.cause().is_none()
    }
}

/// Reports a request that was not posted to the Worker if the Worker has to act on it. Returns the reason for the caller.
#[inline]
pub(crate) fn unposted(notice: &mut Notice, reason: UnpostedReason) -> SendErrorKind {
    match reason {
        UnpostedReason::Push(reason) => notice.note_refused(reason),
        UnpostedReason::Post(error) => {
            notice.note_not_posted();
            SendErrorKind::Post(error)
        }
    }
}

impl<P: Provider> ReceiveHalf<P> {
    /// Returns the channel's id, which both halves share.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.reservation.id
    }

    /// Returns the word that the application attached to this half; see [`Channel::user`](crate::Channel::user).
    #[must_use]
    #[inline]
    pub const fn user(&self) -> u64 {
        self.user
    }

    /// Attaches a word of the application to this half. The other half keeps its own word.
    #[inline]
    pub const fn set_user(&mut self, user: u64) {
        self.user = user;
    }

    /// Returns whether the channel can be used, or the reason why not, as of this half's last poll.
    #[must_use]
    pub fn state(&self) -> ChannelState {
        ChannelState::of(self.ending.peer_closed, [self.receiver.cause()])
    }

    /// Whether the WRITE with immediate that arrived last is the peer's farewell.
    #[cold]
    pub(crate) fn is_farewell(&self) -> bool {
        let farewell = self.farewell.load();
        // After a farewell nothing arrives but repetitions of it: a failing device may deliver the last message again.
        self.ending.peer_closed.is_some()
            || farewell.is_some_and(|messages| messages.wrapping_add(1) == self.receiver.received())
    }

    /// Looks for a farewell in the credit word. Returns whether all messages of the peer have arrived; `None` without a farewell.
    pub(crate) fn farewell_found(&self) -> Option<bool> {
        // Compared modulo 2^32, since a device that delivers a message again makes the count of received messages larger.
        Some(self.receiver.received().wrapping_sub(self.farewell.load()?) <= u32::MAX / 2)
    }

    /// Returns how many receives are posted for the peer. With shared receives, returns how many the peer was granted.
    #[must_use]
    pub fn receives_posted(&self) -> u32 {
        match &self.receiver {
            Receiving::Own(receiver) => receiver.in_flight(),
            Receiving::Shared { share, .. } => share.granted(),
        }
    }

    /// Returns how many receives have memory and wait to be posted together with others; see
    /// [`Channel::receives_staged`](crate::Channel::receives_staged).
    #[must_use]
    pub fn receives_staged(&self) -> u32 {
        match &self.receiver {
            Receiving::Own(receiver) => receiver.staged(),
            Receiving::Shared { .. } => 0,
        }
    }

    /// Whether the device reported that the failed queue pair takes no more shared receives.
    pub(crate) const fn has_ended(&self) -> bool {
        matches!(self.receiver, Receiving::Shared { has_ended: true, .. })
    }

    /// Takes the message of a completion on the channel's own queue. `None` for shared receives, and if the completion is no
    /// message or out of turn; then [`ReceiveHalf::retire`] handles the completion.
    #[inline(always)]
    pub(crate) fn retire_message(
        &mut self,
        completion: &Lent<'_, P::Completion>,
    ) -> Option<(Taken<P>, Option<u32>)> {
        let Receiving::Own(receiver) = &mut self.receiver else {
            return None;
        };
        receiver.retire_message(completion)
    }

    /// Takes the receive of the own queue that a completion names, with its memory. `None` if no posted receive has that name.
    pub(crate) fn retire(
        &mut self,
        completion: Lent<'_, P::Completion>,
    ) -> Option<(Arrival, Option<P::Slot>)> {
        let Receiving::Own(receiver) = &mut self.receiver else {
            return None;
        };
        receiver.retire(completion).ok()
    }
}

/// Makes an event of a receive that completed without a message. `is_farewell` is called for what looks like a farewell.
#[inline]
pub(crate) fn event_of<P: Provider>(
    arrival: &Arrival,
    is_farewell: impl FnOnce() -> bool,
) -> Event<'static, P> {
    match arrival.kind {
        ArrivalKind::WriteWithImmediate
            if arrival.immediate == Some(FAREWELL)
                && arrival.payload_bytes as usize == FAREWELL_BYTES
                && is_farewell() =>
        {
            Event::PeerClosed { all_arrived: true }
        }
        ArrivalKind::WriteWithImmediate => Event::Written {
            payload_bytes: arrival.payload_bytes,
            immediate: arrival.immediate.unwrap_or_default(),
        },
        _ => Event::ChannelFailed {
            cause: FirstCause {
                status: arrival.status,
                ticket: arrival.ticket,
                vendor_error: arrival.vendor_error,
            },
        },
    }
}

/// A channel in a Worker's table, or one half of a channel.
pub(crate) trait Held {
    /// Returns the reservation of the channel's place in the table.
    fn reservation(&self) -> &Arc<Reservation>;
    /// Whether the channel has not failed and the peer has not closed it, as far as this side knows.
    fn is_open(&self) -> bool;
    /// Notifies the peer that the channel is dropped. Returns whether a notice was posted.
    fn part(&mut self) -> bool {
        false
    }
}

/// A channel, or its sending half.
pub(crate) trait Sends<P: Provider>: Held {
    fn send_half(&mut self) -> &mut SendHalf<P>;
    /// Whether receives of a listed channel still have to be announced without another send. The sending half does not know, and
    /// answers `true`.
    fn is_announcement_due(&self) -> bool;
    /// Returns the event that reports the end of a channel to the application, once. The last poll took `received` receive
    /// completions. `is_round_over` says that polls took as many in this round as the queue has entries.
    fn ending(&mut self, received: u32, is_round_over: bool) -> Lost<P>;
}

/// State of the report of a channel's end.
pub(crate) enum Lost<P: Provider> {
    /// The channel works, or this side is closing it.
    No,
    /// The channel is lost, but events from before its end are still to be delivered.
    Soon,
    /// The event of the end is to be delivered now.
    Now(Event<'static, P>),
    /// The event of the end was delivered.
    Reported,
}

/// Returns the sending half of a channel that can be used.
#[inline]
pub(crate) fn usable<P: Provider, C: Sends<P>>(
    channel: Option<&mut C>,
) -> Result<&mut SendHalf<P>, SendErrorKind> {
    let channel = channel.ok_or(SendErrorKind::Closed)?;
    let is_open = channel.is_open();
    let half = channel.send_half();
    match half.ending.peer_closed {
        _ if is_open => Ok(half),
        Some(_) => Err(SendErrorKind::PeerClosed),
        None => Err(SendErrorKind::Refused(PushError::State(QpState::Error))),
    }
}

/// A channel, or its receiving half.
pub(crate) trait Receives<P: Provider>: Held {
    fn receive_half(&mut self) -> &mut ReceiveHalf<P>;
    /// Moves the queue pair to ERR, or asks the sending half to do so. The caller then reports the channel to the sending half.
    fn refuse(&mut self);
    /// Notes the peer's farewell, which is the peer's last message. Returns whether the application is to get the event.
    fn note_peer_closed(&mut self) -> bool;
    /// Notes that a receive failed; returns the event for the application, if one is due at once.
    fn note_failed(&mut self) -> Option<Event<'static, P>>;
}

impl<P: Provider> Held for SendHalf<P> {
    fn reservation(&self) -> &Arc<Reservation> {
        &self.reservation
    }
    fn is_open(&self) -> bool {
        self.sender.cause().is_none() && self.ending.peer_closed.is_none()
    }
    fn part(&mut self) -> bool {
        Self::part(self)
    }
}

impl<P: Provider> Sends<P> for SendHalf<P> {
    #[inline]
    fn send_half(&mut self) -> &mut Self {
        self
    }
    fn is_announcement_due(&self) -> bool {
        true
    }
    fn ending(&mut self, _: u32, _: bool) -> Lost<P> {
        match self.sender.cause() {
            _ if self.is_closed => Lost::No,
            None => Lost::No,
            Some(_) if self.ending.is_reported => Lost::Reported,
            Some(cause) => {
                self.ending.is_reported = true;
                Lost::Now(Event::ChannelFailed { cause })
            }
        }
    }
}

impl<P: Provider> Held for ReceiveHalf<P> {
    fn reservation(&self) -> &Arc<Reservation> {
        &self.reservation
    }
    fn is_open(&self) -> bool {
        self.receiver.cause().is_none() && self.ending.peer_closed.is_none()
    }
}

impl<P: Provider> Receives<P> for ReceiveHalf<P> {
    #[inline]
    fn receive_half(&mut self) -> &mut Self {
        self
    }
    /// Leaves a note for the sending half, which owns the queue pair and fails it when the channel is reported to it.
    fn refuse(&mut self) {
        self.reservation.refuse();
    }
    fn note_peer_closed(&mut self) -> bool {
        self.ending.peer_closed = Some(true);
        self.reservation.note_peer_closed(true);
        !core::mem::replace(&mut self.ending.is_reported, true)
    }
    fn note_failed(&mut self) -> Option<Event<'static, P>> {
        let cause = self.receiver.cause()?;
        if core::mem::replace(&mut self.ending.is_reported, true) {
            return None;
        }
        // With its own receive queue, flushed receives complete after all messages that arrived.
        if let Some(all_arrived) = self.farewell_found() {
            self.ending.peer_closed = Some(all_arrived);
            self.reservation.note_peer_closed(all_arrived);
            return Some(Event::PeerClosed { all_arrived });
        }
        Some(Event::ChannelFailed { cause })
    }
}

impl<P: Provider> fmt::Debug for SendHalf<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendHalf")
            .field("id", &self.id())
            .field("peer", &self.peer)
            .field("sender", &self.sender)
            .finish_non_exhaustive()
    }
}

impl<P: Provider> fmt::Debug for ReceiveHalf<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveHalf")
            .field("id", &self.id())
            .field("receiver", &self.receiver)
            .finish_non_exhaustive()
    }
}
