//! The relay of a host: a thread with its own links. The first process that gets the port runs it. Another process takes over when that one has
//! ended.

use core::num::NonZeroU16;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use doorbell::link::{
    FinalReason, LinkEvent, LinkId, Links, PushRefusal, SessionEvent, TransferEvent, TransferId,
};
use doorbell::{Deadline, Node, Notify, Wait, Worker};

use super::circuits::{Circuits, Heard, Sent};
use super::frame::{CircuitFrame, End};
use super::search::{Found, Search};
use crate::context::{CLOSE_WITHIN, LEFT_WITHIN, listen};
use crate::failure::Failure;
use crate::frame::Frame;
use crate::lifeline::Lifelines;
use crate::log;
use crate::places::{Key, PLACES_MAX};
use crate::settings::PluginSettings;

/// Interval between attempts to get a port that another process has.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// How long both sides of an ending circuit may take to receive the remaining messages.
const ENDED_WITHIN: Duration = Duration::from_secs(5);

/// How long a relay whose process has no contexts any more waits for its circuits.
const LINGER: Duration = Duration::from_secs(5);

/// Polling before a sleep takes as long as arming and sleeping do. The ranks on the host spin without pause. A thread that also spins loses its
/// processor for a whole time slice, while a thread that sleeps gets a processor when a message wakes it.
const WAIT: Wait = Wait::SpinThenSleep { spins: 16 };

/// Longest sleep with a search or a queue, and without: lifelines do not wake this thread.
const SLEEP: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// The number of contexts, and the relay of this process.
static SERVICE: Mutex<(usize, Option<Service>)> = Mutex::new((0, None));

/// The thread of a relay.
#[derive(Debug)]
struct Service {
    is_stopped: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Counts a context that was opened. With the first one, the relay is started if the settings name this host.
pub(crate) fn enter(settings: &PluginSettings) {
    let mut service = SERVICE.lock().unwrap_or_else(PoisonError::into_inner);
    let (contexts, running) = &mut *service;
    *contexts = contexts.saturating_add(1);
    if let (None, Some(port)) = (&running, settings.relays.port_here.and_then(NonZeroU16::new)) {
        *running = Service::start(settings.clone(), port);
    }
}

/// Counts a context that was closed. With the last one, the relay ends, when its circuits have ended or [`LINGER`] is over.
pub(crate) fn leave() {
    let stopped = {
        let mut service = SERVICE.lock().unwrap_or_else(PoisonError::into_inner);
        service.0 = service.0.saturating_sub(1);
        if service.0 == 0 { service.1.take() } else { None }
    };
    if let Some(stopped) = stopped {
        stopped.stop();
    }
}

impl Service {
    /// Starts the relay. The port is taken before this returns, if it is free, so that peers find the relay when `init` has returned.
    fn start(settings: PluginSettings, port: NonZeroU16) -> Option<Self> {
        let mut first = Some(Relay::open(&settings, port));
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_stopped);
        let named = thread::Builder::new().name("doorbell-relay".into());
        let run = move || {
            keep_running(&stop, || {
                let opened = first.take().unwrap_or_else(|| Relay::open(&settings, port));
                run(opened, (&settings, port), &stop);
            });
        };
        match named.spawn(run) {
            Ok(thread) => Some(Self { is_stopped, thread }),
            Err(error) => {
                log::warn(format_args!(
                    "no relay here, since the system gave no thread: {error}"
                ));
                None
            }
        }
    }

    fn stop(self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        let _ = self.thread.join();
    }
}

