//! Parts shared by the proofs that hold calls of a device on every thread but the one that polls.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use doorbell::{ChannelConfig, ChannelId, Event, Node, Operation, Trust, Worker, WorkerConfig};
use doorbell_fake::{Call, Control};

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// How long calls are held that are to be too late.
pub(crate) const HELD: Duration = Duration::from_secs(3);

/// The polls that are made while other calls are held. One that waited for the call would be the last, since the thread that polls lets it go.
pub(crate) const POLLS: u32 = 5000;

/// The messages that come while calls are held that are to be too late. A poll that waited until the deadline would leave no time for them.
const MESSAGES: u32 = 100;

/// Longer than any test: a sleep that only a deadline ends is found as a test that does not end.
pub(crate) const NO_TIMER: Duration = Duration::from_secs(3600);

/// The fake, loaded for this process.
pub(crate) fn fake() -> Control {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    drop(open());
    Control::of(&path).unwrap()
}

pub(crate) fn open() -> Arc<Node> {
    Arc::new(Node::open(Trust::unauthenticated_on_purpose()).unwrap())
}

/// Nothing is left of what was made since all was healed, by the deadline.
pub(crate) fn all_destroyed(control: Control) {
    let began = Instant::now();
    for (made, destroyed) in Call::LIVES {
        while control.calls(made) != control.calls(destroyed) {
            assert!(began.elapsed() < SOON, "{destroyed:?}");
            std::thread::yield_now();
        }
    }
}

pub(crate) fn config(stage: Duration) -> ChannelConfig {
    let mut config = ChannelConfig::default();
    config.send_depth = 8;
    config.receive_depth = 8;
    config.handshake_stage = stage;
    config
}

pub(crate) fn worker(node: &Node, channels_max: u32) -> Worker {
    let mut config = WorkerConfig::default();
    config.slots = 64;
    config.slot_bytes = 64;
    config.channels_max = channels_max;
    node.workers(&config).unwrap().remove(0)
}

/// Traffic while calls are held: messages on a channel between a Worker that accepts and one that connects.
pub(crate) struct Traffic {
    pub(crate) hub: Worker,
    pub(crate) own: [Worker; 1],
    pub(crate) first: Option<ChannelId>,
    pub(crate) received: u32,
    pub(crate) polls: u32,
}

impl Traffic {
    pub(crate) const fn new(hub: Worker, own: Worker) -> Self {
        Self {
            hub,
            own: [own],
            first: None,
            received: 0,
            polls: 0,
        }
    }

    /// Polls both, with a message on its way.
    pub(crate) fn poll(&mut self) {
        let [own] = &mut self.own;
        if let Some(channel) = self.first.and_then(|first| own.channel(first)) {
            let _ = channel.post_inline(Operation::Send, &[0; 8]);
        }
        own.poll_tending(|_, event| drop(event)).unwrap();
        let received = &mut self.received;
        self.hub
            .poll_tending(|_, event| {
                *received = received.saturating_add(u32::from(matches!(event, Event::Received { .. })));
            })
            .unwrap();
        self.polls = self.polls.saturating_add(1);
    }

    /// Counts from here.
    pub(crate) const fn count_anew(&mut self) {
        (self.received, self.polls) = (0, 0);
    }

    /// Whether what else there was to do went on.
    pub(crate) const fn goes_on(&self) -> bool {
        self.received > MESSAGES
    }

    /// Lets calls go on. None of them was made on this thread, and what else there was to do went on.
    pub(crate) fn let_go(&self, control: Control, case: &str) {
        assert_eq!(control.let_go(), 0, "{case}");
        assert!(self.goes_on(), "{case}: {}", self.received);
    }
}
