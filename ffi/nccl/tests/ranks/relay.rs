//! Two ranks by a relay, and strangers at the relay that say what no plugin says. They harm themselves alone.

use core::ffi::c_void;
use core::num::NonZeroU16;
use core::ptr::null_mut;
use core::time::Duration;
use std::sync::Arc;
use std::thread;

use doorbell::link::{LinkConfig, LinkEvent, LinkId, Links, SessionEvent};
use doorbell::provider::{Gid, IpPrefix};
use doorbell::rails::{AdvertisedRail, SpeedClass};
use doorbell::wire::InstanceId;
use doorbell::{Handle, KeyRing, Node, Trust, Worker, WorkerConfig};

use super::{LOG, Listening, OK, PTR_HOST, V12, comm, eventually, set};

const RELAY: &str = "127.0.0.1:19021";

/// Circuits of a relay with the default of 64 links.
const CIRCUITS: usize = 32;

/// A relay that is none of the plugin's.
const OTHER_RELAY: &str = "127.0.0.1:19022";

const OPEN: u8 = 1;
const OPENED: u8 = 2;
const CLOSE: u8 = 4;
const CLEAR: u8 = 5;
const HELLO: u8 = 8;
const FENCE: u8 = 11;
const PASSED: u8 = 12;
const REQUEST: u8 = 64;
const CONNECTED: u8 = 65;
const FROM: u8 = 66;
const CREDIT: u8 = 67;
const END: u8 = 68;

const NO_ROUTE: u8 = 1;
const FULL: u8 = 2;
const WRONG: u8 = 7;

/// A frame of a circuit.
fn frame(kind: u8, count: u8, relays: u8, number: u32, body: &[u8]) -> Vec<u8> {
    [
        &[kind, 1, count, relays],
        &number.to_be_bytes()[..],
        &[0; 8],
        body,
    ]
    .concat()
}

/// The handle of nobody, on a subnet that nobody has.
fn nowhere() -> Handle {
    let mut handle = Handle::builder(NonZeroU16::new(7).unwrap(), InstanceId::new(77).unwrap());
    let address = IpPrefix::new([203, 0, 113, 7].into(), 24).unwrap();
    let rail = AdvertisedRail::new(address, Gid::from_ip(address.address()), SpeedClass(7));
    let _ = handle.push(&rail.unwrap());
    handle.finish().unwrap()
}

fn request(relays: u8, handle: &Handle) -> Vec<u8> {
    frame(REQUEST, 0, relays, 0, handle.as_bytes())
}

/// Peers of a relay that are no plugin.
struct Strangers {
    node: Arc<Node>,
    workers: Vec<Worker>,
    links: Links,
    heard: Vec<(LinkId, Vec<u8>)>,
    over: Vec<LinkId>,
}

impl Strangers {
    fn new(trust: Trust) -> Self {
        let node = Arc::new(Node::open(trust).unwrap());
        let mut config = WorkerConfig::default();
        config.slots = 8192;
        let workers = node.workers(&config).unwrap();
        let mut config = LinkConfig::default();
        config.links_max = 256;
        config.links_per_address = 256;
        (config.channel.send_depth, config.channel.receive_depth) = (16, 16);
        (config.retained, config.ahead) = (16, 16);
        config.message_bytes_max = 1 << 16;
        let links = Links::new(&node, &workers, &config).unwrap();
        Self {
            node,
            workers,
            links,
            heard: Vec::new(),
            over: Vec::new(),
        }
    }

    /// Asks the relay for its handle.
    fn ask(&self) -> Result<Handle, String> {
        let until = self.node.within(Duration::from_secs(30));
        let mut asking = self.node.begin_ask(RELAY.parse().unwrap(), until).unwrap();
        let answer = eventually("an answer", || asking.poll(&self.node));
        answer.map_err(|error| error.to_string())
    }

