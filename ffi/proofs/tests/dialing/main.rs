//! A thread that connects by polling makes no call of a device that looks at its ports, or makes or destroys a
//! queue pair. Runs over `ffi` on the fake libibverbs. Such calls are held on every thread but the one that
//! polls, and it goes on all the same.
//!
//! One test, since calls are held, and counted, for the whole process.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use doorbell::connect::{Acceptances, Background, Connecting, HandshakeError, HandshakeLimits, Stage};
use doorbell::{ConnectError, Connection, Listener, Node, Operation, within};
use doorbell_fake::{Call, Control};
use doorbell_ffi::leaks;

use held::{HELD, NO_TIMER, POLLS, SOON, Traffic, all_destroyed, config, fake, open, worker};
use links::{
    a_link_to_nowhere, a_link_whose_first_look_fails, changes_faster_than_looks, links,
    looked_at_for_longer_than_a_rail_has,
};
use meshes::{mesh, mesh_without_room};

#[path = "../held/mod.rs"]
mod held;
mod links;
mod meshes;

/// Changes of state of queue pairs in front of an initiator's to ready-to-receive: its own to INIT, and its peer's three.
const BEFORE_READY_TO_RECEIVE: u32 = 4;

/// One that listens and one that connects, both polled by this thread, with a channel between the two and room for another.
struct Two {
    control: Control,
    node: Arc<Node>,
    traffic: Traffic,
    background: Background,
    acceptances: Acceptances,
}

impl Two {
    fn new(control: Control) -> Self {
        control.heal();
        let node = open();
        let (hub, own) = (worker(&node, 8), worker(&node, 2));
        let hubs = core::slice::from_ref(&hub);
        let listener = Listener::bind(&node, hubs, "127.0.0.1:0".parse().unwrap(), &config(SOON)).unwrap();
        let limits = HandshakeLimits::default();
        let (background, mut acceptances) = listener.background(&node, hubs, &limits).unwrap();
        let mut two = Self {
            control,
            node,
            traffic: Traffic::new(hub, own),
            background,
            acceptances: acceptances.remove(0),
        };
        let mut dial = two.dial(SOON);
        let made = two.until(&mut dial, |_| false).unwrap().unwrap();
        two.traffic.first = Some(made.channel);
        two
    }

    fn dial(&self, patience: Duration) -> Connecting {
        let to = self.background.address();
        self.node
            .begin_connect_at(
                &self.traffic.own,
                to,
                &config(patience.max(SOON)),
                within(patience),
            )
            .unwrap()
    }

    /// Polls all there is once, with a message on its way.
    fn poll(&mut self, dial: Option<&mut Connecting>) -> Option<Result<Connection, ConnectError>> {
        let outcome = dial.and_then(|dial| dial.poll(&self.node, &mut self.traffic.own));
        let _ = self.acceptances.poll_accept(&mut self.traffic.hub).unwrap();
        self.traffic.poll();
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
        self.traffic.count_anew();
        dial
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
        drop((self.acceptances, self.traffic));
        assert!(self.node.settle(within(SOON)));
        drop(self.node);
        all_destroyed(self.control);
    }
}

/// However long it takes, it succeeds once it is done, and wakes a thread that sleeps: no deadline would.
fn taking_long(control: Control, call: Call, after: u32) {
    let case = format!("{call:?} after {after}");
    let mut two = Two::new(control);
    let mut dial = two.hold(call, after, NO_TIMER);
    let outcome = two.until(&mut dial, |two| two.traffic.polls > POLLS);
    assert!(outcome.is_none(), "{case}: {outcome:?}");
    two.traffic.let_go(control, &case);
    dial.wait(&two.node).unwrap();
    let made = two.until(&mut dial, |_| false).unwrap().unwrap();
    let [own] = &mut two.traffic.own;
    let second = own.channel(made.channel).unwrap();
    second.post_inline(Operation::Send, &[1; 8]).unwrap();
    two.end();
}

