//! What the peer is told that nothing of it is taken any more, and when that is so.

use doorbell_core::session::{Epoch, SESSION_RAILS_MAX};

use super::rail::At;
use crate::{CloseError, CloseProgress};

/// Answers that are owed, and what they wait for.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// For each rail, up to which of its connections it was asked, and whether the turn in which it was is over: by then its channel
    /// was to be shut.
    owed: [Option<(Epoch, bool)>; SESSION_RAILS_MAX as usize],
    /// Channels of rails that were given up and that their device did not shut: until they are gone, the peer may write by them.
    open: Vec<(u8, At)>,
}

impl Fences {
    /// The peer has given up a rail's connections up to this one.
    pub(super) fn asked(&mut self, rail: u8, through: Epoch) {
        if let Some(owed) = self.owed.get_mut(usize::from(rail)) {
            // What was asked before may come behind, over another rail.
            let known = owed.map_or(Epoch::NONE, |(known, _)| known);
            *owed = Some((through.max(known), false));
        }
    }

    /// A channel that a rail had could not be shut.
    pub(super) fn not_shut(&mut self, rail: u8, at: At) {
        self.open.push((rail, at));
    }

    /// Looks which of these channels are still there.
    pub(super) fn look(&mut self, mut is_there: impl FnMut(At) -> bool) {
        self.open.retain(|(_, at)| is_there(*at));
    }

    /// Whether the peer may still write by a channel that this rail had.
    pub(super) fn is_open(&self, rail: u8) -> bool {
        self.open.iter().any(|(of, _)| *of == rail)
    }

    /// Up to which of a rail's connections the peer is to be told now that nothing of them is taken.
    pub(super) fn due(&self, rail: u8) -> Option<Epoch> {
        let (through, is_shut) = self.owed.get(usize::from(rail)).copied().flatten()?;
        (is_shut && !self.is_open(rail)).then_some(through)
    }

    /// Says that it was told so.
    pub(super) fn answered(&mut self, rail: u8) {
        if let Some(owed) = self.owed.get_mut(usize::from(rail)) {
            *owed = None;
        }
    }

    /// A turn is over: what is given up in it is shut before the next.
    pub(super) fn end_turn(&mut self) {
        for owed in self.owed.iter_mut().flatten() {
            owed.1 = true;
        }
    }

    /// Whether an answer is owed.
    pub(super) fn is_any_owed(&self) -> bool {
        self.owed.iter().any(Option::is_some)
    }
}

/// Whether a channel that is closed is still there, so that what its peer writes by it may come: its device may neither have failed
/// nor destroyed its queue pair.
pub(super) fn is_there(progress: CloseProgress) -> bool {
    matches!(
        progress,
        CloseProgress::UnderWay | CloseProgress::Closed(Err(CloseError::NotDestroyed))
    )
}

#[cfg(test)]
mod tests {
    use super::{At, Fences, is_there};
    use crate::{ChannelId, CloseError, CloseProgress};
    use doorbell_core::session::Epoch;

    const fn epoch(number: u32) -> Epoch {
        Epoch::from_wire(number)
    }

    fn at(index: u32) -> At {
        At {
            worker: 0,
            channel: ChannelId { index, generation: 1 },
        }
    }

    #[test]
    fn an_answer_is_due_in_the_turn_after() {
        let mut fences = Fences::default();
        fences.asked(1, epoch(5));
        assert!(fences.is_any_owed());
        assert_eq!(fences.due(1), None);
        fences.end_turn();
        assert_eq!((fences.due(0), fences.due(1)), (None, Some(epoch(5))));
        // One that was asked before, and comes behind.
        fences.asked(1, epoch(3));
        fences.end_turn();
        assert_eq!(fences.due(1), Some(epoch(5)));
        fences.answered(1);
        assert_eq!((fences.due(1), fences.is_any_owed()), (None, false));
    }

    #[test]
    fn nobody_is_told_so_while_a_channel_could_not_be_shut_and_is_there() {
        let mut fences = Fences::default();
        for rail in [0, 1] {
            fences.asked(rail, epoch(2));
        }
        fences.not_shut(1, at(7));
        fences.not_shut(1, at(8));
        fences.end_turn();
        assert_eq!((fences.due(0), fences.due(1)), (Some(epoch(2)), None));
        assert!(!fences.is_open(0) && fences.is_open(1));
        fences.look(|of| of == at(8));
        assert_eq!((fences.due(1), fences.is_any_owed()), (None, true));
        fences.look(|_| false);
        assert_eq!((fences.due(1), fences.is_open(1)), (Some(epoch(2)), false));
    }
    #[test]
    fn a_channel_whose_queue_pair_could_not_be_destroyed_is_there_for_good() {
        assert!(is_there(CloseProgress::UnderWay));
        assert!(is_there(CloseProgress::Closed(Err(CloseError::NotDestroyed))));
        // However badly it went otherwise, it is gone; and its place may be another's by now.
        for gone in [Ok(()), Err(CloseError::TimedOut)] {
            assert!(!is_there(CloseProgress::Closed(gone)));
        }
        assert!(!is_there(CloseProgress::Unknown));
    }
}
