//! Posting of frames about transfers, and of their pieces.

use core::cmp::Reverse;

use doorbell_core::Instant;
use doorbell_core::network::Network;
use doorbell_core::provider::{Operation, PostFlags, Provider, RemoteAddress};
use doorbell_core::session::{Epoch, HealthState};
use doorbell_core::transfer::{TransferId, Word};
use doorbell_core::wire::{
    EndFrame, EndReason, LandedFrame, OpenFrame, ProgressFrame, RemoteWindow, TakeFrame,
};

use super::entry::Memory;
use crate::link::moment::Moment;
use crate::link::one_sided::posting::{posted_now, tier_of};
use crate::link::rail::{At, Carried};
use crate::link::state::{Link, Posted};
use crate::worker::Worker;

/// The minimum length of a part of a piece, and the maximum number of parts. A rail that carries one part within
/// [`SessionConfig::dead_after`](crate::link::SessionConfig::dead_after) is not considered dead: by default that takes 2.2 Mbit/s.
const PART_BYTES_MIN: u32 = 32 << 10;
const PARTS_MAX: u32 = 8;

/// The maximum length of a WRITE of consecutive pieces. Beyond it the cost of a request is small compared with that of its bytes.
const RUN_BYTES_MAX: u32 = 1 << 20;

/// Consecutive pieces that are to be posted as one WRITE.
struct NextPiece {
    /// The index of the transfer in the table.
    place: usize,
    id: TransferId,
    piece: u32,
    pieces: u16,
    offset: u64,
    bytes: u32,
    /// The taker's memory, with its key for the connection.
    window: RemoteWindow,
}

impl<P: Provider, N: Network> Link<P, N> {
    /// Posts the frames and pieces of transfers, as far as rails have room.
    pub(in super::super) fn go_on_with_transfers(&mut self, workers: &mut [Worker<P>], moment: Moment) {
        if self.transfers.entries.is_empty() && self.transfers.answers.is_empty() {
            return;
        }
        self.say_answers(workers, moment);
        // A frame that may go over any rail goes over one that is up, if there is one ([`Self::say_words`]).
        for is_up in [true, false] {
            let mut is_all = true;
            for rail in self.rails() {
                if (self.session.rail_state(rail) == HealthState::Up) != is_up {
                    is_all = false;
                    continue;
                }
                for place in 0..self.transfers.entries.len() {
                    self.say_words(rail, place, workers, moment);
                }
            }
            if is_all {
                break;
            }
        }
        if !self.in_class.is_ordered() {
            self.post_pieces(workers, moment);
        }
    }

