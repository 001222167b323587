//! The requester of a queue pair: sends what is posted, in order, until it is answered.
//!
//! It has no clock, link or lock: time and packets are given to it, and taken from it. Here
//! is what is posted and how it ends; `transmit` makes packets, `answer` takes the peer's.
//!
//! Each packet takes a packet sequence number (PSN), a READ one for each packet that comes
//! back. Unacknowledged packets are sent again from the oldest on: after a refusal for missing packets, after
//! a timeout, or once a receiver is ready.
//!
//! Source: InfiniBand Architecture volume 1, sections 9.7.2 to 9.7.5.

mod answer;
mod datagram;
mod transmit;

use std::collections::VecDeque;

use doorbell_core::provider::{Operation, PostFlags, ReadyToSend};
use doorbell_core::{Psn, Qpn, Ticket, WcStatus, WorkId};

use crate::completion::CompletionEntry;
use crate::datagram::Way;
use crate::gather::Gather;
use crate::id::Id;
use crate::quirks::Quirks;

/// A request, from being staged until it is retired. It owns its slots all the while.
pub(crate) struct Request {
    pub(crate) work_id: WorkId,
    pub(crate) ticket: Ticket,
    pub(crate) operation: Operation,
    pub(crate) flags: PostFlags,
    /// Destination, if it is a datagram.
    pub(crate) way: Option<Way>,
    pub(crate) slots: Gather,
    /// Whether its slot is a cell of the queue.
    pub(crate) is_cell: bool,
    /// Bytes that are sent instead of the slots' bytes.
    pub(crate) inline: Option<Vec<u8>>,
    /// Checksum of the bytes when the request was posted.
    pub(crate) seal: u64,
    /// The PSN of its first packet, once it has begun.
    first_psn: Psn,
    /// How many PSNs it takes.
    packets: u32,
    /// How many of them are answered.
    done: u32,
    bytes: usize,
}

impl Request {
    pub(crate) fn new(work_id: WorkId, ticket: Ticket, operation: Operation, flags: PostFlags) -> Self {
        Self {
            work_id,
            ticket,
            operation,
            flags,
            way: None,
            slots: Gather::default(),
            is_cell: false,
            inline: None,
            seal: 0,
            first_psn: Psn::from_low_bits(0),
            packets: 0,
            done: 0,
            bytes: 0,
        }
    }

    /// Whether a slot is of another protection domain, and is needed.
    fn is_foreign(&self, domain: Id) -> bool {
        self.slots.is_foreign(domain) && !self.flags.contains(PostFlags::INLINE)
    }

    const fn is_solicited(&self) -> bool {
        self.flags.contains(PostFlags::SOLICITED)
    }

    /// How many bytes it is about.
    fn measure(&self) -> usize {
        match &self.inline {
            Some(inline) => inline.len(),
            None => self.slots.len_bytes(),
        }
    }
}

/// The packet that goes next.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Cursor {
    /// Which of the requests.
    request: usize,
    /// Which of its packets.
    packet: u32,
}

/// Attributes that were set when the queue pair became ready.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) domain: Id,
    pub(crate) destination_qpn: Qpn,
    pub(crate) mtu_bytes: usize,
    pub(crate) sending: ReadyToSend,
    pub(crate) quirks: Quirks,
}

/// The requester's half of a queue pair.
#[derive(Default)]
pub(crate) struct Requester {
    /// First those that ended and wait to be retired, then those that have begun, then the rest.
    requests: VecDeque<Request>,
    ended: usize,
    /// Number of requests that ended or have begun, together.
    begun: usize,
    cursor: Cursor,
    next_psn: u32,
    /// READs and atomics that have begun and not ended.
    reads: u8,
    settings: Option<Settings>,
    retries_left: u8,
    not_ready_left: u8,
    /// When the peer has been silent for too long.
    silent_at_ns: Option<u64>,
    /// Until when the peer asked to wait.
    ready_at_ns: Option<u64>,
    /// It went back to the oldest packet since the last that was answered.
    went_back: bool,
    has_failed: bool,
    /// Completions that are due.
    due: VecDeque<CompletionEntry>,
}

impl Requester {
    /// Becomes ready to send.
    pub(crate) fn set(&mut self, settings: Settings) {
        self.next_psn = settings.sending.send_psn.to_u32();
        self.retries_left = settings.sending.retry_count;
        self.not_ready_left = settings.sending.rnr_retry;
        self.settings = Some(settings);
    }

    /// Posts requests.
    pub(crate) fn post(&mut self, requests: impl Iterator<Item = Request>) {
        self.requests.extend(requests);
    }

    /// Takes the next completion that is due.
    pub(crate) fn poll_due(&mut self) -> Option<CompletionEntry> {
        self.due.pop_front()
    }

    /// Has all its retries again, and one at least.
    pub(crate) fn renew_retries(&mut self) {
        let retries = self.settings.map_or(0, |settings| settings.sending.retry_count);
        self.retries_left = retries.max(1);
    }

    /// Whether a request ended so that the queue pair fails with it.
    pub(crate) const fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Works on after a request that failed it.
    pub(crate) const fn recover(&mut self) {
        self.has_failed = false;
    }

