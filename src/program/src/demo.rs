//! `doorbell demo`: runs every operation on the first usable device of this host, with both ends in this process.
//!
//! `perf` measures and checks the bytes. This file selects the device, starts both ends, and prints the result.

use core::fmt::Write as _;
use core::time::Duration;

use doorbell::provider::{Context as _, Mtu, Network, PortReport, Provider};
use doorbell::{Node, NodeError};
use serde::Serialize;

use crate::devices::{HOW_TO_GET_ONE, advised};
use crate::perf::{Findings, Kind, Metering, Op, Row, Terms, Test, both_ends, table};
use crate::report::{Failure, print_outcome};
use crate::simulated;

/// Timed messages of a latency test, and untimed warm-up messages.
const LATENCY: (u64, u64) = (500, 50);

/// Timed messages of a bandwidth test, and untimed warm-up messages.
const BANDWIDTH: (u64, u64) = (400, 32);

/// Show every operation at work on this host's first usable RDMA device
///
/// Two ends of this program, a listener and a connecting node, connect over TCP with the real handshake. Each runs in a thread
/// of its own. They move messages by every operation: send, write, write with immediate, read, fetch and add, compare and
/// swap. Every payload byte is checked, outside the timed sections. Both ends are on one host, so the figures measure this
/// device and its driver, and no network. A key made for the run keeps other peers out.
///
/// With --simulated it runs between two hosts of a simulated fabric, and says so first. With --json the notice is on standard
/// error, and the document has it as `simulated`.
///
/// If no device is usable, the command fails and lists what each port lacks. `cargo lab demo` needs no device: it does this
/// and more between virtual hosts, on a real kernel's Soft-RoCE.
///
/// Exit code: 0 when every byte was right, else 1.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The RDMA device to use [default: the first that is usable]
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,

    /// Run on two hosts of a simulated fabric: no device takes part, and the figures mean nothing
    #[arg(long, conflicts_with = "device")]
    simulated: bool,

    /// The longest silence of either end, at every step
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// The report of the demonstration.
#[derive(Serialize)]
struct Report {
    /// Set if no RDMA device was used.
    simulated: bool,
    device: String,
    /// The address of the RDMA port at the other end, after they were connected.
    peer: Option<String>,
    path_mtu_bytes: Option<u32>,
    tests: Vec<Row>,
    /// Operations that this device does not have.
    left_out: Vec<&'static str>,
    checked_messages: u64,
    #[serde(skip)]
    error: Option<String>,
}

/// Runs the demonstration.
///
/// # Errors
/// No device is usable, an operation failed, or a byte was wrong.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let timeout = Duration::from_secs(arguments.timeout);
    let trust = simulated::trust()?;
    let mut report = if arguments.simulated {
        simulated::announce(arguments.json);
        let [near, far] = simulated::two(&trust)?;
        let tests = tests(near.provider().open(simulated::DEVICE)?.limits().atomics);
        measure(&near, || Ok(far), simulated::DEVICE.into(), &tests, timeout)?
    } else {
        let node = Node::open(trust.clone()).map_err(|error| advised(&error))?;
        let ports = node.ports().map_err(|error| advised(&error))?;
        let device = choose(&ports, arguments.device.as_deref())?;
        let tests = tests(node.provider().open(&device)?.limits().atomics);
        measure(&node, || Node::open(trust), device, &tests, timeout)?
    };
    report.simulated = arguments.simulated;
    let error = report.error.clone();
    print_outcome("demo", &report, error, arguments.json, Report::to_text)
}

/// The device with this name, or the first device, that has a usable port.
fn choose(ports: &[PortReport], wanted: Option<&str>) -> Result<String, Failure> {
    let asked: Vec<&PortReport> = ports
        .iter()
        .filter(|report| wanted.is_none_or(|wanted| report.device.as_str() == wanted))
        .collect();
    if let Some(usable) = asked.iter().find(|report| report.usability().is_ok()) {
        return Ok(usable.device.to_string());
    }
    if let (Some(wanted), true) = (wanted, asked.is_empty()) {
        let mut known: Vec<String> = ports.iter().map(|report| report.device.to_string()).collect();
        known.dedup();
        return Err(NodeError::NoSuchDevice {
            device: wanted.into(),
            known,
        }
        .into());
    }
    let mut text = "no usable RDMA device\n".to_owned();
    for report in &asked {
        if let Err(reason) = report.usability() {
            // Writing to a string does not fail.
            let _ = writeln!(text, "  {} port {}: {reason}", report.device, report.port);
        }
    }
    if asked.is_empty() {
        text.push_str("  there is none at all\n");
    }
    text.push_str(HOW_TO_GET_ONE.trim_end());
    Err(text.into())
}

