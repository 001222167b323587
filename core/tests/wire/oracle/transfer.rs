//! One side of a transfer, and a peer and a caller that do whatever the bytes say.

use doorbell_core::session::{Epoch, FinalReason};
use doorbell_core::transfer::{
    Connection, PieceState, Pieces, TRANSFER_WINDOW, Transfer, TransferEnd, TransferId, TransferRole, Word,
};
use doorbell_core::wire::{
    End, EndReason, Landed, Open, Progress, RemoteWindow, SessionFrame, SessionHeader, Take,
};
use doorbell_core::{Deadline, Instant, Rkey};

use super::choices::Choices;

type Side = Transfer<Box<[PieceState]>>;

const RAILS: usize = 2;
const STEPS_MAX: usize = 4000;
const TRANSFER: TransferId = TransferId(2);
/// The kinds of frames of transfers, and the bytes behind their headers.
const BODIES: [(u8, usize); 5] = [(10, 32), (11, 24), (12, 16), (13, 80), (14, 8)];

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The end that was reported.
    pub(crate) end: Option<TransferEnd>,
    /// Whether the peer did what no honest one does.
    pub(crate) is_broken: bool,
}

/// State of a piece, as it follows without the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plain {
    New,
    Written(Connection),
    /// The peer takes nothing more of its connection since this question was the last.
    Fenced(u32),
    /// An answer to a later question lacks it.
    Lacking,
}

struct World {
    side: Side,
    pieces: Pieces,
    now_ns: u64,
    epochs: [u32; RAILS],
    in_flight: [u32; RAILS],
    plain: Vec<Plain>,
    /// The first piece that the peer may lack, by what it answered.
    base: u32,
    question: u32,
    /// Pieces that the peer announced in good order.
    landed: Vec<bool>,
    has_key: bool,
    is_fenced: bool,
    outcome: Outcome,
}

/// Panics where the bytes make a side break a promise.
pub(crate) fn check(bytes: &[u8]) -> Outcome {
    let mut choices = Choices::new(bytes);
    let mut world = World::new(&mut choices);
    for _ in 0..STEPS_MAX {
        if choices.is_over() || world.outcome.is_broken {
            break;
        }
        world.step(&mut choices);
        world.look();
    }
    // However it went, the end of the session ends it, and once.
    for _ in 0..2 {
        world.side.over(FinalReason::Closed);
        world.look();
        world.fence_memory();
        world.side.left();
        world.in_flight = [0; RAILS];
        world.look();
    }
    assert!(world.outcome.end.is_some() && !world.side.is_open());
    world.outcome
}

impl World {
    fn new(choices: &mut Choices<'_>) -> Self {
        let how = choices.byte();
        let count = [1, 3, 40, 700][usize::from(how >> 2 & 3)];
        let pieces = Pieces::new(count * 4096 - u64::from(choices.byte()), 4096).unwrap();
        let role = match how & 1 {
            0 => TransferRole::Giver,
            _ => TransferRole::Taker,
        };
        let open = Open {
            epoch: Epoch::from_wire(1),
            transfer: TRANSFER,
            pieces,
            tag: 0,
            role,
        };
        let side = match (how & 2 == 0, role) {
            (true, TransferRole::Giver) => Side::give(&open, table()).unwrap(),
            (true, TransferRole::Taker) => Side::take(&open),
            (false, _) => Side::offered(&open),
        };
        Self {
            side,
            pieces,
            now_ns: 0,
            epochs: [1, 2],
            in_flight: [0; RAILS],
            plain: vec![Plain::New; pieces.count() as usize],
            base: 0,
            question: 0,
            landed: vec![false; pieces.count() as usize],
            has_key: true,
            is_fenced: false,
            outcome: Outcome::default(),
        }
    }

