//! A capture as others read it: whole by a reader of its own, and word for word by Wireshark's.

use std::collections::BTreeSet;
use std::process::Command;

use doorbell_sim::{Frame, pcap};

const ETHERNET_BYTES: usize = 14;
const UDP_BYTES: usize = 8;

/// Fields that Wireshark prints of each frame.
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

/// Panics where a frame is not whole, or does not end with its checksum; says which operations there are.
pub(crate) fn read(frames: &[Frame]) -> BTreeSet<u8> {
    let mut seen = BTreeSet::new();
    for Frame { bytes, .. } in frames {
        let transport = transport_at(bytes);
        seen.insert(bytes[transport]);
        let (_, last) = bytes.split_at(bytes.len() - 4);
        assert_eq!(last, checksum(bytes), "{bytes:02x?}");
        let udp_bytes = u16::from_be_bytes([bytes[transport - 4], bytes[transport - 3]]);
        assert_eq!(usize::from(udp_bytes), bytes.len() - transport + UDP_BYTES);
    }
    seen
}

/// Whether Wireshark is here; where it is not, the test of this name is skipped.
pub(crate) fn is_wireshark_here(test: &str) -> bool {
    let is_here = Command::new("tshark").arg("--version").output().is_ok();
    if !is_here {
        eprintln!("SKIPPED: {test}: UNTESTED: there is no tshark");
    }
    is_here
}

/// Panics where Wireshark reads a frame of the capture of this name otherwise, or calls it malformed.
pub(crate) fn read_by_wireshark(name: &str, frames: &[Frame]) {
    let path = std::env::temp_dir().join(format!("doorbell-{}-{name}.pcap", std::process::id()));
    std::fs::write(&path, pcap(frames)).unwrap();
    let mut command = Command::new("tshark");
    command
        .arg("-r")
        .arg(&path)
        .args(["-T", "fields", "-E", "separator=;"]);
    // One of these two calls a SEND of three bytes malformed, as it looks at the fourth word of any. The other takes packets
    // that begin with a number like 6, as credit words do, for Ethernet.
    command.args([
        "--disable-protocol",
        "rpcordma",
        "--disable-heuristic",
        "eth_over_ib",
    ]);
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
    assert_eq!(text.lines().count(), frames.len());
    for (at, (read, frame)) in text.lines().zip(frames).enumerate() {
        assert_eq!(
            read,
            expected(&frame.bytes),
            "frame {at} of {name}: {:02x?}",
            frame.bytes
        );
    }
}

/// Returns the expected output of Wireshark for a frame: nothing malformed, above all.
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

/// Returns the offset of the base transport header in a frame.
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
