//! An object that the device refuses to destroy is leaked and counted, with all that is under it, and never
//! freed.

use doorbell_core::provider::{
    Context as _, ProtectionDomain as _, Provider as _, ProviderError, RemoteAccess, RevokeError,
    Window as _, WindowConfig,
};
use doorbell_fake::Call;
use doorbell_ffi::{Leaks, leaks};

use crate::Bench;
use crate::life::{life, port};

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

/// The device keeps it at the first call, and lets go at the next, which is the owner's or the drop's.
#[test]
fn a_window_that_is_not_deregistered_is_its_owners_to_try_again() {
    let bench = Bench::new();
    let port = port(&bench.rdma).unwrap();
    let context = bench.rdma.open(&port.device).unwrap();
    let domain = context.protection_domain().unwrap();
    let before = leaks();
    let mut window = domain
        .window(&WindowConfig::new(4096, RemoteAccess::WRITE))
        .unwrap();
    window.store_u64(8, 5).unwrap();
    bench.control.fail(Call::DeregMr, 0, EBUSY);
    let refused = ProviderError {
        call: "ibv_dereg_mr",
        errno: EBUSY,
    };
    assert_eq!(window.deregister(), Err(RevokeError::Provider(refused)));
    // It is not given up: nothing is leaked, and the domain is not asked for.
    assert_eq!((leaks(), bench.control.calls(Call::DeallocPd)), (before, 0));
    assert_eq!(window.deregister(), Ok(()));
    assert_eq!(window.deregister(), Ok(()), "it is no more");
    assert_eq!(bench.control.calls(Call::DeregMr), 2);
    assert_eq!(window.load_u64(8), Ok(5), "the memory is there until the drop");
    drop(window);
    assert_eq!(bench.control.calls(Call::DeregMr), 2);
    // One that is refused and dropped is asked for once more.
    let mut window = domain
        .window(&WindowConfig::new(4096, RemoteAccess::WRITE))
        .unwrap();
    bench.control.heal();
    bench.control.fail(Call::DeregMr, 0, EBUSY);
    assert!(window.deregister().is_err());
    drop(window);
    assert_eq!((leaks(), bench.control.calls(Call::DeregMr)), (before, 2));
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
