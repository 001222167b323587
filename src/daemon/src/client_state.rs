//! The daemon's view of one client. Nothing that the client can write is believed here: its rings are read by copies that are checked.

use core::sync::atomic::AtomicU32;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use doorbell::interprocess::{
    SharedArena, SharedBytes, SharedConsumer, SharedMemory, SharedProducer, SharedWords, must_wake,
};

use crate::descriptor::{Report, Submission, message_report};
use crate::frame::Job;
use crate::grants::Grants;
use crate::layout::{CLIENT_SLEEPS, DAEMON_SLEEPS, EndpointLayout, EndpointMemory};
use crate::name::{Credentials, EndpointAddress};
use crate::one_sided::{Action, Asked};
use crate::reason::{CutReason, GoneReason, UndeliveredReason};
use crate::routes::Routes;
use crate::settled::Settled;

/// Messages and operations of a pair of endpoints on two nodes that are on their way at most: credits that each pair has.
pub(crate) const PAIR_CREDITS: usize = 16;

/// Bytes whose pages are put into the page table at a time.
const POPULATED_BYTES: usize = 256 << 10;

/// A message or an operation of another node that waits for room, or behind one that does.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) from: EndpointAddress,
    pub(crate) incarnation: u64,
    pub(crate) number: u64,
    /// The operation; `None` for a message.
    pub(crate) asked: Option<Asked>,
    pub(crate) payload: Vec<u8>,
    /// Bytes that it takes while it waits.
    pub(crate) bytes: u64,
}

impl Arrived {
    /// The bytes that go to its node once it is carried out.
    pub(crate) fn fetched(&self) -> u32 {
        self.asked.map_or(0, |asked| asked.action.fetched(asked.bytes))
    }
}

/// Something that waits for room, in order.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// Apart, since few clients have any.
    Arrived(Box<Arrived>),
    /// A report, and the position of the submission whose outcome it is.
    Report(Report, Option<u64>),
}

/// Outcome of an operation: the value that was fetched, and the bytes.
pub(crate) type Outcome = Result<(u64, Vec<u8>), UndeliveredReason>;

/// Something that waits no longer.
#[derive(Debug)]
pub(crate) enum Reported {
    Message(Arrived),
    Operation(Arrived, Outcome),
    Report,
}

