//! Both sides of a transfer over connections that fail, against a model of the taker's memory.

use std::boxed::Box;
use std::collections::VecDeque;
use std::vec::Vec;
use std::{format, vec};

use super::{
    Connection, Giver, PieceState, Pieces, TRANSFER_WINDOW, Transfer, TransferEnd, TransferId, TransferRole,
    Word,
};
use crate::session::{Epoch, FinalReason};
use crate::wire::{EndReason, Landed, Open, Progress, RemoteWindow, SessionFrame};
use crate::{Deadline, Instant, Rkey};

type Side = Transfer<Box<[PieceState]>>;

fn table() -> Box<[PieceState]> {
    vec![PieceState::default(); TRANSFER_WINDOW as usize].into()
}

fn open(bytes: u64, role: TransferRole) -> Open {
    Open {
        epoch: Epoch::from_wire(1),
        transfer: TransferId(2),
        pieces: Pieces::new(bytes, 4096).unwrap(),
        tag: 7,
        role,
    }
}

fn window(bytes: u64) -> RemoteWindow {
    RemoteWindow::new(1 << 20, bytes, Rkey(9))
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

enum Sent {
    /// The first of these pieces, and their number.
    Write(u32, u32),
    Word(Word),
}

/// A connection of a rail, both ways.
#[derive(Default)]
struct Wire {
    to_taker: VecDeque<Sent>,
    to_giver: VecDeque<Word>,
    /// WRITEs that the giver posted and that are not done.
    posted: u32,
}

struct Model {
    giver: Side,
    taker: Side,
    rails: Vec<(Epoch, Wire)>,
    /// Connections that the giver lost, and over which the taker still takes something.
    given_up: Vec<(Connection, Wire)>,
    /// Connections that the taker takes nothing more of, as the giver is to learn.
    fenced: Vec<Connection>,
    memory: Vec<bool>,
    has_key: bool,
    refused: u32,
    now: Instant,
    ends: [Option<TransferEnd>; 2],
}

impl Model {
    fn new(pieces: u64, rails: u32, taker_begins: bool) -> Self {
        let bytes = pieces * 4096 - 100;
        let (giver, taker) = if taker_begins {
            let said = open(bytes, TransferRole::Taker);
            let mut giver = Side::offered(&said);
            assert!(giver.is_offered() && !giver.join(None));
            (giver, Side::take(&said))
        } else {
            let said = open(bytes, TransferRole::Giver);
            (Side::give(&said, table()).unwrap(), Side::offered(&said))
        };
        Self {
            giver,
            taker,
            rails: (1..=rails)
                .map(|epoch| (Epoch::from_wire(epoch), Wire::default()))
                .collect(),
            given_up: Vec::new(),
            fenced: Vec::new(),
            memory: vec![false; pieces as usize],
            has_key: true,
            refused: 0,
            now: Instant::from_ns(0),
            ends: [None; 2],
        }
    }

    fn later(&self) -> Deadline {
        Deadline::at(Instant::from_ns(self.now.to_ns() + 1_000_000))
    }

    fn deliver_to_taker(&mut self, rail: usize, sent: Sent) {
        match sent {
            Sent::Write(first, count) if self.has_key => {
                self.memory[first as usize..(first + count) as usize].fill(true);
            }
            Sent::Write(..) => self.refused += 1,
            Sent::Word(Word::Open(said)) => assert_eq!(said.pieces, self.taker.pieces()),
            Sent::Word(Word::Landed(landed)) => self.taker.heard_landed(&landed).unwrap(),
            Sent::Word(Word::End(end)) => self.taker.heard_end(rail as u8, &end, self.later()).unwrap(),
            Sent::Word(word) => panic!("{word:?} to the taker"),
        }
    }

    fn deliver_to_giver(&mut self, rail: usize, word: &Word) {
        match word {
            Word::Open(said) => assert_eq!(said.pieces, self.giver.pieces()),
            Word::Take(take) => self.giver.heard_take(rail as u8, take).unwrap(),
            Word::Progress(progress) => self.giver.heard_progress(progress).unwrap(),
            Word::End(end) => self.giver.heard_end(rail as u8, end, self.later()).unwrap(),
            Word::Landed(_) => panic!("{word:?} to the giver"),
        }
    }

    fn step(&mut self, chance: &mut Chance) {
        let rail = chance.below(self.rails.len() as u64) as usize;
        let on = (rail as u8, self.rails[rail].0);
        match chance.below(12) {
            0..=2 => {
                let wire = &self.rails[rail].1;
                if let Some((piece, _)) = self.giver.piece_for(on).filter(|_| wire.posted < 3) {
                    let most = 1 + chance.below(4) as u32;
                    let (count, bytes) = self.giver.run_from(piece, most, self.rails.len() as u32);
                    assert!((1..=most).contains(&count) && bytes > (count - 1) * 4096);
                    self.giver.wrote(piece, count, on);
                    let wire = &mut self.rails[rail].1;
                    wire.to_taker.push_back(Sent::Write(piece, count));
                    wire.posted += 1;
                }
            }
            3..=4 => {
                if let Some(word) = self.giver.word_for(on, None) {
                    self.giver.said(&word, on);
                    self.rails[rail].1.to_taker.push_back(Sent::Word(word));
                }
            }
            5 => {
                let key = self.has_key.then(|| window(self.taker.pieces().bytes()));
                if let Some(word) = self.taker.word_for(on, key) {
                    self.taker.said(&word, on);
                    self.rails[rail].1.to_giver.push_back(word);
                }
            }
            6..=7 => {
                let wire = &mut self.rails[rail].1;
                if let Some(sent) = wire.to_taker.pop_front() {
                    if matches!(sent, Sent::Write(..)) {
                        wire.posted -= 1;
                        self.giver.retired(rail as u8);
                    }
                    self.deliver_to_taker(rail, sent);
                }
            }
            8 => {
                if let Some(word) = self.rails[rail].1.to_giver.pop_front() {
                    self.deliver_to_giver(rail, &word);
                }
            }
            9 if !self.given_up.is_empty() => {
                // The taker still gets WRITEs of a connection that the giver lost, or fences it.
                let at = chance.below(self.given_up.len() as u64) as usize;
                if chance.below(3) > 0 {
                    if let Some(sent) = self.given_up[at].1.to_taker.pop_front() {
                        // Frames of a connection that is lost here, too, are not heard.
                        if matches!(sent, Sent::Write(..)) {
                            self.deliver_to_taker(rail, sent);
                        }
                    }
                } else {
                    let (on, _) = self.given_up.swap_remove(at);
                    let later = self.later();
                    self.taker.lost(on.0, later);
                    self.fenced.push(on);
                }
            }
            10 if !self.fenced.is_empty() => {
                let at = chance.below(self.fenced.len() as u64) as usize;
                let (rail, epoch) = self.fenced.swap_remove(at);
                self.giver.fenced(rail, epoch);
            }
            _ => {}
        }
        self.look();
    }

    fn lose(&mut self, rail: usize, next: u32) {
        let (epoch, wire) =
            core::mem::replace(&mut self.rails[rail], (Epoch::from_wire(next), Wire::default()));
        let later = self.later();
        self.giver.lost(rail as u8, later);
        self.given_up.push(((rail as u8, epoch), wire));
    }

    fn look(&mut self) {
        let later = self.later();
        self.giver.left();
        self.giver.look(self.now, later);
        self.taker.look(self.now, later);
        assert!(!self.giver.must_fence_memory());
        if self.taker.must_fence_memory() {
            self.has_key = false;
            self.taker.fenced_memory();
        }
        for (end, side) in self.ends.iter_mut().zip([&mut self.giver, &mut self.taker]) {
            if let Some(reported) = side.take_end() {
                assert_eq!(*end, None, "reported twice");
                *end = Some(reported);
            }
        }
        if self.ends[1] == Some(TransferEnd::Done) {
            assert!(
                self.memory.iter().all(|is_written| *is_written),
                "done, and a piece is missing"
            );
        }
    }
}

#[test]
fn what_is_done_has_landed_however_connections_fail() {
    let (mut repeated, mut duplicates) = (0, 0);
    for seed in 1..300_u64 {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let pieces = [1, 2, 30, 700][chance.below(4) as usize];
        let mut model = Model::new(pieces, 1 + chance.below(3) as u32, seed % 2 == 0);
        let losses = chance.below(6);
        let mut epoch = 10;
        let mut step = 0_u64;
        while model.ends != [Some(TransferEnd::Done); 2] || model.giver.is_open() || model.taker.is_open() {
            if step == 20 {
                let table = (model.giver.role() == TransferRole::Giver).then(table);
                assert_eq!(model.giver.is_offered(), model.giver.join(table));
                assert_eq!(model.taker.is_offered(), model.taker.join(None));
            }
            if epoch < 10 + losses as u32 && chance.below(400) == 0 {
                epoch += 1;
                let rail = chance.below(model.rails.len() as u64) as usize;
                model.lose(rail, epoch);
            }
            model.step(&mut chance);
            step += 1;
            assert!(step < 2_000_000, "seed {seed} does not end: {:?}", model.ends);
        }
        assert_eq!(model.refused, 0, "seed {seed}: written after the end");
        let bytes = model.giver.pieces().bytes();
        assert_eq!(model.giver.counts().landed_bytes, bytes);
        assert_eq!(model.taker.counts().landed_bytes, bytes);
        repeated += model.giver.counts().repeated_bytes;
        duplicates += model.taker.counts().duplicates;
    }
    // Pieces are written again only where the taker said that it lacks them.
    assert!(repeated > 0);
    assert_eq!(duplicates, 0);
}

#[test]
fn an_end_of_either_side_reaches_both_and_nothing_is_written_behind_it() {
    for seed in 1..400_u64 {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut model = Model::new(40, 2, seed % 2 == 0);
        let table = (model.giver.role() == TransferRole::Giver).then(table);
        model.giver.join(table);
        model.taker.join(None);
        let (when, who) = (chance.below(600), chance.below(3));
        for step in 0..20_000 {
            if step == when {
                let until = model.later();
                if who != 1 {
                    model.giver.end(EndReason::CANCELLED, until);
                }
                if who != 0 {
                    model.taker.end(EndReason::DEADLINE, until);
                }
            }
            if step == when / 2 && seed % 5 == 0 {
                model.lose(0, 9);
            }
            model.step(&mut chance);
        }
        let [giver, taker] = model.ends;
        assert!(
            giver.is_some() && taker.is_some(),
            "seed {seed}: {giver:?} {taker:?}"
        );
        assert!(!model.giver.is_open() && !model.taker.is_open(), "seed {seed}");
        let is_done = |end| end == Some(TransferEnd::Done);
        assert!(!is_done(giver) || is_done(taker), "seed {seed}");
        if seed % 5 != 0 {
            assert_eq!(
                model.refused, 0,
                "seed {seed}: the key went while the giver wrote"
            );
        }
    }
}

#[test]
fn a_taker_whose_giver_says_nothing_gets_its_memory_back_by_the_deadline() {
    let said = open(10_000, TransferRole::Taker);
    let mut taker = Side::take(&said);
    let on = (0, Epoch::from_wire(1));
    let word = taker.word_for(on, Some(window(10_000))).unwrap();
    assert!(matches!(word, Word::Open(_)));
    taker.said(&word, on);
    // No key goes before the giver takes part.
    assert_eq!(taker.word_for(on, Some(window(10_000))), None);
    let question = Landed {
        epoch: on.1,
        transfer: TransferId(2),
        first: 0,
        count: 0,
        question: 1,
    };
    taker.heard_landed(&question).unwrap();
    let word = taker.word_for(on, Some(window(10_000))).unwrap();
    assert!(matches!(word, Word::Take(_)));
    taker.said(&word, on);
    taker.end_by(Some(Deadline::at(Instant::from_ns(100))));
    taker.look(Instant::from_ns(99), Deadline::at(Instant::from_ns(150)));
    assert_eq!(taker.wake(), Some(Deadline::at(Instant::from_ns(100))));
    taker.look(Instant::from_ns(100), Deadline::at(Instant::from_ns(150)));
    assert!(!taker.must_fence_memory());
    taker.look(Instant::from_ns(150), Deadline::at(Instant::from_ns(200)));
    assert!(taker.must_fence_memory() && taker.take_end().is_none());
    taker.fenced_memory();
    assert_eq!(taker.take_end(), Some(TransferEnd::Here(EndReason::DEADLINE)));
    assert_eq!(taker.take_end(), None);
    // It is kept for the giver, which may ask yet.
    assert!(taker.is_open() && taker.is_reported());
    taker.settle();
    assert!(!taker.is_open());
}

#[test]
fn pieces_that_are_announced_again_are_counted_and_the_last_question_is_answered_again() {
    let mut taker = Side::take(&open(10_000, TransferRole::Taker));
    let on = (0, Epoch::from_wire(1));
    let landed = |first, count, question| Landed {
        epoch: on.1,
        transfer: TransferId(2),
        first,
        count,
        question,
    };
    for question in [1, 2] {
        let word = taker.word_for(on, Some(window(10_000))).unwrap();
        taker.said(&word, on);
        taker.heard_landed(&landed(0, 0, question)).unwrap();
    }
    for (first, duplicates) in [(1, 0), (1, 1), (0, 1), (0, 2)] {
        taker.heard_landed(&landed(first, 1, 0)).unwrap();
        assert_eq!(taker.counts().duplicates, duplicates, "{first}");
    }
    // The last question is answered each time it comes, and an older one never.
    while let Some(word) = taker.word_for(on, Some(window(10_000))) {
        taker.said(&word, on);
    }
    for (question, is_answered) in [(1, false), (2, true)] {
        taker.heard_landed(&landed(0, 0, question)).unwrap();
        let word = taker.word_for(on, Some(window(10_000)));
        assert_eq!(matches!(word, Some(Word::Progress(_))), is_answered, "{question}");
    }
}

#[test]
fn pieces_that_land_while_they_wait_are_waited_for_no_more() {
    let on = (0, Epoch::from_wire(1));
    let has = |base| Progress {
        epoch: on.1,
        transfer: TransferId(2),
        base,
        question: 0,
        set: [0; TRANSFER_WINDOW as usize / 8],
    };
    let mut giver = Giver::new(Pieces::new(8 * 4096, 4096).unwrap(), table()).unwrap();
    giver.wrote(0, 2, on);
    giver.heard(&has(1)).unwrap();
    assert_eq!(
        giver.announcement(on),
        Some((1, 1, 0)),
        "the first was to be announced"
    );
    giver.announced(on, (1, 1, 0));
    assert!(giver.lost(0) && giver.is_fencing());
    giver.heard(&has(2)).unwrap();
    assert!(!giver.is_fencing(), "the second waited for a fence");
}

#[test]
fn a_giver_has_no_end_while_its_memory_may_be_read() {
    let on = (0, Epoch::from_wire(1));
    let [now, until] = [100, 50].map(Instant::from_ns);
    let writing = || {
        let mut giver = Side::give(&open(10_000, TransferRole::Giver), table()).unwrap();
        let take = super::Take {
            epoch: on.1,
            transfer: TransferId(2),
            window: window(10_000),
        };
        giver.heard_take(0, &take).unwrap();
        assert_eq!(giver.piece_for(on), Some((0, window(10_000))));
        giver.wrote(0, 1, on);
        giver
    };
    let end = Some(TransferEnd::Here(EndReason::CANCELLED));
    // However long its WRITE takes.
    let mut giver = writing();
    giver.end(EndReason::CANCELLED, Deadline::at(until));
    giver.look(now, Deadline::at(now));
    assert_eq!((giver.take_end(), giver.wake()), (None, None));
    assert_eq!(giver.word_for(on, None), None, "no end is said meanwhile");
    giver.retired(0);
    assert_eq!(giver.take_end(), end);
    // A connection that is lost carries it out until it is shut.
    let mut giver = writing();
    giver.end(EndReason::CANCELLED, Deadline::at(until));
    giver.lost(0, Deadline::at(Instant::from_ns(u64::MAX)));
    assert_eq!((giver.take_end(), giver.is_leaving()), (None, true));
    giver.left();
    assert_eq!((giver.take_end(), giver.is_leaving()), (end, false));
    // And so do those of a session that is over.
    let mut giver = writing();
    for _ in 0..2 {
        giver.over(FinalReason::Closed);
        assert_eq!((giver.take_end(), giver.is_writing()), (None, true));
    }
    giver.left();
    giver.over(FinalReason::Closed);
    assert_eq!(giver.take_end(), Some(TransferEnd::Over(FinalReason::Closed)));
}

#[test]
fn an_end_is_answered_over_its_own_connection_and_said_again_if_that_is_lost() {
    let [one, other] = [(0, Epoch::from_wire(1)), (1, Epoch::from_wire(2))];
    let until = Deadline::at(Instant::from_ns(1));
    let said = open(10_000, TransferRole::Taker);
    let (mut taker, mut giver) = (Side::take(&said), Side::offered(&said));
    let word = taker.word_for(one, None).unwrap();
    taker.said(&word, one);
    taker.end(EndReason::CANCELLED, until);
    for _ in 0..2 {
        let word = taker.word_for(one, None).unwrap();
        taker.said(&word, one);
        let Word::End(end) = word else { panic!("{word:?}") };
        giver.heard_end(0, &end, until).unwrap();
        giver.take_end();
        // The taker may have lost the other one already.
        assert_eq!(giver.word_for(other, None), None);
        assert!(matches!(giver.word_for(one, None), Some(Word::End(end)) if end.is_answer));
        assert_eq!(taker.word_for(other, None), None);
        taker.lost(1, Deadline::at(Instant::from_ns(u64::MAX)));
        assert_eq!(taker.word_for(one, None), None);
        taker.lost(0, Deadline::at(Instant::from_ns(u64::MAX)));
        giver.lost(0, Deadline::at(Instant::from_ns(u64::MAX)));
        assert!(!giver.is_open() && taker.is_open());
    }
}

#[test]
fn the_end_of_the_session_ends_both_and_the_taker_fences_first() {
    let said = open(10_000, TransferRole::Giver);
    let mut giver = Side::give(&said, table()).unwrap();
    let mut taker = Side::offered(&said);
    taker.join(None);
    for side in [&mut giver, &mut taker] {
        side.over(FinalReason::Unreachable);
    }
    let end = Some(TransferEnd::Over(FinalReason::Unreachable));
    assert_eq!((giver.take_end(), taker.take_end()), (end, None));
    taker.fenced_memory();
    assert_eq!(taker.take_end(), end);
    assert!(!giver.is_open() && !taker.is_open());
}

#[test]
fn what_no_honest_peer_says_is_found() {
    let on = (0, Epoch::from_wire(1));
    let said = open(10_000, TransferRole::Giver);
    let mut giver = Side::give(&said, table()).unwrap();
    let mut taker = Side::offered(&said);
    let landed = |first, count| Landed {
        epoch: on.1,
        transfer: TransferId(2),
        first,
        count,
        question: 0,
    };
    assert!(taker.heard_landed(&landed(0, 1)).is_err(), "it has not joined");
    taker.join(None);
    assert!(taker.heard_landed(&landed(0, 1)).is_err(), "it gave no key");
    let word = taker.word_for(on, Some(window(10_000))).unwrap();
    taker.said(&word, on);
    assert!(
        taker.heard_landed(&landed(2, 2)).is_err(),
        "there are three pieces"
    );
    assert!(taker.heard_landed(&landed(u32::MAX, 2)).is_err());
    assert!(giver.heard_landed(&landed(0, 1)).is_err(), "it is the giver");
    let Word::Take(take) = word else {
        panic!("{word:?}")
    };
    assert!(taker.heard_take(0, &take).is_err());
    let short = super::Take {
        window: window(9999),
        ..take
    };
    assert!(giver.heard_take(0, &short).is_err());
    let progress = |base, question, bit: usize| {
        let mut set = [0; 64];
        set[bit / 8] |= 1 << (bit % 8) & !1;
        Progress {
            epoch: on.1,
            transfer: TransferId(2),
            base,
            question,
            set,
        }
    };
    assert!(
        giver.heard_progress(&progress(1, 0, 0)).is_err(),
        "nothing was written"
    );
    assert!(
        giver.heard_progress(&progress(0, 1, 0)).is_err(),
        "nothing was asked"
    );
    assert!(giver.heard_progress(&progress(0, 0, 1)).is_err());
    assert!(taker.heard_progress(&progress(0, 0, 0)).is_err());
    let done = crate::wire::End {
        epoch: on.1,
        transfer: TransferId(2),
        reason: EndReason::DONE,
        is_answer: false,
    };
    let until = Deadline::at(Instant::from_ns(1));
    assert!(giver.heard_end(0, &done, until).is_err());
    assert!(taker.heard_end(0, &done, until).is_err());
}

#[test]
fn each_word_is_a_frame_that_parses_back() {
    use crate::wire::{EndFrame, LandedFrame, OpenFrame, ProgressFrame, TakeFrame};
    let epoch = Epoch::from_wire(5);
    let transfer = TransferId(2);
    let opened = Open {
        epoch,
        ..open(10_000, TransferRole::Taker)
    };
    assert_eq!(
        SessionFrame::parse(&OpenFrame::new(&opened).to_bytes()),
        Ok(SessionFrame::Open(opened))
    );
    let take = super::Take {
        epoch,
        transfer,
        window: window(10_000),
    };
    assert_eq!(
        SessionFrame::parse(&TakeFrame::new(&take).to_bytes()),
        Ok(SessionFrame::Take(take))
    );
    let landed = Landed {
        epoch,
        transfer,
        first: 3,
        count: 2,
        question: 9,
    };
    assert_eq!(
        SessionFrame::parse(&LandedFrame::new(&landed).to_bytes()),
        Ok(SessionFrame::Landed(landed))
    );
    let mut progress = Progress {
        epoch,
        transfer,
        base: 3,
        question: 9,
        set: [0; 64],
    };
    progress.set[63] = 0x80;
    let bytes = ProgressFrame::new(&progress).to_bytes();
    assert_eq!(SessionFrame::parse(&bytes), Ok(SessionFrame::Progress(progress)));
    let end = crate::wire::End {
        epoch,
        transfer,
        reason: EndReason(77),
        is_answer: true,
    };
    assert_eq!(
        SessionFrame::parse(&EndFrame::new(&end).to_bytes()),
        Ok(SessionFrame::End(end))
    );
    assert_eq!(
        format!("{}", SessionFrame::End(end)),
        "answer to the end of transfer 2: reason 77"
    );
}

#[test]
fn a_write_that_is_refused_ends_a_transfer_only_where_the_taker_lives() {
    let on = (0, Epoch::from_wire(1));
    for answers in [true, false] {
        let mut giver = Side::give(&open(10_000, TransferRole::Giver), table()).unwrap();
        let (epoch, transfer) = (on.1, TransferId(2));
        let take = super::Take {
            epoch,
            transfer,
            window: window(10_000),
        };
        giver.heard_take(0, &take).unwrap();
        let (piece, _) = giver.piece_for(on).unwrap();
        giver.wrote(piece, 1, on);
        giver.denied();
        let (now, later) = (Instant::from_ns(1), Deadline::at(Instant::from_ns(u64::MAX)));
        giver.look(now, later);
        assert!(giver.piece_for(on).is_none() && giver.take_end().is_none());
        assert!(giver.lost(0, later));
        giver.left();
        giver.look(now, later);
        assert_eq!(giver.take_end(), None, "the taker may be dead");
        if answers {
            giver.fenced(0, epoch);
            giver.look(now, later);
            assert_eq!(giver.take_end(), Some(TransferEnd::Here(EndReason::DENIED)));
        } else {
            giver.over(FinalReason::Unreachable);
            assert_eq!(
                giver.take_end(),
                Some(TransferEnd::Over(FinalReason::Unreachable))
            );
        }
    }
}

#[test]
fn a_write_at_which_the_takers_device_fails_is_repeated_up_to_a_number() {
    let later = Deadline::at(Instant::from_ns(u64::MAX));
    // A piece is written, over a connection that is then fenced and followed by another one.
    let again = |giver: &mut Side, number: u32, fails: bool| {
        let epoch = Epoch::from_wire(number);
        let take = super::Take {
            epoch,
            transfer: TransferId(2),
            window: window(1 << 20),
        };
        giver.heard_take(0, &take).unwrap();
        let Some((piece, _)) = giver.piece_for((0, epoch)) else {
            return false;
        };
        giver.wrote(piece, 1, (0, epoch));
        if fails {
            giver.failed_at_taker();
        } else {
            giver.retired(0);
        }
        giver.lost(0, later);
        giver.left();
        giver.fenced(0, epoch);
        giver.look(Instant::from_ns(1), later);
        true
    };
    let max = u32::from(super::FAILED_MAX);
    let mut giver = Side::give(&open(1 << 20, TransferRole::Giver), table()).unwrap();
    for number in 1..max {
        assert!(again(&mut giver, number, true));
    }
    // One that is done begins the count anew.
    assert!(again(&mut giver, max, false));
    for number in 1..=max {
        assert_eq!(giver.take_end(), None);
        assert!(again(&mut giver, max + number, true));
    }
    assert_eq!(giver.take_end(), Some(TransferEnd::Here(EndReason::DENIED)));
}

#[test]
fn each_fence_has_its_own_deadline() {
    let (first, second) = ((0, Epoch::from_wire(1)), (1, Epoch::from_wire(2)));
    let at = |ns| Deadline::at(Instant::from_ns(ns));
    let mut giver = Side::give(&open(1 << 20, TransferRole::Giver), table()).unwrap();
    for on in [first, second] {
        let take = super::Take {
            epoch: on.1,
            transfer: TransferId(2),
            window: window(1 << 20),
        };
        giver.heard_take(on.0, &take).unwrap();
        let (piece, _) = giver.piece_for(on).unwrap();
        giver.wrote(piece, 1, on);
    }
    assert!(giver.lost(0, at(20)) && giver.lost(1, at(40)));
    giver.left();
    assert_eq!(giver.wake(), Some(at(20)));
    giver.fenced(0, first.1);
    giver.look(Instant::from_ns(30), at(100));
    assert_eq!((giver.wake(), giver.take_end()), (Some(at(40)), None));
    giver.look(Instant::from_ns(50), at(100));
    assert_eq!(giver.take_end(), Some(TransferEnd::Here(EndReason::NOT_FENCED)));
}
