//! `cargo lab replay`: one seed or file run again, with its packets and moments kept.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use doorbell_sim::pcap;

use crate::case::Case;
use crate::generate::generate;
use crate::run::{Keep, run_caught};

/// Packets that are kept at most.
const FRAMES_MAX: usize = 200_000;

/// Arguments of `cargo lab replay`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// A seed, or a file that was written when one failed
    #[arg(value_name = "SEED|FILE")]
    what: String,
    /// Write its packets to this file, as Wireshark reads them
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Write what happened to this file: a picture where it ends in .svg, else text
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Write the case itself to this file
    #[arg(long, value_name = "FILE")]
    case: Option<PathBuf>,
}

/// The case of a seed or a file.
pub(crate) fn load(what: &str) -> Result<Case> {
    match what.parse() {
        Ok(seed) => Ok(generate(seed)),
        Err(_) => {
            let text = fs::read_to_string(what).with_context(|| format!("no seed, and no file: {what}"))?;
            Case::parse(&text).with_context(|| format!("{what} is no case"))
        }
    }
}

/// Whether the oracles agree.
pub(crate) fn run(args: &ReplayArgs) -> Result<bool> {
    let case = load(&args.what)?;
    let write = |path: &PathBuf, bytes: &[u8]| {
        fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    if let Some(path) = &args.case {
        write(path, case.to_text()?.as_bytes())?;
    }
    let keep = Keep {
        moments: args.timeline.is_some(),
        frames: if args.pcap.is_some() { FRAMES_MAX } else { 0 },
    };
    let outcome = run_caught(&case, keep);
    if let Some(path) = &args.pcap {
        write(path, &pcap(&outcome.frames))?;
        println!("{} packets in {}", outcome.frames.len(), path.display());
    }
    if let Some(path) = &args.timeline {
        let is_picture = path.extension().is_some_and(|extension| extension == "svg");
        let timeline = &outcome.timeline;
        let text = if is_picture {
            timeline.to_svg()
        } else {
            timeline.to_string()
        };
        write(path, text.as_bytes())?;
        println!("what happened in {}", path.display());
    }
    println!(
        "{} hosts, {} lines, {} operations; plan: {}",
        case.hosts.len(),
        case.lines.len(),
        case.operations.len(),
        if case.plan.is_empty() {
            "nothing goes wrong"
        } else {
            &case.plan
        },
    );
    println!(
        "{} messages and {} packets in {:.6} s of virtual time; trace {:016x}",
        outcome.messages,
        outcome.tally.packets.sent,
        outcome.virtual_ns as f64 / 1e9,
        outcome.hash,
    );
    match &outcome.verdict {
        Ok(()) => println!("passed"),
        Err(failure) => println!("FAILED: {failure}"),
    }
    Ok(outcome.verdict.is_ok())
}
