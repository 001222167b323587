//! The id of the key that authenticates a handshake, and the tag that proves having the key at the end of a frame.

use core::fmt;
use core::hint::black_box;
use core::num::NonZeroU32;

use super::FrameHeader;

/// The bytes of a [`Tag`].
pub const TAG_BYTES: usize = 32;

/// The id of a key that both sides have. It is not a secret: frames carry it in clear.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(NonZeroU32);

impl KeyId {
    /// The id with this number; `None` for zero, which stands for no key on the wire.
    #[must_use]
    pub const fn new(raw: u32) -> Option<Self> {
        match NonZeroU32::new(raw) {
            Some(raw) => Some(Self(raw)),
            None => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn to_u32(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// The last bytes of an authenticated frame. Only a holder of the key can compute them from all bytes sent so far.
#[derive(Clone, Copy, Debug)]
pub struct Tag(pub [u8; TAG_BYTES]);

impl Tag {
    /// Splits a complete frame into the bytes that its tag covers, and the tag. For a frame without a tag, it returns all
    /// bytes and `None`.
    #[must_use]
    pub fn split(frame: &[u8]) -> (&[u8], Option<Self>) {
        let is_tagged = FrameHeader::parse(frame)
            .is_ok_and(|header| header.is_tagged && header.frame_bytes() == frame.len());
        match frame.split_last_chunk() {
            Some((covered, tag)) if is_tagged => (covered, Some(Self(*tag))),
            _ => (frame, None),
        }
    }
}

/// The comparison takes constant time, so that no peer can find the right tag byte by byte.
impl PartialEq for Tag {
    fn eq(&self, other: &Self) -> bool {
        let difference = self.0.iter().zip(&other.0).fold(0, |difference, (ours, theirs)| {
            // The black box hides the difference so far, so the compiler cannot end the loop early.
            black_box(difference | (ours ^ theirs))
        });
        difference == 0
    }
}

impl Eq for Tag {}

#[cfg(test)]
mod tests {
    use super::{KeyId, TAG_BYTES, Tag};

    #[test]
    fn tags_are_equal_where_every_bit_is() {
        let tag = Tag([0xa5; TAG_BYTES]);
        assert_eq!(tag, tag);
        for bit in 0..TAG_BYTES * 8 {
            let mut other = tag;
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(tag, other, "bit {bit}");
        }
    }

    #[test]
    fn what_has_no_tag_is_not_split() {
        for bytes in [&b""[..], b"DBLF", b"DBLF\x02\x05\x00\x00\x00\x00"] {
            assert_eq!(Tag::split(bytes), (bytes, None));
        }
        // Cut, it is not all there, and no byte of the header is taken for one.
        assert_eq!(Tag::split(b"DBLF\x02\x05\x00\x01\x00\x20").1, None);
        assert_eq!(KeyId::new(0), None);
    }
}
