//! Frames between daemons: each is a link message of a big-endian header of 64 bytes and a payload.
//!
//! ```text
//! 0 magic u32   4 version u16   6 kind u16   8 job u64   16 key [16]   32 user u32   36 from u32   40 to u32   44 reason u32
//! 48 incarnation u64   56 number u64
//! ```
//!
//! `from` is always the endpoint that sent the original message or operation, and `to` its destination, also in responses. A
//! daemon uses the key to check that its job of this number is the sender's job. Daemons trust each other, but validate each frame
//! nevertheless.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::name::{JobKey, JobNumber};
use crate::reason::{GoneReason, UndeliveredReason};

/// Length of the header.
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

/// Identity of a job across daemons: two jobs are the same only if all fields are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) number: JobNumber,
    pub(crate) key: JobKey,
    pub(crate) user: u32,
}

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// First frame on a link. `from` is the number of the sender's node, `incarnation` its instance, and `number` its epoch.
    Hello,
    /// A message from `from` to `to`.
    Message,
    /// The receiver has taken all messages of the pair up to this number.
    Delivered,
    /// The receiver refused this message or operation.
    Refused(UndeliveredReason),
    /// The endpoint `from` is gone, and `to` had exchanged messages with it.
    Gone(GoneReason),
    /// An operation of `from` on the arena of `to`. The payload is an [`Asked`](crate::one_sided::Asked), and the bytes of a
    /// WRITE.
    Operation,
    /// The operation was executed. The payload is the fetched value, and the bytes of a READ.
    Completed,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) said: Said,
    pub(crate) job: Job,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Identifies the sending process among the processes that had the name in turn.
    pub(crate) incarnation: u64,
    pub(crate) number: u64,
}

/// Error: the bytes from the peer daemon are not a valid frame.
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

    /// Parses a frame, and returns the payload. Only messages, operations and their completions may have a payload.
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
