//! The cells of a send queue: memory of its own that requests go out from in place.
//!
//! They are slots that the queue owns, one for each place of its in-flight table. Whose a cell is follows from the position
//! of its request. While that is posted and not retired, the cell is the device's. Else a [`Cursor`] of
//! a batch or a [`LoneCell`] leads to it, and only to that of the next request: each of them has the queue for itself.

use core::cell::UnsafeCell;
use core::fmt;
use core::ptr;
use core::slice;

use doorbell_core::provider::{
    CellsError, DomainId, Operation, PostError, PostFlags, PushError, UnpostedReason,
};
use doorbell_core::{Ticket, WorkId};
use rdma_sys::{ibv_send_wr, ibv_sge};

use crate::queue_pair::{Shared, Table, Vacancy};
use crate::send_queue::{PostSend, write_operation};
use crate::{Slot, unposted};

/// One for each place of the in-flight table, or none.
#[derive(Default)]
pub(crate) struct Cells {
    /// The memory of each, as a request names it; its length is the request's.
    elements: Box<[Element]>,
    /// How many bytes each has.
    bytes: u32,
    /// Owns their memory.
    slots: Box<[Slot]>,
}

/// A gather element that a request may point to, whatever is borrowed of the cells.
struct Element(UnsafeCell<ibv_sge>);

// SAFETY: what the elements name are the slots, which may go to any thread and go with them.
unsafe impl Send for Cells {}

impl Cells {
    /// Takes so many cells of these slots, which are of one arena and registered in this domain.
    pub(crate) fn furnish(
        &mut self,
        slots: impl Iterator<Item = Slot>,
        needed: usize,
        domain: DomainId,
    ) -> Result<(), CellsError> {
        if !self.slots.is_empty() {
            return Err(CellsError::Furnished);
        }
        let slots: Box<[Slot]> = slots.take(needed).collect();
        CellsError::check(&slots, needed, domain, |slot, next| slot.home() == next.home())?;
        let bytes = slots.first().map_or(0, Slot::capacity);
        // Each is written to memory that is there from then on: none is left to a first access.
        let elements = slots
            .iter()
            .map(|slot| Element(UnsafeCell::new(slot.element(bytes))));
        *self = Self {
            elements: elements.collect(),
            bytes,
            slots,
        };
        Ok(())
    }

    /// How many bytes each has.
    #[inline]
    pub(crate) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// The memory of the cell at this place.
    #[inline(always)]
    pub(crate) fn piece(&self, place: usize) -> Result<Piece, PushError> {
        let element = self.elements.get(place).ok_or(PushError::NoCells)?;
        Ok(Piece {
            element: element.0.get(),
            bytes: self.bytes,
        })
    }

    /// The cells of so many requests from this on, for which the in-flight table has room.
    #[inline(always)]
    pub(crate) fn cursor(&self, first: Ticket, room: u32) -> Cursor {
        Cursor {
            elements: self.elements.as_ptr(),
            // Their number is a power of two, or 0.
            mask: self.elements.len().wrapping_sub(1) as u64,
            first: first.position(),
            room: if self.elements.is_empty() { 0 } else { room },
            bytes: self.bytes,
        }
    }
}

/// The cells of requests to come. Copied from the queue, so that a batch need not look there for each.
#[derive(Clone, Copy)]
pub(crate) struct Cursor {
    elements: *const Element,
    mask: u64,
    first: u64,
    room: u32,
    bytes: u32,
}

impl Cursor {
    /// How many bytes each has.
    #[inline(always)]
    pub(crate) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// The memory of the cell of the request behind so many, if there is room for that.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "masked to the number of cells")]
    pub(crate) fn piece(&self, offset: u32) -> Option<Piece> {
        if offset >= self.room {
            return None;
        }
        let place = self.first.wrapping_add(offset.into()) & self.mask;
        // SAFETY: there are cells, a power of two of them, so the masked place is below their number.
        let element = unsafe { self.elements.add(place as usize) };
        // SAFETY: an element of the cells, which stay while a batch or a lone cell has them.
        let element = unsafe { &*element };
        Some(Piece {
            element: element.0.get(),
            bytes: self.bytes,
        })
    }
}

