//! Datagrams beside the lines: an office in each subnet of a host sends and takes them, over the traits alone.
//!
//! While faults last, no datagram is promised to arrive. A datagram that arrives is whole and was sent by the sender
//! that it names. It arrives no more often and in no other order than faults explain.
//!
//! Each request ends. Once faults have stopped, every datagram to a posted receive arrives.

use std::collections::VecDeque;

use anyhow::Result;
use doorbell::provider::{
    AddressVector, Arena as _, ArenaConfig, Completion as _, CompletionQueue as _, CompletionQueueConfig,
    Context as _, DatagramBatch as _, DatagramConfig, DatagramPairParts, DatagramQueuePair as _,
    DatagramReceiveBatch as _, DatagramReceiveQueue as _, DatagramSendQueue as _, Destination, Gid,
    LentCompletion as _, PostError, ProtectionDomain as _, Provider, Psn, Qkey, Qpn, Slot as _,
};
use doorbell::{PostFlags, Ticket, WcStatus};
use doorbell_sim::Host;

use crate::bounds::datagrams_ns;
use crate::case::HostCase;
use crate::failure::{Verdict, ensure, failure};
use crate::line::bounded;
use crate::pattern::{DATAGRAM, HEADER_BYTES, Label};
use crate::run::Run;
use crate::station::common_subnet;

const KEY: Qkey = Qkey::from_low_bits(0x1122_3344);
const DEPTH: u32 = 8;
const SLOTS: u32 = 24;
const ADDRESSES: u32 = 4;
/// As many address handles are there as may be.
const ENOBUFS: i32 = 105;
/// Datagrams that each end sends once faults have stopped: no more than there are receives.
const LAST: u8 = 3;

/// The queue pair of a host for datagrams in one subnet, with its queues and memory.
pub(crate) struct Office {
    control: <Host as Provider>::DatagramQueuePair,
    send: <Host as Provider>::DatagramSendQueue,
    receive: <Host as Provider>::DatagramReceiveQueue,
    send_completions: <Host as Provider>::CompletionQueue,
    receive_completions: <Host as Provider>::CompletionQueue,
    arena: <Host as Provider>::Arena,
    context: <Host as Provider>::Context,
    /// The requests that were posted and have not ended.
    posted: VecDeque<Ticket>,
    /// It is of no further use.
    has_failed: bool,
}

/// Datagrams from one end of a line to the other.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    /// The bytes of each.
    sent: Vec<usize>,
    /// How often each came.
    came: Vec<u32>,
    /// The highest number that arrived.
    newest: Option<usize>,
}

/// A datagram that came.
struct Arrived {
    source: Qpn,
    source_gid: Option<Gid>,
    bytes: Vec<u8>,
}

impl Office {
    pub(crate) fn new(host: &Host, case: &HostCase, subnet: usize) -> Result<Self> {
        let context = host.open(&format!("sim{subnet}"))?;
        let domain = context.protection_domain()?;
        let queue = || {
            context.completion_queue(&CompletionQueueConfig {
                depth: 2 * DEPTH,
                notify: false,
            })
        };
        let (send_completions, receive_completions) = (queue()?, queue()?);
        let config = DatagramConfig {
            channel: 1,
            send_depth: DEPTH,
            receive_depth: DEPTH,
            gather_max: 2,
            inline_bytes_max: 0,
            addresses_max: ADDRESSES,
        };
        let parts = domain.datagram_queue_pair(&send_completions, &receive_completions, &config)?;
        let DatagramPairParts {
            mut control,
            send,
            receive,
        } = parts;
        control.initialize(1, KEY)?;
        control.ready_to_receive()?;
        control.ready_to_send(Psn::from_low_bits(0))?;
        let arena = domain.arena(&ArenaConfig::new(SLOTS, case.slot_bytes))?;
        Ok(Self {
            control,
            send,
            receive,
            send_completions,
            receive_completions,
            arena,
            context,
            posted: VecDeque::new(),
            has_failed: false,
        })
    }

    /// Its number, and the address its port has now.
    fn address(&self) -> Option<(Qpn, Gid, u8)> {
        let port = self.context.port(1).ok()?;
        let entry = port.usable_gids().next()?;
        Some((self.control.qpn(), entry.gid, u8::try_from(entry.index).ok()?))
    }

    /// Posts as many receives as may be; memory for what is sent is left.
    fn post_receives(&mut self) -> Result<(), PostError> {
        let room = self.receive.room();
        if room == 0 {
            return Ok(());
        }
        let mut batch = self.receive.stage();
        for _ in 0..room {
            let Some(slot) = self.arena.lease() else { break };
            if batch.push(slot).is_err() {
                break;
            }
        }
        if batch.staged() == 0 {
            return Ok(());
        }
        batch.ring().map(|_| ())
    }

