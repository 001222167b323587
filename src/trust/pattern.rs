//! Patterns of secrets that are not random: placeholders, numbers, sequences and words.

use super::key::{KeyError, wipe};

/// The minimum number of distinct bytes in a secret.
pub(super) const DISTINCT_MIN: usize = 14;

/// The minimum number of distinct differences between adjacent bytes, and between bytes that are two apart.
const DIFFERENCES_MIN: usize = 13;

/// The minimum number of distinct characters in a secret that is text.
const TEXT_DISTINCT_MIN: usize = 20;

/// Text of at least this many bytes is always refused.
const TEXT_BYTES: usize = 44;

/// Returns the pattern of a secret that is obviously not random. [`Key::new`](super::Key::new) documents the rules, and
/// how rarely they refuse a random secret.
pub(super) fn pattern(secret: &[u8]) -> Option<KeyError> {
    let distinct = distinct(secret.iter().copied());
    if distinct < DISTINCT_MIN {
        return Some(KeyError::FewDistinct { distinct });
    }
    if differences(secret, 1) < DIFFERENCES_MIN || differences(secret, 2) < DIFFERENCES_MIN {
        return Some(KeyError::Sequence);
    }
    if let Some(period) = (1..=secret.len() / 2).find(|period| has_period(secret, *period)) {
        return Some(KeyError::Repeats { period });
    }
    let is_text = secret.iter().all(|byte| is_of_text(*byte));
    if is_text && (distinct < TEXT_DISTINCT_MIN || secret.len() >= TEXT_BYTES) {
        return Some(KeyError::Text);
    }
    None
}

/// Whether the byte is printable ASCII, or ends a line or pads a text. 99 of the 256 bytes are.
fn is_of_text(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r' | 0)
}

fn has_period(secret: &[u8], period: usize) -> bool {
    let behind = secret.iter().skip(period);
    behind.zip(secret).all(|(later, earlier)| later == earlier)
}

/// Returns the number of distinct differences between bytes that are `stride` apart.
fn differences(secret: &[u8], stride: usize) -> usize {
    let behind = secret.iter().skip(stride);
    distinct(
        behind
            .zip(secret)
            .map(|(later, earlier)| later.wrapping_sub(*earlier)),
    )
}

fn distinct(bytes: impl Iterator<Item = u8>) -> usize {
    let mut is_seen = [0_u8; 256];
    for byte in bytes {
        if let Some(is_seen) = is_seen.get_mut(usize::from(byte)) {
            *is_seen = 1;
        }
    }
    let distinct = is_seen.iter().filter(|is_seen| **is_seen == 1).count();
    wipe(&mut is_seen);
    distinct
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::{KeyError, pattern};

    fn padded(text: &[u8], with: u8) -> [u8; 32] {
        let mut secret = [with; 32];
        secret[..text.len()].copy_from_slice(text);
        secret
    }

    #[test]
    fn placeholders_numbers_and_short_words_have_few_distinct_bytes() {
        for (secret, distinct) in [
            (padded(&[], 7), 1),
            (padded(&77_u64.to_be_bytes(), 0), 2),
            (padded(&0x0123_4567_89ab_cdef_u64.to_be_bytes(), 0), 9),
            (padded(b"hunter2", b'.'), 8),
            (padded(b"correct horse battery", b' '), 11),
        ] {
            assert_eq!(pattern(&secret), Some(KeyError::FewDistinct { distinct }));
        }
        // One distinct byte less than the minimum, and the minimum.
        let of = |distinct: u8| -> Vec<u8> {
            // The function is one-to-one, and few differences between neighbours are equal.
            let one = |at: u8| at.wrapping_mul(38).wrapping_add(11).wrapping_mul(at);
            let again = (0..32 - distinct).map(|at| at * 5 % distinct);
            (0..distinct).chain(again).map(one).collect()
        };
        assert_eq!(pattern(&of(13)), Some(KeyError::FewDistinct { distinct: 13 }));
        assert_eq!(pattern(&of(14)), None);
    }

    #[test]
    fn sequences_have_few_differences() {
        let counted: [fn(u8) -> u8; 5] = [
            |at| at,
            |at| 255 - at,
            |at| at.wrapping_mul(7).wrapping_add(100),
            |at| at ^ 1,
            // A sequence of 16-bit numbers.
            |at| if at % 2 == 0 { 0x37 } else { 0x80 + at / 2 },
        ];
        for of in counted {
            let secret: Vec<u8> = (0..32).map(of).collect();
            assert_eq!(pattern(&secret), Some(KeyError::Sequence), "{secret:?}");
        }
    }

    #[test]
    fn a_secret_said_twice_is_half_of_one() {
        let drawn: [u8; 32] = Sha256::digest(b"drawn").into();
        for period in [16, 20, 31, 32] {
            let twice: Vec<u8> = drawn[..period].iter().copied().cycle().take(64).collect();
            assert_eq!(pattern(&twice), Some(KeyError::Repeats { period }));
        }
        let half = [&drawn[..17], &drawn[..15]].concat();
        assert_eq!(pattern(&half), None);
    }

    #[test]
    fn text_is_refused_padded_or_not() {
        let hexadecimal = "6a09e667bb67ae853c6ef372a54ff53a510e527f9b05688c1f83d9ab5be0cd19";
        for text in [
            b"correct horse battery staple...." as &[u8],
            b"a secret of thirty-two bytes, and no fewer",
            b"The quick brown fox jumps over the lazy dog!\n",
            hexadecimal.as_bytes(),
            b"agnmZ7tnroU8bvNypU/1OlEOUn+bBWiMH4PZq1vgzRk=",
            b"correct horse battery staple\0\0\0\0",
        ] {
            assert_eq!(pattern(text), Some(KeyError::Text), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn random_secrets_pass() {
        for number in 0..20_000_u32 {
            let secret: [u8; 32] = Sha256::digest(number.to_be_bytes()).into();
            assert_eq!(pattern(&secret), None, "{number}");
        }
    }
}
