//! The handle of a listener, which the application passes to a peer by any channel.

use core::fmt;
use core::mem::{offset_of, size_of};
use core::num::NonZeroU16;

use static_assertions::const_assert_eq;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned, native_endian};

use super::{
    AdvertisedRail, Field, InstanceId, Part, Rails, Reason, VERSION, VERSION_OLDEST, VersionRange, WireError,
};

/// The maximum bytes of a handle: the size that NCCL and similar libraries exchange between ranks.
pub const HANDLE_BYTES_MAX: usize = 128;

/// The bytes of the fixed part before the rails.
pub const HANDLE_HEADER_BYTES: usize = size_of::<HandleHeader>();

/// "DBLH".
const MAGIC: u32 = 0x4442_4c48;

/// Some rails are not in the handle: the Welcome frame has the complete list.
const FLAG_MORE: u8 = 1;

const RAILS_BYTES_MAX: usize = HANDLE_BYTES_MAX - HANDLE_HEADER_BYTES;

#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HandleHeader {
    magic: U32,
    version: u8,
    length: u8,
    flags: u8,
    rail_count: u8,
    port: U16,
    version_min: u8,
    reserved: u8,
    instance: U64,
}

const_assert_eq!(size_of::<HandleHeader>(), 20);
const_assert_eq!(size_of::<RawHandle>(), HANDLE_BYTES_MAX);

const LAYOUT: &[(Field, usize)] = &[
    (Field::Magic, offset_of!(HandleHeader, magic)),
    (Field::Version, offset_of!(HandleHeader, version)),
    (Field::Length, offset_of!(HandleHeader, length)),
    (Field::Flags, offset_of!(HandleHeader, flags)),
    (Field::RailCount, offset_of!(HandleHeader, rail_count)),
    (Field::Port, offset_of!(HandleHeader, port)),
    (Field::VersionMin, offset_of!(HandleHeader, version_min)),
    (Field::Reserved, offset_of!(HandleHeader, reserved)),
    (Field::Instance, offset_of!(HandleHeader, instance)),
];

impl HandleHeader {
    /// The versions that the listener speaks, at least one of which is ours.
    fn versions(&self) -> Result<VersionRange, WireError> {
        let wrong = |reason| error(Field::VersionMin, offset_of!(Self, version_min), reason);
        let Some(versions) = VersionRange::new(self.version_min, self.version) else {
            return Err(wrong(if self.version_min == 0 {
                Reason::Zero
            } else {
                Reason::Mismatch
            }));
        };
        match versions.common(VersionRange::OURS) {
            Some(_) => Ok(versions),
            None => Err(wrong(Reason::Unknown)),
        }
    }

    /// Refuses bits without a meaning in our versions.
    fn check_zeros(&self) -> Result<(), WireError> {
        if self.flags & !FLAG_MORE != 0 {
            return Err(error(Field::Flags, offset_of!(Self, flags), Reason::NotZero));
        }
        if self.reserved != 0 {
            return Err(error(
                Field::Reserved,
                offset_of!(Self, reserved),
                Reason::NotZero,
            ));
        }
        Ok(())
    }
}

fn error(field: Field, offset: usize, reason: Reason) -> WireError {
    WireError::new(Part::Handle, field, offset, reason)
}

/// Whether all bytes are zero, checked by words.
fn are_zero(bytes: &[u8]) -> bool {
    let Ok((words, rest)) = <[native_endian::U64]>::ref_from_prefix(bytes) else {
        return false;
    };
    words.iter().all(|word| word.get() == 0) && rest.iter().all(|byte| *byte == 0)
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct RawHandle {
    header: HandleHeader,
    rails: [u8; RAILS_BYTES_MAX],
}

/// The address of a listener, with the rails that reach it. A handle owns its bytes, and is valid by construction.
///
/// [`Handle::parse`] parses a handle in place.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    raw: RawHandle,
    /// The port in `raw`, checked.
    port: NonZeroU16,
    /// The instance in `raw`, checked.
    instance: InstanceId,
}

impl Handle {
    /// Starts a handle for the listener `instance`, which accepts handshakes on this TCP port.
    #[must_use]
    pub fn builder(port: NonZeroU16, instance: InstanceId) -> HandleBuilder {
        let header = HandleHeader {
            magic: U32::new(MAGIC),
            version: VERSION,
            length: 0,
            flags: 0,
            rail_count: 0,
            port: U16::new(port.get()),
            version_min: VERSION_OLDEST,
            reserved: 0,
            instance: U64::new(instance.to_u64()),
        };
        let raw = RawHandle {
            header,
            rails: [0; RAILS_BYTES_MAX],
        };
        HandleBuilder {
            handle: Self { raw, port, instance },
            rails_bytes: 0,
        }
    }

