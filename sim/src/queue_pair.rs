//! Queue pairs: how one is made, its state in the device, and its control side.
//!
//! The in-flight tables of the halves hold no slots here: a request takes its slots into the
//! device, which hands them back with it. The tables give out ids and judge completions.

use core::convert::Infallible;
use core::fmt;
use std::sync::Arc;

use doorbell_core::in_flight::{self, InFlight, storage_for};
use doorbell_core::provider::{
    AddressVector, AsyncEvent, ClaimedQueuePairParts, DataInOrder, GATHER_MAX, ProviderError,
    QueuePairConfig, QueuePairLimits, QueuePairParts, ReadyToReceive, ReadyToSend, ReceivesClaim,
    RemoteAccess, SharedQueuePairParts,
};
use doorbell_core::work_id::CHANNELS_MAX;
use doorbell_core::{Access, Gid, PortState, QpState, Qpn, WorkKind};

use crate::completion::CompletionKey;
use crate::datagram::Datagrams;
use crate::errno::{EINVAL, ENETUNREACH, ENOMEM, ETIMEDOUT, failed};
use crate::host::{DomainInner, INLINE_BYTES_INSTEAD, INLINE_BYTES_MAX, LIMITS};
use crate::id::Id;
use crate::quirks::Quirks;
use crate::receive::Receives;
use crate::requester::{Requester, Settings};
use crate::responder::Responder;
use crate::shared_receive::{SharedReceiveInner, SharedReceiveKey};
use crate::slab::Key;
use crate::world::{ContextKey, DeviceId, Route, World};
use crate::{Claim, CompletionQueue, Host, ReceiveQueue, SendQueue, SharedClaim, SharedReceiveQueue};

/// An in-flight table as a half embeds it.
pub(crate) type Table = InFlight<Infallible, Box<[in_flight::Request<Infallible>]>>;

/// Peer of a queue pair, from RTR on.
#[derive(Clone, Copy)]
pub(crate) struct Connection {
    /// Our own GID.
    pub(crate) source: Gid,
    pub(crate) attributes: ReadyToReceive,
}

/// A queue pair, as the device knows it.
pub(crate) struct QueuePairState {
    pub(crate) context: ContextKey,
    pub(crate) domain: Id,
    pub(crate) device: DeviceId,
    pub(crate) qpn: Qpn,
    pub(crate) state: QpState,
    pub(crate) send_completions: CompletionKey,
    pub(crate) receive_completions: CompletionKey,
    /// The shared receive queue it takes its receives from.
    pub(crate) shared: Option<SharedReceiveKey>,
    pub(crate) port: u8,
    /// Rights of the peer through this queue pair.
    pub(crate) access: Access,
    pub(crate) connection: Option<Connection>,
    /// State in place of a connection, if it sends datagrams.
    pub(crate) datagrams: Option<Datagrams>,
    /// The way its packets take, as long as the ports stay as they are.
    pub(crate) route: Option<Route>,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// Receives of its own.
    pub(crate) receives: Receives,
    /// When the last message came, in nanoseconds.
    pub(crate) arrived_at_ns: u64,
    /// When it is woken next.
    pub(crate) timer_at_ns: Option<u64>,
    /// It is about to send.
    pub(crate) is_transmitting: bool,
    /// An event is due once its send queue drained.
    pub(crate) reports_drained: bool,
    channel: u32,
    /// First generations of the next tables on the channel, once the halves are gone.
    next_generations: [u32; 2],
}

/// Names a queue pair of the fabric.
pub(crate) type QueuePairKey = Key<QueuePairState>;

impl QueuePairState {
    /// Whether it takes packets.
    pub(crate) const fn listens(&self) -> bool {
        matches!(
            self.state,
            QpState::ReadyToReceive
                | QpState::ReadyToSend
                | QpState::SendQueueDrain
                | QpState::SendQueueError
        )
    }

