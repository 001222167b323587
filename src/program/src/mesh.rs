//! `doorbell mesh`: runs one member of a mesh, with rounds of a collective, and checks every byte.

use core::fmt::Write as _;
use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use doorbell::mesh::{Collective, Data, Group, GroupError, Mesh, MeshConfig, MeshEvent, Rank, Ranks};
use doorbell::provider::{Clock as _, Network, Provider};
use doorbell::{Deadline, Handle, Node, Worker, WorkerConfig};
use doorbell_operation::{Labels, LogLevel, SettingSource, SettingValues, Settings};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::address::anywhere;
use crate::board::Board;
use crate::changes::Changes;
use crate::configured::Configured;
use crate::handle_file;
use crate::log;
use crate::opened;
use crate::peers::{Peers, trust_of};
use crate::report::{Failure, print};

mod content;
mod missing;
mod simulated;

use content::Content;
use missing::Missing;
pub(crate) use simulated::World;

/// Interval at which the folder is read for missing handles.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Interval at which the folder is read after all members are reached, for members that are reached only through others.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Pause between two polls while members are missing. It leaves the processors to the threads that create queue pairs, since the
/// hosts of a lab have few processors.
const NAP: Duration = Duration::from_millis(1);

/// Requests in flight, and posted receives, of each channel.
const DEPTH: u32 = 64;

/// Run one member of a mesh of hosts: rounds of a collective with all other members
///
/// Every member has a rank, and connects to the members of lower ranks, over all rails that reach them. Members that share no
/// subnet exchange messages through other members, by the shortest route.
///
/// Members find each other by address or by folder. --peer RANK=ADDRESS:PORT names the TCP address where a member listens (its
/// --listen), on any network that both members are on. The members exchange their identity and rails there. --handles names a
/// folder that all members share: a network file system, or a folder that is copied between hosts. Each member writes its handle
/// there, as RANK.handle, and reads the handles of the others. If a port or an address of its devices changes, a member publishes
/// its rails again.
///
/// When all members are reached, the collective runs --rounds times. Every byte received is checked, outside the timed section.
/// The report has the neighbours, the way to each member, and the times of the rounds on this member.
///
/// Exit code: 0 if every byte was right, else 1.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  doorbell mesh --key-file keys --rank 0 --ranks 3 --listen '[::]:7500'\n  \
                        doorbell mesh --key-file keys --rank 1 --ranks 3 --listen '[::]:7500' --peer 0=10.1.0.1:7500\n  \
                        doorbell mesh --key-file keys --rank 2 --ranks 3 --peer 0=10.1.0.1:7500 --peer 1=10.1.0.2:7500\n  \
                        doorbell mesh --key-file keys --rank 0 --ranks 3 --handles /shared/mesh\n  \
                        doorbell mesh --simulated --ranks 3\n  \
                        doorbell mesh --key-file keys --rank 1 --ranks 3 --handles /shared/mesh --collective all-reduce --size 1048576"
)]
pub(crate) struct Arguments {
    /// The rank of this member, from 0
    #[arg(
        long,
        value_parser = clap::value_parser!(u8).range(0..64),
        required_unless_present = "simulated"
    )]
    rank: Option<u8>,

    /// Run all members in this process, on hosts of a simulated fabric: no device is needed, every byte is checked, and the
    /// times measure this program alone
    #[arg(long, conflicts_with_all = ["rank", "peer", "listen", "handles", "metrics", "key_file", "unauthenticated"])]
    simulated: bool,

    /// The number of members
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=64))]
    ranks: u8,

    /// The TCP address where the member of a lower rank listens (its --listen); once for each member
    #[arg(long, value_name = "RANK=ADDRESS:PORT", value_parser = parse_peer)]
    peer: Vec<(u8, SocketAddr)>,

    /// The TCP address to listen at [default: any port of every address; other members find it by --handles]
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present_any = ["handles", "peer", "simulated"])]
    listen: Option<SocketAddr>,

    /// The shared folder with the handles of all members
    #[arg(long, value_name = "DIR")]
    handles: Option<PathBuf>,

    /// The collective to run
    #[arg(long, value_enum, default_value_t = CollectiveName::AllToAll)]
    collective: CollectiveName,

    /// Bytes that each member has for each other member; a multiple of 4
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(4..=16_777_216))]
    size: u32,

    /// The number of timed rounds; a tenth as many untimed rounds precede them
    #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rounds: u32,

    /// The longest wait for all members at the start, for each round, and for all members to finish at the end [default: the
    /// setting `timeout`, 30]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,

    /// Serve metrics at http://ADDR:PORT/metrics, in the Prometheus format; `doorbell status` reads them
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,

    /// Print one JSON document
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    peers: Peers,

    #[command(flatten)]
    configured: Configured,
}

