//! Transfers of a session: one side gives a range of memory and the other side takes it, over all rails, up to
//! [`TRANSFER_BYTES_MAX`] bytes. This state machine only makes decisions: it posts nothing and has no clock.
//!
//! The taker lets the giver write to its memory, by a key for this transfer only. The giver writes pieces over all rails. After the
//! pieces on each connection it sends an announcement on the same connection. A message is delivered only after the data of earlier
//! WRITEs is in memory (InfiniBand Architecture volume 1, section 9.5). This order holds only within one connection, so each rail needs
//! announcements of its pieces. The taker has all bytes when each piece is announced.
//!
//! If a rail fails, each piece written on its connection may have arrived, may be lost, or may still arrive. Three steps make it safe to
//! write the pieces again:
//!
//! 1. The session's fence: the peer accepts nothing more from the connection.
//! 2. The giver sends a question, and the taker answers which pieces it has.
//! 3. Pieces that the answer lacks are written again, over any rail.
//!
//! The taker decides when a transfer is over. It first withdraws the key, so that nothing on the wire can write to the memory any more.
//! Then it reports the end. A giver that ends a transfer sends the end only after all its WRITEs are done or their connections are shut.
//! Until then its device reads the memory, and a piece that the application changes could be the last one that the taker waits for. A taker
//! that ends a transfer waits for the giver's answer until a deadline. It may withdraw the key at any time: at worst the connection of a
//! giver that still writes fails.

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

/// The peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransferEnd {
    /// The taker has all bytes.
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

/// The stage of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Pieces may be sent.
    Open,
    /// The giver waits until its posted WRITEs are done.
    Retiring(TransferEnd),
    /// The taker waits for the giver's answer that no WRITE is posted any more.
    Draining { end: TransferEnd, until: Deadline },
    /// The key of the taker's memory has to be withdrawn.
    Fencing(TransferEnd),
    /// The application has its memory back.
    Over(TransferEnd),
}

/// Counters of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferCounts {
    /// The bytes that the taker has, as far as this side knows, without a gap from the beginning.
    pub landed_bytes: u64,
    /// Bytes that this side wrote again because their first connection failed.
    pub repeated_bytes: u64,
    /// Pieces that were announced to this side again after they had landed.
    pub duplicates: u64,
}

#[derive(Debug)]
enum Half<T> {
    /// The peer began the transfer, and the application has neither joined nor declined it yet.
    Offered(TransferRole),
    Giver(Giver<T>),
    Taker(Taker),
}

/// The state of a frame that is sent once, and again if its connection is lost.
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

    /// The frame need not be sent any more.
    const fn settle(&mut self) {
        *self = Self {
            is_owed: false,
            on: None,
        };
    }
}

const RAILS: usize = SESSION_RAILS_MAX as usize;

/// So many consecutive WRITEs that the taker's device does not execute count as a refusal. A peer that ends its process may cause one on
/// each rail.
const FAILED_MAX: u8 = 2 * SESSION_RAILS_MAX;

/// One transfer, as one side sees it.
#[derive(Debug)]
pub struct Transfer<T> {
    id: TransferId,
    pieces: Pieces,
    tag: u64,
    half: Half<T>,
    stage: Stage,
    deadline: Option<Deadline>,
    /// For each rail, the number of posted WRITEs that are not done.
    in_flight: [u32; RAILS],
    /// Whether the device may still execute WRITEs of lost connections.
    is_leaving: bool,
    /// For each rail, the epoch of the connection on which this side's key was sent last.
    sent_keys: [Epoch; RAILS],
    /// For each rail, the peer's key, with the epoch of its connection.
    keys: [Option<(Epoch, RemoteWindow)>; RAILS],
    opening: Said,
    /// Whether the first frame was sent, so that the peer may know the transfer.
    was_told: bool,
    /// Whether the peer has reacted, and so knows the transfer.
    is_known: bool,
    /// The end of this side, which the peer has to answer.
    ending: Said,
    is_answered: bool,
    /// The connection of the peer's end, on which it has to be answered. If the connection is lost, the peer sends its end again.
    answering: Option<Connection>,
    /// The deadlines of the fences that pieces wait for, one for each rail.
    fence_by: [Option<Deadline>; RAILS],
    /// Number of consecutive WRITEs that the taker's device did not execute; [`FAILED_MAX`] if it refused one.
    failed: u8,
    /// Whether the end was reported.
    is_reported: bool,
}

