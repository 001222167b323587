//! Requests of ranges of windows: their bytes go out of large registered memory and come into it, without a lease.

use doorbell_core::Ticket;
use doorbell_core::provider::{Operation, PostFlags, Provider, WindowRange};

use crate::worker::batch::Batch;
use crate::worker::channel::{Channel, SendErrorKind};
use crate::worker::half::{SendHalf, unposted};

impl<P: Provider> Channel<P> {
    /// Posts one request of up to four ranges of windows by itself: see [`LocalWindow::range`](crate::LocalWindow::range).
    ///
    /// SEND and WRITE take their bytes from the ranges, in order, and READ writes into them. An atomic takes one range of eight
    /// bytes, and leaves there what its word was before. The windows are of the channel's Worker.
    ///
    /// The bytes go out as they are while the device reads them, so leave them alone until the request is done. Every request of
    /// ranges ends by [`Event::Done`](crate::Event::Done) or [`Event::Failed`](crate::Event::Failed): what a READ or an atomic
    /// brought back is in the window. The memory stays registered until then, even if the window is dropped; the poll that ends
    /// the request then makes the system call that deregisters it.
    ///
    /// ```
    /// use doorbell::worker::SendErrorKind;
    /// use doorbell::{Channel, LocalWindow, Operation, PostFlags, RemoteAddress};
    ///
    /// /// Writes a header and a block out of one window.
    /// fn write(channel: &mut Channel, window: &LocalWindow, to: RemoteAddress) -> Result<(), SendErrorKind> {
    ///     let ranges = [window.range(0, 64), window.range(1 << 20, 4096)];
    ///     channel.post_ranges(Operation::Write(to), ranges, PostFlags::empty())?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// Nothing was posted. A request that the peer or the device would refuse is refused here, as by [`Channel::post`].
    #[inline]
    pub fn post_ranges<const N: usize>(
        &mut self,
        operation: Operation,
        ranges: [WindowRange<'_, P::Window>; N],
        flags: PostFlags,
    ) -> Result<Ticket, SendErrorKind> {
        self.send.post_ranges(operation, ranges, flags)
    }
}

impl<P: Provider> SendHalf<P> {
    /// Posts one request of ranges of windows by itself; see [`Channel::post_ranges`].
    ///
    /// # Errors
    /// As for [`Channel::post_ranges`].
    #[inline]
    pub fn post_ranges<const N: usize>(
        &mut self,
        operation: Operation,
        ranges: [WindowRange<'_, P::Window>; N],
        flags: PostFlags,
    ) -> Result<Ticket, SendErrorKind> {
        self.sender
            .post_ranges_one(operation, ranges, flags)
            .map_err(|reason| unposted(&mut self.notice, reason))
    }
}

impl<P: Provider> Batch<'_, P> {
    /// Stages one request of ranges of windows; see [`Channel::post_ranges`]. If the device refuses it,
    /// [`Batch::ring_returning`] returns a lease without bytes for each range.
    ///
    /// # Errors
    /// As for [`Channel::post_ranges`].
    #[inline]
    pub fn push_ranges<const N: usize>(
        &mut self,
        operation: Operation,
        ranges: [WindowRange<'_, P::Window>; N],
        flags: PostFlags,
    ) -> Result<Ticket, SendErrorKind> {
        self.inner
            .push_ranges(operation, ranges, flags)
            .map_err(|reason| self.notice.note_refused(reason))
    }
}
