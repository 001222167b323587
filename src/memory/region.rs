//! Memory of any length, registered with the devices of several Workers.

use core::fmt;
use std::sync::Arc;

use doorbell_core::provider::{
    DomainId, MemoryError, OutOfWindow, Placement, ProtectionDomain, Provider, ProviderError, RemoteAccess,
    RevokeError, Window, WindowRange,
};
use doorbell_core::wire::RemoteWindow;
use doorbell_ffi::{Rdma, ReleaseWatch};

use crate::machine::reaper::{Reaped, Reaper};

/// Memory of any length, for transfers and for windows of links, registered with the device of each of its Workers. Clones share
/// the memory.
///
/// As for a window, there are no references to the memory: bytes are copied in and out. Peers cannot access the memory, except
/// for the part that a transfer or a window of a link grants. After the last clone is dropped and no request uses the memory,
/// another thread deregisters and frees it.
pub struct Region<P: Provider = Rdma> {
    shared: Arc<Shared<P>>,
}

struct Shared<P: Provider> {
    /// The registration of the memory with each Worker, in the order of the Workers; never empty.
    windows: Vec<Reaped<P::Window>>,
    domains: Vec<Arc<P::ProtectionDomain>>,
    bytes: usize,
}

impl<P: Provider> Region<P> {
    /// Makes a region of a window of the first domain, by registering its memory with the other domains, too.
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

    /// Makes a region of windows of one memory, one window in each domain.
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

    /// Whether the other region is a clone of this one.
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

    /// Returns whether [`Region::copy_in`] and transfers may write to the region. The result is `false` if the memory was lent
    /// without [`Access::LOCAL_WRITE`](crate::provider::Access).
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.first().is_some_and(Window::is_writable)
    }

    /// Returns how the memory was placed when it was allocated.
    #[must_use]
    pub fn placement(&self) -> Placement {
        let unplaced = || Placement::unplaced(self.bytes(), self.bytes());
        self.first().map_or_else(unplaced, Window::placement)
    }

    /// Copies bytes into the region, beginning at `offset`. A device that reads the range at the same time may see a part of
    /// them.
    ///
    /// # Errors
    /// The range is not within the region, or the region may not be written ([`Region::is_writable`]). Then nothing was copied.
    pub fn copy_in(&self, offset: usize, source: &[u8]) -> Result<(), OutOfWindow> {
        self.first().map_or_else(
            || Err(self.outside(offset, source.len())),
            |first| first.copy_in(offset, source),
        )
    }

    /// Copies bytes out of the region, beginning at `offset`. If a device writes the range at the same time, the copy may be
    /// torn.
    ///
    /// # Errors
    /// The range is not within the region. Then nothing was copied.
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

    /// Returns the protection domains in which the region is registered.
    pub(crate) fn domains(&self) -> impl Iterator<Item = DomainId> {
        self.shared.domains.iter().map(|domain| domain.id())
    }

    /// Returns a range of the region for a request on this Worker.
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

    /// Registers a part of the region once more with each Worker's device, with these access rights for a peer.
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

/// Watches whether the memory of a region is released by all devices. The watch does not keep the memory alive.
#[derive(Clone, Debug)]
pub struct RegionWatch(Vec<ReleaseWatch>);

impl RegionWatch {
    /// Returns whether the memory is released: no clone of the region is left, no request uses it, and no peer can access it.
    /// Adopted memory is dropped then. If a device refuses to deregister the memory, the result never becomes `true`.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.0.iter().all(ReleaseWatch::is_released)
    }
}

impl Region {
    /// Returns a watch that shows when all devices have released the memory.
    #[must_use]
    pub fn release_watch(&self) -> RegionWatch {
        let windows = self.shared.windows.iter();
        RegionWatch(windows.map(|window| window.release_watch()).collect())
    }
}

/// A part of a region that a peer may access. Dropping it deregisters the part, which may take milliseconds. If a device refuses then,
/// the peer keeps its access, so a fence calls [`GrantedRegion::withdraw`].
pub(crate) struct GrantedRegion<P: Provider>(Vec<P::Window>);

impl<P: Provider> GrantedRegion<P> {
    /// Returns the key for access over this Worker's device.
    pub(crate) fn key(&self, worker: usize) -> Option<RemoteWindow> {
        self.0.get(worker).map(Window::remote)
    }

    /// Deregisters the part. Once this returns `Ok`, no peer can access it by its keys.
    ///
    /// # Errors
    /// A device refused twice, and the peer keeps its access over that device. The memory of the region stays.
    pub(crate) fn withdraw(mut self) -> Result<(), MemoryError> {
        let mut outcome = Ok(());
        // Each of them, also after one that was refused.
        for window in &mut self.0 {
            outcome = outcome.and(window.deregister().or_else(|_| window.deregister()));
        }
        outcome.map_err(|error| match error {
            RevokeError::Provider(error) => MemoryError::Provider(error),
            _ => MemoryError::Unreachable("requests of this host name a part that is granted to a peer"),
        })
    }

    /// Returns the keys, with the index of their Worker.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (usize, RemoteWindow)> {
        self.0.iter().map(Window::remote).enumerate()
    }
}

impl<P: Provider> fmt::Debug for GrantedRegion<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrantedRegion({} Workers)", self.0.len())
    }
}
