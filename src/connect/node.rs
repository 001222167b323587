//! The RDMA stack of a host: its devices and ports, its trust, and the making of Workers.

use core::fmt;
use core::time::Duration;
use std::sync::{Arc, PoisonError, RwLock};

use doorbell_core::network::{Network, NetworkError};
use doorbell_core::provider::{Provider, ProviderError};
use doorbell_core::rail::LocalRail;
use doorbell_core::wire::{InstanceId, Nonce};
use doorbell_core::{Deadline, PortReport, Psn};
use doorbell_ffi::Rdma;

use crate::connect::port_scan::PortScans;
use crate::error::{ConnectError, NodeError, Unrandom};
use crate::machine::log::log;
use crate::machine::makers::Makers;
use crate::machine::reaper::Reaper;
use crate::machine::tcp::Tcp;
use crate::rails::filter::RailFilter;
use crate::rails::scan::Scan;
use crate::rails::{Rails, rails_of};
use crate::trust::Trust;
use crate::worker::Worker;
use crate::worker::channel::ChannelId;
use crate::worker::config::WorkerConfig;

/// The number of threads that make queue pairs for attempts that are polled. It is the default of
/// [`HandshakeLimits::making`](crate::connect::HandshakeLimits). A neighbour that does not resolve blocks one thread for seconds.
const MAKERS: usize = 4;

/// The RDMA stack of one host in one process: its devices, the peers that it trusts, and the network for handshakes.
pub struct Node<P: Provider = Rdma, N: Network = Tcp> {
    pub(crate) provider: Arc<P>,
    pub(crate) network: N,
    /// Drawn at random for each Node, so that peers notice a restart.
    instance: InstanceId,
    /// Rules for the rails that are used.
    pub(crate) rail_filter: RailFilter,
    trust: RwLock<Trust>,
    makers: Makers,
    pub(crate) port_scans: PortScans,
    reaper: Reaper,
}

/// Identifies a new channel: its Worker and its id there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connection {
    /// The index of the channel's Worker in the slice that was passed to the call.
    pub worker: usize,
    /// The channel's id on that Worker.
    pub channel: ChannelId,
}

/// The random values of one connection attempt.
pub(crate) struct Entropy {
    pub(crate) nonce: Nonce,
    pub(crate) psn: Psn,
}

impl Entropy {
    pub(crate) fn new(network: &impl Network) -> Result<Self, Unrandom> {
        let psn = u32::from_le_bytes(random(network)?);
        Ok(Self {
            nonce: Nonce(random(network)?),
            psn: Psn::from_low_bits(psn),
        })
    }
}

fn random<const BYTES: usize>(network: &impl Network) -> Result<[u8; BYTES], Unrandom> {
    let mut bytes = [0; BYTES];
    match network.random(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(NetworkError { errno }) => Err(Unrandom(errno)),
    }
}

impl Node<Rdma> {
    /// Opens the RDMA stack of this host on libibverbs, for peers that `trust` accepts. The Node starts six threads. One destroys
    /// closed objects. Five scan the ports and make the queue pairs of polled connections ([`Connecting`](crate::connect::Connecting),
    /// [`Listener`](crate::Listener)), since these calls take milliseconds.
    ///
    /// # Errors
    /// libibverbs is not installed: the error names the package to install. Or the system gave no
    /// thread or no random bytes.
    pub fn open(trust: Trust) -> Result<Self, NodeError> {
        let mut node = Self::with_provider(Rdma::load().map_err(NodeError::Library)?, trust)?;
        let no_thread = |error: std::io::Error| NodeError::Thread(error.raw_os_error().unwrap_or(0));
        node.reaper = Reaper::background().map_err(no_thread)?;
        let makers = Makers::with_scans(MAKERS, &node.reaper).map_err(no_thread)?;
        // The thread that drops the Node may poll other objects, so the drop must not wait for a call of a device.
        node.makers = makers.detached();
        Ok(node)
    }
}

impl<P: Provider> Node<P> {
    /// Opens a Node on another provider, with handshakes over this host's TCP. A closed channel is destroyed at once, on the thread
    /// that closes it, and queue pairs are made on the thread that connects or accepts.
    ///
    /// # Errors
    /// The system gave no random bytes.
    pub fn with_provider(provider: P, trust: Trust) -> Result<Self, NodeError> {
        Self::with(provider, Tcp, trust)
    }
}

