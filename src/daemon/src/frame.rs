//! Frames between daemons, each a message of a link: a head of 64 bytes, big-endian, and a payload.
//!
//! ```text
//! 0 magic u32   4 version u16   6 kind u16   8 job u64   16 key [16]   32 user u32   36 from u32   40 to u32   44 reason u32
//! 48 incarnation u64   56 number u64
//! ```
//!
//! `from` is always the endpoint whose message it is, and `to` the endpoint that it is for. The key lets a daemon find out whether
//! its job of that number is the sender's. Links are for daemons that trust each other; what they say is checked all the same.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::name::{JobKey, JobNumber};
use crate::reason::{GoneReason, UndeliveredReason};

/// Bytes in front of a payload.
pub(crate) const FRAME_BYTES: usize = 64;

const MAGIC: u32 = 0x646f_6f66;
const VERSION: u16 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: U32,
    version: U16,
    kind: U16,
    job: U64,
    key: [u8; 16],
    user: U32,
    from: U32,
    to: U32,
    reason: U32,
    incarnation: U64,
    number: U64,
}

/// A job, as another daemon knows it: only all of it names the same job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) number: JobNumber,
    pub(crate) key: JobKey,
    pub(crate) user: u32,
}

/// Meaning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// First on a link: the number of the sender's node is `from`, its instance is in `incarnation`, and its epoch in `number`.
    Hello,
    /// A message from `from` to `to`.
    Message,
    /// The receiver has all messages of the pair up to this number.
    Delivered,
    /// The receiver does not get this message.
    Refused(UndeliveredReason),
    /// The endpoint `from` is gone, which `to` had exchanged messages with.
    Gone(GoneReason),
    /// An operation of `from` on the arena of `to`; the payload is an [`Asked`](crate::one_sided::Asked) and the bytes of a WRITE.
    Operation,
    /// The operation was carried out; the payload is the value that was fetched, and the bytes of a READ.
    Completed,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) said: Said,
    pub(crate) job: Job,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Which of the processes that had the name one after the other sent the message.
    pub(crate) incarnation: u64,
    pub(crate) number: u64,
}

/// The peer daemon sent what is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoFrame;

impl Frame {
    pub(crate) fn hello(node: u32, instance: u64, epoch: u64) -> Self {
        Self {
            said: Said::Hello,
            job: Job {
                number: JobNumber(0),
                key: JobKey([0; 16]),
                user: 0,
            },
            from: node,
            to: 0,
            incarnation: instance,
            number: epoch,
        }
    }

    pub(crate) fn bytes(&self) -> [u8; FRAME_BYTES] {
        let (kind, reason): (u16, u32) = match self.said {
            Said::Hello => (1, 0),
            Said::Message => (2, 0),
            Said::Delivered => (3, 0),
            Said::Refused(reason) => (4, reason.number()),
            Said::Gone(reason) => (5, reason.number()),
            Said::Operation => (6, 0),
            Said::Completed => (7, 0),
        };
        let raw = Raw {
            magic: MAGIC.into(),
            version: VERSION.into(),
            kind: kind.into(),
            job: self.job.number.0.into(),
            key: self.job.key.0,
            user: self.job.user.into(),
            from: self.from.into(),
            to: self.to.into(),
            reason: reason.into(),
            incarnation: self.incarnation.into(),
            number: self.number.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// Reads a frame, and gives the payload, which messages, operations and their outcomes alone have.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), NoFrame> {
        let (raw, payload) = Raw::read_from_prefix(bytes).map_err(|_| NoFrame)?;
        if raw.magic.get() != MAGIC || raw.version.get() != VERSION {
            return Err(NoFrame);
        }
        let reason = raw.reason.get();
        let said = match raw.kind.get() {
            1 => Said::Hello,
            2 => Said::Message,
            3 => Said::Delivered,
            4 => Said::Refused(UndeliveredReason::of(reason).ok_or(NoFrame)?),
            5 => Said::Gone(GoneReason::of(reason).ok_or(NoFrame)?),
            6 => Said::Operation,
            7 => Said::Completed,
            _ => return Err(NoFrame),
        };
        let has_reason = matches!(said, Said::Refused(_) | Said::Gone(_));
        let has_payload = matches!(said, Said::Message | Said::Operation | Said::Completed);
        if (reason != 0 && !has_reason) || (!has_payload && !payload.is_empty()) {
            return Err(NoFrame);
        }
        let job = Job {
            number: JobNumber(raw.job.get()),
            key: JobKey(raw.key),
            user: raw.user.get(),
        };
        let frame = Self {
            said,
            job,
            from: raw.from.get(),
            to: raw.to.get(),
            incarnation: raw.incarnation.get(),
            number: raw.number.get(),
        };
        Ok((frame, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::{FRAME_BYTES, Frame, Job, NoFrame, Said};
    use crate::name::{JobKey, JobNumber};
    use crate::reason::{GoneReason, UndeliveredReason};

    #[test]
    fn each_frame_is_read_as_it_was_written() {
        let all = [
            Said::Hello,
            Said::Message,
            Said::Delivered,
            Said::Refused(UndeliveredReason::NoEndpoint),
            Said::Gone(GoneReason::Died),
            Said::Operation,
            Said::Completed,
        ];
        for said in all {
            let frame = Frame {
                said,
                job: Job {
                    number: JobNumber(8),
                    key: JobKey([9; 16]),
                    user: 10,
                },
                from: 11,
                to: 12,
                incarnation: 13,
                number: u64::MAX,
            };
            let mut bytes = frame.bytes().to_vec();
            assert_eq!(Frame::parse(&bytes), Ok((frame, &[][..])));
            for length in 0..FRAME_BYTES {
                assert_eq!(Frame::parse(&bytes[..length]), Err(NoFrame));
            }
            for at in [0, 4, 6, 44] {
                let mut wrong = bytes.clone();
                wrong[at] ^= 0x80;
                assert_eq!(Frame::parse(&wrong), Err(NoFrame), "{said:?} {at}");
            }
            bytes.push(1);
            let has_payload = matches!(said, Said::Message | Said::Operation | Said::Completed);
            assert_eq!(Frame::parse(&bytes).is_ok(), has_payload);
        }
    }
}
