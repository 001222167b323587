//! Handshakes on threads of their own, over TCP: hundreds that are silent, slow or hostile hold up no real peer, and
//! an end is an end: threads, descriptors, queue pairs and memory.
//!
//! One test, since it counts the descriptors and threads of the process.

mod fabric;
#[path = "fabric/stranger.rs"]
mod stranger;

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use doorbell::connect::{Acceptances, Background, HandshakeLimits};
use doorbell::provider::{Io, IoError};
use doorbell::wire::{Frame, RejectReason};
use doorbell::{ChannelConfig, ConnectError, Listener, Node, Worker, WorkerConfig, within};
use doorbell_sim::{Fabric, Host};
use fabric::{SOON, port, small, tcp_node, workers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stranger::{Heard, Stranger};

/// A real peer gets through in this time beside any others: a third of the stage that one silent stream would hold it up for. Alone
/// it takes about a millisecond.
const PROMPT: Duration = SOON;

/// Connections there is memory for.
const PLACES: usize = 16;

struct Hub {
    fabric: Fabric,
    node: Arc<Node<Host>>,
    worker: Worker<Host>,
    background: Background,
    acceptances: Acceptances<Host>,
}

fn patient() -> ChannelConfig {
    let mut config = small();
    // Silent streams stay for longer than all of this takes.
    config.handshake_stage = 3 * SOON;
    config
}

fn hub(limits: &HandshakeLimits) -> Hub {
    let fabric = Fabric::new();
    let node = Arc::new(tcp_node(&fabric, "hub", vec![port("hub", "127.0.0.1/8")]));
    let mut own = WorkerConfig::default();
    own.slots = PLACES as u32 * patient().receive_depth;
    own.lease_share_percent = 0;
    let mut workers = node.workers(&own).unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&node, &workers, any, &patient()).unwrap();
    let (background, mut acceptances) = listener.background(&node, &workers, limits).unwrap();
    Hub {
        fabric,
        node,
        worker: workers.remove(0),
        background,
        acceptances: acceptances.remove(0),
    }
}

/// A stream from an address of its own.
fn stream_from(last: u8, to: SocketAddr) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 9, 0, last)), 0);
    bind(&socket, &from).unwrap();
    connect(&socket, &to).unwrap();
    TcpStream::from(socket)
}

/// Silent ones, the magic number, half a Hello, a whole one, nonsense, and some that go at once.
fn rabble(to: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    let hello = Stranger::new(Ipv4Addr::new(127, 9, 0, 1).into(), 0).hello();
    let (half, _) = hello.split_at(hello.len() / 2);
    for turn in 0..count {
        let mut stream = stream_from(1 + (turn % 8) as u8, to);
        match turn % 6 {
            0 => {}
            1 => stream.write_all(b"DBLF").unwrap(),
            2 => stream.write_all(half).unwrap(),
            3 => stream.write_all(&hello).unwrap(),
            4 => drop(stream.write_all(&[0xff; 600])),
            _ => continue,
        }
        streams.push(stream);
    }
    streams
}

/// A stream that gives what is there.
struct Polled(TcpStream);

impl Io for Polled {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, IoError> {
        self.0.read(buffer).map_err(|_| IoError::WouldBlock)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        self.0.write(bytes).map_err(|_| IoError::WouldBlock)
    }
}

/// So many peers of one address stop after Connect: half of the places there is memory for are theirs, and the others are rejected
/// as busy. Returns the peers to keep.
fn crowd(hub: &mut Hub, count: usize) -> Vec<(Stranger, Polled)> {
    let _host = hub.fabric.host("c66", vec![port("c66", "127.9.0.66/8")]).unwrap();
    let one = |number| {
        let stream = stream_from(66, hub.background.address());
        stream.set_nonblocking(true).unwrap();
        (
            Stranger::new(Ipv4Addr::new(127, 9, 0, 66).into(), number),
            Polled(stream),
        )
    };
    let mut crowd: Vec<_> = (0..).map(one).take(count).collect();
    let (mut kept, mut refused, began) = (Vec::new(), 0, Instant::now());
    while let Some((mut stranger, mut stream)) = crowd.pop() {
        assert!(began.elapsed() < SOON, "{} {refused}", kept.len());
        assert!(hub.acceptances.poll_accept(&mut hub.worker).unwrap().is_none());
        match stranger.connect(&mut stream) {
            Heard::Accept => kept.push((stranger, stream)),
            Heard::Refused(reject) => {
                assert!(
                    reject.reason == RejectReason::BUSY && reject.detail > 0,
                    "{reject}"
                );
                refused += 1;
            }
            Heard::End => panic!("{} {refused}", kept.len()),
            Heard::Nothing | Heard::Welcome => crowd.insert(0, (stranger, stream)),
        }
    }
    assert_eq!((kept.len(), refused), (PLACES / 2, count - PLACES / 2));
    kept
}