impl<H: Provider + Network + Clone> Node<H, H> {
    /// Opens a Node on a simulated host, which provides the devices and the network. All time, including that of handshakes, is
    /// the time of the fabric.
    ///
    /// Simulated streams have no descriptors, so an event loop cannot watch them. For a program with an event loop use
    /// [`Node::with_provider`] on a fabric in real time. [`Links::wait`](crate::link::Links::wait) works on either.
    ///
    /// # Errors
    /// The network gave no random bytes.
    pub fn simulated(host: H, trust: Trust) -> Result<Self, NodeError> {
        Self::with(host.clone(), host, trust)
    }
}

impl<P: Provider, N: Network> Node<P, N> {
    /// Opens a Node on another provider and another network, such as a simulated one. A closed channel is destroyed at once, on the
    /// thread that closes it, and queue pairs are made on the thread that connects or accepts.
    ///
    /// # Errors
    /// The network gave no random bytes.
    pub fn with(provider: P, network: N, trust: Trust) -> Result<Self, NodeError> {
        let drawn = random(&network).map_err(|Unrandom(errno)| NodeError::Entropy(errno))?;
        let instance = InstanceId::new(u64::from_le_bytes(drawn)).ok_or(NodeError::Entropy(0))?;
        Ok(Self {
            provider: Arc::new(provider),
            network,
            instance,
            rail_filter: RailFilter::default(),
            trust: RwLock::new(trust),
            makers: Makers::default(),
            port_scans: PortScans::default(),
            reaper: Reaper::default(),
        })
    }

