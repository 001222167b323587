//! Errors in bytes from a peer: which part, which field, at which offset, and why.

use core::fmt;

/// The part of the wire format the bytes were read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// A listener's handle.
    Handle,
    /// The header of a handshake frame.
    FrameHeader,
    /// The Hello frame.
    Hello,
    /// The Welcome frame.
    Welcome,
    /// The Connect frame.
    Connect,
    /// The Accept frame.
    Accept,
    /// The Ready frame.
    Ready,
    /// The Reject frame.
    Reject,
    /// An invitation into a ring of cells.
    RingInvitation,
    /// A member's announcement of its neighbours in a mesh.
    Announcement,
    /// The header of a message that goes through others.
    Relay,
    /// The header of a message of a collective.
    Collective,
    /// A message of a session.
    SessionFrame,
    /// A request or an answer.
    Request,
}

/// The field that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Field {
    /// The magic number at the start.
    Magic,
    /// The version it is written in, the newest spoken, or the one chosen.
    Version,
    /// The oldest version spoken.
    VersionMin,
    /// The length of the whole handle.
    Length,
    /// The flags.
    Flags,
    /// The kind of frame.
    Kind,
    /// The length of a frame's body.
    BodyLength,
    /// How many rails follow.
    RailCount,
    /// The TCP port of the handshake.
    Port,
    /// Bytes that must be zero.
    Reserved,
    /// The sender's instance number.
    Instance,
    /// The instance number of the listener that is meant.
    ListenerInstance,
    /// The nonce.
    Nonce,
    /// A rail's tag.
    RailTag,
    /// A rail's explicit length.
    RailLength,
    /// A rail's prefix length.
    RailPrefix,
    /// A rail's speed class.
    RailSpeed,
    /// A rail's address.
    RailAddress,
    /// A rail's explicit GID.
    RailGid,
    /// Bytes after the last field.
    Trailing,
    /// The endpoint's GID.
    Gid,
    /// The queue pair number.
    Qpn,
    /// The first packet sequence number.
    Psn,
    /// The path MTU.
    Mtu,
    /// How many READs and atomics the endpoint has in flight at most.
    MaxRdAtomic,
    /// How many READs and atomics the endpoint serves at a time.
    MaxDestRdAtomic,
    /// The traffic class.
    TrafficClass,
    /// The flow label.
    FlowLabel,
    /// The service level.
    ServiceLevel,
    /// The index of the sender's rail.
    OwnRail,
    /// The index of the receiver's rail.
    PeerRail,
    /// The length of the private data.
    PrivateLength,
    /// The private data.
    PrivateData,
    /// How many receives the endpoint keeps posted.
    ReceiveDepth,
    /// How many bytes each of them holds.
    SlotBytes,
    /// The address of the credit word.
    CreditAddress,
    /// The key to the credit word.
    CreditRkey,
    /// The count that the credit word holds at the start.
    CreditStart,
    /// The session the connection is for.
    Session,
    /// The number of the next message expected in it.
    NextSequence,
    /// Which of its connections this is.
    Epoch,
    /// The name of the key.
    KeyId,
    /// The proof of having the key.
    Tag,
    /// The reason of a rejection.
    RejectReason,
    /// The detail number of a rejection.
    RejectDetail,
    /// The window of a ring.
    RingWindow,
    /// How many cells a ring has.
    RingCells,
    /// How many bytes a cell has.
    RingCellBytes,
    /// How a message in a ring is announced to its reader.
    RingPublication,
    /// The rank of a member of a mesh.
    Rank,
    /// The sequence number of a session's fragment.
    Sequence,
    /// The sequence number that is expected next.
    Acknowledgement,
    /// How many fragments are taken ahead.
    Window,
    /// A rail's number in a session.
    Rail,
    /// Why a connection does not become a rail of a session.
    RefusalReason,
    /// The bytes of a fragment.
    Payload,
    /// The number of a window that is granted.
    GrantNumber,
    /// The rights that a grant gives on its window.
    GrantAccess,
    /// The window that is granted.
    GrantWindow,
    /// The neighbours that no rail leads to for now.
    WithoutRail,
    /// The number by which an answer names its request.
    Correlation,
    /// The rank of the sender of a message that is relayed.
    Source,
    /// The rank of the receiver of a message that is relayed.
    Destination,
    /// The hops that a message may still take.
    HopsLeft,
    /// The start of a member of a mesh.
    Started,
    /// The neighbours of a member of a mesh.
    Neighbours,
    /// The step of a collective.
    Step,
    /// The number of a collective in its group.
    Operation,
    /// The offset of a message's bytes in those of its step.
    StepOffset,
    /// The bytes of a step.
    StepBytes,
    /// The sum of the starts of a group's members.
    Starts,
    /// The number of a group among those of the same starts.
    Group,
    /// The number of a transfer.
    Transfer,
    /// The bytes of a piece of a transfer.
    PieceBytes,
    /// The bytes of a transfer.
    TransferBytes,
    /// The application's word for a transfer.
    TransferTag,
    /// Whether the sender gives a transfer or takes it.
    TransferRole,
    /// The number of a piece of a transfer.
    Piece,
    /// How many pieces of a transfer landed.
    PieceCount,
    /// The number of a giver's question.
    Question,
    /// The set of pieces that landed.
    PieceSet,
    /// Offset of a fragment that was written, in memory of its receiver.
    PlacedOffset,
    /// Bytes of a fragment that was written.
    PlacedBytes,
    /// Why a transfer ended.
    EndReason,
}