    /// Posts the answers to the peer about transfers that do not exist here.
    fn say_answers(&mut self, workers: &mut [Worker<P>], moment: Moment) {
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
            if !is_open || self.say((rail, at), &bytes, workers, moment).is_none() {
                self.transfers.answers.push_back(answer);
            }
        }
    }

    /// Posts all frames that a transfer has for a rail. While another rail is up, a rail that is not up carries only the frames that belong
    /// to its connection. The others wait until a rail that is up has room, as messages do: on a suspect rail they would wait for its end.
    fn say_words(&mut self, rail: u8, place: usize, workers: &mut [Worker<P>], moment: Moment) {
        let is_up = |rail: u8| self.session.rail_state(rail) == HealthState::Up;
        let may_be_any = is_up(rail) || !self.rails().any(is_up);
        while let Some((at, epoch)) = self.open_rail(rail) {
            let Some(word) = self.transfers.word_for(place, (rail, epoch), at.worker) else {
                return;
            };
            if !may_be_any && !is_of_connection(&word) {
                return;
            }
            let mut said = |bytes: &[u8]| self.may_have_said((rail, at), bytes, workers, moment);
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
            // A frame in doubt counts as sent. The loss of its connection follows, after which it is sent again if necessary.
            if let Some(entry) = self.transfers.entries.get_mut(place) {
                entry.machine.said(&word, (rail, epoch));
            }
        }
    }

    /// Posts pieces on each rail in the best state of all rails, up to the limit of each rail.
    pub(in crate::link) fn post_pieces(&mut self, workers: &mut [Worker<P>], moment: Moment) {
        let mut givers = 0_u32;
        for entry in &mut self.transfers.entries {
            entry.not_before = None;
            givers = givers.saturating_add(u32::from(entry.is_giving()));
        }
        let mut is_any = givers > 0;
        if !is_any {
            return;
        }
        let Some(best) = self.rails().filter_map(|rail| self.tier(rail)).min() else {
            return;
        };
        let is_best = |link: &Self, rail| link.tier(rail) == Some(best) && !link.in_class.is_held(rail);
        let count = |link: &Self| {
            let best = link.rails().filter(|rail| is_best(link, *rail));
            u32::try_from(best.count()).unwrap_or(u32::MAX)
        };
        // Each rail gets one WRITE in turn, of at most its share, so that the last pieces are distributed over all rails.
        let mut unsaid = None;
        'rounds: while is_any {
            is_any = false;
            let mut rails = count(self);
            let is_alone = rails == 1 && givers == 1;
            let frames = u32::from(unsaid.is_some());
            for rail in self.rails() {
                if is_best(self, rail) {
                    if let Some((place, pieces)) = self.post_piece(rail, (rails, frames), workers, moment) {
                        // Nothing more is posted on a rail that is full, and the others have had their turn.
                        is_any |= !self.transfers.pace(rail).is_full(self.pieces_max());
                        rails = rails.saturating_sub(1);
                        // With one rail and one giver, WRITEs of consecutive pieces are announced together after the last one. Otherwise
                        // each WRITE is announced at once.
                        if pieces > 1 && is_alone {
                            unsaid = Some(rail);
                        } else {
                            self.say_words(rail, place, workers, moment);
                        }
                    }
                }
                if self.in_class.has_had_turn() {
                    break 'rounds;
                }
            }
        }
        if let Some(rail) = unsaid {
            for place in 0..self.transfers.entries.len() {
                self.say_words(rail, place, workers, moment);
            }
        }
    }

    /// The limit on pieces in flight on a rail.
    fn pieces_max(&self) -> u32 {
        match self.in_class.is_ordered() {
            // With classes, the schedule limits the bytes in flight of all links.
            true => u32::MAX,
            false => self.transfers.config.pieces_ahead,
        }
    }

    fn rails(&self) -> core::ops::Range<u8> {
        0..self.session.rails_end()
    }

    /// Rank of a rail that has a connection; lower is better. `None` if the rail is not used.
    fn tier(&self, rail: u8) -> Option<u8> {
        self.rails.get(usize::from(rail))?.at?;
        tier_of(self.session.rail_state(rail))
    }

    /// Returns the next pieces for a connection: of the transfer with the highest priority among those that have any, and among equals of the
    /// one that has waited longest for its turn. If the rail carries several pieces within `most_ns`, they go in one WRITE, of at most half of
    /// `pieces_ahead`, so that another WRITE can be in flight.
    fn next_piece(
        &mut self,
        on: (u8, Epoch),
        (rails, most_ns): (u32, u64),
        now: Instant,
    ) -> Option<NextPiece> {
        let pace = self.transfers.pace(on.0);
        // With classes, a message of a higher class waits for each WRITE, so each has one piece.
        let may_run = !self.in_class.is_ordered();
        let half = self.transfers.config.pieces_ahead / 2;
        let entries = self.transfers.entries.iter_mut().enumerate();
        // If the key of a transfer for this connection has not arrived, other transfers use the rail meanwhile.
        let ready = entries.filter_map(|(place, entry)| {
            let (piece, window) = entry.machine.piece_for(on)?;
            let (offset, bytes) = entry.machine.pieces().range(piece)?;
            let run = half.min(RUN_BYTES_MAX.checked_div(bytes).unwrap_or(1));
            let is_fast = || pace.is_fast_for(bytes.saturating_mul(run), most_ns);
            let (pieces, bytes) = match run > 1 && may_run && entry.bucket.is_none() && is_fast() {
                true => entry.machine.run_from(piece, run, rails),
                false => (1, bytes),
            };
            let turn = (Reverse(entry.priority), entry.served);
            let next = NextPiece {
                place,
                id: entry.machine.id(),
                piece,
                pieces: u16::try_from(pieces).unwrap_or(u16::MAX),
                offset,
                bytes,
                window,
            };
            entry.is_ready(now).then_some((turn, next))
        });
        ready.min_by_key(|(turn, _)| *turn).map(|(_, next)| next)
    }

    /// Posts the next pieces of a transfer on a rail. The remaining pieces are shared by `rails` rails, and room for `frames` announcements
    /// is left. Returns the index of the transfer and the number of posted pieces, if there are any.
    fn post_piece(
        &mut self,
        rail: u8,
        (rails, frames): (u32, u32),
        workers: &mut [Worker<P>],
        moment: Moment,
    ) -> Option<(usize, u16)> {
        let now = moment.now;
        let (at, epoch) = self.open_rail(rail)?;
        let pieces_max = self.pieces_max();
        let pace = self.transfers.pace(rail);
        if pace.is_full(pieces_max) {
            return None;
        }
        let suspect_after = self.session.config().suspect_after;
        let most_ns = u64::try_from(suspect_after.as_nanos()).unwrap_or(u64::MAX) / 4;
        let next = self.next_piece((rail, epoch), (rails, most_ns / 4), now)?;
        let (place, id, bytes) = (next.place, next.id, next.bytes);
        if !pace.has_room(pieces_max, (bytes, next.pieces), most_ns) {
            return None;
        }
        let part_bytes = match pace.is_fast_for(bytes, most_ns) {
            true => bytes,
            // A piece that takes long is posted in parts, since each completion shows that the rail works.
            false => {
                // The parts and the frame have to fit into the queue, or they would wait for ever. So they take at most half of it.
                let worker = workers.get_mut(at.worker);
                let channel = worker.and_then(|worker| worker.channel(at.channel));
                let depth = channel.map_or(0, |channel| channel.room().saturating_add(channel.in_flight()));
                let parts_max = PARTS_MAX.min(depth / 2).max(1);
                bytes.div_ceil(parts_max).max(PART_BYTES_MIN)
            }
        };
        let outcome = self.write((rail, at), &next, (part_bytes, frames), workers, moment);
        if matches!(outcome, Posted::Failed) {
            // A further attempt would fail, too, by the length or by the memory.
            self.transfers.refused(id, EndReason::NOT_POSTED, now);
        }
        let is_done = matches!(outcome, Posted::Done(_));
        let is_in_doubt = matches!(outcome, Posted::InDoubt);
        if is_done || is_in_doubt {
            self.transfers.posted = self.transfers.posted.wrapping_add(1);
            if let Some(entry) = self.transfers.entries.get_mut(place) {
                entry.machine.wrote(next.piece, next.pieces.into(), (rail, epoch));
                entry.served = self.transfers.posted;
                if let Some(bucket) = &mut entry.bucket {
                    bucket.take(bytes.into(), now);
                }
            }
        }
        if is_done {
            if let Some(pace) = self.transfers.paces.get_mut(usize::from(rail)) {
                pace.posted((bytes, next.pieces), now);
            }
        }
        // Earlier parts were counted when they were posted.
        let last = match bytes.checked_rem(part_bytes) {
            Some(rest) if rest > 0 => rest,
            _ => part_bytes,
        };
        let length = usize::try_from(last).unwrap_or(usize::MAX);
        self.took(
            rail,
            outcome,
            length,
            Some(Carried::Piece(id, bytes, next.pieces)),
            moment,
        );
        is_done.then_some((place, next.pieces))
    }

    /// Posts pieces as one WRITE, or a piece as several WRITEs of parts, in order, and leaves room for this number of frames. Returns the outcome of
    /// the last part.
    fn write(
        &mut self,
        (rail, at): (u8, At),
        next: &NextPiece,
        (part_bytes, frames): (u32, u32),
        workers: &mut [Worker<P>],
        moment: Moment,
    ) -> Posted {
        let bytes = next.bytes;
        let count = bytes.div_ceil(part_bytes.max(1));
        let mut done = 0_u32;
        loop {
            let length = part_bytes.min(bytes.saturating_sub(done));
            let is_last = done.saturating_add(length) >= bytes;
            let part = (next.offset.saturating_add(done.into()), length);
            // There has to be room for all parts and the frame that announces the piece.
            let room = match (done, count) {
                (0, 2..) => count,
                (0, _) => frames,
                _ => 0,
            };
            let outcome = self.write_part(next.place, (at, next.window), part, room, workers);
            match outcome {
                outcome if is_last && (done == 0 || matches!(outcome, Posted::Done(_))) => return outcome,
                Posted::Done(_) => {}
                // An earlier part is posted, so the rail is given up.
                _ if done > 0 => return Posted::InDoubt,
                outcome => return outcome,
            }
            done = done.saturating_add(length);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            self.took(rail, outcome, length, Some(Carried::Part(next.id)), moment);
        }
    }

    /// Posts a WRITE of a range of a transfer, if the channel has more room than `room` requests.
    fn write_part(
        &self,
        place: usize,
        (at, window): (At, RemoteWindow),
        (offset, length): (u64, u32),
        room: u32,
        workers: &mut [Worker<P>],
    ) -> Posted {
        let entry = self.transfers.entries.get(place);
        let Some(Memory::Given(region, start)) = entry.map(|entry| &entry.memory) else {
            return Posted::Failed;
        };
        let from = usize::try_from(offset)
            .ok()
            .and_then(|offset| start.checked_add(offset));
        let range = from.and_then(|from| region.range(at.worker, from, length));
        let to = RemoteAddress::within(&window, offset, length.into());
        let worker = workers.get_mut(at.worker);
        let channel = worker.and_then(|worker| worker.channel(at.channel));
        let (Some(range), Some(to), Some(channel)) = (range, to, channel) else {
            return Posted::Blocked;
        };
        if channel.room() <= room {
            return Posted::Blocked;
        }
        posted_now(channel.post_ranges(Operation::Write(to), [range], PostFlags::SIGNALED))
    }
}

/// Whether a frame has to be posted on its connection, and no other connection has the same frame.
const fn is_of_connection(word: &Word) -> bool {
    match word {
        Word::Take(_) => true,
        // An announcement follows its WRITEs; a question alone belongs to no connection.
        Word::Landed(landed) => landed.count > 0,
        Word::End(end) => end.is_answer,
        _ => false,
    }
}