/// Its deadline passes meanwhile, and what is made behind that is undone.
fn taking_too_long(control: Control, after: u32, stage: Stage) {
    let case = format!("too long after {after}");
    let mut two = Two::new(control);
    let mut dial = two.hold(Call::ModifyQp, after, HELD);
    let outcome = two.until(&mut dial, |_| false).unwrap();
    match outcome {
        Err(ConnectError::Handshake(HandshakeError { stage: at, .. })) => assert_eq!(at, stage, "{case}"),
        other => panic!("{case}: {other:?}"),
    }
    drop(dial);
    two.traffic.let_go(control, &case);
    two.connects();
}

/// The ports are not looked at by its deadline.
fn looked_at_too_late(control: Control) {
    let mut two = Two::new(control);
    let mut dial = two.hold(Call::OpenDevice, 0, HELD);
    match two.until(&mut dial, |_| false).unwrap() {
        Err(ConnectError::PortsTimedOut) => {}
        other => panic!("{other:?}"),
    }
    drop(dial);
    two.traffic.let_go(control, "looked at too late");
    two.connects();
}

/// Connectors that ask while the ports are looked at share one look, the next one. The look under way may already
/// have passed a change that they must see.
fn looks_are_shared(control: Control) {
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
    two.traffic.let_go(control, "looks are shared");
    // One of them has the place there is.
    let began = Instant::now();
    while !others.is_empty() {
        assert!(began.elapsed() < SOON, "{others:?}");
        others.retain_mut(|dial| two.poll(Some(dial)).is_none());
    }
    let looks = control.calls(Call::OpenDevice).wrapping_sub(before);
    // A listener looks by itself, once in a second.
    let seconds = asked.elapsed().as_secs();
    assert!(
        (2..=seconds.saturating_add(4)).contains(&looks.into()),
        "{looks} in {seconds} s"
    );
    two.end();
}

/// The dial is given up meanwhile, and so is all the rest: a thread that drops does not wait.
fn given_up(control: Control, call: Call, after: u32) {
    let case = format!("given up at {call:?} after {after}");
    let mut two = Two::new(control);
    let dial = two.hold(call, after, SOON);
    while !two.traffic.goes_on() {
        let _ = two.poll(None);
    }
    drop(dial);
    let Two {
        node,
        traffic,
        background,
        acceptances,
        ..
    } = two;
    // Its own are not held.
    assert!(background.stop(within(SOON)), "{case}");
    drop((acceptances, traffic, node));
    assert_eq!(control.let_go(), 0, "{case}");
    all_destroyed(control);
}

/// It is given up while it is its peer's turn: its queue pair is destroyed elsewhere.
fn given_up_between(control: Control) {
    let mut two = Two::new(control);
    let before = control.calls(Call::ModifyQp);
    let mut dial = two.dial(SOON);
    // The peer needs a place, and gets none.
    while control.calls(Call::ModifyQp) == before || !two.node.settle(within(Duration::ZERO)) {
        let outcome = dial.poll(&two.node, &mut two.traffic.own);
        assert!(outcome.is_none(), "{outcome:?}");
    }
    assert!(dial.poll(&two.node, &mut two.traffic.own).is_none());
    control.hold_destroys();
    drop(dial);
    assert_eq!(control.let_go(), 0);
    two.connects();
}

#[test]
fn who_connects_waits_for_no_device() {
    let control = fake();
    let before = leaks();

    taking_long(control, Call::OpenDevice, 0);
    taking_long(control, Call::CreateQp, 0);
    taking_long(control, Call::ModifyQp, 0);
    taking_long(control, Call::ModifyQp, BEFORE_READY_TO_RECEIVE);
    taking_too_long(control, 0, Stage::ChooseRail);
    taking_too_long(control, BEFORE_READY_TO_RECEIVE, Stage::Prepare);
    looked_at_too_late(control);
    looks_are_shared(control);
    given_up(control, Call::OpenDevice, 0);
    given_up(control, Call::CreateQp, 0);
    given_up(control, Call::ModifyQp, BEFORE_READY_TO_RECEIVE);
    given_up_between(control);
    links(control);
    looked_at_for_longer_than_a_rail_has(control);
    a_link_to_nowhere(control);
    a_link_whose_first_look_fails(control);
    changes_faster_than_looks(control);
    mesh(control, true);
    mesh(control, false);
    mesh_without_room(control);
    assert_eq!(leaks(), before);
}
