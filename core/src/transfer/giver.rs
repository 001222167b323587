//! The giving side: the pieces to write, and the pieces that the taker has.

use crate::sequence::{Epoch, SESSION_RAILS_MAX};
use crate::transfer::{Broken, Pieces, TRANSFER_WINDOW};
use crate::wire::Progress;

/// Every so many announcements one carries a question, unless the window needs one earlier.
const QUESTION_EVERY: u32 = 4;

const RAILS: usize = SESSION_RAILS_MAX as usize;

/// A connection: a rail, and the epoch of the connection.
pub type Connection = (u8, Epoch);

/// The state of a piece in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PieceState(State);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The piece has to be written again.
    #[default]
    Again,
    /// Written on a connection, and not announced there yet.
    Written(Connection),
    /// Written and announced on a connection.
    Announced(Connection),
    /// The connection is lost, and the peer may still accept the WRITE from it.
    Fencing(Connection),
    /// The peer accepts nothing more from that connection. The answer to this question says whether the piece arrived.
    Asking(u32),
    /// The taker has it.
    Landed,
}

/// The giver's knowledge of the pieces of a transfer. The table comes from the caller, with [`TRANSFER_WINDOW`] entries.
#[derive(Debug)]
pub struct Giver<T> {
    pieces: Pieces,
    table: T,
    /// The first piece that the taker may lack.
    base: u32,
    /// The first piece that was never written.
    next: u32,
    /// The number of pieces to write again.
    again: u32,
    /// The number of pieces that wait for a fence.
    fencing: u32,
    /// Whether a piece may wait for the answer to a question.
    is_asking: bool,
    /// For each rail, the number of pieces that are written and not announced.
    written: [u32; RAILS],
    /// For each rail, the epoch, the first and the number of these pieces, as long as they are consecutive.
    run: [(Epoch, u32, u32); RAILS],
    /// The last question, and the last answered question.
    question: u32,
    answered: u32,
    /// The connection on which the last question was sent.
    asked: Option<Connection>,
    /// The number of announcements since the last question.
    since_question: u32,
    /// The bytes that were written again.
    repeated_bytes: u64,
}

impl<T: AsRef<[PieceState]> + AsMut<[PieceState]>> Giver<T> {
    /// A giver that has written nothing yet. `None` unless the table has [`TRANSFER_WINDOW`] entries.
    pub fn new(pieces: Pieces, table: T) -> Option<Self> {
        (table.as_ref().len() == TRANSFER_WINDOW as usize).then_some(Self {
            pieces,
            table,
            base: 0,
            next: 0,
            again: 0,
            fencing: 0,
            is_asking: false,
            written: [0; RAILS],
            run: [(Epoch::NONE, 0, 0); RAILS],
            question: 0,
            answered: 0,
            asked: None,
            since_question: 0,
            repeated_bytes: 0,
        })
    }

    /// Makes a question due at once.
    pub const fn ask(&mut self) {
        if self.question == self.answered {
            self.question = self.question.wrapping_add(1);
            self.asked = None;
        }
    }

    /// The bytes that the taker is known to have, without a gap from the beginning.
    #[must_use]
    pub fn landed_bytes(&self) -> u64 {
        self.pieces.bytes_before(self.base)
    }

    /// The bytes that were written again because their first connection failed.
    #[must_use]
    pub const fn repeated_bytes(&self) -> u64 {
        self.repeated_bytes
    }

    /// Whether each piece was written at least once.
    #[must_use]
    pub const fn was_all_written(&self) -> bool {
        self.next == self.pieces.count()
    }

    /// The next piece to write; pieces to write again come first. `None` if there is none now.
    #[must_use]
    pub fn next_piece(&self) -> Option<u32> {
        if self.again > 0 {
            return (self.base..self.next).find(|piece| self.state(*piece) == State::Again);
        }
        let has_room = self.next.wrapping_sub(self.base) < TRANSFER_WINDOW;
        (has_room && self.next < self.pieces.count()).then_some(self.next)
    }

    /// The number of consecutive pieces, at most `most`, that one WRITE may carry from [`Giver::next_piece`] on. It is at most an equal share of
    /// the remaining pieces among `rails` rails.
    #[must_use]
    pub fn run_from(&self, first: u32, most: u32, rails: u32) -> u32 {
        let left = self
            .pieces
            .count()
            .saturating_sub(self.next)
            .saturating_add(self.again);
        let most = most.min(left.div_ceil(rails.max(1)));
        let count = if first == self.next {
            let to_window = TRANSFER_WINDOW.saturating_sub(first.wrapping_sub(self.base));
            to_window.min(self.pieces.count().saturating_sub(first))
        } else {
            let limit = first.saturating_add(most).min(self.next);
            let again = (first..limit).take_while(|piece| self.state(*piece) == State::Again);
            u32::try_from(again.count()).unwrap_or(1)
        };
        count.min(most).max(1)
    }

