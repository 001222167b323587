//! Messages written in place: which cell goes out, and what is announced meanwhile.

use std::vec::Vec;

use doorbell_core::provider::{Operation, PostFlags, PushError, SendQueue as _};

use super::{CELL_BYTES, Queue, START, Tested, TestedBatch, complete, sender_with, signaled};
use crate::LoneCell;

/// A sender with cells, whose peer has posted so many receives.
fn sender(depth: u32, credits: u32) -> Tested {
    let (mut sender, ..) = sender_with(depth, 0, [credits, 0]);
    sender.queue.furnish([]).unwrap();
    sender
}

/// Posts a message of this text by itself.
fn post(sender: &mut Tested, text: &[u8]) {
    let cell = sender.cell().unwrap();
    post_cell(cell, text);
}

fn post_cell(mut cell: LoneCell<'_, Queue>, text: &[u8]) {
    cell.bytes()[..text.len()].copy_from_slice(text);
    let len_bytes = u32::try_from(text.len()).unwrap();
    cell.post(Operation::Send, len_bytes, PostFlags::empty()).unwrap();
}

/// Stages one.
fn push(batch: &mut TestedBatch<'_>, text: &[u8]) {
    batch.cell().unwrap()[..text.len()].copy_from_slice(text);
    let len_bytes = u32::try_from(text.len()).unwrap();
    batch
        .push_cell(Operation::Send, len_bytes, PostFlags::empty())
        .unwrap();
}

fn sent(sender: &Tested) -> Vec<&[u8]> {
    sender.queue.inline.iter().map(Vec::as_slice).collect()
}

/// The receives that were announced, which no message here is as long as.
fn announced(sender: &Tested) -> Vec<u32> {
    let words = sender.queue.inline.iter().filter(|bytes| bytes.len() == 8);
    words
        .map(|bytes| u32::from_be_bytes(bytes[..4].try_into().unwrap()).wrapping_sub(START))
        .collect()
}

#[test]
fn what_was_written_is_what_goes_out() {
    let mut sender = sender(4, 100);
    for round in 0..20_u8 {
        post(&mut sender, &[round, round]);
        let mut batch = sender.stage();
        for part in [&[round][..], &[], &[round; 3]] {
            push(&mut batch, part);
        }
        assert_eq!(batch.cell().unwrap_err(), PushError::Full);
        batch.ring().unwrap();
        let from = sender.queue.inline.len() - 4;
        assert_eq!(
            sent(&sender)[from..],
            [&[round, round][..], &[round], &[], &[round; 3]]
        );
        while sender.awaits_completion() {
            complete(&mut sender);
        }
    }
}

#[test]
fn a_cell_is_lent_to_a_message_that_may_be_sent() {
    let mut sender = sender(4, 2);
    for _ in 0..2 {
        post(&mut sender, b"a");
    }
    assert_eq!(sender.cell().unwrap_err(), PushError::NoCredit);
    assert!(sender.wants_credits());
    assert_eq!(sender.stage().cell().unwrap_err(), PushError::NoCredit);
    assert_eq!(signaled(&sender), [true; 2]);
}

#[test]
fn a_cell_is_lent_while_there_is_room() {
    let mut sender = sender(4, 100);
    let write = Operation::Write(super::PEERS_WORD);
    for _ in 0..3 {
        let cell = sender.cell().unwrap();
        cell.post(write, 8, PostFlags::empty()).unwrap();
    }
    assert_eq!(sender.credits(), 100, "a WRITE takes no receive");
    post(&mut sender, b"a");
    assert_eq!(sender.credits(), 99);
    assert_eq!(sender.cell().unwrap_err(), PushError::Full);
    assert_eq!(sender.stage().cell().unwrap_err(), PushError::Full);
    assert_eq!(signaled(&sender), [true; 4]);
}

#[test]
fn receives_are_announced_in_front_of_the_cell() {
    const OURS: u32 = 8;
    let (mut sender, _, mut receives) = sender_with(8, 0, [100, OURS]);
    sender.queue.furnish([]).unwrap();
    receives.note_posted(OURS);
    sender.cell().unwrap();
    assert_eq!(
        announced(&sender),
        [2 * OURS],
        "by itself, so that the cell stays the message's"
    );
    post(&mut sender, b"behind");
    assert_eq!(sent(&sender).last(), Some(&&b"behind"[..]));
    assert_eq!(sender.in_flight(), 1);

    // Receives that come due once the cell is lent wait for the next message.
    let cell = sender.cell().unwrap();
    receives.note_posted(OURS);
    post_cell(cell, b"first");
    assert_eq!(sent(&sender).last(), Some(&&b"first"[..]));
    let mut batch = sender.stage();
    push(&mut batch, b"second");
    assert_eq!(batch.staged(), 1);
    batch.ring().unwrap();
    assert_eq!(sent(&sender).last(), Some(&&b"second"[..]));
    assert_eq!(announced(&sender), [2 * OURS, 3 * OURS]);
}

#[test]
fn a_cell_that_the_device_refused_is_the_next_ones() {
    let mut sender = sender(4, 100);
    sender.queue.takes = 1;
    let mut batch = sender.stage();
    for text in [b"a", b"b", b"c"] {
        push(&mut batch, text);
    }
    let refused = batch
        .ring_returning(|_, _| unreachable!("cells have no slots"))
        .unwrap_err();
    assert_eq!((refused.posted, refused.unposted), (1, 2));
    assert_eq!(sender.credits(), 99);
    sender.queue.takes = usize::MAX;
    let mut cell = sender.cell().unwrap();
    assert_eq!(cell.bytes()[0], b'b');
    cell.post(Operation::Send, 1, PostFlags::empty()).unwrap();
    assert_eq!(sent(&sender), [b"a", b"b"]);
}

#[test]
fn cells_count_in_the_statistics_as_other_messages_do() {
    let mut sender = sender(4, 100);
    let most = sender.cell_bytes();
    assert_eq!(most as usize, CELL_BYTES);
    let cell = sender.cell().unwrap();
    cell.post(Operation::Send, most, PostFlags::empty()).unwrap();
    let mut batch = sender.stage();
    push(&mut batch, b"abc");
    batch.ring().unwrap();
    let counts = sender.statistics.snapshot();
    assert_eq!(counts.doorbells, 2);
    assert_eq!(counts.requests, 2);
    assert_eq!(counts.bytes, u64::from(most) + 3);
    assert_eq!(counts.inline, 0);
}
