//! Completions: when there is one, when there are too many, and when one notifies.

use core::time::Duration;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use doorbell_core::provider::{AsyncEvent, CompletionQueue, Context, Operation, PostFlags, QueuePair};
use doorbell_core::{QpState, WcStatus};

use super::{Rig, USUAL, Wish, connected, connected_as, poll_nothing};

pub(crate) fn s05_a_success_completes_only_if_signaled<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    far.post_receives(3);
    near.post_with(Operation::Send, b"a", PostFlags::empty());
    near.post_with(Operation::Send, b"b", PostFlags::empty());
    far.received(2);
    poll_nothing(&mut near.send_completions);
    near.post(Operation::Send, b"c");
    let [sent] = &near.sent(1)[..] else { unreachable!() };
    assert_eq!(sent.retired.count(), 3);
    let payloads: Vec<_> = sent.slots.iter().map(|(_, payload)| &payload[..]).collect();
    assert_eq!(
        payloads,
        [b"a", b"b", b"c"],
        "a completion covers those before it"
    );
}

pub(crate) fn s05_error_always_completes<R: Rig>(rig: &R) {
    let [mut near, far] = connected(rig);
    drop(far);
    near.post_with(Operation::Send, b"x", PostFlags::empty());
    assert_eq!(near.status(), WcStatus::RETRY_EXC_ERR);
    near.post_with(Operation::Send, b"y", PostFlags::empty());
    if rig.quirks().late_requests_vanish {
        poll_nothing(&mut near.send_completions);
    } else {
        assert_eq!(near.status(), WcStatus::WR_FLUSH_ERR);
    }
}

pub(crate) fn s21_a_queue_that_overruns_is_lost<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected_as(
        rig,
        [
            Wish {
                completion_depth: 2,
                ..USUAL
            },
            USUAL,
        ],
    );
    far.post_receives(8);
    for _ in 0..near.send_completions.depth() {
        near.post(Operation::Send, b"x");
    }
    assert_eq!(near.context.next_event(), Ok(None));
    near.post(Operation::Send, b"one too many");
    assert_eq!(
        near.context.next_event(),
        Ok(Some(AsyncEvent::CompletionQueueError))
    );
    if rig.quirks().overrun_queues_work_on {
        assert_eq!(near.context.next_event(), Ok(None));
        // The one that was lost comes with the next.
        near.sent(near.send_completions.depth() as usize);
        near.post(Operation::Send, b"the next");
        assert_eq!(near.sent(1)[0].retired.count(), 2);
        assert_eq!(near.state(), QpState::ReadyToSend);
        return;
    }
    assert_eq!(
        near.context.next_event(),
        Ok(Some(AsyncEvent::QueuePairFatal(near.control.qpn())))
    );
    assert_eq!(near.context.next_event(), Ok(None));
    assert!(near.send_completions.poll(|_| ()).is_err());
    assert_eq!(near.state(), QpState::Error);
    poll_nothing(&mut near.receive_completions);
}

pub(crate) fn s23_a_notification_is_one_shot<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected_as(
        rig,
        [
            USUAL,
            Wish {
                notify: true,
                ..USUAL
            },
        ],
    );
    far.post_receives(4);
    near.post(Operation::Send, b"before");
    far.receive_completions.arm(false).unwrap();
    assert_eq!(
        far.receive_completions.acknowledge(),
        Ok(0),
        "what was there before does not notify"
    );
    near.post(Operation::Send, b"first");
    near.post(Operation::Send, b"second");
    near.sent(3);
    assert_eq!(far.receive_completions.acknowledge(), Ok(1));
    assert_eq!(far.receive_completions.acknowledge(), Ok(0));
    assert_eq!(far.received(3).len(), 3);
}

pub(crate) fn s23_solicited_and_failed_completions_notify<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected_as(
        rig,
        [
            USUAL,
            Wish {
                notify: true,
                ..USUAL
            },
        ],
    );
    far.post_receives(4);
    far.receive_completions.arm(true).unwrap();
    near.post(Operation::Send, b"quiet");
    assert_eq!(far.receive_completions.acknowledge(), Ok(0));
    near.post_with(
        Operation::Send,
        b"loud",
        PostFlags::SIGNALED | PostFlags::SOLICITED,
    );
    assert_eq!(far.receive_completions.acknowledge(), Ok(1));
    far.receive_completions.arm(true).unwrap();
    far.control.fail().unwrap();
    assert_eq!(far.receive_completions.acknowledge(), Ok(1));
}

pub(crate) fn s23_a_queue_made_without_cannot_be_armed<R: Rig>(rig: &R) {
    let [mut near, _far] = connected(rig);
    assert!(near.send_completions.arm(false).is_err());
    assert!(near.send_completions.acknowledge().is_err());
    assert_eq!(near.send_completions.notification_fd(), None);
    assert!(CompletionQueue::sleep([&near.send_completions], Duration::ZERO).is_err());
}

pub(crate) fn s23_a_notification_ends_a_sleep<R: Rig>(rig: &R) {
    const MESSAGES: usize = 200;
    let notify = Wish {
        notify: true,
        ..USUAL
    };
    let [mut near, mut far] = connected_as(rig, [notify, notify]);
    let long = Duration::from_secs(20);
    let short = Duration::from_millis(20);
    let began = Instant::now();
    CompletionQueue::sleep([&far.receive_completions, &far.send_completions], short).unwrap();
    assert!(began.elapsed() < long);
    let (came, next) = mpsc::channel();
    let sending = thread::spawn(move || {
        for _ in 0..MESSAGES {
            near.post(Operation::Send, b"wake up");
            near.sent(1);
            next.recv().unwrap();
        }
    });
    for _ in 0..MESSAGES {
        far.receive_completions.acknowledge().unwrap();
        far.receive_completions.arm(false).unwrap();
        // Now the message may be carried out, before or while this one sleeps.
        far.post_receives(1);
        let began = Instant::now();
        while far.receive_completions.acknowledge() == Ok(0) {
            CompletionQueue::sleep([&far.send_completions, &far.receive_completions], long).unwrap();
            assert!(began.elapsed() < long, "a wake-up was lost");
        }
        far.received(1);
        came.send(()).unwrap();
    }
    sending.join().unwrap();
}
