//! Schedule of a collective: which rank sends which blocks to which rank, step by step.

use core::ops::Range;

use crate::rank::Rank;

/// A collective over all ranks of a group.
///
/// The data is cut into as many blocks as there are ranks, see [`block_bytes`](super::block_bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Collective {
    /// No rank leaves before every rank has entered. In each step, a rank sends to the one 1, 2, 4, ... places after
    /// it: as many steps as the logarithm of the ranks.
    Barrier,
    /// All get what this rank has, along a binomial tree: as many steps as the logarithm of the ranks.
    Broadcast(Rank),
    /// Each brings its own block, and gets those of all: round a ring.
    AllGather,
    /// Each brings all blocks, and gets the one of its rank, combined of all: round a ring.
    ReduceScatter,
    /// Each brings all blocks, and gets all, combined of all: [`Collective::ReduceScatter`], then
    /// [`Collective::AllGather`]. Each block is combined in one place, so all get the same to the last bit.
    AllReduce,
    /// Each brings a block for every rank, and gets one of every rank: one partner after the other. Sends do not wait
    /// for receives. All blocks have one length: the number of elements is a multiple of the number of ranks.
    AllToAll,
}

impl Collective {
    /// Its number on the wire.
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

/// One step: what is sent and what is received, side by side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// To whom, and which blocks.
    pub send: Option<Transfer>,
    /// From whom, and which blocks.
    pub receive: Option<Transfer>,
    /// Whether what is received is combined with what is there, or takes its place.
    pub is_combined: bool,
}

/// Blocks that go between two ranks. None at all is a message without bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transfer {
    /// The other rank.
    pub peer: Rank,
    /// The first block, and the one behind the last.
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
    /// The steps of a rank among so many; `None` where it is not among them.
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

    /// In step k those who have it, the 2^k first from the root on, each give it to the one 2^k places after.
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

    /// Once round the ring, beginning with the block that is `lead` places before this rank's own.
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

/// The block of this rank alone.
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
