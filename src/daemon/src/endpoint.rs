//! The client's side of its memory: messages out, events in.

use core::fmt;
use core::sync::atomic::AtomicU32;

use doorbell::interprocess::{
    RingViolation, SharedArena, SharedBytes, SharedConsumer, SharedMemory, SharedMemoryError, SharedProducer,
    SharedWords, announce_sleep, must_wake, withdraw_sleep,
};

use crate::descriptor::{Report, Submission};
use crate::layout::{CLIENT_SLEEPS, DAEMON_SLEEPS, EndpointLayout};
use crate::name::EndpointAddress;
use crate::reason::{GoneReason, UndeliveredReason};

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
    /// A message was not delivered, or it is not known whether it was.
    Undelivered {
        /// The receiver that it was for.
        to: EndpointAddress,
        /// The number that [`Endpoint::send`] returned.
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
                    "{bytes} bytes, where a message has at most {bytes_max}: attach with longer cells"
                )
            }
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
    arena: SharedArena,
    sent: u64,
    message: Vec<u8>,
}

impl Endpoint {
    /// Memory of this size, for the daemon to adopt before the first message.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn new(layout: EndpointLayout) -> Result<Self, SharedMemoryError> {
        let rings = SharedMemory::create(layout.words())?;
        Ok(Self {
            layout,
            submissions: SharedProducer::new(rings.clone(), layout.submissions()),
            events: SharedConsumer::new(rings, layout.events()),
            arena: SharedArena::create(layout.arena_bytes())?,
            sent: 0,
            message: vec![0; layout.message_bytes() as usize],
        })
    }

    /// The memory of the rings. Writing there by hand can only get this process cut off.
    #[must_use]
    pub const fn rings(&self) -> &SharedMemory {
        self.events.memory()
    }

    /// The memory of the cells.
    #[must_use]
    pub const fn arena(&self) -> &SharedArena {
        &self.arena
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
        let submission = Submission { to, bytes, number };
        if !self.arena.copy_in(cell, message) || !self.submissions.stage(&submission.words())? {
            return Err(EndpointRefusal::Broken);
        }
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
        let count = self.events.look()?;
        for _ in 0..count {
            let slot = self.events.slot();
            let Some(words) = self.events.peek()? else { break };
            let report = Report::parse(&words, self.layout.message_bytes()).ok_or(EndpointRefusal::Broken)?;
            let event = match report {
                Report::Message { from, bytes } => {
                    let cell = self.layout.event_cell(slot);
                    let message = self
                        .message
                        .get_mut(..bytes as usize)
                        .ok_or(EndpointRefusal::Broken)?;
                    if !self.arena.copy_out(cell, message) {
                        return Err(EndpointRefusal::Broken);
                    }
                    EndpointEvent::Received { from, message }
                }
                Report::Undelivered { to, number, reason } => {
                    EndpointEvent::Undelivered { to, number, reason }
                }
                Report::Gone { who, reason } => EndpointEvent::Gone { who, reason },
            };
            // Before the call: a panic of the caller's loses nothing else.
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
        if self.events.look()? > 0 || (wants_room && self.has_room()?) {
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
