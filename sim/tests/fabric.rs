//! Properties of the simulator alone: how hosts are made, their reports, and who reaches whom.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use core::net::IpAddr;

use doorbell_core::port::{NAME_BYTES_MAX, PORT_GIDS_MAX, Unusable};
use doorbell_core::provider::{
    AddressVector, Arena, ArenaConfig, CompletionQueue, CompletionQueueConfig, Context, DataInOrder,
    Operation, PostFlags, ProtectionDomain, Provider, QueuePair, QueuePairConfig, QueuePairParts,
    ReadyToReceive, ReadyToSend, ReceiveBatch, ReceiveQueue, RemoteAccess, SendBatch, SendQueue, Slot,
    WindowConfig,
};
use doorbell_core::{Gid, GidKind, IpPrefix, Mtu, PortReport, PortState, Psn, Qpn, WcStatus};
use doorbell_sim::{ConfigError, Fabric, Host, Link, PortConfig};

const ETIMEDOUT: i32 = 110;
const ENETUNREACH: i32 = 101;

fn prefix(text: &str) -> IpPrefix {
    let (address, bits) = text.split_once('/').unwrap();
    IpPrefix::new(address.parse().unwrap(), bits.parse().unwrap()).unwrap()
}

fn gid(text: &str) -> Gid {
    Gid::from_ip(text.parse::<IpAddr>().unwrap())
}

fn port(device: &str, addresses: &[&str]) -> PortConfig {
    let addresses: Vec<_> = addresses.iter().copied().map(prefix).collect();
    PortConfig::new(device, &addresses)
}

fn reports(host: &Host) -> Vec<PortReport> {
    let mut reports = Vec::new();
    let mut fail = |name: &str, error| panic!("{name}: {error}");
    host.scan(&mut |report| reports.push(report.clone()), &mut fail)
        .unwrap();
    reports
}

#[test]
fn a_scan_reports_every_port_as_configured() {
    let down = PortConfig {
        state: PortState::DOWN,
        interface: "eth7".into(),
        numa_node: Some(1),
        speed_mbps: 25_000,
        ..port("b", &["10.2.0.1/16", "fd00::1/64"])
    };
    let v1 = PortConfig {
        link: Link::RoceV1,
        ..port("c", &["10.3.0.1/24"])
    };
    let infiniband = PortConfig {
        link: Link::Infiniband,
        ..port("d", &["10.4.0.1/24"])
    };
    let odd = PortConfig {
        active_mtu: None,
        ..port("a", &[])
    };
    let fabric = Fabric::new();
    let ports = vec![port("a", &["10.1.0.1/24"]), down, v1, infiniband, odd];
    let host = fabric.host("here", ports).unwrap();
    fabric
        .host("elsewhere", vec![port("e", &["10.5.0.1/24"])])
        .unwrap();

    let reports = reports(&host);
    let names: Vec<_> = reports
        .iter()
        .map(|report| (report.device.as_str(), report.port))
        .collect();
    assert_eq!(names, [("a", 1), ("a", 2), ("b", 1), ("c", 1), ("d", 1)]);
    let why: Vec<_> = reports.iter().map(PortReport::usability).collect();
    assert_eq!(
        why,
        [
            Ok(()),
            Err(Unusable::UnknownMtu),
            Err(Unusable::NotActive(PortState::DOWN)),
            Err(Unusable::NoRoceV2Gid),
            Err(Unusable::NotEthernet),
        ]
    );
    let b = &reports[2];
    assert_eq!((b.numa_node, b.speed_mbps), (Some(1), 25_000));
    assert_eq!(b.gids[0].interface.as_deref(), Some("eth7"));
    assert_eq!(
        (b.gids[0].kind, b.gids[0].gid),
        (GidKind::RoceV2Ipv4, gid("10.2.0.1"))
    );
    assert_eq!((b.gids[1].kind, b.gids[1].index), (GidKind::RoceV2Ipv6, 1));
    assert_eq!(b.gids[1].address, Some(prefix("fd00::1/64")));

    let context = host.open("b").unwrap();
    assert_eq!(context.port(1).as_ref(), Ok(b));
    assert!(context.port(0).is_err() && context.port(2).is_err());
    assert_eq!(host.open("e").map(drop).unwrap_err().errno, 19, "of another host");
}

