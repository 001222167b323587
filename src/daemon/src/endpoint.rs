//! The client's side of the shared memory: it submits messages and operations, and receives events.

use core::fmt;
use core::sync::atomic::AtomicU32;

use std::os::fd::BorrowedFd;

use doorbell::interprocess::{
    DESCRIPTOR_WORDS, RingViolation, SharedArena, SharedBytes, SharedConsumer, SharedMemory,
    SharedMemoryError, SharedProducer, SharedWords, announce_sleep, must_wake, withdraw_sleep,
};

use crate::descriptor::{Message, Report, Submission};
use crate::endpoint::given::Given;
use crate::endpoint::transfers::Transfers;
use crate::layout::{CLIENT_SLEEPS, DAEMON_SLEEPS, EndpointLayout, EndpointMemory};
use crate::name::EndpointAddress;
use crate::one_sided::{ArenaGrant, OPERATION_BYTES_MAX};
use crate::reason::{GoneReason, UndeliveredReason};

mod given;
mod one_sided;
mod transfers;

pub use transfers::{ArenaTransfer, ArenaTransferEnd, TRANSFERS_MAX};

/// Number of bytes of an arena that are copied in one step.
const COPIED_BYTES: usize = 1 << 16;

/// An event of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointEvent<'m> {
    /// A message arrived. Each message arrives once, and the messages of one sender arrive in order.
    Received {
        /// The sender.
        from: EndpointAddress,
        /// The message, in a copy that no other process can change.
        message: &'m [u8],
    },
    /// A message was not delivered or an operation was not executed, or the outcome is unknown.
    Undelivered {
        /// The destination endpoint.
        to: EndpointAddress,
        /// The number that [`Endpoint::send`] or [`Endpoint::request`] returned.
        number: u64,
        /// The reason.
        reason: UndeliveredReason,
    },
    /// An endpoint that this endpoint exchanged messages with is gone. Its last messages were reported before.
    Gone {
        /// The endpoint.
        who: EndpointAddress,
        /// The reason.
        reason: GoneReason,
    },
    /// An operation was executed, exactly once. The bytes of a READ are in the arena.
    Completed {
        /// The owner of the target arena.
        to: EndpointAddress,
        /// The number that [`Endpoint::request`] returned.
        number: u64,
        /// The previous value of the target word of an atomic; otherwise 0.
        value: u64,
    },
    /// An endpoint wrote into the arena and sent an immediate number. The bytes are in the arena.
    Written {
        /// The endpoint.
        from: EndpointAddress,
        /// The grant that the endpoint used.
        grant: ArenaGrant,
        /// The offset in the grant.
        offset: u64,
        /// The number of bytes that were written.
        bytes: u32,
        /// The immediate number.
        immediate: u32,
    },
    /// The daemon ended, and this process is attached to another one, under its name: with its arena, without its grants.
    Restarted {
        /// The epoch of the new daemon, higher than the epoch of the previous one.
        epoch: u64,
        /// Submissions from this number on have an unknown outcome unless they were reported as undelivered or completed. No outcome of them
        /// is reported later or twice. All earlier submissions have the outcome that was reported; an earlier message without a report was
        /// delivered.
        unknown_from: u64,
    },
    /// A transfer has ended, and no other process accesses the memory any more.
    TransferEnded {
        /// The transfer.
        transfer: ArenaTransfer,
        /// How the transfer ended.
        end: ArenaTransferEnd,
        /// The number of bytes that arrived in this process, counted from the beginning without a gap; 0 for a giver.
        bytes: u64,
    },
    /// A grant is revoked. All writes by it were done before this event, and no more follow.
    Revoked {
        /// The grant.
        grant: ArenaGrant,
    },
}

