//! Messages by WRITE: a ring of cells in the reader's memory, which the peer writes and the reader polls.
//!
//! A message ends where its cell's trailer begins. So one WRITE carries both, and the trailer lands last. The
//! trailer has the message's length, and its round of the ring. If the reader's device does not guarantee that bytes
//! land in order, the message is a WRITE with immediate. Then the reader reads a cell only after its immediate
//! ([`Publication`]).
//!
//! ```text
//! | unused ... | payload | round u32 | bytes u32 |     one cell
//! ```
//!
//! The reader announces the messages that it has read in the same way as a side announces its receives, with the same
//! counts and the same word ([`Credits`], [`WindowWord`]). So no unread message is overwritten.
//!
//! A peer may write anything at any time. Bytes other than the trailer of the expected message are ignored, and the
//! reader works on a copy of the cell. So a malicious peer damages only its own messages.

use core::fmt;
use core::ops::Deref;

use doorbell_core::provider::{Operation, RemoteAddress, Window};
use doorbell_core::wire::{Publication, RING_TRAILER_BYTES, RingInvitation};

use crate::WindowWord;
use crate::credits::{Credits, bytes_of};

/// The reason why a message cannot be written into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingRefusal {
    /// Backpressure: the reader has not read enough messages yet.
    Full,
    /// Caller misuse: the message exceeds a cell.
    TooLong {
        /// The bytes of the message.
        bytes: usize,
        /// The payload bytes of a cell.
        bytes_max: usize,
    },
}

impl fmt::Display for RingRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the peer's ring is full: it has not read enough yet"),
            Self::TooLong { bytes, bytes_max } => {
                write!(
                    f,
                    "{bytes} bytes, where a cell of the peer's ring holds {bytes_max}"
                )
            }
        }
    }
}

impl core::error::Error for RingRefusal {}

/// The reason why a message was not read. The message stays in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingReadError {
    /// Caller misuse: the message is longer than the buffer.
    Room {
        /// The bytes of the message.
        bytes: usize,
        /// The bytes of the buffer.
        room_bytes: usize,
    },
    /// The peer wrote a length beyond a cell, or sent an immediate out of turn: the ring cannot be used any more.
    Peer,
}

impl fmt::Display for RingReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Room { bytes, room_bytes } => {
                write!(
                    f,
                    "a message of {bytes} bytes, where there is room for {room_bytes}"
                )
            }
            Self::Peer => f.write_str("the peer wrote into the ring what is no message"),
        }
    }
}

impl core::error::Error for RingReadError {}

/// The number and size of a ring's cells.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    cells: u32,
    cell_bytes: u32,
}

impl Geometry {
    const fn of(invitation: &RingInvitation) -> Self {
        Self {
            cells: invitation.cells(),
            cell_bytes: invitation.cell_bytes(),
        }
    }

    /// The maximum bytes of a message. A cell has at least 64.
    const fn payload_bytes_max(self) -> u32 {
        self.cell_bytes.saturating_sub(RING_TRAILER_BYTES)
    }

    /// The offset in the window of the trailer of message `number`.
    const fn trailer_at(self, number: u32) -> u64 {
        let cell = number & self.cells.wrapping_sub(1);
        let end = (cell as u64).wrapping_add(1).wrapping_mul(self.cell_bytes as u64);
        end.wrapping_sub(RING_TRAILER_BYTES as u64)
    }

    /// Returns the round of message `number`. A round is never zero, so zeroed memory has no valid trailer. In one cell,
    /// successive rounds differ in their last byte, so a partly written trailer is not mistaken for a complete one.
    /// Numbers wrap at 2^32, and there are at least two cells.
    const fn round_of(self, number: u32) -> u32 {
        (number >> self.cells.trailing_zeros()).wrapping_add(1)
    }
}

/// The writer of a peer's ring, which returns the request to post for each message.
pub struct RingWriter<W> {
    ring: RingInvitation,
    geometry: Geometry,
    credits: Credits,
    word: WindowWord<W>,
}

/// The request to post for one message: the payload, then the trailer.
#[derive(Clone, Copy, Debug)]
pub struct RingMessage {
    /// The WRITE.
    pub operation: Operation,
    /// The bytes after the payload.
    pub trailer: [u8; RING_TRAILER_BYTES as usize],
    /// The count that [`RingWriter::note_posted`] takes.
    sent: u32,
}

impl<W: Deref<Target: Window>> RingWriter<W> {
    /// A writer of an empty ring, whose reader announces in `word` the messages that it has read.
    #[must_use]
    pub const fn new(ring: RingInvitation, word: WindowWord<W>) -> Self {
        let geometry = Geometry::of(&ring);
        Self {
            ring,
            geometry,
            credits: Credits::new(0, geometry.cells),
            word,
        }
    }

    /// The maximum bytes of a message.
    #[must_use]
    pub const fn payload_bytes_max(&self) -> u32 {
        self.geometry.payload_bytes_max()
    }

