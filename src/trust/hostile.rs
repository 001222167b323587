//! Properties that hold when any bytes are read as a key file. Tests and the fuzzer check them.

use super::key::{KEY_BYTES_MIN, KeyError};
use super::ring::{KeyRing, KeyRingError};

/// Reads `bytes` as keys. Returns whether they are valid keys.
///
/// # Panics
/// The parser violates a property.
pub fn check(bytes: &[u8]) -> bool {
    let Ok(text) = core::str::from_utf8(bytes) else {
        return false;
    };
    match (KeyRing::from_text(text), plain::read(text)) {
        (Ok(ring), Ok(plain)) => {
            assert_eq!(keys(&ring), plain);
            check_ring(&ring, &plain);
            true
        }
        (Err(error), Err(plain)) => {
            check_error(&error, &plain);
            false
        }
        (ring, plain) => panic!("{ring:?}, and by the plain reading {plain:?}"),
    }
}

fn keys(ring: &KeyRing) -> Vec<(u32, Vec<u8>)> {
    let secret = |id| ring.get(id).map(|key| key.secret().to_vec()).unwrap_or_default();
    ring.ids().map(|id| (id, secret(id))).collect()
}

/// Checks that a ring is within its limits, that its text is read as the same ring, and that its `Debug` output shows no secret.
fn check_ring(ring: &KeyRing, plain: &[(u32, Vec<u8>)]) {
    assert!((1..=16).contains(&plain.len()));
    assert_eq!(ring.first().map(|key| key.id().to_u32()), Some(plain[0].0));
    for (id, secret) in plain {
        assert!(*id > 0 && (KEY_BYTES_MIN..=1024).contains(&secret.len()));
    }
    let digits = |secret: &[u8]| -> String { secret.iter().map(|byte| format!("{byte:02x}")).collect() };
    let written: Vec<_> = plain
        .iter()
        .map(|(id, secret)| format!("{id}:{}", digits(secret)))
        .collect();
    for between in [",", "\n", " # a comment\r\n"] {
        let again = KeyRing::from_text(&written.join(between));
        assert_eq!(again.map(|ring| keys(&ring)).ok().as_deref(), Some(plain));
    }
    assert!(!shows(&format!("{ring:?}")));
}

fn check_error(error: &KeyRingError, plain: &plain::Wrong) {
    let as_plain = match error {
        KeyRingError::Empty => plain::Wrong::NoKey,
        KeyRingError::TooMany => plain::Wrong::TooMany,
        KeyRingError::Twice(id) => plain::Wrong::Twice(*id),
        KeyRingError::Text { line, .. } => plain::Wrong::Text(*line),
        KeyRingError::Key { line, error } => plain::Wrong::Key(*line, *error),
        other => panic!("of a text: {other}"),
    };
    assert_eq!(&as_plain, plain, "{error}");
    assert!(!shows(&error.to_string()) && !shows(&format!("{error:?}")));
}

/// Whether the text has more than ten hexadecimal digits in a row, as a secret would. Ids and words have fewer.
fn shows(text: &str) -> bool {
    let is_other = |letter: char| !letter.is_ascii_hexdigit();
    text.split(is_other).any(|digits| digits.len() > 10)
}

/// A second parser, written from the documentation of [`KeyRing`]: slow and obviously correct.
mod plain {
    use std::collections::BTreeSet;

    use super::KeyError;

    /// The first fault in the text.
    #[derive(Debug, PartialEq, Eq)]
    pub(super) enum Wrong {
        NoKey,
        TooMany,
        Twice(u32),
        Text(usize),
        Key(usize, KeyError),
    }

    pub(super) fn read(text: &str) -> Result<Vec<(u32, Vec<u8>)>, Wrong> {
        let mut keys: Vec<(u32, Vec<u8>)> = Vec::new();
        let mut line = 1;
        let mut is_comment = false;
        let mut entry = String::new();
        // The added line end terminates the last entry.
        for letter in text.chars().chain(['\n']) {
            match letter {
                '\n' | ',' | '#' if !is_comment || letter == '\n' => {
                    if let Some((id, secret)) = key(&entry, line)? {
                        if keys.iter().any(|(other, _)| *other == id) {
                            return Err(Wrong::Twice(id));
                        }
                        if keys.len() == 16 {
                            return Err(Wrong::TooMany);
                        }
                        keys.push((id, secret));
                    }
                    entry.clear();
                    is_comment = letter == '#';
                    line += usize::from(letter == '\n');
                }
                _ if is_comment => {}
                _ => entry.push(letter),
            }
        }
        if keys.is_empty() {
            Err(Wrong::NoKey)
        } else {
            Ok(keys)
        }
    }