    /// Whether an event is about it.
    fn is_meant(&self, event: &AsyncEvent) -> bool {
        match event {
            AsyncEvent::QueuePairFatal(qpn)
            | AsyncEvent::QueuePairAccess(qpn)
            | AsyncEvent::QueuePairRequest(qpn)
            | AsyncEvent::CommunicationEstablished(qpn)
            | AsyncEvent::SendQueueDrained(qpn)
            | AsyncEvent::LastReceiveReached(qpn) => *qpn == self.qpn,
            _ => false,
        }
    }
}

/// A queue pair in the device, destroyed when its last part goes.
pub(crate) struct Shared {
    domain: Arc<DomainInner>,
    key: QueuePairKey,
    qpn: Qpn,
    /// The shared receive queue it takes its receives from, which outlives it.
    _receives: Option<Arc<SharedReceiveInner>>,
}

impl Shared {
    fn new(
        domain: &Arc<DomainInner>,
        (key, qpn): (QueuePairKey, Qpn),
        receives: Option<Arc<SharedReceiveInner>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            domain: Arc::clone(domain),
            key,
            qpn,
            _receives: receives,
        })
    }

    /// Gives `each` the world and the name of the queue pair, then runs the events that are due.
    pub(crate) fn with<T>(&self, each: impl FnOnce(&mut World, QueuePairKey) -> T) -> T {
        let mut world = self.domain.context().fabric().lock();
        let outcome = each(&mut world, self.key);
        world.settle();
        outcome
    }

    /// Gives `each` the world where nothing will happen for it.
    pub(crate) fn look<T>(&self, each: impl FnOnce(&mut World, QueuePairKey) -> T) -> T {
        each(&mut self.domain.context().fabric().lock(), self.key)
    }

    pub(crate) const fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) fn domain(&self) -> &DomainInner {
        &self.domain
    }

    /// To ERR: everything posted is flushed.
    pub(crate) fn fail(&self) -> Result<(), ProviderError> {
        self.with(|world, key| {
            let qp = world
                .queue_pairs
                .get(key)
                .filter(|qp| qp.state.may_become(QpState::Error));
            let device = qp.ok_or(failed("modify to ERR", EINVAL))?.device;
            if let Some(errno) = world.judge_shut(device) {
                return Err(failed("modify to ERR", errno));
            }
            world.failing.push_back(key);
            Ok(())
        })
    }

    /// The state the device says it is in.
    pub(crate) fn state(&self) -> QpState {
        self.look(|world, key| world.queue_pairs.get(key).map_or(QpState::Error, |qp| qp.state))
    }

    /// Notes where the next table on the channel begins, a half being dropped.
    pub(crate) fn park(&self, kind: WorkKind, next_generation: u32) {
        self.look(|world, key| {
            if let Some(qp) = world.queue_pairs.get_mut(key) {
                let [send, receive] = &mut qp.next_generations;
                *(if kind == WorkKind::Send { send } else { receive }) = next_generation;
            }
        });
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.look(|world, key| world.destroy(key));
    }
}

const CREATE: &str = "queue_pair";
const INVALID: ProviderError = failed(CREATE, EINVAL);

/// A queue pair of either type, with receives of its own.
pub(crate) struct Made {
    pub(crate) shared: Arc<Shared>,
    pub(crate) limits: QueuePairLimits,
    pub(crate) send: SendQueue,
    pub(crate) receive: ReceiveQueue,
}

impl Made {
    /// Splits a reliable connection into its parts.
    fn connected(self) -> QueuePairParts<Host> {
        QueuePairParts {
            send: self.send,
            receive: self.receive,
            control: QueuePair {
                shared: self.shared,
                limits: self.limits,
            },
        }
    }
}

/// Makes a queue pair in RESET, with receives of its own.
pub(crate) fn create(
    domain: &Arc<DomainInner>,
    send_completions: &CompletionQueue,
    receive_completions: &CompletionQueue,
    config: &QueuePairConfig,
) -> Result<QueuePairParts<Host>, ProviderError> {
    Ok(create_own(domain, send_completions, receive_completions, config)?.connected())
}

