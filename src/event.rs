//! What polling a Worker tells of its channels.

use doorbell_core::provider::{PostError, Provider};
use doorbell_core::{Ticket, WcStatus};
use doorbell_ffi::Rdma;
use doorbell_hotpath::FirstCause;

use crate::{Lease, SubmissionError};

/// Something that happened on a channel.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<P: Provider = Rdma> {
    /// A message came: once and in order, as long as its queue pair lives. As that fails, Soft-RoCE of Linux 6.4 and later
    /// delivers the last message again, into every receive that is posted (corrected in July 2026). Nothing but its bytes
    /// tells: who must not take a message twice there has to number them.
    Received {
        /// The message: its payload is what arrived. Dropping or releasing the lease lets
        /// the memory receive again.
        message: Lease<P>,
        /// The word the peer sent with it.
        immediate: Option<u32>,
    },
    /// The peer wrote into a window of ours and said so with a word.
    Written {
        /// How many bytes it wrote.
        payload_bytes: u32,
        /// Its word.
        immediate: u32,
    },
    /// A READ or an atomic brought data back.
    Fetched {
        /// The request.
        ticket: Ticket,
        /// The data: what was read, or the eight bytes there were before the atomic.
        data: Lease<P>,
    },
    /// All requests up to this one are done.
    Done {
        /// The last of them.
        through: Ticket,
    },
    /// A request failed, and the queue pair with it; all before it are done. The channel gives
    /// the first cause.
    Failed {
        /// The request; what it held went back to the Worker, or to the [`Submitter`](crate::Submitter) it
        /// is of. Not one of the application's where receives were being announced to the peer.
        ticket: Ticket,
        /// How it ended: a flush where another request is the cause.
        status: WcStatus,
    },
    /// What was submitted by [`Channel::submit`](crate::Channel::submit) was not posted.
    Unsent {
        /// What was to be sent, as it was. `None` where the device refused without saying which request of a doorbell: it may
        /// have any of them, and their memory stays with it until they end, or their queue pair is gone.
        lease: Option<Lease<P>>,
        /// Why.
        error: SubmissionError,
    },
    /// The device refused to take receives; told at every poll until it takes them. The
    /// channel starves meanwhile.
    ReceivesRefused {
        /// What it said.
        error: PostError,
    },
    /// The device refused to take an announcement of receives; told at every poll until it takes
    /// one. The peer may not send meanwhile.
    AnnouncementRefused {
        /// What it said.
        error: PostError,
    },
    /// The peer sent more than it had receives for, and so took one of another channel's: it is not
    /// to be believed. Only where receives are shared. The message is dropped, and the queue pair failed; of
    /// a Worker taken apart, the half that sends does it when it is polled next.
    Overdrawn,
    /// A receive failed, and the queue pair with it.
    ReceiveFailed {
        /// How it ended: a flush where another request is the cause.
        status: WcStatus,
    },
}

/// Whether a channel can still be used, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChannelState {
    /// It can.
    Open,
    /// Its queue pair failed.
    Failed {
        /// The completion that says why; a flush where the cause was not seen, as when the
        /// channel was closed.
        cause: FirstCause,
    },
}
