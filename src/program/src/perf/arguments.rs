//! The command lines of `doorbell lat` and `doorbell bw`, and the tests that they describe.

use core::error::Error;
use core::net::SocketAddr;
use core::time::Duration;
use std::io;

use clap::{ArgGroup, Args, ValueEnum};
use doorbell::provider::Mtu;
use doorbell_operation::{SettingValues, Settings};

use super::error::PerfError;
use super::metering::Metering;
use super::terms::{Target, Terms};
use super::test::{ATOMIC_BYTES, Kind, Op, Plant, RING_MESSAGE_BYTES_MAX, Test};
use crate::address::{anywhere, resolve};
use crate::configured::Configured;
use crate::peers::Peers;
use crate::value::{PeerPlace, parse_bytes, parse_bytes_or_none, parse_mtu, parse_seconds};

/// The default limit of the peer's silence.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The default size of a measurement.
struct DefaultSize {
    message_bytes: u32,
    iterations: u64,
    warmup: u64,
}

const LATENCY: DefaultSize = DefaultSize {
    message_bytes: 64,
    iterations: 1000,
    warmup: 100,
};
const BANDWIDTH: DefaultSize = DefaultSize {
    message_bytes: 64 << 10,
    iterations: 5000,
    warmup: 256,
};

/// The powers of two that `--all` measures, as in perftest.
const ALL_SIZES: core::ops::RangeInclusive<u32> = 1..=23;

/// The default limit of the bytes that a test moves on a simulated fabric, and the minimum number of its messages.
const LIGHT_BYTES: u64 = 4 << 20;
const LIGHT_ITERATIONS_MIN: u64 = 4;

/// The default port to listen at and to connect to.
const PORT: u16 = 18700;

/// Measure latency: one message at a time
///
/// Without HOST this side listens. With HOST it runs the tests with the side that listens
/// there, which takes every setting from it. Both check all payload bytes, outside the timed
/// sections, and both fail if either sees a wrong one.
///
/// The results are comparable with those of perftest. For send, write and write-imm, a latency is half the round trip of a message
/// and an answer of the same size, polled for without sleep (ib_send_lat, ib_write_lat). For read and atomics it is the whole round
/// trip, which does not involve the peer's processor (ib_read_lat, ib_atomic_lat). The test of write polls the last byte of memory,
/// as ib_write_lat does, and counts the messages whose other bytes came later.
///
/// The timed section begins with the post call and ends when polling returns the answer. It
/// includes the copy of a SEND or WRITE of up to 4096 bytes: inline, or into memory of the send
/// queue. A longer message is written before, in the memory that it is sent from.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES_LAT)]
pub(crate) struct LatArguments {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    what: TestOptions,
}

/// Measure bandwidth and message rate: many messages in flight
///
/// Without HOST this side listens. With HOST it runs the tests with the side that listens
/// there, which takes every setting from it. Both check all payload bytes, outside the timed
/// sections, and both fail if either sees a wrong one.
///
/// Messages go in rounds of at most 4096 messages or 64 MiB. A round is made before it is posted
/// and checked after the last completion; the time between is measured. It includes the copy of a
/// SEND or WRITE of up to 4096 bytes, unless --buffers is given: inline, or into memory of the send
/// queue. A longer message is written before, in the memory that it is sent from.
///
/// The figures compare to ib_send_bw, ib_write_bw, ib_read_bw and ib_atomic_bw with the same
/// --tx-depth (--depth), --post_list (--batch), --cq-mod (--unsignaled) and --inline_size. MB are
/// 10^6 bytes; the MB/sec of perftest are MiB/s here.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES_BW)]
pub(crate) struct BwArguments {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    what: TestOptions,
    /// Requests posted with one doorbell
    #[arg(
        short = 'l',
        long,
        visible_alias = "post-list",
        value_name = "N",
        default_value_t = 1,
        requires = "drives"
    )]
    batch: u32,
    /// WRITE from N buffers in turn, into N places of the peer; 0 for a new buffer each message. The memory stays in the
    /// caches, as with ib_write_bw, which has one buffer. Only the last message of a round in each place is checked
    #[arg(long, value_name = "N", default_value_t = 0, requires = "drives")]
    buffers: u32,
}

