//! Who connects by polling makes no call of a device that looks at its ports, or makes or destroys a queue pair, over `ffi` on the
//! fake libibverbs: such calls are held, on every thread but the one that polls, and it goes on all the same.
//!
//! One test, since calls are held, and counted, for the whole process.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use core::net::{Ipv4Addr, SocketAddr};
use core::num::NonZeroU16;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use doorbell::vocabulary::handshake::{HandshakeError, Stage};
use doorbell::vocabulary::rank::Rank;
use doorbell::vocabulary::session::{FinalReason, SessionEvent};
use doorbell::vocabulary::wire::{AdvertisedRail, InstanceId, SpeedClass};
use doorbell::vocabulary::{Gid, IpPrefix};
use doorbell::{
    Acceptances, Background, ChannelConfig, ChannelId, Clock as _, ConnectError, Connecting, Connection,
    Deadline, Event, Handle, HandshakeLimits, LinkConfig, LinkError, LinkEvent, Links, Listener, Mesh,
    MeshConfig, Node, NotLinked, Operation, Trust, Worker, WorkerConfig, within,
};
use doorbell_fake::{Call, Control};
use doorbell_ffi::leaks;

const SOON: Duration = Duration::from_secs(20);

/// How long calls are held that are to be too late.
const HELD: Duration = Duration::from_secs(3);

/// And how many polls are made meanwhile where they are not. If each of them waited for but a moment, there would not be so many by
/// the deadline; if one waited for as long as the call takes, there would be no other.
const POLLS: u32 = 5000;

/// No poll takes longer meanwhile.
const PROMPT: Duration = Duration::from_millis(1500);

/// Changes of state of queue pairs in front of an initiator's to ready-to-receive: its own to INIT, and its peer's three.
const BEFORE_READY_TO_RECEIVE: u32 = 4;

fn open() -> Arc<Node> {
    Arc::new(Node::open(Trust::unauthenticated_on_purpose()).unwrap())
}

/// Runs a case that says how long its longest poll took: once more where that was too long, since a machine that stands still for
/// a while does not do so twice in a place.
fn prompt(case: impl Fn() -> Duration) {
    if case() >= PROMPT {
        let longest = case();
        assert!(longest < PROMPT, "{longest:?}");
    }
}

/// Nothing is left of what was made since all was healed, by the deadline.
fn all_destroyed(control: Control) {
    let began = Instant::now();
    for (made, destroyed) in Call::LIVES {
        while control.calls(made) != control.calls(destroyed) {
            assert!(began.elapsed() < SOON, "{destroyed:?}");
            std::thread::yield_now();
        }
    }
}

fn config() -> ChannelConfig {
    let mut config = ChannelConfig::default();
    config.send_depth = 8;
    config.receive_depth = 8;
    config.handshake_stage = SOON;
    config
}

fn worker(node: &Node, channels_max: u32) -> Worker {
    let mut config = WorkerConfig::default();
    config.slots = 64;
    config.slot_bytes = 64;
    config.channels_max = channels_max;
    node.workers(&config).unwrap().remove(0)
}

/// One that listens and one that connects, both polled by this thread, with a channel between the two and room for another.
struct Two {
    control: Control,
    node: Arc<Node>,
    hub: Worker,
    own: [Worker; 1],
    background: Background,
    acceptances: Acceptances,
    first: Option<ChannelId>,
    received: u32,
    polls: u32,
    longest_poll: Duration,
}

impl Two {
    fn new(control: Control) -> Self {
        control.heal();
        let node = open();
        let (hub, own) = (worker(&node, 8), [worker(&node, 2)]);
        let hubs = core::slice::from_ref(&hub);
        let listener = Listener::bind(&node, hubs, "127.0.0.1:0".parse().unwrap(), &config()).unwrap();
        let limits = HandshakeLimits::default();
        let (background, mut acceptances) = listener.background(&node, hubs, &limits).unwrap();
        let mut two = Self {
            control,
            node,
            hub,
            own,
            background,
            acceptances: acceptances.remove(0),
            first: None,
            received: 0,
            polls: 0,
            longest_poll: Duration::ZERO,
        };
        let mut dial = two.dial(SOON);
        let made = two.until(&mut dial, |_| false).unwrap().unwrap();
        two.first = Some(made.channel);
        two
    }

