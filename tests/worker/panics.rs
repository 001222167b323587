//! Callbacks that panic, over the simulated fabric: each event is reported once and in order, and nothing is lost.

use core::cell::Cell;
use core::panic::AssertUnwindSafe;
use std::collections::VecDeque;
use std::panic::{catch_unwind, resume_unwind};

use crate::fabric::{End, pair_on, pair_with, small};
use doorbell::provider::{ArenaConfig, Window as _};
use doorbell::{
    ChannelConfig, Event, Lease, Notify, Operation, PostFlags, RemoteAccess, RemoteAddress, RemoteWindow,
    Ticket, Turn, WindowConfig, Worker,
};
use doorbell_sim::{Fabric, Host};

/// Panics at every nth event, without a word on the standard error.
struct Panicking {
    every: u32,
    until: Cell<u32>,
    caught: u32,
}

impl Panicking {
    fn every(every: u32) -> Self {
        Self {
            every,
            until: Cell::new(every),
            caught: 0,
        }
    }

    /// The end of a callback.
    fn event(&self) {
        let left = self.until.get() - 1;
        self.until.set(if left == 0 { self.every } else { left });
        if left == 0 {
            resume_unwind(Box::new("the callback's own"));
        }
    }

    /// The outcome of a poll; zero events where a callback panicked.
    fn catch(&mut self, poll: impl FnOnce(&Self) -> u32) -> u32 {
        let this = &*self;
        let outcome = catch_unwind(AssertUnwindSafe(|| poll(this)));
        self.caught += u32::from(outcome.is_err());
        outcome.unwrap_or(1)
    }
}

/// The sum of the events of one end.
#[derive(Default)]
struct SeenEvents {
    /// Numbers of messages.
    received: Vec<u32>,
    fetched: Vec<Ticket>,
    done: Vec<Ticket>,
    failed: u32,
    over: u32,
}

impl SeenEvents {
    fn take(&mut self, event: &Event<'_, Host>) {
        match event {
            Event::Received { message, .. } => {
                let bytes = message.payload().try_into().unwrap();
                self.received.push(u32::from_be_bytes(bytes));
            }
            Event::Fetched { ticket, .. } => {
                assert!(
                    self.done.last().is_none_or(|done| done < ticket),
                    "behind its end"
                );
                self.fetched.push(*ticket);
            }
            Event::Done { through } => {
                assert!(self.done.last().is_none_or(|done| done < through), "in order");
                self.done.push(*through);
            }
            Event::Failed { .. } => self.failed += 1,
            Event::ChannelFailed { .. } => self.over += 1,
            other => panic!("{other:?}"),
        }
    }
}

fn poll(worker: &mut Worker<Host>, told: &mut SeenEvents, panicking: &mut Panicking) -> u32 {
    panicking.catch(|panicking| {
        let each = |_: Turn<'_, Host>, event: Event<'_, Host>| {
            told.take(&event);
            panicking.event();
        };
        worker.poll(each).unwrap()
    })
}

fn credits(end: &mut End) -> u32 {
    let id = end.id();
    end.worker().channel(id).unwrap().credits()
}

/// Memory that is at home, or posted to be received into.
fn slots(end: &mut End) -> usize {
    let id = end.id();
    let worker = end.worker();
    let leases: Vec<_> = core::iter::from_fn(|| worker.lease()).collect();
    let channel = worker.channel(id).unwrap();
    leases.len() + (channel.receives_posted() + channel.receives_staged()) as usize
}

fn listening() -> ChannelConfig {
    let mut config = small();
    config.remote = RemoteAccess::ALL;
    config
}

