//! Devices that page memory on demand for some operations, or for none.

use core::ptr::NonNull;

use doorbell_core::provider::{
    ArenaConfig, Context as _, MemoryError, OnDemand, ProtectionDomain as _, Provider as _, RemoteAccess,
    Shortfall, Window as _, WindowConfig, Wish,
};
use doorbell_fake::{Value, Without};
use doorbell_ffi::{Context, StableMemory, Window};

use crate::Bench;
use crate::life::port;

/// Operations that a window needs for requests of this host.
const ALWAYS: OnDemand = OnDemand::SEND.union(OnDemand::WRITE).union(OnDemand::READ);

fn open(bench: &Bench) -> Context {
    bench.rdma.open(&port(&bench.rdma).unwrap().device).unwrap()
}

fn window(context: &Context, remote: RemoteAccess) -> Result<Window, MemoryError> {
    let mut config = WindowConfig::new(1 << 20, remote);
    config.placement.on_demand = true;
    context.protection_domain().unwrap().window(&config)
}

fn lacking(lacks: OnDemand) -> MemoryError {
    MemoryError::Unmet(Wish::OnDemand, Shortfall::Operations { lacks })
}

/// Pages of the test's own, which it leaks.
struct Pages(NonNull<[u8; 4096]>);
// SAFETY: leaked bytes that nobody else has.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}
// SAFETY: the bytes are leaked for the test, so they stay.
unsafe impl StableMemory for Pages {
    fn region(&self) -> (NonNull<u8>, usize) {
        (self.0.cast(), 4096)
    }

    fn is_on_demand(&self) -> bool {
        true
    }
}

fn pages() -> Pages {
    Pages(NonNull::from(Box::leak(Box::new([0_u8; 4096]))))
}

#[test]
fn what_the_device_lacks_is_named() {
    let bench = Bench::new();
    bench.control.lack(Without::OnDemand);
    let context = open(&bench);
    assert_eq!(context.limits().on_demand, OnDemand::empty());
    let refused = window(&context, RemoteAccess::NONE).unwrap_err();
    assert_eq!(refused, lacking(ALWAYS));
    let domain = context.protection_domain().unwrap();
    let refused = domain.adopt_window(pages(), RemoteAccess::NONE).unwrap_err();
    assert_eq!(refused.errno, libc::EOPNOTSUPP);

    bench.control.lack(Without::Nothing);
    let some = OnDemand::SEND | OnDemand::WRITE;
    bench.control.give(Value::RcOdpCaps, some.bits());
    let context = open(&bench);
    assert_eq!(context.limits().on_demand, some);
    let refused = window(&context, RemoteAccess::ALL).unwrap_err();
    assert_eq!(refused, lacking(OnDemand::READ | OnDemand::ATOMIC));
    bench
        .control
        .give(Value::RcOdpCaps, (some | OnDemand::READ).bits());
    let context = open(&bench);
    assert!(window(&context, RemoteAccess::WRITE).is_ok());
    assert_eq!(
        window(&context, RemoteAccess::ALL).unwrap_err(),
        lacking(OnDemand::ATOMIC)
    );
}

#[test]
fn pages_are_put_in_place_by_nobody() {
    let bench = Bench::new();
    let context = open(&bench);
    let paged = window(&context, RemoteAccess::ALL).unwrap();
    let seen = paged.placement().seen.expect("the kernel shows it");
    assert_eq!((seen.resident_bytes, seen.locked), (0, false));
    let domain = context.protection_domain().unwrap();
    let again = domain.window_of(&paged, 0..4096, RemoteAccess::READ).unwrap();
    assert!(again.placement().asked.on_demand);
    assert!(domain.adopt_window(pages(), RemoteAccess::ALL).is_ok());
    // A lock that is required all the same is refused.
    let mut config = WindowConfig::new(1 << 20, RemoteAccess::ALL);
    config.placement.on_demand = true;
    config.placement.lock_required = true;
    let refused = domain.window(&config).unwrap_err();
    assert_eq!(refused, MemoryError::Unmet(Wish::Lock, Shortfall::NotProvided));
}

#[test]
fn an_arena_is_never_paged_on_demand() {
    let bench = Bench::new();
    let domain = open(&bench).protection_domain().unwrap();
    let mut config = ArenaConfig::new(4, 64);
    config.placement.on_demand = true;
    let refused = domain.arena(&config).unwrap_err();
    assert_eq!(
        refused,
        MemoryError::Unmet(Wish::OnDemand, Shortfall::NotProvided)
    );
    assert_eq!(domain.adopt_arena(pages(), 64).unwrap_err().errno, libc::EINVAL);
}
