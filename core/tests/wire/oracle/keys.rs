//! Keys for the machines, on the plain reading's HMAC.

use doorbell_core::handshake::{Authenticator, Transcript};
use doorbell_core::wire::{KeyId, Tag};

use super::plain::mac::hmac;

/// Keys by their ids, each of so many times its byte. The first is the one to connect with; none is to go without.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys(pub(crate) Vec<(u32, u8)>);

/// The bytes of both sides so far, and the key.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    key: [u8; 32],
    bytes: Vec<u8>,
}

impl Keys {
    pub(crate) fn of(keys: &[(u32, u8)]) -> Self {
        Self(keys.to_vec())
    }
}

/// The key made of this byte.
pub(crate) fn key_of(byte: u8) -> [u8; 32] {
    [byte; 32]
}

impl Authenticator for Keys {
    type Transcript = Said;

    fn sending(&self) -> Option<(KeyId, Said)> {
        let id = KeyId::new(self.0.first()?.0)?;
        Some((id, self.begin(id)?))
    }

    fn begin(&self, key: KeyId) -> Option<Said> {
        let (_, byte) = self.0.iter().find(|(id, _)| *id == key.to_u32())?;
        Some(Said {
            key: key_of(*byte),
            bytes: Vec::new(),
        })
    }
}

impl Transcript for Said {
    fn absorb(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    fn tag(&self) -> Tag {
        Tag(hmac(&self.key, &self.bytes))
    }
}