    /// Returns the trust: which peers are accepted.
    #[must_use]
    pub fn trust(&self) -> Trust {
        // The value is replaced by one assignment, so a panic while the lock was held left it complete.
        self.trust.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the keys and subnets that decide which peers are trusted. Handshakes in progress end with the trust that they began
    /// with, and connections stay.
    pub fn set_trust(&self, trust: Trust) {
        *self.trust.write().unwrap_or_else(PoisonError::into_inner) = trust;
    }

    /// Returns the provider.
    #[must_use]
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// Returns the network of the handshakes.
    #[must_use]
    pub const fn network(&self) -> &N {
        &self.network
    }

    /// Scans the ports of the Workers' devices on the calling thread. The scan opens devices, which takes milliseconds.
    ///
    /// # Errors
    /// A Worker belongs to another Node, or the devices could not be listed.
    pub(crate) fn worker_rails(&self, workers: &[Worker<P>]) -> Result<Rails, ConnectError> {
        self.check(workers)?;
        let devices: Vec<_> = workers.iter().map(Worker::device).collect();
        let scan = self.scan()?;
        Ok(Rails::of_scan(&scan, &devices, &self.rail_filter))
    }

    /// Returns the deadline that is `span` from now, by the clock of this host.
    #[must_use]
    pub fn within(&self, span: Duration) -> Deadline {
        self.network.within(span)
    }

    /// Waits until all objects that were closed, dropped or abandoned before this call are destroyed. Returns whether this was done
    /// by the deadline. The call does not wait for connection attempts that are still in progress, nor for the threads of a background
    /// listener, for which [`Background::stop`](crate::connect::Background::stop) waits.
    pub fn settle(&self, deadline: Deadline) -> bool {
        let patience = || deadline.remaining(self.network.now());
        // A queue pair that is abandoned while it is made goes to the reaper afterwards, so the reaper is waited for last.
        self.makers.settle(patience()) && self.reaper.settle(patience())
    }

    /// Returns the number of panics in drops on the thread that destroys objects of this Node, for example in the drop of adopted
    /// memory. Each panic is caught, and later objects are still destroyed.
    #[must_use]
    pub fn drops_panicked(&self) -> u64 {
        self.reaper.panicked()
    }

    /// Queries every port of every device, usable or not.
    ///
    /// # Errors
    /// The devices could not be listed. A single device or port that fails is left out.
    pub fn ports(&self) -> Result<Vec<PortReport>, NodeError> {
        Ok(self.scan()?.ports)
    }

    /// Sets the rules that select which rails are used from now on. Default: all usable rails.
    ///
    /// Existing connections and the handles of listeners do not change. A peer that connects later is offered the rails that the
    /// rules allow at that time.
    pub fn set_rail_filter(&mut self, filter: RailFilter) {
        self.rail_filter = filter;
    }

    /// Returns the rules that select which rails are used.
    #[must_use]
    pub const fn rail_filter(&self) -> &RailFilter {
        &self.rail_filter
    }

    /// Returns every rail as it is now, in the order in which rails are offered to peers: fast lanes, then management lanes
    /// ([`Lane`](doorbell_core::rail::Lane)). Unused rails follow, each with its reason. A port without an address counts as an unused
    /// rail.
    ///
    /// # Errors
    /// The devices could not be listed. A single device or port that fails is left out.
    pub fn rails(&self) -> Result<Vec<LocalRail>, NodeError> {
        Ok(self.scan()?.rails(&self.rail_filter))
    }

    /// Returns the ports that no rule excludes but that are unused, wholly or in part (too many addresses), and the devices and ports
    /// that could not be queried. Each is listed once, with its reason. The list is empty if no port at all can be used: then
    /// [`Node::workers`] fails with the reasons.
    ///
    /// # Errors
    /// The devices could not be listed.
    pub fn passed_over(&self) -> Result<Vec<String>, NodeError> {
        Ok(self.scan()?.passed_over(&self.rail_filter))
    }

    fn scan(&self) -> Result<Scan, ProviderError> {
        Scan::of(&*self.provider)
    }

    /// Makes a Worker on the device of this name.
    ///
    /// # Errors
    /// There is no such device, the device cannot be opened, or it cannot provide the resources of the configuration.
    pub fn worker(&self, device: &str, config: &WorkerConfig) -> Result<Worker<P>, NodeError> {
        let known = self.scan()?.devices();
        if !known.iter().any(|name| name == device) {
            return Err(NodeError::NoSuchDevice {
                device: device.into(),
                known,
            });
        }
        self.worker_on(device, config)
    }

    /// Makes a Worker on each device with a usable rail. [`Node::passed_over`] lists ports that are not used.
    ///
    /// # Errors
    /// No device has a usable rail: the error lists each port with its reason. Or a device cannot be opened, or cannot provide the
    /// resources of the configuration.
    pub fn workers(&self, config: &WorkerConfig) -> Result<Vec<Worker<P>>, NodeError> {
        let scan = self.scan()?;
        let mut devices: Vec<&str> = scan
            .ports
            .iter()
            .filter(|report| rails_of(report, &self.rail_filter).any(|rail| rail.source.is_ok()))
            .map(|report| report.device.as_str())
            .collect();
        devices.dedup();
        if devices.is_empty() {
            return Err(NodeError::NothingUsable(scan.why_nothing(&self.rail_filter)));
        }
        for what in scan.passed_over(&self.rail_filter) {
            log!(warn, "passed over", what = what);
        }
        devices
            .into_iter()
            .map(|device| self.worker_on(device, config))
            .collect()
    }

    /// Makes a Worker on an existing device.
    fn worker_on(&self, device: &str, config: &WorkerConfig) -> Result<Worker<P>, NodeError> {
        config.check()?;
        let context = self.provider.open(device)?;
        let reaper = self.reaper.clone();
        Worker::new(context, device.into(), config, self.instance, reaper)
    }

    pub(crate) const fn instance(&self) -> InstanceId {
        self.instance
    }

    /// Returns the threads that make queue pairs and scan ports for callers that connect or accept by polling.
    pub(crate) const fn makers(&self) -> &Makers {
        &self.makers
    }

    /// Checks that these Workers belong to this Node.
    ///
    /// # Errors
    /// A Worker belongs to another Node.
    pub(crate) fn check(&self, workers: &[Worker<P>]) -> Result<(), ConnectError> {
        let is_own = |worker: &Worker<P>| worker.node == self.instance;
        match workers.iter().all(is_own) {
            true => Ok(()),
            false => Err(ConnectError::OtherTrust),
        }
    }

    /// Destroys closed objects by this reaper, also those of the Workers that are made from now on.
    #[cfg(test)]
    pub(crate) fn reaped_by(mut self, reaper: Reaper) -> Self {
        self.reaper = reaper;
        self
    }

    /// Returns the reaper of this Node and its Workers.
    pub(crate) const fn reaper(&self) -> &Reaper {
        &self.reaper
    }
}

impl<P: Provider, N: Network> fmt::Debug for Node<P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}
