//! A host of a run: its node, Workers, memory, and what its application holds on to.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;

use anyhow::{Context as _, Result};
use doorbell::link::LinkConfig;
use doorbell::provider::{Clock as _, IpPrefix, Mtu};
use doorbell::wire::PrivateData;
use doorbell::worker::{SharedReceivesConfig, Submitter, SubmitterConfig};
use doorbell::{
    ChannelConfig, ChannelId, Lease, Listener, LocalWindow, Node, NodeError, Notify, RemoteAccess, Trust,
    WindowConfig, Worker, WorkerConfig,
};
use doorbell_sim::{Fabric, Host, PortConfig};

use crate::bond::Kept;
use crate::case::{Case, EndingsCase, HostCase, LineCase, Scene, What};
use crate::classes::Watched;
use crate::datagrams::Office;
use crate::linked::MESSAGE_BYTES_MAX;

/// Each line's part of each window.
pub(crate) const REGION_BYTES: usize = 8192;
/// The offset of the counter that peers add to.
pub(crate) const COUNTER_AT: usize = 0;
/// The offset of the bytes that peers read.
pub(crate) const RESTING_AT: usize = 64;
pub(crate) const RESTING_BYTES: usize = 3072;
/// The offset of the cells that peers write, and their number.
pub(crate) const CELLS_AT: usize = 4096;
pub(crate) const CELLS: usize = 4;
pub(crate) const CELL_BYTES: usize = 1024;

/// Slots of each submitter.
pub(crate) const SUBMITTER_SLOTS: u32 = 16;
const TCP_PORT: u16 = 4000;
/// After so long a peer is probed that is probed late.
const PROBED_LATE_NS: u64 = 1_500_000_000;
/// Places of each completion queue.
pub(crate) const COMPLETION_DEPTH: u64 = 512;

/// How often Workers are made again whose receives a device refused.
const MADE_AGAIN_MAX: usize = 500;

/// A message that the application keeps.
pub(crate) struct Held {
    pub(crate) message: Lease<Host>,
    /// The bytes that it had when it came.
    pub(crate) bytes: Vec<u8>,
    /// Whose it is, as long as that is there.
    pub(crate) worker: Option<usize>,
}

/// One host.
pub(crate) struct Station {
    // In this order they go.
    pub(crate) held: VecDeque<Held>,
    pub(crate) submitters: Vec<Submitter<Host>>,
    /// The classes of each Worker, as seen from outside.
    pub(crate) watched: Vec<Watched>,
    pub(crate) workers: Vec<Worker<Host>>,
    /// One for each Worker.
    pub(crate) windows: Vec<LocalWindow<Host>>,
    pub(crate) node: Node<Host, Host>,
    pub(crate) host: Host,
    /// Its queue pairs for datagrams, by subnet, if any are sent there.
    pub(crate) offices: [Option<Office>; 2],
    /// How many of the next messages are to be kept.
    pub(crate) hold: usize,
    /// Channels that belong to no connection any more, by Worker.
    pub(crate) strays: Vec<(usize, ChannelId)>,
    /// Every channel there was, by Worker: none is named like one before.
    pub(crate) seen: Vec<(usize, ChannelId)>,
    endings: Option<EndingsCase>,
}

/// The address of a host that gets another is that of the host with a number so much higher: there are fewer.
pub(crate) const MOVED: usize = 100;

/// Returns the address of a host's device.
pub(crate) fn address(host: usize, port: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, port, host as u8 + 1)
}

/// Whose an address is: the host and its subnet, also where it is another than in the beginning.
pub(crate) fn of_address(address: IpAddr) -> Option<(usize, u8)> {
    let IpAddr::V4(address) = address else {
        return None;
    };
    let [.., port, number] = address.octets();
    let number = usize::from(number).checked_sub(1)?;
    Some((number % MOVED, port))
}

