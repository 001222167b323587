//! Simulated hosts as a user has them: in one call, with descriptors, and in real time.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::mpsc;
use std::thread;

use crate::fabric::{End, connect, pair_on, small};
use doorbell::provider::{Clock as _, Instant};
use doorbell::worker::Watched;
use doorbell::{ChannelConfig, Event, Listener, Node, Notify, Trust, Wait, Worker, WorkerConfig};
use doorbell_sim::{ConfigError, Fabric, Host};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn node(host: Host) -> Node<Host, Host> {
    Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap()
}

#[test]
fn hosts_of_one_call_connect() {
    let hosts = Fabric::new().hosts().unwrap();
    let [server, client] = hosts.map(node);
    let (mut server, client) = connect((server, client), small(), small());
    let mut client = client.unwrap();
    let (id, message) = (client.id(), client.lease(b"hello"));
    client.worker().channel(id).unwrap().send_lease(message).unwrap();
    let came = server.until(|event| match event {
        Event::Received { message, .. } => Some(message.keep()),
        _ => None,
    });
    assert_eq!(came.payload(), b"hello");
}

#[test]
fn hosts_are_numbered_on() {
    let fabric = Fabric::new();
    let [first] = fabric.hosts().unwrap();
    let [second, third] = fabric.hosts().unwrap();
    assert_eq!(
        [first, second, third].map(|host| host.name().to_owned()),
        ["host1", "host2", "host3"]
    );
    fabric
        .host("taken", vec![crate::fabric::port("simX", "127.0.0.5/16")])
        .unwrap();
    let taken = fabric.hosts::<1>().unwrap_err();
    assert_eq!(taken, ConfigError::AddressTaken([127, 0, 0, 5].into()));
}

/// Whether one of a Worker's descriptors is readable, or becomes so within a span.
fn is_readable<P: Watched>(worker: &Worker<P>, within: Duration) -> bool {
    let descriptors = worker.descriptors().unwrap();
    let mut watched = descriptors.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
    poll(&mut watched, Some(&Timespec::try_from(within).unwrap())).unwrap() > 0
}

/// A clock that advances by a microsecond at each reading, until it is stopped.
static NOW_NS: AtomicU64 = AtomicU64::new(5_000_000_000);
static TICK_NS: AtomicU64 = AtomicU64::new(1000);

fn ticking() -> Instant {
    let tick_ns = TICK_NS.load(Ordering::SeqCst);
    Instant::from_ns(NOW_NS.fetch_add(tick_ns, Ordering::SeqCst))
}

/// A message is on its way for a microsecond: it stands still while the clock does, and nobody has to poll for it to arrive.
#[test]
fn a_fabric_in_real_time_goes_by_its_clock() {
    let fabric = Fabric::builder().real_time(ticking).build();
    assert!(fabric.now().to_ns() >= 5_000_000_000);
    let (mut server, mut client) = pair_on(&fabric, small(), small(), Notify::Every);
    TICK_NS.store(0, Ordering::SeqCst);
    let stands = fabric.now();
    let (id, message) = (client.id(), client.lease(b"slow"));
    client.worker().channel(id).unwrap().send_lease(message).unwrap();
    let End { workers, .. } = &mut server;
    let [worker] = &mut workers[..] else {
        panic!("one Worker")
    };
    // The rest of connecting is reported before.
    let sleep = loop {
        match worker.ready_to_sleep(|_, event| assert!(!matches!(event, Event::Received { .. }))) {
            Ok(Some(sleep)) => break sleep.at_most(),
            outcome => assert!(outcome.unwrap().is_none()),
        }
    };
    assert_eq!(sleep, None);
    assert!(!is_readable(worker, Duration::ZERO));
    assert_eq!(fabric.now(), stands);
    NOW_NS.fetch_add(1_000_000, Ordering::SeqCst);
    assert!(is_readable(worker, PATIENCE), "nobody let time pass");
    let mut came = None;
    worker
        .poll(|_, event| {
            if let Event::Received { message, .. } = event {
                came = Some(message.payload().to_vec());
            }
        })
        .unwrap();
    assert_eq!(came.as_deref(), Some(&b"slow"[..]));
    // A notification stays until it is taken, which the next sleep does.
    assert!(is_readable(worker, Duration::ZERO));
    assert!(worker.ready_to_sleep(|_, _| {}).unwrap().is_some());
    assert!(!is_readable(worker, Duration::ZERO));
}

