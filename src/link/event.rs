//! Names of links, and events of a poll.

use core::fmt;

use doorbell_core::provider::{MemoryError, RemoteAccess};
use doorbell_core::session::{RequestEnd, RequestId, SessionEvent};

use super::transfers::{LoanId, TransferEvent, TransferId};

/// Identifies a link. After the event of the link's end it names only that end. It names nothing once another link has ended at the
/// same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkId {
    pub(super) index: u32,
    /// Distinguishes links that had the same place one after the other.
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
    /// A peer began it.
    Accepted,
    /// A message arrived: once, and in order.
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
        /// How.
        end: RequestEnd,
    },
    /// Something happened to a transfer.
    Transfer {
        /// The transfer.
        transfer: TransferId,
        /// What.
        event: TransferEvent,
    },
    /// Nothing on the wire writes to the memory of a loan any more: it is the application's alone.
    Revoked {
        /// The loan.
        loan: LoanId,
        /// The error of our device, if it did not register the memory.
        error: Option<MemoryError>,
    },
    /// A loan is over, and our device did not deregister its memory. So the peer may still access the memory, which stays until the
    /// process ends. Do not use it again. This event comes in place of [`LinkEvent::Revoked`].
    NotRevoked {
        /// The loan.
        loan: LoanId,
        /// The error of our device.
        error: MemoryError,
    },
    /// An event of the link's session: messages that are done, the state of rails and of the link, and its end.
    Session(SessionEvent),
}
