//! One of each: rails, handles, frames.

use core::net::IpAddr;
use core::num::NonZeroU16;

use doorbell_core::provider::RemoteAccess;
use doorbell_core::session::{Epoch, Sequence};
use doorbell_core::transfer::{Pieces, TransferId, TransferRole};
use doorbell_core::wire::{
    AdvertisedRail, Attach, AttachParameters, Connect, CreditWord, End, EndFrame, EndReason, Endpoint,
    EndpointParameters, Fence, FenceFrame, FrameBuffer, Grant, Granted, Handle, Hello, InstanceId, KeyId,
    Landed, LandedFrame, Lend, LendFrame, Nonce, Open, OpenFrame, Placed, PlacedFrame, PrivateData, Progress,
    ProgressFrame, Publication, Refusal, RefusalReason, Reject, RejectReason, RemoteWindow, Resumption,
    RingInvitation, SessionHeader, SessionId, SpeedClass, TAG_BYTES, Tag, Take, TakeFrame, VersionRange,
    Welcome,
};
use doorbell_core::{Gid, Grh, IpPrefix, Mtu, Psn, Qpn, Rkey};

use crate::oracle;

pub(crate) fn prefix(text: &str) -> IpPrefix {
    let (address, bits) = text.split_once('/').unwrap();
    IpPrefix::new(address.parse().unwrap(), bits.parse().unwrap()).unwrap()
}

pub(crate) fn rail(text: &str, speed_mbps: u32) -> AdvertisedRail {
    let address = prefix(text);
    AdvertisedRail::new(
        address,
        Gid::from_ip(address.address()),
        SpeedClass::from_mbps(speed_mbps),
    )
    .unwrap()
}

pub(crate) fn rail_with_gid(text: &str, speed_mbps: u32, gid: &str) -> AdvertisedRail {
    let IpAddr::V6(gid) = gid.parse().unwrap() else {
        panic!("a GID is written as IPv6")
    };
    AdvertisedRail::new(prefix(text), Gid(gid.octets()), SpeedClass::from_mbps(speed_mbps)).unwrap()
}

pub(crate) fn rails() -> Vec<AdvertisedRail> {
    vec![
        rail("10.1.2.3/24", 10_000),
        rail("fd00::1/64", 100_000),
        rail_with_gid("192.0.2.1/31", 0, "fe80::2"),
        rail_with_gid("2001:db8::5/127", 400_000, "fd00::9"),
    ]
}

pub(crate) fn listener() -> InstanceId {
    InstanceId::new(0x0102_0304_0506_0708).unwrap()
}

pub(crate) fn handle(rails: &[AdvertisedRail]) -> Handle {
    let mut builder = Handle::builder(NonZeroU16::new(18_515).unwrap(), listener());
    for rail in rails {
        let _ = builder.push(rail);
    }
    builder.finish().unwrap()
}

/// A Hello of a side whose newest version this is.
pub(crate) fn hello(version: u8) -> Hello {
    Hello {
        versions: VersionRange::new(1, version).unwrap(),
        initiator: InstanceId::new(0x1112_1314_1516_1718).unwrap(),
        listener: Some(listener()),
        nonce: Nonce([0xa0; 16]),
        key: None,
    }
}

pub(crate) fn welcome(version: u8) -> Welcome {
    Welcome {
        version,
        listener: listener(),
        nonce: Nonce([0xb0; 16]),
        key: None,
    }
}

pub(crate) fn resumption() -> Resumption {
    Resumption {
        session: SessionId::new(0x2122_2324_2526_2728).unwrap(),
        epoch: 0x3132_3334,
        next_sequence: 0x4142_4344_4546_4748,
    }
}

/// The fields of Connect and Accept in this version.
pub(crate) fn connect(version: u8) -> Connect {
    let parameters = EndpointParameters {
        mtu: Mtu::B4096,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 8,
        traffic_class: 0x68,
        flow_label: 0x000a_bcde,
        service_level: 3,
        receive_depth: 512,
        slot_bytes: 0x0001_0000,
    };
    let endpoint = Endpoint {
        rail: 1,
        gid: rails()[1].gid(),
        qpn: Qpn::new(0x00ab_cdef).unwrap(),
        psn: Psn::from_low_bits(0x0012_3456),
        parameters,
        credit: CreditWord {
            address: 0x0000_7f01_2345_6780,
            rkey: Rkey(0x5678_9abc),
            start: 0xfeed_0010,
        },
        session: (version > 1).then(resumption),
        private_data: PrivateData::new(b"hi").unwrap(),
    };
    Connect {
        endpoint,
        peer_rail: 2,
    }
}

