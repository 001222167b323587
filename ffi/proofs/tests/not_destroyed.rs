//! A queue pair that the device will neither destroy nor fail is reported. Runs over `ffi` on the fake
//! libibverbs. All memory that the queue pair may use stays there and registered, and its Worker goes on beside
//! it.
//!
//! One test, since faults are those of the whole process.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::time::Duration;
use std::time::Instant;

use doorbell::worker::{CloseError, CloseProgress, SharedReceivesConfig};
use doorbell::{ChannelConfig, ChannelId, ConnectError, Listener, Node, Trust, Worker, WorkerConfig, within};
use doorbell_fake::{Call, Control};
use doorbell_ffi::leaks;
use doorbell_operation::{Labels, Metrics};

const SOON: Duration = Duration::from_secs(20);
const EBUSY: i32 = 16;

/// Objects that stay with a queue pair: the memory of its Worker, its own objects, and the objects under them.
const LEFT: [(Call, u32); 4] = [
    (Call::DeregMr, 1),
    (Call::DestroyCq, 2),
    (Call::DeallocPd, 1),
    (Call::CloseDevice, 1),
];

fn workers(node: &Node, shared: Option<SharedReceivesConfig>) -> Vec<Worker> {
    let mut config = WorkerConfig::default();
    config.channels_max = 2;
    config.shared_receives = shared;
    node.workers(&config).unwrap()
}

/// Connects the first Workers to each other; the channel of the one that connects.
fn connect(node: &Node, a: &mut [Worker], b: &mut [Worker]) -> Result<ChannelId, ConnectError> {
    let mut config = ChannelConfig::default();
    // Their block would be one registration more.
    config.cell_bytes = 0;
    let mut listener = Listener::bind(node, b, "127.0.0.1:0".parse().unwrap(), &config).unwrap();
    let address = listener.address();
    let mut connecting = node.begin_connect_at(a, address, &config, within(SOON))?;
    let (began, mut connected, mut accepted) = (Instant::now(), None, false);
    loop {
        assert!(began.elapsed() < SOON, "{connecting:?}");
        if connected.is_none() {
            connected = connecting.poll(node, a).transpose()?;
        }
        accepted = accepted || listener.poll_accept(node, b).unwrap().is_some();
        if let (Some(connected), true) = (&connected, accepted) {
            return Ok(connected.channel);
        }
    }
}

fn close(worker: &mut Worker, channel: ChannelId) -> Result<(), CloseError> {
    worker.begin_close(channel, within(Duration::ZERO)).unwrap();
    let deadline = within(SOON);
    loop {
        worker.poll_tending(|_, _| ()).unwrap();
        if let CloseProgress::Closed(outcome) = worker.close_progress(channel) {
            return outcome;
        }
        assert!(!deadline.has_passed(within(Duration::ZERO).instant()));
    }
}

fn reported(worker: &mut Worker) -> bool {
    let mut metrics = Metrics::default();
    metrics.worker(&Labels::new(&[]).unwrap(), worker);
    let text = metrics.to_string();
    text.contains(&format!(
        "\ndoorbell_worker_not_destroyed_queue_pairs {}\n",
        worker.not_destroyed()
    ))
}

#[test]
fn what_the_device_will_not_destroy_is_reported_and_left_alone() {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    drop(Node::open(Trust::unauthenticated_on_purpose()).unwrap());
    let control = Control::of(&path).unwrap();
    for shared in [None, Some(SharedReceivesConfig::default())] {
        control.heal();
        let before = leaks();
        let node = Node::open(Trust::unauthenticated_on_purpose()).unwrap();
        let (mut a, mut b) = (workers(&node, shared), workers(&node, None));
        let channel = connect(&node, &mut a, &mut b).unwrap();
        control.fail(Call::DestroyQp, 0, EBUSY);
        if shared.is_some() {
            // One on shared receives is failed before it is destroyed.
            control.fail(Call::ModifyQp, 0, EBUSY);
        }
        let worker = a.first_mut().unwrap();
        assert_eq!(worker.not_destroyed(), 0);
        assert_eq!(close(worker, channel), Err(CloseError::NotDestroyed));
        assert_eq!((worker.channels().count(), worker.not_destroyed()), (0, 1));
        assert!(reported(worker));
        // Beside it there is one place more, which is given again and again.
        for _ in 0..3 {
            let channel = connect(&node, &mut a, &mut b).unwrap();
            let refused = connect(&node, &mut a, &mut b);
            assert!(
                matches!(refused, Err(ConnectError::TooManyChannels { .. })),
                "{refused:?}"
            );
            assert_eq!(close(a.first_mut().unwrap(), channel), Ok(()));
            let peer = b.first_mut().unwrap();
            let theirs: Vec<_> = peer.channels().collect();
            for channel in theirs {
                assert_eq!(close(peer, channel), Ok(()));
            }
        }
        assert_eq!(a.first().unwrap().not_destroyed(), 1);
        drop((a, b));
        assert!(node.settle(within(SOON)));
        drop(node);
        let made = |destroy: Call| Call::LIVES.iter().find(|(_, other)| *other == destroy).unwrap().0;
        for (destroy, left) in LEFT {
            assert_eq!(
                control.calls(destroy) + left,
                control.calls(made(destroy)),
                "{destroy:?}"
            );
        }
        let srqs = control.calls(Call::CreateSrq) - control.calls(Call::DestroySrq);
        assert_eq!(srqs, u32::from(shared.is_some()));
        let mut expected = before;
        expected.queue_pairs += 1;
        expected.arenas += 1;
        assert_eq!(leaks(), expected);
    }
}
