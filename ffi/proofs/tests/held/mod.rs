//! What the proofs share that hold calls of a device, on every thread but the one that polls, over `ffi` on the fake libibverbs.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use doorbell::{ChannelConfig, Node, Trust, Worker, WorkerConfig};
use doorbell_fake::{Call, Control};

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// How long calls are held that are to be too late.
pub(crate) const HELD: Duration = Duration::from_secs(3);

/// And how many polls are made meanwhile where they are not. If each of them waited for but a moment, there would not be so many by
/// the deadline; if one waited for as long as the call takes, there would be no other.
pub(crate) const POLLS: u32 = 5000;

/// No poll takes longer meanwhile.
const PROMPT: Duration = Duration::from_millis(1500);

/// The fake, loaded for this process.
pub(crate) fn fake() -> Control {
    let path = doorbell_fake::library_path().unwrap();
    rdma_sys::load_from(&path).unwrap();
    drop(open());
    Control::of(&path).unwrap()
}

pub(crate) fn open() -> Arc<Node> {
    Arc::new(Node::open(Trust::unauthenticated_on_purpose()).unwrap())
}

/// Runs a case that says how long its longest poll took: once more where that was too long, since a machine that stands still for
/// a while does not do so twice in a place.
pub(crate) fn prompt(case: impl Fn() -> Duration) {
    if case() >= PROMPT {
        let longest = case();
        assert!(longest < PROMPT, "{longest:?}");
    }
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
