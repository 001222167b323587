//! An entry of the log: sequence u64, payload bytes u32, CRC-32C u32 of all the rest, little-endian; then the
//! payload. And how a reader checks a run of them.

use super::around::mix;

/// Bytes in front of an entry's payload.
pub(crate) const HEADER_BYTES: usize = 16;

/// The reflected polynomial of CRC-32C.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < table.len() {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ (POLYNOMIAL * (value & 1));
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
};

/// The CRC-32C of what `crc` was of, and `bytes` behind it. It begins with 0.
pub(crate) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    let fold = |crc: u32, byte: &u8| {
        let [low, ..] = (crc ^ u32::from(*byte)).to_le_bytes();
        (crc >> 8) ^ TABLE.get(usize::from(low)).copied().unwrap_or_default()
    };
    !bytes.iter().fold(!crc, fold)
}

/// Writes the entry of this sequence behind what `into` holds, and gives its CRC. Its made-up payload follows from the
/// sequence.
pub(crate) fn write(sequence: u64, payload_bytes: u32, into: &mut Vec<u8>) -> u32 {
    let begin = into.len();
    into.extend(sequence.to_le_bytes());
    into.extend(payload_bytes.to_le_bytes());
    into.extend([0; 4]);
    let payload = (sequence..).flat_map(|number| mix(number).to_le_bytes());
    into.extend(payload.take(payload_bytes as usize));
    let crc = crc_of(into.get(begin..).unwrap_or_default()).unwrap_or_default();
    if let Some(place) = into.get_mut(begin + 12..begin + HEADER_BYTES) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
    crc
}

/// Returns the CRC of an entry, without the place of the CRC itself.
fn crc_of(entry: &[u8]) -> Option<u32> {
    Some(crc32c(crc32c(0, entry.get(..12)?), entry.get(HEADER_BYTES..)?))
}

/// Why a log cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// An entry is not the next one.
    Sequence { expected: u64, found: u64 },
    /// An entry is not what was written.
    Checksum { sequence: u64 },
    /// An entry ends behind what was written.
    Cut { sequence: u64 },
}

impl core::fmt::Display for Damage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Sequence { expected, found } => {
                write!(f, "entry {found} came where {expected} was to come")
            }
            Self::Checksum { sequence } => write!(f, "entry {sequence} is damaged"),
            Self::Cut { sequence } => write!(f, "entry {sequence} is cut off"),
        }
    }
}

/// Reader of entries, all in order and undamaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// The CRC-32C of all their CRCs: a state that depends on each entry and on their order.
    pub(crate) digest: u32,
}

impl Applied {
    /// Applies all entries in `log`, from where it stands.
    ///
    /// # Errors
    /// One is wrong; those before it are applied.
    pub(crate) fn apply(&mut self, mut log: &[u8]) -> Result<(), Damage> {
        while !log.is_empty() {
            let (bytes, crc, rest) = self.check(log)?;
            self.note(bytes, crc);
            log = rest;
        }
        Ok(())
    }

    /// The next entry, of so many bytes and with this CRC, is known to be good.
    pub(crate) fn note(&mut self, bytes: usize, crc: u32) {
        self.entries += 1;
        self.bytes += bytes as u64;
        self.digest = crc32c(self.digest, &crc.to_le_bytes());
    }

    /// How this differs from the log that a leader says was all: entries, and their digest.
    pub(crate) fn lacks(&self, [entries, digest]: [u64; 2]) -> Option<String> {
        if entries != self.entries {
            return Some(format!("{} entries of {entries} came", self.entries));
        }
        (digest != u64::from(self.digest)).then(|| "the entries are not those of the leader".into())
    }

    /// The bytes and the CRC of the next entry, and what is behind it.
    fn check<'l>(&self, log: &'l [u8]) -> Result<(usize, u32, &'l [u8]), Damage> {
        let expected = self.entries;
        let cut = Damage::Cut { sequence: expected };
        let (sequence, rest) = log.split_first_chunk().ok_or(cut)?;
        let (payload_bytes, rest) = rest.split_first_chunk().ok_or(cut)?;
        let (crc, _) = rest.split_first_chunk().ok_or(cut)?;
        let found = u64::from_le_bytes(*sequence);
        if found != expected {
            return Err(Damage::Sequence { expected, found });
        }
        let bytes = HEADER_BYTES + u32::from_le_bytes(*payload_bytes) as usize;
        let (entry, rest) = log.split_at_checked(bytes).ok_or(cut)?;
        let crc = u32::from_le_bytes(*crc);
        if crc_of(entry) != Some(crc) {
            return Err(Damage::Checksum { sequence: expected });
        }
        Ok((bytes, crc, rest))
    }
}
