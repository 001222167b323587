//! Two processes with links, on two hosts with one rail or several.

use core::net::{Ipv6Addr, SocketAddr};
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;

use doorbell::link::{
    FinalReason, LinkConfig, LinkEvent, LinkId, Links, LoanId, PushRefusal, Request, RequestEnd, RequestId,
    RequestRefusal, SessionEvent, TransferEvent, TransferId,
};
use doorbell::provider::{Clock as _, Instant, MemoryError};
use doorbell::worker::Classes;
use doorbell::{
    Deadline, Event, Handle, KeyRing, Node, Notify, RemoteAccess, Trust, Turn, Wait, Woken, Worker,
    WorkerConfig,
};
use doorbell_sim::{Fabric, Host, LinkConfig as Wire, PortConfig, Quirks};

use crate::fabric::{key, port, small};

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
pub(crate) const PORT: u16 = 7000;
/// The name of the key that every process has as it starts, by the id 1.
pub(crate) const SECRET: &str = "secret";
pub(crate) const LATENCY: Duration = Duration::from_micros(50);

/// The error number that a device gave.
pub(crate) fn errno_of(error: MemoryError) -> i32 {
    match error {
        MemoryError::Provider(error) => error.errno,
        other => panic!("{other}"),
    }
}

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn config() -> LinkConfig {
    let mut config = LinkConfig::default();
    let channel = config.channel;
    config.channel = small();
    (config.channel.timeout, config.channel.retry_count) = (channel.timeout, channel.retry_count);
    config.channel.handshake_stage = channel.handshake_stage;
    config.channel.remote = RemoteAccess::ALL;
    config.session.fragment_bytes = 2048;
    config.retained = 64;
    config.ahead = 64;
    config.message_bytes_max = 100_000;
    config
}

/// A report to a process beside messages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Aside {
    Granted(u32, u64, RemoteAccess),
    Withdrawn(u32),
    /// How a request ended, and what it fetched.
    Ended(RequestId, RequestEnd, Vec<u8>),
    Transfer(TransferId, TransferEvent),
    Revoked(LoanId),
    /// A loan that our device did not register, with its error number.
    NotLent(LoanId, i32),
    /// A loan that our device did not deregister, with its error number.
    NotRevoked(LoanId, i32),
}

/// A report about another link than that of a process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    Message(Vec<u8>),
    /// A request has its end.
    Request(RequestId),
    End(FinalReason),
}

/// The callback of a process.
type Each<'e> = dyn FnMut(LinkId, LinkEvent<'_>) + 'e;

/// A process: what it has, and what it has seen.
pub(crate) struct Process {
    pub(crate) links: Links<Host, Host>,
    pub(crate) workers: Vec<Worker<Host>>,
    pub(crate) node: Arc<Node<Host, Host>>,
    pub(crate) handle: Option<Handle>,
    /// The one link it has, once it has.
    pub(crate) link: Option<LinkId>,
    pub(crate) events: Vec<(Instant, SessionEvent)>,
    pub(crate) sent: u64,
    pub(crate) delivered: u64,
    /// The messages that have no end yet, by their last fragment.
    open: std::collections::VecDeque<u64>,
    pub(crate) done: u64,
    pub(crate) unknown: u64,
    pub(crate) over: Option<FinalReason>,
    /// Reports beside messages that nobody has looked at yet.
    pub(crate) asides: Vec<Aside>,
    /// Reports about other links than its own, if it may have some.
    pub(crate) beside: Option<Vec<Beside>>,
    pub(crate) is_stopped: bool,
    /// The bytes of each message it sends.
    pub(crate) message_bytes: usize,
    /// Its callback panics at every nth event, and it polls again.
    pub(crate) panics_every: Option<u32>,
    told: u32,
    pub(crate) panics: u32,
}

/// The message of this number: its number, and bytes that follow from it.
fn message(number: u64, bytes: usize) -> Vec<u8> {
    let mut message = number.to_be_bytes().to_vec();
    for run in 1..=bytes / 7 {
        let end = bytes.min((run + 1) * 7);
        message.resize(end.max(8), (number as usize).wrapping_add(run) as u8);
    }
    message
}

impl Process {
    pub(crate) fn on(host: &Host, config: &LinkConfig, listens: bool) -> Self {
        Self::between(host, host, config, listens)
    }

    /// With the devices of one host, and the streams of another: what it says of its rails is not where its streams come from.
    pub(crate) fn between(devices: &Host, streams: &Host, config: &LinkConfig, listens: bool) -> Self {
        Self::made((devices, streams), config, listens, None)
    }

    /// One that connects, by Workers of these classes.
    pub(crate) fn in_classes(host: &Host, config: &LinkConfig, classes: Option<Classes>) -> Self {
        Self::made((host, host), config, false, classes)
    }

