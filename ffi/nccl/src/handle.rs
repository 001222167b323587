//! The 128-byte handle by which a peer connects to a listener: doorbell's own handle, the number of the listener, and a field for the
//! attempt.
//!
//! | offset | bytes | field | |
//! |---|---|---|---|
//! | 0 | 4 | magic | "DBNC" |
//! | 4 | 1 | version | 2 |
//! | 5 | 1 | length | length of doorbell's handle |
//! | 6 | 2 | reserved | 0 |
//! | 8 | 4 | listener | number of the listener in its process |
//! | 12 | 4 | check | hash of all other bytes except the attempt |
//! | 16 | 4 | attempt | 0, or the number of the attempt that `connect` has started with this handle |
//! | 20 | | handle | doorbell's handle, followed by zeros |
//!
//! `connect` writes the attempt into the handle, and the caller passes the same handle again. A copy from before starts an attempt of its
//! own.

use doorbell::Handle;

use crate::abi::HANDLE_BYTES;
use crate::places::Key;

/// Number of bytes before doorbell's handle.
const HEADER_BYTES: usize = 20;

/// Maximum length of doorbell's handle.
pub(crate) const INNER_BYTES_MAX: usize = HANDLE_BYTES - HEADER_BYTES;

const MAGIC: [u8; 4] = *b"DBNC";
const VERSION: u8 = 2;

/// A handle as NCCL passes it between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NetHandle {
    pub(crate) listener: Key,
    /// The attempt that `connect` has started with this handle, if any.
    pub(crate) attempt: Option<Key>,
    pub(crate) handle: Handle,
}

impl NetHandle {
    /// Parses a handle. The error tells what is wrong.
    pub(crate) fn parse(bytes: &[u8; HANDLE_BYTES]) -> Result<Self, String> {
        let (header, rest) = bytes.split_at(HEADER_BYTES);
        let header: &[u8; HEADER_BYTES] = header.try_into().map_err(|_| "no header".to_owned())?;
        let [
            m0,
            m1,
            m2,
            m3,
            version,
            length,
            0,
            0,
            l0,
            l1,
            l2,
            l3,
            c0,
            c1,
            c2,
            c3,
            a0,
            a1,
            a2,
            a3,
        ] = *header
        else {
            return Err("reserved bytes of the handle are not zero".to_owned());
        };
        let magic = [m0, m1, m2, m3];
        if magic != MAGIC {
            return Err(format!(
                "the handle begins with {magic:02x?}, and one of this plugin with {MAGIC:02x?}: all ranks need this plugin"
            ));
        }
        if version != VERSION {
            return Err(format!(
                "the handle is of version {version}, and this plugin speaks version {VERSION}: use the same plugin on all ranks"
            ));
        }
        let found = u32::from_be_bytes([c0, c1, c2, c3]);
        let expected = check(bytes);
        if found != expected {
            return Err(format!(
                "the handle's check is {found:#010x}, and {expected:#010x} is right: its bytes were changed on the way"
            ));
        }
        let inner = rest
            .get(..usize::from(length))
            .ok_or_else(|| format!("the handle's length is {length}, and {INNER_BYTES_MAX} is the limit"))?;
        let handle =
            Handle::from_bytes(inner).map_err(|error| format!("the handle is not valid: {error}"))?;
        let attempt = u32::from_be_bytes([a0, a1, a2, a3]);
        Ok(Self {
            listener: Key(u32::from_be_bytes([l0, l1, l2, l3])),
            attempt: (attempt != 0).then_some(Key(attempt)),
            handle,
        })
    }

