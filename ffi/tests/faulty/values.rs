//! Values that a newer library or a broken one might give: no undefined behaviour, no panic, and a clear end.

use doorbell_core::WcStatus;
use doorbell_core::provider::{AsyncEvent, Context as _, Provider as _};
use doorbell_fake::Value;
use doorbell_ffi::leaks;

use crate::Bench;
use crate::life::{End, life, port};

/// Beyond every enumeration there is.
const ODD: u32 = 4711;

#[test]
fn whatever_a_value_is_a_life_comes_to_an_end_and_the_next_is_as_before() {
    let bench = Bench::new();
    for value in Value::ALL {
        // Every bit pattern must be harmless: a byte, a word, and one that looks like a small negative number.
        for number in [0, 1, 17, 0xff, ODD, 1 << 24, u32::MAX] {
            bench.control.heal();
            bench.control.give(*value, number);
            let _however_it_ends = life(&bench.rdma);
            bench.control.heal();
            let before = leaks();
            let next = life(&bench.rdma);
            assert!(next.is_ok(), "after {} {number:#x}: {next:?}", value.name());
            assert_eq!(leaks(), before);
        }
    }
}

#[test]
fn an_unknown_status_is_handed_on_and_is_no_success() {
    let bench = Bench::new();
    bench.control.give(Value::WcStatus, ODD);
    assert!(matches!(life(&bench.rdma), Err(End::Status(WcStatus(ODD)))));
}

#[test]
fn a_completion_of_no_request_is_rejected() {
    let bench = Bench::new();
    bench.control.give(Value::WcWrId, ODD);
    assert!(matches!(life(&bench.rdma), Err(End::Rejected(_))));
}

#[test]
fn ports_of_unknown_kinds_are_not_usable() {
    let bench = Bench::new();
    for (value, number) in [
        (Value::PortState, 77),
        (Value::LinkLayer, 7),
        (Value::GidType, 9),
        (Value::ActiveMtu, 99),
        (Value::PhysPortCnt, 0),
    ] {
        bench.control.heal();
        bench.control.give(value, number);
        assert!(
            matches!(life(&bench.rdma), Err(End::NoPort)),
            "{} {number}",
            value.name()
        );
    }
    bench.control.heal();
    bench.control.give(Value::ActiveSpeed, 3);
    assert_eq!(port(&bench.rdma).unwrap().speed_mbps, 0);
}

#[test]
fn a_queue_pair_number_beyond_24_bits_is_refused() {
    let bench = Bench::new();
    bench.control.give(Value::QpNum, 1 << 24);
    match life(&bench.rdma) {
        Err(End::Call(error)) => assert_eq!(error.call, "ibv_create_qp"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unknown_event_is_reported_by_its_number() {
    let bench = Bench::new();
    let context = bench.rdma.open(&port(&bench.rdma).unwrap().device).unwrap();
    bench.control.give(Value::EventType, ODD);
    assert_eq!(context.next_event(), Ok(Some(AsyncEvent::Other(ODD))));
    assert_eq!(context.next_event(), Ok(None));
}
