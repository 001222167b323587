//! Descriptors: of completion queues that were armed, and of asynchronous events.

use core::time::Duration;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd as _};
use std::thread;
use std::time::Instant;

use doorbell_core::provider::{
    Arena as _, AsyncEvent, Completion as _, CompletionQueue as _, CompletionQueueConfig, Context as _,
    LentCompletion as _, Operation, PostFlags, ProtectionDomain as _, ReceiveQueue as _, SendBatch as _,
    SendQueue as _, Waker as _,
};
use doorbell_ffi::{Arena, CompletionQueue};

use super::bench::{Bench, End, PATIENCE, bench, config, poll, poll_success, post_receives};

/// Whether the descriptor becomes readable within this time.
fn readable(fd: impl AsFd, within: Duration) -> bool {
    let mut entry = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let milliseconds = i32::try_from(within.as_millis()).unwrap();
    // SAFETY: one writable entry (poll(2)).
    let ready = unsafe { libc::poll(&raw mut entry, 1, milliseconds) };
    ready == 1 && entry.revents & libc::POLLIN != 0
}

/// Reads by a clone, as safe code can. An event that this read took would never be acknowledged, and destroying
/// the queue would wait for it forever.
fn takes_nothing(fd: impl AsFd) {
    let mut clone = File::from(fd.as_fd().try_clone_to_owned().unwrap());
    let error = clone.read(&mut [0; 512]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    assert!(readable(fd, Duration::ZERO));
}

const SHORT: Duration = Duration::from_millis(100);

fn notifying(bench: &Bench, depth: u32) -> CompletionQueue {
    bench
        .context
        .completion_queue(&CompletionQueueConfig { depth, notify: true })
        .unwrap()
}

/// A connected pair whose receiver's receive queue completes into `receives`.
fn pair_into(bench: &Bench, receives: CompletionQueue) -> (End, End) {
    let mut sender = bench.end(&config(1));
    let sends = bench.queue();
    let parts = bench.domain.queue_pair(&sends, &receives, &config(2)).unwrap();
    let mut receiver = End {
        parts,
        sends,
        receives,
    };
    bench.connect(&mut sender.parts, &mut receiver.parts);
    (sender, receiver)
}

fn send(sender: &mut End, flags: PostFlags) {
    let mut batch = sender.parts.send.stage();
    batch
        .push_inline(Operation::Send, b"wake up", flags | PostFlags::SIGNALED)
        .unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let completion = poll_success(&mut sender.sends);
    sender.parts.send.retire(completion.lend(), |_, _| ()).unwrap();
}

#[test]
fn a_notification_makes_the_descriptor_readable() {
    let Some(bench) = bench("a_notification_makes_the_descriptor_readable") else {
        return;
    };
    let mut arena = bench.arena(16, 64);
    let (mut sender, mut receiver) = pair_into(&bench, notifying(&bench, 64));
    post_receives(&mut receiver.parts.receive, &mut arena, 8);
    // Not armed, not notified.
    send(&mut sender, PostFlags::empty());
    poll(&mut receiver.receives, 1);
    assert!(!readable(receiver.receives.notification().unwrap(), SHORT));
    assert_eq!(receiver.receives.acknowledge(), Ok(0));

    receiver.receives.arm(false).unwrap();
    assert!(!readable(receiver.receives.notification().unwrap(), SHORT));
    send(&mut sender, PostFlags::empty());
    assert!(readable(receiver.receives.notification().unwrap(), PATIENCE));
    takes_nothing(receiver.receives.notification().unwrap());
    assert_eq!(receiver.receives.acknowledge(), Ok(1));
    assert_eq!(receiver.receives.acknowledge(), Ok(0));
    poll(&mut receiver.receives, 1);
    // One-shot.
    send(&mut sender, PostFlags::empty());
    assert!(!readable(receiver.receives.notification().unwrap(), SHORT));
    poll(&mut receiver.receives, 1);

    // Solicited only.
    receiver.receives.arm(true).unwrap();
    send(&mut sender, PostFlags::empty());
    assert!(!readable(receiver.receives.notification().unwrap(), SHORT));
    send(&mut sender, PostFlags::SOLICITED);
    assert!(readable(receiver.receives.notification().unwrap(), PATIENCE));
    assert_eq!(receiver.receives.acknowledge(), Ok(1));
}

/// Messages that must each wake the receiver, or be found by it.
const HAMMERED: u32 = 3000;

/// Takes what came, lets as many receives be posted again, and says how many came.
fn drain(receiver: &mut End, arena: &mut Arena) -> u32 {
    let End { parts, receives, .. } = receiver;
    let mut ended = Vec::new();
    let count = receives.poll(|completion| ended.push(completion.keep())).unwrap();
    for completion in ended {
        let arrival = parts
            .receive
            .retire(completion.lend(), |_, slot| arena.release(slot));
        assert!(arrival.unwrap().status.is_success());
    }
    post_receives(&mut parts.receive, arena, count);
    count
}

#[test]
fn no_wake_up_is_lost_between_arming_and_sleeping() {
    let Some(bench) = bench("no_wake_up_is_lost_between_arming_and_sleeping") else {
        return;
    };
    let mut arena = bench.arena(32, 64);
    let (mut sender, mut receiver) = pair_into(&bench, notifying(&bench, 64));
    post_receives(&mut receiver.parts.receive, &mut arena, 16);
    let sending = thread::spawn(move || {
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..HAMMERED {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // From no pause at all to one in which the receiver has long gone to sleep.
            for _ in 0..random % (1 << (random >> 32 & 15)) {
                core::hint::spin_loop();
            }
            send(&mut sender, PostFlags::empty());
        }
        sender
    });
    let (mut received, mut slept) = (0, 0_u32);
    while received < HAMMERED {
        receiver.receives.acknowledge().unwrap();
        receiver.receives.arm(false).unwrap();
        let count = drain(&mut receiver, &mut arena);
        if count == 0 {
            let began = Instant::now();
            CompletionQueue::sleep([&receiver.receives], PATIENCE).unwrap();
            assert!(
                began.elapsed() < PATIENCE,
                "after {received} messages a wake-up was lost"
            );
            slept += 1;
        }
        received += count;
    }
    assert!(slept > 0, "it never slept, so that nothing was shown");
    // S24: what was taken is acknowledged by the time the queue is destroyed.
    let began = Instant::now();
    drop((sending.join().unwrap(), receiver));
    assert!(began.elapsed() < PATIENCE);
    assert_eq!(doorbell_ffi::leaks().completion_queues, 0);
}

#[test]
fn a_sleep_ends_in_time_and_at_either_queue() {
    let Some(bench) = bench("a_sleep_ends_in_time_and_at_either_queue") else {
        return;
    };
    let mut arena = bench.arena(16, 64);
    let (mut sender, mut receiver) = pair_into(&bench, notifying(&bench, 64));
    let quiet = notifying(&bench, 1);
    let began = Instant::now();
    CompletionQueue::sleep([&quiet, &receiver.receives], SHORT).unwrap();
    assert!(began.elapsed() >= SHORT && began.elapsed() < PATIENCE);
    post_receives(&mut receiver.parts.receive, &mut arena, 1);
    receiver.receives.arm(false).unwrap();
    send(&mut sender, PostFlags::empty());
    for queues in [[&quiet, &receiver.receives], [&receiver.receives, &quiet]] {
        let began = Instant::now();
        CompletionQueue::sleep(queues, PATIENCE).unwrap();
        assert!(began.elapsed() < PATIENCE);
    }
    let silent = bench.queue();
    let refused = CompletionQueue::sleep([&quiet, &silent], SHORT).unwrap_err();
    assert_eq!(refused.errno, libc::EOPNOTSUPP);
}

#[test]
fn a_queue_without_notification_says_so() {
    let Some(bench) = bench("a_queue_without_notification_says_so") else {
        return;
    };
    let mut queue = bench.queue();
    assert!(queue.notification().is_none() && queue.waking().is_none());
    assert_eq!(queue.arm(false).unwrap_err().errno, libc::EOPNOTSUPP);
    assert_eq!(queue.acknowledge().unwrap_err().errno, libc::EOPNOTSUPP);
}

#[test]
fn an_asynchronous_event_makes_the_descriptor_readable() {
    let Some(bench) = bench("an_asynchronous_event_makes_the_descriptor_readable") else {
        return;
    };
    assert_eq!(bench.context.next_event(), Ok(None));
    assert!(!readable(bench.context.as_fd(), Duration::ZERO));
    let mut arena = bench.arena(64, 64);
    let receives = notifying(&bench, 1);
    let depth = receives.depth();
    assert!(
        depth < 16,
        "the device grants {depth} completions where one is asked for"
    );
    let (mut sender, mut receiver) = pair_into(&bench, receives);
    post_receives(&mut receiver.parts.receive, &mut arena, 16);
    for _ in 0..=depth {
        let mut batch = sender.parts.send.stage();
        batch
            .push_inline(Operation::Send, b"one too many", PostFlags::SIGNALED)
            .unwrap();
        assert_eq!(batch.ring(), Ok(1));
    }
    assert!(readable(bench.context.as_fd(), PATIENCE));
    takes_nothing(bench.context.as_fd());
    let mut events = Vec::new();
    while let Some(event) = bench.context.next_event().unwrap() {
        events.push(event);
    }
    assert!(events.contains(&AsyncEvent::CompletionQueueError), "{events:?}");
    // S24: acknowledged, so the end of what it was about waits for nothing.
    let began = Instant::now();
    drop((sender, receiver));
    assert!(began.elapsed() < PATIENCE);
}

#[test]
fn a_waker_ends_a_sleep_from_any_thread() {
    let Some(bench) = bench("a_waker_ends_a_sleep_from_any_thread") else {
        return;
    };
    let (mut first, mut second) = (notifying(&bench, 4), notifying(&bench, 4));
    let waker = second.waker().unwrap();
    for round in 0..100_u64 {
        let began = Instant::now();
        let waking = {
            let waker = waker.clone();
            thread::spawn(move || {
                thread::sleep(Duration::from_micros(round * 20));
                waker.wake();
                waker.wake();
            })
        };
        CompletionQueue::sleep([&first, &second], PATIENCE).unwrap();
        assert!(began.elapsed() < PATIENCE, "it slept on");
        waking.join().unwrap();
        // A wake-up stays until it is taken, and is no notification.
        assert!(readable(second.waking().unwrap(), Duration::ZERO));
        assert_eq!((first.acknowledge(), second.acknowledge()), (Ok(0), Ok(0)));
        assert!(!readable(second.waking().unwrap(), Duration::ZERO));
    }
    let began = Instant::now();
    CompletionQueue::sleep([&first, &second], SHORT).unwrap();
    assert!(began.elapsed() >= SHORT / 2, "nobody wakes");
    // Beyond the queue's end it wakes nobody, and harms nothing.
    drop((first, second));
    waker.wake();
    assert!(
        bench.queue().waker().is_none(),
        "nobody sleeps at a queue without notification"
    );
}
