//! Captures as others read them: each frame is looked at by a reader of its own, and by Wireshark's where it is here.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

#[expect(dead_code, reason = "the suite's tests run elsewhere")]
mod suite;

use std::collections::BTreeSet;
use std::process::Command;

use doorbell_sim::{Fabric, Frame, pcap};
use suite::every_packet;

const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
const V6: [&str; 2] = ["fd00::1", "fd00::2"];

const ETHERNET_BYTES: usize = 14;
const UDP_BYTES: usize = 8;

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

/// Where the base transport header of a frame begins.
fn transport_at(frame: &[u8]) -> usize {
    let ip_bytes = if frame[12..14] == [0x08, 0x00] { 20 } else { 40 };
    ETHERNET_BYTES + ip_bytes + UDP_BYTES
}

/// The checksum that a frame must end with, bit by bit.
fn checksum(frame: &[u8]) -> [u8; 4] {
    let transport = transport_at(frame);
    let mut covered = frame[ETHERNET_BYTES..frame.len() - 4].to_vec();
    let is_v4 = covered[0] >> 4 == 4;
    let variant: &[usize] = if is_v4 { &[1, 8, 10, 11] } else { &[1, 2, 3, 7] };
    let udp = transport - UDP_BYTES - ETHERNET_BYTES;
    for at in variant
        .iter()
        .copied()
        .chain([udp + 6, udp + 7, udp + UDP_BYTES + 4])
    {
        covered[at] = 0xff;
    }
    if !is_v4 {
        // Its version stays.
        covered[0] |= 0x0f;
    }
    let mut crc = u32::MAX;
    for byte in [0xff; 8].iter().chain(&covered) {
        for bit in 0..8 {
            let differs = (crc ^ u32::from(*byte >> bit)) & 1 == 1;
            crc = (crc >> 1) ^ if differs { 0xedb8_8320 } else { 0 };
        }
    }
    (!crc).to_le_bytes()
}

#[test]
fn every_frame_is_whole_and_ends_with_its_checksum() {
    for addresses in [V4, V6] {
        let mut seen = BTreeSet::new();
        for Frame { bytes, .. } in &frames(addresses) {
            let transport = transport_at(bytes);
            seen.insert(bytes[transport]);
            let (_, last) = bytes.split_at(bytes.len() - 4);
            assert_eq!(last, checksum(bytes), "{bytes:02x?}");
            let udp_bytes = u16::from_be_bytes([bytes[transport - 4], bytes[transport - 3]]);
            assert_eq!(usize::from(udp_bytes), bytes.len() - transport + UDP_BYTES);
        }
        assert!(seen.into_iter().eq(opcodes()), "a run with packets of every kind");
    }
}

/// What Wireshark is asked of each frame.
const FIELDS: [&str; 8] = [
    "infiniband.bth.opcode",
    "infiniband.bth.destqp",
    "infiniband.bth.psn",
    "infiniband.reth.dmalen",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.invariant.crc",
    "_ws.malformed",
];

#[test]
fn wireshark_reads_every_frame() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("SKIPPED: wireshark_reads_every_frame: UNTESTED: there is no tshark");
        return;
    }
    for addresses in [V4, V6] {
        let frames = frames(addresses);
        let path =
            std::env::temp_dir().join(format!("doorbell-{}-{}.pcap", std::process::id(), addresses[0]));
        std::fs::write(&path, pcap(&frames)).unwrap();
        let mut command = Command::new("tshark");
        command
            .arg("-r")
            .arg(&path)
            .args(["-T", "fields", "-E", "separator=;"]);
        // Which calls a SEND of three bytes malformed: it looks at the fourth word of any.
        command.args(["--disable-protocol", "rpcordma"]);
        FIELDS.iter().for_each(|field| {
            command.args(["-e", field]);
        });
        let output = command.output().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout).unwrap();
        let read: Vec<&str> = text.lines().collect();
        let written: Vec<String> = frames.iter().map(|frame| expected(&frame.bytes)).collect();
        assert_eq!(read, written);
    }
}

/// What Wireshark is to say of a frame: nothing malformed, above all.
fn expected(frame: &[u8]) -> String {
    let transport = transport_at(frame);
    let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    let opcode = frame[transport];
    let has_reth = matches!(opcode, 0x06 | 0x0a | 0x0b | 0x0c);
    let bytes = if has_reth {
        word(transport + 12 + 12).to_string()
    } else {
        String::new()
    };
    let (key, source) = if opcode == 0x64 {
        let (key, source) = (word(transport + 12), word(transport + 16));
        (format!("{key:#018x}"), format!("{source:#010x}"))
    } else {
        (String::new(), String::new())
    };
    format!(
        "{opcode};{:#08x};{};{bytes};{key};{source};{:#010x};",
        word(transport + 4) & 0x00ff_ffff,
        word(transport + 8) & 0x00ff_ffff,
        word(frame.len() - 4),
    )
}
