//! Members on hosts of a simulated fabric, each two that share a cable on a subnet of their own.

use core::net::SocketAddr;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::collections::VecDeque;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;

use doorbell::mesh::{Mesh, MeshConfig, MeshEvent, MeshSendError, Rank};
use doorbell::provider::Instant;
use doorbell::{Deadline, Handle, Node, Notify, Trust, Worker, WorkerConfig};
use doorbell_sim::{Fabric, Host};

use super::fabric::{port, small};

pub(crate) const PORT: u16 = 7000;

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn rank(number: usize) -> Rank {
    Rank::new(number as u8).unwrap()
}

pub(crate) fn config(at: usize, ranks: usize, started: u64) -> MeshConfig {
    let mut config = MeshConfig::new(rank(at), ranks as u8, started);
    config.window = 4;
    config.message_bytes_max = 2000;
    let channel = config.link.channel;
    config.link.channel = small();
    (config.link.channel.timeout, config.link.channel.retry_count) = (channel.timeout, channel.retry_count);
    config.link.channel.handshake_stage = channel.handshake_stage;
    config.link.session.fragment_bytes = 2048;
    // A member that is gone is given up while a test waits.
    config.link.session.recover_within = ms(300);
    // And one whose start was said to be ahead can come back.
    config.start_ahead_max = ms(1000);
    config.link.retained = 16;
    config.link.ahead = 16;
    config.link.message_bytes_max = 4096;
    config
}

/// A member: what it has, and what it has seen.
pub(crate) struct Member {
    pub(crate) mesh: Mesh<Host, Host>,
    pub(crate) workers: Vec<Worker<Host>>,
    pub(crate) node: Arc<Node<Host, Host>>,
    pub(crate) handle: Handle,
    pub(crate) events: Vec<MeshEvent>,
    /// Messages still to be sent, in order.
    pub(crate) outbox: VecDeque<(Rank, Vec<u8>)>,
    pub(crate) inbox: Vec<Vec<Vec<u8>>>,
    /// As by SIGSTOP: its device goes on.
    pub(crate) is_stopped: bool,
    /// Its callbacks panic behind every nth event and message.
    pub(crate) panics_every: Option<usize>,
    /// How often they did.
    pub(crate) panics: usize,
}

impl Member {
    fn start(host: &Host, config: &MeshConfig) -> Self {
        let trust = Trust::unauthenticated_on_purpose();
        let node = Arc::new(Node::with(host.clone(), host.clone(), trust).unwrap());
        let mut own = WorkerConfig::default();
        let channel = config.link.channel;
        own.slots = u32::from(config.ranks.max(4)) * (channel.send_depth + channel.receive_depth);
        own.slot_bytes = 4096;
        own.notify = Notify::Every;
        let workers = node.workers(&own).unwrap();
        let mut mesh = Mesh::new(&node, &workers, config).unwrap();
        let any = SocketAddr::from(([0, 0, 0, 0], PORT));
        let handle = mesh.listen_polled(&node, &workers, any).unwrap();
        Self {
            inbox: vec![Vec::new(); usize::from(config.ranks)],
            mesh,
            workers,
            node,
            handle,
            events: Vec::new(),
            outbox: VecDeque::new(),
            is_stopped: false,
            panics_every: None,
            panics: 0,
        }
    }

    pub(crate) fn poll(&mut self) {
        if self.is_stopped {
            return;
        }
        let Self {
            mesh,
            node,
            workers,
            events,
            panics_every,
            panics,
            ..
        } = self;
        through(panics, || {
            mesh.poll(node, workers, |event| {
                events.push(event);
                panic_at(*panics_every, events.len());
            })
            .unwrap();
        });
        self.post();
    }

    /// Asks for leave to sleep, and until when.
    pub(crate) fn ready_to_sleep(&mut self) -> Option<Deadline> {
        let Self {
            mesh,
            node,
            workers,
            events,
            ..
        } = self;
        mesh.ready_to_sleep(node, workers, |event| events.push(event))
            .unwrap()
    }

