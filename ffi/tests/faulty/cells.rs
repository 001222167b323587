//! A message in a cell that the device refuses.

use core::iter;

use doorbell_core::provider::{
    Arena as _, ArenaConfig, Completion as _, Context as _, LoneCell as _, Operation, PostFlags,
    ProtectionDomain as _, Provider as _, QueuePair as _, RemoteAccess, RemoteAddress, SendQueue as _,
    UnpostedReason, Window as _, WindowConfig,
};
use doorbell_fake::Call;

use crate::Bench;
use crate::life::{Peer, bring_up, next, port};

/// EDQUOT.
const ERRNO: i32 = 122;

#[test]
fn the_cell_of_a_message_that_was_refused_is_the_next_ones() {
    let bench = Bench::new();
    let port = port(&bench.rdma).unwrap();
    let context = bench.rdma.open(&port.device).unwrap();
    let domain = context.protection_domain().unwrap();
    let mut arena = domain.arena(&ArenaConfig::new(16, 64)).unwrap();
    let window = domain
        .window(&WindowConfig::new(4096, RemoteAccess::ALL))
        .unwrap();
    let to = Operation::Write(RemoteAddress::new(
        window.remote().address(),
        window.remote().rkey(),
    ));
    let [mut near, mut far] = [1, 2].map(|channel| Peer::new(&context, &domain, channel).unwrap());
    bring_up(&port, &mut near.parts.control, far.parts.control.qpn()).unwrap();
    bring_up(&port, &mut far.parts.control, near.parts.control.qpn()).unwrap();
    let (send, sends) = (&mut near.parts.send, &mut near.sends);
    send.furnish(iter::from_fn(|| arena.lease())).unwrap();

    let room = send.room();
    let mut cell = send.cell().unwrap();
    let ticket = cell.ticket();
    cell.bytes()[..7].copy_from_slice(b"written");
    bench.control.fail(Call::PostSend, 0, ERRNO);
    match cell.post(to, 7, PostFlags::SIGNALED) {
        Err(UnpostedReason::Post(error)) => {
            assert_eq!((error.posted, error.unposted), (0, 1));
            assert_eq!(error.cause.errno, ERRNO);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((send.in_flight(), send.room()), (0, room));

    // Once around the ring and more: each goes out from its own cell.
    for round in 0..3 * room {
        let mut cell = send.cell().unwrap();
        if round == 0 {
            assert_eq!(cell.ticket(), ticket);
            assert!(cell.bytes().starts_with(b"written"));
        }
        cell.bytes()[..4].copy_from_slice(&round.to_be_bytes());
        cell.post(to, 4, PostFlags::SIGNALED).unwrap();
        assert_eq!(send.in_flight(), 1);
        let completion = next(sends, "the end of a request").unwrap();
        let retired = send
            .retire(completion.lend(), |_, _| unreachable!("cells have no slots"))
            .unwrap();
        assert!(retired.status.is_success());
        let mut arrived = [0; 4];
        window.copy_out(0, &mut arrived).unwrap();
        assert_eq!(arrived, round.to_be_bytes());
    }
}
