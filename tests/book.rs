//! The pages of `docs/when-it-fails` quote each error and each completion status as the code prints it, and quote nothing else.

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;

use doorbell::link::{FinalReason, LinkError, PushRefusal, RequestRefusal, UnknownReason, Violation};
use doorbell::mesh::{GroupError, MeshError, MeshSendError, Rank};
use doorbell::provider::{
    IpPrefix, MemoryError, OnDemand, Pages, PortState, PostError, ProviderError, PushError, QpState,
    Shortfall, Unusable, WcStatus, Wish,
};
use doorbell::requests::NotSentKind;
use doorbell::trust::{KeyError, KeyRingError};
use doorbell::worker::{CloseError, SubmissionError, SubmitErrorKind};
use doorbell::{
    ChannelConfig, ConnectError, KeyRing, Listener, Node, NodeError, SendErrorKind, Trust, WaitError,
    WorkerConfig,
};
use doorbell_core::handshake::{Cause, HandshakeError, Misuse, Stage};
use doorbell_core::provider::LookFailure;
use doorbell_core::rail::NotChosen;

use doorbell_core::wire::{
    Field, FrameKind, HandleTextError, InstanceId, KeyId, RefusalReason, Reject, RejectReason, VersionRange,
};
use doorbell_ffi::LoadError;
use doorbell_sim::{Fabric, PortConfig};

const ERRORS: &str = include_str!("../docs/when-it-fails/errors.md");
const STATUSES: &str = include_str!("../docs/when-it-fails/completion-statuses.md");
const PEER: &str = include_str!("../docs/when-it-fails/closed-or-dead-peer.md");

#[path = "book/page.rs"]
mod page;

use page::compare;

macro_rules! texts {
    ($($error:expr),+ $(,)?) => {
        vec![$($error.to_string()),+]
    };
}

// Behind the macro, which they use.
#[path = "book/memory.rs"]
mod memory;
#[path = "book/operation.rs"]
mod operation;
#[path = "book/variants.rs"]
mod variants;

fn failed(call: &'static str, errno: i32) -> ProviderError {
    ProviderError { call, errno }
}

fn address(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    Ipv4Addr::new(a, b, c, d).into()
}

fn port(device: &str, addresses: &[&str]) -> PortConfig {
    let prefix = |text: &&str| {
        let (address, bits) = text.split_once('/').unwrap();
        IpPrefix::new(address.parse::<IpAddr>().unwrap(), bits.parse().unwrap()).unwrap()
    };
    PortConfig::new(device, &addresses.iter().map(prefix).collect::<Vec<_>>())
}

/// The error of making Workers on a host with these ports.
fn no_workers(ports: Vec<PortConfig>) -> NodeError {
    let host = Fabric::new().host("a", ports).unwrap();
    let node = Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap();
    node.workers(&WorkerConfig::default()).unwrap_err()
}

/// The error of connecting from one subnet to another.
fn no_route() -> ConnectError {
    let fabric = Fabric::new();
    let node = |name, device, address| {
        let host = fabric.host(name, vec![port(device, &[address])]).unwrap();
        Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap()
    };
    let (server, client) = (
        node("server", "mlx5_0", "10.2.0.1/24"),
        node("client", "mlx5_0", "10.1.0.1/24"),
    );
    let config = ChannelConfig::default();
    let workers = server.workers(&WorkerConfig::default()).unwrap();
    let listener = Listener::bind(&server, &workers, "[::]:0".parse().unwrap(), &config).unwrap();
    let mut workers = client.workers(&WorkerConfig::default()).unwrap();
    let deadline = client.within(Duration::from_secs(1));
    client
        .connect(&mut workers, listener.handle(), &config, deadline)
        .unwrap_err()
}

