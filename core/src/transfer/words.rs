//! The frames of a transfer, one at a time.

use super::{Connection, Half, PieceState, Stage, Transfer, TransferEnd};
use crate::wire::{End, EndReason, Landed, Open, Progress, RemoteWindow, Take};

/// A frame that a transfer has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Word {
    /// The beginning of the transfer.
    Open(Open),
    /// The key of the taker's memory, once for each connection.
    Take(Take),
    /// An announcement of pieces, after their WRITEs on the same connection; or only a question, on any connection.
    Landed(Landed),
    /// The pieces that the taker has.
    Progress(Progress),
    /// The end of the transfer, or the answer to the peer's end.
    End(End),
}

impl<T: AsRef<[PieceState]> + AsMut<[PieceState]>> Transfer<T> {
    /// Returns the next frame for a connection. `key` is the key of the taker's memory for this connection.
    pub fn word_for(&self, on: Connection, key: Option<RemoteWindow>) -> Option<Word> {
        let ((rail, epoch), transfer) = (on, self.id);
        if self.answering == Some(on) && !matches!(self.stage, Stage::Retiring(_)) {
            let reason = self.reason();
            let is_answer = true;
            return Some(Word::End(End {
                epoch,
                transfer,
                reason,
                is_answer,
            }));
        }
        if self.ending.is_owed && self.is_known {
            let reason = self.reason();
            let is_answer = false;
            return Some(Word::End(End {
                epoch,
                transfer,
                reason,
                is_answer,
            }));
        }
        if self.stage != Stage::Open {
            return None;
        }
        if self.opening.is_owed {
            let (pieces, tag, role) = (self.pieces, self.tag, self.role());
            return Some(Word::Open(Open {
                epoch,
                transfer,
                pieces,
                tag,
                role,
            }));
        }
        match &self.half {
            Half::Giver(giver) => {
                let (first, count, question) = giver.announcement(on)?;
                Some(Word::Landed(Landed {
                    epoch,
                    transfer,
                    first,
                    count,
                    question,
                }))
            }
            Half::Taker(taker) => {
                let sent = self.sent_keys.get(usize::from(rail)).copied();
                // The key is sent only after the giver has joined, since it keeps no key before.
                let key = key.filter(|_| self.is_known);
                if let Some(window) = key.filter(|_| sent != Some(epoch)) {
                    return Some(Word::Take(Take {
                        epoch,
                        transfer,
                        window,
                    }));
                }
                taker.answer(transfer, epoch).map(Word::Progress)
            }
            Half::Offered(_) => None,
        }
    }

    /// Notes that this frame was posted on a connection.
    pub fn said(&mut self, word: &Word, on: Connection) {
        match word {
            Word::Open(_) => {
                self.opening.say(on.0);
                self.was_told = true;
            }
            Word::Take(take) => {
                if let Some(sent) = self.sent_keys.get_mut(usize::from(on.0)) {
                    *sent = take.epoch;
                }
            }
            Word::Landed(landed) => {
                if let Half::Giver(giver) = &mut self.half {
                    giver.announced(on, (landed.first, landed.count, landed.question));
                }
            }
            Word::Progress(_) => {
                if let Half::Taker(taker) = &mut self.half {
                    taker.answered(on.0);
                }
            }
            Word::End(end) if end.is_answer => self.answering = None,
            Word::End(_) => self.ending.say(on.0),
        }
    }

    /// The reason to send to the peer.
    const fn reason(&self) -> EndReason {
        match self.stage {
            Stage::Retiring(end) | Stage::Draining { end, .. } | Stage::Fencing(end) | Stage::Over(end) => {
                match end {
                    TransferEnd::Here(reason) | TransferEnd::ByPeer(reason) => reason,
                    TransferEnd::Done => EndReason::DONE,
                    TransferEnd::Over(_) => EndReason::UNKNOWN,
                }
            }
            Stage::Open => EndReason::UNKNOWN,
        }
    }
}