/// Why a field is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The bytes end before the field does.
    Truncated,
    /// There are more bytes than allowed.
    TooLong,
    /// The value is not one that is defined.
    Unknown,
    /// The value is outside its range.
    OutOfRange,
    /// The field must be zero.
    NotZero,
    /// The field must not be zero.
    Zero,
    /// The value contradicts another field, or an earlier frame.
    Mismatch,
    /// The address is not one a single host can have.
    NotUnicast,
    /// The value has a shorter form, and must be written in it.
    NotCanonical,
}

/// Bytes that are not valid wire format: their sender can fix it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct WireError {
    /// The part the bytes were read as.
    pub part: Part,
    /// The field.
    pub field: Field,
    /// The offset of the field, in bytes from the start of the handle or frame.
    pub offset: u16,
    /// The error in the field.
    pub reason: Reason,
}

impl WireError {
    pub(crate) fn new(part: Part, field: Field, offset: usize, reason: Reason) -> Self {
        Self {
            part,
            field,
            offset: u16::try_from(offset).unwrap_or(u16::MAX),
            reason,
        }
    }

    /// A field of the endpoint in a Connect or an Accept.
    pub(crate) fn in_endpoint(part: Part, field: Field, reason: Reason) -> Self {
        let base = super::FRAME_HEADER_BYTES;
        Self::at(part, super::endpoint::LAYOUT, base, field, reason)
    }

    /// A field of a fixed layout, which begins at `base` of the frame. A parser names only fields of its layout: a build with
    /// debug assertions panics on any other, and a release build reports the start of the layout.
    #[cold]
    pub(crate) fn at(
        part: Part,
        layout: &[(Field, usize)],
        base: usize,
        field: Field,
        reason: Reason,
    ) -> Self {
        let found = layout.iter().find(|(known, _)| *known == field);
        debug_assert!(found.is_some(), "the layout of the {part} has no {field}");
        let start = found.map_or(0, |(_, start)| *start);
        Self::new(part, field, base.saturating_add(start), reason)
    }