#[test]
fn a_host_that_cannot_be_is_refused() {
    let fabric = Fabric::new();
    let refused = |ports| fabric.host("x", ports).unwrap_err();
    assert_eq!(refused(vec![port("", &[])]), ConfigError::NameEmpty);
    let long = "n".repeat(NAME_BYTES_MAX + 1);
    assert_eq!(
        refused(vec![port(&long, &[])]),
        ConfigError::NameTooLong(NAME_BYTES_MAX + 1)
    );
    let many: Vec<_> = (0..=PORT_GIDS_MAX)
        .map(|host| format!("10.9.0.{host}/24"))
        .collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert_eq!(
        refused(vec![port("a", &many)]),
        ConfigError::TooManyAddresses(PORT_GIDS_MAX + 1)
    );
    assert_eq!(refused(vec![port("a", &[]); 256]), ConfigError::TooManyPorts);
    let twice = vec![port("a", &["10.0.0.1/24"]), port("b", &["10.0.0.1/16"])];
    assert_eq!(
        refused(twice),
        ConfigError::AddressTaken("10.0.0.1".parse().unwrap())
    );

    let host = fabric.host("y", vec![port("a", &["10.0.0.1/24"]); 1]).unwrap();
    assert_eq!(
        refused(vec![port("a", &["10.0.0.1/24"])]),
        ConfigError::AddressTaken("10.0.0.1".parse().unwrap())
    );
    assert_eq!(reports(&host).len(), 1);
}

/// A queue pair with what it needs.
struct One {
    parts: QueuePairParts<Host>,
    arena: <Host as Provider>::Arena,
    sends: <Host as Provider>::CompletionQueue,
    receives: <Host as Provider>::CompletionQueue,
}

impl One {
    fn new(host: &Host, device: &str, port: u8) -> Self {
        let context = host.open(device).unwrap();
        let domain = context.protection_domain().unwrap();
        let queue = CompletionQueueConfig {
            depth: 64,
            notify: false,
        };
        let sends = context.completion_queue(&queue).unwrap();
        let receives = context.completion_queue(&queue).unwrap();
        let arena = domain.arena(&ArenaConfig::new(32, 64)).unwrap();
        let config = QueuePairConfig {
            channel: 0,
            send_depth: 16,
            receive_depth: 16,
            gather_max: 1,
            scatter_max: 1,
            inline_bytes_max: 0,
        };
        let mut parts = domain.queue_pair(&sends, &receives, &config).unwrap();
        parts.control.initialize(port, RemoteAccess::ALL).unwrap();
        Self {
            parts,
            arena,
            sends,
            receives,
        }
    }

    fn qpn(&self) -> Qpn {
        self.parts.control.qpn()
    }

    /// The error number of becoming ready to receive from a GID; zero for none.
    fn connect(&mut self, port: u8, source_gid_index: u8, destination: Gid, destination_qpn: Qpn) -> i32 {
        self.connect_from(port, source_gid_index, destination, destination_qpn, 0)
    }

    fn connect_from(&mut self, port: u8, gid_index: u8, to: Gid, qpn: Qpn, receive_psn: u32) -> i32 {
        let attributes = ReadyToReceive {
            address: AddressVector {
                destination: to,
                source_gid_index: gid_index,
                port,
                hop_limit: 1,
                traffic_class: 0,
                flow_label: 0,
                service_level: 0,
            },
            path_mtu: Mtu::B1024,
            destination_qpn: qpn,
            receive_psn: Psn::from_low_bits(receive_psn),
            max_dest_rd_atomic: 1,
            min_rnr_timer: 1,
        };
        if let Err(error) = self.parts.control.ready_to_receive(&attributes) {
            return error.errno;
        }
        let attributes = ReadyToSend {
            send_psn: Psn::from_low_bits(0),
            max_rd_atomic: 1,
            timeout: 1,
            retry_count: 1,
            rnr_retry: 7,
        };
        self.parts.control.ready_to_send(&attributes).unwrap();
        0
    }

