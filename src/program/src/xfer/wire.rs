//! Messages between the two sides of `doorbell xfer`, in addition to the transfers. All integers are big-endian.
//!
//! | kind | from | body |
//! |---|---|---|
//! | 1 begin | sender | bytes of the file (8), bytes of a chunk (8), 1 if checksums are compared, else 0 (1) |
//! | 2 ready | receiver | |
//! | 3 end | sender | bytes of the file (8), their SHA-256 (32) |
//! | 4 answer | receiver | bytes that came (8), their SHA-256 (32) |
//! | 5 failed | both | why, as UTF-8 |
//! | 6 wrote | receiver | |
//!
//! Each SHA-256 is all zeros if no checksums are compared.
//!
//! The header before the body is `dbxf`, the version (2) and the kind (2). Version and kind stay at the same offsets in every
//! version.

use sha2::{Digest as _, Sha256};

const MAGIC: [u8; 4] = *b"dbxf";

/// The version of these messages.
pub(super) const VERSION: u16 = 3;

/// Maximum length of the text of a failure.
const TEXT_BYTES_MAX: usize = 1024;

/// A SHA-256, or zeros if none is computed.
pub(super) type Sum = [u8; 32];

/// The checksum of bytes that are added in sequence.
pub(super) struct Summing(Option<Sha256>);

impl Summing {
    /// Starts a checksum. Without `has_checksum` nothing is computed.
    pub(super) fn new(has_checksum: bool) -> Self {
        Self(has_checksum.then(Sha256::new))
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        if let Some(sum) = &mut self.0 {
            sum.update(bytes);
        }
    }

    pub(super) fn end(self) -> Sum {
        self.0.map_or([0; 32], |sum| sum.finalize().into())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A file follows.
    Begin {
        bytes: u64,
        chunk_bytes: u64,
        has_checksum: bool,
    },
    /// The receiver is ready, and can write the file.
    Ready,
    /// The whole file was sent.
    End { bytes: u64, sum: Sum },
    /// The whole file arrived. It is stored if the sum equals that of the sender.
    Answer { bytes: u64, sum: Sum },
    /// The side that sends this gives up.
    Failed { why: String },
    /// More of the file is on the disk.
    Wrote,
}

/// Reason why a message cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// The message is not one of `doorbell xfer`.
    Foreign,
    /// The message has another version.
    Version(u16),
}

impl core::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Foreign => f.write_str(
                "the peer's message is none of `doorbell xfer`: run `doorbell xfer` on both sides",
            ),
            Self::Version(theirs) => write!(
                f,
                "the peer has version {theirs} of the messages of `doorbell xfer`, and this side version {VERSION}: run the same release on both"
            ),
        }
    }
}

