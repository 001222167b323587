//! Descriptors: of completion queues that were armed, and of asynchronous events.

use core::time::Duration;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::time::Instant;

use doorbell_core::provider::{
    AsyncEvent, CompletionQueue as _, CompletionQueueConfig, Context as _, Operation, PostFlags,
    ProtectionDomain as _, SendBatch as _, SendQueue as _,
};
use doorbell_ffi::CompletionQueue;

use crate::bench::{Bench, End, PATIENCE, bench, config, poll, poll_success, post_receives};

/// Whether the descriptor becomes readable within this time.
fn readable(fd: BorrowedFd<'_>, within: Duration) -> bool {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let milliseconds = i32::try_from(within.as_millis()).unwrap();
    // SAFETY: one writable entry (poll(2)).
    let ready = unsafe { libc::poll(&raw mut entry, 1, milliseconds) };
    ready == 1 && entry.revents & libc::POLLIN != 0
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
    sender.parts.send.retire(completion, |_, _| ()).unwrap();
}

#[test]
fn s23_an_armed_queue_notifies_once() {
    let Some(bench) = bench("s23_an_armed_queue_notifies_once") else {
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
    assert_eq!(
        receiver.receives.notification_fd(),
        receiver.receives.notification().map(|fd| fd.as_raw_fd())
    );
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

#[test]
fn s24_dropping_a_queue_with_a_notification_waiting_does_not_wait() {
    let Some(bench) = bench("s24_dropping_a_queue_with_a_notification_waiting") else {
        return;
    };
    let mut arena = bench.arena(16, 64);
    let (mut sender, mut receiver) = pair_into(&bench, notifying(&bench, 64));
    post_receives(&mut receiver.parts.receive, &mut arena, 1);
    receiver.receives.arm(false).unwrap();
    send(&mut sender, PostFlags::empty());
    assert!(readable(receiver.receives.notification().unwrap(), PATIENCE));
    let began = Instant::now();
    drop(receiver);
    assert!(began.elapsed() < PATIENCE);
    assert_eq!(doorbell_ffi::leaks().completion_queues, 0);
}

#[test]
fn a_queue_without_notification_says_so() {
    let Some(bench) = bench("a_queue_without_notification_says_so") else {
        return;
    };
    let mut queue = bench.queue();
    assert!(queue.notification().is_none() && queue.notification_fd().is_none());
    assert_eq!(queue.arm(false).unwrap_err().errno, libc::EOPNOTSUPP);
    assert_eq!(queue.acknowledge().unwrap_err().errno, libc::EOPNOTSUPP);
}

#[test]
fn s21_an_overrun_queue_is_an_asynchronous_event() {
    let Some(bench) = bench("s21_an_overrun_queue_is_an_asynchronous_event") else {
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
