//! Memory of any length, registered with the devices of several Workers.

use core::fmt;
use std::sync::Arc;

use doorbell_core::provider::{
    DomainId, OutOfWindow, Placement, ProtectionDomain, Provider, ProviderError, RemoteAccess, Window,
    WindowRange,
};
use doorbell_core::wire::RemoteWindow;
use doorbell_ffi::{Rdma, ReleaseWatch};

use crate::machine::reaper::{Reaped, Reaper};

/// Memory of any length, for transfers and for windows of links, registered with the device of each of its Workers. Clones are the same memory.
///
/// No reference to the memory exists, as for a window: bytes are copied in and out. No peer reaches it, unless a transfer lets one write
/// to a part of it. Once the last clone is dropped, and no request has it, the devices let go of it on another thread, and the memory is
/// freed.
pub struct Region<P: Provider = Rdma> {
    shared: Arc<Shared<P>>,
}

struct Shared<P: Provider> {
    /// The memory as it is registered with each Worker, in the order of the Workers; never empty.
    windows: Vec<Reaped<P::Window>>,
    domains: Vec<Arc<P::ProtectionDomain>>,
    bytes: usize,
}

impl<P: Provider> Region<P> {
    /// Registers the memory of a window, which is of the first domain, with the others.
    pub(crate) fn new(
        first: P::Window,
        domains: Vec<Arc<P::ProtectionDomain>>,
        reaper: &Reaper,
    ) -> Result<Self, ProviderError> {
        let bytes = first.bytes();
        let rest = domains.iter().skip(1);
        let rest = rest.map(|domain| domain.window_of(&first, 0..bytes, RemoteAccess::NONE));
        let rest = rest.collect::<Result<Vec<_>, _>>()?;
        let windows = core::iter::once(first).chain(rest).collect();
        Ok(Self::of(windows, domains, reaper))
    }

    /// A region of the windows of one memory, by each of the domains.
    pub(crate) fn of(
        windows: Vec<P::Window>,
        domains: Vec<Arc<P::ProtectionDomain>>,
        reaper: &Reaper,
    ) -> Self {
        let bytes = windows.first().map_or(0, Window::bytes);
        let windows = windows.into_iter().map(|window| reaper.keep(window)).collect();
        let shared = Shared {
            windows,
            domains,
            bytes,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Whether another is a clone of it.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    fn first(&self) -> Option<&P::Window> {
        self.shared.windows.first().map(|window| &**window)
    }

    /// Returns the size of the region in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shared.bytes
    }

    /// Whether bytes may be copied in, and transfers may take bytes into it: not if it was lent without the right to write.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.first().is_some_and(Window::is_writable)
    }

    /// Returns how its memory was placed when it was allocated.
    #[must_use]
    pub fn placement(&self) -> Placement {
        let unplaced = || Placement::unplaced(self.bytes(), self.bytes());
        self.first().map_or_else(unplaced, Window::placement)
    }

    /// Copies bytes in, beginning at `offset`. A device may read them meanwhile.
    ///
    /// # Errors
    /// The range does not lie within the region, or the region may not be written ([`Region::is_writable`]); nothing was copied.
    pub fn copy_in(&self, offset: usize, source: &[u8]) -> Result<(), OutOfWindow> {
        self.first().map_or_else(
            || Err(self.outside(offset, source.len())),
            |first| first.copy_in(offset, source),
        )
    }

    /// Copies bytes out, beginning at `offset`. Bytes that a device is writing may be torn.
    ///
    /// # Errors
    /// The range does not lie within the region; nothing was copied.
    pub fn copy_out(&self, offset: usize, destination: &mut [u8]) -> Result<(), OutOfWindow> {
        let bytes = destination.len();
        self.first().map_or_else(
            || Err(self.outside(offset, bytes)),
            |first| first.copy_out(offset, destination),
        )
    }

    fn outside(&self, offset: usize, bytes: usize) -> OutOfWindow {
        OutOfWindow {
            offset,
            bytes,
            window_bytes: self.bytes(),
        }
    }

    /// The protection domains of the Workers that it is registered with.
    pub(crate) fn domains(&self) -> impl Iterator<Item = DomainId> {
        self.shared.domains.iter().map(|domain| domain.id())
    }

    /// Bytes of it, for a request on this Worker.
    pub(crate) fn range(
        &self,
        worker: usize,
        offset: usize,
        bytes: u32,
    ) -> Option<WindowRange<'_, P::Window>> {
        let window = &**self.shared.windows.get(worker)?;
        Some(WindowRange {
            window,
            offset,
            bytes,
        })
    }

    /// Registers a part of it once more with each Worker's device, so that a peer has this access to it.
    pub(crate) fn grant(
        &self,
        (offset, bytes): (usize, usize),
        access: RemoteAccess,
    ) -> Result<GrantedRegion<P>, ProviderError> {
        let Shared { windows, domains, .. } = &*self.shared;
        let part = offset..offset.saturating_add(bytes);
        let granted = windows.iter().zip(domains);
        let granted = granted.map(|(window, domain)| domain.window_of(window, part.clone(), access));
        Ok(GrantedRegion(granted.collect::<Result<_, _>>()?))
    }
}

impl<P: Provider> Clone for Region<P> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<P: Provider> fmt::Debug for Region<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Region({} bytes, {} Workers)",
            self.bytes(),
            self.shared.windows.len()
        )
    }
}

/// Says whether devices have let go of the memory of a region, which it does not keep.
#[derive(Clone, Debug)]
pub struct RegionWatch(Vec<ReleaseWatch>);

impl RegionWatch {
    /// Whether no clone of the region is left, no request has its memory, and no peer reaches it. Memory that was adopted is dropped now,
    /// or was. If a device did not let go of the memory, this never becomes true.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.0.iter().all(ReleaseWatch::is_released)
    }
}

impl Region {
    /// A watch for the time when all devices have let go of the memory.
    #[must_use]
    pub fn release_watch(&self) -> RegionWatch {
        let windows = self.shared.windows.iter();
        RegionWatch(windows.map(|window| window.release_watch()).collect())
    }
}

/// A part of a region that a peer reaches. Dropping it takes the right away: it may take a device milliseconds, and once it is done
/// no peer reaches it any more.
pub(crate) struct GrantedRegion<P: Provider>(Vec<P::Window>);

impl<P: Provider> GrantedRegion<P> {
    /// The key by which a peer reaches it over this Worker's device.
    pub(crate) fn key(&self, worker: usize) -> Option<RemoteWindow> {
        self.0.get(worker).map(Window::remote)
    }

    /// The keys, with the Worker of each.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (usize, RemoteWindow)> {
        self.0.iter().map(Window::remote).enumerate()
    }
}

impl<P: Provider> fmt::Debug for GrantedRegion<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrantedRegion({} Workers)", self.0.len())
    }
}
