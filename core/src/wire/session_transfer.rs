//! Frames of transfers: ranges of memory that one side of a session gives and the other takes.
//!
//! These frames are neither numbered nor stored. After a rail is lost, the sender sends those that still apply again.

use core::fmt;
use core::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::session::{FixedFrame, SessionHeader, SessionKind};
use super::{Field, REMOTE_WINDOW_BYTES, Reason, RemoteWindow, WireError};
use crate::pieces::{
    PIECE_BYTES_MAX, PIECE_BYTES_MIN, Pieces, TRANSFER_BYTES_MAX, TRANSFER_WINDOW, TransferId, TransferRole,
};
use crate::sequence::Epoch;

/// The bytes of an [`OpenFrame`].
pub const SESSION_OPEN_BYTES: usize = 56;

/// The bytes of a [`TakeFrame`].
pub const SESSION_TAKE_BYTES: usize = 48;

/// The bytes of a [`LandedFrame`].
pub const SESSION_LANDED_BYTES: usize = 40;

/// The bytes of a [`ProgressFrame`].
pub const SESSION_PROGRESS_BYTES: usize = 104;

/// The bytes of an [`EndFrame`].
pub const SESSION_END_BYTES: usize = 32;

/// The bytes of the set of pieces in a [`ProgressFrame`].
const SET_BYTES: usize = TRANSFER_WINDOW as usize / 8;

const GIVER: u8 = 1;
const TAKER: u8 = 2;

/// The beginning of a transfer.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 24 | header | sequence and acknowledgement: 0 |
/// | 24 | 4 | transfer | the number of the transfer in the session; even if the connecting side begins it, otherwise odd; never reused |
/// | 28 | 4 | piece | the bytes of each piece except the last: a power of two, 2^12 to 2^24 |
/// | 32 | 8 | bytes | of the transfer; 1 to 2^40 |
/// | 40 | 8 | tag | of the application |
/// | 48 | 1 | role | of the frame's sender; 1: giver, 2: taker |
/// | 49 | 7 | reserved | 0 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct OpenFrame {
    header: SessionHeader,
    transfer: U32,
    piece: U32,
    bytes: U64,
    tag: U64,
    role: u8,
    reserved: [u8; 7],
}

const_assert_eq!(size_of::<OpenFrame>(), SESSION_OPEN_BYTES);

/// Fields of an [`OpenFrame`] as plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The epoch of the connection that carries the frame.
    pub epoch: Epoch,
    /// The transfer.
    pub transfer: TransferId,
    /// The bytes, and how they are cut into pieces.
    pub pieces: Pieces,
    /// The application's tag.
    pub tag: u64,
    /// The role of the frame's sender.
    pub role: TransferRole,
}

impl FixedFrame for OpenFrame {
    const FIELDS: &'static [(Field, usize)] = &[
        (Field::Transfer, offset_of!(OpenFrame, transfer)),
        (Field::PieceBytes, offset_of!(OpenFrame, piece)),
        (Field::TransferBytes, offset_of!(OpenFrame, bytes)),
        (Field::TransferTag, offset_of!(OpenFrame, tag)),
        (Field::TransferRole, offset_of!(OpenFrame, role)),
        (Field::Reserved, offset_of!(OpenFrame, reserved)),
    ];
}

impl OpenFrame {
    /// Encodes the frame.
    #[must_use]
    pub const fn new(open: &Open) -> Self {
        Self {
            header: SessionHeader::beside(SessionKind::Open, open.epoch),
            transfer: U32::new(open.transfer.0),
            piece: U32::new(open.pieces.piece_bytes()),
            bytes: U64::new(open.pieces.bytes()),
            tag: U64::new(open.tag),
            role: match open.role {
                TransferRole::Giver => GIVER,
                TransferRole::Taker => TAKER,
            },
            reserved: [0; 7],
        }
    }

    /// The bytes of the frame, as they are sent to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; SESSION_OPEN_BYTES] {
        zerocopy::transmute!(self)
    }

    pub(super) fn check(&self) -> Result<Open, WireError> {
        let (bytes, piece) = (self.bytes.get(), self.piece.get());
        if !piece.is_power_of_two() || !(PIECE_BYTES_MIN..=PIECE_BYTES_MAX).contains(&piece) {
            return Err(Self::wrong(Field::PieceBytes, Reason::OutOfRange));
        }
        let role = match self.role {
            GIVER => TransferRole::Giver,
            TAKER => TransferRole::Taker,
            _ => return Err(Self::wrong(Field::TransferRole, Reason::Unknown)),
        };
        if self.reserved != [0; 7] {
            return Err(Self::wrong(Field::Reserved, Reason::NotZero));
        }
        let reason = if bytes == 0 {
            Reason::Zero
        } else {
            Reason::OutOfRange
        };
        let pieces = Pieces::new(bytes, piece).ok_or_else(|| Self::wrong(Field::TransferBytes, reason))?;
        Ok(Open {
            epoch: self.header.epoch(),
            transfer: TransferId(self.transfer.get()),
            pieces,
            tag: self.tag.get(),
            role,
        })
    }
}

