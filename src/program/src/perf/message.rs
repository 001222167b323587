//! Control messages between the two sides of a measurement: fixed layouts, versioned, validated.
//!
//! Every message is a header (magic, version, kind) and a body of fixed size for its kind, all
//! big-endian. An invalid message is rejected, with the reason.

use core::fmt;

use doorbell::RemoteWindow;
use doorbell::provider::Mtu;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::pattern::Mismatch;
use super::test::{Kind, Op, OutOfRange, Plant, Test};

/// "dbPf".
const MAGIC: u32 = 0x6462_5066;
/// Both sides must have the same version.
const VERSION: u16 = 2;
/// Maximum length of a reason.
const REASON_BYTES_MAX: usize = 200;
/// Maximum length of a message.
pub(crate) const CONTROL_BYTES_MAX: u32 = 512;

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The client requests a test.
    Setup(Setup),
    /// The listener is ready for the test, and waits for the connection under test.
    Ready(Ready),
    /// The listener refuses the test, with the reason.
    Refused(String),
    /// Result of a test, exchanged by both sides.
    Verdict(Verdict),
    /// The client has no more tests.
    Finished,
}

/// The client's request for a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    /// A random number. It seeds the payload bytes, and identifies the connection under test.
    pub(crate) token: u64,
    pub(crate) test: Test,
    /// The client's window; empty if the test needs none.
    pub(crate) window: RemoteWindow,
}

/// The listener's response when it is ready for a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) token: u64,
    /// The listener's window; empty if the test needs none.
    pub(crate) window: RemoteWindow,
}

/// Result of a test on one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) token: u64,
    pub(crate) messages_checked: u64,
    pub(crate) bytes_checked: u64,
    /// Number of messages with a wrong byte.
    pub(crate) faults: u64,
    /// The first wrong byte.
    pub(crate) first_fault: Option<Mismatch>,
    /// The reason, if the test was given up.
    pub(crate) gave_up: Option<String>,
}

/// The purpose of a connection, in the private data of its handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It transports control messages.
    Control,
    /// It is measured, in the test with this token.
    UnderTest(u64),
}

/// Reason why a message is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageError {
    /// The length is wrong for its kind, or too short for any message.
    Length { bytes: usize, expected: usize },
    /// The magic number is wrong.
    Magic(u32),
    /// The peer has another version of the program.
    Version(u16),
    /// The kind is unknown.
    Kind(u16),
    /// The value of a field is invalid.
    Field { field: &'static str, value: u64 },
    /// A setting is out of range.
    OutOfRange(OutOfRange),
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { bytes, expected } => {
                write!(f, "a message of {bytes} bytes instead of {expected}")
            }
            Self::Magic(magic) => write!(f, "a message that begins with {magic:#010x}, not {MAGIC:#010x}"),
            Self::Version(version) => write!(
                f,
                "the peer speaks version {version}, not {VERSION}: run the same release on both sides"
            ),
            Self::Kind(kind) => write!(f, "a message of unknown kind {kind}"),
            Self::Field { field, value } => write!(f, "a message whose {field} is {value:#x}"),
            Self::OutOfRange(unfit) => fmt::Display::fmt(unfit, f),
        }
    }
}

impl core::error::Error for MessageError {}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: U32,
    version: U16,
    kind: U16,
}

const SETUP: u16 = 1;
const READY: u16 = 2;
const REFUSED: u16 = 3;
const VERDICT: u16 = 4;
const FINISHED: u16 = 5;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSetup {
    token: U64,
    iterations: U64,
    warmup: U64,
    message_bytes: U32,
    inline_bytes_max: U32,
    batch: U32,
    depth: U32,
    unsignaled_max: U32,
    buffers: U32,
    kind: u8,
    op: u8,
    plant: u8,
    traffic_class: u8,
    mtu_max: u8,
    reserved: [u8; 7],
    window: RemoteWindow,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawReady {
    token: U64,
    window: RemoteWindow,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawReason {
    length_bytes: U16,
    text: [u8; REASON_BYTES_MAX],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawVerdict {
    token: U64,
    messages_checked: U64,
    bytes_checked: U64,
    faults: U64,
    sequence: U64,
    offset: U64,
    expected: U64,
    got: U64,
    has_fault: u8,
    gave_up: u8,
    reserved: [u8; 6],
    reason: RawReason,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPurpose {
    header: Header,
    token: U64,
}

const _: () = assert!(size_of::<Header>() == 8);
const _: () = assert!(size_of::<RawSetup>() == 80);
const _: () = assert!(size_of::<RawReady>() == 28);
const _: () = assert!(size_of::<RawVerdict>() == 72 + 2 + REASON_BYTES_MAX);
const _: () = assert!(size_of::<Header>() + size_of::<RawVerdict>() <= CONTROL_BYTES_MAX as usize);
const _: () = assert!(size_of::<RawPurpose>() == 16);

impl Message {
    /// Encodes the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Setup(setup) => with_header(SETUP, RawSetup::of(setup).as_bytes()),
            Self::Ready(Ready { token, window }) => {
                let raw = RawReady {
                    token: U64::new(*token),
                    window: *window,
                };
                with_header(READY, raw.as_bytes())
            }
            Self::Refused(reason) => with_header(REFUSED, RawReason::of(reason).as_bytes()),
            Self::Verdict(verdict) => with_header(VERDICT, RawVerdict::of(verdict).as_bytes()),
            Self::Finished => with_header(FINISHED, &[]),
        }
    }

    /// Parses a message.
    ///
    /// # Errors
    /// The bytes are no message, or one with an invalid field.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let (kind, body) = split_header(bytes)?;
        match kind {
            SETUP => exactly::<RawSetup>(body)?.check().map(Self::Setup),
            READY => {
                let RawReady { token, window } = exactly(body)?;
                Ok(Self::Ready(Ready {
                    token: token.get(),
                    window: *window,
                }))
            }
            REFUSED => exactly::<RawReason>(body)?.check().map(Self::Refused),
            VERDICT => exactly::<RawVerdict>(body)?.check().map(Self::Verdict),
            FINISHED if body.is_empty() => Ok(Self::Finished),
            FINISHED => Err(MessageError::Length {
                bytes: bytes.len(),
                expected: size_of::<Header>(),
            }),
            other => Err(MessageError::Kind(other)),
        }
    }

    /// The name of its kind, for errors.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Setup(_) => "a setup",
            Self::Ready(_) => "its readiness",
            Self::Refused(_) => "a refusal",
            Self::Verdict(_) => "a verdict",
            Self::Finished => "its farewell",
        }
    }
}

