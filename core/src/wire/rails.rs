//! Tagged rails: the encoding of one address of a listener, and of lists of addresses.
//!
//! | bytes | field |
//! |---|---|
//! | 1 | tag: length class in bits 7 to 5, kind in bits 4 to 0 |
//! | 1 | prefix length in bits |
//! | 1 | speed class |
//! | 4 or 16 | address |
//! | 0 or 16 | GID, only if it does not follow from the address |
//!
//! The speed class is included because a pair of rails is ranked by its slower end, and only the peer knows the speed of
//! its rail.

use core::fmt;
use core::mem::{offset_of, size_of};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use heapless::Vec;
use static_assertions::const_assert_eq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Field, Part, Reason, WireError};
use crate::advertised_rail::{AdvertisedRail, NotAdvertisable, RAILS_MAX, SpeedClass};
use crate::{Gid, IpPrefix};

/// The maximum bytes of a rail in this version: IPv6 with an explicit GID.
pub const RAIL_BYTES_MAX: usize = size_of::<Ipv6Rail>() + GID_BYTES;

const GID_BYTES: usize = 16;

/// The position of the length class in a tag. The class gives the length of the entry for known and unknown kinds.
const CLASS_SHIFT: u32 = 5;
const CLASS_EXPLICIT: u8 = 7;

const KIND_IPV4: u8 = 1;
const KIND_IPV6: u8 = 2;

const TAG_IPV4: u8 = KIND_IPV4;
const TAG_IPV6: u8 = 1 << CLASS_SHIFT | KIND_IPV6;
const TAG_IPV4_GID: u8 = 2 << CLASS_SHIFT | KIND_IPV4;
const TAG_IPV6_GID: u8 = 3 << CLASS_SHIFT | KIND_IPV6;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Ipv4Rail {
    tag: u8,
    prefix_bits: u8,
    speed: u8,
    address: [u8; 4],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Ipv6Rail {
    tag: u8,
    prefix_bits: u8,
    speed: u8,
    address: [u8; 16],
}

/// The start of an entry with an explicit length, whose kind only newer versions know. All other entries begin with the tag, too.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ExplicitRail {
    tag: u8,
    length: u8,
}

const IPV4_LAYOUT: &[(Field, usize)] = &[
    (Field::RailTag, offset_of!(Ipv4Rail, tag)),
    (Field::RailPrefix, offset_of!(Ipv4Rail, prefix_bits)),
    (Field::RailSpeed, offset_of!(Ipv4Rail, speed)),
    (Field::RailAddress, offset_of!(Ipv4Rail, address)),
    (Field::RailGid, size_of::<Ipv4Rail>()),
];

const IPV6_LAYOUT: &[(Field, usize)] = &[
    (Field::RailTag, offset_of!(Ipv6Rail, tag)),
    (Field::RailPrefix, offset_of!(Ipv6Rail, prefix_bits)),
    (Field::RailSpeed, offset_of!(Ipv6Rail, speed)),
    (Field::RailAddress, offset_of!(Ipv6Rail, address)),
    (Field::RailGid, size_of::<Ipv6Rail>()),
];

/// Fields of an entry of any kind, known or not.
const ENTRY_LAYOUT: &[(Field, usize)] = &[
    (Field::RailTag, offset_of!(ExplicitRail, tag)),
    (Field::RailLength, offset_of!(ExplicitRail, length)),
];

impl Ipv4Rail {
    /// A quick check: if it succeeds, `read_entry` accepts the rail. It fails for networks 0 and 224 to 255, in which
    /// `read_entry` has to distinguish valid and invalid addresses.
    #[inline]
    const fn is_plain(&self) -> bool {
        let [network, ..] = self.address;
        self.tag == TAG_IPV4 && self.prefix_bits <= 32 && matches!(network, 1..=223)
    }
}

impl Ipv6Rail {
    /// A quick check: if it succeeds, `read_entry` accepts the rail. It fails for a first byte of zero, as in an
    /// unspecified or IPv4-mapped address, and for 0xff, which begins a multicast address.
    #[inline]
    const fn is_plain(&self) -> bool {
        let [network, ..] = self.address;
        self.tag == TAG_IPV6 && self.prefix_bits <= 128 && matches!(network, 1..=0xfe)
    }
}

const_assert_eq!(size_of::<Ipv4Rail>(), 7);
const_assert_eq!(size_of::<Ipv6Rail>(), 19);
const_assert_eq!(size_of::<ExplicitRail>(), 2);
const_assert_eq!(RAIL_BYTES_MAX, 35);

