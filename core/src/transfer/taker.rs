//! The taking side: the pieces that have landed.

use crate::sequence::Epoch;
use crate::transfer::{Broken, Pieces, TRANSFER_WINDOW, TransferId};
use crate::wire::{Landed, Progress};

const WORDS: usize = TRANSFER_WINDOW as usize / 64;
const _: () = assert!(WORDS * 64 == TRANSFER_WINDOW as usize, "a bit for each piece");

/// The taker's knowledge of the pieces of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Taker {
    pieces: Pieces,
    /// The first piece that has not landed.
    base: u32,
    /// A bit for each landed piece from the base on; bit 0 is the base.
    set: [u64; WORDS],
    /// The last question.
    question: u32,
    /// Whether the last question has to be answered.
    is_owed: bool,
    /// The rail on which the last answer was sent.
    answered_on: Option<u8>,
    /// The number of pieces that were announced again.
    duplicates: u64,
}

impl Taker {
    /// A taker for which nothing has landed yet.
    #[must_use]
    pub const fn new(pieces: Pieces) -> Self {
        Self {
            pieces,
            base: 0,
            set: [0; WORDS],
            question: 0,
            is_owed: false,
            answered_on: None,
            duplicates: 0,
        }
    }

    /// The bytes that have landed without a gap from the beginning.
    #[must_use]
    pub fn landed_bytes(&self) -> u64 {
        self.pieces.bytes_before(self.base)
    }

    /// The number of pieces that were announced again after they had landed.
    #[must_use]
    pub const fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Whether all pieces have landed.
    #[must_use]
    pub const fn has_all(&self) -> bool {
        self.base == self.pieces.count()
    }

    /// Applies the giver's announcement.
    ///
    /// # Errors
    /// The transfer has no such pieces, or they are beyond the window.
    pub fn heard(&mut self, landed: &Landed) -> Result<(), Broken> {
        let end = landed.first.checked_add(landed.count).ok_or(Broken)?;
        let limit = self.base.saturating_add(TRANSFER_WINDOW).min(self.pieces.count());
        if end > limit {
            return Err(Broken);
        }
        if landed.first == self.base && self.set == [0; WORDS] {
            // The usual case: the pieces are in order, and none has landed ahead.
            self.base = end;
        } else {
            for piece in landed.first..end {
                self.land(piece);
            }
            self.move_base();
        }
        // An older question may arrive later, over another rail.
        if landed.question > self.question {
            self.question = landed.question;
            self.is_owed = true;
        } else if landed.question == self.question && landed.question > 0 {
            self.is_owed = true;
        }
        Ok(())
    }

    fn land(&mut self, piece: u32) {
        let Some(offset) = piece.checked_sub(self.base) else {
            self.duplicates = self.duplicates.saturating_add(1);
            return;
        };
        if let Some(word) = self.set.get_mut(offset as usize / 64) {
            let bit = 1_u64 << (offset % 64);
            self.duplicates = self.duplicates.saturating_add(u64::from(*word & bit != 0));
            *word |= bit;
        }
    }

    /// Moves the base to the first piece that has not landed.
    fn move_base(&mut self) {
        let mut run = 0_u32;
        for word in &self.set {
            run = run.saturating_add(word.trailing_ones());
            if *word != u64::MAX {
                break;
            }
        }
        if run == 0 {
            return;
        }
        self.base = self.base.saturating_add(run);
        let (words, bits) = (run as usize / 64, run % 64);
        let word = |index: usize| self.set.get(index).copied().unwrap_or(0);
        self.set = core::array::from_fn(|index| {
            let low = word(index.saturating_add(words)) >> bits;
            let high = word(index.saturating_add(words).saturating_add(1));
            if bits == 0 {
                low
            } else {
                low | high << (64_u32.saturating_sub(bits))
            }
        });
    }

    /// The answer to the giver, if one is due.
    #[must_use]
    pub fn answer(&self, transfer: TransferId, epoch: Epoch) -> Option<Progress> {
        self.is_owed.then(|| {
            let mut set = [0; TRANSFER_WINDOW as usize / 8];
            for (bytes, word) in set.chunks_exact_mut(8).zip(self.set) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            Progress {
                epoch,
                transfer,
                base: self.base,
                question: self.question,
                set,
            }
        })
    }

    /// Notes that the answer was posted on a rail.
    pub const fn answered(&mut self, rail: u8) {
        self.is_owed = false;
        self.answered_on = Some(rail);
    }

    /// Notes that a rail's connection is lost. An answer that was posted on it has to be sent again.
    pub fn lost(&mut self, rail: u8) {
        self.is_owed |= self.answered_on.take_if(|on| *on == rail).is_some();
    }
}