    fn dial(&self, patience: Duration) -> Connecting {
        let to = self.background.address();
        self.node
            .begin_connect_at(&self.own, to, &config(), within(patience))
            .unwrap()
    }

    /// Polls all there is once, with a message on its way.
    fn poll(&mut self, dial: Option<&mut Connecting>) -> Option<Result<Connection, ConnectError>> {
        let began = Instant::now();
        let outcome = dial.and_then(|dial| dial.poll(&self.node, &mut self.own));
        let _ = self.acceptances.poll_accept(&mut self.hub).unwrap();
        let [own] = &mut self.own;
        if let Some(channel) = self.first.and_then(|first| own.channel(first)) {
            let _ = channel.post_inline(Operation::Send, &[0; 8]);
        }
        own.poll(|_, event| drop(event)).unwrap();
        let received = &mut self.received;
        self.hub
            .poll(|_, event| {
                *received = received.saturating_add(u32::from(matches!(event, Event::Received { .. })));
            })
            .unwrap();
        self.polls = self.polls.saturating_add(1);
        self.longest_poll = self.longest_poll.max(began.elapsed());
        outcome
    }

    /// Polls until there is an outcome, or this is so.
    fn until(
        &mut self,
        dial: &mut Connecting,
        is_so: impl Fn(&Self) -> bool,
    ) -> Option<Result<Connection, ConnectError>> {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < SOON, "{dial:?}");
            let outcome = self.poll(Some(dial));
            if outcome.is_some() {
                return outcome;
            }
        }
        None
    }

    /// Goes on with a dial until it waits for a held call, the first one after `after` others.
    fn hold(&mut self, call: Call, after: u32, patience: Duration) -> Connecting {
        let held = self.control.calls(call).saturating_add(after).saturating_add(1);
        self.control.hold(call, after);
        let mut dial = self.dial(patience);
        let outcome = self.until(&mut dial, |two| two.control.calls(call) >= held);
        assert!(outcome.is_none(), "{outcome:?}");
        (self.received, self.polls, self.longest_poll) = (0, 0, Duration::ZERO);
        dial
    }

    /// Nothing that was held was called here, and what else there was to do went on; how long its longest poll took.
    fn let_go(&self, case: &str) -> Duration {
        assert_eq!(self.control.let_go(), 0, "{case}");
        assert!(self.received > 100, "{case}: {}", self.received);
        self.longest_poll
    }

    /// Connects on the one place there is, and ends all of it.
    fn connects(mut self) {
        assert!(self.node.settle(within(SOON)));
        let mut dial = self.dial(SOON);
        let made = self.until(&mut dial, |_| false);
        assert!(matches!(made, Some(Ok(_))), "{made:?}");
        self.end();
    }

    fn end(self) {
        assert!(self.background.stop(within(SOON)));
        drop((self.acceptances, self.hub, self.own));
        assert!(self.node.settle(within(SOON)));
        drop(self.node);
        all_destroyed(self.control);
    }
}

/// However long it takes, it succeeds once it is done, and says so to who sleeps.
fn taking_long(control: Control, call: Call, after: u32) -> Duration {
    let case = format!("{call:?} after {after}");
    let mut two = Two::new(control);
    let mut dial = two.hold(call, after, SOON);
    let outcome = two.until(&mut dial, |two| two.polls > POLLS);
    assert!(outcome.is_none(), "{case}: {outcome:?}");
    let longest = two.let_go(&case);
    let began = Instant::now();
    dial.wait(&two.node).unwrap();
    assert!(began.elapsed() < SOON / 4, "{case}");
    let made = two.until(&mut dial, |_| false).unwrap().unwrap();
    let [own] = &mut two.own;
    let second = own.channel(made.channel).unwrap();
    second.post_inline(Operation::Send, &[1; 8]).unwrap();
    two.end();
    longest
}

