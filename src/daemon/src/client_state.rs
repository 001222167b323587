//! The daemon's view of one client. Nothing that the client can write is believed here: its rings are read by copies that are checked.

use core::sync::atomic::AtomicU32;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use doorbell::interprocess::{
    SharedArena, SharedBytes, SharedConsumer, SharedMemory, SharedProducer, SharedWords, must_wake,
};

use crate::descriptor::{Report, Submission};
use crate::frame::Job;
use crate::layout::{CLIENT_SLEEPS, DAEMON_SLEEPS, EndpointLayout};
use crate::name::{Credentials, EndpointAddress};
use crate::reason::{CutReason, GoneReason};

/// Messages of a pair of endpoints on two nodes that are on their way at most: credits that each pair has.
pub(crate) const PAIR_CREDITS: usize = 16;

/// A message of another node that waits for room.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) from: EndpointAddress,
    pub(crate) incarnation: u64,
    pub(crate) number: u64,
    pub(crate) payload: Vec<u8>,
}

/// Something that waits for room, in order.
#[derive(Debug)]
pub(crate) enum Waiting {
    Message(Arrived),
    Report(Report),
}

/// A message on its way to another node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    /// The router's number.
    pub(crate) sequence: u64,
    /// The client's number.
    pub(crate) number: u64,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) who: Credentials,
    pub(crate) job: Job,
    pub(crate) address: EndpointAddress,
    pub(crate) incarnation: u64,
    pub(crate) layout: EndpointLayout,
    submissions: SharedConsumer<SharedMemory>,
    events: SharedProducer<SharedMemory>,
    arena: SharedArena,
    /// Endpoints that it exchanged messages with, and that are there.
    pub(crate) contacts: BTreeSet<EndpointAddress>,
    /// Messages for other nodes without an outcome, in order.
    pub(crate) in_flight: BTreeMap<EndpointAddress, VecDeque<InFlight>>,
    pub(crate) sent: u64,
    pub(crate) waiting: VecDeque<Waiting>,
    /// How many of those are no messages: reports that the client's own sending brought about, or its peers' ends.
    owed: usize,
}

impl Client {
    pub(crate) fn new(
        who: Credentials,
        job: Job,
        address: EndpointAddress,
        incarnation: u64,
        layout: EndpointLayout,
        (rings, arena): (SharedMemory, SharedArena),
    ) -> Self {
        Self {
            who,
            job,
            address,
            incarnation,
            layout,
            submissions: SharedConsumer::new(rings.clone(), layout.submissions()),
            events: SharedProducer::new(rings, layout.events()),
            arena,
            contacts: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            sent: 0,
            waiting: VecDeque::new(),
            owed: 0,
        }
    }

    /// The next submission, checked; it stays in the ring up to [`Client::take`].
    pub(crate) fn peek(&mut self) -> Result<Option<Submission>, CutReason> {
        let words = self.submissions.peek().map_err(|_| CutReason::Index)?;
        let parsed = words.map(|words| Submission::parse(&words, self.layout.message_bytes()));
        parsed.transpose()
    }

    /// Copies the payload of the next submission.
    pub(crate) fn copy_payload(&self, bytes: u32, into: &mut Vec<u8>) {
        into.resize(bytes as usize, 0);
        let cell = self.layout.submission_cell(self.submissions.slot());
        // Within the arena: the layout has a cell for each slot, and the length was checked against it.
        let is_copied = self.arena.copy_out(cell, into);
        debug_assert!(is_copied, "a cell lies in the arena");
    }

    pub(crate) fn take(&mut self) {
        self.submissions.advance();
    }

    /// Whether a report has room.
    pub(crate) fn has_room(&mut self) -> Result<bool, CutReason> {
        let room = self.events.room().map_err(|_| CutReason::Index)?;
        Ok(room > 0)
    }

    /// Reports something, if there is room.
    pub(crate) fn report(&mut self, report: &Report, payload: &[u8]) -> Result<bool, CutReason> {
        if !self.has_room()? {
            return Ok(false);
        }
        let cell = self.layout.event_cell(self.events.slot());
        // Within the arena: no longer than a cell.
        let is_copied =
            payload.len() <= self.layout.message_bytes() as usize && self.arena.copy_in(cell, payload);
        debug_assert!(is_copied, "a cell lies in the arena");
        self.events.stage(&report.words()).map_err(|_| CutReason::Index)
    }

    /// Publishes reports and hands slots back. Returns whether there were any, and whether the client has to be woken.
    pub(crate) fn publish(&mut self) -> (bool, bool) {
        let is_published = self.events.publish();
        let is_moved = self.submissions.hand_back() || is_published;
        let flag = self.events.memory().flag(CLIENT_SLEEPS);
        (is_moved, is_moved && flag.is_some_and(must_wake))
    }

    /// The flag at which the daemon sleeps.
    pub(crate) fn daemon_flag(&self) -> Option<&AtomicU32> {
        self.events.memory().flag(DAEMON_SLEEPS)
    }

    /// Whether it may exchange messages with this endpoint, which it then has as a contact.
    pub(crate) fn meets(&mut self, other: EndpointAddress, contacts_max: usize) -> bool {
        if self.contacts.contains(&other) {
            return true;
        }
        let is_allowed = self.contacts.len() < contacts_max;
        if is_allowed {
            self.contacts.insert(other);
        }
        is_allowed
    }

    /// Notes that an endpoint is gone, if it was a contact.
    pub(crate) fn lose(&mut self, who: EndpointAddress, reason: GoneReason) {
        if self.contacts.remove(&who) {
            self.owe(Report::Gone { who, reason });
        }
    }

    /// Has something reported once there is room.
    pub(crate) fn owe(&mut self, report: Report) {
        self.waiting.push_back(Waiting::Report(report));
        self.owed = self.owed.saturating_add(1);
    }

    /// Whether so many reports wait that it may bring about no more of them.
    pub(crate) fn owes_much(&self) -> bool {
        self.owed >= self.layout.depth() as usize
    }

    /// Reports the first thing that waits, and returns it. `None` if there is no room, or nothing waits.
    pub(crate) fn report_waiting(&mut self) -> Result<Option<Waiting>, CutReason> {
        let Some(first) = self.waiting.pop_front() else {
            return Ok(None);
        };
        let is_reported = match &first {
            Waiting::Report(report) => self.report(report, &[]),
            Waiting::Message(arrived) => {
                // At most as long as a cell: looked at when it arrived.
                let bytes = u32::try_from(arrived.payload.len()).unwrap_or(0);
                let from = arrived.from;
                self.report(&Report::Message { from, bytes }, &arrived.payload)
            }
        };
        if is_reported != Ok(true) {
            self.waiting.push_front(first);
            return is_reported.map(|_| None);
        }
        if matches!(first, Waiting::Report(_)) {
            self.owed = self.owed.saturating_sub(1);
        }
        Ok(Some(first))
    }

    /// The messages of other nodes that wait.
    pub(crate) fn arrived(&self) -> impl Iterator<Item = &Arrived> {
        self.waiting.iter().filter_map(|waiting| match waiting {
            Waiting::Message(arrived) => Some(arrived),
            Waiting::Report(_) => None,
        })
    }
}