    fn made(
        (devices, streams): (&Host, &Host),
        config: &LinkConfig,
        listens: bool,
        classes: Option<Classes>,
    ) -> Self {
        // All of it with proofs, as it is to be used.
        let trust = Trust::keys(KeyRing::new(key(1, SECRET)));
        let node = Arc::new(Node::with(devices.clone(), streams.clone(), trust).unwrap());
        let mut own = WorkerConfig::default();
        own.slots = 128;
        own.slot_bytes = 4096;
        own.notify = Notify::Every;
        own.classes = classes;
        let workers = node.workers(&own).unwrap();
        let mut links = Links::new(&node, &workers, config).unwrap();
        // Rails of both IP versions are reached.
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT));
        let handle = listens.then(|| links.listen_polled(&node, &workers, any).unwrap());
        Self {
            links,
            workers,
            node,
            handle,
            link: None,
            events: Vec::new(),
            sent: 0,
            delivered: 0,
            open: std::collections::VecDeque::new(),
            done: 0,
            unknown: 0,
            over: None,
            asides: Vec::new(),
            beside: None,
            is_stopped: false,
            message_bytes: 64,
            panics_every: None,
            told: 0,
            panics: 0,
        }
    }

    pub(crate) fn connect(&mut self, handle: &Handle) {
        self.link = Some(self.links.connect(&self.node, &self.workers, handle).unwrap());
    }

    /// Takes another handle of the peer for its link. Returns whether it was taken.
    pub(crate) fn reroute(&mut self, handle: &Handle) -> bool {
        let link = self.link.unwrap();
        self.links.reroute(&self.node, &self.workers, link, handle)
    }

    /// Sends the next message, if it is taken.
    pub(crate) fn send(&mut self) -> Result<(), PushRefusal> {
        let Some(link) = self.link else {
            return Err(PushRefusal::Recovering);
        };
        let bytes = message(self.sent, self.message_bytes);
        // Every other one is written where it is kept, if it is short enough.
        let last = match self.sent % 2 {
            1 => match self.links.send_in_place(link, bytes.len()) {
                Ok((last, room)) => {
                    room.copy_from_slice(&bytes);
                    last
                }
                Err(PushRefusal::TooLong { .. }) => self.links.send(link, &bytes)?,
                Err(refusal) => return Err(refusal),
            },
            _ => self.links.send(link, &bytes)?,
        };
        self.open.push_back(last.0);
        self.sent += 1;
        Ok(())
    }

    /// Why nothing is sent on a link, and nothing asked.
    pub(crate) fn refusals(&mut self, link: LinkId) -> (PushRefusal, RequestRefusal) {
        let asked = self
            .links
            .request(&self.node, link, (0, 0), &Request::Write(b"late"));
        let sent = self.links.send(link, b"late").unwrap_err();
        assert_eq!(self.links.send_in_place(link, 4).unwrap_err(), sent);
        (sent, asked.unwrap_err())
    }

    pub(crate) fn poll(&mut self, now: Instant) {
        self.call(now, |links, node, workers, each| {
            // All channels are of links, so none of their events is anybody else's.
            let nobodys = |worker, turn: Turn<'_, Host>, event: Event<'_, Host>| {
                panic!(
                    "worker {worker}: {event:?} of {:?} was given away",
                    turn.channel.id()
                );
            };
            links.poll_beside(node, workers, each, nobodys).unwrap();
        });
    }

    /// Asks for leave to sleep, and until when.
    pub(crate) fn ready_to_sleep(&mut self, now: Instant) -> Option<Deadline> {
        self.call(now, |links, node, workers, each| {
            links.ready_to_sleep(node, workers, each).unwrap()
        })
    }

    /// Waits asleep, which lets the time of the fabric pass.
    pub(crate) fn wait(&mut self, deadline: Deadline) -> Woken {
        let now = self.node.network().now();
        let sleep = Wait::SpinThenSleep { spins: 0 };
        self.call(now, |links, node, workers, each| {
            links.wait(node, workers, sleep, deadline, each).unwrap()
        })
    }

    /// Whether a source of its links would end its sleep.
    pub(crate) fn is_woken(&self) -> bool {
        let now = Deadline::at(self.node.network().now());
        self.links.sleep(&self.node, &self.workers, now).unwrap() == Woken::Progress
    }

    /// Calls its links, with a callback that takes what happens.
    fn call<R>(
        &mut self,
        now: Instant,
        mut call: impl FnMut(&mut Links<Host, Host>, &Node<Host, Host>, &mut [Worker<Host>], &mut Each<'_>) -> R,
    ) -> R {
        let Self {
            links,
            workers,
            node,
            link,
            events,
            delivered,
            open,
            done,
            unknown,
            over,
            asides,
            beside,
            panics_every,
            told,
            panics,
            ..
        } = self;
        let own = *link;
        let mut take = |id: LinkId, event: LinkEvent<'_>| match event {
            LinkEvent::Accepted => {
                assert!(link.replace(id).is_none());
            }
            LinkEvent::Received { message: bytes } => {
                assert_eq!(bytes, message(*delivered, bytes.len()), "message {delivered}");
                *delivered += 1;
            }
            LinkEvent::Session(event) => {
                assert!(over.is_none(), "{event:?} after the end");
                match event {
                    SessionEvent::Done { through } => {
                        while open.front().is_some_and(|last| *last <= through.0) {
                            open.pop_front();
                            *done += 1;
                        }
                    }
                    SessionEvent::Unknown { sequence, .. } => {
                        assert_eq!(open.pop_front(), Some(sequence.0));
                        *unknown += 1;
                    }
                    SessionEvent::Final { reason } => {
                        *over = Some(reason);
                        *link = None;
                        assert!(open.is_empty());
                    }
                    _ => {}
                }
                if !matches!(event, SessionEvent::Done { .. }) {
                    events.push((now, event));
                }
            }
            LinkEvent::Granted {
                window,
                bytes,
                access,
            } => {
                asides.push(Aside::Granted(window, bytes, access));
            }
            LinkEvent::Withdrawn { window } => asides.push(Aside::Withdrawn(window)),
            LinkEvent::Fetched { request, data } => {
                asides.push(Aside::Ended(request, RequestEnd::Done, data.to_vec()));
            }
            LinkEvent::Ended { request, end } => asides.push(Aside::Ended(request, end, Vec::new())),
            LinkEvent::Transfer { transfer, event } => asides.push(Aside::Transfer(transfer, event)),
            LinkEvent::Revoked { loan, error } => {
                assert_eq!(*over, None);
                asides.push(match error {
                    None => Aside::Revoked(loan),
                    Some(error) => Aside::NotLent(loan, errno_of(error)),
                });
            }
            LinkEvent::NotRevoked { loan, error } => asides.push(Aside::NotRevoked(loan, errno_of(error))),
            other => panic!("{other:?}"),
        };
        let mut each = |id: LinkId, event: LinkEvent<'_>| {
            match (beside.as_mut(), event) {
                (Some(beside), event) if own.is_some_and(|own| own != id) => match event {
                    LinkEvent::Received { message } => beside.push(Beside::Message(message.to_vec())),
                    LinkEvent::Session(SessionEvent::Final { reason }) => beside.push(Beside::End(reason)),
                    LinkEvent::Fetched { request, .. } | LinkEvent::Ended { request, .. } => {
                        beside.push(Beside::Request(request));
                    }
                    _ => {}
                },
                (_, event) => take(id, event),
            }
            *told += 1;
            if panics_every.is_some_and(|every| *told % every == 0) {
                resume_unwind(Box::new("the callback's own"));
            }
        };
        loop {
            match catch_unwind(AssertUnwindSafe(|| call(links, node, workers, &mut each))) {
                Ok(result) => return result,
                // The assertions of a test stay.
                Err(panic) if !panic.is::<&str>() || panics_every.is_none() => resume_unwind(panic),
                Err(_) => *panics += 1,
            }
        }
    }

    pub(crate) fn saw(&self, event: SessionEvent) -> Option<Instant> {
        self.events
            .iter()
            .find(|(_, seen)| *seen == event)
            .map(|(at, _)| *at)
    }
}

