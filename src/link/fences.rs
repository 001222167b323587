//! Fences: answers to a peer that this side accepts nothing more from connections that the peer gave up, and when they may be sent.

use doorbell_core::session::{Epoch, SESSION_RAILS_MAX};

use super::rail::At;
use crate::worker::{CloseError, CloseProgress};

/// Answers that are owed, and the channels that they wait for.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// For each rail, the last connection that the peer asked about, and whether the poll in which it asked is over. By then the
    /// channel is shut, unless its device refused.
    owed: [Option<(Epoch, bool)>; SESSION_RAILS_MAX as usize],
    /// Channels of rails that were given up, whose device refused to shut them. The peer may write over them until they are gone.
    open: Vec<Open>,
}

/// A channel whose device refused to shut it.
#[derive(Debug)]
struct Open {
    /// The rail that used it.
    rail: u8,
    at: At,
    /// Whether the device did not destroy its queue pair either. Then it exists as long as the process.
    is_for_good: bool,
}

impl Fences {
    /// Notes that the peer has given up a rail's connections up to this one, and awaits an answer.
    pub(super) fn asked(&mut self, rail: u8, through: Epoch) {
        if let Some(owed) = self.owed.get_mut(usize::from(rail)) {
            // A request about an earlier connection may arrive later, over another rail.
            let known = owed.map_or(Epoch::NONE, |(known, _)| known);
            *owed = Some((through.max(known), false));
        }
    }

    /// Notes that a channel of a rail could not be shut.
    pub(super) fn not_shut(&mut self, rail: u8, at: At) {
        self.open.push(Open {
            rail,
            at,
            is_for_good: false,
        });
    }

    /// Removes the channels that are gone, by the progress of closing each.
    pub(super) fn look(&mut self, mut progress: impl FnMut(At) -> Option<CloseProgress>) {
        self.open.retain_mut(|open| {
            let progress = progress(open.at);
            open.is_for_good = progress == Some(NOT_DESTROYED);
            progress.is_some_and(is_there)
        });
    }

    /// Whether the peer may still write over a channel that this rail had.
    pub(super) fn is_open(&self, rail: u8) -> bool {
        self.open.iter().any(|open| open.rail == rail)
    }

    /// Returns the last connection of a rail that an answer may name now: nothing more is accepted from it and from earlier ones.
    pub(super) fn due(&self, rail: u8) -> Option<Epoch> {
        let (through, is_shut) = self.owed.get(usize::from(rail)).copied().flatten()?;
        (is_shut && !self.is_open(rail)).then_some(through)
    }

    /// Notes that the answer about a rail was sent.
    pub(super) fn answered(&mut self, rail: u8) {
        if let Some(owed) = self.owed.get_mut(usize::from(rail)) {
            *owed = None;
        }
    }

    /// Notes that a poll is over. Connections that were given up in it are shut before the next poll advances links.
    pub(super) fn end_turn(&mut self) {
        for owed in self.owed.iter_mut().flatten() {
            owed.1 = true;
        }
    }

    /// Whether no answer is owed, and no channel remains to be closed.
    pub(super) fn is_at_rest(&self) -> bool {
        self.open.is_empty() && self.owed.iter().all(Option::is_none)
    }

    /// Whether an answer is owed that can be sent once channels are closed. A queue pair that is never destroyed prevents the answer about
    /// its rail.
    pub(super) fn is_any_to_go(&self) -> bool {
        let is_for_good = |rail| self.open.iter().any(|open| open.rail == rail && open.is_for_good);
        let mut owed = (0_u8..).zip(&self.owed).filter(|(_, owed)| owed.is_some());
        owed.any(|(rail, _)| !is_for_good(rail))
    }
}

/// Outcome of closing a channel whose queue pair the device did not destroy.
const NOT_DESTROYED: CloseProgress = CloseProgress::Closed(Err(CloseError::NotDestroyed));

/// Whether a channel whose device refused to shut it still exists, so that WRITEs of its peer may still be executed.
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
        // A request about an earlier connection, which arrives later.
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
        // This may last for ever, so nothing is polled for it.
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
        // With any other outcome the channel is gone, and another channel may have the same index.
        for gone in [Ok(()), Err(CloseError::TimedOut)] {
            assert!(!is_there(CloseProgress::Closed(gone)));
        }
        assert!(!is_there(CloseProgress::Unknown));
    }
}
