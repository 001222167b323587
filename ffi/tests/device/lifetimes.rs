//! Ends of lives, in every order: nothing is freed under the device, and nothing is lost.

use core::any::Any;
use std::thread;

use doorbell_core::provider::{
    Arena as _, Attacher as _, Completion as _, CompletionQueue as _, LentCompletion as _, Operation,
    PostFlags, ProtectionDomain as _, ReceiveQueue as _, ReceivesClaim, RemoteAccess, SendBatch as _,
    SendQueue as _, Slot as _, WindowConfig,
};
use doorbell_ffi::{CompletionQueue, leaks};

use super::bench::{Bench, End, bench, config, poll, poll_success, post_receives, retire_sends, slot_with};

/// Asserts that the device destroyed everything it was asked to.
pub(crate) fn nothing_refused() {
    let leaks = leaks();
    let refused = [
        leaks.memory_regions,
        leaks.queue_pairs,
        leaks.shared_receive_queues,
        leaks.completion_queues,
        leaks.completion_channels,
        leaks.protection_domains,
        leaks.contexts,
    ];
    assert_eq!(refused, [0; 7], "{leaks:?}");
}

/// A sequence of numbers that looks random and is always the same.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

#[test]
fn drop_in_any_order() {
    let Some(_) = bench("drop_in_any_order") else {
        return;
    };
    let mut numbers = Numbers(42);
    for round in 0..60 {
        let bench = bench("drop_in_any_order").unwrap();
        let mut arena = bench.arena(16, 64);
        let window = WindowConfig::new(4096, RemoteAccess::ALL);
        let window = bench.domain.window(&window).unwrap();
        let (mut one, mut other) = bench.pair();
        post_receives(&mut other.parts.receive, &mut arena, 4);
        post_receives(&mut one.parts.receive, &mut arena, 2);
        let mut batch = one.parts.send.stage();
        for _ in 0..2 {
            let slot = slot_with(&mut arena, b"under way");
            batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
        }
        assert_eq!(batch.ring(), Ok(2));
        let leased = arena.lease().unwrap();
        let completions = if round % 2 == 0 {
            poll(&mut one.sends, 2)
        } else {
            Vec::new()
        };
        let Bench {
            rdma,
            context,
            domain,
            port,
            alone: _alone,
        } = bench;
        let mut things: Vec<Box<dyn Any>> = vec![
            Box::new(rdma),
            Box::new(context),
            Box::new(domain),
            Box::new(port),
            Box::new(arena),
            Box::new(window),
            Box::new(leased),
            Box::new(completions),
        ];
        for End {
            parts,
            sends,
            receives,
        } in [one, other]
        {
            things.push(Box::new(parts.control));
            things.push(Box::new(parts.send));
            things.push(Box::new(parts.receive));
            things.push(Box::new(sends));
            things.push(Box::new(receives));
        }
        while !things.is_empty() {
            drop(things.swap_remove(numbers.below(things.len())));
        }
    }
    nothing_refused();
}

#[test]
fn slots_in_flight_come_home_when_the_queue_pair_is_gone() {
    let Some(bench) = bench("slots_in_flight_come_home") else {
        return;
    };
    let before = leaks();
    let mut arena = bench.arena(16, 64);
    let (one, mut other) = bench.pair();
    post_receives(&mut other.parts.receive, &mut arena, 5);
    assert_eq!(arena.free_slots(), 11);
    let End {
        parts,
        sends,
        receives,
    } = other;
    drop(parts.receive);
    drop((sends, receives));
    // The queue pair lives as long as a part of it does, and may still write.
    assert_eq!(arena.free_slots(), 11);
    drop(parts.send);
    assert_eq!(arena.free_slots(), 11);
    drop(parts.control);
    assert_eq!(arena.free_slots(), 16);
    drop(one);
    drop(arena);
    assert_eq!(leaks(), before);
}

