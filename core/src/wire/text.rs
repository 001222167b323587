//! A handle as text, for people and command lines: a prefix, lower-case hexadecimal digits, and a checksum.
//!
//! The checksum is needed because an address with a mistyped digit is still an address. With it, a mistyped handle is
//! an error, and does not lead to another host.

use core::fmt;
use core::str::FromStr;

use super::{Field, HANDLE_BYTES_MAX, Handle, Part, Reason, WireError};

/// The prefix of the text of a handle.
pub const HANDLE_TEXT_PREFIX: &str = "doorbell:";

/// The maximum bytes of the text of a handle.
pub const HANDLE_TEXT_BYTES_MAX: usize = HANDLE_TEXT_PREFIX.len() + 2 * (HANDLE_BYTES_MAX + CHECK_BYTES);

const CHECK_BYTES: usize = 2;

/// The reason why a text is not a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandleTextError {
    /// The text does not start with [`HANDLE_TEXT_PREFIX`].
    Prefix,
    /// The text is longer than any handle.
    TooLong,
    /// The text ends in the middle of a byte, or before the checksum.
    TooShort,
    /// The text has something other than a lower-case hexadecimal digit.
    NotHexadecimal {
        /// The offset in bytes from the start of the text.
        position: usize,
    },
    /// The checksum is wrong: a digit was changed.
    CheckSum,
    /// The checksum is right, but the bytes are not a handle.
    Wire(WireError),
}

impl fmt::Display for HandleTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix => write!(
                f,
                "a handle starts with \"{HANDLE_TEXT_PREFIX}\": copy the whole line that the listener wrote"
            ),
            Self::TooLong => write!(
                f,
                "longer than the {HANDLE_TEXT_BYTES_MAX} characters of a handle: copy it alone"
            ),
            Self::TooShort => f.write_str("the end of the handle is missing: copy it whole"),
            Self::NotHexadecimal { position } => {
                write!(
                    f,
                    "no lower-case hexadecimal digit at character {position}: copy the handle as it was written"
                )
            }
            Self::CheckSum => {
                f.write_str("the checksum is wrong, so a character was changed: copy the handle again")
            }
            Self::Wire(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl core::error::Error for HandleTextError {}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HANDLE_TEXT_PREFIX)?;
        for byte in self.as_bytes() {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "{:04x}", check_sum(self.as_bytes()))
    }
}

impl FromStr for Handle {
    type Err = HandleTextError;

    fn from_str(text: &str) -> Result<Self, HandleTextError> {
        let digits = text
            .strip_prefix(HANDLE_TEXT_PREFIX)
            .ok_or(HandleTextError::Prefix)?
            .as_bytes();
        let mut buffer = [0; HANDLE_BYTES_MAX + CHECK_BYTES];
        let mut filled = 0_usize;
        for pair in digits.chunks(2) {
            let position = HANDLE_TEXT_PREFIX.len().saturating_add(filled.saturating_mul(2));
            let &[upper, lower] = pair else {
                return Err(HandleTextError::TooShort);
            };
            let upper = nibble(upper).ok_or(HandleTextError::NotHexadecimal { position })?;
            let lower = nibble(lower).ok_or(HandleTextError::NotHexadecimal {
                position: position.saturating_add(1),
            })?;
            *buffer.get_mut(filled).ok_or(HandleTextError::TooLong)? = upper << 4 | lower;
            filled = filled.saturating_add(1);
        }
        let bytes = buffer.get(..filled).unwrap_or_default();
        let (bytes, sum) = bytes
            .split_last_chunk::<CHECK_BYTES>()
            .ok_or(HandleTextError::TooShort)?;
        if check_sum(bytes) != u16::from_be_bytes(*sum) {
            return Err(HandleTextError::CheckSum);
        }
        let handle = Self::parse(bytes).map_err(HandleTextError::Wire)?;
        let used = handle.as_bytes().len();
        if used < bytes.len() {
            // Padding is not allowed, so that each handle has exactly one text.
            let error = WireError::new(Part::Handle, Field::Trailing, used, Reason::TooLong);
            return Err(HandleTextError::Wire(error));
        }
        Ok(handle.to_handle())
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => digit.checked_sub(b'0'),
        b'a'..=b'f' => digit.checked_sub(b'a' - 10),
        _ => None,
    }
}

/// CRC-16 with polynomial 0x1021 and initial value 0xffff: it detects every change within 16 adjacent bits.
fn check_sum(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0xffff, |sum, byte| {
        (0..8).fold(sum ^ u16::from(*byte) << 8, |sum, _| {
            let shifted = sum << 1;
            if sum & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::check_sum;

    #[test]
    fn the_check_sum_is_the_published_one() {
        // The check value of CRC-16/IBM-3740 in the catalogue of parametrised CRC algorithms.
        assert_eq!(check_sum(b"123456789"), 0x29b1);
    }
}
