//! The operations of reliable connections, and of datagrams, as packets carry them.
//!
//! Source: InfiniBand Architecture volume 1, section 9.2.1, table 38.

/// Operation of a packet, and its part of the message. The numbers are those of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opcode {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastWithImmediate = 0x03,
    SendOnly = 0x04,
    SendOnlyWithImmediate = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastWithImmediate = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyWithImmediate = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareAndSwap = 0x13,
    FetchAndAdd = 0x14,
    Datagram = 0x64,
}

/// Kind of message that a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Send,
    Write,
    Read,
    ReadResponse,
    Acknowledge,
    AtomicAcknowledge,
    Atomic,
    Datagram,
}

impl Opcode {
    /// The part of a SEND that is first, last, both or neither.
    pub(crate) const fn send(first: bool, last: bool, immediate: bool) -> Self {
        match (first, last, immediate) {
            (true, true, false) => Self::SendOnly,
            (true, true, true) => Self::SendOnlyWithImmediate,
            (true, false, _) => Self::SendFirst,
            (false, false, _) => Self::SendMiddle,
            (false, true, false) => Self::SendLast,
            (false, true, true) => Self::SendLastWithImmediate,
        }
    }

    /// The part of a WRITE that is first, last, both or neither.
    pub(crate) const fn write(first: bool, last: bool, immediate: bool) -> Self {
        match (first, last, immediate) {
            (true, true, false) => Self::WriteOnly,
            (true, true, true) => Self::WriteOnlyWithImmediate,
            (true, false, _) => Self::WriteFirst,
            (false, false, _) => Self::WriteMiddle,
            (false, true, false) => Self::WriteLast,
            (false, true, true) => Self::WriteLastWithImmediate,
        }
    }

    /// The part of a READ's answer that is first, last, both or neither.
    pub(crate) const fn read_response(first: bool, last: bool) -> Self {
        match (first, last) {
            (true, true) => Self::ReadResponseOnly,
            (true, false) => Self::ReadResponseFirst,
            (false, false) => Self::ReadResponseMiddle,
            (false, true) => Self::ReadResponseLast,
        }
    }

    pub(crate) const fn group(self) -> Group {
        match self {
            Self::SendFirst
            | Self::SendMiddle
            | Self::SendLast
            | Self::SendLastWithImmediate
            | Self::SendOnly
            | Self::SendOnlyWithImmediate => Group::Send,
            Self::WriteFirst
            | Self::WriteMiddle
            | Self::WriteLast
            | Self::WriteLastWithImmediate
            | Self::WriteOnly
            | Self::WriteOnlyWithImmediate => Group::Write,
            Self::ReadRequest => Group::Read,
            Self::ReadResponseFirst
            | Self::ReadResponseMiddle
            | Self::ReadResponseLast
            | Self::ReadResponseOnly => Group::ReadResponse,
            Self::Acknowledge => Group::Acknowledge,
            Self::AtomicAcknowledge => Group::AtomicAcknowledge,
            Self::CompareAndSwap | Self::FetchAndAdd => Group::Atomic,
            Self::Datagram => Group::Datagram,
        }
    }

    /// Whether a responder sends it.
    pub(crate) const fn is_response(self) -> bool {
        matches!(
            self.group(),
            Group::ReadResponse | Group::Acknowledge | Group::AtomicAcknowledge
        )
    }

    /// Whether it begins a message of several packets or is all of one.
    pub(crate) const fn is_first(self) -> bool {
        !matches!(
            self,
            Self::SendMiddle
                | Self::SendLast
                | Self::SendLastWithImmediate
                | Self::WriteMiddle
                | Self::WriteLast
                | Self::WriteLastWithImmediate
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
        )
    }

    /// Whether it ends a message.
    pub(crate) const fn is_last(self) -> bool {
        !matches!(
            self,
            Self::SendFirst
                | Self::SendMiddle
                | Self::WriteFirst
                | Self::WriteMiddle
                | Self::ReadResponseFirst
                | Self::ReadResponseMiddle
        )
    }

    pub(crate) const fn has_immediate(self) -> bool {
        matches!(
            self,
            Self::SendLastWithImmediate
                | Self::SendOnlyWithImmediate
                | Self::WriteLastWithImmediate
                | Self::WriteOnlyWithImmediate
        )
    }

    /// Whether the header that names memory follows.
    pub(crate) const fn has_reth(self) -> bool {
        matches!(
            self,
            Self::WriteFirst | Self::WriteOnly | Self::WriteOnlyWithImmediate | Self::ReadRequest
        )
    }

    /// Whether the header that acknowledges follows.
    pub(crate) const fn has_aeth(self) -> bool {
        self.is_response() && !matches!(self, Self::ReadResponseMiddle)
    }

    /// Whether the header follows that names a datagram's sender.
    pub(crate) const fn has_deth(self) -> bool {
        matches!(self, Self::Datagram)
    }

    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareAndSwap | Self::FetchAndAdd)
    }
}
