//! Shared receive queues: takers of receives, their ends, and the places of their slots.

use doorbell_core::WcStatus;
use doorbell_core::provider::{
    Arena, Arrival, Completion, CompletionQueue, CompletionQueueConfig, Context, Operation, PostFlags,
    ProtectionDomain, Provider, PushError, QueuePair, QueuePairConfig, ReceiveBatch, ReceiveQueue,
    RemoteAccess, SendBatch, SendQueue, SharedQueuePairParts, SharedReceiveQueue, SharedReceiveQueueConfig,
    Slot,
};

use super::{QUEUE_PAIR, Rig, SLOTS, Side, USUAL, Wish, poll_until, sides, to_send};

const EINVAL: i32 = 22;
const EEXIST: i32 = 17;

const QUEUE: SharedReceiveQueueConfig = SharedReceiveQueueConfig {
    depth: 6,
    scatter_max: 2,
};

const ON_SHARED: QueuePairConfig = QueuePairConfig {
    receive_depth: 0,
    scatter_max: 0,
    ..QUEUE_PAIR
};

/// One queue pair of a connection, without receives that matter.
struct Spoke<P: Provider> {
    control: P::QueuePair,
    send: P::SendQueue,
}

/// Two connections whose far ends share their receives. The sides' own queue pairs stay idle.
struct Shared<P: Provider> {
    queue: P::SharedReceiveQueue,
    far_spokes: Vec<Spoke<P>>,
    near_spokes: Vec<Spoke<P>>,
    near: Side<P>,
    far: Side<P>,
}

impl<P: Provider> Shared<P> {
    fn new<R: Rig<P = P>>(rig: &R) -> Self {
        Self::with(rig, &USUAL)
    }

    fn with<R: Rig<P = P>>(rig: &R, wish: &Wish) -> Self {
        let [near, far] = sides(rig, [*wish; 2]);
        let queue = far
            .domain
            .shared_receive_queue(&far.receive_completions, &QUEUE)
            .unwrap();
        let mut shared = Self {
            queue,
            far_spokes: Vec::new(),
            near_spokes: Vec::new(),
            near,
            far,
        };
        for channel in [10, 11] {
            shared.add(channel, wish);
        }
        shared
    }

    /// Makes one more connection.
    fn add(&mut self, channel: u32, wish: &Wish) {
        let Self { near, far, .. } = self;
        let own = QueuePairConfig {
            channel,
            ..QUEUE_PAIR
        };
        let parts = near
            .domain
            .queue_pair(&near.send_completions, &near.receive_completions, &own);
        let parts = parts.unwrap();
        let mut near_spoke: Spoke<P> = Spoke {
            control: parts.control,
            send: parts.send,
        };
        let on_shared = QueuePairConfig { channel, ..ON_SHARED };
        let parts = far
            .domain
            .queue_pair_on(&self.queue, &far.send_completions, &on_shared);
        let SharedQueuePairParts { control, send } = parts.unwrap();
        let mut far_spoke: Spoke<P> = Spoke { control, send };
        let names = [near_spoke.control.qpn(), far_spoke.control.qpn()];
        let connect = |side: &Side<P>, spoke: &mut Spoke<P>, peer| {
            spoke
                .control
                .initialize(side.end.port, RemoteAccess::ALL)
                .unwrap();
            spoke
                .control
                .ready_to_receive(&side.to_receive(wish, peer))
                .unwrap();
            spoke.control.ready_to_send(&to_send(wish)).unwrap();
        };
        connect(near, &mut near_spoke, (far.end.gid, names[1]));
        connect(far, &mut far_spoke, (near.end.gid, names[0]));
        self.near_spokes.push(near_spoke);
        self.far_spokes.push(far_spoke);
    }

    fn post_receives(&mut self, count: u32) {
        let mut batch = self.queue.stage();
        for _ in 0..count {
            let slot = self.far.arena.lease().unwrap();
            batch.push([slot]).map_err(|refused| refused.reason).unwrap();
        }
        assert_eq!(batch.ring(), Ok(count));
    }

    /// Sends from the near end of a connection.
    fn send(&mut self, spoke: usize, operation: Operation, bytes: &[u8]) {
        let mut batch = self.near_spokes[spoke].send.stage();
        batch.push_inline(operation, bytes, PostFlags::SIGNALED).unwrap();
        assert_eq!(batch.ring(), Ok(1));
    }

