//! Receives that channels share, over `ffi` on the fake libibverbs: as many channels as a device may have, each of them
//! closed and its share used again, and the limit.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use core::time::Duration;
use std::sync::Mutex;
use std::thread;

use doorbell::provider::AsyncEvent;
use doorbell::worker::SharedReceivesConfig;
use doorbell::{
    ChannelConfig, ChannelId, Event, Lease, Listener, Node, Operation, PostFlags, Trust, Worker,
    WorkerConfig, within,
};
use doorbell_ffi::leaks;

/// Leaks are counted for the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const SOON: Duration = Duration::from_secs(20);

/// A Worker that shares its receives, and one that has the other ends of all its channels.
struct Hub {
    node: Node,
    worker: Worker,
    peer: Worker,
    /// The names of each channel, here and there, with how many messages were sent and came.
    channels: Vec<(ChannelId, ChannelId, u32, u32)>,
    held: Vec<Lease>,
}

impl Hub {
    fn new(depth: u32, limit: u32, slots: u32) -> Self {
        // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
        unsafe { rdma_sys::load_from(&doorbell_fake::library_path().unwrap()) }.unwrap();
        let node = Node::open(Trust::unauthenticated_on_purpose()).unwrap();
        let mut config = WorkerConfig::default();
        config.slots = slots;
        config.lease_share_percent = 0;
        let mut shared = SharedReceivesConfig::default();
        shared.depth = depth;
        shared.limit = limit;
        config.shared_receives = Some(shared);
        let worker = node.workers(&config).unwrap().remove(0);
        config.shared_receives = None;
        config.slots = 2048;
        let peer = node.workers(&config).unwrap().remove(0);
        Self {
            node,
            worker,
            peer,
            channels: Vec::new(),
            held: Vec::new(),
        }
    }

    fn add(&mut self, share: u32) {
        let mut config = ChannelConfig::default();
        config.send_depth = 8;
        config.receive_depth = share;
        let Self {
            node,
            worker,
            peer,
            channels,
            ..
        } = self;
        let (here, there) = (core::slice::from_mut(worker), core::slice::from_mut(peer));
        let any = "127.0.0.1:0".parse().unwrap();
        let mut listener = Listener::bind(node, here, any, &config).unwrap();
        let address = listener.address();
        let (here, there) = thread::scope(|scope| {
            let dialing = scope.spawn(|| {
                let connection = node.connect_at(there, address, &config, within(SOON));
                connection.unwrap().channel
            });
            let accepted = listener.accept(node, here, within(SOON)).unwrap();
            (accepted.channel, dialing.join().unwrap())
        });
        channels.push((here, there, 0, 0));
    }

    /// Sends on a channel until it may not, or so many.
    fn send(&mut self, at: usize, most: u32) -> u32 {
        self.peer
            .poll_tending(|_, event| assert!(matches!(event, Event::Done { .. }), "{event:?}"))
            .unwrap();
        let (_, id, sent, _) = &mut self.channels[at];
        let channel = self.peer.channel(*id).unwrap();
        let mut count = 0;
        while count < most {
            let number = sent.to_be_bytes();
            let mut batch = channel.batch();
            if batch
                .push_inline(Operation::Send, &number, PostFlags::SIGNALED)
                .is_err()
            {
                break;
            }
            batch.ring().unwrap();
            *sent += 1;
            count += 1;
        }
        count
    }

    /// Takes all that came, and holds it.
    fn poll(&mut self) {
        let Self {
            worker,
            channels,
            held,
            ..
        } = self;
        while worker
            .poll_tending(|turn, event| match event {
                Event::Received { message, .. } => {
                    let id = turn.channel.id();
                    let (.., came) = channels.iter_mut().find(|channel| channel.0 == id).unwrap();
                    assert_eq!(message.payload(), came.to_be_bytes());
                    *came += 1;
                    held.push(message.keep());
                }
                Event::Done { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap()
            > 0
        {}
        let counts = worker.shared_receives().unwrap();
        assert!(counts.granted <= counts.posted, "{counts:?}");
    }

    fn release(&mut self) {
        for message in self.held.drain(..) {
            self.worker.release(message);
        }
    }

    fn end(self) {
        let Self {
            node,
            worker,
            peer,
            held,
            ..
        } = self;
        drop((worker, peer, held));
        assert!(node.settle(within(SOON)), "the reaper is done");
    }
}

#[test]
fn hundreds_of_channels_with_a_receive_each() {
    let _alone = ALONE.lock();
    let before = leaks();
    let mut hub = Hub::new(256, 0, 256);
    for _ in 0..256 {
        hub.add(1);
    }
    for round in 1..=20 {
        for at in 0..256 {
            assert_eq!(hub.send(at, 2), 1, "one, and no more");
            if at % 7 == 0 {
                hub.poll();
                hub.release();
            }
        }
        // These polls receive the remaining messages and post their receives again.
        for _ in 0..3 {
            hub.poll();
            hub.release();
        }
        assert!(hub.channels.iter().all(|channel| channel.3 == round));
    }
    let counts = hub.worker.statistics().snapshot();
    assert_eq!(
        (counts.rejected, counts.orphaned, counts.received),
        (0, 0, 20 * 256)
    );
    hub.end();
    assert_eq!(leaks(), before);
}

#[test]
fn a_closed_channel_gives_its_share_back() {
    let _alone = ALONE.lock();
    let before = leaks();
    let mut hub = Hub::new(8, 0, 16);
    hub.add(4);
    hub.add(4);
    for round in 0..20_u32 {
        // The peer uses all, some or none of it before it goes.
        hub.send(0, round % 5);
        hub.send(1, 4);
        if round % 2 == 0 {
            hub.poll();
            hub.release();
        }
        let (here, there, ..) = hub.channels.remove(0);
        let mut came = 0;
        let closed = hub.worker.close(here, within(SOON), |turn, event| match event {
            Event::Received { .. } => {
                came += u32::from(turn.channel.id() == here);
            }
            Event::Done { .. } => {}
            other => panic!("{other:?}"),
        });
        closed.unwrap();
        if round % 2 == 1 {
            assert_eq!(came, round % 5, "what had come is reported");
        }
        hub.peer.close(there, within(SOON), |_, _| {}).ok();
        // The messages of the other channel were taken above, uncounted.
        let (_, _, sent, came) = &mut hub.channels[0];
        *came = *sent;
        hub.poll();
        let counts = hub.worker.shared_receives().unwrap();
        assert_eq!((counts.posted, counts.granted), (8, 4), "round {round}");
        hub.add(4);
    }
    hub.end();
    assert_eq!(leaks(), before);
}

#[test]
fn the_limit_is_reported_and_set_again() {
    let _alone = ALONE.lock();
    let before = leaks();
    let mut hub = Hub::new(8, 3, 8);
    hub.add(8);
    let limit = AsyncEvent::SharedReceiveLimit(hub.worker.shared_receives().unwrap().id);
    for round in 0..10 {
        assert_eq!(hub.send(0, 5), 5);
        hub.poll();
        assert_eq!(hub.worker.next_event(), Ok(None), "three are left");
        assert_eq!(hub.send(0, 3), 3);
        hub.poll();
        assert_eq!(hub.worker.next_event(), Ok(Some(limit)), "round {round}");
        assert_eq!(hub.worker.next_event(), Ok(None));
        hub.release();
        hub.poll();
    }
    hub.end();
    assert_eq!(leaks(), before);
}