impl Purpose {
    const CONTROL: u16 = 0x101;
    const UNDER_TEST: u16 = 0x102;

    /// Encodes the purpose.
    pub(crate) fn encode(self) -> [u8; size_of::<RawPurpose>()] {
        let (kind, token) = match self {
            Self::Control => (Self::CONTROL, 0),
            Self::UnderTest(token) => (Self::UNDER_TEST, token),
        };
        let raw = RawPurpose {
            header: header(kind),
            token: U64::new(token),
        };
        zerocopy::transmute!(raw)
    }

    /// Parses a purpose.
    ///
    /// # Errors
    /// The bytes are not a purpose: the peer is another program, or has another version.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let (kind, body) = split_header(bytes)?;
        let token = exactly::<U64>(body)?.get();
        match (kind, token) {
            (Self::CONTROL, 0) => Ok(Self::Control),
            (Self::CONTROL, value) => Err(MessageError::Field {
                field: "token",
                value,
            }),
            (Self::UNDER_TEST, token) => Ok(Self::UnderTest(token)),
            (other, _) => Err(MessageError::Kind(other)),
        }
    }
}

impl RawSetup {
    fn of(setup: &Setup) -> Self {
        let Test {
            kind,
            op,
            message_bytes,
            iterations,
            warmup,
            inline_bytes_max,
            batch,
            depth,
            unsignaled_max,
            buffers,
            traffic_class,
            mtu_max,
            plant,
        } = setup.test;
        Self {
            token: U64::new(setup.token),
            iterations: U64::new(iterations),
            warmup: U64::new(warmup),
            message_bytes: U32::new(message_bytes),
            inline_bytes_max: U32::new(inline_bytes_max),
            batch: U32::new(batch),
            depth: U32::new(depth),
            unsignaled_max: U32::new(unsignaled_max),
            buffers: U32::new(buffers),
            kind: match kind {
                Kind::Latency => 1,
                Kind::Bandwidth => 2,
            },
            op: match op {
                Op::Send => 1,
                Op::Write => 2,
                Op::WriteImm => 3,
                Op::Read => 4,
                Op::FetchAdd => 5,
                Op::CompareSwap => 6,
                Op::Ring => 7,
            },
            plant: match plant {
                None => 0,
                Some(Plant::Client) => 1,
                Some(Plant::Listener) => 2,
            },
            traffic_class,
            mtu_max: mtu_max.to_wire(),
            reserved: [0; 7],
            window: setup.window,
        }
    }

    fn check(&self) -> Result<Setup, MessageError> {
        let wrong = |field, value: u8| MessageError::Field {
            field,
            value: u64::from(value),
        };
        check_reserved(&self.reserved)?;
        let test = Test {
            kind: match self.kind {
                1 => Kind::Latency,
                2 => Kind::Bandwidth,
                other => return Err(wrong("kind of test", other)),
            },
            op: match self.op {
                1 => Op::Send,
                2 => Op::Write,
                3 => Op::WriteImm,
                4 => Op::Read,
                5 => Op::FetchAdd,
                6 => Op::CompareSwap,
                // The ring has only a latency test.
                7 if self.kind == 1 => Op::Ring,
                other => return Err(wrong("operation", other)),
            },
            plant: match self.plant {
                0 => None,
                1 => Some(Plant::Client),
                2 => Some(Plant::Listener),
                other => return Err(wrong("self-test", other)),
            },
            mtu_max: Mtu::from_wire(self.mtu_max).ok_or(wrong("path MTU", self.mtu_max))?,
            message_bytes: self.message_bytes.get(),
            iterations: self.iterations.get(),
            warmup: self.warmup.get(),
            inline_bytes_max: self.inline_bytes_max.get(),
            batch: self.batch.get(),
            depth: self.depth.get(),
            unsignaled_max: self.unsignaled_max.get(),
            buffers: self.buffers.get(),
            traffic_class: self.traffic_class,
        };
        test.check().map_err(MessageError::OutOfRange)?;
        Ok(Setup {
            token: self.token.get(),
            test,
            window: self.window,
        })
    }
}

