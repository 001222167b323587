//! A run of hosts that sleep as the documentation says. Each asks for leave to sleep. It polls when one of its
//! descriptors is readable, when its nap is over, or when its application has something to do.
//!
//! Nobody else polls for it, so that what wakes nobody is late, or is never told. Messages go in every way there is, with
//! want of memory, callbacks that panic, closings, and Workers that are taken apart.

mod act;
pub(crate) mod body;
pub(crate) mod case;
mod hear;
mod watch;

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use doorbell::provider::Instant;
use doorbell::worker::{Submitter, SubmitterConfig};
use doorbell::{ChannelId, Lease, Listener, Node, Notify, Trust, WorkerConfig};
use doorbell_sim::{Fabric, Host};

use crate::awaited::Watch;
use crate::bounds::Bounds;
use crate::case::{Case, EndingsCase, Excuses, Scene, What};
use crate::failure::{Verdict, ensure, failure};
use crate::finish::{audit, free_slots, whole_again};
use crate::panics::Panics;
use crate::pattern::Label;
use crate::sleepy::body::Body;
use crate::sleepy::case::{SleepCase, Way};
use crate::station::{address, channel_config, ports};
use crate::stranger::at;
use crate::trace::{Trace, clock_and_notes};

const TCP_PORT: u16 = 4000;

/// An event loop whose peers mark what is urgent looks so often for the rest.
const LOOKS_EVERY_NS: u64 = 5_000_000;

/// A thread that asks this often in a row, and never gets leave to sleep, never will.
const ASKS_MAX: usize = 1000;

/// How long all of it takes at most once nothing more is begun.
const ALL_OVER_NS: u64 = 20_000_000_000;

/// A host and its application.
struct Sleeper {
    // In this order they go.
    held: VecDeque<(Lease<Host>, Vec<u8>)>,
    submitters: Vec<Option<Submitter<Host>>>,
    body: Body,
    node: Arc<Node<Host, Host>>,
    /// Until when each of its threads sleeps, where it does; with no end, for ever.
    naps: [Option<Option<u64>>; 2],
    hold: usize,
    /// When a descriptor last woke it though there was nothing, and how often in a row that was at that moment.
    in_vain: (u64, u32),
}

/// A message on its way.
struct Sent {
    label: Label,
    bytes: usize,
    /// It came back, or its channel ended before it was known how it did.
    is_lost: bool,
    /// Nothing else was on its way as it was sent, and it wakes its receiver: so it is soon there.
    is_prompt: bool,
}

/// The messages from one end to the other in one way.
#[derive(Default)]
struct Flow {
    /// The next of these is tried again whenever its end is awake.
    wanted: VecDeque<Wanted>,
    sent: Vec<Sent>,
    came: usize,
    lost: usize,
}

#[derive(Clone, Copy)]
struct Wanted {
    way: Way,
    bytes: u16,
    is_solicited: bool,
}

/// One end of a line.
struct End {
    id: ChannelId,
    flows: Vec<Flow>,
    /// When a message of it was sent or came last.
    moved_ns: u64,
    is_closing: bool,
    /// By each half: that it is over was told.
    is_told: [bool; 2],
    is_gone: bool,
}

/// All ways at once, as long as all have something to send.
struct Race {
    line: usize,
    end: usize,
    began: Vec<usize>,
    count: usize,
}

/// A run under way.
pub(crate) struct SleepRun<'c> {
    case: &'c Case,
    sleepy: &'c SleepCase,
    fabric: Fabric,
    sleepers: Vec<Sleeper>,
    /// Both ends of each line.
    lines: Vec<[End; 2]>,
    race: Option<Race>,
    excuses: Excuses,
    panics: Panics,
    trace: &'c mut Trace,
    bounds: Vec<Bounds>,
    /// The time in which each end of a line gives a silent peer up, where it has one.
    silences_ns: Vec<[Option<u64>; 2]>,
    watch: Watch,
    pub(crate) messages: u64,
    is_set_up: bool,
}

clock_and_notes!(SleepRun);