impl AdvertisedRail {
    /// The bytes of the rail on the wire.
    pub(crate) fn encode(&self) -> Vec<u8, RAIL_BYTES_MAX> {
        let explicit_gid = self.gid() != Gid::from_ip(self.address().address());
        let mut bytes = Vec::new();
        let (prefix_bits, speed) = (self.address().prefix_bits(), self.speed().0);
        // The capacity is that of the longest form, so nothing here can be cut.
        let _ = match self.address().address() {
            IpAddr::V4(v4) => {
                let tag = if explicit_gid { TAG_IPV4_GID } else { TAG_IPV4 };
                let rail = Ipv4Rail {
                    tag,
                    prefix_bits,
                    speed,
                    address: v4.octets(),
                };
                bytes.extend_from_slice(rail.as_bytes())
            }
            IpAddr::V6(v6) => {
                let tag = if explicit_gid { TAG_IPV6_GID } else { TAG_IPV6 };
                let rail = Ipv6Rail {
                    tag,
                    prefix_bits,
                    speed,
                    address: v6.octets(),
                };
                bytes.extend_from_slice(rail.as_bytes())
            }
        };
        if explicit_gid {
            let _ = bytes.extend_from_slice(&self.gid().0);
        }
        bytes
    }
}

/// More rails than a frame may list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TooManyRails {
    /// The number of rails.
    pub rails: usize,
}

impl fmt::Display for TooManyRails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rails, but at most {RAILS_MAX} may be advertised",
            self.rails
        )
    }
}

impl core::error::Error for TooManyRails {}

/// Parses the entry at the start of `bytes`, which starts at `base` of `part`. Also returns the remaining bytes. The entry is
/// `None` if its kind is unknown.
fn read_entry(part: Part, base: usize, bytes: &[u8]) -> Result<(Option<AdvertisedRail>, &[u8]), WireError> {
    let Some(&tag) = bytes.first() else {
        return Err(WireError::truncated(part, ENTRY_LAYOUT, base, 0));
    };
    let layout = layout_of(tag);
    let wrong = |field, reason| WireError::at(part, layout, base, field, reason);
    let truncated = || match tag {
        TAG_IPV4 | TAG_IPV6 | TAG_IPV4_GID | TAG_IPV6_GID => {
            WireError::truncated(part, layout, base, bytes.len())
        }
        // The fields of an unknown kind have no names.
        _ => wrong(Field::RailTag, Reason::Truncated),
    };
    let length = entry_length(tag, bytes).map_err(|(field, reason)| {
        // The length class is checked before the kind.
        WireError::at(part, ENTRY_LAYOUT, base, field, reason)
    })?;
    let (entry, rest) = bytes.split_at_checked(length).ok_or_else(truncated)?;
    let (address, prefix_bits, speed, gid) = match tag {
        TAG_IPV4 | TAG_IPV4_GID => {
            let (rail, gid) = Ipv4Rail::read_from_prefix(entry).map_err(|_| truncated())?;
            (
                IpAddr::V4(Ipv4Addr::from(rail.address)),
                rail.prefix_bits,
                rail.speed,
                gid,
            )
        }
        TAG_IPV6 | TAG_IPV6_GID => {
            let (rail, gid) = Ipv6Rail::read_from_prefix(entry).map_err(|_| truncated())?;
            (
                IpAddr::V6(Ipv6Addr::from(rail.address)),
                rail.prefix_bits,
                rail.speed,
                gid,
            )
        }
        _ => return Ok((None, rest)),
    };
    let derived = Gid::from_ip(address);
    let gid = match <[u8; GID_BYTES]>::try_from(gid) {
        Ok(explicit) if Gid(explicit) == derived => {
            return Err(wrong(Field::RailGid, Reason::NotCanonical));
        }
        Ok(explicit) => Gid(explicit),
        // Without an explicit GID, no bytes are left.
        Err(_) => derived,
    };
    let address =
        IpPrefix::new(address, prefix_bits).map_err(|_| wrong(Field::RailPrefix, Reason::OutOfRange))?;
    let rail = AdvertisedRail::new(address, gid, SpeedClass(speed)).map_err(|error| match error {
        NotAdvertisable::NotUnicast => wrong(Field::RailAddress, Reason::NotUnicast),
        NotAdvertisable::MappedIpv4 => wrong(Field::RailAddress, Reason::NotCanonical),
        NotAdvertisable::ZeroGid => wrong(Field::RailGid, Reason::Zero),
    })?;
    Ok((Some(rail), rest))
}