/// Messages both ways, and READs of several leases whose completions make more than one event.
fn exchange(every: u32, (mut a, mut b): (End, End)) {
    let window = b
        .worker()
        .window(&WindowConfig::new(4096, RemoteAccess::ALL))
        .unwrap();
    let remote = window.remote();
    let mut panicking = Panicking::every(every);
    let before = [slots(&mut a), slots(&mut b)];
    let (mut told, mut sent, mut reads) = (
        [SeenEvents::default(), SeenEvents::default()],
        [0_u32; 2],
        VecDeque::new(),
    );
    let mut quiet = 0;
    while quiet < 8 {
        let mut is_busy = false;
        for (at, end) in [&mut a, &mut b].into_iter().enumerate() {
            for _ in 0..5 {
                let (id, bytes) = (end.id(), sent[at].to_be_bytes());
                let channel = end.worker().channel(id).unwrap();
                if sent[at] < 100 && channel.post_inline(Operation::Send, &bytes).is_ok() {
                    sent[at] += 1;
                    is_busy = true;
                }
            }
            if at == 0 && sent[0] < 100 {
                reads.extend(read(end, remote));
            }
            is_busy |= poll(end.worker(), &mut told[at], &mut panicking) > 0;
        }
        quiet = if is_busy { 0 } else { quiet + 1 };
    }
    for told in &told {
        assert_eq!(told.received, (0..100).collect::<Vec<_>>(), "every {every}");
    }
    assert!(!reads.is_empty());
    assert_eq!(told[0].fetched, Vec::from(reads), "every {every}");
    assert!(panicking.caught >= 200 / every, "every {every}");
    for (end, told) in [(&mut a, &told[0]), (&mut b, &told[1])] {
        let id = end.id();
        assert_eq!(end.worker().channel(id).unwrap().in_flight(), 0);
        assert!(!told.done.is_empty() && told.failed == 0);
        assert_eq!(end.worker().statistics().snapshot().rejected, 0);
        assert!(credits(end) >= 8, "every {every}");
    }
    assert_eq!([slots(&mut a), slots(&mut b)], before);
}

/// A READ into two leases and two by one doorbell; returns the tickets that are due.
fn read(end: &mut End, remote: RemoteWindow) -> Vec<Ticket> {
    let id = end.id();
    let worker = end.worker();
    let leases: Vec<Lease<Host>> = core::iter::from_fn(|| worker.lease()).take(6).collect();
    let Ok([one, two, three, four, five, six]) = <[_; 6]>::try_from(leases) else {
        return Vec::new();
    };
    let mut batch = worker.channel(id).unwrap().batch();
    let mut tickets = Vec::new();
    for mut leases in [[one, two], [three, four], [five, six]] {
        leases.iter_mut().for_each(|lease| {
            lease.set_len_bytes(8);
        });
        let address = RemoteAddress::within(&remote, 0, 16).unwrap();
        match batch.push(Operation::Read(address), leases, PostFlags::empty()) {
            Ok(ticket) => tickets.extend([ticket; 2]),
            Err(_) => break,
        }
    }
    batch.ring().unwrap();
    tickets
}

#[test]
fn at_every_event_of_a_poll() {
    for every in 1..=9 {
        exchange(every, pair_with(listening(), listening()));
    }
}

#[test]
fn at_every_event_of_halves() {
    for every in 1..=5 {
        let (mut a, mut b) = pair_with(small(), small());
        let (id, theirs) = (a.id(), b.id());
        let (a, b) = (
            a.workers.swap_remove(a.at.worker),
            b.workers.swap_remove(b.at.worker),
        );
        let (mut sending, receiving) = a.split(&ArenaConfig::new(64, 256)).unwrap();
        let (mut announcing, mut hearing) = b.split(&ArenaConfig::new(64, 256)).unwrap();
        let mut panicking = Panicking::every(every);
        let (mut told, mut sent, mut quiet) = ([SeenEvents::default(), SeenEvents::default()], 0_u32, 0);
        while quiet < 8 {
            let mut events = 0;
            while sent < 200 {
                let half = sending.channel(id).unwrap();
                if half.post_inline(Operation::Send, &sent.to_be_bytes()).is_err() {
                    break;
                }
                sent += 1;
            }
            events += panicking.catch(|panicking| {
                sending
                    .poll(|_, event| {
                        told[0].take(&event);
                        panicking.event();
                    })
                    .unwrap()
            });
            events += panicking.catch(|panicking| {
                hearing
                    .poll(|_, event| {
                        told[1].take(&event);
                        panicking.event();
                    })
                    .unwrap()
            });
            announcing.poll(|_, _| {}).unwrap();
            quiet = if events > 0 { 0 } else { quiet + 1 };
        }
        assert_eq!(told[1].received, (0..200).collect::<Vec<_>>(), "every {every}");
        // The others lack less than a batch, and less than is announced by itself.
        assert!(sending.channel(id).unwrap().credits() >= 8);
        assert!(hearing.channel(theirs).unwrap().receives_posted() > 12);
        assert!(panicking.caught >= 200 / every);
        drop((receiving, announcing));
    }
}

