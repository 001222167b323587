//! The messages that contexts send each other over their links. Integers are big-endian.
//!
//! | offset | bytes | field | |
//! |---|---|---|---|
//! | 0 | 1 | kind | |
//! | 1 | 1 | version | 1 |
//! | 2 | 1 | count | the number of receives, or the index of a receive |
//! | 3 | 1 | placed | in Clear, one bit for each receive that only a transfer can fill; else 0 |
//! | 4 | 4 | to | the receiver's number of the comm, or of the listener |
//! | 8 | 4 | number | number of the sender's comm, of a request, a reason, or a port; in Close, 1 if the comm was given up |
//! | 12 | 4 | reserved | 0 |
//! | 16 | | body | receives of 12 bytes, a length of 8 bytes, the payload of a message, or its total length and the next part |

use core::num::NonZeroU16;

use crate::places::Key;
use crate::relay::frame::KINDS_FROM;

/// Length of the header in bytes.
pub(crate) const HEADER_BYTES: usize = 16;

/// Maximum number of receives of one request.
pub(crate) const RECEIVES_MAX: usize = 8;

/// Length of one receive in a [`Frame::Clear`], in bytes.
const RECEIVE_BYTES: usize = 12;

/// Version of these messages.
const VERSION: u8 = 1;

const OPEN: u8 = 1;
const OPENED: u8 = 2;
const REFUSED: u8 = 3;
const CLOSE: u8 = 4;
const CLEAR: u8 = 5;
const EAGER: u8 = 6;
const EXCESS: u8 = 7;
const HELLO: u8 = 8;
const PART: u8 = 9;
const CUT: u8 = 10;
const FENCE: u8 = 11;
const PASSED: u8 = 12;

/// Number of bytes of a [`Frame::Part`] before its payload.
pub(crate) const PART_HEADER_BYTES: usize = HEADER_BYTES + size_of::<u64>();

/// The number of a receive request: the slot in the low 5 bits, and the serial number in the 24 bits above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestNumber(pub(crate) u32);

/// Number of bits of the slot.
const SLOT_BITS: u32 = 5;

/// Mask of the serial numbers of requests in messages.
pub(crate) const SERIAL_MASK: u32 = (1 << 24) - 1;

impl RequestNumber {
    pub(crate) const fn new(slot: u32, serial: u32) -> Self {
        Self((serial & SERIAL_MASK) << SLOT_BITS | (slot & 31))
    }

    pub(crate) const fn slot(self) -> u32 {
        self.0 & 31
    }

    pub(crate) const fn serial(self) -> u32 {
        self.0 >> SLOT_BITS & SERIAL_MASK
    }
}

/// The receive that a message fills. Eager frames carry it, and the tag of a transfer encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Number of the receiver's comm.
    pub(crate) to: Key,
    /// Number of the receiver's request.
    pub(crate) request: RequestNumber,
    /// Index of the receive within the request.
    pub(crate) index: u8,
}

impl Target {
    /// Encodes the target as the tag of a transfer.
    pub(crate) fn to_tag(self) -> u64 {
        u64::from(self.to.0) << 32 | u64::from(self.request.0 << 3) | u64::from(self.index & 7)
    }

    pub(crate) fn of_tag(tag: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = tag.to_be_bytes();
        let low = u32::from_be_bytes([e, f, g, h]);
        Self {
            to: Key(u32::from_be_bytes([a, b, c, d])),
            request: RequestNumber(low >> 3),
            index: h & 7,
        }
    }
}

/// A receive that a sender may fill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) tag: i32,
    pub(crate) bytes: u64,
}

/// The reason why a comm was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) u32);