    fn completions(&mut self, count: usize) -> Vec<P::Completion> {
        poll_until(&mut self.far.receive_completions, count)
    }

    fn retire(&mut self, completion: &P::Completion) -> (Arrival, Vec<u8>) {
        let mut payload = Vec::new();
        let arrival = self.queue.retire(completion.lend(), |_, slot| {
            payload.extend_from_slice(slot.payload())
        });
        (arrival.unwrap(), payload)
    }

    /// Asserts that the queue knows nothing of a completion, and counts it.
    fn rejects(&mut self, completion: P::Completion) {
        let (in_flight, rejected) = (self.queue.in_flight(), self.queue.rejected());
        let outcome = self
            .queue
            .retire(completion.lend(), |_, _| panic!("nothing is given back"));
        assert!(outcome.is_err());
        assert_eq!(
            (self.queue.in_flight(), self.queue.rejected()),
            (in_flight, rejected + 1)
        );
    }

    /// Waits for so many requests of either connection to end.
    fn sent_statuses(&mut self, count: usize) -> Vec<WcStatus> {
        let mut retire = |completion: P::Completion| {
            let (status, qpn) = (completion.status(), completion.qpn());
            let mut spokes = self.near_spokes.iter_mut();
            let spoke = spokes.find(|spoke| spoke.control.qpn() == qpn).unwrap();
            spoke.send.retire(completion.lend(), |_, _| ()).unwrap();
            status
        };
        let completions = poll_until(&mut self.near.send_completions, count);
        completions.into_iter().map(&mut retire).collect()
    }

    fn sent_status(&mut self) -> WcStatus {
        self.sent_statuses(1)[0]
    }
}

pub(crate) fn completions_are_redeemed_in_any_order<R: Rig>(rig: &R) {
    let mut shared = Shared::new(rig);
    // Often enough that every place of the table is used again and again.
    for round in 0..20_u8 {
        shared.post_receives(4);
        for message in 0..4_u8 {
            shared.send(usize::from(message % 2), Operation::Send, &[round, message]);
            assert!(shared.sent_status().is_success());
        }
        let mut completions: Vec<_> = (0_u8..).zip(shared.completions(4)).collect();
        while !completions.is_empty() {
            let which = usize::from(round) * 7 % completions.len();
            let (message, completion) = completions.swap_remove(which);
            let (_, payload) = shared.retire(&completion);
            assert_eq!(payload, [round, message]);
        }
        assert_eq!(shared.queue.in_flight(), 0);
    }
    assert_eq!((shared.far.slots_home(), shared.queue.rejected()), (SLOTS, 0));
}

pub(crate) fn what_is_not_of_the_queue_is_rejected_and_counted<R: Rig>(rig: &R) {
    let mut shared = Shared::new(rig);
    shared.post_receives(4);
    // A completion of another completion queue.
    shared.send(0, Operation::Send, b"x");
    let foreign = poll_until(&mut shared.near.send_completions, 1).remove(0);
    shared.rejects(foreign);
    // A completion of another kind of queue: the shared queue's, given to a queue pair's receive queue.
    let ours = shared.completions(1).remove(0);
    assert!(
        shared
            .far
            .receive
            .retire(ours.lend(), |_, _| panic!("not its own"))
            .is_err()
    );
    assert_eq!(shared.far.receive.rejected(), 1);
    // A completion of another shared queue on the same completion queue.
    let mut other = shared
        .far
        .domain
        .shared_receive_queue(&shared.far.receive_completions, &QUEUE)
        .unwrap();
    assert_ne!(other.number(), shared.queue.number());
    assert_ne!(other.id(), shared.queue.id());
    let mut batch = other.stage();
    let slot = shared.far.arena.lease().unwrap();
    batch.push([slot]).map_err(|refused| refused.reason).unwrap();
    batch.ring().unwrap();
    shared.send(0, Operation::Send, b"y");
    let ours = shared.completions(1).remove(0);
    assert!(other.retire(ours.lend(), |_, _| panic!("not its own")).is_err());
    assert_eq!((other.rejected(), other.in_flight()), (1, 1));
    // Dropped unredeemed, a completion leaves its receive where it is: none covers another.
    shared.send(0, Operation::Send, b"z");
    let ours = shared.completions(1).remove(0);
    assert_eq!(shared.retire(&ours).1, b"z");
    assert_eq!(shared.queue.in_flight(), 3);
    // A kept completion is redeemed once, though it can be lent again.
    shared.rejects(ours);
}

