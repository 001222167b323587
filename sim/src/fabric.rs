//! The fabric: every host, device and queue in one world behind one lock.
//!
//! Here is where objects are kept and found. What happens between them is `requester` and
//! `responder`, joined by `transport`.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use doorbell_core::ledger::QueueId;
use doorbell_core::provider::{AsyncEvent, DataInOrder};
use doorbell_core::{Gid, GidEntry, PortReport, PortState, Qpn, Rkey, SharedReceiveId};

use crate::completion::CompletionState;
use crate::memory::WindowState;
use crate::port::{ConfigError, PortConfig};
use crate::queue_pair::QueuePairState;
use crate::shared_receive::SharedReceiveState;
use crate::{Host, port};

/// Names an object of any kind: unique in the process, so that one of another fabric is
/// never taken for one of this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id(u64);

impl Id {
    pub(crate) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only the number matters. It does not come round.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The same number, as events about a shared receive queue of this name carry it.
    pub(crate) const fn to_shared_receive(self) -> SharedReceiveId {
        SharedReceiveId(self.0)
    }

    /// The same number, as completions of a queue of this name carry it.
    pub(crate) const fn to_queue(self) -> QueueId {
        QueueId(self.0)
    }
}

/// Names a device of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeviceId(pub(crate) usize);

/// Names a queue pair of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueuePairKey {
    pub(crate) device: DeviceId,
    pub(crate) qpn: Qpn,
}

/// A device of a host.
pub(crate) struct Device {
    pub(crate) host: Id,
    pub(crate) ports: Vec<PortReport>,
    pub(crate) data_in_order: DataInOrder,
    /// Where the search for the next queue pair number begins.
    next_qpn: u32,
    /// Where the next window is put.
    next_address: u64,
}

/// Queue pairs 0 and 1 are management's own; the numbers after them are left alone, too.
const QPN_FIRST: u32 = 16;
/// One more than the last queue pair number of 24 bits.
const QPN_END: u32 = 1 << 24;

/// Windows lie this far from zero and from each other, so that an address that is off by
/// less finds nothing.
const WINDOW_GAP_BYTES: u64 = 1 << 16;

/// Everything there is.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) devices: Vec<Device>,
    /// For each open context, the asynchronous events that were not taken yet.
    pub(crate) events: BTreeMap<Id, VecDeque<AsyncEvent>>,
    pub(crate) completion_queues: BTreeMap<Id, CompletionState>,
    pub(crate) queue_pairs: BTreeMap<QueuePairKey, QueuePairState>,
    pub(crate) shared_receives: BTreeMap<Id, SharedReceiveState>,
    pub(crate) windows: BTreeMap<(DeviceId, u32), WindowState>,
    /// How often a message found no receive.
    pub(crate) receivers_not_ready: u64,
    /// How many keys were drawn.
    keys_drawn: u64,
    /// Queue pairs that may have something to do.
    pub(crate) pending: VecDeque<QueuePairKey>,
    /// Queue pairs that are to enter the error state.
    pub(crate) failing: VecDeque<QueuePairKey>,
    /// Told whenever a completion queue notifies.
    pub(crate) notified: Arc<Condvar>,
}

impl World {
    /// Adds a host with its devices.
    fn add_host(&mut self, ports: &[PortConfig]) -> Result<Id, ConfigError> {
        let host = Id::fresh();
        let mut devices: Vec<Device> = Vec::new();
        for config in ports {
            let same = |device: &&mut Device| device.ports.iter().any(|port| *port.device == config.device);
            let known = devices.iter_mut().find(same);
            let number = known
                .as_ref()
                .map_or(1, |device| device.ports.len().saturating_add(1));
            let report = config.report(u8::try_from(number).map_err(|_| ConfigError::TooManyPorts)?)?;
            match known {
                Some(device) => {
                    device.ports.push(report);
                    device.data_in_order = device.data_in_order.min(config.data_in_order);
                }
                None => devices.push(Device {
                    host,
                    ports: vec![report],
                    data_in_order: config.data_in_order,
                    next_qpn: QPN_FIRST,
                    next_address: WINDOW_GAP_BYTES,
                }),
            }
        }
        let added = devices.iter().flat_map(|device| &device.ports);
        let mut gids: Vec<Gid> = self
            .devices
            .iter()
            .flat_map(|device| &device.ports)
            .chain(added)
            .flat_map(|port| port.gids.iter().map(|entry| entry.gid))
            .collect();
        gids.sort_unstable();
        let mut neighbours = gids.iter().zip(gids.iter().skip(1));
        if let Some((gid, _)) = neighbours.find(|(gid, next)| gid == next) {
            return Err(ConfigError::AddressTaken(gid.to_ip()));
        }
        self.devices.append(&mut devices);
        Ok(host)
    }

    pub(crate) fn device(&self, device: DeviceId) -> Option<&Device> {
        self.devices.get(device.0)
    }

