//! Performs the operations of a case. An operation that cannot be done at that moment is skipped.

use core::time::Duration;

use doorbell::provider::Window as _;
use doorbell::worker::SubmitErrorKind;
use doorbell::{
    Channel, ChannelId, ChannelState, Event, Operation, PostFlags, RemoteAddress, SendErrorKind, Ticket,
};
use doorbell_sim::Host;

use crate::bounds::CONNECT_WITHIN;
use crate::case::What;
use crate::failure::{Verdict, ensure, failure};
use crate::line::{Connection, Kind, Posted, Sent, bounded};
use crate::pattern::{DIRECT, HEADER_BYTES, SUBMITTED, WRITTEN};
use crate::run::Run;
use crate::station::{
    CELL_BYTES, CELLS, CELLS_AT, COUNTER_AT, REGION_BYTES, RESTING_AT, RESTING_BYTES, channel_config,
};

type Lease = doorbell::Lease<Host>;

/// The place of one end, looked up.
#[derive(Clone, Copy)]
pub(crate) struct EndPlace {
    pub(crate) line: usize,
    pub(crate) end: usize,
    pub(crate) host: usize,
    pub(crate) worker: usize,
    pub(crate) id: ChannelId,
    /// The longest message.
    bytes_max: usize,
}

/// The half of a Worker taken apart that reported an event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Sending,
    Receiving,
}