    /// Returns the encoded handle, or `None` if doorbell's handle is too long.
    pub(crate) fn to_bytes(self) -> Option<[u8; HANDLE_BYTES]> {
        let mut bytes = [0; HANDLE_BYTES];
        let inner = self.handle.as_bytes();
        let mut put = |at: usize, what: &[u8]| {
            let place = bytes.get_mut(at..at.checked_add(what.len())?)?;
            place.copy_from_slice(what);
            Some(())
        };
        put(0, &MAGIC)?;
        put(4, &[VERSION, u8::try_from(inner.len()).ok()?])?;
        put(8, &self.listener.0.to_be_bytes())?;
        put(HEADER_BYTES, inner)?;
        let check = check(&bytes);
        let mut put = |at: usize, what: u32| {
            let place = bytes.get_mut(at..at.checked_add(4)?)?;
            place.copy_from_slice(&what.to_be_bytes());
            Some(())
        };
        put(12, check)?;
        put(16, self.attempt.map_or(0, |attempt| attempt.0))?;
        Some(bytes)
    }
}

/// FNV-1a hash of all bytes except the check and the attempt. The hash detects accidental changes, not deliberate ones.
fn check(bytes: &[u8; HANDLE_BYTES]) -> u32 {
    let checked = bytes.iter().enumerate().filter(|(at, _)| !(12..20).contains(at));
    checked.fold(0x811c_9dc5_u32, |hash, (_, byte)| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;
    use core::num::NonZeroU16;

    use doorbell::Handle;
    use doorbell::provider::{Gid, IpPrefix};
    use doorbell::rails::{AdvertisedRail, SpeedClass};
    use doorbell::wire::InstanceId;

    use super::{HANDLE_BYTES, INNER_BYTES_MAX, Key, NetHandle};

    fn handle(rails: u8) -> Handle {
        let port = NonZeroU16::new(7000).unwrap();
        let mut handle = Handle::builder(port, InstanceId::new(1).unwrap());
        for rail in 1..=rails {
            let address = IpPrefix::new(Ipv4Addr::new(10, 0, rail, 1).into(), 24).unwrap();
            let gid = Gid::from_ip(address.address());
            let _ = handle.push(&AdvertisedRail::new(address, gid, SpeedClass(7)).unwrap());
        }
        handle.finish().unwrap()
    }

    #[test]
    fn a_handle_comes_out_as_it_went_in() {
        for (rails, attempt) in [(1, None), (2, Some(Key(0xffff_ffff)))] {
            let made = NetHandle {
                listener: Key(0x0102_0304),
                attempt,
                handle: handle(rails),
            };
            assert_eq!(NetHandle::parse(&made.to_bytes().unwrap()), Ok(made));
        }
    }

    #[test]
    fn a_handle_of_many_rails_is_made_to_fit() {
        let long = handle(100);
        assert!(long.as_bytes().len() > INNER_BYTES_MAX);
        let made = NetHandle {
            listener: Key(1),
            attempt: None,
            handle: long.shortened(INNER_BYTES_MAX).unwrap(),
        };
        assert!(made.handle.has_more());
        assert_eq!(NetHandle::parse(&made.to_bytes().unwrap()), Ok(made));
        let whole = NetHandle { handle: long, ..made };
        assert_eq!(whole.to_bytes(), None);
    }

    #[test]
    fn any_changed_byte_but_the_attempt_is_found() {
        let made = NetHandle {
            listener: Key(7),
            attempt: None,
            handle: handle(2),
        };
        let bytes = made.to_bytes().unwrap();
        for place in 0..HANDLE_BYTES {
            let mut changed = bytes;
            changed[place] ^= 1;
            let is_attempt = (16..20).contains(&place);
            assert_eq!(NetHandle::parse(&changed).is_ok(), is_attempt, "{place}");
        }
        assert!(NetHandle::parse(&[0; HANDLE_BYTES]).is_err());
        // A handle of the mesh plugin.
        let mut other = [0; HANDLE_BYTES];
        other[..4].copy_from_slice(&0x4d45_5348_u32.to_le_bytes());
        let why = NetHandle::parse(&other).unwrap_err();
        assert!(why.contains("all ranks need this plugin"), "{why}");
    }
}
