//! Workers taken apart, over `ffi` on the fake libibverbs: each half on a thread of its own, as on a device.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../../../tests/worker/halves.rs"]
mod halves;

use core::time::Duration;
use std::os::fd::AsRawFd as _;
use std::sync::Mutex;
use std::thread;

use doorbell::provider::ArenaConfig;
use doorbell::worker::SubmitterConfig;
use doorbell::{Event, Notify, Operation, PostFlags, WorkerConfig, within};
use doorbell_ffi::leaks;
use doorbell_proofs::Pair;
use halves::{Halves, echo, exchange, exchange_counted};

/// Leaks are counted for the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const SOON: Duration = Duration::from_secs(20);

/// Runs on two connected Workers that were taken apart; then nothing may be leaked.
fn apart(run: impl FnOnce(Halves<doorbell::Rdma>, Halves<doorbell::Rdma>)) {
    let _alone = ALONE.lock();
    let before = leaks();
    let Pair { a, b, node, .. } = Pair::connect().unwrap();
    drop((a.window, b.window, a.submitters, b.submitters));
    run(Halves::of(a.worker), Halves::of(b.worker));
    assert!(node.settle(within(SOON)), "the reaper is done");
    assert_eq!(leaks(), before);
}

#[test]
fn millions_of_messages_both_ways_on_four_threads() {
    apart(|mut a, mut b| {
        for counts in [[500_000, 500_000], [100_000, 0], [0, 100_000]] {
            let since = exchange_counted(&mut a, &mut b, counts, 32);
            assert!(
                counts[0] == 0 || since.would_block > 0,
                "credits were used up: {since}"
            );
        }
        // Together again they are closed cleanly, the last request of each being signaled: what came before it is known
        // done by that.
        let mut ends = [a, b].map(|halves| (halves.id, halves.join()));
        let mut is_signaled = [false; 2];
        while is_signaled != [true; 2] {
            for ((id, worker), is_signaled) in ends.iter_mut().zip(&mut is_signaled) {
                if !*is_signaled {
                    let mut batch = worker.channel(*id).unwrap().batch();
                    let last = batch.push_inline(Operation::Send, &[], PostFlags::SIGNALED);
                    *is_signaled = last.is_ok() && batch.ring().is_ok();
                }
                worker.poll_tending(|_, _| {}).unwrap();
            }
        }
        for (id, mut worker) in ends {
            worker.close(id, within(SOON), |_, _| {}).unwrap();
        }
    });
}

#[test]
fn memory_goes_from_one_half_to_the_other_and_home() {
    apart(|mut a, mut b| echo(&mut a, &mut b, 100_000));
}

#[test]
fn halves_are_dropped_in_any_order_with_traffic_under_way() {
    for order in 0..24_u32 {
        apart(|mut a, mut b| {
            exchange(&mut a, &mut b, [100, 100]);
            // Messages that nobody takes, and memory that is out.
            while a.send(0).is_ok() {}
            while b.send(0).is_ok() {}
            let leases = (a.sending.lease(), b.receiving.lease());
            let mut left: Vec<Box<dyn Send>> = vec![
                Box::new(a.sending),
                Box::new(a.receiving),
                Box::new(b.sending),
                Box::new(b.receiving),
            ];
            let mut digits = order;
            while !left.is_empty() {
                let count = u32::try_from(left.len()).unwrap();
                let half = left.swap_remove((digits % count) as usize);
                digits /= count;
                if order % 2 == 0 {
                    drop(half);
                } else {
                    thread::spawn(move || drop(half)).join().unwrap();
                }
            }
            drop(leases);
        });
    }
}

#[test]
fn one_half_goes_on_without_the_other() {
    apart(|mut a, b| {
        let Halves {
            sending,
            mut receiving,
            id,
        } = b;
        // The peers' receives are announced by the half that is gone: what they have they may use.
        drop(sending);
        let mut sent = 0;
        while a.send(1).is_ok() {
            sent += 1;
        }
        let mut came = 0;
        while receiving
            .poll(|_, event| came += u32::from(matches!(event, Event::Received { .. })))
            .unwrap()
            > 0
        {}
        assert_eq!((came, sent), (32, 32));
        assert!(receiving.channel(id).is_some());
    });
    apart(|mut a, b| {
        let Halves {
            mut sending,
            receiving,
            id,
        } = b;
        drop(receiving);
        let mut sent = 0_u32;
        let channel = sending.channel(id).unwrap();
        while channel.post_inline(Operation::Send, &sent.to_be_bytes()).is_ok() {
            sent += 1;
        }
        assert_eq!(a.received(), (0..sent).collect::<Vec<_>>());
        assert_eq!(sent, 32);
        // Messages for the half that is gone find the receives it had posted.
        while a.send(1).is_ok() {}
    });
}

#[test]
fn what_is_submitted_to_the_half_that_sends_wakes_an_event_loop() {
    let _alone = ALONE.lock();
    let Pair { a, b, node, .. } = Pair::connect().unwrap();
    let mut config = WorkerConfig::default();
    config.notify = Notify::Every;
    let worker = node.workers(&config).unwrap().remove(0);
    let (mut sending, receiving) = worker.split(&ArenaConfig::new(4, 64)).unwrap();
    let mut submitter = sending.submitter(&SubmitterConfig::default()).unwrap();
    let [_, waking] = sending
        .descriptors()
        .unwrap()
        .map(|descriptor| descriptor.try_clone_to_owned().unwrap());
    let woken = || {
        let mut entry = libc::pollfd {
            fd: waking.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one writable entry (poll(2)).
        unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
    };
    // A channel of another Worker names none here: what is submitted for it comes back.
    let mut submit = || {
        let lease = submitter.lease().unwrap();
        submitter.send(a.channel, lease).unwrap();
    };
    submit();
    assert!(!woken(), "nobody sleeps");
    sending.poll(|_, _| ()).unwrap();
    assert!(sending.ready_to_sleep(|_, _| ()).unwrap().is_some());
    assert!(!woken());
    submit();
    assert!(woken());
    drop((submitter, sending, receiving, a, b));
    assert!(node.settle(within(SOON)), "the reaper is done");
}
