//! The cell of a request that is posted alone: memory of the send queue, written in place.

use core::convert::Infallible;

use super::{Operation, PostFlags, UnpostedReason};
use crate::Ticket;

/// The cell of the next request, which is posted alone. Dropping it posts nothing.
pub trait LoneCell: Sized {
    /// All bytes of the cell, with the content that an earlier request left.
    fn bytes(&mut self) -> &mut [u8];

    /// The ticket that the request gets.
    fn ticket(&self) -> Ticket;

    /// Posts one request of the first `len_bytes`, with one doorbell.
    ///
    /// # Errors
    /// The cell has fewer bytes, or the operation returns data ([`UnpostedReason::Push`]). Or the device refused the request. Then
    /// the next request gets the cell, unless the device may have taken it ([`PostError::posted`](super::PostError::posted)).
    fn post(self, operation: Operation, len_bytes: u32, flags: PostFlags) -> Result<Ticket, UnpostedReason>;
}

/// The cell type of queues without cells, which has no values.
impl LoneCell for Infallible {
    fn bytes(&mut self) -> &mut [u8] {
        match *self {}
    }
    fn ticket(&self) -> Ticket {
        match *self {}
    }
    fn post(self, _: Operation, _: u32, _: PostFlags) -> Result<Ticket, UnpostedReason> {
        match self {}
    }
}
