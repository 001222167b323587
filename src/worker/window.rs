//! Windows: registered memory that peers may access.

use core::fmt;

use doorbell_core::provider::{DomainId, OutOfWindow, Placement, Provider, RevokeError, Window, WindowRange};
use doorbell_core::wire::RemoteWindow;
use doorbell_ffi::Rdma;

use crate::machine::reaper::{Reaped, Reaper};

/// Registered memory that peers may access until it is deregistered.
///
/// Dropping a window returns in bounded time: another thread deregisters the memory and then frees it. If requests of this host
/// that name ranges of the window are in flight, the completion of the last one deregisters the memory instead.
/// [`Node::settle`](crate::Node::settle) waits for the other thread. [`LocalWindow::revoke`] deregisters at once.
pub struct LocalWindow<P: Provider = Rdma>(Reaped<P::Window>);

impl<P: Provider> LocalWindow<P> {
    pub(crate) fn new(window: P::Window, reaper: &Reaper) -> Self {
        Self(reaper.keep(window))
    }

    /// Deregisters the memory on this thread, which may take milliseconds. Once this returns `Ok`, no peer can access the memory
    /// by the key of this window. Then the memory is freed, or dropped if it was adopted.
    ///
    /// # Errors
    /// The window stays registered, and the error returns it ([`NotRevoked`]). So peers keep their access, and the memory is not
    /// the application's alone.
    ///
    /// - [`RevokeError::InFlight`]: requests of this host that name ranges of the window are in flight. Poll until they are done,
    ///   and try again. Leases without bytes that a refused batch returned for such ranges
    ///   ([`Batch::push_ranges`](crate::worker::Batch::push_ranges)) count as well; drop them first.
    /// - [`RevokeError::Provider`]: the device refused. Close the channels of peers that have the key, or try again. If the window
    ///   is dropped and the device refuses again, the memory stays registered until the process ends and is never given back.
    ///   [`leaks`](crate::provider::leaks) counts it.
    pub fn revoke(mut self) -> Result<(), NotRevoked<P>> {
        // No new range can appear meanwhile: only a borrow of the window makes ranges.
        if let Err(error) = self.0.deregister() {
            return Err(NotRevoked { window: self, error });
        }
        drop(Reaped::into_inner(self.0));
        Ok(())
    }

    /// Returns a range of the window for requests of this host, such as [`Channel::post_ranges`](crate::Channel::post_ranges).
    /// The bounds are checked when the request is posted.
    ///
    /// A range cannot outlive its window:
    /// ```compile_fail,E0505
    /// # fn f(channel: &mut doorbell::Channel, window: doorbell::LocalWindow) {
    /// let range = window.range(0, 8);
    /// window.revoke().ok();
    /// channel.post_ranges(doorbell::Operation::Send, [range], doorbell::PostFlags::empty()).ok();
    /// # }
    /// ```
    #[must_use]
    #[inline]
    pub fn range(&self, offset: usize, bytes: u32) -> WindowRange<'_, P::Window> {
        WindowRange {
            window: &*self.0,
            offset,
            bytes,
        }
    }

    /// Returns the window of the provider.
    pub(crate) fn inner(&self) -> &P::Window {
        &self.0
    }
}

/// A window that was not revoked, returned with the reason. Peers keep their access.
pub struct NotRevoked<P: Provider = Rdma> {
    /// The window, which is still registered.
    pub window: LocalWindow<P>,
    /// The reason.
    pub error: RevokeError,
}

impl<P: Provider> fmt::Debug for NotRevoked<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NotRevoked").field(&self.error).finish()
    }
}

impl<P: Provider> fmt::Display for NotRevoked<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<P: Provider> core::error::Error for NotRevoked<P> {}

impl<P: Provider> Window for LocalWindow<P> {
    fn domain(&self) -> DomainId {
        self.0.domain()
    }

    fn is_writable(&self) -> bool {
        self.0.is_writable()
    }

    fn is_in_flight(&self) -> bool {
        self.0.is_in_flight()
    }

    fn deregister(&mut self) -> Result<(), RevokeError> {
        self.0.deregister()
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn placement(&self) -> Placement {
        self.0.placement()
    }

    fn remote(&self) -> RemoteWindow {
        self.0.remote()
    }

    #[inline]
    fn copy_out(&self, offset: usize, destination: &mut [u8]) -> Result<(), OutOfWindow> {
        self.0.copy_out(offset, destination)
    }

    #[inline]
    fn copy_in(&self, offset: usize, source: &[u8]) -> Result<(), OutOfWindow> {
        self.0.copy_in(offset, source)
    }

    #[inline]
    fn load_u8(&self, offset: usize) -> Result<u8, OutOfWindow> {
        self.0.load_u8(offset)
    }

    #[inline]
    fn load_u64(&self, offset: usize) -> Result<u64, OutOfWindow> {
        self.0.load_u64(offset)
    }

    #[inline]
    fn store_u64(&self, offset: usize, word: u64) -> Result<(), OutOfWindow> {
        self.0.store_u64(offset, word)
    }

    #[inline]
    fn compare_exchange_u64(&self, offset: usize, current: u64, new: u64) -> Result<u64, OutOfWindow> {
        self.0.compare_exchange_u64(offset, current, new)
    }
}

impl<P: Provider> fmt::Debug for LocalWindow<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalWindow")
            .field("remote", &self.remote())
            .finish_non_exhaustive()
    }
}
