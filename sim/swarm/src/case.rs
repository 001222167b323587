//! A case: all that a run is, as a value. It is made from a seed, written to a file, and shrunk.

use core::str::FromStr as _;
use core::time::Duration;

use anyhow::{Context as _, Result};
use doorbell::provider::DataInOrder;
use doorbell_sim::plan::{Action, Call, Clause, Effect, PacketRule, Which};
use doorbell_sim::{Plan, Quirks};
use serde::{Deserialize, Serialize};

use crate::classes::case::ClassesCase;
use crate::crowd::case::{CrowdAct, CrowdCase};
use crate::full::case::{FullAct, FullCase};
use crate::hostile::case::{HostileAct, HostileCase};
use crate::mesh::case::MeshCase;
use crate::requests::case::{RequestAct, RequestsCase};
use crate::sleepy::case::{SleepAct, SleepCase};
use crate::transfers::case::{BeginCase, TransfersCase};

/// All that a run is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Case {
    /// The seed of the fabric's randomness.
    pub(crate) seed: u64,
    pub(crate) device: Device,
    pub(crate) latency_ns: u64,
    pub(crate) bandwidth_mbps: u32,
    pub(crate) hosts: Vec<HostCase>,
    pub(crate) lines: Vec<LineCase>,
    /// The operations in the order in which they are tried. One that cannot be done at that moment is skipped.
    pub(crate) operations: Vec<Operation>,
    /// The faults, as the text of a plan.
    pub(crate) plan: String,
    /// How links are made, if the lines are links and not channels.
    #[serde(default)]
    pub(crate) links: Option<LinksCase>,
    /// The classes of service of all Workers, if they have some.
    #[serde(default)]
    pub(crate) classes: Option<ClassesCase>,
    /// The application's callback panics at every nth event. Zero turns this off.
    #[serde(default)]
    pub(crate) panics_every: u32,
    /// How an end of a line learns that the other is gone; without, both close a line together.
    #[serde(default)]
    pub(crate) endings: Option<EndingsCase>,
    /// How long each call of a device takes: so long goes on what happens beside it.
    #[serde(default)]
    pub(crate) call_ns: u64,
    /// How long the application takes with each event that it is told of.
    #[serde(default)]
    pub(crate) handler_ns: u64,
    /// The kind of run, if it is neither plain channels nor plain links.
    #[serde(default)]
    pub(crate) scene: Option<Scene>,
}

/// A run of its own kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Scene {
    /// Limits are reached.
    Crowd(CrowdCase),
    /// Limits of links are reached.
    Full(FullCase),
    /// Hosts sleep.
    Sleep(SleepCase),
    /// A host lies.
    Hostile(HostileCase),
    /// Members of a mesh come and go.
    Mesh(MeshCase),
    /// Hosts ask and answer.
    Requests(RequestsCase),
}

/// An end whose peer is gone closes its channel once its Worker reported that, and not before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndingsCase {
    /// With nothing heard for so long, a peer is probed.
    pub(crate) probe_after_ns: u64,
    /// The Worker closes such a channel by itself, and the application waits until it is gone.
    pub(crate) is_left_to_worker: bool,
    /// How long each end waits for the answer to a probe, in milliseconds. Zero leaves that to the device's retries.
    #[serde(default)]
    pub(crate) probe_timeouts_ms: [u32; 2],
    /// In the end all cables are cut, and no end closes its channel: each finds out by itself.
    #[serde(default)]
    pub(crate) is_cut: bool,
}

impl EndingsCase {
    /// How long an end waits for the answer to a probe, if the device's retries do not say so.
    pub(crate) fn probe_timeout(&self, end: usize) -> Option<Duration> {
        let timeout_ms = self.probe_timeouts_ms[end];
        (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms.into()))
    }
}

/// How links are made; what their channels have is as the first line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinksCase {
    /// Fragments kept until they are acknowledged.
    pub(crate) retained: u32,
    /// Fragments taken ahead of one that is missing.
    pub(crate) ahead: u32,
    pub(crate) fragment_bytes: u32,
    /// The time between two polls of a host, where something happens meanwhile.
    pub(crate) polls_every_ns: u64,
    /// The rails of a host are ports of one device, and not devices: each leads to all windows.
    #[serde(default)]
    pub(crate) is_one_device: bool,
    /// The run checks how many bytes each rail carries, once faults have stopped.
    #[serde(default)]
    pub(crate) is_weighed: bool,
    /// Places in memory that each end lends the other, for messages that are written there; none as it was before there were such.
    #[serde(default)]
    pub(crate) places: u8,
}

