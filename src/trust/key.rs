//! One key: a secret, and the id by which both sides name it.

use core::fmt;
use core::hint::black_box;

use doorbell_core::wire::KeyId;

use super::pattern::{DISTINCT_MIN, pattern};

/// The minimum length of a key in bytes. A tag has the same length, so a key is as hard to guess as a tag.
pub const KEY_BYTES_MIN: usize = 32;

/// The maximum length of a key in bytes.
const KEY_BYTES_MAX: usize = 1024;

/// A secret that peers share, and its id. The id is not secret.
///
/// The secret is never printed. Its bytes are overwritten when the key is dropped. Copies made by the compiler, or by the
/// operating system when it swaps, are not overwritten.
#[derive(Clone)]
pub struct Key {
    id: KeyId,
    secret: Vec<u8>,
}

/// Reason why an id and a secret do not make a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The id is zero.
    ZeroId,
    /// The secret has fewer bytes than [`KEY_BYTES_MIN`].
    TooShort {
        /// The length of the secret.
        bytes: usize,
    },
    /// The secret has more than 1,024 bytes.
    TooLong {
        /// The length of the secret.
        bytes: usize,
    },
    /// The secret has fewer than 14 distinct bytes: a placeholder, a number, or a word with padding.
    FewDistinct {
        /// The number of distinct bytes.
        distinct: usize,
    },
    /// The bytes of the secret are a sequence, for example they count up or down.
    Sequence,
    /// The secret is a shorter secret, repeated.
    Repeats {
        /// The length of the repeated part in bytes.
        period: usize,
    },
    /// The secret is text: words, or hexadecimal or base64 digits that were not decoded.
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
    /// Makes a key with this id and these secret bytes. `doorbell keygen` writes a file with a random key.
    ///
    /// Anyone who reaches a listener can obtain a tag and then test guesses of the key offline. So a secret is refused if it is
    /// obviously not random:
    ///
    /// - It has fewer than 14 distinct bytes.
    ///
    /// - It has fewer than 13 distinct differences (modulo 256) between each byte and the next, or between each byte and the
    ///   second after it.
    ///
    /// - It repeats with a period of at most half its length.
    ///
    /// - It is text with fewer than 20 distinct characters, or with 44 bytes or more. Text is printable ASCII, tabs, line ends and zeros.
    ///
    /// 32 random bytes are refused with a probability of 2^-60.2, and longer random secrets less often. The check finds mistakes. It does
    /// not measure entropy: the hash of a word passes, and is as easy to guess as the word. Keys from text and files are checked, too.
    ///
    /// # Errors
    /// The id is zero, or the secret is too short, too long or not random.
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

    /// Returns the id of the key.
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

/// Overwrites a secret with zeros. The compiler keeps the writes, although nothing reads the zeros.
pub fn wipe(secret: &mut [u8]) {
    secret.fill(0);
    // `black_box` makes the compiler assume that the zeros are read, so it keeps the writes.
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