pub(crate) fn a_stale_completion_names_nothing_of_the_next_shared_queue<R: Rig>(rig: &R) {
    let mut shared = Shared::new(rig);
    shared.post_receives(2);
    shared.send(0, Operation::Send, b"polled and kept");
    let kept = shared.completions(1).remove(0);
    shared.send(0, Operation::Send, b"left unpolled");
    // The same completion queue, and the same places of the table.
    shared.far_spokes.clear();
    shared.near_spokes.clear();
    let fresh = shared
        .far
        .domain
        .shared_receive_queue(&shared.far.receive_completions, &QUEUE)
        .unwrap();
    shared.queue = fresh;
    shared.post_receives(QUEUE.depth);
    shared.rejects(kept);
    let unpolled = shared.completions(1).remove(0);
    shared.rejects(unpolled);
}

pub(crate) fn shared_slots_go_home_when_the_last_queue_pair_is_gone<R: Rig>(rig: &R) {
    let Shared {
        queue,
        mut far_spokes,
        near_spokes,
        near,
        mut far,
    } = {
        let mut shared = Shared::new(rig);
        shared.post_receives(3);
        shared
    };
    drop((near_spokes, near));
    // The queue pairs may still take from it.
    drop(queue);
    assert_eq!(far.slots_home(), SLOTS - 3);
    let last = far_spokes.pop();
    drop(far_spokes);
    assert_eq!(far.slots_home(), SLOTS - 3);
    // Its send half alone is enough.
    let send = last.map(|spoke| spoke.send);
    assert_eq!(far.slots_home(), SLOTS - 3);
    drop(send);
    assert_eq!(far.slots_home(), SLOTS);

    // And the other way round.
    let mut shared = Shared::new(rig);
    shared.post_receives(3);
    shared.far_spokes.clear();
    assert_eq!(shared.far.slots_home(), SLOTS - 3);
    let Shared { queue, mut far, .. } = shared;
    drop(queue);
    assert_eq!(far.slots_home(), SLOTS);
}

pub(crate) fn a_shared_receive_is_taken_after_its_half_is_gone<R: Rig>(rig: &R) {
    let mut shared = Shared::new(rig);
    shared.post_receives(1);
    let Shared {
        queue,
        far_spokes,
        mut near_spokes,
        mut near,
        mut far,
    } = shared;
    drop(queue);
    let mut batch = near_spokes[0].send.stage();
    batch
        .push_inline(Operation::Send, b"x", PostFlags::SIGNALED)
        .unwrap();
    batch.ring().unwrap();
    assert!(poll_until(&mut near.send_completions, 1)[0].status().is_success());
    let completion = poll_until(&mut far.receive_completions, 1).remove(0);
    assert_eq!(completion.qpn(), far_spokes[0].control.qpn());
    drop((far_spokes, completion));
    assert_eq!(far.slots_home(), SLOTS);
}

pub(crate) fn a_full_shared_queue_hands_slots_back<R: Rig>(rig: &R) {
    let mut shared = Shared::new(rig);
    let slots = [(); 3].map(|()| shared.far.slot(b"mine"));
    let refused = shared.queue.stage().push(slots).unwrap_err();
    let expected = PushError::TooManySegments {
        segments: 3,
        segments_max: 2,
    };
    assert_eq!(refused.reason, expected);
    assert_eq!(refused.item[2].payload(), b"mine");
    drop(refused);
    shared.post_receives(QUEUE.depth);
    assert_eq!(shared.queue.room(), 0);
    let slot = shared.far.slot(b"mine");
    let refused = shared.queue.stage().push([slot]).unwrap_err();
    assert_eq!(
        (refused.reason, refused.item[0].payload()),
        (PushError::Full, &b"mine"[..])
    );
}

