//! A thread that accepts by polling makes no call of a device that looks at its ports, or makes or destroys a
//! queue pair. Runs over `ffi` on the fake libibverbs: as in `dialing`, such calls are held on every thread but
//! the one that polls.
//!
//! One test, since calls are held, and counted, for the whole process.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use doorbell::connect::{Acceptances, Connecting, HandshakeError, HandshakeLimits, Handshakes, Stage};
use doorbell::{ChannelId, ConnectError, Listener, Node, within};
use doorbell_fake::{Call, Control};
use doorbell_ffi::leaks;
use rustix::event::{PollFd, PollFlags, poll};

use held::{HELD, NO_TIMER, POLLS, SOON, Traffic, all_destroyed, config, fake, open, worker};

mod held;

/// How long a look at the ports is good for, and a little more.
const LOOK_LASTS: Duration = Duration::from_millis(1100);

/// Calls of the initiator in front of the acceptor's: one look, one queue pair, and one change to INIT.
const INITIATORS: u32 = 1;

/// A listener's way to accept.
#[derive(Clone, Copy, Debug)]
enum Way {
    ByPolling,
    Aside,
}

enum Accepting {
    ByPolling(Box<Listener>),
    Aside(Box<Handshakes>, Box<Acceptances>),
}

/// One that accepts and one that connects, both polled by this thread, with a channel between the two and room for another.
struct Two {
    control: Control,
    node: Arc<Node>,
    traffic: Traffic,
    accepting: Accepting,
    to: SocketAddr,
}

/// Outcome of a peer at the acceptor.
type Outcome = Result<ChannelId, ConnectError>;

impl Two {
    /// The one that accepts has so long for each stage of a handshake.
    fn new(control: Control, way: Way, stage: Duration) -> Self {
        control.heal();
        let node = open();
        let (hub, own) = (worker(&node, 2), worker(&node, 2));
        let hubs = core::slice::from_ref(&hub);
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(&node, hubs, any, &config(stage)).unwrap();
        let to = listener.address();
        let accepting = match way {
            Way::ByPolling => Accepting::ByPolling(Box::new(listener)),
            Way::Aside => {
                let (handshakes, mut acceptances) = listener.aside(&node, hubs, &HandshakeLimits::default());
                Accepting::Aside(Box::new(handshakes), Box::new(acceptances.remove(0)))
            }
        };
        let mut two = Self {
            control,
            node,
            traffic: Traffic::new(hub, own),
            accepting,
            to,
        };
        two.traffic.first = Some(two.connect());
        two
    }

    fn dial(&self) -> Connecting {
        self.node
            .begin_connect_at(&self.traffic.own, self.to, &config(NO_TIMER), within(NO_TIMER))
            .unwrap()
    }

    /// Polls all there is once but a dial, with a message on its way.
    fn poll(&mut self) -> Option<Outcome> {
        let outcome = match &mut self.accepting {
            Accepting::ByPolling(listener) => listener
                .poll_accept(&self.node, core::slice::from_mut(&mut self.traffic.hub))
                .map(|made| made.map(|made| made.channel))
                .transpose(),
            Accepting::Aside(handshakes, acceptances) => {
                handshakes.poll();
                let accepted = acceptances.poll_accept(&mut self.traffic.hub).unwrap().map(Ok);
                accepted.or_else(|| handshakes.take_failure().map(Err))
            }
        };
        self.traffic.poll();
        outcome
    }

    /// Polls until a peer is accepted, or comes to nothing, or this is so; the dial with it.
    fn until(&mut self, dial: &mut Connecting, is_so: impl Fn(&Self) -> bool) -> Option<Outcome> {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < SOON, "{dial:?}");
            if let Some(made) = dial.poll(&self.node, &mut self.traffic.own) {
                panic!("{made:?}");
            }
            let outcome = self.poll();
            if outcome.is_some() {
                return outcome;
            }
        }
        None
    }

    /// Connects on the one place there is.
    fn connect(&mut self) -> ChannelId {
        let dial = self.dial();
        self.finish(dial)
    }

    fn finish(&mut self, mut dial: Connecting) -> ChannelId {
        let (began, mut accepted, mut made) = (Instant::now(), false, None);
        while !accepted || made.is_none() {
            assert!(began.elapsed() < SOON, "{dial:?}");
            if made.is_none() {
                made = dial.poll(&self.node, &mut self.traffic.own);
            }
            match self.poll() {
                Some(Ok(_)) => accepted = true,
                Some(Err(error)) => panic!("{error}"),
                None => {}
            }
        }
        made.unwrap().unwrap().channel
    }

    /// Advances a dial until the acceptor waits for a held call, the first one after `after` others.
    fn hold(&mut self, call: Call, after: u32) -> Connecting {
        if call == Call::OpenDevice {
            // The ports as seen by handshakes aside at the first peer are too old by then.
            std::thread::sleep(LOOK_LASTS);
        }
        let held = self.control.calls(call).saturating_add(after).saturating_add(1);
        self.control.hold(call, after);
        let mut dial = self.dial();
        let outcome = self.until(&mut dial, |two| two.control.calls(call) >= held);
        assert!(outcome.is_none(), "{outcome:?}");
        self.traffic.count_anew();
        dial
    }

    /// Sleeps as a thread that has nothing to do but to accept.
    fn wait(&self) {
        match &self.accepting {
            Accepting::ByPolling(listener) => listener.wait(&self.node, within(NO_TIMER)).unwrap(),
            Accepting::Aside(handshakes, _) => handshakes.wait(within(NO_TIMER)).unwrap(),
        }
    }

    fn end(self) {
        drop((self.accepting, self.traffic));
        assert!(self.node.settle(within(SOON)));
        drop(self.node);
        all_destroyed(self.control);
    }
}