/// Makes what queue pairs of both types have.
pub(crate) fn create_own(
    domain: &Arc<DomainInner>,
    send_completions: &CompletionQueue,
    receive_completions: &CompletionQueue,
    config: &QueuePairConfig,
) -> Result<Made, ProviderError> {
    check(domain, &[send_completions, receive_completions], config)?;
    let sends = Claim::new(send_completions, WorkKind::Send, config.channel)?;
    let receives = Claim::new(receive_completions, WorkKind::Receive, config.channel)?;
    create_of_own(domain, sends, receives, config)
}

/// Makes a queue pair in RESET that takes its receives from a shared receive queue.
pub(crate) fn create_on(
    domain: &Arc<DomainInner>,
    receives: &SharedReceiveQueue,
    send_completions: &CompletionQueue,
    config: &QueuePairConfig,
) -> Result<SharedQueuePairParts<Host>, ProviderError> {
    check(domain, &[send_completions], config)?;
    check_shared(domain, receives.inner(), config)?;
    let sends = Claim::new(send_completions, WorkKind::Send, config.channel)?;
    create_of_shared(domain, sends, receives.inner(), config)
}

/// Makes a queue pair in RESET of what was claimed for it.
pub(crate) fn create_of(
    domain: &Arc<DomainInner>,
    sends: Claim,
    receives: ReceivesClaim<Host>,
    config: &QueuePairConfig,
) -> Result<ClaimedQueuePairParts<Host>, ProviderError> {
    check(domain, &[], config)?;
    match receives {
        ReceivesClaim::Own(receives) => {
            let made = create_of_own(domain, sends, receives, config)?;
            Ok(made.connected().into())
        }
        ReceivesClaim::Shared(SharedClaim(queue)) => {
            check_shared(domain, &queue, config)?;
            Ok(create_of_shared(domain, sends, &queue, config)?.into())
        }
    }
}

fn create_of_own(
    domain: &Arc<DomainInner>,
    sends: Claim,
    receives: Claim,
    config: &QueuePairConfig,
) -> Result<Made, ProviderError> {
    let context = domain.context();
    if !sends.is_for(context, WorkKind::Send, config.channel)
        || !receives.is_for(context, WorkKind::Receive, config.channel)
    {
        return Err(INVALID);
    }
    let generations = [sends.generation(), receives.generation()];
    let table = |kind, depth, generation| table(kind, config.channel, depth, generation).ok_or(INVALID);
    let send = table(WorkKind::Send, config.send_depth, sends.generation())?;
    let receive = table(WorkKind::Receive, config.receive_depth, receives.generation())?;
    let mut world = context.fabric().lock();
    let qpn = world.draw_qpn(context.device());
    let Some(qpn) = qpn else {
        // Claims are given back without the lock.
        drop(world);
        return Err(failed(CREATE, ENOMEM));
    };
    let key = world.insert(
        domain,
        qpn,
        [sends.key(), receives.key()],
        None,
        generations,
        config,
    );
    drop(world);
    let shared = Shared::new(domain, (key, qpn), None);
    let limits = limits(config, config.scatter_max.max(1));
    Ok(Made {
        send: SendQueue::new(Arc::clone(&shared), send, sends.keep(), &limits),
        receive: ReceiveQueue::new(Arc::clone(&shared), receive, receives.keep(), &limits),
        shared,
        limits,
    })
}

fn create_of_shared(
    domain: &Arc<DomainInner>,
    sends: Claim,
    receives: &Arc<SharedReceiveInner>,
    config: &QueuePairConfig,
) -> Result<SharedQueuePairParts<Host>, ProviderError> {
    let context = domain.context();
    if !sends.is_for(context, WorkKind::Send, config.channel) {
        return Err(INVALID);
    }
    let generation = sends.generation();
    let table = table(WorkKind::Send, config.channel, config.send_depth, generation).ok_or(INVALID)?;
    let mut world = context.fabric().lock();
    let qpn = world.draw_qpn(context.device());
    let Some(qpn) = qpn else {
        drop(world);
        return Err(failed(CREATE, ENOMEM));
    };
    let queues = [sends.key(), receives.completions()];
    let on = Some(receives.key());
    let key = world.insert(domain, qpn, queues, on, [generation, 0], config);
    drop(world);
    let shared = Shared::new(domain, (key, qpn), Some(Arc::clone(receives)));
    let limits = limits(config, 0);
    Ok(SharedQueuePairParts {
        send: SendQueue::new(Arc::clone(&shared), table, sends.keep(), &limits),
        control: QueuePair { shared, limits },
    })
}

