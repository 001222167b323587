//! The fate of each order. [`Requests`](doorbell::requests::Requests) knows those that wait; here is counted what they ended by, and what came
//! after that. No clock is looked at here, and nothing is sent.

use std::collections::BTreeMap;
use std::time::Instant;

use super::around::{Failure, Latencies};
use super::message::{Answer, Order};

/// An order that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) order: Order,
    /// Its latency counts from here.
    pub(crate) since: Instant,
}

/// All orders.
pub(crate) struct Orders {
    pub(crate) offered: u64,
    pub(crate) answered: u64,
    pub(crate) late: u64,
    /// Past their deadlines and not answered so far, by id: lost, if it stays like this.
    overdue: BTreeMap<u64, Sent>,
    pub(crate) rejected: u64,
    /// Answers that are not what the order asked for, or that are damaged.
    pub(crate) wrong: u64,
    /// Answers to what was answered before, or never sent.
    pub(crate) unasked: u64,
    /// Latencies of all answers that came, late ones too.
    pub(crate) latencies: Latencies,
}

impl Orders {
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self {
            offered: 0,
            answered: 0,
            late: 0,
            overdue: BTreeMap::new(),
            rejected: 0,
            wrong: 0,
            unasked: 0,
            latencies: Latencies::new()?,
        })
    }

    /// How many are overdue.
    pub(crate) fn overdue(&self) -> usize {
        self.overdue.len()
    }

    /// An order was answered in time.
    pub(crate) fn note_answer(&mut self, now: Instant, sent: Sent, answer: &[u8]) {
        self.answered += 1;
        self.compare(now, sent, Answer::parse(answer));
    }

    /// An order's deadline passed, or its channel failed.
    pub(crate) fn note_overdue(&mut self, sent: Sent) {
        self.overdue.insert(sent.order.id, sent);
    }

    /// An answer came to a request that had ended. It names the order by itself.
    pub(crate) fn note_late(&mut self, now: Instant, answer: &[u8]) {
        let answer = Answer::parse(answer);
        match answer.and_then(|answer| self.overdue.remove(&answer.id)) {
            Some(sent) => {
                self.late += 1;
                self.compare(now, sent, answer);
            }
            None if answer.is_some() => self.unasked += 1,
            None => self.wrong += 1,
        }
    }

    fn compare(&mut self, now: Instant, Sent { order, since }: Sent, answer: Option<Answer>) {
        self.latencies.note(now.saturating_duration_since(since));
        self.wrong += u64::from(answer != Some(order.answer()));
    }
}