    /// Parses a handle in place, and checks all of it.
    ///
    /// The buffer may be longer than the handle, up to 128 bytes, if the rest is zero.
    ///
    /// # Errors
    /// The first wrong field, with its offset.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<HandleRef<'_>, WireError> {
        match Self::parse_plain(bytes) {
            Some(handle) => Ok(handle),
            None => Self::parse_by_field(bytes),
        }
    }

    /// The fast path: parses a handle of our version whose rails are all of one family, as nearly every handle is. `None`
    /// for any other handle, valid or not.
    #[inline]
    fn parse_plain(bytes: &[u8]) -> Option<HandleRef<'_>> {
        let (header, rest) = HandleHeader::ref_from_prefix(bytes).ok()?;
        let rails_bytes = usize::from(header.length).checked_sub(HANDLE_HEADER_BYTES)?;
        let is_plain = bytes.len() <= HANDLE_BYTES_MAX
            && header.magic.get() == MAGIC
            && header.version == VERSION
            // The two bytes are adjacent, so this is one comparison.
            && u16::from_be_bytes([header.version_min, header.reserved]) == u16::from_be_bytes([VERSION_OLDEST, 0])
            && header.flags <= FLAG_MORE;
        if !is_plain {
            return None;
        }
        let (listed, padding) = rest.split_at_checked(rails_bytes)?;
        if !padding.is_empty() && !are_zero(padding) {
            return None;
        }
        Some(HandleRef {
            port: NonZeroU16::new(header.port.get())?,
            instance: InstanceId::new(header.instance.get())?,
            versions: VersionRange::OURS,
            more: header.flags == FLAG_MORE,
            rails: Rails::parse_plain(listed, header.rail_count)?,
            bytes: bytes.get(..usize::from(header.length))?,
        })
    }

    /// Checks one field after the other, and names the first wrong field.
    #[cold]
    fn parse_by_field(bytes: &[u8]) -> Result<HandleRef<'_>, WireError> {
        let Ok((header, _)) = HandleHeader::ref_from_prefix(bytes) else {
            return Err(WireError::truncated(Part::Handle, LAYOUT, 0, bytes.len()));
        };
        if header.magic.get() != MAGIC {
            let offset = offset_of!(HandleHeader, magic);
            return Err(error(Field::Magic, offset, Reason::Unknown));
        }
        if bytes.len() > HANDLE_BYTES_MAX {
            return Err(error(Field::Trailing, HANDLE_BYTES_MAX, Reason::TooLong));
        }
        let versions = header.versions()?;
        // Fields that must be zero in our versions may have a meaning in a newer version.
        let from_newer = header.version > VERSION;
        if !from_newer {
            header.check_zeros()?;
        }
        if header.rail_count == 0 {
            let offset = offset_of!(HandleHeader, rail_count);
            return Err(error(Field::RailCount, offset, Reason::Zero));
        }
        let Some(port) = NonZeroU16::new(header.port.get()) else {
            return Err(error(Field::Port, offset_of!(HandleHeader, port), Reason::Zero));
        };
        let Some(instance) = InstanceId::new(header.instance.get()) else {
            let offset = offset_of!(HandleHeader, instance);
            return Err(error(Field::Instance, offset, Reason::Zero));
        };
        let wrong_length = |reason| error(Field::Length, offset_of!(HandleHeader, length), reason);
        let length = usize::from(header.length);
        if !(HANDLE_HEADER_BYTES..=HANDLE_BYTES_MAX).contains(&length) {
            return Err(wrong_length(Reason::OutOfRange));
        }
        let present = bytes.get(..length).unwrap_or(bytes);
        let listed = present.get(HANDLE_HEADER_BYTES..).unwrap_or_default();
        let count = header.rail_count;
        let (rails, after) = Rails::parse(Part::Handle, HANDLE_HEADER_BYTES, listed, count, from_newer)?;
        if bytes.len() < length {
            return Err(wrong_length(Reason::Truncated));
        }
        if !after.is_empty() && !from_newer {
            return Err(wrong_length(Reason::Mismatch));
        }
        let padding = bytes.get(length..).unwrap_or_default();
        if let Some(position) = padding.iter().position(|byte| *byte != 0) {
            let offset = length.saturating_add(position);
            return Err(error(Field::Trailing, offset, Reason::NotZero));
        }
        Ok(HandleRef {
            port,
            instance,
            versions,
            more: header.flags & FLAG_MORE != 0,
            rails,
            bytes: present,
        })
    }

    /// Parses a handle, and copies it.
    ///
    /// # Errors
    /// As [`Handle::parse`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        Ok(Self::parse(bytes)?.to_handle())
    }

    /// The bytes of the handle, without padding.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.as_padded_bytes()
            .get(..usize::from(self.raw.header.length))
            .unwrap_or_default()
    }

    /// The bytes of the handle, padded with zeros to 128.
    #[must_use]
    pub fn as_padded_bytes(&self) -> &[u8; HANDLE_BYTES_MAX] {
        zerocopy::transmute_ref!(&self.raw)
    }

    /// A handle of the same listener with at most `bytes_max` bytes. The last rails are left out as necessary; a connecting peer gets
    /// them in the handshake.
    ///
    /// # Errors
    /// There is no room for any rail.
    pub fn shortened(&self, bytes_max: usize) -> Result<Self, NoRails> {
        if self.as_bytes().len() <= bytes_max {
            return Ok(*self);
        }
        let mut builder = Self::builder(self.port, self.instance);
        let header = &mut builder.handle.raw.header;
        (header.version, header.version_min) = (self.raw.header.version, self.raw.header.version_min);
        header.flags = FLAG_MORE;
        for rail in self.rails().iter() {
            let entry = rail.encode().len();
            let bytes = HANDLE_HEADER_BYTES.saturating_add(builder.rails_bytes);
            if bytes.saturating_add(entry) > bytes_max {
                break;
            }
            let _ = builder.push(&rail);
        }
        builder.finish()
    }

    /// Returns the TCP port on which the listener accepts handshakes, on the addresses of all rails.
    #[must_use]
    pub const fn port(&self) -> NonZeroU16 {
        self.port
    }

    /// The listener's instance, which the Hello frame names.
    #[must_use]
    pub const fn instance(&self) -> InstanceId {
        self.instance
    }

    /// Whether some rails did not fit.
    #[must_use]
    pub const fn has_more(&self) -> bool {
        self.raw.header.flags & FLAG_MORE != 0
    }

    /// The rails in the handle.
    #[must_use]
    pub fn rails(&self) -> Rails<'_> {
        Rails::from_checked(&self.raw.rails, self.raw.header.rail_count)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("port", &self.port())
            .field("instance", &self.instance())
            .field("has_more", &self.has_more())
            .field("rails", &self.rails())
            .finish()
    }
}

