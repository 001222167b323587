//! Messages from the cells of a channel, over the simulated fabric.

use crate::fabric::{End, LONG, pair, pair_with, small};
use doorbell::provider::Window as _;
use doorbell::{
    ChannelState, Event, Operation, PostFlags, RemoteAccess, RemoteAddress, SendErrorKind, WindowConfig,
};
use doorbell_sim::Host;

pub(crate) fn received(event: Event<'_, Host>) -> Option<Vec<u8>> {
    match event {
        Event::Received { message, .. } => Some(message.payload().to_vec()),
        _ => None,
    }
}

/// The bytes of the message of this number.
fn message(number: usize) -> Vec<u8> {
    (0..number * 37 % 257).map(|at| (at * 7 + number) as u8).collect()
}

/// Sends until there is room, and what comes back meanwhile is looked at by nobody.
fn until_sent(
    from: &mut End,
    to: &mut End,
    came: &mut Vec<Vec<u8>>,
    mut send: impl FnMut(&mut End) -> Result<(), SendErrorKind>,
) {
    for _ in 0..10_000 {
        match send(from) {
            Ok(()) => return,
            Err(SendErrorKind::WouldBlock) => {
                from.worker().poll(|_, _| ()).unwrap();
                to.worker().poll(|_, event| came.extend(received(event))).unwrap();
            }
            Err(other) => panic!("{other}"),
        }
    }
    panic!("there is never room");
}

#[test]
fn each_message_arrives_as_it_was_written() {
    const MESSAGES: usize = 500;
    let (mut a, mut b) = pair();
    let id = a.id();
    let mut came = Vec::new();
    for number in 0..MESSAGES {
        let bytes = message(number);
        until_sent(&mut a, &mut b, &mut came, |from| {
            let channel = from.worker().channel(id).unwrap();
            match number % 3 {
                0 => channel.send(&bytes).map(drop),
                1 => {
                    let mut claim = channel.claim(bytes.len())?;
                    claim.bytes().copy_from_slice(&bytes);
                    claim.send().map(drop)
                }
                _ => {
                    let mut batch = channel.batch();
                    batch.send(&bytes)?;
                    batch.ring().map(drop).map_err(SendErrorKind::Post)
                }
            }
        });
    }
    while came.len() < MESSAGES {
        came.push(b.until(received));
    }
    let sent: Vec<Vec<u8>> = (0..MESSAGES).map(message).collect();
    assert_eq!(came, sent);
}

#[test]
fn a_batch_takes_claims_leases_and_inline_bytes_in_posting_order() {
    let (mut a, mut b) = pair();
    let (lease, id) = (a.lease(b"leased"), a.id());
    let mut batch = a.worker().channel(id).unwrap().batch();
    let mut claim = batch.claim(8).unwrap();
    claim.bytes().copy_from_slice(b"written ");
    claim.truncate(7);
    claim.send().unwrap();
    batch.push(Operation::Send, [lease], PostFlags::empty()).unwrap();
    batch.send(b"copied").unwrap();
    batch
        .push_inline(Operation::Send, b"inline", PostFlags::empty())
        .unwrap();
    assert_eq!(batch.ring().unwrap(), 4);
    for expected in ["written", "leased", "copied", "inline"] {
        assert_eq!(b.until(received), expected.as_bytes());
    }
}

#[test]
fn a_claim_that_is_dropped_and_a_batch_that_is_forgotten_send_nothing() {
    let (mut a, mut b) = pair();
    let id = a.id();
    let channel = a.worker().channel(id).unwrap();
    let (room, credits) = (channel.room(), channel.credits());
    drop(channel.claim(4).unwrap());
    let mut batch = channel.batch();
    drop(batch.claim(4).unwrap());
    batch.send(b"staged").unwrap();
    core::mem::forget(batch);
    channel.send(&[7; 100]).unwrap();
    assert_eq!((channel.room(), channel.credits()), (room - 1, credits - 1));
    assert_eq!(b.until(received), [7; 100]);
    assert_eq!(b.worker().poll(|_, _| panic!("something came")).unwrap(), 0);
}

