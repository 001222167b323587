//! Behaviour of devices when a queue pair fails, and its effects above. Some kernels' Soft-RoCE delivers the last
//! message again, into every receive that is posted; some hardware never ends a request for a failed peer.

use core::time::Duration;

use crate::cells::received;
use crate::fabric::{End, pair_on, small};
use doorbell::Notify;
use doorbell_sim::{Fabric, Host, Quirks};

type Event<'m> = doorbell::Event<'m, Host>;

/// A device that repeats however long ago the message came.
const REPEATING: Quirks = Quirks {
    repeats_failing_ns: u64::MAX,
    ..Quirks::RXE_REPEATING
};

fn send(end: &mut End, bytes: &[u8]) {
    let lease = end.lease(bytes);
    let id = end.id();
    assert!(end.worker().channel(id).unwrap().send_lease(lease).is_ok());
}

/// Returns the messages that `end` receives while it closes its channel, which fails the queue pair.
fn close(end: &mut End) -> Vec<Vec<u8>> {
    let (id, now) = (end.id(), end.node.within(Duration::ZERO));
    let mut came = Vec::new();
    let outcome = end
        .worker()
        .close(id, now, |_, event| came.extend(received(event)));
    assert_eq!(outcome, Ok(()));
    came
}

/// How many slots of its Worker are free.
fn free(end: &mut End) -> usize {
    let leases: Vec<_> = core::iter::from_fn(|| end.worker().lease()).collect();
    leases.len()
}

/// Everything that comes to `end` until a request of it failed, and a while longer.
fn fail(fabric: &Fabric, end: &mut End) -> Vec<Vec<u8>> {
    fabric.follow(&"at 0ns link any-any down".parse().unwrap());
    send(end, b"never");
    let (mut came, mut is_over) = (Vec::new(), false);
    while !is_over {
        let each = |_: doorbell::Turn<'_, Host>, event: Event<'_>| {
            is_over |= matches!(event, Event::Failed { .. });
            came.extend(received(event));
        };
        end.worker().poll(each).unwrap();
    }
    for _ in 0..10 {
        end.worker()
            .poll(|_, event| came.extend(received(event)))
            .unwrap();
    }
    came
}

#[test]
fn the_last_message_comes_again_once_its_own_queue_pair_failed_and_memory_is_conserved() {
    for (quirks, repeats) in [(REPEATING, true), (Quirks::RXE_7, false), (Quirks::IBA, false)] {
        let fabric = Fabric::builder().quirks(quirks).build();
        let (mut a, mut b) = pair_on(&fabric, small(), small(), Notify::Never);
        // As long as the queue pair lives, each comes once.
        for text in [b"one", b"two"] {
            send(&mut b, text);
            assert_eq!(a.until(received), text);
        }
        // Then the last comes into each receive that is posted. Only its bytes show it.
        let again = fail(&fabric, &mut a);
        assert!(again.iter().all(|bytes| bytes == b"two"), "{again:?}");
        let depth = usize::try_from(small().receive_depth).unwrap();
        let bounds = if repeats { depth / 2..=depth } else { 0..=0 };
        assert!(bounds.contains(&again.len()), "{} of {bounds:?}", again.len());
        assert_eq!(close(&mut a), [b""; 0]);
        assert_eq!(free(&mut a), 64);
        fabric.audit().unwrap();
    }
}

#[test]
fn closing_a_channel_brings_nothing_again() {
    let fabric = Fabric::builder().quirks(REPEATING).build();
    let (mut a, mut b) = pair_on(&fabric, small(), small(), Notify::Never);
    send(&mut b, b"once");
    assert_eq!(a.until(received), b"once");
    assert_eq!(close(&mut a), [b""; 0]);
    assert_eq!(free(&mut a), 64);
    fabric.audit().unwrap();
}

#[test]
fn a_request_that_a_device_never_ends_is_ended_by_closing_by_its_deadline() {
    for (quirks, waits) in [(Quirks::MLX5, true), (Quirks::IBA, false)] {
        let fabric = Fabric::builder().quirks(quirks).build();
        let (mut a, mut b) = pair_on(&fabric, small(), small(), Notify::Never);
        // The queue pair of one end fails, and stays.
        assert_eq!(fail(&fabric, &mut b), [b""; 0]);
        fabric.follow(&"at 0ns link any-any up".parse().unwrap());
        send(&mut a, b"to nobody");
        let begun = fabric.now();
        let mut failed = false;
        while !failed && fabric.now() < begun.after(Duration::from_secs(60)) {
            a.worker()
                .poll(|_, event| failed |= matches!(event, Event::Failed { .. }))
                .unwrap();
            fabric.run_for(Duration::from_millis(10));
        }
        assert_eq!(failed, !waits);
        let (id, deadline) = (a.id(), a.node.within(Duration::from_millis(20)));
        let mut flushed = false;
        let outcome = a.worker().close(id, deadline, |_, event| {
            flushed |= matches!(event, Event::Failed { .. });
        });
        assert_eq!((flushed, outcome.is_err()), (waits, waits), "{outcome:?}");
        assert_eq!(free(&mut a), 64);
    }
}