/// A checked handle, parsed in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandleRef<'a> {
    port: NonZeroU16,
    instance: InstanceId,
    versions: VersionRange,
    more: bool,
    rails: Rails<'a>,
    bytes: &'a [u8],
}

impl<'a> HandleRef<'a> {
    /// Returns the TCP port on which the listener accepts handshakes, on the addresses of all rails.
    #[must_use]
    pub const fn port(&self) -> NonZeroU16 {
        self.port
    }

    /// The listener's instance, which the Hello frame names.
    #[must_use]
    pub const fn instance(&self) -> InstanceId {
        self.instance
    }

    /// The versions that the listener speaks, at least one of which is ours.
    #[must_use]
    pub const fn versions(&self) -> VersionRange {
        self.versions
    }

    /// Whether the listener has more rails. If so, the Welcome frame has the complete list.
    #[must_use]
    pub const fn has_more(&self) -> bool {
        self.more
    }

    /// The checked rails.
    #[must_use]
    pub const fn rails(&self) -> Rails<'a> {
        self.rails
    }

    /// The bytes of the handle without padding.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// A copy that owns its bytes.
    #[must_use]
    pub fn to_handle(&self) -> Handle {
        let mut raw = RawHandle {
            header: HandleHeader::new_zeroed(),
            rails: [0; RAILS_BYTES_MAX],
        };
        let room = raw.header.as_mut_bytes().iter_mut().chain(&mut raw.rails);
        for (to, from) in room.zip(self.bytes) {
            *to = *from;
        }
        Handle {
            raw,
            port: self.port,
            instance: self.instance,
        }
    }
}

/// Whether a rail fitted into a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[expect(clippy::exhaustive_enums, reason = "it fits or it does not")]
pub enum Fit {
    /// The rail is in the handle.
    Included,
    /// There was no room. The handle says that the listener has more rails.
    LeftOut,
}

/// The error of a handle without a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRails;

impl fmt::Display for NoRails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a handle needs at least one rail: nobody could reach the listener")
    }
}

impl core::error::Error for NoRails {}

/// Collects the rails of a handle, the preferred ones first.
#[derive(Clone, Debug)]
pub struct HandleBuilder {
    handle: Handle,
    rails_bytes: usize,
}

impl HandleBuilder {
    /// Adds a rail if there is room for it.
    pub fn push(&mut self, rail: &AdvertisedRail) -> Fit {
        let entry = rail.encode();
        let end = self.rails_bytes.saturating_add(entry.len());
        let Some(room) = self.handle.raw.rails.get_mut(self.rails_bytes..end) else {
            self.handle.raw.header.flags |= FLAG_MORE;
            return Fit::LeftOut;
        };
        room.copy_from_slice(&entry);
        self.rails_bytes = end;
        let header = &mut self.handle.raw.header;
        header.rail_count = header.rail_count.saturating_add(1);
        Fit::Included
    }

    /// The handle.
    ///
    /// # Errors
    /// No rail was added.
    pub fn finish(mut self) -> Result<Handle, NoRails> {
        if self.handle.raw.header.rail_count == 0 {
            return Err(NoRails);
        }
        let length = HANDLE_HEADER_BYTES.saturating_add(self.rails_bytes);
        self.handle.raw.header.length = u8::try_from(length).unwrap_or(u8::MAX);
        Ok(self.handle)
    }
}

#[cfg(test)]
mod tests;