impl Refusal {
    /// The listener is closed.
    pub(crate) const NO_LISTENER: Self = Self(1);
    /// The maximum number of comms is reached.
    pub(crate) const FULL: Self = Self(2);
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match *self {
            Self::NO_LISTENER => "the peer listens no more by this handle",
            Self::FULL => "as many comms as the peer takes are open",
            Self(other) => return write!(f, "reason {other}"),
        })
    }
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'m> {
    /// Connects the sender's comm of this number to a listener.
    Open { listener: Key, number: Key },
    /// Confirms that the comm is open. The sender's number of the comm is `number`.
    Opened { to: Key, number: Key },
    /// Refuses the comm.
    Refused { to: Key, reason: Refusal },
    /// Tells that the sender has closed the comm, or has given it up before its `connect` returned it.
    Close { to: Key, is_given_up: bool },
    /// Announces memory for these receives.
    Clear {
        to: Key,
        request: RequestNumber,
        receives: [Receive; RECEIVES_MAX],
        count: u8,
        /// One bit for each receive whose memory only a device can access. Such a receive is filled by a transfer, whatever its length.
        placed: u8,
    },
    /// Carries the whole message for one receive.
    Eager { target: Target, payload: &'m [u8] },
    /// Tells that the sender's message is longer than the receive.
    Excess { target: Target, bytes: u64 },
    /// Carries the next bytes for one receive, and the total length. Used on circuits for messages that are too long for one frame.
    Part {
        target: Target,
        total: u64,
        payload: &'m [u8],
    },
    /// Ends the rest of a message: the sender has given it up, or the receiver does not want it any more.
    Cut { target: Target },
    /// Asks the peer to confirm the receipt of everything that the sender's comm of this number has sent.
    Fence { to: Key, number: Key },
    /// Answers a fence.
    Passed { to: Key },
    /// Tells the lifeline port of the sender's process. Only the other end of the link reads this frame. Relays do not forward it.
    Hello { port: NonZeroU16 },
}

impl<'m> Frame<'m> {
    /// Whether relays forward a message.
    pub(crate) fn is_relayed(message: &[u8]) -> bool {
        message
            .first()
            .is_some_and(|kind| *kind != HELLO && *kind < KINDS_FROM)
    }

    /// Parses a message. Returns `None` if it is not valid.
    pub(crate) fn parse(message: &'m [u8]) -> Option<Self> {
        let (header, body) = Header::parse(message)?;
        let Header {
            kind,
            count,
            bits: placed,
            words: [to, number],
        } = header;
        let known = if kind == CLEAR { bits(count) } else { 0 };
        (placed & !known == 0).then_some(())?;
        let to = Key(to);
        let request = RequestNumber(number);
        let is_index = usize::from(count) < RECEIVES_MAX;
        let target = Target {
            to,
            request,
            index: count,
        };
        Some(match (kind, count, body) {
            (OPEN, 0, []) => Self::Open {
                listener: to,
                number: Key(number),
            },
            (OPENED, 0, []) => Self::Opened {
                to,
                number: Key(number),
            },
            (REFUSED, 0, []) => Self::Refused {
                to,
                reason: Refusal(number),
            },
            (CLOSE, 0, []) if number <= 1 => Self::Close {
                to,
                is_given_up: number == 1,
            },
            (CLEAR, 1.., _) => Self::Clear {
                to,
                request,
                receives: receives(count, body)?,
                count,
                placed,
            },
            (EAGER, _, payload) if is_index => Self::Eager { target, payload },
            (EXCESS, _, bytes) if is_index => Self::Excess {
                target,
                bytes: u64::from_be_bytes(bytes.try_into().ok()?),
            },
            (PART, _, body) if is_index => {
                let (total, payload) = body.split_first_chunk()?;
                (!payload.is_empty()).then_some(())?;
                Self::Part {
                    target,
                    total: u64::from_be_bytes(*total),
                    payload,
                }
            }
            (CUT, _, []) if is_index => Self::Cut { target },
            (FENCE, 0, []) => Self::Fence {
                to,
                number: Key(number),
            },
            (PASSED, 0, []) if number == 0 => Self::Passed { to },
            (HELLO, 0, []) if to == Key(0) => Self::Hello {
                port: NonZeroU16::new(u16::try_from(number).ok()?)?,
            },
            _ => return None,
        })
    }

    /// Returns the encoded message.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut buffer = vec![0xff; 1 << 17];
        let length = self.write(&mut buffer);
        buffer.truncate(length);
        buffer
    }

    /// Writes the message to the start of a buffer, which must have room for it. Returns the length.
    pub(crate) fn write(&self, buffer: &mut [u8]) -> usize {
        match *self {
            Self::Open { listener, number } => begin(buffer, (OPEN, 0), listener, number.0),
            Self::Opened { to, number } => begin(buffer, (OPENED, 0), to, number.0),
            Self::Refused { to, reason } => begin(buffer, (REFUSED, 0), to, reason.0),
            Self::Close { to, is_given_up } => begin(buffer, (CLOSE, 0), to, is_given_up.into()),
            Self::Clear {
                to,
                request,
                receives,
                count,
                placed,
            } => {
                let receives = receives.into_iter().take(count.into());
                write_clear(buffer, (to, request), (count, placed), receives)
            }
            Self::Eager { target, payload } => {
                let begun = write_eager(buffer, &target);
                put(buffer, begun, payload)
            }
            Self::Excess { target, bytes } => {
                let begun = begin(buffer, (EXCESS, target.index), target.to, target.request.0);
                put(buffer, begun, &bytes.to_be_bytes())
            }
            Self::Part {
                target,
                total,
                payload,
            } => {
                let begun = write_part(buffer, &target, total);
                put(buffer, begun, payload)
            }
            Self::Cut { target } => begin(buffer, (CUT, target.index), target.to, target.request.0),
            Self::Fence { to, number } => begin(buffer, (FENCE, 0), to, number.0),
            Self::Passed { to } => begin(buffer, (PASSED, 0), to, 0),
            Self::Hello { port } => begin(buffer, (HELLO, 0), Key(0), port.get().into()),
        }
    }
}

