//! The keys of one side ([`KeyRing`]), and their text format.

use core::fmt;

use super::key::{Key, KeyError, wipe};

/// The maximum number of keys of one side.
const KEYS_MAX: usize = 16;

/// The keys that a side accepts from peers. The first key is the one it connects with.
///
/// A key is changed in three steps without a restart. Each step is done on all hosts before the next step. First add the new key
/// behind the old key. Then move the new key to the front. Finally remove the old key. Hosts can connect to each other at all times.
///
/// In text, a key is its id, a colon and its bytes in hexadecimal. Commas or line ends separate keys. The rest of a line after a `#`
/// is a comment:
///
/// ```text
/// # since March
/// 2:8f3c…
/// 1:51aa…
/// ```
#[derive(Clone, Debug)]
pub struct KeyRing {
    /// Never empty.
    keys: Vec<Key>,
}

/// Reason why keys could not be read. It contains no part of a key.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyRingError {
    /// There is no key.
    Empty,
    /// There are more than 16 keys.
    TooMany,
    /// Two keys have this id.
    Twice(u32),
    /// The text does not have the format of a key.
    Text {
        /// The number of the line, from 1.
        line: usize,
        /// The fault.
        why: &'static str,
    },
    /// The text has the format of a key, but the id or the secret is refused.
    Key {
        /// The number of the line, from 1.
        line: usize,
        /// The fault.
        error: KeyError,
    },
    /// The file cannot be read, is not a regular file, or is not UTF-8 text.
    File {
        /// The path of the file.
        path: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The file is not kept secret: its mode gives rights to others, or it belongs to another user. A file that is too large to contain
    /// only keys is reported in the same way.
    NotSecret {
        /// The path of the file.
        path: String,
        /// The fault: the mode, the owner, or the size.
        why: String,
    },
    /// The environment variable does not exist, or is not UTF-8 text.
    Environment(String),
}

impl fmt::Display for KeyRingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("there is no key: write one a line, as ID:HEXADECIMAL"),
            Self::TooMany => write!(f, "more than {KEYS_MAX} keys: remove the oldest"),
            Self::Twice(id) => write!(f, "two keys have the id {id}: give one another id"),
            Self::Text { line, why } => write!(f, "line {line} is not a key: {why}"),
            Self::Key { line, error } => write!(f, "line {line}: {error}"),
            Self::File { path, error } => write!(f, "{path}: {error}"),
            Self::NotSecret { path, why } => write!(f, "{path} is not a secret: {why}"),
            Self::Environment(name) => write!(
                f,
                "the environment has no keys in {name}: set it to lines of ID:HEXADECIMAL"
            ),
        }
    }
}

impl core::error::Error for KeyRingError {}

impl KeyRing {
    /// Makes a ring of one key.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self { keys: vec![key] }
    }

    /// Adds another key, which peers may connect with. This side still connects with the first key.
    ///
    /// # Errors
    /// The ring has a key with this id, or has 16 keys.
    pub fn with(mut self, key: Key) -> Result<Self, KeyRingError> {
        if self.get(key.id().to_u32()).is_some() {
            return Err(KeyRingError::Twice(key.id().to_u32()));
        }
        if self.keys.len() >= KEYS_MAX {
            return Err(KeyRingError::TooMany);
        }
        self.keys.push(key);
        Ok(self)
    }

    /// Reads the keys in a text. The caller is responsible for erasing the text.
    ///
    /// # Errors
    /// The text contains no key, more than 16 keys, two keys with the same id, or an invalid key.
    pub fn from_text(text: &str) -> Result<Self, KeyRingError> {
        let mut ring: Option<Self> = None;
        for (index, line) in text.lines().enumerate() {
            let number = index.saturating_add(1);
            let line = line.split('#').next().unwrap_or_default();
            for entry in line.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
                let key = read_key(number, entry)?;
                ring = Some(match ring {
                    None => Self::new(key),
                    Some(ring) => ring.with(key)?,
                });
            }
        }
        ring.ok_or(KeyRingError::Empty)
    }

    /// Returns the ids of the keys. The first is the id of the key that this side connects with.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.keys.iter().map(|key| key.id().to_u32())
    }

    pub(super) fn first(&self) -> Option<&Key> {
        self.keys.first()
    }

    pub(super) fn get(&self, id: u32) -> Option<&Key> {
        self.keys.iter().find(|key| key.id().to_u32() == id)
    }
}