/// Reason why an endpoint refuses a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointRefusal {
    /// Backpressure: the ring is full. Poll, and try again.
    Full,
    /// Caller error: the message is longer than a cell.
    TooLong {
        /// The length of the message.
        bytes: usize,
        /// The size of a cell.
        bytes_max: u32,
    },
    /// Caller error: the range is not within the arena, is empty in a grant or an offer, or is longer than
    /// [`OPERATION_BYTES_MAX`](crate::OPERATION_BYTES_MAX) in an operation.
    OutOfArena {
        /// The size of the arena; 0 without one.
        arena_bytes: u64,
    },
    /// Caller error: the grant would allow no access, or this endpoint has not given the grant, or has revoked it.
    NoGrant,
    /// The limit of grants is reached, counting revoked grants whose event has not come: revoke one, and try again after that event.
    TooManyGrants,
    /// The limit of open transfers is reached ([`TRANSFERS_MAX`]): try again after one has ended.
    TooManyTransfers,
    /// The daemon violated the protocol of the rings: the endpoint cannot be used any more.
    Broken,
}

impl fmt::Display for EndpointRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the ring to the daemon is full: poll, and try again"),
            Self::TooLong { bytes, bytes_max } => {
                write!(
                    f,
                    "{bytes} bytes, but a message has at most {bytes_max}: attach with longer cells"
                )
            }
            Self::OutOfArena { arena_bytes: 0 } => {
                f.write_str("this process has no arena: attach with one (EndpointLayout::with_arena)")
            }
            Self::OutOfArena { arena_bytes } => write!(
                f,
                "the range is empty, exceeds the arena of {arena_bytes} bytes, or has more than {OPERATION_BYTES_MAX} in an operation: choose another range"
            ),
            Self::NoGrant => {
                f.write_str("the grant would allow no access, or this process has not given it, or has revoked it: make another one")
            }
            Self::TooManyGrants => {
                f.write_str("too many grants stand: revoke one, and try again after its event")
            }
            Self::TooManyTransfers => write!(
                f,
                "{TRANSFERS_MAX} transfers are open: try again after the end of one"
            ),
            Self::Broken => f.write_str("the daemon broke the protocol of the rings: attach again"),
        }
    }
}

impl core::error::Error for EndpointRefusal {}

impl From<RingViolation> for EndpointRefusal {
    fn from(_: RingViolation) -> Self {
        Self::Broken
    }
}

/// The rings and cells of a process, without its socket. [`Client`](crate::Client) sends and polls by it.
///
/// Sending and polling make no system call, allocate nothing and never block.
#[derive(Debug)]
pub struct Endpoint {
    layout: EndpointLayout,
    submissions: SharedProducer<SharedMemory>,
    events: SharedConsumer<SharedMemory>,
    memory: EndpointMemory,
    given: Given,
    transfers: Transfers,
    /// The number of the next submission.
    sent: u64,
    /// The number of the first submission of these rings.
    first: u64,
    message: Vec<u8>,
}

impl Endpoint {
    /// Creates memory of this layout. The daemon has to adopt it before the first message ([`Endpoint::is_sealed`]).
    ///
    /// # Errors
    /// The system is out of memory.
    pub fn new(layout: EndpointLayout) -> Result<Self, SharedMemoryError> {
        let memory = layout.create()?;
        let rings = memory.rings.clone();
        Ok(Self {
            layout,
            submissions: SharedProducer::new(rings.clone(), layout.submissions()),
            events: SharedConsumer::new(rings, layout.events()),
            memory,
            given: Given::default(),
            transfers: Transfers::default(),
            sent: 0,
            first: 0,
            message: vec![0; layout.message_bytes() as usize],
        })
    }

    /// The memory of the rings. If the caller writes to it directly, the daemon may cut this process off.
    #[must_use]
    pub const fn rings(&self) -> &SharedMemory {
        self.events.memory()
    }

    /// The arena. This process may read and write it at any time. `None` if the layout has no arena.
    #[must_use]
    pub const fn arena(&self) -> Option<&SharedArena> {
        self.memory.arena.as_ref()
    }

