//! Contexts of older libraries, and of devices that lack operations.

use doorbell_core::provider::{Context as _, LookFailure, Provider as _, ProviderError};
use doorbell_fake::{Call, Value, Without};

use crate::Bench;
use crate::life::{End, life, port};

const EOPNOTSUPP: i32 = 95;

#[test]
fn a_shorter_context_is_asked_the_older_way() {
    let bench = Bench::new();
    for without in [Without::QueryPort, Without::Extension] {
        bench.control.lack(without);
        life(&bench.rdma).unwrap();
    }
}

#[test]
fn a_device_without_a_data_path_does_not_open() {
    let bench = Bench::new();
    let name = port(&bench.rdma).unwrap().device;
    for without in [
        Without::PostSend,
        Without::PostRecv,
        Without::PollCq,
        Without::ReqNotifyCq,
    ] {
        bench.control.lack(without);
        let refused = bench.rdma.open(&name).unwrap_err();
        assert_eq!(refused.errno, EOPNOTSUPP, "{}: {refused}", without.name());
    }
    bench.control.lack(Without::Nothing);
    assert!(bench.rdma.open(&name).is_ok());
}

#[test]
fn a_device_without_shared_receives_says_so() {
    let bench = Bench::new();
    bench.control.lack(Without::PostSrqRecv);
    match life(&bench.rdma) {
        Err(End::Call(ProviderError { call, errno })) => {
            assert_eq!((call, errno), ("ibv_create_srq", EOPNOTSUPP));
        }
        other => panic!("{other:?}"),
    }
}

/// The fake's second port is one that it says it has, and refuses to be asked of.
#[test]
fn a_broken_port_of_two_leaves_the_other_to_be_used() {
    let bench = Bench::new();
    bench.control.give(Value::PhysPortCnt, 2);
    let (mut ports, mut failures) = (Vec::new(), Vec::new());
    bench
        .rdma
        .scan(&mut |port| ports.push(port.clone()), &mut |device, failure| {
            failures.push(format!("{device} {failure}"));
        })
        .unwrap();
    let [port] = &ports[..] else {
        panic!("{ports:?}");
    };
    let why = "ibv_query_port failed: invalid argument (errno 22)";
    assert_eq!(
        (port.port, failures),
        (1, vec![format!("{} port 2: {why}", port.device)])
    );
    let context = bench.rdma.open(&port.device).unwrap();
    assert_eq!(context.request_bytes_max(1), Ok(1 << 31));
    // Not zero, and not another port's.
    let broken = LookFailure {
        port: Some(2),
        error: context.request_bytes_max(2).unwrap_err(),
    };
    assert_eq!(broken.to_string(), format!("port 2: {why}"));
    assert!(matches!(
        life(&bench.rdma),
        Err(End::Call(ProviderError { errno: 22, .. }))
    ));
}

#[test]
fn a_port_that_breaks_later_is_reported_by_the_call_that_uses_it() {
    let bench = Bench::new();
    let context = bench.rdma.open(&port(&bench.rdma).unwrap().device).unwrap();
    bench.control.fail(Call::QueryPort, 0, 5);
    let refused = context.request_bytes_max(1).unwrap_err();
    assert_eq!((refused.call, refused.errno), ("ibv_query_port", 5));
    assert_eq!(context.request_bytes_max(1), Ok(1 << 31));
}
