//! Instructions per 64-byte message, post and poll: `ffi` with cells and with slots, beside a loop by hand.
//!
//! All run on the fake libibverbs, on a queue pair that delivers nothing. Only the caller's own side is counted:
//! instructions in the fake's shared object are left out. callgrind counts two runs of different length, and
//! their difference is taken, so set-up does not matter. Every poll finds its completion, so there are no empty
//! ones.
//!
//! All do the same for each message: take a buffer in turn, and write a request of one element for its 64 bytes.
//! They set operation and flags as if the next message could be of another kind. For each batch they signal the
//! last message, post once, poll, check the status, and take the buffers back. None touches the payload.
//!
//! Beside them stands receiving by hand, on queue pairs that deliver: the rival of the benchmark of channels.
//!
//! ```text
//! cargo run --release -p doorbell-proofs --example posting
//! cargo run --release -p doorbell-proofs --example posting -- --keep DIRECTORY   # leaves callgrind's files there
//! ```

mod by_cells;
mod by_guard;
mod by_hand;
mod by_hand_receiving;
mod callgrind;

use core::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use callgrind::Counts;

/// The bytes of a message.
const MESSAGE_BYTES: u32 = 64;

/// One message of so many is signaled where it seldom is: as many as the public Channel leaves unsignaled in half its queue, and one.
const SELDOM: u32 = 64;

/// How deep the send queue is: perftest's depth.
const DEPTH: u32 = 128;

/// Instructions that cells may take above the loop by hand, by messages in a batch.
const GOALS: [(u32, f64); 3] = [(1, 25.0), (16, 0.0), (32, 0.0)];

/// How many batches the two runs have.
const SHORT: u32 = 1_000;
const LONG: u32 = 3_000;

/// Failure, in words.
#[derive(Debug)]
struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Failure {
    fn new(what: impl fmt::Display) -> Self {
        Self(what.to_string())
    }
}

/// Who posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Guard,
    Cells,
    Hand,
    HandSeldom,
    HandReceiving,
}

impl Who {
    const fn name(self) -> &'static str {
        match self {
            Self::Guard => "guard",
            Self::Cells => "cells",
            Self::Hand => "hand",
            Self::HandSeldom => "hand-seldom",
            Self::HandReceiving => "hand-receiving",
        }
    }

    /// Posts so many batches of so many messages.
    fn run(self, batch: u32, batches: u32) -> Result<(), Failure> {
        let library = doorbell_fake::library_path().map_err(Failure::new)?;
        // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
        unsafe { rdma_sys::load_from(&library) }.map_err(Failure::new)?;
        let done = match self {
            Self::Guard => by_guard::run(batch, batches)?,
            Self::Cells => by_cells::run(batch, batches)?,
            Self::Hand => by_hand::run(batch, batches)?,
            Self::HandSeldom => by_hand::run_seldom(batches)?,
            Self::HandReceiving => by_hand_receiving::run(batch, batches)?,
        };
        let mut wanted = u64::from(batch).saturating_mul(u64::from(batches));
        if self == Self::HandSeldom {
            // Messages behind the last one signaled are not known done.
            wanted = wanted.saturating_sub(wanted % u64::from(SELDOM));
        }
        if done == wanted {
            return Ok(());
        }
        Err(Failure(format!("{done} of {wanted} messages were taken back")))
    }
}

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("posting: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        // The loop that runs under callgrind.
        ["--count", who, batch, batches] => {
            let known = [
                Who::Guard,
                Who::Cells,
                Who::Hand,
                Who::HandSeldom,
                Who::HandReceiving,
            ];
            let who = known.into_iter().find(|known| known.name() == *who);
            let who = who.ok_or_else(|| Failure::new("nobody of that name posts"))?;
            let number = |text: &str| text.parse().map_err(Failure::new);
            who.run(number(batch)?, number(batches)?)
        }
        ["--keep", folder] => compare(Path::new(folder)),
        [] => {
            let folder = Folder::new()?;
            compare(&folder.0)
        }
        _ => Err(Failure::new("usage: posting [--keep DIRECTORY]")),
    }
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("doorbell-posting-{}", std::process::id()));
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn compare(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(Failure::new)?;
    println!("instructions per {MESSAGE_BYTES} B message, post and poll, without the provider's own");
    println!("batch    cells    guard     hand   cells over hand   receiving by hand   goal");
    for (batch, goal) in GOALS {
        let cells = per_message(Who::Cells, batch, folder)?;
        let guard = per_message(Who::Guard, batch, folder)?;
        let hand = per_message(Who::Hand, batch, folder)?;
        let receiving = per_message(Who::HandReceiving, batch, folder)?;
        let difference = cells - hand;
        let verdict = if difference <= goal { "met" } else { "missed" };
        println!(
            "{batch:>5} {cells:>8.1} {guard:>8.1} {hand:>8.1} {difference:>+17.1} {receiving:>19.1}   {goal:+} {verdict}"
        );
    }
    let seldom = per_message(Who::HandSeldom, 1, folder)?;
    println!("seldom {seldom:.1} by hand, each by itself, one of {SELDOM} signaled");
    Ok(())
}

/// Instructions of ours for one message: the difference between a long and a short run.
fn per_message(who: Who, batch: u32, folder: &Path) -> Result<f64, Failure> {
    let count = |batches: u32| -> Result<Counts, Failure> {
        let file = folder.join(format!("{}.{batch}.{batches}", who.name()));
        callgrind::count(
            &["--count", who.name(), &batch.to_string(), &batches.to_string()],
            &file,
        )
    };
    let (short, long) = (count(SHORT)?, count(LONG)?);
    if long.provider <= short.provider {
        return Err(Failure::new("callgrind saw nothing of the provider"));
    }
    let instructions = long.ours.saturating_sub(short.ours);
    let messages = u64::from(LONG.saturating_sub(SHORT)).saturating_mul(u64::from(batch));
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    Ok(instructions as f64 / messages as f64)
}