/// Checks a config before any resource is taken.
fn check(
    domain: &DomainInner,
    completions: &[&CompletionQueue],
    config: &QueuePairConfig,
) -> Result<(), ProviderError> {
    let foreign = |queue: &&CompletionQueue| !Arc::ptr_eq(queue.context(), domain.context());
    let segments = usize::from(config.gather_max.max(config.scatter_max));
    if completions.iter().any(foreign) || config.channel >= CHANNELS_MAX || segments > GATHER_MAX {
        return Err(INVALID);
    }
    Ok(())
}

/// Whether receives of this queue can be its.
fn check_shared(
    domain: &Arc<DomainInner>,
    receives: &SharedReceiveInner,
    config: &QueuePairConfig,
) -> Result<(), ProviderError> {
    let of_this_domain = Arc::ptr_eq(receives.domain(), domain);
    if !of_this_domain || config.receive_depth != 0 || config.scatter_max != 0 {
        return Err(INVALID);
    }
    Ok(())
}

fn limits(config: &QueuePairConfig, scatter_max: u8) -> QueuePairLimits {
    QueuePairLimits {
        send_depth: config.send_depth,
        receive_depth: config.receive_depth,
        gather_max: config.gather_max.max(1),
        scatter_max,
        inline_bytes_max: match config.inline_bytes_max {
            asked @ ..=INLINE_BYTES_MAX => asked,
            _ => INLINE_BYTES_INSTEAD,
        },
    }
}

fn table(kind: WorkKind, channel: u32, depth: u32, generation: u32) -> Option<Table> {
    let requests = core::iter::repeat_with(in_flight::Request::default).take(storage_for(depth)?);
    InFlight::new(requests.collect(), kind, channel, depth, generation).ok()
}

impl World {
    /// Puts a queue pair into the world, in RESET.
    fn insert(
        &mut self,
        domain: &DomainInner,
        qpn: Qpn,
        [send_completions, receive_completions]: [CompletionKey; 2],
        shared: Option<SharedReceiveKey>,
        next_generations: [u32; 2],
        config: &QueuePairConfig,
    ) -> QueuePairKey {
        let device = domain.context().device();
        let state = QueuePairState {
            context: domain.context().key(),
            domain: domain.id(),
            device,
            qpn,
            state: QpState::Reset,
            send_completions,
            receive_completions,
            shared,
            port: 0,
            access: Access::empty(),
            connection: None,
            datagrams: None,
            route: None,
            requester: Requester::default(),
            responder: Responder::default(),
            receives: Receives::default(),
            arrived_at_ns: 0,
            timer_at_ns: None,
            is_transmitting: false,
            reports_drained: false,
            channel: config.channel,
            next_generations,
        };
        let key = self.queue_pairs.insert(state);
        self.assign_qpn(device, qpn, Some(key));
        key
    }