    /// Returns the request to post for a message of `bytes` bytes.
    ///
    /// # Errors
    /// The ring is full according to its reader's announcements, or the message is too long for a cell.
    #[inline]
    pub fn message(&mut self, bytes: usize) -> Result<RingMessage, RingRefusal> {
        let bytes_max = self.geometry.payload_bytes_max();
        let Some(length) = u32::try_from(bytes).ok().filter(|length| *length <= bytes_max) else {
            return Err(RingRefusal::TooLong {
                bytes,
                bytes_max: bytes_max as usize,
            });
        };
        if self.credits.available() == 0 && !self.look() {
            return Err(RingRefusal::Full);
        }
        let number = self.credits.sent();
        let at = self.geometry.trailer_at(number).wrapping_sub(length.into());
        let round = self.geometry.round_of(number);
        // The round is last: it may be in another packet than the bytes before it, and has to arrive last.
        let trailer = u64::from(length) << u32::BITS | u64::from(round);
        let remote = RemoteAddress::new(
            // All offsets of the ring are within its window (`RingInvitation::parse`).
            self.ring.window().address().wrapping_add(at),
            self.ring.window().rkey(),
        );
        Ok(RingMessage {
            operation: match self.ring.publication() {
                Publication::Trailer => Operation::Write(remote),
                _ => Operation::WriteWithImmediate(remote, number),
            },
            trailer: trailer.to_be_bytes(),
            sent: number.wrapping_add(1),
        })
    }

    /// Notes that a message was posted, so that the next message gets the next cell.
    #[inline]
    pub const fn note_posted(&mut self, message: &RingMessage) {
        self.credits.note_sent(message.sent);
    }

    /// The number of messages that may be written now, as far as is known.
    #[must_use]
    pub const fn room(&self) -> u32 {
        self.credits.available()
    }

    #[cold]
    fn look(&mut self) -> bool {
        self.word.load().is_some_and(|read| self.credits.learn(read))
    }
}

/// The reader of a ring that a peer writes.
pub struct RingReader<W> {
    window: W,
    geometry: Geometry,
    publication: Publication,
    /// The number of messages read.
    read: u32,
    /// The number of messages that the peer reported by immediates.
    arrived: u32,
    /// The number of read messages that were announced to the writer.
    announced: u32,
    /// The writer's word for the reader's announcements.
    word: RemoteAddress,
    is_spoiled: bool,
}

impl<W: Deref<Target: Window>> RingReader<W> {
    /// A reader of an empty ring, with the invitation that its writer got. `word` is the writer's word
    /// for announcements.
    #[must_use]
    pub const fn new(window: W, invitation: &RingInvitation, word: RemoteAddress) -> Self {
        Self {
            window,
            geometry: Geometry::of(invitation),
            publication: invitation.publication(),
            read: 0,
            arrived: 0,
            announced: 0,
            word,
            is_spoiled: false,
        }
    }

    /// Notes the immediate of a WRITE into the ring.
    #[inline]
    pub const fn note_written(&mut self, immediate: u32) {
        let outstanding = self.arrived.wrapping_sub(self.read);
        if immediate != self.arrived || outstanding >= self.geometry.cells {
            self.is_spoiled = true;
        }
        self.arrived = self.arrived.wrapping_add(1);
    }

    /// Copies the next message out, and returns its length in bytes; `None` if no message has arrived.
    ///
    /// Ordering: the trailer is loaded with acquire, so the payload is read after it. The device's guarantee,
    /// or the completion, ensures that the payload landed before the trailer.
    ///
    /// # Errors
    /// The buffer is too short, or the peer broke the protocol.
    #[inline]
    pub fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>, RingReadError> {
        if self.publication != Publication::Trailer && self.arrived == self.read && !self.is_spoiled {
            return Ok(None);
        }
        let trailer_at = self.geometry.trailer_at(self.read);
        // The trailer is within the window, which contains the ring.
        let at = usize::try_from(trailer_at).map_err(|_| RingReadError::Peer)?;
        let trailer = self.window.load_u64(at).map_err(|_| RingReadError::Peer)?;
        let trailer = u64::from_be(trailer);
        let is_awaited = trailer & u64::from(u32::MAX) == u64::from(self.geometry.round_of(self.read));
        if self.is_spoiled || !is_awaited && self.publication != Publication::Trailer {
            return Err(RingReadError::Peer);
        }
        if !is_awaited {
            return Ok(None);
        }
        let length = trailer >> u32::BITS;
        if length > self.geometry.payload_bytes_max().into() {
            self.is_spoiled = true;
            return Err(RingReadError::Peer);
        }
        let bytes = usize::try_from(length).map_err(|_| RingReadError::Peer)?;
        let room_bytes = into.len();
        let Some(into) = into.get_mut(..bytes) else {
            return Err(RingReadError::Room { bytes, room_bytes });
        };
        self.window
            .copy_out(at.wrapping_sub(bytes), into)
            .map_err(|_| RingReadError::Peer)?;
        self.read = self.read.wrapping_add(1);
        Ok(Some(bytes))
    }

    /// Returns the announcement of read messages, to be posted inline. It is due when half of the cells are read and
    /// unannounced.
    #[must_use]
    #[inline]
    pub fn announcement(&self) -> Option<(Operation, [u8; 8])> {
        let unannounced = self.read.wrapping_sub(self.announced);
        if unannounced < self.geometry.cells / 2 {
            return None;
        }
        // As for receives, the count is that of the messages that the writer may write: all cells beyond the read ones.
        let granted = self.read.wrapping_add(self.geometry.cells);
        Some((Operation::Write(self.word), bytes_of(granted)))
    }

    /// Notes that the announcement was posted.
    #[inline]
    pub const fn note_announced(&mut self) {
        self.announced = self.read;
    }
}

impl<W> fmt::Debug for RingWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingWriter")
            .field("ring", &self.ring)
            .field("credits", &self.credits)
            .finish_non_exhaustive()
    }
}

impl<W> fmt::Debug for RingReader<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingReader")
            .field("geometry", &self.geometry)
            .field("publication", &self.publication)
            .field("read", &self.read)
            .field("announced", &self.announced)
            .field("is_spoiled", &self.is_spoiled)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
