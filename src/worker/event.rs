//! Events of channels, which polling a Worker delivers.

use core::fmt;

use doorbell_core::provider::{PostError, Provider};
use doorbell_core::{Ticket, WcStatus};
use doorbell_ffi::Rdma;
use doorbell_hotpath::FirstCause;

use crate::worker::lease::Lease;
use crate::worker::message::Message;
use crate::worker::submission::SubmissionError;

/// An event of a channel, which a poll passes to its callback.
#[non_exhaustive]
pub enum Event<'m, P: Provider = Rdma> {
    /// A message arrived. While the queue pair works, each message arrives once and in order. When the queue pair fails,
    /// Soft-RoCE of Linux 6.4 and later delivers the last message again into every posted receive (fixed in July 2026). The
    /// completions do not show the duplicates. An application that must not process a message twice has to number its messages.
    Received {
        /// The message, which is lent for the duration of the callback. [`Message::keep`] keeps its memory longer.
        message: Message<'m, P>,
        /// The immediate of the message, if the peer sent one.
        immediate: Option<u32>,
    },
    /// The peer wrote into a window of this side by WRITE with immediate.
    Written {
        /// The number of bytes written.
        payload_bytes: u32,
        /// The immediate of the WRITE.
        immediate: u32,
    },
    /// A READ or an atomic into leases is done, and its data is here.
    Fetched {
        /// The request.
        ticket: Ticket,
        /// The data: the bytes of the READ, or the eight bytes that the word had before the atomic.
        data: Lease<P>,
    },
    /// All requests up to and including this one are done.
    Done {
        /// The last of these requests.
        through: Ticket,
    },
    /// A request failed or was flushed, and the queue pair is in ERR. Each earlier request is done, or had its own event of this
    /// kind. [`Channel::state`](crate::Channel::state) has the first cause.
    Failed {
        /// The request. Its memory returned to the Worker, or to the [`Submitter`](crate::worker::Submitter) that submitted it.
        ticket: Ticket,
        /// The status of the request; a flush if another request is the cause.
        status: WcStatus,
    },
    /// A request that was submitted by [`Channel::submit`](crate::Channel::submit) was not posted.
    Unsent {
        /// The lease of the request, unchanged. `None` if the device refused the doorbell without naming the failed request. The
        /// device may then have any of the doorbell's requests, so their memory returns only when they are retired or the queue
        /// pair is destroyed.
        lease: Option<Lease<P>>,
        /// The reason.
        error: SubmissionError,
    },
    /// The device refused a post of receives. Every poll retries and reports a refusal again. Until a post succeeds the peer gets
    /// no new credits.
    ReceivesRefused {
        /// The device's error.
        error: PostError,
    },
    /// The device refused a post that announces receives. Every poll retries and reports a refusal again. Until a post succeeds
    /// the peer gets no new credits.
    AnnouncementRefused {
        /// The device's error.
        error: PostError,
    },
    /// The peer sent more messages than it had credits, and so used a receive that was granted to another channel. This happens
    /// only with shared receives. The message is dropped, and the Worker moves the queue pair to ERR. On a split Worker the
    /// sending half does so at its next poll.
    Overdrawn,
    /// The peer closed the channel, or its Worker was dropped. The event comes once, after all messages of the peer that arrived.
    /// From then on sends are refused with [`SendErrorKind::PeerClosed`](crate::SendErrorKind::PeerClosed).
    ///
    /// The Worker then closes the channel and releases its index and its memory, unless
    /// [`ChannelConfig::close_when_lost`](crate::ChannelConfig::close_when_lost) is off.
    PeerClosed {
        /// Whether all messages that the peer sent on the channel have arrived.
        all_arrived: bool,
    },
    /// The channel failed. The event comes once, with the first cause, and stands for all flushed receives. Each request of the
    /// application in flight is reported by its own [`Event::Failed`], in the same poll or a later one. Messages that arrived
    /// before the failure may still be reported after this event.
    ///
    /// The Worker then closes the channel, as after [`Event::PeerClosed`]. Each half of a split Worker reports the first cause in
    /// its own completion queue. The cause is a flush if the real cause is in the other half's queue.
    ChannelFailed {
        /// The first completion with an error other than a flush, or a flush if there is no other.
        cause: FirstCause,
    },
}

