//! The messages between two starts of two members: each comes once, and in its turn.

use std::collections::{BTreeMap, VecDeque};

use crate::failure::{Verdict, ensure, failure};
use crate::pattern::{Label, MESHED};

/// From whom and to whom: members, with the starts of their processes.
pub(crate) type Ends = ((usize, u64), (usize, u64));

/// The messages sent between two processes, and those that were taken.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) ends: Ends,
    pub(crate) sent: u64,
    pub(crate) taken: u64,
    /// How long those are that were sent and not taken.
    lengths: VecDeque<usize>,
}

/// All pairs there ever were.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    pairs: Vec<Pair>,
    by_ends: BTreeMap<Ends, usize>,
}

impl Pairs {
    fn at(&mut self, ends: Ends) -> usize {
        let Self { pairs, by_ends } = self;
        *by_ends.entry(ends).or_insert_with(|| {
            pairs.push(Pair {
                ends,
                sent: 0,
                taken: 0,
                lengths: VecDeque::new(),
            });
            pairs.len() - 1
        })
    }

    fn label(at: usize, number: u64) -> Label {
        Label {
            connection: at as u32,
            end: 0,
            stream: MESHED,
            number,
        }
    }

    /// The bytes of the message that is sent next.
    pub(crate) fn next(&mut self, ends: Ends, bytes: usize) -> Vec<u8> {
        let at = self.at(ends);
        Self::label(at, self.pairs[at].sent).bytes(bytes)
    }

    /// It was taken in. So many are under way at most, and one that asks for room.
    pub(crate) fn did_send(&mut self, ends: Ends, bytes: usize, window: u32) -> Verdict {
        let at = self.at(ends);
        let pair = &mut self.pairs[at];
        pair.sent += 1;
        pair.lengths.push_back(bytes);
        ensure(pair.sent - pair.taken <= u64::from(window) + 1, "window", || {
            format!("{} of {ends:?} are sent and not taken", pair.sent - pair.taken)
        })
    }

    /// One came to this process, of this member.
    pub(crate) fn take(&mut self, from: usize, to: (usize, u64), bytes: &[u8]) -> Verdict {
        let label = Label::of(bytes).ok_or_else(|| failure("bytes", "a message that nobody sent"))?;
        let at = label.connection as usize;
        let pair = self.pairs.get_mut(at).filter(|_| label.stream == MESHED);
        let pair = pair.ok_or_else(|| failure("bytes", "a message of no pair"))?;
        ensure(pair.ends.0.0 == from && pair.ends.1 == to, "owner", || {
            format!("{to:?} has as of {from} what is of {:?}", pair.ends)
        })?;
        ensure(label.number == pair.taken, "order", || {
            format!("{to:?} has number {} of {from}, not {}", label.number, pair.taken)
        })?;
        let length = pair.lengths.pop_front();
        let is_whole =
            length == Some(bytes.len()) && bytes == Self::label(at, label.number).bytes(bytes.len());
        ensure(is_whole, "bytes", || {
            format!(
                "number {} from {from} to {to:?} is not as it was sent",
                label.number
            )
        })?;
        pair.taken += 1;
        Ok(())
    }

    /// A pair of which something is to come and has not.
    pub(crate) fn waiting(&self, is_awaited: impl Fn((usize, u64), (usize, u64)) -> bool) -> Option<&Pair> {
        let mut pairs = self.pairs.iter();
        pairs.find(|pair| pair.taken < pair.sent && is_awaited(pair.ends.0, pair.ends.1))
    }

    /// How many were taken between two processes.
    pub(crate) fn taken(&self, ends: Ends) -> u64 {
        self.by_ends.get(&ends).map_or(0, |at| self.pairs[*at].taken)
    }
}
