//! Acceptance and refusal of peers: keys, addresses, limits and trust domains, over a simulated network in its time.

use core::net::SocketAddr;
use core::time::Duration;

use crate::fabric::{key, node_that, pair_with, port, prefix, small, workers};
use doorbell::connect::{Cause, Stage};
use doorbell::link::SessionId;
use doorbell::provider::Window as _;
use doorbell::wire::{Reject, RejectReason, Resumption};
use doorbell::{
    ChannelConfig, ConnectError, Connection, Event, Handle, KeyRing, Listener, Node, Operation, PostFlags,
    RemoteAccess, RemoteAddress, Trust, WcStatus, WindowConfig, Worker, WorkerConfig,
};
use doorbell_sim::{Fabric, Host, LinkConfig};

const WHOLE: Duration = Duration::from_secs(10);
const LATENCY: Duration = Duration::from_millis(1);
const PORT: u16 = 7000;

fn with(keys: &[(u32, &str)]) -> Trust {
    let mut keys = keys.iter().map(|(id, text)| key(*id, text));
    let ring = KeyRing::new(keys.next().unwrap());
    Trust::keys(keys.fold(ring, |ring, key| ring.with(key).unwrap()))
}

fn without() -> Trust {
    Trust::unauthenticated_on_purpose()
}

fn driven() -> Fabric {
    let link = LinkConfig {
        latency_ns: LATENCY.as_nanos() as u64,
        bandwidth_mbps: None,
    };
    Fabric::builder().link(link).driven().build()
}

/// A host that listens, and one that connects to it.
struct Two {
    fabric: Fabric,
    a: Node<Host, Host>,
    b: Node<Host, Host>,
    at_a: Vec<Worker<Host>>,
    at_b: Vec<Worker<Host>>,
    listener: Listener<Host, Host>,
    /// Config of the side that connects.
    config: ChannelConfig,
}

type Outcome = Option<Result<Connection, ConnectError>>;

impl Two {
    fn new(listening: Trust, connecting: Trust) -> Self {
        let fabric = driven();
        let a = node_that(&fabric, "a", vec![port("simA", "10.0.0.1/24")], listening);
        let b = node_that(&fabric, "b", vec![port("simB", "10.0.0.2/24")], connecting);
        let (at_a, at_b) = (workers(&a), workers(&b));
        let at = SocketAddr::from(([10, 0, 0, 1], PORT));
        let listener = Listener::bind(&a, &at_a, at, &small()).unwrap();
        Self {
            fabric,
            a,
            b,
            at_a,
            at_b,
            listener,
            config: small(),
        }
    }

    fn handle(&self) -> Handle {
        *self.listener.handle()
    }

    /// Connects, until both sides know the outcome; returns the listening side's first.
    fn meet(&mut self) -> (Outcome, Outcome) {
        let handle = self.handle();
        let begun = self
            .b
            .begin_connect(&self.at_b, &handle, &self.config, self.b.within(WHOLE));
        let mut connecting = match begun {
            Ok(connecting) => connecting,
            Err(error) => return (None, Some(Err(error))),
        };
        let (mut accepted, mut connected) = (None, None);
        let end = self.fabric.now().after(WHOLE);
        while self.fabric.now() < end && (accepted.is_none() || connected.is_none()) {
            connected = connected.or_else(|| connecting.poll(&self.b, &mut self.at_b));
            accepted = accepted.or_else(|| self.listener.poll_accept(&self.a, &mut self.at_a).transpose());
            self.fabric.run_for(LATENCY / 2);
        }
        (accepted, connected)
    }

    /// Both are connected; says by which key.
    fn connects(&mut self) -> Option<u32> {
        let (accepted, connected) = self.meet();
        let (accepted, connected) = (accepted.unwrap().unwrap(), connected.unwrap().unwrap());
        let theirs = self.at_a[accepted.worker]
            .channel(accepted.channel)
            .unwrap()
            .peer();
        let theirs = theirs.key().map(|key| key.to_u32());
        let ours = self.at_b[connected.worker]
            .channel(connected.channel)
            .unwrap()
            .peer();
        assert_eq!(ours.key().map(|key| key.to_u32()), theirs);
        theirs
    }

