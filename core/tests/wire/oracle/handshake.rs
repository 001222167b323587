//! Any bytes as what a peer sends in a handshake, with a caller that does everything right.

use core::net::{IpAddr, Ipv4Addr};

use doorbell_core::handshake::{
    Initiator, InitiatorConfig, Io, IoError, Responder, ResponderConfig, Step, Timing,
};
use doorbell_core::wire::{
    AdvertisedRail, Connect, CreditWord, Endpoint, EndpointParameters, FrameBuffer, FrameKind, Hello,
    InstanceId, Nonce, PrivateData, Reject, RejectReason, SpeedClass, VERSION, VersionRange, Welcome,
};
use doorbell_core::{Gid, Instant, IpPrefix, Psn, Qpn, Rkey};

use super::keys::Keys;

const POLL_NS: u64 = 50_000_000;

/// A stream that gives out a script in pieces, and counts what it is given.
struct Script<'a> {
    rest: &'a [u8],
    piece_bytes: usize,
    closes: bool,
    written_bytes: usize,
    /// Whether this poll has had its piece.
    served: bool,
}

impl Io for Script<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, IoError> {
        if self.rest.is_empty() && self.closes {
            return Err(IoError::Closed);
        }
        let bytes = self.piece_bytes.min(self.rest.len()).min(buffer.len());
        if bytes == 0 || self.served {
            return Err(IoError::WouldBlock);
        }
        let (piece, rest) = self.rest.split_at(bytes);
        buffer[..bytes].copy_from_slice(piece);
        self.rest = rest;
        self.served = true;
        Ok(bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        self.written_bytes += bytes.len();
        Ok(bytes.len())
    }
}

/// The first rail of the initiator (1) or the responder (2).
pub(crate) fn rail(host: u8) -> AdvertisedRail {
    rail_on(host, 0)
}

/// One of the rails of the initiator (1) or the responder (2).
pub(crate) fn rail_on(host: u8, index: u8) -> AdvertisedRail {
    let ip = IpAddr::V4(Ipv4Addr::new(10, 0, index, host));
    let address = IpPrefix::new(ip, 24).unwrap();
    AdvertisedRail::new(address, Gid::from_ip(ip), SpeedClass::from_mbps(10_000)).unwrap()
}

/// The endpoint of the initiator (1) or the responder (2) on its first rail.
pub(crate) fn endpoint(host: u8) -> Endpoint {
    endpoint_on(host, 0)
}

/// The endpoint of the initiator (1) or the responder (2) on one of its rails.
pub(crate) fn endpoint_on(host: u8, rail: u8) -> Endpoint {
    Endpoint {
        rail,
        gid: rail_on(host, rail).gid(),
        qpn: Qpn::new(0x10 + u32::from(host)).unwrap(),
        psn: Psn::from_low_bits(0x12_3450 + u32::from(host)),
        parameters: EndpointParameters {
            receive_depth: 16,
            slot_bytes: 4096,
            ..EndpointParameters::default()
        },
        credit: CreditWord {
            address: 0x1000 * u64::from(host),
            rkey: Rkey(0x0a0b_0c00 + u32::from(host)),
            start: u32::MAX - u32::from(host),
        },
        session: None,
        private_data: PrivateData::EMPTY,
    }
}

/// The instance of the initiator (1) or the responder (2).
pub(crate) fn instance(host: u8) -> InstanceId {
    InstanceId::new(0x1111_1111_1111_1111 * u64::from(host)).unwrap()
}

/// The settings of the initiator in the samples.
pub(crate) fn initiator_config(timing: Timing) -> InitiatorConfig {
    InitiatorConfig {
        instance: instance(1),
        listener: Some(instance(2)),
        nonce: Nonce([0xa1; 16]),
        timing,
        versions: VersionRange::OURS,
    }
}

/// The settings of the responder in the samples.
pub(crate) fn responder_config(timing: Timing) -> ResponderConfig {
    ResponderConfig {
        instance: instance(2),
        nonce: Nonce([0xb2; 16]),
        timing,
        versions: VersionRange::OURS,
    }
}

/// An initiator with the settings all samples have.
pub(crate) fn initiator(timing: Timing) -> Initiator<Keys> {
    initiator_with(timing, &Keys::default())
}

/// An initiator with these keys.
pub(crate) fn initiator_with(timing: Timing, keys: &Keys) -> Initiator<Keys> {
    Initiator::with(initiator_config(timing), keys, &[rail(1)], Instant::from_ns(0)).unwrap()
}

/// A responder with the settings all samples have.
pub(crate) fn responder(timing: Timing) -> Responder<Keys> {
    responder_with(timing, &Keys::default())
}

/// A responder with these keys.
pub(crate) fn responder_with(timing: Timing, keys: &Keys) -> Responder<Keys> {
    let now = Instant::from_ns(0);
    Responder::with(responder_config(timing), keys.clone(), &[rail(2)], now).unwrap()
}