#[test]
fn errors_of_a_node() {
    let open = |path: &str| LoadError::Open {
        path: path.into(),
        reason: "no such file".into(),
    };
    let symbol = LoadError::Symbol {
        path: "libibverbs.so.1".into(),
        name: "ibv_create_qp",
        version: "IBVERBS_1.1",
    };
    let lock = Shortfall::LockLimit {
        needed_bytes: 8 << 20,
        locked_bytes: 0,
        limit_bytes: 64 << 10,
        errno: 12,
    };
    let huge = Shortfall::HugePages {
        page_bytes: 2 << 20,
        needed: 4,
        free: Some(1),
        errno: 12,
    };
    let mut down = port("mlx5_0", &["10.1.0.1/24"]);
    down.state = PortState::DOWN;
    let no_such = |known: &[&str]| NodeError::NoSuchDevice {
        device: "mlx5_7".into(),
        known: known.iter().map(|name| (*name).into()).collect(),
    };
    let mut own = WorkerConfig::default();
    own.slots = 0;
    let printed = texts![
        NodeError::Library(open("libibverbs.so.1")),
        NodeError::Library(symbol),
        NodeError::Library(LoadError::Path { path: "".into() }),
        NodeError::Provider(failed("ibv_open_device", 13)),
        NodeError::Memory(MemoryError::Unmet(Wish::Lock, lock)),
        NodeError::Memory(MemoryError::Unmet(Wish::Pages(Pages::Huge2M), huge)),
        NodeError::Memory(MemoryError::Unmet(
            Wish::Node(Some(1)),
            Shortfall::Partly { bytes: 4 << 20 }
        )),
        NodeError::Memory(MemoryError::Unmet(
            Wish::OnDemand,
            Shortfall::Operations {
                lacks: OnDemand::READ | OnDemand::ATOMIC
            }
        )),
        NodeError::from(own.check().unwrap_err()),
        NodeError::SharedReceives {
            depth: 512,
            slots: 400
        },
        no_workers(Vec::new()),
        no_workers(vec![down]),
        no_such(&["mlx5_0", "mlx5_1"]),
        no_such(&[]),
        NodeError::Entropy(38),
        NodeError::Thread(11),
    ];
    compare(ERRORS, "`NodeError`", &printed);
}

#[test]
fn errors_of_connecting() {
    let timed_out = HandshakeError {
        stage: Stage::Welcome,
        cause: Cause::StageTimedOut,
    };
    let no_subnet = HandshakeError {
        stage: Stage::Connect,
        cause: Cause::RejectedByPeer(Reject::new(RejectReason::NO_COMMON_SUBNET)),
    };
    let look = LookFailure {
        port: Some(1),
        error: failed("ibv_query_port", 19),
    };
    let peer = address(10, 1, 0, 7);
    let mut channel = ChannelConfig::default();
    channel.retry_count = 9;
    let printed = texts![
        ConnectError::Handshake(timed_out),
        no_route(),
        ConnectError::Tcp(io::Error::from_raw_os_error(98)),
        ConnectError::Unanswered((peer, 7500).into()),
        ConnectError::Provider(failed("ibv_modify_qp", 110)),
        ConnectError::PortsTimedOut,
        ConnectError::NoRails,
        ConnectError::Port(look),
        ConnectError::NoPort((peer, 0).into()),
        ConnectError::OnlyLinkLocal,
        ConnectError::NoRoom {
            sends_left: 3,
            receives_left: 5
        },
        ConnectError::NoShare {
            receives_left: 12,
            receives_needed: 16
        },
        ConnectError::NoSlots {
            receives_left: 12,
            slots: 2048,
            leases_kept: 245
        },
        ConnectError::NoMemory,
        ConnectError::Cells(failed("ibv_reg_mr", 12).into()),
        ConnectError::TooManyChannels { channels_max: 1024 },
        ConnectError::TooManyChannelsFrom {
            address: peer,
            channels_per_address: 8
        },
        ConnectError::TimedOut { last_failure: None },
        ConnectError::TimedOut {
            last_failure: Some(Box::new(no_subnet.into()))
        },
        ConnectError::OtherWorkers,
        ConnectError::TooManyUnaccepted { unaccepted: 64 },
        ConnectError::TooManyUnfinishedFrom {
            address: peer,
            unfinished: 12,
            room: 11
        },
        ConnectError::TooManyLinks { links_max: 64 },
        ConnectError::TooManyLinksFrom {
            address: peer,
            links_per_address: 32
        },
        ConnectError::ListenerClosed,
        ConnectError::OtherTrust,
        ConnectError::NotAllowed(address(10, 9, 0, 7)),
        ConnectError::from(channel.check().unwrap_err()),
        ConnectError::Configuration(Misuse::Unsendable(Field::FlowLabel)),
        ConnectError::Misuse(
            "accept waits for a thread that runs the handshakes, and these are polled: call poll_accept"
        ),
        ConnectError::Unreachable("the chosen rail is none of this node"),
        ConnectError::Entropy(38),
    ];
    compare(ERRORS, "`ConnectError`", &printed);
}

