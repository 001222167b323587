//! The world of a fabric: every host, device, queue and packet, in virtual time.
//!
//! Here is where objects are kept, and what happens to a queue pair apart from packets. How
//! hosts reach each other is `network`, how packets go `traffic`, and what happens next `run`.

mod faults;
mod names;
mod network;
mod record;
mod run;
mod states;
mod streams;
mod traffic;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use doorbell_core::provider::{AsyncEvent, Slot as _};
use doorbell_core::{Gid, QpState, Qpn, WcStatus};

use crate::capture::Capture;
use crate::completion::{CompletionEntry, CompletionState};
use crate::event::{Event, Events};
use crate::link::{LinkConfig, Links};
use crate::oracle::{self, Tally, Violation};
use crate::packet::pool::Pool;
use crate::plan::UnknownName;
use crate::queue_pair::{QueuePairKey, QueuePairState};
use crate::quirks::Quirks;
use crate::random::Random;
use crate::receive::Receive;
use crate::requester::Request;
use crate::shared_receive::{SharedReceiveKey, SharedReceiveState};
use crate::slab::{Key, Slab};
use crate::timeline::Recorder;
use crate::window::Windows;
use faults::Faults;

pub(crate) use network::{Device, DeviceId, HostId, HostState, PortPlace, Route};
pub(crate) use streams::SegmentKey;
use streams::Streams;

/// An open device.
pub(crate) struct ContextState {
    device: DeviceId,
    /// The asynchronous events that were not taken yet.
    events: VecDeque<AsyncEvent>,
}

/// Names one.
pub(crate) type ContextKey = Key<ContextState>;

/// The threads that have used a fabric so far.
#[derive(Clone, Copy)]
enum User {
    Nobody,
    /// One, by the address of a variable of its own.
    Thread(usize),
    Threads,
}

/// Everything there is.
pub(crate) struct World {
    now_ns: u64,
    /// When the fabric was made, by its clock.
    began_ns: u64,
    events: Events,
    /// The thread that uses the fabric, while it is the only one that ever did.
    user: User,
    /// Whether time passes only at the caller's request.
    pub(crate) is_driven: bool,
    /// How long each call takes, if the fabric is driven.
    pub(crate) call_ns: u64,
    pub(crate) random: Random,
    /// Chance that hosts ask for, apart from that of the world.
    pub(crate) entropy: Random,
    pub(crate) link: LinkConfig,
    hosts: Vec<HostState>,
    devices: Vec<Device>,
    ports: Vec<PortPlace>,
    /// The port of each address.
    gids: BTreeMap<Gid, u32>,
    /// Counts the changes by which a way may come or go.
    topology: u64,
    links: Links,
    faults: Faults,
    /// Names in plans that nothing had when their clause was due.
    unknown: Vec<UnknownName>,
    /// Whether such names are not printed.
    pub(crate) allows_unknown_names: bool,
    contexts: Slab<ContextState>,
    pub(crate) completion_queues: Slab<CompletionState>,
    pub(crate) queue_pairs: Slab<QueuePairState>,
    pub(crate) shared_receives: Slab<SharedReceiveState>,
    pub(crate) windows: Windows,
    /// Each arena has one more of it, until the last of its slots is gone.
    pub(crate) arenas: Arc<()>,
    packets: Pool,
    pub(crate) streams: Streams,
    pub(crate) tally: Tally,
    /// Queue pairs that are to enter the error state.
    pub(crate) failing: VecDeque<QueuePairKey>,
    /// Queue pairs whose receives took a message again, as they failed: an entry each.
    repeated: Vec<(DeviceId, Qpn)>,
    /// Something completed, or an event was raised, since this was last asked.
    pub(crate) news: bool,
    /// Something happened that others may wait for, in real time; and the number of the last planned event that the
    /// thread was notified of.
    pub(crate) moved: bool,
    notified: u64,
    /// Nobody has a handle to the fabric any more, where a thread drives it.
    pub(crate) is_over: bool,
    /// The captured packets, if packets are captured.
    pub(crate) capture: Option<Capture>,
    /// The recorder of events, if they are recorded.
    recorder: Option<Box<Recorder>>,
}

impl World {
    pub(crate) fn new(seed: u64, link: LinkConfig, is_driven: bool, began_ns: u64) -> Self {
        Self {
            now_ns: began_ns,
            began_ns,
            events: Events::default(),
            user: User::Nobody,
            is_driven,
            call_ns: 0,
            random: Random::new(seed),
            entropy: Random::new(!seed),
            link,
            hosts: Vec::new(),
            devices: Vec::new(),
            ports: Vec::new(),
            gids: BTreeMap::new(),
            topology: 0,
            links: Links::default(),
            faults: Faults::default(),
            unknown: Vec::new(),
            allows_unknown_names: false,
            contexts: Slab::default(),
            completion_queues: Slab::default(),
            queue_pairs: Slab::default(),
            shared_receives: Slab::default(),
            windows: Windows::default(),
            arenas: Arc::default(),
            packets: Pool::default(),
            streams: Streams::default(),
            tally: Tally::default(),
            failing: VecDeque::new(),
            repeated: Vec::new(),
            news: false,
            moved: false,
            notified: 0,
            is_over: false,
            capture: None,
            recorder: None,
        }
    }

