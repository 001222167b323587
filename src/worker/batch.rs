//! Batches: several requests that are posted with one doorbell.

use core::fmt;
use std::sync::Arc;

use doorbell_core::Ticket;
use doorbell_core::provider::{Operation, PostError, PostFlags, Provider, Refused};
use doorbell_ffi::Rdma;

use crate::worker::Notice;
use crate::worker::channel::SendError;
use crate::worker::channel::SendErrorKind;
use crate::worker::lease::Lease;

/// Stages requests of a channel and posts them with one doorbell. Dropping the batch posts nothing, and returns the leases to the
/// Worker.
pub struct Batch<'q, P: Provider = Rdma> {
    pub(crate) inner: doorbell_hotpath::Batch<'q, P::SendQueue, Arc<P::Window>>,
    pub(crate) notice: &'q mut Notice,
}

impl<'q, P: Provider> Batch<'q, P> {
    /// Stages one request that gathers from (or scatters into) up to four leases.
    ///
    /// # Errors
    /// [`SendError`] hands the leases back.
    #[inline(always)]
    pub fn push<const N: usize>(
        &mut self,
        operation: Operation,
        leases: [Lease<P>; N],
        flags: PostFlags,
    ) -> Result<Ticket, SendError<[Lease<P>; N]>> {
        let slots = leases.map(|lease| lease.slot);
        self.inner
            .push(operation, slots, flags)
            .map_err(|Refused { reason, item }| {
                let kind = self.notice.note_refused(reason);
                SendError {
                    kind,
                    item: Some(item.map(|slot| Lease { slot })),
                }
            })
    }

    /// Stages one inline request. The bytes are borrowed until the doorbell rings, and are copied then.
    ///
    /// # Errors
    /// The request was not staged; [`SendErrorKind`] has the reason.
    #[inline]
    pub fn push_inline(
        &mut self,
        operation: Operation,
        bytes: &'q [u8],
        flags: PostFlags,
    ) -> Result<Ticket, SendErrorKind> {
        self.inner
            .push_inline(operation, bytes, flags)
            .map_err(|reason| self.notice.note_refused(reason))
    }

    /// Stages one message with a copy of these bytes in a cell of the channel. Unlike [`Channel::send`](crate::Channel::send), a
    /// batch does not send short messages inline.
    ///
    /// # Errors
    /// As for [`Batch::claim`].
    #[inline(always)]
    pub fn send(&mut self, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
        let mut claim = self.claim(bytes.len())?;
        claim.fill(bytes);
        claim.send()
    }

    /// Returns how many requests are staged.
    #[must_use]
    #[inline]
    pub fn staged(&self) -> u32 {
        self.inner.staged()
    }

    /// Rings the doorbell once. Returns how many requests were posted.
    ///
    /// # Errors
    /// The device took only a part of the requests. The leases of the rest return to the Worker.
    #[inline(always)]
    pub fn ring(self) -> Result<u32, PostError> {
        self.inner.ring().inspect_err(|_| self.notice.note_not_posted())
    }

    /// Rings the doorbell once, and passes the leases of refused requests to `unposted`. Returns how many requests were posted.
    ///
    /// # Errors
    /// The device took only a part of the requests. `unposted` gets the leases of the rest, in order, each with the ticket that
    /// its request had when it was staged.
    ///
    /// # Panics
    /// If `unposted` panics. The remaining leases return to the Worker, and credits and counters stay correct.
    #[inline(always)]
    pub fn ring_returning(self, mut unposted: impl FnMut(Ticket, Lease<P>)) -> Result<u32, PostError> {
        let notice = self.notice;
        // Noted before the first lease is handed out, since `unposted` may panic.
        let outcome = self.inner.ring_returning(|ticket, slot| {
            notice.note_not_posted();
            unposted(ticket, Lease { slot });
        });
        outcome.inspect_err(|_| notice.note_not_posted())
    }
}

impl<P: Provider> fmt::Debug for Batch<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("staged", &self.staged())
            .finish_non_exhaustive()
    }
}
