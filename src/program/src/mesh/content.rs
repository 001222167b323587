//! The data of a collective, and the check of its result. Every byte is determined by rank, round and position.

use doorbell::mesh::{Data, Rank, block_bytes};

use super::CollectiveName;
use crate::report::Failure;

/// Elements are added as integers of this many bytes.
const ELEMENT_BYTES: usize = 4;

/// The input and the output of this member.
pub(super) struct Content {
    which: CollectiveName,
    rank: u8,
    ranks: u8,
    input: Vec<u8>,
    output: Vec<u8>,
    bytes_checked: u64,
}

impl Content {
    /// Creates the buffers, with `size` bytes for each rank.
    ///
    /// # Errors
    /// The bytes of all ranks exceed 4 GiB.
    pub(super) fn new(which: CollectiveName, rank: Rank, ranks: u8, size: u32) -> Result<Self, Failure> {
        let bytes = usize::try_from(size)?
            .checked_mul(usize::from(ranks))
            .filter(|bytes| u32::try_from(*bytes).is_ok())
            .ok_or_else(|| format!("--size {size} for each of {ranks} ranks is more than 4 GiB"))?;
        let bytes = if which == CollectiveName::Barrier {
            0
        } else {
            bytes
        };
        Ok(Self {
            which,
            rank: rank.number(),
            ranks,
            input: vec![
                0;
                if which == CollectiveName::AllToAll {
                    bytes
                } else {
                    0
                }
            ],
            output: vec![0; bytes],
            bytes_checked: 0,
        })
    }

    /// Writes this member's input for a round.
    pub(super) fn fill(&mut self, round: u32) {
        let brought = if self.which == CollectiveName::AllToAll {
            &mut self.input
        } else {
            &mut self.output
        };
        for (at, element) in brought.chunks_exact_mut(ELEMENT_BYTES).enumerate() {
            element.copy_from_slice(&of(self.rank, round, at).to_le_bytes());
        }
    }

    pub(super) fn data(&mut self) -> Data<'_> {
        Data {
            input: (self.which == CollectiveName::AllToAll).then_some(self.input.as_slice()),
            output: &mut self.output,
            element_bytes: ELEMENT_BYTES,
        }
    }

    /// Checks the output of a round.
    ///
    /// # Errors
    /// An element is wrong. The error has its position.
    pub(super) fn check(&mut self, round: u32) -> Result<(), Failure> {
        for block in 0..self.ranks {
            if self.which == CollectiveName::ReduceScatter && block != self.rank {
                // A reduce-scatter leaves no result in the blocks of other ranks.
                continue;
            }
            let of_block = |block| {
                let place = block_bytes(
                    block..block.saturating_add(1),
                    self.ranks,
                    self.output.len(),
                    ELEMENT_BYTES,
                );
                (place.start / ELEMENT_BYTES)..(place.end / ELEMENT_BYTES)
            };
            for (came, sent) in of_block(block).zip(of_block(self.rank)) {
                let expected = match self.which {
                    CollectiveName::Barrier => 0,
                    CollectiveName::Broadcast => of(0, round, came),
                    CollectiveName::AllGather => of(block, round, came),
                    CollectiveName::AllToAll => of(block, round, sent),
                    CollectiveName::ReduceScatter | CollectiveName::AllReduce => {
                        (0..self.ranks).fold(0, |sum: u32, rank| sum.wrapping_add(of(rank, round, came)))
                    }
                };
                let found = self.output.chunks_exact(ELEMENT_BYTES).nth(came);
                if found != Some(&expected.to_le_bytes()) {
                    return Err(format!(
                        "round {round}: element {came}, of rank {block}'s block, is {found:02x?} and not {expected:#x}"
                    )
                    .into());
                }
                self.bytes_checked = self.bytes_checked.saturating_add(ELEMENT_BYTES as u64);
            }
        }
        Ok(())
    }

    pub(super) const fn bytes_checked(&self) -> u64 {
        self.bytes_checked
    }
}

/// Returns the element of a rank at a position, in a round.
fn of(rank: u8, round: u32, at: usize) -> u32 {
    // The upper half of the product depends on every bit of the position, so that a block in the wrong position is
    // detected.
    let position = u64::try_from(at)
        .unwrap_or(u64::MAX)
        .wrapping_add(1)
        .rotate_left(8)
        ^ u64::from(rank);
    let [_, _, _, _, upper @ ..] = position.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    u32::from_le_bytes(upper).wrapping_mul(round.wrapping_mul(2).wrapping_add(1))
}

/// Adds element by element, with wrapping.
pub(super) fn add(to: &mut [u8], from: &[u8]) {
    let elements = to
        .chunks_exact_mut(ELEMENT_BYTES)
        .zip(from.chunks_exact(ELEMENT_BYTES));
    for (to, from) in elements {
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_le_bytes);
        let sum = number(to).wrapping_add(number(from));
        to.copy_from_slice(&sum.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use doorbell::mesh::Rank;

    use super::{CollectiveName, Content, add, of};

    #[test]
    fn elements_differ_by_rank_round_and_position() {
        // Offsets of 256 KiB, and up to the length of the longest data.
        for step in [1, 1 << 16, 1 << 18, 1 << 22] {
            assert_ne!(of(3, 7, 5), of(3, 7, 5 + step), "{step}");
        }
        assert_ne!(of(3, 7, 5), of(4, 7, 5));
        assert_ne!(of(3, 7, 5), of(3, 8, 5));
        assert_ne!(of(0, 7, 0), of(0, 8, 0));
    }

    #[test]
    fn what_is_wrong_in_one_bit_is_found() {
        for which in [
            CollectiveName::Broadcast,
            CollectiveName::AllGather,
            CollectiveName::ReduceScatter,
            CollectiveName::AllReduce,
            CollectiveName::AllToAll,
        ] {
            let rank = Rank::new(1).unwrap();
            let mut content = Content::new(which, rank, 3, 8).unwrap();
            // The correct output of the collective, with two elements in each block.
            let right: Vec<u8> = (0..6)
                .flat_map(|at| {
                    let block = (at / 2) as u8;
                    let value = match which {
                        CollectiveName::Broadcast => of(0, 7, at),
                        CollectiveName::AllGather => of(block, 7, at),
                        CollectiveName::AllToAll => of(block, 7, 2 + at % 2),
                        _ => (0..3).fold(0, |sum: u32, rank| sum.wrapping_add(of(rank, 7, at))),
                    };
                    value.to_le_bytes()
                })
                .collect();
            content.output.clone_from(&right);
            content.check(7).unwrap();
            assert_eq!(
                content.bytes_checked(),
                if which == CollectiveName::ReduceScatter {
                    8
                } else {
                    24
                }
            );
            assert!(content.check(8).is_err(), "{which:?} of another round");
            content.output[9] ^= 0x10;
            assert!(content.check(7).is_err(), "{which:?}");
        }
    }

    #[test]
    fn sums_are_of_elements() {
        let mut to = [255, 0, 0, 0, 1, 0, 0, 0];
        add(&mut to, &[1, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(to, [0, 1, 0, 0, 0, 0, 0, 0]);
    }
}