/// The taker's memory for a transfer, with the key for the connection that carries the frame.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 24 | header | sequence and acknowledgement: 0 |
/// | 24 | 4 | transfer | the number of the transfer |
/// | 28 | 20 | window | as long as the transfer |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TakeFrame {
    header: SessionHeader,
    transfer: U32,
    window: [u8; REMOTE_WINDOW_BYTES],
}

const_assert_eq!(size_of::<TakeFrame>(), SESSION_TAKE_BYTES);

/// Fields of a [`TakeFrame`] as plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// The epoch of the connection that carries the frame.
    pub epoch: Epoch,
    /// The transfer.
    pub transfer: TransferId,
    /// The memory, which the giver may write to.
    pub window: RemoteWindow,
}

impl FixedFrame for TakeFrame {
    const FIELDS: &'static [(Field, usize)] = &[
        (Field::Transfer, offset_of!(TakeFrame, transfer)),
        (Field::GrantWindow, offset_of!(TakeFrame, window)),
    ];
}

impl TakeFrame {
    /// Encodes the frame.
    #[must_use]
    pub fn new(take: &Take) -> Self {
        Self {
            header: SessionHeader::beside(SessionKind::Take, take.epoch),
            transfer: U32::new(take.transfer.0),
            window: take.window.without_access().to_bytes(),
        }
    }

    /// The bytes of the frame, as they are sent to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; SESSION_TAKE_BYTES] {
        zerocopy::transmute!(self)
    }

    pub(super) fn check(&self) -> Result<Take, WireError> {
        let window = Self::memory(self.window)?;
        Ok(Take {
            epoch: self.header.epoch(),
            transfer: TransferId(self.transfer.get()),
            window,
        })
    }
}

/// Pieces that the giver wrote earlier over the connection that carries the frame: they have landed. Without pieces, the frame is
/// only a question.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 24 | header | sequence and acknowledgement: 0 |
/// | 24 | 4 | transfer | the number of the transfer |
/// | 28 | 4 | first | the first of the pieces, from 0; 0 without pieces |
/// | 32 | 4 | count | of pieces; at most 512 |
/// | 36 | 4 | question | the number of the giver's question, which the taker answers; 0 for none |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LandedFrame {
    header: SessionHeader,
    transfer: U32,
    first: U32,
    count: U32,
    question: U32,
}

const_assert_eq!(size_of::<LandedFrame>(), SESSION_LANDED_BYTES);

/// Fields of a [`LandedFrame`] as plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landed {
    /// The epoch of the connection that carries the frame.
    pub epoch: Epoch,
    /// The transfer.
    pub transfer: TransferId,
    /// The first piece.
    pub first: u32,
    /// The number of pieces.
    pub count: u32,
    /// The giver's question; 0 for none.
    pub question: u32,
}

impl FixedFrame for LandedFrame {
    const FIELDS: &'static [(Field, usize)] = &[
        (Field::Transfer, offset_of!(LandedFrame, transfer)),
        (Field::Piece, offset_of!(LandedFrame, first)),
        (Field::PieceCount, offset_of!(LandedFrame, count)),
        (Field::Question, offset_of!(LandedFrame, question)),
    ];
}

impl LandedFrame {
    /// Encodes the frame.
    #[must_use]
    pub const fn new(landed: &Landed) -> Self {
        Self {
            header: SessionHeader::beside(SessionKind::Landed, landed.epoch),
            transfer: U32::new(landed.transfer.0),
            first: U32::new(landed.first),
            count: U32::new(landed.count),
            question: U32::new(landed.question),
        }
    }