/// Its deadline passes meanwhile, and what is made behind that is undone.
fn taking_too_long(control: Control, after: u32, stage: Stage) -> Duration {
    let case = format!("too long after {after}");
    let mut two = Two::new(control);
    let mut dial = two.hold(Call::ModifyQp, after, HELD);
    let outcome = two.until(&mut dial, |_| false).unwrap();
    match outcome {
        Err(ConnectError::Handshake(HandshakeError { stage: at, .. })) => assert_eq!(at, stage, "{case}"),
        other => panic!("{case}: {other:?}"),
    }
    drop(dial);
    let longest = two.let_go(&case);
    two.connects();
    longest
}

/// The ports are not looked at by its deadline.
fn looked_at_too_late(control: Control) -> Duration {
    let mut two = Two::new(control);
    let mut dial = two.hold(Call::OpenDevice, 0, HELD);
    match two.until(&mut dial, |_| false).unwrap() {
        Err(ConnectError::PortsTimedOut) => {}
        other => panic!("{other:?}"),
    }
    drop(dial);
    let longest = two.let_go("looked at too late");
    two.connects();
    longest
}

/// Of those who ask while the ports are looked at all have one look, the next: that under way may have passed by what they are to see.
fn looks_are_shared(control: Control) -> Duration {
    let mut two = Two::new(control);
    let asked = Instant::now();
    let before = control.calls(Call::OpenDevice);
    let first = two.hold(Call::OpenDevice, 0, SOON);
    let mut others: Vec<_> = (0..8).map(|_| two.dial(SOON)).collect();
    let given_up = others.pop().unwrap();
    for _ in 0..100 {
        for dial in &mut others {
            assert!(two.poll(Some(dial)).is_none());
        }
    }
    drop((first, given_up));
    let longest = two.let_go("looks are shared");
    // One of them has the place there is.
    let began = Instant::now();
    while !others.is_empty() {
        assert!(began.elapsed() < SOON, "{others:?}");
        others.retain_mut(|dial| two.poll(Some(dial)).is_none());
    }
    let looks = control.calls(Call::OpenDevice).wrapping_sub(before);
    // Who listens looks by itself, once in a second.
    let seconds = asked.elapsed().as_secs();
    assert!(
        (2..=seconds.saturating_add(4)).contains(&looks.into()),
        "{looks} in {seconds} s"
    );
    two.end();
    longest
}

/// It is given up meanwhile, and so is all the rest: nobody who drops waits.
fn given_up(control: Control, call: Call, after: u32) -> Duration {
    let case = format!("given up at {call:?} after {after}");
    let mut two = Two::new(control);
    let dial = two.hold(call, after, SOON);
    while two.received <= 100 {
        let _ = two.poll(None);
    }
    let began = Instant::now();
    drop(dial);
    let Two {
        node,
        hub,
        own,
        background,
        acceptances,
        ..
    } = two;
    // Its own are not held.
    assert!(background.stop(within(SOON)), "{case}");
    drop((acceptances, hub, own, node));
    let took = began.elapsed();
    assert_eq!(control.let_go(), 0, "{case}");
    all_destroyed(control);
    took
}

/// It is given up while it is its peer's turn: its queue pair is destroyed elsewhere.
fn given_up_between(control: Control) {
    let mut two = Two::new(control);
    let before = control.calls(Call::ModifyQp);
    let mut dial = two.dial(SOON);
    // The peer needs a place, and gets none.
    while control.calls(Call::ModifyQp) == before || !two.node.settle(within(Duration::ZERO)) {
        let outcome = dial.poll(&two.node, &mut two.own);
        assert!(outcome.is_none(), "{outcome:?}");
    }
    assert!(dial.poll(&two.node, &mut two.own).is_none());
    control.hold_destroys();
    drop(dial);
    assert_eq!(control.let_go(), 0);
    two.connects();
}

