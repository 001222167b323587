//! Ring channels: messages by RDMA WRITE into a ring in the memory of the receiver, in both directions.

use core::fmt;
use std::sync::Arc;

use doorbell_core::provider::{
    DataInOrder, MemoryError, Operation, PostError, PostFlags, ProtectionDomain, Provider, ProviderError,
    QueuePair, RemoteAccess, RemoteAddress, Slot, Window, WindowConfig,
};
use doorbell_core::wire::{Publication, RING_TRAILER_BYTES, RingInvitation, WireError, ring_window_bytes};
use doorbell_core::{Clock as _, Deadline, Ticket};
use doorbell_ffi::Rdma;
use doorbell_hotpath::{RingMessage, RingReadError, RingReader, RingRefusal, RingWriter, WindowWord};

use crate::machine::reaper::Reaped;
use crate::worker::channel::{Channel, ChannelId, SendError, SendErrorKind};
use crate::worker::event::{ChannelState, Event};
use crate::worker::lease::Lease;
use crate::worker::{Turn, Worker};

/// Size of the buffer for inline messages with their trailers. Devices take fewer inline bytes.
const INLINE_BYTES_MAX: usize = 1024;

/// Maximum bytes of an inline message without its trailer.
const INLINE_PAYLOAD_BYTES_MAX: usize = INLINE_BYTES_MAX - RING_TRAILER_BYTES as usize;

/// Configuration of the ring that a side reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingConfig {
    /// Number of cells, one for each message: a power of two, 2 to 2^20. Default 256: with one message in a microsecond the
    /// reader may be away for a quarter of a millisecond.
    pub cells: u32,
    /// Bytes of each cell, a multiple of 64, at most 2^24. Eight of them are for the trailer. Default 128, two cache lines. Some
    /// devices promise to write in order only within aligned blocks of 128 bytes.
    pub cell_bytes: u32,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self {
            cells: 256,
            cell_bytes: 128,
        }
    }
}

/// One-sided messages in addition to the messages of a channel. The peer writes them by RDMA WRITE into a ring in this side's
/// memory. If the device promises that bytes land in order, reading a message needs no completion.
///
/// Otherwise each message is a WRITE with immediate, and uses one of the channel's credits. [`Event::Written`] reports the
/// message; pass the event's immediate to [`RingChannel::note_written`].
///
/// A ring channel belongs to the channel on which it was opened; pass that channel to its calls. [`Event::PeerClosed`] comes after all
/// messages of the ring that arrived. Read these by [`RingChannel::receive`], or by [`RingChannel::receive_left`] after the Worker
/// closed the channel.
pub struct RingChannel<P: Provider = Rdma> {
    channel: ChannelId,
    writer: RingWriter<Arc<P::Window>>,
    reader: RingReader<Arc<P::Window>>,
    publications: Publications,
    scratch: Box<[u8; INLINE_BYTES_MAX]>,
    // Dropped last, so that the reaper holds the last reference and deregisters the window on another thread.
    #[expect(dead_code, reason = "it is there to be dropped")]
    window: Reaped<Arc<P::Window>>,
}

/// How the reader learns of a message in each direction: by the trailer in memory, or by an immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Publications {
    /// Publication of the messages that this side writes, which depends on the peer's device.
    pub sent: Publication,
    /// Publication of the messages that this side reads, which depends on its own device.
    pub received: Publication,
}

/// Opening of a ring channel, which advances by polling. Dropping it gives the opening up.
#[must_use = "it advances by being polled"]
pub struct RingOpening<P: Provider = Rdma> {
    channel: ChannelId,
    window: Reaped<Arc<P::Window>>,
    ours: RingInvitation,
    deadline: Deadline,
    is_sent: bool,
    answer: Option<Result<RingInvitation, WireError>>,
    /// Immediates of messages that arrived before the opening was complete. An invited peer may write at once, so its first
    /// messages may be reported together with its invitation. There are at most as many as the ring has cells.
    written: Vec<u32>,
    /// Whether the peer announced a message before its invitation, or more messages than the ring has cells.
    is_out_of_turn: bool,
}

