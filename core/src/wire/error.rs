//! Errors in bytes from a peer: the part, the field, its offset, and the reason.

use core::fmt;

/// The part of the wire format that the bytes were parsed as.
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
    /// The header of a message that members of a mesh relay.
    Relay,
    /// The header of a message of a collective.
    Collective,
    /// A message of a session.
    SessionFrame,
    /// A request or an answer.
    Request,
}

/// The wrong field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Field {
    /// The magic number at the start.
    Magic,
    /// The version of the format, the newest version that a side speaks, or the chosen version.
    Version,
    /// The oldest version that a side speaks.
    VersionMin,
    /// The length of the whole handle.
    Length,
    /// The flags.
    Flags,
    /// The kind of frame.
    Kind,
    /// The length of a frame's body.
    BodyLength,
    /// The number of rails.
    RailCount,
    /// The TCP port of the handshake.
    Port,
    /// Bytes that must be zero.
    Reserved,
    /// The sender's instance number.
    Instance,
    /// The instance number of the listener that the initiator wants to reach.
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
    /// The maximum number of READs and atomics that the endpoint has in flight.
    MaxRdAtomic,
    /// The number of READs and atomics that the endpoint serves at a time.
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
    /// The number of receives that the endpoint keeps posted.
    ReceiveDepth,
    /// The bytes of each receive.
    SlotBytes,
    /// The address of the credit word.
    CreditAddress,
    /// The remote key of the credit word.
    CreditRkey,
    /// The count in the credit word at the start.
    CreditStart,
    /// The session of the connection.
    Session,
    /// The number of the next message expected in the session.
    NextSequence,
    /// The epoch of a connection.
    Epoch,
    /// The id of the key.
    KeyId,
    /// The proof of having the key.
    Tag,
    /// The reason of a rejection.
    RejectReason,
    /// The detail number of a rejection.
    RejectDetail,
    /// The window of a ring.
    RingWindow,
    /// The number of cells of a ring.
    RingCells,
    /// The bytes of a cell.
    RingCellBytes,
    /// How a message in a ring is announced to its reader.
    RingPublication,
    /// The rank of a member of a mesh.
    Rank,
    /// The sequence number of a session's fragment.
    Sequence,
    /// The sequence number that is expected next.
    Acknowledgement,
    /// The number of fragments that a side accepts from the expected one on.
    Window,
    /// A rail's number in a session.
    Rail,
    /// The reason why a connection does not become a rail of a session.
    RefusalReason,
    /// The bytes of a fragment.
    Payload,
    /// The number of a granted window.
    GrantNumber,
    /// The rights that a grant gives on its window.
    GrantAccess,
    /// The granted window.
    GrantWindow,
    /// The neighbours whose link has no rail for now.
    WithoutRail,
    /// The number that identifies the request of an answer.
    Correlation,
    /// The rank of the sender of a relayed message.
    Source,
    /// The rank of the receiver of a relayed message.
    Destination,
    /// The hops that a message may still take.
    HopsLeft,
    /// The start number of a member of a mesh.
    Started,
    /// The neighbours of a member of a mesh.
    Neighbours,
    /// The step of a collective.
    Step,
    /// The number of a collective in its group.
    Operation,
    /// The offset of a message's bytes within its step.
    StepOffset,
    /// The bytes of a step.
    StepBytes,
    /// The sum of the start numbers of a group's members.
    Starts,
    /// The number of a group among those with the same start numbers.
    Group,
    /// The number of a transfer.
    Transfer,
    /// The bytes of a piece of a transfer.
    PieceBytes,
    /// The bytes of a transfer.
    TransferBytes,
    /// The application's tag of a transfer.
    TransferTag,
    /// Whether the sender is the giver or the taker of a transfer.
    TransferRole,
    /// The number of a piece of a transfer.
    Piece,
    /// The number of announced pieces of a transfer.
    PieceCount,
    /// The number of a giver's question.
    Question,
    /// The set of pieces that have landed.
    PieceSet,
    /// The offset of a written fragment in the memory of its receiver.
    PlacedOffset,
    /// The bytes of a written fragment.
    PlacedBytes,
    /// The reason why a transfer ended.
    EndReason,
}

/// The reason why a field is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The bytes end before the field does.
    Truncated,
    /// There are more bytes than allowed.
    TooLong,
    /// The value is not defined.
    Unknown,
    /// The value is outside its range.
    OutOfRange,
    /// The field must be zero.
    NotZero,
    /// The field must not be zero.
    Zero,
    /// The value contradicts another field, or an earlier frame.
    Mismatch,
    /// The address cannot belong to a single host.
    NotUnicast,
    /// The value has a shorter form, and must be written in it.
    NotCanonical,
}

/// Bytes that are not valid wire format. Only their sender can fix this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct WireError {
    /// The part of the wire format that the bytes were parsed as.
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

    /// An error in a field of the endpoint in a Connect or an Accept.
    pub(crate) fn in_endpoint(part: Part, field: Field, reason: Reason) -> Self {
        let base = super::FRAME_HEADER_BYTES;
        Self::at(part, super::endpoint::LAYOUT, base, field, reason)
    }

    /// An error in a field of a fixed layout, which begins at `base` of the frame. A parser names only fields of its layout. For any
    /// other field, a build with debug assertions panics, and a release build reports the start of the layout.
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

    /// The error of the first incomplete field, if only `have` bytes of a fixed layout exist.
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
