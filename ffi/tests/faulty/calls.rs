//! Every call fails once, at every place where a life makes it.

use doorbell_fake::Call;
use doorbell_ffi::leaks;

use crate::Bench;
use crate::life::{End, life};

/// An error number that nothing here gives by itself: EDQUOT.
const ERRNO: i32 = 122;
/// Places of a call that polls or sleeps until something comes, and so may be made any number of times.
const PLACES_MAX: u32 = 24;

/// Those that undo: they are in `destroys`.
pub(crate) const UNDOING: [Call; 8] = [
    Call::CloseDevice,
    Call::DeallocPd,
    Call::DeregMr,
    Call::DestroyCompChannel,
    Call::DestroyCq,
    Call::DestroySrq,
    Call::DestroyAh,
    Call::DestroyQp,
];

#[test]
fn a_life_makes_every_call_and_leaves_nothing() {
    let bench = Bench::new();
    let before = leaks();
    life(&bench.rdma).unwrap();
    assert_eq!(leaks(), before);
    for call in Call::ALL {
        assert!(bench.control.calls(*call) > 0, "{} is not tested", call.name());
    }
}

#[test]
fn each_call_that_fails_is_told_and_leaks_nothing() {
    let bench = Bench::new();
    for call in Call::ALL.iter().filter(|call| !UNDOING.contains(call)) {
        bench.control.heal();
        life(&bench.rdma).unwrap();
        let places = bench.control.calls(*call).min(PLACES_MAX);
        for place in 0..places {
            bench.control.heal();
            bench.control.fail(*call, place, ERRNO);
            let before = leaks();
            let end = life(&bench.rdma);
            let at = format!("{} at place {place}: {end:?}", call.name());
            match (call, end) {
                // sysfs is asked then, which knows no such device.
                (Call::QueryGidTable, Err(End::NoPort)) => {}
                // The device is looked at once more, for its report.
                (Call::QueryGidTable, Ok(())) if place > 0 => {}
                (_, Err(End::Call(error))) => {
                    assert_eq!(error.errno, ERRNO, "{at}");
                    assert!(error.call.starts_with(call.name()), "{at}");
                }
                _ => panic!("{at}"),
            }
            assert_eq!(leaks(), before, "{at}");
        }
        bench.control.heal();
        life(&bench.rdma).unwrap();
    }
}