impl<P: Provider> RingOpening<P> {
    /// Polls the Worker by [`Worker::poll_tending`] and advances the opening, without waiting. Returns the outcome once there is
    /// one. `each` gets the events of other channels, and messages of this channel that follow the peer's invitation.
    ///
    /// To open several ring channels on one Worker, poll the Worker yourself, and call [`RingOpening::hear`] and
    /// [`RingOpening::advance`] of each.
    pub fn poll(
        &mut self,
        worker: &mut Worker<P>,
        mut each: impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) -> Option<Result<RingChannel<P>, RingError>> {
        match worker.poll_tending(|turn, event| self.sift(turn, event, &mut each)) {
            Ok(_) => self.advance(worker),
            Err(error) => Some(Err(RingError::Poll(error))),
        }
    }

    /// Takes an event that a poll of the Worker reported. Returns the event if it does not concern the opening. Each
    /// [`Event::Done`] of this channel is consumed.
    pub fn hear<'m>(&mut self, channel: ChannelId, event: Event<'m, P>) -> Option<Event<'m, P>> {
        if channel != self.channel {
            return Some(event);
        }
        match event {
            Event::Received { message, .. } if self.answer.is_none() => {
                self.answer = Some(RingInvitation::parse(message.payload()).copied());
            }
            Event::Written { immediate, .. } if self.ours.publication() == Publication::Immediate => {
                self.note_written(immediate);
            }
            Event::Done { .. } => {}
            other => return Some(other),
        }
        None
    }

    /// Advances the opening without polling the Worker, whose events go to [`RingOpening::hear`]. Returns the outcome once there
    /// is one.
    pub fn advance(&mut self, worker: &mut Worker<P>) -> Option<Result<RingChannel<P>, RingError>> {
        self.go_on(worker).transpose()
    }

    /// Returns the deadline by which both sides must have exchanged their invitations.
    #[must_use]
    pub const fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Takes the events of the opening, and passes all others to `each`.
    fn sift(
        &mut self,
        turn: Turn<'_, P>,
        event: Event<'_, P>,
        each: &mut impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) {
        if let Some(event) = self.hear(turn.channel.id(), event) {
            each(turn, event);
        }
    }

    /// Keeps the immediate of a message until the ring is open.
    fn note_written(&mut self, immediate: u32) {
        let kept = u32::try_from(self.written.len()).unwrap_or(u32::MAX);
        // An invitation is the first message of an honest peer, so it arrives before any ring message.
        if self.answer.is_none() || kept >= self.ours.cells() {
            self.is_out_of_turn = true;
        } else {
            self.written.push(immediate);
        }
    }

    fn go_on(&mut self, worker: &mut Worker<P>) -> Result<Option<RingChannel<P>>, RingError> {
        let open = worker.channel(self.channel).ok_or(RingError::Closed)?;
        match open.state() {
            ChannelState::Open => {}
            // Messages that the peer wrote before it closed can still be read.
            ChannelState::PeerClosed { .. } if self.is_sent && self.answer.is_some() => {}
            ChannelState::PeerClosed { .. } => return Err(RingError::PeerClosed),
            ChannelState::Failed { .. } => return Err(RingError::Failed),
        }
        if self.is_out_of_turn {
            return Err(RingError::OutOfTurn);
        }
        if !self.is_sent {
            self.is_sent = match open.post_inline(Operation::Send, &self.ours.to_bytes()) {
                Ok(_) => true,
                Err(SendErrorKind::WouldBlock) => false,
                Err(kind) => return Err(RingError::Send(kind)),
            };
        }
        match self.answer {
            Some(theirs) if self.is_sent => {
                let window = worker.reaper().keep(Arc::clone(&self.window));
                let ring = RingChannel::new(self.channel, window, &self.ours, theirs?);
                let mut ring = ring.ok_or(RingError::Config {
                    cells: self.ours.cells(),
                    cell_bytes: self.ours.cell_bytes(),
                })?;
                for immediate in self.written.drain(..) {
                    ring.note_written(immediate);
                }
                Ok(Some(ring))
            }
            _ if self.deadline.has_passed(worker.context().now()) => Err(RingError::TimedOut),
            _ => Ok(None),
        }
    }
}