/// Connects so many peers one after the other on a thread of theirs; says how long the slowest took.
fn connect_all(fabric: &Fabric, hub: SocketAddr, last: u8, count: usize) -> thread::JoinHandle<Duration> {
    let node = tcp_node(
        fabric,
        &format!("c{last}"),
        vec![port(&format!("c{last}"), &format!("127.0.0.{last}/8"))],
    );
    thread::spawn(move || {
        let mut own = workers(&node);
        let mut slowest = Duration::ZERO;
        for _ in 0..count {
            let began = Instant::now();
            let peer = node.connect_at(&mut own, hub, &small(), within(SOON)).unwrap();
            slowest = slowest.max(began.elapsed());
            let now = own[0].within(Duration::ZERO);
            own[0].begin_close(peer.channel, now).unwrap();
            while own[0].channels().count() > 0 {
                own[0].poll_tending(|_, event| drop(event)).unwrap();
            }
        }
        slowest
    })
}

/// Real peers come from this address and the next.
fn real_peers_get_through(hub: &mut Hub, first: u8, others: usize) {
    let to = hub.background.address();
    let streams = rabble(to, others);
    let peers = [0, 1].map(|one| connect_all(&hub.fabric, to, first + one, 3));
    for _ in 0..6 {
        let channel = hub.acceptances.accept(&mut hub.worker, within(SOON)).unwrap();
        let now = hub.worker.within(Duration::ZERO);
        hub.worker.begin_close(channel, now).unwrap();
        while hub.worker.channels().count() > 0 {
            hub.worker.poll_tending(|_, event| drop(event)).unwrap();
        }
    }
    for peer in peers {
        let slowest = peer.join().unwrap();
        assert!(slowest < PROMPT, "{slowest:?}");
    }
    drop(streams);
}

/// A Worker's thread in an event loop: its descriptor is readable for each event, and not without one.
fn an_event_loop_is_told(hub: &mut Hub) {
    let is_readable = |hub: &Hub, span: i64| {
        let descriptor = hub.acceptances.descriptor().unwrap();
        let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: span,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&timeout)).unwrap() > 0
    };
    while hub.acceptances.poll_accept(&mut hub.worker).unwrap().is_some() {}
    assert!(!is_readable(hub, 0));
    let peer = connect_all(&hub.fabric, hub.background.address(), 21, 1);
    let mut accepted = None;
    while accepted.is_none() {
        assert!(is_readable(hub, 10));
        accepted = hub.acceptances.poll_accept(&mut hub.worker).unwrap();
    }
    peer.join().unwrap();
    while hub.acceptances.poll_accept(&mut hub.worker).unwrap().is_some() {}
    assert!(!is_readable(hub, 0));
    let now = hub.worker.within(Duration::ZERO);
    hub.worker.begin_close(accepted.unwrap(), now).unwrap();
    while hub.worker.channels().count() > 0 {
        hub.worker.poll_tending(|_, event| drop(event)).unwrap();
    }
}