/// A collective, as it is named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CollectiveName {
    /// All members wait for each other
    Barrier,
    /// All members get the bytes of rank 0
    Broadcast,
    /// All members get the bytes of each member
    AllGather,
    /// Each member gets one block of the sum over all members
    ReduceScatter,
    /// All members get the sum over all members
    AllReduce,
    /// Each member gets the bytes that each member has for it
    AllToAll,
}

impl CollectiveName {
    const fn collective(self) -> Collective {
        match self {
            Self::Barrier => Collective::Barrier,
            Self::Broadcast => Collective::Broadcast(Rank::FIRST),
            Self::AllGather => Collective::AllGather,
            Self::ReduceScatter => Collective::ReduceScatter,
            Self::AllReduce => Collective::AllReduce,
            Self::AllToAll => Collective::AllToAll,
        }
    }
}

#[derive(Serialize)]
struct Report {
    /// Set if no RDMA device was used.
    simulated: bool,
    rank: u8,
    ranks: u8,
    neighbours: Vec<u8>,
    ways: Vec<RouteReport>,
    collective: CollectiveName,
    message_bytes: u32,
    rounds: u32,
    checked_bytes: u64,
    round: Times,
    relayed: u64,
    sent_again: u64,
}

/// The route to another member.
#[derive(Serialize)]
struct RouteReport {
    #[serde(rename = "rank")]
    to: u8,
    hops: u8,
    /// Ranks of the members that relay messages on the route, in order.
    by: Vec<u8>,
}

impl RouteReport {
    fn text(&self) -> String {
        let hops = if self.hops == 1 { "hop" } else { "hops" };
        let way = format!("to rank {}: {} {hops}", self.to, self.hops);
        let by: Vec<_> = self.by.iter().map(u8::to_string).collect();
        match by.as_slice() {
            [] => way,
            [one] => format!("{way}, by rank {one}"),
            all => format!("{way}, by ranks {}", all.join(", ")),
        }
    }
}

#[derive(Serialize)]
struct Times {
    min_ns: u64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
}

