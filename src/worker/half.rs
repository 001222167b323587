//! The two halves of a channel, one for sending and one for receiving. They may be on different threads.

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
use crate::worker::ending::{Care, Ending};
use crate::worker::event::{ChannelState, Event};
use crate::worker::lease::Lease;
use crate::worker::message::Taken;
use crate::worker::peer::Peer;
use crate::worker::submission::{Deferred, Records, SubmissionError};
use crate::worker::{Notice, Reservation};

/// A send queue with its signaling and its credits.
pub(crate) type Sending<P> =
    Sender<<P as Provider>::SendQueue, Box<[u8]>, Arc<<P as Provider>::Window>, Arc<Grants>, Arc<Statistics>>;

/// The receives of a channel's messages.
pub(crate) enum Receiving<P: Provider> {
    /// In a receive queue of its own, that keeps itself filled.
    Own(Receiver<P::ReceiveQueue, Arc<Grants>, Arc<Statistics>>),
    /// In one that the channels of its Worker share.
    Shared {
        share: Share<Arc<Grants>>,
        /// Whether the device said that the failed queue pair takes no more receives.
        has_ended: bool,
    },
}

impl<P: Provider> Receiving<P> {
    /// Why the queue pair failed, as far as this half knows.
    pub(crate) const fn cause(&self) -> Option<FirstCause> {
        match self {
            Self::Own(receiver) => receiver.cause(),
            Self::Shared { share, .. } => share.cause(),
        }
    }

    /// Whether receives are to be announced to the peer by themselves.
    #[inline]
    pub(crate) fn is_announcement_due(&self) -> bool {
        match self {
            Self::Own(receiver) => receiver.is_announcement_due(),
            Self::Shared { share, .. } => share.is_announcement_due(),
        }
    }

    /// How many messages came, as the peer counts them.
    pub(crate) fn received(&self) -> u32 {
        match self {
            Self::Own(receiver) => receiver.received(),
            Self::Shared { share, .. } => share.received(),
        }
    }

    /// Takes the memory of a message back. Says whether its own queue is to be looked after.
    #[inline(always)]
    pub(crate) fn put_back(&mut self, message: Option<Taken<P>>, arena: &mut P::Arena) -> bool {
        match self {
            Self::Own(receiver) => receiver.put_back(message, arena),
            // The Worker does, for all of them.
            Self::Shared { .. } => false,
        }
    }

    /// Posts the receives that are missing of its own queue; says whether none is left to post.
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

/// The half of a channel that sends, on a [`SendWorker`](crate::worker::SendWorker).
pub struct SendHalf<P: Provider = Rdma> {
    // Goes first: what is in flight is reported before it goes home.
    pub(crate) records: Records<P>,
    /// The submissions that wait for the Worker's poll; there once the Worker has submitters.
    pub(crate) deferred: Option<Box<Deferred<P>>>,
    /// Whether it is on its way out, so that nothing may wait any more.
    pub(crate) is_closed: bool,
    /// Whether the receives of the Worker's channels take all memory that it leases from.
    pub(crate) is_without_leases: bool,
    // The queue goes before the control side: the order in which nothing is left to fail.
    pub(crate) sender: Sending<P>,
    pub(crate) control: P::QueuePair,
    pub(crate) notice: Notice,
    pub(crate) reservation: Arc<Reservation>,
    pub(crate) peer: Peer,
    /// The port of the device that it is on.
    pub(crate) port: u8,
    pub(crate) class: u8,
    /// A message that is posted by itself goes inline up to this length.
    pub(crate) inline_alone_bytes_max: u16,
    /// The application's own.
    pub(crate) user: u64,
    pub(crate) ending: Ending,
    pub(crate) care: Care,
}

/// The half of a channel that receives, on a [`ReceiveWorker`](crate::worker::ReceiveWorker).
pub struct ReceiveHalf<P: Provider = Rdma> {
    pub(crate) receiver: Receiving<P>,
    /// The word in which the peer says farewell.
    pub(crate) farewell: FarewellWord<Arc<P::Window>>,
    pub(crate) ending: Ending,
    pub(crate) reservation: Arc<Reservation>,
    /// The application's own.
    pub(crate) user: u64,
}

impl<P: Provider> SendHalf<P> {
    /// The channel's name, on either half.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.reservation.id
    }

    /// The application's own word, on this half; see [`Channel::user`](crate::Channel::user).
    #[must_use]
    #[inline]
    pub const fn user(&self) -> u64 {
        self.user
    }

