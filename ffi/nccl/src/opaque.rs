//! The opaque pointers that NCCL gets. They encode numbers, which are looked up and never
//! dereferenced.

use core::ffi::c_void;
use core::ptr;

use crate::places::{Key, PLACES_MAX, Places};

/// The kind of the named object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    // A kind of 1 could be confused with the marker that NCCL stores in place of a request.
    Context = 2,
    Listener = 3,
    SendComm = 4,
    ReceiveComm = 5,
    Memory = 6,
    Send = 7,
    Receive = 8,
    Flush = 9,
    /// A send whose message was copied. There is no state: the word holds the length.
    Sent = 10,
}

/// The identifier of an object, in one word.
///
/// | bits | field |
/// |---|---|
/// | 0 to 3 | kind |
/// | 4 to 11 | index of the context |
/// | 12 to 19 | slot of a request |
/// | 20 to 51 | number in the context; for a request, 20 to 31 is the index of its comm |
/// | 32 to 63 | for a request, its serial number; for a copied send, its length |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opaque(u64);

const CONTEXT_SHIFT: u32 = 4;
const SLOT_SHIFT: u32 = 12;
const NUMBER_SHIFT: u32 = 20;
const SERIAL_SHIFT: u32 = 32;

/// The bits that a request shares with its comm: the context, and the index of the comm.
const OF_COMM: u64 = (PLACES_MAX as u64 - 1) << NUMBER_SHIFT | 0xff << CONTEXT_SHIFT;

/// The bits of the kind, and with them those of the context.
const OF_KIND: u64 = 0xf;
const OF_CONTEXT: u64 = 0xff << CONTEXT_SHIFT | OF_KIND;

const _: () = assert!(PLACES_MAX <= 1 << (SERIAL_SHIFT - NUMBER_SHIFT));

impl Opaque {
    pub(crate) const fn new(kind: Kind, context: u8, key: Key) -> Self {
        Self((key.0 as u64) << NUMBER_SHIFT | (context as u64) << CONTEXT_SHIFT | kind as u64)
    }

    /// The identifier of nothing, whose pointer is NULL.
    pub(crate) const NONE: Self = Self(0);

    /// Returns the identifier of a request of this comm.
    #[inline]
    pub(crate) fn request(self, kind: Kind, (slot, serial): (u8, u32)) -> Self {
        let number = u64::from(serial) << SERIAL_SHIFT | u64::from(slot) << SLOT_SHIFT;
        Self(self.0 & OF_COMM | number | kind as u64)
    }

    /// Returns the identifier of a copied send of this comm.
    #[inline]
    pub(crate) fn sent(self, bytes: usize) -> Self {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.request(Kind::Sent, (0, bytes))
    }

    /// Returns the pointer that encodes this identifier.
    #[inline]
    pub(crate) fn to_pointer(self) -> *mut c_void {
        ptr::without_provenance_mut(usize::try_from(self.0).unwrap_or(0))
    }

    /// Decodes a pointer, if it names an object of one of these kinds.
    #[inline]
    pub(crate) fn of(pointer: *const c_void, kinds: &[Kind]) -> Option<Self> {
        let object = Self(u64::try_from(pointer.addr()).ok()?);
        kinds.iter().any(|kind| object.is(*kind)).then_some(object)
    }

    /// Decodes a pointer, if it names an object of this kind in the context of this object.
    #[inline]
    pub(crate) fn beside(self, pointer: *const c_void, kind: Kind) -> Option<Self> {
        let object = Self(u64::try_from(pointer.addr()).ok()?);
        let differs = (self.0 ^ object.0) & OF_CONTEXT;
        // One comparison for both fields.
        (differs == self.0 & OF_KIND ^ kind as u64).then_some(object)
    }

    #[inline]
    pub(crate) const fn is(self, kind: Kind) -> bool {
        self.0 & OF_KIND == kind as u64
    }

    #[inline]
    pub(crate) const fn context(self) -> u8 {
        let [context, ..] = (self.0 >> CONTEXT_SHIFT).to_le_bytes();
        context
    }