/// How one host makes its links. Spans are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostLinksCase {
    pub(crate) retained: u32,
    pub(crate) ahead: u32,
    pub(crate) requests: u32,
    pub(crate) send_depth: u32,
    pub(crate) receive_depth: u32,
    pub(crate) repost_batch: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) times: TimesCase,
}

/// The times of one host's sessions, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TimesCase {
    pub(crate) heartbeat_idle: u64,
    pub(crate) suspect_after: u64,
    pub(crate) dead_after: u64,
    pub(crate) attach_within: u64,
    pub(crate) acknowledge_after: u64,
    pub(crate) acknowledge_fragments: u32,
    pub(crate) fail_back_proofs: u8,
    pub(crate) fail_back_interval: u64,
    pub(crate) reconnect_first: u64,
    pub(crate) reconnect_longest: u64,
    pub(crate) recover_within: u64,
}

/// Which devices the hosts have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Device {
    Iba,
    Rxe61,
    Rxe612,
    /// One that repeats what a queue pair takes that fails.
    RxeRepeating,
    Rxe7,
    Mlx5,
}

impl Device {
    pub(crate) const ALL: [Self; 6] = [
        Self::Iba,
        Self::Rxe61,
        Self::Rxe612,
        Self::RxeRepeating,
        Self::Rxe7,
        Self::Mlx5,
    ];

    pub(crate) const fn quirks(self) -> Quirks {
        match self {
            Self::Iba => Quirks::IBA,
            Self::Rxe61 => Quirks::RXE_6_1,
            Self::Rxe612 => Quirks::RXE_6_12,
            Self::RxeRepeating => Quirks::RXE_REPEATING,
            Self::Rxe7 => Quirks::RXE_7,
            Self::Mlx5 => Quirks::MLX5,
        }
    }
}

/// One host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostCase {
    /// Which subnets it is in, by a bit each: with a device of its own in each.
    pub(crate) subnets: u8,
    pub(crate) mtu_bytes: u16,
    pub(crate) slots: u32,
    pub(crate) slot_bytes: u32,
    /// Receives that all its channels share, where they do.
    pub(crate) shared_receives: Option<u32>,
    /// The order in which its devices promise to place bytes.
    #[serde(default)]
    pub(crate) order: Order,
    /// How fast its device in each subnet says it is, in megabits per second.
    #[serde(default = "alike")]
    pub(crate) speeds_mbps: [u32; 2],
    /// How it makes its links, where that is not as all others do.
    #[serde(default)]
    pub(crate) links: Option<HostLinksCase>,
    /// How it has transfers, where that is not the default.
    #[serde(default)]
    pub(crate) transfers: Option<TransfersCase>,
}

/// Both subnets as good.
const fn alike() -> [u32; 2] {
    [100_000; 2]
}

/// The order in which a device promises to place bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    #[default]
    WholeMessage,
    Aligned128,
    No,
}

impl Order {
    pub(crate) const ALL: [Self; 3] = [Self::WholeMessage, Self::Aligned128, Self::No];

    pub(crate) const fn promise(self) -> DataInOrder {
        match self {
            Self::WholeMessage => DataInOrder::WholeMessage,
            Self::Aligned128 => DataInOrder::Aligned128,
            Self::No => DataInOrder::No,
        }
    }
}

/// Two hosts that are connected from time to time, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LineCase {
    /// The host that connects, and the one that listens.
    pub(crate) hosts: [usize; 2],
    pub(crate) send_depth: u32,
    /// The receive depth of each end.
    pub(crate) receive_depths: [u32; 2],
    pub(crate) repost_batch: u32,
    pub(crate) unsignaled_max: u32,
    pub(crate) inline_bytes_max: u32,
    pub(crate) inline_alone_bytes_max: u32,
    /// The size of the cells that its ends send from; 0 for none.
    #[serde(default)]
    pub(crate) cell_bytes: u32,
    pub(crate) rd_atomic_max: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    /// The rings that each end reads, where they open some.
    #[serde(default)]
    pub(crate) rings: Option<[RingCase; 2]>,
    /// How the end that listens is made, where that is not as the other one.
    #[serde(default)]
    pub(crate) listening: Option<EndCase>,
    /// Its ends probe each other more seldom than others on the same Workers.
    #[serde(default)]
    pub(crate) is_probed_late: bool,
}