    fn poll(&mut self) {
        let Self { heard, over, .. } = self;
        let each = |link, event: LinkEvent<'_>| match event {
            LinkEvent::Received { message } => heard.push((link, message.to_vec())),
            LinkEvent::Session(SessionEvent::Final { .. }) => over.push(link),
            _ => {}
        };
        self.links.poll(&self.node, &mut self.workers, each).unwrap();
    }

    fn link(&mut self, to: &Handle) -> LinkId {
        self.links.connect(&self.node, &self.workers, to).unwrap()
    }

    fn say(&mut self, link: LinkId, message: &[u8]) {
        eventually("a message is taken", || {
            let sent = self.links.send(link, message);
            self.poll();
            sent.ok()
        });
    }

    fn hear(&mut self, link: LinkId, kind: u8) -> Vec<u8> {
        eventually("a message of the relay", || {
            self.poll();
            let is_it = |(from, message): &(LinkId, Vec<u8>)| *from == link && message[0] == kind;
            let found = self.heard.iter().position(is_it)?;
            Some(self.heard.remove(found).1)
        })
    }

    /// The relay ends this for that reason, and the link after it.
    fn ends(&mut self, link: LinkId, reason: u8, what: &str) {
        let end = self.hear(link, END);
        assert_eq!(end, frame(END, 0, 0, reason.into(), &[]), "{what}");
        eventually("the link ends", || {
            self.poll();
            self.over.contains(&link).then_some(())
        });
    }
}

/// Ranks that are connected by the relay.
struct Pair {
    from: Listening,
    to: Listening,
    send: *mut c_void,
    receive: *mut c_void,
}

impl Pair {
    fn new() -> Self {
        let (from, mut to) = (Listening::new(), Listening::new());
        let (send, receive) = comm("a comm by the relay", &mut to, |handle, send| {
            call!(V12, connect, from.context, 0, handle, send, null_mut())
        });
        Self {
            from,
            to,
            send,
            receive,
        }
    }

    /// A message in several parts goes from the one to the other.
    fn passes(&self, fill: u8) {
        let (mut bytes, mut room) = (vec![fill; 200_003], vec![0_u8; 200_003]);
        let length = bytes.len();
        let (mut from, mut into) = (null_mut(), null_mut());
        let data = [bytes.as_mut_ptr().cast(), room.as_mut_ptr().cast()];
        assert_eq!(
            call!(V12, reg_mr, self.send, data[0], length, PTR_HOST, &raw mut from),
            OK
        );
        assert_eq!(
            call!(
                V12,
                reg_mr,
                self.receive,
                data[1],
                length,
                PTR_HOST,
                &raw mut into
            ),
            OK
        );
        let (mut at, mut size, mut tag, mut memory) = (data[1], length, 5, into);
        let (mut receiving, mut sending): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
        let (at, size, tag, memory) = (&raw mut at, &raw mut size, &raw mut tag, &raw mut memory);
        eventually("both requests", || {
            if receiving.is_null() {
                let to = &raw mut receiving;
                let posted = call!(V12, irecv, self.receive, 1, at, size, tag, memory, null_mut(), to);
                assert_eq!(posted, OK);
            }
            let to = &raw mut sending;
            assert_eq!(
                call!(V12, isend, self.send, data[0], length, 5, from, null_mut(), to),
                OK
            );
            (!sending.is_null()).then_some(())
        });
        for request in [receiving, sending] {
            eventually("a request is done", || {
                let (mut done, mut came) = (0, 0);
                assert_eq!(call!(V12, test, request, &raw mut done, &raw mut came), OK);
                (done == 1).then(|| assert_eq!(came, 200_003))
            });
        }
        assert!(room.iter().all(|byte| *byte == fill));
        assert_eq!(call!(V12, dereg_mr, self.send, from), OK);
        assert_eq!(call!(V12, dereg_mr, self.receive, into), OK);
    }

    fn close(self) {
        assert_eq!(call!(V12, close_send, self.send), OK);
        assert_eq!(call!(V12, close_recv, self.receive), OK);
        self.from.close();
        self.to.close();
    }
}