    /// The bytes of the frame, as they are sent to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; SESSION_LANDED_BYTES] {
        zerocopy::transmute!(self)
    }

    pub(super) fn check(&self) -> Result<Landed, WireError> {
        let (first, count, question) = (self.first.get(), self.count.get(), self.question.get());
        if count == 0 && first != 0 {
            return Err(Self::wrong(Field::Piece, Reason::NotZero));
        }
        if count == 0 && question == 0 {
            return Err(Self::wrong(Field::PieceCount, Reason::Zero));
        }
        if count > TRANSFER_WINDOW {
            return Err(Self::wrong(Field::PieceCount, Reason::OutOfRange));
        }
        Ok(Landed {
            epoch: self.header.epoch(),
            transfer: TransferId(self.transfer.get()),
            first,
            count,
            question,
        })
    }
}

/// The pieces of a transfer that the taker has.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 24 | header | sequence and acknowledgement: 0 |
/// | 24 | 4 | transfer | the number of the transfer |
/// | 28 | 4 | base | the first piece that the taker does not have |
/// | 32 | 4 | question | the last question that this frame answers; 0 if there was none |
/// | 36 | 4 | reserved | 0 |
/// | 40 | 64 | set | bit i of byte n, from the lowest: the taker has piece base + 8n + i; the bit of the base is 0 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ProgressFrame {
    header: SessionHeader,
    transfer: U32,
    base: U32,
    question: U32,
    reserved: [u8; 4],
    set: [u8; SET_BYTES],
}

const_assert_eq!(size_of::<ProgressFrame>(), SESSION_PROGRESS_BYTES);

/// Fields of a [`ProgressFrame`] as plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The epoch of the connection that carries the frame.
    pub epoch: Epoch,
    /// The transfer.
    pub transfer: TransferId,
    /// The first piece that the taker does not have.
    pub base: u32,
    /// The last question that this frame answers.
    pub question: u32,
    /// The pieces after the base that the taker has: bit i of byte n is piece base + 8n + i.
    pub set: [u8; SET_BYTES],
}

impl FixedFrame for ProgressFrame {
    const FIELDS: &'static [(Field, usize)] = &[
        (Field::Transfer, offset_of!(ProgressFrame, transfer)),
        (Field::Piece, offset_of!(ProgressFrame, base)),
        (Field::Question, offset_of!(ProgressFrame, question)),
        (Field::Reserved, offset_of!(ProgressFrame, reserved)),
        (Field::PieceSet, offset_of!(ProgressFrame, set)),
    ];
}

impl ProgressFrame {
    /// Encodes the frame.
    #[must_use]
    pub const fn new(progress: &Progress) -> Self {
        Self {
            header: SessionHeader::beside(SessionKind::Progress, progress.epoch),
            transfer: U32::new(progress.transfer.0),
            base: U32::new(progress.base),
            question: U32::new(progress.question),
            reserved: [0; 4],
            set: progress.set,
        }
    }

    /// The bytes of the frame, as they are sent to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; SESSION_PROGRESS_BYTES] {
        zerocopy::transmute!(self)
    }

    pub(super) fn check(&self) -> Result<Progress, WireError> {
        if self.reserved != [0; 4] {
            return Err(Self::wrong(Field::Reserved, Reason::NotZero));
        }
        let [first, ..] = self.set;
        if first & 1 != 0 {
            return Err(Self::wrong(Field::PieceSet, Reason::NotCanonical));
        }
        Ok(Progress {
            epoch: self.header.epoch(),
            transfer: TransferId(self.transfer.get()),
            base: self.base.get(),
            question: self.question.get(),
            set: self.set,
        })
    }
}

/// The reason why a side ended a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EndReason(pub u8);

impl EndReason {
    /// The taker has all bytes.
    pub const DONE: Self = Self(1);
    /// The application cancelled it.
    pub const CANCELLED: Self = Self(2);
    /// The deadline passed.
    pub const DEADLINE: Self = Self(3);
    /// The application declined it.
    pub const REFUSED: Self = Self(4);
    /// The maximum number of transfers that the peer began are open.
    pub const TOO_MANY: Self = Self(5);
    /// The device did not register the memory.
    pub const NO_MEMORY: Self = Self(6);
    /// The transfer is unknown.
    pub const UNKNOWN: Self = Self(7);
    /// The taker's device refused a WRITE of the giver, or failed at 16 in a row for other causes.
    pub const DENIED: Self = Self(8);
    /// The giver's device does not accept a WRITE of a piece.
    pub const NOT_POSTED: Self = Self(9);
    /// A rail failed, and the peer did not answer the fence in time.
    pub const NOT_FENCED: Self = Self(10);
    /// The peer speaks a version without transfers. No frame carries this reason, since such a peer does not know the frames.
    pub const UNSUPPORTED: Self = Self(11);
    /// The taker's device did not deregister the memory, so the peer may still write to it. No frame carries it: it is of this side alone.
    pub const NOT_WITHDRAWN: Self = Self(12);
}

