//! A packet as the bytes of an Ethernet frame, for captures.

use core::net::IpAddr;

use doorbell_core::grh::GRH_BYTES;
use doorbell_core::{Gid, Psn, Qpn};

use super::icrc::icrc;
use super::{Aeth, Flow, Packet, Refusal, Syndrome};

/// The UDP port of `RoCEv2`. Source: InfiniBand Architecture annex A17.3.2.
const UDP_PORT: u16 = 4791;
/// The only partition of a simulated fabric: the default one.
const PARTITION: u16 = 0xffff;
const IPV4_BYTES: u16 = 20;
const IPV6_BYTES: u16 = 40;
const UDP_BYTES: u16 = 8;
const ICRC_BYTES: u16 = 4;
const PROTOCOL_UDP: u8 = 17;

/// Ethernet's preamble, headers, checksum and gap; IPv4, UDP, the base header and the checksum.
const AROUND_BYTES: u64 = 8 + 14 + 4 + 12 + 20 + 8 + 12 + 4;

/// For how many bytes a packet occupies its link, all that is round it included.
pub(crate) fn wire_bytes(packet: &Packet) -> u64 {
    let opcode = packet.bth.opcode;
    let mut bytes = AROUND_BYTES;
    if opcode.has_reth() {
        bytes = bytes.wrapping_add(16);
    }
    if opcode.has_aeth() || opcode.has_immediate() {
        bytes = bytes.wrapping_add(4);
    }
    if opcode.is_atomic() {
        bytes = bytes.wrapping_add(28);
    }
    if opcode.has_deth() {
        bytes = bytes.wrapping_add(8);
    }
    bytes.wrapping_add(packet.payload.len() as u64)
}

impl Syndrome {
    /// The byte that says it. Source: InfiniBand Architecture volume 1, section 9.7.5.2.1.
    pub(crate) const fn to_wire(self) -> u8 {
        match self {
            // Without a count of credits.
            Self::Done => 0b000_11111,
            Self::NotReady(code) => 0b001_00000 | (code & 0x1f),
            Self::Refused(Refusal::Sequence) => 0b011_00000,
            Self::Refused(Refusal::InvalidRequest) => 0b011_00001,
            Self::Refused(Refusal::Access) => 0b011_00010,
            Self::Refused(Refusal::Operation) => 0b011_00011,
        }
    }
}

/// The address of the interface of a GID, locally administered.
fn mac(gid: Gid) -> [u8; 6] {
    let [.., a, b, c, d] = gid.0;
    [0x02, 0, a, b, c, d]
}

/// The upper and the lower bytes of a word of 24 bits.
const fn low_24(word: u32) -> [u8; 3] {
    let [_, rest @ ..] = word.to_be_bytes();
    rest
}

/// Appends the frame of a packet.
pub(crate) fn encode(packet: &Packet, into: &mut Vec<u8>) {
    let mut transport = Vec::new();
    encode_transport(packet, &mut transport);
    // At most headers and 4096 bytes.
    let transport_bytes = u16::try_from(transport.len()).unwrap_or(u16::MAX);
    let udp_bytes = transport_bytes
        .saturating_add(UDP_BYTES)
        .saturating_add(ICRC_BYTES);

    into.extend(mac(packet.flow.destination));
    into.extend(mac(packet.flow.source));
    let is_v4 = is_v4(&packet.flow);
    let (ether_type, ip_bytes) = if is_v4 {
        (0x0800_u16, IPV4_BYTES)
    } else {
        (0x86dd, IPV6_BYTES)
    };
    into.extend(ether_type.to_be_bytes());
    encode_ip(&packet.flow, udp_bytes, into);
    let ip_begins = into.len().saturating_sub(usize::from(ip_bytes));
    into.extend(packet.flow.port.to_be_bytes());
    into.extend(UDP_PORT.to_be_bytes());
    into.extend(udp_bytes.to_be_bytes());
    into.extend([0, 0]);
    into.extend(transport);
    let mut checksum = icrc(into.get(ip_begins..).unwrap_or_default(), usize::from(ip_bytes));
    if packet.is_corrupt {
        checksum = checksum.map(|byte| !byte);
    }
    into.extend(checksum);
}

/// Whether packets between two GIDs are of IPv4.
fn is_v4(flow: &Flow) -> bool {
    flow.source.to_ip().is_ipv4() && flow.destination.to_ip().is_ipv4()
}

