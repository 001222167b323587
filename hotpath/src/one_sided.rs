//! Messages by WRITE: a ring of cells in the reader's memory, written by the peer, read by polling it.
//!
//! A message ends where its cell's trailer begins. So one WRITE carries both, and the trailer lands last. The
//! trailer holds the round of the ring that the message belongs to, and the message's length. If the reader's
//! device does not promise that bytes land in order, the WRITE carries an immediate. The reader then reads a cell
//! only after its immediate came ([`Publication`]).
//!
//! ```text
//! | unused ... | payload | round u32 | bytes u32 |     one cell
//! ```
//!
//! The reader announces how far it has read as a side announces its receives, with equal counts and an equal word
//! ([`Credits`], [`WindowWord`]). So no unread message is overwritten.
//!
//! A peer may write anything at any time. Bytes that are not the trailer of the awaited message are no message,
//! and the reader works on a copy of the cell. So a lying peer spoils its own messages and nothing else.

use core::fmt;
use core::ops::Deref;

use doorbell_core::provider::{Operation, RemoteAddress, Window};
use doorbell_core::wire::{Publication, RING_TRAILER_BYTES, RingInvitation};

use crate::WindowWord;
use crate::credits::{Credits, bytes_of};

/// Why a message does not go into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingRefusal {
    /// Back-pressure: the reader has not read enough yet.
    Full,
    /// Caller misuse: more bytes than a cell holds.
    TooLong {
        /// The bytes there were.
        bytes: usize,
        /// The bytes a cell holds.
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

/// Reason why a message was not read. The message stays in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingReadError {
    /// Caller misuse: the message is longer than the room for it.
    Room {
        /// The message's bytes.
        bytes: usize,
        /// The bytes there is room for.
        room_bytes: usize,
    },
    /// The peer wrote a length that no cell holds, or sent an immediate out of turn: the ring can no longer be
    /// used.
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

/// How a ring is cut.
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

    /// The bytes of a message at most. A cell has at least 64.
    const fn payload_bytes_max(self) -> u32 {
        self.cell_bytes.saturating_sub(RING_TRAILER_BYTES)
    }

    /// Offset in the window of the trailer of message `number`.
    const fn trailer_at(self, number: u32) -> u64 {
        let cell = number & self.cells.wrapping_sub(1);
        let end = (cell as u64).wrapping_add(1).wrapping_mul(self.cell_bytes as u64);
        end.wrapping_sub(RING_TRAILER_BYTES as u64)
    }

    /// Returns the round of message `number`. A round is never zero, so zeroed memory holds no trailer. In one
    /// cell, successive rounds differ in their last byte, so a partly written trailer is not taken for a whole
    /// one. Numbers wrap round at 2^32, and there are at least two cells.
    const fn round_of(self, number: u32) -> u32 {
        (number >> self.cells.trailing_zeros()).wrapping_add(1)
    }
}

/// Writes messages into a peer's ring: says what is to be posted for each.
pub struct RingWriter<W> {
    ring: RingInvitation,
    geometry: Geometry,
    credits: Credits,
    word: WindowWord<W>,
}

/// Request to post for one message: the payload, then the trailer.
#[derive(Clone, Copy, Debug)]
pub struct RingMessage {
    /// The WRITE.
    pub operation: Operation,
    /// Bytes behind the payload.
    pub trailer: [u8; RING_TRAILER_BYTES as usize],
    /// The count that [`RingWriter::note_posted`] takes.
    sent: u32,
}

impl<W: Deref<Target: Window>> RingWriter<W> {
    /// A writer into an empty ring, whose reader announces in `word` how far it read.
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

    /// The bytes of a message at most.
    #[must_use]
    pub const fn payload_bytes_max(&self) -> u32 {
        self.geometry.payload_bytes_max()
    }

    /// Returns the request to post for a message of `bytes` bytes.
    ///
    /// # Errors
    /// The ring is full as far as its reader announced, or the message is too long for a cell.
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
        // The round last: it may come in another packet than what is in front of it, and has to be the last that comes.
        let trailer = u64::from(length) << u32::BITS | u64::from(round);
        let remote = RemoteAddress::new(
            // All offsets of the ring lie within its window (`RingInvitation::parse`).
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

    /// Notes that a message was posted: the next one goes into the next cell.
    #[inline]
    pub const fn note_posted(&mut self, message: &RingMessage) {
        self.credits.note_sent(message.sent);
    }

    /// How many messages may be written now, as far as is known.
    #[must_use]
    pub const fn room(&self) -> u32 {
        self.credits.available()
    }

    #[cold]
    fn look(&mut self) -> bool {
        self.word.load().is_some_and(|read| self.credits.learn(read))
    }
}

/// Reads the messages a peer wrote into a ring of ours.
pub struct RingReader<W> {
    window: W,
    geometry: Geometry,
    publication: Publication,
    /// Messages read.
    read: u32,
    /// Messages that the peer reported by immediates.
    arrived: u32,
    /// Messages read that were announced to the writer.
    announced: u32,
    /// The writer's word, where the reader announces how far it has read.
    word: RemoteAddress,
    is_spoiled: bool,
}

impl<W: Deref<Target: Window>> RingReader<W> {
    /// A reader of an empty ring, as its writer was invited into it; `word` is the writer's word for
    /// announcements.
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

    /// Copies the next message out, and says how many bytes it has; `None` where none came yet.
    ///
    /// Ordering: the trailer is loaded with acquire, so that the payload is read after it; that it was
    /// written after it is what the device promised, or what the completion proved.
    ///
    /// # Errors
    /// There is not room enough, or the peer wrote what is no message.
    #[inline]
    pub fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>, RingReadError> {
        if self.publication != Publication::Trailer && self.arrived == self.read && !self.is_spoiled {
            return Ok(None);
        }
        let trailer_at = self.geometry.trailer_at(self.read);
        // Within the window, which holds the ring.
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

    /// Returns the announcement to post inline, which says how far the ring was read. It is due once half of the
    /// cells are read and unannounced.
    #[must_use]
    #[inline]
    pub fn announcement(&self) -> Option<(Operation, [u8; 8])> {
        let unannounced = self.read.wrapping_sub(self.announced);
        if unannounced < self.geometry.cells / 2 {
            return None;
        }
        // As for receives: the writer may write a ring's worth beyond the messages that were read.
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
