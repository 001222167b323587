//! Hello and Welcome: the instance, versions and rails of each side.

use core::mem::{offset_of, size_of};

use heapless::Vec;
use static_assertions::{const_assert, const_assert_eq};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    AdvertisedRail, FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES, Field, InstanceId, KeyId, Nonce, Part,
    RAIL_BYTES_MAX, RAILS_MAX, Rails, Reason, TAG_BYTES, VERSION, VERSION_AUTHENTICATED, VersionRange,
    WireError,
};

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHello {
    version_min: u8,
    version_max: u8,
    rail_count: u8,
    reserved: u8,
    instance: U64,
    listener: U64,
    nonce: [u8; 16],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawWelcome {
    version: u8,
    rail_count: u8,
    reserved: U16,
    instance: U64,
    nonce: [u8; 16],
}

const_assert_eq!(size_of::<RawHello>(), 36);
const_assert_eq!(size_of::<RawWelcome>(), 28);

/// The bytes of a key id. A Hello has it after its rails, a Welcome before them.
const KEY_ID_BYTES: usize = size_of::<U32>();

/// The body length of a Hello of the oldest version, without rails.
pub(crate) const HELLO_BYTES_MIN: usize = size_of::<RawHello>();

/// The body length of a Welcome in `version`, without rails.
pub(crate) const fn welcome_bytes(version: u8) -> usize {
    if version < VERSION_AUTHENTICATED {
        size_of::<RawWelcome>()
    } else {
        size_of::<RawWelcome>().saturating_add(KEY_ID_BYTES)
    }
}

/// The maximum bytes of a list of rails.
pub(crate) const RAIL_LIST_BYTES_MAX: usize = RAILS_MAX * RAIL_BYTES_MAX;

/// The maximum body lengths of this version.
const HELLO_BYTES_MAX: usize = HELLO_BYTES_MIN + RAIL_LIST_BYTES_MAX + KEY_ID_BYTES;
const WELCOME_BYTES_MAX: usize = welcome_bytes(VERSION) + RAIL_LIST_BYTES_MAX;

const_assert!(HELLO_BYTES_MAX <= FRAME_BODY_BYTES_MAX);
const_assert!(WELCOME_BYTES_MAX <= HELLO_BYTES_MAX);
const_assert!(WELCOME_BYTES_MAX + TAG_BYTES <= FRAME_BODY_BYTES_MAX);

const HELLO_LAYOUT: &[(Field, usize)] = &[
    (Field::VersionMin, offset_of!(RawHello, version_min)),
    (Field::Version, offset_of!(RawHello, version_max)),
    (Field::RailCount, offset_of!(RawHello, rail_count)),
    (Field::Reserved, offset_of!(RawHello, reserved)),
    (Field::Instance, offset_of!(RawHello, instance)),
    (Field::ListenerInstance, offset_of!(RawHello, listener)),
    (Field::Nonce, offset_of!(RawHello, nonce)),
];

const WELCOME_LAYOUT: &[(Field, usize)] = &[
    (Field::Version, offset_of!(RawWelcome, version)),
    (Field::RailCount, offset_of!(RawWelcome, rail_count)),
    (Field::Reserved, offset_of!(RawWelcome, reserved)),
    (Field::Instance, offset_of!(RawWelcome, instance)),
    (Field::Nonce, offset_of!(RawWelcome, nonce)),
    (Field::KeyId, size_of::<RawWelcome>()),
];

/// The first frame of the initiator, without its rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The versions that the initiator speaks.
    pub versions: VersionRange,
    /// The initiator's instance.
    pub initiator: InstanceId,
    /// The listener in the handle; `None` if the initiator has only an address.
    pub listener: Option<InstanceId>,
    /// The initiator's nonce.
    pub nonce: Nonce,
    /// The key that proves the initiator's frames from now on; `None` without authentication. Version 1 has no
    /// field for it.
    pub key: Option<KeyId>,
}

/// The responder's answer, without its rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version of the rest of the handshake.
    pub version: u8,
    /// The listener's instance.
    pub listener: InstanceId,
    /// The listener's nonce.
    pub nonce: Nonce,
    /// The initiator's key, which the listener has, too. Version 1 has no field for it.
    pub key: Option<KeyId>,
}

