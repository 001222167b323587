//! Requests on ranges of windows, which transfer bytes from and to large registered memory without a lease.

use doorbell_core::Ticket;
use doorbell_core::provider::{Operation, PostFlags, Provider, WindowRange};

use crate::worker::batch::Batch;
use crate::worker::channel::{Channel, SendErrorKind};
use crate::worker::half::{SendHalf, unposted};

impl<P: Provider> Channel<P> {
    /// Posts one request on up to four ranges of windows, with its own doorbell; see
    /// [`LocalWindow::range`](crate::LocalWindow::range).
    ///
    /// SEND and WRITE gather their bytes from the ranges, in order. READ scatters into them. An atomic takes one range of eight
    /// bytes, and stores the previous value of the remote word there. The windows must belong to the channel's Worker.
    ///
    /// The device reads the bytes at any time before the request is done, so do not change them until then. Each request on
    /// ranges ends with [`Event::Done`](crate::Event::Done) or [`Event::Failed`](crate::Event::Failed). After `Done` the data of
    /// a READ or an atomic is in the window. The memory stays registered until the request ends, even if the window is dropped.
    /// In that case the poll that ends the request deregisters the memory, which is a system call.
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
    /// The request was not posted. A request that the peer or the device would refuse is rejected here, as by [`Channel::post`].
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
    /// Posts one request on ranges of windows, with its own doorbell; see [`Channel::post_ranges`].
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
    /// Stages one request on ranges of windows; see [`Channel::post_ranges`]. If the device refuses the request,
    /// [`Batch::ring_returning`] returns an empty lease for each range, with a capacity of 0.
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
