//! Messages that are written in place, in cells of the send queue.

use core::fmt;
use core::ops::Deref;

use doorbell_core::Ticket;
use doorbell_core::provider::{
    LoneCell as _, Operation, PostFlags, PushError, SendBatch as _, SendQueue, UnpostedReason, Window,
};

use super::Sender;
use super::batch::Batch;
use super::limits::Limits;
use super::lone::Notes;
use crate::Statistics;
use crate::credits::Grants;
use crate::marks::{Mark, Marked};

/// The cell of a message that may be posted alone now. Dropping it posts nothing.
pub struct LoneCell<'s, Q: SendQueue + 's> {
    inner: Q::Cell<'s>,
    marks: Marked<'s>,
    limits: &'s Limits,
    notes: Notes<'s>,
    /// With this many unsignaled requests before it, the request is signaled.
    unsignaled_limit: u32,
}

impl<Q, Bytes, W, L, S> Sender<Q, Bytes, W, L, S>
where
    Q: SendQueue,
    Bytes: AsRef<[u8]> + AsMut<[u8]>,
    W: Deref<Target: Window>,
    L: Deref<Target = Grants>,
    S: Deref<Target = Statistics>,
{
    /// Lends the cell of the next message, if the message may be posted alone now.
    ///
    /// An announcement that is due with the message is posted here, since it takes the place before the message, and so
    /// the next cell.
    ///
    /// # Errors
    /// As for [`Batch::cell`].
    #[inline(always)]
    pub fn cell(&mut self) -> Result<LoneCell<'_, Q>, PushError> {
        if self.flow.announcer.is_due_beside() {
            self.announce_in_front();
        }
        self.admit_one(Mark::Message)?;
        Ok(LoneCell {
            inner: self.queue.cell()?,
            marks: self.marks.view(),
            limits: &self.limits,
            notes: Notes {
                statistics: &self.statistics,
                credits: &mut self.flow.credits,
                unsignaled: &mut self.unsignaled,
            },
            unsignaled_limit: self.unsignaled_alone_limit,
        })
    }

    /// Announces receives before a cell is lent. If that fails, they stay due, and the next poll announces them.
    #[cold]
    fn announce_in_front(&mut self) {
        let _ = self.announce();
    }
}

impl<Q: SendQueue> LoneCell<'_, Q> {
    /// All bytes of the cell, with the content that an earlier request left.
    #[inline(always)]
    pub fn bytes(&mut self) -> &mut [u8] {
        self.inner.bytes()
    }

    /// Posts one request of the first `len_bytes`. The policy decides whether it is signaled.
    ///
    /// # Errors
    /// The cell has fewer bytes, the message is too long for the peer, or the operation returns data. Or the device refused it.
    #[inline(always)]
    pub fn post(
        mut self,
        operation: Operation,
        len_bytes: u32,
        flags: PostFlags,
    ) -> Result<Ticket, UnpostedReason> {
        let mark = Mark::of(operation);
        self.limits.check(operation, len_bytes.into())?;
        let flags = self.notes.flags(flags, self.unsignaled_limit);
        self.marks.set(self.inner.ticket().position(), mark);
        match self.inner.post(operation, len_bytes, flags) {
            Ok(ticket) => {
                self.notes.posted(mark, flags, len_bytes.into());
                Ok(ticket)
            }
            Err(reason) => {
                if let UnpostedReason::Post(error) = &reason {
                    self.notes.refused(mark, error);
                }
                Err(reason)
            }
        }
    }
}

impl<'q, Q: SendQueue, W: Deref<Target: Window>> Batch<'q, Q, W> {
    /// The bytes of each cell of the queue, or 0 if it has none.
    #[must_use]
    #[inline(always)]
    pub fn cell_bytes(&self) -> u32 {
        self.inner.cell_bytes()
    }

    /// Lends all bytes of the next message's cell, if the message may be staged now. They are written in place and sent by
    /// [`Batch::push_cell`].
    ///
    /// # Errors
    /// The queue is full, has no cells, or does not accept requests in its state. Or the peer has no receive for the message.
    #[inline(always)]
    pub fn cell(&mut self) -> Result<&mut [u8], PushError> {
        self.tally.admit(self.inner.next(), Mark::Message)?;
        let cell = self.inner.cell()?;
        self.tally.is_admitted = true;
        Ok(cell)
    }

    /// The cell that [`Batch::cell`] lent, if nothing was staged since.
    #[inline(always)]
    pub fn claimed(&mut self) -> &mut [u8] {
        self.inner.cell().unwrap_or_default()
    }

    /// Stages one request of the first `len_bytes` of that cell. The policy decides whether it is signaled.
    ///
    /// # Errors
    /// As for [`Batch::cell`]. Or the cell has fewer bytes, the message is too long for the peer, or the operation returns data.
    #[inline(always)]
    pub fn push_cell(
        &mut self,
        operation: Operation,
        len_bytes: u32,
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        let mark = Mark::of(operation);
        self.tally.limits.check(operation, len_bytes.into())?;
        if !self.tally.is_admitted {
            self.tally.admit(self.inner.next(), mark)?;
        }
        let ticket = self.inner.push_cell(operation, len_bytes, flags)?;
        let flags = self.signal(ticket, flags);
        self.tally.note_own(ticket, mark, flags, len_bytes.into());
        Ok(ticket)
    }
}

impl<Q: SendQueue> fmt::Debug for LoneCell<'_, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoneCell").finish_non_exhaustive()
    }
}