/// How one end of a line is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndCase {
    pub(crate) send_depth: u32,
    pub(crate) repost_batch: u32,
    pub(crate) unsignaled_max: u32,
    pub(crate) inline_bytes_max: u32,
    pub(crate) inline_alone_bytes_max: u32,
    pub(crate) rd_atomic_max: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
}

impl LineCase {
    /// How one of its ends is made: the one that connects, or the one that listens.
    pub(crate) fn end(&self, end: usize) -> EndCase {
        self.listening.filter(|_| end == 1).unwrap_or(EndCase {
            send_depth: self.send_depth,
            repost_batch: self.repost_batch,
            unsignaled_max: self.unsignaled_max,
            inline_bytes_max: self.inline_bytes_max,
            inline_alone_bytes_max: self.inline_alone_bytes_max,
            rd_atomic_max: self.rd_atomic_max,
            timeout: self.timeout,
            retry_count: self.retry_count,
        })
    }
}

/// A ring that an end reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingCase {
    pub(crate) cells: u32,
    pub(crate) cell_bytes: u32,
}

/// Something that one end of a line does, or its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Operation {
    pub(crate) line: usize,
    /// Which of its hosts.
    pub(crate) end: usize,
    pub(crate) what: What,
}

/// The action of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum What {
    /// Time passes.
    Pass { ns: u64 },
    /// The host polls its Workers, and goes on with its handshakes.
    Poll,
    /// The line is connected, where it is not.
    Connect,
    /// This end begins to close its channel.
    Close { within_ns: u64 },
    /// This end fails its channel.
    Shut,
    /// So many messages of so many bytes with one doorbell, the second with a word.
    Send { count: u8, bytes: u16 },
    /// A message whose bytes are copied.
    SendInline { bytes: u16 },
    /// A message gathered from several leases.
    Gather { bytes: u16 },
    /// A batch that is made and dropped.
    Abandon { bytes: u16 },
    /// A message from a submitter.
    Submit { bytes: u16 },
    /// Into the peer's window, to be found there once it is done.
    Write { bytes: u16, is_told: bool },
    /// From the peer's window.
    Read { bytes: u16, is_fenced: bool },
    /// One more in the peer's counter.
    Add { by: u32 },
    /// The peer's counter changed, where it is what it must be, or not.
    Swap { is_right: bool, to: u32 },
    /// So many messages of so many bytes into the peer's ring, copied or from leases.
    Ring { count: u8, bytes: u16, is_copied: bool },
    /// The next messages stay with the application of this host.
    Hold { count: u8 },
    /// They go back.
    LetGo,
    /// The Workers of the host are taken apart, or put together again.
    Split,
    /// The Worker of this end is dropped with all its channels, and another made.
    DropWorker,
    /// So many datagrams of so many bytes with one doorbell.
    Datagram { count: u8, bytes: u16 },
    /// For so long each end of the line sends as much as is taken, so often, in messages of so many bytes.
    Load { ns: u64, every_ns: u64, bytes: u16 },
    /// The process that has the links stands still for so long, and its device does not.
    Stop { ns: u64 },
    /// The same, as soon as the next message has come to it.
    StopOnceHeard { ns: u64 },
    /// The rules of the plan for packets strike all that they mean from now on.
    StrikeAll,
    /// Another process takes its place, which knows of no link.
    Replace,
    /// The peer of the link may reach a window from now on, to read it or for everything.
    Grant { is_read_only: bool },
    /// It may not reach the first of them any more.
    Withdraw,
    /// So many requests of windows that the peer granted: this one of that window first, then others.
    Ask { window: u8, what: Ask, count: u8 },
    /// The process of the host looks at its ports again.
    Refresh,
    /// The link goes by what leads to the peer's process now.
    Reroute,
    /// A transfer begins.
    Begin(BeginCase),
    /// One of the transfers of this end is cancelled.
    Cancel { which: u8 },
    /// Something where limits are reached.
    Crowd(CrowdAct),
    /// Something where limits of links are reached.
    Full(FullAct),
    /// Something where hosts sleep.
    Sleep(SleepAct),
    /// Something where a host lies.
    Hostile(HostileAct),
    /// Something where hosts ask and answer.
    Request(RequestAct),
}

/// A one-sided request to a window of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    Write,
    WriteOnce,
    Read,
    Add,
}