/// Reads one key.
fn read_key(line: usize, entry: &str) -> Result<Key, KeyRingError> {
    let wrong = |why| KeyRingError::Text { line, why };
    let (id, digits) = entry
        .split_once(':')
        .ok_or(wrong("there is no colon after an id"))?;
    let id = Some(id.trim())
        .filter(|id| id.bytes().all(|digit| digit.is_ascii_digit()))
        .and_then(|id| id.parse().ok())
        .ok_or(wrong("the id is not a number below 2^32"))?;
    let digits = digits.trim().as_bytes();
    if digits.len() % 2 != 0 {
        return Err(wrong("an odd number of hexadecimal digits"));
    }
    let mut secret = Vec::with_capacity(digits.len() / 2);
    for pair in digits.chunks_exact(2) {
        let byte = pair.iter().try_fold(0, |byte: u8, digit| {
            let digit = char::from(*digit).to_digit(16)?;
            Some(byte << 4 | u8::try_from(digit).ok()?)
        });
        let Some(byte) = byte else {
            wipe(&mut secret);
            return Err(wrong("not a hexadecimal digit"));
        };
        secret.push(byte);
    }
    let key = Key::new(id, &secret).map_err(|error| KeyRingError::Key { line, error });
    wipe(&mut secret);
    key
}

#[cfg(test)]
mod tests {
    use super::{KeyRing, KeyRingError};

    /// The initial hash value of SHA-256.
    const SECRET: &str = "6a09e667bb67ae853c6ef372a54ff53a510e527f9b05688c1f83d9ab5be0cd1F";

    fn ids(text: &str) -> Result<Vec<u32>, String> {
        match KeyRing::from_text(text) {
            Ok(ring) => Ok(ring.ids().collect()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn keys_are_read_in_order_and_whole() {
        let ring = KeyRing::from_text(&format!("7:{SECRET}")).unwrap();
        let secret = ring.first().unwrap().secret();
        assert_eq!(
            (secret.len(), &secret[..3], secret[31]),
            (32, &[0x6a, 0x09, 0xe6][..], 0x1f)
        );
        assert_eq!(ids(&format!("2:{SECRET},1:{SECRET}")), Ok(vec![2, 1]));
        let lines = format!("# the new one\n 2 : {SECRET} # until May\n\n1:{SECRET}\r\n");
        assert_eq!(ids(&lines), Ok(vec![2, 1]));
    }

    #[test]
    fn an_error_is_reported_without_a_word_of_the_key() {
        for (text, refusal) in [
            ("", "there is no key: write one a line, as ID:HEXADECIMAL"),
            ("# none\n", "there is no key: write one a line, as ID:HEXADECIMAL"),
            ("\n51aa", "line 2 is not a key: there is no colon after an id"),
            ("x:51aa", "line 1 is not a key: the id is not a number below 2^32"),
            (
                "+1:51aa",
                "line 1 is not a key: the id is not a number below 2^32",
            ),
            (
                "1:51a",
                "line 1 is not a key: an odd number of hexadecimal digits",
            ),
            ("1:51ag", "line 1 is not a key: not a hexadecimal digit"),
            (
                "1:51aa",
                "line 1: a key of 2 bytes is too short, the minimum is 32; make a random one by `doorbell keygen FILE`",
            ),
            (
                "1:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
                "line 1: a key whose bytes count up or down; make a random one by `doorbell keygen FILE`",
            ),
            ("1:é", "line 1 is not a key: not a hexadecimal digit"),
        ] {
            assert_eq!(ids(text), Err(refusal.to_owned()), "{text}");
        }
        assert_eq!(
            ids(&format!("0:{SECRET}")).unwrap_err(),
            "line 1: the id of the key is 0: give it one from 1 to 4294967295"
        );
        assert_eq!(
            ids(&format!("3:{SECRET}\n3:{SECRET}")).unwrap_err(),
            "two keys have the id 3: give one another id"
        );
        let many: Vec<String> = (1..=17).map(|id| format!("{id}:{SECRET}")).collect();
        assert!(ids(&many[..16].join(",")).is_ok());
        assert_eq!(
            ids(&many.join(",")).unwrap_err(),
            "more than 16 keys: remove the oldest"
        );
    }

    #[test]
    fn a_ring_prints_no_secret() {
        let printed = format!("{:?}", KeyRing::from_text(&format!("1:{SECRET}")).unwrap());
        assert_eq!(printed, "KeyRing { keys: [Key { id: KeyId(1), .. }] }");
        let error = KeyRing::from_text("1:51ag").unwrap_err();
        assert!(matches!(error, KeyRingError::Text { line: 1, .. }));
    }
}