#[test]
fn a_message_longer_than_a_cell_is_refused_with_the_length_there_may_be() {
    for (cell_bytes, inline_bytes_max, most) in
        [(256, 220, 256), (64, 220, 220), (0, 220, 220), (128, 0, 128)]
    {
        let mut config = small();
        (config.cell_bytes, config.inline_bytes_max) = (cell_bytes, inline_bytes_max);
        config.inline_alone_bytes_max = 0;
        let (mut a, mut b) = pair_with(config, config);
        let id = a.id();
        let channel = a.worker().channel(id).unwrap();
        let too_long = SendErrorKind::TooLong {
            bytes: most + 1,
            bytes_max: most,
        };
        assert_eq!(
            channel.send(&vec![1; most + 1]),
            Err(too_long),
            "cells of {cell_bytes}"
        );
        channel.send(&vec![2; most]).unwrap();
        let cell = cell_bytes as usize;
        let beyond = SendErrorKind::TooLong {
            bytes: cell + 1,
            bytes_max: cell,
        };
        assert_eq!(channel.claim(cell + 1).map(drop), Err(beyond));
        assert_eq!(b.until(received), vec![2; most]);
        // The Worker takes a lease for what is longer.
        a.worker().send(id, &vec![3; most + 1]).unwrap();
        assert_eq!(b.until(received), vec![3; most + 1]);
    }
}

#[test]
fn a_claim_is_written_into_the_peers_window() {
    let mut listening = small();
    listening.remote = RemoteAccess::ALL;
    let (mut a, mut b) = pair_with(listening, small());
    let window = a
        .worker()
        .window(&WindowConfig::new(4096, RemoteAccess::ALL))
        .unwrap();
    let at = RemoteAddress::within(&window.remote(), 16, 8).unwrap();
    let id = b.id();
    let channel = b.worker().channel(id).unwrap();
    let mut claim = channel.claim(8).unwrap();
    claim.bytes().copy_from_slice(b"in place");
    claim
        .post(Operation::WriteWithImmediate(at, 3), PostFlags::empty())
        .unwrap();
    assert!(
        channel
            .claim(9)
            .unwrap()
            .post(Operation::Write(at), PostFlags::empty())
            .is_err()
    );
    assert!(
        channel
            .claim(8)
            .unwrap()
            .post(Operation::Read(at), PostFlags::empty())
            .is_err()
    );
    let told = a.until(|event| match event {
        Event::Written { immediate, .. } => Some(immediate),
        _ => None,
    });
    assert_eq!(told, 3);
    let mut bytes = [0; 8];
    window.copy_out(16, &mut bytes).unwrap();
    assert_eq!(&bytes, b"in place");
}

#[test]
fn what_is_in_flight_when_a_channel_fails_is_told_and_its_cells_are_used_again() {
    let (mut a, mut b) = pair();
    let id = a.id();
    let channel = a.worker().channel(id).unwrap();
    channel.shut().unwrap();
    let ticket = channel.send(&[1; 100]).unwrap();
    let failed = a.until(|event| match event {
        Event::Failed { ticket: of, status } => Some((of, status.is_flush())),
        _ => None,
    });
    assert_eq!(failed, (ticket, true));
    let state = a.worker().state(id).unwrap();
    assert!(matches!(state, ChannelState::Failed { .. }), "{state}");
    drop((a, b.workers.pop()));
}

#[test]
fn a_worker_tells_what_is_registered_for_cells_and_keeps_it_for_later_channels() {
    let (mut a, b) = pair();
    let id = a.id();
    assert_eq!(a.worker().channel(id).unwrap().cell_bytes(), 256);
    // One more than the 16 requests of the application may be in flight: 32 is the next power of two.
    let counts = a.worker().cells();
    assert_eq!((counts.blocks, counts.cells, counts.in_use), (1, 256, 32));
    let long = a.node.within(LONG);
    a.worker().close(id, long, |_, _| {}).unwrap();
    let counts = a.worker().cells();
    assert_eq!((counts.blocks, counts.cells, counts.in_use), (1, 256, 0));
    drop(b);

    let mut without = small();
    without.cell_bytes = 0;
    let (mut a, _b) = pair_with(without, small());
    let id = a.id();
    assert_eq!(a.worker().channel(id).unwrap().cell_bytes(), 0);
    assert_eq!(a.worker().cells().blocks, 0);
    let too_long = SendErrorKind::TooLong {
        bytes: 1,
        bytes_max: 0,
    };
    let channel = a.worker().channel(id).unwrap();
    assert_eq!(channel.batch().send(b"x"), Err(too_long));
    assert_eq!(channel.claim(1).map(drop), Err(too_long));
}
