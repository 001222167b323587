//! The command line of `doorbell pingpong`.

use core::net::SocketAddr;
use core::time::Duration;

use doorbell::provider::{Mtu, SLOTS_MAX};

use super::source::Selection;
use crate::value::{parse_mtu, parse_seconds};

/// The default number of receives, as in the stock program, if they fit into memory.
const RECEIVE_DEPTH: u32 = 500;

/// Memory for receives if their number is not given.
const RECEIVE_BYTES: u32 = 64 << 20;

/// Maximum memory for receives.
const RECEIVE_BYTES_MAX: u64 = 1 << 30;

/// Exchange messages with ibv_rc_pingpong of rdma-core, or with another doorbell
///
/// Without HOST it is the server: it waits for one client, and answers each of its messages. With HOST it
/// is the client. The other end may be `ibv_rc_pingpong -g INDEX` in either role: the options that both
/// sides have to agree on (port, size, MTU, iterations) have its letters and defaults.
///
/// Unless --gid-index names it, the GID follows from the peer's address: that of HOST, or for a server the GID
/// that its client sent. It is the GID whose subnet has this address, the longest prefix first. If no subnet
/// has the address, it is the first GID of the only usable device, IPv4 before IPv6. With several usable
/// devices this is an error, which lists them.
///
/// Each side sends back the message that it received. Both sides check the length of every message. The client
/// also checks every byte of the last message, outside the timed section, and so does a server with --check.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The server to connect to; without it this side is the server
    pub(super) host: Option<String>,

    /// The TCP port to listen on or connect to
    #[arg(short, long, default_value_t = 18515, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: u16,

    /// The RDMA device [default: the one that reaches the peer]
    #[arg(short, long, visible_alias = "ib-dev", value_name = "NAME")]
    pub(super) device: Option<String>,

    /// The port of the RDMA device
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    pub(super) ib_port: u8,

    /// Bytes of each message; the same on both sides
    #[arg(short, long, default_value_t = 4096, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub(super) size: u32,

    /// The path MTU: 256, 512, 1024, 2048 or 4096; the same on both sides
    #[arg(short, long, default_value = "1024", value_name = "BYTES", value_parser = parse_mtu)]
    pub(super) mtu: Mtu,

    /// Receives to keep posted [default: 500, or as many as fit in 64 MiB, at least 2]
    #[arg(short, long, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..i64::from(SLOTS_MAX)))]
    pub(super) rx_depth: Option<u32>,

    /// Messages each side sends; the same on both sides
    #[arg(short = 'n', long, visible_alias = "iterations", default_value_t = 1000, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) iters: u32,

    /// The service level: `-l` of ibv_rc_pingpong, and `-S` as in perftest
    #[arg(short = 'S', long, visible_alias = "sl", default_value_t = 0, value_name = "LEVEL",
          value_parser = clap::value_parser!(u8).range(..16))]
    pub(super) service_level: u8,

    /// The index of our GID [default: from the peer's address]
    #[arg(
        short = 'x',
        visible_short_alias = 'g',
        long,
        visible_alias = "gid-idx",
        value_name = "INDEX"
    )]
    pub(super) gid_index: Option<u8>,

    /// Sleep until a completion notifies, instead of polling
    #[arg(short, long)]
    pub(super) events: bool,

    /// Mark the pages of the payload, as -c of ibv_rc_pingpong does, and check them; on both sides
    #[arg(short, long, visible_alias = "chk")]
    pub(super) check: bool,

    /// The longest time for each step: connecting, each message of the exchange, the wait for a completion
    #[arg(long, default_value = "10", value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) timeout: Duration,

    /// How long a server waits for its client
    #[arg(long, default_value = "60", value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) wait: Duration,

    /// Serve metrics at http://ADDR:PORT/metrics, in the Prometheus format; `doorbell status` reads them
    #[arg(long, value_name = "ADDR:PORT")]
    pub(super) metrics: Option<SocketAddr>,

    /// Print one JSON document
    #[arg(long)]
    pub(super) json: bool,
}

impl Arguments {
    pub(super) fn wanted(&self) -> Selection<'_> {
        Selection {
            device: self.device.as_deref(),
            port: self.ib_port,
            gid_index: self.gid_index,
            mtu: self.mtu,
        }
    }

    /// Returns the number of receives to post, for a device that supports at most `device_max`.
    ///
    /// # Errors
    /// The command line requests more receives than that, or more memory than the limit.
    pub(crate) fn receive_depth(&self, device_max: u32) -> Result<u32, String> {
        let Some(depth) = self.rx_depth else {
            let fitting = RECEIVE_BYTES.checked_div(self.size).unwrap_or(2).max(2);
            return Ok(RECEIVE_DEPTH.min(fitting).min(device_max));
        };
        if depth > device_max {
            return Err(format!(
                "--rx-depth {depth} is more than the device's {device_max}"
            ));
        }
        let bytes = u64::from(depth).saturating_mul(self.size.into());
        if bytes > RECEIVE_BYTES_MAX {
            return Err(format!(
                "{depth} receives of {} bytes are more than 1 GiB: name a smaller --rx-depth",
                self.size
            ));
        }
        Ok(depth)
    }
}

const EXAMPLES: &str = "Examples:\n  \
    doorbell pingpong                     on 10.0.0.1\n  \
    ibv_rc_pingpong -g 1 10.0.0.1         on the other\n\n  \
    ibv_rc_pingpong -g 1 -c               on 10.0.0.1\n  \
    doorbell pingpong -c 10.0.0.1         on the other";