/// What a side of a link has.
struct Side {
    node: Arc<Node>,
    workers: Vec<Worker>,
    links: Links,
    received: u32,
}

impl Side {
    fn new(attach_within: Duration) -> Self {
        let node = open();
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let mut config = LinkConfig::default();
        config.session.attach_within = attach_within;
        config.channel.handshake_stage = SOON;
        let links = Links::new(&node, &workers, &config).unwrap();
        Self {
            node,
            workers,
            links,
            received: 0,
        }
    }

    fn poll(&mut self) {
        let received = &mut self.received;
        let each = |_, event: LinkEvent<'_>| {
            *received = received.saturating_add(u32::from(matches!(event, LinkEvent::Received { .. })));
        };
        self.links.poll(&self.node, &mut self.workers, each).unwrap();
    }
}

/// A link is connected while another one goes on.
fn links(control: Control) -> Duration {
    control.heal();
    let (mut a, mut b) = (Side::new(SOON), Side::new(SOON));
    let any = "[::]:0".parse().unwrap();
    let handle: Handle = b.links.listen(&b.node, &b.workers, any).unwrap();
    let first = a.links.connect(&a.node, &a.workers, &handle).unwrap();
    let began = Instant::now();
    while b.received == 0 {
        assert!(began.elapsed() < SOON);
        let _ = a.links.send(first, b"hello");
        a.poll();
        b.poll();
    }
    control.hold(Call::ModifyQp, BEFORE_READY_TO_RECEIVE);
    let held = control
        .calls(Call::ModifyQp)
        .saturating_add(BEFORE_READY_TO_RECEIVE)
        .saturating_add(1);
    let second = a.links.connect(&a.node, &a.workers, &handle).unwrap();
    let (mut polls, mut longest) = (0_u32, Duration::ZERO);
    let began = Instant::now();
    while polls < POLLS {
        assert!(began.elapsed() < SOON);
        if control.calls(Call::ModifyQp) < held {
            b.received = 0;
        } else {
            polls = polls.saturating_add(1);
        }
        let _ = a.links.send(first, b"hello again");
        let poll = Instant::now();
        a.poll();
        longest = longest.max(poll.elapsed());
        b.poll();
    }
    assert!(!a.links.is_connected(second) && a.links.is_connected(first));
    assert_eq!(a.links.descriptors().count(), 1);
    assert_eq!(control.let_go(), 0);
    assert!(b.received > 100, "{}", b.received);
    while !a.links.is_connected(second) {
        assert!(began.elapsed() < SOON);
        a.poll();
        b.poll();
    }
    assert_eq!(a.links.descriptors().count(), 0);
    // Reached by others, perhaps: our ports are looked at again.
    control.hold(Call::OpenDevice, 0);
    assert!(a.links.reroute(&a.node, &a.workers, first, &handle));
    a.poll();
    assert_eq!(a.links.descriptors().count(), 1);
    assert_eq!(control.let_go(), 0);
    while a.links.descriptors().count() > 0 {
        assert!(began.elapsed() < SOON);
        a.poll();
        b.poll();
    }
    // For a link that is begun too, and where something changed.
    control.hold(Call::OpenDevice, 0);
    let third = a.links.connect(&a.node, &a.workers, &handle).unwrap();
    a.links.refresh(&a.node, &a.workers).unwrap();
    a.poll();
    assert!(a.links.take_refreshed().is_none());
    assert_eq!(a.links.descriptors().count(), 2);
    assert_eq!(control.let_go(), 0);
    while !a.links.is_connected(third) {
        assert!(began.elapsed() < SOON);
        a.poll();
        b.poll();
    }
    let refreshed = loop {
        if let Some(refreshed) = a.links.take_refreshed() {
            break refreshed;
        }
        assert!(began.elapsed() < SOON);
        a.poll();
    };
    // It listens to nobody.
    assert_eq!(refreshed.unwrap(), None);
    drop((a, b));
    all_destroyed(control);
    longest
}

