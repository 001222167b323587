//! Memory that the device may access: slots of an arena, and windows that a peer may access.

use core::fmt;

use crate::remote::{REQUEST_BYTES_MAX, RemoteWindow};

use super::{OutOfWindow, Placement, ProviderError, PushError};

/// Identifies a protection domain, uniquely in the process, over all devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DomainId(pub u64);

/// An owned piece of registered memory.
///
/// Its owner is exactly one of the application, the device, or the free list of its arena. The holder of the value
/// owns the bytes. Dropping it returns it to its arena, from any thread, without a lock.
///
/// A request with ranges of windows returns slots without bytes, of capacity 0. Such a slot keeps the window of its range
/// registered until it is dropped. Its detached form attaches nothing.
pub trait Slot: Send + Sized + 'static {
    /// The protection domain of its registration. Only queue pairs of this domain may use it.
    fn domain(&self) -> DomainId;

    /// Returns the index among its arena's slots, from 0, in address order.
    fn index(&self) -> u32;

    /// The capacity in bytes.
    fn capacity_bytes(&self) -> usize;

    /// Returns the length of its payload in bytes: the bytes that a send request sends, or the bytes that a receive
    /// got.
    fn len_bytes(&self) -> usize;

    /// Sets the length of its payload, at most the capacity.
    fn set_len_bytes(&mut self, bytes: usize);

    /// Returns the payload, the first [`len_bytes`](Self::len_bytes) bytes.
    fn payload(&self) -> &[u8];

    /// Returns all bytes up to the capacity.
    fn buffer_mut(&mut self) -> &mut [u8];

    /// Turns the slot into plain integers, which can be passed through a ring. [`Arena::attach`], or an [`Attacher`] on any
    /// thread, turns them into a slot again. If they are lost, the slot never returns: a leak, which the arena counts when
    /// it ends.
    ///
    /// Ordering: bytes written to the slot before are visible to the thread that attaches it.
    fn detach(self) -> DetachedSlot;
}

/// A detached slot: the result of [`Slot::detach`].
///
/// It consists of plain integers. A copy, or invented integers, attach only a slot that is detached, and only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DetachedSlot {
    /// The index of the slot in its arena.
    pub index: u32,
    /// The length of the payload in bytes.
    pub len_bytes: u32,
    /// Distinguishes the arena, and this detachment of the slot, from others. It repeats after 65,536 arenas, and after
    /// 32,768 detachments of one slot.
    pub tag: u32,
}

/// Registered memory that is cut into slots, with a free list. One thread owns it.
///
/// If an arena is dropped before all slots have returned, its memory is kept and counted as leaked until
/// they return. It is never freed under the device.
pub trait Arena: Send + Sized + 'static {
    /// The slots.
    type Slot: Slot;
    /// A handle with which other threads attach detached slots.
    type Attacher: Attacher<Slot = Self::Slot>;

    /// Takes a slot from the free list, with length zero. `None` is backpressure.
    fn lease(&mut self) -> Option<Self::Slot>;

    /// Returns a slot, at a lower cost than dropping it. A slot of another arena returns to that arena.
    fn release(&mut self, slot: Self::Slot);

    /// Attaches a detached slot, with unchanged length. `None` if these integers name no slot that is now detached from this
    /// arena: the slot was attached before, belongs to another arena, or was never detached.
    fn attach(&mut self, slot: DetachedSlot) -> Option<Self::Slot>;

    /// Returns a handle that attaches the arena's slots on any thread. The handle works even after the arena was
    /// dropped.
    fn attacher(&self) -> Self::Attacher;

    /// The number of all slots.
    fn slots(&self) -> u32;

    /// The number of free slots now, including those that other threads returned.
    fn free_slots(&mut self) -> u32;

    /// The capacity of each slot in bytes.
    fn slot_bytes(&self) -> u32;

    /// The placement of its memory at creation.
    fn placement(&self) -> Placement;
}

/// Attaches detached slots of one arena, on any thread. If several calls get the same detached slot, one of them gets
/// the slot.
///
/// The memory of a dropped arena is kept until all slots have returned and no attacher is left.
pub trait Attacher: Clone + Send + Sync + Sized + 'static {
    /// The arena's slots.
    type Slot: Slot;

    /// Attaches a detached slot, as [`Arena::attach`] does.
    fn attach(&self, slot: DetachedSlot) -> Option<Self::Slot>;

    /// Whether a slot belongs to this arena, so that [`Attacher::attach`] accepts its detached form.
    fn owns(&self, slot: &Self::Slot) -> bool;
}

/// A range of a window, for a request of this host: [`SendBatch::push_ranges`](super::SendBatch::push_ranges).
pub struct WindowRange<'w, W> {
    /// The window.
    pub window: &'w W,
    /// The offset in bytes from the start of the window.
    pub offset: usize,
    /// The number of bytes.
    pub bytes: u32,
}