/// Writes the part of an Eager frame before the payload. Returns its length.
#[inline]
pub(crate) fn write_eager(buffer: &mut [u8], target: &Target) -> usize {
    begin(buffer, (EAGER, target.index), target.to, target.request.0)
}

/// Writes the part of a Part frame before the payload. Returns its length.
pub(crate) fn write_part(buffer: &mut [u8], target: &Target, total: u64) -> usize {
    let begun = begin(buffer, (PART, target.index), target.to, target.request.0);
    put(buffer, begun, &total.to_be_bytes())
}

/// Returns the length of a Clear frame with this number of receives.
#[inline]
pub(crate) fn clear_bytes(count: u8) -> usize {
    HEADER_BYTES.saturating_add(RECEIVE_BYTES.saturating_mul(count.into()))
}

/// Writes a Clear frame. `placed` has a bit for each receive that only a transfer can fill. Returns the length.
#[inline]
pub(crate) fn write_clear(
    buffer: &mut [u8],
    (to, request): (Key, RequestNumber),
    (count, placed): (u8, u8),
    receives: impl Iterator<Item = Receive>,
) -> usize {
    let header = Header {
        kind: CLEAR,
        count,
        bits: placed,
        words: [to.0, request.0],
    };
    let begun = header.write(buffer);
    receives.fold(begun, |at, receive| {
        let [a, b, c, d] = receive.tag.to_be_bytes();
        let [e, f, g, h, i, j, k, l] = receive.bytes.to_be_bytes();
        put(buffer, at, &[a, b, c, d, e, f, g, h, i, j, k, l])
    })
}

#[inline]
fn begin(buffer: &mut [u8], (kind, count): (u8, u8), to: Key, number: u32) -> usize {
    let header = Header {
        kind,
        count,
        bits: 0,
        words: [to.0, number],
    };
    header.write(buffer)
}

/// The header of each message, also of the messages of [circuits](crate::relay::frame).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) count: u8,
    pub(crate) bits: u8,
    pub(crate) words: [u32; 2],
}

impl Header {
    /// Parses a header, and returns it with the body. Returns `None` if the message is too short, or of another version.
    pub(crate) fn parse(message: &[u8]) -> Option<(Self, &[u8])> {
        let (header, body) = message.split_first_chunk::<HEADER_BYTES>()?;
        let [kind, VERSION, count, bits, a, b, c, d, e, f, g, h, 0, 0, 0, 0] = *header else {
            return None;
        };
        let words = [[a, b, c, d], [e, f, g, h]].map(u32::from_be_bytes);
        let header = Self {
            kind,
            count,
            bits,
            words,
        };
        Some((header, body))
    }

    /// Writes the header to the start of a buffer. Returns its length.
    #[inline]
    pub(crate) fn write(self, buffer: &mut [u8]) -> usize {
        let [[a, b, c, d], [e, f, g, h]] = self.words.map(u32::to_be_bytes);
        let header = [
            self.kind, VERSION, self.count, self.bits, a, b, c, d, e, f, g, h, 0, 0, 0, 0,
        ];
        put(buffer, 0, &header)
    }
}

/// Returns a mask with one bit for each of `count` receives.
pub(crate) fn bits(count: u8) -> u8 {
    u8::try_from((1_u16.wrapping_shl(count.into())).wrapping_sub(1)).unwrap_or(u8::MAX)
}

/// Writes bytes at an offset. Returns the offset after them.
#[inline]
pub(crate) fn put(buffer: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    let end = at.saturating_add(bytes.len());
    if let Some(room) = buffer.get_mut(at..end) {
        room.copy_from_slice(bytes);
    }
    end
}

