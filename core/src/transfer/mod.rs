//! Transfers of a session: a range of memory that one side gives and the other takes, over all rails, of up to
//! [`TRANSFER_BYTES_MAX`] bytes. This machine decides; it posts nothing and has no clock.
//!
//! The taker lets the giver write to its memory, by a key for this transfer alone. The giver WRITEs pieces over all rails. Behind the
//! pieces on each connection it sends an announcement on the same connection. A message is delivered after the WRITEs in front of it are
//! placed (InfiniBand Architecture volume 1, section 9.5). An announcement orders its own connection alone, so each rail has its own. The
//! taker has all once each piece is announced.
//!
//! If a rail fails, what was written on its connection may have arrived or not, and may still arrive. Three steps make it safe to write
//! the pieces again:
//!
//! 1. The peer takes nothing more of the connection: the session's fence.
//! 2. The giver puts a question, and the taker answers which pieces it has.
//! 3. Pieces that the answer lacks are written again, over any rail.
//!
//! The taker decides when a transfer is over. It withdraws the key first: from then on nothing on the wire can write to the memory. Then it
//! reports the end. A giver that ends a transfer says so once all it posted is done or its connection is shut. Until then its device reads
//! the memory, and a piece that is changed on its way could be the last that the taker waits for. A taker that ends one waits for that word
//! until a deadline. It may withdraw the key at any time: that costs no more than the connection of a giver that still writes.

mod giver;
mod taker;
#[cfg(test)]
mod tests;
mod words;

pub use crate::pieces::{
    PIECE_BYTES_MAX, PIECE_BYTES_MIN, Pieces, TRANSFER_BYTES_MAX, TRANSFER_WINDOW, TransferId, TransferRole,
};
pub use giver::{Connection, Giver, PieceState};
pub use taker::Taker;
pub use words::Word;

use crate::sequence::{Epoch, SESSION_RAILS_MAX};
use crate::session::FinalReason;
use crate::wire::{End, EndReason, Landed, Open, Progress, RemoteWindow, Take};
use crate::{Deadline, Instant};

/// The peer did what no honest one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransferEnd {
    /// The taker has all of it.
    Done,
    /// This side ended it.
    Here(EndReason),
    /// The peer ended it.
    ByPeer(EndReason),
    /// The session is over.
    Over(FinalReason),
}

impl core::fmt::Display for TransferEnd {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Here(reason) => write!(f, "ended here: {reason}"),
            Self::ByPeer(reason) => write!(f, "ended by the peer: {reason}"),
            Self::Over(reason) => write!(f, "the link is over: {reason}"),
        }
    }
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Pieces may go.
    Open,
    /// The giver waits for what it posted.
    Retiring(TransferEnd),
    /// The taker waits for the giver's word that nothing is posted any more.
    Draining { end: TransferEnd, until: Deadline },
    /// The taker's memory is to be taken out of the peer's reach.
    Fencing(TransferEnd),
    /// The memory is the application's again.
    Over(TransferEnd),
}

/// Counts of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferCounts {
    /// The bytes that the taker has, as far as this side knows, from the beginning without a gap.
    pub landed_bytes: u64,
    /// Bytes that this side wrote again, since the connection failed that had carried them.
    pub repeated_bytes: u64,
    /// Pieces that were announced to this side again though it had them.
    pub duplicates: u64,
}

#[derive(Debug)]
enum Half<T> {
    /// The peer began it, and the application has not said yet whether it takes part.
    Offered(TransferRole),
    Giver(Giver<T>),
    Taker(Taker),
}

/// State of a frame that is sent once, and again if the connection that carried it is lost.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    is_owed: bool,
    on: Option<u8>,
}

impl Said {
    const fn owe(&mut self) {
        *self = Self {
            is_owed: true,
            on: None,
        };
    }

    const fn say(&mut self, rail: u8) {
        *self = Self {
            is_owed: false,
            on: Some(rail),
        };
    }

    fn lost(&mut self, rail: u8) {
        if self.on == Some(rail) {
            self.owe();
        }
    }

    /// Needs saying no more.
    const fn settle(&mut self) {
        *self = Self {
            is_owed: false,
            on: None,
        };
    }
}

const RAILS: usize = SESSION_RAILS_MAX as usize;

