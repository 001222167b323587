//! One-sided requests over the link: WRITEs into windows of the listening side, or READs of them. The windows consist of pieces, each
//! of whose bytes is determined by a number.

use doorbell::link::{Request, RequestEnd, RequestId, RequestRefusal, UnknownReason};
use doorbell::provider::{Provider, Window};
use doorbell::{LocalWindow, RemoteAccess, WindowConfig, Worker};
use serde::Serialize;

use super::stream::{fill, is_right};
use crate::report::Failure;

/// Number of pieces of a window.
const PIECES: u64 = 32;

/// Length of the number at the beginning of a piece.
const NUMBER_BYTES: usize = 8;

/// The operation of the connecting side, between its first and its last message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// Messages, both ways
    #[default]
    Send,
    /// WRITEs into windows of the other side, which checks them at the end
    Write,
    /// READs of windows of the other side
    Read,
}

impl Op {
    pub(super) const fn to_u16(self) -> u16 {
        match self {
            Self::Send => 0,
            Self::Write => 1,
            Self::Read => 2,
        }
    }

    pub(super) const fn from_u16(number: u16) -> Option<Self> {
        match number {
            0 => Some(Self::Send),
            1 => Some(Self::Write),
            2 => Some(Self::Read),
            _ => None,
        }
    }

    pub(super) const fn is_one_sided(self) -> bool {
        !matches!(self, Self::Send)
    }

    /// The remote access that it needs.
    pub(super) const fn access(self) -> RemoteAccess {
        match self {
            Self::Send | Self::Write => RemoteAccess::WRITE,
            Self::Read => RemoteAccess::READ,
        }
    }
}

/// Fills a piece with this number, in the window of this grant.
fn write_piece(piece: &mut [u8], grant: u32, number: u64) {
    let (front, body) = piece.split_at_mut(NUMBER_BYTES.min(piece.len()));
    // The number plus one, so that an empty piece is never valid.
    front.copy_from_slice(&number.wrapping_add(1).to_be_bytes());
    fill(body, seed(grant, number));
}

/// The number of a piece, if every byte is right.
fn read_piece(piece: &[u8], grant: u32) -> Option<u64> {
    let (front, body) = piece.split_first_chunk()?;
    let number = u64::from_be_bytes(*front).checked_sub(1)?;
    is_right(body, seed(grant, number)).then_some(number)
}

fn seed(grant: u32, number: u64) -> u64 {
    number ^ u64::from(grant).rotate_right(8)
}

/// Windows of this side, one on each device.
#[derive(Debug)]
pub(super) struct LocalWindows<P: Provider> {
    op: Op,
    /// Each window with the number of its grant.
    windows: Vec<(u32, LocalWindow<P>)>,
    piece_bytes: usize,
}

impl<P: Provider> LocalWindows<P> {
    /// Creates the windows, for pieces of `piece_bytes`. `grant` gets the index of the window's Worker, and returns the number of the
    /// grant.
    pub(super) fn new(
        workers: &[Worker<P>],
        (op, piece_bytes): (Op, usize),
        mut grant: impl FnMut(usize, &LocalWindow<P>) -> Option<u32>,
    ) -> Result<Self, Failure> {
        let pieces = usize::try_from(PIECES)?;
        let config = WindowConfig::new(pieces.saturating_mul(piece_bytes), op.access());
        let mut windows = Vec::new();
        for (index, worker) in workers.iter().enumerate() {
            let window = worker.window(&config)?;
            let number = grant(index, &window).ok_or("a window could not be granted")?;
            if op == Op::Read {
                let mut piece = vec![0; piece_bytes];
                for (at, place) in (0..PIECES).zip(0_usize..) {
                    write_piece(&mut piece, number, at);
                    window.copy_in(place.saturating_mul(piece_bytes), &piece)?;
                }
            }
            windows.push((number, window));
        }
        Ok(Self {
            op,
            windows,
            piece_bytes,
        })
    }