impl<P: Provider> RingChannel<P> {
    /// Begins to open rings in both directions. The peer does the same, and the invitation is the first message of each side on
    /// the channel. [`RingOpening::poll`] advances the opening.
    ///
    /// # Errors
    /// The configuration is out of range, there is no memory for the ring, or there is no such channel.
    pub fn begin_open(
        worker: &mut Worker<P>,
        channel: ChannelId,
        config: &RingConfig,
        deadline: Deadline,
    ) -> Result<RingOpening<P>, RingError> {
        let RingConfig {
            cells, cell_bytes, ..
        } = *config;
        let wrong = RingError::Config { cells, cell_bytes };
        let bytes = ring_window_bytes(cells, cell_bytes).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or(wrong)?;
        let window = worker
            .domain
            .window(&WindowConfig::new(bytes, RemoteAccess::WRITE))?;
        let window = worker.reaper().keep(Arc::new(window));
        let order = worker
            .channel(channel)
            .ok_or(RingError::Closed)?
            .send
            .control
            .data_in_order();
        let publication = publication(order, config.cell_bytes);
        let ours = RingInvitation::new(window.remote(), config.cells, config.cell_bytes, publication)
            .ok_or(wrong)?;
        Ok(RingOpening {
            channel,
            window,
            ours,
            deadline,
            is_sent: false,
            answer: None,
            written: Vec::new(),
            is_out_of_turn: false,
        })
    }

    /// Opens rings in both directions, and waits until they are open. The peer does the same, and the invitation is the first
    /// message of each side on the channel. `each` gets the events of other channels that come meanwhile, and messages of this
    /// channel that follow the peer's invitation.
    ///
    /// # Errors
    /// As for [`RingChannel::begin_open`]. Or the channel failed or was closed, or the invitations were not exchanged by the
    /// deadline.
    pub fn open(
        worker: &mut Worker<P>,
        channel: ChannelId,
        config: &RingConfig,
        deadline: Deadline,
        mut each: impl FnMut(Turn<'_, P>, Event<'_, P>),
    ) -> Result<Self, RingError> {
        let mut opening = Self::begin_open(worker, channel, config, deadline)?;
        loop {
            if let Some(ring) = opening.go_on(worker)? {
                return Ok(ring);
            }
            // Polled and not waited: a wait would consume the report that other channels got credits, which is made once.
            worker
                .poll_tending(|turn, event| opening.sift(turn, event, &mut each))
                .map_err(RingError::Poll)?;
            core::hint::spin_loop();
        }
    }

    /// Makes the ring channel. `None` if the words that report the read count are outside of the windows, which checked
    /// invitations exclude.
    fn new(
        channel: ChannelId,
        window: Reaped<Arc<P::Window>>,
        ours: &RingInvitation,
        theirs: RingInvitation,
    ) -> Option<Self> {
        let word_at = |ring: &RingInvitation| u64::from(ring.cells()).checked_mul(ring.cell_bytes().into());
        let our_word = usize::try_from(word_at(ours)?).ok()?;
        let their_word = RemoteAddress::within(theirs.window(), word_at(&theirs)?, 8)?;
        Some(Self {
            channel,
            writer: RingWriter::new(theirs, WindowWord::new(Arc::clone(&window), our_word)?),
            reader: RingReader::new(Arc::clone(&window), ours, their_word),
            publications: Publications {
                sent: theirs.publication(),
                received: ours.publication(),
            },
            scratch: Box::new([0; INLINE_BYTES_MAX]),
            window,
        })
    }

    /// Returns the id of the channel on which the ring channel was opened.
    #[must_use]
    pub const fn channel(&self) -> ChannelId {
        self.channel
    }

    /// Returns how the reader learns of a message in each direction: by the trailer in memory, or by an immediate.
    #[must_use]
    pub const fn publications(&self) -> Publications {
        self.publications
    }

    /// Returns the maximum bytes of a message to the peer. A lease needs a capacity of eight more bytes, for the trailer.
    #[must_use]
    pub const fn payload_bytes_max(&self) -> u32 {
        self.writer.payload_bytes_max()
    }