impl RawVerdict {
    fn of(verdict: &Verdict) -> Self {
        let fault = verdict.first_fault.unwrap_or(Mismatch {
            sequence: 0,
            offset: 0,
            expected: 0,
            got: 0,
        });
        Self {
            token: U64::new(verdict.token),
            messages_checked: U64::new(verdict.messages_checked),
            bytes_checked: U64::new(verdict.bytes_checked),
            faults: U64::new(verdict.faults),
            sequence: U64::new(fault.sequence),
            offset: U64::new(fault.offset),
            expected: U64::new(fault.expected),
            got: U64::new(fault.got),
            has_fault: u8::from(verdict.first_fault.is_some()),
            gave_up: u8::from(verdict.gave_up.is_some()),
            reserved: [0; 6],
            reason: RawReason::of(verdict.gave_up.as_deref().unwrap_or_default()),
        }
    }

    fn check(&self) -> Result<Verdict, MessageError> {
        check_reserved(&self.reserved)?;
        let flag = |field, value: u8| match value {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(MessageError::Field {
                field,
                value: u64::from(other),
            }),
        };
        let has_fault = flag("mark of a fault", self.has_fault)?;
        // A verdict with faults must contain the first one.
        if has_fault != (self.faults.get() > 0) {
            return Err(MessageError::Field {
                field: "number of faults",
                value: self.faults.get(),
            });
        }
        let reason = self.reason.check()?;
        Ok(Verdict {
            token: self.token.get(),
            messages_checked: self.messages_checked.get(),
            bytes_checked: self.bytes_checked.get(),
            faults: self.faults.get(),
            first_fault: has_fault.then(|| Mismatch {
                sequence: self.sequence.get(),
                offset: self.offset.get(),
                expected: self.expected.get(),
                got: self.got.get(),
            }),
            gave_up: flag("mark of having given up", self.gave_up)?.then_some(reason),
        })
    }
}

impl RawReason {
    /// Takes the beginning of `reason` that fits.
    fn of(reason: &str) -> Self {
        let mut end = reason.len().min(REASON_BYTES_MAX);
        while !reason.is_char_boundary(end) {
            end = end.saturating_sub(1);
        }
        let mut text = [0; REASON_BYTES_MAX];
        for (byte, value) in text.iter_mut().zip(reason.bytes().take(end)) {
            *byte = value;
        }
        Self {
            length_bytes: U16::new(u16::try_from(end).unwrap_or(0)),
            text,
        }
    }

    fn check(&self) -> Result<String, MessageError> {
        let length = self.length_bytes.get();
        let wrong = |field| MessageError::Field {
            field,
            value: u64::from(length),
        };
        let (text, rest) = self
            .text
            .split_at_checked(usize::from(length))
            .ok_or(wrong("length of a reason"))?;
        check_reserved(rest)?;
        let text = core::str::from_utf8(text).map_err(|_| wrong("reason"))?;
        // Control characters are replaced, since the text is printed to a terminal.
        Ok(text
            .chars()
            .map(|character| if character.is_control() { ' ' } else { character })
            .collect())
    }
}

const fn header(kind: u16) -> Header {
    Header {
        magic: U32::new(MAGIC),
        version: U16::new(VERSION),
        kind: U16::new(kind),
    }
}

fn with_header(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = header(kind).as_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

fn split_header(bytes: &[u8]) -> Result<(u16, &[u8]), MessageError> {
    let (header, body) = Header::ref_from_prefix(bytes).map_err(|_| MessageError::Length {
        bytes: bytes.len(),
        expected: size_of::<Header>(),
    })?;
    if header.magic.get() != MAGIC {
        return Err(MessageError::Magic(header.magic.get()));
    }
    if header.version.get() != VERSION {
        return Err(MessageError::Version(header.version.get()));
    }
    Ok((header.kind.get(), body))
}

fn exactly<T: FromBytes + KnownLayout + Immutable + Unaligned>(body: &[u8]) -> Result<&T, MessageError> {
    T::ref_from_bytes(body).map_err(|_| MessageError::Length {
        bytes: body.len().saturating_add(size_of::<Header>()),
        expected: size_of::<T>().saturating_add(size_of::<Header>()),
    })
}

fn check_reserved(bytes: &[u8]) -> Result<(), MessageError> {
    match bytes.iter().find(|byte| **byte != 0) {
        None => Ok(()),
        Some(byte) => Err(MessageError::Field {
            field: "reserved byte",
            value: u64::from(*byte),
        }),
    }
}

#[cfg(test)]
mod tests;