#[test]
fn errors_of_sending() {
    let post = PostError {
        posted: 3,
        unposted: 4,
        cause: failed("ibv_post_send", 12),
    };
    let printed = texts![
        SendErrorKind::WouldBlock,
        SendErrorKind::NoMemory,
        SendErrorKind::NoLeases,
        SendErrorKind::TooLong {
            bytes: 5000,
            bytes_max: 4096
        },
        SendErrorKind::Refused(PushError::State(QpState::Error)),
        SendErrorKind::Post(post),
        SendErrorKind::Closed,
        SendErrorKind::PeerClosed,
    ];
    compare(ERRORS, "`SendErrorKind`", &printed);
    let printed = texts![
        NotSentKind::InFlight,
        NotSentKind::TooLong {
            bytes: 9000,
            bytes_max: 4096
        },
        NotSentKind::Channel(SendErrorKind::WouldBlock),
        NotSentKind::Link(PushRefusal::Full),
    ];
    compare(ERRORS, "`NotSentKind`", &printed);
    let printed = texts![
        PushError::Full,
        PushError::NoCredit,
        PushError::InlineTooLong {
            bytes: 300,
            bytes_max: 220
        },
        PushError::TooManySegments {
            segments: 5,
            segments_max: 4
        },
        PushError::AtomicNeedsEightBytes,
        PushError::NotInline,
        PushError::OutOfOwnWindow {
            bytes: 100,
            bytes_left: 64
        },
        PushError::ReadOnly,
        PushError::NoCells,
        PushError::CellTooLong {
            bytes: 300,
            bytes_max: 256
        },
        PushError::UnknownAddress,
        PushError::TooLong {
            bytes: 9000,
            bytes_max: 4096
        },
        PushError::OutOfWindow {
            bytes: 100,
            bytes_max: 64
        },
        PushError::NotGranted,
        PushError::Misaligned { address: 0x1004 },
        PushError::OtherMemory,
        PushError::NoFetches,
        PushError::NoAtomics,
        PushError::State(QpState::Error),
    ];
    compare(ERRORS, "Requests", &printed);
}

#[test]
fn errors_of_waiting_and_closing() {
    let printed = texts![
        WaitError::NeverNotified,
        WaitError::Provider(failed("ibv_poll_cq", 5))
    ];
    compare(ERRORS, "`WaitError`", &printed);
    let printed = texts![
        CloseError::Unknown,
        CloseError::Provider(failed("ibv_modify_qp", 5)),
        CloseError::Poll(failed("ibv_poll_cq", 5)),
        CloseError::TimedOut,
        CloseError::NotDestroyed,
    ];
    compare(ERRORS, "`CloseError`", &printed);
}

#[test]
fn errors_of_links_and_meshes() {
    let ConnectError::NoRoute(report) = no_route() else {
        panic!("there is a route");
    };
    let printed = texts![
        LinkError::NoRoute(*report),
        LinkError::Connect(ConnectError::Tcp(io::Error::from_raw_os_error(98))),
        LinkError::SlotsTooSmall {
            slot_bytes: 4096,
            frame_bytes: 8216
        },
        LinkError::Unsignaled(16),
        LinkError::InlineTooShort(16),
        LinkError::TooManyLinks { links_max: 64 },
        LinkError::OtherClasses,
        LinkError::Entropy(38),
        LinkError::NoMemory { bytes: 1 << 30 },
    ];
    compare(ERRORS, "`LinkError`", &printed);
    let printed = texts![
        MeshError::NoSuchRank {
            rank: Rank::new(4).unwrap(),
            ranks: 4
        },
        MeshError::Configuration {
            setting: "link.message_bytes_max",
            value: 4096,
            value_min: 4158
        },
        MeshError::LateAcknowledgements {
            acknowledge_after: Duration::from_millis(500),
            setting: "resend_after",
            time: Duration::from_millis(500)
        },
        MeshError::Link(LinkError::TooManyLinks { links_max: 64 }),
        MeshError::Closing,
    ];
    compare(ERRORS, "`MeshError`", &printed);
}

/// The error of reading keys from a file that others may read, as if it were where keys are.
fn not_secret() -> String {
    let path = std::env::temp_dir().join(format!("doorbell-book-{}", std::process::id()));
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let error = KeyRing::from_file(&path).unwrap_err().to_string();
    fs::remove_file(&path).unwrap();
    error.replace(&path.display().to_string(), "/etc/doorbell/keys")
}

