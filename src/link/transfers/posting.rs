//! Posting of what transfers say, and of their pieces.

use doorbell_core::Instant;
use doorbell_core::network::Network;
use doorbell_core::provider::{Operation, PostFlags, Provider, RemoteAddress};
use doorbell_core::session::{Epoch, HealthState, SESSION_RAILS_MAX};
use doorbell_core::transfer::{TransferId, Word};
use doorbell_core::wire::{EndFrame, LandedFrame, OpenFrame, ProgressFrame, RemoteWindow, TakeFrame};

use super::entry::Memory;
use crate::link::one_sided::posted_now;
use crate::link::rail::{At, Carried};
use crate::link::state::{Link, Posted};
use crate::worker::Worker;

/// The least bytes of a part of a piece, and the most parts: with one part in [`SessionConfig::dead_after`](crate::link::SessionConfig::dead_after)
/// a rail of 2 Mbit/s is not taken for dead.
const PART_BYTES_MIN: u32 = 32 << 10;
const PARTS_MAX: u32 = 8;

impl<P: Provider, N: Network> Link<P, N> {
    /// Says what transfers have to say, and posts their pieces, as far as rails take it.
    pub(in super::super) fn go_on_with_transfers(&mut self, workers: &mut [Worker<P>], turn: (Instant, u64)) {
        if self.transfers.entries.is_empty() && self.transfers.answers.is_empty() {
            return;
        }
        self.say_answers(workers, turn);
        let order = self.transfers.order();
        for rail in 0..SESSION_RAILS_MAX {
            for at in &order {
                self.say_words(rail, *at, workers, turn);
            }
        }
        self.post_pieces(&order, workers, turn);
        self.transfers.turn = self.transfers.turn.wrapping_add(1);
    }

    /// Answers the peer about transfers that are gone.
    fn say_answers(&mut self, workers: &mut [Worker<P>], turn: (Instant, u64)) {
        while let Some(answer) = self.transfers.answers.front().copied() {
            let Some((rail, at, epoch)) = self.any_rail() else {
                return;
            };
            let bytes = EndFrame::new(&answer.word(epoch)).to_bytes();
            if self.say((rail, at), &bytes, workers, turn).is_none() {
                return;
            }
            self.transfers.answers.pop_front();
        }
    }

    /// Says all that a transfer has to say over a rail.
    fn say_words(&mut self, rail: u8, place: usize, workers: &mut [Worker<P>], turn: (Instant, u64)) {
        while let Some((at, epoch)) = self.open_rail(rail) {
            let entry = self.transfers.entries.get(place);
            let Some(word) = entry.and_then(|entry| entry.word_for((rail, epoch), at.worker)) else {
                return;
            };
            let ticket = match &word {
                Word::Open(open) => self.say((rail, at), &OpenFrame::new(open).to_bytes(), workers, turn),
                Word::Take(take) => self.say((rail, at), &TakeFrame::new(take).to_bytes(), workers, turn),
                Word::Landed(landed) => {
                    self.say((rail, at), &LandedFrame::new(landed).to_bytes(), workers, turn)
                }
                Word::Progress(progress) => self.say(
                    (rail, at),
                    &ProgressFrame::new(progress).to_bytes(),
                    workers,
                    turn,
                ),
                Word::End(end) => self.say((rail, at), &EndFrame::new(end).to_bytes(), workers, turn),
                _ => None,
            };
            if ticket.is_none() {
                return;
            }
            if let Some(entry) = self.transfers.entries.get_mut(place) {
                entry.machine.said(&word, (rail, epoch));
            }
        }
    }

    /// Posts pieces, on each rail of the best state there is, until the rail has as many under way as it may.
    fn post_pieces(&mut self, order: &[usize], workers: &mut [Worker<P>], turn: (Instant, u64)) {
        let Some(best) = self.tiers().filter_map(|(_, tier)| tier).min() else {
            return;
        };
        let rails: Vec<_> = self
            .tiers()
            .filter(|(_, tier)| *tier == Some(best))
            .map(|(rail, _)| rail)
            .collect();
        let count = order.len();
        // One piece at a time, so that transfers of the same priority take turns.
        let mut first = 0_usize;
        loop {
            let before = first;
            for rail in &rails {
                let turns = (0..count).filter_map(|step| first.saturating_add(step).checked_rem(count));
                for turned in turns {
                    let place = self.in_turn(order, turned);
                    if place.is_some_and(|place| self.post_piece(*rail, place, workers, turn)) {
                        first = first.saturating_add(1);
                        break;
                    }
                }
            }
            if first == before {
                return;
            }
        }
    }

    /// The rails that have a connection, each with how well it is: the lower the better, and none if it is not used.
    fn tiers(&self) -> impl Iterator<Item = (u8, Option<u8>)> {
        let rails = (0_u8..).zip(&self.rails).filter(|(_, rail)| rail.at.is_some());
        rails.map(|(index, _)| {
            let tier = match self.session.rail_state(index) {
                HealthState::Up => Some(0),
                HealthState::FailingBack => Some(1),
                HealthState::Suspect => Some(2),
                _ => None,
            };
            (index, tier)
        })
    }

