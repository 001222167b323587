//! Writes a run as files to look at. The run has packets of every kind, over links that lose, double and change some.
//!
//! The files hold the timeline as a picture and as text, and the packets for Wireshark
//! (`tshark --disable-protocol rpcordma --disable-heuristic eth_over_ib -r packets.pcap`).
//!
//! `cargo run -p doorbell-sim --example timeline [DIRECTORY]`
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "an example"
)]

#[expect(dead_code, clippy::panic, reason = "tests, which run elsewhere")]
#[path = "../tests/suite/mod.rs"]
mod suite;

use std::fs;
use std::path::PathBuf;

use doorbell_sim::{Fabric, pcap};
use suite::every_packet;

/// A limit above the number of packets and of moments in the run.
const MOMENTS_MAX: usize = 1000;

fn main() {
    let directory = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".into()));
    let fabric = Fabric::builder()
        .plan(every_packet::PLAN.parse().unwrap())
        .driven()
        .build();
    fabric.record(MOMENTS_MAX);
    fabric.capture(MOMENTS_MAX);
    every_packet::run(&fabric, ["10.0.0.1", "10.0.0.2"]);
    let (timeline, frames) = (fabric.take_timeline(), fabric.take_captured());
    fs::create_dir_all(&directory).unwrap();
    let files = [
        ("timeline.txt", timeline.to_string().into_bytes()),
        ("timeline.svg", timeline.to_svg().into_bytes()),
        ("packets.pcap", pcap(&frames)),
    ];
    for (name, bytes) in files {
        let path = directory.join(name);
        fs::write(&path, bytes).unwrap();
        println!("{}", path.display());
    }
}