impl<'c> SleepRun<'c> {
    pub(crate) fn new(case: &'c Case, fabric: &Fabric, trace: &'c mut Trace) -> anyhow::Result<Self> {
        let Some(Scene::Sleep(sleepy)) = &case.scene else {
            anyhow::bail!("no case of hosts that sleep");
        };
        let sleepers = (0..case.hosts.len())
            .map(|number| Sleeper::new(case, sleepy, fabric, number))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let (mut bounds, mut silences_ns) = (Vec::new(), Vec::new());
        let endings = endings(sleepy);
        for line in &case.lines {
            let of = Case {
                endings: Some(endings),
                ..case.clone()
            };
            let silence_ns = |end| Bounds::of_silence_ns(&of, line, end);
            silences_ns.push([silence_ns(0), silence_ns(1)]);
            bounds.push(Bounds::of(&of, line)?);
        }
        Ok(Self {
            case,
            sleepy,
            fabric: fabric.clone(),
            sleepers,
            lines: Vec::new(),
            race: None,
            excuses: Excuses::of(&case.plan()?, u8::MAX),
            panics: Panics::every(case.panics_every),
            trace,
            bounds,
            silences_ns,
            watch: Watch::default(),
            messages: 0,
            is_set_up: false,
        })
    }

    /// Connects all lines, tries every operation, and ends the run.
    pub(crate) fn run(&mut self) -> Verdict {
        for line in 0..self.case.lines.len() {
            let ends = self.connect(line)?;
            self.lines.push(ends);
        }
        self.is_set_up = true;
        for operation in &self.case.operations {
            let (line, end) = (operation.line, operation.end);
            match operation.what {
                What::Pass { ns } => self.run_for(ns)?,
                What::Sleep(act) => {
                    self.act(line, end, act)?;
                    self.run_for(0)?;
                }
                _ => {}
            }
            audit(&self.fabric)?;
        }
        self.finish()
    }

    fn host(&self, line: usize, end: usize) -> usize {
        self.case.lines[line].hosts[end]
    }

    /// Connects a line, while both its hosts poll.
    fn connect(&mut self, line: usize) -> Verdict<[End; 2]> {
        let [from, to] = self.case.lines[line].hosts;
        let config = |end: usize| {
            let mut config = channel_config(&self.case.lines[line], Some(endings(self.sleepy)), end, 0)?;
            config.close_when_lost = true;
            anyhow::Ok(config)
        };
        let set_up = |error: anyhow::Error| failure("set-up", format!("{error:#}"));
        let (here, there) = (config(0).map_err(set_up)?, config(1).map_err(set_up)?);
        let port = TCP_PORT + line as u16;
        let at = at(address(to, 0), port);
        let bound = {
            let Sleeper { node, body, .. } = &mut self.sleepers[to];
            let worker = body
                .whole()
                .ok_or_else(|| failure("owner", "a Worker is apart"))?;
            Listener::bind(node, core::slice::from_ref(worker), at, &there)
        };
        let mut listener = bound.map_err(|error| failure("set-up", error.to_string()))?;
        let begun = {
            let Sleeper { node, body, .. } = &mut self.sleepers[from];
            let worker = body
                .whole()
                .ok_or_else(|| failure("owner", "a Worker is apart"))?;
            let deadline = node.within(Duration::from_secs(3));
            node.begin_connect_at(core::slice::from_ref(worker), at, &here, deadline)
        };
        let mut attempt = begun.map_err(|error| failure("set-up", error.to_string()))?;
        let (mut connected, mut accepted) = (None, None);
        let until_ns = self.now_ns() + 4_000_000_000;
        while connected.is_none() || accepted.is_none() {
            let Sleeper { node, body, .. } = &mut self.sleepers[to];
            if let Some(worker) = body.whole() {
                let made = listener.poll_accept(node, core::slice::from_mut(worker));
                let made = made.map_err(|error| failure("connect", error.to_string()))?;
                accepted = accepted.or(made.map(|made| made.channel));
            }
            let Sleeper { node, body, .. } = &mut self.sleepers[from];
            if let Some(worker) = body.whole().filter(|_| connected.is_none()) {
                if let Some(made) = attempt.poll(node, core::slice::from_mut(worker)) {
                    let made = made.map_err(|error| failure("connect", error.to_string()))?;
                    connected = Some(made.channel);
                }
            }
            ensure(self.now_ns() < until_ns, "liveness", || "no connection".into())?;
            let next = self.fabric.next_at().map_or(u64::MAX, Instant::to_ns);
            let now_ns = self.now_ns();
            self.fabric
                .run_until(Instant::from_ns(next.clamp(now_ns + 1, now_ns + 1_000_000)));
        }
        let (Some(connected), Some(accepted)) = (connected, accepted) else {
            return Err(failure("connect", "no channel"));
        };
        self.note(from, format_args!("line {line} is connected"));
        let ways = 2 + self.sleepy.submitters.iter().sum::<usize>();
        let end = |id| End {
            id,
            flows: (0..ways).map(|_| Flow::default()).collect(),
            moved_ns: 0,
            is_closing: false,
            is_told: [false; 2],
            is_gone: false,
        };
        Ok([end(connected), end(accepted)])
    }