/// The one key that both sides of the samples have, where they have any.
pub(crate) fn one_key() -> Keys {
    Keys::of(&[(7, 0x77)])
}

/// The rejection that is sent.
pub(crate) const REJECT: Reject = Reject {
    reason: RejectReason::BUSY,
    detail: 0,
};

/// The frame of this kind that host 1 or 2 would send without keys.
pub(crate) fn sent_by(host: u8, kind: FrameKind) -> FrameBuffer {
    let rails = [rail(host)].into_iter().collect();
    let connect = Connect {
        endpoint: endpoint(host),
        peer_rail: 0,
    };
    let (listener, nonce) = (instance(2), Nonce([7; 16]));
    match kind {
        FrameKind::Hello => FrameBuffer::hello(
            &Hello {
                versions: VersionRange::OURS,
                initiator: instance(1),
                listener: Some(listener),
                nonce,
                key: None,
            },
            &rails,
        ),
        FrameKind::Welcome => FrameBuffer::welcome(
            &Welcome {
                version: VERSION,
                listener,
                nonce,
                key: None,
            },
            &rails,
        ),
        FrameKind::Connect => FrameBuffer::connect(VERSION, &connect),
        FrameKind::Accept => FrameBuffer::accept(VERSION, &connect),
        FrameKind::Ready => FrameBuffer::ready(VERSION),
        FrameKind::Reject => FrameBuffer::reject(&REJECT),
        other => panic!("a kind nobody writes: {other:?}"),
    }
}

/// Panics if a machine fed with `bytes` breaks a promise; returns whether it got connected.
///
/// The first byte selects the machine (bit 0), and whether the machine has a key (bit 6). It also selects whether the
/// stream closes at its end or falls silent (bit 7), and how many bytes come at a time (the rest).
pub(crate) fn check(bytes: &[u8]) -> bool {
    let Some((&how, script)) = bytes.split_first() else {
        return false;
    };
    let piece_bytes = usize::from(how >> 1 & 0x1f) * 8 + 1;
    let mut io = Script {
        rest: script,
        piece_bytes,
        closes: how & 0x80 != 0,
        written_bytes: 0,
        served: false,
    };
    let timing = Timing::default();
    let keys = if how & 0x40 == 0 {
        Keys::default()
    } else {
        one_key()
    };
    let mut initiator = (how & 1 == 0).then(|| initiator_with(timing, &keys));
    let mut responder = (how & 1 == 1).then(|| responder_with(timing, &keys));
    // One byte at a time, a frame takes longer than it may: the whole has to end nevertheless.
    let polls_max = u64::try_from(timing.whole.as_nanos()).unwrap() / POLL_NS + 2;
    for poll in 0..=polls_max {
        let now = Instant::from_ns(poll * POLL_NS);
        io.served = false;
        let step = match (&mut initiator, &mut responder) {
            (Some(initiator), _) => initiator.poll(now, &mut io),
            (None, Some(responder)) => responder.poll(now, &mut io),
            (None, None) => unreachable!("one of the two"),
        };
        match step {
            Step::Pending => {}
            Step::ChooseRail => {
                let initiator = initiator.as_mut().expect("only an initiator chooses");
                if initiator.offer(now, endpoint(1), 0).is_err() {
                    // A peer without rails: there is nothing to be offered.
                    assert!(initiator.peer_rails().is_empty());
                }
            }
            Step::Prepare(prepare) => {
                assert_eq!(prepare.local_rail, 0);
                assert!(prepare.peer.is_sendable());
                match (&mut initiator, &mut responder) {
                    (Some(initiator), _) => initiator.ready(now).unwrap(),
                    (None, Some(responder)) => responder.accept(now, endpoint(2)).unwrap(),
                    (None, None) => unreachable!("one of the two"),
                }
            }
            end @ (Step::Connected(_) | Step::Failed(_)) => {
                if let Step::Connected(established) = end {
                    assert!(established.agreed.mtu <= endpoint(1).parameters.mtu);
                    assert_eq!(established.key.is_some(), how & 0x40 != 0);
                }
                let left = io.rest.len();
                let later = Instant::from_ns(u64::MAX);
                let again = match (&mut initiator, &mut responder) {
                    (Some(initiator), _) => initiator.poll(later, &mut io),
                    (None, Some(responder)) => responder.poll(later, &mut io),
                    (None, None) => unreachable!("one of the two"),
                };
                assert_eq!(again, end, "an end is an end");
                assert_eq!(io.rest.len(), left, "nothing is read after the end");
                assert!(io.written_bytes < 512, "no more is said than a handshake has");
                return matches!(end, Step::Connected(_));
            }
            other => panic!("a step nobody knows: {other:?}"),
        }
    }
    panic!("neither connected nor failed when all time was up");
}
