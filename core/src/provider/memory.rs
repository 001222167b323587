//! Memory the device may touch: slots of an arena, and windows a peer may reach.

use core::fmt;

use crate::remote::{REQUEST_BYTES_MAX, RemoteWindow};

use super::{OutOfWindow, Placement, ProviderError, PushError};

/// Names a protection domain: its number is unique among those of the process, of all devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DomainId(pub u64);

/// An owned piece of registered memory.
///
/// It is owned by exactly one of the application, the device, or the free list of its arena. The holder of the value
/// owns the bytes. Dropping it sends it home to its arena from any thread, without a lock.
///
/// A request of ranges of windows gives back slots without bytes: of capacity 0. Such a slot stands for the range's hold on its
/// window, and dropping it lets go of that. It detaches to words that attach nothing.
pub trait Slot: Send + Sized + 'static {
    /// The protection domain that it is registered in. A queue pair of another may not use it.
    fn domain(&self) -> DomainId;

    /// Returns its index among its arena's slots, from 0, in address order.
    fn index(&self) -> u32;

    /// How many bytes it holds at most.
    fn capacity_bytes(&self) -> usize;

    /// Returns the length of its payload in bytes. A slot posted for sending sends as many; a slot that was received
    /// into holds as many.
    fn len_bytes(&self) -> usize;

    /// Sets the length of its payload, at most the capacity.
    fn set_len_bytes(&mut self, bytes: usize);

    /// Returns its payload, the first [`len_bytes`](Self::len_bytes) bytes.
    fn payload(&self) -> &[u8];

    /// Returns all bytes up to the capacity.
    fn buffer_mut(&mut self) -> &mut [u8];

    /// Turns it into words that may go through a ring. [`Arena::attach`] makes a slot of them again, and so does an
    /// [`Attacher`] on any thread. Lost words keep their slot out for good: a leak, which the arena counts when it
    /// ends.
    ///
    /// Ordering: bytes written to the slot before are there for the thread that attaches it.
    fn detach(self) -> DetachedSlot;
}

/// A slot without a value that stands for it: the result of [`Slot::detach`].
///
/// It is words alone. Copies of it, and words that were made up, attach only a slot that is detached, and only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DetachedSlot {
    /// Which slot of its arena it is.
    pub index: u32,
    /// The length of its payload in bytes.
    pub len_bytes: u32,
    /// Distinguishes the arena, and this detaching of the slot, from others. It repeats after 65,536 arenas, and after
    /// 32,768 detachings of one slot.
    pub tag: u32,
}

/// Registered memory, cut into slots, with its free list. One thread owns it.
///
/// An arena dropped while slots are out is kept and counted as leaked until they are home, never
/// freed under the device.
pub trait Arena: Send + Sized + 'static {
    /// Its slots.
    type Slot: Slot;
    /// Handle with which other threads make slots of detached ones.
    type Attacher: Attacher<Slot = Self::Slot>;

    /// Takes a slot from the free list, its length set to zero. `None` is backpressure.
    fn lease(&mut self) -> Option<Self::Slot>;

    /// Puts a slot back, cheaper than dropping it. One of another arena goes to its own.
    fn release(&mut self, slot: Self::Slot);

    /// Makes a slot of a detached one again, its length unchanged. `None` if these words name no slot that is detached
    /// from this arena now: they were attached before, are another arena's, or were never given out.
    fn attach(&mut self, slot: DetachedSlot) -> Option<Self::Slot>;

    /// Returns a handle that attaches the arena's slots on any thread. The handle works even after the arena was
    /// dropped.
    fn attacher(&self) -> Self::Attacher;

    /// How many slots there are in all.
    fn slots(&self) -> u32;

    /// How many slots are home now, those that came back from elsewhere included.
    fn free_slots(&mut self) -> u32;

    /// How many bytes each slot holds.
    fn slot_bytes(&self) -> u32;

    /// How its memory was placed when it was made.
    fn placement(&self) -> Placement;
}

/// Makes slots of the detached slots of one arena, on any thread. If several calls get the same words, one of them gets
/// the slot.
///
/// The memory of an arena that was dropped is kept until its slots are home and no attacher is left.
pub trait Attacher: Clone + Send + Sync + Sized + 'static {
    /// The arena's slots.
    type Slot: Slot;

    /// Makes a slot of a detached one again, as [`Arena::attach`] does.
    fn attach(&self, slot: DetachedSlot) -> Option<Self::Slot>;

    /// Whether a slot is of this arena: [`Attacher::attach`] then takes what it is detached to.
    fn owns(&self, slot: &Self::Slot) -> bool;
}