const EXAMPLES_LAT: &str = "Examples:\n  \
    doorbell lat --key-file keys                                   on one host\n  \
    doorbell lat 10.0.0.1 --key-file keys --op send --size 64      on the other\n  \
    doorbell lat 10.0.0.1 --unauthenticated --size 8,4K -n 10000 --json\n  \
    doorbell lat 10.0.0.1 --key-file keys --op write -a            every size, in one table\n  \
    doorbell lat --simulated --op send,read                        on no device\n\n\
    As in perftest: -a -d -D -F -I -m -n -q -s -t -x.";
const EXAMPLES_BW: &str = "Examples:\n  \
    doorbell bw --key-file keys                                    on one host\n  \
    doorbell bw 10.0.0.1 --key-file keys --op write --size 1M      on the other\n  \
    doorbell bw 10.0.0.1 --unauthenticated --op send --size 64 --batch 16 --json\n  \
    doorbell bw --simulated --op write -a                          on no device\n\n\
    As in perftest: -a -d -D -F -I -l -m -n -q -s -t -x.";

/// The options of both commands.
#[derive(Args, Clone, Debug)]
#[command(group(ArgGroup::new("drives").args(["peer", "simulated"])))]
pub(super) struct Common {
    #[command(flatten)]
    peers: Peers,
    /// The side that listens: HOST, HOST:PORT, or the handle it printed; without it this side listens
    #[arg(value_name = "HOST")]
    pub(super) peer: Option<String>,
    /// Run both ends in this process, on two hosts of a simulated fabric: no device is needed, every byte is checked, and the
    /// figures measure this program alone
    #[arg(long, conflicts_with_all = ["listen", "keep", "device", "gid_index", "metrics"])]
    pub(super) simulated: bool,
    /// The address to listen at [default: port 18700 of every address]
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "drives")]
    listen: Option<SocketAddr>,
    /// Keep listening after the first client, until interrupted
    #[arg(long, conflicts_with = "drives")]
    pub(super) keep: bool,
    /// The RDMA device to use [default: any that is usable]
    #[arg(short, long, visible_alias = "ib-dev", value_name = "NAME")]
    device: Option<String>,
    /// Use only the rail of this GID index [default: the rail whose subnet has the peer]
    #[arg(short = 'x', long, value_name = "INDEX")]
    pub(super) gid_index: Option<u32>,
    /// The longest silence of the peer, and the longest wait for it at the start [default: the setting `timeout`, 30]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
    /// Receive in a shared receive queue, with N receives beyond the connection's own; on this side only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(super) shared_receives: Option<u32>,
    /// Serve metrics at http://ADDR:PORT/metrics, in the Prometheus format; `doorbell status` reads them
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    configured: Configured,
    /// Print one JSON document, with every setting
    #[arg(long)]
    pub(super) json: bool,
}