/// This member, with everything that is polled.
struct Member {
    node: Arc<Node>,
    workers: Vec<Worker>,
    mesh: Mesh,
    timeout: Duration,
    folder: Option<PathBuf>,
    changes: Changes,
    read_at: Option<Instant>,
    /// The handles of other members that were tried, until their links are lost.
    given: BTreeMap<Rank, Handle>,
    missing: Missing,
    /// Whether it was reported that no more peers are accepted.
    is_closed: bool,
    /// The metrics, if they are served.
    board: Option<Board>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let number = arguments.rank.unwrap_or(0);
    let rank = Rank::new(number)
        .filter(|rank| rank.number() < arguments.ranks)
        .ok_or_else(|| format!("there is no rank {number} among {}", arguments.ranks))?;
    if arguments.size % 4 != 0 {
        return Err(format!("--size {}: not a multiple of 4", arguments.size).into());
    }
    check_peers(&arguments.peer, rank, arguments.ranks)?;
    let settings = arguments.settings()?;
    log::start(settings.values().log);
    if arguments.simulated {
        crate::simulated::announce(arguments.json);
        let report = simulated::run(arguments, &settings)?;
        return print("mesh", &report, arguments.json, text);
    }
    let mut member = Member::open(arguments, rank, &settings)?;
    member.join(arguments)?;
    let mut group = Group::new(&mut member.mesh)?;
    let mut content = Content::new(arguments.collective, rank, arguments.ranks, arguments.size)?;
    let longest_ns = u64::try_from(member.timeout.as_nanos())?;
    let mut times = Histogram::<u64>::new_with_bounds(1, longest_ns.max(2), 3)?;
    let untimed = arguments.rounds.div_ceil(10);
    for round in 0..untimed.saturating_add(arguments.rounds) {
        content.fill(round);
        let begin = Instant::now();
        member.collective(&mut group, arguments.collective.collective(), &mut content.data())?;
        let took = begin.elapsed();
        content.check(round)?;
        if round >= untimed {
            times.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
    }
    let report = report(arguments, &member.mesh, &content, &times);
    member.leave(group)?;
    print("mesh", &report, arguments.json, text)
}

impl Arguments {
    /// Returns the settings in effect, on top of the defaults of a member.
    fn settings(&self) -> Result<Settings, Failure> {
        let options = self.peers.options_with(self.timeout, self.metrics);
        self.configured.settings(own_values(), &options)
    }
}

/// The default settings of a member.
fn own_values() -> SettingValues {
    let mut own = SettingValues::default();
    own.link.channel.send_depth = DEPTH;
    own.link.channel.receive_depth = DEPTH;
    own
}

/// Returns the default settings of a member, with the environment applied.
///
/// # Errors
/// A setting in the environment is invalid.
pub(crate) fn simulated_settings() -> Result<Settings, Failure> {
    Configured::default().settings(own_values(), &[])
}

/// Returns the configuration of a member's Workers. Unless it is set, they get the memory that the links need.
fn worker_config(settings: &Settings, ranks: u8) -> WorkerConfig {
    let values = settings.values();
    let mut config = values.worker;
    let is_set = |key| settings.source(key) != Some(&SettingSource::Default);
    let channel = values.link.channel;
    if !is_set("worker.slots") {
        // Each peer needs slots for its receives and for its sends.
        let each = channel.send_depth.saturating_add(channel.receive_depth);
        config.slots = u32::from(ranks.max(2)).saturating_mul(each);
    }
    if !is_set("worker.slot_bytes") {
        config.slot_bytes = values.link.session.fragment_bytes.saturating_add(64);
    }
    config
}

impl Member {
    fn open(arguments: &Arguments, rank: Rank, settings: &Settings) -> Result<Self, Failure> {
        let started = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let mut config = MeshConfig::new(rank, arguments.ranks, u64::try_from(started)?);
        let values = settings.values();
        values.configure(&mut config);
        let node = opened::node(trust_of(values)?, &values.rails)?;
        opened::log_passed_over(&node, values.log)?;
        if config.hops_max < config.hops_needed() && matches!(values.log, LogLevel::Off | LogLevel::Error) {
            eprintln!(
                "doorbell: mesh.hops_max is {}, and a line of {} members has {} between its ends: members that are further are out of reach",
                config.hops_max,
                config.ranks,
                config.hops_needed()
            );
        }
        let workers = opened::workers(&node, &worker_config(settings, arguments.ranks))?;
        let mesh = Mesh::new(&node, &workers, &config)?;
        let board = values.metrics.map(|at| Board::announced(at, &workers));
        Ok(Self {
            node,
            workers,
            mesh,
            timeout: values.timeout,
            board: board.transpose()?,
            folder: arguments.handles.clone(),
            changes: Changes::default(),
            read_at: None,
            given: BTreeMap::new(),
            missing: Missing::default(),
            is_closed: false,
        })
    }