/// A handle that no rail of ours leads to.
fn nowhere() -> Handle {
    let elsewhere = IpPrefix::new(Ipv4Addr::new(198, 51, 100, 1).into(), 24).unwrap();
    let gid = Gid::from_ip(elsewhere.address());
    let rail = AdvertisedRail::new(elsewhere, gid, SpeedClass(7)).unwrap();
    let port = NonZeroU16::new(7000).unwrap();
    let mut handle = Handle::builder(port, InstanceId::new(1).unwrap());
    let _ = handle.push(&rail);
    handle.finish().unwrap()
}

/// Of a peer that no rail reaches that is told once our ports were looked at.
fn a_link_to_nowhere(control: Control) {
    control.heal();
    let mut a = Side::new(SOON);
    let handle = nowhere();
    control.hold(Call::OpenDevice, 0);
    let link = a.links.connect(&a.node, &a.workers, &handle).unwrap();
    a.poll();
    assert_eq!(a.links.ids().count(), 1);
    assert_eq!(a.links.not_connected(link).count(), 0);
    assert_eq!(control.let_go(), 0);
    let (began, mut over) = (Instant::now(), None);
    while over.is_none() {
        assert!(began.elapsed() < SOON);
        let each = |id, event: LinkEvent<'_>| {
            if let LinkEvent::Session(SessionEvent::Final { reason }) = event {
                over = Some((id, reason));
            }
        };
        a.links.poll(&a.node, &mut a.workers, each).unwrap();
    }
    assert_eq!(over, Some((link, FinalReason::Unreachable)));
    let mut reasons = a.links.not_connected(link);
    let reason = reasons.next().unwrap();
    assert!(reason.between.is_none());
    assert!(matches!(reason.why, ConnectError::NoRoute(_)), "{reason}");
    assert!(reasons.next().is_none());
    drop(reasons);
    drop(a);
    all_destroyed(control);
}

/// A look of ours that fails says nothing of the peer: it is done again, and what that finds is gone by.
fn a_link_whose_first_look_fails(control: Control) {
    control.heal();
    let mut a = Side::new(SOON);
    control.fail(Call::GetDeviceList, 0, libc::EMFILE);
    let link = a.links.connect(&a.node, &a.workers, &nowhere()).unwrap();
    let (began, mut over, mut failure) = (Instant::now(), None, None);
    while over.is_none() {
        assert!(began.elapsed() < SOON);
        let each = |_, event: LinkEvent<'_>| {
            if let LinkEvent::Session(SessionEvent::Final { reason }) = event {
                over = Some(reason);
            }
        };
        a.links.poll(&a.node, &mut a.workers, each).unwrap();
        let mut reasons = a.links.not_connected(link);
        if let Some(ConnectError::Provider(error)) = reasons.next().map(|reason| &reason.why) {
            failure = Some(error.errno);
        }
    }
    assert_eq!(
        (over, failure),
        (Some(FinalReason::Unreachable), Some(libc::EMFILE))
    );
    let why = a.links.not_connected(link).next().map(|reason| &reason.why);
    assert!(matches!(why, Some(ConnectError::NoRoute(_))), "{why:?}");
    drop(a);
    all_destroyed(control);
}

