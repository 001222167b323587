//! A replicated log with group commit: a leader writes entries into its followers' memory, and an entry is
//! committed once a majority has it.
//!
//! ```text
//! host a$ cargo run --release --example log-replication -- lead --key-file keys --followers 2
//! host b$ cargo run --release --example log-replication -- follow --key-file keys doorbell:...
//! host c$ cargo run --release --example log-replication -- follow --key-file keys doorbell:...
//! ```
//!
//! **The verb is WRITE with immediate**, into a window of each follower that is used as a ring of bytes. The device
//! puts the entries into the log itself. The immediate takes a receive, wakes the follower and says up to where its
//! log is now written. So the bytes are settled when they are read, without a checksum for that; the checksum of each
//! entry finds a log that is damaged. Messages would have to be copied out of the memory they came in, and a plain
//! WRITE notifies nobody.
//!
//! **Group commit.** One batch is on its way to a follower at a time. Entries appended meanwhile gather, and go as one:
//! one WRITE (two if the ring ends within), one doorbell, one acknowledgement. In a log that is used little, entries go
//! alone and at once. One that is used much has large batches, and no entry waits for a batch to fill.
//!
//! **Room.** The leader writes over nothing that the follower has not acknowledged, so the window needs no credits of
//! its own. A follower that answers too late, or whose connection fails, is given up. So is one that lags so far
//! behind the others that the leader's own memory is full because of it ([`leader`]).
//!
//! **Majority.** Of the followers that were there at first and the leader, more than half must have an entry. With
//! fewer than that left nothing can be committed any more: the leader reports it, and ends.
//!
//! Not shown: elections, logs on disk, and followers that come back.

#[path = "../around/mod.rs"]
mod around;
mod entry;
mod follower;
mod leader;
mod log;
mod replica;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use doorbell::Handle;
use doorbell_sim::Fabric;

use around::{All, Failure, Output, simulated};
use follower::Followed;
use leader::Led;

const PROGRAM: &str = "log-replication";

/// A log replicated over RDMA, with group commit.
///
/// Start `lead` on one host, and `follow` with the handle it prints on others. Followers check the
/// sequence and the checksum of each entry, and at the end that they have all of them. The exit code is 1 where
/// that does not hold, or where no majority was left.
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
    /// Append entries and replicate them; print the handle followers are started with.
    Lead(Lead),
    /// Keep a copy of a leader's log.
    Follow(Follow),
    /// All of it in one process, on a simulated fabric: needs no device.
    Simulated(Simulated),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Lead {
    /// Followers to wait for before the first entry.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) followers: u8,
    /// Entries to append.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) entries: u64,
    /// Seconds after which nothing more is appended, however many entries there are.
    #[arg(long, default_value_t = 3600)]
    pub(crate) seconds: u64,
    /// Bytes of each entry.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) entry_bytes: u32,
    /// Clients, each of which appends its next entry when its last one is committed.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub(crate) clients: u64,
    /// Entries per second by the clock, with any number waiting; in the place of clients.
    #[arg(long, conflicts_with = "clients", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rate: Option<u64>,
    /// KiB of log that fit into a follower's window, and are kept by the leader. A follower that the others have
    /// left half of this behind is given up when the rest is full.
    #[arg(long, default_value_t = 16384, value_parser = clap::value_parser!(u32).range(64..=65536))]
    pub(crate) window_kib: u32,
    /// KiB of one batch at most.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(8..=32))]
    pub(crate) batch_kib: u32,
    /// Milliseconds within which a follower has to acknowledge a batch.
    #[arg(long, default_value_t = 1000)]
    pub(crate) acknowledge_ms: u64,
    /// Seconds to wait for followers.
    #[arg(long, default_value_t = 60)]
    pub(crate) patience_s: u64,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Follow {
    /// Handle that the leader printed.
    pub(crate) handle: Handle,
    #[command(flatten)]
    pub(crate) manner: Manner,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Manner {
    /// Sleep when nothing comes, and do not poll without rest: a processor less, some microseconds more.
    #[arg(long)]
    pub(crate) sleep: bool,
    /// Leave without a word after so many entries, to see what the others do.
    #[arg(long, value_name = "ENTRIES")]
    pub(crate) leave_after: Option<u64>,
    /// Seconds without an entry after which the leader is taken for dead.
    #[arg(long, default_value_t = 60)]
    pub(crate) silence_s: u64,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Simulated {
    #[command(flatten)]
    pub(crate) lead: Lead,
    #[command(flatten)]
    pub(crate) manner: Manner,
    /// How many of the followers leave, where --leave-after says when.
    #[arg(long, default_value_t = 1)]
    pub(crate) leavers: usize,
}

fn main() -> ExitCode {
    let Arguments { role, output } = Arguments::parse();
    let announce = |handle: &Handle| output.announce(handle);
    match role {
        Role::Lead(arguments) => {
            let led = output.on_this_host(|node| leader::run(node, &arguments, announce));
            output.conclude(PROGRAM, led)
        }
        Role::Follow(Follow { handle, manner }) => {
            let followed = output.on_this_host(|node| follower::run(node, &handle, &manner));
            output.conclude(PROGRAM, followed)
        }
        Role::Simulated(arguments) => output.conclude(PROGRAM, all(&arguments)),
    }
}

/// A leader and its followers, each a host.
fn all(arguments: &Simulated) -> Result<All<Led, Followed>, Failure> {
    let found = simulated::together(
        &Fabric::new(),
        arguments.lead.followers,
        |node, announce| leader::run(node, &arguments.lead, announce),
        |number, node, handle| {
            let mut manner = arguments.manner.clone();
            manner.leave_after = manner.leave_after.filter(|_| number < arguments.leavers);
            follower::run(node, handle, &manner)
        },
    )?;
    Ok(found.into())
}