    fn until(&self) -> Deadline {
        Deadline::at(Instant::from_ns(self.now_ns + 100))
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let rail = choices.below(RAILS);
        let on = (rail as u8, Epoch::from_wire(self.epochs[rail]));
        match choices.byte() % 16 {
            0 => {
                let role = self.side.role();
                let is_offered = self.side.is_offered();
                let table = (role == TransferRole::Giver).then(table);
                assert_eq!(self.side.join(table), is_offered);
            }
            1 | 2 => self.write(on),
            3 | 4 => self.say(on),
            5 if self.in_flight[rail] > 0 => {
                self.in_flight[rail] -= 1;
                self.side.retired(on.0);
            }
            6 => {
                self.in_flight[rail] = 0;
                self.epochs[rail] += 2;
                let until = self.until();
                self.side.lost(on.0, until);
                self.side.left();
            }
            7 => self.fence(on.0, choices.byte().into()),
            8 => {
                self.now_ns += u64::from(choices.byte());
                let until = self.until();
                self.side.look(Instant::from_ns(self.now_ns), until);
            }
            9 => {
                let reason = EndReason(choices.byte().max(2));
                let until = self.until();
                self.side.end(reason, until);
            }
            10 => self.fence_memory(),
            11 => {
                let first = self.number(choices);
                let landed = Landed {
                    epoch: on.1,
                    transfer: TRANSFER,
                    first,
                    count: choices.below(600) as u32,
                    question: choices.byte().into(),
                };
                self.hear(on, SessionFrame::Landed(landed));
            }
            12 => {
                let progress = self.progress(on, choices);
                self.hear(on, SessionFrame::Progress(progress));
            }
            13 => {
                let take = Take {
                    epoch: on.1,
                    transfer: TRANSFER,
                    window: window(self.pieces.bytes() + u64::from(choices.byte() / 255)),
                };
                self.hear(on, SessionFrame::Take(take));
            }
            14 => {
                let end = End {
                    epoch: on.1,
                    transfer: TRANSFER,
                    reason: EndReason(choices.byte().max(1)),
                    is_answer: choices.byte() % 2 == 1,
                };
                self.hear(on, SessionFrame::End(end));
            }
            _ => {
                let (kind, length) = BODIES[choices.below(BODIES.len())];
                let header = SessionHeader::acknowledgement_only(on.1, Default::default());
                let mut bytes = header.to_bytes().to_vec();
                bytes[1] = kind;
                bytes.extend((0..length).map(|_| choices.byte()));
                if let Ok(frame) = SessionFrame::parse(&bytes) {
                    self.hear(on, frame);
                }
            }
        }
    }

    /// A piece, or a number next to those that there are.
    fn number(&self, choices: &mut Choices<'_>) -> u32 {
        match choices.byte() {
            255 => u32::MAX,
            254 => self.pieces.count(),
            253 => TRANSFER_WINDOW,
            _ => choices.below(self.plain.len() + 2) as u32,
        }
    }

    fn progress(&self, on: Connection, choices: &mut Choices<'_>) -> Progress {
        let mut set = [0; 64];
        for _ in 0..choices.below(4) {
            set[choices.below(64)] = choices.byte();
        }
        set[0] &= !1;
        let base = match choices.byte() {
            // The base of a side that is over is what the peer last said, however wrong.
            byte if byte < 200 => self.base.saturating_add(u32::from(byte % 8)),
            _ => self.number(choices),
        };
        Progress {
            epoch: on.1,
            transfer: TRANSFER,
            base,
            question: u32::from(choices.byte()).min(self.question + 1),
            set,
        }
    }

    /// Posts the next piece, if there is one: new ones in order and within the window, others where nothing can carry them any more.
    fn write(&mut self, on: Connection) {
        let Some((piece, remote)) = self.side.piece_for(on) else {
            return;
        };
        assert_eq!(self.side.role(), TransferRole::Giver);
        assert!(remote.length_bytes() == self.pieces.bytes());
        // One WRITE on each rail has as many pieces in a row as its number says.
        let most = 1 + u32::from(on.0) % 3;
        let (count, bytes) = self.side.run_from(piece, most, 1);
        assert!((1..=most).contains(&count), "{count} of {most}");
        let mut sum = 0;
        for piece in piece..piece + count {
            let (_, bytes) = self.pieces.range(piece).expect("there is no such piece");
            sum += bytes;
            assert!(
                piece >= self.base && piece - self.base < TRANSFER_WINDOW,
                "{piece}"
            );
            let plain = &mut self.plain[piece as usize];
            assert!(
                matches!(plain, Plain::New | Plain::Lacking),
                "piece {piece} is written twice"
            );
            *plain = Plain::Written(on);
        }
        assert_eq!(sum, bytes, "the bytes of {count} pieces from {piece} on");
        self.side.wrote(piece, count, on);
        self.in_flight[usize::from(on.0)] += 1;
    }