    /// Publishes this member to members of higher ranks, connects to members of lower ranks, and waits until all are reached.
    fn join(&mut self, arguments: &Arguments) -> Result<(), Failure> {
        let at = arguments.listen.unwrap_or_else(|| anywhere(0));
        let handle = self.mesh.listen(&self.node, &self.workers, at)?;
        self.leave_handle(&handle)?;
        for (number, address) in &arguments.peer {
            if let Some(rank) = Rank::new(*number) {
                self.mesh.connect_at(rank, *address)?;
            }
        }
        let all = Ranks::first(self.mesh.ranks());
        let begin = Instant::now();
        // Missing members are also reported after half of the time: this member may know the reason, and be stopped when another one
        // gives up.
        let mut soon = self.timeout.checked_div(2);
        loop {
            self.poll()?;
            if self.mesh.reached() == all {
                return Ok(());
            }
            let waited = begin.elapsed();
            if soon.is_some_and(|soon| waited > soon) {
                soon = None;
                eprintln!("doorbell: waiting: {}", self.missing.text(&self.mesh, waited));
            }
            if waited > self.timeout {
                return Err(self.missing.text(&self.mesh, waited).into());
            }
            thread::sleep(NAP);
        }
    }

    /// The members to which this member connects.
    fn lower(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.mesh.rank().number()).filter_map(Rank::new)
    }

    /// Publishes changed ports and addresses of the devices, and reads the folder for the handles of members without a link.
    fn refresh(&mut self) -> Result<(), Failure> {
        let is_due = |at: Option<Instant>, every| at.is_none_or(|at| at.elapsed() >= every);
        let now = self.node.network().now();
        if self.mesh.is_closing() {
            return Ok(());
        }
        let Some(is_wanted) = self.changes.is_scan_wanted(&mut self.workers, now)? else {
            return Ok(());
        };
        if is_wanted {
            self.given.clear();
            let begun = self.mesh.refresh(&self.node, &self.workers);
            self.changes.outcome(begun, now);
        }
        let refreshed = self.mesh.take_refreshed();
        let moved = refreshed.and_then(|handle| self.changes.outcome(handle, now));
        if let Some(handle) = moved.flatten() {
            self.leave_handle(&handle)?;
        }
        let every = if self.mesh.reached() == Ranks::first(self.mesh.ranks()) {
            READ_EVERY
        } else {
            LOOK_EVERY
        };
        let Some(folder) = self.folder.clone().filter(|_| is_due(self.read_at, every)) else {
            return Ok(());
        };
        self.read_at = Some(Instant::now());
        for rank in self.lower() {
            if self.mesh.is_linked(rank) {
                continue;
            }
            let path = handle_path(&folder, rank);
            let handle = match handle_file::find(&path) {
                Ok(Some(handle)) => handle,
                outcome => {
                    // The file may be missing or incomplete. It is read again later.
                    let nothing = || format!("{}: there is no such file", path.display());
                    self.missing
                        .unread
                        .insert(rank, outcome.err().unwrap_or_else(nothing));
                    continue;
                }
            };
            self.missing.unread.remove(&rank);
            // A handle that was tried is not tried again: it would fail again, and each attempt opens devices.
            if self.given.get(&rank) != Some(&handle) {
                self.mesh.connect(&self.node, &self.workers, rank, &handle)?;
                self.given.insert(rank, handle);
            }
        }
        Ok(())
    }