/// The memory of a cell.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    /// One of the elements of the cells.
    element: *mut ibv_sge,
    bytes: u32,
}

impl Piece {
    /// How many bytes it has.
    #[inline(always)]
    pub(crate) const fn bytes(self) -> u32 {
        self.bytes
    }

    /// The bytes.
    ///
    /// # Safety
    /// 1. No request in flight has the place of the cell, as long as they are borrowed.
    /// 2. The cells are borrowed exclusively meanwhile.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the address is a pointer's")]
    pub(crate) unsafe fn lend<'q>(self) -> &'q mut [u8] {
        // SAFETY: an element of the cells, which are there (2).
        let address = unsafe { (*self.element).addr };
        let start: *mut u8 = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: All the bytes of a slot that the cells own, mapped and initialised, whose pointer was exposed for the element.
        // The device does not have them (1), and it is the only reference (2).
        unsafe { slice::from_raw_parts_mut(start, self.bytes as usize) }
    }

    /// Writes a request of its first bytes, as many as [`PushError::check_cell`] found it to have.
    #[inline(always)]
    pub(crate) fn write(
        self,
        work_id: WorkId,
        request: &mut ibv_send_wr,
        operation: Operation,
        len_bytes: u32,
        flags: PostFlags,
    ) {
        // SAFETY: as in `lend`. The device reads elements during a post call alone, and none is under way.
        unsafe { (*self.element).length = len_bytes };
        request.wr_id = work_id.to_raw();
        request.sg_list = self.element;
        // Some devices read a length of zero as 2^31 bytes.
        request.num_sge = i32::from(len_bytes != 0);
        write_operation(request, operation, flags);
    }
}

/// The cell of a request that is posted by itself. The queue is borrowed exclusively meanwhile.
pub struct LoneCell<'q> {
    pub(crate) vacancy: Vacancy<'q>,
    pub(crate) piece: Piece,
    /// A request that is linked to none.
    pub(crate) request: &'q mut ibv_send_wr,
    pub(crate) post_send: PostSend,
    pub(crate) shared: &'q Shared,
    pub(crate) inline_bytes_max: u32,
}

impl doorbell_core::provider::LoneCell for LoneCell<'_> {
    #[inline(always)]
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: no request in flight has the place of the vacancy, and the queue is borrowed exclusively.
        unsafe { self.piece.lend() }
    }

    #[inline(always)]
    fn ticket(&self) -> Ticket {
        self.vacancy.ticket()
    }

    #[inline(always)]
    #[doc(alias = "ibv_post_send")]
    fn post(self, operation: Operation, len_bytes: u32, flags: PostFlags) -> Result<Ticket, UnpostedReason> {
        PushError::check_cell(
            operation,
            len_bytes,
            flags,
            [self.piece.bytes(), self.inline_bytes_max],
        )?;
        let (ticket, work_id, table) = self.vacancy.stage();
        self.piece
            .write(work_id, self.request, operation, len_bytes, flags);
        let request: *mut ibv_send_wr = self.request;
        let mut refused = ptr::null_mut();
        // SAFETY: (ibv_post_send(3)) 1. The queue pair is live, held by the queue that is borrowed, and the function is its
        // provider's. 2. The request is linked to none, and its element is written. 3. The memory stays, as `Cells` says.
        let status = unsafe { (self.post_send)(self.shared.as_ptr(), request, &raw mut refused) };
        if status == 0 {
            table.post_all();
            return Ok(ticket);
        }
        Err(not_posted(table, status, ptr::eq(request, refused)).into())
    }
}

/// Takes the request back that the device refused. One that it did not name counts as posted: it may have it.
#[cold]
fn not_posted(table: &mut Table, status: i32, is_named: bool) -> PostError {
    let posted = u32::from(!is_named);
    table.post(posted);
    let error = unposted::refused(table, "ibv_post_send", status, posted);
    unposted::discard(table);
    error
}

impl fmt::Debug for LoneCell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoneCell({} bytes)", self.piece.bytes)
    }
}
