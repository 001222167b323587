//! Made-up values and made-up bytes by the hundred.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::num::NonZeroU16;

use doorbell_core::wire::{
    AdvertisedRail, Connect, CreditWord, Endpoint, EndpointParameters, Fit, Frame, FrameBuffer, Handle,
    InstanceId, PrivateData, Rails, Reject, RejectReason, Resumption, SessionId, SpeedClass, Tag,
};
use doorbell_core::{Gid, Grh, IpPrefix, Mtu, Psn, Qpn, Rkey};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};

use crate::{oracle, samples};

fn rail() -> impl Strategy<Value = AdvertisedRail> {
    let v4 = (any::<[u8; 4]>(), 0..=32_u8).prop_map(|(ip, bits)| (IpAddr::V4(Ipv4Addr::from(ip)), bits));
    let v6 = (any::<[u8; 16]>(), 0..=128_u8).prop_map(|(ip, bits)| (IpAddr::V6(Ipv6Addr::from(ip)), bits));
    let gid = option::of(any::<[u8; 16]>());
    (proptest::prop_oneof![v4, v6], gid, any::<u8>()).prop_filter_map(
        "an address nobody has",
        |((ip, bits), gid, speed)| {
            let address = IpPrefix::new(ip, bits).unwrap();
            AdvertisedRail::new(address, gid.map_or(Gid::from_ip(ip), Gid), SpeedClass(speed)).ok()
        },
    )
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    let names = (1..=u128::MAX, 2..=0x00ff_ffff_u32, any::<u32>(), any::<u8>());
    let service = (any::<u8>(), 0..=0x000f_ffff_u32, 0..=15_u8);
    let depths = (
        1..=5_u8,
        any::<u8>(),
        any::<u8>(),
        0..=1_u32 << 16,
        0..=1_u32 << 31,
    );
    let credit = (0..=u64::MAX / 8, any::<u32>(), any::<u32>()).prop_map(|(word, start, rkey)| CreditWord {
        address: word * 8,
        start,
        rkey: Rkey(rkey),
    });
    (names, service, depths, credit, vec(any::<u8>(), 0..=64)).prop_map(
        |((gid, qpn, psn, rail), (traffic_class, flow_label, service_level), depths, credit, private)| {
            let (mtu, max_rd_atomic, max_dest_rd_atomic, receive_depth, slot_bytes) = depths;
            Endpoint {
                rail,
                gid: Gid(gid.to_be_bytes()),
                qpn: Qpn::new(qpn).unwrap(),
                psn: Psn::from_low_bits(psn),
                parameters: EndpointParameters {
                    mtu: Mtu::from_wire(mtu).unwrap(),
                    max_rd_atomic,
                    max_dest_rd_atomic,
                    traffic_class,
                    flow_label,
                    service_level,
                    receive_depth,
                    slot_bytes,
                },
                credit,
                session: None,
                private_data: PrivateData::new(&private).unwrap(),
            }
        },
    )
}

fn listed(rails: Rails<'_>) -> Vec<AdvertisedRail> {
    rails.iter().collect()
}