/// Appends the network header.
fn encode_ip(flow: &Flow, udp_bytes: u16, into: &mut Vec<u8>) {
    match (flow.source.to_ip(), flow.destination.to_ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            encode_ipv4(flow, udp_bytes, source.octets(), destination.octets(), into);
        }
        _ => {
            let class = flow.traffic_class;
            into.extend([0x60 | (class >> 4), class << 4, 0, 0]);
            into.extend(udp_bytes.to_be_bytes());
            into.extend([PROTOCOL_UDP, flow.hop_limit]);
            into.extend(flow.source.0);
            into.extend(flow.destination.0);
        }
    }
}

/// The bytes that stand in front of a datagram where it arrived: its network header, that of IPv4 at the end.
pub(crate) fn route_header(packet: &Packet) -> [u8; GRH_BYTES] {
    let mut network = Vec::with_capacity(GRH_BYTES);
    if is_v4(&packet.flow) {
        network.extend([0; GRH_BYTES - IPV4_BYTES as usize]);
    }
    let mut transport = Vec::new();
    encode_transport(packet, &mut transport);
    let udp_bytes = u16::try_from(transport.len()).unwrap_or(u16::MAX);
    let udp_bytes = udp_bytes.saturating_add(UDP_BYTES).saturating_add(ICRC_BYTES);
    encode_ip(&packet.flow, udp_bytes, &mut network);
    network.first_chunk().copied().unwrap_or([0; GRH_BYTES])
}

fn encode_ipv4(flow: &Flow, udp_bytes: u16, source: [u8; 4], destination: [u8; 4], into: &mut Vec<u8>) {
    let mut header = Vec::from([0x45, flow.traffic_class]);
    header.extend(udp_bytes.saturating_add(IPV4_BYTES).to_be_bytes());
    // No fragments are allowed.
    header.extend([0, 0, 0x40, 0, flow.hop_limit, PROTOCOL_UDP, 0, 0]);
    header.extend(source);
    header.extend(destination);
    let sum = header.chunks_exact(2).fold(0_u32, |sum, pair| match pair {
        [high, low] => sum.wrapping_add(u32::from(u16::from_be_bytes([*high, *low]))),
        _ => sum,
    });
    let folded = (sum & 0xffff).wrapping_add(sum >> 16);
    let [_, _, high, low] = (!(folded & 0xffff).wrapping_add(folded >> 16)).to_be_bytes();
    for (place, byte) in header.iter_mut().skip(10).zip([high, low]) {
        *place = byte;
    }
    into.append(&mut header);
}

/// Appends the transport headers and the payload, padded to whole words.
fn encode_transport(packet: &Packet, into: &mut Vec<u8>) {
    let bth = &packet.bth;
    let [pad, ..] = packet
        .payload
        .len()
        .wrapping_neg()
        .to_le_bytes()
        .map(|byte| byte & 3);
    into.push(bth.opcode as u8);
    into.push((u8::from(bth.solicited) << 7) | (pad << 4));
    into.extend(PARTITION.to_be_bytes());
    into.push(0);
    into.extend(low_24(bth.destination_qpn.to_u32()));
    into.push(u8::from(bth.ack_request) << 7);
    into.extend(low_24(bth.psn.to_u32()));
    if let Some(deth) = packet.deth {
        into.extend(deth.qkey.to_u32().to_be_bytes());
        into.push(0);
        into.extend(low_24(deth.source_qpn.to_u32()));
    }
    if let Some(reth) = packet.reth {
        into.extend(reth.address.to_be_bytes());
        into.extend(reth.rkey.0.to_be_bytes());
        into.extend(reth.bytes.to_be_bytes());
    }
    if let Some(atomic) = packet.atomic {
        into.extend(atomic.address.to_be_bytes());
        into.extend(atomic.rkey.0.to_be_bytes());
        into.extend(atomic.swap_or_add.to_be_bytes());
        into.extend(atomic.compare.to_be_bytes());
    }
    if let Some(Aeth { syndrome, msn }) = packet.aeth {
        into.push(syndrome.to_wire());
        into.extend(low_24(msn));
    }
    if let Some(before) = packet.before {
        into.extend(before.to_be_bytes());
    }
    if let Some(immediate) = packet.immediate {
        into.extend(immediate.to_be_bytes());
    }
    into.extend_from_slice(&packet.payload);
    into.extend(core::iter::repeat_n(0, usize::from(pad)));
}

/// Spreads a queue pair's packets by the UDP source port, as devices do.
pub(crate) fn source_port(ours: Qpn, first: Psn) -> u16 {
    let [_, _, high, low] = (ours.to_u32() ^ first.to_u32().rotate_left(7)).to_be_bytes();
    u16::from_be_bytes([high, low]) | 0xc000
}