    fn channels(&self) -> usize {
        let all = self.at_a.iter().chain(&self.at_b);
        all.map(|worker| worker.channels().count()).sum()
    }
}

fn cause(outcome: Outcome) -> (Stage, Cause) {
    match outcome {
        Some(Err(ConnectError::Handshake(error))) => (error.stage, error.cause),
        other => panic!("{other:?}"),
    }
}

fn rejected(reason: RejectReason, detail: u32) -> Cause {
    Cause::RejectedByPeer(Reject { reason, detail })
}

#[test]
fn who_has_the_key_is_a_peer_and_who_has_not_costs_nothing() {
    assert_eq!(Two::new(without(), without()).connects(), None);
    assert_eq!(
        Two::new(with(&[(7, "one")]), with(&[(7, "one")])).connects(),
        Some(7)
    );
    for (listening, connecting, refused, counted) in [
        (
            with(&[(7, "one")]),
            without(),
            RejectReason::UNAUTHENTICATED,
            [1, 0, 0],
        ),
        (
            without(),
            with(&[(7, "one")]),
            RejectReason::UNKNOWN_KEY,
            [0, 1, 0],
        ),
        (
            with(&[(8, "one")]),
            with(&[(7, "one")]),
            RejectReason::UNKNOWN_KEY,
            [0, 1, 0],
        ),
        (
            with(&[(7, "two")]),
            with(&[(7, "one")]),
            RejectReason::WRONG_KEY,
            [0, 0, 1],
        ),
    ] {
        let mut two = Two::new(listening, connecting);
        let (accepted, connected) = two.meet();
        let ((stage, heard), (_, told)) = (cause(accepted), cause(connected));
        // The listening side never came to make a queue pair.
        assert!(matches!(stage, Stage::Hello | Stage::Connect), "{stage}");
        if refused == RejectReason::WRONG_KEY {
            // The side that connects finds it first, by the Welcome, and sends nothing about itself.
            assert_eq!((heard, told), (rejected(refused, 0), Cause::WrongKey));
        } else {
            let detail = if refused == RejectReason::UNKNOWN_KEY {
                7
            } else {
                0
            };
            assert_eq!(told, rejected(refused, detail));
        }
        let found = two.listener.refusals();
        assert_eq!(
            [found.unauthenticated, found.unknown_key, found.wrong_key],
            counted
        );
        assert_eq!((two.listener.failed(), two.channels()), (1, 0));
        two.fabric.audit().unwrap();
    }
}

#[test]
fn keys_are_changed_without_a_restart_and_connections_stay() {
    let (old, new) = ((1, "the old one"), (2, "the new one"));
    let mut two = Two::new(with(&[old]), with(&[old]));
    // There is memory for as many channels as this makes.
    let mut more = WorkerConfig::default();
    more.slots = 512;
    (two.at_a, two.at_b) = (two.a.workers(&more).unwrap(), two.b.workers(&more).unwrap());
    assert_eq!(two.connects(), Some(1));
    let steps = [
        (with(&[old, new]), with(&[old]), 1),
        (with(&[old, new]), with(&[old, new]), 1),
        (with(&[old, new]), with(&[new, old]), 2),
        (with(&[new, old]), with(&[new, old]), 2),
        (with(&[new]), with(&[new, old]), 2),
        (with(&[new]), with(&[new]), 2),
    ];
    for (step, (at_a, at_b, used)) in steps.into_iter().enumerate() {
        two.a.set_trust(at_a);
        two.b.set_trust(at_b);
        assert_eq!(two.connects(), Some(used), "{step}");
        assert_eq!(two.channels(), 2 * (step + 2));
    }
    two.b.set_trust(with(&[old]));
    let (accepted, connected) = two.meet();
    assert!(matches!(cause(accepted), (Stage::Hello, Cause::UnknownKey(_))));
    assert_eq!(cause(connected).1, rejected(RejectReason::UNKNOWN_KEY, 1));
    assert_eq!(two.channels(), 14);
}