    /// The transfer that is tried at this turn: those of the highest priority that have pieces.
    fn in_turn(&self, order: &[usize], turned: usize) -> Option<usize> {
        let place = *order.get(turned)?;
        let entries = &self.transfers.entries;
        let priority = entries.get(place)?.priority;
        let has_higher =
            |entry: &super::entry::Entry<P>| entry.priority > priority && entry.machine.has_pieces();
        (!entries.iter().any(has_higher)).then_some(place)
    }

    /// Posts the next piece of a transfer on a rail, and announces it there. Says whether one was posted.
    fn post_piece(
        &mut self,
        rail: u8,
        place: usize,
        workers: &mut [Worker<P>],
        turn: (Instant, u64),
    ) -> bool {
        let (now, _) = turn;
        let Some((at, epoch)) = self.open_rail(rail) else {
            return false;
        };
        let suspect_after = self.session.config().suspect_after;
        let most = suspect_after.checked_div(4).unwrap_or(suspect_after);
        let Some((piece, window, id, bytes)) = self.next_piece(place, (rail, epoch)) else {
            return false;
        };
        let pieces_max = self.transfers.config.pieces_ahead;
        let pace = self.transfers.paces.get(usize::from(rail));
        if pace.is_none_or(|pace| !pace.has_room(pieces_max, bytes, most)) {
            return false;
        }
        let is_slow = pace.is_none_or(|pace| !pace.is_fast_for(bytes, most));
        let parts = if is_slow { PARTS_MAX } else { 1 };
        let outcome = self.write(place, (rail, at, window), (piece, bytes), parts, (workers, turn));
        let is_done = matches!(outcome, Posted::Done(_));
        let is_in_doubt = matches!(outcome, Posted::InDoubt);
        if is_done || is_in_doubt {
            if let Some(entry) = self.transfers.entries.get_mut(place) {
                entry.machine.wrote(piece, (rail, epoch));
            }
        }
        if is_done {
            if let Some(pace) = self.transfers.paces.get_mut(usize::from(rail)) {
                pace.posted(bytes, now);
            }
        }
        // Parts before the last one were counted.
        let part_bytes = bytes.div_ceil(parts).max(PART_BYTES_MIN);
        let before = bytes
            .div_ceil(part_bytes)
            .saturating_sub(1)
            .saturating_mul(part_bytes);
        let length = usize::try_from(bytes.saturating_sub(before)).unwrap_or(usize::MAX);
        self.took(rail, outcome, length, Some(Carried::Piece(id, bytes)), turn);
        self.say_words(rail, place, workers, turn);
        is_done
    }

    /// The next piece of a transfer, and the taker's memory by its key for a connection.
    fn next_piece(&self, place: usize, on: (u8, Epoch)) -> Option<(u32, RemoteWindow, TransferId, u32)> {
        let entry = self.transfers.entries.get(place)?;
        let (piece, window) = entry.machine.piece_for(on)?;
        let (_, bytes) = entry.machine.pieces().range(piece)?;
        Some((piece, window, entry.machine.id(), bytes))
    }

    /// Posts the WRITE of a piece: several of its parts, in order, on a rail that would take long for all of it at once. Each completion is a sign of life
    /// of the rail. The outcome is that of the last part.
    fn write(
        &mut self,
        place: usize,
        (rail, at, window): (u8, At, RemoteWindow),
        (piece, bytes): (u32, u32),
        parts: u32,
        (workers, turn): (&mut [Worker<P>], (Instant, u64)),
    ) -> Posted {
        let entry = self.transfers.entries.get(place);
        let Some(Memory::Given(region, start)) = entry.map(|entry| &entry.memory) else {
            return Posted::Failed;
        };
        let offset = entry.and_then(|entry| entry.machine.pieces().range(piece));
        let Some((offset, _)) = offset else {
            return Posted::Failed;
        };
        let (region, start) = (region.clone(), *start);
        let part_bytes = bytes.div_ceil(parts.max(1)).max(PART_BYTES_MIN);
        let count = bytes.div_ceil(part_bytes);
        let (mut at_byte, mut last) = (0_u32, Posted::Blocked);
        while at_byte < bytes {
            let length = part_bytes.min(bytes.saturating_sub(at_byte));
            let worker = workers.get_mut(at.worker);
            let channel = worker.and_then(|worker| worker.channel(at.channel));
            let offset = offset.saturating_add(at_byte.into());
            let from = usize::try_from(offset)
                .ok()
                .and_then(|offset| start.checked_add(offset));
            let range = from.and_then(|from| region.range(at.worker, from, length));
            let to = RemoteAddress::within(&window, offset, length.into());
            let (Some(range), Some(channel), Some(to)) = (range, channel, to) else {
                return Posted::Blocked;
            };
            // All of them, and what announces the piece, or none.
            if at_byte == 0 && count > 1 && channel.room() <= count {
                return Posted::Blocked;
            }
            let outcome = posted_now(channel.post_ranges(Operation::Write(to), [range], PostFlags::SIGNALED));
            at_byte = at_byte.saturating_add(length);
            if at_byte >= bytes {
                last = outcome;
                break;
            }
            if !matches!(outcome, Posted::Done(_)) {
                // Nothing was posted, or a part of the piece may have been: the rail is given up then.
                return if at_byte == length {
                    outcome
                } else {
                    Posted::InDoubt
                };
            }
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            self.took(rail, outcome, length, None, turn);
        }
        match last {
            Posted::Blocked | Posted::Failed if count > 1 => Posted::InDoubt,
            last => last,
        }
    }
}
