//! The daemon's state of one client. The daemon trusts nothing that the client can write: it copies ring entries, then validates the copy.

use core::sync::atomic::AtomicU32;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use doorbell::interprocess::{
    SharedArena, SharedBytes, SharedConsumer, SharedMemory, SharedProducer, SharedWords, must_wake,
};

use crate::descriptor::{Report, Submission, message_report};
use crate::frame::Job;
use crate::grants::GrantTable;
use crate::layout::{CLIENT_SLEEPS, DAEMON_SLEEPS, EndpointLayout, EndpointMemory};
use crate::name::{Credentials, EndpointAddress};
use crate::one_sided::{Action, Asked};
use crate::reason::{CutReason, GoneReason, UndeliveredReason};
use crate::routes::Routes;
use crate::settled::Settled;
use crate::status::Traffic;
use crate::stopped::Stopped;

/// Maximum number of messages and operations in flight from one endpoint to one endpoint of another node. These are the credits of a pair.
pub(crate) const PAIR_CREDITS: usize = 16;

/// Number of bytes whose pages are mapped in one step.
const POPULATED_BYTES: usize = 256 << 10;

/// A message or an operation from another node that waits for room in the ring, or that is queued behind such a message.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) from: EndpointAddress,
    pub(crate) incarnation: u64,
    pub(crate) number: u64,
    /// The operation; `None` for a message.
    pub(crate) asked: Option<Asked>,
    pub(crate) payload: Vec<u8>,
    /// Bytes that it occupies while it waits.
    pub(crate) bytes: u64,
}

impl Arrived {
    /// Bytes that are sent back to the requesting node after the operation.
    pub(crate) fn fetched(&self) -> u32 {
        self.asked.map_or(0, |asked| asked.action.fetched(asked.bytes))
    }
}

/// An entry of the queue for the client's event ring.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// Boxed, since few clients have any.
    Arrived(Box<Arrived>),
    /// A report, and the position of the submission whose outcome it is, if there is one.
    Report(Report, Option<u64>),
}

/// Outcome of an operation: the fetched value, and the bytes that were read.
pub(crate) type Outcome = Result<(u64, Vec<u8>), UndeliveredReason>;

/// An entry that has left the queue.
#[derive(Debug)]
pub(crate) enum Reported {
    Message(Arrived),
    Operation(Arrived, Outcome),
    Report,
}

/// A message or an operation in flight to another node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    /// The router's sequence number.
    pub(crate) sequence: u64,
    /// The client's own number.
    pub(crate) number: u64,
    /// Position among the client's submissions.
    pub(crate) position: u64,
    /// The operation, and the offset of its bytes in the client's own arena. `None` for a message.
    pub(crate) operation: Option<(Asked, u64)>,
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
    cells: SharedArena,
    arena: Option<SharedArena>,
    pub(crate) grants: GrantTable,
    pub(crate) routes: Routes,
    /// Endpoints that this client exchanged messages with, and that still exist.
    pub(crate) contacts: BTreeSet<EndpointAddress>,
    /// Messages and operations to other nodes that have no outcome yet, in order.
    in_flight: BTreeMap<EndpointAddress, VecDeque<InFlight>>,
    /// Number of operations among them.
    operations: u32,
    pub(crate) sent: u64,
    pub(crate) waiting: VecDeque<Waiting>,
    /// Requests from other nodes that wait for their lane. They do not block other pairs. Most clients have none, so that the field costs one
    /// word.
    pub(crate) stopped: Option<Box<Stopped<Box<Arrived>>>>,
    /// Number of waiting reports that the client itself or the end of a peer caused, as opposed to arrived messages.
    owed: u32,
    /// Bytes of messages and operations that the daemon took from the client.
    pub(crate) sent_bytes: u64,
    /// Bytes of messages that the daemon delivered to the client.
    received_bytes: u64,
    settled: Settled,
    /// The settled position that was last published to the client.
    announced: u64,
    /// Number of bytes of the cells and then of the arena whose pages are mapped.
    populated: usize,
    /// Whether reports were published since slots were last returned.
    pub(crate) is_told: bool,
}