#[test]
fn an_arena_with_slots_out_is_kept_and_counted() {
    let Some(bench) = bench("an_arena_with_slots_out_is_kept_and_counted") else {
        return;
    };
    let before = leaks().arenas;
    let mut arena = bench.arena(4, 64);
    let mut slot = arena.lease().unwrap();
    drop(arena);
    assert_eq!(leaks().arenas, before + 1);
    // The slot still stands on memory, registered and its own.
    slot.buffer_mut().fill(7);
    slot.set_len_bytes(3);
    assert_eq!(slot.payload(), [7, 7, 7]);
    drop(slot);
    assert_eq!(leaks().arenas, before, "freed with its last slot");
    nothing_refused();
}

#[test]
fn an_arena_waits_for_the_queue_pair_that_outlives_it() {
    let Some(bench) = bench("an_arena_waits_for_the_queue_pair_that_outlives_it") else {
        return;
    };
    let before = leaks().arenas;
    let mut arena = bench.arena(16, 64);
    let (one, mut other) = bench.pair();
    post_receives(&mut other.parts.receive, &mut arena, 5);
    drop(arena);
    assert_eq!(leaks().arenas, before + 1);
    let elsewhere = thread::spawn(move || drop(other));
    elsewhere.join().unwrap();
    assert_eq!(leaks().arenas, before);
    drop(one);
    nothing_refused();
}

