//! Daemons on simulated hosts with two rails, in virtual time. Real links carry their frames.

use core::time::Duration;
use std::sync::Arc;

use doorbell::link::LinkConfig;
use doorbell::{Handle, Node, Trust, WorkerConfig};
use doorbell_sim::{Fabric, Host, PortConfig};

use super::world::{World, at};
use crate::name::NodeNumber;
use crate::peers::Peers;
use crate::reason::{GoneReason, UndeliveredReason};

/// Maximum number of polls of all routers and clients. Everything takes less.
const POLLS_MAX: usize = 200_000;

type OnHost = Peers<Host, Host>;

fn peers_on(host: &Host) -> (OnHost, Handle) {
    let trust = Trust::unauthenticated_on_purpose();
    let node = Arc::new(Node::simulated(host.clone(), trust).unwrap());
    let workers = node.workers(&WorkerConfig::default()).unwrap();
    let mut config = LinkConfig::default();
    (config.retained, config.ahead) = (64, 64);
    config.session.recover_within = Duration::from_millis(200);
    let mut peers = Peers::new(node, workers, &config, 4).unwrap();
    let handle = peers.listen_polled("0.0.0.0:0".parse().unwrap()).unwrap();
    (peers, handle)
}

struct Nodes {
    world: World,
    peers: Vec<OnHost>,
    hosts: Vec<Host>,
    handles: Vec<Handle>,
}

impl Nodes {
    fn new(fabric: &Fabric, count: u32) -> Self {
        let host = |number: u32| {
            let port = |rail: u32| {
                let address = format!("10.0.{rail}.{}/24", number + 1).parse().unwrap();
                PortConfig::new(&format!("rail{rail}"), &[address])
            };
            let ports: Vec<_> = (1..=2).map(port).collect();
            fabric.host(&format!("host{number}"), ports).unwrap()
        };
        let hosts: Vec<_> = (0..count).map(host).collect();
        let (mut peers, handles): (Vec<_>, Vec<_>) = hosts.iter().map(peers_on).unzip();
        let mut world = World::new(count);
        for (own, peers) in peers.iter_mut().enumerate() {
            for (other, handle) in handles.iter().enumerate().filter(|(other, _)| *other != own) {
                peers.add(&mut world.routers[own], NodeNumber(other as u32), *handle);
            }
        }
        Self {
            world,
            peers,
            hosts,
            handles,
        }
    }

    /// Polls everything until the condition holds.
    fn until(&mut self, what: &str, is_done: impl Fn(&World) -> bool) {
        for _ in 0..POLLS_MAX {
            if is_done(&self.world) {
                return;
            }
            self.poll();
        }
        panic!("not in time: {what}");
    }

    /// Polls everything until the number of links of the first node is right.
    fn until_links(&mut self, is_right: impl Fn(usize) -> bool) {
        for _ in 0..POLLS_MAX {
            if is_right(self.peers[0].links()) {
                return;
            }
            self.poll();
        }
        panic!("not in time: links");
    }

    fn poll(&mut self) {
        for node in 0..self.peers.len() {
            self.world.poll(node);
            self.peers[node].poll(&mut self.world.routers[node]).unwrap();
        }
        for process in 0..self.world.processes.len() {
            if self.world.processes[process].is_alive && self.world.processes[process].is_reading {
                self.world.read(process);
            }
        }
    }
}