impl Station {
    pub(crate) fn new(fabric: &Fabric, case: &Case, number: usize) -> Result<Self> {
        let host = fabric.host(&format!("h{number}"), ports(case, number)?)?;
        let node = Node::with(host.clone(), host.clone(), Trust::unauthenticated_on_purpose())?;
        let mut config = worker_config(&case.hosts[number], case.endings);
        config.classes = case.classes.as_ref().and_then(|classes| classes.of(number));
        let mut workers = until_taken(|| node.workers(&config))?;
        let windows = workers
            .iter()
            .map(|worker| window(worker, case))
            .collect::<Result<_>>()?;
        let submitters = workers
            .iter_mut()
            .filter(|_| is_submitting(case, number))
            .map(|worker| submitter(worker, &case.hosts[number]))
            .collect::<Result<_>>()?;
        let watched = workers
            .iter()
            .map(|_| Watched::since(host.now().to_ns()))
            .collect();
        let mut offices = [None, None];
        for (subnet, office) in offices.iter_mut().enumerate() {
            if is_mailing(case, number, subnet) {
                *office = Some(Office::new(&host, &case.hosts[number], subnet)?);
            }
        }
        Ok(Self {
            held: VecDeque::new(),
            submitters,
            workers,
            windows,
            node,
            host,
            offices,
            hold: 0,
            strays: Vec::new(),
            seen: Vec::new(),
            endings: case.endings,
            watched,
        })
    }

    /// Makes a Worker anew, with all that is of it; messages of the old one may still be held.
    pub(crate) fn replace_worker(&mut self, case: &Case, number: usize, worker: usize) -> Result<()> {
        let mut config = worker_config(&case.hosts[number], case.endings);
        config.classes = case.classes.as_ref().and_then(|classes| classes.of(number));
        let device = self.workers[worker].device().to_owned();
        self.workers[worker] = until_taken(|| self.node.worker(&device, &config))?;
        self.watched[worker] = Watched::since(self.host.now().to_ns());
        self.windows[worker] = window(&self.workers[worker], case)?;
        if let Some(old) = self.submitters.get_mut(worker) {
            *old = submitter(&mut self.workers[worker], &case.hosts[number])?;
        }
        for held in self.held.iter_mut().filter(|held| held.worker == Some(worker)) {
            held.worker = None;
        }
        self.strays.retain(|(at, _)| *at != worker);
        self.seen.retain(|(at, _)| *at != worker);
        Ok(())
    }

    /// Listens for the peers of one line, at the port of this number.
    pub(crate) fn listen(&self, port: usize, case: &LineCase) -> Result<Listener<Host, Host>> {
        let at = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), TCP_PORT + port as u16);
        Ok(Listener::bind(
            &self.node,
            &self.workers,
            at,
            &channel_config(case, self.endings, 1, 0)?,
        )?)
    }

    /// Returns how many of its slots a Worker lends while nothing is under way.
    pub(crate) fn lendable(case: &HostCase) -> u32 {
        case.slots - case.shared_receives.unwrap_or(0)
    }
}

/// The devices of a host, one in each subnet it is in, or one with a port in each.
pub(crate) fn ports(case: &Case, number: usize) -> Result<Vec<PortConfig>> {
    let host = &case.hosts[number];
    let is_one_device = case.links.is_some_and(|links| links.is_one_device);
    let in_them = (0..2).filter(|subnet| host.subnets >> subnet & 1 == 1);
    in_them
        .map(|subnet| {
            let prefix = IpPrefix::new(IpAddr::V4(address(number, subnet)), 24)?;
            let device = if is_one_device { 0 } else { subnet };
            let mut config = PortConfig::new(&format!("sim{device}"), &[prefix]);
            if is_one_device {
                config.interface = format!("eth{subnet}");
            }
            config.active_mtu = Mtu::from_bytes(host.mtu_bytes.into());
            config.data_in_order = host.order.promise();
            config.speed_mbps = host.speeds_mbps[usize::from(subnet)];
            Ok(config)
        })
        .collect()
}