#[test]
fn slots_come_home_from_other_threads() {
    let Some(bench) = bench("slots_come_home_from_other_threads") else {
        return;
    };
    let before = leaks().arenas;
    let mut arena = bench.arena(64, 64);
    let mut other = bench.arena(1, 64);
    for _ in 0..50 {
        let slots: Vec<_> = core::iter::from_fn(|| arena.lease()).collect();
        assert_eq!(slots.len(), 64);
        let mut slots = slots.into_iter();
        let halves: [Vec<_>; 2] = [slots.by_ref().take(32).collect(), slots.collect()];
        let threads = halves.map(|half| thread::spawn(move || drop(half)));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
    // One that is released to the wrong arena goes to its own.
    other.release(arena.lease().unwrap());
    assert_eq!((arena.free_slots(), other.free_slots()), (64, 1));
    drop((arena, other));
    assert_eq!(leaks().arenas, before);
}

#[test]
fn detached_slots_are_attached_once_and_lost_ones_are_counted() {
    let Some(bench) = bench("detached_slots_are_attached_once_and_lost_ones_are_counted") else {
        return;
    };
    let before = leaks();
    let (mut arena, mut other) = (bench.arena(16, 64), bench.arena(16, 64));
    let (mut one, mut end) = bench.pair();
    post_receives(&mut end.parts.receive, &mut other, 8);
    for round in 0..100_u8 {
        let slots: Vec<_> = core::iter::from_fn(|| arena.lease()).take(8).collect();
        let detaching = thread::spawn(move || {
            let fill = |mut slot: doorbell_ffi::Slot| {
                slot.buffer_mut().fill(round);
                slot.set_len_bytes(3);
                slot.detach()
            };
            slots.into_iter().map(fill).collect::<Vec<_>>()
        });
        let words = detaching.join().unwrap();
        assert_eq!(arena.free_slots(), 8);
        for words in words {
            assert!(other.attach(words).is_none());
            let slot = arena.attach(words).unwrap();
            assert_eq!(slot.payload(), [round; 3]);
            assert!(arena.attach(words).is_none());
            if round == 0 {
                // Sent and received, an attached slot is like any other.
                let mut batch = one.parts.send.stage();
                batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
                assert_eq!(batch.ring(), Ok(1));
                assert!(arena.attach(words).is_none(), "it is posted");
                let completion = poll_success(&mut one.sends);
                retire_sends(&mut one, &mut arena, completion);
                let completion = poll_success(&mut end.receives);
                end.parts
                    .receive
                    .retire(completion.lend(), |_, slot| assert_eq!(slot.payload(), [0; 3]))
                    .unwrap();
            }
        }
        assert_eq!(arena.free_slots(), 16);
    }
    drop((one, end, other));
    assert_eq!(leaks(), before);
    arena.lease().unwrap().detach();
    arena.lease().unwrap().detach();
    drop(arena);
    assert_eq!(leaks().arenas, before.arenas + 1);
    assert_eq!(leaks().detached_slots, before.detached_slots + 2);
    nothing_refused();
}

#[test]
fn an_arena_is_kept_for_its_attachers_too() {
    let Some(bench) = bench("an_arena_is_kept_for_its_attachers_too") else {
        return;
    };
    // Every order in which the arena, a detached slot and the attachers can go.
    for order in ["aws", "asw", "was", "wsa", "saw", "swa"] {
        let before = leaks();
        let mut arena = bench.arena(8, 64);
        let words = slot_with(&mut arena, &[7; 3]).detach();
        let (mut attacher, mut arena) = (Some(arena.attacher()), Some(arena));
        let mut is_home = false;
        for what in order.chars() {
            match what {
                'a' => drop(arena.take()),
                's' => {
                    // The last of many.
                    let attacher = attacher.take().unwrap();
                    let threads = [(); 3].map(|()| {
                        let attacher = attacher.clone();
                        thread::spawn(move || drop(attacher))
                    });
                    drop(attacher);
                    threads.into_iter().for_each(|thread| thread.join().unwrap());
                }
                _ => {
                    let attached = match (&attacher, &mut arena) {
                        (Some(attacher), _) => {
                            let attacher = attacher.clone();
                            thread::spawn(move || attacher.attach(words)).join().unwrap()
                        }
                        (None, Some(arena)) => arena.attach(words),
                        (None, None) => None,
                    };
                    is_home = attached.is_some_and(|slot| slot.payload() == [7; 3]);
                }
            }
            let is_kept = arena.is_none() && (attacher.is_some() || !is_home);
            let now = leaks();
            assert_eq!(now.arenas, before.arenas + u64::from(is_kept), "{order} {what}");
            let is_lost = arena.is_none() && !is_home;
            assert_eq!(now.detached_slots, before.detached_slots + u64::from(is_lost));
        }
        assert_eq!(
            is_home,
            !order.ends_with('w'),
            "{order}: words that nothing attaches are lost"
        );
    }
    nothing_refused();
}

#[test]
fn attachers_and_slots_go_on_many_threads_behind_their_arena() {
    let Some(bench) = bench("attachers_and_slots_go_on_many_threads_behind_their_arena") else {
        return;
    };
    let before = leaks();
    for _ in 0..300 {
        let mut arena = bench.arena(4, 64);
        let attacher = arena.attacher();
        let words: Vec<_> = core::iter::from_fn(|| arena.lease())
            .map(doorbell_core::provider::Slot::detach)
            .collect();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (attacher, words) = (attacher.clone(), words.clone());
                thread::spawn(move || words.iter().filter_map(|words| attacher.attach(*words)).count())
            })
            .collect();
        drop((attacher, arena));
        let attached: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(attached, 4, "each by one of the two");
    }
    assert_eq!(leaks(), before);
}

/// Its channel on its completion queues, by another queue pair.
fn anew(bench: &Bench, end: End, channel: u32) -> End {
    let End {
        parts,
        sends,
        receives,
    } = end;
    drop(parts);
    End {
        parts: bench
            .domain
            .queue_pair(&sends, &receives, &config(channel))
            .unwrap(),
        sends,
        receives,
    }
}