/// A frame of every kind in this version, without keys.
pub(crate) fn frames_in(version: u8) -> [FrameBuffer; 6] {
    let rails = rails().into_iter().collect();
    [
        FrameBuffer::hello(&hello(version), &rails),
        FrameBuffer::welcome(&welcome(version), &rails),
        FrameBuffer::connect(version, &connect(version)),
        FrameBuffer::accept(version, &connect(version)),
        FrameBuffer::ready(version),
        FrameBuffer::reject(&Reject {
            reason: RejectReason::QUEUE_PAIR,
            detail: 12,
        }),
    ]
}

pub(crate) fn key_id() -> KeyId {
    KeyId::new(0x5152_5354).unwrap()
}

/// Not what any key makes of anything.
pub(crate) const TAG: Tag = Tag([0xc0; TAG_BYTES]);

/// The frames of a handshake with keys.
pub(crate) fn keyed_frames() -> [FrameBuffer; 5] {
    let rails = rails().into_iter().collect();
    let key = Some(key_id());
    let [_, _, connect, accept, ready, _] = frames_in(2);
    let hello = Hello {
        versions: VersionRange::AUTHENTICATED,
        key,
        ..hello(2)
    };
    let welcome = Welcome { key, ..welcome(2) };
    [
        FrameBuffer::hello(&hello, &rails),
        FrameBuffer::welcome(&welcome, &rails).tagged(|_| TAG),
        connect.tagged(|_| TAG),
        accept.tagged(|_| TAG),
        ready.tagged(|_| TAG),
    ]
}

/// All of these.
pub(crate) fn frames() -> Vec<FrameBuffer> {
    let without = [frames_in(1), frames_in(2), frames_in(3), frames_in(4)]
        .into_iter()
        .flatten();
    without.chain(keyed_frames()).collect()
}

/// An invitation of either kind.
pub(crate) fn invitations() -> [RingInvitation; 2] {
    let window = RemoteWindow::new(0x7f00_0000_1000, 8 * 128 + 64, Rkey(7));
    [Publication::Trailer, Publication::Immediate]
        .map(|publication| RingInvitation::new(window, 8, 128, publication).unwrap())
}

/// The fields of the first frame on a session's connection.
pub(crate) fn attach() -> AttachParameters {
    AttachParameters {
        session: SessionId::new(0x0102_0304_0506_0708).unwrap(),
        epoch: Epoch::from_wire(9),
        rail: 7,
        begins: true,
        oldest: Sequence(0x1122_3344_5566_7788),
        expected: Sequence(5),
        window: 512,
    }
}

fn granted() -> Granted {
    let window = RemoteWindow::new(0x1112_1314_1516_1718, 0x0022_2324_2526_2728, Rkey(0x3132_3334));
    let access = RemoteAccess {
        write: true,
        read: true,
        atomic: false,
    };
    Granted {
        epoch: Epoch::from_wire(9),
        number: 5,
        window: Some((window, access)),
    }
}

fn fence() -> Fence {
    Fence {
        epoch: Epoch::from_wire(9),
        rail: 3,
        through: Epoch::from_wire(7),
    }
}