    /// Sets the application's own word, on this half alone.
    #[inline]
    pub const fn set_user(&mut self, user: u64) {
        self.user = user;
    }

    /// The peer at the other end, and what was agreed.
    #[must_use]
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The limits that the queue pair was granted.
    #[must_use]
    pub fn limits(&self) -> QueuePairLimits {
        self.control.limits()
    }

    /// Whether it can still be used, and if not, why, as far as this half polled.
    #[must_use]
    pub fn state(&self) -> ChannelState {
        ChannelState::of(self.ending.peer_closed, [self.sender.cause()])
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

    /// How many more requests can be posted now. Messages take [`SendHalf::credits`] too.
    /// A poll may take one of them to announce receives to the peer.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.sender.room()
    }

    /// Begins a batch: push requests, then ring the doorbell once.
    #[inline]
    pub fn batch(&mut self) -> Batch<'_, P> {
        Batch {
            inner: self.sender.stage(),
            notice: &mut self.notice,
        }
    }

    /// Sends one message of these bytes by itself; see [`Channel::send`](crate::Channel::send).
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

    /// Sends one message that is longer than a cell: inline, if it may.
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

    /// Sends one message of leased memory by itself.
    ///
    /// # Errors
    /// [`SendError`] hands the lease back.
    #[inline]
    pub fn send_lease(&mut self, message: Lease<P>) -> Result<Ticket, SendError<Lease<P>>> {
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

    /// Submits one request to the poll of its Worker; see [`Channel::submit`](crate::Channel::submit).
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

    /// Whether something waits for the poll.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.deferred
            .as_ref()
            .is_some_and(|deferred| deferred.waiting() > 0)
    }

    /// The queue pair failed with this status: requests that wait for the poll come back by the poll.
    #[cold]
    pub(crate) fn refuse_deferred(&mut self, status: WcStatus) {
        if let Some(deferred) = &mut self.deferred {
            deferred.refuse(SubmissionError::ChannelFailed(status));
        }
    }

    /// The channel goes: requests that wait come back by the next poll, and no more may wait.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.refuse_deferred(WcStatus::WR_FLUSH_ERR);
    }

    /// Posts one request whose bytes are copied into it: no lease is needed, and they may
    /// be reused at once. At most [`QueuePairLimits::inline_bytes_max`] of them.
    ///
    /// # Errors
    /// The bytes are the caller's still.
    #[inline]
    pub fn post_inline(&mut self, operation: Operation, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        self.sender
            .post_inline_one(operation, bytes, PostFlags::empty())
            .map_err(|reason| unposted(&mut self.notice, reason))
    }

    /// Sends one message of these bytes: inline or from a cell, and where they are too long for that from memory of this arena.
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
        // It fits.
        lease.fill(bytes).map_err(|_| too_long)?;
        Ok(self.send_lease(lease)?)
    }

    /// Leases memory of this arena for a message that could be sent now.
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

    /// Fails the queue pair, so that everything posted on either half is flushed and comes back
    /// by polling.
    ///
    /// # Errors
    /// The device refused.
    pub fn shut(&mut self) -> Result<(), ProviderError> {
        self.control.fail()
    }

    /// Asks the peer's device for a sign of life; see [`Channel::probe`](crate::Channel::probe).
    ///
    /// # Errors
    /// As for [`SendHalf::post_inline`].
    pub fn probe(&mut self) -> Result<Ticket, SendErrorKind> {
        let remote = self.peer.announcements();
        self.post_inline(Operation::Write(remote), &[])
    }

    /// Notes that the peer closed the channel: no message is accepted any more.
    #[cold]
    pub(crate) fn note_peer_closed(&mut self, all_arrived: bool) {
        self.ending.peer_closed = Some(all_arrived);
        self.notice.note_peer_closed();
        self.sender.leave();
        self.close();
    }

    /// Says farewell, by whatever way there is, where the peer understands it and may still hear it.
    #[cold]
    pub(crate) fn part(&mut self) -> bool {
        if !self.may_part() {
            return false;
        }
        let said = self.sender.say_farewell();
        said.or_else(|_| self.sender.leave_farewell()).is_ok()
    }

    /// Whether farewell may be said.
    pub(crate) fn may_part(&self) -> bool {
        self.care.says_farewell && !self.sender.has_left() && self.sender.cause().is_none()
    }
}