    /// Takes a queue pair out of the world.
    fn destroy(&mut self, key: QueuePairKey) {
        let Some(mut qp) = self.queue_pairs.remove(key) else {
            return;
        };
        self.assign_qpn(qp.device, qp.qpn, None);
        // Events that are not taken by now are never reported (S24).
        self.forget_events(qp.context, |event| qp.is_meant(event));
        let requests = qp
            .requester
            .outstanding()
            .saturating_add(qp.requester.unretired());
        self.tally.requests.destroyed_more(requests);
        let held = qp.responder.stop();
        // Receives that never completed go home with the state. A shared receive that a message had begun to
        // fill goes home with its queue.
        if let Some(shared) = qp.shared.and_then(|shared| self.shared_receives.get_mut(shared)) {
            held.into_iter().for_each(|receive| shared.end(receive));
        } else {
            let own = qp.receives.counts().iter().sum::<usize>();
            let held = usize::from(held.is_some());
            self.tally.receives.destroyed_more(own.saturating_add(held));
        }
        let [send, receive] = qp.next_generations;
        let own = (WorkKind::Receive, qp.receive_completions, receive);
        let ends = [
            Some((WorkKind::Send, qp.send_completions, send)),
            qp.shared.is_none().then_some(own),
        ];
        for (kind, queue, next_generation) in ends.into_iter().flatten() {
            if let Some(queue) = self.completion_queues.get_mut(queue) {
                queue.give_channel_back(kind, qp.channel, next_generation);
            }
        }
    }

    /// Brings a queue pair to INIT on a port, by `change`.
    pub(crate) fn initialize(
        &mut self,
        key: QueuePairKey,
        call: &'static str,
        port: u8,
        change: impl FnOnce(&mut QueuePairState),
    ) -> Result<(), ProviderError> {
        let device = self.queue_pairs.get(key).map(|qp| qp.device);
        let found = device.and_then(|device| self.port(device, port));
        found.ok_or(failed(call, EINVAL))?;
        self.modify(key, call, (QpState::Reset, QpState::Init), |qp| {
            qp.port = port;
            change(qp);
        })
    }

    /// Brings a queue pair to its next state by `change`, where it is in `from`.
    pub(crate) fn modify(
        &mut self,
        key: QueuePairKey,
        call: &'static str,
        (from, next): (QpState, QpState),
        change: impl FnOnce(&mut QueuePairState),
    ) -> Result<(), ProviderError> {
        let qp = self.queue_pairs.get_mut(key).filter(|qp| qp.state == from);
        let qp = qp.ok_or(failed(call, EINVAL))?;
        change(qp);
        qp.state = next;
        Ok(())
    }

    /// Our own GID for these attributes, where the device would take them.
    fn resolve(
        &self,
        key: QueuePairKey,
        call: &'static str,
        wanted: &ReadyToReceive,
    ) -> Result<Gid, ProviderError> {
        let invalid = failed(call, EINVAL);
        let qp = self.queue_pairs.get(key).ok_or(invalid)?;
        let port = self.port(qp.device, qp.port).ok_or(invalid)?;
        if wanted.min_rnr_timer > 31
            || wanted.address.port != qp.port
            || self.quirks(qp.device).path_mtus_are_checked
                && port.active_mtu.is_none_or(|mtu| wanted.path_mtu > mtu)
            || wanted.max_dest_rd_atomic > LIMITS.max_dest_rd_atomic
        {
            return Err(invalid);
        }
        self.resolve_address(qp.device, call, &wanted.address)
    }

    /// Our own GID on the way to an address, where the device would take it.
    pub(crate) fn resolve_address(
        &self,
        device: DeviceId,
        call: &'static str,
        address: &AddressVector,
    ) -> Result<Gid, ProviderError> {
        let invalid = failed(call, EINVAL);
        let port = self.port(device, address.port).ok_or(invalid)?;
        let ours = port
            .usable_gids()
            .find(|entry| entry.index == u32::from(address.source_gid_index));
        let ours = ours.ok_or(invalid)?;
        if address.flow_label > 0x000f_ffff || address.service_level > 15 {
            return Err(invalid);
        }
        if self.ends(ours.gid, address.destination).is_some() {
            return Ok(ours.gid);
        }
        // Off the subnet there is no route; on it, nobody answers.
        let on_link = ours
            .address
            .is_some_and(|prefix| prefix.contains(address.destination.to_ip()));
        let neighbour_is_sought = on_link && port.state == PortState::ACTIVE;
        Err(failed(
            call,
            if neighbour_is_sought {
                ETIMEDOUT
            } else {
                ENETUNREACH
            },
        ))
    }
}