impl Ask {
    pub(crate) const ALL: [Self; 4] = [Self::Write, Self::WriteOnce, Self::Read, Self::Add];
}

impl Case {
    pub(crate) fn plan(&self) -> Result<Plan> {
        Plan::from_str(&self.plan).with_context(|| format!("the plan {:?}", self.plan))
    }

    /// Its rules for packets, which strike all that they mean.
    pub(crate) fn striking_plan(&self) -> Plan {
        let mut plan = self.plan().unwrap_or_default();
        plan.clauses.retain(|clause| matches!(clause, Clause::Packets(_)));
        for clause in &mut plan.clauses {
            if let Clause::Packets(rule) = clause {
                rule.which = Which::Every(1);
            }
        }
        plan
    }

    /// When each fault that is planned for a time is over.
    pub(crate) fn fault_ends_ns(&self) -> Result<Vec<u64>> {
        let ends = self
            .plan()?
            .clauses
            .into_iter()
            .filter_map(|clause| match clause {
                Clause::At(step) => Some(step.at_ns.saturating_add(step.lasts_ns.unwrap_or(0))),
                _ => None,
            });
        Ok(ends.collect())
    }

    /// How late a packet may come at most.
    pub(crate) fn latest_ns(&self) -> Result<u64> {
        let delays = self.plan()?.clauses.into_iter().map(|clause| match clause {
            Clause::Packets(PacketRule {
                effect: Effect::Delay(late_ns),
                ..
            }) => late_ns,
            _ => 0,
        });
        // Several rules may strike one.
        Ok(delays.sum())
    }

    pub(crate) fn to_text(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let case: Self = serde_json::from_str(text)?;
        case.plan()?;
        anyhow::ensure!(
            case.lines
                .iter()
                .all(|line| line.hosts.iter().all(|host| *host < case.hosts.len())),
            "a line names a host that is not there"
        );
        anyhow::ensure!(
            case.operations
                .iter()
                .all(|operation| operation.line < case.lines.len() && operation.end < 2),
            "an operation names a line that is not there"
        );
        Ok(case)
    }
}

/// The failures that a plan may cause, beside making things slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Excuses {
    /// A queue pair may run out of retries.
    pub(crate) retries: bool,
    /// A host may be killed.
    pub(crate) kills: bool,
    /// A post may be refused.
    pub(crate) posts: bool,
    /// A post of receives may be refused. No open channel ends by that: its peer hears of those alone that are posted.
    pub(crate) receives: bool,
    /// A completion may be lost.
    pub(crate) overruns: bool,
    /// A clock may jump. A jump ends no open channel.
    pub(crate) clocks: bool,
    /// A port or an address may not be there.
    pub(crate) ports: bool,
    /// An address may change for good: who was connected by it reaches nobody.
    pub(crate) moves: bool,
    /// A Worker may be dropped.
    pub(crate) drops: bool,
    /// A datagram may come twice.
    pub(crate) doubles: bool,
    /// One may be overtaken.
    pub(crate) overtakes: bool,
}

impl Excuses {
    /// Few packets that are lost, doubled or overtaken are no excuse: a requester has more retries.
    pub(crate) fn of(plan: &Plan, retries: u8) -> Self {
        let mut excuses = Self::default();
        let mut struck = 0_u32;
        for clause in &plan.clauses {
            if let Clause::Packets(rule) = clause {
                excuses.doubles |= rule.effect == Effect::Duplicate;
                excuses.overtakes |= matches!(rule.effect, Effect::Reorder | Effect::Delay(_));
            }
            match clause {
                Clause::Packets(rule) => match (rule.effect, rule.which) {
                    (Effect::Duplicate, _) => {}
                    (Effect::Delay(ns), _) if ns < 1_000_000 => {}
                    (Effect::Delay(_), _) => excuses.retries = true,
                    (_, Which::Nth(_)) => struck = struck.saturating_add(1),
                    _ => excuses.retries = true,
                },
                Clause::At(step) => match step.action {
                    Action::Gid(..) if step.lasts_ns.is_none() => {
                        (excuses.retries, excuses.ports, excuses.moves) = (true, true, true);
                    }
                    Action::Clock(..) => excuses.clocks = true,
                    Action::Overrun(_) => excuses.overruns = true,
                    Action::Kill(_) => (excuses.retries, excuses.kills) = (true, true),
                    Action::Port(..) | Action::Gid(..) => (excuses.retries, excuses.ports) = (true, true),
                    _ => excuses.retries = true,
                },
                Clause::Calls(rule) if rule.call == Call::ReceivePost => excuses.receives = true,
                Clause::Calls(_) => excuses.posts = true,
                _ => {}
            }
        }
        excuses.retries |= struck > u32::from(retries);
        excuses
    }

