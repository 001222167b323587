//! Any bytes as a frame: refused with a place in them, or understood as the plain reading does and written
//! again the same.

use doorbell_core::wire::{
    Connect, FRAME_BYTES_MAX, Frame, FrameBuffer, FrameHeader, HelloRef, InstanceId, KeyId, TAG_BYTES, Tag,
    VERSION, WelcomeRef,
};

use super::plain;

/// Panics where reading `bytes` as a frame breaks a promise.
pub(crate) fn check(bytes: &[u8]) {
    let header = FrameHeader::parse(bytes).ok();
    if let Some(header) = header {
        assert!(header.frame_bytes() <= FRAME_BYTES_MAX);
    }
    let as_plain = header.map(|header| plain::frames::Header {
        version: header.version.into(),
        kind: header.kind.to_wire().into(),
        is_tagged: header.is_tagged,
        length: header.body_bytes,
    });
    assert_eq!(as_plain, plain::frames::whole_header(bytes));
    let plain = plain::frames::read(bytes);
    let frame = match Frame::parse(bytes) {
        Ok(frame) => frame,
        Err(error) => {
            assert_eq!(plain, None, "{error}");
            assert!(usize::from(error.offset) <= bytes.len(), "{error}");
            // `Tag::split` does not check the body: even here, its two parts make up all the bytes.
            let (covered, tag) = Tag::split(bytes);
            let tag_bytes = if tag.is_some() { TAG_BYTES } else { 0 };
            assert_eq!(covered.len() + tag_bytes, bytes.len());
            return;
        }
    };
    assert_same(&frame, &plain.expect("taken, and yet it is no frame"));
    let header = header.expect("a frame has a header");
    let version = header.version;
    let again = match frame {
        // The parser skips fields of a newer version, so such a frame cannot be written again.
        Frame::Hello(hello) if hello.hello.versions.newest() > VERSION => return,
        Frame::Hello(hello) => FrameBuffer::hello(&hello.hello, &hello.rails.iter().collect()),
        Frame::Welcome(welcome) => FrameBuffer::welcome(&welcome.welcome, &welcome.rails.iter().collect()),
        Frame::Connect(connect) => FrameBuffer::connect(version, &connect),
        Frame::Accept(accept) => FrameBuffer::accept(version, &accept),
        Frame::Ready => FrameBuffer::ready(version),
        Frame::Reject(reject) => FrameBuffer::reject(&reject),
        other => panic!("a kind nobody writes: {other:?}"),
    };
    let (covered, tag) = Tag::split(bytes);
    assert_eq!(tag.is_some(), header.is_tagged);
    let again = match tag {
        None => again,
        Some(tag) => again.tagged(|before| {
            assert_eq!(before, covered);
            tag
        }),
    };
    assert_eq!(again.as_bytes(), bytes);
}

fn assert_same(frame: &Frame<'_>, plain: &plain::frames::Frame) {
    use plain::frames::Frame as Plain;

    match (frame, plain) {
        (Frame::Hello(hello), Plain::Hello(plain)) => assert_same_hello(hello, plain),
        (Frame::Welcome(welcome), Plain::Welcome(plain)) => assert_same_welcome(welcome, plain),
        (Frame::Connect(connect), Plain::Connect(plain)) | (Frame::Accept(connect), Plain::Accept(plain)) => {
            assert_eq!(&plain_of(connect), plain);
        }
        (Frame::Ready, Plain::Ready) => {}
        (Frame::Reject(reject), Plain::Reject { reason, detail }) => {
            assert_eq!(
                (u64::from(reject.reason.0), u64::from(reject.detail)),
                (*reason, *detail)
            );
        }
        (frame, plain) => panic!("{frame:?} is no {plain:?}"),
    }
}

fn assert_same_hello(found: &HelloRef<'_>, plain: &plain::frames::Hello) {
    let hello = &found.hello;
    assert_eq!(
        (
            u64::from(hello.versions.oldest()),
            u64::from(hello.versions.newest()),
            hello.initiator.to_u64(),
            hello.listener.map_or(0, InstanceId::to_u64),
            &hello.nonce.0[..],
            hello.key.map_or(0, |key| u64::from(key.to_u32())),
        ),
        (
            plain.oldest,
            plain.newest,
            plain.instance,
            plain.listener,
            &plain.nonce[..],
            plain.key
        )
    );
    plain::rails::assert_same(found.rails, &plain.rails);
}

fn assert_same_welcome(found: &WelcomeRef<'_>, plain: &plain::frames::Welcome) {
    let welcome = &found.welcome;
    assert_eq!(
        (
            u64::from(welcome.version),
            welcome.listener.to_u64(),
            &welcome.nonce.0[..],
            welcome.key.map(KeyId::to_u32).unwrap_or_default().into(),
        ),
        (plain.version, plain.instance, &plain.nonce[..], plain.key)
    );
    plain::rails::assert_same(found.rails, &plain.rails);
}

/// The fields of a Connect or an Accept, in the plain reading's terms.
pub(crate) fn plain_of(connect: &Connect) -> plain::frames::Endpoint {
    let endpoint = &connect.endpoint;
    let parameters = &endpoint.parameters;
    plain::frames::Endpoint {
        gid: endpoint.gid.0.to_vec(),
        qpn: endpoint.qpn.to_u32().into(),
        psn: endpoint.psn.to_u32().into(),
        mtu: parameters.mtu.to_wire().into(),
        reads_in_flight: parameters.max_rd_atomic.into(),
        reads_served: parameters.max_dest_rd_atomic.into(),
        traffic_class: parameters.traffic_class.into(),
        flow_label: parameters.flow_label.into(),
        service_level: parameters.service_level.into(),
        own_rail: endpoint.rail.into(),
        peer_rail: connect.peer_rail.into(),
        receive_depth: parameters.receive_depth.into(),
        slot_bytes: parameters.slot_bytes.into(),
        credit_address: endpoint.credit.address,
        credit_rkey: endpoint.credit.rkey.0.into(),
        credit_start: endpoint.credit.start.into(),
        session: endpoint.session.map_or(0, |said| said.session.to_u64()),
        next_sequence: endpoint.session.map_or(0, |said| said.next_sequence),
        epoch: endpoint.session.map_or(0, |said| said.epoch.into()),
        private: endpoint.private_data.as_bytes().to_vec(),
    }
}