impl Client {
    pub(crate) fn new(
        who: Credentials,
        job: Job,
        address: EndpointAddress,
        incarnation: u64,
        layout: EndpointLayout,
        memory: EndpointMemory,
    ) -> Self {
        let EndpointMemory { rings, cells, arena } = memory;
        Self {
            who,
            job,
            address,
            incarnation,
            layout,
            submissions: SharedConsumer::new(rings.clone(), layout.submissions()),
            events: SharedProducer::new(rings, layout.events()),
            cells,
            arena,
            grants: GrantTable::default(),
            routes: Routes::default(),
            contacts: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            operations: 0,
            sent: 0,
            waiting: VecDeque::new(),
            stopped: None,
            owed: 0,
            sent_bytes: 0,
            received_bytes: 0,
            settled: Settled::default(),
            announced: 0,
            populated: 0,
            is_told: false,
        }
    }

    /// Maps the next pages. Returns whether any were left.
    pub(crate) fn populate(&mut self) -> bool {
        let (cells, arena) = (self.cells.bytes(), self.arena.as_ref());
        let of = match arena {
            Some(arena) if self.populated >= cells => arena,
            _ => &self.cells,
        };
        let offset = if self.populated >= cells && arena.is_some() {
            self.populated.saturating_sub(cells)
        } else {
            self.populated
        };
        let bytes = of.bytes().saturating_sub(offset).min(POPULATED_BYTES);
        if bytes == 0 {
            return false;
        }
        of.populate(offset, bytes);
        self.populated = self.populated.saturating_add(bytes);
        true
    }

    /// Returns the next submission, validated. It stays in the ring until [`Client::take`].
    pub(crate) fn peek(&mut self) -> Result<Option<Submission>, CutReason> {
        let words = self.submissions.peek().map_err(|_| CutReason::Index)?;
        let parsed = words.map(|words| Submission::parse(&words, &self.layout));
        parsed.transpose()
    }

    /// Copies the payload of the next submission.
    pub(crate) fn copy_payload(&self, bytes: u32, into: &mut Vec<u8>) {
        into.resize(bytes as usize, 0);
        let cell = self.layout.submission_cell(self.submissions.slot());
        // Always in bounds: the layout has a cell for each slot, and the length was checked against it.
        let is_copied = self.cells.copy_out(cell, into);
        debug_assert!(is_copied, "a cell lies in the memory");
    }

    /// The position of the next submission.
    pub(crate) fn position(&self) -> u64 {
        self.settled.next()
    }

    /// Takes the next submission off the ring. `is_settled` says that it already has its outcome.
    pub(crate) fn take(&mut self, is_settled: bool) {
        if is_settled {
            self.settled.take_settled();
        } else {
            self.settled.take();
        }
        self.submissions.advance();
    }

    /// Copies bytes out of the client's arena. Returns `false` if the range is out of bounds.
    pub(crate) fn copy_out(&self, offset: u64, bytes: u32, into: &mut Vec<u8>) -> bool {
        into.resize(bytes as usize, 0);
        let arena = self.arena.as_ref().zip(usize::try_from(offset).ok());
        arena.map_or(bytes == 0, |(arena, offset)| arena.copy_out(offset, into))
    }

    /// Copies bytes into the client's arena. Returns `false` if the range is out of bounds.
    pub(crate) fn copy_in(&self, offset: u64, from: &[u8]) -> bool {
        let arena = self.arena.as_ref().zip(usize::try_from(offset).ok());
        arena.map_or(from.is_empty(), |(arena, offset)| arena.copy_in(offset, from))
    }

    /// Executes an operation on the client's arena at a validated offset. Returns the fetched value. `payload` holds the bytes of a WRITE, and
    /// receives the bytes of a READ.
    pub(crate) fn carry_out(&self, asked: &Asked, offset: usize, payload: &mut Vec<u8>) -> u64 {
        let Some(arena) = &self.arena else { return 0 };
        let is_done = match asked.action {
            // An end transfers no bytes.
            Action::End(_) => true,
            Action::Write { .. } => arena.copy_in(offset, payload),
            Action::Read => {
                payload.resize(asked.bytes as usize, 0);
                arena.copy_out(offset, payload)
            }
            Action::Add(number) => return arena.fetch_add(offset, number).unwrap_or(0),
            Action::Swap { compare, swap } => {
                return arena.compare_and_swap(offset, compare, swap).unwrap_or(0);
            }
        };
        debug_assert!(is_done, "a range that was checked lies in the arena");
        0
    }