impl<T: AsRef<[PieceState]> + AsMut<[PieceState]>> Transfer<T> {
    /// A transfer that this side begins as the giver. `None` unless the table has [`TRANSFER_WINDOW`] entries.
    pub fn give(open: &Open, table: T) -> Option<Self> {
        let giver = Giver::new(open.pieces, table)?;
        Some(Self::new(open, Half::Giver(giver)))
    }

    /// A transfer that this side begins as the taker.
    pub fn take(open: &Open) -> Self {
        Self::new(open, Half::Taker(Taker::new(open.pieces)))
    }

    /// A transfer that the peer begins. Nothing is transferred before this side joins.
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
            fence_by: [None; RAILS],
            failed: 0,
            is_reported: false,
        }
    }

    /// Joins a transfer that the peer began. A giver needs a table of [`TRANSFER_WINDOW`] entries. Returns whether it joined.
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
                // The question informs the taker, so that it sends its key.
                giver.ask();
                Half::Giver(giver)
            }
        };
        true
    }

    /// Whether the peer began the transfer and this side has not joined.
    pub const fn is_offered(&self) -> bool {
        matches!((&self.half, self.stage), (Half::Offered(_), Stage::Open))
    }

    /// Sets the deadline after which the transfer ends if it is not done.
    pub const fn end_by(&mut self, deadline: Option<Deadline>) {
        self.deadline = deadline;
    }

    /// The id of the transfer.
    pub const fn id(&self) -> TransferId {
        self.id
    }

    /// The bytes, and how they are cut into pieces.
    pub const fn pieces(&self) -> Pieces {
        self.pieces
    }

    /// The application's tag.
    pub const fn tag(&self) -> u64 {
        self.tag
    }

    /// The role of this side.
    pub const fn role(&self) -> TransferRole {
        match self.half {
            Half::Giver(_) => TransferRole::Giver,
            Half::Taker(_) => TransferRole::Taker,
            Half::Offered(role) => role,
        }
    }

    /// The counters.
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

    /// The next deadline.
    pub fn wake(&self) -> Option<Deadline> {
        match self.stage {
            Stage::Open => self.deadline.into_iter().chain(self.fences()).min(),
            Stage::Draining { until, .. } => Some(until),
            Stage::Retiring(_) | Stage::Fencing(_) | Stage::Over(_) => None,
        }
    }

    /// Whether the transfer has to be kept: its end was not reported, or the peer may not know the end.
    pub const fn is_open(&self) -> bool {
        !self.is_reported || !self.is_settled()
    }

    /// Whether its end was reported, so that it is kept only for the peer.
    pub const fn is_reported(&self) -> bool {
        self.is_reported
    }

    /// Whether its end, or the answer to the peer's end, still has to be posted.
    pub const fn owes_end(&self) -> bool {
        self.answering.is_some() || self.ending.is_owed && self.is_known
    }

    /// Whether both sides know the end.
    const fn is_settled(&self) -> bool {
        self.answering.is_none() && (self.is_answered || !self.is_known)
    }

    /// Ends the transfer on this side. A giver waits until its WRITEs are done. A taker waits for the giver's answer, at most until `until`.
    pub fn end(&mut self, reason: EndReason, until: Deadline) {
        if self.stage == Stage::Open {
            self.stop(TransferEnd::Here(reason), until);
        }
    }

    fn stop(&mut self, end: TransferEnd, until: Deadline) {
        // If the first frame was posted, the peer may know the transfer, so it also gets the end.
        self.is_known |= self.was_told;
        self.opening.settle();
        self.stage = match self.half {
            Half::Offered(_) => Stage::Over(end),
            Half::Giver(_) => Stage::Retiring(end),
            // Without a key, the peer cannot have written.
            Half::Taker(_) if self.sent_keys == [Epoch::NONE; RAILS] => Stage::Fencing(end),
            Half::Taker(_) => Stage::Draining { end, until },
        };
        // A giver sends its end only after its WRITEs are done.
        if !matches!(self.half, Half::Giver(_)) && matches!(end, TransferEnd::Here(_)) {
            self.ending.owe();
        }
        self.go_on();
    }

    /// Enters the next stage if nothing is awaited any more.
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

    /// Applies deadlines. A transfer that ends here by its deadline drains until `drain_until`.
    pub fn look(&mut self, now: Instant, drain_until: Deadline) {
        match self.stage {
            Stage::Open if self.deadline.is_some_and(|deadline| deadline.has_passed(now)) => {
                self.end(EndReason::DEADLINE, drain_until);
            }
            Stage::Open if self.is_denied() && self.is_quiet() => self.end(EndReason::DENIED, drain_until),
            Stage::Open if self.fences().any(|deadline| deadline.has_passed(now)) => {
                self.end(EndReason::NOT_FENCED, drain_until);
            }
            Stage::Draining { end, until } if until.has_passed(now) => self.stage = Stage::Fencing(end),
            _ => {}
        }
    }

    /// Stops waiting for an answer of the peer, and drops the answer to the peer.
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

    /// Whether the caller has to withdraw the key of the memory, and then call [`Transfer::fenced_memory`].
    pub const fn must_fence_memory(&self) -> bool {
        matches!(self.stage, Stage::Fencing(_))
    }

    /// Notes that no peer can access the memory any more.
    pub const fn fenced_memory(&mut self) {
        if let Stage::Fencing(end) = self.stage {
            self.stage = Stage::Over(end);
        }
    }

    /// Returns the end once, when the application has its memory back.
    pub const fn take_end(&mut self) -> Option<TransferEnd> {
        match self.stage {
            Stage::Over(end) if !self.is_reported => {
                self.is_reported = true;
                Some(end)
            }
            _ => None,
        }
    }

    /// Applies the taker's key for a connection.
    ///
    /// # Errors
    /// This side is the taker, or the memory and the transfer differ in length.
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

    /// Applies an announcement of pieces, or a question.
    ///
    /// # Errors
    /// This side is the giver, has sent no key, or the transfer has no such pieces.
    pub fn heard_landed(&mut self, landed: &Landed) -> Result<(), Broken> {
        let has_key = self.sent_keys != [Epoch::NONE; RAILS];
        let Half::Taker(taker) = &mut self.half else {
            return if self.is_past() { Ok(()) } else { Err(Broken) };
        };
        if !has_key && landed.count > 0 {
            return Err(Broken);
        }
        // After the end, a giver that does not know of it may still send announcements.
        if self.stage == Stage::Open {
            taker.heard(landed)?;
        }
        self.knows();
        self.go_on();
        Ok(())
    }

    /// Applies the taker's progress.
    ///
    /// # Errors
    /// This side is the taker, or the taker cannot have these pieces.
    pub fn heard_progress(&mut self, progress: &Progress) -> Result<(), Broken> {
        let Half::Giver(giver) = &mut self.half else {
            return if self.is_past() { Ok(()) } else { Err(Broken) };
        };
        if self.stage == Stage::Open {
            giver.heard(progress)?;
        }
        Ok(())
    }

    /// Whether the transfer ended before this side joined. Then late frames are ignored.
    const fn is_past(&self) -> bool {
        matches!((&self.half, self.stage), (Half::Offered(_), Stage::Over(_)))
    }

    /// Applies the peer's end, or its answer to the end of this side.
    ///
    /// # Errors
    /// The peer reports the transfer as done before all pieces were written.
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
            // The transfer was done before it was ended here.
            Stage::Retiring(how) | Stage::Draining { end: how, .. } if end.reason == EndReason::DONE => {
                *how = TransferEnd::Done;
            }
            _ => {}
        }
        self.go_on();
        Ok(())
    }

    /// Notes that the peer reacted.
    const fn knows(&mut self) {
        self.is_known = true;
        self.opening.settle();
    }

    /// Notes that a rail's connection is lost. Returns whether the caller has to request a fence of this connection before pieces are
    /// written again. The pieces wait for it until `fence_by`.
    pub fn lost(&mut self, rail: u8, fence_by: Deadline) -> bool {
        self.opening.lost(rail);
        // The answer to the end would come over the same connection, so it is lost, too.
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
        if let Some(until) = self.fence_by.get_mut(usize::from(rail)).filter(|_| must_fence) {
            until.get_or_insert(fence_by);
        }
        self.go_on();
        must_fence
    }

    /// Whether the device may still read the giver's memory for this transfer.
    pub fn is_writing(&self) -> bool {
        self.is_leaving || self.in_flight != [0; RAILS]
    }

    /// Whether lost connections still have to be shut. After that, the caller calls [`Transfer::left`].
    pub const fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Notes that the lost connections are shut: the device executes nothing more of them.
    pub fn left(&mut self) {
        self.is_leaving = false;
        self.go_on();
    }

    /// Notes that the taker's device refused a WRITE, so that nothing more is written. A dying process loses its memory before its
    /// connections. So this ends the transfer only after the taker has answered the fence; a dead taker ends the session instead.
    pub const fn denied(&mut self) {
        self.failed = FAILED_MAX;
    }

    /// Notes that the taker's device failed at a WRITE for a cause other than access rights. The connection is lost, and the piece is
    /// written again over another one. The sixteenth failure in a row counts as a refusal.
    pub fn failed_at_taker(&mut self) {
        self.failed = self.failed.saturating_add(1).min(FAILED_MAX);
    }

    const fn is_denied(&self) -> bool {
        self.failed >= FAILED_MAX
    }

    /// Whether no WRITE is posted, and no piece waits for a fence.
    fn is_quiet(&self) -> bool {
        let is_fencing = matches!(&self.half, Half::Giver(giver) if giver.is_fencing());
        self.in_flight == [0; RAILS] && !is_fencing
    }

    fn fences(&self) -> impl Iterator<Item = Deadline> {
        self.fence_by.into_iter().flatten()
    }

    /// Notes that the peer accepts nothing more from a rail's connections up to this one.
    pub fn fenced(&mut self, rail: u8, through: Epoch) {
        if let Half::Giver(giver) = &mut self.half {
            giver.fenced(rail, through);
            if !giver.is_fencing() {
                self.fence_by = [None; RAILS];
            } else if !giver.is_fencing_on(rail) {
                if let Some(until) = self.fence_by.get_mut(usize::from(rail)) {
                    *until = None;
                }
            }
        }
    }

    /// The piece to write now over a connection, and the window to write it to.
    pub fn piece_for(&self, (rail, epoch): Connection) -> Option<(u32, RemoteWindow)> {
        let Half::Giver(giver) = &self.half else {
            return None;
        };
        let (of, window) = self.keys.get(usize::from(rail)).copied().flatten()?;
        if self.stage != Stage::Open || self.is_denied() || of != epoch {
            return None;
        }
        Some((giver.next_piece()?, window))
    }

    /// The number of consecutive pieces, at most `most`, that one WRITE may carry from [`Transfer::piece_for`] on, and their bytes. `rails`
    /// rails share the remaining pieces.
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

    /// Notes that a WRITE on a rail is done.
    pub fn retired(&mut self, rail: u8) {
        if let Some(in_flight) = self.in_flight.get_mut(usize::from(rail)) {
            *in_flight = in_flight.saturating_sub(1);
        }
        if !self.is_denied() {
            self.failed = 0;
        }
        self.go_on();
    }
}