    /// Notes that the present thread uses the fabric.
    pub(crate) fn note_user(&mut self) {
        thread_local!(static HERE: u8 = const { 0 });
        let here = HERE.with(|here| core::ptr::from_ref(here).addr());
        match self.user {
            User::Nobody => self.user = User::Thread(here),
            User::Thread(there) if there != here => self.user = User::Threads,
            User::Thread(_) | User::Threads => {}
        }
    }

    /// Whether several threads have used the fabric so far.
    pub(crate) const fn is_shared(&self) -> bool {
        matches!(self.user, User::Threads)
    }

    /// Whether something happened or was planned since this was last asked.
    pub(crate) fn has_moved(&mut self) -> bool {
        let planned = core::mem::replace(&mut self.notified, self.events.planned()) != self.events.planned();
        core::mem::take(&mut self.moved) || planned
    }

    /// How many hosts there are.
    pub(crate) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// How many devices and queue pairs there are.
    pub(crate) fn counts(&self) -> [usize; 2] {
        [self.devices.len(), self.queue_pairs.len()]
    }

    /// How many completion queues and shared receive queues there are.
    pub(crate) fn queues(&self) -> usize {
        self.completion_queues
            .len()
            .saturating_add(self.shared_receives.len())
    }

    /// How many windows and arenas there are.
    pub(crate) fn registrations(&self) -> usize {
        let arenas = Arc::strong_count(&self.arenas).saturating_sub(1);
        self.windows.len().saturating_add(arenas)
    }

    pub(crate) fn open(&mut self, device: DeviceId) -> ContextKey {
        self.contexts.insert(ContextState {
            device,
            events: VecDeque::new(),
        })
    }

    pub(crate) fn close(&mut self, context: ContextKey) {
        self.contexts.remove(context);
    }

    /// Says something to the owner of a context.
    pub(crate) fn raise(&mut self, context: ContextKey, event: AsyncEvent) {
        if let Some(context) = self.contexts.get_mut(context) {
            context.events.push_back(event);
            self.news = true;
        }
    }

    pub(crate) fn next_event(&mut self, context: ContextKey) -> Option<AsyncEvent> {
        self.contexts.get_mut(context)?.events.pop_front()
    }

    /// Takes back what was said of something that is gone (S24).
    pub(crate) fn forget_events(&mut self, context: ContextKey, is_meant: impl Fn(&AsyncEvent) -> bool) {
        if let Some(context) = self.contexts.get_mut(context) {
            context.events.retain(|event| !is_meant(event));
        }
    }

    /// Posts requests, as many as the device takes; says how many, and why not the rest.
    pub(crate) fn post_requests(
        &mut self,
        key: QueuePairKey,
        staged: &mut Vec<Request>,
    ) -> (u32, Option<i32>) {
        let Some(qp) = self.queue_pairs.get(key) else {
            return (0, None);
        };
        let device = qp.device;
        let refused = self.judge_post(device, staged);
        if let Some((taken, errno)) = refused {
            self.record_refused_post(key, taken, errno);
        }
        let taken = refused.map_or(staged.len(), |(taken, _)| taken.min(staged.len()));
        let Some(qp) = self.queue_pairs.get_mut(key) else {
            return (0, None);
        };
        self.tally.requests.posted_more(taken);
        qp.requester.post(staged.drain(..taken).map(|mut request| {
            request.seal = oracle::seal_of_request(&request);
            request
        }));
        let state = qp.state;
        if matches!(state, QpState::Error | QpState::SendQueueError) {
            let is_lost = state == QpState::Error;
            let vanish = is_lost && self.quirks_of(key).late_requests_vanish;
            self.flush_requests(key, vanish);
            if is_lost {
                self.flush_receives(key);
            }
        } else {
            self.kick(key);
        }
        (count_of(taken), refused.map(|(_, errno)| errno))
    }