#[test]
fn a_handshake_ends_by_the_keys_it_began_with() {
    let mut two = Two::new(with(&[(1, "old")]), with(&[(1, "old")]));
    let handle = two.handle();
    let begun = two
        .b
        .begin_connect(&two.at_b, &handle, &small(), two.b.within(WHOLE));
    let mut connecting = begun.unwrap();
    let (mut accepted, mut connected) = (None, None);
    for turn in 0..40 {
        if turn == 9 {
            assert!(
                connected.is_none() && two.listener.deadline().is_some(),
                "under way"
            );
            two.a.set_trust(with(&[(2, "new")]));
            two.b.set_trust(with(&[(2, "new")]));
        }
        connected = connected.or_else(|| connecting.poll(&two.b, &mut two.at_b));
        accepted = accepted.or_else(|| two.listener.poll_accept(&two.a, &mut two.at_a).transpose());
        two.fabric.run_for(LATENCY / 2);
    }
    assert!(matches!((accepted, connected), (Some(Ok(_)), Some(Ok(_)))));
}

#[test]
fn peers_come_from_the_subnets_that_are_allowed() {
    let allowed = |text| without().only_from(&[prefix(text)]);
    for (trust, is_allowed) in [
        (allowed("10.0.0.0/24"), true),
        (allowed("10.0.0.2/32"), true),
        (allowed("10.0.0.3/32"), false),
        (allowed("10.0.1.0/24"), false),
        (allowed("fd00::/8"), false),
    ] {
        let mut two = Two::new(trust, without());
        if is_allowed {
            two.connects();
            continue;
        }
        let (accepted, connected) = two.meet();
        // A peer that was not looked at is counted, and is no outcome of anything.
        assert!(accepted.is_none());
        assert_eq!(
            cause(connected),
            (Stage::Welcome, rejected(RejectReason::NOT_ALLOWED, 0))
        );
        assert_eq!((two.listener.refusals().address, two.listener.failed()), (1, 1));
    }
    // The filter also covers peers to connect to: before a byte is sent.
    let mut two = Two::new(without(), allowed("10.0.0.3/32"));
    let (_, connected) = two.meet();
    match connected {
        Some(Err(ConnectError::NotAllowed(found))) => assert_eq!(found.to_string(), "10.0.0.1"),
        other => panic!("{other:?}"),
    }
    assert_eq!(two.listener.failed(), 0);
}

/// The handshake comes from where peers may be, and the rail it chose is elsewhere.
#[test]
fn a_rail_is_where_peers_may_be_or_there_is_no_queue_pair() {
    let fabric = driven();
    // The faster way is the one to be chosen.
    let ports = |name: &str, number: u8| {
        let near = port(&format!("{name}0"), &format!("10.0.0.{number}/24"));
        let mut far = port(&format!("{name}1"), &format!("10.9.0.{number}/24"));
        far.speed_mbps *= 4;
        vec![near, far]
    };
    let trust = without().only_from(&[prefix("10.0.0.0/24")]);
    let a = node_that(&fabric, "a", ports("simA", 1), trust);
    let b = node_that(&fabric, "b", ports("simB", 2), without());
    let (mut at_a, mut at_b) = (workers(&a), workers(&b));
    let at = SocketAddr::from(([10, 0, 0, 1], PORT));
    let mut listener = Listener::bind(&a, &at_a, at, &small()).unwrap();
    let begun = b.begin_connect_at(&at_b, at, &small(), b.within(WHOLE));
    let mut connecting = begun.unwrap();
    let (mut accepted, mut connected) = (None, None);
    for _ in 0..40 {
        connected = connected.or_else(|| connecting.poll(&b, &mut at_b));
        accepted = accepted.or_else(|| listener.poll_accept(&a, &mut at_a).transpose());
        fabric.run_for(LATENCY / 2);
    }
    match accepted {
        Some(Err(ConnectError::NotAllowed(found))) => {
            assert_eq!(found.to_string(), "10.9.0.2");
        }
        other => panic!("{other:?} {connected:?}"),
    }
    assert_eq!(
        cause(connected),
        (Stage::Accept, rejected(RejectReason::NOT_ALLOWED, 0))
    );
    assert_eq!(listener.refusals().address, 1);
    assert!(at_a.iter().all(|worker| worker.channels().count() == 0));
    fabric.audit().unwrap();
}

