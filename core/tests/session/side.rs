//! One process: a session, its application, and the oracle of what it has seen.

use std::collections::VecDeque;

use doorbell_core::Instant;
use doorbell_core::session::{
    FinalReason, Kept, PushRefusal, Received, Retained, Role, Session, SessionConfig, SessionEvent, SessionId,
};
use doorbell_core::wire::SessionFrame;

pub(crate) const FRAGMENT_BYTES: u32 = 16;
const OUTBOX: usize = 16;
const INBOX: usize = 8;

pub(crate) type Machine = Session<[Retained; OUTBOX], [Kept; INBOX]>;

/// A process with one session.
pub(crate) struct Side {
    pub(crate) session: Machine,
    out: Vec<Vec<u8>>,
    held: Vec<Vec<u8>>,
    assembled: Vec<u8>,
    /// The messages that were given to the session and have no end yet: the last fragment's number, and which it was.
    open: VecDeque<(u64, u64)>,
    pub(crate) sent: u64,
    pub(crate) done: u64,
    pub(crate) unknown: u64,
    pub(crate) never_sent: u64,
    pub(crate) delivered: u64,
    pub(crate) events: Vec<SessionEvent>,
    pub(crate) is_over: Option<FinalReason>,
    pub(crate) is_paused: bool,
}

/// The bytes of the nth message, which identify it.
fn message(number: u64) -> Vec<u8> {
    let length = [8, 8, 9, 16, 17, 40, 8, 100][(number % 8) as usize];
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.resize(length, number as u8);
    bytes
}

impl Side {
    pub(crate) fn new(role: Role, config: SessionConfig, id: SessionId, now: Instant) -> Self {
        let tables = ([Retained::default(); OUTBOX], [Kept::default(); INBOX]);
        Self {
            session: Session::new(config, role, id, tables, now),
            out: vec![Vec::new(); OUTBOX],
            held: vec![Vec::new(); INBOX],
            assembled: Vec::new(),
            open: VecDeque::new(),
            sent: 0,
            done: 0,
            unknown: 0,
            never_sent: 0,
            delivered: 0,
            events: Vec::new(),
            is_over: None,
            is_paused: false,
        }
    }

    /// Gives the next message to the session, if it takes it.
    pub(crate) fn send(&mut self) -> Result<(), PushRefusal> {
        let bytes = message(self.sent);
        let taken = self.session.push(bytes.len() as u64, FRAGMENT_BYTES)?;
        let mut rest = bytes.as_slice();
        let mut at = taken.first;
        while at <= taken.last {
            let fragment = self.session.kept(at).unwrap();
            let (these, others) = rest.split_at(fragment.bytes as usize);
            self.out[fragment.place] = these.to_vec();
            rest = others;
            at = at.plus(1);
        }
        assert!(rest.is_empty());
        self.open.push_back((taken.last.0, self.sent));
        self.sent += 1;
        Ok(())
    }

    pub(crate) fn bytes_at(&self, place: usize) -> &[u8] {
        &self.out[place]
    }

    /// Takes a frame that came over a rail.
    pub(crate) fn take(&mut self, rail: u8, bytes: &[u8], now: Instant) {
        let frame = SessionFrame::parse(bytes).unwrap();
        match self.session.received(rail, &frame, now).unwrap() {
            Received::Nothing | Received::Beside => {}
            Received::Early { place } => {
                let SessionFrame::Data(_, payload) = frame else {
                    panic!("{frame:?}")
                };
                self.held[place] = payload.to_vec();
            }
            Received::InOrder => {
                let SessionFrame::Data(header, payload) = frame else {
                    panic!("{frame:?}")
                };
                self.deliver(payload, header.is_last());
                while let Some(held) = self.session.take_held().unwrap() {
                    let bytes = core::mem::take(&mut self.held[held.place]);
                    assert_eq!(bytes.len(), held.bytes as usize);
                    self.deliver(&bytes, held.is_last);
                }
            }
        }
    }

    fn deliver(&mut self, bytes: &[u8], is_last: bool) {
        self.assembled.extend_from_slice(bytes);
        if is_last {
            let whole = core::mem::take(&mut self.assembled);
            assert_eq!(
                whole,
                message(self.delivered),
                "lost, doubled, torn or out of order"
            );
            self.delivered += 1;
        }
    }

    /// Takes the session's events; each message has one end.
    pub(crate) fn listen(&mut self) {
        while let Some(event) = self.session.poll_event() {
            assert!(self.is_over.is_none(), "{event:?} after the end");
            match event {
                SessionEvent::Done { through } => {
                    while self.open.front().is_some_and(|(last, _)| *last <= through.0) {
                        let (_, number) = self.open.pop_front().unwrap();
                        assert_eq!(number, self.done);
                        self.done += 1;
                    }
                }
                SessionEvent::Unknown {
                    sequence, was_sent, ..
                } => {
                    let (last, _) = self.open.pop_front().unwrap();
                    assert_eq!(last, sequence.0);
                    self.unknown += 1;
                    self.never_sent += u64::from(!was_sent);
                }
                SessionEvent::Final { reason } => {
                    self.is_over = Some(reason);
                    assert!(self.open.is_empty(), "a message without an end: {:?}", self.open);
                }
                _ => {}
            }
            self.events.push(event);
        }
    }
}