    fn post_receives(&mut self, count: u32) {
        let mut batch = self.parts.receive.stage();
        for _ in 0..count {
            batch.push([self.arena.lease().unwrap()]).unwrap();
        }
        batch.ring().unwrap();
    }

    fn send(&mut self, byte: u8) {
        let mut slot = self.arena.lease().unwrap();
        slot.buffer_mut().fill(byte);
        slot.set_len_bytes(1);
        let mut batch = self.parts.send.stage();
        batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
        batch.ring().unwrap();
    }

    fn send_statuses(&mut self) -> Vec<WcStatus> {
        let mut statuses = Vec::new();
        let send = &mut self.parts.send;
        self.sends
            .poll(|completion| statuses.push(send.retire(completion, |_, _| ()).unwrap().status))
            .unwrap();
        statuses
    }

    fn received(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let receive = &mut self.parts.receive;
        self.receives
            .poll(|completion| {
                receive
                    .retire(completion, |_, slot| bytes.extend_from_slice(slot.payload()))
                    .unwrap();
            })
            .unwrap();
        bytes
    }
}

#[test]
fn ports_reach_each_other_on_a_shared_subnet_alone() {
    let fabric = Fabric::new();
    let down = PortConfig {
        state: PortState::DOWN,
        ..port("down", &["10.1.0.3/24"])
    };
    let ports = vec![
        port("a", &["10.1.0.1/24", "fd00::1/64"]),
        port("b", &["10.2.0.1/24"]),
    ];
    let here = fabric.host("here", ports).unwrap();
    let ports = vec![
        port("a", &["10.1.0.2/24", "fd00::2/64"]),
        down,
        port("narrow", &["10.1.0.66/26"]),
    ];
    let there = fabric.host("there", ports).unwrap();
    let nobody = Qpn::new(99).unwrap();
    let connect = |host, device, index, to| One::new(host, device, 1).connect(1, index, gid(to), nobody);

    assert_eq!(connect(&here, "a", 0, "10.1.0.2"), 0);
    assert_eq!(connect(&here, "a", 1, "fd00::2"), 0);
    assert_eq!(connect(&here, "a", 0, "10.1.0.1"), 0, "itself");
    assert_eq!(
        connect(&here, "a", 1, "10.1.0.1"),
        0,
        "itself, by another address"
    );
    assert_eq!(connect(&here, "a", 0, "fd00::2"), ENETUNREACH, "another family");
    assert_eq!(connect(&here, "b", 0, "10.1.0.2"), ENETUNREACH, "another subnet");
    assert_eq!(
        connect(&here, "b", 0, "10.1.0.1"),
        ENETUNREACH,
        "another port of the same host"
    );
    assert_eq!(connect(&here, "a", 0, "10.1.0.9"), ETIMEDOUT, "nobody there");
    assert_eq!(
        connect(&here, "a", 0, "10.1.0.3"),
        ETIMEDOUT,
        "a port that is down"
    );
    assert_eq!(
        connect(&there, "down", 0, "10.1.0.2"),
        ENETUNREACH,
        "our own port is down"
    );
    assert_eq!(
        connect(&here, "a", 0, "10.1.0.66"),
        ETIMEDOUT,
        "it cannot answer: not on its subnet"
    );
}

/// A third queue pair sends to `theirs`, which is connected to `ours`, and then `ours` sends. Returns the bytes that came.
fn heard_beside_a_third(third: impl FnOnce(&Fabric, &Host) -> One) -> Vec<u8> {
    let fabric = Fabric::new();
    let host = fabric.host("a", vec![port("a", &["10.0.0.1/24"])]).unwrap();
    let here = gid("10.0.0.1");
    let [mut ours, mut theirs] = [(); 2].map(|()| One::new(&host, "a", 1));
    let mut third = third(&fabric, &host);
    assert_eq!(ours.connect(1, 0, here, theirs.qpn()), 0);
    assert_eq!(theirs.connect(1, 0, here, ours.qpn()), 0);
    assert_eq!(third.connect(1, 0, here, theirs.qpn()), 0);
    theirs.post_receives(2);
    third.send(b'x');
    assert_eq!(third.send_statuses(), [WcStatus::RETRY_EXC_ERR]);
    ours.send(b'y');
    assert_eq!(ours.send_statuses(), [WcStatus::SUCCESS]);
    theirs.received()
}