/// Sleeps at the descriptors alone until so many messages came; each is sent back where that is asked for.
fn hear(worker: &mut Worker<Host>, messages: usize, echo: bool) -> VecDeque<Vec<u8>> {
    let (mut came, mut asked) = (VecDeque::new(), false);
    while came.len() < messages {
        if asked {
            assert!(
                is_readable(worker, PATIENCE),
                "{} of {messages} messages came",
                came.len()
            );
        }
        let leave = worker.ready_to_sleep(|turn, event| {
            if let Event::Received { message, .. } = event {
                came.push_back(message.payload().to_vec());
                if echo {
                    turn.channel.send_lease(message.keep()).unwrap();
                }
            }
        });
        asked = leave.unwrap().is_some();
    }
    came
}

/// Devices of the fabric, connections over TCP, one clock for both, and both threads asleep at descriptors.
#[test]
fn hosts_in_real_time_wake_each_other_through_descriptors() {
    const MESSAGES: usize = 100;
    let fabric = Fabric::builder().real_time(doorbell::now).build();
    let [server, client] = fabric
        .hosts()
        .unwrap()
        .map(|host| Node::with_provider(host, Trust::unauthenticated_on_purpose()).unwrap());
    let mut config = WorkerConfig::default();
    config.notify = Notify::Every;
    let channel = ChannelConfig::default();
    let (handles, handle) = mpsc::channel();
    let [served, heard] = thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut workers = server.workers(&config).unwrap();
            let mut listener =
                Listener::bind(&server, &workers, "127.0.0.1:0".parse().unwrap(), &channel).unwrap();
            handles.send((*listener.handle(), listener.address())).unwrap();
            let to = listener
                .accept(&server, &mut workers, server.within(PATIENCE))
                .unwrap();
            let came = hear(&mut workers[to.worker], MESSAGES, true).len();
            let worker = &mut workers[to.worker];
            worker
                .close(to.channel, worker.within(PATIENCE), |_, _| {})
                .unwrap();
            came
        });
        let (_, address) = handle.recv().unwrap();
        let mut workers = client.workers(&config).unwrap();
        let deadline = doorbell::within(PATIENCE);
        let to = client
            .connect_at(&mut workers, address, &channel, deadline)
            .unwrap();
        let worker = &mut workers[to.worker];
        let mut heard = 0;
        for number in 0..MESSAGES {
            let mut message = worker.lease().unwrap();
            message.fill(&number.to_be_bytes()).unwrap();
            worker.channel(to.channel).unwrap().send_lease(message).unwrap();
            heard += usize::from(hear(worker, 1, false) == [number.to_be_bytes()]);
        }
        [serving.join().unwrap(), heard]
    });
    assert_eq!([served, heard], [MESSAGES; 2]);
    // One clock for both.
    let times = [client.network().now(), fabric.now(), client.network().now()];
    assert!(times.is_sorted(), "{times:?}");
}

/// A thread that blocks in a wait is woken by the other thread, and by a deadline.
#[test]
fn who_waits_in_real_time_is_woken() {
    let fabric = Fabric::builder().real_time(doorbell::now).build();
    let (mut server, mut client) = pair_on(&fabric, small(), small(), Notify::Every);
    let sleeping = thread::spawn(move || {
        let worker = server.worker();
        let deadline = worker.within(PATIENCE);
        let mut came = 0;
        while came == 0 {
            let woken = worker.wait(Wait::SPIN_THEN_SLEEP, deadline, |_, event| {
                came += u32::from(matches!(event, Event::Received { .. }));
            });
            assert_ne!(woken.unwrap(), doorbell::Woken::Deadline);
        }
        let deadline = worker.within(Duration::from_millis(1));
        while worker.wait(Wait::SPIN_THEN_SLEEP, deadline, |_, _| {}).unwrap() != doorbell::Woken::Deadline {}
        came
    });
    let (id, message) = (client.id(), client.lease(b"wake up"));
    client.worker().channel(id).unwrap().send_lease(message).unwrap();
    assert_eq!(sleeping.join().unwrap(), 1);
}