/// One transfer, as one side knows it.
#[derive(Debug)]
pub struct Transfer<T> {
    id: TransferId,
    pieces: Pieces,
    tag: u64,
    half: Half<T>,
    stage: Stage,
    deadline: Option<Deadline>,
    /// For each rail, posted WRITEs that are not done.
    in_flight: [u32; RAILS],
    /// Whether WRITEs of connections that are lost may yet be carried out.
    is_leaving: bool,
    /// For each rail, the connection that carried the key last; and of the peer's keys, the one of each connection.
    sent_keys: [Epoch; RAILS],
    keys: [Option<(Epoch, RemoteWindow)>; RAILS],
    opening: Said,
    /// Whether the peer may know the transfer.
    was_told: bool,
    /// Whether the peer knows it: it reacted.
    is_known: bool,
    /// Our end, which the peer is to answer.
    ending: Said,
    is_answered: bool,
    /// The peer's end was heard over this connection, and is to be answered there: if it is lost, the peer says its end again.
    answering: Option<Connection>,
    /// Until when pieces may wait for a fence.
    fence_by: Option<Deadline>,
    /// Whether the taker's device refused a WRITE.
    is_denied: bool,
    /// Whether the end was reported.
    is_reported: bool,
}

impl<T: AsRef<[PieceState]> + AsMut<[PieceState]>> Transfer<T> {
    /// A transfer that this side begins and gives. The table has [`TRANSFER_WINDOW`] entries, else `None`.
    pub fn give(open: &Open, table: T) -> Option<Self> {
        let giver = Giver::new(open.pieces, table)?;
        Some(Self::new(open, Half::Giver(giver)))
    }

    /// A transfer that this side begins and takes.
    pub fn take(open: &Open) -> Self {
        Self::new(open, Half::Taker(Taker::new(open.pieces)))
    }

    /// A transfer that the peer begins. Nothing goes before this side takes part.
    pub fn offered(open: &Open) -> Self {
        Self::new(open, Half::Offered(open.role.other()))
    }

    fn new(open: &Open, half: Half<T>) -> Self {
        let begins = !matches!(half, Half::Offered(_));
        Self {
            id: open.transfer,
            pieces: open.pieces,
            tag: open.tag,
            half,
            stage: Stage::Open,
            deadline: None,
            in_flight: [0; RAILS],
            is_leaving: false,
            sent_keys: [Epoch::NONE; RAILS],
            keys: [None; RAILS],
            opening: Said {
                is_owed: begins,
                on: None,
            },
            was_told: false,
            is_known: !begins,
            ending: Said::default(),
            is_answered: false,
            answering: None,
            fence_by: None,
            is_denied: false,
            is_reported: false,
        }
    }

    /// Takes part in a transfer that the peer began. A giver needs a table of [`TRANSFER_WINDOW`] entries. Says whether it does now.
    pub fn join(&mut self, table: Option<T>) -> bool {
        let Half::Offered(role) = self.half else {
            return false;
        };
        if self.stage != Stage::Open {
            return false;
        }
        self.half = match role {
            TransferRole::Taker => Half::Taker(Taker::new(self.pieces)),
            TransferRole::Giver => {
                let Some(mut giver) = table.and_then(|table| Giver::new(self.pieces, table)) else {
                    return false;
                };
                // So the taker learns of it, and gives its key.
                giver.ask();
                Half::Giver(giver)
            }
        };
        true
    }

    /// Whether the peer began it and this side has not joined.
    pub const fn is_offered(&self) -> bool {
        matches!((&self.half, self.stage), (Half::Offered(_), Stage::Open))
    }

    /// Ends it where it is not done by then.
    pub const fn end_by(&mut self, deadline: Option<Deadline>) {
        self.deadline = deadline;
    }

    /// Its number.
    pub const fn id(&self) -> TransferId {
        self.id
    }

    /// Its bytes, and how they are cut.
    pub const fn pieces(&self) -> Pieces {
        self.pieces
    }

    /// The application's word for it.
    pub const fn tag(&self) -> u64 {
        self.tag
    }

    /// The part of this side.
    pub const fn role(&self) -> TransferRole {
        match self.half {
            Half::Giver(_) => TransferRole::Giver,
            Half::Taker(_) => TransferRole::Taker,
            Half::Offered(role) => role,
        }
    }

