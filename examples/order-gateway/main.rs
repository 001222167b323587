//! Orders and answers: `doorbell::requests` over a channel, each with a deadline.
//!
//! ```text
//! host a$ cargo run --release --example order-gateway -- serve --key-file keys
//! host b$ cargo run --release --example order-gateway -- trade --key-file keys doorbell:... --in-flight 8
//! host b$ cargo run --release --example order-gateway -- trade --key-file keys doorbell:... --rate 20000
//! ```
//!
//! **The verb is SEND**: each order counts, none may replace another, and the traders have to feel a gateway that falls behind. The
//! channel's credits are that: a gateway posts a receive for each order it can take, and where there is none left the order is handed back
//! at once, as `WouldBlock`.
//!
//! So an order ends in one of these ways, and the trader learns which ([`orders`]). The library matches answers to orders, ends an order at its
//! deadline, and shows answers that come after it. The trader ends by closing the channel: the gateway is notified behind the last order.
//!
//! | outcome | it was sent | |
//! |---|---|---|
//! | answered | yes | by its deadline |
//! | late | yes | answered after its deadline: nobody waited for it any more |
//! | lost | yes | no answer came. The gateway may have carried it out |
//! | rejected | no | backpressure: it can be offered again, or elsewhere |
//!
//! **Open or closed loop.** `--in-flight N` sends an order when one of N has been answered: how fast the gateway
//! can be used. `--rate R` offers orders by the clock, at any pace of the gateway, and counts their latency from when each was due. So a
//! gateway that stands still for a moment shows in the percentiles by all the orders it kept waiting, and not by one.

#[path = "../around/mod.rs"]
mod around;
mod gateway;
mod message;
mod orders;
#[cfg(test)]
mod tests;
mod trader;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use doorbell::{Handle, Notify, Wait, WorkerConfig};
use doorbell_sim::Fabric;

use around::{All, Failure, Output, simulated};
use gateway::Served;
use trader::Traded;

const PROGRAM: &str = "order-gateway";

/// Orders and answers over RDMA, with latency percentiles.
///
/// Start `serve` on one host, and `trade` with the handle it prints on another. Every answer is
/// compared with its order. The exit code is 1 if an order was lost, or answered wrongly or twice; late and rejected ones are counted and
/// reported.
#[derive(Parser)]
#[command(name = PROGRAM, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
    #[command(flatten)]
    output: Output,
}

#[derive(Subcommand)]
enum Role {
    /// Answer orders, and print the handle a trader is started with.
    Serve(Serve),
    /// Send orders to a gateway.
    Trade(Trade),
    /// Both in one process, on a simulated fabric: needs no device.
    Simulated(Simulated),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Serve {
    /// Orders that may wait here at most. A trader is refused those beyond.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub(crate) backlog: u32,
    /// Microseconds of work for each order.
    #[arg(long, default_value_t = 0)]
    pub(crate) work_us: u64,
    /// Leave each N-th order without an answer, to see that the trader reports it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) mute_every: Option<u64>,
    /// Sleep when nothing comes, and do not poll without rest: a processor less, some microseconds more.
    #[arg(long)]
    pub(crate) sleep: bool,
    /// Seconds to wait for the trader.
    #[arg(long, default_value_t = 60)]
    pub(crate) patience_s: u64,
}

impl Serve {
    pub(crate) const fn how(&self) -> Wait {
        if self.sleep {
            Wait::SPIN_THEN_SLEEP
        } else {
            Wait::Busy
        }
    }

    pub(crate) fn worker_config(&self) -> WorkerConfig {
        let mut config = WorkerConfig::default();
        config.notify = if self.sleep { Notify::Every } else { Notify::Never };
        config
    }
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Trade {
    /// Handle that the gateway printed.
    pub(crate) handle: Handle,
    #[command(flatten)]
    pub(crate) load: Load,
    /// Seconds to wait for the gateway at the beginning and at the end.
    #[arg(long, default_value_t = 60)]
    pub(crate) patience_s: u64,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// Orders in all.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) orders: u32,
    /// Closed loop: so many orders wait for their answers at any time.
    #[arg(long, default_value_t = 1, conflicts_with = "rate", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) in_flight: u32,
    /// Open loop: so many orders per second are offered, with any outcome.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rate: Option<u64>,
    /// Microseconds by which an order must be answered.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) deadline_us: u64,
    /// Milliseconds to go on listening at the end, to distinguish late answers from lost ones.
    #[arg(long, default_value_t = 1000)]
    pub(crate) grace_ms: u64,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Simulated {
    #[command(flatten)]
    pub(crate) serve: Serve,
    #[command(flatten)]
    pub(crate) load: Load,
}

fn main() -> ExitCode {
    let Arguments { role, output } = Arguments::parse();
    let announce = |handle: &Handle| output.announce(handle);
    match role {
        Role::Serve(arguments) => {
            let served = output.on_this_host(|node| gateway::run(node, &arguments, announce));
            output.conclude(PROGRAM, served)
        }
        Role::Trade(Trade {
            handle,
            load,
            patience_s,
        }) => {
            let traded = output.on_this_host(|node| trader::run(node, &handle, &load, patience_s));
            output.conclude(PROGRAM, traded)
        }
        Role::Simulated(arguments) => output.conclude(PROGRAM, both(&arguments)),
    }
}

/// A gateway and a trader, each a host.
fn both(Simulated { serve, load }: &Simulated) -> Result<All<Served, Traded>, Failure> {
    // The load is by the clock of this machine, and so are the deadlines.
    let fabric = Fabric::builder().real_time(doorbell::now).build();
    let found = simulated::together(
        &fabric,
        1,
        |node, announce| gateway::run(node, serve, announce),
        |_, node, handle| trader::run(node, handle, load, serve.patience_s),
    )?;
    Ok(found.into())
}