    fn key(entry: &str, line: usize) -> Result<Option<(u32, Vec<u8>)>, Wrong> {
        if entry.trim().is_empty() {
            return Ok(None);
        }
        let colon = entry.find(':').ok_or(Wrong::Text(line))?;
        let id = number(entry[..colon].trim()).ok_or(Wrong::Text(line))?;
        let mut secret = Vec::new();
        let mut high = None;
        for digit in entry[colon + 1..].trim().chars() {
            let value = "0123456789abcdef".find(digit.to_ascii_lowercase());
            let value = value.and_then(|value| u8::try_from(value).ok());
            let value = value.ok_or(Wrong::Text(line))?;
            match high.take() {
                None => high = Some(value),
                Some(high) => secret.push(high * 16 + value),
            }
        }
        let bytes = secret.len();
        if high.is_some() {
            Err(Wrong::Text(line))
        } else if id == 0 {
            Err(Wrong::Key(line, KeyError::ZeroId))
        } else if bytes < 32 {
            Err(Wrong::Key(line, KeyError::TooShort { bytes }))
        } else if bytes > 1024 {
            Err(Wrong::Key(line, KeyError::TooLong { bytes }))
        } else if let Some(pattern) = pattern(&secret) {
            Err(Wrong::Key(line, pattern))
        } else {
            Ok(Some((id, secret)))
        }
    }

    fn pattern(secret: &[u8]) -> Option<KeyError> {
        let differences = |stride: usize| -> BTreeSet<u8> {
            (stride..secret.len())
                .map(|at| secret[at].wrapping_sub(secret[at - stride]))
                .collect()
        };
        let distinct = secret.iter().collect::<BTreeSet<_>>().len();
        let period = (1..=secret.len() / 2).find(|period| {
            let pieces = secret.chunks(*period);
            pieces.into_iter().all(|piece| secret.starts_with(piece))
        });
        let is_text = secret
            .iter()
            .all(|byte| byte.is_ascii_graphic() || b" \t\r\n\0".contains(byte));
        if distinct < 14 {
            Some(KeyError::FewDistinct { distinct })
        } else if differences(1).len() < 13 || differences(2).len() < 13 {
            Some(KeyError::Sequence)
        } else if let Some(period) = period {
            Some(KeyError::Repeats { period })
        } else if is_text && (distinct < 20 || secret.len() >= 44) {
            Some(KeyError::Text)
        } else {
            None
        }
    }

    fn number(digits: &str) -> Option<u32> {
        let mut number: Option<u32> = None;
        for digit in digits.chars() {
            let value = "0123456789"
                .find(digit)
                .and_then(|value| u32::try_from(value).ok())?;
            number = Some(number.unwrap_or(0).checked_mul(10)?.checked_add(value)?);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::replay::{folder, replay};

    #[test]
    fn files_of_keys_keep_every_promise() {
        replay("keys", |bytes| {
            check(bytes);
        });
        for (name, are_keys) in [
            ("two", true),
            ("in_a_line", true),
            ("sixteen", true),
            ("twice", false),
        ] {
            let bytes = std::fs::read(folder("keys").join(name)).unwrap();
            assert_eq!(check(&bytes), are_keys, "{name}");
        }
    }

    /// Valid files that are truncated at each position, or in which one character is replaced.
    #[test]
    fn changed_files_keep_every_promise() {
        for name in ["two", "in_a_line"] {
            let bytes = std::fs::read(folder("keys").join(name)).unwrap();
            for at in 0..bytes.len() {
                check(&bytes[..at]);
                for instead in *b"0fG:,#\n +\xc3" {
                    let mut changed = bytes.clone();
                    changed[at] = instead;
                    check(&changed);
                }
            }
        }
    }
}