/// The fields of an entry of this tag.
#[inline]
const fn layout_of(tag: u8) -> &'static [(Field, usize)] {
    match tag {
        TAG_IPV4 | TAG_IPV4_GID => IPV4_LAYOUT,
        TAG_IPV6 | TAG_IPV6_GID => IPV6_LAYOUT,
        _ => ENTRY_LAYOUT,
    }
}

/// The length of the entry with this tag, of a known or unknown kind.
#[inline]
fn entry_length(tag: u8, bytes: &[u8]) -> Result<usize, (Field, Reason)> {
    Ok(match tag >> CLASS_SHIFT {
        0 => size_of::<Ipv4Rail>(),
        1 => size_of::<Ipv6Rail>(),
        2 => size_of::<Ipv4Rail>().saturating_add(GID_BYTES),
        3 => RAIL_BYTES_MAX,
        CLASS_EXPLICIT => match ExplicitRail::ref_from_prefix(bytes) {
            Err(_) => return Err((Field::RailLength, Reason::Truncated)),
            Ok((rail, _)) if usize::from(rail.length) < size_of::<ExplicitRail>() => {
                return Err((Field::RailLength, Reason::OutOfRange));
            }
            Ok((rail, _)) => usize::from(rail.length),
        },
        _ => return Err((Field::RailTag, Reason::Unknown)),
    })
}

/// A checked list of rails, parsed in place.
#[derive(Clone, Copy)]
pub struct Rails<'a> {
    /// Starts with `count` complete entries, each of which `read_entry` accepted.
    bytes: &'a [u8],
    count: u8,
}

impl<'a> Rails<'a> {
    /// Checks `count` entries at the start of `bytes`, which start at `base` of `part`.
    ///
    /// Returns them and the remaining bytes. If `from_newer` says that the sender speaks a newer
    /// version, entries of unknown kinds are skipped; otherwise they are an error.
    pub(crate) fn parse(
        part: Part,
        base: usize,
        bytes: &'a [u8],
        count: u8,
        from_newer: bool,
    ) -> Result<(Self, &'a [u8]), WireError> {
        let mut rest = bytes;
        for _ in 0..count {
            let start = base.saturating_add(bytes.len().saturating_sub(rest.len()));
            let (rail, after) = read_entry(part, start, rest)?;
            if rail.is_none() && !from_newer {
                let field = Field::RailTag;
                return Err(WireError::at(part, ENTRY_LAYOUT, start, field, Reason::Unknown));
            }
            rest = after;
        }
        let taken = bytes.len().saturating_sub(rest.len());
        Ok((
            Self {
                bytes: bytes.get(..taken).unwrap_or_default(),
                count,
            },
            rest,
        ))
    }

    /// The fast path: takes `count` entries that fill `bytes`, if they are of one family, pass the quick check, and have
    /// no explicit GIDs. The check reads so few words that trying it first pays off. `None` for any other list, valid or
    /// not.
    #[inline]
    pub(crate) fn parse_plain(bytes: &'a [u8], count: u8) -> Option<Self> {
        let entries = usize::from(count);
        let are_plain = match *bytes.first()? {
            TAG_IPV4 => <[Ipv4Rail]>::ref_from_bytes_with_elems(bytes, entries)
                .is_ok_and(|rails| rails.iter().all(Ipv4Rail::is_plain)),
            TAG_IPV6 => <[Ipv6Rail]>::ref_from_bytes_with_elems(bytes, entries)
                .is_ok_and(|rails| rails.iter().all(Ipv6Rail::is_plain)),
            _ => false,
        };
        are_plain.then_some(Self { bytes, count })
    }

    /// Takes `count` entries that were checked before. Other bytes may follow them.
    pub(crate) const fn from_checked(bytes: &'a [u8], count: u8) -> Self {
        Self { bytes, count }
    }

    /// The rails, in the order of the sender's preference.
    #[must_use]
    pub const fn iter(&self) -> RailIter<'a> {
        RailIter {
            bytes: self.bytes,
            left: self.count,
        }
    }
}

impl<'a> IntoIterator for Rails<'a> {
    type Item = AdvertisedRail;
    type IntoIter = RailIter<'a>;

    fn into_iter(self) -> RailIter<'a> {
        self.iter()
    }
}

impl PartialEq for Rails<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Rails<'_> {}

impl fmt::Debug for Rails<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// An iterator over the rails of a checked list.
#[derive(Clone, Debug)]
pub struct RailIter<'a> {
    bytes: &'a [u8],
    left: u8,
}