impl<W> Clone for WindowRange<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for WindowRange<'_, W> {}

impl<W> fmt::Debug for WindowRange<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowRange({} bytes at {})", self.bytes, self.offset)
    }
}

impl<W: Window> WindowRange<'_, W> {
    /// Checks that the range is within its window, and has at most [`REQUEST_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`PushError::OutOfOwnWindow`] or [`PushError::TooLong`].
    #[inline]
    pub fn check(&self) -> Result<(), PushError> {
        let bytes_left = self.window.bytes().saturating_sub(self.offset) as u64;
        let is_outside = self.offset > self.window.bytes() || u64::from(self.bytes) > bytes_left;
        if is_outside {
            return Err(PushError::OutOfOwnWindow {
                bytes: self.bytes,
                bytes_left,
            });
        }
        if self.bytes > REQUEST_BYTES_MAX {
            return Err(PushError::TooLong {
                bytes: self.bytes.into(),
                bytes_max: REQUEST_BYTES_MAX,
            });
        }
        Ok(())
    }
}

/// Reason why a window was not deregistered. It is registered as before, and peers keep their access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RevokeError {
    /// Requests of this host that name ranges of the window are in flight. Poll until they are done, drop leases without bytes that a
    /// refused batch returned for such ranges, and try again.
    InFlight,
    /// The device refused. Peers can still access the memory: destroy the queue pairs of the peers, or try again.
    Provider(ProviderError),
}

impl fmt::Display for RevokeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFlight => f.write_str(
                "requests of this host that name ranges of the window are in flight: poll until they are done, and revoke it again",
            ),
            Self::Provider(error) => write!(
                f,
                "the window is still registered, and peers keep their access: {error}; close their channels, or revoke it again"
            ),
        }
    }
}

impl core::error::Error for RevokeError {}

/// Memory that a peer may read or write at any time, so that no reference to it ever exists.
///
/// A copy that overlaps a write, by the peer or by another thread, may be torn: each byte has a value that it had at some
/// time during the copy. The bytes are stable after the peer has finished, as a completion or an application message shows.
///
/// Aligned words are atomic among the threads of this host. On every known device, the peer's WRITEs and READs do not tear
/// them either.
///
/// A peer's atomics are atomic with respect to other atomics of the same device. They are atomic with respect to the processor
/// only if the device's `atomic_cap` is global (`ibv_query_device(3)`), which few devices offer. So if both a peer and this
/// host change a counter, both have to change it through the device.
///
/// Requests of this host with ranges of the window keep it registered even after it was dropped, until they are retired and the
/// slots that they returned are dropped.
pub trait Window: Send + Sync + Sized + 'static {
    /// The protection domain of its registration. Only queue pairs of this domain may use it.
    fn domain(&self) -> DomainId;

    /// The size in bytes.
    fn bytes(&self) -> usize;

    /// Whether requests of this host may return data into the window ([`PushError::ReadOnly`]). The calls that write to it on this host
    /// need that, too, and memory that is mapped here. Otherwise they return an [`OutOfWindow`] with zero window bytes.
    #[inline]
    fn is_writable(&self) -> bool {
        true
    }

    /// Whether requests with ranges of the window are in flight, or slots that such requests returned still exist. If so,
    /// dropping the window withdraws the peer's rights only after the last of them is gone.
    fn is_in_flight(&self) -> bool;

    /// Deregisters the memory before the window is dropped. Once this returns `Ok`, no peer can access the memory by the
    /// key of this window, and requests that name ranges of it fail. The memory is kept until the drop.
    ///
    /// # Errors
    /// Nothing changed. The call may be repeated, and the drop repeats it. If the device refuses that, too, the memory stays
    /// registered until the process ends.
    fn deregister(&mut self) -> Result<(), RevokeError>;

    /// The placement of its memory at creation.
    fn placement(&self) -> Placement;

    /// Returns the address and key that a peer needs for access. They are all that access needs, so give them only to
    /// peers that may use the window.
    fn remote(&self) -> RemoteWindow;

    /// Copies bytes out, beginning at `offset`.
    ///
    /// # Errors
    /// The range is not within the window; nothing was copied.
    fn copy_out(&self, offset: usize, destination: &mut [u8]) -> Result<(), OutOfWindow>;

    /// Copies bytes in, beginning at `offset`. Peers and other threads may copy at the same time.
    ///
    /// # Errors
    /// The range is not within the window; nothing was copied.
    fn copy_in(&self, offset: usize, source: &[u8]) -> Result<(), OutOfWindow>;

    /// Reads one byte, then orders all later reads after it.
    ///
    /// # Errors
    /// The offset is not within the window.
    fn load_u8(&self, offset: usize) -> Result<u8, OutOfWindow>;

    /// Reads an aligned word in host byte order, then orders all later reads after it.
    ///
    /// # Errors
    /// The word is not within the window, or not aligned to eight bytes.
    fn load_u64(&self, offset: usize) -> Result<u64, OutOfWindow>;

    /// Writes an aligned word in host byte order, ordered after all earlier writes.
    ///
    /// # Errors
    /// As for [`Window::load_u64`]; nothing was written.
    fn store_u64(&self, offset: usize, word: u64) -> Result<(), OutOfWindow>;

    /// Replaces an aligned word by `new` if it equals `current`, and returns the previous value. The word was replaced if the
    /// previous value is `current`. This is atomic among the threads of this host, but not with respect to a peer's atomics.
    ///
    /// # Errors
    /// As for [`Window::load_u64`]; nothing was written.
    fn compare_exchange_u64(&self, offset: usize, current: u64, new: u64) -> Result<u64, OutOfWindow>;
}