/// Each operation: first the latency tests, then the bandwidth tests.
fn tests(has_atomics: bool) -> Vec<Test> {
    let test = |kind, op: Op| {
        let (iterations, warmup) = if kind == Kind::Latency { LATENCY } else { BANDWIDTH };
        Test {
            kind,
            op,
            message_bytes: match kind {
                _ if op.is_atomic() => 8,
                Kind::Latency => 64,
                Kind::Bandwidth => 64 << 10,
            },
            iterations,
            warmup,
            inline_bytes_max: 220,
            batch: if kind == Kind::Latency { 1 } else { 16 },
            depth: 128,
            unsignaled_max: 64,
            buffers: 0,
            traffic_class: 0,
            mtu_max: Mtu::B4096,
            plant: None,
        }
    };
    [Kind::Latency, Kind::Bandwidth]
        .into_iter()
        .flat_map(|kind| Op::ALL.into_iter().map(move |op| test(kind, op)))
        .filter(|test| has_atomics || !test.op.is_atomic())
        .collect()
}

/// Starts the listening end in a separate thread, and runs the tests from this one.
fn measure<P: Provider, N: Network>(
    node: &Node<P, N>,
    listening: impl FnOnce() -> Result<Node<P, N>, NodeError> + Send,
    device: String,
    tests: &[Test],
    timeout: Duration,
) -> Result<Report, Failure> {
    let terms = Terms {
        device: Some(device.clone()),
        timeout,
        shared_receives: None,
        duration: None,
        metering: Metering::default(),
    };
    let (driven, served) = both_ends(node, listening, tests, &terms)?;
    Ok(conclude(device, tests, driven, served))
}

fn conclude(device: String, tests: &[Test], driven: Option<Findings>, served: Findings) -> Report {
    let driven = driven.unwrap_or_else(Findings::nothing);
    let failure = driven.failure.or(served.failure).map(|error| error.to_string());
    // A missing test without a reason is a failure, too.
    let error = failure.or_else(|| {
        (driven.rows.len() != tests.len())
            .then(|| format!("{} of {} tests were run", driven.rows.len(), tests.len()))
    });
    let checked = |row: &Row| {
        row.checked_messages
            .max(row.checked_messages_by_peer.unwrap_or(0))
    };
    let left_out = Op::ALL
        .into_iter()
        .filter(|op| tests.iter().all(|test| test.op != *op));
    Report {
        simulated: false,
        device,
        peer: driven.between.as_ref().map(|between| between.peer.clone()),
        path_mtu_bytes: driven.between.map(|between| between.path_mtu_bytes),
        checked_messages: driven.rows.iter().map(checked).fold(0, u64::saturating_add),
        tests: driven.rows,
        left_out: left_out.map(Op::name).collect(),
        error,
    }
}

