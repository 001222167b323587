//! Plans at work: what goes wrong, and when.

use core::net::IpAddr;

use doorbell_core::provider::{AsyncEvent, Operation};
use doorbell_core::{Gid, GidKind, IpPrefix, PortState};

use super::{DeviceId, World};
use crate::event::Event;
use crate::link::fault::{Fault, PortName, Verdict};
use crate::packet::PacketKind;
use crate::plan::{Action, Call, CallRule, Clause, End, Name, Plan, Step};
use crate::queue_pair::QueuePairKey;
use crate::requester::Request;

/// How long a packet waits to be overtaken at most.
const HOLD_NS: u64 = 10_000;

/// All that goes wrong.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) steps: Vec<Step>,
    packets: Vec<Fault>,
    /// Each with how many calls it has seen that it means.
    calls: Vec<(CallRule, u64)>,
    /// Between which ends nothing goes.
    cuts: Vec<(End, End)>,
    /// Counts the changes; zero as long as nothing ever went wrong.
    version: u64,
}

impl Faults {
    /// The rules about packets and calls that are in force.
    pub(super) fn rules(&self) -> impl Iterator<Item = Clause> {
        let packets = self
            .packets
            .iter()
            .map(|fault| Clause::Packets(fault.rule().clone()));
        packets.chain(self.calls.iter().map(|(rule, _)| Clause::Calls(rule.clone())))
    }

    /// Packets and calls go well from now on.
    fn calm(&mut self) {
        self.packets.clear();
        self.calls.clear();
        self.version = self.version.wrapping_add(1);
    }

    /// Marks that the faults round a link may have changed.
    pub(super) fn change(&mut self) {
        if self.version > 0 {
            self.version = self.version.wrapping_add(1);
        }
    }
}

impl World {
    /// Has go wrong what a plan says.
    pub(crate) fn follow(&mut self, plan: &Plan) {
        for clause in &plan.clauses {
            match clause {
                Clause::At(step) => {
                    let at_ns = self.began_ns.saturating_add(step.at_ns);
                    self.events
                        .push(at_ns, Event::Step(self.faults.steps.len(), true));
                    self.faults.steps.push(step.clone());
                }
                Clause::Packets(rule) => self.faults.packets.push(Fault::new(rule.clone())),
                Clause::Calls(rule) => self.faults.calls.push((rule.clone(), 0)),
            }
        }
        self.faults.version = self.faults.version.wrapping_add(1);
    }

    /// Begins or ends a step of the plan.
    pub(super) fn take_step(&mut self, step: usize, begins: bool) {
        let Some(found) = self.faults.steps.get(step).cloned() else {
            return;
        };
        // A cut strikes hosts that are added later, too.
        if begins && !matches!(found.action, Action::Link(.., false)) {
            self.report_unknown(&Clause::At(found.clone()));
        }
        let Step { action, lasts_ns, .. } = found;
        if !begins {
            if let Some(opposite) = action.opposite() {
                self.perform(&opposite);
            }
            return;
        }
        self.perform(&action);
        if let Some(span_ns) = lasts_ns {
            let ends_ns = self.now_ns.saturating_add(span_ns);
            self.events.push(ends_ns, Event::Step(step, false));
        }
    }

    /// Has something happen now.
    pub(crate) fn perform(&mut self, action: &Action) {
        self.record_action(action);
        self.moved = true;
        match action {
            Action::Link(a, b, up) => self.cut(a, b, !up),
            Action::Port(end, up) => self.set_port(end, *up),
            Action::Gid(end, old, new) => self.change_gid(end, *old, *new),
            Action::Kill(host) => self.kill(host),
            Action::Restart(host) => self.set_dead(host, false),
            Action::Pause(host, true) => self.each_host(host, |host| host.is_paused = true),
            Action::Pause(host, false) => self.resume(host),
            Action::Slow(host, each_ns) => self.each_host(host, |host| host.slow_ns = *each_ns),
            Action::Overrun(host) => self.overrun(host),
            Action::Clock(host, span_ns) => {
                self.each_host(host, |host| {
                    host.ahead_ns = host.ahead_ns.saturating_add(*span_ns)
                });
            }
            Action::Calm => {
                let rules: Vec<_> = self.faults.rules().collect();
                self.report_all_unknown(&rules);
                self.faults.calm();
            }
        }
    }