#[test]
fn errors_of_keys_and_handles() {
    let gone = KeyRing::from_file("/no/such/folder/keys")
        .unwrap_err()
        .to_string();
    let line = |text: &str| KeyRing::from_text(&format!("\n\n{text}")).unwrap_err();
    let mut printed = texts![
        KeyRingError::Empty,
        line("no key"),
        line("7:00112233445566778899aabbccddeeff"),
        KeyRingError::Twice(7),
        KeyRingError::TooMany,
        KeyRingError::Environment("DOORBELL_KEYS".into()),
        KeyError::ZeroId,
        KeyError::TooLong { bytes: 2000 },
        KeyError::FewDistinct { distinct: 3 },
        KeyError::Sequence,
        KeyError::Repeats { period: 16 },
        KeyError::Text,
        HandleTextError::Prefix,
        HandleTextError::TooShort,
        HandleTextError::TooLong,
        HandleTextError::NotHexadecimal { position: 12 },
        HandleTextError::CheckSum,
    ];
    printed.push(gone.replace("/no/such/folder", "/etc/doorbell"));
    printed.push(not_secret());
    compare(ERRORS, "Keys and handles", &printed);
}

#[test]
fn errors_of_submitters() {
    let printed = texts![
        SubmitErrorKind::WouldBlock,
        SubmitErrorKind::WorkerGone,
        SubmitErrorKind::OtherMemory,
        SubmitErrorKind::BringsDataBack,
        SubmitErrorKind::OutOfWindow {
            bytes: 100,
            bytes_max: 64
        },
        SubmitErrorKind::NotGranted,
        SubmissionError::NoChannel,
        SubmissionError::ChannelFailed(WcStatus::RETRY_EXC_ERR),
        SubmissionError::InlineTooLong {
            bytes: 300,
            bytes_max: 220
        },
        SubmissionError::TooLong {
            bytes: 9000,
            bytes_max: 4096
        },
        SubmissionError::State(QpState::Error),
        SubmissionError::Post { errno: 12 },
        SubmissionError::Ended(WcStatus::RETRY_EXC_ERR),
        SubmissionError::Unknown,
        SubmissionError::WorkerGone,
        SubmissionError::Refused,
    ];
    compare(ERRORS, "Submitters", &printed);
}

#[test]
fn errors_of_sending_on_links_and_meshes() {
    let rank = Rank::new(3).unwrap();
    let printed = texts![
        PushRefusal::Full,
        PushRefusal::Recovering,
        PushRefusal::TooLong {
            bytes: 9000,
            bytes_max: 8192
        },
        PushRefusal::Closing,
        PushRefusal::Over(FinalReason::PeerClosed),
        RequestRefusal::Full,
        RequestRefusal::NoWindow,
        RequestRefusal::TooLong {
            bytes: 9000,
            bytes_max: 8192
        },
        RequestRefusal::OutOfWindow {
            offset: 4090,
            bytes: 8,
            window_bytes: 4096
        },
        RequestRefusal::Misaligned { offset: 4 },
        RequestRefusal::NotGranted,
        RequestRefusal::Closing,
        RequestRefusal::Over(FinalReason::PeerClosed),
        MeshSendError::WouldBlock,
        MeshSendError::Unreachable(rank),
        MeshSendError::Restarted(rank),
        MeshSendError::Regrouped(rank),
        MeshSendError::NoSuchRank(rank),
        MeshSendError::TooLong {
            bytes: 20_000,
            bytes_max: 16_384
        },
        GroupError::TimedOut,
    ];
    compare(ERRORS, "Sending on links and meshes", &printed);
}