/// A Hello with the initiator's rails, parsed in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HelloRef<'a> {
    /// The fixed part.
    pub hello: Hello,
    /// The complete list of the initiator's rails.
    pub rails: Rails<'a>,
}

/// A Welcome with the responder's rails, parsed in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WelcomeRef<'a> {
    /// The fixed part.
    pub welcome: Welcome,
    /// The complete list of the responder's rails.
    pub rails: Rails<'a>,
}

impl Hello {
    /// Encodes the body, with the complete list of the initiator's rails.
    pub(crate) fn encode(&self, rails: &Vec<AdvertisedRail, RAILS_MAX>) -> Vec<u8, HELLO_BYTES_MAX> {
        let raw = RawHello {
            version_min: self.versions.oldest(),
            version_max: self.versions.newest(),
            rail_count: rail_count(rails),
            reserved: 0,
            instance: U64::new(self.initiator.to_u64()),
            listener: U64::new(self.listener.map_or(0, InstanceId::to_u64)),
            nonce: self.nonce.0,
        };
        let mut body = with_rails(raw.as_bytes(), rails);
        if self.versions.newest() >= VERSION_AUTHENTICATED {
            // The capacity is that of the longest body, so nothing here can be cut.
            let _ = body.extend_from_slice(raw_key(self.key).as_bytes());
        }
        body
    }
}

impl Welcome {
    /// Encodes the body, with the complete list of the responder's rails.
    pub(crate) fn encode(&self, rails: &Vec<AdvertisedRail, RAILS_MAX>) -> Vec<u8, HELLO_BYTES_MAX> {
        let raw = RawWelcome {
            version: self.version,
            rail_count: rail_count(rails),
            reserved: U16::ZERO,
            instance: U64::new(self.listener.to_u64()),
            nonce: self.nonce.0,
        };
        let mut fixed = Vec::<u8, { welcome_bytes(VERSION) }>::new();
        // The capacity suffices here, too.
        let _ = fixed.extend_from_slice(raw.as_bytes());
        if self.version >= VERSION_AUTHENTICATED {
            let _ = fixed.extend_from_slice(raw_key(self.key).as_bytes());
        }
        with_rails(&fixed, rails)
    }
}

impl<'a> HelloRef<'a> {
    /// Parses the body.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let wrong = |field, offset: usize, reason| {
            WireError::new(
                Part::Hello,
                field,
                FRAME_HEADER_BYTES.saturating_add(offset),
                reason,
            )
        };
        let Ok((raw, listed)) = RawHello::ref_from_prefix(body) else {
            return Err(WireError::truncated(
                Part::Hello,
                HELLO_LAYOUT,
                FRAME_HEADER_BYTES,
                body.len(),
            ));
        };
        let Some(versions) = VersionRange::new(raw.version_min, raw.version_max) else {
            let reason = if raw.version_min == 0 {
                Reason::Zero
            } else {
                Reason::Mismatch
            };
            return Err(wrong(
                Field::VersionMin,
                offset_of!(RawHello, version_min),
                reason,
            ));
        };
        // Fields that must be zero or absent in our versions may have a meaning in a newer version.
        let from_newer = versions.newest() > VERSION;
        if raw.reserved != 0 && !from_newer {
            return Err(wrong(
                Field::Reserved,
                offset_of!(RawHello, reserved),
                Reason::NotZero,
            ));
        }
        let Some(initiator) = InstanceId::new(raw.instance.get()) else {
            return Err(wrong(
                Field::Instance,
                offset_of!(RawHello, instance),
                Reason::Zero,
            ));
        };
        check_rail_count(Part::Hello, raw.rail_count, offset_of!(RawHello, rail_count))?;
        let base = FRAME_HEADER_BYTES.saturating_add(size_of::<RawHello>());
        let (rails, after) = Rails::parse(Part::Hello, base, listed, raw.rail_count, from_newer)?;
        let key_offset = body.len().saturating_sub(after.len());
        let (key, after) = if versions.newest() < VERSION_AUTHENTICATED {
            (None, after)
        } else {
            let key = read_key(after).ok_or_else(|| wrong(Field::KeyId, key_offset, Reason::Truncated))?;
            (key.0, key.1)
        };
        if !after.is_empty() && !from_newer {
            return Err(wrong(
                Field::Trailing,
                body.len().saturating_sub(after.len()),
                Reason::TooLong,
            ));
        }
        let hello = Hello {
            versions,
            initiator,
            listener: InstanceId::new(raw.listener.get()),
            nonce: Nonce(raw.nonce),
            key,
        };
        Ok(Self { hello, rails })
    }
}

