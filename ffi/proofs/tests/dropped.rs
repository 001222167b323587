//! An object that is dropped or closed on the thread that polls is destroyed on another. Runs over `ffi` on the
//! fake libibverbs: every call that destroys something is held until the drop has returned. The dropping thread
//! makes none.
//!
//! One test, since calls are held, and counted, for the whole process.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::time::Duration;

use doorbell::provider::ArenaConfig;
use doorbell::worker::{CloseProgress, SubmitterConfig};
use doorbell::{Lease, Node, RemoteAccess, Trust, WindowConfig, Worker, WorkerConfig, within};
use doorbell_fake::{Call, Control};
use doorbell_ffi::Rdma;
use doorbell_proofs::{End, Pair};

const SOON: Duration = Duration::from_secs(20);

/// How many calls that destroy something the thread makes that drops this.
fn destroys_here(control: Control, what: impl FnOnce()) -> u32 {
    control.hold_destroys();
    what();
    control.let_go()
}

/// Connects two Workers, has this done with them, and sees that all that was made is destroyed.
fn round(control: Control, run: impl FnOnce(&Node, Worker, Worker)) {
    control.heal();
    let Pair { a, b, node, .. } = Pair::connect().unwrap();
    let [a, b] = [a, b].map(|end| {
        let End {
            worker,
            window,
            submitters,
            ..
        } = end;
        assert_eq!(destroys_here(control, move || drop((submitters, window))), 0);
        worker
    });
    run(&node, a, b);
    all_destroyed(control, node);
}

fn all_destroyed(control: Control, node: Node) {
    assert!(node.settle(within(SOON)));
    drop(node);
    for (made, destroyed) in Call::LIVES {
        assert_eq!(control.calls(made), control.calls(destroyed), "{destroyed:?}");
    }
}

/// Memory of its own that is out when it is dropped, and more of the Worker's.
fn lent(worker: &mut Worker) -> (Lease, doorbell::worker::Arena) {
    let mut arena = worker.arena(&ArenaConfig::new(4, 64)).unwrap();
    drop(arena.lease().unwrap());
    (worker.lease().unwrap(), arena)
}

/// Closes all channels while what destroys them takes long, and then goes on until they are gone.
fn close(control: Control, node: &Node, worker: &mut Worker) {
    let channel = worker.channels().next().unwrap();
    let here = destroys_here(control, || {
        worker.begin_close(channel, within(Duration::ZERO)).unwrap();
        while worker.channels().count() > 0 {
            worker.poll_tending(|_, _| ()).unwrap();
        }
        for _ in 0..10 {
            worker.poll_tending(|_, _| ()).unwrap();
        }
        assert_eq!(worker.close_progress(channel), CloseProgress::UnderWay);
    });
    assert_eq!(here, 0);
    assert!(node.settle(within(SOON)));
    while worker.close_progress(channel) == CloseProgress::UnderWay {
        worker.poll_tending(|_, _| ()).unwrap();
    }
}

#[test]
fn who_drops_destroys_nothing() {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    drop(Node::open(Trust::unauthenticated_on_purpose()).unwrap());
    let control = Control::of(&path).unwrap();

    // With channels, and memory that is out.
    round(control, |_, mut a, mut b| {
        let out = [lent(&mut a), lent(&mut b)];
        assert_eq!(destroys_here(control, move || drop((a, b, out))), 0);
    });
    // Closed, and then without channels: nothing that the reaper has holds what is under them.
    round(control, |node, mut a, mut b| {
        close(control, node, &mut a);
        close(control, node, &mut b);
        assert_eq!(destroys_here(control, move || drop((a, b))), 0);
    });
    // In two, in any order, and put together again.
    for order in 0..3 {
        round(control, |_, a, b| {
            let [a, b] = [a, b].map(|worker| worker.split(&ArenaConfig::new(4, 64)).unwrap());
            let here = destroys_here(control, move || match order {
                0 => drop((a.0, b.0, a.1, b.1)),
                1 => drop((a.1, b.1, a.0, b.0)),
                _ => drop([a, b].map(|(sending, receiving)| sending.join(receiving).unwrap())),
            });
            assert_eq!(here, 0, "{order}");
        });
    }
    // Submitters behind their Worker, one after the other: the last of those that share a ring has kept the memory of
    // all, which were given up before.
    round(control, |node, mut a, b| {
        let mut submitters = vec![a.submitter(&SubmitterConfig::default()).unwrap()];
        submitters.extend(a.submitters(3, &SubmitterConfig::default()).unwrap());
        drop((a, b));
        for submitter in submitters {
            assert!(node.settle(within(SOON)));
            assert_eq!(destroys_here(control, move || drop(submitter)), 0);
        }
    });
    // Rings and submitters, in front of their Workers and behind them.
    for is_first in [true, false] {
        control.heal();
        let mut pair = Pair::connect().unwrap();
        let rings = pair.rings().unwrap();
        let Pair { a, b, node, .. } = pair;
        let windows = (a.window, b.window);
        let submitters = (a.submitters, b.submitters);
        let here = destroys_here(control, move || {
            if is_first {
                drop((windows, submitters, rings, a.worker, b.worker));
            } else {
                drop((a.worker, b.worker, rings, submitters, windows));
            }
        });
        assert_eq!(here, 0);
        all_destroyed(control, node);
    }
    // Without a reaper it is all here: what is counted is there to be counted.
    control.heal();
    let trust = Trust::unauthenticated_on_purpose();
    let node = Node::with_provider(Rdma::load().unwrap(), trust).unwrap();
    let mut worker = node.workers(&WorkerConfig::default()).unwrap().remove(0);
    let submitters = worker.submitters(2, &SubmitterConfig::default()).unwrap();
    let window = worker.window(&WindowConfig::new(64, RemoteAccess::READ)).unwrap();
    assert_eq!(destroys_here(control, move || drop(window)), 1);
    assert!(destroys_here(control, move || drop(worker)) > 3);
    // The memory of each, and what that stood on.
    assert!(destroys_here(control, move || drop(submitters)) > 2);
    all_destroyed(control, node);
}