    fn leave_handle(&self, handle: &Handle) -> Result<(), Failure> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let left = fs::create_dir_all(folder)
            .and_then(|()| handle_file::leave(&handle_path(folder, self.mesh.rank()), handle));
        left.map_err(|error| format!("{}: {error}", folder.display()).into())
    }

    fn collective(
        &mut self,
        group: &mut Group,
        what: Collective,
        data: &mut Data<'_>,
    ) -> Result<(), Failure> {
        let begin = Instant::now();
        let mut running = group.begin(&self.mesh, what, data)?;
        while !running.poll(group, &mut self.mesh, data, content::add)? {
            self.poll()?;
            if begin.elapsed() > self.timeout {
                return Err(format!(
                    "a round took longer than {} s: see --timeout, and the output of the other members",
                    self.timeout.as_secs()
                )
                .into());
            }
        }
        Ok(())
    }

    /// Waits until no other member needs this one. The wait for a stopped member ends at the timeout.
    fn leave(&mut self, group: Group) -> Result<(), Failure> {
        let now = self.node.network().now();
        let mut leaving = group.leave(Deadline::after(now, self.timeout));
        loop {
            match leaving.poll(&self.node, &mut self.mesh) {
                Ok(false) => self.poll()?,
                Ok(true) => return Ok(()),
                // The work of this member is done, so the timeout is not a failure.
                Err(GroupError::TimedOut) => {
                    let others = self.mesh.reached().without(self.mesh.rank()).iter();
                    let without: Vec<_> = others
                        .filter(|rank| self.mesh.member_counts(*rank).waiting > 0)
                        .map(Rank::number)
                        .collect();
                    eprintln!(
                        "doorbell: after {} s not all members were done: ranks {without:?} may not have all that this one sent",
                        self.timeout.as_secs()
                    );
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn poll(&mut self) -> Result<(), Failure> {
        self.refresh()?;
        let mut turned_away = false;
        let (given, lost) = (&mut self.given, &mut self.missing.lost);
        self.mesh
            .poll(&self.node, &mut self.workers, |event| match event {
                MeshEvent::TurnedAway => turned_away = true,
                MeshEvent::LinkLost { rank: Some(rank), .. } => drop(given.remove(&rank)),
                MeshEvent::LinkLost { rank: None, reason } => *lost = Some(reason),
                _ => {}
            })?;
        if turned_away {
            eprintln!("doorbell: a peer that is no member of this mesh was rejected");
        }
        let closed = self.mesh.links().closed_to_peers();
        if let Some(why) = closed.filter(|_| !self.is_closed) {
            eprintln!("doorbell: no peer is accepted any more: {why}");
            self.is_closed = true;
        }
        if let Some(board) = &mut self.board {
            let mesh = &self.mesh;
            board.note(&mut self.workers, |metrics| {
                metrics.mesh(&Labels::NONE, mesh);
                metrics.handshakes(&Labels::NONE, &mesh.links().handshakes());
            });
        }
        // Hosts of a lab share processors, also with the kernel's work for Soft-RoCE.
        thread::yield_now();
        Ok(())
    }
}

fn parse_peer(text: &str) -> Result<(u8, SocketAddr), String> {
    let (rank, address) = text.split_once('=').ok_or("not RANK=ADDRESS:PORT")?;
    let rank = rank.parse().map_err(|error| format!("the rank: {error}"))?;
    let address = address.parse().map_err(|error| format!("the address: {error}"))?;
    Ok((rank, address))
}

/// Checks that --peer names only members of lower ranks, each of them once: the member of the higher rank connects.
fn check_peers(peers: &[(u8, SocketAddr)], own: Rank, ranks: u8) -> Result<(), String> {
    let mut known = Ranks::NONE;
    for (number, address) in peers {
        let rank = Rank::new(*number).filter(|rank| rank.number() < ranks);
        let why = match rank {
            None => format!("there is no rank {number} among {ranks}"),
            Some(rank) if rank == own => "this member has that rank".to_owned(),
            Some(rank) if rank > own => {
                format!("the member of the higher rank connects: give rank {rank} --peer {own}=... instead")
            }
            Some(rank) if known.contains(rank) => "the rank has an address already".to_owned(),
            Some(rank) => {
                known = known.with(rank);
                continue;
            }
        };
        return Err(format!("--peer {number}={address}: {why}"));
    }
    Ok(())
}

fn handle_path(folder: &Path, rank: Rank) -> PathBuf {
    folder.join(format!("{rank}.handle"))
}

fn report<P: Provider, N: Network>(
    arguments: &Arguments,
    mesh: &Mesh<P, N>,
    content: &Content,
    times: &Histogram<u64>,
) -> Report {
    let mut by = mesh.ways();
    let ways = mesh.reached().without(mesh.rank()).iter().filter_map(|to| {
        Some(RouteReport {
            to: to.number(),
            hops: mesh.routes().hops(to)?,
            by: by.remove(&to)?.into_iter().map(Rank::number).collect(),
        })
    });
    Report {
        simulated: arguments.simulated,
        rank: mesh.rank().number(),
        ranks: arguments.ranks,
        neighbours: mesh
            .map()
            .neighbours(mesh.rank())
            .iter()
            .map(Rank::number)
            .collect(),
        ways: ways.collect(),
        collective: arguments.collective,
        message_bytes: arguments.size,
        rounds: arguments.rounds,
        checked_bytes: content.bytes_checked(),
        round: Times {
            min_ns: times.min(),
            p50_ns: times.value_at_quantile(0.5),
            p99_ns: times.value_at_quantile(0.99),
            max_ns: times.max(),
        },
        relayed: mesh.counts().relayed,
        sent_again: mesh.counts().sent_again,
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "rank {} of {}, doorbell {}; neighbours: {:?}",
        report.rank,
        report.ranks,
        env!("CARGO_PKG_VERSION"),
        report.neighbours
    );
    for way in &report.ways {
        let _ = writeln!(text, "  {}", way.text());
    }
    let Times {
        min_ns,
        p50_ns,
        p99_ns,
        max_ns,
    } = report.round;
    #[expect(clippy::cast_precision_loss, reason = "a round takes less than months")]
    let [min, p50, p99, max] = [min_ns, p50_ns, p99_ns, max_ns].map(|ns| ns as f64 / 1000.0);
    let name = clap::ValueEnum::to_possible_value(&report.collective);
    let name = name.as_ref().map_or("", clap::builder::PossibleValue::get_name);
    let _ = writeln!(
        text,
        "{name}, {} bytes for each, {} rounds: min {min:.1} us, p50 {p50:.1} us, p99 {p99:.1} us, max {max:.1} us",
        report.message_bytes, report.rounds
    );
    let _ = writeln!(
        text,
        "every byte of {} checked: all as sent; {} messages passed on for others, {} sent again",
        report.checked_bytes, report.relayed, report.sent_again
    );
    text
}

#[cfg(test)]
mod tests {
    use super::{RouteReport, check_peers, parse_peer};
    use doorbell::mesh::Rank;

    #[test]
    fn ways_are_told_whole() {
        let told = |hops, by: &[u8]| {
            let way = RouteReport {
                to: 7,
                hops,
                by: by.to_vec(),
            };
            (way.text(), serde_json::to_string(&way).unwrap())
        };
        for (hops, by, text, json) in [
            (1, &[][..], "to rank 7: 1 hop", "[]"),
            (2, &[3], "to rank 7: 2 hops, by rank 3", "[3]"),
            (3, &[3, 5], "to rank 7: 3 hops, by ranks 3, 5", "[3,5]"),
        ] {
            let json = format!(r#"{{"rank":7,"hops":{hops},"by":{json}}}"#);
            assert_eq!(told(hops, by), (text.to_owned(), json));
        }
    }

    #[test]
    fn who_connects_is_told_of_lower_ranks_and_of_each_once() {
        let told = |peers: &[&str]| {
            let peers: Vec<_> = peers.iter().map(|peer| parse_peer(peer).unwrap()).collect();
            check_peers(&peers, Rank::new(2).unwrap(), 4).err()
        };
        assert_eq!(told(&["0=10.1.0.1:7500", "1=[fd00::2]:7500"]), None);
        for (peers, why) in [
            (
                &["2=10.1.0.3:7500"][..],
                "--peer 2=10.1.0.3:7500: this member has that rank",
            ),
            (
                &["0=10.1.0.1:7500", "3=10.1.0.4:7500"],
                "give rank 3 --peer 2=... instead",
            ),
            (&["4=10.1.0.5:7500"], "there is no rank 4 among 4"),
            (&["64=10.1.0.5:7500"], "there is no rank 64 among 4"),
            (
                &["1=10.1.0.2:7500", "1=10.2.0.2:7500"],
                "--peer 1=10.2.0.2:7500: the rank has an address already",
            ),
        ] {
            let told = told(peers).unwrap_or_default();
            assert!(told.ends_with(why), "{told}");
        }
    }
}
