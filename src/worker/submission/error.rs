//! Errors of requests that were not submitted, or that failed after submission.

use core::fmt;

use doorbell_core::provider::{Provider, PushError};
use doorbell_core::{QpState, WcStatus};
use doorbell_ffi::Rdma;

use super::request::pair;
use crate::worker::channel::ChannelId;
use crate::worker::lease::Lease;

/// A request that was not submitted, with its lease handed back.
pub struct SubmitError<P: Provider = Rdma> {
    /// The reason.
    pub kind: SubmitErrorKind,
    /// The lease of the request. Always `Some`.
    pub lease: Option<Lease<P>>,
}

/// Reason why a request was not submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubmitErrorKind {
    /// Backpressure: the ring to the Worker is full. Try again after the Worker was polled.
    WouldBlock,
    /// The Worker was dropped.
    WorkerGone,
    /// Caller misuse: the lease is not from this submitter.
    OtherMemory,
    /// Caller misuse: the operation brings data back (READ or an atomic), and a submitter gets no data.
    BringsDataBack,
    /// Caller misuse: the request exceeds the range of the peer's window that its address covers, or the 2^31 bytes that a
    /// request may have.
    OutOfWindow {
        /// The bytes of the request.
        bytes: usize,
        /// The bytes of the range.
        bytes_max: u32,
    },
    /// Caller misuse: the peer's window does not grant the operation.
    NotGranted,
}

/// A request that was submitted and failed.
pub struct Submission<P: Provider = Rdma> {
    /// The channel of the request.
    pub channel: ChannelId,
    /// The index of the slot in the submitter's memory, equal to [`Lease::index`].
    pub index: u32,
    /// The reason.
    pub error: SubmissionError,
    /// The lease with the data, unchanged. `None` if the request was in flight when its queue pair was destroyed
    /// ([`SubmissionError::Unknown`]). The slot then returns to the submitter without a further report.
    pub lease: Option<Lease<P>>,
}

/// Reason why a submitted request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubmissionError {
    /// The Worker has no such channel. The channel was closed before the request was posted, or never existed on this Worker.
    NoChannel,
    /// The channel had failed before the request was posted. The value is the status of the first cause, or a flush if the cause
    /// is not known.
    ChannelFailed(WcStatus),
    /// Caller misuse: [`PostFlags::INLINE`](crate::PostFlags) was set, and the request exceeds the inline limit of the channel.
    InlineTooLong {
        /// The bytes of the request.
        bytes: u32,
        /// The inline limit.
        bytes_max: u32,
    },
    /// Caller misuse: the request exceeds the size of the peer's receives, or the largest request of the port.
    TooLong {
        /// The bytes of the request.
        bytes: u32,
        /// The limit.
        bytes_max: u32,
    },
    /// The queue pair was in a state that takes no requests.
    State(QpState),
    /// The device refused the post.
    Post {
        /// The error number, see `errno(3)`.
        errno: i32,
    },
    /// The request was posted, and failed with this status: a flush if another request is the cause.
    Ended(WcStatus),
    /// The request was posted, and its channel was destroyed before its outcome was known.
    Unknown,
    /// The Worker was dropped before the request was posted.
    WorkerGone,
    /// The channel refused the request for another reason, which this type does not carry.
    Refused,
}

impl SubmissionError {
    /// Packs the error into a kind and a word, which fit into a ring descriptor.
    pub(super) fn pack(self) -> (u16, u64) {
        match self {
            Self::NoChannel => (0, 0),
            Self::ChannelFailed(status) => (1, status.0.into()),
            Self::InlineTooLong { bytes, bytes_max } => (2, pair(bytes, bytes_max)),
            Self::State(state) => (3, state as u64),
            Self::Post { errno } => (4, u32::from_ne_bytes(errno.to_ne_bytes()).into()),
            Self::Ended(status) => (5, status.0.into()),
            Self::Unknown => (6, 0),
            Self::WorkerGone => (7, 0),
            Self::Refused => (8, 0),
            Self::TooLong { bytes, bytes_max } => (9, pair(bytes, bytes_max)),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "each takes the half that is its own"
    )]
    pub(super) fn unpack(kind: u16, word: u64) -> Self {
        let low = word as u32;
        match kind {
            0 => Self::NoChannel,
            1 => Self::ChannelFailed(WcStatus(low)),
            2 => Self::InlineTooLong {
                bytes: (word >> 32) as u32,
                bytes_max: low,
            },
            3 => QpState::from_raw(low).map_or(Self::Refused, Self::State),
            4 => Self::Post {
                errno: i32::from_ne_bytes(low.to_ne_bytes()),
            },
            5 => Self::Ended(WcStatus(low)),
            6 => Self::Unknown,
            7 => Self::WorkerGone,
            9 => Self::TooLong {
                bytes: (word >> 32) as u32,
                bytes_max: low,
            },
            _ => Self::Refused,
        }
    }
}

