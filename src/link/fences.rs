//! Fences: the promise to a peer that nothing more is taken from connections it gave up, and when that promise can be made.

use doorbell_core::session::{Epoch, SESSION_RAILS_MAX};

use super::rail::At;
use crate::worker::{CloseError, CloseProgress};

/// Answers that are owed, and what they wait for.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// For each rail, up to which of its connections it was asked, and whether the turn in which it was is over: by then its channel
    /// was to be shut.
    owed: [Option<(Epoch, bool)>; SESSION_RAILS_MAX as usize],
    /// Channels of rails that were given up and that their device did not shut: until they are gone, the peer may write by them.
    open: Vec<Open>,
}

/// A channel that its device did not shut.
#[derive(Debug)]
struct Open {
    /// The rail that had it.
    rail: u8,
    at: At,
    /// Whether its queue pair could not be destroyed either: nothing ends it but the device.
    is_for_good: bool,
}

impl Fences {
    /// The peer has given up a rail's connections up to this one.
    pub(super) fn asked(&mut self, rail: u8, through: Epoch) {
        if let Some(owed) = self.owed.get_mut(usize::from(rail)) {
            // An earlier request may arrive later, over another rail.
            let known = owed.map_or(Epoch::NONE, |(known, _)| known);
            *owed = Some((through.max(known), false));
        }
    }

    /// A channel that a rail had could not be shut.
    pub(super) fn not_shut(&mut self, rail: u8, at: At) {
        self.open.push(Open {
            rail,
            at,
            is_for_good: false,
        });
    }

    /// Looks which of these channels are still there, by how far each is closed.
    pub(super) fn look(&mut self, mut progress: impl FnMut(At) -> Option<CloseProgress>) {
        self.open.retain_mut(|open| {
            let progress = progress(open.at);
            open.is_for_good = progress == Some(NOT_DESTROYED);
            progress.is_some_and(is_there)
        });
    }

    /// Whether the peer may still write by a channel that this rail had.
    pub(super) fn is_open(&self, rail: u8) -> bool {
        self.open.iter().any(|open| open.rail == rail)
    }

    /// Up to which of a rail's connections the peer is to be notified now that nothing of them is taken.
    pub(super) fn due(&self, rail: u8) -> Option<Epoch> {
        let (through, is_shut) = self.owed.get(usize::from(rail)).copied().flatten()?;
        (is_shut && !self.is_open(rail)).then_some(through)
    }

    /// Notes that it was notified.
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

    /// Whether no answer is owed, and no channel is awaited.
    pub(super) fn is_at_rest(&self) -> bool {
        self.open.is_empty() && self.owed.iter().all(Option::is_none)
    }

    /// Whether an answer is owed that may go soon: none does while a channel of its rail is there for good.
    pub(super) fn is_any_to_go(&self) -> bool {
        let is_for_good = |rail| self.open.iter().any(|open| open.rail == rail && open.is_for_good);
        let mut owed = (0_u8..).zip(&self.owed).filter(|(_, owed)| owed.is_some());
        owed.any(|(rail, _)| !is_for_good(rail))
    }
}

/// Outcome of closing a channel whose queue pair the device does not destroy.
const NOT_DESTROYED: CloseProgress = CloseProgress::Closed(Err(CloseError::NotDestroyed));

/// Whether a channel that is closed is still there, so that what its peer writes by it may come: its device may neither have failed
/// nor destroyed its queue pair.
pub(super) fn is_there(progress: CloseProgress) -> bool {
    matches!(progress, CloseProgress::UnderWay | NOT_DESTROYED)
}

#[cfg(test)]
mod tests {
    use super::{At, Fences, NOT_DESTROYED, is_there};
    use crate::worker::channel::ChannelId;
    use crate::worker::{CloseError, CloseProgress};
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
        assert!(fences.is_any_to_go());
        assert_eq!(fences.due(1), None);
        fences.end_turn();
        assert_eq!((fences.due(0), fences.due(1)), (None, Some(epoch(5))));
        // One that was asked before, and comes behind.
        fences.asked(1, epoch(3));
        fences.end_turn();
        assert_eq!(fences.due(1), Some(epoch(5)));
        fences.answered(1);
        assert_eq!((fences.due(1), fences.is_any_to_go()), (None, false));
    }

    #[test]
    fn no_peer_is_notified_while_a_channel_could_not_be_shut_and_is_there() {
        let mut fences = Fences::default();
        for rail in [0, 1] {
            fences.asked(rail, epoch(2));
        }
        fences.not_shut(1, at(7));
        fences.not_shut(1, at(8));
        fences.end_turn();
        assert_eq!((fences.due(0), fences.due(1)), (Some(epoch(2)), None));
        assert!(!fences.is_open(0) && fences.is_open(1));
        let under_way = |of| (of == at(8)).then_some(CloseProgress::UnderWay);
        fences.look(under_way);
        fences.answered(0);
        assert_eq!((fences.due(1), fences.is_any_to_go()), (None, true));
        // This may last, and costs nothing meanwhile.
        fences.look(|of| (of == at(8)).then_some(NOT_DESTROYED));
        assert_eq!((fences.due(1), fences.is_any_to_go()), (None, false));
        fences.asked(0, epoch(3));
        assert!(fences.is_any_to_go());
        fences.look(|_| None);
        assert_eq!((fences.due(1), fences.is_open(1)), (Some(epoch(2)), false));
        assert!(fences.is_any_to_go());
    }

    #[test]
    fn a_channel_whose_queue_pair_could_not_be_destroyed_is_there_for_good() {
        assert!(is_there(CloseProgress::UnderWay));
        assert!(is_there(NOT_DESTROYED));
        // However badly it went otherwise, it is gone; and its place may be another's by now.
        for gone in [Ok(()), Err(CloseError::TimedOut)] {
            assert!(!is_there(CloseProgress::Closed(gone)));
        }
        assert!(!is_there(CloseProgress::Unknown));
    }
}
