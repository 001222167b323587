//! The command lines of `doorbell lat` and `doorbell bw`, and the tests they stand for.

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
use crate::value::{Place, parse_bytes, parse_bytes_or_none, parse_mtu, parse_seconds};

/// How long the peer may be silent, where nothing says so.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The measurement of each operation where nothing says otherwise.
struct Measured {
    message_bytes: u32,
    iterations: u64,
    warmup: u64,
}

const LATENCY: Measured = Measured {
    message_bytes: 64,
    iterations: 1000,
    warmup: 100,
};
const BANDWIDTH: Measured = Measured {
    message_bytes: 64 << 10,
    iterations: 5000,
    warmup: 256,
};

/// The powers of two that `--all` measures: those of perftest.
const ALL_SIZES: core::ops::RangeInclusive<u32> = 1..=23;

/// The most that one test moves on a simulated fabric, in bytes, but for so many messages; where nothing says how many.
const LIGHT_BYTES: u64 = 4 << 20;
const LIGHT_ITERATIONS_MIN: u64 = 4;

/// The port to listen and to look at where none is given.
const PORT: u16 = 18700;

/// Measure latency: one message at a time
///
/// Without HOST this side listens. With HOST it runs the tests with the side that listens
/// there, which takes every setting from it. Both check all payload bytes, outside the timed
/// sections, and both fail when either saw a wrong one.
///
/// The measurement is perftest's: for send, write and write-imm half the round trip
/// of a message and its like-sized answer, polled for without sleep (ib_send_lat and
/// ib_write_lat); for read and atomics the whole round trip, in which the peer's processor
/// has no part (ib_read_lat, ib_atomic_lat). write polls the last byte of memory, as
/// ib_write_lat does, and counts the messages whose other bytes came later. Timed is from
/// the post call to the moment polling hands the answer over. A SEND or WRITE of up to 4096
/// bytes is copied within that time: inline, or into memory of the send queue. A longer one
/// is made where it goes out from.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES_LAT)]
pub(crate) struct LatArguments {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    what: What,
}

/// Measure bandwidth and message rate: many messages in flight
///
/// Without HOST this side listens. With HOST it runs the tests with the side that listens
/// there, which takes every setting from it. Both check all payload bytes, outside the timed
/// sections, and both fail when either saw a wrong one.
///
/// Messages go in rounds of at most 4096, or what 64 MiB hold. A round is made before it is
/// posted and checked after the last completion; the time between is what counts. A SEND or
/// WRITE of up to 4096 bytes is copied within that time, but with --buffers: inline, or into
/// memory of the send queue. A longer one is made where it goes out from. The figures compare
/// to ib_send_bw, ib_write_bw, ib_read_bw and ib_atomic_bw with the same --tx-depth
/// (--depth), --post_list (--batch), --cq-mod (--unsignaled) and --inline_size. MB are 10^6
/// bytes; MiB/s is what perftest calls MB/sec.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES_BW)]
pub(crate) struct BwArguments {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    what: What,
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
    /// WRITE from this many buffers again and again, each message to the place of one before it: memory that
    /// stays in the caches, as with ib_write_bw, which has one buffer. The last message of a round in each
    /// place is checked. 0 for none: each message is new
    #[arg(long, value_name = "N", default_value_t = 0, requires = "drives")]
    buffers: u32,
}

const EXAMPLES_LAT: &str = "Examples:\n  \
    doorbell lat --key-file keys                                   on one host\n  \
    doorbell lat 10.0.0.1 --key-file keys --op send --size 64      on the other\n  \
    doorbell lat 10.0.0.1 --unauthenticated --size 8,4K -n 10000 --json\n  \
    doorbell lat 10.0.0.1 --key-file keys --op write -a            every size, in one table\n  \
    doorbell lat --simulated --op send,read                        on no device\n\n\
    As in perftest: -a -d -D -F -I -l -m -n -q -s -t -x.";
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
    /// The side that listens: HOST, HOST:PORT, or the handle it printed. Without it, this
    /// side listens
    #[arg(value_name = "HOST")]
    pub(super) peer: Option<String>,
    /// Run both ends in this process, on two hosts of a simulated fabric: no device is needed, every byte is checked, and the
    /// figures measure this program alone
    #[arg(long, conflicts_with_all = ["listen", "keep", "device", "gid_index", "metrics"])]
    pub(super) simulated: bool,
    /// The address to listen at [default: port 18700 of every address]
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "drives")]
    listen: Option<SocketAddr>,
    /// Go on listening after the first client, until interrupted
    #[arg(long, conflicts_with = "drives")]
    pub(super) keep: bool,
    /// The RDMA device to use; else any that is usable
    #[arg(short, long, visible_alias = "ib-dev", value_name = "NAME")]
    device: Option<String>,
    /// Use the rail of this GID index alone; else the one whose subnet has the peer
    #[arg(short = 'x', long, value_name = "INDEX")]
    pub(super) gid_index: Option<u32>,
    /// How long the peer may be silent, and how long to look for it or wait for it [default: 30, or as set]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
    /// Receive in a shared receive queue, with N receives more than the connection's share; for this side alone
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(super) shared_receives: Option<u32>,
    /// Tell what is counted, as Prometheus reads it, at http://ADDR:PORT/metrics, to whoever asks
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    configured: Configured,
    /// Report as JSON, with every setting
    #[arg(long)]
    pub(super) json: bool,
}