/// The options of tests that both commands have.
#[derive(Args, Clone, Debug)]
struct TestOptions {
    /// Operations to measure, several with commas or --op again
    #[arg(
        long,
        value_name = "OP",
        value_enum,
        value_delimiter = ',',
        default_value = "all",
        requires = "drives"
    )]
    op: Vec<OpChoice>,
    /// Bytes of a message; K and M stand for 1024 and 1024^2. Several with commas. Atomics
    /// have 8 [default: lat 64, bw 64K]
    #[arg(
        short,
        long,
        value_name = "BYTES",
        value_parser = parse_bytes,
        value_delimiter = ',',
        requires = "drives",
        conflicts_with = "all"
    )]
    size: Vec<u32>,
    /// Timed messages of each test [default: lat 1000, bw 5000]
    #[arg(
        short = 'n',
        long,
        visible_alias = "iters",
        value_name = "N",
        requires = "drives",
        conflicts_with = "duration"
    )]
    iterations: Option<u64>,
    /// Untimed messages before the timed ones [default: lat 100, bw 256]
    #[arg(long, value_name = "N", requires = "drives")]
    warmup: Option<u64>,
    /// Measure every power of two from 2 bytes to 8 MiB, in one table
    #[arg(short, long, requires = "drives")]
    all: bool,
    /// Time each test for about SECONDS, instead of a number of messages; a short test before it finds the number
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = parse_seconds, requires = "drives")]
    duration: Option<Duration>,
    /// Connections under test: one, as perftest has by default
    #[arg(short = 'q', long, value_name = "N", value_parser = parse_one_connection, requires = "drives")]
    qp: Option<u32>,
    /// Accepted for compatibility with perftest; it has no effect
    #[arg(short = 'F', long)]
    cpu_freq: bool,
    /// Messages up to this size go inline, copied into the request; 0 for none
    #[arg(
        short = 'I',
        long,
        visible_alias = "inline-size",
        value_name = "BYTES",
        value_parser = parse_bytes_or_none,
        default_value = "220",
        requires = "drives"
    )]
    inline: u32,
    /// The maximum number of requests in flight; for latency, the length of the queue
    #[arg(
        short = 't',
        long,
        visible_alias = "tx-depth",
        value_name = "N",
        default_value_t = 128,
        requires = "drives"
    )]
    depth: u32,
    /// The maximum number of consecutive unsignaled requests, at most half the queue. 0 for none
    #[arg(long, value_name = "N", default_value_t = 64, requires = "drives")]
    unsignaled: u32,
    /// The largest path MTU: 256, 512, 1024, 2048 or 4096; the ports may limit it further
    #[arg(short, long, value_name = "BYTES", value_parser = parse_mtu, default_value = "4096", requires = "drives")]
    mtu: Mtu,
    /// The IP traffic class: DSCP in the upper six bits
    #[arg(long, value_name = "CLASS", default_value_t = 0, requires = "drives")]
    traffic_class: u8,
    /// Self-test: SIDE flips one bit of one message, and the run must then fail on both sides. If only one side sends,
    /// that side flips it
    #[arg(
        long,
        value_name = "SIDE",
        value_enum,
        num_args = 0..=1,
        default_missing_value = "client",
        requires = "drives"
    )]
    plant_corruption: Option<Plant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OpChoice {
    /// SEND into a receive of the peer
    Send,
    /// WRITE into memory of the peer
    Write,
    /// WRITE with immediate, which completes a receive of the peer
    WriteImm,
    /// READ from memory of the peer
    Read,
    /// Atomic fetch and add on a word of the peer
    FetchAdd,
    /// Atomic compare and swap on a word of the peer
    CompareSwap,
    /// A message through the one-sided ring; only for lat
    Ring,
    /// All of them but ring
    All,
}

impl OpChoice {
    const fn ops(self) -> &'static [Op] {
        match self {
            Self::Send => &[Op::Send],
            Self::Write => &[Op::Write],
            Self::WriteImm => &[Op::WriteImm],
            Self::Read => &[Op::Read],
            Self::FetchAdd => &[Op::FetchAdd],
            Self::CompareSwap => &[Op::CompareSwap],
            Self::Ring => &[Op::Ring],
            Self::All => &Op::ALL,
        }
    }
}

impl Common {
    /// Returns the settings in effect.
    ///
    /// # Errors
    /// A setting is invalid.
    pub(super) fn settings(&self) -> Result<Settings, Box<dyn Error>> {
        let options = self.peers.options_with(self.timeout, self.metrics);
        self.configured.settings(SettingValues::default(), &options)
    }

    fn terms(&self) -> Terms {
        Terms {
            device: self.device.clone(),
            timeout: self.timeout.map_or(TIMEOUT, Duration::from_secs),
            shared_receives: self.shared_receives,
            duration: None,
            metering: Metering::default(),
        }
    }

    /// Whether this side selects the tests.
    pub(super) const fn drives(&self) -> bool {
        self.peer.is_some() || self.simulated
    }

    /// The address to listen at.
    pub(super) fn listen_at(&self) -> SocketAddr {
        self.listen.unwrap_or_else(|| anywhere(PORT))
    }
}

impl LatArguments {
    /// The terms of all tests.
    pub(crate) fn terms(&self) -> Terms {
        self.what.terms(&self.common)
    }

    /// The tests in the order in which they run.
    ///
    /// # Errors
    /// A setting is out of range.
    pub(crate) fn tests(&self) -> Result<Vec<Test>, PerfError> {
        let each = self.what.test(Kind::Latency, &LATENCY);
        self.what.tests(each, self.common.simulated)
    }
}