/// Bytes of a window, for a request of this host: [`SendBatch::push_ranges`](super::SendBatch::push_ranges).
pub struct WindowRange<'w, W> {
    /// The window.
    pub window: &'w W,
    /// Their beginning, in bytes from the start of the window.
    pub offset: usize,
    /// How many they are.
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
    /// Says whether it lies within its window, and has no more bytes than a request may have.
    ///
    /// # Errors
    /// It does not.
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
    /// The device refused. The memory is not the owner's alone: destroy the queue pairs of the peers, or try again.
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

/// Memory a peer may read or write at any time, so that no reference to it ever exists.
///
/// A copy that overlaps a write, by the peer or by another thread, may be torn: each byte is one that was there at some
/// time during the copy. The bytes are settled once the peer's turn ends, by a completion or an application message.
///
/// Aligned words are atomic among the threads of this host. On every known device, the peer's WRITEs and READs also
/// treat them as whole.
///
/// A peer's atomics are atomic with the other atomics of the same device. They are atomic with the processor only if
/// the device's `atomic_cap` is global (`ibv_query_device(3)`), which few devices offer. So if both a peer and this
/// host change a counter, both have to change it through the device.
///
/// The requests of this host that name ranges of it keep it registered, even after it was dropped: until they are retired, and the
/// slots that they gave back are dropped.
pub trait Window: Send + Sync + Sized + 'static {
    /// The protection domain that it is registered in. A queue pair of another may not use it.
    fn domain(&self) -> DomainId;

    /// Its size.
    fn bytes(&self) -> usize;

    /// Whether requests of this host may bring data back into it ([`PushError::ReadOnly`]). The calls that write to it on this host need
    /// that, too, and memory that is mapped here: else they answer with an [`OutOfWindow`] of a window of no bytes.
    #[inline]
    fn is_writable(&self) -> bool {
        true
    }

    /// Whether requests that name ranges of it are in flight, or the slots that such requests gave back are still kept. If so,
    /// dropping the window takes the peer's right away only with the last of them.
    fn is_in_flight(&self) -> bool;

    /// Deregisters the memory now, and not only as the window is dropped. Once this returns `Ok`, no peer can access the memory by the
    /// key of this window, and requests that name ranges of it fail. The memory is kept until the drop.
    ///
    /// # Errors
    /// Nothing changed. The call may be made again, and so does the drop. If the device refuses at the drop, too, the memory stays
    /// registered until the process ends.
    fn deregister(&mut self) -> Result<(), RevokeError>;

    /// How its memory was placed when it was made.
    fn placement(&self) -> Placement;

    /// Returns the address and key that a peer needs to reach it. They are as good as the right itself: give them only
    /// to peers that may use the window.
    fn remote(&self) -> RemoteWindow;

    /// Copies bytes out, beginning at `offset`.
    ///
    /// # Errors
    /// The range does not lie within the window; nothing was copied.
    fn copy_out(&self, offset: usize, destination: &mut [u8]) -> Result<(), OutOfWindow>;

    /// Copies bytes in, beginning at `offset`. Others may copy meanwhile, peers and threads of this process.
    ///
    /// # Errors
    /// The range does not lie within the window; nothing was copied.
    fn copy_in(&self, offset: usize, source: &[u8]) -> Result<(), OutOfWindow>;

    /// Reads one byte, then orders all later reads after it.
    ///
    /// # Errors
    /// The offset is not within the window.
    fn load_u8(&self, offset: usize) -> Result<u8, OutOfWindow>;

    /// Reads an aligned word in host byte order, then orders all later reads after it.
    ///
    /// # Errors
    /// The word does not lie within the window, or is not aligned to eight bytes.
    fn load_u64(&self, offset: usize) -> Result<u64, OutOfWindow>;

    /// Writes an aligned word in host byte order, ordered after all earlier writes.
    ///
    /// # Errors
    /// As for [`Window::load_u64`]; nothing was written.
    fn store_u64(&self, offset: usize, word: u64) -> Result<(), OutOfWindow>;

    /// Replaces an aligned word by `new` where it equals `current`, and gives what was there before: it was replaced where
    /// that is `current`. Atomic among the threads of this host, and not towards atomics of a peer.
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
