//! The end that each request of one table has to have, computed from what its requester asked and was told.
//!
//! It reads messages by [the wire format](../../../../docs/wire-format.md) and shares nothing with the product but the names of ends.

use std::collections::BTreeMap;

use doorbell::link::{FinalReason, LinkId};
use doorbell::provider::Instant;
use doorbell::requests::{CorrelationId, Ended, RequestCounts, RequestFailure, Requests};
use doorbell::{ChannelId, WcStatus};

use super::case::Question;
use crate::failure::{Failure, Verdict, ensure, failure};
use crate::pattern::{ANSWERED, ASKED, Label};

/// The requests of one table, by their numbers.
#[derive(Default)]
pub(super) struct Model {
    pub(super) places: usize,
    pub(super) asked: Vec<Asking>,
    names: BTreeMap<CorrelationId, usize>,
    /// The deadlines of those in flight.
    pub(super) waiting: BTreeMap<usize, u64>,
    /// The answer that the application is being told.
    due: Option<(usize, Vec<u8>)>,
    /// Why requests have to fail before this turn of their host is over: those of a way, or all.
    broken: Vec<(Why, Option<Way>)>,
    /// The causes by which requests failed in this turn.
    pub(super) causes: Vec<WcStatus>,
    counts: RequestCounts,
    /// How late a request may time out.
    late_ns: u64,
    /// Requests that ended in this turn, and how.
    pub(super) ended: Vec<(usize, &'static str)>,
    /// The first thing that was wrong, found where nothing can be returned.
    wrong: Option<Failure>,
}

/// The way that requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Channel(ChannelId),
    Link(LinkId),
}

impl Way {
    pub(super) const fn channel(self) -> Option<ChannelId> {
        match self {
            Self::Channel(id) => Some(id),
            Self::Link(_) => None,
        }
    }
}

/// A request that was sent.
pub(super) struct Asking {
    pub(super) id: CorrelationId,
    pub(super) question: Question,
    pub(super) way: Way,
    /// The channel it went over, counted at its line.
    pub(super) connection: u32,
    /// The peer has it.
    pub(super) has_come: bool,
    /// The length of the body that the peer answered with.
    pub(super) said: Option<usize>,
}

/// Why requests of a table fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Channel,
    PeerClosed,
    Link(FinalReason),
    GivenUp,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request(CorrelationId),
    Answer(CorrelationId),
    Other,
}

/// Reads the 16 bytes in front of a body.
pub(super) fn read(message: &[u8]) -> (Kind, &[u8]) {
    let Some((header, body)) = message.split_first_chunk::<16>() else {
        return (Kind::Other, message);
    };
    let [1, kind @ (1 | 2), 0, 0, 0, 0, 0, 0, id @ ..] = *header else {
        return (Kind::Other, message);
    };
    let id = CorrelationId(u64::from_be_bytes(id));
    let kind = if kind == 1 {
        Kind::Request(id)
    } else {
        Kind::Answer(id)
    };
    (kind, body)
}

/// The body of a request or of its answer: it follows from which it is of.
pub(super) fn body(line: usize, end: usize, is_answer: bool, number: usize, bytes: usize) -> Vec<u8> {
    let label = Label {
        connection: line as u32,
        end: end as u8,
        stream: if is_answer { ANSWERED } else { ASKED },
        number: number as u64,
    };
    let mut body = label.bytes(bytes);
    body.truncate(bytes);
    body
}