    /// Writes a message inline with a copy of these bytes, which may be reused at once. The message and the eight bytes of the
    /// trailer must fit the channel's inline limit.
    ///
    /// # Errors
    /// The ring or the send queue is full or there is no credit ([`SendErrorKind::WouldBlock`]), the message is too long, or the
    /// device refused. If the device refused without naming the request, the peer may get the message. Then the ring cannot be
    /// continued, so the call also ends the channel ([`Channel::shut`]).
    #[inline]
    pub fn send_inline(&mut self, channel: &mut Channel<P>, payload: &[u8]) -> Result<Ticket, SendErrorKind> {
        let message = self.writer.message(payload.len())?;
        let (copy, rest) = self
            .scratch
            .split_at_mut_checked(payload.len())
            .ok_or(too_long(payload.len(), INLINE_PAYLOAD_BYTES_MAX))?;
        let trailer = rest
            .first_chunk_mut()
            .ok_or(too_long(payload.len(), INLINE_PAYLOAD_BYTES_MAX))?;
        copy.copy_from_slice(payload);
        *trailer = message.trailer;
        let bytes = payload.len().wrapping_add(RING_TRAILER_BYTES as usize);
        let bytes = self.scratch.get(..bytes).unwrap_or_default();
        match channel.post_inline(message.operation, bytes) {
            Ok(ticket) => {
                self.writer.note_posted(&message);
                Ok(ticket)
            }
            Err(kind) => {
                end_if_unclear(channel, kind);
                Err(kind)
            }
        }
    }

    /// Writes a message from a lease, without a copy. The lease needs room for the eight bytes of the trailer after the message.
    ///
    /// # Errors
    /// As for [`RingChannel::send_inline`]. The lease is handed back with its former length.
    #[inline]
    pub fn send(
        &mut self,
        channel: &mut Channel<P>,
        mut lease: Lease<P>,
    ) -> Result<Ticket, SendError<Lease<P>>> {
        let payload_bytes = lease.len_bytes();
        let message = match self.prepare(&mut lease) {
            Ok(message) => message,
            Err(kind) => {
                return Err(SendError {
                    kind,
                    item: Some(lease),
                });
            }
        };
        match channel.post(message.operation, lease, PostFlags::empty()) {
            Ok(ticket) => {
                self.writer.note_posted(&message);
                Ok(ticket)
            }
            Err(mut error) => {
                end_if_unclear(channel, error.kind);
                if let Some(lease) = &mut error.item {
                    lease.set_len_bytes(payload_bytes);
                }
                Err(error)
            }
        }
    }

    /// Appends the trailer to the payload of a lease.
    #[inline]
    fn prepare(&mut self, lease: &mut Lease<P>) -> Result<RingMessage, SendErrorKind> {
        let bytes = lease.len_bytes();
        let message = self.writer.message(bytes)?;
        let capacity_bytes = lease.capacity_bytes();
        let place = lease.slot.buffer_mut().get_mut(bytes..);
        let place = place.and_then(|rest| rest.first_chunk_mut());
        let room_bytes = capacity_bytes.saturating_sub(RING_TRAILER_BYTES as usize);
        *place.ok_or(too_long(bytes, room_bytes))? = message.trailer;
        lease.set_len_bytes(bytes.wrapping_add(RING_TRAILER_BYTES as usize));
        Ok(message)
    }

    /// Copies the next message into `into`, and returns its length; `None` if no message arrived yet. From time to time the call
    /// also writes the read count into the peer's memory, so that the peer can use the cells again.
    ///
    /// # Errors
    /// The message does not fit into `into`, and stays in the ring. Or the peer wrote an invalid message.
    #[inline]
    pub fn receive(
        &mut self,
        channel: &mut Channel<P>,
        into: &mut [u8],
    ) -> Result<Option<usize>, RingReadError> {
        let read = self.reader.read(into)?;
        if let Some((operation, bytes)) = self.reader.announcement() {
            // If the queue is full, the next call tries again.
            if channel.post_inline(operation, &bytes).is_ok() {
                self.reader.note_announced();
            }
        }
        Ok(read)
    }

    /// Copies the next message out as [`RingChannel::receive`] does, but needs no channel. After the channel is closed, the
    /// messages that arrived before are still in this side's memory. The read count is not written to the peer.
    ///
    /// # Errors
    /// As for [`RingChannel::receive`].
    pub fn receive_left(&mut self, into: &mut [u8]) -> Result<Option<usize>, RingReadError> {
        self.reader.read(into)
    }

