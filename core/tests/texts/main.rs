//! The text of each error and name that a person reads: what failed, with the value and the limit.

use core::fmt::Display;
use core::net::Ipv4Addr;

use doorbell_core::handshake::{Cause, Fault, HandshakeError, IoError, Misuse, Stage};
use doorbell_core::network::NetworkError;
use doorbell_core::port::{Name, Unusable};
use doorbell_core::provider::{LookFailure, OutOfWindow, PostError, ProviderError, PushError, Rejected};
use doorbell_core::rail::{NotChosen, Verdict};
use doorbell_core::session::{FinalReason, PushRefusal, RequestRefusal, UnknownReason, Violation};
use doorbell_core::wire::{
    EndReason, InstanceId, NoRails, NotAdvertisable, RefusalReason, Reject, RejectReason, SpeedClass,
};
use doorbell_core::{
    Gid, GidKind, IpPrefix, Lkey, Mtu, ParsePrefixError, PortState, PrefixError, QpState, Qpn, Rank,
    WcStatus, WorkId, WorkKind,
};

/// Compares texts.
fn read(rows: &[(&dyn Display, &str)]) {
    for (shown, text) in rows {
        assert_eq!(shown.to_string(), *text);
    }
}

const CALL: ProviderError = ProviderError {
    call: "ibv_create_qp",
    errno: 12,
};

#[test]
fn of_the_provider() {
    let calls = [
        (1, "operation not permitted"),
        (2, "no such file or directory"),
        (11, "try again"),
        (
            12,
            "out of memory, or a limit of the device or on locked memory is reached",
        ),
        (13, "permission denied"),
        (14, "bad address"),
        (16, "in use"),
        (19, "no such device"),
        (22, "invalid argument"),
        (24, "too many open files"),
        (28, "no space left"),
        (38, "not implemented"),
        (95, "not supported by this device"),
        (101, "network unreachable"),
        (110, "timed out: the neighbour did not resolve"),
        (113, "no route to host"),
    ];
    for (errno, words) in calls {
        let error = ProviderError { errno, ..CALL };
        assert_eq!(
            error.to_string(),
            format!("ibv_create_qp failed: {words} (errno {errno})")
        );
    }
    let of_port = LookFailure {
        port: Some(2),
        error: ProviderError { errno: 77, ..CALL },
    };
    let posted = PostError {
        posted: 3,
        unposted: 4,
        cause: ProviderError {
            call: "ibv_post_send",
            ..CALL
        },
    };
    let beyond = OutOfWindow {
        offset: 5,
        bytes: 8,
        window_bytes: 9,
    };
    let too_long = PushError::TooLong {
        bytes: 9000,
        bytes_max: 4096,
    };
    read(&[
        (&of_port, "port 2: ibv_create_qp failed: errno 77"),
        (
            &posted,
            "3 requests posted, 4 not: ibv_post_send failed: the queue is full (errno 12)",
        ),
        (
            &Rejected(WorkId::new(WorkKind::Send, 7, 3, 1)),
            "a completion for WorkId { kind: Some(Send), channel: 7, slot: 3, generation: 1 }, which is not in flight here",
        ),
        (
            &beyond,
            "8 bytes at offset 5 do not fit, aligned, in a window of 9 bytes",
        ),
        (&PushError::Full, "the queue is full: poll, and try again"),
        (
            &too_long,
            "9000 bytes, but the peer or the port takes at most 4096 in one request: send less, or have the peer give its receives \
             larger slots",
        ),
        (
            &PushError::State(QpState::Error),
            "the queue pair is in ERR, which takes no such request: connect again if it failed",
        ),
        (&NetworkError { errno: 111 }, "the network refused (errno 111)"),
        (
            &WcStatus::RETRY_EXC_ERR,
            "transport retries exceeded: the peer does not answer (status 12)",
        ),
    ]);
}