impl Iterator for RailIter<'_> {
    type Item = AdvertisedRail;

    fn next(&mut self) -> Option<AdvertisedRail> {
        while let Some(left) = self.left.checked_sub(1) {
            // Every entry was accepted when the list was parsed, so this does not fail.
            let Ok((rail, rest)) = read_entry(Part::Handle, 0, self.bytes) else {
                break;
            };
            self.bytes = rest;
            self.left = left;
            if rail.is_some() {
                return rail;
            }
        }
        None
    }
}

impl core::iter::FusedIterator for RailIter<'_> {}

#[cfg(test)]
mod tests {
    use super::{GID_BYTES, Rails, TAG_IPV4, TAG_IPV4_GID, TAG_IPV6, TAG_IPV6_GID};
    use crate::wire::{Field, Part, Reason};

    /// Offset of the entries in their frame.
    const BASE: u16 = 24;

    fn v4(tag: u8) -> std::vec::Vec<u8> {
        std::vec![tag, 24, 3, 10, 0, 0, 1]
    }

    fn v6(tag: u8) -> std::vec::Vec<u8> {
        let mut bytes = std::vec![tag, 64, 3];
        bytes.extend(core::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).octets());
        bytes
    }

    fn with_gid(mut bytes: std::vec::Vec<u8>, gid: u8) -> std::vec::Vec<u8> {
        bytes.extend([gid; GID_BYTES]);
        bytes
    }

    /// The field, its offset in the entry, and the reason; of the second of two entries.
    fn fault(entry: &[u8]) -> Option<(Field, u16, Reason)> {
        let bytes = [&v4(TAG_IPV4)[..], entry].concat();
        let error = Rails::parse(Part::Hello, BASE.into(), &bytes, 2, false).err()?;
        assert_eq!(error.part, Part::Hello);
        Some((error.field, error.offset - BASE - 7, error.reason))
    }

    #[test]
    fn every_truncation_says_what_is_cut() {
        let entries = [
            (v4(TAG_IPV4), 7),
            (v6(TAG_IPV6), 19),
            (with_gid(v4(TAG_IPV4_GID), 9), 7),
            (with_gid(v6(TAG_IPV6_GID), 9), 19),
        ];
        for (entry, gid_offset) in entries {
            assert_eq!(fault(&entry), None);
            for length in 0..entry.len() {
                let (field, offset) = match length {
                    0 => (Field::RailTag, 0),
                    1 => (Field::RailPrefix, 1),
                    2 => (Field::RailSpeed, 2),
                    _ if length < usize::from(gid_offset) => (Field::RailAddress, 3),
                    _ => (Field::RailGid, gid_offset),
                };
                let expected = Some((field, offset, Reason::Truncated));
                assert_eq!(fault(&entry[..length]), expected, "{length} of {entry:?}");
            }
        }
    }

    #[test]
    fn every_wrong_byte_has_its_field() {
        let derived = [&v4(TAG_IPV4_GID)[..], &[0; 10], &[0xff, 0xff, 10, 0, 0, 1]].concat();
        let changed = |mut entry: std::vec::Vec<u8>, byte: usize, value| {
            entry[byte] = value;
            entry
        };
        for (entry, expected) in [
            (
                changed(v4(TAG_IPV4), 1, 33),
                (Field::RailPrefix, 1, Reason::OutOfRange),
            ),
            (
                changed(v6(TAG_IPV6), 1, 129),
                (Field::RailPrefix, 1, Reason::OutOfRange),
            ),
            (
                changed(v4(TAG_IPV4), 3, 224),
                (Field::RailAddress, 3, Reason::NotUnicast),
            ),
            (
                changed(v6(TAG_IPV6), 3, 0xff),
                (Field::RailAddress, 3, Reason::NotUnicast),
            ),
            (derived, (Field::RailGid, 7, Reason::NotCanonical)),
            (with_gid(v4(TAG_IPV4_GID), 0), (Field::RailGid, 7, Reason::Zero)),
            (with_gid(v6(TAG_IPV6_GID), 0), (Field::RailGid, 19, Reason::Zero)),
            (std::vec![0; 7], (Field::RailTag, 0, Reason::Unknown)),
            (std::vec![0; 6], (Field::RailTag, 0, Reason::Truncated)),
            (std::vec![4 << 5; 7], (Field::RailTag, 0, Reason::Unknown)),
            (std::vec![7 << 5], (Field::RailLength, 1, Reason::Truncated)),
            (std::vec![7 << 5, 1], (Field::RailLength, 1, Reason::OutOfRange)),
            (std::vec![7 << 5, 3], (Field::RailTag, 0, Reason::Truncated)),
            (std::vec![7 << 5, 2], (Field::RailTag, 0, Reason::Unknown)),
        ] {
            assert_eq!(fault(&entry), Some(expected), "{entry:?}");
        }
    }
}