impl Model {
    pub(super) fn new(places: u32, late_ns: u64) -> Self {
        Self {
            places: places as usize,
            late_ns,
            ..Self::default()
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() == self.places
    }

    /// The number of the request that has this name.
    pub(super) fn number(&self, id: CorrelationId) -> Option<usize> {
        self.names.get(&id).copied()
    }

    /// A request was sent. No other ever had its name.
    pub(super) fn begin(&mut self, asking: Asking, deadline_ns: u64) -> Verdict {
        let number = self.asked.len();
        let other = self.names.insert(asking.id, number);
        ensure(other.is_none(), "name", || {
            format!(
                "request {number} has the name {:?} of request {other:?}",
                asking.id
            )
        })?;
        self.asked.push(asking);
        self.waiting.insert(number, deadline_ns);
        self.counts.sent += 1;
        Ok(())
    }

    /// A message is about to be taken; says whether it is handed back.
    pub(super) fn hear(&mut self, line: usize, end: usize, message: &[u8]) -> bool {
        let (Kind::Answer(id), found) = read(message) else {
            return true;
        };
        let Some(number) = self.number(id) else {
            self.counts.unasked += 1;
            return false;
        };
        let said = self.asked[number].said;
        let is_its = said.is_some_and(|bytes| body(line, end, true, number, bytes) == found);
        self.note(ensure(is_its, "made up", || {
            format!(
                "request {number} has an answer of {} bytes, and {said:?} were said",
                found.len()
            )
        }));
        if self.waiting.contains_key(&number) {
            self.counts.answered += 1;
            self.due = Some((number, found.to_vec()));
        } else {
            self.counts.late += 1;
        }
        false
    }

    /// No answer comes any more of what went this way, or any.
    pub(super) fn break_off(&mut self, why: Why, way: Option<Way>) {
        self.broken.push((why, way));
    }

    /// Why a request has to fail in this turn.
    fn breaks(&self, number: usize) -> impl Iterator<Item = Why> {
        let own = self.asked.get(number).map(|asking| asking.way);
        let broken = self.broken.iter();
        broken.filter_map(move |(why, way)| (way.is_none() || *way == own).then_some(*why))
    }

    /// A request ended, as the application is told at this time.
    pub(super) fn end(&mut self, number: usize, ended: Ended<'_>, now_ns: u64) {
        let deadline_ns = self.waiting.remove(&number);
        let (how, is_due) = match ended {
            Ended::Answered(body) => {
                let due = self.due.take();
                (
                    "answered",
                    due.is_some_and(|(due, of)| due == number && of == body),
                )
            }
            Ended::TimedOut => {
                self.counts.timed_out += 1;
                let is_time = |deadline_ns: u64| (deadline_ns..=deadline_ns + self.late_ns).contains(&now_ns);
                (
                    "timed out",
                    self.breaks(number).next().is_none() && deadline_ns.is_some_and(is_time),
                )
            }
            Ended::Failed(reason) => {
                self.counts.failed += 1;
                let why = match reason {
                    RequestFailure::Channel(status) => {
                        self.causes.push(status);
                        Some(Why::Channel)
                    }
                    RequestFailure::PeerClosed => Some(Why::PeerClosed),
                    RequestFailure::Link(reason) => Some(Why::Link(reason)),
                    RequestFailure::GivenUp => Some(Why::GivenUp),
                    _ => None,
                };
                (
                    "failed",
                    why.is_some_and(|why| self.breaks(number).any(|of| of == why)),
                )
            }
            _ => ("unknown", false),
        };
        self.ended.push((number, how));
        let broken = format!("{:?}", self.broken);
        self.note(ensure(deadline_ns.is_some(), "once", || {
            format!("request {number} has ended, and again by {ended:?}")
        }));
        self.note(ensure(is_due, "end", || {
            format!("request {number}, due at {deadline_ns:?} ns, ended by {ended:?} at {now_ns} ns, broken {broken}")
        }));
    }

    /// The application cancelled a request.
    pub(super) fn cancel(&mut self, number: usize) {
        self.waiting.remove(&number);
        self.counts.cancelled += 1;
    }

    /// A turn of its host is over, whose table was last asked at this time for what is due: nothing is left that had to end, and the
    /// table says the same of itself.
    pub(super) fn settle(&mut self, requests: &Requests<usize>, now_ns: u64) -> Verdict {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        ensure(self.due.is_none(), "end", || {
            format!("an answer came and ended nothing: {:?}", self.due)
        })?;
        let left = self
            .waiting
            .keys()
            .find(|number| self.breaks(**number).next().is_some());
        ensure(left.is_none(), "end", || {
            format!(
                "{left:?} of {:?} has no end, broken {:?}",
                self.waiting, self.broken
            )
        })?;
        self.broken.clear();
        let earliest = self.waiting.values().copied().min();
        ensure(earliest.is_none_or(|earliest| earliest > now_ns), "late", || {
            format!("at {now_ns} ns {:?} have no end", self.waiting)
        })?;
        let wake = requests.wake().map(|wake| wake.instant());
        let is_wake = match (wake.map(Instant::to_ns), earliest) {
            (Some(wake), Some(earliest)) => wake <= earliest && wake > now_ns,
            (wake, earliest) => wake.is_none() && earliest.is_none(),
        };
        ensure(is_wake, "wake", || {
            format!("at {now_ns} ns the table wakes at {wake:?}, and {earliest:?} is due first")
        })?;
        ensure(requests.counts() == self.counts, "counts", || {
            format!("{:?}, where {:?} are due", requests.counts(), self.counts)
        })?;
        let (in_flight, room) = (requests.in_flight(), requests.room());
        let are_places_right = in_flight == self.waiting.len() && in_flight + room == self.places;
        ensure(are_places_right, "places", || {
            format!(
                "{in_flight} in flight and room for {room}, where {} of {} are",
                self.waiting.len(),
                self.places
            )
        })
    }

    /// Notes what is wrong, where nothing was before.
    pub(super) fn note(&mut self, verdict: Verdict) {
        if let (Err(wrong), None) = (verdict, &self.wrong) {
            self.wrong = Some(wrong);
        }
    }
}

/// The verdict on an answer that its answerer could not write.
pub(super) fn too_long(bytes: usize, most: usize) -> Failure {
    failure("answer", format!("an answer of {bytes} bytes, where {most} fit"))
}