    /// Sets the name of this endpoint, and a number that no other process of this name has had.
    pub(crate) fn set_name(&mut self, address: EndpointAddress, number: u64) {
        self.given.set_owner(address, number);
    }

    /// Continues an endpoint whose daemon ended, on new rings: copies its arena, ends its grants, and continues its numbers. The remaining
    /// events of the old rings have to be taken before. Returns the number from which outcomes are unknown, unless they were reported.
    ///
    /// The old memory cannot be passed to another daemon: its seals forbid new writable mappings.
    pub(crate) fn take_over(&mut self, before: &mut Self) -> u64 {
        self.given = core::mem::take(&mut before.given);
        self.given.free_all();
        self.transfers = core::mem::take(&mut before.transfers);
        self.transfers.end_all();
        (self.sent, self.first) = (before.sent, before.sent);
        if let (Some(to), Some(from)) = (&self.memory.arena, &before.memory.arena) {
            let mut some = vec![0; COPIED_BYTES];
            for offset in (0..from.bytes()).step_by(COPIED_BYTES) {
                let left = from.bytes().saturating_sub(offset).min(COPIED_BYTES);
                let some = some.get_mut(..left).unwrap_or_default();
                // Both arenas have the same size.
                let is_copied = from.copy_out(offset, some) && to.copy_in(offset, some);
                debug_assert!(is_copied, "a part of the arena");
            }
        }
        before.unknown_from()
    }

    /// The number from which outcomes are unknown if the daemon is dead, unless they were reported.
    fn unknown_from(&self) -> u64 {
        self.first
            .saturating_add(self.submissions.settled())
            .min(self.sent)
    }

