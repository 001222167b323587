//! Hosts that sleep as the documentation says: each polls only where a source of its links is ready, where its sleep is over, or
//! where its application acts. Nobody else polls for it, so a lost wake-up is a message that is late, or never comes.

use core::net::SocketAddr;
use core::time::Duration;

use doorbell::link::{DETECTION_MAX, FinalReason, SessionEvent, TransferOptions, Violation};
use doorbell::provider::{Clock as _, Instant};
use doorbell::{Connection, Deadline, Listener, Operation, Woken};
use doorbell_sim::Fabric;

use crate::anything::{Chance, plan, seeds};
use crate::fabric::small;
use crate::processes::{A, B, LATENCY, PORT, Process, Two, config, ms};
use crate::transfers::{bytes_of, end_of, filled, join, offer, read, region};

/// A thread that asks this often in a row, and never gets leave to sleep, never will.
const ASKS_MAX: usize = 1000;

/// Two processes whose threads sleep.
struct Asleep {
    two: Two,
    /// Until when each sleeps, where it does.
    naps: [Option<Deadline>; 2],
    /// How often each woke.
    wakes: [u32; 2],
}

impl Asleep {
    fn new(two: Two) -> Self {
        Self {
            two,
            naps: [None; 2],
            wakes: [0; 2],
        }
    }

    /// Checks that a process that sleeps, and that nothing woke, has nothing to report; then it is awake.
    fn wake(&mut self, at: usize) {
        let now = self.two.fabric.now();
        let is_asleep = self.naps[at].is_some_and(|until| !until.has_passed(now));
        let process = self.two.process_mut(at);
        if is_asleep && !process.is_woken() {
            let seen = |process: &Process| (process.events.len(), process.delivered, process.done);
            let before = seen(process);
            process.poll(now);
            assert_eq!(
                seen(process),
                before,
                "process {at} sleeps through this at {now:?}"
            );
        }
        self.naps[at] = None;
    }

    fn send(&mut self, at: usize) {
        self.wake(at);
        let _ = self.two.process_mut(at).send();
    }

    /// Runs the thread of a process that is awake until it sleeps; says whether it was awake.
    fn run_thread(&mut self, at: usize) -> bool {
        let now = self.two.fabric.now();
        let process = self.two.process_mut(at);
        let is_due = self.naps[at].is_none_or(|until| until.has_passed(now)) || process.is_woken();
        if process.is_stopped || !is_due {
            return false;
        }
        self.wakes[at] += 1;
        for _ in 0..ASKS_MAX {
            if let Some(until) = process.ready_to_sleep(now) {
                assert!(until.instant() > now, "its sleep is none");
                self.naps[at] = Some(until);
                return true;
            }
        }
        panic!("process {at} asked {ASKS_MAX} times, and may not sleep");
    }

    /// Lets time pass until it is done, or until this moment; says which. Each process that sends does so that often.
    fn run(
        &mut self,
        until: Duration,
        sends_every: [Option<Duration>; 2],
        is_done: impl Fn(&Two) -> bool,
    ) -> bool {
        let until = Instant::from_ns(0).after(until);
        let mut next_send = [self.two.fabric.now(); 2];
        loop {
            let now = self.two.fabric.now();
            let mut next = until;
            for at in [A, B] {
                if let Some(every) = sends_every[at].filter(|_| !self.two.process(at).is_stopped) {
                    if now >= next_send[at] {
                        self.send(at);
                        next_send[at] = now.after(every);
                    }
                    next = next.min(next_send[at]);
                }
            }
            if is_done(&self.two) {
                return true;
            }
            // One may wake the other at once.
            if self.run_thread(A) | self.run_thread(B) {
                continue;
            }
            if now >= until {
                return false;
            }
            for at in [A, B] {
                if !self.two.process(at).is_stopped {
                    next = self.naps[at].map_or(next, |nap| nap.instant().min(next));
                }
            }
            match self.two.fabric.next_at() {
                Some(at) if at <= next => assert!(self.two.fabric.step()),
                _ => self.two.fabric.run_until(next),
            }
        }
    }

    fn settle(&mut self, until: Duration) -> bool {
        self.run(until, [None; 2], |two| {
            let (a, b) = (two.process(A), two.process(B));
            a.done == a.sent && b.done == b.sent && a.sent == b.delivered && b.sent == a.delivered
        })
    }

