//! A process that may make no system call except to end. Its messages and operations need none while the daemon polls.

use core::time::Duration;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;

use doorbell::RemoteAccess;
use doorbell::interprocess::SharedBytes as _;
use doorbell_daemon::{ArenaGrant, ArenaOperation, ArenaRange, Client, EndpointEvent};
use doorbell_sandbox::Confinement;
use rustix::process::Signal;

use crate::{Daemon, at, attach, process, until};

const ROUNDS: u32 = 200;
const BYTES: usize = 8192;

/// The part of the confined process. For each grant of endpoint 0 that arrives in a message, it runs operations. It sends each number
/// back.
pub(crate) fn polls(mut client: Client, asks: bool) {
    std::io::stderr().write_all(b"R").unwrap();
    Confinement::default().enter().unwrap();
    let mut grant = None;
    while grant.is_none() {
        let polled = client.poll(|event| {
            if let EndpointEvent::Received { message, .. } = event {
                grant = message.try_into().ok().map(ArenaGrant::from_bytes);
            }
        });
        polled.unwrap();
    }
    let own = ArenaRange {
        offset: 0,
        bytes: BYTES,
    };
    for round in 0..ROUNDS {
        assert!(client.arena().unwrap().copy_in(0, &[round as u8; BYTES]));
        let grant = grant.as_ref().unwrap();
        client.request(grant, 0, &ArenaOperation::Write(own)).unwrap();
        client.request(grant, 0, &ArenaOperation::Read(own)).unwrap();
        client.send(at(0), &round.to_le_bytes()).unwrap();
        let mut completed = 0;
        while completed < 2 {
            let polled = client.poll(|event| match event {
                EndpointEvent::Completed { .. } => completed += 1,
                event => panic!("{event:?}"),
            });
            polled.unwrap();
        }
    }
    if asks {
        let _ = rustix::process::getppid();
    }
    std::process::exit(0);
}

#[test]
fn a_process_that_may_do_nothing_but_end_exchanges_messages_and_reaches_memory() {
    for asks in [false, true] {
        // The daemon never sleeps, so no client has to wake it.
        let daemon = Daemon::start(|config| config.spin = Duration::from_secs(3600));
        let mut owner = attach(&daemon.socket, 0);
        let range = ArenaRange {
            offset: 0,
            bytes: BYTES,
        };
        let grant = owner.grant(at(1), range, RemoteAccess::ALL).unwrap();
        let mut other = process(if asks { "asks" } else { "polls" }, &daemon.socket);
        owner.send(at(1), &grant.to_bytes()).unwrap();
        owner.poll(|_| {}).unwrap();
        let mut round = 0_u32;
        until(&mut owner, "the last round", |event| {
            match event {
                EndpointEvent::Received { message, .. } => assert_eq!(message, round.to_le_bytes()),
                // The end follows the last message, and both may arrive together.
                EndpointEvent::Gone { .. } if round == ROUNDS => return true,
                event => panic!("{event:?}"),
            }
            round += 1;
            round == ROUNDS
        });
        let mut last = [0; BYTES];
        assert!(owner.arena().unwrap().copy_out(0, &mut last));
        assert_eq!(last, [(ROUNDS - 1) as u8; BYTES]);
        let status = other.wait().unwrap();
        let killed = asks.then_some(Signal::SYS.as_raw());
        assert_eq!((status.code(), status.signal()), ((!asks).then_some(0), killed));
    }
}