#[test]
fn stale_completions_never_match_a_later_queue_pair() {
    let Some(bench) = bench("stale_completions_never_match_a_later_queue_pair") else {
        return;
    };
    let mut arena = bench.arena(64, 64);
    let (mut one, mut other) = bench.pair();
    let mut stale_seen = 0;
    let mut kept = Vec::new();
    for round in 0..8 {
        // Requests that complete, of which nobody polls any but one that is kept.
        post_receives(&mut other.parts.receive, &mut arena, 6);
        let mut batch = one.parts.send.stage();
        for index in 0..6 {
            let slot = slot_with(&mut arena, &[round, index]);
            batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
        }
        assert_eq!(batch.ring(), Ok(6));
        let mut seen = 0;
        while seen < 6 {
            seen += other.receives.poll(|_| ()).unwrap();
        }
        // All six were acknowledged or are about to be: only these completions are left.
        thread::sleep(core::time::Duration::from_millis(20));
        if round % 2 == 0 {
            one.sends.poll(|completion| kept.push(completion.keep())).unwrap();
        }
        // The same channels on the same completion queues.
        one = anew(&bench, one, 1);
        other = anew(&bench, other, 2);
        assert_eq!(arena.free_slots(), 64);
        bench.connect(&mut one.parts, &mut other.parts);
        // In flight on the new queue pair, where a stale completion could hit it.
        post_receives(&mut other.parts.receive, &mut arena, 6);
        let mut rejected = 0;
        for completion in kept.drain(..) {
            assert!(one.parts.send.retire(completion.lend(), |_, _| ()).is_err());
            rejected += 1;
        }
        let mut stale = Vec::new();
        one.sends
            .poll(|completion| stale.push(completion.keep()))
            .unwrap();
        for completion in stale {
            stale_seen += 1;
            assert!(one.parts.send.retire(completion.lend(), |_, _| ()).is_err());
            rejected += 1;
        }
        assert_eq!(one.parts.send.rejected(), rejected);
        let mut batch = one.parts.send.stage();
        batch
            .push(
                Operation::Send,
                [slot_with(&mut arena, b"mine")],
                PostFlags::SIGNALED,
            )
            .unwrap();
        assert_eq!(batch.ring(), Ok(1));
        let completion = poll_success(&mut one.sends);
        assert_eq!(retire_sends(&mut one, &mut arena, completion), 1);
        let completion = poll_success(&mut other.receives);
        other
            .parts
            .receive
            .retire(completion.lend(), |_, slot| assert_eq!(slot.payload(), b"mine"))
            .unwrap();
        // Five receives are still posted: the next round posts only six more.
        assert_eq!(other.parts.receive.in_flight(), 5);
        other = anew(&bench, other, 2);
        one = anew(&bench, one, 1);
        bench.connect(&mut one.parts, &mut other.parts);
        // Completions that the dead queue pair left behind are dropped.
        other.receives.poll(|_| ()).unwrap();
        one.sends.poll(|_| ()).unwrap();
    }
    eprintln!("{stale_seen} stale completions were polled and rejected");
}

#[test]
fn foreign_and_spent_completions_are_rejected_and_counted() {
    let Some(bench) = bench("foreign_and_spent_completions_are_rejected_and_counted") else {
        return;
    };
    let mut arena = bench.arena(16, 64);
    let (mut one, mut other) = bench.pair();
    post_receives(&mut other.parts.receive, &mut arena, 4);
    post_receives(&mut one.parts.receive, &mut arena, 4);
    let mut batch = one.parts.send.stage();
    for _ in 0..2 {
        let slot = slot_with(&mut arena, b"x");
        batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
    }
    assert_eq!(batch.ring(), Ok(2));
    let mut sent = poll(&mut one.sends, 2);
    let mut arrived = poll(&mut other.receives, 2);
    // A completion of the peer's completion queue, which counts like ours.
    let foreign = arrived.pop().unwrap();
    assert!(one.parts.receive.retire(foreign.lend(), |_, _| ()).is_err());
    assert_eq!(
        (one.parts.receive.rejected(), one.parts.receive.in_flight()),
        (1, 4)
    );
    // A completion of the other half.
    let foreign = arrived.pop().unwrap();
    assert!(other.parts.send.retire(foreign.lend(), |_, _| ()).is_err());
    assert_eq!(
        (other.parts.send.rejected(), other.parts.receive.in_flight()),
        (1, 4)
    );
    // Spent by the one behind it.
    let (newer, older) = (sent.pop().unwrap(), sent.pop().unwrap());
    assert_eq!(retire_sends(&mut one, &mut arena, newer), 2);
    assert!(one.parts.send.retire(older.lend(), |_, _| ()).is_err());
    assert_eq!((one.parts.send.rejected(), one.parts.send.in_flight()), (1, 0));
}

