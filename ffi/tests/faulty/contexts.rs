//! Contexts of older libraries, and of devices that lack operations.

use doorbell_core::provider::{Provider as _, ProviderError};
use doorbell_fake::Without;

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
