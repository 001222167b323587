//! What became of each order: the state of all of them, by id. No clock is looked at here, and nothing is sent.

use core::time::Duration;
use std::time::Instant;

use super::around::{Failure, Latencies};
use super::message::{Answer, Order};

/// Where an order is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Sent, and not answered yet; its latency counts from here.
    Waiting(Instant),
    /// Its deadline passed. It is remembered, so that a late answer is told from one to no order.
    Overdue(Instant),
    Answered,
    Late,
    /// Never sent.
    Rejected,
}

/// All orders, by id.
pub(crate) struct Orders {
    states: Vec<State>,
    span: Duration,
    /// All orders before this one are past their deadline, or settled.
    watched: usize,
    pub(crate) waiting: u64,
    pub(crate) answered: u64,
    pub(crate) late: u64,
    /// Past their deadline, and nothing came so far: lost, if it stays like this.
    pub(crate) overdue: u64,
    pub(crate) rejected: u64,
    /// Answers that are not what the order asked for, or that are damaged.
    pub(crate) wrong: u64,
    /// Answers to what was answered before, or never sent.
    pub(crate) unasked: u64,
    /// Of all answers that came, late ones too.
    pub(crate) latencies: Latencies,
}

impl Orders {
    /// For so many orders, each to be answered within `span`.
    pub(crate) fn new(count: usize, span: Duration) -> Result<Self, Failure> {
        Ok(Self {
            states: Vec::with_capacity(count),
            span,
            watched: 0,
            waiting: 0,
            answered: 0,
            late: 0,
            overdue: 0,
            rejected: 0,
            wrong: 0,
            unasked: 0,
            latencies: Latencies::new()?,
        })
    }

    /// How many there were so far.
    pub(crate) fn offered(&self) -> u64 {
        self.states.len() as u64
    }

    /// The next order.
    pub(crate) fn next(&self) -> Order {
        Order::of(self.offered())
    }

    /// The next order was sent; its time counts from `since`.
    pub(crate) fn note_sent(&mut self, since: Instant) {
        self.states.push(State::Waiting(since));
        self.waiting += 1;
    }

    /// The next order could not be sent.
    pub(crate) fn note_rejected(&mut self) {
        self.states.push(State::Rejected);
        self.rejected += 1;
    }

    /// An answer came.
    pub(crate) fn note_answer(&mut self, now: Instant, answer: Option<Answer>) {
        let Some(answer) = answer else {
            self.wrong += 1;
            return;
        };
        let state = usize::try_from(answer.id)
            .ok()
            .and_then(|id| self.states.get_mut(id));
        let Some(state) = state else {
            self.unasked += 1;
            return;
        };
        let since = match *state {
            State::Waiting(since) | State::Overdue(since) => since,
            State::Answered | State::Late | State::Rejected => {
                self.unasked += 1;
                return;
            }
        };
        if answer != Order::of(answer.id).answer() {
            self.wrong += 1;
        }
        let latency = now.saturating_duration_since(since);
        self.latencies.note(latency);
        match *state {
            State::Overdue(_) => self.overdue -= 1,
            _ => self.waiting -= 1,
        }
        if latency > self.span {
            *state = State::Late;
            self.late += 1;
        } else {
            *state = State::Answered;
            self.answered += 1;
        }
    }

    /// Gives up waiting for orders whose deadline has passed. They were sent in order, so the first that
    /// has time left ends the search.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(state) = self.states.get_mut(self.watched) {
            if let State::Waiting(since) = *state {
                if now.saturating_duration_since(since) <= self.span {
                    break;
                }
                *state = State::Overdue(since);
                self.waiting -= 1;
                self.overdue += 1;
            }
            self.watched += 1;
        }
    }

    /// Nothing more will come: what waits is lost, too.
    pub(crate) fn give_up(&mut self) {
        self.overdue += self.waiting;
        self.waiting = 0;
    }
}