/// Changes that follow each other faster than ports are looked at: what was seen is gone by all the same.
fn changes_faster_than_looks(control: Control) {
    control.heal();
    let mut a = Side::new(SOON);
    // Each takes longer than to call again.
    let (began, mut seen) = (Instant::now(), 0_u32);
    while seen < 3 {
        assert!(began.elapsed() < SOON);
        control.hold(Call::OpenDevice, 0);
        a.links.refresh(&a.node, &a.workers).unwrap();
        a.poll();
        seen = seen.saturating_add(u32::from(a.links.take_refreshed().is_some()));
        a.links.refresh(&a.node, &a.workers).unwrap();
        assert_eq!(control.let_go(), 0);
        std::thread::sleep(Duration::from_millis(1));
    }
    // Then there is one more, and no other.
    let mut is_told = false;
    while a.links.descriptors().count() > 0 {
        assert!(began.elapsed() < SOON);
        a.poll();
        is_told |= a
            .links
            .take_refreshed()
            .is_some_and(|refreshed| refreshed.is_ok());
    }
    assert!(is_told);
    drop(a);
    all_destroyed(control);
}

/// A rail's time to attach is its peer's: what our ports take to be looked at is not of it.
fn looked_at_for_longer_than_a_rail_has(control: Control) {
    control.heal();
    let (mut a, mut b) = (Side::new(HELD / 2), Side::new(SOON));
    let any = "[::]:0".parse().unwrap();
    let handle: Handle = b.links.listen(&b.node, &b.workers, any).unwrap();
    let before = control.calls(Call::OpenDevice);
    // Behind the look that the link is begun with.
    control.hold(Call::OpenDevice, 1);
    let link = a.links.connect(&a.node, &a.workers, &handle).unwrap();
    let began = Instant::now();
    while began.elapsed() < HELD {
        a.poll();
        b.poll();
        // It is not given up meanwhile, and begun again.
        assert_eq!(a.links.descriptors().count(), 1);
    }
    let looks = control.calls(Call::OpenDevice).wrapping_sub(before);
    assert_eq!(control.let_go(), 0);
    while !a.links.is_connected(link) {
        assert!(began.elapsed() < SOON);
        a.poll();
        b.poll();
    }
    assert_eq!((looks, b.links.handshakes().begun), (2, 1));
    drop((a, b));
    all_destroyed(control);
}

/// A member whose handle is known, or that is asked for it, is linked to.
fn mesh(control: Control, is_asked: bool) {
    control.heal();
    let mut sides = [0, 1].map(|number| {
        let node = open();
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let mut config = MeshConfig::new(Rank::new(number).unwrap(), 2, 1);
        config.link.session.attach_within = SOON;
        let mesh = Mesh::new(&node, &workers, &config).unwrap();
        (node, workers, mesh)
    });
    let [(node, workers, mesh), _] = &mut sides;
    let handle = mesh.listen(node, workers, "[::]:0".parse().unwrap()).unwrap();
    let [_, (node, workers, mesh)] = &mut sides;
    let first = Rank::new(0).unwrap();
    // One that is asked looks first, to be able to answer.
    let before = u32::from(is_asked);
    let held = control
        .calls(Call::OpenDevice)
        .saturating_add(before)
        .saturating_add(1);
    control.hold(Call::OpenDevice, before);
    if is_asked {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, handle.port().get()));
        mesh.connect_at(first, at).unwrap();
    } else {
        mesh.connect(node, workers, first, &handle).unwrap();
    }
    let poll = |sides: &mut [(Arc<Node>, Vec<Worker>, Mesh); 2]| {
        for (node, workers, mesh) in sides {
            mesh.poll(node, workers, |_| {}).unwrap();
        }
    };
    let began = Instant::now();
    while control.calls(Call::OpenDevice) < held {
        assert!(began.elapsed() < SOON);
        poll(&mut sides);
    }
    for _ in 0..100 {
        poll(&mut sides);
    }
    assert_eq!(control.let_go(), 0);
    while !sides.iter().all(|(.., mesh)| mesh.reached().len() == 2) {
        assert!(began.elapsed() < SOON);
        poll(&mut sides);
    }
    drop(sides);
    all_destroyed(control);
}