pub(crate) fn worker_config(case: &HostCase, endings: Option<EndingsCase>) -> WorkerConfig {
    let mut config = WorkerConfig::default();
    if endings.is_some() {
        // Some hosts prepare a sleep behind each poll.
        config.notify = Notify::Every;
    }
    config.slots = case.slots;
    // Receives may take all memory, so that the cases starve, too.
    config.lease_share_percent = 0;
    config.slot_bytes = case.slot_bytes;
    config.completion_depth = COMPLETION_DEPTH as u32;
    config.channels_max = 16;
    config.shared_receives = case.shared_receives.map(|depth| {
        let mut shared = SharedReceivesConfig::default();
        shared.depth = depth;
        shared.repost_batch = 4;
        shared
    });
    config
}

/// Makes Workers, and tries again where a device refused the receives that their channels share: no plan has it refuse all posts.
fn until_taken<T>(mut make: impl FnMut() -> Result<T, NodeError>) -> Result<T> {
    for _ in 0..MADE_AGAIN_MAX {
        match make() {
            Err(NodeError::Provider(error)) if error.call == "post_srq_recv" => {}
            made => return Ok(made?),
        }
    }
    Ok(make()?)
}

/// A window with a part for each line.
fn window(worker: &Worker<Host>, case: &Case) -> Result<LocalWindow<Host>> {
    let bytes = REGION_BYTES * case.lines.len();
    Ok(worker.window(&WindowConfig::new(bytes, RemoteAccess::ALL))?)
}

fn is_submitting(case: &Case, number: usize) -> bool {
    let submits = |line: &LineCase| line.hosts.contains(&number);
    case.operations.iter().any(|operation| {
        let is_all = matches!(operation.what, What::Load { .. });
        is_all || matches!(operation.what, What::Submit { .. }) && submits(&case.lines[operation.line])
    })
}

/// Whether datagrams come to a host in a subnet, or leave it.
fn is_mailing(case: &Case, number: usize, subnet: usize) -> bool {
    case.operations.iter().any(|operation| {
        let hosts = case.lines[operation.line].hosts;
        let is_there = hosts.contains(&number) && common_subnet(case, hosts) == Some(subnet);
        matches!(operation.what, What::Datagram { .. }) && is_there
    })
}

/// The first subnet that both hosts are in.
pub(crate) fn common_subnet(case: &Case, hosts: [usize; 2]) -> Option<usize> {
    let [a, b] = hosts.map(|host| case.hosts[host].subnets);
    (0..2).find(|subnet| a & b & 1 << subnet != 0)
}

fn submitter(worker: &mut Worker<Host>, case: &HostCase) -> Result<Submitter<Host>> {
    let mut config = SubmitterConfig::default();
    config.slots = SUBMITTER_SLOTS;
    config.slot_bytes = case.slot_bytes;
    config.depth = 8;
    Ok(worker.submitter(&config)?)
}

/// How one end of a line is made; each attempt says its number.
pub(crate) fn channel_config(
    case: &LineCase,
    endings: Option<EndingsCase>,
    end: usize,
    connection: u32,
) -> Result<ChannelConfig> {
    let mut config = ChannelConfig::default();
    if let Some(endings) = endings {
        let after_ns = match case.is_probed_late {
            true => PROBED_LATE_NS.max(endings.probe_after_ns),
            false => endings.probe_after_ns,
        };
        config.probe_after = Some(Duration::from_nanos(after_ns));
        config.probe_timeout = endings.probe_timeout(end);
        config.close_when_lost = endings.is_left_to_worker;
    }
    let own = case.end(end);
    config.send_depth = own.send_depth;
    config.receive_depth = case.receive_depths[end];
    config.repost_batch = own.repost_batch;
    config.unsignaled_max = own.unsignaled_max;
    config.inline_bytes_max = own.inline_bytes_max;
    config.inline_alone_bytes_max = own.inline_alone_bytes_max;
    config.cell_bytes = case.cell_bytes;
    config.rd_atomic_max = own.rd_atomic_max;
    config.timeout = own.timeout;
    config.retry_count = own.retry_count;
    config.remote = RemoteAccess::ALL;
    let number = connection.to_le_bytes();
    config.private_data = PrivateData::new(&number).ok().context("private data")?;
    Ok(config)
}