    pub(crate) fn port(&self, device: DeviceId, number: u8) -> Option<&PortReport> {
        let index = usize::from(number).checked_sub(1)?;
        self.device(device)?.ports.get(index)
    }

    /// A queue pair number that no live queue pair of the device has.
    pub(crate) fn draw_qpn(&mut self, device: DeviceId) -> Option<Qpn> {
        let first = self.device(device)?.next_qpn;
        let raw = (first..QPN_END).chain(QPN_FIRST..first).find(|raw| {
            let key = Qpn::new(*raw).map(|qpn| QueuePairKey { device, qpn });
            key.is_some_and(|key| !self.queue_pairs.contains_key(&key))
        })?;
        let next = raw.saturating_add(1);
        self.devices.get_mut(device.0)?.next_qpn = if next == QPN_END { QPN_FIRST } else { next };
        Qpn::new(raw)
    }

    /// Where a window of this size begins: at a page of its own.
    pub(crate) fn draw_address(&mut self, device: DeviceId, bytes: usize) -> Option<u64> {
        let device = self.devices.get_mut(device.0)?;
        let address = device.next_address;
        device.next_address = address
            .checked_add(bytes as u64)?
            .checked_next_multiple_of(WINDOW_GAP_BYTES)?
            .checked_add(WINDOW_GAP_BYTES)?;
        Some(address)
    }

    /// A key that no window of the device has. The same ones come in each run, but none
    /// follows from the one before in a way that a mistaken caller could hit on.
    pub(crate) fn draw_rkey(&mut self, device: DeviceId) -> Rkey {
        loop {
            self.keys_drawn = self.keys_drawn.wrapping_add(1);
            let [_, _, _, _, low @ ..] = mix(self.keys_drawn).to_be_bytes();
            let key = u32::from_be_bytes(low);
            if key != 0 && !self.windows.contains_key(&(device, key)) {
                return Rkey(key);
            }
        }
    }

    /// Says something to the owner of a context.
    pub(crate) fn raise(&mut self, context: Id, event: AsyncEvent) {
        if let Some(events) = self.events.get_mut(&context) {
            events.push_back(event);
        }
    }

    /// The port that a `RoCEv2` GID belongs to.
    fn endpoint(&self, gid: Gid) -> Option<(DeviceId, &PortReport, &GidEntry)> {
        (0..).map(DeviceId).zip(&self.devices).find_map(|(id, device)| {
            device.ports.iter().find_map(|port| {
                let entry = port.usable_gids().find(|entry| entry.gid == gid)?;
                Some((id, port, entry))
            })
        })
    }

    /// The device and port a packet between two GIDs arrives at: both ports are active and
    /// on one subnet, each by its own prefix; or they are one port.
    pub(crate) fn route(&self, from: Gid, to: Gid) -> Option<(DeviceId, u8)> {
        let (from_device, from_port, from_entry) = self.endpoint(from)?;
        let (to_device, to_port, to_entry) = self.endpoint(to)?;
        let active = from_port.state == PortState::ACTIVE && to_port.state == PortState::ACTIVE;
        let loopback = (from_device, from_port.port) == (to_device, to_port.port);
        let on_link =
            |ours: &GidEntry, theirs: Gid| ours.address.is_some_and(|prefix| prefix.contains(theirs.to_ip()));
        let one_subnet = on_link(from_entry, to) && on_link(to_entry, from);
        (active && (loopback || one_subnet)).then_some((to_device, to_port.port))
    }
}

/// Spreads a counter over all bits, one to one: the finisher of `MurmurHash3`.
const fn mix(counter: u64) -> u64 {
    let mut word = counter;
    word = (word ^ (word >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    word = (word ^ (word >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ (word >> 33)
}

/// A network of simulated hosts. Clones are handles to the same one.
#[derive(Clone, Default)]
pub struct Fabric {
    world: Arc<Mutex<World>>,
}

impl Fabric {
    /// A network without hosts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a host with these ports. Two ports reach each other where each lies in the
    /// subnet of the other, and both are active.
    ///
    /// # Errors
    /// A name or the number of something is out of bounds, or an address is taken.
    pub fn host(&self, name: &str, ports: Vec<port::PortConfig>) -> Result<Host, ConfigError> {
        let host = self.lock().add_host(&ports)?;
        Ok(Host::new(self.clone(), host, name))
    }

    /// How often a message found no receive of the peer posted. Each time it is tried counts.
    #[must_use]
    pub fn receivers_not_ready(&self) -> u64 {
        self.lock().receivers_not_ready
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        // Nothing panics while it is held; were it so, each object would still be whole.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let world = self.lock();
        f.debug_struct("Fabric")
            .field("devices", &world.devices.len())
            .field("queue_pairs", &world.queue_pairs.len())
            .finish_non_exhaustive()
    }
}
