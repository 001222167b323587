//! The larger models: too many threads for all interleavings, so many of them are drawn by
//! chance, from a seed that is printed and can be given again.
//!
//! ```text
//! RUSTFLAGS="--cfg doorbell_shuttle" cargo test -p doorbell-models --target-dir target/shuttle
//! DOORBELL_SEED=42 RUSTFLAGS=... cargo test ...
//! ```
//!
//! Here all memory is sequentially consistent: what orderings are needed, loom says.
#![cfg(doorbell_shuttle)]

mod mpsc;
mod shared_ring;
mod spsc;
mod submitting;

use core::hash::BuildHasher;
use std::hash::RandomState;
use std::io::Write;

use doorbell_hotpath::ring::{Descriptor, Slot};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// Interleavings of each kind for each model.
const ITERATIONS: usize = 400;

/// Preemptions in an interleaving of the kind that has few, at hostile places.
const PREEMPTIONS: usize = 4;

/// Runs a model under many interleavings: half of them with a choice at every step, half with
/// few preemptions.
fn explore(name: &str, model: fn()) {
    let seed = std::env::var("DOORBELL_SEED")
        .map(|seed| seed.parse().expect("DOORBELL_SEED is a number"))
        .unwrap_or_else(|_| RandomState::new().hash_one(name));
    // Past the harness, which keeps to itself what a passing test prints.
    let mut past_harness = std::io::stderr();
    writeln!(past_harness, "{name}: DOORBELL_SEED={seed}").unwrap();
    Runner::new(RandomScheduler::new_from_seed(seed, ITERATIONS), Config::new()).run(model);
    Runner::new(
        PctScheduler::new_from_seed(seed, PREEMPTIONS, ITERATIONS),
        Config::new(),
    )
    .run(model);
}

/// A descriptor that says who pushed it, and its number.
fn item(producer: u16, number: u32) -> Descriptor {
    let word = u64::from(producer) << 32 | u64::from(number);
    Descriptor {
        words: [word, !word, word.rotate_left(17)],
        index: number,
        kind: producer,
    }
}

fn slots(count: usize) -> Vec<Slot> {
    (0..count).map(|_| Slot::new()).collect()
}