    /// Takes the immediate of an [`Event::Written`] of the channel, if messages are published by immediates.
    #[inline]
    pub const fn note_written(&mut self, immediate: u32) {
        self.reader.note_written(immediate);
    }
}

/// Ends a channel whose device refused a message and may have it. Neither this cell nor the next one could take another message.
#[cold]
fn end_if_unclear<P: Provider>(channel: &mut Channel<P>, kind: SendErrorKind) {
    if matches!(kind, SendErrorKind::Post(PostError { unposted: 0, .. })) {
        // If the device refuses this as well, the next message may replace this one. The caller has the error of the post.
        let _ = channel.shut();
    }
}

const fn too_long(bytes: usize, bytes_max: usize) -> SendErrorKind {
    SendErrorKind::TooLong { bytes, bytes_max }
}

/// Returns how a peer has to publish messages in cells of this size.
const fn publication(order: DataInOrder, cell_bytes: u32) -> Publication {
    match order {
        DataInOrder::WholeMessage => Publication::Trailer,
        // Each cell is within one aligned block, since windows begin at a page.
        DataInOrder::Aligned128 if cell_bytes == 64 || cell_bytes == 128 => Publication::Trailer,
        _ => Publication::Immediate,
    }
}

impl From<RingRefusal> for SendErrorKind {
    fn from(refusal: RingRefusal) -> Self {
        match refusal {
            RingRefusal::TooLong { bytes, bytes_max } => Self::TooLong { bytes, bytes_max },
            _ => Self::WouldBlock,
        }
    }
}

/// Reason why a ring channel was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// Caller misuse: the number or the size of the cells is out of range.
    Config {
        /// The requested number of cells.
        cells: u32,
        /// The requested bytes of each cell.
        cell_bytes: u32,
    },
    /// There is no memory for the ring, or the device refused to register it.
    Memory(MemoryError),
    /// There is no such channel.
    Closed,
    /// The invitation could not be sent.
    Send(SendErrorKind),
    /// The Worker cannot be polled.
    Poll(ProviderError),
    /// The channel failed. [`Worker::state`] has the cause.
    Failed,
    /// The peer closed the channel before the invitations were exchanged.
    PeerClosed,
    /// The peer's first message is not an invitation.
    Invitation(WireError),
    /// The peer announced messages before its invitation, or more messages than the ring has cells.
    OutOfTurn,
    /// The invitations were not exchanged by the deadline: the peer sent none, or there was no credit for ours.
    TimedOut,
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config { cells, cell_bytes } => write!(
                f,
                "a ring of {cells} cells of {cell_bytes} bytes: set cells to a power of two from 2 to 2^20, and cell_bytes \
                 to a multiple of 64 up to 2^24"
            ),
            Self::Memory(error) => write!(f, "no memory for the ring: {error}"),
            Self::Closed => f.write_str("the Worker has no such channel: connect again"),
            Self::Send(kind) => write!(f, "the invitation into the ring: {kind}"),
            Self::Poll(error) => write!(f, "the completion queue cannot be polled: {error}"),
            Self::Failed => f.write_str("the channel failed: connect again; Worker::state has the cause"),
            Self::PeerClosed => {
                f.write_str("the peer closed the channel before the rings were open: connect again")
            }
            Self::Invitation(error) => write!(f, "the peer's first message: {error}"),
            Self::OutOfTurn => f.write_str(
                "the peer announced messages before its invitation, or more than the ring has cells: connect again",
            ),
            Self::TimedOut => {
                f.write_str("no exchange of ring invitations before the deadline: open a ring on both sides")
            }
        }
    }
}

impl core::error::Error for RingError {}

impl From<WireError> for RingError {
    fn from(error: WireError) -> Self {
        Self::Invitation(error)
    }
}

impl From<MemoryError> for RingError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}

impl<P: Provider> fmt::Debug for RingOpening<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingOpening")
            .field("channel", &self.channel)
            .field("is_sent", &self.is_sent)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl<P: Provider> fmt::Debug for RingChannel<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingChannel")
            .field("channel", &self.channel)
            .field("writer", &self.writer)
            .field("reader", &self.reader)
            .finish_non_exhaustive()
    }
}