    /// Sends these; says how many of them were posted.
    fn send(&mut self, to: (Qpn, Gid), messages: &[Vec<u8>]) -> Result<usize, i32> {
        let Some((_, _, source_gid_index)) = self.address().filter(|_| !self.has_failed) else {
            return Ok(0);
        };
        let vector = AddressVector {
            destination: to.1,
            source_gid_index,
            port: 1,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            service_level: 0,
        };
        let address = self.send.address_handle(&vector).map_err(|error| error.errno)?;
        let to = Destination {
            address,
            qpn: to.0,
            qkey: KEY,
        };
        let count = messages.len().min(self.send.room() as usize);
        let mut batch = self.send.stage();
        let mut tickets = Vec::new();
        for (index, bytes) in messages[..count].iter().enumerate() {
            let (first, second) = bytes.split_at(bytes.len().min(HEADER_BYTES));
            let slots = [first, second].map(|part| {
                let mut slot = self.arena.lease()?;
                slot.buffer_mut().get_mut(..part.len())?.copy_from_slice(part);
                slot.set_len_bytes(part.len());
                Some(slot)
            });
            let [Some(first), Some(second)] = slots else { break };
            let flags = if index + 1 == count {
                PostFlags::SIGNALED
            } else {
                PostFlags::empty()
            };
            match batch.push(to, [first, second], flags) {
                Ok(ticket) => tickets.push(ticket),
                // It has failed.
                Err(_) => break,
            }
        }
        let mut unposted = Vec::new();
        let _ = batch.ring_returning(|ticket, _| unposted.push(ticket));
        tickets.retain(|ticket| !unposted.contains(ticket));
        self.posted.extend(&tickets);
        // Its place is free again once these have ended.
        self.send.release(address);
        Ok(tickets.len())
    }

    /// Returns the statuses of failed completions, and the datagrams that arrived.
    fn poll(&mut self) -> Verdict<(Vec<WcStatus>, Vec<Arrived>)> {
        let (mut failed, mut arrived) = (Vec::new(), Vec::new());
        let mut ended = Vec::new();
        let polled = self
            .send_completions
            .poll(|completion| ended.push(completion.keep()));
        for completion in ended {
            let retired = self.send.retire(completion.lend(), |_, slot| drop(slot));
            let retired = retired.map_err(|error| failure("rejected", format!("{error:?}")))?;
            ensure(self.posted.front() == Some(&retired.first), "told", || {
                format!("{retired:?} where {:?} was due", self.posted.front())
            })?;
            self.posted.retain(|ticket| *ticket > retired.last);
            if !retired.status.is_success() {
                failed.push(retired.status);
            }
        }
        let mut ended = Vec::new();
        let also = self
            .receive_completions
            .poll(|completion| ended.push(completion.keep()));
        for completion in ended {
            let mut bytes = Vec::new();
            let retired = self.receive.retire(completion.lend(), |_, slot| {
                bytes.extend_from_slice(slot.payload())
            });
            let came = retired.map_err(|error| failure("rejected", format!("{error:?}")))?;
            if came.arrival.status.is_success() {
                arrived.push(Arrived {
                    source: came.source_qpn,
                    source_gid: came.grh.map(|grh| grh.source),
                    bytes,
                });
            } else {
                failed.push(came.arrival.status);
            }
        }
        self.has_failed |= !failed.is_empty() || polled.is_err() || also.is_err();
        Ok((failed, arrived))
    }
}

impl Mail {
    /// The n-th came, so often may it, and overtaken by others or not.
    fn hear(&mut self, number: usize, doubles: bool, overtakes: bool) -> Verdict {
        self.came.resize(self.sent.len(), 0);
        self.came[number] += 1;
        ensure(self.came[number] == 1 || doubles, "twice", || {
            format!("datagram {number} came again")
        })?;
        let is_next = self.newest.is_none_or(|newest| newest <= number);
        ensure(is_next || overtakes, "order", || {
            format!("datagram {number} came behind {:?}", self.newest)
        })?;
        self.newest = self.newest.max(Some(number));
        Ok(())
    }
}

