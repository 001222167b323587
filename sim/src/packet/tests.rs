//! The bytes of packets.

use core::net::IpAddr;

use doorbell_core::{Gid, Grh, Psn, Qkey, Qpn, Rkey};

use super::encode::{encode, route_header};
use super::icrc::icrc;
use super::{Aeth, AtomicEth, Deth, Flow, Opcode, Packet, Refusal, Reth, Syndrome};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn gid(text: &str) -> Gid {
    Gid::from_ip(text.parse::<IpAddr>().unwrap())
}

fn packet(opcode: Opcode, from: &str, to: &str) -> Packet {
    let mut packet = Packet::blank();
    packet.begin(
        opcode,
        Qpn::from_low_bits(0x0012_3456),
        Psn::from_low_bits(0x00ab_cdef),
    );
    packet.flow = Flow {
        source: gid(from),
        destination: gid(to),
        port: 0xc123,
        traffic_class: 0,
        hop_limit: 64,
    };
    packet
}

fn frame(packet: &Packet) -> Vec<u8> {
    let mut frame = Vec::new();
    encode(packet, &mut frame);
    frame
}

/// Packet of a device's driver: a WRITE of 16 bytes.
#[test]
fn the_checksum_is_that_of_a_captured_packet() {
    let captured = hex(
        "4500004c000100004011f54cc0a80201c0a80202 01f412b70038ffa6 0a00ffff0000000200000000 \
         00000000000012300000000000000010 000102030405060708090a0b0c0d0e0f ca47470e",
    );
    let (packet, checksum) = captured.split_at(captured.len() - 4);
    assert_eq!(icrc(packet, 20), checksum);
    // The checksum leaves out the fields that routers change, and covers all else.
    for at in 0..packet.len() {
        let mut changed = packet.to_vec();
        changed[at] ^= 1;
        let varies = matches!(at, 1 | 8 | 10 | 11 | 26 | 27 | 32);
        assert_eq!(icrc(&changed, 20) == checksum, varies, "byte {at}");
    }
}

#[test]
fn a_write_with_immediate_over_ipv4() {
    let mut packet = packet(Opcode::WriteOnlyWithImmediate, "10.0.0.1", "10.0.0.2");
    packet.bth.solicited = true;
    packet.bth.ack_request = true;
    packet.reth = Some(Reth {
        address: 0x0102_0304_0506_0708,
        rkey: Rkey(0x1122_3344),
        bytes: 5,
    });
    packet.immediate = Some(0xdead_beef);
    packet.payload.extend(b"hello");
    let expected = hex("02000a000002 02000a000001 0800 \
         45000048 00004000 4011 26a3 0a000001 0a000002 c123 12b7 0034 0000 \
         0bb0ffff 00123456 80abcdef 0102030405060708 11223344 00000005 deadbeef \
         68656c6c6f 000000");
    let frame = frame(&packet);
    let (rest, checksum) = frame.split_at(frame.len() - 4);
    assert_eq!(rest, expected);
    assert_eq!(icrc(&frame[14..frame.len() - 4], 20), checksum);
    packet.is_corrupt = true;
    assert_ne!(super::tests::frame(&packet)[frame.len() - 4..], *checksum);
}

#[test]
fn a_datagram_says_who_sent_it_and_how_it_came() {
    for (from, to, network) in [
        (
            "10.0.0.1",
            "10.0.0.2",
            "4528003c 00004000 1111 5587 0a000001 0a000002",
        ),
        (
            "fd00::1",
            "fd00::2",
            "62800000 0028 11 11 fd000000000000000000000000000001 fd000000000000000000000000000002",
        ),
    ] {
        let mut packet = packet(Opcode::Datagram, from, to);
        (packet.flow.traffic_class, packet.flow.hop_limit) = (0x28, 17);
        packet.deth = Some(Deth {
            qkey: Qkey::new(0x1122_3344).unwrap(),
            source_qpn: Qpn::from_low_bits(0x0065_4321),
        });
        packet.payload.extend(b"hello!!");
        let frame = frame(&packet);
        let network = hex(network);
        assert_eq!(frame[14..14 + network.len()], network);
        let transport = hex("6410ffff 00123456 00abcdef 11223344 00654321 68656c6c6f2121 00");
        assert_eq!(frame[14 + network.len() + 8..frame.len() - 4], transport);
        let header = route_header(&packet);
        assert!(header.ends_with(&network));
        let read = Grh::parse(&header).unwrap();
        assert_eq!((read.source, read.destination), (gid(from), gid(to)));
        assert_eq!((read.traffic_class, read.hop_limit), (0x28, 17));
    }
}

#[test]
fn answers_and_atomics_over_ipv6() {
    let mut answer = packet(Opcode::Acknowledge, "fd00::1", "fd00::2");
    for (syndrome, byte) in [
        (Syndrome::Done, 0x1f),
        (Syndrome::NotReady(12), 0x2c),
        (Syndrome::Refused(Refusal::Sequence), 0x60),
        (Syndrome::Refused(Refusal::InvalidRequest), 0x61),
        (Syndrome::Refused(Refusal::Access), 0x62),
        (Syndrome::Refused(Refusal::Operation), 0x63),
    ] {
        answer.aeth = Some(Aeth { syndrome, msn: 7 });
        let frame = frame(&answer);
        assert_eq!(frame[12..14], [0x86, 0xdd]);
        assert_eq!(
            frame[54 + 8..],
            [
                &hex("1100ffff 00123456 00abcdef")[..],
                &[byte, 0, 0, 7],
                &icrc(&frame[14..frame.len() - 4], 40)
            ]
            .concat()
        );
    }
    let mut atomic = packet(Opcode::CompareAndSwap, "fd00::1", "fd00::2");
    atomic.atomic = Some(AtomicEth {
        address: 8,
        rkey: Rkey(1),
        swap_or_add: 2,
        compare: 3,
    });
    let bytes = frame(&atomic);
    let header = hex("0000000000000008 00000001 0000000000000002 0000000000000003");
    assert_eq!(bytes[54 + 8 + 12..bytes.len() - 4], header);
    let mut result = packet(Opcode::AtomicAcknowledge, "fd00::1", "fd00::2");
    result.aeth = Some(Aeth {
        syndrome: Syndrome::Done,
        msn: 1,
    });
    result.before = Some(9);
    let bytes = frame(&result);
    assert_eq!(
        bytes[54 + 8 + 12..bytes.len() - 4],
        hex("1f000001 0000000000000009")
    );
}