#[test]
fn only_the_peer_it_is_connected_to_is_heard() {
    let heard = heard_beside_a_third(|fabric, _| {
        let other = fabric.host("b", vec![port("b", &["10.0.0.2/24"])]).unwrap();
        One::new(&other, "b", 1)
    });
    assert_eq!(heard, b"y");
}

/// No packet names the queue pair it comes from. At one address, any queue pair with the right PSN is heard
/// in the place of the peer, and the peer gets the answer. The peer's own message is taken for one that came already.
#[test]
fn a_stranger_at_the_address_of_the_peer_is_heard() {
    assert_eq!(heard_beside_a_third(|_, host| One::new(host, "a", 1)), b"x");
}

#[test]
fn s16_a_psn_ahead_is_not_heard_and_one_behind_came_already() {
    for (receive_psn, status) in [(0x00ff_ffff, WcStatus::RETRY_EXC_ERR), (1, WcStatus::SUCCESS)] {
        let fabric = Fabric::new();
        let host = fabric.host("a", vec![port("a", &["10.0.0.1/24"])]).unwrap();
        let here = gid("10.0.0.1");
        let [mut ours, mut theirs] = [(); 2].map(|()| One::new(&host, "a", 1));
        assert_eq!(ours.connect(1, 0, here, theirs.qpn()), 0);
        assert_eq!(theirs.connect_from(1, 0, here, ours.qpn(), receive_psn), 0);
        theirs.post_receives(1);
        ours.send(b'x');
        assert_eq!(ours.send_statuses(), [status]);
        assert_eq!(theirs.received(), b"");
    }
}

#[test]
fn s20_a_device_promises_the_order_of_its_least_port() {
    use DataInOrder::{Aligned128, No, WholeMessage};
    let fabric = Fabric::new();
    let usual = fabric.host("usual", vec![port("d", &["10.0.0.1/24"])]).unwrap();
    assert_eq!(
        One::new(&usual, "d", 1).parts.control.data_in_order(),
        WholeMessage
    );
    let with = |data_in_order, device, address| PortConfig {
        data_in_order,
        ..port(device, &[address])
    };
    let ports = vec![
        with(WholeMessage, "x", "10.0.1.1/24"),
        with(Aligned128, "x", "10.0.2.1/24"),
        with(No, "y", "10.0.3.1/24"),
    ];
    let mixed = fabric.host("mixed", ports).unwrap();
    for number in [1, 2] {
        let one = One::new(&mixed, "x", number);
        assert_eq!(one.parts.control.data_in_order(), Aligned128);
    }
    assert_eq!(One::new(&mixed, "y", 1).parts.control.data_in_order(), No);
}

#[test]
fn a_queue_pair_may_be_connected_to_itself() {
    let fabric = Fabric::new();
    let host = fabric.host("a", vec![port("a", &["10.0.0.1/24"])]).unwrap();
    let mut one = One::new(&host, "a", 1);
    assert_eq!(one.connect(1, 0, gid("10.0.0.1"), one.qpn()), 0);
    one.send(b'a');
    assert_eq!(one.send_statuses(), []);
    one.post_receives(2);
    assert_eq!(one.send_statuses(), [WcStatus::SUCCESS]);
    assert_eq!(one.received(), b"a");
    // It fails as the responder of its own request, before the answer is back.
    let mut batch = one.parts.send.stage();
    let slots: Vec<_> = (0..2).map(|_| one.arena.lease().unwrap()).collect();
    for mut slot in slots {
        slot.set_len_bytes(1);
        let remote = doorbell_core::provider::RemoteAddress::new(1, doorbell_core::Rkey(1));
        batch
            .push(Operation::Write(remote), [slot], PostFlags::empty())
            .unwrap();
    }
    batch.ring().unwrap();
    assert_eq!(
        one.send_statuses(),
        [WcStatus::WR_FLUSH_ERR, WcStatus::WR_FLUSH_ERR]
    );
    assert_eq!(one.received(), b"");
}

