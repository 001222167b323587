//! The client's side of its memory: messages and operations out, events in.

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
use crate::one_sided::ArenaGrant;
use crate::reason::{GoneReason, UndeliveredReason};

mod given;
mod one_sided;
mod transfers;

pub use transfers::{ArenaTransfer, ArenaTransferEnd, TRANSFERS_MAX};

/// Bytes of an arena that are copied at a time.
const COPIED_BYTES: usize = 1 << 16;

/// An event of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointEvent<'m> {
    /// A message, once; those of one sender come in order.
    Received {
        /// The sender.
        from: EndpointAddress,
        /// The message: a copy that no other process reaches.
        message: &'m [u8],
    },
    /// A message was not delivered, or an operation not carried out, or it is not known whether it was.
    Undelivered {
        /// The endpoint that it was for.
        to: EndpointAddress,
        /// The number that [`Endpoint::send`] or [`Endpoint::request`] returned.
        number: u64,
        /// The reason.
        reason: UndeliveredReason,
    },
    /// An endpoint that messages were exchanged with is gone. Its last messages came before.
    Gone {
        /// The endpoint.
        who: EndpointAddress,
        /// The reason.
        reason: GoneReason,
    },
    /// An operation was carried out, once. The bytes of a READ are in the arena.
    Completed {
        /// The owner of the arena that it was for.
        to: EndpointAddress,
        /// The number that [`Endpoint::request`] returned.
        number: u64,
        /// The previous value of the word of an atomic, or 0.
        value: u64,
    },
    /// An endpoint wrote into the arena and reports a number: the bytes are there.
    Written {
        /// The endpoint.
        from: EndpointAddress,
        /// The grant by which it wrote.
        grant: ArenaGrant,
        /// The offset in the grant.
        offset: u64,
        /// The bytes that were written.
        bytes: u32,
        /// The number.
        immediate: u32,
    },
    /// The daemon ended, and another one has this process and its name: with its arena, without its grants.
    Restarted {
        /// The number of the daemon, higher than that of the one before.
        epoch: u64,
        /// Submissions from this number on that are not reported as undelivered or completed have an unknown outcome: none of them comes
        /// later, and none twice. All before it have the outcome that was reported, and were delivered if there was none.
        unknown_from: u64,
    },
    /// A transfer has ended, and the memory is this process's alone again.
    TransferEnded {
        /// The transfer.
        transfer: ArenaTransfer,
        /// How.
        end: ArenaTransferEnd,
        /// The bytes that arrived in this process, from the beginning; 0 for a giver.
        bytes: u64,
    },
    /// A grant is revoked: nothing was written by it since before this event, nor ever will be.
    Revoked {
        /// The grant.
        grant: ArenaGrant,
    },
}

/// Reason why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndpointRefusal {
    /// Back-pressure: the ring is full. Poll, and try again.
    Full,
    /// Caller misuse: the message is longer than a cell.
    TooLong {
        /// The bytes there were.
        bytes: usize,
        /// The bytes of a cell.
        bytes_max: u32,
    },
    /// Caller misuse: the range is not within the arena, or longer than [`OPERATION_BYTES_MAX`](crate::OPERATION_BYTES_MAX) in an operation.
    OutOfArena {
        /// The bytes of the arena.
        arena_bytes: u64,
    },
    /// Caller misuse: the grant allows nothing, or it is none that this endpoint has given and not revoked.
    NoGrant,
    /// As many grants stand, or wait for the event of their end, as may: revoke one, and try again after that event.
    TooManyGrants,
    /// As many transfers as may be are open ([`TRANSFERS_MAX`]): try again after the end of one.
    TooManyTransfers,
    /// The daemon broke the protocol of the rings: the endpoint is of no further use.
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
            Self::OutOfArena { arena_bytes } => write!(
                f,
                "the range is not within the arena of {arena_bytes} bytes, or longer than an operation may be"
            ),
            Self::NoGrant => f.write_str("the grant allows nothing, or does not stand"),
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

