//! Market data from one to many: every subscriber has the newest quote of every instrument in its own
//! memory, however slow it or another is.
//!
//! ```text
//! host a$ cargo run --release --example market-data -- publish --key-file keys --subscribers 2
//! host b$ cargo run --release --example market-data -- subscribe --key-file keys doorbell:...
//! host c$ cargo run --release --example market-data -- subscribe --key-file keys doorbell:...
//! ```
//!
//! **The verb is WRITE**, into a cell of 64 bytes for each instrument in a window of the subscriber. The
//! latest value is to win, and a cell is just that: a newer quote replaces the older one. It takes no
//! receive, no credit and no processor of the subscriber, so one that looks seldom, or stands still in a
//! debugger, holds nobody up and finds the newest quotes when it looks again. Messages, and the cells of a
//! `RingChannel`, are queues: right where each message counts, but here a slow reader would have to work
//! through what is stale, and its credits would run out before.
//!
//! The way to a subscriber can be slow to the publisher. At most `--in-flight` quotes are on it to one
//! subscriber. Behind them each instrument waits at most once, and goes out with its value at that time
//! ([`publisher`]). So quotes are conflated in two places: at the publisher, where the way is full, and in the
//! cell, where the subscriber has not looked.
//!
//! **A quote is read while it may be written.** The device chooses which bytes of a WRITE land first (if it
//! promises an order, `QueuePair::data_in_order` returns it). So numbers before and behind a value, as between the
//! threads of one program, would prove nothing. A checksum over all of the cell does ([`cell`]): a cell that does
//! not match is read again.
//!
//! **The end** is a message on the same connection. A reliable connection carries out its requests in
//! order: a peer that has the message has all that was written before it. It brings the last sequence of each
//! instrument, and every subscriber says whether it has them.

#[path = "../around/mod.rs"]
mod around;
mod cell;
mod publisher;
mod subscriber;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use doorbell::Handle;
use doorbell_sim::Fabric;

use around::{All, Failure, Output, simulated};
use publisher::Published;
use subscriber::Subscribed;

const PROGRAM: &str = "market-data";

/// Market data from one to many over RDMA: each subscriber has the newest quotes in its own memory.
///
/// Start `publish` on one host, and `subscribe` with the handle it prints on others. Each ends with what it
/// published or saw, checked: per instrument never an older quote after a newer one, never one of two
/// halves, and at the end the last one. The exit code is 1 where that does not hold.
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
    /// Publish quotes, and print the handle subscribers are started with.
    Publish(Publish),
    /// Subscribe to a publisher.
    Subscribe(Subscribe),
    /// All of it in one process, on a simulated fabric: needs no device.
    Simulated(Simulated),
}

/// Instruments at most: the last message has a word for each, and subscribers have memory for it before they know
/// how many there are.
pub(crate) const INSTRUMENTS_MAX: u32 = 4096;

#[derive(Args, Clone, Debug)]
pub(crate) struct Publish {
    /// Subscribers to wait for before the first quote.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) subscribers: u8,
    /// Instruments.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=i64::from(INSTRUMENTS_MAX)))]
    pub(crate) instruments: u32,
    /// Quotes to publish, of all instruments together.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) updates: u64,
    /// Quotes per second; 0 is as many as can be made.
    #[arg(long, default_value_t = 20_000)]
    pub(crate) rate: u64,
    /// Quotes on their way to one subscriber at most. Quotes beyond it wait, one per instrument.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) in_flight: u32,
    /// Seconds to wait for subscribers, and for their word at the end.
    #[arg(long, default_value_t = 60)]
    pub(crate) patience_s: u64,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Subscribe {
    /// Handle that the publisher printed.
    pub(crate) handle: Handle,
    /// Microseconds to be away between two looks at the quotes: a slow subscriber.
    #[arg(long, default_value_t = 0)]
    pub(crate) away_us: u64,
    /// Seconds without any news after which the publisher is taken for dead.
    #[arg(long, default_value_t = 60)]
    pub(crate) patience_s: u64,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Simulated {
    #[command(flatten)]
    pub(crate) publish: Publish,
    /// Microseconds the first subscriber is away between two looks.
    #[arg(long, default_value_t = 1000)]
    pub(crate) away_us: u64,
}

fn main() -> ExitCode {
    let Arguments { role, output } = Arguments::parse();
    let announce = |handle: &Handle| output.announce(handle);
    match role {
        Role::Publish(arguments) => {
            let published = output.on_this_host(|node| publisher::run(node, &arguments, announce));
            output.conclude(PROGRAM, published)
        }
        Role::Subscribe(arguments) => {
            let subscribed = output.on_this_host(|node| subscriber::run(node, &arguments));
            output.conclude(PROGRAM, subscribed)
        }
        Role::Simulated(arguments) => output.conclude(PROGRAM, all(&arguments)),
    }
}

/// A publisher and its subscribers, each a host.
fn all(arguments: &Simulated) -> Result<All<Published, Subscribed>, Failure> {
    let found = simulated::together(
        &Fabric::new(),
        arguments.publish.subscribers,
        |node, announce| publisher::run(node, &arguments.publish, announce),
        |number, node, handle| {
            let arguments = Subscribe {
                handle: *handle,
                away_us: if number == 0 { arguments.away_us } else { 0 },
                patience_s: arguments.publish.patience_s,
            };
            subscriber::run(node, &arguments)
        },
    )?;
    Ok(found.into())
}