#[test]
fn what_is_of_another_fabric_is_not_taken_for_ours() {
    let [ours, theirs] = [(); 2].map(|()| {
        let fabric = Fabric::new();
        fabric.host("a", vec![port("a", &["10.0.0.1/24"])]).unwrap()
    });
    let [mut ours, mut theirs] = [ours, theirs].map(|host| One::new(&host, "a", 1));
    assert_eq!(ours.qpn(), theirs.qpn(), "they are alike in all but the fabric");
    let (here, qpn) = (gid("10.0.0.1"), ours.qpn());
    assert_eq!(
        (ours.connect(1, 0, here, qpn), theirs.connect(1, 0, here, qpn)),
        (0, 0)
    );
    theirs.post_receives(1);
    theirs.send(b'x');
    theirs
        .sends
        .poll(|completion| assert!(ours.parts.send.retire(completion, |_, _| ()).is_err()))
        .unwrap();
    let mut slot = theirs.arena.lease().unwrap();
    slot.set_len_bytes(1);
    let mut batch = ours.parts.send.stage();
    batch.push(Operation::Send, [slot], PostFlags::empty()).unwrap();
    batch.ring().unwrap();
    assert_eq!(ours.send_statuses(), [WcStatus::LOC_PROT_ERR]);
}

/// Each is tried again every few microseconds, so that there is always a packet under way.
#[test]
fn many_that_wait_for_receivers_hold_up_nobody() {
    let fabric = Fabric::new();
    let host = fabric.host("a", vec![port("a", &["10.0.0.1/24"])]).unwrap();
    let mut all: Vec<_> = (0..100).map(|_| One::new(&host, "a", 1)).collect();
    for one in &mut all {
        assert_eq!(one.connect(1, 0, gid("10.0.0.1"), one.qpn()), 0);
        one.send(b'x');
        assert_eq!(one.send_statuses(), []);
    }
    for one in &mut all {
        one.post_receives(1);
    }
    for one in &mut all {
        let mut statuses = one.send_statuses();
        while statuses.is_empty() {
            statuses = one.send_statuses();
        }
        assert_eq!(statuses, [WcStatus::SUCCESS]);
    }
}

#[test]
fn a_driven_fabric_moves_only_at_the_callers_request() {
    let fabric = Fabric::builder().driven().build();
    let host = fabric.host("a", vec![port("a", &["10.0.0.1/24"])]).unwrap();
    let mut one = One::new(&host, "a", 1);
    assert_eq!(one.connect(1, 0, gid("10.0.0.1"), one.qpn()), 0);
    one.post_receives(1);
    assert_eq!(fabric.next_at(), None);
    assert!(!fabric.step());
    one.send(b'x');
    for _ in 0..10 {
        assert_eq!(one.send_statuses(), []);
    }
    assert_eq!((fabric.now().to_ns(), one.received()), (0, vec![]));
    let mut steps = 0;
    while one.send_statuses().is_empty() {
        let next = fabric.next_at().unwrap();
        assert!(fabric.step());
        assert_eq!(fabric.now(), next, "a step takes the time to what it does");
        steps += 1;
    }
    // The doorbell, the message, and its acknowledgement.
    assert_eq!((steps, one.received()), (3, vec![b'x']));
    let later = fabric.now().after(core::time::Duration::from_secs(1));
    fabric.run_until(later);
    assert_eq!((fabric.now(), fabric.next_at()), (later, None));
}

#[test]
fn the_same_calls_end_the_same_way() {
    let run = || {
        let fabric = Fabric::new();
        let host = fabric.host("a", vec![port("a", &["10.0.0.1/24"])]).unwrap();
        let context = host.open("a").unwrap();
        let domain = context.protection_domain().unwrap();
        let config = doorbell_core::provider::WindowConfig::new(64, RemoteAccess::ALL);
        let windows: Vec<_> = (0..8).map(|_| domain.window(&config).unwrap()).collect();
        let remotes = windows.iter().map(doorbell_core::provider::Window::remote);
        (remotes.collect::<Vec<_>>(), One::new(&host, "a", 1).qpn())
    };
    assert_eq!(run(), run());
}

