//! The cells of a send queue: memory of its own that requests go out from in place.
//!
//! A cell is with the request that is sent from it until that is retired, and else here, at the place of its position.

use core::fmt;

use doorbell_core::Ticket;
use doorbell_core::provider::{
    CellsError, DomainId, Operation, PostFlags, PushError, SendBatch as _, Slot as _, UnpostedReason,
};

use crate::requester::Request;
use crate::{SendBatch, Slot};

/// One for each place of the in-flight table, or none. A queue without cells has a word for them.
#[derive(Default)]
pub(crate) struct Cells(Option<Box<Furnished>>);

struct Furnished {
    slots: Vec<Option<Slot>>,
    bytes: usize,
}

impl Cells {
    /// Takes so many cells of these slots, which are of one arena and registered in this domain.
    pub(crate) fn furnish(
        &mut self,
        slots: impl Iterator<Item = Slot>,
        needed: usize,
        domain: DomainId,
    ) -> Result<(), CellsError> {
        if self.0.is_some() {
            return Err(CellsError::Furnished);
        }
        let slots: Vec<Slot> = slots.take(needed).collect();
        CellsError::check(&slots, needed, domain, Slot::is_beside)?;
        self.0 = Some(Box::new(Furnished {
            bytes: slots.first().map_or(0, Slot::capacity_bytes),
            slots: slots.into_iter().map(Some).collect(),
        }));
        Ok(())
    }

    /// How many bytes each has.
    pub(crate) fn bytes(&self) -> u32 {
        // Slots have no more.
        let bytes = self.0.as_ref().map_or(0, |cells| cells.bytes);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// The bytes of the cell at this place.
    pub(crate) fn lend(&mut self, place: usize) -> Result<&mut [u8], PushError> {
        let cells = self.0.as_mut().and_then(|cells| cells.slots.get_mut(place));
        let cell = cells.and_then(Option::as_mut);
        Ok(cell.ok_or(PushError::NoCells)?.buffer_mut())
    }

    /// Takes the cell at this place out, for a request of its first `bytes`.
    pub(crate) fn take(&mut self, place: usize, bytes: u32) -> Option<Slot> {
        let mut cell = self.0.as_mut()?.slots.get_mut(place)?.take()?;
        cell.set_len_bytes(bytes as usize);
        Some(cell)
    }

    /// Puts the cell of a request back, if it has one: the request is the device's no more.
    pub(crate) fn put_back(&mut self, request: &mut Request) {
        let Some(cells) = self.0.as_mut().filter(|_| request.is_cell) else {
            return;
        };
        let places = cells.slots.len() as u64;
        let place = request.ticket.position().checked_rem(places);
        let place = place.and_then(|place| usize::try_from(place).ok());
        if let Some(place) = place.and_then(|place| cells.slots.get_mut(place)) {
            *place = core::mem::take(&mut request.slots).into_slots().next();
        }
    }
}

/// The cell of a request that is posted by itself.
pub struct LoneCell<'q> {
    pub(crate) batch: SendBatch<'q>,
}

impl doorbell_core::provider::LoneCell for LoneCell<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        self.batch.queue.next_cell().unwrap_or_default()
    }

    fn ticket(&self) -> Ticket {
        self.batch.queue.next()
    }

    fn post(self, operation: Operation, len_bytes: u32, flags: PostFlags) -> Result<Ticket, UnpostedReason> {
        let Self { batch } = self;
        let ticket = batch.queue.push_cell(operation, len_bytes, flags)?;
        batch.ring()?;
        Ok(ticket)
    }
}

impl fmt::Debug for LoneCell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoneCell").finish_non_exhaustive()
    }
}