/// A member whose handle is known is linked to as soon as there is a place for the link.
fn mesh_without_room(control: Control) {
    control.heal();
    let mut sides = [0, 1].map(|number| {
        let node = open();
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let mut config = MeshConfig::new(Rank::new(number).unwrap(), 2, 1);
        config.link.session.attach_within = SOON;
        config.link.links_max = 2;
        let mesh = Mesh::new(&node, &workers, &config).unwrap();
        (node, workers, mesh)
    });
    let handles = sides
        .each_mut()
        .map(|(node, workers, mesh)| mesh.listen(node, workers, "[::]:0".parse().unwrap()).unwrap());
    let poll = |sides: &mut [(Arc<Node>, Vec<Worker>, Mesh); 2]| {
        for (node, workers, mesh) in sides {
            mesh.poll(node, workers, |_| {}).unwrap();
        }
    };
    let mut strangers = Side::new(SOON);
    for _ in 0..2 {
        strangers
            .links
            .connect(&strangers.node, &strangers.workers, &handles[1])
            .unwrap();
    }
    let began = Instant::now();
    while sides[1].2.links().ids().count() < 2 {
        assert!(began.elapsed() < SOON);
        strangers.poll();
        poll(&mut sides);
    }
    let first = Rank::new(0).unwrap();
    let [_, (node, workers, mesh)] = &mut sides;
    control.hold(Call::OpenDevice, 0);
    mesh.connect(node, workers, first, &handles[0]).unwrap();
    assert_eq!(control.let_go(), 0);
    let is_refused = |mesh: &Mesh| {
        let mut reasons = mesh.not_linked(first);
        reasons.any(|reason| matches!(reason, NotLinked::NotBegun(LinkError::TooManyLinks)))
    };
    while !is_refused(&sides[1].2) {
        assert!(began.elapsed() < SOON);
        strangers.poll();
        poll(&mut sides);
    }
    // Nobody has to poll for it more often than it is tried.
    let wakes_soon = |(node, _, mesh): &(Arc<Node>, Vec<Worker>, Mesh)| {
        let now = node.network().now();
        let soon = Deadline::after(now, Duration::from_millis(2));
        mesh.wake(now).is_some_and(|wake| wake <= soon)
    };
    while wakes_soon(&sides[1]) {
        assert!(began.elapsed() < SOON);
        strangers.poll();
        poll(&mut sides);
    }
    for id in strangers.links.ids().collect::<Vec<_>>() {
        strangers.links.close(id, within(SOON));
    }
    while !sides.iter().all(|(.., mesh)| mesh.reached().len() == 2) {
        assert!(began.elapsed() < SOON);
        strangers.poll();
        poll(&mut sides);
    }
    drop((sides, strangers));
    all_destroyed(control);
}

#[test]
fn who_connects_waits_for_no_device() {
    let path = doorbell_fake::library_path().unwrap();
    rdma_sys::load_from(&path).unwrap();
    drop(open());
    let control = Control::of(&path).unwrap();
    let before = leaks();

    prompt(|| taking_long(control, Call::OpenDevice, 0));
    prompt(|| taking_long(control, Call::CreateQp, 0));
    prompt(|| taking_long(control, Call::ModifyQp, 0));
    prompt(|| taking_long(control, Call::ModifyQp, BEFORE_READY_TO_RECEIVE));
    prompt(|| taking_too_long(control, 0, Stage::ChooseRail));
    prompt(|| taking_too_long(control, BEFORE_READY_TO_RECEIVE, Stage::Prepare));
    prompt(|| looked_at_too_late(control));
    prompt(|| looks_are_shared(control));
    prompt(|| given_up(control, Call::OpenDevice, 0));
    prompt(|| given_up(control, Call::CreateQp, 0));
    prompt(|| given_up(control, Call::ModifyQp, BEFORE_READY_TO_RECEIVE));
    given_up_between(control);
    prompt(|| links(control));
    looked_at_for_longer_than_a_rail_has(control);
    a_link_to_nowhere(control);
    a_link_whose_first_look_fails(control);
    changes_faster_than_looks(control);
    mesh(control, true);
    mesh(control, false);
    mesh_without_room(control);
    assert_eq!(leaks(), before);
}