proptest! {
    #[test]
    fn handles_survive(port in 1..=u16::MAX, instance in 1..=u64::MAX, rails in vec(rail(), 1..20)) {
        let instance = InstanceId::new(instance).unwrap();
        let mut builder = Handle::builder(NonZeroU16::new(port).unwrap(), instance);
        let mut fits = |rail: &AdvertisedRail| builder.push(rail) == Fit::Included;
        let fitting: Vec<_> = rails.iter().copied().filter(|rail| fits(rail)).collect();
        let handle = builder.finish().unwrap();
        let view = Handle::parse(handle.as_padded_bytes()).unwrap();
        prop_assert_eq!(view.port().get(), port);
        prop_assert_eq!(view.instance(), instance);
        prop_assert_eq!(view.has_more(), fitting.len() < rails.len());
        prop_assert_eq!(listed(view.rails()), fitting);
        oracle::handle::check(handle.as_bytes());
        oracle::handle::check(handle.to_string().as_bytes());
    }

    #[test]
    fn hellos_and_welcomes_survive(rails in vec(rail(), 0..=64), version in 1..=4_u8) {
        let list = rails.iter().copied().collect();
        let (hello, welcome) = (
            FrameBuffer::hello(&samples::hello(version), &list),
            FrameBuffer::welcome(&samples::welcome(version), &list),
        );
        let Ok(Frame::Hello(parsed)) = Frame::parse(hello.as_bytes()) else { panic!("not a Hello") };
        prop_assert_eq!(listed(parsed.rails), &rails[..]);
        let Ok(Frame::Welcome(parsed)) = Frame::parse(welcome.as_bytes()) else { panic!("not a Welcome") };
        prop_assert_eq!(listed(parsed.rails), rails);
    }

    #[test]
    fn endpoints_survive(
        mut endpoint in endpoint(),
        peer_rail in any::<u8>(),
        session in option::of((1..=u64::MAX, any::<u32>(), any::<u64>())),
        tag in any::<[u8; 32]>(),
    ) {
        let version = if session.is_some() { 2 } else { 1 };
        endpoint.session = session.map(|(session, epoch, next_sequence)| Resumption {
            session: SessionId::new(session).unwrap(),
            epoch,
            next_sequence,
        });
        let connect = Connect { endpoint, peer_rail };
        let (ours, theirs) = (FrameBuffer::connect(version, &connect), FrameBuffer::accept(version, &connect));
        prop_assert_eq!(Frame::parse(ours.as_bytes()), Ok(Frame::Connect(connect)));
        prop_assert_eq!(Frame::parse(theirs.as_bytes()), Ok(Frame::Accept(connect)));
        let tagged = FrameBuffer::connect(2, &connect).tagged(|_| Tag(tag));
        prop_assert_eq!(Frame::parse(tagged.as_bytes()), Ok(Frame::Connect(connect)));
        prop_assert_eq!(Tag::split(tagged.as_bytes()).1, Some(Tag(tag)));
    }

    #[test]
    fn rejections_survive(reason in any::<u16>(), detail in any::<u32>()) {
        let reject = Reject { reason: RejectReason(reason), detail };
        let frame = FrameBuffer::reject(&reject);
        prop_assert_eq!(Frame::parse(frame.as_bytes()), Ok(Frame::Reject(reject)));
    }

    #[test]
    fn session_frames_with_any_numbers_keep_every_promise(
        header in (0..16_u8, 0..8_u8, any::<u32>(), any::<u64>(), any::<u64>()),
        rest in vec(any::<u8>(), 0..90),
    ) {
        let (kind, flags, epoch, sequence, acknowledgement) = header;
        let mut bytes = vec![1, kind, flags, 0];
        bytes.extend(epoch.to_be_bytes());
        bytes.extend(sequence.to_be_bytes());
        bytes.extend(acknowledgement.to_be_bytes());
        bytes.extend(rest);
        oracle::session::check(&bytes);
    }

    #[test]
    fn any_bytes_keep_every_promise(bytes in vec(any::<u8>(), 0..300)) {
        oracle::handle::check(&bytes);
        oracle::frames::check(&bytes);
        let _ = oracle::handshake::check(&bytes);
        let _ = oracle::sequence::check(&bytes);
        oracle::text::check(&bytes);
        oracle::ring::check(&bytes);
        oracle::session::check(&bytes);
        let _ = oracle::transfer::check(&bytes);
        oracle::grh::check(&bytes);
    }

    #[test]
    fn route_headers_survive(
        is_v4 in any::<bool>(),
        [traffic_class, hop_limit] in any::<[u8; 2]>(),
        [mut source, destination] in any::<[[u8; 16]; 2]>(),
    ) {
        // The bytes from here on could happen to be an IPv4 header with its checksum.
        source[12] |= 0x80;
        let gid = |address: [u8; 16]| {
            let [.., a, b, c, d] = address;
            if is_v4 { Gid::from_ip(Ipv4Addr::new(a, b, c, d).into()) } else { Gid(address) }
        };
        let grh = Grh { source: gid(source), destination: gid(destination), traffic_class, hop_limit };
        let header = oracle::grh::written(is_v4, &grh);
        prop_assert_eq!(Grh::parse(&header), Some(grh));
        oracle::grh::check(&header);
    }

    /// Bytes that are nearly right reach further into the parser than made-up ones.
    #[test]
    fn changed_frames_keep_every_promise(
        which in 0..samples::frames().len(),
        changes in vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        how in any::<u8>(),
    ) {
        let mut bytes = samples::frames()[which].as_bytes().to_vec();
        for (index, value) in changes {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        oracle::frames::check(&bytes);
        bytes.insert(0, how);
        let _ = oracle::handshake::check(&bytes);
        prop_assert!(bytes.len() > 1);
    }
}
