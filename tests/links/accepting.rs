//! Connections that wait to be accepted: a poll takes some of them, and nobody sleeps on the others.

use core::net::SocketAddr;
use std::sync::Arc;

use doorbell::connect::HandshakeLimits;
use doorbell::link::Links;
use doorbell::{ChannelConfig, Deadline, Listener, Node, Notify, Trust, Worker, WorkerConfig};
use doorbell_sim::{Fabric, Host};

use crate::fabric::{LONG, port, small};
use crate::processes::{PORT, config};

/// More than two polls take.
const PEERS: usize = 150;

fn with_few_receives(mut channel: ChannelConfig) -> ChannelConfig {
    (channel.send_depth, channel.receive_depth, channel.repost_batch) = (8, 8, 2);
    channel
}

/// A node with a Worker that has room for twice as many channels, so that one address may have begun so many.
fn node(fabric: &Fabric, name: &str, address: &str) -> (Arc<Node<Host, Host>>, Vec<Worker<Host>>) {
    let host = fabric.host(name, vec![port("sim0", address)]).unwrap();
    let node = Arc::new(Node::simulated(host, Trust::unauthenticated_on_purpose()).unwrap());
    let channels = 2 * PEERS as u32 + 2;
    let mut own = WorkerConfig::default();
    (own.slots, own.slot_bytes, own.notify) = (2 * 8 * channels, 2304, Notify::Every);
    (own.channels_max, own.channels_per_address) = (channels, channels);
    own.completion_depth = 16 * channels;
    let workers = node.workers(&own).unwrap();
    (node, workers)
}

#[test]
fn a_poll_accepts_a_bounded_number_and_nobody_sleeps_on_the_rest() {
    let fabric = Fabric::builder().driven().build();
    let (a, mut a_workers) = node(&fabric, "a", "10.0.0.1/24");
    let (b, mut b_workers) = node(&fabric, "b", "10.0.0.2/24");
    let mut own = config();
    own.channel = with_few_receives(own.channel);
    let mut links = Links::new(&b, &b_workers, &own).unwrap();
    let any = SocketAddr::from(([0, 0, 0, 0], PORT));
    let listener = Listener::bind(&b, &b_workers, any, &own.channel).unwrap();
    let mut limits = HandshakeLimits::default();
    (limits.under_way, limits.per_address) = (4 * PEERS, 4 * PEERS);
    limits.unaccepted = 4 * PEERS as u32;
    let (mut handshakes, acceptances) = listener.aside(&b, &b_workers, &limits);
    links.accept_from(acceptances);
    let handle = *links.handle().unwrap();
    let by = Deadline::after(fabric.now(), LONG);
    let channel = with_few_receives(small());
    let begin = |_| a.begin_connect(&a_workers, &handle, &channel, by).unwrap();
    let mut connecting: Vec<_> = (0..PEERS).map(begin).collect();
    let mut pass = || {
        loop {
            handshakes.poll();
            connecting.retain_mut(|one| {
                let outcome = one.poll(&a, &mut a_workers);
                outcome.is_none_or(|outcome| outcome.is_err())
            });
            if !fabric.step() {
                break connecting.len();
            }
        }
    };
    // All ask for a place, and all are granted one, before the first is connected.
    assert_eq!(pass(), PEERS);
    for _ in 0..PEERS {
        links.poll(&b, &mut b_workers, |_, _| {}).unwrap();
    }
    assert_eq!(pass(), 0);
    let accepted = |workers: &[Worker<Host>]| workers[0].channels().count();
    assert_eq!(accepted(&b_workers), 0);
    links.poll(&b, &mut b_workers, |_, _| {}).unwrap();
    let first = accepted(&b_workers);
    assert!(first > 0 && 2 * first < PEERS, "{first}");
    let mut sleeps = || links.ready_to_sleep(&b, &mut b_workers, |_, _| {}).unwrap();
    let is_ready = (0..PEERS).any(|_| sleeps().is_some());
    assert!(is_ready, "nobody sleeps after {PEERS} polls");
    assert_eq!(accepted(&b_workers), PEERS);
}