/// Not derived, since a derived implementation would require `P: Debug`.
impl<P: Provider> fmt::Debug for Event<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Received { message, immediate } => f
                .debug_struct("Received")
                .field("message", message)
                .field("immediate", immediate)
                .finish(),
            Self::Written {
                payload_bytes,
                immediate,
            } => f
                .debug_struct("Written")
                .field("payload_bytes", payload_bytes)
                .field("immediate", immediate)
                .finish(),
            Self::Fetched { ticket, data } => f
                .debug_struct("Fetched")
                .field("ticket", ticket)
                .field("data", data)
                .finish(),
            Self::Done { through } => f.debug_struct("Done").field("through", through).finish(),
            Self::Failed { ticket, status } => f
                .debug_struct("Failed")
                .field("ticket", ticket)
                .field("status", status)
                .finish(),
            Self::Unsent { lease, error } => f
                .debug_struct("Unsent")
                .field("lease", lease)
                .field("error", error)
                .finish(),
            Self::ReceivesRefused { error } => {
                f.debug_struct("ReceivesRefused").field("error", error).finish()
            }
            Self::AnnouncementRefused { error } => f
                .debug_struct("AnnouncementRefused")
                .field("error", error)
                .finish(),
            Self::Overdrawn => f.write_str("Overdrawn"),
            Self::PeerClosed { all_arrived } => f
                .debug_struct("PeerClosed")
                .field("all_arrived", all_arrived)
                .finish(),
            Self::ChannelFailed { cause } => f.debug_struct("ChannelFailed").field("cause", cause).finish(),
        }
    }
}

impl<P: Provider> Event<'_, P> {
    /// Keeps the memory of a message, so that the event can be stored beyond the callback.
    #[must_use]
    pub fn keep(self) -> Event<'static, P> {
        match self {
            Self::Received { message, immediate } => Event::Received {
                message: message.keep().into(),
                immediate,
            },
            Self::Written {
                payload_bytes,
                immediate,
            } => Event::Written {
                payload_bytes,
                immediate,
            },
            Self::Fetched { ticket, data } => Event::Fetched { ticket, data },
            Self::Done { through } => Event::Done { through },
            Self::Failed { ticket, status } => Event::Failed { ticket, status },
            Self::Unsent { lease, error } => Event::Unsent { lease, error },
            Self::ReceivesRefused { error } => Event::ReceivesRefused { error },
            Self::AnnouncementRefused { error } => Event::AnnouncementRefused { error },
            Self::Overdrawn => Event::Overdrawn,
            Self::PeerClosed { all_arrived } => Event::PeerClosed { all_arrived },
            Self::ChannelFailed { cause } => Event::ChannelFailed { cause },
        }
    }
}

/// Whether a channel can still be used, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChannelState {
    /// The channel can carry messages.
    Open,
    /// The channel's queue pair failed.
    Failed {
        /// The first completion with an error other than a flush. If there is none, for example since this side closed the
        /// channel, a flush.
        cause: FirstCause,
    },
    /// The peer closed the channel.
    PeerClosed {
        /// Whether all messages that the peer sent have arrived.
        all_arrived: bool,
    },
}

impl fmt::Display for ChannelState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open"),
            Self::Failed { cause } => write!(f, "failed: {cause}"),
            Self::PeerClosed { all_arrived: true } => f.write_str("closed by the peer"),
            Self::PeerClosed { all_arrived: false } => {
                f.write_str("closed by the peer, and not all that it had sent has arrived")
            }
        }
    }
}
