//! One key: a secret, and the number both sides know it by.

use core::fmt;
use core::hint::black_box;

use doorbell_core::wire::KeyId;

use super::pattern::{DISTINCT_MIN, pattern};

/// The bytes a key has at least: as many as a tag, so that guessing the one is no easier than guessing the other.
pub const KEY_BYTES_MIN: usize = 32;

/// The bytes a key has at most.
const KEY_BYTES_MAX: usize = 1024;

/// A secret that peers share, and its id, which is none.
///
/// It is never printed. Its bytes are overwritten when it is dropped; copies that the compiler made of them on the
/// way, or the operating system when it swapped, are beyond that.
#[derive(Clone)]
pub struct Key {
    id: KeyId,
    secret: Vec<u8>,
}

/// Why something is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The id is zero.
    ZeroId,
    /// The secret has fewer bytes than [`KEY_BYTES_MIN`].
    TooShort {
        /// How many it has.
        bytes: usize,
    },
    /// The secret has more than 1,024 bytes.
    TooLong {
        /// How many it has.
        bytes: usize,
    },
    /// The secret has fewer than 14 distinct bytes: a placeholder, a number, or a word with padding.
    FewDistinct {
        /// How many it has.
        distinct: usize,
    },
    /// The bytes of the secret count up or down.
    Sequence,
    /// The secret is a shorter one, repeated.
    Repeats {
        /// The bytes after which it repeats.
        period: usize,
    },
    /// The secret is text: words, or digits that are not decoded.
    Text,
}

/// Remedy for a secret that is not random.
const MAKE: &str = "make a random one by `doorbell keygen FILE`";

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroId => f.write_str("the id of the key is 0: give it one from 1 to 4294967295"),
            Self::TooShort { bytes } => {
                write!(
                    f,
                    "a key of {bytes} bytes is too short, the minimum is {KEY_BYTES_MIN}; {MAKE}"
                )
            }
            Self::TooLong { bytes } => {
                write!(
                    f,
                    "a key of {bytes} bytes is too long, the maximum is {KEY_BYTES_MAX}; {MAKE}"
                )
            }
            Self::FewDistinct { distinct } => write!(
                f,
                "a key with only {distinct} distinct bytes, but a random one has at least {DISTINCT_MIN}; {MAKE}"
            ),
            Self::Sequence => write!(f, "a key whose bytes count up or down; {MAKE}"),
            Self::Repeats { period } => write!(f, "a key that repeats after {period} bytes; {MAKE}"),
            Self::Text => write!(f, "a key of text; decode its digits, or {MAKE}"),
        }
    }
}

impl core::error::Error for KeyError {}

impl Key {
    /// The key of this id with these bytes, which only peers know. `doorbell keygen` makes a file with a random one.
    ///
    /// A peer without the key can try guesses at it where nobody counts them, so a secret is refused if it is obviously not random:
    ///
    /// - It has fewer than 14 distinct bytes.
    ///
    /// - It has fewer than 13 distinct differences (modulo 256) between each byte and the next, or between each byte and the
    ///   second after it.
    ///
    /// - It repeats with a period of at most half its length.
    ///
    /// - It is text with fewer than 20 distinct characters, or with 44 bytes or more. Text is printable ASCII, with tabs, ends of lines and zeros.
    ///
    /// 32 random bytes are refused with a probability of 2^-60.2, and more of them less often. The check finds mistakes. It does not measure entropy: a
    /// hash of a word passes, and is found as easily as the word. All ways to a key go through it, that of text and files too.
    ///
    /// # Errors
    /// The id is zero, or the bytes are too few, too many or not random.
    pub fn new(id: u32, secret: &[u8]) -> Result<Self, KeyError> {
        let id = KeyId::new(id).ok_or(KeyError::ZeroId)?;
        let bytes = secret.len();
        if bytes < KEY_BYTES_MIN {
            return Err(KeyError::TooShort { bytes });
        }
        if bytes > KEY_BYTES_MAX {
            return Err(KeyError::TooLong { bytes });
        }
        if let Some(pattern) = pattern(secret) {
            return Err(pattern);
        }
        Ok(Self {
            id,
            secret: secret.to_vec(),
        })
    }

    /// Returns the key's number.
    #[must_use]
    pub const fn id(&self) -> KeyId {
        self.id
    }

    pub(super) fn secret(&self) -> &[u8] {
        &self.secret
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        wipe(&mut self.secret);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Overwrites a secret.
pub(crate) fn wipe(secret: &mut [u8]) {
    secret.fill(0);
    // Somebody might look at it, for all the compiler knows: so the zeros are written.
    black_box(secret);
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::{Key, KeyError, wipe};

    #[test]
    fn a_key_is_long_and_not_a_placeholder() {
        let random: Vec<u8> = (0..33_u8)
            .flat_map(|at| Sha256::digest([at]))
            .take(1025)
            .collect();
        assert_eq!(Key::new(0, &random[..32]).unwrap_err(), KeyError::ZeroId);
        assert_eq!(
            Key::new(1, &random[..31]).unwrap_err(),
            KeyError::TooShort { bytes: 31 }
        );
        assert!(Key::new(1, &random[..32]).is_ok());
        assert!(Key::new(1, &random[..1024]).is_ok());
        assert_eq!(
            Key::new(1, &random).unwrap_err(),
            KeyError::TooLong { bytes: 1025 }
        );
        assert_eq!(
            Key::new(1, &[7; 32]).unwrap_err().to_string(),
            "a key with only 1 distinct bytes, but a random one has at least 14; make a random one by `doorbell keygen FILE`"
        );
        let text = b"a secret of thirty-two bytes, and no fewer";
        assert_eq!(Key::new(1, text).unwrap_err(), KeyError::Text);
    }

    #[test]
    fn it_is_not_printed_and_does_not_stay() {
        let key = Key::new(9, &Sha256::digest(b"not told")).unwrap();
        assert_eq!(format!("{key:?}"), "Key { id: KeyId(9), .. }");
        let mut secret = key.secret().to_vec();
        wipe(&mut secret);
        assert!(secret.iter().all(|byte| *byte == 0));
    }
}
