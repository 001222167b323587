//! Clients that differ from those of this program.

use core::time::Duration;
use std::thread;

use doorbell::RemoteWindow;
use doorbell::provider::Rkey;

use super::{LOCALHOST, hosts, talk_to, terms, test};
use crate::address::silent;
use crate::perf::control;
use crate::perf::error::PerfError;
use crate::perf::link::{Link, Run};
use crate::perf::message::{Message, Purpose, Setup, Verdict};
use crate::perf::progress::Progress;
use crate::perf::session::{Server, drive};
use crate::perf::terms::{Target, Terms};
use crate::perf::test::{Kind, Op, Role, Test};

#[test]
fn a_client_that_claims_many_atomics_and_gives_up_keeps_no_listener() {
    let [near, far] = hosts();
    let mut server = Server::bind(far, LOCALHOST, &terms()).unwrap();
    let address = server.address();
    let served = thread::spawn(move || server.serve_one());
    let mut control = talk_to(near, address);
    let test = Test {
        iterations: 1 << 39,
        ..test(Kind::Latency, Op::FetchAdd, 8)
    };
    let setup = Setup {
        token: 1,
        test,
        window: RemoteWindow::new(0, 0, Rkey(0)),
    };
    control.send(&Message::Setup(setup)).unwrap();
    let Ok(Message::Ready(ready)) = control.receive() else {
        panic!("not ready")
    };
    let mut config = test.channel_config(Role::Client);
    config.private_data = control::private_data(Purpose::UnderTest(1));
    let mut workers = [near.worker("sim0", &test.worker_config(Role::Client)).unwrap()];
    let deadline = doorbell::within(Duration::from_secs(5));
    let connection = near.connect_at(&mut workers, address, &config, deadline).unwrap();
    let [worker] = workers;
    let mut link = Link {
        worker,
        id: connection.channel,
        window: None,
        remote: ready.window,
    };
    let mut run = Run::new(&test, Role::Client, 1, &mut link, &mut control);
    run.send_mark(0).unwrap();
    let verdict = Verdict {
        token: 1,
        messages_checked: 0,
        bytes_checked: 0,
        faults: 0,
        first_fault: None,
        gave_up: Some("enough".into()),
    };
    control.send(&Message::Verdict(verdict)).unwrap();
    let failure = served.join().unwrap().failure;
    assert!(matches!(failure, Some(PerfError::PeerGaveUp(_))), "{failure:?}");
}

#[test]
fn a_silent_address_leaves_time_to_the_next() {
    let [near, _] = hosts();
    let (first, _kept) = silent();
    // The system does not choose the second port for another process.
    let target = Target::Addresses {
        name: "the name".into(),
        addresses: vec![first.local_addr().unwrap(), ([127, 0, 0, 1], 1).into()],
    };
    let terms = Terms {
        timeout: Duration::from_secs(4),
        ..terms()
    };
    let findings = drive(near, &target, &[], &terms, |_| Progress::silent());
    // An answer of the second one.
    assert!(
        matches!(findings.failure, Some(PerfError::NobodyListens { .. })),
        "{:?}",
        findings.failure
    );
}