impl From<PushError> for SubmissionError {
    fn from(reason: PushError) -> Self {
        match reason {
            PushError::InlineTooLong { bytes, bytes_max } => Self::InlineTooLong { bytes, bytes_max },
            PushError::State(state) => Self::State(state),
            PushError::TooLong { bytes, bytes_max } => Self::TooLong {
                bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                bytes_max,
            },
            _ => Self::Refused,
        }
    }
}

impl fmt::Display for SubmitErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::WouldBlock => "the ring to the Worker is full: try again once it was polled",
            Self::WorkerGone => "the Worker is gone: make a submitter of another one",
            Self::OtherMemory => {
                "the lease is not of this submitter's memory: lease from the submitter that submits"
            }
            Self::BringsDataBack => {
                "an operation that brings data back cannot be submitted: post it on the Worker's thread"
            }
            Self::OutOfWindow { bytes, bytes_max } => {
                return write!(
                    f,
                    "{bytes} bytes, but the address covers only {bytes_max} of the peer's window: make it by RemoteAddress::within for the whole range"
                );
            }
            Self::NotGranted => {
                "the peer's window does not grant this operation: let the peer grant it in its WindowConfig"
            }
        };
        f.write_str(text)
    }
}

impl core::error::Error for SubmitErrorKind {}

impl fmt::Display for SubmissionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoChannel => f.write_str("the Worker has no such channel: connect again"),
            Self::ChannelFailed(status) => write!(f, "the channel had failed: {status}"),
            Self::InlineTooLong { bytes, bytes_max } => {
                write!(
                    f,
                    "{bytes} bytes inline, but the channel takes at most {bytes_max}: raise inline_bytes_max, or send from a lease"
                )
            }
            Self::TooLong { bytes, bytes_max } => {
                write!(
                    f,
                    "{bytes} bytes, but the peer or the port takes at most {bytes_max} in one request: send less"
                )
            }
            Self::State(state) => write!(
                f,
                "the queue pair is in {state}, which takes no such request: connect again if it failed"
            ),
            Self::Post { errno } => write!(f, "the device refused the post: errno {errno}"),
            Self::Ended(status) => write!(f, "the request failed: {status}"),
            Self::Unknown => {
                f.write_str("the queue pair was destroyed before the completion: outcome unknown")
            }
            Self::WorkerGone => f.write_str("the Worker was dropped before the request was posted"),
            Self::Refused => f.write_str(
                "the channel refused the request: post the request on the Worker's thread to see the reason",
            ),
        }
    }
}

impl core::error::Error for SubmissionError {}

impl<P: Provider> fmt::Display for SubmitError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.kind, f)
    }
}

impl<P: Provider> fmt::Debug for SubmitError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitError")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl<P: Provider> core::error::Error for SubmitError<P> {}

impl<P: Provider> fmt::Debug for Submission<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission")
            .field("channel", &self.channel)
            .field("index", &self.index)
            .field("error", &self.error)
            .field("lease", &self.lease)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::SubmissionError;
    use doorbell_core::{QpState, WcStatus};

    #[test]
    fn every_reason_goes_through_a_ring() {
        let mut all = vec![
            SubmissionError::NoChannel,
            SubmissionError::ChannelFailed(WcStatus(u32::MAX)),
            SubmissionError::InlineTooLong {
                bytes: u32::MAX,
                bytes_max: 220,
            },
            SubmissionError::Post { errno: -12 },
            SubmissionError::Ended(WcStatus::RETRY_EXC_ERR),
            SubmissionError::Unknown,
            SubmissionError::WorkerGone,
            SubmissionError::Refused,
            SubmissionError::TooLong {
                bytes: u32::MAX,
                bytes_max: 220,
            },
        ];
        all.extend(QpState::ALL.map(SubmissionError::State));
        for error in all {
            let (kind, word) = error.pack();
            assert_eq!(SubmissionError::unpack(kind, word), error);
        }
    }
}