    /// Its counts.
    pub fn counts(&self) -> TransferCounts {
        match &self.half {
            Half::Giver(giver) => TransferCounts {
                landed_bytes: match self.stage {
                    Stage::Over(TransferEnd::Done) => self.pieces.bytes(),
                    _ => giver.landed_bytes(),
                },
                repeated_bytes: giver.repeated_bytes(),
                ..TransferCounts::default()
            },
            Half::Taker(taker) => TransferCounts {
                landed_bytes: taker.landed_bytes(),
                duplicates: taker.duplicates(),
                ..TransferCounts::default()
            },
            Half::Offered(_) => TransferCounts::default(),
        }
    }

    /// When to look again at the latest.
    pub fn wake(&self) -> Option<Deadline> {
        match self.stage {
            Stage::Open => self.deadline.into_iter().chain(self.fence_by).min(),
            Stage::Draining { until, .. } => Some(until),
            Stage::Retiring(_) | Stage::Fencing(_) | Stage::Over(_) => None,
        }
    }

    /// Whether it has to be kept: its end was not reported, or the peer may not know the end.
    pub const fn is_open(&self) -> bool {
        !self.is_reported || !self.is_settled()
    }

    /// Whether its end was reported: it is kept for the peer alone.
    pub const fn is_reported(&self) -> bool {
        self.is_reported
    }

    /// Whether its end is yet to be posted, or the answer to the peer's.
    pub const fn owes_end(&self) -> bool {
        self.answering.is_some() || self.ending.is_owed && self.is_known
    }

    /// Whether both sides know the end.
    const fn is_settled(&self) -> bool {
        self.answering.is_none() && (self.is_answered || !self.is_known)
    }

    /// Ends it here. The giver waits for what it posted. The taker waits for the giver's answer, but no longer than `until`.
    pub fn end(&mut self, reason: EndReason, until: Deadline) {
        if self.stage == Stage::Open {
            self.stop(TransferEnd::Here(reason), until);
        }
    }

    fn stop(&mut self, end: TransferEnd, until: Deadline) {
        // A peer that does not know the transfer yet hears of its end, if the frame that begins it was posted.
        self.is_known |= self.was_told;
        self.opening.settle();
        self.stage = match self.half {
            Half::Offered(_) => Stage::Over(end),
            Half::Giver(_) => Stage::Retiring(end),
            // Nobody writes before there is a key.
            Half::Taker(_) if self.sent_keys == [Epoch::NONE; RAILS] => Stage::Fencing(end),
            Half::Taker(_) => Stage::Draining { end, until },
        };
        // The giver says so once nothing is posted any more.
        if !matches!(self.half, Half::Giver(_)) && matches!(end, TransferEnd::Here(_)) {
            self.ending.owe();
        }
        self.go_on();
    }

    /// Moves on where nothing is waited for any more.
    fn go_on(&mut self) {
        match (&self.half, self.stage) {
            (_, Stage::Retiring(end)) if !self.is_writing() => {
                self.stage = Stage::Over(end);
                if matches!(end, TransferEnd::Here(_)) {
                    self.ending.owe();
                }
            }
            (_, Stage::Draining { end, .. }) if self.is_answered => {
                self.stage = Stage::Fencing(end);
            }
            (Half::Taker(taker), Stage::Open) if taker.has_all() => {
                self.stage = Stage::Fencing(TransferEnd::Done);
                self.ending.owe();
            }
            _ => {}
        }
    }

    /// Ends it if its deadline has passed, and waits no longer than it may. An end of this kind drains until `drain_until`.
    pub fn look(&mut self, now: Instant, drain_until: Deadline) {
        match self.stage {
            Stage::Open if self.deadline.is_some_and(|deadline| deadline.has_passed(now)) => {
                self.end(EndReason::DEADLINE, drain_until);
            }
            Stage::Open if self.is_denied && self.is_quiet() => self.end(EndReason::DENIED, drain_until),
            Stage::Open if self.fence_by.is_some_and(|deadline| deadline.has_passed(now)) => {
                self.end(EndReason::NOT_FENCED, drain_until);
            }
            Stage::Draining { end, until } if until.has_passed(now) => self.stage = Stage::Fencing(end),
            _ => {}
        }
    }

    /// Waits for no answer of the peer any more, and owes none.
    pub const fn settle(&mut self) {
        self.opening.settle();
        self.ending.settle();
        (self.is_answered, self.answering) = (true, None);
    }