impl Run<'_> {
    /// Tries what an end is to do.
    pub(crate) fn act(&mut self, line: usize, end: usize, what: What) -> Verdict {
        let host = self.case.lines[line].hosts[end];
        match what {
            What::Connect => return self.connect(line),
            What::Hold { count } => {
                self.stations[host].hold = count.into();
                return Ok(());
            }
            What::LetGo => return self.let_go(host),
            What::DropWorker => return self.drop_of(line, end, host),
            What::Datagram { count, bytes } => return self.mail(line, end, count, bytes),
            _ => {}
        }
        let Some(place) = self.place(line, end) else {
            return Ok(());
        };
        let now_ns = self.fabric.now().to_ns();
        self.trace
            .note(now_ns, host, format_args!("line {line}: {what:?}"));
        match what {
            What::Close { within_ns } => return self.close(place, Duration::from_nanos(within_ns)),
            What::Shut => return self.shut_end(line, host, place.worker, place.id),
            What::Split => return self.split(place),
            _ if self.are_rings_opening(line, end) => return Ok(()),
            _ => {}
        }
        match what {
            What::Send { count, bytes } => self.send(place, count, bytes),
            What::SendInline { bytes } => self.send_inline(place, bytes),
            What::Gather { bytes } => self.gather(place, bytes),
            What::Abandon { bytes } => self.abandon(place, bytes),
            What::Submit { bytes } => self.submit(place, bytes),
            What::Write { bytes, is_told } => self.write(place, bytes, is_told),
            What::Read { bytes, is_fenced } => self.read(place, bytes, is_fenced),
            What::Add { by } => self.count(place, |_| (true, u64::from(by))),
            What::Swap { is_right, to } => {
                self.count(place, |_| (false, u64::from(to) << 1 | u64::from(is_right)))
            }
            What::Ring {
                count,
                bytes,
                is_copied,
            } => self.write_ring(place, count, bytes, is_copied),
            _ => Ok(()),
        }
    }

    /// Returns an end that can post now: its channel is open, has not failed, and is not being closed.
    pub(crate) fn place(&mut self, line: usize, end: usize) -> Option<EndPlace> {
        let at = self.lines[line].connection.as_ref()?.ends[end].as_ref()?;
        let host = self.case.lines[line].hosts[end];
        let (worker, id) = (at.worker, at.id);
        if at.is_closing || at.has_failed {
            return None;
        }
        let channel = self.stations[host].workers[worker].channel(id)?;
        (channel.state() == ChannelState::Open).then(|| EndPlace {
            line,
            end,
            host,
            worker,
            id,
            bytes_max: channel.peer().message_bytes_max() as usize,
        })
    }

    fn are_rings_opening(&self, line: usize, end: usize) -> bool {
        let connection = self.lines[line].connection.as_ref();
        connection
            .and_then(|connection| connection.ends[end].as_ref())
            .is_some_and(|at| at.rings.are_opening())
    }

    pub(crate) fn connection(&mut self, place: EndPlace) -> Verdict<&mut Connection> {
        let connection = self.lines[place.line].connection.as_mut();
        connection.ok_or_else(|| failure("owner", "a channel of no connection"))
    }

    pub(crate) fn connect(&mut self, line: usize) -> Verdict {
        if self.lines[line].connection.is_some() {
            return Ok(());
        }
        let case = &self.case.lines[line];
        let [from, _] = case.hosts;
        self.connections += 1;
        let number = self.connections;
        let mut config = channel_config(case, self.case.endings, 0, number)
            .map_err(|error| failure("set-up", error.to_string()))?;
        config.class = self
            .case
            .classes
            .as_ref()
            .map_or(0, |classes| classes.of_line(line));
        let handle = *self.lines[line].listener.handle();
        let station = &self.stations[from];
        let deadline = station.node.within(CONNECT_WITHIN);
        match station
            .node
            .begin_connect(&station.workers, &handle, &config, deadline)
        {
            Ok(attempt) => {
                self.lines[line].attempt = Some(attempt);
                self.lines[line].connection = Some(Connection::new(number));
                Ok(())
            }
            Err(error) => self.excuse_connect(&error),
        }
    }

    fn close(&mut self, place: EndPlace, within: Duration) -> Verdict {
        let deadline = self.stations[place.host].workers[place.worker].within(within);
        let connection = self.connection(place)?;
        connection.is_ending = true;
        if let Some(at) = connection.ends[place.end].as_mut() {
            at.is_closing = true;
        }
        let begun = self.stations[place.host].workers[place.worker].begin_close(place.id, deadline);
        begun.map_err(|error| failure("close", error.to_string()))
    }

    /// Drops the Worker that an end is on.
    fn drop_of(&mut self, line: usize, end: usize, host: usize) -> Verdict {
        let connection = self.lines[line].connection.as_ref();
        let Some(worker) = connection.and_then(|connection| Some(connection.ends[end].as_ref()?.worker))
        else {
            return Ok(());
        };
        let now_ns = self.fabric.now().to_ns();
        self.trace
            .note(now_ns, host, format_args!("Worker {worker} is dropped"));
        self.drop_worker(host, worker)
    }

    pub(crate) fn shut_end(&mut self, line: usize, host: usize, worker: usize, id: ChannelId) -> Verdict {
        if let Some(connection) = &mut self.lines[line].connection {
            connection.is_ending = true;
            let hosts = self.case.lines[line].hosts;
            for (at, of) in connection.ends.iter_mut().zip(hosts) {
                if let Some(at) = at.as_mut().filter(|_| of == host) {
                    at.is_shut = true;
                }
            }
        }
        let channel = self.stations[host].workers[worker].channel(id);
        let shut = channel.map_or(Ok(()), |channel| channel.shut());
        shut.map_err(|error| failure("shut", error.to_string()))
    }

    /// A lease with these bytes.
    fn lease(&mut self, place: EndPlace, bytes: &[u8]) -> Option<Lease> {
        let worker = &mut self.stations[place.host].workers[place.worker];
        let mut lease = worker.lease()?;
        match lease.fill(bytes) {
            Ok(()) => Some(lease),
            Err(_) => {
                worker.release(lease);
                None
            }
        }
    }

    fn capacity(&self, place: EndPlace) -> usize {
        self.stations[place.host].workers[place.worker].slot_bytes() as usize
    }

    /// The next message of an end, of so many bytes.
    fn next(&mut self, place: EndPlace, ahead: usize, bytes: usize, has_word: bool) -> Verdict<Sent> {
        let connection = self.connection(place)?;
        let number = (connection.flows[place.end].sent.len() + ahead) as u64;
        Ok(Sent {
            label: connection.label(place.end, DIRECT, number),
            bytes,
            has_word,
            is_written: false,
        })
    }

    /// Notes what was posted.
    pub(crate) fn note(
        &mut self,
        place: EndPlace,
        ticket: Ticket,
        kind: Kind,
        sent: Option<Sent>,
    ) -> Verdict {
        let connection = self.connection(place)?;
        if let Some(at) = connection.ends[place.end].as_mut() {
            if let Some(last) = at.posted.back() {
                ensure(last.ticket < ticket, "ticket", || {
                    format!("{ticket:?} behind {:?}", last.ticket)
                })?;
            }
            at.posted.push_back(Posted { ticket, kind });
        }
        connection.flows[place.end].sent.extend(sent);
        Ok(())
    }

    /// Whether a request may be refused like this.
    pub(crate) fn refused(&self, kind: SendErrorKind) -> Verdict {
        let may_be = match kind {
            SendErrorKind::WouldBlock => true,
            SendErrorKind::Post(_) => self.excuses.posts,
            // It failed, and polling has not told yet.
            SendErrorKind::Refused(doorbell::provider::PushError::State(_)) => true,
            _ => false,
        };
        ensure(may_be, "refused", || kind.to_string())
    }

    pub(crate) fn send_one(&mut self, line: usize, end: usize, bytes: u16) -> Verdict {
        match self.place(line, end) {
            Some(place) => self.send(place, 1, bytes),
            None => Ok(()),
        }
    }

    /// A message of which its end is told once it is done.
    pub(crate) fn send_signaled(&mut self, line: usize, end: usize) -> Verdict {
        let Some(place) = self.place(line, end) else {
            return Ok(());
        };
        let bytes = bounded(64, place.bytes_max.min(self.capacity(place)));
        let sent = self.next(place, 0, bytes, false)?;
        let Some(lease) = self.lease(place, &sent.label.bytes(bytes)) else {
            return Ok(());
        };
        let posted = self.post(
            place,
            Operation::Send,
            lease,
            PostFlags::SIGNALED,
            Kind::Message,
            Some(sent),
        );
        posted.map(|_| ())
    }

    pub(crate) fn ring_one(&mut self, line: usize, end: usize) -> Verdict {
        match self.place(line, end) {
            Some(place) => self.write_ring(place, 1, 40, true),
            None => Ok(()),
        }
    }

    pub(crate) fn send(&mut self, place: EndPlace, count: u8, bytes: u16) -> Verdict {
        let bytes = bounded(bytes, place.bytes_max.min(self.capacity(place)));
        let has_cells = self.stations[place.host].workers[place.worker]
            .channel(place.id)
            .is_some_and(|channel| channel.cell_bytes() as usize >= bytes);
        let mut made = Vec::new();
        for ahead in 0..usize::from(count) {
            let sent = self.next(place, ahead, bytes, ahead % 2 == 1)?;
            // Some of them in turns with leases.
            let from = match sent.label.number % 4 {
                way @ (1 | 2) if has_cells => Source::Cell(way),
                _ => match self.lease(place, &sent.label.bytes(bytes)) {
                    Some(lease) => Source::Lease(lease),
                    None => break,
                },
            };
            made.push((sent, from));
        }
        if let [_] = &made[..] {
            let (sent, from) = made.remove(0);
            let Some(channel) = self.stations[place.host].workers[place.worker].channel(place.id) else {
                return Ok(());
            };
            let posted = match from {
                Source::Lease(lease) => channel.send_lease(lease).map_err(|error| error.kind),
                Source::Cell(1) => channel.send(&sent.label.bytes(bytes)),
                Source::Cell(_) => claimed(channel, &sent.label.bytes(bytes)),
            };
            return match posted {
                Ok(ticket) => self.note(place, ticket, Kind::Message, Some(sent)),
                Err(kind) => self.refused(kind),
            };
        }
        let mut staged = Vec::new();
        let mut unposted = Vec::new();
        let mut refused = None;
        {
            let Some(channel) = self.stations[place.host].workers[place.worker].channel(place.id) else {
                return Ok(());
            };
            let mut batch = channel.batch();
            for (index, (sent, from)) in made.into_iter().enumerate() {
                let operation = if sent.has_word {
                    Operation::SendWithImmediate(sent.label.immediate())
                } else {
                    Operation::Send
                };
                let flags = if index % 3 == 2 {
                    PostFlags::SIGNALED | PostFlags::SOLICITED
                } else {
                    PostFlags::empty()
                };
                let pushed = match from {
                    Source::Lease(lease) => batch
                        .push(operation, [lease], flags)
                        .map(|ticket| (ticket, true))
                        .map_err(|error| error.kind),
                    Source::Cell(_) => batch
                        .claim(bytes)
                        .and_then(|mut claim| {
                            claim.bytes().copy_from_slice(&sent.label.bytes(bytes));
                            claim.push(operation, flags)
                        })
                        .map(|ticket| (ticket, false)),
                };
                match pushed {
                    Ok((ticket, is_lease)) => staged.push((ticket, is_lease, sent)),
                    Err(kind) => {
                        refused = Some(kind);
                        break;
                    }
                }
            }
            if let Err(error) = batch.ring_returning(|ticket, _| unposted.push(ticket)) {
                // Nothing comes back of cells.
                let back = staged.split_off((error.posted as usize).min(staged.len()));
                let leases = back.iter().filter(|(_, is_lease, _)| *is_lease);
                let due: Vec<_> = leases.map(|(ticket, ..)| *ticket).collect();
                ensure(unposted == due, "refused", || {
                    format!("{unposted:?} came back of a doorbell, where {due:?} were not posted")
                })?;
                refused = Some(SendErrorKind::Post(error));
            }
        }
        for (ticket, _, sent) in staged {
            self.note(place, ticket, Kind::Message, Some(sent))?;
        }
        refused.map_or(Ok(()), |kind| self.refused(kind))
    }

    fn send_inline(&mut self, place: EndPlace, bytes: u16) -> Verdict {
        let Some(channel) = self.stations[place.host].workers[place.worker].channel(place.id) else {
            return Ok(());
        };
        let most = (channel.limits().inline_bytes_max as usize).min(place.bytes_max);
        if most < HEADER_BYTES {
            return Ok(());
        }
        let bytes = bounded(bytes, most);
        let sent = self.next(place, 0, bytes, false)?;
        let Some(channel) = self.stations[place.host].workers[place.worker].channel(place.id) else {
            return Ok(());
        };
        match channel.post_inline(Operation::Send, &sent.label.bytes(bytes)) {
            Ok(ticket) => self.note(place, ticket, Kind::Message, Some(sent)),
            Err(kind) => self.refused(kind),
        }
    }

    fn gather(&mut self, place: EndPlace, bytes: u16) -> Verdict {
        let bytes = bounded(bytes, place.bytes_max.min(3 * self.capacity(place)));
        let sent = self.next(place, 0, bytes, true)?;
        let all = sent.label.bytes(bytes);
        let third = bytes.div_ceil(3);
        let (first, rest) = all.split_at(third);
        let (second, last) = rest.split_at(third.min(rest.len()));
        let leases = [first, second, last].map(|part| self.lease(place, part));
        let [Some(a), Some(b), Some(c)] = leases else {
            return Ok(());
        };
        let Some(channel) = self.stations[place.host].workers[place.worker].channel(place.id) else {
            return Ok(());
        };
        let mut batch = channel.batch();
        let operation = Operation::SendWithImmediate(sent.label.immediate());
        match batch.push(operation, [a, b, c], PostFlags::SIGNALED) {
            Err(error) => {
                drop(batch);
                self.refused(error.kind)
            }
            Ok(ticket) => match batch.ring() {
                Ok(_) => self.note(place, ticket, Kind::Message, Some(sent)),
                Err(error) => self.refused(SendErrorKind::Post(error)),
            },
        }
    }

    fn abandon(&mut self, place: EndPlace, bytes: u16) -> Verdict {
        let bytes = bounded(bytes, place.bytes_max.min(self.capacity(place)));
        let sent = self.next(place, 0, bytes, false)?;
        let Some(lease) = self.lease(place, &sent.label.bytes(bytes)) else {
            return Ok(());
        };
        if let Some(channel) = self.stations[place.host].workers[place.worker].channel(place.id) {
            let mut batch = channel.batch();
            let pushed = batch.push(Operation::Send, [lease], PostFlags::empty());
            drop(batch);
            if let Err(error) = pushed {
                return self.refused(error.kind);
            }
        }
        Ok(())
    }

    fn submit(&mut self, place: EndPlace, bytes: u16) -> Verdict {
        let bytes = bounded(bytes, place.bytes_max.min(self.capacity(place)));
        let connection = self.connection(place)?;
        let number = connection.flows[place.end].submitted.len() as u64;
        let label = connection.label(place.end, SUBMITTED, number);
        let Some(submitter) = self.stations[place.host].submitters.get_mut(place.worker) else {
            return Ok(());
        };
        let Some(mut lease) = submitter.lease() else {
            return Ok(());
        };
        if lease.fill(&label.bytes(bytes)).is_err() {
            submitter.release(lease);
            return Ok(());
        }
        match submitter.send(place.id, lease) {
            Ok(()) => {
                let sent = Sent {
                    label,
                    bytes,
                    has_word: false,
                    is_written: false,
                };
                self.connection(place)?.flows[place.end].submitted.push(sent);
                Ok(())
            }
            Err(error) => {
                if let Some(lease) = error.lease {
                    submitter.release(lease);
                }
                ensure(error.kind == SubmitErrorKind::WouldBlock, "refused", || {
                    error.kind.to_string()
                })
            }
        }
    }

    /// The part of the peer's window that is this line's.
    fn remote(&mut self, place: EndPlace, offset: usize, bytes: usize) -> Option<RemoteAddress> {
        let there = self.lines[place.line].connection.as_ref()?.ends[1 - place.end]
            .as_ref()?
            .worker;
        let peer = self.case.lines[place.line].hosts[1 - place.end];
        let window = self.stations[peer].windows[there].remote();
        RemoteAddress::within(&window, (place.line * REGION_BYTES + offset) as u64, bytes as u64)
    }

    /// Posts one request with a lease.
    fn post(
        &mut self,
        place: EndPlace,
        operation: Operation,
        lease: Lease,
        flags: PostFlags,
        kind: Kind,
        sent: Option<Sent>,
    ) -> Verdict<bool> {
        let Some(channel) = self.stations[place.host].workers[place.worker].channel(place.id) else {
            return Ok(false);
        };
        match channel.post(operation, lease, flags) {
            Ok(ticket) => self.note(place, ticket, kind, sent).map(|()| true),
            Err(error) => self.refused(error.kind).map(|()| false),
        }
    }

    fn write(&mut self, place: EndPlace, bytes: u16, is_told: bool) -> Verdict {
        let bytes = bounded(bytes, CELL_BYTES.min(self.capacity(place)));
        // With rings, words tell of these.
        let is_told = is_told && self.case.lines[place.line].rings.is_none();
        let connection = self.connection(place)?;
        let number = connection.flows[place.end].writes;
        let cell = (number % CELLS as u64) as usize;
        let label = connection.label(place.end, WRITTEN, number);
        let Some(remote) = self.remote(place, CELLS_AT + cell * CELL_BYTES, bytes) else {
            return Ok(());
        };
        let Some(lease) = self.lease(place, &label.bytes(bytes)) else {
            return Ok(());
        };
        let mut told = self.next(place, 0, bytes, true)?;
        told.is_written = true;
        let (operation, told) = if is_told {
            (
                Operation::WriteWithImmediate(remote, told.label.immediate()),
                Some(told),
            )
        } else {
            (Operation::Write(remote), None)
        };
        let kind = Kind::Write {
            cell,
            number,
            bytes,
            is_told,
        };
        if self.post(place, operation, lease, PostFlags::empty(), kind, told)? {
            let flow = &mut self.connection(place)?.flows[place.end];
            flow.writes += 1;
            flow.cells[cell] = Some(number);
        }
        Ok(())
    }

    fn read(&mut self, place: EndPlace, bytes: u16, is_fenced: bool) -> Verdict {
        let bytes = bounded(bytes, RESTING_BYTES.min(self.capacity(place)));
        let Some(remote) = self.remote(place, RESTING_AT, bytes) else {
            return Ok(());
        };
        let Some(mut lease) = self.lease(place, &[]) else {
            return Ok(());
        };
        lease.set_len_bytes(bytes);
        let flags = if is_fenced {
            PostFlags::FENCE
        } else {
            PostFlags::empty()
        };
        let kind = Kind::Read {
            bytes,
            is_back: false,
        };
        self.post(place, Operation::Read(remote), lease, flags, kind, None)
            .map(|_| ())
    }

    /// An atomic: an addition of so much, or a swap of what must be there, to so much.
    fn count(&mut self, place: EndPlace, which: impl FnOnce(u64) -> (bool, u64)) -> Verdict {
        let Some(remote) = self.remote(place, COUNTER_AT, 8) else {
            return Ok(());
        };
        let Some(lease) = self.lease(place, &[]) else {
            return Ok(());
        };
        let expected = self.connection(place)?.flows[place.end].counter;
        let (operation, after) = match which(expected) {
            (true, add) => (Operation::FetchAndAdd { remote, add }, expected.wrapping_add(add)),
            (false, word) => {
                let is_right = word & 1 == 1;
                let swap = word >> 1;
                let compare = if is_right { expected } else { !expected };
                let after = if is_right { swap } else { expected };
                (
                    Operation::CompareAndSwap {
                        remote,
                        compare,
                        swap,
                    },
                    after,
                )
            }
        };
        let kind = Kind::Atomic {
            expected,
            is_back: false,
        };
        if self.post(place, operation, lease, PostFlags::empty(), kind, None)? {
            self.connection(place)?.flows[place.end].counter = after;
        }
        Ok(())
    }

    /// The Worker is taken apart, its halves are polled for a while, and it is put together again.
    fn split(&mut self, place: EndPlace) -> Verdict {
        let EndPlace { host, worker, .. } = place;
        let whole = self.stations[host].workers.remove(worker);
        let mut arena = doorbell::provider::ArenaConfig::new(16, whole.slot_bytes());
        arena.placement = Default::default();
        let (mut sending, mut receiving) = match whole.split(&arena) {
            Ok(halves) => halves,
            Err(refused) => {
                self.stations[host].workers.insert(worker, *refused.worker);
                return Ok(());
            }
        };
        let mut told: Vec<(Half, ChannelId, Event<'static, Host>)> = Vec::new();
        let mut polled = Ok(());
        for _ in 0..8 {
            self.fabric.run_for(Duration::from_micros(5));
            let received = self.panics.through(|panics| {
                receiving.poll(|mut turn, event| {
                    let id = turn.channel.id();
                    panics.hear(&mut turn, event, |event| told.push((Half::Receiving, id, event)));
                })
            });
            let both = received.and_then(|_| {
                self.panics.through(|panics| {
                    sending.poll(|mut turn, event| {
                        let id = turn.channel.id();
                        panics.hear(&mut turn, event, |event| told.push((Half::Sending, id, event)));
                    })
                })
            });
            polled = polled.and(both.map(|_| ()));
        }
        match sending.join(receiving) {
            Ok(whole) => self.stations[host].workers.insert(worker, whole),
            Err(error) => return Err(failure("join", error.to_string())),
        }
        // Each half reports an end once, by its own queue.
        let mut ended: Vec<(Half, ChannelId)> = Vec::new();
        for (half, id, event) in told {
            if matches!(event, Event::ChannelFailed { .. } | Event::PeerClosed { .. }) {
                let is_first_of_half = !ended.contains(&(half, id));
                let is_first = ended.iter().all(|(_, other)| *other != id);
                ended.push((half, id));
                if is_first_of_half && !is_first {
                    continue;
                }
            }
            self.hear(host, worker, id, event)?;
        }
        polled.or_else(|_| self.replace_worker(host, worker))
    }
}

/// The memory that a message goes out from.
enum Source {
    Lease(Lease),
    /// A cell, in one of the ways there are.
    Cell(u64),
}

/// Sends a message that is written in place, behind a claim that is dropped.
fn claimed(channel: &mut Channel<Host>, bytes: &[u8]) -> Result<Ticket, SendErrorKind> {
    let mut dropped = channel.claim(bytes.len())?;
    dropped.bytes().fill(0xee);
    drop(dropped);
    let mut claim = channel.claim(bytes.len())?;
    claim.bytes().copy_from_slice(bytes);
    claim.send()
}