/// The rings and cells of a process, without its socket: what [`Client`](crate::Client) sends and polls by.
///
/// Neither sending nor polling makes a system call, allocates or waits.
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
    /// Memory of this size, for the daemon to adopt before the first message.
    ///
    /// # Errors
    /// The system has no memory.
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

    /// The memory of the rings. Writing there by hand can only get this process cut off.
    #[must_use]
    pub const fn rings(&self) -> &SharedMemory {
        self.events.memory()
    }

    /// The arena, which this process reads and writes as it likes. `None` if the layout has none.
    #[must_use]
    pub const fn arena(&self) -> Option<&SharedArena> {
        self.memory.arena.as_ref()
    }

    /// Notes the name that the daemon knows it by, and a number of this process among all that have had the name.
    pub(crate) fn set_name(&mut self, address: EndpointAddress, number: u64) {
        self.given.set_owner(address, number);
    }

    /// Goes on for an endpoint whose daemon ended, with new rings: its arena is copied, its grants have ended, its numbers go on. Its
    /// last events were taken before. Returns the number from which on outcomes are unknown, unless they were reported.
    ///
    /// The memory of before cannot be given to another daemon: its seals refuse every mapping that can be written.
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
                // Both have as many bytes.
                let is_copied = from.copy_out(offset, some) && to.copy_in(offset, some);
                debug_assert!(is_copied, "a part of the arena");
            }
        }
        before.unknown_from()
    }

    /// The number from which on outcomes are unknown if the daemon is dead, unless they were reported.
    fn unknown_from(&self) -> u64 {
        self.first
            .saturating_add(self.submissions.settled())
            .min(self.sent)
    }

    /// The descriptors of the memory, in the order of [`EndpointLayout::adopt`].
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.memory.descriptors()
    }

    /// Takes a message, which [`Endpoint::flush`] or [`Endpoint::poll`] publishes; returns its number. It is copied. The daemon has it
    /// once its slot is used again, and reports only if it is not delivered.
    ///
    /// # Errors
    /// The ring is full, the message is too long, or the daemon broke the protocol.
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

    /// Publishes the messages that were taken. Returns whether the daemon sleeps and has to be woken.
    #[inline]
    pub fn flush(&mut self) -> bool {
        self.submissions.publish() && self.must_wake()
    }

    /// Publishes the messages that were taken, and gives each event that is there to `each`. Returns whether the daemon sleeps and has
    /// to be woken.
    ///
    /// # Errors
    /// The daemon broke the protocol: the endpoint is of no further use.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(EndpointEvent<'_>)) -> Result<bool, EndpointRefusal> {
        let is_published = self.submissions.publish();
        let owner = self.given.owner();
        let count = self.events.look()?;
        for _ in 0..count {
            let first = self.events.peek_pair().ok_or(EndpointRefusal::Broken)?;
            let message_bytes = self.layout.message_bytes();
            // Most are messages, which have no more words.
            if let Some((from, bytes)) = Report::message(first, message_bytes) {
                let cell = self.layout.event_cell(self.events.slot());
                let message = self
                    .message
                    .get_mut(..bytes as usize)
                    .ok_or(EndpointRefusal::Broken)?;
                if !self.memory.cells.copy_out(cell, message) {
                    return Err(EndpointRefusal::Broken);
                }
                // Before the call: a panic of the caller's loses nothing else.
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
                // Above.
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

    /// Announces that this process sleeps until the daemon wakes it: for an event, and for room if it wants any. `false` if there is
    /// something to do: it then does not sleep.
    ///
    /// # Errors
    /// The daemon broke the protocol.
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

    /// The sleep is over.
    pub fn end_sleep(&self) {
        if let Some(flag) = self.flag(CLIENT_SLEEPS) {
            withdraw_sleep(flag);
        }
    }

    /// Whether messages can be taken.
    ///
    /// # Errors
    /// The daemon broke the protocol.
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
