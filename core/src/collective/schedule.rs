//! Schedule of a collective: which rank sends which blocks to which rank, step by step.

use core::ops::Range;

use crate::rank::Rank;

/// A collective over all ranks of a group.
///
/// The data is cut into one block for each rank, see [`block_bytes`](super::block_bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Collective {
    /// No rank leaves before every rank has entered. In the steps, a rank sends to the rank 1, 2, 4, ... places after
    /// it. The number of steps is the logarithm of the number of ranks.
    Barrier,
    /// All get the data of this rank, along a binomial tree. The number of steps is the logarithm of the number of ranks.
    ///
    /// All ranks have to name the same root, which no message contains. Otherwise ranks may wait for each other, or the broadcast may
    /// end as done with different data on the ranks. In the second case, messages are left over, and a later collective fails.
    Broadcast(Rank),
    /// Each rank has its own block, and gets the blocks of all, around a ring.
    AllGather,
    /// Each rank has all blocks, and gets its own block, combined from all ranks, around a ring.
    ReduceScatter,
    /// Each rank has all blocks, and gets all, combined from all ranks: [`Collective::ReduceScatter`], then
    /// [`Collective::AllGather`]. Each block is combined in one order, so all ranks get bitwise equal results.
    AllReduce,
    /// Each rank has a block for every rank, and gets a block from every rank, one partner after the other. Sends do not
    /// wait for receives. All blocks have one length: the number of elements is a multiple of the number of ranks.
    AllToAll,
}

impl Collective {
    /// The number on the wire.
    pub(super) const fn to_wire(self) -> u8 {
        match self {
            Self::Barrier => 1,
            Self::Broadcast(_) => 2,
            Self::AllGather => 3,
            Self::ReduceScatter => 4,
            Self::AllReduce => 5,
            Self::AllToAll => 6,
        }
    }
}

/// One step: a send and a receive at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The destination, and the blocks to send.
    pub send: Option<Transfer>,
    /// The source, and the blocks to receive.
    pub receive: Option<Transfer>,
    /// Whether received elements are combined with the present ones, instead of replacing them.
    pub is_combined: bool,
}

/// Blocks that one rank sends to another. An empty range is a message without bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transfer {
    /// The other rank.
    pub peer: Rank,
    /// The range of blocks.
    pub blocks: Range<u8>,
}

/// The steps of one rank in a collective.
#[derive(Clone, Debug)]
pub struct Schedule {
    collective: Collective,
    rank: Rank,
    ranks: u8,
    step: u8,
}

impl Schedule {
    /// The steps of a rank in a group of `ranks`; `None` if the rank or the root is not in the group.
    #[must_use]
    pub fn new(collective: Collective, rank: Rank, ranks: u8) -> Option<Self> {
        rank.after(0, ranks)?;
        if let Collective::Broadcast(root) = collective {
            root.after(0, ranks)?;
        }
        Some(Self {
            collective,
            rank,
            ranks,
            step: 0,
        })
    }

    fn barrier(&self, step: u8) -> Option<Step> {
        let places = 1_u8
            .checked_shl(step.into())
            .filter(|places| *places < self.ranks)?;
        Some(Step {
            send: self.transfer_after(places, 0..0),
            receive: self.transfer_before(places, 0..0),
            is_combined: false,
        })
    }

    /// In step k the first 2^k ranks from the root on have the data. Each sends it to the rank 2^k places after it.
    fn broadcast(&self, root: Rank, step: u8) -> Option<Step> {
        let width = 1_u8
            .checked_shl(step.into())
            .filter(|width| *width < self.ranks)?;
        let place = self.rank.before(root.number(), self.ranks)?.number();
        let whole = 0..self.ranks;
        let last = width.saturating_mul(2).min(self.ranks);
        let mut moved = Step::default();
        if place < width {
            if place.saturating_add(width) < self.ranks {
                moved.send = self.transfer_after(width, whole);
            }
        } else if place < last {
            moved.receive = self.transfer_before(width, whole);
        }
        Some(moved)
    }

    /// Once around the ring, beginning with the block `lead` places before this rank's own.
    fn round(&self, step: u8, lead: u8, is_combined: bool) -> Option<Step> {
        let sent = self.rank.before(lead.checked_add(step)?, self.ranks)?;
        let received = sent.before(1, self.ranks)?;
        Some(Step {
            send: self.transfer_after(1, one(sent)),
            receive: self.transfer_before(1, one(received)),
            is_combined,
        })
    }

    fn exchange(&self, step: u8) -> Option<Step> {
        let places = step.checked_add(1)?;
        let to = self.rank.after(places, self.ranks)?;
        let from = self.rank.before(places, self.ranks)?;
        Some(Step {
            send: self.transfer_after(places, one(to)),
            receive: self.transfer_before(places, one(from)),
            is_combined: false,
        })
    }

    fn transfer_after(&self, places: u8, blocks: Range<u8>) -> Option<Transfer> {
        let peer = self.rank.after(places, self.ranks)?;
        Some(Transfer { peer, blocks })
    }

    fn transfer_before(&self, places: u8, blocks: Range<u8>) -> Option<Transfer> {
        let peer = self.rank.before(places, self.ranks)?;
        Some(Transfer { peer, blocks })
    }
}

/// The range with only this rank's block.
fn one(rank: Rank) -> Range<u8> {
    rank.number()..rank.number().saturating_add(1)
}

impl Iterator for Schedule {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let step = self.step;
        let round = self.ranks.checked_sub(1)?;
        let next = match self.collective {
            Collective::Barrier => self.barrier(step),
            Collective::Broadcast(root) => self.broadcast(root, step),
            _ if round == 0 => None,
            Collective::AllGather if step < round => self.round(step, 0, false),
            Collective::ReduceScatter if step < round => self.round(step, 1, true),
            Collective::AllReduce if step < round => self.round(step, 1, true),
            Collective::AllReduce if step < round.saturating_mul(2) => {
                self.round(step.saturating_sub(round), 0, false)
            }
            Collective::AllToAll if step < round => self.exchange(step),
            _ => None,
        };
        self.step = step.saturating_add(u8::from(next.is_some()));
        next
    }
}