/// The control side of a queue pair.
pub struct QueuePair {
    shared: Arc<Shared>,
    limits: QueuePairLimits,
}

impl doorbell_core::provider::QueuePair for QueuePair {
    type SendQueue = SendQueue;
    type ReceiveQueue = ReceiveQueue;

    fn qpn(&self) -> Qpn {
        self.shared.qpn
    }

    fn limits(&self) -> QueuePairLimits {
        self.limits
    }

    fn initialize(&mut self, port: u8, remote: RemoteAccess) -> Result<(), ProviderError> {
        const CALL: &str = "modify to INIT";
        self.shared.with(|world, key| {
            world.initialize(key, CALL, port, |qp| {
                // LOCAL_WRITE is a right of registrations.
                qp.access = remote.to_access().difference(Access::LOCAL_WRITE);
            })
        })
    }

    fn ready_to_receive(&mut self, wanted: &ReadyToReceive) -> Result<(), ProviderError> {
        const CALL: &str = "modify to RTR";
        self.shared.with(|world, key| {
            let in_init = world
                .queue_pairs
                .get(key)
                .is_some_and(|qp| qp.state == QpState::Init);
            if !in_init {
                return Err(failed(CALL, EINVAL));
            }
            let source = world.resolve(key, CALL, wanted)?;
            world.modify(key, CALL, (QpState::Init, QpState::ReadyToReceive), |qp| {
                qp.connection = Some(Connection {
                    source,
                    attributes: *wanted,
                });
                qp.responder.set(*wanted);
            })
        })
    }

    fn ready_to_send(&mut self, wanted: &ReadyToSend) -> Result<(), ProviderError> {
        const CALL: &str = "modify to RTS";
        let valid = (1..=31).contains(&wanted.timeout)
            && wanted.retry_count <= 7
            && wanted.rnr_retry <= 7
            && wanted.max_rd_atomic <= LIMITS.max_rd_atomic;
        if !valid {
            return Err(failed(CALL, EINVAL));
        }
        self.shared.with(|world, key| {
            let device = world.queue_pairs.get(key).map(|qp| qp.device);
            let quirks = device.map_or(Quirks::IBA, |device| *world.quirks(device));
            world.modify(key, CALL, (QpState::ReadyToReceive, QpState::ReadyToSend), |qp| {
                // It came through RTR, where it was connected.
                let Some(connection) = &qp.connection else {
                    return;
                };
                qp.requester.set(Settings {
                    domain: qp.domain,
                    destination_qpn: connection.attributes.destination_qpn,
                    mtu_bytes: connection.attributes.path_mtu.bytes() as usize,
                    sending: *wanted,
                    quirks,
                });
            })
        })
    }

    fn drain(&mut self) -> Result<(), ProviderError> {
        self.shared.with(World::drain)
    }

    fn resume(&mut self) -> Result<(), ProviderError> {
        self.shared
            .with(|world, key| world.go_on(key, QpState::SendQueueDrain))
    }

    fn reset(&mut self, send: &mut SendQueue, receive: &mut ReceiveQueue) -> Result<(), ProviderError> {
        if !send.is_of(&self.shared) || !receive.is_of(&self.shared) {
            return Err(failed("modify to RESET", EINVAL));
        }
        let forgotten = self.shared.with(World::reset)?;
        send.forget(forgotten);
        receive.forget();
        Ok(())
    }

    fn fail(&mut self) -> Result<(), ProviderError> {
        self.shared.fail()
    }

    fn data_in_order(&self) -> DataInOrder {
        self.shared.look(|world, key| {
            let device = world.queue_pairs.get(key).map(|qp| qp.device);
            let device = device.and_then(|device| world.device(device));
            device.map_or(DataInOrder::No, |device| device.data_in_order)
        })
    }

    fn state(&self) -> Result<QpState, ProviderError> {
        Ok(self.shared.state())
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("qpn", &self.shared.qpn)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