#[test]
fn messages_of_many_processes_share_four_links_each_way_which_are_made_when_they_are_needed() {
    let fabric = Fabric::new();
    let mut nodes = Nodes::new(&fabric, 2);
    let senders: Vec<_> = (0..8)
        .map(|number| nodes.world.attach(0, 1, number).unwrap())
        .collect();
    let receivers: Vec<_> = (0..8)
        .map(|number| nodes.world.attach(1, 1, number).unwrap())
        .collect();
    for _ in 0..100 {
        nodes.until("a poll", |_| true);
    }
    assert_eq!(nodes.peers[0].links(), 0);
    let mut sent = 0;
    for round in 0..30 {
        for (number, sender) in senders.iter().enumerate() {
            let to = at(1, ((number + round) % 8) as u32);
            sent += u64::from(nodes.world.send(*sender, to, round));
        }
        let count = |world: &World| {
            receivers
                .iter()
                .map(|at| world.processes[*at].received)
                .sum::<u64>()
        };
        nodes.until("messages", |world| count(world) == sent);
    }
    assert!(sent > 200);
    // Four links that this node connected, and as many that the other node connected for its answers.
    let links = nodes.peers[0].links();
    assert!((2..=8).contains(&links), "{links}");
    nodes.world.check();
}

#[test]
fn an_end_and_a_refusal_come_from_another_node_with_their_reasons() {
    let fabric = Fabric::new();
    let mut nodes = Nodes::new(&fabric, 2);
    let near = nodes.world.attach(0, 1, 0).unwrap();
    let far = nodes.world.attach(1, 1, 0).unwrap();
    nodes.world.send(near, at(1, 0), 0);
    nodes.world.send(near, at(1, 5), 0);
    nodes.until("a message", |world| world.processes[far].received == 1);
    nodes.until("a refusal", |world| {
        world.processes[near].undelivered == [UndeliveredReason::NoEndpoint]
    });
    nodes.world.kill(far, GoneReason::Died);
    nodes.until("an end", |world| {
        world.processes[near].gone == [(at(1, 0), GoneReason::Died)]
    });
    nodes.world.check();
}

#[test]
fn a_daemon_that_starts_anew_is_one_loss_and_all_goes_on() {
    // The next daemon is detected by its first link, by its handle, or by both. A message is sent while it is absent, or
    // not.
    for (speaks_first, is_sent_meanwhile) in [(false, false), (false, true), (true, false), (true, true)] {
        let fabric = Fabric::new();
        let mut nodes = Nodes::new(&fabric, 2);
        let near = nodes.world.attach(0, 1, 0).unwrap();
        let far = nodes.world.attach(1, 1, 0).unwrap();
        nodes.world.send(near, at(1, 0), 0);
        nodes.world.send(far, at(0, 0), 0);
        let both = |world: &World| world.processes[near].received == 1 && world.processes[far].received == 1;
        nodes.until("a message each way", both);
        // The daemon of the other node dies with its clients. The next daemon has another handle.
        nodes.world.processes[far].is_alive = false;
        let (next, handle) = peers_on(&nodes.hosts[1]);
        let mut limits = World::new(2);
        nodes.world.routers[1] = limits.routers.remove(1);
        nodes.peers[1] = next;
        let loss = [(at(1, 0), GoneReason::NodeLost)];
        nodes.until("the loss", |world| world.processes[near].gone == loss);
        let ours = nodes.handles[0];
        nodes.peers[1].add(&mut nodes.world.routers[1], NodeNumber(0), ours);
        let again = nodes.world.attach(1, 1, 0).unwrap();
        if is_sent_meanwhile {
            nodes.world.send(near, at(1, 0), 0);
            // An attempt with the old handle fails.
            nodes.until_links(|links| links > 0);
            nodes.until_links(|links| links == 0);
        }
        if speaks_first {
            nodes.world.send(again, at(0, 0), 0);
            nodes.until("its first word", |world| world.processes[near].received == 2);
        }
        nodes.peers[0].add(&mut nodes.world.routers[0], NodeNumber(1), handle);
        nodes.world.send(near, at(1, 0), 0);
        let sent = 1 + u64::from(is_sent_meanwhile);
        nodes.until("a message", |world| world.processes[again].received == sent);
        assert_eq!(
            nodes.world.processes[near].gone, loss,
            "{speaks_first} {is_sent_meanwhile}"
        );
        assert_eq!(nodes.world.processes[near].undelivered, []);
        nodes.world.check();
    }
}