pub(crate) fn an_unrung_shared_batch_sends_its_slots_home<R: Rig>(rig: &R) {
    let mut shared = Shared::new(rig);
    let slot = shared.far.slot(b"");
    let mut batch = shared.queue.stage();
    batch.push([slot]).map_err(|refused| refused.reason).unwrap();
    assert_eq!(batch.staged(), 1);
    drop(batch);
    assert_eq!((shared.queue.in_flight(), shared.far.slots_home()), (0, SLOTS));
    let slot = shared.far.slot(b"");
    let mut batch = shared.queue.stage();
    batch.push([slot]).map_err(|refused| refused.reason).unwrap();
    core::mem::forget(batch);
    // Retiring does not mind what was left staged.
    assert_eq!(shared.queue.stage().staged(), 0, "a new batch begins empty");
    assert_eq!((shared.queue.in_flight(), shared.far.slots_home()), (0, SLOTS));
    shared.post_receives(1);
    let slot = shared.far.slot(b"");
    let mut batch = shared.queue.stage();
    batch.push([slot]).map_err(|refused| refused.reason).unwrap();
    core::mem::forget(batch);
    shared.send(0, Operation::Send, b"posted");
    let completion = shared.completions(1).remove(0);
    assert_eq!(shared.retire(&completion).1, b"posted");
    shared.post_receives(QUEUE.depth);
}

pub(crate) fn what_cannot_share_is_refused<R: Rig>(rig: &R) {
    let shared = Shared::new(rig);
    let (near, far) = (&shared.near, &shared.far);
    let make = |config: &SharedReceiveQueueConfig| {
        let made = far.domain.shared_receive_queue(&far.receive_completions, config);
        made.map(drop).map_err(|error| error.errno)
    };
    for (depth, scatter_max) in [(0, 1), (65_537, 1), (8, 5)] {
        assert_eq!(
            make(&SharedReceiveQueueConfig { depth, scatter_max }),
            Err(EINVAL)
        );
    }
    assert_eq!(make(&QUEUE), Ok(()));
    let foreign = far.domain.shared_receive_queue(&near.receive_completions, &QUEUE);
    assert_eq!(foreign.map(drop).unwrap_err().errno, EINVAL);

    let on = |domain: &<R::P as Provider>::ProtectionDomain,
              completions: &<R::P as Provider>::CompletionQueue,
              config: &QueuePairConfig| {
        let made = domain.queue_pair_on(&shared.queue, completions, config);
        made.map(drop).map_err(|error| error.errno)
    };
    let good = QueuePairConfig {
        channel: 20,
        ..ON_SHARED
    };
    let receives = QueuePairConfig {
        receive_depth: 1,
        ..good
    };
    let scatters = QueuePairConfig {
        scatter_max: 1,
        ..good
    };
    let taken = QueuePairConfig { channel: 10, ..good };
    let idle = QueuePairConfig {
        send_depth: 0,
        ..good
    };
    for (config, errno) in [
        (receives, EINVAL),
        (scatters, EINVAL),
        (taken, EEXIST),
        (idle, EINVAL),
    ] {
        assert_eq!(on(&far.domain, &far.send_completions, &config), Err(errno));
    }
    assert_eq!(on(&far.domain, &near.send_completions, &good), Err(EINVAL));
    assert_eq!(on(&near.domain, &near.send_completions, &good), Err(EINVAL));
    let other = far.context.protection_domain().unwrap();
    assert_eq!(on(&other, &far.send_completions, &good), Err(EINVAL));
    // None of these took the channel.
    let parts = far
        .domain
        .queue_pair_on(&shared.queue, &far.send_completions, &good)
        .unwrap();
    let limits = parts.control.limits();
    assert_eq!((limits.receive_depth, limits.scatter_max), (0, 0));
    assert_eq!(limits.send_depth, good.send_depth);
    // Without receives of its own it takes no channel on the completion queue of the receives.
    let own = QueuePairConfig {
        channel: 20,
        ..QUEUE_PAIR
    };
    let queue = CompletionQueueConfig {
        depth: 8,
        notify: false,
    };
    let sends = far.context.completion_queue(&queue).unwrap();
    far.domain
        .queue_pair(&sends, &far.receive_completions, &own)
        .unwrap();
    assert!(far.context.limits().shared_receive_depth_max >= QUEUE.depth);
    assert!(far.send_completions.depth() > 0);
}