/// Calls `run` again after a panic, until it returns or `stop` is set.
fn keep_running(stop: &AtomicBool, mut run: impl FnMut()) {
    while std::panic::catch_unwind(core::panic::AssertUnwindSafe(&mut run)).is_err() {
        log::warn("a fault of the plugin: the relay panicked; its circuits are lost, and it starts again");
        thread::park_timeout(RETRY_EVERY);
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

fn run(
    first: Result<Option<Relay>, Failure>,
    (settings, port): (&PluginSettings, NonZeroU16),
    stop: &AtomicBool,
) {
    let (mut opened, mut said) = (first, String::new());
    loop {
        match opened {
            Ok(Some(relay)) => match relay.run(stop) {
                Ok(()) => return,
                Err(failure) => log::warn(format_args!("the relay failed: {}", failure.words())),
            },
            Ok(None) if said.is_empty() => {
                said = format!("port {port} is in use: another process is the relay of this host");
                log::info(&said);
            }
            Ok(None) => {}
            Err(failure) if said != failure.words() => {
                said = failure.words();
                log::warn(format_args!("no relay here yet: {said}"));
            }
            Err(_) => {}
        }
        thread::park_timeout(RETRY_EVERY);
        if stop.load(Ordering::Relaxed) {
            return;
        }
        opened = Relay::open(settings, port);
    }
}

/// A transfer on a link.
type Offer = (LinkId, TransferId);

/// The relay. See the module.
#[derive(Debug)]
struct Relay {
    links: Links,
    lifelines: Lifelines,
    workers: Vec<Worker>,
    node: Arc<Node>,
    state: State,
    settings: PluginSettings,
}

/// The state that events change.
#[derive(Debug)]
struct State {
    circuits: Circuits<LinkId>,
    searches: Vec<(Key, Search)>,
    /// Circuits whose destinations must be searched for: each with its link and the request.
    wanted: Vec<(LinkId, Heard)>,
    /// Lifelines to be watched.
    watches: Vec<(LinkId, NonZeroU16)>,
    asked: Vec<LinkId>,
    over: Vec<LinkId>,
    /// Offers to be declined: a relay does not take transfers.
    declined: Vec<Offer>,
    /// Links whose peers' processes have ended, each with the time until which messages in flight may arrive.
    leaving: Vec<(LinkId, Deadline)>,
}

impl Relay {
    /// Opens devices and listens. Returns `None` if another process has the port.
    fn open(settings: &PluginSettings, port: NonZeroU16) -> Result<Option<Self>, Failure> {
        let values = &settings.values;
        // Trying the port is cheaper than opening devices.
        let any = (core::net::Ipv6Addr::UNSPECIFIED, port.get());
        let free = TcpListener::bind(any).or_else(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => Err(error),
            _ => TcpListener::bind((core::net::Ipv4Addr::UNSPECIFIED, port.get())),
        });
        match free {
            Ok(free) => drop(free),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => return Ok(None),
            Err(error) => return Err(Failure::system(format_args!("port {port}: {error}"))),
        }
        let mut node = Node::open(settings.trust.clone()).map_err(Failure::system)?;
        node.set_rail_filter(values.rails.clone());
        let node = Arc::new(node);
        let mut worker = values.worker;
        worker.notify = Notify::Every;
        let workers = node.workers(&worker).map_err(Failure::system)?;
        let mut links = Links::new(&node, &workers, &values.link).map_err(Failure::system)?;
        listen(&mut links, &node, &workers, port.get()).map_err(Failure::system)?;
        let lifelines = Lifelines::open(values.link.links_max)
            .map_err(|error| Failure::system(format_args!("no TCP port for lifelines: {error}")))?;
        // A circuit has two links.
        let most = usize::try_from(values.link.links_max / 2)
            .unwrap_or(usize::MAX)
            .clamp(1, PLACES_MAX / 2);
        log::info(format_args!(
            "this host is a relay, at port {port}: {most} circuits at most, {} devices",
            workers.len()
        ));
        Ok(Some(Self {
            state: State::new(most, lifelines.port()),
            links,
            lifelines,
            workers,
            node,
            settings: settings.clone(),
        }))
    }

    /// Runs until `stop` is set and no circuit is left. Circuits are ended when [`LINGER`] is over.
    fn run(mut self, stop: &AtomicBool) -> Result<(), Failure> {
        let mut until = None;
        loop {
            self.turn()?;
            if !stop.load(Ordering::Relaxed) {
                continue;
            }
            let end = *until.get_or_insert_with(|| self.node.within(LINGER));
            if end.has_passed(doorbell::now()) {
                self.state.circuits.end_all(self.node.within(CLOSE_WITHIN));
            }
            if self.state.circuits.count() == 0 {
                break;
            }
        }
        let deadline = self.node.within(CLOSE_WITHIN);
        let ids: Vec<LinkId> = self.links.ids().collect();
        for id in ids {
            self.links.close(id, deadline);
        }
        while self.links.ids().next().is_some() && !deadline.has_passed(doorbell::now()) {
            self.turn()?;
        }
        let Self {
            links, workers, node, ..
        } = self;
        drop(links);
        drop(workers);
        node.settle(node.within(CLOSE_WITHIN));
        Ok(())
    }

    /// Waits for events, and forwards messages.
    fn turn(&mut self) -> Result<(), Failure> {
        let is_busy = !self.state.searches.is_empty()
            || !self.state.leaving.is_empty()
            || self.state.circuits.has_queued();
        let sleep = if is_busy { SLEEP[0] } else { SLEEP[1] };
        let node = Arc::clone(&self.node);
        let (ended, asked) = (
            node.within(ENDED_WITHIN),
            node.within(self.settings.values.timeout),
        );
        let Self {
            links,
            workers,
            state,
            ..
        } = self;
        let hear = |link, event: LinkEvent<'_>| state.hear(link, event, (asked, ended));
        links
            .wait(&node, workers, WAIT, node.within(sleep), hear)
            .map_err(Failure::system)?;
        self.follow_lifelines(ended);
        self.search(ended);
        while let Some(offer) = self.state.declined.pop() {
            let _ = self.links.cancel(&node, offer);
        }
        self.pass_on();
        Ok(())
    }

    fn pass_on(&mut self) {
        let Self {
            links, state, node, ..
        } = self;
        let (mut closing, now) = (Vec::new(), doorbell::now());
        let send = |link, message: &[u8]| match links.send(link, message) {
            Ok(_) => Sent::Taken,
            Err(PushRefusal::Full | PushRefusal::Recovering) => Sent::Later,
            Err(_) => Sent::Over,
        };
        state.circuits.go_on(
            |until| until.has_passed(now),
            send,
            |link, is_orderly| closing.push((link, is_orderly)),
            |closed| {
                log::info(format_args!(
                    "a circuit is over: {} messages, {} bytes",
                    closed.messages, closed.bytes
                ));
            },
        );
        for (link, is_orderly) in closing {
            let patience = if is_orderly { CLOSE_WITHIN } else { Duration::ZERO };
            links.close(link, node.within(patience));
        }
    }

    fn follow_lifelines(&mut self, ended: Deadline) {
        let Self {
            links,
            lifelines,
            state,
            node,
            ..
        } = self;
        for (link, port) in state.watches.drain(..) {
            let addresses = links.rails(link).map(|rail| rail.peer);
            if let Err(error) = lifelines.watch(link, addresses, port) {
                log::warn(format_args!(
                    "relay: the end of a process will be noticed late, since the system gave no thread: {error}"
                ));
            }
        }
        state.asked.drain(..).for_each(|link| lifelines.ask(link));
        state.over.drain(..).for_each(|link| lifelines.forget(link));
        let now = doorbell::now();
        let State {
            leaving,
            circuits,
            searches,
            ..
        } = state;
        leaving.retain(|(link, until)| {
            let is_due = until.has_passed(now);
            if is_due {
                circuits.over(*link, End::PROCESS_ENDED, ended);
                for (_, search) in &mut *searches {
                    search.hear_over(*link, &End::PROCESS_ENDED);
                }
                links.close(*link, node.within(Duration::ZERO));
            }
            !is_due
        });
        // Each link is polled at least once more, however slow this thread is.
        for link in lifelines.take_gone() {
            leaving.push((link, node.within(LEFT_WITHIN)));
        }
    }

    /// Makes progress on the searches for destinations.
    fn search(&mut self, ended: Deadline) {
        let Self {
            links,
            workers,
            state,
            node,
            settings,
            ..
        } = self;
        for (link, wanted) in state.wanted.drain(..) {
            let Heard::Wanted {
                key,
                relays,
                route,
                handle,
            } = wanted
            else {
                continue;
            };
            let mut before = route;
            if let Some(rail) = links.rails(link).next() {
                before.push(rail.peer);
            }
            let further = (&settings.relays.list[..], relays.saturating_sub(1));
            let mut search = Search::new(handle, before, further, (true, settings.patience()));
            if let Some(own) = links.handle() {
                search = search.without(own.instance());
            }
            state.searches.push((key, search));
        }
        let State {
            searches, circuits, ..
        } = state;
        searches.retain_mut(|(key, search)| {
            if !circuits.is_searching(*key) {
                search.give_up(links, node);
                return false;
            }
            match search.poll(links, node, workers) {
                None => return true,
                Some(Found::Link {
                    link,
                    route,
                    has_port,
                }) => {
                    let before = search.before();
                    let is_direct = route.iter().count() <= 1;
                    log::info(format_args!("a circuit from {before} to {route}"));
                    if !circuits.found(*key, (link, route), is_direct.then_some(before), has_port) {
                        links.close(link, node.within(Duration::ZERO));
                    }
                }
                Some(Found::None { end, why }) => {
                    log::info(format_args!("no circuit from {}: {why}", search.before()));
                    circuits.end(*key, end, ended);
                }
            }
            false
        });
    }
}

impl State {
    const fn new(circuits_max: usize, port: NonZeroU16) -> Self {
        Self {
            circuits: Circuits::new(circuits_max, port),
            searches: Vec::new(),
            wanted: Vec::new(),
            watches: Vec::new(),
            asked: Vec::new(),
            over: Vec::new(),
            declined: Vec::new(),
            leaving: Vec::new(),
        }
    }

    fn hear(&mut self, link: LinkId, event: LinkEvent<'_>, (asked, ended): (Deadline, Deadline)) {
        let is_searched = |search: &&mut (Key, Search)| search.1.link() == Some(link);
        let search = self
            .searches
            .iter_mut()
            .find(is_searched)
            .map(|(_, search)| search);
        match event {
            LinkEvent::Accepted => self.circuits.accepted(link, asked),
            LinkEvent::Received { message } => match search {
                Some(search) => match (CircuitFrame::parse(message), Frame::parse(message)) {
                    (Some(frame), _) => search.hear_frame(link, frame),
                    (None, Some(Frame::Hello { port })) if search.hear_port() => {
                        self.watches.push((link, port));
                    }
                    (None, _) => search.hear_over(link, &End::WRONG),
                },
                None => match self.circuits.hear(link, message, ended) {
                    Heard::Nothing => {}
                    Heard::Lifelines(port) => self.watches.push((link, port)),
                    wanted @ Heard::Wanted { .. } => self.wanted.push((link, wanted)),
                },
            },
            LinkEvent::Session(SessionEvent::RailUp { .. }) => {
                if let Some(search) = search {
                    search.hear_up(link);
                }
            }
            LinkEvent::Session(SessionEvent::Recovering) => self.asked.push(link),
            LinkEvent::Session(SessionEvent::Final { reason }) => {
                self.over.push(link);
                self.leaving.retain(|(of, _)| *of != link);
                match search {
                    Some(search) => search.hear_over(link, &reason),
                    None => {
                        self.circuits.over(link, end_of(reason), ended);
                    }
                }
            }
            LinkEvent::Transfer {
                transfer,
                event: TransferEvent::Offered { .. },
            } => self.declined.push((link, transfer)),
            _ => {}
        }
    }
}

fn end_of(reason: FinalReason) -> End {
    match reason {
        FinalReason::Closed | FinalReason::PeerClosed => End::CLOSED,
        FinalReason::PeerRestarted => End::PROCESS_ENDED,
        _ => End::LOST,
    }
}

#[cfg(test)]
mod tests;