impl fmt::Debug for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::DONE => "DONE",
            Self::CANCELLED => "CANCELLED",
            Self::DEADLINE => "DEADLINE",
            Self::REFUSED => "REFUSED",
            Self::TOO_MANY => "TOO_MANY",
            Self::NO_MEMORY => "NO_MEMORY",
            Self::UNKNOWN => "UNKNOWN",
            Self::DENIED => "DENIED",
            Self::NOT_POSTED => "NOT_POSTED",
            Self::NOT_FENCED => "NOT_FENCED",
            Self::UNSUPPORTED => "UNSUPPORTED",
            Self::NOT_WITHDRAWN => "NOT_WITHDRAWN",
            Self(number) => return write!(f, "EndReason({number})"),
        })
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::DONE => "all of it arrived",
            Self::CANCELLED => "cancelled",
            Self::DEADLINE => "the deadline passed",
            Self::REFUSED => "refused by the application",
            Self::TOO_MANY => "the limit on open transfers is reached",
            Self::NO_MEMORY => "the device did not register the memory",
            Self::UNKNOWN => "no such transfer",
            Self::DENIED => "the taker's device refused a WRITE, or failed at 16 in a row",
            Self::NOT_POSTED => "the giver's device does not take a WRITE of a piece",
            Self::NOT_FENCED => "a rail failed, and the peer did not stop taking from it in time",
            Self::UNSUPPORTED => "the peer's build does not support transfers",
            Self::NOT_WITHDRAWN => {
                "the device did not deregister the memory, and the peer may still write to it"
            }
            Self(number) => return write!(f, "reason {number}"),
        })
    }
}

/// The end of a transfer, or the answer to an end. After it, its sender posts nothing more for the transfer.
///
/// | offset | bytes | field | |
/// |---|---|---|---|
/// | 0 | 24 | header | sequence and acknowledgement: 0 |
/// | 24 | 4 | transfer | the number of the transfer |
/// | 28 | 1 | reason | not 0; an unknown reason is still an end |
/// | 29 | 1 | answer | 1: the frame answers the receiver's end, 0: it needs an answer |
/// | 30 | 2 | reserved | 0 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EndFrame {
    header: SessionHeader,
    transfer: U32,
    reason: u8,
    answer: u8,
    reserved: [u8; 2],
}

const_assert_eq!(size_of::<EndFrame>(), SESSION_END_BYTES);

/// Fields of an [`EndFrame`] as plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The epoch of the connection that carries the frame.
    pub epoch: Epoch,
    /// The transfer.
    pub transfer: TransferId,
    /// The reason.
    pub reason: EndReason,
    /// Whether the frame answers the receiver's end.
    pub is_answer: bool,
}

impl FixedFrame for EndFrame {
    const FIELDS: &'static [(Field, usize)] = &[
        (Field::Transfer, offset_of!(EndFrame, transfer)),
        (Field::EndReason, offset_of!(EndFrame, reason)),
        (Field::Flags, offset_of!(EndFrame, answer)),
        (Field::Reserved, offset_of!(EndFrame, reserved)),
    ];
}

impl EndFrame {
    /// Encodes the frame.
    #[must_use]
    pub fn new(end: &End) -> Self {
        Self {
            header: SessionHeader::beside(SessionKind::End, end.epoch),
            transfer: U32::new(end.transfer.0),
            reason: end.reason.0,
            answer: u8::from(end.is_answer),
            reserved: [0; 2],
        }
    }

    /// The bytes of the frame, as they are sent to a peer.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; SESSION_END_BYTES] {
        zerocopy::transmute!(self)
    }

    pub(super) fn check(&self) -> Result<End, WireError> {
        if self.reason == 0 {
            return Err(Self::wrong(Field::EndReason, Reason::Zero));
        }
        if self.answer > 1 {
            return Err(Self::wrong(Field::Flags, Reason::NotZero));
        }
        if self.reserved != [0; 2] {
            return Err(Self::wrong(Field::Reserved, Reason::NotZero));
        }
        Ok(End {
            epoch: self.header.epoch(),
            transfer: TransferId(self.transfer.get()),
            reason: EndReason(self.reason),
            is_answer: self.answer == 1,
        })
    }
}

// The limit that the layout states.
const_assert_eq!(TRANSFER_BYTES_MAX, 1 << 40);