impl Report {
    fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let hosts = if self.simulated {
            "two hosts"
        } else {
            "two ends on this host"
        };
        let _ = write!(text, "{}: {hosts}", self.device);
        if let (Some(peer), Some(path_mtu_bytes)) = (&self.peer, self.path_mtu_bytes) {
            let _ = write!(text, ", at {peer}, path MTU {path_mtu_bytes} bytes");
        }
        let _ = writeln!(text, ", doorbell {}", env!("CARGO_PKG_VERSION"));
        if !self.simulated {
            text.push_str("the figures are those of this device with itself, and not those of a network\n");
        }
        let _ = write!(text, "\n{}\n", table(&self.tests));
        if !self.left_out.is_empty() {
            let _ = writeln!(text, "this device does not have {}", self.left_out.join(", "));
        }
        let checked = self.checked_messages;
        let _ = match &self.error {
            None => writeln!(text, "PASSED: every byte of {checked} messages is as it was sent"),
            Some(error) => writeln!(text, "FAILED after {checked} messages: {error}"),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::{Findings, choose, conclude, tests};
    use crate::perf::{Kind, Op};
    use crate::simulated;
    use doorbell::provider::{Gid, GidEntry, GidKind, IpPrefix, Mtu, Name, PortReport, PortState};

    fn port(device: &str, state: PortState) -> PortReport {
        let ip = "10.0.0.1".parse().unwrap();
        let entry = GidEntry {
            index: 1,
            gid: Gid::from_ip(ip),
            kind: GidKind::RoceV2Ipv4,
            interface: Some(Name::try_from("eth0").unwrap()),
            address: Some(IpPrefix::new(ip, 24).unwrap()),
        };
        PortReport {
            device: Name::try_from(device).unwrap(),
            port: 1,
            state,
            is_ethernet: true,
            active_mtu: Some(Mtu::B1024),
            mtu_max: Some(Mtu::B4096),
            speed_mbps: 2500,
            numa_node: None,
            gids: [entry].into_iter().collect(),
            gids_left_out: 0,
        }
    }

    #[test]
    fn the_first_usable_device_is_taken() {
        let ports = [
            port("rxe0", PortState::DOWN),
            port("rxe1", PortState::ACTIVE),
            port("rxe2", PortState::ACTIVE),
        ];
        assert_eq!(choose(&ports, None).unwrap(), "rxe1");
        assert_eq!(choose(&ports, Some("rxe2")).unwrap(), "rxe2");
        let error = choose(&ports, Some("rxe9")).unwrap_err().to_string();
        assert_eq!(error, "no RDMA device rxe9: there are rxe0, rxe1, rxe2");
    }

    #[test]
    fn with_none_every_port_has_its_reason_and_the_lab_is_named() {
        let ports = [port("rxe0", PortState::DOWN), port("rxe1", PortState::INIT)];
        let error = choose(&ports, None).unwrap_err().to_string();
        let expected = "no usable RDMA device\n  rxe0 port 1: the port is DOWN, not ACTIVE\n  \
                        rxe1 port 1: the port is INIT, not ACTIVE\n";
        assert!(error.starts_with(expected), "{error}");
        assert!(error.ends_with("cargo lab demo"), "{error}");
        let only = choose(&ports, Some("rxe1")).unwrap_err().to_string();
        assert!(!only.contains("rxe0 port 1"), "{only}");
        let none = choose(&[], None).unwrap_err().to_string();
        assert!(none.contains("there is none at all"), "{none}");
    }

    #[test]
    fn every_operation_is_shown_both_ways() {
        let all = tests(true);
        assert_eq!(all.len(), 2 * Op::ALL.len());
        for test in &all {
            assert_eq!(test.check(), Ok(()), "{test:?}");
        }
        assert!(all.iter().any(|test| test.kind == Kind::Bandwidth));
        assert_eq!(tests(false).len(), all.len() - 4);
    }

    #[test]
    fn two_simulated_hosts_connect_and_measure() {
        let [near, far] = simulated::two(&simulated::trust().unwrap()).unwrap();
        let timeout = core::time::Duration::from_secs(60);
        let mut few = tests(true);
        few.retain(|test| test.kind == Kind::Latency && test.op.is_atomic());
        let report = super::measure(&near, || Ok(far), simulated::DEVICE.into(), &few, timeout);
        let report = report.map_err(|error| error.to_string()).unwrap();
        assert_eq!(report.error, None);
        assert_eq!(report.tests.len(), few.len());
        let json = serde_json::to_value(&report).unwrap();
        crate::schema::check(&json, &mut Default::default());
    }

    #[test]
    fn tests_that_were_not_run_are_no_success() {
        let all = tests(false);
        let report = conclude("rxe0".into(), &all, None, Findings::nothing());
        assert!(report.error.is_some());
        assert_eq!(report.left_out, ["fetch-add", "compare-swap"]);
        let text = report.to_text();
        assert!(
            text.ends_with("FAILED after 0 messages: 0 of 8 tests were run\n"),
            "{text}"
        );
    }
}
