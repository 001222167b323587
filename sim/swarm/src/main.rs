//! Swarm: random hosts, work and faults over the shipped code on its simulated fabric, with oracles.
//!
//! A seed is made into a [`case::Case`], a case into a run, and what the oracles say into a verdict. A case that fails is
//! shrunk and written to a file; a seed or a file is replayed. `cargo lab swarm` and `cargo lab replay` run this program.
#![expect(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "a test: where it goes out of bounds it panics, and the run counts as failed"
)]

mod act;
mod awaited;
mod bond;
mod bounds;
mod by_document;
mod case;
mod classes;
#[path = "../../../src/program/src/closed_pipe.rs"]
mod closed_pipe;
mod connect;
mod crowd;
mod datagrams;
#[cfg(test)]
mod dissected;
#[cfg(test)]
#[path = "../../tests/dissection/mod.rs"]
mod dissection;
mod failure;
mod finish;
mod finish_links;
mod full;
mod generate;
mod hear;
mod hostile;
mod judge_links;
mod line;
mod linked;
mod load;
mod mesh;
mod mutate;
mod packets;
mod panics;
mod pattern;
mod process;
mod reach;
mod repeats;
mod replay;
mod requests;
mod rings;
mod run;
mod seed;
mod shrink;
mod sleepy;
mod station;
mod stranger;
mod swarm;
mod trace;
mod transfers;
mod windows;

use std::process::ExitCode;

use clap::Parser;

/// Random hosts, work and faults over the shipped code, on a simulated fabric, with oracles.
#[derive(Debug, Parser)]
#[command(name = "cargo lab", bin_name = "cargo lab")]
enum Command {
    /// Run seeds, and say which fail
    Swarm(swarm::SwarmArgs),
    /// Run one seed or file again, and show it
    Replay(replay::ReplayArgs),
}

fn main() -> ExitCode {
    closed_pipe::heed(std::process::exit);
    let good = match Command::parse() {
        Command::Swarm(args) => swarm::run(&args),
        Command::Replay(args) => replay::run(&args),
    };
    match good {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("swarm: {error:#}");
            ExitCode::from(2)
        }
    }
}
