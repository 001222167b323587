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
    /// A message arrived: once and in order, as long as the queue pair works. As that fails, Soft-RoCE of Linux 6.4 and later
    /// delivers the last message again, into every receive that is posted (corrected in July 2026). Nothing but its bytes reports:
    /// who must not take a message twice there has to number them.
    Received {
        /// The message, lent as long as the call that gets it. [`Message::keep`] keeps its memory.
        message: Message<'m, P>,
        /// The word the peer sent with it.
        immediate: Option<u32>,
    },
    /// The peer wrote into a window of this side by WRITE with immediate.
    Written {
        /// How many bytes it wrote.
        payload_bytes: u32,
        /// The word that came with the message.
        immediate: u32,
    },
    /// A READ or an atomic into leases is done, and its data is here.
    Fetched {
        /// The request.
        ticket: Ticket,
        /// The data: what was read, or the eight bytes there were before the atomic.
        data: Lease<P>,
    },
    /// All requests up to and including this one are done.
    Done {
        /// The last of them.
        through: Ticket,
    },
    /// A request failed, and the queue pair with it; all before it are done. The channel gives
    /// the first cause.
    Failed {
        /// The request; what it held went back to the Worker, or to the [`Submitter`](crate::worker::Submitter) it
        /// is of.
        ticket: Ticket,
        /// How it ended: a flush where another request is the cause.
        status: WcStatus,
    },
    /// A message that was submitted by [`Channel::submit`](crate::Channel::submit) was not posted.
    Unsent {
        /// The message, as it was. `None` where the device refused without saying which request of a doorbell: it may
        /// have any of them, and their memory stays with it until they end, or their queue pair is gone.
        lease: Option<Lease<P>>,
        /// Why.
        error: SubmissionError,
    },
    /// The device refused to take receives. Every poll reports it until the device takes them. The channel starves meanwhile.
    ReceivesRefused {
        /// The device's error.
        error: PostError,
    },
    /// The device refused to take an announcement of receives. Every poll reports it until the device takes one. The peer may not
    /// send meanwhile.
    AnnouncementRefused {
        /// The device's error.
        error: PostError,
    },
    /// The peer sent more than it had receives for, and so took a receive of another channel. This happens only with shared
    /// receives. The message is dropped, and the queue pair failed. On a split Worker the sending half fails it at its next poll.
    Overdrawn,
    /// The peer closed the channel, or its Worker was dropped. The event comes once, behind all messages of the peer. Sends are
    /// refused from then on ([`SendErrorKind::PeerClosed`](crate::SendErrorKind::PeerClosed)).
    ///
    /// The Worker then closes the channel by itself and takes its place and its memory back, unless
    /// [`ChannelConfig::close_when_lost`](crate::ChannelConfig::close_when_lost) is off.
    PeerClosed {
        /// Whether all that the peer had sent on the channel has arrived.
        all_arrived: bool,
    },
    /// The channel failed. The event comes once, with the first cause, in place of the failure of each receive. Each request of the
    /// application in flight comes back by an [`Event::Failed`] of its own, in the same poll or a later one. Messages that had arrived
    /// may still come, too.
    ///
    /// The Worker then closes the channel by itself, as after [`Event::PeerClosed`]. Each half of a split Worker reports the cause in
    /// its own queue, which is a flush if the other half's queue has the cause.
    ChannelFailed {
        /// The completion that says why.
        cause: FirstCause,
    },
}

/// A derived one would ask for a provider that can be printed.
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
    /// Keeps the memory of a message, so that the event can be stored.
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
        /// The completion that says why; a flush where the cause was not seen, as when the
        /// channel was closed.
        cause: FirstCause,
    },
    /// The peer closed it.
    PeerClosed {
        /// Whether all that the peer had sent has arrived.
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