/// Has the Worker notice what it is to look at, where a request was not posted by itself; why it was not.
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
    /// The channel's name, on either half.
    #[must_use]
    pub fn id(&self) -> ChannelId {
        self.reservation.id
    }

    /// The application's own word, on this half; see [`Channel::user`](crate::Channel::user).
    #[must_use]
    #[inline]
    pub const fn user(&self) -> u64 {
        self.user
    }

    /// Sets the application's own word, on this half alone.
    #[inline]
    pub const fn set_user(&mut self, user: u64) {
        self.user = user;
    }

    /// Whether it can still be used, and if not, why, as far as this half polled.
    #[must_use]
    pub fn state(&self) -> ChannelState {
        ChannelState::of(self.ending.peer_closed, [self.receiver.cause()])
    }

    /// Whether a WRITE with immediate that came last is the peer's farewell.
    #[cold]
    pub(crate) fn is_farewell(&self) -> bool {
        let farewell = self.farewell.load();
        // A device that delivers the last message again, as it fails, has nothing behind a farewell but that.
        self.ending.peer_closed.is_some()
            || farewell.is_some_and(|messages| messages.wrapping_add(1) == self.receiver.received())
    }

    /// Whether the peer said farewell in its word, and then whether all that it had sent has arrived.
    pub(crate) fn farewell_found(&self) -> Option<bool> {
        // Devices that repeat a message make it more.
        Some(self.receiver.received().wrapping_sub(self.farewell.load()?) <= u32::MAX / 2)
    }

    /// How many receives are posted for its peer; of shared ones, how many it was granted.
    #[must_use]
    pub fn receives_posted(&self) -> u32 {
        match &self.receiver {
            Receiving::Own(receiver) => receiver.in_flight(),
            Receiving::Shared { share, .. } => share.granted(),
        }
    }

    /// How many receives have their memory, and wait for others to be posted with them; see
    /// [`Channel::receives_staged`](crate::Channel::receives_staged).
    #[must_use]
    pub fn receives_staged(&self) -> u32 {
        match &self.receiver {
            Receiving::Own(receiver) => receiver.staged(),
            Receiving::Shared { .. } => 0,
        }
    }

    /// Whether the queue pair failed, and the device said that it takes no more of the shared receives.
    pub(crate) const fn has_ended(&self) -> bool {
        matches!(self.receiver, Receiving::Shared { has_ended: true, .. })
    }

    /// Takes the message that a completion brought into its own queue. `None` where it is otherwise: see [`ReceiveHalf::retire`].
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

    /// Takes the receive of its own queue that a completion names, with its memory. `None` where it names none.
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

/// A receive that ended and brought no message, as an event. `is_farewell` is asked of what looks like one.
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

/// A channel in a Worker's place, or the half of one.
pub(crate) trait Held {
    /// The promise to the channel.
    fn reservation(&self) -> &Arc<Reservation>;
    /// Whether nothing failed and the peer did not close it, as far as is known here.
    fn is_open(&self) -> bool;
    /// Says farewell where it is dropped; says whether it did.
    fn part(&mut self) -> bool {
        false
    }
}

/// A channel, or its half that sends.
pub(crate) trait Sends<P: Provider>: Held {
    fn send_half(&mut self) -> &mut SendHalf<P>;
    /// Whether receives of a channel that was listed are still to be announced by themselves,
    /// as far as can be known here.
    fn is_announcement_due(&self) -> bool;
    /// The event that reports a lost channel to the application, once; `is_emptied` says that nothing more is to come of it.
    fn ending(&mut self, is_emptied: bool) -> Lost<P>;
}

/// The knowledge of a channel that may be lost.
pub(crate) enum Lost<P: Provider> {
    /// It is not, or is being closed here.
    No,
    /// Events from before its end are still to be delivered.
    Soon,
    /// The event of its end is to be delivered now.
    Now(Event<'static, P>),
    /// The event of its end was delivered.
    Reported,
}

/// The half that sends of a channel that can still be used.
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

/// A channel, or its half that receives.
pub(crate) trait Receives<P: Provider>: Held {
    fn receive_half(&mut self) -> &mut ReceiveHalf<P>;
    /// Fails the queue pair, or has the sending half fail it. The channel is then to be entered in the list of that half.
    fn refuse(&mut self);
    /// Notes the peer's farewell, which stands behind all that it sent; returns whether the application is to get the event.
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
    fn ending(&mut self, _: bool) -> Lost<P> {
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
    /// The queue pair is the other half's to fail, when it is notified of the channel.
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
        // Its own receives end behind the messages that came.
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
