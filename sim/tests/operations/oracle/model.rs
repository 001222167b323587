//! The plain model: what one side asked of the other, in order, and what may come of it.

use std::collections::VecDeque;

use doorbell_core::provider::{Arrival, ArrivalKind, Retired};
use doorbell_core::{Ticket, WcStatus};

/// As large as a window is here.
pub(crate) const WINDOW_BYTES: usize = 64;

pub(crate) type Memory = [u8; WINDOW_BYTES];

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Send,
    Write { at: usize },
    Read { at: usize },
    Add { at: usize, add: u64 },
    Swap { at: usize, compare: u64, swap: u64 },
}

/// A request as it is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) deed: Deed,
    pub(crate) bytes: Vec<u8>,
    pub(crate) immediate: Option<u32>,
    pub(crate) is_signaled: bool,
    /// The peer does not allow it.
    pub(crate) is_forbidden: bool,
}

impl Wish {
    fn is_message(&self) -> bool {
        self.deed == Deed::Send || self.immediate.is_some()
    }
}

/// A request that was posted.
#[derive(Debug)]
struct Posted {
    ticket: Ticket,
    wish: Wish,
    /// Indices of the peer's memory states: before the request, and after.
    before: usize,
    after: usize,
    /// Its place among the messages.
    message: Option<usize>,
    /// Nobody will redeem its completion.
    is_forgotten: bool,
}

/// A receive that was posted.
#[derive(Clone, Copy, Debug)]
struct Receive {
    ticket: Ticket,
    room_bytes: usize,
}

/// One direction: requests of one side, receives and memory of the other.
#[derive(Debug)]
pub(crate) struct Direction {
    posted: VecDeque<Posted>,
    /// The peer's memory after each request that changes it, first as it began.
    states: Vec<Memory>,
    /// The state that is known to have come.
    state: usize,
    messages: Vec<Wish>,
    /// How many messages the sender knows to be there.
    delivered: usize,
    receives: Vec<Receive>,
    /// How many receives ended, and how many of them with a message.
    ended: usize,
    arrived: usize,
    /// Something was asked for that is not allowed.
    has_forbidden: bool,
    /// A request failed.
    pub(crate) has_failed: bool,
    receive_has_failed: bool,
}

/// Conditions of the rest of the world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// Only posted requests can fail a queue pair.
    pub(crate) is_calm: bool,
    /// Nothing is asked for twice.
    pub(crate) is_exact: bool,
    /// And the other direction's requests are all allowed.
    pub(crate) is_other_good: bool,
}