    /// Posts receives to a queue pair of its own, as many as the device takes. Returns how many, and why not the rest.
    pub(crate) fn post_receives(
        &mut self,
        key: QueuePairKey,
        staged: &mut Vec<Receive>,
    ) -> (u32, Option<i32>) {
        let device = self.queue_pairs.get(key).map(|qp| qp.device);
        let refused = device.and_then(|device| self.judge_receive_post(device, staged.len()));
        if let Some((taken, errno)) = refused {
            self.record_refused_post(key, taken, errno);
        }
        let Some(qp) = self.queue_pairs.get_mut(key) else {
            return (count_of(staged.len()), None);
        };
        let taken = refused.map_or(staged.len(), |(taken, _)| taken);
        self.tally.receives.posted_more(taken);
        qp.receives.post(staged.drain(..taken));
        if qp.state == QpState::Error && self.quirks_of(key).late_receives_are_flushed {
            self.flush_receives(key);
        }
        (count_of(taken), refused.map(|(_, errno)| errno))
    }

    /// Posts receives to a shared receive queue, as many as the device takes. Returns how many, and why not the rest.
    pub(crate) fn post_shared_receives(
        &mut self,
        key: SharedReceiveKey,
        staged: &mut Vec<Receive>,
    ) -> (u32, Option<i32>) {
        let context = self.shared_receives.get(key).map(|state| state.context);
        let device = context.and_then(|context| Some(self.contexts.get(context)?.device));
        let refused = device.and_then(|device| self.judge_receive_post(device, staged.len()));
        let Some(state) = self.shared_receives.get_mut(key) else {
            return (count_of(staged.len()), None);
        };
        let taken = refused.map_or(staged.len(), |(taken, _)| taken);
        self.tally.receives.posted_more(taken);
        state.post(staged.drain(..taken));
        (count_of(taken), refused.map(|(_, errno)| errno))
    }

    pub(crate) fn quirks_of(&self, key: QueuePairKey) -> Quirks {
        let device = self.queue_pairs.get(key).map(|qp| qp.device);
        device.map_or(Quirks::IBA, |device| *self.quirks(device))
    }

    /// Lets a queue pair send, as soon as time goes on.
    fn kick(&mut self, key: QueuePairKey) {
        let qp = self.queue_pairs.get_mut(key);
        if let Some(qp) = qp.filter(|qp| !qp.is_transmitting) {
            qp.is_transmitting = true;
            self.events.push(self.now_ns, Event::Transmit(key));
        }
    }

    /// Brings queue pairs to ERR that are to fail, and flushes them.
    fn fail_pending(&mut self) {
        while let Some(key) = self.failing.pop_front() {
            let Some(qp) = self.queue_pairs.get_mut(key) else {
                continue;
            };
            if qp.state == QpState::Error || !qp.state.may_become(QpState::Error) {
                continue;
            }
            qp.state = QpState::Error;
            let (context, qpn, shares) = (qp.context, qp.qpn, qp.shared.is_some());
            self.record_failure(key);
            self.repeat_newest(key);
            self.flush_requests(key, false);
            self.flush_receives(key);
            if shares && self.quirks_of(key).last_receive_is_reported {
                // Receives in the shared queue stay for its other queue pairs (S22).
                self.raise(context, AsyncEvent::LastReceiveReached(qpn));
            }
        }
    }

    /// Ends every request that did not end, in order (S6).
    fn flush_requests(&mut self, key: QueuePairKey, silently: bool) {
        if let Some(qp) = self.queue_pairs.get_mut(key) {
            qp.requester.flush(silently);
            self.complete_due(key);
        }
    }

    /// Writes the completions of requests that are due.
    fn complete_due(&mut self, key: QueuePairKey) {
        while let Some(qp) = self.queue_pairs.get_mut(key) {
            let Some(entry) = qp.requester.poll_due() else {
                return;
            };
            let queue = qp.send_completions;
            self.complete(key, queue, entry);
        }
    }

    /// Ends the receive a message had begun to fill, and every other of its own, in order (S6).
    fn flush_receives(&mut self, key: QueuePairKey) {
        let held = self.queue_pairs.get_mut(key).and_then(|qp| qp.responder.stop());
        if let Some(receive) = held {
            self.flush_receive(key, receive);
        }
        while let Some(receive) = self.queue_pairs.get_mut(key).and_then(|qp| qp.receives.take()) {
            self.flush_receive(key, receive);
        }
    }