    /// Sends what is to be sent, as far as it is taken.
    pub(crate) fn post(&mut self) {
        while let Some((to, message)) = self.outbox.front() {
            let (header, payload) = message.split_at(message.len() / 2);
            match self.mesh.send(*to, header, payload) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(MeshSendError::WouldBlock | MeshSendError::Unreachable(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Takes what has come from all.
    pub(crate) fn take(&mut self) {
        let Self {
            mesh,
            inbox,
            panics_every,
            panics,
            ..
        } = self;
        for (from, inbox) in inbox.iter_mut().enumerate() {
            if from == mesh.rank().index() {
                continue;
            }
            let mut look = |message: &[u8]| {
                inbox.push(message.to_vec());
                panic_at(*panics_every, inbox.len());
            };
            through(panics, || {
                while let Ok(Some(())) = mesh.receive(rank(from), &mut look) {}
            });
        }
    }
}

/// The payload of callbacks that are to panic.
struct OnPurpose;

/// Panics behind every nth, without a word on the standard error.
fn panic_at(every: Option<usize>, count: usize) {
    if every.is_some_and(|every| count % every == 0) {
        resume_unwind(Box::new(OnPurpose));
    }
}

/// Calls it until it no longer panics on purpose, and counts how often it did.
fn through(panics: &mut usize, mut call: impl FnMut()) {
    while let Err(panic) = catch_unwind(AssertUnwindSafe(&mut call)) {
        if !panic.is::<OnPurpose>() {
            resume_unwind(panic);
        }
        *panics += 1;
    }
}

pub(crate) struct World {
    pub(crate) fabric: Fabric,
    pub(crate) hosts: Vec<Host>,
    pub(crate) members: Vec<Option<Member>>,
}

impl World {
    /// So many members, each two of these with a cable; device `simK` is at the K-th.
    pub(crate) fn new(ranks: usize, cables: &[(usize, usize)], plan: &str) -> Self {
        let mut world = Self::apart(ranks, cables, plan);
        for at in 0..ranks {
            world.link(at);
        }
        world
    }

    /// The same, made with this.
    pub(crate) fn made(
        ranks: usize,
        cables: &[(usize, usize)],
        plan: &str,
        config: impl Fn(usize) -> MeshConfig,
    ) -> Self {
        let mut world = Self::of_hosts(ranks, cables, plan);
        (0..ranks).for_each(|at| world.begin_with(at, &config(at)));
        (0..ranks).for_each(|at| world.link(at));
        world
    }

    /// Members that know of no other.
    pub(crate) fn apart(ranks: usize, cables: &[(usize, usize)], plan: &str) -> Self {
        let mut world = Self::of_hosts(ranks, cables, plan);
        for at in 0..ranks {
            world.begin(at, 1);
        }
        world
    }

    /// Their hosts, before any of them is started.
    pub(crate) fn of_hosts(ranks: usize, cables: &[(usize, usize)], plan: &str) -> Self {
        Self::on_subnets(ranks, plan, |at| {
            let cables = (0..).zip(cables);
            let of_it = cables.filter(|(_, cable)| cable.0 == at || cable.1 == at);
            of_it.map(|(number, _)| number).collect()
        })
    }

    /// The same of hosts with a port on each of these subnets: device `simK` is on the K-th.
    pub(crate) fn on_subnets(ranks: usize, plan: &str, subnets: impl Fn(usize) -> Vec<usize>) -> Self {
        let fabric = Fabric::builder().plan(plan.parse().unwrap()).driven().build();
        let hosts: Vec<_> = (0..ranks)
            .map(|at| {
                let ports = subnets(at)
                    .into_iter()
                    .map(|number| port(&format!("sim{number}"), &format!("10.1.{number}.{}/24", at + 1)));
                fabric.host(&format!("h{at}"), ports.collect()).unwrap()
            })
            .collect();
        Self {
            fabric,
            members: (0..ranks).map(|_| None).collect(),
            hosts,
        }
    }

    /// Starts a member that knows of no other.
    pub(crate) fn begin(&mut self, at: usize, started: u64) {
        let config = config(at, self.hosts.len(), started);
        self.begin_with(at, &config);
    }

    /// The same, made with this.
    pub(crate) fn begin_with(&mut self, at: usize, config: &MeshConfig) {
        self.members[at] = Some(Member::start(&self.hosts[at], config));
    }

    /// Starts a member, and has all others link with it that do.
    pub(crate) fn start(&mut self, at: usize, started: u64) {
        self.begin(at, started);
        self.link(at);
    }

    /// Has a member and all others link that do.
    pub(crate) fn link(&mut self, at: usize) {
        let handles: Vec<_> = self
            .members
            .iter()
            .map(|member| Some(member.as_ref()?.handle))
            .collect();
        for (own, member) in self.members.iter_mut().enumerate() {
            let Some(member) = member else { continue };
            for (other, handle) in handles.iter().enumerate() {
                let Some(handle) = handle.filter(|_| other < own && (own == at || other == at)) else {
                    continue;
                };
                member
                    .mesh
                    .connect(&member.node, &member.workers, rank(other), &handle)
                    .unwrap();
            }
        }
    }

    /// Puts another member in this one's place, which links to rank 0 by this handle.
    pub(crate) fn restart_as(&mut self, at: usize, config: &MeshConfig, handle: &Handle) {
        self.members[at] = None;
        let mut member = Member::start(&self.hosts[at], config);
        member
            .mesh
            .connect(&member.node, &member.workers, rank(0), handle)
            .unwrap();
        self.members[at] = Some(member);
    }

    pub(crate) fn member(&mut self, at: usize) -> &mut Member {
        self.members[at].as_mut().unwrap()
    }

    /// Lets time pass until it is done, or so long; says which. Everybody is polled once in a step of so long.
    pub(crate) fn run_in_steps(
        &mut self,
        span: Duration,
        step: Duration,
        mut is_done: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        let until = self.fabric.now().after(span);
        loop {
            self.members.iter_mut().flatten().for_each(Member::poll);
            if is_done(self) {
                return true;
            }
            if self.fabric.now() >= until {
                return false;
            }
            self.fabric.run_for(step);
        }
    }

    /// Lets time pass until it is done, or so long; says which.
    pub(crate) fn run(&mut self, span: Duration, mut is_done: impl FnMut(&mut Self) -> bool) -> bool {
        let until = self.fabric.now().after(span);
        loop {
            let now = self.fabric.now();
            self.members.iter_mut().flatten().for_each(Member::poll);
            // It may take messages, after which members may have to be polled sooner.
            if is_done(self) {
                return true;
            }
            let mut next: Instant = until;
            let going = self.members.iter().flatten();
            for member in going.filter(|member| !member.is_stopped) {
                if let Some(wake) = member.mesh.wake(now) {
                    next = next.min(wake.instant().max(now.after(Duration::from_nanos(1))));
                }
            }
            if now >= until {
                return false;
            }
            match self.fabric.next_at() {
                Some(at) if at <= next => assert!(self.fabric.step()),
                _ => self.fabric.run_until(next),
            }
        }
    }

    /// Runs until everybody reaches everybody.
    pub(crate) fn joined(&mut self) {
        let ranks = self.hosts.len() as u32;
        let is_joined = self.run(ms(500), |world| {
            world
                .members
                .iter()
                .flatten()
                .all(|member| member.mesh.reached().len() == ranks)
        });
        let seen: Vec<_> = self
            .members
            .iter()
            .flatten()
            .map(|member| &member.events)
            .collect();
        assert!(is_joined, "{seen:?}");
    }
}
