//! Memory of a Worker's that peers may reach.

use core::fmt;

use doorbell_core::provider::{DomainId, OutOfWindow, Placement, Provider, Window, WindowRange};
use doorbell_core::wire::RemoteWindow;
use doorbell_ffi::Rdma;

use crate::machine::reaper::{Reaped, Reaper};

/// Memory that peers may reach, until the device has taken the right away from them.
///
/// Dropped, it returns in bounded time: the device takes the right away on another thread, and lets go of the memory
/// then. If requests of this host that name ranges of it are in flight, the last of them to be done does that
/// instead. [`Node::settle`](crate::Node::settle) waits for that; [`LocalWindow::revoke`] does it at once.
pub struct LocalWindow<P: Provider = Rdma>(Reaped<P::Window>);

impl<P: Provider> LocalWindow<P> {
    pub(crate) fn new(window: P::Window, reaper: &Reaper) -> Self {
        Self(reaper.keep(window))
    }

    /// Takes the right away on this thread, which may take milliseconds: once this returns `Ok`, no peer reaches the
    /// memory by this window's key.
    ///
    /// # Errors
    /// Requests of this host that name ranges of the window are in flight, and nothing was taken away. Poll until they are done,
    /// and try again. Leases without bytes that such requests gave back count, too.
    pub fn revoke(self) -> Result<(), Self> {
        // It stays so: only a window makes ranges.
        if self.0.is_in_flight() {
            return Err(self);
        }
        drop(Reaped::into_inner(self.0));
        Ok(())
    }

    /// Names bytes of it, for requests of this host: [`Channel::post_ranges`](crate::Channel::post_ranges). They are checked when
    /// they are posted.
    ///
    /// A range does not outlive its window:
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

    /// The provider's own window.
    pub(crate) fn inner(&self) -> &P::Window {
        &self.0
    }
}

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