    /// Returns the number of an object that is not a request.
    #[inline]
    pub(crate) fn key(self) -> Key {
        Key(low(self.0 >> NUMBER_SHIFT))
    }

    /// Returns the index of a request's comm.
    #[inline]
    pub(crate) fn comm(self) -> usize {
        Places::<()>::place(self.key())
    }

    /// Returns the length of a copied send.
    #[inline]
    pub(crate) fn bytes(self) -> usize {
        usize::try_from(self.slot().1).unwrap_or(usize::MAX)
    }

    /// Returns the slot of a request, and its serial number.
    #[inline]
    pub(crate) fn slot(self) -> (u8, u32) {
        let [slot, ..] = (self.0 >> SLOT_SHIFT).to_le_bytes();
        (slot, low(self.0 >> SERIAL_SHIFT))
    }
}

/// Returns the low half of a word. With `to_le_bytes`, the compiler would assemble it byte by byte.
#[inline]
fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::{Kind, Opaque};
    use crate::places::Key;

    const ALL: [Kind; 9] = [
        Kind::Context,
        Kind::Listener,
        Kind::SendComm,
        Kind::ReceiveComm,
        Kind::Memory,
        Kind::Send,
        Kind::Receive,
        Kind::Flush,
        Kind::Sent,
    ];

    #[test]
    fn what_went_into_a_pointer_comes_out() {
        for (kind, context, number) in [
            (Kind::Context, 0, 0),
            (Kind::SendComm, 255, u32::MAX),
            (Kind::Memory, 17, 0x1234_5678),
        ] {
            let pointer = Opaque::new(kind, context, Key(number)).to_pointer();
            let object = Opaque::of(pointer, &[kind]).unwrap();
            assert_eq!((object.context(), object.key()), (context, Key(number)));
            for other in ALL {
                assert_eq!(Opaque::of(pointer, &[other]).is_some(), other == kind);
            }
        }
    }

    #[test]
    fn an_object_is_beside_those_of_its_context() {
        let comm = Opaque::new(Kind::SendComm, 0x5a, Key(0xffff_f123));
        for (context, kind) in [(0x5a, Kind::Memory), (0x5b, Kind::Memory), (0x5a, Kind::Flush)] {
            let pointer = Opaque::new(kind, context, Key(7)).to_pointer();
            let beside = comm.beside(pointer, Kind::Memory);
            let is_beside = (context, kind) == (0x5a, Kind::Memory);
            assert_eq!(beside.map(Opaque::key), is_beside.then_some(Key(7)));
        }
        assert_eq!(comm.beside(ptr::null(), Kind::Memory), None);
    }

    #[test]
    fn a_request_has_the_context_and_the_place_of_its_comm() {
        let comm = Opaque::new(Kind::SendComm, 0x5a, Key(0xffff_f123));
        for slot in [(0, 0), (0xc3, 0x1234_5678), (255, u32::MAX)] {
            let request = Opaque::of(comm.request(Kind::Send, slot).to_pointer(), &ALL).unwrap();
            assert!(request.is(Kind::Send));
            assert_eq!(
                (request.context(), request.comm(), request.slot()),
                (0x5a, 0x123, slot)
            );
        }
    }

    #[test]
    fn a_send_that_was_copied_has_its_length() {
        let comm = Opaque::new(Kind::SendComm, 7, Key(9));
        for bytes in [0, 8, 65_520] {
            let sent = Opaque::of(comm.sent(bytes).to_pointer(), &[Kind::Sent]).unwrap();
            assert_eq!((sent.context(), sent.bytes()), (7, bytes));
        }
    }

    #[test]
    fn null_and_the_mark_of_an_optional_completion_are_nothing() {
        for word in [0, 1, 0x10, 11, 0xfff0] {
            assert_eq!(Opaque::of(ptr::without_provenance(word), &ALL), None, "{word:#x}");
        }
    }
}
