//! Members whose threads sleep: each polls only where a source of its mesh is ready, where its sleep is over, or where its
//! application acts.

use core::time::Duration;

use doorbell::link::DETECTION_MAX;
use doorbell::mesh::{Group, Leaving};
use doorbell::provider::{Clock as _, Instant};
use doorbell::{Deadline, Woken};

use super::world::{Member, World, ms, rank};

/// A thread that asks this often in a row, and never gets leave to sleep, never will.
const ASKS_MAX: usize = 1000;

struct Asleep {
    world: World,
    /// Until when each sleeps, where it does.
    naps: Vec<Option<Deadline>>,
    /// How often each woke.
    wakes: Vec<u32>,
    /// The way out of each that leaves.
    leaving: Vec<Option<Leaving>>,
    /// Whether messages are those of groups.
    has_groups: bool,
}

fn is_woken(member: &Member) -> bool {
    let now = Deadline::at(member.node.network().now());
    member.mesh.sleep(&member.node, &member.workers, now).unwrap() == Woken::Progress
}

impl Asleep {
    fn new(world: World) -> Self {
        let members = world.members.len();
        Self {
            world,
            naps: vec![None; members],
            wakes: vec![0; members],
            leaving: (0..members).map(|_| None).collect(),
            has_groups: false,
        }
    }

    /// Has a member send a message, of these bytes.
    fn send(&mut self, at: usize, to: usize, message: Vec<u8>) {
        self.world.member(at).outbox.push_back((rank(to), message));
        self.naps[at] = None;
    }

    /// Runs the thread of a member that is awake until it sleeps; says whether it was awake.
    fn run_thread(&mut self, at: usize, now: Instant) -> bool {
        let member = self.world.member(at);
        if self.naps[at].is_some_and(|until| !until.has_passed(now)) && !is_woken(member) {
            return false;
        }
        self.wakes[at] += 1;
        for _ in 0..ASKS_MAX {
            let before = member.mesh.counts();
            if !self.has_groups {
                member.take();
            }
            member.post();
            let leaving = self.leaving[at].as_mut();
            if leaving.is_some_and(|leaving| leaving.poll(&member.node, &mut member.mesh).unwrap()) {
                self.leaving[at] = None;
            }
            let is_same = member.mesh.counts() == before;
            if let Some(until) = member.ready_to_sleep().filter(|_| is_same) {
                assert!(until.instant() > now, "its sleep is none");
                self.naps[at] = Some(until);
                return true;
            }
        }
        panic!("member {at} asked {ASKS_MAX} times, and may not sleep");
    }

    /// Lets time pass until it is done, or so long; says which.
    fn run(&mut self, span: Duration, is_done: impl Fn(&World) -> bool) -> bool {
        let until = self.world.fabric.now().after(span);
        loop {
            let now = self.world.fabric.now();
            let mut has_run = false;
            for at in 0..self.naps.len() {
                has_run |= self.run_thread(at, now);
            }
            if has_run {
                continue;
            }
            if is_done(&self.world) {
                return true;
            }
            if now >= until {
                return false;
            }
            let naps = self.naps.iter().flatten().map(|nap| nap.instant());
            let next = naps.fold(until, Instant::min);
            match self.world.fabric.next_at() {
                Some(at) if at <= next => assert!(self.world.fabric.step()),
                _ => self.world.fabric.run_until(next),
            }
        }
    }

    fn joined(ranks: usize, cables: &[(usize, usize)], plan: &str) -> Self {
        let mut asleep = Self::new(World::new(ranks, cables, plan));
        let is_joined = asleep.run(ms(500), |world| {
            let mut members = world.members.iter().flatten();
            members.all(|member| member.mesh.reached().len() == ranks as u32)
        });
        assert!(is_joined);
        asleep
    }
}

/// How many messages came to all.
fn came(world: &World) -> usize {
    let inboxes = world.members.iter().flatten().flat_map(|member| &member.inbox);
    inboxes.map(Vec::len).sum()
}

#[test]
fn messages_come_in_order_through_members_that_sleep() {
    // In a line, and a ring of which a cable fails for a while.
    let line = ([(0, 1), (1, 2), (2, 3), (2, 3)], "");
    let ring = (
        [(0, 1), (1, 2), (2, 3), (3, 0)],
        "at 600ms link h0-h1 down for 400ms; drop 1% packet of h2->h3",
    );
    for (cables, plan) in [line, ring] {
        let mut asleep = Asleep::joined(4, &cables, plan);
        let mut sent = 0_usize;
        for round in 0..60_u8 {
            for at in 0..4 {
                let to = (at + 1 + usize::from(round) % 3) % 4;
                asleep.send(at, to, vec![round; 2 + usize::from(round) * 20]);
                sent += 1;
            }
            asleep.run(ms(13), |_| false);
        }
        let is_settled = asleep.run(ms(8000), |world| came(world) == sent);
        assert!(is_settled, "{} of {sent}", came(&asleep.world));
        for member in asleep.world.members.iter().flatten() {
            for inbox in &member.inbox {
                assert!(inbox.is_sorted_by_key(|message| message[0]), "out of order");
            }
        }
    }
}

#[test]
fn an_idle_mesh_wakes_for_heartbeats_alone() {
    let mut asleep = Asleep::joined(3, &[(0, 1), (1, 2)], "");
    asleep.run(ms(1000), |_| false);
    asleep.wakes = vec![0; 3];
    asleep.run(ms(10_000), |_| false);
    // Two wake-ups for each heartbeat of each rail: 40 a second.
    for (wakes, rails) in asleep.wakes.iter().zip([1, 2, 1]) {
        assert!((380..=400 * rails).contains(wakes), "{wakes} for {rails} rails");
    }
}

#[test]
fn a_member_that_is_asked_for_by_its_address_is_found_by_threads_that_sleep() {
    let mut asleep = Asleep::new(World::apart(2, &[(0, 1)], ""));
    let address = "10.1.0.1:7000".parse().unwrap();
    asleep.world.member(1).mesh.connect_at(rank(0), address).unwrap();
    let is_joined = asleep.run(ms(500), |world| {
        let mut members = world.members.iter().flatten();
        members.all(|member| member.mesh.reached().len() == 2)
    });
    assert!(is_joined);
    // None of them looked for news each millisecond.
    let took = asleep.world.fabric.now().to_ns() / 1_000_000;
    assert!(
        asleep.wakes.iter().all(|wakes| *wakes < 60),
        "{:?} in {took} ms",
        asleep.wakes
    );
}

#[test]
fn members_that_sleep_leave_together() {
    let mut asleep = Asleep::joined(4, &[(0, 1), (1, 2), (2, 3), (3, 0)], "");
    asleep.has_groups = true;
    let deadline = Deadline::after(asleep.world.fabric.now(), ms(5000));
    for at in 0..4 {
        // One after the other, so that those before sleep by then.
        asleep.run(ms(100), |_| false);
        let group = Group::new(&mut asleep.world.member(at).mesh).unwrap();
        let leaving = group.leave(deadline);
        assert_eq!(leaving.wake(), deadline);
        asleep.leaving[at] = Some(leaving);
        asleep.naps[at] = None;
    }
    // The acknowledgement of a farewell may be lost, with the queue pair of a peer that is gone: then the transport finds that out.
    asleep.run(DETECTION_MAX, |_| false);
    assert!(asleep.leaving.iter().all(Option::is_none), "{:?}", asleep.leaving);
}
