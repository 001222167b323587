//! Tests of transfers between processes: the giver need not poll, and a dead giver gives nothing more.

use std::io::Write as _;

use doorbell::interprocess::SharedBytes as _;
use doorbell_daemon::{ArenaOffer, ArenaRange, ArenaTransferEnd, Client, EndpointEvent, GoneReason};

use crate::{ARENA_BYTES, Daemon, at, attach, process, soon, until};

const HALF: usize = ARENA_BYTES as usize / 2;

/// The part of the giving process. It offers half of its arena to endpoint 0, and does not poll afterwards.
pub(crate) fn gives(client: &mut Client) {
    assert!(client.arena().unwrap().copy_in(0, &vec![7; HALF]));
    let range = ArenaRange {
        offset: 0,
        bytes: HALF,
    };
    let (_, offer) = client.offer(at(0), range, soon()).unwrap();
    client.send(at(0), &offer.to_bytes()).unwrap();
    client.poll(|_| {}).unwrap();
    std::io::stderr().write_all(b"R").unwrap();
    loop {
        std::thread::park();
    }
}

fn offer(client: &mut Client) -> ArenaOffer {
    let mut offer = None;
    until(client, "an offer", |event| {
        if let EndpointEvent::Received { message, .. } = event {
            offer = message.try_into().ok().map(ArenaOffer::from_bytes);
        }
        offer.is_some()
    });
    offer.unwrap()
}

/// Returns the end of the transfer, and the number of received bytes.
fn end(client: &mut Client) -> (ArenaTransferEnd, u64) {
    let mut ended = None;
    until(client, "the end of a transfer", |event| {
        if let EndpointEvent::TransferEnded { end, bytes, .. } = event {
            ended = Some((end, bytes));
        }
        ended.is_some()
    });
    ended.unwrap()
}

#[test]
fn a_transfer_needs_its_taker_alone_and_ends_with_its_giver() {
    let daemon = Daemon::start(|_| {});
    let mut client = attach(&daemon.socket, 0);
    let mut giver = process("gives", &daemon.socket);
    let offer = offer(&mut client);
    assert_eq!(offer.bytes, HALF as u64);
    client.take(&offer, HALF, soon()).unwrap();
    assert_eq!(end(&mut client), (ArenaTransferEnd::Done, HALF as u64));
    let mut there = vec![0; HALF];
    assert!(client.arena().unwrap().copy_out(HALF, &mut there));
    assert!(there.iter().all(|byte| *byte == 7));
    let mut watch = attach(&daemon.socket, 2);
    watch.send(at(1), b"hello").unwrap();
    watch.poll(|_| {}).unwrap();
    // A second transfer: some of it arrives, and then the giver dies.
    let taken = client.take(&offer, 0, soon()).unwrap();
    while client.landed(taken) == Some(0) {
        client.poll(|_| {}).unwrap();
    }
    giver.kill().unwrap();
    giver.wait().unwrap();
    let gone = EndpointEvent::Gone {
        who: at(1),
        reason: GoneReason::Died,
    };
    until(&mut watch, "the end of the giver", |event| event == gone);
    let (ended, bytes) = end(&mut client);
    assert_eq!(ended, ArenaTransferEnd::Gone(GoneReason::Died));
    assert!(bytes > 0 && bytes < HALF as u64, "{bytes}");
}