    /// Lets time pass while hosts sleep, and run when they are woken.
    fn run_for(&mut self, span_ns: u64) -> Verdict {
        let until_ns = self.now_ns().saturating_add(span_ns);
        loop {
            let mut has_worked = false;
            for host in 0..self.sleepers.len() {
                has_worked |= self.run_threads(host)?;
                has_worked |= self.submit_from_threads(host)?;
            }
            if has_worked {
                continue;
            }
            self.look()?;
            let now_ns = self.now_ns();
            if now_ns >= until_ns {
                return Ok(());
            }
            let naps = self.sleepers.iter().flat_map(|sleeper| sleeper.naps.iter());
            let wakes = naps.filter_map(|nap| nap.flatten());
            let happens = self.fabric.next_at().map(Instant::to_ns);
            let next_ns = wakes.chain(happens).fold(until_ns, u64::min);
            self.fabric.run_until(Instant::from_ns(next_ns.max(now_ns + 1)));
        }
    }

    /// Runs the threads of a host that are awake, or are woken; says whether any was.
    fn run_threads(&mut self, host: usize) -> Verdict<bool> {
        let mut has_run = false;
        for thread in 0..self.sleepers[host].body.threads() {
            let now_ns = self.now_ns();
            let sleeper = &mut self.sleepers[host];
            let (is_due, is_woken) = match sleeper.naps[thread] {
                None => (true, false),
                Some(Some(until_ns)) if until_ns <= now_ns => (true, false),
                Some(_) => {
                    let is_woken = sleeper.body.is_woken(thread)?;
                    (is_woken, is_woken)
                }
            };
            if is_due {
                has_run = true;
                let was_told = self.run_thread(host, thread)?;
                self.check_vain(host, is_woken && !was_told)?;
            }
        }
        Ok(has_run)
    }

    /// A descriptor that stays readable where there is nothing never lets its thread sleep.
    fn check_vain(&mut self, host: usize, is_in_vain: bool) -> Verdict {
        let now_ns = self.now_ns();
        let sleeper = &mut self.sleepers[host];
        let (at_ns, times) = sleeper.in_vain;
        sleeper.in_vain = match is_in_vain {
            true if at_ns == now_ns => (at_ns, times + 1),
            true => (now_ns, 1),
            false => (at_ns, 0),
        };
        let (_, times) = sleeper.in_vain;
        // At one moment each slot is taken up, or comes home, once.
        let [slots, _] = self.sleepy.submitter;
        let of_submitters = slots * self.sleepy.submitters.iter().sum::<usize>() as u32;
        let most = self.case.hosts[host].slots + of_submitters;
        ensure(times <= most, "in vain", || {
            format!("h{host} is woken {times} times at once, and there is nothing")
        })
    }

    /// A thread does what there is to do, and asks for leave to sleep until it has it; says whether anything happened.
    fn run_thread(&mut self, host: usize, thread: usize) -> Verdict<bool> {
        let mut told_any = false;
        for _ in 0..ASKS_MAX {
            self.send_wanted(host)?;
            let mut told = Vec::new();
            let Sleeper { body, .. } = &mut self.sleepers[host];
            let asked = body.ready_to_sleep(thread, &mut self.panics, &mut told)?;
            told_any |= !told.is_empty() || asked.is_none();
            for (id, event) in told {
                self.hear(host, thread, id, event)?;
            }
            self.tend_closings(host)?;
            if let Some(at_most) = asked {
                let now_ns = self.now_ns();
                let mut until = at_most.map(|span| now_ns + span.as_nanos() as u64);
                if self.sleepy.is_solicited {
                    until = Some(until.unwrap_or(u64::MAX).min(now_ns + LOOKS_EVERY_NS));
                }
                let sleeper = &mut self.sleepers[host];
                // To be asked again at once is no sleep.
                sleeper.naps[thread] = Some(until).filter(|until| *until != Some(now_ns));
                if sleeper.naps[thread].is_some() {
                    return Ok(told_any);
                }
            }
        }
        Err(failure(
            "sleep",
            format!("thread {thread} of h{host} asked {ASKS_MAX} times, and may not sleep"),
        ))
    }

