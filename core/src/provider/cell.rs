//! The cell of a request that is posted by itself: memory of the send queue, written in place.

use core::convert::Infallible;

use super::{Operation, PostFlags, UnpostedReason};
use crate::Ticket;

/// The cell of the next request, to be posted by itself. Dropping it posts nothing.
pub trait LoneCell: Sized {
    /// All its bytes, which hold what an earlier request left there.
    fn bytes(&mut self) -> &mut [u8];

    /// The ticket that the request gets.
    fn ticket(&self) -> Ticket;

    /// Posts one request of its first `len_bytes`, with a doorbell of its own.
    ///
    /// # Errors
    /// It has fewer bytes, or the operation brings data back ([`UnpostedReason::Push`]). Or the device refused: the cell is
    /// the next request's, unless the device may have taken it ([`PostError::posted`](super::PostError::posted)).
    fn post(self, operation: Operation, len_bytes: u32, flags: PostFlags) -> Result<Ticket, UnpostedReason>;
}

/// The cell of a queue that has none.
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