    /// Notes that WRITEs of these pieces, from [`Giver::next_piece`] on, were posted on a connection.
    pub fn wrote(&mut self, first: u32, count: u32, on: Connection) {
        let rail = usize::from(on.0);
        let before = self.written.get(rail).copied().unwrap_or(0);
        if first == self.next {
            self.next = first.wrapping_add(count);
            self.put_all(first, count, State::Written(on));
            if let Some(written) = self.written.get_mut(rail) {
                *written = written.wrapping_add(count);
            }
        } else {
            for piece in (0..count).map(|offset| first.wrapping_add(offset)) {
                self.wrote_again(piece, on);
            }
        }
        if let Some(run) = self.run.get_mut(rail) {
            let (of, start, length) = *run;
            let goes_on = of == on.1 && length == before && start.wrapping_add(length) == first;
            *run = match before {
                0 => (on.1, first, count),
                _ if goes_on => (of, start, length.wrapping_add(count)),
                _ => (Epoch::NONE, 0, 0),
            };
        }
    }

    fn wrote_again(&mut self, piece: u32, on: Connection) {
        if self.state(piece) != State::Again {
            return;
        }
        self.again = self.again.saturating_sub(1);
        let bytes = self.pieces.range(piece).map_or(0, |(_, bytes)| bytes);
        self.repeated_bytes = self.repeated_bytes.saturating_add(bytes.into());
        self.put(piece, State::Written(on));
        if let Some(written) = self.written.get_mut(usize::from(on.0)) {
            *written = written.wrapping_add(1);
        }
    }

    /// Returns the next announcement for a connection: the first of consecutive pieces that were written there, their number, and a
    /// question. The number is zero for a question alone, and the question is zero if there is none.
    #[must_use]
    pub fn announcement(&self, on: Connection) -> Option<(u32, u32, u32)> {
        let rail = usize::from(on.0);
        let written = self.written.get(rail).copied().unwrap_or(0);
        let run = self.run.get(rail).copied();
        let run = run.filter(|(of, _, length)| *of == on.1 && *length == written);
        let (mut first, mut count) = run.map_or((0, 0), |(_, first, length)| (first, length));
        if written > 0 && run.is_none() {
            let is_written = |piece: &u32| self.state(*piece) == State::Written(on);
            let mut from = (self.base..self.next).skip_while(|piece| !is_written(piece));
            first = from.next()?;
            count =
                u32::try_from(from.take_while(is_written).count()).map_or(1, |more| more.saturating_add(1));
        }
        let question = self.question_for(count, on);
        (count > 0 || question > 0).then_some((first, count, question))
    }

    /// Notes that this announcement was posted.
    pub fn announced(&mut self, on: Connection, (first, count, question): (u32, u32, u32)) {
        self.put_all(first, count, State::Announced(on));
        if let Some(written) = self.written.get_mut(usize::from(on.0)) {
            *written = written.saturating_sub(count);
        }
        self.since_question = self.since_question.saturating_add(u32::from(count > 0));
        if question > 0 {
            self.question = question;
            self.asked = Some(on);
            self.since_question = 0;
        }
    }

    /// The question for an announcement of `count` pieces; 0 if it carries none.
    fn question_for(&self, count: u32, on: Connection) -> u32 {
        if self.question != self.answered {
            // A question is under way, or has to be sent again.
            return if self.asked.is_none() { self.question } else { 0 };
        }
        let since = self.since_question.saturating_add(1);
        // The answer covers the first piece of the window only if the question follows this piece on its connection.
        let is_full = self.next.wrapping_sub(self.base) >= TRANSFER_WINDOW && !self.was_all_written();
        let is_due = is_full && self.state(self.base) == State::Announced(on)
            || count > 0 && (since >= QUESTION_EVERY || self.was_all_written());
        if is_due { self.question.wrapping_add(1) } else { 0 }
    }

    /// Notes that a rail's connection is lost. Returns whether pieces written on it may have arrived. Such pieces are written again
    /// only when the peer accepts nothing more from this connection.
    pub fn lost(&mut self, rail: u8) -> bool {
        let mut is_any = false;
        for piece in self.base..self.next {
            if let State::Written(on) | State::Announced(on) = self.state(piece) {
                if on.0 == rail {
                    self.put(piece, State::Fencing(on));
                    self.fencing = self.fencing.saturating_add(1);
                    is_any = true;
                }
            }
        }
        if let Some(written) = self.written.get_mut(usize::from(rail)) {
            *written = 0;
        }
        // The answer may be lost with this connection, even if the question was on another.
        if self.question != self.answered {
            self.asked = None;
        }
        is_any
    }