pub(super) fn is_attacked() {
    let key = "6a09e667bb67ae853c6ef372a54ff53a510e527f9b05688c1f83d9ab5be0cd19";
    let other = "cbbb9d5d629a292a9159015a152fecd867332667eb44a8708eb44a87db0c2e0d";
    let path = std::env::temp_dir().join(format!("doorbell-nccl-relay-{}", std::process::id()));
    let keys = |key: &str| {
        std::fs::write(&path, format!("1:{key}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).unwrap();
        Trust::keys(KeyRing::from_file(&path).unwrap())
    };
    let (other, trust) = (keys(other), keys(key));
    set(&[
        ("DOORBELL_KEY_FILE", path.to_str().unwrap()),
        ("DOORBELL_NCCL_RELAYS", RELAY),
        ("DOORBELL_NCCL_RELAY_ALWAYS", "true"),
    ]);
    let pair = Pair::new();
    pair.passes(1);
    let log = LOG.lock().unwrap().join("\n");
    assert!(log.contains("messages are relayed: this host, "), "{log}");
    assert!(log.contains(": relayed, from "), "{log}");

    // Without the key nobody gets as far as to a handle.
    assert!(Strangers::new(Trust::unauthenticated_on_purpose()).ask().is_err());
    assert!(Strangers::new(other).ask().is_err());

    let mut strangers = Strangers::new(trust);
    let relay = strangers.ask().unwrap();
    let mut long = request(2, &nowhere());
    long.push(1);
    let wrong = [
        ("no message", Vec::new()),
        ("text", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("a comm before a circuit", frame(OPEN, 0, 0, 9, &[])),
        ("a request cut short", request(1, &nowhere())[..20].to_vec()),
        ("a request that is too long", long),
        ("no relay at all", request(0, &nowhere())),
        ("three relays", request(3, &nowhere())),
        ("a handle that is none", frame(REQUEST, 0, 1, 0, &[0xff; 64])),
        (
            "more addresses than a route has",
            frame(REQUEST, 200, 1, 0, &[0; 64]),
        ),
        ("words of a relay", frame(CONNECTED, 1, 0, 0, &[0; 16])),
        ("words to a destination", frame(FROM, 1, 0, 0, &[0; 16])),
        ("credit for nothing", frame(CREDIT, 0, 0, u32::MAX, &[])),
        ("a kind that is none", frame(255, 0, 0, 0, &[])),
        ("the end of nothing", frame(END, 0, 0, 4, &[])),
    ];
    for (what, message) in &wrong {
        let link = strangers.link(&relay);
        strangers.say(link, message);
        strangers.ends(link, WRONG, what);
    }
    pair.passes(2);

    // A destination that no rail leads to, and the relay itself: it leads nowhere in circles.
    for relays in [1, 2] {
        let link = strangers.link(&relay);
        strangers.say(link, &request(relays, &nowhere()));
        strangers.ends(link, NO_ROUTE, "a destination that no rail leads to");
    }
    floods(&mut strangers, &relay, &pair);
    pair.passes(4);
    drop(strangers);
    pair.close();
    closes_behind_its_fence(keys(key));
    std::fs::remove_file(path).unwrap();
}

/// The bytes of a message of the two ends.
fn of_ends(kind: u8, count: u8, to: &[u8], number: &[u8], body: &[u8]) -> Vec<u8> {
    [&[kind, 1, count, 0], to, number, &[0; 4], body].concat()
}

/// A relay has a message before its far end has it, so `closeSend` asks the far end.
fn closes_behind_its_fence(trust: Trust) {
    set(&[("DOORBELL_NCCL_RELAYS", OTHER_RELAY)]);
    let mut relay = Strangers::new(trust);
    let at = "0.0.0.0:19022".parse().unwrap();
    relay.links.listen(&relay.node, &relay.workers, at).unwrap();
    let (from, to) = (Listening::new(), Listening::new());
    for answers in [Answers::Nobody, Answers::Stranger] {
        assert!(
            is_closed_late(&mut relay, &from, to.handle, answers),
            "closeSend waits for the word of the far end: {answers:?}"
        );
    }
    // A machine that is too busy for that second has further tries.
    assert!(
        (0..5).any(|_| !is_closed_late(&mut relay, &from, to.handle, Answers::FarEnd)),
        "closeSend goes by the word of the far end"
    );
    drop(relay);
    from.close();
    to.close();
}

/// Lines of the log about far ends that have not answered a fence.
fn late_fences() -> usize {
    let log = LOG.lock().unwrap();
    let late = log
        .iter()
        .filter(|line| line.contains(": the far end has not said"));
    late.count()
}

/// The peer that answers a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    Nobody,
    /// One with another link, which has no part in the comm.
    Stranger,
    FarEnd,
}

/// Sends a message and closes its comm, whose fence is answered or not. Returns whether the comm was closed without the answer.
fn is_closed_late(relay: &mut Strangers, from: &Listening, mut handle: [u8; 128], answers: Answers) -> bool {
    let before = late_fences();
    let (mut send, mut link) = (null_mut(), None);
    let handle = handle.as_mut_ptr().cast();
    let mut number = Vec::new();
    eventually("a comm by this relay", || {
        let connected = call!(V12, connect, from.context, 0, handle, &raw mut send, null_mut());
        assert_eq!(connected, OK);
        relay.poll();
        for (of, message) in core::mem::take(&mut relay.heard) {
            match message[0] {
                REQUEST => relay.say(of, &frame(CONNECTED, 1, 0, 0, &[7; 16])),
                OPEN => {
                    (link, number) = (Some(of), message[8..12].to_vec());
                    relay.say(of, &of_ends(OPENED, 0, &number, &[0, 0, 0, 9], &[]));
                }
                _ => {}
            }
        }
        (!send.is_null()).then_some(())
    });
    let link = link.unwrap();
    let receive = [&[0; 4], &8_u64.to_be_bytes()[..]].concat();
    relay.say(link, &of_ends(CLEAR, 1, &number, &[0, 0, 0, 32], &receive));
    let (mut bytes, mut memory, mut request) = ([7_u8; 8], null_mut(), null_mut());
    let data = bytes.as_mut_ptr().cast();
    assert_eq!(call!(V12, reg_mr, send, data, 8, PTR_HOST, &raw mut memory), OK);
    eventually("a send", || {
        relay.poll();
        let sent = call!(V12, isend, send, data, 8, 0, memory, null_mut(), &raw mut request);
        assert_eq!(sent, OK);
        (!request.is_null()).then_some(())
    });
    eventually("the send is done, since the relay has it", || {
        relay.poll();
        let (mut done, mut came) = (0, 0);
        assert_eq!(call!(V12, test, request, &raw mut done, &raw mut came), OK);
        (done == 1).then_some(())
    });
    assert_eq!(call!(V12, dereg_mr, send, memory), OK);
    let inner = Handle::from_bytes(&from.handle[20..20 + usize::from(from.handle[5])]).unwrap();
    let other = (answers == Answers::Stranger).then(|| relay.link(&inner));
    if let Some(other) = other {
        relay.hear(other, HELLO);
    }
    let comm = send.addr();
    let closing = thread::spawn(move || call!(V12, close_send, core::ptr::without_provenance_mut(comm)));
    let fence = relay.hear(link, FENCE);
    assert_eq!(fence, of_ends(FENCE, 0, &[0, 0, 0, 9], &number, &[]));
    let answers_over = match answers {
        Answers::Nobody => None,
        Answers::Stranger => other,
        Answers::FarEnd => Some(link),
    };
    if let Some(over) = answers_over {
        relay.say(over, &of_ends(PASSED, 0, &number, &[0; 4], &[]));
    }
    let close = relay.hear(link, CLOSE);
    assert_eq!(close, of_ends(CLOSE, 0, &[0, 0, 0, 9], &[0; 4], &[]));
    let is_late = late_fences() > before;
    eventually("the comm is closed", || {
        relay.poll();
        closing.is_finished().then_some(())
    });
    assert_eq!(closing.join().unwrap(), OK);
    is_late
}

/// More links than there may be circuits: those beyond are refused, and with their ends there is room again.
fn floods(strangers: &mut Strangers, relay: &Handle, pair: &Pair) {
    let flood: Vec<LinkId> = (0..CIRCUITS + 8).map(|_| strangers.link(relay)).collect();
    let mut refused = Vec::new();
    eventually("links beyond the limit are refused", || {
        strangers.poll();
        thread::yield_now();
        for (link, message) in strangers.heard.drain(..) {
            match message[0] {
                HELLO => {}
                _ => {
                    assert_eq!(message, frame(END, 0, 0, FULL.into(), &[]));
                    refused.push(link);
                }
            }
        }
        // The pair has one circuit.
        (refused.len() >= 9).then_some(())
    });
    pair.passes(3);
    for link in flood {
        strangers.links.close(link, strangers.node.within(Duration::ZERO));
    }
    eventually("all of them end", || {
        strangers.poll();
        strangers.links.ids().next().is_none().then_some(())
    });
    eventually("there is room again", || {
        let link = strangers.link(relay);
        strangers.say(link, &request(1, &nowhere()));
        let end = strangers.hear(link, END);
        (end[7] == NO_ROUTE).then_some(())
    });
}
