//! An object that the device refuses to destroy is leaked and counted, with all that is under it, and never
//! freed.

use doorbell_fake::Call;
use doorbell_ffi::{Leaks, leaks};

use crate::Bench;
use crate::life::life;

const EBUSY: i32 = 16;

/// The count that a refused call adds to.
const fn counted(leaks: &Leaks, call: Call) -> u64 {
    match call {
        Call::CloseDevice => leaks.contexts,
        Call::DeallocPd => leaks.protection_domains,
        Call::DeregMr => leaks.memory_regions,
        Call::DestroyCompChannel => leaks.completion_channels,
        Call::DestroyCq => leaks.completion_queues,
        Call::DestroyAh => leaks.address_handles,
        Call::DestroySrq => leaks.shared_receive_queues,
        _ => leaks.queue_pairs,
    }
}

#[test]
fn what_is_refused_is_counted_and_its_parents_stay() {
    let bench = Bench::new();
    for (_, call) in Call::LIVES {
        bench.control.heal();
        life(&bench.rdma).unwrap();
        let places = bench.control.calls(call);
        for place in 0..places {
            bench.control.heal();
            bench.control.fail(call, place, EBUSY);
            let before = leaks();
            life(&bench.rdma).unwrap();
            let after = leaks();
            let at = format!("{} at place {place}: {before:?} {after:?}", call.name());
            assert_eq!(counted(&after, call), counted(&before, call) + 1, "{at}");
            // Nobody asks the device to give up what something that is left stands on: it would have refused, and
            // that been counted.
            let others = Call::LIVES.iter().filter(|(_, other)| *other != call);
            for (_, other) in others {
                assert_eq!(counted(&after, *other), counted(&before, *other), "{at}");
            }
        }
    }
    // And another life is as before.
    bench.control.heal();
    let before = leaks();
    life(&bench.rdma).unwrap();
    assert_eq!(leaks(), before);
}