/// Two hosts, each with so many rails, every pair of them on a subnet of its own.
pub(crate) struct Two {
    pub(crate) fabric: Fabric,
    pub(crate) hosts: [Host; 2],
    pub(crate) processes: [Option<Process>; 2],
    /// How often each process sends a message, and the next time.
    pub(crate) sends_every: [Option<Duration>; 2],
    next_send: Instant,
}

pub(crate) fn ports(host: usize, rails: usize, speed_mbps: u32) -> Vec<PortConfig> {
    (0..rails)
        .map(|rail| {
            let mut port = port(&format!("sim{rail}"), &format!("10.0.{rail}.{}/24", host + 1));
            port.speed_mbps = speed_mbps;
            port
        })
        .collect()
}

/// Two rails that are ports of one device, so that both lead to one window.
pub(crate) fn ports_of_one_device(host: u8) -> Vec<PortConfig> {
    (0..2)
        .map(|rail| {
            let mut port = port("sim0", &format!("10.0.{rail}.{host}/24"));
            port.interface = format!("eth{rail}");
            port
        })
        .collect()
}

impl Two {
    pub(crate) fn new(rails: usize, plan: &str) -> Self {
        Self::with(rails, plan, None)
    }

    pub(crate) fn with(rails: usize, plan: &str, bandwidth_mbps: Option<u32>) -> Self {
        let speed_mbps = bandwidth_mbps.unwrap_or(10_000);
        Self::between(
            [A, B].map(|at| ports(at, rails, speed_mbps)),
            plan,
            bandwidth_mbps,
        )
    }