    /// Says what there is to say.
    fn say(&mut self, on: Connection) {
        let key = self.has_key.then(|| window(self.pieces.bytes()));
        let Some(word) = self.side.word_for(on, key) else {
            return;
        };
        match &word {
            Word::Landed(landed) => {
                for piece in landed.first..landed.first + landed.count {
                    assert!(self.plain[piece as usize] == Plain::Written(on), "{piece}");
                }
                assert!(landed.count > 0 || landed.question > 0);
                assert!(landed.question == 0 || landed.question >= self.question);
                self.question = self.question.max(landed.question);
            }
            Word::Progress(progress) => {
                let has = |piece: u32| self.landed.get(piece as usize).copied().unwrap_or(false);
                assert!((0..progress.base).all(has) && !has(progress.base));
                let bits = progress
                    .set
                    .iter()
                    .flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 != 0));
                assert!(
                    (progress.base..)
                        .zip(bits)
                        .all(|(piece, is_set)| is_set == has(piece))
                );
            }
            Word::End(_) if self.side.role() == TransferRole::Giver => {
                assert_eq!(self.in_flight, [0; RAILS], "an end, and WRITEs are under way");
            }
            _ => {}
        }
        self.side.said(&word, on);
    }

    fn fence(&mut self, rail: u8, through: u32) {
        self.side.fenced(rail, Epoch::from_wire(through));
        for plain in &mut self.plain {
            if let Plain::Written((of, epoch)) = *plain {
                let is_lost = epoch.to_u32() < self.epochs[usize::from(of)];
                if is_lost && of == rail && epoch.to_u32() <= through {
                    *plain = Plain::Fenced(self.question);
                }
            }
        }
    }

    /// A peer says something.
    fn hear(&mut self, (rail, _): Connection, frame: SessionFrame<'_>) {
        let until = self.until();
        let heard = match frame {
            SessionFrame::Landed(landed) => {
                let heard = self.side.heard_landed(&landed);
                let is_taken = heard.is_ok() && self.side.role() == TransferRole::Taker;
                for piece in landed.first..landed.first.saturating_add(landed.count) {
                    if let Some(landed) = self.landed.get_mut(piece as usize).filter(|_| is_taken) {
                        *landed = true;
                    }
                }
                heard
            }
            SessionFrame::Take(take) => self.side.heard_take(rail, &take),
            SessionFrame::Progress(progress) => {
                let heard = self.side.heard_progress(&progress);
                if heard.is_ok() {
                    self.note(&progress);
                }
                heard
            }
            SessionFrame::End(end) => self.side.heard_end(rail, &end, until),
            _ => Ok(()),
        };
        self.outcome.is_broken |= heard.is_err();
    }

    fn note(&mut self, progress: &Progress) {
        self.base = self.base.max(progress.base);
        for (piece, plain) in (0_u32..).zip(&mut self.plain) {
            if let Plain::Fenced(question) = plain {
                let bit = piece.checked_sub(progress.base).map_or(0, |bit| bit as usize);
                let is_set = progress
                    .set
                    .get(bit / 8)
                    .is_some_and(|byte| byte >> (bit % 8) & 1 != 0);
                if progress.question > *question && piece >= progress.base && !is_set {
                    *plain = Plain::Lacking;
                }
            }
        }
    }

    fn fence_memory(&mut self) {
        if self.side.must_fence_memory() {
            assert_eq!(self.side.role(), TransferRole::Taker);
            (self.has_key, self.is_fenced) = (false, true);
            self.side.fenced_memory();
        }
    }

    fn look(&mut self) {
        let counts = self.side.counts();
        assert!(counts.landed_bytes <= self.pieces.bytes());
        let Some(end) = self.side.take_end() else {
            return;
        };
        assert_eq!(self.outcome.end, None, "{end:?} is a second end");
        self.outcome.end = Some(end);
        let is_done = end == TransferEnd::Done;
        match self.side.role() {
            TransferRole::Giver => {
                assert!(!is_done || self.plain.iter().all(|plain| *plain != Plain::New));
                assert_eq!(self.in_flight, [0; RAILS], "{end:?}, and WRITEs are under way");
            }
            TransferRole::Taker => {
                assert!(!is_done || self.landed.iter().all(|is_landed| *is_landed));
                assert!(
                    !is_done || self.is_fenced,
                    "done, and the peer reaches the memory"
                );
            }
        }
    }
}

fn table() -> Box<[PieceState]> {
    vec![PieceState::default(); TRANSFER_WINDOW as usize].into()
}

fn window(bytes: u64) -> RemoteWindow {
    RemoteWindow::new(1 << 20, bytes, Rkey(9))
}
