//! Posting of what transfers say, and of their pieces.

use doorbell_core::Instant;
use doorbell_core::network::Network;
use doorbell_core::provider::{Operation, PostFlags, Provider, PushError, RemoteAddress};
use doorbell_core::session::{Epoch, HealthState, SESSION_RAILS_MAX};
use doorbell_core::transfer::{TransferId, Word};
use doorbell_core::wire::{EndFrame, LandedFrame, OpenFrame, ProgressFrame, TakeFrame};

use super::entry::Memory;
use crate::link::rail::{At, Carried};
use crate::link::state::{Link, Posted, posted};
use crate::worker::Worker;
use crate::worker::channel::SendErrorKind;

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
        for _ in 0..self.transfers.answers.len() {
            let Some(answer) = self.transfers.answers.pop_front() else {
                return;
            };
            let (rail, epoch) = answer.on;
            let there = self.rails.get(usize::from(rail)).and_then(|rail| rail.at);
            let Some(at) = there.filter(|_| self.session.rail_epoch(rail) == epoch) else {
                continue;
            };
            let bytes = EndFrame::new(&answer.word()).to_bytes();
            let is_open = self.session.takes_beside(rail);
            if !is_open || self.say((rail, at), &bytes, workers, turn).is_none() {
                self.transfers.answers.push_back(answer);
            }
        }
    }

    /// Says all that a transfer has to say over a rail.
    fn say_words(&mut self, rail: u8, place: usize, workers: &mut [Worker<P>], turn: (Instant, u64)) {
        while let Some((at, epoch)) = self.open_rail(rail) {
            let entry = self.transfers.entries.get(place);
            let Some(word) = entry.and_then(|entry| entry.word_for((rail, epoch), at.worker)) else {
                return;
            };
            let mut said = |bytes: &[u8]| self.may_have_said((rail, at), bytes, workers, turn);
            let is_said = match &word {
                Word::Open(open) => said(&OpenFrame::new(open).to_bytes()),
                Word::Take(take) => said(&TakeFrame::new(take).to_bytes()),
                Word::Landed(landed) => said(&LandedFrame::new(landed).to_bytes()),
                Word::Progress(progress) => said(&ProgressFrame::new(progress).to_bytes()),
                Word::End(end) => said(&EndFrame::new(end).to_bytes()),
                _ => false,
            };
            if !is_said {
                return;
            }
            // A post in doubt may have been said. The loss of its connection follows, and undoes what is not known.
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
                    let place = self.in_turn(order, turned, *rail);
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

    /// The transfer that is tried at this turn: those of the highest priority that have pieces for the rail. One that its taker has not
    /// joined has none.
    fn in_turn(&self, order: &[usize], turned: usize, rail: u8) -> Option<usize> {
        let place = *order.get(turned)?;
        let entries = &self.transfers.entries;
        let priority = entries.get(place)?.priority;
        let on = (rail, self.session.rail_epoch(rail));
        let has_higher = |entry: &super::entry::Entry<P>| {
            entry.priority > priority && entry.machine.piece_for(on).is_some()
        };
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
        let most = self
            .session
            .config()
            .suspect_after
            .checked_div(4)
            .unwrap_or_default();
        let Some((piece, operation, id, bytes)) = self.next_piece(place, (rail, epoch)) else {
            return false;
        };
        let pieces_max = self.transfers.config.pieces_ahead;
        let pace = self.transfers.paces.get_mut(usize::from(rail));
        if pace.is_none_or(|pace| !pace.has_room(pieces_max, bytes, most)) {
            return false;
        }
        let outcome = self.write(place, (at, operation), (piece, bytes), workers);
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
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.took(rail, outcome, length, Some(Carried::Piece(id, bytes)), turn);
        self.say_words(rail, place, workers, turn);
        is_done
    }

    /// The next piece of a transfer, and the WRITE of it over a connection.
    fn next_piece(&self, place: usize, on: (u8, Epoch)) -> Option<(u32, Operation, TransferId, u32)> {
        let entry = self.transfers.entries.get(place)?;
        let (piece, window) = entry.machine.piece_for(on)?;
        let (offset, bytes) = entry.machine.pieces().range(piece)?;
        let remote = RemoteAddress::within(&window, offset, bytes.into())?;
        Some((piece, Operation::Write(remote), entry.machine.id(), bytes))
    }

    fn write(
        &self,
        place: usize,
        (at, operation): (At, Operation),
        (piece, bytes): (u32, u32),
        workers: &mut [Worker<P>],
    ) -> Posted {
        let entry = self.transfers.entries.get(place);
        let Some(Memory::Given(region, start)) = entry.map(|entry| &entry.memory) else {
            return Posted::Failed;
        };
        let offset = entry.and_then(|entry| entry.machine.pieces().range(piece));
        let offset = offset.and_then(|(offset, _)| usize::try_from(offset).ok());
        let range = offset.and_then(|offset| region.range(at.worker, start.checked_add(offset)?, bytes));
        let worker = workers.get_mut(at.worker);
        let channel = worker.and_then(|worker| worker.channel(at.channel));
        let (Some(range), Some(channel)) = (range, channel) else {
            return Posted::Blocked;
        };
        match channel.post_ranges(operation, [range], PostFlags::SIGNALED) {
            Err(SendErrorKind::Refused(PushError::State(_))) => Posted::Blocked,
            // The device may have it: the rail is given up.
            Err(SendErrorKind::Post(_)) => Posted::InDoubt,
            outcome => posted(outcome),
        }
    }
}
