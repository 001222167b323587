//! Requests that the peer or the device would refuse are refused when they are posted, over the simulated fabric. The table of
//! them in the book has a test for each row.

mod table;

use std::collections::BTreeSet;

use crate::fabric::{LONG, node, port, small};
use doorbell::provider::{PushError, Window as _};
use doorbell::worker::SubmitterConfig;
use doorbell::{
    ChannelConfig, Listener, Node, Operation, PostFlags, RemoteAccess, RemoteAddress, SendErrorKind, Worker,
    WorkerConfig,
};
use doorbell_sim::{Fabric, Host, PortConfig, Quirks};
use table::Two;

fn workers(node: &Node<Host, Host>, slot_bytes: u32) -> Vec<Worker<Host>> {
    let mut config = WorkerConfig::default();
    config.slots = 64;
    config.slot_bytes = slot_bytes;
    node.workers(&config).unwrap()
}

fn two(config: &ChannelConfig, quirks: Quirks) -> Two<Host> {
    let fabric = Fabric::new();
    let ports: [PortConfig; 1] = [port("simA", "127.0.0.1/24")];
    let host = fabric.host_with("a", &ports, quirks).unwrap();
    let near = Node::with(host.clone(), host, doorbell::Trust::unauthenticated_on_purpose()).unwrap();
    let far = node(&fabric, "b", vec![port("simB", "127.0.0.2/24")]);
    // A receive is shorter than a lease of the peer.
    let mut near_workers = workers(&near, 4096);
    let mut far_workers = workers(&far, 2048);
    let address = "127.0.0.2:0".parse().unwrap();
    let mut listener = Listener::bind(&far, &far_workers, address, config).unwrap();
    let handle = *listener.handle();
    let from = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept(&far, &mut far_workers, far.within(LONG)).unwrap());
        let at = near
            .connect(&mut near_workers, &handle, config, near.within(LONG))
            .unwrap();
        accepting.join().unwrap();
        at.channel
    });
    let mut near_worker = near_workers.remove(0);
    let mut far_worker = far_workers.remove(0);
    let mut submitting = SubmitterConfig::default();
    submitting.slots = 8;
    submitting.slot_bytes = 4096;
    Two {
        submitter: near_worker.submitter(&submitting).unwrap(),
        all: table::window(&mut far_worker),
        near: near_worker,
        from,
        far: far_worker,
        receives: config.receive_depth as usize,
        other: workers(&near, 4096).remove(0),
    }
}

pub(crate) fn config() -> ChannelConfig {
    let mut config = small();
    config.remote = RemoteAccess::ALL;
    config.gather_max = 2;
    config
}

#[test]
fn what_is_known_to_be_wrong_is_refused_when_it_is_posted() {
    table::run(&mut two(&config(), Quirks::default()), table::rows());
}

#[test]
fn nothing_is_fetched_where_none_was_agreed() {
    let mut without = config();
    without.rd_atomic_max = 0;
    table::run(
        &mut two(&without, Quirks::default()),
        table::rows_without_fetches(),
    );
}

#[test]
fn a_device_without_atomics_is_asked_for_none() {
    let quirks = Quirks {
        has_no_atomics: true,
        ..Quirks::default()
    };
    let mut two = two(&config(), quirks);
    let remote = RemoteAddress::within(&two.all.remote(), 0, 8).unwrap();
    let lease = two.near.lease().unwrap();
    let channel = two.near.channel(two.from).unwrap();
    let add = Operation::FetchAndAdd { remote, add: 1 };
    let error = channel.post(add, lease, PostFlags::empty()).unwrap_err();
    assert_eq!(error.kind, SendErrorKind::Refused(PushError::NoAtomics));
    assert!(error.item.is_some());
}

#[test]
fn posting_on_what_failed_is_reported_by_its_completion() {
    table::posted_where_it_failed(&mut two(&config(), Quirks::default()));
}

/// The test of each row of the table in the book is one that is run, and each that is run stands there.
#[test]
fn the_book_has_a_row_for_each_test() {
    let book = include_str!("../../docs/posting.md");
    let rows = book.lines().filter(|line| line.starts_with("| "));
    let told: BTreeSet<&str> = rows
        .filter_map(|line| line.trim_end_matches(" |").rsplit_once("| `"))
        .map(|(_, name)| name.trim_end_matches('`'))
        .collect();
    let elsewhere = [
        "a_device_without_atomics_is_asked_for_none",
        "posting_on_what_failed_is_reported_by_its_completion",
        // Over the fake and on devices: memory is lent by its address.
        "memory_lent_for_reading_takes_no_bytes",
    ];
    let run: BTreeSet<&str> = table::rows::<Host>()
        .iter()
        .chain(&table::rows_without_fetches::<Host>())
        .map(|(name, _)| *name)
        .chain(elsewhere)
        .collect();
    assert_eq!(told, run);
}