    fn connected(rails: u8, plan: &str) -> Self {
        let mut asleep = Self::new(Two::new(usize::from(rails), plan));
        let all_up =
            |process: &Process| (0..rails).all(|rail| process.saw(SessionEvent::RailUp { rail }).is_some());
        let is_up = asleep.run(ms(100), [None; 2], |two| {
            two.processes.iter().flatten().all(all_up)
        });
        assert!(is_up, "{:?}", asleep.two.process(A).events);
        asleep
    }
}

#[test]
fn no_wake_up_is_lost_under_random_plans() {
    for seed in seeds().start..seeds().end + 6 {
        let mut chance = Chance(seed);
        let rails = 1 + chance.below(3);
        let plan = plan(&mut chance, rails, |rail| format!("sim{rail}:1"), 5_000);
        let mut asleep = Asleep::new(Two::new(rails as usize, &plan));
        for at in [A, B] {
            let process = asleep.two.process_mut(at);
            process.message_bytes = [16, 1000, 9000, 30_000][chance.below(4) as usize];
            process.panics_every = [None, None, Some(7)][chance.below(3) as usize];
        }
        let every = [1, 3, 20, 70].map(ms);
        let sends_every = [A, B].map(|_| Some(every[chance.below(4) as usize]));
        // A process that stands still, too, with a device that does not.
        let (stopped, at, long) = (
            chance.below(2) as usize,
            10 + chance.below(500),
            chance.below(600),
        );
        asleep.run(ms(at), sends_every, |_| false);
        asleep.two.process_mut(stopped).is_stopped = true;
        asleep.run(ms(at + long), sends_every, |_| false);
        asleep.two.process_mut(stopped).is_stopped = false;
        asleep.naps[stopped] = None;
        asleep.run(ms(1200), sends_every, |_| false);
        let is_settled = asleep.settle(Duration::from_secs(15));
        let shown = |at: usize| {
            let process = asleep.two.process(at);
            let last: Vec<_> = process.events.iter().rev().take(4).collect();
            format!("{} {} {} {last:?}", process.sent, process.done, process.delivered)
        };
        assert!(is_settled, "seed {seed}: {plan}\n{}\n{}", shown(A), shown(B));
        for at in [A, B] {
            let process = asleep.two.process(at);
            let is_whole = process.sent > 5 && process.unknown == 0 && process.over.is_none();
            assert!(is_whole, "seed {seed}: {plan}\n{}\n{}", shown(A), shown(B));
        }
        close(&mut asleep, chance.below(2) as usize);
        asleep
            .two
            .fabric
            .audit()
            .unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
}

/// One closes, and both hear of it, asleep. Their channels are gone soon after, and then nothing wakes either.
fn close(asleep: &mut Asleep, closing: usize) {
    asleep.wake(closing);
    let deadline = asleep.two.deadline(ms(2000));
    let process = asleep.two.process_mut(closing);
    process.links.close(process.link.unwrap(), deadline);
    let now = |asleep: &Asleep| Duration::from_nanos(asleep.two.fabric.now().to_ns());
    let until = now(asleep) + ms(3000);
    let is_over = asleep.run(until, [None; 2], |two| {
        let mut processes = two.processes.iter().flatten();
        processes.all(|process| process.over.is_some())
    });
    let over = [A, B].map(|at| asleep.two.process(at).over);
    assert!(is_over, "{over:?}");
    let until = now(asleep) + ms(1000);
    let are_gone = asleep.run(until, [None; 2], |two| two.fabric.queue_pairs() == 0);
    assert!(
        are_gone,
        "{} queue pairs are left",
        asleep.two.fabric.queue_pairs()
    );
    let until = now(asleep) + ms(500);
    asleep.run(until, [None; 2], |_| false);
    asleep.wakes = [0; 2];
    asleep.run(until + ms(10_000), [None; 2], |_| false);
    assert_eq!(asleep.wakes, [0; 2]);
}

#[test]
fn idle_links_wake_their_thread_for_heartbeats_alone() {
    for rails in [1_u8, 2] {
        let mut asleep = Asleep::connected(rails, "");
        asleep.run(ms(1000), [None; 2], |_| false);
        asleep.wakes = [0; 2];
        asleep.run(ms(11_000), [None; 2], |_| false);
        // In ten seconds each rail has 200 heartbeats at most, and an answer to each.
        for wakes in asleep.wakes {
            let (least, most) = (2 * 190, 2 * 200 * u32::from(rails));
            assert!((least..=most).contains(&wakes), "{wakes} for {rails} rails");
        }
    }
}

#[test]
fn without_a_link_nothing_wakes_a_thread() {
    let mut asleep = Asleep::new(Two::waiting(2, ""));
    asleep.run(ms(10_000), [None; 2], |_| false);
    assert_eq!(asleep.wakes, [1, 1]);
    // A peer that comes does.
    asleep.wake(A);
    asleep.two.begin();
    let is_up = asleep.run(ms(10_100), [None; 2], |two| {
        two.processes
            .iter()
            .flatten()
            .all(|process| process.saw(SessionEvent::Connected).is_some())
    });
    assert!(is_up);
}

#[test]
fn a_message_wakes_its_receiver_at_once() {
    let mut asleep = Asleep::connected(1, "");
    for round in 1..=50 {
        let until = ms(100 + 7 * round);
        asleep.run(until, [None; 2], |_| false);
        let sent_at = asleep.two.fabric.now();
        asleep.send(if round % 2 == 0 { A } else { B });
        let is_settled = asleep.settle(until + ms(5));
        let took = Duration::from_nanos(asleep.two.fabric.now().to_ns() - sent_at.to_ns());
        // There, and the acknowledgement that waits a millisecond for company.
        assert!(is_settled && took < ms(2), "round {round}: {took:?}");
    }
}

#[test]
fn a_rail_that_dies_is_found_in_time_by_threads_that_sleep() {
    let mut asleep = Asleep::connected(2, "at 500ms link a/sim0:1-b/sim0:1 down for 10s");
    asleep.run(ms(1500), [None; 2], |_| false);
    for at in [A, B] {
        let process = asleep.two.process(at);
        let lost = process
            .events
            .iter()
            .find(|(_, event)| matches!(event, SessionEvent::RailDown { .. }));
        let (found, _) = lost.unwrap();
        let cut = Instant::from_ns(0).after(ms(500));
        assert!(*found <= cut.after(DETECTION_MAX), "found at {found:?}");
    }
}

#[test]
fn a_wait_ends_at_its_deadline_or_with_a_message() {
    let mut asleep = Asleep::connected(1, "");
    let Two {
        fabric, processes, ..
    } = &mut asleep.two;
    let [Some(a), Some(b)] = processes else { panic!() };
    for span in [ms(1), ms(333), Duration::from_nanos(77_777)] {
        let deadline = Deadline::after(fabric.now(), span);
        assert_eq!(a.wait(deadline), Woken::Deadline);
        assert_eq!(fabric.now(), deadline.instant(), "by the nanosecond");
    }
    b.send().unwrap();
    b.poll(fabric.now());
    let (began, deadline) = (fabric.now(), Deadline::after(fabric.now(), ms(1000)));
    let delivered = a.delivered;
    assert_eq!(a.wait(deadline), Woken::Progress);
    assert_eq!(a.delivered, delivered + 1);
    assert!(a.node.network().now() < began.after(ms(1)));
}

#[test]
fn room_for_a_message_that_was_refused_ends_a_wait() {
    let mut asleep = Asleep::connected(1, "");
    let Two {
        fabric, processes, ..
    } = &mut asleep.two;
    let [Some(a), Some(b)] = processes else { panic!() };
    // A long one, so that fragments of it make room before all of it is done.
    a.message_bytes = 100_000;
    while a.send().is_ok() {}
    let deadline = Deadline::after(fabric.now(), ms(1000));
    while a.send().is_err() {
        assert_eq!(a.wait(deadline), Woken::Progress);
        b.poll(fabric.now());
    }
}

#[test]
fn a_frame_that_comes_before_its_rail_is_known_to_be_connected_is_seen_at_once() {
    let mut asleep = Asleep::new(Two::waiting(1, ""));
    let mut b = Process::on(&asleep.two.hosts[B], &config(), false);
    asleep.two.processes[B] = None;
    // No links there: it speaks as soon as it is connected, out of turn, and nonsense.
    let any = SocketAddr::from(([0; 4], PORT));
    let mut listener = Listener::bind(&b.node, &b.workers, any, &config().channel).unwrap();
    asleep.two.process_mut(A).connect(listener.handle());
    loop {
        let now = asleep.two.fabric.now();
        if let Some(made) = listener.poll_accept(&b.node, &mut b.workers).unwrap() {
            let channel = b.workers[made.worker].channel(made.channel).unwrap();
            channel.post_inline(Operation::Send, &[0; 16]).unwrap();
            break;
        }
        if asleep.run_thread(A) {
            continue;
        }
        assert!(now < Instant::from_ns(0).after(ms(1000)));
        let nap = asleep.naps[A].unwrap().instant();
        match asleep.two.fabric.next_at() {
            Some(at) if at <= nap => assert!(asleep.two.fabric.step()),
            _ => asleep.two.fabric.run_until(nap),
        }
    }
    // The frame is there, and that the rail is connected is yet to be read.
    asleep.two.fabric.run_for(LATENCY + Duration::from_micros(1));
    assert!(asleep.run_thread(A));
    let violation = FinalReason::Violation(Violation::Malformed);
    assert_eq!(asleep.two.process(A).over, Some(violation));
}

/// Connects two Workers by a channel that is no link's: from the first to the second.
fn channel_beside(a: &mut Process, b: &mut Process, fabric: &Fabric) -> [Connection; 2] {
    let at = SocketAddr::from(([10, 0, 0, 2], PORT + 1));
    let mut listener = Listener::bind(&b.node, &b.workers, at, &small()).unwrap();
    let deadline = Deadline::after(fabric.now(), ms(100));
    // With more room than the other has receives.
    let mut deep = small();
    deep.send_depth = 64;
    let mut attempt = a.node.begin_connect_at(&a.workers, at, &deep, deadline).unwrap();
    let (mut connected, mut accepted) = (None, None);
    while connected.is_none() || accepted.is_none() {
        accepted = listener
            .poll_accept(&b.node, &mut b.workers)
            .unwrap()
            .or(accepted);
        if connected.is_none() {
            connected = attempt.poll(&a.node, &mut a.workers).transpose().unwrap();
        }
        fabric.run_for(Duration::from_micros(10));
    }
    [connected.unwrap(), accepted.unwrap()]
}

#[test]
fn what_a_worker_awaits_without_a_completion_bounds_the_sleep() {
    let mut asleep = Asleep::connected(1, "");
    let Two {
        fabric, processes, ..
    } = &mut asleep.two;
    let [Some(a), Some(b)] = processes else { panic!() };
    let [to, _] = channel_beside(a, b, fabric);
    let settled = |process: &mut Process| loop {
        let now = fabric.now();
        if let Some(until) = process.ready_to_sleep(now) {
            return until.remaining(now);
        }
    };
    assert!(settled(a) > ms(2));
    // Credits come without a completion, so they are looked for.
    while a.workers[to.worker].send(to.channel, b"flood").is_ok() {}
    fabric.run_for(ms(1));
    settled(a);
    assert!(settled(a) <= ms(1));
    for _ in 0..4 {
        // The messages are of a channel beside its links.
        b.links.poll(&b.node, &mut b.workers, |_, _| {}).unwrap();
        fabric.run_for(LATENCY * 2);
    }
    // They end a wait.
    assert_eq!(a.ready_to_sleep(fabric.now()), None);
    assert!(a.workers[to.worker].send(to.channel, b"room").is_ok());
}

#[test]
fn a_transfer_ends_though_both_sleep_between_its_pieces() {
    for (rails, plan) in [
        (1, ""),
        (2, ""),
        (2, "at 40ms link a/sim0:1-b/sim0:1 down for 20s"),
    ] {
        let mut asleep = Asleep::new(Two::with(rails, plan, Some(1000)));
        let is_up = |two: &Two| {
            two.processes
                .iter()
                .flatten()
                .all(|process| process.link.is_some())
        };
        assert!(asleep.run(ms(100), [None; 2], is_up));
        let bytes = 20_000_000;
        let from = filled(asleep.two.process(A), 7, bytes);
        let to = region(asleep.two.process(B), bytes);
        asleep.wake(A);
        let id = offer(&mut asleep.two, A, &from, &TransferOptions::default());
        assert!(asleep.run(ms(300), [None; 2], |two| !two.process(B).asides.is_empty()));
        asleep.wake(B);
        join(&mut asleep.two, B, id, &to);
        let has_ended = |two: &Two| [A, B].iter().all(|at| end_of(two.process(*at), id).is_some());
        assert!(
            asleep.run(ms(2000), [None; 2], has_ended),
            "{:?}",
            asleep.two.process(A).asides
        );
        assert!(read(&to) == bytes_of(7, bytes));
    }
}