/// With as many streams of an address as there may be, one that proves nothing makes room, and hears when to come again.
fn one_too_many_makes_room() {
    let mut limits = HandshakeLimits::default();
    limits.per_address = 1;
    let mut hub = hub(&limits);
    let to = hub.background.address();
    let mut silent = TcpStream::connect(to).unwrap();
    while hub.background.counts().begun == 0 {
        thread::yield_now();
    }
    let also_silent = TcpStream::connect(to).unwrap();
    silent.set_read_timeout(Some(SOON)).unwrap();
    let mut heard = Vec::new();
    silent.read_to_end(&mut heard).unwrap();
    let Ok(Frame::Reject(reject)) = Frame::parse(&heard) else {
        panic!("{heard:?}")
    };
    assert_eq!(reject.reason, RejectReason::BUSY);
    assert!(reject.detail > 0, "{reject}");
    // And that one for a real peer.
    let peer = connect_all(&hub.fabric, to, 31, 1);
    hub.acceptances.accept(&mut hub.worker, within(SOON)).unwrap();
    assert!(peer.join().unwrap() < PROMPT);
    drop(also_silent);
}

/// Out of descriptors, the thread stays, what is under way goes on, and others are taken in once there are some.
fn without_descriptors_it_goes_on() {
    let mut hub = hub(&HandshakeLimits::default());
    let to = hub.background.address();
    let mut rabble: Vec<_> = (0..8).map(|_| TcpStream::connect(to).unwrap()).collect();
    while hub.background.counts().begun < 8 {
        thread::yield_now();
    }
    let before = getrlimit(Resource::Nofile);
    let highest = fs::read_dir("/proc/self/fd").unwrap().map(|entry| {
        let name = entry.unwrap().file_name();
        name.to_str().unwrap().parse::<u64>().unwrap()
    });
    let few = Rlimit {
        current: Some(highest.max().unwrap() + 2),
        maximum: before.maximum,
    };
    setrlimit(Resource::Nofile, few).unwrap();
    // All descriptors are taken but one, for the client: none is left for the accepting side.
    let mut taken: Vec<_> = core::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
    assert!(taken.pop().is_some());
    let waiting = TcpStream::connect(to);
    let began = Instant::now();
    while hub.background.counts().port_failures < 3 && began.elapsed() < SOON {
        thread::yield_now();
    }
    let failures = hub.background.counts().port_failures;
    setrlimit(Resource::Nofile, before).unwrap();
    drop(taken);
    assert!(failures >= 3, "{:?}", hub.background.counts());
    assert!(failures < 100, "it rests in between: {failures}");
    let told = hub.background.take_failure();
    assert!(matches!(told, Some(ConnectError::Tcp(_))), "{told:?}");
    // One of those that were there before still talks, and hears.
    rabble[0].write_all(&[0xff; 600]).unwrap();
    rabble[0].set_read_timeout(Some(SOON)).unwrap();
    assert!(rabble[0].read(&mut [0; 64]).unwrap() > 0, "a Reject");
    real_peers_get_through(&mut hub, 11, 8);
    drop(waiting);
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn in_the_background() {
    let before = (descriptors(), threads());
    {
        let mut hub = hub(&HandshakeLimits::default());
        real_peers_get_through(&mut hub, 11, 0);
        real_peers_get_through(&mut hub, 13, 300);
        let crowd = crowd(&mut hub, 40);
        real_peers_get_through(&mut hub, 15, 0);
        drop(crowd);
        an_event_loop_is_told(&mut hub);
        // With some under way, it ends at once, all of it.
        let silent = rabble(hub.background.address(), 40);
        let Hub {
            fabric,
            node,
            worker,
            background,
            mut acceptances,
        } = hub;
        let mut worker = worker;
        let began = Instant::now();
        assert!(background.stop(within(PROMPT)));
        assert!(began.elapsed() < PROMPT);
        let none = acceptances.accept(&mut worker, within(PROMPT));
        assert!(matches!(none, Err(ConnectError::ListenerClosed)), "{none:?}");
        drop((acceptances, silent));
        assert!(node.settle(within(SOON)));
        assert_eq!(fabric.queue_pairs(), 0);
        let leases: Vec<_> = core::iter::from_fn(|| worker.lease()).collect();
        assert_eq!(leases.len(), PLACES * 16);
        fabric.audit().unwrap();
    }
    one_too_many_makes_room();
    without_descriptors_it_goes_on();
    // A listener that is dropped and not stopped ends, too.
    let began = Instant::now();
    while (descriptors(), threads()) != before {
        assert!(
            began.elapsed() < SOON,
            "{:?} of {before:?}",
            (descriptors(), threads())
        );
        thread::yield_now();
    }
}
