//! Hosts, pairs and findings as one document.

use doorbell::rails::{Lane, LocalRail, SpeedClass};
use doorbell_operation::{Finding, Map, Topology};
use serde::Serialize;

/// The whole report.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) hosts: Vec<Host>,
    pub(super) reaches: Vec<Reach>,
    findings: Vec<FindingReport>,
}

#[derive(Serialize)]
pub(super) struct Host {
    pub(super) host: String,
    pub(super) kernel: String,
    pub(super) rails: Vec<Rail>,
}

/// A rail, or a port without a rail.
#[derive(Serialize)]
pub(super) struct Rail {
    pub(super) device: String,
    pub(super) port: u8,
    pub(super) address: Option<String>,
    pub(super) subnet: Option<String>,
    pub(super) netdev: Option<String>,
    pub(super) speed_mbps: Option<u32>,
    pub(super) active_mtu_bytes: Option<u32>,
    pub(super) numa_node: Option<u16>,
    pub(super) pci_address: Option<String>,
    /// `None` if it is not used.
    pub(super) lane: Option<String>,
    /// The reason why it is not used.
    pub(super) reason: Option<String>,
}

/// The rails from one host to another.
#[derive(Serialize)]
pub(super) struct Reach {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) pairs: Vec<Pair>,
    pub(super) without: Vec<UnpairedRail>,
    /// The hosts on the shortest route, including both ends. `None` if there is no route.
    pub(super) route: Option<Vec<String>>,
}

#[derive(Serialize)]
pub(super) struct Pair {
    pub(super) local_rail: String,
    pub(super) peer_rail: String,
    pub(super) speed_mbps: Option<u64>,
    pub(super) lane: String,
}

/// A rail of the first host that is in no pair.
#[derive(Serialize)]
pub(super) struct UnpairedRail {
    pub(super) local_rail: String,
    pub(super) reason: String,
}

#[derive(Serialize)]
struct FindingReport {
    severity: String,
    kind: &'static str,
    host: String,
    subject: String,
    what: String,
    why: String,
    remedy: String,
}

impl Report {
    pub(super) fn new(map: &Map<'_>, findings: &[Finding]) -> Self {
        let hosts = 0..map.hosts();
        let every_two = hosts
            .clone()
            .flat_map(|from| (0..map.hosts()).map(move |to| (from, to)));
        Self {
            hosts: hosts
                .filter_map(|host| Some(Host::new(map.topology(host)?)))
                .collect(),
            reaches: every_two
                .filter(|(from, to)| from != to)
                .filter_map(|(from, to)| Reach::new(map, from, to))
                .collect(),
            findings: findings.iter().map(FindingReport::new).collect(),
        }
    }
}

impl Host {
    fn new(topology: &Topology) -> Self {
        let rails = topology.rails();
        let speeds = rails.iter().filter(|rail| rail.source.is_ok());
        let fastest = speeds.map(|rail| SpeedClass::from_mbps(rail.speed_mbps)).max();
        Self {
            host: topology.host.clone(),
            kernel: topology.kernel.clone(),
            rails: rails
                .iter()
                .map(|rail| Rail::new(topology, rail, fastest.unwrap_or_default()))
                .collect(),
        }
    }
}

impl Rail {
    fn new(topology: &Topology, rail: &LocalRail, fastest: SpeedClass) -> Self {
        let source = rail.source.ok();
        let port = topology.port(&rail.device, rail.port);
        let lane = source.map(|_| Lane::of(SpeedClass::from_mbps(rail.speed_mbps), fastest));
        Self {
            device: rail.device.to_string(),
            port: rail.port,
            address: source.map(|source| source.address.to_string()),
            subnet: source.map(|source| source.address.subnet().to_string()),
            netdev: topology
                .interface_of(rail)
                .map(|interface| interface.name.clone()),
            speed_mbps: Some(rail.speed_mbps).filter(|mbps| *mbps > 0),
            active_mtu_bytes: source.map(|source| source.mtu.bytes()),
            numa_node: port.and_then(|port| port.report.numa_node),
            pci_address: port.and_then(|port| port.pci_address.clone()),
            lane: lane.map(|lane| lane.to_string()),
            reason: rail.source.err().map(|reason| reason.to_string()),
        }
    }

    /// The name of the rail: its device and port.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.device, self.port)
    }
}

impl Reach {
    fn new(map: &Map<'_>, from: usize, to: usize) -> Option<Self> {
        let name = |host: usize| Some(map.topology(host)?.host.clone());
        let rail = |host: usize, index: usize| {
            let rail = map.rails(host).nth(index)?;
            let address = rail.source.ok()?.address;
            Some(format!("{}:{} {address}", rail.device, rail.port))
        };
        let reach = map.reach(from, to)?;
        Some(Self {
            from: name(from)?,
            to: name(to)?,
            pairs: reach
                .pairs
                .iter()
                .filter_map(|paired| {
                    Some(Pair {
                        local_rail: rail(from, paired.pair.local)?,
                        peer_rail: rail(to, paired.pair.peer)?,
                        speed_mbps: Some(paired.speed.to_mbps()).filter(|mbps| *mbps > 0),
                        lane: paired.lane.to_string(),
                    })
                })
                .collect(),
            without: reach
                .without
                .iter()
                .filter_map(|(index, reason)| {
                    Some(UnpairedRail {
                        local_rail: rail(from, *index)?,
                        reason: reason.to_string(),
                    })
                })
                .collect(),
            route: map
                .route(from, to)
                .map(|route| route.into_iter().filter_map(name).collect()),
        })
    }
}

impl FindingReport {
    fn new(finding: &Finding) -> Self {
        Self {
            severity: finding.severity.to_string(),
            kind: finding.kind.name(),
            host: finding.host.clone(),
            subject: finding.subject.clone(),
            what: finding.what.clone(),
            why: finding.why.clone(),
            remedy: finding.remedy.clone(),
        }
    }
}

/// A speed as text.
pub(super) fn speed(mbps: u64) -> String {
    match mbps {
        0 => "speed unknown".to_owned(),
        mbps if mbps < 1_000 => format!("{mbps} Mb/s"),
        mbps => {
            let (whole, tenths) = (mbps / 1_000, mbps % 1_000 / 100);
            if tenths == 0 {
                format!("{whole} Gb/s")
            } else {
                format!("{whole}.{tenths} Gb/s")
            }
        }
    }
}