    /// The field that is cut when only `have` bytes of a fixed layout are there.
    pub(crate) fn truncated(part: Part, layout: &[(Field, usize)], base: usize, have: usize) -> Self {
        let cut = layout
            .iter()
            .rev()
            .find(|(_, start)| *start <= have)
            .or(layout.first());
        let (field, start) = cut.copied().unwrap_or((Field::Trailing, have));
        Self::new(part, field, base.saturating_add(start), Reason::Truncated)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Handle => "handle",
            Self::FrameHeader => "frame header",
            Self::Hello => "Hello",
            Self::Welcome => "Welcome",
            Self::Connect => "Connect",
            Self::Accept => "Accept",
            Self::Ready => "Ready",
            Self::Reject => "Reject",
            Self::RingInvitation => "ring invitation",
            Self::Announcement => "announcement",
            Self::Relay => "relay header",
            Self::Collective => "collective header",
            Self::SessionFrame => "session frame",
            Self::Request => "request",
        })
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Magic => "magic number",
            Self::Version => "version",
            Self::VersionMin => "oldest version",
            Self::Length => "length",
            Self::Flags => "flags",
            Self::Kind => "kind",
            Self::BodyLength => "body length",
            Self::RailCount => "rail count",
            Self::Port => "TCP port",
            Self::Reserved => "reserved bytes",
            Self::Instance => "instance number",
            Self::ListenerInstance => "listener's instance number",
            Self::Nonce => "nonce",
            Self::RailTag => "rail tag",
            Self::RailLength => "rail length",
            Self::RailPrefix => "rail prefix length",
            Self::RailSpeed => "rail speed class",
            Self::RailAddress => "rail address",
            Self::RailGid => "rail GID",
            Self::Trailing => "bytes after the end",
            Self::Gid => "GID",
            Self::Qpn => "queue pair number",
            Self::Psn => "packet sequence number",
            Self::Mtu => "MTU",
            Self::MaxRdAtomic => "READs and atomics in flight",
            Self::MaxDestRdAtomic => "READs and atomics served",
            Self::TrafficClass => "traffic class",
            Self::FlowLabel => "flow label",
            Self::ServiceLevel => "service level",
            Self::OwnRail => "sender's rail index",
            Self::PeerRail => "receiver's rail index",
            Self::PrivateLength => "private data length",
            Self::PrivateData => "private data",
            Self::ReceiveDepth => "receive depth",
            Self::SlotBytes => "slot bytes",
            Self::CreditAddress => "credit word's address",
            Self::CreditStart => "credit word's start",
            Self::CreditRkey => "credit word's key",
            Self::NextSequence => "next sequence number",
            Self::KeyId => "key id",
            Self::Tag => "tag",
            Self::RejectReason => "reject reason",
            Self::RejectDetail => "reject detail",
            Self::RingWindow => "ring's window",
            Self::RingCells => "ring's cells",
            Self::RingCellBytes => "bytes of a ring's cell",
            Self::RingPublication => "ring's publication",
            Self::Rank => "rank",
            Self::Epoch => "epoch",
            Self::Sequence => "sequence number",
            Self::Acknowledgement => "acknowledgement",
            Self::Session => "session",
            Self::Window => "window",
            Self::Rail => "rail's number",
            Self::RefusalReason => "reason of the refusal",
            Self::Payload => "payload",
            Self::GrantNumber => "number of the grant",
            Self::GrantAccess => "access that is granted",
            Self::GrantWindow => "window that is granted",
            Self::WithoutRail => "neighbours without a rail",
            Self::Correlation => "correlation",
            Self::Source => "source",
            Self::Destination => "destination",
            Self::HopsLeft => "hops left",
            Self::Started => "start of the member",
            Self::Neighbours => "neighbours",
            Self::Step => "step",
            Self::Operation => "operation",
            Self::StepOffset => "offset in the step",
            Self::StepBytes => "bytes of the step",
            Self::Starts => "starts of the members",
            Self::Group => "number of the group",
            Self::Transfer => "transfer number",
            Self::PieceBytes => "piece bytes",
            Self::TransferBytes => "transfer bytes",
            Self::TransferTag => "transfer tag",
            Self::TransferRole => "transfer role",
            Self::Piece => "piece number",
            Self::PieceCount => "piece count",
            Self::Question => "question number",
            Self::PieceSet => "set of pieces",
            Self::PlacedOffset => "offset of a written fragment",
            Self::PlacedBytes => "bytes of a written fragment",
            Self::EndReason => "reason of the end",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "cut off",
            Self::TooLong => "too long",
            Self::Unknown => "not a known value",
            Self::OutOfRange => "out of range",
            Self::NotZero => "not zero",
            Self::Zero => "zero",
            Self::Mismatch => "contradicts what was said elsewhere",
            Self::NotUnicast => "not a unicast address",
            Self::NotCanonical => "not in its shortest form",
        })
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} at byte {}: {}",
            self.part, self.field, self.offset, self.reason
        )
    }
}

impl core::error::Error for WireError {}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::{Field, Part, Reason, WireError};

    const LAYOUT: [(Field, usize); 2] = [(Field::Version, 0), (Field::Kind, 4)];

    fn at(field: Field) -> WireError {
        WireError::at(Part::Request, &LAYOUT, 8, field, Reason::Unknown)
    }

    #[test]
    fn a_field_of_the_layout_is_found_behind_the_base() {
        assert_eq!((at(Field::Version).offset, at(Field::Kind).offset), (8, 12));
        assert_eq!(
            at(Field::Kind).to_string(),
            "request: kind at byte 12: not a known value"
        );
    }

    #[test]
    #[cfg_attr(
        debug_assertions,
        should_panic(expected = "the layout of the request has no flags")
    )]
    fn a_field_that_the_layout_lacks_is_a_mistake_of_the_parser() {
        assert_eq!(at(Field::Flags).offset, 8);
    }

    #[test]
    fn a_truncation_is_in_the_last_field_that_begins() {
        for have in 0..8 {
            let cut = WireError::truncated(Part::Request, &LAYOUT, 8, have);
            let expected = if have < 4 {
                (Field::Version, 8)
            } else {
                (Field::Kind, 12)
            };
            assert_eq!(
                (cut.field, cut.offset, cut.reason),
                (expected.0, expected.1, Reason::Truncated)
            );
        }
    }
}