/// The frames of a transfer.
fn transfer_frames() -> [(&'static str, Vec<u8>); 7] {
    let (epoch, transfer) = (Epoch::from_wire(9), TransferId(0x0102_0304));
    let open = Open {
        epoch,
        transfer,
        pieces: Pieces::new(0xaa_0102_0304, 1 << 18).unwrap(),
        tag: 0x1112_1314_1516_1718,
        role: TransferRole::Giver,
    };
    let take = Take {
        epoch,
        transfer,
        window: RemoteWindow::new(0x1112_1314_1516_1718, 0x0022_2324_2526_2728, Rkey(0x3132_3334)),
    };
    let landed = Landed {
        epoch,
        transfer,
        first: 0x2122_2324,
        count: 512,
        question: 0x4142_4344,
    };
    let question = Landed {
        first: 0,
        count: 0,
        ..landed
    };
    let mut set = [0; 64];
    (set[0], set[1], set[63]) = (0x06, 0x81, 0x80);
    let progress = Progress {
        epoch,
        transfer,
        base: 0x2122_2324,
        question: 0x4142_4344,
        set,
    };
    let end = |reason, is_answer| End {
        epoch,
        transfer,
        reason,
        is_answer,
    };
    [
        ("open", OpenFrame::new(&open).to_bytes().to_vec()),
        ("take", TakeFrame::new(&take).to_bytes().to_vec()),
        ("landed", LandedFrame::new(&landed).to_bytes().to_vec()),
        ("question", LandedFrame::new(&question).to_bytes().to_vec()),
        ("progress", ProgressFrame::new(&progress).to_bytes().to_vec()),
        (
            "end",
            EndFrame::new(&end(EndReason::CANCELLED, false))
                .to_bytes()
                .to_vec(),
        ),
        (
            "end_answer",
            EndFrame::new(&end(EndReason::DONE, true)).to_bytes().to_vec(),
        ),
    ]
}

/// A frame of a session of every kind.
pub(crate) fn session_frames() -> Vec<(&'static str, Vec<u8>)> {
    let epoch = Epoch::from_wire(9);
    let data = |sequence, is_first, is_last, payload: &[u8]| {
        let header = SessionHeader::data(epoch, Sequence(sequence), Sequence(5), is_first, is_last);
        [&header.to_bytes(), payload].concat()
    };
    let mut frames = vec![
        ("data", data(0x0123_4567_89ab_cdef, true, true, b"hi")),
        ("empty", data(1, true, true, b"")),
        ("fragment", data(2, false, false, b"part")),
        (
            "acknowledgement",
            SessionHeader::acknowledgement_only(epoch, Sequence(5))
                .to_bytes()
                .to_vec(),
        ),
        ("attach", Attach::new(&attach()).to_bytes().to_vec()),
        (
            "refusal",
            Refusal::new(epoch, RefusalReason::OLD_EPOCH).to_bytes().to_vec(),
        ),
        (
            "farewell",
            SessionHeader::farewell(epoch, Sequence(6), Sequence(5))
                .to_bytes()
                .to_vec(),
        ),
        (
            "moved",
            [
                &SessionHeader::moved(epoch, Sequence(2)).to_bytes(),
                handle(&rails()[..1]).as_bytes(),
            ]
            .concat(),
        ),
        ("grant", Grant::new(&granted()).to_bytes().to_vec()),
        (
            "withdrawn",
            Grant::new(&Granted {
                window: None,
                ..granted()
            })
            .to_bytes()
            .to_vec(),
        ),
        ("fence", FenceFrame::ask(&fence()).to_bytes().to_vec()),
        ("fenced", FenceFrame::answer(&fence()).to_bytes().to_vec()),
    ];
    frames.extend(transfer_frames());
    let window = RemoteWindow::new(0x1112_1314_1516_1718, 0x0022_2324_2526_2728, Rkey(0x3132_3334));
    let header = SessionHeader::placed(epoch, Sequence(0x0123_4567_89ab_cdef), Sequence(5), true, false);
    let placed = Placed {
        offset: 0x6162_6364,
        bytes: 1 << 16,
    };
    frames.push((
        "lend",
        LendFrame::new(&Lend { epoch, window }).to_bytes().to_vec(),
    ));
    frames.push(("placed", PlacedFrame::new(header, placed).to_bytes().to_vec()));
    frames
}

/// Headers that may stand in front of a datagram.
pub(crate) fn route_headers() -> [(&'static str, [u8; 40]); 6] {
    let written = |is_v4, source: &str, destination: &str| {
        let gid = |text: &str| Gid::from_ip(text.parse().unwrap());
        let grh = Grh {
            source: gid(source),
            destination: gid(destination),
            traffic_class: 0x28,
            hop_limit: 17,
        };
        oracle::grh::written(is_v4, &grh)
    };
    let v4 = written(true, "10.0.0.1", "10.0.0.2");
    let (mut unchecked, mut behind_v6) = (v4, v4);
    unchecked[30..32].fill(0);
    behind_v6[0] = 0x60;
    // A word longer, and its checksum as much less: no header of a device's, so the IPv6 one it is.
    let mut like_options = behind_v6;
    like_options[20] += 1;
    like_options[30] -= 1;
    [
        ("v4", v4),
        ("v4_unchecked", unchecked),
        ("v4_behind_v6", behind_v6),
        ("v6", written(false, "fd00::1", "fd00::2")),
        ("v6_like_options", like_options),
        ("v6_like_v4", written(false, "fd00::4500:1", "fd00::2")),
    ]
}
