//! Ids of links, and events of a poll.

use core::fmt;

use doorbell_core::provider::{MemoryError, RemoteAccess};
use doorbell_core::session::{RequestEnd, RequestId, SessionEvent};

use super::transfers::{LoanId, TransferEvent, TransferId};

/// Identifies a link. After the event of the link's end it identifies only the reason of that end, until another link has ended at the
/// same index of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId {
    pub(super) index: u32,
    /// Distinguishes links that had the same index at different times.
    pub(super) generation: u32,
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// An event of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkEvent<'m> {
    /// A peer began the link.
    Accepted,
    /// A message arrived. Each message arrives once, and in order.
    Received {
        /// The message.
        message: &'m [u8],
    },
    /// The peer granted a window.
    Granted {
        /// The number of the grant.
        window: u32,
        /// The length in bytes.
        bytes: u64,
        /// Permitted access.
        access: RemoteAccess,
    },
    /// The peer withdrew a grant.
    Withdrawn {
        /// The number of the grant.
        window: u32,
    },
    /// A READ or an atomic is done, and its data is here.
    Fetched {
        /// The request.
        request: RequestId,
        /// The bytes that were read, or the eight bytes in memory before the atomic.
        data: &'m [u8],
    },
    /// A request ended without data: a WRITE is done, or the outcome of a request is unknown.
    Ended {
        /// The request.
        request: RequestId,
        /// Its outcome.
        end: RequestEnd,
    },
    /// An event of a transfer.
    Transfer {
        /// The transfer.
        transfer: TransferId,
        /// The event.
        event: TransferEvent,
    },
    /// A loan ended: the peer can no longer access its memory.
    Revoked {
        /// The loan.
        loan: LoanId,
        /// The error of a device of this side that did not register the memory.
        error: Option<MemoryError>,
    },
    /// A loan ended, but a device of this side did not deregister its memory. The peer may still access the memory, which stays registered
    /// until the process ends: do not use it again. This event replaces [`LinkEvent::Revoked`].
    NotRevoked {
        /// The loan.
        loan: LoanId,
        /// The error of that device.
        error: MemoryError,
    },
    /// An event of the link's session: messages that are done, the state of rails and of the link, and its end.
    Session(SessionEvent),
}