    /// Whether a request has begun and did not end; one that is to be tried again may count as one that has not.
    pub(crate) fn is_under_way(&self) -> bool {
        if self.retries_wait() {
            self.is_waiting()
        } else {
            self.ended < self.begun
        }
    }

    /// Whether what is to be tried again waits while the send queue drains.
    fn retries_wait(&self) -> bool {
        self.settings
            .is_some_and(|settings| settings.quirks.retries_do_not_drain)
    }

    /// How many requests are posted and did not end.
    pub(crate) fn outstanding(&self) -> usize {
        self.requests.len().saturating_sub(self.ended)
    }

    /// How many requests ended and were not retired.
    pub(crate) const fn unretired(&self) -> usize {
        self.ended
    }

    /// Lets go of all its requests.
    pub(crate) fn into_requests(self) -> impl Iterator<Item = Request> {
        self.requests.into_iter()
    }

    /// Ends all that did not, with completions or silently: the queue pair has failed (S6).
    pub(crate) fn flush(&mut self, silently: bool) {
        let due = self.due.len();
        while self.ended < self.requests.len() {
            self.begun = self.begun.max(self.ended.saturating_add(1));
            self.end(WcStatus::WR_FLUSH_ERR);
        }
        if silently {
            self.due.truncate(due);
        }
        self.silent_at_ns = None;
        self.ready_at_ns = None;
    }

    /// Gives back the requests that ended, up to this one.
    pub(crate) fn retire(&mut self, last: Ticket, mut each: impl FnMut(Request)) {
        while self.ended > 0
            && self
                .requests
                .front()
                .is_some_and(|request| request.ticket <= last)
        {
            let Some(request) = self.requests.pop_front() else {
                return;
            };
            self.ended = self.ended.saturating_sub(1);
            self.begun = self.begun.saturating_sub(1);
            self.cursor.request = self.cursor.request.saturating_sub(1);
            each(request);
        }
    }

    /// When it wants to be called again, if nothing comes until then.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        match (self.silent_at_ns, self.ready_at_ns) {
            (Some(silent), Some(ready)) => Some(silent.min(ready)),
            (silent, ready) => silent.or(ready),
        }
    }

    /// Goes on where it waited for long enough.
    pub(crate) fn on_timer(&mut self, now_ns: u64) {
        if self.ready_at_ns.is_some_and(|at| at <= now_ns) {
            self.ready_at_ns = None;
            let silent_at_ns = self.silent_at_ns;
            self.go_back();
            // Still the one that ran while it waited, where it did.
            self.silent_at_ns = silent_at_ns;
        }
        if self.silent_at_ns.is_some_and(|at| at <= now_ns) {
            self.went_back = false;
            self.try_again();
        }
    }

    /// The PSN that the oldest packet has that is not answered.
    fn oldest(&self) -> Option<Psn> {
        let front = self.requests.get(self.ended)?;
        (self.ended < self.begun).then(|| front.first_psn.advance(front.done))
    }

    /// Whether something was sent that is not answered.
    fn is_waiting(&self) -> bool {
        let done = self.requests.get(self.ended).map_or(0, |front| front.done);
        (self.cursor.request, self.cursor.packet) > (self.ended, done)
    }

    /// Ends the oldest request.
    fn end(&mut self, status: WcStatus) {
        let Some(front) = self.requests.get(self.ended) else {
            return;
        };
        if front.operation.writes_slots() && front.packets > 0 {
            self.reads = self.reads.saturating_sub(1);
        }
        if front.flags.contains(PostFlags::SIGNALED) || !status.is_success() {
            self.due.push_back(CompletionEntry::of(front.work_id, status));
        }
        self.ended = self.ended.saturating_add(1);
        if self.cursor.request < self.ended {
            self.cursor = Cursor {
                request: self.ended,
                packet: 0,
            };
        }
    }

    /// Ends the oldest request in failure, and the queue pair with it.
    fn fail(&mut self, status: WcStatus) {
        self.begun = self.begun.max(self.ended.saturating_add(1));
        self.end(status);
        self.has_failed = true;
        self.silent_at_ns = None;
        self.ready_at_ns = None;
    }

    /// Sends again from the oldest packet on.
    fn go_back(&mut self) {
        let done = self.requests.get(self.ended).map_or(0, |front| front.done);
        self.cursor = Cursor {
            request: self.ended,
            packet: done,
        };
        self.silent_at_ns = None;
    }

    /// Sends again, where that may be done once more (S13).
    fn try_again(&mut self) {
        let is_endless = self.settings.is_some_and(|settings| {
            settings.quirks.seven_retries_are_endless && settings.sending.retry_count == 7
        });
        if !is_endless {
            let Some(left) = self.retries_left.checked_sub(1) else {
                self.fail(WcStatus::RETRY_EXC_ERR);
                return;
            };
            self.retries_left = left;
        }
        self.go_back();
    }

    /// Something is missing that was to come before: sends again, unless that was done already.
    fn try_again_once(&mut self) {
        if !self.went_back {
            self.went_back = true;
            self.try_again();
        }
    }
}