#[test]
fn errors_of_handshakes() {
    let reject = |reason, detail| Reject { reason, detail };
    let busy = reject(RejectReason::BUSY, 250);
    let instance = |raw| InstanceId::new(raw).unwrap();
    let mut printed = texts![
        Stage::Hello,
        Stage::Welcome,
        Stage::ChooseRail,
        Stage::Connect,
        Stage::Prepare,
        Stage::Accept,
        Stage::Ready,
        Stage::LastWrite,
        Cause::StageTimedOut,
        Cause::WholeTimedOut,
        Cause::PeerClosed,
        Cause::Stream(111),
        Cause::Stream(104),
        Cause::Stream(113),
        Cause::StreamMiscounted,
        Cause::UnexpectedFrame(FrameKind::Accept),
        Cause::Version {
            ours: VersionRange::new(1, 2).unwrap(),
            theirs: VersionRange::new(3, 4).unwrap()
        },
        Cause::StaleHandle {
            meant: instance(1),
            found: instance(2)
        },
        Cause::Unauthenticated,
        Cause::UnknownKey(KeyId::new(7).unwrap()),
        Cause::WrongKey,
        Cause::RejectedByPeer(busy),
        Cause::RejectedHere(Reject::new(RejectReason::APPLICATION)),
        reject(RejectReason::VERSION, 0x0304),
        reject(RejectReason::STALE_HANDLE, 0),
        reject(RejectReason::NO_COMMON_SUBNET, 0),
        reject(RejectReason::MALFORMED, 12),
        reject(RejectReason::UNEXPECTED, 4),
        reject(RejectReason::TIMED_OUT, 5),
        busy,
        reject(RejectReason::QUEUE_PAIR, 110),
        reject(RejectReason::PARAMETERS, 0),
        reject(RejectReason::CLOSING, 0),
        reject(RejectReason::APPLICATION, 3),
        reject(RejectReason::UNAUTHENTICATED, 0),
        reject(RejectReason::UNKNOWN_KEY, 7),
        reject(RejectReason::WRONG_KEY, 0),
        reject(RejectReason::NOT_ALLOWED, 0),
    ];
    let garbage = doorbell_core::wire::FrameHeader::parse(&[0; 64]).unwrap_err();
    printed.push(Cause::Wire(garbage).to_string());
    compare(ERRORS, "Handshakes", &printed);
}

#[test]
fn reasons_of_ports_and_rails() {
    let prefix = |last_but_one, last, bits| IpPrefix::new(address(10, 1, last_but_one, last), bits).unwrap();
    let left_out = |rule| Unusable::LeftOut { rule, address: None };
    let printed = texts![
        Unusable::NotActive(PortState::DOWN),
        Unusable::NotEthernet,
        Unusable::NoRoceV2Gid,
        Unusable::InterfaceNotHere,
        Unusable::NoAddress,
        Unusable::UnknownMtu,
        Unusable::GidIndexTooLarge(300),
        Unusable::BeyondRailsMax,
        left_out(Some(2)),
        left_out(None),
        NotChosen::NothingToReach,
        NotChosen::OtherFamily,
        NotChosen::NotInSubnet,
        NotChosen::OneSided {
            local: prefix(0, 1, 24),
            peer: prefix(1, 1, 16)
        },
        NotChosen::AmbiguousLinkLocal,
    ];
    compare(ERRORS, "Ports and rails", &printed);
}

#[test]
fn statuses_of_completions() {
    // 21 is the last one that libibverbs has a meaning for here.
    let mut printed: Vec<_> = (0..=21).map(|status| WcStatus(status).to_string()).collect();
    assert!(!printed.iter().any(|text| text.starts_with("unknown")));
    printed.push(WcStatus(22).to_string());
    assert!(
        printed.last().is_some_and(|text| text.starts_with("unknown")),
        "22 has a text now: quote it"
    );
    compare(STATUSES, "The statuses", &printed);
}

#[test]
fn reasons_of_a_link_that_is_over() {
    let ended = FinalReason::EndedByPeer;
    let printed = texts![
        FinalReason::Closed,
        FinalReason::PeerClosed,
        FinalReason::PeerRestarted,
        FinalReason::Unreachable,
        FinalReason::Refused(RefusalReason::NO_ROOM),
        ended(RefusalReason::GIVEN_UP),
        ended(RefusalReason::BROKEN),
        ended(RefusalReason::TOO_LONG),
        ended(RefusalReason::UNKNOWN_SESSION),
        FinalReason::Violation(Violation::AcknowledgedUnsent),
        FinalReason::Violation(Violation::OutOfPlace),
        FinalReason::Violation(Violation::LetGo),
        FinalReason::Violation(Violation::FarewellEarly),
        FinalReason::Violation(Violation::Malformed),
        FinalReason::Violation(Violation::TooLong),
        FinalReason::Violation(Violation::FragmentTooLong),
        FinalReason::Unsuitable,
        FinalReason::EpochsExhausted,
        UnknownReason::RailFailed,
        UnknownReason::Denied,
        UnknownReason::Withdrawn,
        UnknownReason::NoRail,
        UnknownReason::Refused,
        UnknownReason::NoRoom,
    ];
    compare(PEER, "Links", &printed);
}