/// However long it takes, it succeeds once it is done, and wakes a thread that sleeps: no deadline would.
fn taking_long(control: Control, way: Way, call: Call, after: u32) {
    let case = format!("{way:?}: {call:?} after {after}");
    let mut two = Two::new(control, way, NO_TIMER);
    let mut dial = two.hold(call, after);
    let outcome = two.until(&mut dial, |two| two.traffic.polls > POLLS);
    assert!(outcome.is_none(), "{case}: {outcome:?}");
    two.traffic.let_go(control, &case);
    two.wait();
    two.finish(dial);
    two.end();
}

/// The handshake times out meanwhile: the peer is notified, and the objects made for it are destroyed.
fn taking_too_long(control: Control, way: Way, call: Call, after: u32) {
    let case = format!("{way:?}: {call:?} after {after} for too long");
    let mut two = Two::new(control, way, HELD);
    let mut dial = two.hold(call, after);
    let outcome = two.until(&mut dial, |_| false).unwrap();
    match outcome {
        Err(ConnectError::PortsTimedOut) => assert_eq!(call, Call::OpenDevice, "{case}"),
        Err(ConnectError::Handshake(HandshakeError { stage, .. })) => {
            assert_eq!((call, stage), (Call::ModifyQp, Stage::Prepare), "{case}");
        }
        other => panic!("{case}: {other:?}"),
    }
    // The peer is notified, and not left to wait.
    let began = Instant::now();
    while dial.poll(&two.node, &mut two.traffic.own).is_none() {
        assert!(began.elapsed() < SOON, "{case}");
        let outcome = two.poll();
        assert!(outcome.is_none(), "{case}: {outcome:?}");
    }
    drop(dial);
    two.traffic.let_go(control, &case);
    assert!(two.node.settle(within(SOON)), "{case}");
    two.connect();
    two.end();
}

/// All is given up meanwhile: a thread that drops does not wait.
fn given_up(control: Control, way: Way, call: Call, after: u32) {
    let case = format!("{way:?}: given up at {call:?} after {after}");
    let mut two = Two::new(control, way, SOON);
    let dial = two.hold(call, after);
    while !two.traffic.goes_on() {
        assert!(two.poll().is_none());
    }
    drop(dial);
    let Two {
        node,
        traffic,
        accepting,
        ..
    } = two;
    drop((accepting, traffic, node));
    assert_eq!(control.let_go(), 0, "{case}");
    all_destroyed(control);
}

/// An accepted peer goes away: its queue pair is destroyed on another thread.
fn gone_when_notified(control: Control, way: Way) {
    let mut two = Two::new(control, way, SOON);
    // The connector waits for its own queue pair, once it was accepted.
    let mut dial = two.hold(Call::ModifyQp, INITIATORS + 3);
    let outcome = two.until(&mut dial, |two| two.traffic.goes_on());
    assert!(outcome.is_none(), "{way:?}: {outcome:?}");
    assert_eq!(control.let_go(), 0, "{way:?}");
    control.hold_destroys();
    drop(dial);
    let began = Instant::now();
    let outcome = loop {
        assert!(began.elapsed() < SOON);
        if let Some(outcome) = two.poll() {
            break outcome;
        }
    };
    assert!(
        matches!(outcome, Err(ConnectError::Handshake(_))),
        "{way:?}: {outcome:?}"
    );
    two.traffic
        .let_go(control, &format!("{way:?}: gone when notified"));
    assert!(two.node.settle(within(SOON)), "{way:?}");
    two.connect();
    two.end();
}

/// Accepts peers on a thread that sleeps on the listener's descriptor, and does nothing by a timer: what a peer says ends its
/// sleep, and what threads of the Node's have done.
fn asleep_on_the_descriptor(control: Control) {
    const PEERS: u32 = 4;
    control.heal();
    let node = open();
    let mut hub = worker(&node, PEERS);
    let hubs = core::slice::from_mut(&mut hub);
    let any = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(&node, hubs, any, &config(NO_TIMER)).unwrap();
    let (to, theirs) = (listener.address(), Arc::clone(&node));
    let peers = thread::spawn(move || {
        let mut own = [worker(&theirs, PEERS)];
        for _ in 0..PEERS {
            theirs
                .connect_at(&mut own, to, &config(NO_TIMER), within(NO_TIMER))
                .unwrap();
        }
        own
    });
    let mut accepted = 0_u32;
    while accepted < PEERS {
        if listener.poll_accept(&node, hubs).unwrap().is_some() {
            accepted = accepted.saturating_add(1);
            continue;
        }
        let descriptor = listener.descriptor();
        let mut watched = [PollFd::new(&descriptor, PollFlags::IN)];
        assert_eq!(poll(&mut watched, None).unwrap(), 1, "{accepted} accepted");
    }
    drop((peers.join().unwrap(), listener, hub));
    assert!(node.settle(within(SOON)));
}

#[test]
fn who_accepts_waits_for_no_device() {
    let control = fake();
    let before = leaks();

    asleep_on_the_descriptor(control);
    for way in [Way::ByPolling, Way::Aside] {
        taking_long(control, way, Call::OpenDevice, INITIATORS);
        taking_long(control, way, Call::CreateQp, INITIATORS);
        // To ready-to-receive, which asks for the neighbour.
        taking_long(control, way, Call::ModifyQp, INITIATORS + 1);
        taking_too_long(control, way, Call::OpenDevice, INITIATORS);
        taking_too_long(control, way, Call::ModifyQp, INITIATORS + 1);
        given_up(control, way, Call::OpenDevice, INITIATORS);
        given_up(control, way, Call::ModifyQp, INITIATORS + 1);
        gone_when_notified(control, way);
    }
    assert_eq!(leaks(), before);
}
