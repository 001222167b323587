//! The cells of a send queue: memory of the queue from which the device reads messages in place.
//!
//! Cells are slots that the queue owns, one for each request of its ring. The position of the request decides which side
//! may touch its cell. While the request is posted and not retired, the device may. Otherwise a batch or a [`LoneCell`]
//! leads to the cell, and only to the cell of the next request: each of them borrows the queue exclusively.

use core::fmt;

use doorbell_core::Ticket;
use doorbell_core::provider::{
    CellsError, DomainId, Operation, PostError, PostFlags, PushError, UnpostedReason,
};
use rdma_sys::ibv_send_wr;

use crate::queue_pair::{Shared, Table, Vacancy};
use crate::send_queue::PostSend;
use crate::send_ring::SendRing;
use crate::{Slot, unposted};

/// Owns the memory of the cells of a ring, if it has any.
#[derive(Default)]
pub(crate) struct Cells(Box<[Slot]>);

impl Cells {
    /// Takes `needed` of these slots as cells and gives them to the ring, which has no more requests than that. The slots
    /// have to be of one arena that is registered in this domain.
    pub(crate) fn furnish(
        &mut self,
        ring: &mut SendRing,
        slots: impl Iterator<Item = Slot>,
        needed: usize,
        domain: DomainId,
    ) -> Result<(), CellsError> {
        if !self.0.is_empty() {
            return Err(CellsError::Furnished);
        }
        let slots: Box<[Slot]> = slots.take(needed).collect();
        CellsError::check(&slots, needed, domain, |slot, next| slot.home() == next.home())?;
        let bytes = slots.first().map_or(0, Slot::capacity);
        ring.furnish(bytes, slots.iter().map(|slot| slot.element(bytes)));
        self.0 = slots;
        Ok(())
    }
}

/// The cell of a request that is posted alone. Until then the queue is borrowed exclusively.
pub struct LoneCell<'q> {
    pub(crate) vacancy: Vacancy<'q>,
    /// The ring. Its first request is the one of this cell, and plain.
    pub(crate) ring: &'q mut SendRing,
    pub(crate) post_send: PostSend,
    pub(crate) shared: &'q Shared,
    pub(crate) inline_bytes_max: u32,
}

impl doorbell_core::provider::LoneCell for LoneCell<'_> {
    #[inline(always)]
    fn bytes(&mut self) -> &mut [u8] {
        let bytes = self.ring.cell_bytes();
        // SAFETY: 1. The ring is borrowed exclusively, and has cells. 2. No request in flight has the place of the vacancy.
        unsafe { self.ring.first().lend(bytes) }
    }

    #[inline(always)]
    fn ticket(&self) -> Ticket {
        self.vacancy.ticket()
    }

    #[inline(always)]
    #[doc(alias = "ibv_post_send")]
    fn post(self, operation: Operation, len_bytes: u32, flags: PostFlags) -> Result<Ticket, UnpostedReason> {
        let Self { vacancy, ring, .. } = self;
        let limits = [ring.cell_bytes(), self.inline_bytes_max];
        PushError::check_cell(operation, len_bytes, flags, limits)?;
        let place = ring.first();
        let (ticket, work_id, table) = vacancy.stage();
        // SAFETY: a request of the ring, which is borrowed exclusively; it is plain.
        let is_plain = unsafe { place.write(work_id, operation, len_bytes, flags) };
        let (post_send, qp) = (self.post_send, self.shared.as_ptr());
        let post = |request: *mut ibv_send_wr, refused: &mut *mut ibv_send_wr| {
            // SAFETY: (ibv_post_send(3)) 1. The queue pair is live, held by the queue that is borrowed, and the function is
            // its provider's. 2. The request is linked to no other, and its element is written. 3. The memory stays, as
            // `Cells` describes.
            unsafe { post_send(qp, request, refused) }
        };
        // SAFETY: as above.
        let (status, following, is_posted) = unsafe { place.submit(post) };
        if !is_plain {
            // SAFETY: as above.
            unsafe { place.make_plain() };
        }
        if status == 0 {
            ring.note_posted(following);
            table.post_all();
            return Ok(ticket);
        }
        if is_posted {
            ring.note_posted(following);
        }
        Err(not_posted(table, status, is_posted).into())
    }
}

/// Takes back the request that the device refused. A request that the device did not name counts as posted, since the
/// device may have it.
#[cold]
fn not_posted(table: &mut Table, status: i32, is_posted: bool) -> PostError {
    let posted = u32::from(is_posted);
    table.post(posted);
    let error = unposted::refused(table, "ibv_post_send", status, posted);
    unposted::discard(table);
    error
}

impl fmt::Debug for LoneCell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoneCell({} bytes)", self.ring.cell_bytes())
    }
}