#[test]
fn the_halves_work_on_threads_of_their_own() {
    let Some(bench) = bench("the_halves_work_on_threads_of_their_own") else {
        return;
    };
    const MESSAGES: u32 = 200;
    let (mut send_arena, mut receive_arena) = (bench.arena(16, 64), bench.arena(16, 64));
    let (one, mut other) = bench.pair();
    post_receives(&mut other.parts.receive, &mut receive_arena, 16);
    let End {
        parts: mut sender,
        sends: mut sender_sends,
        ..
    } = one;
    let sending = thread::spawn(move || {
        for message in 0..MESSAGES {
            let slot = slot_with(&mut send_arena, &message.to_ne_bytes());
            let mut batch = sender.send.stage();
            batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
            assert_eq!(batch.ring(), Ok(1));
            let completion = poll_success(&mut sender_sends);
            sender
                .send
                .retire(completion.lend(), |_, slot| send_arena.release(slot))
                .unwrap();
        }
        sender
    });
    let receiving = thread::spawn(move || {
        let mut message = 0_u32;
        while message < MESSAGES {
            let mut polled = Vec::new();
            other
                .receives
                .poll(|completion| polled.push(completion.keep()))
                .unwrap();
            for completion in polled {
                let retired = other.parts.receive.retire(completion.lend(), |_, slot| {
                    assert_eq!(slot.payload(), message.to_ne_bytes());
                    receive_arena.release(slot);
                });
                assert!(retired.unwrap().status.is_success());
                post_receives(&mut other.parts.receive, &mut receive_arena, 1);
                message += 1;
            }
        }
    });
    sending.join().unwrap();
    receiving.join().unwrap();
    nothing_refused();
}

#[test]
fn a_queue_pair_of_claims_is_made_on_another_thread() {
    let Some(bench) = bench("a_queue_pair_of_claims_is_made_on_another_thread") else {
        return;
    };
    let mut arena = bench.arena(16, 64);
    let queues = [(); 4].map(|()| bench.queue());
    let [mut sends, receives_of_near, sends_of_far, mut far_receives] = queues;
    let claims = |sends: &CompletionQueue, receives: &CompletionQueue| {
        let (sends, receives) = (sends.claim_sends(3).unwrap(), receives.claim_receives(3).unwrap());
        (sends, ReceivesClaim::Own(receives))
    };
    // Given up, they are free again: with the device refusing, too.
    drop(claims(&sends, &receives_of_near));
    let (swapped, ReceivesClaim::Own(receives)) = claims(&sends, &receives_of_near) else {
        panic!("receives of its own")
    };
    let refused = bench
        .domain
        .queue_pair_of(receives, ReceivesClaim::Own(swapped), &config(3));
    assert_eq!(refused.unwrap_err().errno, libc::EINVAL);
    let of_near = claims(&sends, &receives_of_near);
    let of_far = claims(&sends_of_far, &far_receives);
    let domain = &bench.domain;
    let [mut near, mut far] = [of_near, of_far].map(|(sends, receives)| {
        let making = || domain.queue_pair_of(sends, receives, &config(3)).unwrap();
        thread::scope(|scope| scope.spawn(making).join().unwrap())
    });
    bench.connect_controls(&mut near.control, &mut far.control);
    post_receives(far.receive.as_mut().unwrap(), &mut arena, 1);
    let mut batch = near.send.stage();
    let slot = slot_with(&mut arena, b"by claim");
    batch.push(Operation::Send, [slot], PostFlags::SIGNALED).unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let done = poll_success(&mut sends);
    near.send.retire(done.lend(), |_, slot| drop(slot)).unwrap();
    let arrived = poll_success(&mut far_receives);
    let mut bytes = Vec::new();
    far.receive
        .as_mut()
        .unwrap()
        .retire(arrived.lend(), |_, slot| bytes = slot.payload().to_vec())
        .unwrap();
    assert_eq!(bytes, b"by claim");
    drop((near, far));
    // Theirs again, since they came to be.
    drop(claims(&sends, &receives_of_near));
    nothing_refused();
}