impl Message {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut to = MAGIC.to_vec();
        to.extend(VERSION.to_be_bytes());
        to.extend(self.kind().to_be_bytes());
        match self {
            Self::Begin {
                bytes,
                chunk_bytes,
                has_checksum,
            } => {
                to.extend(bytes.to_be_bytes());
                to.extend(chunk_bytes.to_be_bytes());
                to.push(u8::from(*has_checksum));
            }
            Self::Ready | Self::Wrote => {}
            Self::End { bytes, sum } | Self::Answer { bytes, sum } => {
                to.extend(bytes.to_be_bytes());
                to.extend(sum);
            }
            Self::Failed { why } => to.extend(why.bytes().take(TEXT_BYTES_MAX)),
        }
        to
    }

    const fn kind(&self) -> u16 {
        match self {
            Self::Begin { .. } => 1,
            Self::Ready => 2,
            Self::End { .. } => 3,
            Self::Answer { .. } => 4,
            Self::Failed { .. } => 5,
            Self::Wrote => 6,
        }
    }

    /// # Errors
    /// The message is of another program, or of another version of this one.
    pub(super) fn parse(from: &[u8]) -> Result<Self, Unreadable> {
        Self::fields(from)?.ok_or(Unreadable::Foreign)
    }

    fn fields(from: &[u8]) -> Result<Option<Self>, Unreadable> {
        let Some((front, body)) = from.split_first_chunk::<8>() else {
            return Ok(None);
        };
        let [a, b, c, d, version @ .., kind_high, kind_low] = *front;
        if [a, b, c, d] != MAGIC {
            return Ok(None);
        }
        let version = u16::from_be_bytes(version);
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        Ok(Self::body(u16::from_be_bytes([kind_high, kind_low]), body))
    }

    fn body(kind: u16, body: &[u8]) -> Option<Self> {
        let alone = match kind {
            2 => Some(Self::Ready),
            6 => Some(Self::Wrote),
            _ => None,
        };
        if alone.is_some() {
            return alone.filter(|_| body.is_empty());
        }
        if kind == 5 {
            let why = String::from_utf8_lossy(body.get(..body.len().min(TEXT_BYTES_MAX))?);
            // Control characters are removed, since the text is printed to a terminal.
            let why = why.chars().filter(|character| !character.is_control()).collect();
            return Some(Self::Failed { why });
        }
        let (bytes, rest) = body.split_first_chunk()?;
        let bytes = u64::from_be_bytes(*bytes);
        match kind {
            1 => {
                let (chunk_bytes, rest) = rest.split_first_chunk()?;
                let has_checksum = match rest {
                    [0] => false,
                    [1] => true,
                    _ => return None,
                };
                Some(Self::Begin {
                    bytes,
                    chunk_bytes: u64::from_be_bytes(*chunk_bytes),
                    has_checksum,
                })
            }
            3 => Some(Self::End {
                bytes,
                sum: rest.try_into().ok()?,
            }),
            4 => Some(Self::Answer {
                bytes,
                sum: rest.try_into().ok()?,
            }),
            _ => None,
        }
    }
}

/// A sum in hexadecimal.
pub(super) fn hexadecimal(sum: &Sum) -> String {
    sum.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = core::fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"));
        text
    })
}

#[cfg(test)]
mod tests {
    use super::{Message, Unreadable, hexadecimal};

    fn all() -> [Message; 7] {
        let (bytes, sum) = (1 << 40, [7; 32]);
        let begin = |has_checksum| Message::Begin {
            bytes,
            chunk_bytes: 1 << 20,
            has_checksum,
        };
        [
            begin(false),
            begin(true),
            Message::Ready,
            Message::End { bytes, sum },
            Message::Answer { bytes, sum },
            Message::Failed {
                why: "no space".into(),
            },
            Message::Wrote,
        ]
    }

    #[test]
    fn messages_are_read_as_they_were_written_and_no_part_of_them() {
        for message in all() {
            let bytes = message.to_bytes();
            assert_eq!(Message::parse(&bytes), Ok(message.clone()));
            for length in 0..bytes.len() {
                let part = Message::parse(&bytes[..length]);
                let is_text = matches!(message, Message::Failed { .. }) && length >= 8;
                assert_eq!(part.is_ok(), is_text, "{message:?} of {length} bytes");
            }
            if !matches!(message, Message::Failed { .. }) {
                let longer = [&bytes[..], &[0]].concat();
                assert_eq!(Message::parse(&longer), Err(Unreadable::Foreign));
            }
        }
    }

    #[test]
    fn another_version_is_named_and_another_program_too() {
        let mut bytes = Message::Ready.to_bytes();
        bytes[5] = 1;
        let error = Message::parse(&bytes).unwrap_err();
        assert_eq!(error, Unreadable::Version(1));
        assert!(error.to_string().contains("version 1"), "{error}");
        bytes[0] = b'x';
        assert_eq!(Message::parse(&bytes), Err(Unreadable::Foreign));
        let mut unknown = Message::Ready.to_bytes();
        unknown[7] = 9;
        assert_eq!(Message::parse(&unknown), Err(Unreadable::Foreign));
    }

    #[test]
    fn a_text_of_the_peers_is_bounded_and_moves_no_cursor() {
        let long = Message::Failed {
            why: "x".repeat(5000),
        };
        assert_eq!(long.to_bytes().len(), 8 + 1024);
        let moving = Message::Failed {
            why: "a\u{1b}[2Jb\n".into(),
        };
        let read = Message::parse(&moving.to_bytes()).unwrap();
        assert_eq!(read, Message::Failed { why: "a[2Jb".into() });
        assert!(hexadecimal(&[0x0a; 32]).starts_with("0a0a"));
    }
}