impl<'a> WelcomeRef<'a> {
    /// Parses the body of a frame in `version`.
    pub(crate) fn parse(version: u8, body: &'a [u8]) -> Result<Self, WireError> {
        let wrong = |field, offset: usize, reason| {
            WireError::new(
                Part::Welcome,
                field,
                FRAME_HEADER_BYTES.saturating_add(offset),
                reason,
            )
        };
        let truncated =
            || WireError::truncated(Part::Welcome, WELCOME_LAYOUT, FRAME_HEADER_BYTES, body.len());
        let (raw, rest) = RawWelcome::ref_from_prefix(body).map_err(|_| truncated())?;
        let (key, listed) = if version < VERSION_AUTHENTICATED {
            (None, rest)
        } else {
            read_key(rest).ok_or_else(truncated)?
        };
        // A Welcome has the version that it names as chosen.
        if raw.version != version {
            return Err(wrong(
                Field::Version,
                offset_of!(RawWelcome, version),
                Reason::Mismatch,
            ));
        }
        if raw.reserved.get() != 0 {
            return Err(wrong(
                Field::Reserved,
                offset_of!(RawWelcome, reserved),
                Reason::NotZero,
            ));
        }
        let Some(listener) = InstanceId::new(raw.instance.get()) else {
            return Err(wrong(
                Field::Instance,
                offset_of!(RawWelcome, instance),
                Reason::Zero,
            ));
        };
        check_rail_count(Part::Welcome, raw.rail_count, offset_of!(RawWelcome, rail_count))?;
        let base = FRAME_HEADER_BYTES.saturating_add(welcome_bytes(version));
        let (rails, after) = Rails::parse(Part::Welcome, base, listed, raw.rail_count, false)?;
        if !after.is_empty() {
            return Err(wrong(
                Field::Trailing,
                body.len().saturating_sub(after.len()),
                Reason::TooLong,
            ));
        }
        Ok(Self {
            welcome: Welcome {
                version: raw.version,
                listener,
                nonce: Nonce(raw.nonce),
                key,
            },
            rails,
        })
    }
}

/// Parses the key id at the start of `bytes`, where zero stands for none. Also returns the remaining bytes.
fn read_key(bytes: &[u8]) -> Option<(Option<KeyId>, &[u8])> {
    let (raw, rest) = U32::ref_from_prefix(bytes).ok()?;
    Some((KeyId::new(raw.get()), rest))
}

fn raw_key(key: Option<KeyId>) -> U32 {
    U32::new(key.map_or(0, KeyId::to_u32))
}

fn check_rail_count(part: Part, count: u8, offset: usize) -> Result<(), WireError> {
    if usize::from(count) > RAILS_MAX {
        let offset = FRAME_HEADER_BYTES.saturating_add(offset);
        return Err(WireError::new(part, Field::RailCount, offset, Reason::OutOfRange));
    }
    Ok(())
}

fn with_rails(fixed: &[u8], rails: &Vec<AdvertisedRail, RAILS_MAX>) -> Vec<u8, HELLO_BYTES_MAX> {
    let mut body = Vec::new();
    // The capacity is that of the longest body, so nothing here can be cut.
    let _ = body.extend_from_slice(fixed);
    for rail in rails {
        let _ = body.extend_from_slice(&rail.encode());
    }
    body
}

fn rail_count(rails: &Vec<AdvertisedRail, RAILS_MAX>) -> u8 {
    // RAILS_MAX fits in a byte.
    u8::try_from(rails.len()).unwrap_or(u8::MAX)
}
