//! Messages by WRITE: a ring of cells in the reader's memory, written by the peer, read by polling it.
//!
//! A message ends where its cell's trailer begins, so that one WRITE brings both and the trailer lands
//! last. The trailer tells which round of the ring the message is of, and how long it is. Where the
//! reader's device does not say that bytes land in order, the WRITE carries an immediate, and the reader
//! looks at a cell only once that came ([`Publication`]).
//!
//! ```text
//! | unused ... | payload | round u32 | bytes u32 |     one cell
//! ```
//!
//! The reader tells how far it read as a side tells of its receives, so that no message is
//! overwritten: the same counts and the same word ([`Credits`], [`WindowWord`]).
//!
//! A peer may write anything at any time. What is not the trailer of the awaited message is no message;
//! what is read of a cell is a copy. So a lying peer spoils its own messages and nothing else.

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

/// What a message was not read for. It is still there.
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
    /// The peer wrote a length that no cell holds, or told of a message out of turn: the ring can no
    /// longer be used.
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

    /// Where the trailer of the message of this number lies in the window.
    const fn trailer_at(self, number: u32) -> u64 {
        let cell = number & self.cells.wrapping_sub(1);
        let end = (cell as u64).wrapping_add(1).wrapping_mul(self.cell_bytes as u64);
        end.wrapping_sub(RING_TRAILER_BYTES as u64)
    }

    /// The round that the message of this number is of: not zero, which no written trailer has, and
    /// not that of the message before it in its cell, from which it differs in its last byte, so that a trailer of
    /// which a part came is not taken for a whole one. Numbers come round at 2^32, and there are two cells at least.
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

/// What is to be posted for a message: its payload, then the trailer, by one request.
#[derive(Clone, Copy, Debug)]
pub struct RingMessage {
    /// The WRITE.
    pub operation: Operation,
    /// What follows the payload.
    pub trailer: [u8; RING_TRAILER_BYTES as usize],
    /// The count that [`RingWriter::note_posted`] takes.
    sent: u32,
}

impl<W: Deref<Target: Window>> RingWriter<W> {
    /// A writer into an empty ring, whose reader tells in `word` how far it read.
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

    /// What is to be posted for a message of so many bytes.
    ///
    /// # Errors
    /// The ring is full, as far as its reader told, or the message too long for a cell.
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
    /// Messages the peer told of by immediates.
    told: u32,
    /// Messages read that the writer was told of.
    announced: u32,
    /// Where it is told.
    word: RemoteAddress,
    is_spoiled: bool,
}

impl<W: Deref<Target: Window>> RingReader<W> {
    /// A reader of an empty ring, as its writer was invited into it; `word` is where the writer is told.
    #[must_use]
    pub const fn new(window: W, invitation: &RingInvitation, word: RemoteAddress) -> Self {
        Self {
            window,
            geometry: Geometry::of(invitation),
            publication: invitation.publication(),
            read: 0,
            told: 0,
            announced: 0,
            word,
            is_spoiled: false,
        }
    }

    /// Notes the immediate of a WRITE into the ring.
    #[inline]
    pub const fn note_written(&mut self, immediate: u32) {
        let outstanding = self.told.wrapping_sub(self.read);
        if immediate != self.told || outstanding >= self.geometry.cells {
            self.is_spoiled = true;
        }
        self.told = self.told.wrapping_add(1);
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
        if self.publication != Publication::Trailer && self.told == self.read && !self.is_spoiled {
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

    /// What is to be posted inline so that the writer learns how far was read: once half of the cells are
    /// read and it was not told.
    #[must_use]
    #[inline]
    pub fn announcement(&self) -> Option<(Operation, [u8; 8])> {
        let unannounced = self.read.wrapping_sub(self.announced);
        if unannounced < self.geometry.cells / 2 {
            return None;
        }
        // As a side tells of receives: of what was read, a ring's worth may be written beyond.
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
