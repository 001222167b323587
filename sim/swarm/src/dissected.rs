//! Captures of seeds, as `cargo lab replay --pcap` writes them, as others read them.

use doorbell_sim::Frame;

use crate::case::Case;
use crate::dissection;
use crate::generate::generate;
use crate::replay::FRAMES_MAX;
use crate::run::{Keep, run_caught};
use crate::seed::Seed;

/// Returns the captures of two seeds: the first one of channels and datagrams with faults, and the first one of
/// links.
fn captured() -> [(&'static str, Vec<Frame>); 2] {
    let first = |is_it: fn(&Case) -> bool| {
        let case = (1..)
            .map(|number| generate(Seed::quick(number)))
            .find(is_it)
            .unwrap();
        let keep = Keep {
            moments: false,
            frames: FRAMES_MAX,
            names: false,
        };
        let outcome = run_caught(&case, keep);
        assert_eq!(outcome.verdict, Ok(()));
        outcome.frames
    };
    [
        (
            "lines",
            first(|case| case.links.is_none() && !case.plan.is_empty()),
        ),
        ("links", first(|case| case.links.is_some())),
    ]
}

#[test]
fn every_frame_of_a_seed_is_whole_and_ends_with_its_checksum() {
    for (name, frames) in captured() {
        let seen = dissection::read(&frames);
        // SENDs, WRITEs and acknowledgements at the least.
        assert!(
            [0x04, 0x0a, 0x11].iter().all(|opcode| seen.contains(opcode)),
            "{name}: {seen:x?}"
        );
    }
}

#[test]
fn wireshark_reads_every_frame_of_a_seed() {
    if !dissection::is_wireshark_here("wireshark_reads_every_frame_of_a_seed") {
        return;
    }
    for (name, frames) in captured() {
        dissection::read_by_wireshark(name, &frames);
    }
}
