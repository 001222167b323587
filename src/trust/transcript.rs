//! Authentication of a handshake by a key, with HMAC-SHA-256.

use core::fmt;
use core::hint::black_box;

use doorbell_core::handshake::{Authenticator, Transcript};
use doorbell_core::wire::{KeyId, TAG_BYTES, Tag};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::Trust;
use super::key::Key;

/// HMAC of the bytes of one handshake so far, under a key.
///
/// An attacker could forge tags with this state as with the key. So it is overwritten when it is dropped. A heap allocation
/// holds it, so that moving a handshake leaves no copy behind.
#[derive(Clone)]
pub struct HandshakeMac(Box<Hmac<Sha256>>);

impl HandshakeMac {
    fn begin(key: &Key) -> Option<Self> {
        let begun = begin(key);
        clear_stack();
        begun
    }
}

/// A function that is never inlined, like all functions that use the state. So the data that it leaves on the stack lies where
/// [`clear_stack`] overwrites it.
#[inline(never)]
fn begin(key: &Key) -> Option<HandshakeMac> {
    // HMAC accepts keys of any length.
    let mac = Hmac::new_from_slice(key.secret()).ok()?;
    Some(HandshakeMac(Box::new(mac)))
}

impl Transcript for HandshakeMac {
    fn absorb(&mut self, bytes: &[u8]) {
        absorb(self, bytes);
        clear_stack();
    }

    fn tag(&self) -> Tag {
        let tag = tag(self);
        clear_stack();
        tag
    }
}

#[inline(never)]
fn absorb(mac: &mut HandshakeMac, bytes: &[u8]) {
    mac.0.update(bytes);
}

#[inline(never)]
fn tag(mac: &HandshakeMac) -> Tag {
    let mut tag = [0; TAG_BYTES];
    tag.copy_from_slice(&Hmac::clone(&mac.0).finalize().into_bytes());
    Tag(tag)
}

/// The bytes of stack to overwrite: more than the functions that use the state need.
const STACK_BYTES: usize = 16 << 10;

/// Overwrites the data that an earlier call left on the stack.
#[inline(never)]
fn clear_stack() {
    // `black_box` makes the compiler assume that the zeros are read, so it keeps the writes.
    black_box(&mut [0_u8; STACK_BYTES]);
}

impl fmt::Debug for HandshakeMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandshakeMac").finish_non_exhaustive()
    }
}

impl Authenticator for Trust {
    type Transcript = HandshakeMac;

    fn sending(&self) -> Option<(KeyId, HandshakeMac)> {
        let key = self.keys.as_ref()?.first()?;
        Some((key.id(), HandshakeMac::begin(key)?))
    }

    fn begin(&self, key: KeyId) -> Option<HandshakeMac> {
        HandshakeMac::begin(self.keys.as_ref()?.get(key.to_u32())?)
    }
}

#[cfg(test)]
mod tests {
    use doorbell_core::handshake::{Authenticator as _, Transcript as _};
    use sha2::{Digest as _, Sha256};

    use crate::trust::{Key, KeyRing, Trust};

    /// Source: RFC 4231, test case 6.
    #[test]
    fn the_code_is_the_standards() {
        let secret = [0xaa; 131];
        // `Key::new` refuses a key of equal bytes, so the test passes the key of the RFC to HMAC directly.
        let mac = hmac::KeyInit::new_from_slice(&secret).unwrap();
        let mut mac = super::HandshakeMac(Box::new(mac));
        for piece in b"Test Using Larger Than Block-Size Key - Hash Key First".chunks(7) {
            mac.absorb(piece);
        }
        let tag: String = mac.tag().0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            tag,
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
        assert_eq!(format!("{mac:?}"), "HandshakeMac { .. }");
    }

    #[test]
    fn keys_are_found_by_their_ids_and_the_first_is_sent_by() {
        let key = |id, name: &str| Key::new(id, &Sha256::digest(name)).unwrap();
        let ring = KeyRing::new(key(5, "sent by")).with(key(4, "the one before it"));
        let trust = Trust::keys(ring.unwrap());
        let (id, sent_by) = trust.sending().unwrap();
        assert_eq!(id.to_u32(), 5);
        assert_eq!(trust.begin(id).unwrap().tag(), sent_by.tag());
        let before = doorbell_core::wire::KeyId::new(4).unwrap();
        assert_ne!(trust.begin(before).unwrap().tag(), sent_by.tag());
        assert!(trust.begin(doorbell_core::wire::KeyId::new(6).unwrap()).is_none());
        let without = Trust::unauthenticated_on_purpose();
        assert!(without.sending().is_none() && without.begin(id).is_none());
        assert!(trust.is_authenticated() && !without.is_authenticated());
    }
}
