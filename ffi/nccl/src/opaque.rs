//! The pointers that NCCL gets: numbers that are looked up, and that nobody follows.

use core::ffi::c_void;
use core::ptr;

use crate::places::Key;

/// The kind of object that a pointer names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    // A kind of 1 could be mistaken for the mark that NCCL puts in place of a request.
    Context = 2,
    Listener = 3,
    SendComm = 4,
    ReceiveComm = 5,
    Memory = 6,
    Send = 7,
    Receive = 8,
    Flush = 9,
}

/// An object of a context: its kind, and the numbers that it has there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opaque {
    pub(crate) kind: Kind,
    /// The context's place.
    pub(crate) context: u8,
    /// The slot of a request; 0 for other kinds.
    pub(crate) slot: u8,
    /// Its number there: of a request the low 12 bits of its comm's, and its serial number above.
    pub(crate) number: u64,
}

/// Bits of a number.
const NUMBER_BITS: u32 = 44;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

impl Opaque {
    pub(crate) const fn new(kind: Kind, context: u8, key: Key) -> Self {
        Self {
            kind,
            context,
            slot: 0,
            number: key.0 as u64,
        }
    }

    /// The pointer that stands for it.
    pub(crate) fn to_pointer(self) -> *mut c_void {
        let word = (self.number & NUMBER_MASK) << 20
            | u64::from(self.slot) << 12
            | u64::from(self.context) << 4
            | u64::from(self.kind as u8);
        ptr::without_provenance_mut(usize::try_from(word).unwrap_or(0))
    }

    /// The object that a pointer stands for; `None` if it is none of these kinds.
    #[inline]
    pub(crate) fn of(pointer: *const c_void) -> Option<Self> {
        let word = u64::try_from(pointer.addr()).ok()?;
        let [low, next, above, ..] = word.to_le_bytes();
        Some(Self {
            kind: match low & 15 {
                2 => Kind::Context,
                3 => Kind::Listener,
                4 => Kind::SendComm,
                5 => Kind::ReceiveComm,
                6 => Kind::Memory,
                7 => Kind::Send,
                8 => Kind::Receive,
                9 => Kind::Flush,
                _ => return None,
            },
            context: low >> 4 | next << 4,
            slot: next >> 4 | above << 4,
            number: word >> 20,
        })
    }

    /// The key of an object that is neither a send nor a receive.
    pub(crate) fn key(self) -> Key {
        Key(u32::try_from(self.number).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, NUMBER_MASK, Opaque};
    use core::ptr;

    #[test]
    fn what_went_into_a_pointer_comes_out() {
        for (kind, context, slot, number) in [
            (Kind::Context, 0, 0, 0),
            (Kind::Send, 255, 255, NUMBER_MASK),
            (Kind::Receive, 0x5a, 0xc3, 0x123_4567_89ab),
            (Kind::Memory, 17, 0, 0xffff_ffff),
        ] {
            let opaque = Opaque {
                kind,
                context,
                slot,
                number,
            };
            assert!(!opaque.to_pointer().is_null());
            assert_eq!(Opaque::of(opaque.to_pointer()), Some(opaque));
        }
    }

    #[test]
    fn null_and_the_mark_of_an_optional_completion_are_nothing() {
        for word in [0, 1, 0x10, 10, 0xfff0] {
            assert_eq!(Opaque::of(ptr::without_provenance(word)), None, "{word:#x}");
        }
    }
}