impl Run<'_> {
    /// The subnet in which a line's datagrams go, where both its hosts have an office.
    fn subnet(&self, line: usize) -> Option<usize> {
        let hosts = self.case.lines[line].hosts;
        let subnet = common_subnet(self.case, hosts)?;
        let is_there = |host: &usize| self.stations[*host].offices[subnet].is_some();
        hosts.iter().all(is_there).then_some(subnet)
    }

    /// Sends datagrams from an end of a line to the other, as far as there is room for them.
    pub(crate) fn mail(&mut self, line: usize, end: usize, count: u8, bytes: u16) -> Verdict {
        let Some(subnet) = self.subnet(line) else {
            return Ok(());
        };
        let hosts = self.case.lines[line].hosts;
        let there = self.stations[hosts[1 - end]].offices[subnet].as_ref();
        let Some((qpn, gid, _)) = there.and_then(Office::address) else {
            return Ok(());
        };
        let case = &self.case.hosts[hosts[end]];
        let bytes = bounded(bytes, HEADER_BYTES + case.slot_bytes as usize);
        let mail = &mut self.mails[line][end];
        let messages: Vec<_> = (mail.sent.len()..mail.sent.len() + usize::from(count))
            .map(|number| label(line, end, number).bytes(bytes))
            .collect();
        let Some(office) = self.stations[hosts[end]].offices[subnet].as_mut() else {
            return Ok(());
        };
        match office.send((qpn, gid), &messages) {
            Ok(posted) => {
                mail.sent.extend(core::iter::repeat_n(bytes, posted));
                Ok(())
            }
            Err(errno) => {
                let may_be = errno == ENOBUFS || self.excuses.ports || self.excuses.kills;
                ensure(may_be, "address", || format!("errno {errno}"))
            }
        }
    }

    /// A host does what falls to it with its datagrams.
    pub(crate) fn tend_offices(&mut self, host: usize) -> Verdict {
        for subnet in 0..2 {
            let Some(office) = self.stations[host].offices[subnet].as_mut() else {
                continue;
            };
            let (failed, arrived) = office.poll()?;
            if !office.has_failed {
                let posted = office.post_receives();
                ensure(posted.is_ok() || self.excuses.receives, "refused", || {
                    format!("{posted:?}")
                })?;
            }
            for arrived in arrived {
                self.hear_mail(host, subnet, &arrived)?;
            }
            for status in failed {
                self.excuse_office((host, subnet), status)?;
            }
        }
        Ok(())
    }

    /// Whether a datagram was sent to an office that is longer than its receives, and the device fails for that.
    fn is_receive_short(&self, host: usize, subnet: usize) -> bool {
        let slot_bytes = self.case.hosts[host].slot_bytes as usize;
        let is_to = |line: usize, end: usize| {
            self.case.lines[line].hosts[1 - end] == host && self.subnet(line) == Some(subnet)
        };
        let mails = self.mails.iter().enumerate();
        let mut all = mails.flat_map(|(line, mails)| (0..2).map(move |end| (line, end, &mails[end])));
        self.case.device.quirks().short_datagrams_fail
            && all.any(|(line, end, mail)| {
                is_to(line, end) && mail.sent.iter().any(|bytes| *bytes > slot_bytes)
            })
    }

    /// Why an office may be of no further use.
    fn excuse_office(&mut self, (host, subnet): (usize, usize), status: WcStatus) -> Verdict {
        let now_ns = self.fabric.now().to_ns();
        self.trace.note(now_ns, host, format_args!("datagrams: {status}"));
        let is_short = self.is_receive_short(host, subnet);
        let may_be = if status.is_flush() {
            is_short || self.excuses.kills || self.excuses.overruns
        } else {
            is_short && status == self.case.device.quirks().short_receive
        };
        ensure(may_be, "excuse", || {
            format!("datagrams of h{host} ended with {status}")
        })
    }

    fn hear_mail(&mut self, host: usize, subnet: usize, arrived: &Arrived) -> Verdict {
        let now_ns = self.fabric.now().to_ns();
        let found = Label::of(&arrived.bytes);
        self.trace
            .note(now_ns, host, format_args!("a datagram: {found:?}"));
        self.messages += 1;
        let found = found.ok_or_else(|| failure("made up", "a datagram that nobody sent"))?;
        let (line, end) = (found.connection as usize, usize::from(found.end));
        let is_its =
            self.case.lines.get(line).is_some_and(|case| {
                end < 2 && case.hosts[1 - end] == host && self.subnet(line) == Some(subnet)
            });
        let number = found.number as usize;
        ensure(
            is_its && found.stream == DATAGRAM && number < self.mails[line][end].sent.len(),
            "made up",
            || format!("{found:?} came to h{host}"),
        )?;
        let due = self.mails[line][end].sent[number];
        ensure(
            label(line, end, number).bytes(due) == arrived.bytes,
            "torn",
            || format!("{} bytes of {found:?}", arrived.bytes.len()),
        )?;
        let from = self.case.lines[line].hosts[end];
        let mtu_bytes = usize::from(self.case.hosts[from].mtu_bytes);
        ensure(due <= mtu_bytes, "mtu", || {
            format!("{due} bytes in one packet of {mtu_bytes}")
        })?;
        // An office that is made anew has another number, and an address may change.
        if let Some((qpn, gid, _)) = self.stations[from].offices[subnet]
            .as_ref()
            .and_then(Office::address)
        {
            let has_sent = arrived.source == qpn || self.may_remake();
            let is_from = arrived.source_gid == Some(gid) || self.excuses.ports;
            ensure(has_sent && is_from, "source", || {
                format!("{found:?} is of {:?}, {:?}", arrived.source, arrived.source_gid)
            })?;
        }
        let (doubles, overtakes) = (self.excuses.doubles, self.excuses.overtakes);
        self.mails[line][end].hear(number, doubles, overtakes)
    }

    /// Whether an office may be made anew as faults stop.
    fn may_remake(&self) -> bool {
        let excuses = self.excuses;
        let mut hosts = 0..self.case.hosts.len();
        let is_short = hosts.any(|host| (0..2).any(|subnet| self.is_receive_short(host, subnet)));
        excuses.posts || excuses.kills || excuses.overruns || is_short
    }

    /// Once faults have stopped, what either end of a line sends to posted receives comes.
    pub(crate) fn correspond(&mut self) -> Verdict {
        let within_ns = datagrams_ns(self.case);
        self.until_within(within_ns, "liveness", "a datagram did not leave", |run| {
            let mut offices = run
                .stations
                .iter()
                .flat_map(|station| station.offices.iter().flatten());
            run.may_remake() || offices.all(|office| office.posted.is_empty())
        })?;
        // A new office replaces receives and requests that were lost.
        if self.may_remake() {
            self.remake_offices()?;
        }
        for line in 0..self.lines.len() {
            for end in 0..2 {
                let Some(subnet) = self.subnet(line) else {
                    continue;
                };
                let hosts = self.case.lines[line].hosts;
                let before = self.mails[line][end].sent.len();
                self.until_within(
                    within_ns,
                    "liveness",
                    "there are no receives for datagrams",
                    |run| {
                        let office = run.stations[hosts[1 - end]].offices[subnet].as_ref();
                        office.is_none_or(|office| office.receive.in_flight() == DEPTH)
                    },
                )?;
                self.mail(line, end, LAST, 64)?;
                let mail = &self.mails[line][end];
                ensure(mail.sent.len() == before + usize::from(LAST), "liveness", || {
                    format!("line {line} end {end} cannot send datagrams")
                })?;
                self.until_within(within_ns, "lost", "a datagram did not come", |run| {
                    let mail = &run.mails[line][end];
                    mail.came.len() == mail.sent.len() && mail.came[before..].iter().all(|came| *came == 1)
                })?;
            }
        }
        Ok(())
    }

    fn remake_offices(&mut self) -> Verdict {
        for (station, case) in self.stations.iter_mut().zip(&self.case.hosts) {
            for (subnet, office) in station.offices.iter_mut().enumerate() {
                if office.is_some() {
                    let made = Office::new(&station.host, case, subnet);
                    *office = Some(made.map_err(|error| failure("set-up", format!("{error:#}")))?);
                }
            }
        }
        Ok(())
    }

    /// All memory of the offices is home but what is posted, and no completion was of nobody.
    pub(crate) fn close_offices(&mut self) -> Verdict {
        for (number, station) in self.stations.iter_mut().enumerate() {
            for office in station.offices.iter_mut().filter_map(Option::take) {
                let Office {
                    control,
                    send,
                    receive,
                    mut arena,
                    ..
                } = office;
                let rejected = send.rejected() + receive.rejected();
                ensure(rejected == 0, "rejected", || {
                    format!("datagrams of h{number}: {rejected} completions were rejected")
                })?;
                drop((control, send, receive));
                let leases: Vec<_> = core::iter::from_fn(|| arena.lease()).collect();
                ensure(leases.len() == SLOTS as usize, "conserved", || {
                    format!(
                        "datagrams of h{number}: {} of {SLOTS} slots are home",
                        leases.len()
                    )
                })?;
            }
        }
        Ok(())
    }
}

fn label(line: usize, end: usize, number: usize) -> Label {
    Label {
        connection: line as u32,
        end: end as u8,
        stream: DATAGRAM,
        number: number as u64,
    }
}