    /// A probe with a timeout is less patient than retries: an answer that is late may end the channel, and so may a clock that jumps.
    pub(crate) fn add_impatience(&mut self, plan: &Plan, probe_timeouts_ms: [u32; 2]) {
        let is_late = plan.clauses.iter().any(|clause| match clause {
            Clause::Packets(rule) => match rule.effect {
                Effect::Duplicate => false,
                Effect::Delay(late_ns) => late_ns >= 1_000_000,
                _ => true,
            },
            _ => false,
        });
        self.retries |= probe_timeouts_ms != [0; 2] && (is_late || self.clocks);
    }

    /// Whether an open channel may fail though nobody closed it.
    pub(crate) const fn may_fail(self) -> bool {
        self.retries || self.kills || self.posts || self.overruns
    }
}

#[cfg(test)]
mod tests {
    use super::{Case, Excuses, Order};
    use crate::generate::generate;
    use crate::seed::Seed;

    #[test]
    fn few_faults_are_no_excuse() {
        let of = |text: &str| Excuses::of(&text.parse().unwrap(), 2);
        let none = of("");
        assert_eq!(none, Excuses::default());
        assert_eq!(of("drop 3rd packet of any->any; drop 4th ack of any->any"), none);
        let late = of("duplicate 5% packet of any->any; delay 5% packet of any->any by 3us");
        assert!(!late.may_fail() && late.doubles && late.overtakes);
        assert!(of("drop 1st ack of a->b; drop 2nd ack of a->b; drop 3rd ack of a->b").retries);
        assert!(of("drop 1% ack of a->b").retries);
        assert!(of("at 3ms kill a for 1ms").kills && !of("at 3ms pause a for 1ms").kills);
        assert!(of("fail 3rd post of a with 12").posts);
        let receives = of("fail 3rd receive-post of a with 12");
        assert!(receives.receives && !receives.may_fail());
        let moved = of("at 3ms gid a 10.0.0.1 becomes 10.0.0.2");
        assert!(moved.may_fail() && moved.moves);
        assert!(!of("at 3ms gid a 10.0.0.1 becomes 10.0.0.2 for 1ms").moves);
        assert!(of("at 3ms overrun a").overruns && of("at 3ms overrun a").may_fail());
        // A clock ends what is awaited by it, and no channel.
        assert!(of("at 3ms clock a ahead 3s").clocks && !of("at 3ms clock a ahead 3s").may_fail());
    }

    #[test]
    fn a_file_that_names_what_is_not_there_is_refused() {
        let case = generate(Seed::quick(3));
        assert_eq!(Case::parse(&case.to_text().unwrap()).unwrap(), case);
        let mut stranger = case.clone();
        stranger.lines[0].hosts[1] = stranger.hosts.len();
        assert!(Case::parse(&stranger.to_text().unwrap()).is_err());
        let mut stranger = case.clone();
        stranger.operations[0].line = stranger.lines.len();
        assert!(Case::parse(&stranger.to_text().unwrap()).is_err());
        let mut stranger = case;
        stranger.plan = "dance".into();
        assert!(Case::parse(&stranger.to_text().unwrap()).is_err());
    }

    #[test]
    fn a_file_from_before_there_were_rings_is_read() {
        let mut value: serde_json::Value =
            serde_json::from_str(&generate(Seed::quick(3)).to_text().unwrap()).unwrap();
        let fields = [
            ("lines", "rings"),
            ("lines", "listening"),
            ("hosts", "order"),
            ("hosts", "speeds_mbps"),
            ("hosts", "links"),
            ("hosts", "transfers"),
        ];
        for (list, field) in fields {
            for entry in value[list].as_array_mut().unwrap() {
                assert!(entry.as_object_mut().unwrap().remove(field).is_some());
            }
        }
        let case = Case::parse(&value.to_string()).unwrap();
        assert!(case.lines.iter().all(|line| line.rings.is_none()));
        assert!(case.hosts.iter().all(|host| host.order == Order::WholeMessage));
    }
}