    /// Delivers the message that came last again, into every receive, where a device that fails does so.
    fn repeat_newest(&mut self, key: QueuePairKey) {
        let window_ns = self.quirks_of(key).repeats_failing_ns;
        let Some(qp) = self.queue_pairs.get_mut(key).filter(|_| window_ns > 0) else {
            return;
        };
        let passed_ns = self.now_ns.saturating_sub(qp.arrived_at_ns);
        let Some((entry, bytes)) = qp.responder.take_newest().filter(|_| passed_ns <= window_ns) else {
            return;
        };
        while let Some(mut receive) = self.take_receive(key) {
            let Some(qp) = self.queue_pairs.get(key) else {
                return;
            };
            let (domain, queue) = (qp.domain, qp.receive_completions);
            let whose = (qp.device, qp.qpn);
            let has_room = receive.slots.capacity_bytes() >= bytes.len();
            let copied = receive
                .slots
                .copy_in(0, &bytes, domain, |slot| slot.capacity_bytes());
            if !has_room || copied.is_err() {
                // It ends like those behind it.
                self.flush_receive(key, receive);
                return;
            }
            receive.seal(bytes.len());
            let entry = CompletionEntry {
                work_id: receive.work_id,
                ..entry
            };
            self.end_receive(key, receive);
            self.repeated.push(whose);
            self.complete(key, queue, entry);
        }
    }

    /// How many receives of a host's device, or of one of its queue pairs, took a message again.
    pub(crate) fn repeated(&self, host: &str, device: &str, qpn: Option<Qpn>) -> u64 {
        let host = self.hosts.iter().position(|known| known.name == host);
        let Some(device) = host.and_then(|host| self.find_device(HostId(host), device)) else {
            return 0;
        };
        let is_of = |whose: &&(DeviceId, Qpn)| whose.0 == device && qpn.is_none_or(|qpn| qpn == whose.1);
        self.repeated.iter().filter(is_of).count() as u64
    }

    /// How many receives of its own a queue pair of a host's device has that may receive.
    pub(crate) fn receives_posted(&self, host: &str, device: &str, qpn: Qpn) -> Option<usize> {
        let host = self.hosts.iter().position(|known| known.name == host)?;
        let device = self.find_device(HostId(host), device)?;
        let key = self.devices.get(device.0)?.numbers.find(qpn)?;
        let qp = self.queue_pairs.get(key)?;
        let receives = matches!(qp.state, QpState::ReadyToReceive | QpState::ReadyToSend);
        (receives && qp.shared.is_none()).then(|| qp.receives.counts()[0])
    }

    /// Takes the next receive, of its own or of those it shares.
    fn take_receive(&mut self, key: QueuePairKey) -> Option<Receive> {
        let qp = self.queue_pairs.get_mut(key)?;
        match qp.shared {
            Some(shared) => self.shared_receives.get_mut(shared)?.take(),
            None => qp.receives.take(),
        }
    }

    /// Keeps a receive that ended until it is retired.
    fn end_receive(&mut self, key: QueuePairKey, receive: Receive) {
        if let Some(qp) = self.queue_pairs.get_mut(key) {
            match qp.shared.and_then(|shared| self.shared_receives.get_mut(shared)) {
                Some(shared) => shared.end(receive),
                None => qp.receives.end(receive),
            }
        }
    }

    fn flush_receive(&mut self, key: QueuePairKey, receive: Receive) {
        let Some(qp) = self.queue_pairs.get(key) else {
            return;
        };
        let entry = CompletionEntry::of(receive.work_id, WcStatus::WR_FLUSH_ERR);
        let queue = qp.receive_completions;
        self.end_receive(key, receive);
        self.complete(key, queue, entry);
    }

    /// Looks whether everything that was posted and sent is accounted for.
    ///
    /// # Errors
    /// The first violation, or one that was seen earlier.
    pub(crate) fn audit(&self) -> Result<Tally, Violation> {
        let tally = self.tally;
        if let Some(violation) = tally.violation {
            return Err(violation);
        }
        let (mut requests, mut receives) = (0_usize, 0_usize);
        for (_, qp) in self.queue_pairs.iter() {
            let held = usize::from(qp.responder.holds());
            requests = requests.saturating_add(
                qp.requester
                    .outstanding()
                    .saturating_add(qp.requester.unretired()),
            );
            receives =
                receives.saturating_add(qp.receives.counts().iter().sum::<usize>().saturating_add(held));
        }
        for (_, shared) in self.shared_receives.iter() {
            receives = receives.saturating_add(shared.counts().iter().sum());
        }
        let balanced = |(began, known): (u64, u64), violation: fn(u64, u64) -> Violation| {
            if began == known {
                Ok(())
            } else {
                Err(violation(began, known))
            }
        };
        balanced(tally.requests.balance(requests), Violation::Requests)?;
        balanced(tally.receives.balance(receives), Violation::Receives)?;
        let counted = tally.packets;
        let known = [counted.delivered, counted.lost, counted.corrupt, counted.unheard];
        let known = known.iter().fold(self.packets.under_way() as u64, |sum, more| {
            sum.wrapping_add(*more)
        });
        balanced((counted.sent, known), Violation::Packets)?;
        Ok(tally)
    }
}

/// How many requests of one queue these are: at most its depth.
fn count_of(requests: usize) -> u32 {
    u32::try_from(requests).unwrap_or(u32::MAX)
}