    /// Notes that the session is over.
    pub fn over(&mut self, reason: FinalReason) {
        self.settle();
        self.is_leaving |= self.in_flight != [0; RAILS];
        self.in_flight = [0; RAILS];
        let end = match self.stage {
            Stage::Fencing(_) | Stage::Over(_) => return,
            Stage::Retiring(end) | Stage::Draining { end, .. } => end,
            Stage::Open => TransferEnd::Over(reason),
        };
        self.stage = match self.half {
            Half::Taker(_) => Stage::Fencing(end),
            Half::Giver(_) if self.is_leaving => Stage::Retiring(end),
            Half::Giver(_) | Half::Offered(_) => Stage::Over(end),
        };
    }

    /// Whether the memory is to be taken out of the peer's reach; then [`Transfer::fenced_memory`].
    pub const fn must_fence_memory(&self) -> bool {
        matches!(self.stage, Stage::Fencing(_))
    }

    /// Notes that no peer reaches the memory any more.
    pub const fn fenced_memory(&mut self) {
        if let Stage::Fencing(end) = self.stage {
            self.stage = Stage::Over(end);
        }
    }

    /// Returns the end, once, when the memory is the application's again.
    pub const fn take_end(&mut self) -> Option<TransferEnd> {
        match self.stage {
            Stage::Over(end) if !self.is_reported => {
                self.is_reported = true;
                Some(end)
            }
            _ => None,
        }
    }

    /// Goes by the taker's key for a connection of a rail.
    ///
    /// # Errors
    /// This side takes, or the memory is not as long as the transfer.
    pub fn heard_take(&mut self, rail: u8, take: &Take) -> Result<(), Broken> {
        if self.is_past() {
            return Ok(());
        }
        if !matches!(self.half, Half::Giver(_)) || take.window.length_bytes() != self.pieces.bytes() {
            return Err(Broken);
        }
        self.knows();
        if let Some(key) = self.keys.get_mut(usize::from(rail)) {
            *key = Some((take.epoch, take.window));
        }
        Ok(())
    }

    /// Goes by pieces that have landed, or a question.
    ///
    /// # Errors
    /// This side gives, has given no key, or there are no such pieces.
    pub fn heard_landed(&mut self, landed: &Landed) -> Result<(), Broken> {
        let has_key = self.sent_keys != [Epoch::NONE; RAILS];
        let Half::Taker(taker) = &mut self.half else {
            return if self.is_past() { Ok(()) } else { Err(Broken) };
        };
        if !has_key && landed.count > 0 {
            return Err(Broken);
        }
        // A giver that has not heard of the end yet goes on.
        if self.stage == Stage::Open {
            taker.heard(landed)?;
        }
        self.knows();
        self.go_on();
        Ok(())
    }

    /// Goes by the pieces that the taker has.
    ///
    /// # Errors
    /// This side takes, or the taker cannot have these.
    pub fn heard_progress(&mut self, progress: &Progress) -> Result<(), Broken> {
        let Half::Giver(giver) = &mut self.half else {
            return if self.is_past() { Ok(()) } else { Err(Broken) };
        };
        if self.stage == Stage::Open {
            giver.heard(progress)?;
        }
        Ok(())
    }

    /// Whether it ended before this side took part: frames that crossed the end mean nothing.
    const fn is_past(&self) -> bool {
        matches!((&self.half, self.stage), (Half::Offered(_), Stage::Over(_)))
    }

    /// Goes by the peer's end, or its answer to ours, over a connection of a rail.
    ///
    /// # Errors
    /// It says that it has what was never written.
    pub fn heard_end(&mut self, rail: u8, end: &End, until: Deadline) -> Result<(), Broken> {
        self.knows();
        self.ending.settle();
        self.is_answered = true;
        if end.is_answer {
            self.go_on();
            return Ok(());
        }
        self.answering = Some((rail, end.epoch));
        let is_whole = matches!(&self.half, Half::Giver(giver) if giver.was_all_written());
        if end.reason == EndReason::DONE && !is_whole {
            return Err(Broken);
        }
        match &mut self.stage {
            Stage::Open => {
                let how = match end.reason {
                    EndReason::DONE => TransferEnd::Done,
                    reason => TransferEnd::ByPeer(reason),
                };
                self.stop(how, until);
            }
            // The end that was asked for here came too late.
            Stage::Retiring(how) | Stage::Draining { end: how, .. } if end.reason == EndReason::DONE => {
                *how = TransferEnd::Done;
            }
            _ => {}
        }
        self.go_on();
        Ok(())
    }