impl Direction {
    pub(crate) fn new() -> Self {
        Self {
            posted: VecDeque::new(),
            states: vec![[0; WINDOW_BYTES]],
            state: 0,
            messages: Vec::new(),
            delivered: 0,
            receives: Vec::new(),
            ended: 0,
            arrived: 0,
            has_forbidden: false,
            has_failed: false,
            receive_has_failed: false,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.posted.len()
    }

    pub(crate) fn receives_in_flight(&self) -> usize {
        self.receives.len() - self.ended
    }

    /// Requests that will end by a completion that is redeemed.
    pub(crate) fn is_waiting(&self) -> bool {
        self.posted
            .iter()
            .any(|posted| posted.wish.is_signaled && !posted.is_forgotten)
    }

    /// A message, or more, that lacks a receive.
    pub(crate) fn lacks_receives(&self) -> bool {
        self.messages.len() > self.receives.len()
    }

    pub(crate) fn arrived(&self) -> usize {
        self.arrived
    }

    pub(crate) fn delivered(&self) -> usize {
        self.delivered
    }

    /// Whether a request is, or may be, refused by the peer.
    pub(crate) fn is_good(&self) -> bool {
        !self.has_forbidden && !(0..self.messages.len()).any(|place| self.is_too_long(place))
    }

    fn is_too_long(&self, message: usize) -> bool {
        let wish = &self.messages[message];
        let receive = self.receives.get(message);
        wish.deed == Deed::Send && receive.is_some_and(|receive| receive.room_bytes < wish.bytes.len())
    }

    pub(crate) fn post(&mut self, ticket: Ticket, wish: &Wish) {
        self.has_forbidden |= wish.is_forbidden;
        let before = self.states.len() - 1;
        let mut memory = self.states[before];
        if !wish.is_forbidden {
            let word =
                |memory: &Memory, at: usize| u64::from_ne_bytes(memory[at..at + 8].try_into().unwrap());
            match wish.deed {
                Deed::Write { at } => memory[at..at + wish.bytes.len()].copy_from_slice(&wish.bytes),
                Deed::Add { at, add } => {
                    let sum = word(&memory, at).wrapping_add(add);
                    memory[at..at + 8].copy_from_slice(&sum.to_ne_bytes());
                }
                Deed::Swap { at, compare, swap } if word(&memory, at) == compare => {
                    memory[at..at + 8].copy_from_slice(&swap.to_ne_bytes());
                }
                Deed::Swap { .. } | Deed::Send | Deed::Read { .. } => {}
            }
            if memory != self.states[before] {
                self.states.push(memory);
            }
        }
        let message = wish.is_message().then_some(self.messages.len());
        if wish.is_message() {
            self.messages.push(wish.clone());
        }
        self.posted.push_back(Posted {
            ticket,
            wish: wish.clone(),
            before,
            after: self.states.len() - 1,
            message,
            is_forgotten: false,
        });
    }

    pub(crate) fn post_receive(&mut self, ticket: Ticket, room_bytes: usize) {
        self.receives.push(Receive { ticket, room_bytes });
    }

    /// The receiver's memory is as some request left it: one that may have been carried out, no older than what
    /// is known, and only requests as posted change it.
    pub(crate) fn look(&mut self, memory: &Memory) {
        let found = self.states[self.state..].iter().position(|state| state == memory);
        assert!(
            found.is_some(),
            "{memory:x?} is none of {:x?}",
            &self.states[self.state..]
        );
    }

    /// The next completion goes unredeemed: a later one is to cover what it stands for.
    pub(crate) fn forget(&mut self) {
        let next = |posted: &&mut Posted| posted.wish.is_signaled && !posted.is_forgotten;
        let found = self.posted.iter_mut().find(next);
        found.expect("a completion of something posted").is_forgotten = true;
    }

    /// Requests ended; `brought` are the bytes of their slots, by ticket.
    pub(crate) fn retire(&mut self, retired: &Retired, brought: &[(Ticket, Vec<u8>)], weather: Weather) {
        loop {
            let posted = self.posted.pop_front().expect("something in flight");
            let is_last = posted.ticket == retired.last;
            let status = if is_last {
                retired.status
            } else {
                WcStatus::SUCCESS
            };
            let slots: Vec<u8> = brought
                .iter()
                .filter(|(ticket, _)| *ticket == posted.ticket)
                .flat_map(|(_, bytes)| bytes.iter().copied())
                .collect();
            self.judge(&posted, status, &slots, weather);
            if is_last {
                assert!(posted.wish.is_signaled || !status.is_success(), "nobody asked");
                return;
            }
            assert!(!posted.wish.is_signaled || posted.is_forgotten, "one is missing");
        }
    }

    fn judge(&mut self, posted: &Posted, status: WcStatus, slots: &[u8], weather: Weather) {
        let wish = &posted.wish;
        let is_too_long = posted.message.is_some_and(|message| self.is_too_long(message));
        if !status.is_success() {
            assert!(
                !self.has_failed || status == WcStatus::WR_FLUSH_ERR,
                "a second cause: {status:?}"
            );
            if weather.is_calm && weather.is_other_good && !self.has_failed {
                let is_refused = |posted: &Posted| {
                    posted.wish.is_forbidden
                        || posted.message.is_some_and(|message| self.is_too_long(message))
                };
                // The peer failed of this one or of a later one, and its answer never came: asked again it is silent.
                let is_answer_lost =
                    !weather.is_exact && (is_refused(posted) || self.posted.iter().any(is_refused));
                let is_due = match status {
                    WcStatus::RETRY_EXC_ERR => is_answer_lost,
                    WcStatus::REM_ACCESS_ERR => wish.is_forbidden,
                    WcStatus::REM_INV_REQ_ERR => is_too_long && !wish.is_forbidden,
                    _ => false,
                };
                assert!(is_due, "{status:?} of {wish:?}");
            }
            self.has_failed = true;
            return;
        }
        assert!(!self.has_failed, "a success behind a failure: {wish:?}");
        assert!(!wish.is_forbidden && !is_too_long, "a success of {wish:?}");
        // Later ones may be done as well, and a READ that is asked for again sees them.
        let latest = if weather.is_exact {
            posted.before
        } else {
            self.states.len() - 1
        };
        let seen = match wish.deed {
            Deed::Read { at } => Some((at, posted.before..=latest)),
            Deed::Add { at, .. } | Deed::Swap { at, .. } => Some((at, posted.before..=posted.before)),
            Deed::Send | Deed::Write { .. } => None,
        };
        if let Some((at, states)) = seen {
            let is_right = |state: &Memory| state[at..at + slots.len()] == *slots;
            assert_eq!(slots.len(), wish.bytes.len());
            let place = states.clone().find(|place| is_right(&self.states[*place]));
            assert!(
                place.is_some(),
                "{slots:x?} of {wish:?}, states {states:?} of {:x?}",
                self.states
            );
        } else if !slots.is_empty() {
            assert_eq!(slots, wish.bytes, "what is sent stays as it is");
        }
        self.state = self.state.max(posted.after);
        if let Some(message) = posted.message {
            self.delivered = message + 1;
        }
    }

    /// A receive ended; these are its slots' bytes.
    pub(crate) fn arrive(&mut self, arrival: &Arrival, slots: &[u8]) {
        let receive = self.receives[self.ended];
        assert_eq!(arrival.ticket, receive.ticket, "receives end in their order");
        self.ended += 1;
        if !arrival.status.is_success() {
            self.receive_has_failed = true;
            return;
        }
        assert!(!self.receive_has_failed, "a message behind a failure");
        let wish = self.messages.get(self.arrived).expect("a message that was sent");
        assert!(!wish.is_forbidden && !self.is_too_long(self.arrived));
        let kind = match wish.deed {
            Deed::Send => ArrivalKind::Send,
            _ => ArrivalKind::WriteWithImmediate,
        };
        assert_eq!((arrival.kind, arrival.immediate), (kind, wish.immediate));
        assert_eq!(arrival.payload_bytes as usize, wish.bytes.len());
        if kind == ArrivalKind::Send {
            assert_eq!(slots, wish.bytes, "message {}", self.arrived);
        }
        self.arrived += 1;
    }
}