/// The side that connects chose a rail of the listener that is not where its peers may be.
#[test]
fn a_listener_counts_the_peers_that_refuse_its_address() {
    let fabric = driven();
    let far = |name: &str, number: u8| {
        let mut far = port(&format!("{name}1"), &format!("10.9.0.{number}/24"));
        far.speed_mbps *= 4;
        vec![port(&format!("{name}0"), &format!("10.0.0.{number}/24")), far]
    };
    let trust = without().only_from(&[prefix("10.0.0.0/24")]);
    let a = node_that(&fabric, "a", far("simA", 1), without());
    let b = node_that(&fabric, "b", far("simB", 2), trust);
    let (mut at_a, mut at_b) = (workers(&a), workers(&b));
    let at = SocketAddr::from(([10, 0, 0, 1], PORT));
    let mut listener = Listener::bind(&a, &at_a, at, &small()).unwrap();
    let begun = b.begin_connect_at(&at_b, at, &small(), b.within(WHOLE));
    let mut connecting = begun.unwrap();
    let (mut accepted, mut connected) = (None, None);
    for _ in 0..40 {
        connected = connected.or_else(|| connecting.poll(&b, &mut at_b));
        accepted = accepted.or_else(|| listener.poll_accept(&a, &mut at_a).transpose());
        fabric.run_for(LATENCY / 2);
    }
    assert!(
        matches!(connected, Some(Err(ConnectError::NotAllowed(_)))),
        "{connected:?}"
    );
    assert_eq!(cause(accepted).1, rejected(RejectReason::NOT_ALLOWED, 0));
    assert_eq!((listener.refusals().address, listener.failed()), (1, 1));
}

#[test]
fn workers_of_another_trust_domain_are_not_taken() {
    let fabric = driven();
    let ports = || vec![port("simA", "10.0.0.1/24")];
    let mine = node_that(&fabric, "a", ports(), with(&[(1, "mine")]));
    let host = mine.provider().clone();
    let other = Node::with(host.clone(), host, with(&[(2, "the other's")])).unwrap();
    let (at_mine, at_other) = (workers(&mine), workers(&other));
    let at = SocketAddr::from(([10, 0, 0, 1], PORT));
    let is_other = |error: ConnectError| matches!(error, ConnectError::OtherTrust);
    assert!(is_other(
        Listener::bind(&mine, &at_other, at, &small()).unwrap_err()
    ));
    assert!(is_other(
        Listener::bind(&other, &at_mine, at, &small()).unwrap_err()
    ));
    let begun = mine.begin_connect_at(&at_other, at, &small(), mine.within(WHOLE));
    assert!(is_other(begun.unwrap_err()));
    assert!(Listener::bind(&mine, &at_mine, at, &small()).is_ok());
}

#[test]
fn what_a_side_says_of_the_session_reaches_the_other() {
    let said = Resumption {
        session: SessionId::new(0x0123_4567_89ab_cdef).unwrap(),
        epoch: 3,
        next_sequence: 77,
    };
    for trust in [without, || with(&[(1, "key")])] {
        let mut two = Two::new(trust(), trust());
        two.config.session = Some(said);
        let (accepted, connected) = two.meet();
        let (accepted, connected) = (accepted.unwrap().unwrap(), connected.unwrap().unwrap());
        let at_a = two.at_a[accepted.worker]
            .channel(accepted.channel)
            .unwrap()
            .peer();
        let at_b = two.at_b[connected.worker]
            .channel(connected.channel)
            .unwrap()
            .peer();
        assert_eq!((at_a.session(), at_b.session()), (Some(said), None));
        assert_ne!(at_a.instance(), at_b.instance());
    }
}