    /// The descriptors of the memory, in the order that [`EndpointLayout::adopt`] expects.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.memory.descriptors()
    }

    /// Whether the other process has sealed all the memory in its full size, as a daemon does before it answers. Another process may have
    /// truncated the memory, so that sending or polling would raise SIGBUS. Makes system calls.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.memory.is_sealed()
    }

    /// Queues a copy of a message, and returns its number. [`Endpoint::flush`] or [`Endpoint::poll`] publishes it. The daemon has taken the
    /// message when its slot is free again. Only a failed delivery is reported.
    ///
    /// # Errors
    /// The ring is full, the message is too long, or the daemon violated the protocol.
    #[inline]
    pub fn send(&mut self, to: EndpointAddress, message: &[u8]) -> Result<u64, EndpointRefusal> {
        let bytes_max = self.layout.message_bytes();
        let length = u32::try_from(message.len())
            .ok()
            .filter(|bytes| *bytes <= bytes_max);
        let Some(bytes) = length else {
            return Err(EndpointRefusal::TooLong {
                bytes: message.len(),
                bytes_max,
            });
        };
        if self.submissions.room()? == 0 {
            return Err(EndpointRefusal::Full);
        }
        let cell = self.layout.submission_cell(self.submissions.slot());
        let number = self.sent;
        if !self.memory.cells.copy_in(cell, message) {
            return Err(EndpointRefusal::Broken);
        }
        self.submit_words(&Message { to, bytes, number }.words())
    }

    /// The number of the next submission.
    #[cfg(test)]
    pub(crate) const fn submitted(&self) -> u64 {
        self.sent
    }

    /// Stages a submission, and returns its number.
    #[inline]
    fn submit(&mut self, submission: &Submission) -> Result<u64, EndpointRefusal> {
        self.submit_words(&submission.words())
    }

    #[inline]
    fn submit_words(&mut self, words: &[u64; DESCRIPTOR_WORDS]) -> Result<u64, EndpointRefusal> {
        if !self.submissions.stage(words)? {
            return Err(EndpointRefusal::Full);
        }
        let number = self.sent;
        self.sent = number.wrapping_add(1);
        Ok(number)
    }

    /// Publishes the queued submissions. Returns whether the daemon sleeps and has to be woken.
    #[inline]
    pub fn flush(&mut self) -> bool {
        self.submissions.publish() && self.must_wake()
    }

    /// Publishes the queued submissions, and passes all pending events to `each`. Returns whether the daemon sleeps and has to be woken.
    ///
    /// # Errors
    /// The daemon violated the protocol: the endpoint cannot be used any more.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(EndpointEvent<'_>)) -> Result<bool, EndpointRefusal> {
        let is_published = self.submissions.publish();
        let owner = self.given.owner();
        let count = self.events.look()?;
        for _ in 0..count {
            let first = self.events.peek_pair().ok_or(EndpointRefusal::Broken)?;
            let message_bytes = self.layout.message_bytes();
            // Most events are messages, which use only the first two words.
            if let Some((from, bytes)) = Report::message(first, message_bytes) {
                let cell = self.layout.event_cell(self.events.slot());
                let message = self
                    .message
                    .get_mut(..bytes as usize)
                    .ok_or(EndpointRefusal::Broken)?;
                if !self.memory.cells.copy_out(cell, message) {
                    return Err(EndpointRefusal::Broken);
                }
                // Before the callback: if it panics, no other event is lost.
                self.events.advance();
                each(EndpointEvent::Received { from, message });
                continue;
            }
            let words = self.events.peek()?;
            let report = words.and_then(|words| Report::parse(&words, message_bytes));
            let report = report.ok_or(EndpointRefusal::Broken)?;
            if self.has_transfers() && self.transfers.intercept(&report) {
                if let Report::Revoked(place) = report {
                    self.given.free(place);
                }
                self.events.advance();
                continue;
            }
            let event = match report {
                // Handled above.
                Report::Message { .. } => return Err(EndpointRefusal::Broken),
                Report::Undelivered { to, number, reason } => {
                    EndpointEvent::Undelivered { to, number, reason }
                }
                Report::Gone { who, reason } => EndpointEvent::Gone { who, reason },
                Report::Completed { to, number, value } => EndpointEvent::Completed { to, number, value },
                Report::Written {
                    from,
                    place,
                    offset,
                    bytes,
                    immediate,
                } => EndpointEvent::Written {
                    from,
                    grant: ArenaGrant { owner, place },
                    offset,
                    bytes,
                    immediate,
                },
                Report::Revoked(place) => {
                    self.given.free(place);
                    let grant = ArenaGrant { owner, place };
                    EndpointEvent::Revoked { grant }
                }
            };
            self.events.advance();
            each(event);
        }
        let is_moved = self.events.hand_back() || is_published;
        Ok(is_moved && self.must_wake())
    }

    /// Announces that this process is going to sleep until the daemon wakes it for an event, or for room if `wants_room`. Returns `false` if
    /// there is an event or such room already: the process must not sleep then.
    ///
    /// # Errors
    /// The daemon violated the protocol.
    pub fn prepare_sleep(&mut self, wants_room: bool) -> Result<bool, EndpointRefusal> {
        if let Some(flag) = self.flag(CLIENT_SLEEPS) {
            announce_sleep(flag);
        }
        if self.events.look()? > 0 || (wants_room && self.has_room()?) || self.has_room_for_transfers()? {
            self.end_sleep();
            return Ok(false);
        }
        Ok(true)
    }

    /// Withdraws the announcement of a sleep.
    pub fn end_sleep(&self) {
        if let Some(flag) = self.flag(CLIENT_SLEEPS) {
            withdraw_sleep(flag);
        }
    }

    /// Whether the ring has room for a submission.
    ///
    /// # Errors
    /// The daemon violated the protocol.
    pub fn has_room(&mut self) -> Result<bool, EndpointRefusal> {
        Ok(self.submissions.room()? > 0)
    }

    fn must_wake(&self) -> bool {
        self.flag(DAEMON_SLEEPS).is_some_and(must_wake)
    }

    fn flag(&self, index: usize) -> Option<&AtomicU32> {
        self.events.memory().flag(index)
    }
}
