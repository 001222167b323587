//! Captures as others read them: each frame is looked at by a reader of its own, and by Wireshark's where it is here.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

mod dissection;
#[expect(dead_code, reason = "the suite's tests run elsewhere")]
mod suite;

use doorbell_sim::{Fabric, Frame};
use suite::every_packet;

const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
const V6: [&str; 2] = ["fd00::1", "fd00::2"];

/// Every operation of reliable connections, and that of datagrams.
fn opcodes() -> impl Iterator<Item = u8> {
    (0..=0x14).chain([0x64])
}

fn frames(addresses: [&str; 2]) -> Vec<Frame> {
    let fabric = Fabric::builder()
        .plan(every_packet::PLAN.parse().unwrap())
        .driven()
        .build();
    fabric.capture(1000);
    every_packet::run(&fabric, addresses);
    fabric.take_captured()
}

#[test]
fn every_frame_is_whole_and_ends_with_its_checksum() {
    for addresses in [V4, V6] {
        let seen = dissection::read(&frames(addresses));
        assert!(seen.into_iter().eq(opcodes()), "a run with packets of every kind");
    }
}

#[test]
fn wireshark_reads_every_frame() {
    if !dissection::is_wireshark_here("wireshark_reads_every_frame") {
        return;
    }
    for addresses in [V4, V6] {
        dissection::read_by_wireshark(addresses[0], &frames(addresses));
    }
}