#[test]
fn memory_is_registered_until_the_last_of_it_is_gone() {
    let fabric = Fabric::new();
    let host = fabric.host("a", vec![port("a", &["10.0.0.1/24"])]).unwrap();
    let context = host.open("a").unwrap();
    let domain = context.protection_domain().unwrap();
    let count = || [fabric.registrations(), fabric.queues()];
    assert_eq!(count(), [0, 0]);
    let queue = CompletionQueueConfig {
        depth: 4,
        notify: false,
    };
    let queue = context.completion_queue(&queue).unwrap();
    let mut arena = domain.arena(&ArenaConfig::new(2, 64)).unwrap();
    let window = domain.window(&WindowConfig::new(64, RemoteAccess::READ)).unwrap();
    assert_eq!(count(), [2, 1]);
    let slot = arena.lease().unwrap();
    drop(arena);
    assert_eq!(count(), [2, 1]);
    drop((window, queue));
    assert_eq!(count(), [1, 0]);
    drop(slot);
    assert_eq!(count(), [0, 0]);
}

#[test]
fn the_receives_of_a_queue_pair_are_counted_while_it_may_receive() {
    let fabric = Fabric::new();
    let [mut a, mut b] = ["10.0.0.1/24", "10.0.0.2/24"].map(|address| {
        let host = fabric.host(address, vec![port("a", &[address])]).unwrap();
        One::new(&host, "a", 1)
    });
    let qpn = b.qpn();
    let posted = |qpn| fabric.receives_posted("10.0.0.2/24", "a", qpn);
    assert_eq!(posted(qpn), None);
    assert_eq!(a.connect(1, 0, gid("10.0.0.2"), b.qpn()), 0);
    assert_eq!(b.connect(1, 0, gid("10.0.0.1"), a.qpn()), 0);
    assert_eq!(posted(qpn), Some(0));
    b.post_receives(2);
    assert_eq!(posted(qpn), Some(2));
    a.send(7);
    while posted(qpn) == Some(2) {
        std::thread::yield_now();
    }
    assert_eq!(posted(qpn), Some(1));
    assert_eq!(fabric.receives_posted("10.0.0.2/24", "b", qpn), None);
    assert_eq!(fabric.receives_posted("nobody", "a", qpn), None);
    drop(b);
    assert_eq!(posted(qpn), None);
}

#[test]
fn each_host_may_have_a_thread_of_its_own() {
    const COUNT: u32 = 2000;
    let fabric = Fabric::new();
    let [a, b] = ["10.0.0.1/24", "10.0.0.2/24"].map(|address| {
        let host = fabric.host(address, vec![port("a", &[address])]).unwrap();
        One::new(&host, "a", 1)
    });
    let (mut a, mut b) = (a, b);
    assert_eq!(a.connect(1, 0, gid("10.0.0.2"), b.qpn()), 0);
    assert_eq!(b.connect(1, 0, gid("10.0.0.1"), a.qpn()), 0);
    let sender = std::thread::spawn(move || {
        let (mut posted, mut done) = (0_u32, 0_u32);
        while done < COUNT {
            while posted < COUNT && a.parts.send.room() > 0 {
                a.send(posted.to_le_bytes()[0]);
                posted = posted.saturating_add(1);
            }
            for status in a.send_statuses() {
                assert_eq!(status, WcStatus::SUCCESS);
                done = done.saturating_add(1);
            }
            std::thread::yield_now();
        }
    });
    let mut received = Vec::new();
    while received.len() < COUNT as usize {
        let missing = b.parts.receive.room();
        if missing > 0 {
            b.post_receives(missing);
        }
        received.extend(b.received());
        std::thread::yield_now();
    }
    sender.join().unwrap();
    let expected: Vec<u8> = (0..COUNT).map(|message| message.to_le_bytes()[0]).collect();
    assert_eq!(received, expected);
}
