//! Requests that the peer or the device would refuse are refused when they are posted, and callbacks of polls, probes and many channels
//! do as documented, over `ffi`. It runs on the fake libibverbs, or on the device that `DOORBELL_DEVICE` names if
//! `DOORBELL_REQUIRE_DEVICE=1` is set.
#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "device/channels.rs"]
mod channels;
#[path = "device/lent.rs"]
mod lent;
#[path = "../../../tests/worker/posting/table.rs"]
mod table;
#[path = "device/within_polls.rs"]
mod within_polls;

use core::net::IpAddr;
use core::time::Duration;

use doorbell::worker::SubmitterConfig;
use doorbell::{ChannelConfig, Listener, Node, Rdma, RemoteAccess, Trust, Worker, WorkerConfig, within};
use table::Two;

const SOON: Duration = Duration::from_secs(60);

/// The node, on the device that is asked for; else on the fake.
fn node() -> Node {
    if std::env::var("DOORBELL_REQUIRE_DEVICE").is_ok_and(|value| value == "1") {
        rdma_sys::load().unwrap();
    } else {
        // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
        unsafe { rdma_sys::load_from(&doorbell_fake::library_path().unwrap()) }.unwrap();
    }
    Node::open(Trust::unauthenticated_on_purpose()).unwrap()
}

fn worker(node: &Node, slot_bytes: u32) -> Vec<Worker> {
    let mut config = WorkerConfig::default();
    config.slots = 256;
    config.slot_bytes = slot_bytes;
    let mut workers = node.workers(&config).unwrap();
    workers.truncate(1);
    workers
}

fn two(config: &ChannelConfig) -> Two<Rdma> {
    let node = node();
    // A receive is shorter than a lease of the peer.
    let (mut near, mut far) = (worker(&node, 4096), worker(&node, 2048));
    let address = (IpAddr::from([127, 0, 0, 1]), 0).into();
    let mut listener = Listener::bind(&node, &far, address, config).unwrap();
    let address = listener.address();
    let from = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept(&node, &mut far, within(SOON)).unwrap());
        let from = node.connect_at(&mut near, address, config, within(SOON)).unwrap();
        accepting.join().unwrap();
        from.channel
    });
    let (mut near, mut far) = (near.remove(0), far.remove(0));
    let mut submitting = SubmitterConfig::default();
    submitting.slots = 8;
    submitting.slot_bytes = 4096;
    Two {
        submitter: near.submitter(&submitting).unwrap(),
        all: table::window(&mut far),
        near,
        from,
        far,
        receives: config.receive_depth as usize,
        other: worker(&node, 4096).remove(0),
    }
}

fn config() -> ChannelConfig {
    let mut config = ChannelConfig::default();
    config.send_depth = 16;
    config.receive_depth = 16;
    config.repost_batch = 4;
    config.remote = RemoteAccess::ALL;
    config.gather_max = 2;
    config
}

#[test]
fn what_is_known_to_be_wrong_is_refused_when_it_is_posted() {
    table::run(&mut two(&config()), table::rows());
}

#[test]
fn nothing_is_fetched_where_none_was_agreed() {
    let mut without = config();
    without.rd_atomic_max = 0;
    table::run(&mut two(&without), table::rows_without_fetches());
}

#[test]
fn posting_on_what_failed_is_reported_by_its_completion() {
    table::posted_where_it_failed(&mut two(&config()));
}