/// A message or an operation on its way to another node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    /// The router's number.
    pub(crate) sequence: u64,
    /// The client's number.
    pub(crate) number: u64,
    /// Its position among the client's submissions.
    pub(crate) position: u64,
    /// The operation, and the offset of its bytes in the client's own arena; `None` for a message.
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
    pub(crate) grants: Grants,
    pub(crate) routes: Routes,
    /// Endpoints that it exchanged messages with, and that are there.
    pub(crate) contacts: BTreeSet<EndpointAddress>,
    /// Messages and operations for other nodes without an outcome, in order.
    in_flight: BTreeMap<EndpointAddress, VecDeque<InFlight>>,
    /// How many of those are operations.
    operations: usize,
    pub(crate) sent: u64,
    pub(crate) waiting: VecDeque<Waiting>,
    /// READs of other nodes whose bytes have no room in the lane back, and all that came behind them of their pairs: nobody else waits for them.
    /// `None` with most clients, each of which costs no more than a word.
    #[expect(
        clippy::box_collection,
        reason = "it is a quarter as large where there are none"
    )]
    pub(crate) stopped: Option<Box<VecDeque<Box<Arrived>>>>,
    /// How many of those that wait did not arrive: reports that the client's own sending brought about, or its peers' ends.
    owed: usize,
    settled: Settled,
    /// The position that the client knows to be settled.
    announced: u64,
    /// The bytes of cells and arena, one behind the other, whose pages are in the page table.
    populated: usize,
    /// Whether reports were published since slots were handed back last.
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
            grants: Grants::default(),
            routes: Routes::default(),
            contacts: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            operations: 0,
            sent: 0,
            waiting: VecDeque::new(),
            stopped: None,
            owed: 0,
            settled: Settled::default(),
            announced: 0,
            populated: 0,
            is_told: false,
        }
    }

    /// Puts the next pages into the page table. Returns whether there were any.
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

    /// The next submission, checked; it stays in the ring up to [`Client::take`].
    pub(crate) fn peek(&mut self) -> Result<Option<Submission>, CutReason> {
        let words = self.submissions.peek().map_err(|_| CutReason::Index)?;
        let parsed = words.map(|words| Submission::parse(&words, &self.layout));
        parsed.transpose()
    }

    /// Copies the payload of the next submission.
    pub(crate) fn copy_payload(&self, bytes: u32, into: &mut Vec<u8>) {
        into.resize(bytes as usize, 0);
        let cell = self.layout.submission_cell(self.submissions.slot());
        // Within the cells: the layout has one for each slot, and the length was checked against it.
        let is_copied = self.cells.copy_out(cell, into);
        debug_assert!(is_copied, "a cell lies in the memory");
    }

    /// The position of the next submission.
    pub(crate) fn position(&self) -> u64 {
        self.settled.next()
    }

    /// Takes the next submission, which has its outcome if it `is_settled`.
    pub(crate) fn take(&mut self, is_settled: bool) {
        if is_settled {
            self.settled.take_settled();
        } else {
            self.settled.take();
        }
        self.submissions.advance();
    }

    /// Copies bytes out of its arena. `false` unless all lie within.
    pub(crate) fn copy_out(&self, offset: u64, bytes: u32, into: &mut Vec<u8>) -> bool {
        into.resize(bytes as usize, 0);
        let arena = self.arena.as_ref().zip(usize::try_from(offset).ok());
        arena.map_or(bytes == 0, |(arena, offset)| arena.copy_out(offset, into))
    }

    /// Copies bytes into its arena. `false` unless all lie within.
    pub(crate) fn copy_in(&self, offset: u64, from: &[u8]) -> bool {
        let arena = self.arena.as_ref().zip(usize::try_from(offset).ok());
        arena.map_or(from.is_empty(), |(arena, offset)| arena.copy_in(offset, from))
    }

    /// Carries out an operation on its arena at an offset that was checked. Returns the value that was fetched. `payload` has the bytes
    /// of a WRITE, and takes those of a READ.
    pub(crate) fn carry_out(&self, asked: &Asked, offset: usize, payload: &mut Vec<u8>) -> u64 {
        let Some(arena) = &self.arena else { return 0 };
        let is_done = match asked.action {
            // It moves nothing.
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
        // Within the cells: no longer than one.
        let is_copied =
            payload.len() <= self.layout.message_bytes() as usize && self.cells.copy_in(cell, payload);
        debug_assert!(is_copied, "a cell lies in the memory");
        self.events.stage(&report.words()).map_err(|_| CutReason::Index)
    }

    /// Takes the next message of another client, if nothing waits before it, and there is room. `false` if it has to be routed.
    #[inline]
    pub(crate) fn take_from(&mut self, sender: &Self, bytes: u32) -> bool {
        let is_next = bytes <= self.layout.message_bytes() && self.waiting.is_empty();
        if !is_next || self.has_room() != Ok(true) {
            return false;
        }
        let from = sender.layout.submission_cell(sender.submissions.slot());
        let to = self.layout.event_cell(self.events.slot());
        let is_copied = sender.cells.copy_to(from, &self.cells, to, bytes as usize);
        is_copied && self.events.stage(&message_report(sender.address, bytes)) == Ok(true)
    }

    /// Publishes reports. Returns whether there were any.
    pub(crate) fn publish(&mut self) -> bool {
        self.events.publish()
    }

    /// Hands slots back, and says which submissions have an outcome. All clients' reports are published before: so a daemon that dies
    /// now leaves no outcome that was announced and is not there. Returns whether there was anything.
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

    /// Notes that an endpoint is gone: what it was granted ends, and it is reported if it was a contact.
    pub(crate) fn lose(&mut self, who: EndpointAddress, reason: GoneReason) {
        self.grants.end_of(|other| other == who);
        if self.contacts.remove(&who) {
            self.owe(Report::Gone { who, reason }, None);
        }
    }

    /// Has something reported once there is room: the outcome of the submission at this position, or what is none.
    pub(crate) fn owe(&mut self, report: Report, position: Option<u64>) {
        self.waiting.push_back(Waiting::Report(report, position));
        self.owed = self.owed.saturating_add(1);
    }

    /// Whether so many reports wait, or will come, that it may bring about no more of them.
    pub(crate) fn owes_much(&self) -> bool {
        self.owed.saturating_add(self.operations) >= self.layout.depth() as usize || self.settled.is_full()
    }

    /// Reports the first thing that waits, and returns it. `None` if there is no room, or nothing waits.
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
                                // In its place, in front of what waits behind it.
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
                        // At most as long as a cell: looked at when it arrived.
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

    /// Carries out an operation of another node, whose arrival may have to be reported. `None` if there is no room for that.
    pub(crate) fn serve(
        &mut self,
        asked: &Asked,
        arrived: &mut Arrived,
    ) -> Result<Option<Outcome>, CutReason> {
        let offset = match self.grants.check(asked, arrived.from, arrived.incarnation) {
            Ok(offset) => offset,
            Err(reason) => return Ok(Some(Err(reason))),
        };
        // All is checked, and there is room for the report: nothing below fails.
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

    /// Ends a transfer by a grant of this client's, and returns the report of that. It waits here if there is no room, so the taker never
    /// waits for it. Each grant has one such report.
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

    /// Messages and operations of other nodes that wait, those of a pair in order.
    pub(crate) fn arrived(&self) -> impl Iterator<Item = &Arrived> {
        let waiting = self.waiting.iter().filter_map(|waiting| match waiting {
            Waiting::Arrived(arrived) => Some(&**arrived),
            Waiting::Report(..) => None,
        });
        self.stopped().chain(waiting)
    }

    /// The stopped ones among them, in order.
    pub(crate) fn stopped(&self) -> impl Iterator<Item = &Arrived> {
        self.stopped
            .iter()
            .flat_map(|stopped| stopped.iter().map(|arrived| &**arrived))
    }

    /// How many messages and operations are on their way to an endpoint of another node.
    pub(crate) fn in_flight(&self, to: EndpointAddress) -> usize {
        self.in_flight.get(&to).map_or(0, VecDeque::len)
    }

    /// Notes one that is on its way.
    pub(crate) fn fly(&mut self, to: EndpointAddress, sent: InFlight) {
        self.operations = self.operations.saturating_add(sent.operation.is_some().into());
        self.in_flight.entry(to).or_default().push_back(sent);
    }

    /// Takes the one with the router's number `sequence` out of those on their way, if it is there and `is_right`.
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
            // An empty map keeps a node.
            self.in_flight = BTreeMap::new();
        }
        Some(sent)
    }

    /// The receiver has all messages up to this one. An operation among them, whose outcome should have come before, is unknown.
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

    /// Reports that something on its way has come to nothing, or to nobody knows what.
    pub(crate) fn owe_undelivered(&mut self, to: EndpointAddress, sent: InFlight, reason: UndeliveredReason) {
        let number = sent.number;
        self.owe(Report::Undelivered { to, number, reason }, Some(sent.position));
    }

    /// Ends all that is on its way to a node as unknown. Returns how much that was.
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