impl BwArguments {
    /// The terms of all tests.
    pub(crate) fn terms(&self) -> Terms {
        self.what.terms(&self.common)
    }

    /// The tests in the order in which they run.
    ///
    /// # Errors
    /// A setting is out of range.
    pub(crate) fn tests(&self) -> Result<Vec<Test>, PerfError> {
        let each = Test {
            batch: self.batch,
            buffers: self.buffers,
            ..self.what.test(Kind::Bandwidth, &BANDWIDTH)
        };
        self.what.tests(each, self.common.simulated)
    }
}

impl TestOptions {
    fn terms(&self, common: &Common) -> Terms {
        Terms {
            duration: self.duration,
            ..common.terms()
        }
    }

    fn test(&self, kind: Kind, measured: &DefaultSize) -> Test {
        Test {
            kind,
            op: Op::Send,
            message_bytes: measured.message_bytes,
            iterations: self.iterations.unwrap_or(measured.iterations),
            warmup: self.warmup.unwrap_or(measured.warmup),
            inline_bytes_max: self.inline,
            batch: 1,
            depth: self.depth,
            unsignaled_max: self.unsignaled,
            buffers: 0,
            traffic_class: self.traffic_class,
            mtu_max: self.mtu,
            plant: self.plant_corruption,
        }
    }

    /// Returns one test for each operation and size; atomics have only one size. On a simulated fabric, tests of long messages move few
    /// bytes by default.
    fn tests(&self, each: Test, simulated: bool) -> Result<Vec<Test>, PerfError> {
        let is_light = simulated && self.iterations.is_none();
        let all: Vec<u32> = ALL_SIZES.map(|power| 1 << power).collect();
        let default = [each.message_bytes];
        let sizes = match &self.size[..] {
            _ if self.all => &all,
            [] => &default[..],
            sizes => sizes,
        };
        let mut tests = Vec::new();
        for op in self.op.iter().flat_map(|choice| choice.ops()).copied() {
            if (each.kind, op) == (Kind::Bandwidth, Op::Ring) {
                return Err(PerfError::NoBandwidthOf(op));
            }
            let sizes = if op.is_atomic() { &[ATOMIC_BYTES] } else { sizes };
            let is_left_out = |bytes: &u32| self.all && op == Op::Ring && *bytes > RING_MESSAGE_BYTES_MAX;
            for message_bytes in sizes.iter().copied().filter(|bytes| !is_left_out(bytes)) {
                let mut test = Test {
                    op,
                    message_bytes,
                    ..each
                };
                if is_light {
                    let most = LIGHT_BYTES
                        .checked_div(message_bytes.into())
                        .unwrap_or(LIGHT_BYTES);
                    test.iterations = test.iterations.min(most.max(LIGHT_ITERATIONS_MIN));
                    test.warmup = test.warmup.min(test.iterations);
                }
                test.check()?;
                tests.push(test);
            }
        }
        Ok(tests)
    }
}

/// Parses the number of connections, which has to be 1.
fn parse_one_connection(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(1) => Ok(1),
        Ok(_) => Err("one connection is measured at a time: run the command once for each".into()),
        Err(_) => Err("not a number".into()),
    }
}

/// Resolves the peer that was named on the command line.
///
/// # Errors
/// The text is neither a handle nor an address, and no name that is resolved in time.
pub(super) fn target(peer: &str, timeout: Duration) -> Result<Target, PerfError> {
    let name = || peer.to_owned();
    let wrong = |error| PerfError::Name { name: name(), error };
    let place = PeerPlace::parse(peer, PORT)
        .map_err(|why| wrong(io::Error::new(io::ErrorKind::InvalidInput, why)))?;
    Ok(match place {
        PeerPlace::Handle(handle) => Target::Handle(handle),
        PeerPlace::Address(address) => Target::Addresses {
            name: name(),
            addresses: vec![address],
        },
        PeerPlace::Host { name: host, port } => Target::Addresses {
            name: name(),
            addresses: resolve((host, port), timeout).map_err(wrong)?,
        },
    })
}

#[cfg(test)]
mod tests;
