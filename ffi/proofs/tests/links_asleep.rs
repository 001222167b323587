//! Threads that sleep for their links, over `ffi` on the fake libibverbs: woken by a peer that connects, by messages, by a
//! request that another thread submits, and by the end of a link. No heartbeat wakes them here, so a lost wake-up is found as a wait
//! that ends by its deadline.
//!
//! One test, since the fake is loaded for the whole process.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::time::Duration;
use std::sync::Arc;
use std::thread;

use doorbell::connect::HandshakeLimits;
use doorbell::link::{FinalReason, LinkConfig, LinkEvent, LinkId, Links, PushRefusal, SessionEvent};
use doorbell::worker::{Submitter, SubmitterConfig};
use doorbell::{
    ChannelConfig, ChannelId, Event, Listener, Node, Notify, Trust, Wait, Woken, Worker, WorkerConfig, within,
};

/// No wait takes as long, unless a wake-up is lost.
const SOON: Duration = Duration::from_secs(60);

/// Nothing of a link is due so late in a test.
const NEVER: Duration = Duration::from_secs(3600);

/// Time for a thread to fall asleep for good: what links and Workers look for behind their last traffic is a tenth of a second away. A
/// test that is too early for it proves less, and does not fail.
const A_MOMENT: Duration = Duration::from_millis(300);

const ROUNDS: u32 = 200;

const SLEEP: Wait = Wait::SpinThenSleep { spins: 0 };

/// One side of a link.
struct Side {
    node: Arc<Node>,
    workers: Vec<Worker>,
    links: Links,
}

/// Events of waits.
#[derive(Default)]
struct Seen {
    is_connected: bool,
    messages: Vec<(LinkId, u32)>,
    over: Option<FinalReason>,
}

impl Side {
    fn new() -> Self {
        let node = Arc::new(Node::open(Trust::unauthenticated_on_purpose()).unwrap());
        let mut own = WorkerConfig::default();
        own.notify = Notify::Every;
        let workers = node.workers(&own).unwrap();
        let mut config = LinkConfig::default();
        config.session.heartbeat_idle = NEVER;
        config.session.attach_within = SOON;
        config.channel.handshake_stage = SOON;
        let links = Links::new(&node, &workers, &config).unwrap();
        Self { node, workers, links }
    }

    /// Sleeps until something happens, which has to.
    fn wait(&mut self, seen: &mut Seen) {
        let each = |id, event: LinkEvent<'_>| match event {
            LinkEvent::Received { message } => {
                let number = u32::from_be_bytes(message.try_into().unwrap());
                seen.messages.push((id, number));
            }
            LinkEvent::Session(SessionEvent::Connected) => seen.is_connected = true,
            LinkEvent::Session(SessionEvent::Final { reason }) => seen.over = Some(reason),
            _ => {}
        };
        let woken = self
            .links
            .wait(&self.node, &mut self.workers, SLEEP, within(SOON), each);
        assert_eq!(woken.unwrap(), Woken::Progress, "it sleeps, and nothing wakes it");
    }

    fn send(&mut self, link: LinkId, number: u32) {
        while let Err(refusal) = self.links.send(link, &number.to_be_bytes()) {
            assert!(
                matches!(refusal, PushRefusal::Full | PushRefusal::Recovering),
                "{refusal}"
            );
            let mut seen = Seen::default();
            self.wait(&mut seen);
            assert!(seen.messages.is_empty());
        }
    }
}

/// Sends each message back, asleep in between, until the link is over. The numbers in their order.
fn echo(mut side: Side) -> Vec<u32> {
    let (mut numbers, mut seen) = (Vec::new(), Seen::default());
    while seen.over.is_none() {
        side.wait(&mut seen);
        for (link, number) in core::mem::take(&mut seen.messages) {
            numbers.push(number);
            side.send(link, number);
        }
    }
    assert_eq!(seen.over, Some(FinalReason::PeerClosed));
    numbers
}

/// A Worker to which the side has a channel, beside its links; and a submitter for that.
fn beside(side: &mut Side) -> (Worker, ChannelId, Submitter) {
    let mut config = ChannelConfig::default();
    // Probes would wake the Worker.
    config.probe_after = None;
    let mut own = WorkerConfig::default();
    own.notify = Notify::Every;
    let mut workers = side.node.workers(&own).unwrap();
    let listener = Listener::bind(&side.node, &workers, "[::]:0".parse().unwrap(), &config).unwrap();
    let (background, mut acceptances) = listener
        .background(&side.node, &workers, &HandshakeLimits::default())
        .unwrap();
    let (handle, node) = (*background.handle(), Arc::clone(&side.node));
    let accepting = thread::spawn(move || {
        let accepting = acceptances.first_mut().unwrap();
        accepting
            .accept(workers.first_mut().unwrap(), within(SOON))
            .unwrap();
        workers.swap_remove(0)
    });
    let channel = node
        .connect(&mut side.workers, &handle, &config, within(SOON))
        .unwrap()
        .channel;
    let worker = side.workers.first_mut().unwrap();
    let submitter = worker.submitter(&SubmitterConfig::default()).unwrap();
    let accepted = accepting.join().unwrap();
    assert!(background.stop(within(SOON)));
    (accepted, channel, submitter)
}

#[test]
fn whatever_links_are_to_see_wakes_their_thread() {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    let (mut a, mut b) = (Side::new(), Side::new());
    let handle = b
        .links
        .listen(&b.node, &b.workers, "[::]:0".parse().unwrap())
        .unwrap();
    let (mut other, channel, mut submitter) = beside(&mut b);
    let echoing = thread::spawn(move || echo(b));

    // A peer that comes.
    thread::sleep(A_MOMENT);
    let link = a.links.connect(&a.node, &a.workers, &handle).unwrap();
    let mut seen = Seen::default();
    while !seen.is_connected {
        a.wait(&mut seen);
    }
    // Messages, each once the one before is back.
    for number in 0..ROUNDS {
        a.send(link, number);
        while seen.messages.is_empty() {
            a.wait(&mut seen);
        }
        assert_eq!(core::mem::take(&mut seen.messages), [(link, number)]);
    }
    // A request of another thread.
    thread::sleep(A_MOMENT);
    let submitting = thread::spawn(move || {
        let mut lease = submitter.lease().unwrap();
        lease.fill(b"beside").unwrap();
        submitter.send(channel, lease).unwrap();
    });
    let (deadline, mut came) = (other.within(SOON), Vec::new());
    while came.is_empty() {
        let woken = other.wait(SLEEP, deadline, |_, event| {
            if let Event::Received { message, .. } = event {
                came = message.payload().to_vec();
            }
        });
        assert_eq!(woken.unwrap(), Woken::Progress, "it was not submitted");
    }
    assert_eq!(came, b"beside");
    submitting.join().unwrap();
    // The end.
    thread::sleep(A_MOMENT);
    a.links.close(link, within(SOON));
    while seen.over.is_none() {
        a.wait(&mut seen);
    }
    assert_eq!(seen.over, Some(FinalReason::Closed));
    assert!(echoing.join().unwrap().into_iter().eq(0..ROUNDS));
}