/// Each request that failed is reported, and the failure once, though every event of it panics.
#[test]
fn at_every_event_of_a_failure() {
    for every in 1..=3 {
        let (mut a, mut b) = pair_with(small(), small());
        let (id, theirs) = (a.id(), b.id());
        b.worker().channel(theirs).unwrap().shut().unwrap();
        for number in 0..4_u32 {
            let bytes = number.to_be_bytes();
            a.worker()
                .channel(id)
                .unwrap()
                .post_inline(Operation::Send, &bytes)
                .unwrap();
        }
        let (mut told, mut panicking) = (
            [SeenEvents::default(), SeenEvents::default()],
            Panicking::every(every),
        );
        for _ in 0..200 {
            poll(a.worker(), &mut told[0], &mut panicking);
            poll(b.worker(), &mut told[1], &mut panicking);
        }
        assert_eq!((told[0].failed, told[0].over), (4, 1), "every {every}");
        assert_eq!((told[1].failed, told[1].over), (0, 1), "every {every}");
    }
}

/// Requests that a device refuses come back. If the callback panics, the rest goes home, and is counted as not sent.
#[test]
fn where_doorbells_are_refused() {
    for (seed, panics_at) in (1..=4).flat_map(|seed| (1..=5).map(move |at| (seed, at))) {
        let plan = format!("fail every 2nd post of a with 12; seed {seed}");
        let fabric = Fabric::builder().plan(plan.parse().unwrap()).build();
        let (mut a, mut b) = pair_on(&fabric, small(), small(), Notify::Never);
        let (id, before) = (a.id(), slots(&mut a));
        let (mut caught, mut received, mut last) = (0, 0, None);
        // A credit lost by each would be more than there are.
        for round in 0..40_u8 {
            let leases: Vec<_> = (1..=4).map(|number| a.lease(&[round, number])).collect();
            let mut batch = a.worker().channel(id).unwrap().batch();
            let inline = [round, 0];
            batch
                .push_inline(Operation::Send, &inline, PostFlags::empty())
                .unwrap();
            for lease in leases {
                batch.push(Operation::Send, [lease], PostFlags::empty()).unwrap();
            }
            let mut calls = 0;
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                batch.ring_returning(|_, lease| {
                    calls += 1;
                    if calls == panics_at {
                        resume_unwind(Box::new("the callback's own"));
                    }
                    drop(lease);
                })
            }));
            assert_eq!(outcome.is_err(), calls == panics_at);
            caught += u32::from(outcome.is_err());
            for _ in 0..4 {
                let done = |_: Turn<'_, Host>, event: Event<'_, Host>| {
                    assert!(matches!(event, Event::Done { .. }), "{event:?}")
                };
                a.worker().poll(done).unwrap();
                let each = |_: Turn<'_, Host>, event: Event<'_, Host>| {
                    if let Event::Received { message, .. } = event {
                        let number = <[u8; 2]>::try_from(message.payload()).unwrap();
                        assert!(last.replace(number) < Some(number));
                        received += 1;
                    }
                };
                b.worker().poll(each).unwrap();
            }
        }
        assert!(caught > 0 || panics_at > 4, "{seed} {panics_at}");
        assert!(received >= 100, "{received}");
        assert_eq!(a.worker().channel(id).unwrap().in_flight(), 0);
        assert_eq!(slots(&mut a), before);
    }
}