    /// Whether the event ring has room for a report.
    pub(crate) fn has_room(&mut self) -> Result<bool, CutReason> {
        let room = self.events.room().map_err(|_| CutReason::Index)?;
        Ok(room > 0)
    }

    /// Stages a report if there is room.
    pub(crate) fn report(&mut self, report: &Report, payload: &[u8]) -> Result<bool, CutReason> {
        if !self.has_room()? {
            return Ok(false);
        }
        let cell = self.layout.event_cell(self.events.slot());
        // Always in bounds: the payload is no longer than a cell.
        let is_copied =
            payload.len() <= self.layout.message_bytes() as usize && self.cells.copy_in(cell, payload);
        debug_assert!(is_copied, "a cell lies in the memory");
        self.received_bytes = self.received_bytes.wrapping_add(payload.len() as u64);
        self.events.stage(&report.words()).map_err(|_| CutReason::Index)
    }

    /// Copies the next message of another client directly, if no entry waits and there is room. Returns `false` if the message has to be routed.
    #[inline]
    pub(crate) fn take_from(&mut self, sender: &Self, bytes: u32) -> bool {
        let is_next = bytes <= self.layout.message_bytes() && self.waiting.is_empty();
        if !is_next || self.has_room() != Ok(true) {
            return false;
        }
        let from = sender.layout.submission_cell(sender.submissions.slot());
        let to = self.layout.event_cell(self.events.slot());
        let is_copied = sender.cells.copy_to(from, &self.cells, to, bytes as usize);
        let is_staged = is_copied && self.events.stage(&message_report(sender.address, bytes)) == Ok(true);
        self.received_bytes = self.received_bytes.wrapping_add(u64::from(bytes));
        is_staged
    }

    /// Traffic counts of this client.
    pub(crate) fn traffic(&self) -> Traffic {
        Traffic {
            submitted: self.settled.next(),
            sent_bytes: self.sent_bytes,
            reported: self.events.staged(),
            received_bytes: self.received_bytes,
        }
    }

    /// Number of submissions in the ring that were not taken yet.
    pub(crate) fn queued(&self) -> u32 {
        self.submissions.waiting()
    }

    /// Number of submissions that were taken and have no outcome yet.
    pub(crate) fn without_outcome(&self) -> u64 {
        self.settled.without_outcome()
    }