    pub(super) fn windows(&self) -> usize {
        self.windows.len()
    }

    /// Changes a byte of the first window.
    #[cfg(test)]
    pub(super) fn spoil(&mut self, offset: usize) {
        let (_, window) = self.windows.first_mut().unwrap();
        let mut byte = [0];
        window.copy_out(offset, &mut byte).unwrap();
        window.copy_in(offset, &[byte[0] ^ 4]).unwrap();
    }

    /// Counts the pieces that differ from the result of `requests` WRITEs of the peer.
    pub(super) fn wrong(&self, requests: u64) -> u64 {
        if self.op != Op::Write {
            return 0;
        }
        let (mut wrong, mut all) = (0_u64, 0_u64);
        let mut piece = vec![0; self.piece_bytes];
        for (grant, window) in &self.windows {
            let mut found = Vec::new();
            for place in (0_usize..).take(usize::try_from(PIECES).unwrap_or(0)) {
                let is_had = window
                    .copy_out(place.saturating_mul(self.piece_bytes), &mut piece)
                    .is_ok();
                let is_empty = piece.iter().all(|byte| *byte == 0);
                let number = read_piece(&piece, *grant).filter(|_| is_had);
                found.push((number, is_empty));
            }
            // The pieces were written in turn. Each piece has to hold the last number that falls on it.
            let last = found.iter().filter_map(|(number, _)| *number).max();
            let written = last.map_or(0, |last| last.saturating_add(1));
            all = all.saturating_add(written);
            for (at, (number, is_empty)) in (0..PIECES).zip(found) {
                let is_right = if at < written {
                    number == Some(last_of(at, written))
                } else {
                    is_empty
                };
                wrong = wrong.saturating_add(u64::from(!is_right));
            }
        }
        wrong.saturating_add(all.abs_diff(requests))
    }
}

/// The last number that falls on a piece, after `written` numbers.
const fn last_of(piece: u64, written: u64) -> u64 {
    let last = written.saturating_sub(1);
    last.saturating_sub(last.wrapping_sub(piece) % PIECES)
}

/// A window of the peer.
#[derive(Debug)]
struct PeerWindow {
    grant: u32,
    /// The number of the next request.
    next: u64,
}

/// An outstanding request.
#[derive(Debug)]
struct Open {
    id: RequestId,
    grant: u32,
    number: u64,
}

/// One-sided requests to the peer's windows, and their outcomes.
#[derive(Debug, Default)]
pub(super) struct OneSidedLoad {
    op: Op,
    piece: Vec<u8>,
    windows: Vec<PeerWindow>,
    /// The index of the next window.
    turn: usize,
    /// Maximum number of outstanding requests, for all windows together.
    open_max: usize,
    open: Vec<Open>,
    pub(super) asked: u64,
    pub(super) done: u64,
    /// The reason for each request whose outcome is unknown.
    pub(super) unknown: Vec<UnknownReason>,
    /// Requests with an unknown outcome that were never posted.
    pub(super) not_posted: u64,
    pub(super) bytes: u64,
    /// READs that returned wrong bytes.
    pub(super) wrong: u64,
    /// Completions that match no outstanding request.
    pub(super) wrong_ends: u64,
}

impl OneSidedLoad {
    pub(super) fn new(op: Op, piece_bytes: usize, open_max: u32) -> Self {
        Self {
            op,
            piece: vec![0; piece_bytes],
            open_max: usize::try_from(open_max).unwrap_or(usize::MAX),
            ..Self::default()
        }
    }

    pub(super) const fn op(&self) -> Op {
        self.op
    }

    pub(super) fn windows(&self) -> usize {
        self.windows.len()
    }

    pub(super) fn granted(&mut self, grant: u32) {
        self.windows.push(PeerWindow { grant, next: 0 });
    }

    pub(super) fn withdrawn(&mut self, grant: u32) {
        self.windows.retain(|window| window.grant != grant);
    }