    /// Whether pieces wait for a fence.
    #[must_use]
    pub const fn is_fencing(&self) -> bool {
        self.fencing > 0
    }

    /// Whether a piece waits for a fence of this rail.
    pub fn is_fencing_on(&self, rail: u8) -> bool {
        let waits = |piece| matches!(self.state(piece), State::Fencing(on) if on.0 == rail);
        self.is_fencing() && (self.base..self.next).any(waits)
    }

    /// Notes that the peer accepts nothing more from a rail's connections up to this one.
    pub fn fenced(&mut self, rail: u8, through: Epoch) {
        if !self.is_fencing() {
            return;
        }
        let question = self.question.wrapping_add(1);
        let mut is_any = false;
        for piece in self.base..self.next {
            if let State::Fencing(on) = self.state(piece) {
                if on.0 == rail && on.1 <= through {
                    self.put(piece, State::Asking(question));
                    self.fencing = self.fencing.saturating_sub(1);
                    is_any = true;
                }
            }
        }
        if is_any {
            // An earlier question may have been answered before the fence, so a new one is needed.
            (self.question, self.asked) = (question, None);
            self.is_asking = true;
        }
    }

    /// Applies the taker's progress.
    ///
    /// # Errors
    /// The taker cannot have these pieces, or answers a question that was not sent.
    pub fn heard(&mut self, progress: &Progress) -> Result<(), Broken> {
        // A late answer over another rail has older information.
        let is_late = progress.base < self.base && progress.question <= self.answered;
        if is_late {
            return Ok(());
        }
        if progress.base < self.base || progress.base > self.next || progress.question > self.question {
            return Err(Broken);
        }
        // Nearly always all pieces are announced. Then no state of a piece before the base is needed again.
        if self.again == 0 && self.fencing == 0 && self.written == [0; RAILS] {
            self.base = progress.base;
        }
        while self.base < progress.base {
            self.land(self.base);
            self.base = self.base.wrapping_add(1);
        }
        // Nearly all bytes of the set are zero, since few pieces land ahead of a missing one.
        if progress.set != [0; TRANSFER_WINDOW as usize / 8] {
            for (at, byte) in (0_u32..).zip(&progress.set).filter(|(_, byte)| **byte != 0) {
                let first = progress.base.wrapping_add(at.wrapping_mul(8));
                for piece in (0..8).filter(|bit| byte >> bit & 1 != 0) {
                    let piece = first.wrapping_add(piece);
                    if piece >= self.next {
                        return Err(Broken);
                    }
                    self.land(piece);
                }
            }
        }
        if progress.question > self.answered {
            self.answered = progress.question;
            if self.is_asking {
                self.write_again();
            }
        }
        Ok(())
    }

    /// Marks the pieces that the answer lacks to be written again.
    fn write_again(&mut self) {
        self.is_asking = false;
        for piece in self.base..self.next {
            if let State::Asking(question) = self.state(piece) {
                if question <= self.answered {
                    self.put(piece, State::Again);
                    self.again = self.again.saturating_add(1);
                } else {
                    self.is_asking = true;
                }
            }
        }
    }

    /// Notes that the taker has a piece.
    fn land(&mut self, piece: u32) {
        match self.state(piece) {
            State::Again => self.again = self.again.saturating_sub(1),
            State::Written(on) => {
                if let Some(written) = self.written.get_mut(usize::from(on.0)) {
                    *written = written.saturating_sub(1);
                }
            }
            State::Fencing(_) => self.fencing = self.fencing.saturating_sub(1),
            _ => {}
        }
        self.put(piece, State::Landed);
    }

    fn state(&self, piece: u32) -> State {
        let place = piece & TRANSFER_WINDOW.wrapping_sub(1);
        let states = self.table.as_ref();
        states.get(place as usize).map_or(State::Again, |state| state.0)
    }

    fn put_all(&mut self, first: u32, count: u32, state: State) {
        let place = (first & TRANSFER_WINDOW.wrapping_sub(1)) as usize;
        let table = self.table.as_mut();
        let (to_end, count) = (table.len().saturating_sub(place), count as usize);
        let behind = place.saturating_add(count.min(to_end));
        for part in [place..behind, 0..count.saturating_sub(to_end)] {
            if let Some(states) = table.get_mut(part) {
                states.fill(PieceState(state));
            }
        }
    }

    fn put(&mut self, piece: u32, state: State) {
        let place = piece & TRANSFER_WINDOW.wrapping_sub(1);
        if let Some(known) = self.table.as_mut().get_mut(place as usize) {
            known.0 = state;
        }
    }
}