#[test]
fn of_addresses_and_ports() {
    let subnet = IpPrefix::new(Ipv4Addr::new(10, 0, 0, 1).into(), 24);
    let too_long = PrefixError {
        prefix_bits: 33,
        prefix_bits_max: 32,
    };
    read(&[
        (
            &subnet.map_or("none".to_owned(), |subnet| subnet.to_string()),
            "10.0.0.1/24",
        ),
        (&too_long, "a prefix of 33 bits, where the address has 32"),
        (
            &ParsePrefixError::TooLong(too_long),
            "a prefix of 33 bits, where the address has 32",
        ),
        (
            &ParsePrefixError::NoLength,
            "there is no prefix length: write it as 10.1.2.0/24",
        ),
        (
            &Name::try_from("mlx5_0").map_or("none".to_owned(), |name| name.to_string()),
            "mlx5_0",
        ),
        (&Mtu::B1024, "1024"),
        (&PortState::DOWN, "DOWN"),
        (&PortState(9), "unknown state 9"),
        (&GidKind::RoceV2Ipv4, "RoCEv2/IPv4"),
        (
            &Unusable::NotActive(PortState::INIT),
            "the port is INIT, not ACTIVE",
        ),
        (
            &Unusable::GidIndexTooLarge(300),
            "its GID has index 300, beyond 255",
        ),
        (
            &Unusable::NotAdvertisable(NotAdvertisable::ZeroGid),
            "no peer could use its address: the GID is all zero",
        ),
        (
            &NotChosen::NotInSubnet,
            "no address of the other side is in its subnet",
        ),
        (&Verdict::Chosen(3), "chosen, with rail 3 of the other side"),
        (&SpeedClass::from_mbps(0), "unknown speed"),
        (&SpeedClass::from_mbps(8192), "about 8192 Mb/s"),
        (&Gid([0; 16]), "::"),
        (
            &NoRails,
            "a handle needs at least one rail: nobody could reach the listener",
        ),
        (&Qpn::new(17).map_or(0, Qpn::to_u32), "17"),
        (&Lkey(0x1f).0, "31"),
        (
            &Rank::new(5).map_or("none".to_owned(), |rank| rank.to_string()),
            "5",
        ),
    ]);
}

#[test]
fn of_handshakes() {
    let timed_out = HandshakeError {
        stage: Stage::Accept,
        cause: Cause::StageTimedOut,
    };
    let rejected = |reason| HandshakeError {
        stage: Stage::Welcome,
        cause: Cause::RejectedByPeer(Reject { reason, detail: 0 }),
    };
    let stale = |stage| HandshakeError {
        stage,
        cause: Cause::StaleHandle {
            meant: InstanceId::new(1).unwrap(),
            found: InstanceId::new(2).unwrap(),
        },
    };
    assert_eq!(timed_out.fault(), Fault::Peer);
    assert_eq!(
        stale(Stage::Welcome).fault(),
        Fault::Local,
        "the handle was given here"
    );
    assert_eq!(
        stale(Stage::Hello).fault(),
        Fault::Peer,
        "the handle was given to the peer"
    );
    assert_eq!(rejected(RejectReason::WRONG_KEY).fault(), Fault::Both);
    assert_eq!(rejected(RejectReason::STALE_HANDLE).fault(), Fault::Local);
    read(&[
        (
            &timed_out,
            "handshake failed while waiting for an Accept: timed out: the stage took longer than handshake_stage; \
             raise it if the peer is only slow",
        ),
        (&Fault::Both, "both sides"),
        (&IoError::Closed, "the peer closed the stream"),
        (
            &IoError::Failed(13),
            "the stream failed: permission denied (errno 13)",
        ),
        (&Misuse::NoSuchPeerRail(4), "the peer has no rail 4"),
        (
            &Misuse::OutOfTurn(Stage::Prepare),
            "not now: the handshake is bringing a queue pair to RTS",
        ),
    ]);
}

#[test]
fn of_ends_of_transfers() {
    let names = [
        "DONE",
        "CANCELLED",
        "DEADLINE",
        "REFUSED",
        "TOO_MANY",
        "NO_MEMORY",
        "UNKNOWN",
        "DENIED",
        "NOT_POSTED",
        "NOT_FENCED",
        "UNSUPPORTED",
        "NOT_WITHDRAWN",
        "EndReason(13)",
    ];
    for (number, name) in (1..).zip(names) {
        assert_eq!(format!("{:?}", EndReason(number)), name);
    }
    assert_eq!(format!("{:?}", EndReason::CANCELLED), "CANCELLED");
    assert_eq!(EndReason::CANCELLED.to_string(), "cancelled");
    assert_eq!(
        EndReason::DENIED.to_string(),
        "the taker's device refused a WRITE, or failed at 16 in a row"
    );
}

#[test]
fn of_sessions() {
    read(&[
        (
            &PushRefusal::Over(FinalReason::PeerRestarted),
            "the session is over: another process answers at the peer's addresses: the peer was restarted",
        ),
        (
            &FinalReason::EndedByPeer(RefusalReason(99)),
            "the peer ended the link: unknown reason 99",
        ),
        (
            &FinalReason::Violation(Violation::LetGo),
            "the peer broke the rules: it dropped what was not acknowledged",
        ),
        (
            &RequestRefusal::OutOfWindow {
                offset: 4090,
                bytes: 8,
                window_bytes: 4096,
            },
            "8 bytes at offset 4090 exceed the window of 4096 bytes: stay within it",
        ),
        (
            &UnknownReason::Over(FinalReason::Closed),
            "the link is over: it was closed",
        ),
    ]);
}