    /// Makes the next request with `ask`, to the next window that has room. Returns whether the request was accepted.
    pub(super) fn ask(
        &mut self,
        mut ask: impl FnMut((u32, u64), &Request<'_>) -> Result<RequestId, RequestRefusal>,
    ) -> bool {
        let windows = self.windows.len();
        // Each window has a share of the outstanding requests, so that a slow one does not block the others.
        let each_max = self.open_max.checked_div(windows).unwrap_or(0).max(1);
        for _ in 0..windows {
            let at = self.turn.checked_rem(windows).unwrap_or(0);
            self.turn = at.saturating_add(1);
            let Some(PeerWindow { grant, next }) = self.windows.get_mut(at) else {
                return false;
            };
            let (grant, number) = (*grant, *next);
            let of_it = || self.open.iter().filter(|open| open.grant == grant);
            let is_busy = of_it().any(|open| open.number % PIECES == number % PIECES);
            if is_busy || of_it().count() >= each_max {
                continue;
            }
            let length = u64::try_from(self.piece.len()).unwrap_or(u64::MAX);
            let place = (grant, (number % PIECES).saturating_mul(length));
            let request = if self.op == Op::Read {
                Request::Read(u32::try_from(length).unwrap_or(u32::MAX))
            } else {
                write_piece(&mut self.piece, grant, number);
                Request::Write(&self.piece)
            };
            if let Ok(id) = ask(place, &request) {
                *next = number.saturating_add(1);
                self.asked = self.asked.saturating_add(1);
                self.open.push(Open { id, grant, number });
                return true;
            }
        }
        false
    }

    /// Checks the bytes that a READ returned.
    pub(super) fn fetched(&mut self, id: RequestId, data: &[u8]) {
        let Some(Open { grant, number, .. }) = self.take(id) else {
            return;
        };
        let is_wrong = read_piece(data, grant) != Some(number % PIECES) || data.len() != self.piece.len();
        self.wrong = self.wrong.saturating_add(u64::from(is_wrong));
        self.count_done();
    }

    pub(super) fn ended(&mut self, id: RequestId, end: RequestEnd) {
        if self.take(id).is_none() {
            return;
        }
        match end {
            RequestEnd::Done => self.count_done(),
            RequestEnd::Unknown { was_posted, reason } => {
                self.unknown.push(reason);
                self.not_posted = self.not_posted.saturating_add(u64::from(!was_posted));
            }
        }
    }

    /// The number of outstanding requests.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    fn count_done(&mut self) {
        self.done = self.done.saturating_add(1);
        let bytes = u64::try_from(self.piece.len()).unwrap_or(u64::MAX);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn take(&mut self, id: RequestId) -> Option<Open> {
        let found = self.open.iter().position(|open| open.id == id);
        self.wrong_ends = self.wrong_ends.saturating_add(u64::from(found.is_none()));
        found.map(|at| self.open.swap_remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::{NUMBER_BYTES, PIECES, last_of, read_piece, write_piece};

    #[test]
    fn a_piece_says_its_number_and_no_byte_of_it_may_be_another() {
        let mut piece = vec![0; 64];
        assert_eq!(read_piece(&piece, 3), None);
        write_piece(&mut piece, 3, 41);
        assert_eq!((read_piece(&piece, 3), read_piece(&piece, 4)), (Some(41), None));
        for at in 0..piece.len() {
            let mut changed = piece.clone();
            changed[at] ^= 4;
            assert_ne!(read_piece(&changed, 3), Some(41), "{at}");
        }
        assert_eq!(read_piece(&piece[..NUMBER_BYTES - 1], 3), None);
    }

    #[test]
    fn the_last_of_a_piece_is_known() {
        for written in 1..200 {
            for piece in 0..written.min(PIECES) {
                let last = (0..written).rev().find(|number| number % PIECES == piece);
                assert_eq!(Some(last_of(piece, written)), last, "{piece} {written}");
            }
        }
    }
}