    /// Decides the fate of a packet of this kind on a link.
    pub(super) fn judge(&mut self, link: u32, kind: PacketKind) -> Verdict {
        let mut verdict = Verdict::default();
        if self.faults.version == 0 {
            return verdict;
        }
        self.refresh(link);
        let Some(link) = self.links.get_mut(link) else {
            return verdict;
        };
        for place in &link.faults {
            if let Some(fault) = self.faults.packets.get_mut(*place) {
                fault.pass(kind, &mut self.random, &mut verdict);
            }
        }
        verdict.is_lost |= link.is_cut;
        verdict
    }

    /// Whether a link carries nothing now.
    pub(super) fn is_cut(&mut self, link: u32) -> bool {
        if self.faults.version > 0 {
            self.refresh(link);
        }
        self.links.get_mut(link).is_none_or(|link| link.is_cut)
    }

    /// Looks again which faults are round a link, where that may have changed.
    fn refresh(&mut self, link: u32) {
        let version = self.faults.version;
        let Some([from, to]) = self
            .links
            .get_mut(link)
            .filter(|link| link.version != version)
            .map(|link| [link.from, link.to])
        else {
            return;
        };
        let (Some(from), Some(to)) = (self.name_of(from), self.name_of(to)) else {
            return;
        };
        let numbered = self.faults.packets.iter().enumerate();
        let faults = numbered.filter(|(_, fault)| fault.is_round(from, to));
        let faults = faults.map(|(place, _)| place).collect();
        let is_between = |(a, b): &(End, End)| (from.is(a) && to.is(b)) || (from.is(b) && to.is(a));
        let is_dead = |name: PortName<'_>| {
            let mut named = self.hosts.iter().filter(|host| host.name == name.host);
            named.any(|host| host.is_dead)
        };
        let is_cut = self.faults.cuts.iter().any(is_between) || is_dead(from) || is_dead(to);
        if let Some(link) = self.links.get_mut(link) {
            (link.faults, link.is_cut, link.version) = (faults, is_cut, version);
        }
    }

    pub(super) fn name_of(&self, port: u32) -> Option<PortName<'_>> {
        let place = self.port_at(port)?;
        let host = self.device(place.device)?.host;
        Some(PortName {
            host: &self.hosts.get(host.0)?.name,
            device: &place.report.device,
            port: place.report.port,
        })
    }

    /// Keeps what is to come in back until the next of its link has come, or for a while. Says whether
    /// it does: only one is kept at a time.
    fn hold(&mut self, link: u32, coming: Event, at_ns: u64) -> bool {
        let Some(found) = self.links.get_mut(link).filter(|link| link.held.is_none()) else {
            return false;
        };
        found.held = Some(coming);
        found.holds = found.holds.wrapping_add(1);
        let release = Event::Release(link, found.holds);
        self.events.push(at_ns.saturating_add(HOLD_NS), release);
        true
    }

    /// Has come in at the end of a link what was sent over it, in the order that the verdict says.
    pub(super) fn pass_on(&mut self, link: u32, verdict: Verdict, coming: Event, at_ns: u64) {
        if verdict.is_overtaken && self.hold(link, coming, at_ns) {
            return;
        }
        self.come(coming, at_ns);
        if let Some(held) = self.links.get_mut(link).and_then(|link| link.held.take()) {
            self.come(held, at_ns);
        }
    }

    /// Lets go on what was not overtaken.
    pub(super) fn release(&mut self, link: u32, hold: u32) {
        let Some(link) = self.links.get_mut(link).filter(|link| link.holds == hold) else {
            return;
        };
        if let Some(held) = link.held.take() {
            self.come(held, self.now_ns);
        }
    }

    /// Has something come in at a port.
    pub(super) fn come(&mut self, coming: Event, at_ns: u64) {
        match coming {
            Event::Arrive(packet, port) => self.deliver(packet, port, at_ns),
            _ => self.events.push(at_ns, coming),
        }
    }

    /// Whether a call that posts these requests is refused: after how many, and with which
    /// error number.
    pub(super) fn judge_post(&mut self, device: DeviceId, staged: &[Request]) -> Option<(usize, i32)> {
        if self.faults.calls.is_empty() || staged.is_empty() {
            return None;
        }
        let is_of = |kind| staged.iter().any(|request| kind_of(request.operation) == kind);
        let refused = self.judge_call(device, |call| match call {
            Call::Post(kind) => kind.is_none_or(is_of),
            Call::UnclearPost => true,
            Call::ReceivePost | Call::Shut | Call::Registration | Call::Deregistration => false,
        });
        let taken = self.part_of(staged.len());
        refused.map(|(call, errno)| match call {
            Call::UnclearPost => (staged.len(), errno),
            _ => (taken, errno),
        })
    }

    /// Whether a call that posts so many receives is refused: after how many, and with which error number.
    pub(super) fn judge_receive_post(&mut self, device: DeviceId, staged: usize) -> Option<(usize, i32)> {
        if self.faults.calls.is_empty() || staged == 0 {
            return None;
        }
        let (_, errno) = self.judge_call(device, |call| call == Call::ReceivePost)?;
        Some((self.part_of(staged), errno))
    }

    /// How many of so many requests a device takes that refuses a post of them.
    fn part_of(&mut self, staged: usize) -> usize {
        let taken = self.random.below(staged as u64);
        usize::try_from(taken).unwrap_or_default()
    }

    /// Whether a call that fails a queue pair is refused: with which error number.
    pub(crate) fn judge_shut(&mut self, device: DeviceId) -> Option<i32> {
        let refused = self.judge_call(device, |call| call == Call::Shut);
        refused.map(|(_, errno)| errno)
    }

    /// Whether the registration of a window's memory is refused: with which error number.
    pub(crate) fn judge_registration(&mut self, device: DeviceId) -> Option<i32> {
        let refused = self.judge_call(device, |call| call == Call::Registration);
        refused.map(|(_, errno)| errno)
    }

    /// Whether the deregistration of a window's memory is refused: with which error number.
    pub(crate) fn judge_deregistration(&mut self, device: DeviceId) -> Option<i32> {
        let refused = self.judge_call(device, |call| call == Call::Deregistration);
        refused.map(|(_, errno)| errno)
    }

    /// The first rule for such calls that strikes this one.
    fn judge_call(&mut self, device: DeviceId, is_such: impl Fn(Call) -> bool) -> Option<(Call, i32)> {
        let host = self.device(device)?.host;
        let host = &self.hosts.get(host.0)?.name;
        let mut refused = None;
        let rules = self.faults.calls.iter_mut();
        for (rule, seen) in rules.filter(|(rule, _)| rule.host.means(host) && is_such(rule.call)) {
            *seen = seen.saturating_add(1);
            if rule.which.strikes(*seen, &mut self.random) {
                refused = refused.or(Some((rule.call, rule.errno)));
            }
        }
        refused
    }

    fn each_host(&mut self, name: &Name, each: impl Fn(&mut super::HostState)) {
        let named = self.hosts.iter_mut().filter(|host| name.means(&host.name));
        named.for_each(each);
    }

    /// Every device of these hosts.
    fn devices_of(&self, name: &Name) -> Vec<DeviceId> {
        let all = (0..).map(DeviceId).zip(&self.devices);
        let is_named = |host: usize| self.hosts.get(host).is_some_and(|host| name.means(&host.name));
        let named = all.filter(|(_, device)| is_named(device.host.0));
        named.map(|(id, _)| id).collect()
    }

    /// Raises an event at every open handle of a device.
    fn raise_at(&mut self, device: DeviceId, event: AsyncEvent) {
        let open = self
            .contexts
            .iter()
            .filter(|(_, context)| context.device == device);
        let keys: Vec<_> = open.map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.raise(key, event));
    }

    fn cut(&mut self, a: &End, b: &End, is_cut: bool) {
        let cuts = &mut self.faults.cuts;
        let known = cuts.iter().position(|cut| (&cut.0, &cut.1) == (a, b));
        match (known, is_cut) {
            (None, true) => cuts.push((a.clone(), b.clone())),
            (Some(place), false) => {
                cuts.remove(place);
            }
            _ => (),
        }
        self.faults.version = self.faults.version.wrapping_add(1);
    }

    /// The places of the ports that an end means.
    fn ports_at(&self, end: &End) -> Vec<u32> {
        // There is no memory for 2^32 ports.
        let all = 0..u32::try_from(self.ports.len()).unwrap_or(u32::MAX);
        all.filter(|port| self.name_of(*port).is_some_and(|name| name.is(end)))
            .collect()
    }

    fn set_port(&mut self, end: &End, up: bool) {
        for port in self.ports_at(end) {
            let Some(place) = self.ports.get_mut(port as usize) else {
                continue;
            };
            let state = if up { PortState::ACTIVE } else { PortState::DOWN };
            if place.report.state == state {
                continue;
            }
            place.report.state = state;
            let (device, number) = (place.device, place.report.port);
            self.topology = self.topology.wrapping_add(1);
            let event = if up {
                AsyncEvent::PortActive
            } else {
                AsyncEvent::PortError
            };
            self.raise_at(device, event(number));
        }
    }

    /// Gives ports another address in the place of one they have. One that another port has is
    /// not given.
    fn change_gid(&mut self, end: &End, old: IpAddr, new: IpAddr) {
        let (old, gid) = (Gid::from_ip(old), Gid::from_ip(new));
        for port in self.ports_at(end) {
            let Some(place) = self
                .ports
                .get_mut(port as usize)
                .filter(|_| !self.gids.contains_key(&gid))
            else {
                continue;
            };
            let Some(entry) = place.report.gids.iter_mut().find(|entry| entry.gid == old) else {
                continue;
            };
            let kind = match (entry.kind, new) {
                (GidKind::RoceV2Ipv4 | GidKind::RoceV2Ipv6, IpAddr::V4(_)) => GidKind::RoceV2Ipv4,
                (GidKind::RoceV2Ipv4 | GidKind::RoceV2Ipv6, IpAddr::V6(_)) => GidKind::RoceV2Ipv6,
                (kind, _) => kind,
            };
            // As narrow as the one before, where that is of the same family.
            let bits = entry
                .address
                .filter(|_| kind == entry.kind)
                .map(|prefix| prefix.prefix_bits());
            let bits = bits.unwrap_or(if new.is_ipv4() { 24 } else { 64 });
            (entry.gid, entry.kind, entry.address) = (gid, kind, IpPrefix::new(new, bits).ok());
            let (device, number) = (place.device, place.report.port);
            self.gids.remove(&old);
            self.gids.insert(gid, port);
            self.topology = self.topology.wrapping_add(1);
            self.raise_at(device, AsyncEvent::GidChange(number));
        }
    }

    fn set_dead(&mut self, name: &Name, is_dead: bool) {
        self.each_host(name, |host| host.is_dead = is_dead);
        self.faults.version = self.faults.version.wrapping_add(1);
    }

    fn kill(&mut self, name: &Name) {
        self.set_dead(name, true);
        for device in self.devices_of(name) {
            let on_it = self.queue_pairs.iter().filter(|(_, qp)| qp.device == device);
            let keys: Vec<QueuePairKey> = on_it.map(|(key, _)| key).collect();
            self.failing.extend(keys);
            self.raise_at(device, AsyncEvent::DeviceFatal);
        }
        let is_named: Vec<bool> = self.hosts.iter().map(|host| name.means(&host.name)).collect();
        self.kill_streams(|host| is_named.get(host.0) == Some(&true));
        self.fail_pending();
    }

    fn resume(&mut self, name: &Name) {
        let mut waiting = Vec::new();
        for host in self.hosts.iter_mut().filter(|host| name.means(&host.name)) {
            host.is_paused = false;
            waiting.append(&mut host.waiting);
        }
        for event in waiting {
            match event {
                Event::Timer(key) => self.arm(key),
                _ => self.events.push(self.now_ns, event),
            }
        }
    }

    fn overrun(&mut self, name: &Name) {
        let devices = self.devices_of(name);
        let contexts = &self.contexts;
        for queue in self.completion_queues.iter_mut() {
            let context = contexts.get(queue.context());
            queue.overruns_next |= context.is_some_and(|context| devices.contains(&context.device));
        }
    }

    /// Puts off what is to happen at a host that stands still.
    pub(super) fn is_put_off(&mut self, event: Event) -> bool {
        let device = match event {
            Event::Arrive(_, port) => self.port_at(port).map(|place| place.device),
            Event::Segment(_, port) => self.port_at(port).map(|place| place.device),
            Event::Transmit(key) | Event::Timer(key) => self.queue_pairs.get(key).map(|qp| qp.device),
            Event::StreamTimer(..) | Event::Release(..) | Event::Step(..) => None,
        };
        let host = match event {
            Event::StreamTimer(key, _) => self.streams.ends.get(key).map(|end| end.host.0),
            _ => device
                .and_then(|device| self.device(device))
                .map(|device| device.host.0),
        };
        let host = host.and_then(|host| self.hosts.get_mut(host));
        let Some(host) = host.filter(|host| host.is_paused) else {
            return false;
        };
        host.waiting.push(event);
        true
    }
}

/// Returns the kind that the packets of a request have in a plan.
const fn kind_of(operation: Operation) -> PacketKind {
    match operation {
        Operation::Send | Operation::SendWithImmediate(_) => PacketKind::Send,
        Operation::Write(_) | Operation::WriteWithImmediate(..) => PacketKind::Write,
        Operation::Read(_) => PacketKind::Read,
        Operation::FetchAndAdd { .. } | Operation::CompareAndSwap { .. } => PacketKind::Atomic,
    }
}