#[cfg(test)]
mod tests {
    use super::{DomainId, RevokeError, Window, WindowRange};
    use crate::Rkey;
    use crate::provider::{
        Operation, OutOfWindow, Placement, PostFlags, PushError, REQUEST_BYTES_MAX, RemoteAddress,
    };
    use crate::remote::RemoteWindow;

    /// A window of so many bytes, of which there are none.
    struct Large(usize);

    impl Window for Large {
        fn domain(&self) -> DomainId {
            DomainId(0)
        }
        fn bytes(&self) -> usize {
            self.0
        }
        fn is_in_flight(&self) -> bool {
            false
        }
        fn deregister(&mut self) -> Result<(), RevokeError> {
            unreachable!()
        }
        fn placement(&self) -> Placement {
            Placement::unplaced(self.0, self.0)
        }
        fn remote(&self) -> RemoteWindow {
            RemoteWindow::new(0, self.0 as u64, Rkey(0))
        }
        fn copy_out(&self, _: usize, _: &mut [u8]) -> Result<(), OutOfWindow> {
            unreachable!()
        }
        fn copy_in(&self, _: usize, _: &[u8]) -> Result<(), OutOfWindow> {
            unreachable!()
        }
        fn load_u8(&self, _: usize) -> Result<u8, OutOfWindow> {
            unreachable!()
        }
        fn load_u64(&self, _: usize) -> Result<u64, OutOfWindow> {
            unreachable!()
        }
        fn store_u64(&self, _: usize, _: u64) -> Result<(), OutOfWindow> {
            unreachable!()
        }
        fn compare_exchange_u64(&self, _: usize, _: u64, _: u64) -> Result<u64, OutOfWindow> {
            unreachable!()
        }
    }

    #[test]
    fn a_range_lies_within_its_window_and_is_no_longer_than_a_request() {
        let window = Large(usize::MAX);
        let check = |offset, bytes| {
            let window = &window;
            WindowRange {
                window,
                offset,
                bytes,
            }
            .check()
        };
        let outside = |bytes, bytes_left| Err(PushError::OutOfOwnWindow { bytes, bytes_left });
        assert_eq!(check(0, REQUEST_BYTES_MAX), Ok(()));
        let too_long = PushError::TooLong {
            bytes: u64::from(REQUEST_BYTES_MAX) + 1,
            bytes_max: REQUEST_BYTES_MAX,
        };
        assert_eq!(check(0, REQUEST_BYTES_MAX + 1), Err(too_long));
        assert_eq!(check(usize::MAX, 0), Ok(()));
        assert_eq!(check(usize::MAX, 1), outside(1, 0));
        assert_eq!(check(usize::MAX - 5, 5), Ok(()));
        assert_eq!(check(usize::MAX - 5, 6), outside(6, 5));
    }

    #[test]
    fn an_atomic_takes_one_range_of_eight_bytes_and_nothing_goes_inline() {
        let window = Large(64);
        let range = |bytes| WindowRange {
            window: &window,
            offset: 0,
            bytes,
        };
        let add = Operation::FetchAndAdd {
            remote: RemoteAddress::new(0, Rkey(0)),
            add: 1,
        };
        let none = PostFlags::empty();
        let eight = Err(PushError::AtomicNeedsEightBytes);
        assert_eq!(PushError::check_ranges(add, &[range(8)], none), Ok(()));
        for bytes in [0, 7, 9] {
            assert_eq!(PushError::check_ranges(add, &[range(bytes)], none), eight);
        }
        assert_eq!(PushError::check_ranges(add, &[range(8), range(8)], none), eight);
        assert_eq!(PushError::check_ranges::<Large>(add, &[], none), eight);
        let inline = PushError::check_ranges(Operation::Send, &[range(8)], PostFlags::INLINE);
        assert_eq!(inline, Err(PushError::NotInline));
        assert_eq!(
            PushError::check_ranges::<Large>(Operation::Send, &[], none),
            Ok(())
        );
    }

    // It is a part of the outcome of every post.
    const _: () = assert!(size_of::<PushError>() == 16);
}