/// The options of tests that both commands have.
#[derive(Args, Clone, Debug)]
struct What {
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
    /// Messages that are timed [default: lat 1000, bw 5000]
    #[arg(
        short = 'n',
        long,
        visible_alias = "iters",
        value_name = "N",
        requires = "drives",
        conflicts_with = "duration"
    )]
    iterations: Option<u64>,
    /// Messages that are sent before the timed ones [default: lat 100, bw 256]
    #[arg(long, value_name = "N", requires = "drives")]
    warmup: Option<u64>,
    /// Measure every power of two from 2 bytes to 8 MiB, in one table
    #[arg(short, long, requires = "drives")]
    all: bool,
    /// Time about this many seconds of each test instead of a number of messages, by a short test before it
    #[arg(short = 'D', long, value_name = "SECONDS", value_parser = parse_seconds, requires = "drives")]
    duration: Option<Duration>,
    /// Connections under test: one, as perftest has by default
    #[arg(short = 'q', long, value_name = "N", value_parser = parse_one_connection, requires = "drives")]
    qp: Option<u32>,
    /// Taken for perftest's sake: no warning about CPU frequency is given here
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
    /// Requests in flight at most; for latency, the length of the queue
    #[arg(
        short = 't',
        long,
        visible_alias = "tx-depth",
        value_name = "N",
        default_value_t = 128,
        requires = "drives"
    )]
    depth: u32,
    /// Requests in a row that may go without a completion of their own; at most half the
    /// queue whatever this says, and 0 for none
    #[arg(long, value_name = "N", default_value_t = 64, requires = "drives")]
    unsignaled: u32,
    /// The path MTU at most: 256, 512, 1024, 2048 or 4096; both ports may make it less
    #[arg(short, long, value_name = "BYTES", value_parser = parse_mtu, default_value = "4096", requires = "drives")]
    mtu: Mtu,
    /// The IP traffic class: DSCP in the upper six bits
    #[arg(long, value_name = "CLASS", default_value_t = 0, requires = "drives")]
    traffic_class: u8,
    /// Self-test: have one bit of one message flipped by one side, or by the only one that
    /// sends; the run must then fail on both
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
    /// A message through the one-sided ring; for lat alone
    Ring,
    /// Each of them but ring
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
    /// The settings in effect.
    ///
    /// # Errors
    /// One is wrong.
    pub(super) fn settings(&self) -> Result<Settings, Box<dyn Error>> {
        let timeout = self.timeout.map(|seconds| format!("{seconds}s"));
        let metrics = self.metrics.map(|address| address.to_string());
        let [key_file, unauthenticated] = self.peers.said();
        let said = [
            key_file,
            unauthenticated,
            ("--timeout", "timeout", timeout),
            ("--metrics", "metrics", metrics),
        ];
        self.configured.settings(SettingValues::default(), &said)
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

    /// Whether this side says what is measured.
    pub(super) const fn drives(&self) -> bool {
        self.peer.is_some() || self.simulated
    }

    /// The address to listen at.
    pub(super) fn listen_at(&self) -> SocketAddr {
        self.listen.unwrap_or_else(|| anywhere(PORT))
    }
}

impl LatArguments {
    /// The terms of all of them.
    pub(crate) fn terms(&self) -> Terms {
        self.what.terms(&self.common)
    }

    /// The tests in the order they are run.
    ///
    /// # Errors
    /// A setting is beyond its bounds.
    pub(crate) fn tests(&self) -> Result<Vec<Test>, PerfError> {
        let each = self.what.test(Kind::Latency, &LATENCY);
        self.what.tests(each, self.common.simulated)
    }
}

impl BwArguments {
    /// The terms of all of them.
    pub(crate) fn terms(&self) -> Terms {
        self.what.terms(&self.common)
    }

    /// The tests in the order they are run.
    ///
    /// # Errors
    /// A setting is beyond its bounds.
    pub(crate) fn tests(&self) -> Result<Vec<Test>, PerfError> {
        let each = Test {
            batch: self.batch,
            buffers: self.buffers,
            ..self.what.test(Kind::Bandwidth, &BANDWIDTH)
        };
        self.what.tests(each, self.common.simulated)
    }
}

impl What {
    fn terms(&self, common: &Common) -> Terms {
        Terms {
            duration: self.duration,
            ..common.terms()
        }
    }

    fn test(&self, kind: Kind, measured: &Measured) -> Test {
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

    /// One test for each operation and size; atomics have but one size. On a simulated fabric, few bytes are moved where messages are
    /// long and nothing says how many there are.
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

/// How many connections are measured at a time.
fn parse_one_connection(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(1) => Ok(1),
        Ok(_) => Err("one connection is measured at a time: run the command once for each".into()),
        Err(_) => Err("not a number".into()),
    }
}

/// The place of the peer that was named on the command line.
///
/// # Errors
/// It is neither a handle nor an address, nor a name of one that is found in time.
pub(super) fn target(peer: &str, timeout: Duration) -> Result<Target, PerfError> {
    let name = || peer.to_owned();
    let wrong = |error| PerfError::Name { name: name(), error };
    let place =
        Place::parse(peer, PORT).map_err(|why| wrong(io::Error::new(io::ErrorKind::InvalidInput, why)))?;
    Ok(match place {
        Place::Handle(handle) => Target::Handle(handle),
        Place::Address(address) => Target::Addresses {
            name: name(),
            addresses: vec![address],
        },
        Place::Host { name: host, port } => Target::Addresses {
            name: name(),
            addresses: resolve((host, port), timeout).map_err(wrong)?,
        },
    })
}

#[cfg(test)]
mod tests;
