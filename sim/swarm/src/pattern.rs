//! The bytes that are sent. Each message carries its connection, end, stream and number, and all of its bytes follow
//! from these.

/// The bytes of a message that say which it is.
pub(crate) const HEADER_BYTES: usize = 16;

/// Which bytes are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    /// The connection. Each attempt to connect has a number of its own.
    pub(crate) connection: u32,
    /// The end that sends.
    pub(crate) end: u8,
    /// The stream. Each stream counts its messages by itself.
    pub(crate) stream: u8,
    pub(crate) number: u64,
}

/// Messages that are posted to the channel.
pub(crate) const DIRECT: u8 = 0;
/// Messages through a submitter.
pub(crate) const SUBMITTED: u8 = 1;
/// Bytes that are written into windows.
pub(crate) const WRITTEN: u8 = 2;
/// Bytes that lie in windows to be read.
pub(crate) const RESTING: u8 = 3;
/// Messages that are written into rings.
pub(crate) const RINGED: u8 = 4;
/// Messages over links.
pub(crate) const LINKED: u8 = 5;
/// Datagrams.
pub(crate) const DATAGRAM: u8 = 6;
/// Messages between members of a mesh.
pub(crate) const MESHED: u8 = 7;
/// Bodies of requests.
pub(crate) const ASKED: u8 = 8;
/// Bodies of their answers.
pub(crate) const ANSWERED: u8 = 9;

impl Label {
    /// So many bytes of it, [`HEADER_BYTES`] at least.
    pub(crate) fn bytes(&self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count.max(HEADER_BYTES) + size_of::<u64>());
        bytes.extend(self.connection.to_le_bytes());
        bytes.extend([self.end, self.stream, 0xd0, 0x0b]);
        bytes.extend(self.number.to_le_bytes());
        let mut word = self.mix();
        while bytes.len() < count {
            word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ self.number;
            bytes.extend((word ^ word >> 29).to_le_bytes());
        }
        bytes.truncate(count.max(HEADER_BYTES));
        bytes
    }

    fn mix(&self) -> u64 {
        let who = u64::from(self.connection) << 16 | u64::from(self.end) << 8 | u64::from(self.stream);
        (who ^ self.number.rotate_left(32)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    /// Reads the label of bytes, if they begin with one.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let (connection, rest) = bytes.split_first_chunk()?;
        let ([end, stream, 0xd0, 0x0b], rest) = rest.split_first_chunk()? else {
            return None;
        };
        Some(Self {
            connection: u32::from_le_bytes(*connection),
            end: *end,
            stream: *stream,
            number: u64::from_le_bytes(*rest.first_chunk()?),
        })
    }

    /// The word that goes with it.
    pub(crate) const fn immediate(&self) -> u32 {
        self.number as u32 ^ self.connection << 16 ^ (self.stream as u32) << 31
    }
}

#[cfg(test)]
mod tests {
    use super::Label;

    #[test]
    fn bytes_say_whose_they_are() {
        let label = Label {
            connection: 7,
            end: 1,
            stream: 2,
            number: 1 << 40,
        };
        let bytes = label.bytes(100);
        assert_eq!(bytes.len(), 100);
        assert_eq!(Label::of(&bytes), Some(label));
        assert_eq!(Label::of(&bytes[..15]), None);
        let next = Label {
            number: (1 << 40) + 1,
            ..label
        };
        let differing = next.bytes(100).iter().zip(&bytes).filter(|(a, b)| a != b).count();
        assert!(differing > 50, "{differing}");
    }
}
