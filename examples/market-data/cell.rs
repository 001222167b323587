//! The 64 bytes of an instrument's newest quote, how a reader knows that all of them are of one quote, and
//! what a subscriber's view of all instruments has to hold to.

use super::around::{self, mix};

/// A cache line: the device writes it at once, where it can.
pub(crate) const CELL_BYTES: usize = 64;

const WORDS: usize = CELL_BYTES / size_of::<u64>();

/// One update of one instrument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quote {
    /// Counts the instrument's updates, from 1.
    pub(crate) sequence: u64,
    pub(crate) instrument: u64,
    /// When it was published, on its publisher's monotonic clock.
    pub(crate) published_ns: u64,
    pub(crate) bid: u64,
    pub(crate) bid_size: u64,
    pub(crate) ask: u64,
    pub(crate) ask_size: u64,
}

/// Content of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Nothing was written yet.
    Empty,
    /// Bytes of more than one quote: a write is under way. The next look finds a whole one.
    Torn,
    Whole(Quote),
}

impl Quote {
    /// Quote of this made-up market: a function of instrument and sequence, so any reader can check that it
    /// got the published quote.
    pub(crate) const fn of(instrument: u64, sequence: u64, published_ns: u64) -> Self {
        let value = mix(instrument.wrapping_shl(40) ^ sequence);
        let bid = value >> 40;
        Self {
            sequence,
            instrument,
            published_ns,
            bid,
            bid_size: value & 0xfff,
            ask: bid.wrapping_add(1).wrapping_add((value >> 12) & 0xf),
            ask_size: (value >> 16) & 0xfff,
        }
    }

    pub(crate) fn is_genuine(&self) -> bool {
        *self == Self::of(self.instrument, self.sequence, self.published_ns)
    }

    pub(crate) fn to_cell(self) -> [u8; CELL_BYTES] {
        let mut words = [
            self.sequence,
            self.instrument,
            self.published_ns,
            self.bid,
            self.bid_size,
            self.ask,
            self.ask_size,
            0,
        ];
        words[WORDS - 1] = checksum(&words);
        let mut cell = [0; CELL_BYTES];
        for (bytes, word) in cell.chunks_exact_mut(size_of::<u64>()).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        cell
    }

    pub(crate) fn read(cell: &[u8; CELL_BYTES]) -> Reading {
        let mut words = [0; WORDS];
        for (word, read) in words.iter_mut().zip(around::words(cell)) {
            *word = read;
        }
        if words == [0; WORDS] {
            return Reading::Empty;
        }
        let [
            sequence,
            instrument,
            published_ns,
            bid,
            bid_size,
            ask,
            ask_size,
            check,
        ] = words;
        if check != checksum(&words) {
            return Reading::Torn;
        }
        Reading::Whole(Self {
            sequence,
            instrument,
            published_ns,
            bid,
            bid_size,
            ask,
            ask_size,
        })
    }
}

/// Checksum of all words but the last, in their order.
fn checksum(words: &[u64; WORDS]) -> u64 {
    let covered = words.iter().take(WORDS - 1);
    covered.fold(0x6d61_726b_6574, |sum: u64, word| mix(sum.rotate_left(7) ^ word))
}

/// Quotes that a subscriber has seen.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// The sequence of each instrument's newest quote seen; 0 is none.
    seen: Vec<u64>,
    /// Quotes seen.
    pub(crate) delivered: u64,
    /// Quotes that newer ones replaced before they were seen.
    pub(crate) conflated: u64,
    /// Looks that found a write under way.
    pub(crate) torn: u64,
    /// Quotes older than one seen before.
    pub(crate) went_back: u64,
    /// Quotes that were never published like this.
    pub(crate) not_genuine: u64,
    /// Instruments whose last quote was not there at the end.
    pub(crate) last_missing: u64,
}

impl Book {
    pub(crate) fn new(instruments: usize) -> Self {
        Self {
            seen: vec![0; instruments],
            ..Self::default()
        }
    }

    /// The sequence of the newest quote seen of an instrument.
    pub(crate) fn seen(&self, instrument: usize) -> u64 {
        self.seen.get(instrument).copied().unwrap_or_default()
    }

    /// Takes what a cell holds; gives the quote where it is news.
    pub(crate) fn note(&mut self, instrument: usize, reading: Reading) -> Option<Quote> {
        let quote = match reading {
            Reading::Empty => return None,
            Reading::Torn => {
                self.torn += 1;
                return None;
            }
            Reading::Whole(quote) => quote,
        };
        let seen = self.seen.get_mut(instrument)?;
        if !quote.is_genuine() || quote.instrument != instrument as u64 {
            self.not_genuine += 1;
            return None;
        }
        if quote.sequence <= *seen {
            self.went_back += u64::from(quote.sequence < *seen);
            return None;
        }
        self.conflated += quote.sequence - *seen - 1;
        self.delivered += 1;
        *seen = quote.sequence;
        Some(quote)
    }

    /// Compares with the last sequence published of each instrument; says how many quotes there were.
    pub(crate) fn finish(&mut self, last: &[u64]) -> u64 {
        let missing = self.seen.iter().zip(last).filter(|(seen, last)| seen != last);
        let uneven = self.seen.len().abs_diff(last.len());
        self.last_missing = missing.count().saturating_add(uneven) as u64;
        last.iter().sum()
    }

    /// Returns the observations that a subscriber should never make.
    pub(crate) fn failures(&self, published: u64) -> Vec<String> {
        let mut failures = Vec::new();
        let mut check = |count: u64, what: &str| {
            if count > 0 {
                failures.push(format!("{count} {what}"));
            }
        };
        check(self.went_back, "quotes older than one seen before");
        check(self.not_genuine, "quotes that were never published like this");
        check(self.last_missing, "instruments without their last quote");
        let accounted = self.delivered.saturating_add(self.conflated);
        if self.last_missing == 0 && accounted != published {
            failures.push(format!(
                "{accounted} quotes accounted for of {published} published"
            ));
        }
        failures
    }
}