fn receives(count: u8, body: &[u8]) -> Option<[Receive; RECEIVES_MAX]> {
    let count = usize::from(count);
    if count > RECEIVES_MAX || body.len() != count.saturating_mul(RECEIVE_BYTES) {
        return None;
    }
    let mut receives = [Receive::default(); RECEIVES_MAX];
    for (receive, bytes) in receives.iter_mut().zip(body.chunks_exact(RECEIVE_BYTES)) {
        let (tag, bytes) = bytes.split_first_chunk()?;
        receive.tag = i32::from_be_bytes(*tag);
        receive.bytes = u64::from_be_bytes(bytes.try_into().ok()?);
    }
    Some(receives)
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroU16;

    use super::{Frame, HEADER_BYTES, RECEIVES_MAX, Receive, Refusal, RequestNumber, Target};
    use crate::places::Key;

    fn target(index: u8) -> Target {
        Target {
            to: Key(0xfedc_ba98),
            request: RequestNumber::new(31, 0xff_ffff),
            index,
        }
    }

    fn samples() -> Vec<Frame<'static>> {
        let mut receives = [Receive::default(); RECEIVES_MAX];
        for (place, receive) in (0..).zip(&mut receives) {
            *receive = Receive {
                tag: -place,
                bytes: 1 << (40 - place),
            };
        }
        let (to, number) = (Key(0x1234_5678), Key(9));
        let clear = |count: usize| {
            let mut listed = [Receive::default(); RECEIVES_MAX];
            listed[..count].copy_from_slice(&receives[..count]);
            Frame::Clear {
                to,
                request: RequestNumber::new(7, 77),
                receives: listed,
                count: count as u8,
                placed: 1 << (count - 1),
            }
        };
        vec![
            Frame::Open { listener: to, number },
            Frame::Opened { to, number },
            Frame::Refused {
                to,
                reason: Refusal::FULL,
            },
            Frame::Close {
                to,
                is_given_up: true,
            },
            Frame::Close {
                to,
                is_given_up: false,
            },
            clear(1),
            clear(RECEIVES_MAX),
            Frame::Eager {
                target: target(7),
                payload: b"",
            },
            Frame::Eager {
                target: target(0),
                payload: b"payload",
            },
            Frame::Excess {
                target: target(3),
                bytes: u64::MAX,
            },
            Frame::Hello {
                port: NonZeroU16::MAX,
            },
            Frame::Part {
                target: target(2),
                total: 1 << 30,
                payload: b"part",
            },
            Frame::Cut { target: target(7) },
            Frame::Fence { to, number },
            Frame::Passed { to },
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for frame in samples() {
            assert_eq!(Frame::parse(&frame.to_vec()), Some(frame));
        }
    }

    #[test]
    fn a_message_cut_short_or_changed_in_its_header_is_none_or_another() {
        for frame in samples() {
            let mut buffer = frame.to_vec();
            for length in 0..buffer.len() {
                let cut = Frame::parse(&buffer[..length]);
                let is_eager =
                    matches!(frame, Frame::Eager { .. } | Frame::Part { .. }) && length >= HEADER_BYTES;
                assert!(cut.is_none() || is_eager, "{cut:?}");
            }
            for place in 0..HEADER_BYTES {
                let mut changed = buffer.clone();
                changed[place] ^= 0x40;
                assert_ne!(Frame::parse(&changed), Some(frame));
            }
            let is_sized = !matches!(frame, Frame::Eager { .. } | Frame::Part { .. });
            buffer.push(0);
            assert_eq!(Frame::parse(&buffer).is_none(), is_sized);
        }
    }

    #[test]
    fn a_receive_is_the_tag_of_a_transfer() {
        for index in 0..8 {
            assert_eq!(Target::of_tag(target(index).to_tag()), target(index));
        }
        let target = target(0);
        assert_eq!((target.request.slot(), target.request.serial()), (31, 0xff_ffff));
    }

    #[test]
    fn there_are_one_to_eight_receives_and_their_indexes() {
        let mut buffer = samples()[5].to_vec();
        for (count, is_some) in [(0, false), (1, true), (8, true), (9, false), (255, false)] {
            buffer[2] = count;
            buffer.resize(HEADER_BYTES + usize::from(count) * 12, 0);
            assert_eq!(Frame::parse(&buffer).is_some(), is_some, "{count}");
        }
        let frame = Frame::Eager {
            target: target(7),
            payload: b"",
        };
        let mut buffer = frame.to_vec();
        buffer[2] = 8;
        assert_eq!(Frame::parse(&buffer), None);
    }

    #[test]
    fn the_bytes_are_as_the_table_says() {
        let target = Target {
            to: Key(0x0102_0304),
            request: RequestNumber(0x0506_0708),
            index: 2,
        };
        let frame = Frame::Eager {
            target,
            payload: &[0xaa],
        };
        assert_eq!(
            frame.to_vec(),
            [6, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0xaa]
        );
    }
}