/// A queue pair allows its peer what its configuration allows, though the window would allow more. WRITEs it takes in
/// any case, since receives are announced by them: those are the window's to refuse.
#[test]
fn a_queue_pair_gives_the_rights_it_was_given_and_no_others() {
    for rights in 0..8_u8 {
        let mut listening = small();
        listening.remote = RemoteAccess {
            write: rights & 1 != 0,
            read: rights & 2 != 0,
            atomic: rights & 4 != 0,
        };
        for (asked, may) in [
            ("read", listening.remote.read),
            ("atomic", listening.remote.atomic),
            ("write", true),
        ] {
            let (mut a, mut b) = pair_with(listening, small());
            let all = WindowConfig::new(64, RemoteAccess::ALL);
            let window = a.worker().window(&all).unwrap();
            let remote = RemoteAddress::within(&window.remote(), 0, 8).unwrap();
            let operation = match asked {
                "read" => Operation::Read(remote),
                "atomic" => Operation::FetchAndAdd { remote, add: 1 },
                _ => Operation::Write(remote),
            };
            let (id, mut lease) = (b.id(), b.lease(b"8 bytes."));
            lease.set_len_bytes(8);
            let channel = b.worker().channel(id).unwrap();
            channel.post(operation, lease, PostFlags::empty()).unwrap();
            let is_done = b.until(|event| match event {
                Event::Done { .. } | Event::Fetched { .. } => Some(true),
                Event::Failed { status, .. } => {
                    assert_eq!(status, WcStatus::REM_ACCESS_ERR, "{asked}");
                    Some(false)
                }
                _ => None,
            });
            assert_eq!(is_done, may, "{asked} with {:?}", listening.remote);
        }
    }
    // A window made without the right refuses the WRITE.
    let (mut a, mut b) = pair_with(small(), small());
    let readable = RemoteAccess {
        read: true,
        ..small().remote
    };
    let window = a.worker().window(&WindowConfig::new(64, readable)).unwrap();
    // An address that says nothing of the right: with it the WRITE would be refused when it is posted.
    let remote = RemoteAddress::new(window.remote().address(), window.remote().rkey());
    let (id, lease) = (b.id(), b.lease(b"8 bytes."));
    let channel = b.worker().channel(id).unwrap();
    channel
        .post(Operation::Write(remote), lease, PostFlags::empty())
        .unwrap();
    let status = b.until(|event| match event {
        Event::Failed { status, .. } => Some(status),
        _ => None,
    });
    assert_eq!(status, WcStatus::REM_ACCESS_ERR);
}

/// A device checks the key and the protection domain, and not the holder of the key: a Worker is what keeps peers
/// apart.
#[test]
fn a_guessed_key_opens_each_window_of_its_worker_and_none_of_another() {
    let (mut a, mut b) = pair_with(small(), small());
    let all = WindowConfig::new(64, RemoteAccess::ALL);
    let mut others = crate::fabric::workers(&a.node);
    let ours = a.worker().window(&all).unwrap();
    let of_another_worker = others[0].window(&all).unwrap();
    // Both peers' handshakes are over, and no window was announced to either.
    let mut write = |window: &doorbell::RemoteWindow| {
        let remote = RemoteAddress::within(window, 0, 8).unwrap();
        let (id, lease) = (b.id(), b.lease(b"guessed."));
        let channel = b.worker().channel(id).unwrap();
        channel
            .post(Operation::Write(remote), lease, PostFlags::empty())
            .unwrap();
        b.until(|event| match event {
            Event::Done { .. } => Some(Ok(())),
            Event::Failed { status, .. } => Some(Err(status)),
            _ => None,
        })
    };
    assert_eq!(write(&ours.remote()), Ok(()));
    assert_eq!(write(&of_another_worker.remote()), Err(WcStatus::REM_ACCESS_ERR));
    drop(others.drain(..));
}