    /// With these ports.
    pub(crate) fn between(ports: [Vec<PortConfig>; 2], plan: &str, bandwidth_mbps: Option<u32>) -> Self {
        let mut two = Self::apart(ports, plan, bandwidth_mbps);
        two.begin();
        two
    }

    /// With a link that is yet to begin.
    pub(crate) fn waiting(rails: usize, plan: &str) -> Self {
        Self::apart([A, B].map(|at| ports(at, rails, 10_000)), plan, None)
    }

    /// Begins the link.
    pub(crate) fn begin(&mut self) {
        let handle = self.process(B).handle.unwrap();
        self.process_mut(A).connect(&handle);
    }

    /// With these ports, and a link that is yet to begin.
    pub(crate) fn apart(ports: [Vec<PortConfig>; 2], plan: &str, bandwidth_mbps: Option<u32>) -> Self {
        Self::on(Quirks::IBA, ports, plan, bandwidth_mbps)
    }

    /// The same, on devices like these.
    pub(crate) fn on(
        quirks: Quirks,
        ports: [Vec<PortConfig>; 2],
        plan: &str,
        bandwidth_mbps: Option<u32>,
    ) -> Self {
        let wire = Wire {
            latency_ns: LATENCY.as_nanos() as u64,
            bandwidth_mbps,
        };
        let fabric = Fabric::builder()
            .link(wire)
            .quirks(quirks)
            .plan(plan.parse().unwrap())
            .driven()
            .build();
        let [a, b] = ports;
        let hosts = [("a", a), ("b", b)].map(|(name, ports)| fabric.host(name, ports).unwrap());
        let a = Process::on(&hosts[A], &config(), false);
        let b = Process::on(&hosts[B], &config(), true);
        Self {
            fabric,
            hosts,
            processes: [Some(a), Some(b)],
            sends_every: [None; 2],
            next_send: Instant::from_ns(0),
        }
    }

    pub(crate) fn process(&self, at: usize) -> &Process {
        self.processes[at].as_ref().unwrap()
    }

    pub(crate) fn process_mut(&mut self, at: usize) -> &mut Process {
        self.processes[at].as_mut().unwrap()
    }

    /// Lets time pass until it is done, or this long after the beginning; says which.
    pub(crate) fn run(&mut self, until: Duration, mut is_done: impl FnMut(&Self) -> bool) -> bool {
        let until = Instant::from_ns(0).after(until);
        loop {
            let now = self.fabric.now();
            let mut next = until;
            for (at, process) in self.processes.iter_mut().enumerate() {
                let Some(process) = process.as_mut().filter(|process| !process.is_stopped) else {
                    continue;
                };
                if self.sends_every[at].is_some() && now >= self.next_send {
                    let _ = process.send();
                }
                process.poll(now);
                if let Some(wake) = process.links.wake(now) {
                    assert!(wake.instant() > now, "it wakes for nothing");
                    next = next.min(wake.instant());
                }
            }
            let every = self.sends_every.iter().flatten().min();
            if let Some(every) = every {
                if now >= self.next_send {
                    self.next_send = now.after(*every);
                }
                next = next.min(self.next_send);
            }
            if is_done(self) {
                return true;
            }
            if now >= until {
                return false;
            }
            match self.fabric.next_at() {
                Some(at) if at <= next => assert!(self.fabric.step()),
                _ => self.fabric.run_until(next),
            }
        }
    }

    /// Runs until both have all their rails.
    pub(crate) fn connected(&mut self, rails: u8) {
        let all_up =
            |process: &Process| (0..rails).all(|rail| process.saw(SessionEvent::RailUp { rail }).is_some());
        let is_up = self.run(ms(100), |two| two.processes.iter().flatten().all(all_up));
        assert!(is_up, "{:?}", self.process(A).events);
    }

    /// Stops sending, and says whether all that was sent is done and has arrived.
    pub(crate) fn settle(&mut self, until: Duration) -> bool {
        self.sends_every = [None; 2];
        self.run(until, |two| {
            let (a, b) = (two.process(A), two.process(B));
            a.done == a.sent && b.done == b.sent && a.sent == b.delivered && b.sent == a.delivered
        })
    }

    pub(crate) fn deadline(&self, span: Duration) -> Deadline {
        Deadline::after(self.fabric.now(), span)
    }

    pub(crate) fn counts(&self, at: usize) -> doorbell::link::SessionCounts {
        let process = self.process(at);
        process.links.counts(process.link.unwrap())
    }
}