    /// Whether any entry waits for this client.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.stopped.is_some()
    }

    /// Number of entries that wait for room.
    pub(crate) fn waits_for_room(&self) -> u64 {
        let stopped = self.stopped.as_ref().map_or(0, |stopped| stopped.count());
        stopped.saturating_add(self.waiting.len()) as u64
    }

    /// Publishes staged reports. Returns whether there were any.
    pub(crate) fn publish(&mut self) -> bool {
        self.events.publish()
    }

    /// Returns slots to the client, and publishes which submissions have an outcome. The reports of all clients are published before. So if the
    /// daemon dies now, each outcome that was announced can be found. Returns whether there was anything to publish.
    pub(crate) fn hand_back(&mut self) -> bool {
        let through = self.settled.through();
        if through != self.announced {
            self.announced = through;
            self.submissions.settle(through);
        }
        self.submissions.hand_back()
    }

    /// Whether the client sleeps, and has to be woken.
    pub(crate) fn is_asleep(&self) -> bool {
        self.events.memory().flag(CLIENT_SLEEPS).is_some_and(must_wake)
    }

    /// The flag by which the daemon announces that it sleeps.
    pub(crate) fn daemon_flag(&self) -> Option<&AtomicU32> {
        self.events.memory().flag(DAEMON_SLEEPS)
    }

    /// Whether this client may exchange messages with an endpoint.
    pub(crate) fn may_meet(&self, other: EndpointAddress, contacts_max: usize) -> bool {
        self.contacts.len() < contacts_max || self.contacts.contains(&other)
    }

    /// Whether this client may exchange messages with an endpoint. If so, the endpoint becomes one of its contacts.
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

    /// Records that an endpoint is gone: its grants end, and its end is reported if it was a contact.
    pub(crate) fn lose(&mut self, who: EndpointAddress, reason: GoneReason) {
        self.grants.end_of(|other| other == who);
        if self.contacts.remove(&who) {
            self.owe(Report::Gone { who, reason }, None);
        }
    }

    /// Queues a report until there is room. `position` is the submission whose outcome it is, if there is one.
    pub(crate) fn owe(&mut self, report: Report, position: Option<u64>) {
        self.waiting.push_back(Waiting::Report(report, position));
        self.owed = self.owed.saturating_add(1);
    }

    /// Whether so many reports wait, or are expected, that the client may submit nothing that causes more.
    pub(crate) fn owes_much(&self) -> bool {
        self.owed.saturating_add(self.operations) >= self.layout.depth() || self.settled.is_full()
    }

    /// Moves the first waiting entry into the event ring, and returns it. Returns `None` if there is no room or no entry.
    pub(crate) fn report_waiting(&mut self) -> Result<Option<Reported>, CutReason> {
        let Some(first) = self.waiting.pop_front() else {
            return Ok(None);
        };
        match first {
            Waiting::Report(report, position) => {
                if !self.report(&report, &[])? {
                    self.waiting.push_front(Waiting::Report(report, position));
                    return Ok(None);
                }
                self.owed = self.owed.saturating_sub(1);
                if let Some(position) = position {
                    self.settled.settle(position);
                }
                Ok(Some(Reported::Report))
            }
            Waiting::Arrived(mut arrived) => {
                let is_done = match arrived.asked {
                    Some(asked) if matches!(asked.action, Action::End(_)) => {
                        let ended = self.end_transfer(&asked, arrived.from, arrived.incarnation);
                        let outcome = ended.map(|report| {
                            if let Some(report) = report {
                                // The report takes this place in the queue, before later entries.
                                self.waiting.push_front(Waiting::Report(report, None));
                                self.owed = self.owed.saturating_add(1);
                            }
                            (0, Vec::new())
                        });
                        return Ok(Some(Reported::Operation(*arrived, outcome)));
                    }
                    Some(asked) => match self.serve(&asked, &mut arrived) {
                        Ok(Some(outcome)) => return Ok(Some(Reported::Operation(*arrived, outcome))),
                        Ok(None) => Ok(false),
                        Err(reason) => Err(reason),
                    },
                    None => {
                        // No longer than a cell: this was checked on arrival.
                        let bytes = u32::try_from(arrived.payload.len()).unwrap_or(0);
                        let from = arrived.from;
                        self.report(&Report::Message { from, bytes }, &arrived.payload)
                    }
                };
                if is_done != Ok(true) {
                    self.waiting.push_front(Waiting::Arrived(arrived));
                    return is_done.map(|_| None);
                }
                Ok(Some(Reported::Message(*arrived)))
            }
        }
    }

    /// Executes an operation from another node. Returns `None` if the owner has to get a report and there is no room for it.
    pub(crate) fn serve(
        &mut self,
        asked: &Asked,
        arrived: &mut Arrived,
    ) -> Result<Option<Outcome>, CutReason> {
        let offset = match self.grants.check(asked, arrived.from, arrived.incarnation) {
            Ok(offset) => offset,
            Err(reason) => return Ok(Some(Err(reason))),
        };
        // All checks are done, and there is room for the report: nothing below fails.
        if asked.action.waits_for_room() && !self.has_room()? {
            return Ok(None);
        }
        let mut payload = core::mem::take(&mut arrived.payload);
        let value = self.carry_out(asked, offset, &mut payload);
        if let Some(report) = asked.written(arrived.from) {
            self.report(&report, &[])?;
        }
        payload.truncate(asked.action.fetched(asked.bytes) as usize);
        Ok(Some(Ok((value, payload))))
    }

    /// Records the end of a transfer that this client gave, and returns the report to it. If there is no room, the report is queued here, so the
    /// taker never waits for room. Each grant has one such report.
    pub(crate) fn end_transfer(
        &mut self,
        asked: &Asked,
        from: EndpointAddress,
        incarnation: u64,
    ) -> Result<Option<Report>, UndeliveredReason> {
        self.grants.check(asked, from, incarnation)?;
        let is_first = self.grants.end(asked.place);
        Ok(asked.written(from).filter(|_| is_first))
    }

    /// Messages and operations from other nodes that wait, in order for each pair.
    pub(crate) fn arrived(&self) -> impl Iterator<Item = &Arrived> {
        let waiting = self.waiting.iter().filter_map(|waiting| match waiting {
            Waiting::Arrived(arrived) => Some(&**arrived),
            Waiting::Report(..) => None,
        });
        let stopped = self
            .stopped
            .iter()
            .flat_map(|stopped| stopped.iter().map(|arrived| &**arrived));
        stopped.chain(waiting)
    }

    /// Number of messages and operations in flight to an endpoint of another node.
    pub(crate) fn in_flight(&self, to: EndpointAddress) -> usize {
        self.in_flight.get(&to).map_or(0, VecDeque::len)
    }

    /// Records a message or operation in flight.
    pub(crate) fn fly(&mut self, to: EndpointAddress, sent: InFlight) {
        self.operations = self.operations.saturating_add(sent.operation.is_some().into());
        self.in_flight.entry(to).or_default().push_back(sent);
    }

    /// Removes the message or operation with the router's number `sequence` from those in flight, if it exists and `is_right` accepts it.
    pub(crate) fn land(
        &mut self,
        to: EndpointAddress,
        sequence: u64,
        is_right: impl FnOnce(&InFlight) -> bool,
    ) -> Option<InFlight> {
        let all = self.in_flight.get_mut(&to)?;
        let at = all.iter().position(|sent| sent.sequence == sequence)?;
        let sent = all.get(at).filter(|sent| is_right(sent)).copied()?;
        all.remove(at);
        if all.is_empty() {
            self.in_flight.remove(&to);
        }
        self.operations = self.operations.saturating_sub(sent.operation.is_some().into());
        if self.in_flight.is_empty() {
            // An empty map may keep its last node allocated.
            self.in_flight = BTreeMap::new();
        }
        Some(sent)
    }

    /// The receiver has all messages up to this one. If an operation is among them, its outcome should have come before, so it is unknown.
    pub(crate) fn delivered(&mut self, to: EndpointAddress, through: u64) {
        while let Some(first) = self.in_flight.get(&to).and_then(VecDeque::front) {
            let sequence = first.sequence;
            if sequence > through {
                break;
            }
            if let Some(sent) = self.land(to, sequence, |_| true) {
                if sent.operation.is_some() {
                    self.owe_undelivered(to, sent, UndeliveredReason::Unknown);
                } else {
                    self.settled.settle(sent.position);
                }
            }
        }
    }

    /// Reports that a message or operation in flight failed, or that its outcome is unknown.
    pub(crate) fn owe_undelivered(&mut self, to: EndpointAddress, sent: InFlight, reason: UndeliveredReason) {
        let number = sent.number;
        self.owe(Report::Undelivered { to, number, reason }, Some(sent.position));
    }

    /// Ends everything in flight to the selected endpoints with an unknown outcome. Returns the count.
    pub(crate) fn lose_flights(&mut self, is_lost: impl Fn(EndpointAddress) -> bool) -> u64 {
        let lost: Vec<_> = self
            .in_flight
            .keys()
            .filter(|to| is_lost(**to))
            .copied()
            .collect();
        let mut unknown = 0_u64;
        for to in lost {
            for sent in self.in_flight.remove(&to).into_iter().flatten() {
                self.operations = self.operations.saturating_sub(sent.operation.is_some().into());
                self.owe_undelivered(to, sent, UndeliveredReason::Unknown);
                unknown = unknown.saturating_add(1);
            }
        }
        unknown
    }
}