    /// The peer reacted.
    const fn knows(&mut self) {
        self.is_known = true;
        self.opening.settle();
    }

    /// Notes that a rail's connection is lost. Says whether the peer has to take nothing more of it before pieces are written again.
    /// They wait for that until `fence_by`.
    pub fn lost(&mut self, rail: u8, fence_by: Deadline) -> bool {
        self.opening.lost(rail);
        // So is the answer to it, which comes over the same connection.
        self.ending.lost(rail);
        self.answering.take_if(|on| on.0 == rail);
        if let Some(in_flight) = self.in_flight.get_mut(usize::from(rail)) {
            self.is_leaving |= core::mem::take(in_flight) > 0;
        }
        let must_fence = match &mut self.half {
            Half::Giver(giver) => giver.lost(rail) && self.stage == Stage::Open,
            Half::Taker(taker) => {
                taker.lost(rail);
                false
            }
            Half::Offered(_) => false,
        };
        if must_fence {
            self.fence_by.get_or_insert(fence_by);
        }
        self.go_on();
        must_fence
    }

    /// Whether the device may still read the giver's memory for it.
    pub fn is_writing(&self) -> bool {
        self.is_leaving || self.in_flight != [0; RAILS]
    }

    /// Whether connections that are lost are yet to be shut: then [`Transfer::left`].
    pub const fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Notes that the connections that are lost are shut: the device carries out nothing more of them.
    pub fn left(&mut self) {
        self.is_leaving = false;
        self.go_on();
    }

    /// Notes that the taker's device refused a WRITE: nothing more is written. The memory of a process that dies goes before its
    /// connections, so the transfer ends for this only once the taker answered the fence. A dead one answers none, and ends the session.
    pub const fn denied(&mut self) {
        self.is_denied = true;
    }

    /// Whether nothing is posted, and no piece waits for a fence.
    fn is_quiet(&self) -> bool {
        let is_fencing = matches!(&self.half, Half::Giver(giver) if giver.is_fencing());
        self.in_flight == [0; RAILS] && !is_fencing
    }

    /// Notes that the peer takes nothing more of a rail's connections up to this one.
    pub fn fenced(&mut self, rail: u8, through: Epoch) {
        if let Half::Giver(giver) = &mut self.half {
            giver.fenced(rail, through);
            if !giver.is_fencing() {
                self.fence_by = None;
            }
        }
    }

    /// The piece that may be written now over a connection of a rail, and where to.
    pub fn piece_for(&self, (rail, epoch): Connection) -> Option<(u32, RemoteWindow)> {
        let Half::Giver(giver) = &self.half else {
            return None;
        };
        let (of, window) = self.keys.get(usize::from(rail)).copied().flatten()?;
        if self.stage != Stage::Open || self.is_denied || of != epoch {
            return None;
        }
        Some((giver.next_piece()?, window))
    }

    /// How many pieces in a row, of so many at most, one WRITE may carry from [`Transfer::piece_for`] on, and their bytes, where so many rails
    /// share the pieces that are left.
    pub fn run_from(&self, first: u32, most: u32, rails: u32) -> (u32, u32) {
        let count = match &self.half {
            Half::Giver(giver) => giver.run_from(first, most, rails),
            Half::Taker(_) | Half::Offered(_) => 1,
        };
        let before = |piece| self.pieces.bytes_before(piece);
        let bytes = before(first.saturating_add(count)).saturating_sub(before(first));
        (count, u32::try_from(bytes).unwrap_or(u32::MAX))
    }

    /// Notes that one WRITE of these pieces was posted.
    pub fn wrote(&mut self, first: u32, count: u32, on: Connection) {
        if let Half::Giver(giver) = &mut self.half {
            giver.wrote(first, count, on);
            if let Some(in_flight) = self.in_flight.get_mut(usize::from(on.0)) {
                *in_flight = in_flight.saturating_add(1);
            }
        }
    }

    /// Notes that a WRITE that was posted on a rail is done.
    pub fn retired(&mut self, rail: u8) {
        if let Some(in_flight) = self.in_flight.get_mut(usize::from(rail)) {
            *in_flight = in_flight.saturating_sub(1);
        }
        self.go_on();
    }
}
