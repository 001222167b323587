//! Memory of any length: regions for transfers of links, and a cache of registrations for memory that the application lends.
//!
//! A [`Region`] is memory of any length that is registered with all Workers of a Node ([`Node::region`](crate::Node::region)).
//! Transfers of links, such as [`Links::offer`](crate::link::Links::offer), move ranges of regions between processes.
//!
//! A registration pins pages, which takes microseconds to milliseconds. A [`RegistrationCache`] keeps registrations after their
//! use, and uses them again for the same bytes. The cache belongs to one Worker's protection domain
//! ([`Worker::registration_cache`](crate::worker::Worker::registration_cache)).
//!
//! | memory is for | call | until |
//! |---|---|---|
//! | requests of this host ([`Channel::post_ranges`](crate::Channel::post_ranges)) | [`RegistrationCache::lend_window`] | the window is gone, and its requests are retired |
//! | transfers of links | [`RegionCache::lend_region`] | the region is gone, and its transfers have ended |
//! | work requests that the application makes itself | [`RegistrationCache::register`] | the registration is dropped |
//!
//! Memory that the application never unmaps needs no cache. Pass it as a [`StableMemory`] to
//! [`Worker::adopt_window`](crate::Worker::adopt_window) or [`Node::adopt_region`](crate::Node::adopt_region).
//!
//! The safety section of [`LentMemory`] has all obligations of the caller for lent memory.
//!
//! | subject | names |
//! |---|---|
//! | memory of transfers | [`Region`], [`RegionCache`] |
//! | the cache | [`RegistrationCache`], [`RegistrationCacheConfig`] |
//! | registered memory | [`LentWindow`], [`Registration`], [`LentMemory`], [`Access`](crate::provider::Access) |
//! | memory of windows and arenas | [`StableMemory`] |
//! | memory of other devices | [`DmabufRange`] ([`Node::dmabuf_region`](crate::Node::dmabuf_region), [`Node::imports_dmabuf`](crate::Node::imports_dmabuf)) |
//! | the end of all devices' use | [`RegionWatch`] |
//! | failures | [`RegistrationRefused`], [`RegistrationError`], [`DmabufError`] |
//! | counts | [`RegistrationStatistics`], [`Uncached`] |
//!
//! # Memory that is unmapped
//!
//! A program may unmap memory after its use, and map other memory at the same address. The kernel reports such changes through
//! `userfaultfd(2)`, and the cache drops the registrations there. Before each use of a kept registration, the cache asks the
//! kernel whether a report of a change is still pending.
//!
//! - Private anonymous memory is watched in this way. Its first registration arms the watch; accesses to the memory do not fault. A call
//!   that unmaps, moves or discards the memory (`munmap(2)`, `mremap(2)`, `madvise(2)`) takes some microseconds longer, since it waits
//!   for a thread of this crate. The watch stays armed until the memory is unmapped.
//! - Shared memory and files are not watched, since they can be truncated or detached without a report. They are registered for one
//!   use. The same holds for memory that another userfaultfd watches, and for all memory if the process has no userfaultfd, because of
//!   the kernel or a seccomp filter. [`Uncached`] lists the reasons, and [`RegistrationStatistics`] counts them.
//! - Two changes are not reported: shared memory that is attached over the memory (`shmat(2)` with `SHM_REMAP`), and guard pages
//!   (`madvise(2)` with `MADV_GUARD_INSTALL`, Linux 6.13). Programs that use them call [`RegistrationCache::forget`].
//! - Memory that the application promises not to unmap ([`LentMemory::IS_KEPT`]) is cached without a watch.
//!
//! Two threads of the process serve all caches: one reads the reports, the other deregisters. They start with the first cache and
//! run until the process ends. A child made by `fork(2)` cannot use a cache.
//!
//! ```
//! use core::ptr::NonNull;
//! use doorbell::memory::{LentMemory, LentWindow, RegistrationCache, RegistrationRefused};
//! use doorbell::provider::Access;
//! use doorbell::{Channel, Operation, PostFlags, RemoteAddress};
//!
//! /// A buffer that is lent as a whole.
//! struct Buffer(Box<[u8]>);
//!
//! // SAFETY: 1. and 2. the same initialised bytes on the heap, wherever the value is; 3. and 4. nobody else has the box,
//! // and it is not used while it is lent; 5. the kernel is 5.12 or newer; 8. this program uses doorbell alone.
//! unsafe impl LentMemory for Buffer {
//!     fn region(&self) -> (NonNull<u8>, usize) {
//!         (NonNull::from(&*self.0).cast(), self.0.len())
//!     }
//! }
//!
//! /// Writes a buffer of up to 2 GiB to the peer. The window gives it back when `Event::Done` has come (`LentWindow::into_memory`).
//! fn write(
//!     cache: &RegistrationCache,
//!     channel: &mut Channel,
//!     buffer: Buffer,
//!     to: RemoteAddress,
//! ) -> Result<LentWindow<Buffer>, Box<dyn core::error::Error>> {
//!     let bytes = u32::try_from(buffer.0.len())?;
//!     let window = cache
//!         .lend_window(buffer, Access::LOCAL_WRITE)
//!         .map_err(|refused| refused.error)?;
//!     channel.post_ranges(Operation::Write(to), [window.range(0, bytes)], PostFlags::empty())?;
//!     Ok(window)
//! }
//! ```

mod cache;
mod error;
mod lent;
mod region;
mod seam;
mod service;
mod shared;
mod statistics;
#[cfg(test)]
mod tests;

pub use cache::{Registration, RegistrationCache, RegistrationCacheConfig};
pub use doorbell_ffi::{DmabufError, DmabufRange, LentMemory, StableMemory};
pub(crate) use error::NO_BYTES;
pub use error::{RegistrationError, RegistrationRefused, UnwatchedError};
pub use lent::{LentWindow, RegionCache};
pub(crate) use region::GrantedRegion;
pub use region::{Region, RegionWatch};
pub use statistics::{RegistrationStatistics, Uncached};