    /// The application of a host is about to do something: what its Worker would tell one that polls is to be nothing, where
    /// nothing woke it.
    fn wake(&mut self, host: usize) -> Verdict {
        self.check_asleep(host)?;
        self.sleepers[host].naps = [None; 2];
        Ok(())
    }

    /// Checks that a sleeping host has nothing to do.
    fn check_asleep(&mut self, host: usize) -> Verdict {
        for thread in 0..self.sleepers[host].body.threads() {
            let now_ns = self.now_ns();
            let sleeper = &mut self.sleepers[host];
            let is_asleep = match sleeper.naps[thread] {
                None => false,
                Some(until) => until.is_none_or(|until_ns| until_ns > now_ns),
            };
            if !is_asleep || sleeper.body.is_woken(thread)? {
                continue;
            }
            let naps = sleeper.naps[thread].flatten().is_some();
            let mut told = Vec::new();
            sleeper.body.poll(thread, &mut self.panics, &mut told)?;
            sleeper.naps[thread] = None;
            let missed: Vec<String> = told
                .iter()
                .filter(|(_, event)| !self.may_be_missed(event, naps))
                .map(|(_, event)| format!("{event:?}"))
                .collect();
            ensure(missed.is_empty(), "asleep", || {
                format!("thread {thread} of h{host} sleeps, and one that polls is told {missed:?}")
            })?;
            for (id, event) in told {
                self.hear(host, thread, id, event)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Verdict {
        for host in 0..self.sleepers.len() {
            self.wake(host)?;
            self.sleepers[host].hold = 0;
            self.let_go(host);
        }
        let ends = self.case.fault_ends_ns();
        let ends = ends.map_err(|error| failure("set-up", error.to_string()))?;
        let last_ns = ends.into_iter().max().unwrap_or(0);
        self.run_for(last_ns.saturating_sub(self.now_ns()))?;
        // Half of a Worker may not hear that its peer is gone (`ChannelConfig::probe_after`), and then keeps what is on its way.
        if !self.lines.iter().flatten().any(End::is_ending) && self.case.plan.is_empty() {
            self.until("what was sent is not told", Self::is_quiet)?;
        }
        for host in 0..self.sleepers.len() {
            self.wake(host)?;
            self.sleepers[host].body.join()?;
        }
        self.until("what was left is not told", Self::is_quiet)?;
        for line in 0..self.lines.len() {
            self.check_lost(line)?;
        }
        whole_again(&self.fabric)?;
        for line in 0..self.lines.len() {
            self.close(line, line % 2, 50_000_000)?;
        }
        self.until("a channel is not gone", |run| {
            run.lines.iter().flatten().all(|end| end.is_gone)
        })?;
        for host in 0..self.sleepers.len() {
            self.check_asleep(host)?;
            self.check_home(host)?;
        }
        audit(&self.fabric)
    }

    fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) -> Verdict {
        let until_ns = self.now_ns() + ALL_OVER_NS;
        while !holds(self) {
            if self.now_ns() >= until_ns {
                return Err(failure("liveness", format!("{what}: {}", self.describe())));
            }
            self.run_for(1_000_000)?;
        }
        self.run_for(2_000_000)
    }

    /// On channels that are open, all that is to be sent was, and came.
    fn is_quiet(&self) -> bool {
        let is_done = |line: usize, end: usize| {
            let mut flows = (0..).zip(&self.lines[line][end].flows);
            flows.all(|(stream, flow)| {
                flow.wanted.is_empty() && (!flow.awaits() || self.is_unheard(line, end, stream))
            })
        };
        let mut lines = (0..).zip(&self.lines);
        lines.all(|(line, ends)| ends.iter().any(End::is_ending) || (0..2).all(|end| is_done(line, end)))
    }

    /// Describes everything that is still under way.
    fn describe(&mut self) -> String {
        let mut words = Vec::new();
        for (line, ends) in self.lines.iter().enumerate() {
            for (end, at) in ends.iter().enumerate() {
                let host = self.case.lines[line].hosts[end];
                let flows: Vec<_> = at
                    .flows
                    .iter()
                    .map(|flow| [flow.wanted.len(), flow.sent.len(), flow.came, flow.lost])
                    .collect();
                let channel = self.sleepers[host].body.whole();
                let channel = channel.and_then(|worker| worker.channel(at.id));
                let counts = channel.map(|channel| {
                    let posted = channel.receives_posted();
                    [channel.credits(), channel.room(), channel.in_flight(), posted]
                });
                words.push(format!(
                    "line {line} end {end} at h{host} wants, sent, came and lost {flows:?}, credits, room, in flight and receives {counts:?}"
                ));
            }
        }
        for (host, sleeper) in self.sleepers.iter_mut().enumerate() {
            let has_memory = sleeper
                .body
                .lease()
                .map(|lease| sleeper.body.release(lease, false));
            words.push(format!(
                "h{host} sleeps {:?}, holds {} and has memory {}",
                sleeper.naps,
                sleeper.held.len(),
                has_memory.is_some()
            ));
        }
        words.join("; ")
    }

    /// All memory of a host is home.
    fn check_home(&mut self, host: usize) -> Verdict {
        let slots = self.case.hosts[host].slots;
        let shared = self.case.hosts[host].shared_receives.unwrap_or(0);
        let [submitter_slots, _] = self.sleepy.submitter;
        let sleeper = &mut self.sleepers[host];
        let give_back = |body: &mut Body, lease| body.release(lease, false);
        let found = free_slots(&mut sleeper.body, Body::lease, give_back) as u32;
        ensure((slots - shared..=slots).contains(&found), "conserved", || {
            format!("h{host} lends {found} of {slots} slots")
        })?;
        for submitter in sleeper.submitters.iter_mut().flatten() {
            while let Some(failed) = submitter.failure() {
                failed
                    .lease
                    .into_iter()
                    .for_each(|lease| submitter.release(lease));
            }
            let found = free_slots(submitter, Submitter::lease, Submitter::release) as u32;
            ensure(found == submitter_slots, "conserved", || {
                format!("a submitter of h{host} lends {found} of {submitter_slots} slots")
            })?;
        }
        Ok(())
    }
}

impl Flow {
    /// Whether a message of it is neither there nor known as lost.
    fn awaits(&self) -> bool {
        self.came + self.lost < self.sent.len()
    }
}

impl End {
    fn is_ending(&self) -> bool {
        self.is_closing || self.is_gone || self.is_told.contains(&true)
    }
}

impl Sleeper {
    fn new(case: &Case, sleepy: &SleepCase, fabric: &Fabric, number: usize) -> anyhow::Result<Self> {
        let host = fabric.host(&format!("h{number}"), ports(case, number)?)?;
        let node = Arc::new(Node::simulated(host, Trust::unauthenticated_on_purpose())?);
        let of = &case.hosts[number];
        let mut config = WorkerConfig::default();
        (config.slots, config.slot_bytes) = (of.slots, of.slot_bytes);
        config.completion_depth = 512;
        config.channels_max = 16;
        config.lease_share_percent = sleepy.lease_share_percent;
        config.submissions_per_poll = sleepy.submissions_per_poll;
        config.shared_receives = of.shared_receives.map(|depth| {
            let mut shared = doorbell::worker::SharedReceivesConfig::default();
            (shared.depth, shared.repost_batch) = (depth, 4);
            shared
        });
        config.notify = if sleepy.is_solicited {
            Notify::Solicited
        } else {
            Notify::Every
        };
        let mut workers = node.workers(&config)?;
        anyhow::ensure!(workers.len() == 1, "a host that sleeps has one device");
        let mut worker = workers.remove(0);
        let mut submitting = SubmitterConfig::default();
        submitting.slot_bytes = of.slot_bytes;
        [submitting.slots, submitting.depth] = sleepy.submitter;
        let [own, sharing] = sleepy.submitters;
        let mut submitters = Vec::new();
        for _ in 0..own {
            submitters.push(Some(worker.submitter(&submitting)?));
        }
        if sharing > 0 {
            let made = worker.submitters(sharing, &submitting)?;
            submitters.extend(made.into_iter().map(Some));
        }
        Ok(Self {
            held: VecDeque::new(),
            submitters,
            body: Body::Whole(Box::new(worker)),
            node,
            naps: [None; 2],
            hold: 0,
            in_vain: (0, 0),
        })
    }
}

/// How the ends of lines learn that the other is gone: their Workers close them.
const fn endings(sleepy: &SleepCase) -> EndingsCase {
    EndingsCase {
        probe_after_ns: sleepy.probe_after_ns,
        is_left_to_worker: true,
        probe_timeouts_ms: sleepy.probe_timeouts_ms,
        is_cut: false,
    }
}