/// Messages of more bytes are written, by places of so many: the longest ones have two.
const PLACED_OVER: usize = 2000;
const PLACE_BYTES: u32 = 4096;

/// The room of a host's links for messages that are not acknowledged.
pub(crate) fn kept(case: &Case, host: usize) -> Option<Kept> {
    let links = case.links?;
    let own = case.hosts[host].links;
    Some(Kept {
        fragments: own.map_or(links.retained, |own| own.retained).into(),
        fragment_bytes: (links.places == 0).then_some(links.fragment_bytes),
        may_lag: case.panics_every > 0,
    })
}

/// How a host makes its links.
pub(crate) fn link_config(case: &Case, host: usize) -> anyhow::Result<LinkConfig> {
    let links = case.links.context("it is not about links")?;
    let line = case.lines.first().context("there is no line")?;
    let mut config = LinkConfig::default();
    config.retained = links.retained;
    config.ahead = links.ahead;
    config.session.fragment_bytes = links.fragment_bytes;
    config.message_bytes_max = MESSAGE_BYTES_MAX;
    config.place_messages_over = PLACED_OVER;
    config.placed_bytes = PLACE_BYTES as usize * usize::from(links.places);
    if links.places > 0 {
        config.transfers.piece_bytes = PLACE_BYTES;
    }
    config.channel.send_depth = line.send_depth;
    config.channel.receive_depth = line.receive_depths[0];
    config.channel.repost_batch = line.repost_batch;
    config.channel.timeout = line.timeout;
    config.channel.retry_count = line.retry_count;
    config.channel.remote = RemoteAccess::ALL;
    if let Some(own) = case.hosts[host].transfers {
        let transfers = &mut config.transfers;
        transfers.piece_bytes = own.piece_bytes;
        transfers.pieces_ahead = own.pieces_ahead;
        transfers.transfers_max = own.transfers_max;
        transfers.progress_every = Duration::from_nanos(own.progress_every);
        transfers.drain_within = Duration::from_nanos(own.drain_within);
    }
    if let Some(own) = case.hosts[host].links {
        config.retained = own.retained;
        config.ahead = own.ahead;
        config.requests = own.requests;
        config.channel.send_depth = own.send_depth;
        config.channel.receive_depth = own.receive_depth;
        config.channel.repost_batch = own.repost_batch;
        config.channel.timeout = own.timeout;
        config.channel.retry_count = own.retry_count;
        let (session, times) = (&mut config.session, own.times);
        session.heartbeat_idle = Duration::from_nanos(times.heartbeat_idle);
        session.suspect_after = Duration::from_nanos(times.suspect_after);
        session.dead_after = Duration::from_nanos(times.dead_after);
        session.attach_within = Duration::from_nanos(times.attach_within);
        session.acknowledge_after = Duration::from_nanos(times.acknowledge_after);
        session.acknowledge_fragments = times.acknowledge_fragments;
        session.fail_back_proofs = times.fail_back_proofs;
        session.fail_back_interval = Duration::from_nanos(times.fail_back_interval);
        session.backoff.first = Duration::from_nanos(times.reconnect_first);
        session.backoff.longest = Duration::from_nanos(times.reconnect_longest);
        session.recover_within = Duration::from_nanos(times.recover_within);
    }
    if let Some(Scene::Full(full)) = &case.scene {
        full.rooms[host].limit_links(&mut config);
    }
    Ok(config)
}
