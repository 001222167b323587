//! Receivers that are not ready, peers that do not answer, and what comes again (S12 to S16).

use std::thread;

use core::time::Duration;

use doorbell_core::provider::{Operation, PostFlags, QueuePair, SendBatch, SendQueue, Window};
use doorbell_core::{Mtu, QpState};

use super::table;
use crate::notes::{asked, either, list, statuses};
use crate::side::{
    QUICK, SLOT_BYTES, USUAL, Wish, connected, connected_as, disturbed, lost_and_repeated, note_struck, sides,
};
use crate::{Disturbance, Notes, Rig, Trouble};

table! {
    12 s12_seven_retries_wait_for_a_receive
        "rnr_retry 7 waits without end"
        => "before: nothing; one receive: SUCCESS, then nothing; two: SUCCESS; received: one two";
    12 s12_fewer_retries_are_exhausted
        "then RNR_RETRY_EXC_ERR; the peer stays as it is"
        => "with a receive: SUCCESS; without: RNR_RETRY_EXC_ERR; states: ERR RTS";
    12 s12_the_count_is_full_again_once_a_message_went
        "the count is reloaded when a message goes through"
        => "three messages, each after a wait: SUCCESS SUCCESS SUCCESS";
    12 s12_waiting_for_a_receive_uses_up_no_retries
        "the peer answers, so the acknowledgement timeout does not count"
        => "sent: SUCCESS";
    12 s12_the_receiver_says_how_long_to_wait
        "the answer carries the receiver's min_rnr_timer"
        => "sent: RNR_RETRY_EXC_ERR; after: at least one timer";
    13 s13_retries_end_after_their_timeouts
        "4.096 us * 2^timeout, retry_cnt times again, then RETRY_EXC_ERR"
        => "sent: RETRY_EXC_ERR; after: at least three timeouts; state: ERR";
    13 s13_seven_retries_end_too
        "7 is a number here"
        => "to RTS: done; sent: RETRY_EXC_ERR";
    14 s14_a_peer_that_is_gone_does_not_answer
        "no answer, so RETRY_EXC_ERR"
        => "sent: RETRY_EXC_ERR; state: ERR";
    14 s14_a_peer_in_error_does_not_answer
        "no answer, so RETRY_EXC_ERR"
        => "WRITE: RETRY_EXC_ERR";
    14 s14_a_peer_in_reset_does_not_answer
        "no answer, so RETRY_EXC_ERR"
        => "SEND: RETRY_EXC_ERR";
    14 s14_what_waits_learns_that_the_peer_is_gone
        "a request that waits for a receive ends so, too"
        => "peer in ERR: RETRY_EXC_ERR; peer gone: RETRY_EXC_ERR";
    15 s15_what_comes_again_is_done_once
        "a SEND or WRITE that is repeated is answered and not done again, an atomic from its saved result"
        => "messages: 20, in order; adds: 20, in order; word: 20; READs: 20 right; packets: lost and repeated";
    15 s15_what_follows_a_gap_is_sent_again
        "the peer says where packets are missing, and all from there on are sent again, before any timeout"
        => "sent: 16 of 16, at once; received: 8, in order; words: 8 written; packets: 1 lost, 1 gap told";
    15 s15_what_follows_a_message_that_waits_is_sent_again
        "go back and send again from the first that was not taken"
        => "before: nothing; sent: SUCCESS SUCCESS SUCCESS; received: first third; window: second";
    16 s16_packet_numbers_wrap
        "24 bits, compared modulo 2^24"
        => "20 rounds over the end: 20 right, back: 20 right";
    16 s16_long_messages_are_cut_and_put_together
        "a message takes as many packet numbers as it has packets"
        => "sent: SUCCESS; received: as sent; window: as sent; read: as sent";
}

const IMPATIENT: Wish = Wish {
    rnr_retry: 1,
    ..USUAL
};

/// For those whose peer answers, and is to be seen to: 268 ms, and three of them before it is given up, are longer than a busy machine
/// takes to.
const ANSWERED: Wish = Wish { timeout: 16, ..USUAL };

fn s12_seven_retries_wait_for_a_receive<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    near.post(Operation::Send, b"one")?;
    near.post(Operation::Send, b"two")?;
    notes.put("before", near.stray_ends()?);
    far.post_receives(1)?;
    let first = near.send_ends(1)?;
    notes.put(
        "one receive",
        format_args!("{first}, then {}", near.stray_ends()?),
    );
    far.post_receives(1)?;
    notes.put("two", near.send_ends(1)?);
    notes.put("received", list(far.received(2)?.iter().map(|came| came.text())));
    Ok(())
}

fn s12_fewer_retries_are_exhausted<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected_as(rig, [IMPATIENT, USUAL])?;
    far.post_receives(1)?;
    near.post(Operation::Send, b"one")?;
    notes.put("with a receive", near.send_ends(1)?);
    near.post(Operation::Send, b"two")?;
    notes.put("without", near.send_ends(1)?);
    let after = [near.state_after(QpState::Error)?, far.state()?];
    notes.put("states", list(after));
    Ok(())
}

fn s12_the_count_is_full_again_once_a_message_went<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    // One retry each, and long waits: without a full count the second message would fail.
    let slow = Wish {
        min_rnr_timer: 31,
        ..USUAL
    };
    let [mut near, mut far] = connected_as(rig, [IMPATIENT, slow])?;
    let mut ends = Vec::new();
    for _ in 0..3 {
        near.post(Operation::Send, b"x")?;
        // It was refused once by now, and comes again in 491 ms.
        thread::sleep(near.patience.come.min(Duration::from_millis(20)));
        far.post_receives(1)?;
        ends.push(near.send_ends(1)?);
        far.received(1)?;
    }
    notes.put("three messages, each after a wait", list(ends));
    Ok(())
}

fn s12_waiting_for_a_receive_uses_up_no_retries<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected_as(rig, [ANSWERED, USUAL])?;
    near.post(Operation::Send, b"x")?;
    let mut sent = near.stray_ends()?;
    // Several times as long as all timeouts together.
    for _ in 0..6 {
        if sent == "nothing" {
            sent = near.stray_ends()?;
        }
    }
    // A device that counts its retries may give up after the last look. So one note has both.
    match sent.as_str() {
        "nothing" => {
            far.post_receives(1)?;
            sent = near.send_ends(1)?;
        }
        "SUCCESS" => sent.push_str(" without a receive"),
        _ => {}
    }
    notes.put("sent", sent);
    Ok(())
}

fn s12_the_receiver_says_how_long_to_wait<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    // 40.96 ms (InfiniBand Architecture volume 1, section 9.7.5.2.8).
    let timer = Duration::from_micros(40_960);
    let slow = Wish {
        min_rnr_timer: 24,
        ..USUAL
    };
    let [mut near, _far] = connected_as(rig, [IMPATIENT, slow])?;
    let began = rig.now();
    near.post(Operation::Send, b"x")?;
    notes.put("sent", near.send_ends(1)?);
    let took = rig.now().saturating_sub(began);
    notes.put(
        "after",
        either(took >= timer, "at least one timer", "less than one timer"),
    );
    Ok(())
}

fn s13_retries_end_after_their_timeouts<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let timeout = Duration::from_nanos(4096 << QUICK.timeout);
    let [mut near, far] = connected_as(rig, [QUICK, USUAL])?;
    drop(far);
    let began = rig.now();
    near.post(Operation::Send, b"x")?;
    notes.put("sent", near.send_ends(1)?);
    let took = rig.now().saturating_sub(began);
    // The first and each retry; timers may be coarse by a tick.
    let due = timeout.saturating_mul(u32::from(QUICK.retry_count).saturating_add(1));
    let waited = took.saturating_add(Duration::from_millis(8)) >= due;
    notes.put(
        "after",
        either(waited, "at least three timeouts", "less than three timeouts"),
    );
    notes.put("state", near.state_after(QpState::Error)?);
    Ok(())
}

fn s13_seven_retries_end_too<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let wish = Wish {
        retry_count: 7,
        timeout: 8,
        ..USUAL
    };
    let [mut near, far] = sides(rig, [wish, USUAL])?;
    near.enter_rtr(far.name())?;
    let outcome = asked(near.control.ready_to_send(&wish.to_send()));
    let is_ready = outcome == "done";
    notes.put("to RTS", outcome);
    if is_ready {
        drop(far);
        near.post(Operation::Send, b"x")?;
        notes.put("sent", near.send_ends(1)?);
    }
    Ok(())
}

fn s14_a_peer_that_is_gone_does_not_answer<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = connected_as(rig, [QUICK, USUAL])?;
    drop(far);
    near.post(Operation::Send, b"x")?;
    notes.put("sent", near.send_ends(1)?);
    notes.put("state", near.state_after(QpState::Error)?);
    Ok(())
}

fn s14_a_peer_in_error_does_not_answer<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected_as(rig, [QUICK, USUAL])?;
    far.control.fail()?;
    let remote = far.at(0)?;
    near.post_with(Operation::Write(remote), b"x", PostFlags::empty())?;
    notes.put("WRITE", near.send_ends(1)?);
    Ok(())
}

fn s14_a_peer_in_reset_does_not_answer<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = sides(rig, [QUICK, USUAL])?;
    near.connect(far.name())?;
    near.post(Operation::Send, b"x")?;
    notes.put("SEND", near.send_ends(1)?);
    Ok(())
}

fn s14_what_waits_learns_that_the_peer_is_gone<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    for is_dropped in [false, true] {
        let [mut near, mut far] = connected_as(rig, [ANSWERED, USUAL])?;
        near.post(Operation::Send, b"x")?;
        // Whether it may end by now is another case's.
        let mut ends = near.stray_ends()?;
        let what = if is_dropped {
            drop(far);
            "peer gone"
        } else {
            far.control.fail()?;
            "peer in ERR"
        };
        if ends == "nothing" {
            ends = near.send_ends(1)?;
        }
        notes.put(what, ends);
    }
    Ok(())
}

/// How many of each kind go where packets are lost.
const DISTURBED: u8 = 20;

fn s15_what_comes_again_is_done_once<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let wish = Wish {
        depth: 32,
        retry_count: 6,
        ..QUICK
    };
    let [mut near, mut far] = disturbed(rig, Disturbance::LostAndRepeated, wish)?;
    far.post_receives(u32::from(DISTURBED))?;
    let (mut befores, mut right) = (Vec::new(), 0_u32);
    for number in 0..DISTURBED {
        let (word, place) = (far.at(0)?, far.at(64)?);
        near.post(Operation::FetchAndAdd { remote: word, add: 1 }, &[0; 8])?;
        near.post_with(Operation::Write(place), &[number; 100], PostFlags::empty())?;
        near.post(Operation::Read(place), &[0xff; 100])?;
        near.post(Operation::Send, &[number])?;
        let sent = near.sent(3)?;
        let mut sent = sent.iter();
        befores.extend(sent.next().and_then(crate::side::Sent::word));
        let read = sent.next().map(|sent| sent.bytes().to_vec());
        right = right.saturating_add(u32::from(read.as_deref() == Some(&[number; 100][..])));
    }
    let messages: Vec<_> = far.received(usize::from(DISTURBED))?;
    let payloads = messages.iter().map(|came| came.payload.clone());
    let in_order = payloads.eq((0..DISTURBED).map(|number| vec![number]));
    notes.put(
        "messages",
        format_args!("{}, {}", messages.len(), order(in_order)),
    );
    let in_order = befores.iter().copied().eq(0..u64::from(DISTURBED));
    notes.put("adds", format_args!("{}, {}", befores.len(), order(in_order)));
    notes.put("word", far.window.load_u64(0)?);
    notes.put("READs", format_args!("{right} right"));
    note_struck(rig, notes, lost_and_repeated)
}

const fn order(is_so: bool) -> &'static str {
    either(is_so, "in order", "not as sent")
}

/// How many of each kind go round a gap: of all together the thirteenth is lost, and a few are behind it.
const ROUND_A_GAP: u8 = 8;

fn s15_what_follows_a_gap_is_sent_again<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    // 8.6 s: a sender that follows the peer's report of a gap does not wait for it.
    let patient = Wish {
        depth: 16,
        timeout: 21,
        ..USUAL
    };
    let timeout = Duration::from_nanos(4096 << patient.timeout);
    let [mut near, mut far] = disturbed(rig, Disturbance::Gap, patient)?;
    far.post_receives(u32::from(ROUND_A_GAP))?;
    let began = rig.now();
    let words: Vec<[u8; 8]> = (1..=ROUND_A_GAP).map(|number| [number; 8]).collect();
    let mut batch = near.send.stage();
    for (offset, word) in (0..).step_by(8).zip(&words) {
        let place = far.at(offset)?;
        batch.push_inline(Operation::Write(place), word, PostFlags::SIGNALED)?;
        batch.push_inline(Operation::Send, word, PostFlags::SIGNALED)?;
    }
    batch.ring()?;
    let posted = words.len().saturating_mul(2);
    let sent = near.sent(posted)?;
    let good = sent.iter().filter(|sent| sent.retired.status.is_success());
    let took = rig.now().saturating_sub(began);
    notes.put(
        "sent",
        format_args!(
            "{} of {posted}, {}",
            good.count(),
            either(took < timeout, "at once", "after a timeout")
        ),
    );
    let messages = far.received(words.len())?;
    let in_order = messages.iter().map(|came| &came.payload).eq(&words);
    notes.put(
        "received",
        format_args!("{}, {}", messages.len(), order(in_order)),
    );
    let written = far.window_bytes(0, words.len().saturating_mul(8))?;
    let written = written.chunks_exact(8).zip(&words);
    let right = written.filter(|(written, word)| written == word).count();
    notes.put("words", format_args!("{right} written"));
    note_struck(rig, notes, |struck| {
        format!("{} lost, {} gap told", struck.lost, struck.gaps)
    })
}

fn s15_what_follows_a_message_that_waits_is_sent_again<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    let remote = far.at(0)?;
    let mut batch = near.send.stage();
    batch.push_inline(Operation::Send, b"first", PostFlags::SIGNALED)?;
    batch.push_inline(Operation::Write(remote), b"second", PostFlags::SIGNALED)?;
    batch.push_inline(Operation::Send, b"third", PostFlags::SIGNALED)?;
    batch.ring()?;
    notes.put("before", near.stray_ends()?);
    far.post_receives(2)?;
    notes.put("sent", near.send_ends(3)?);
    notes.put("received", list(far.received(2)?.iter().map(|came| came.text())));
    let window = far.window_bytes(0, 6)?;
    notes.put("window", String::from_utf8_lossy(&window));
    Ok(())
}

fn s16_packet_numbers_wrap<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    // The sides begin two packets before the end of the numbers.
    let [mut near, mut far] = connected(rig)?;
    let (mut there, mut back) = (0_u32, 0_u32);
    for round in 1..=20_u8 {
        let remote = far.at(0)?;
        near.post(Operation::Write(remote), &[round; 100])?;
        near.post(Operation::Read(remote), &[0xff; 200])?;
        let sent = near.sent(2)?;
        let read = sent.last().and_then(|sent| sent.bytes().get(..100));
        there = there.saturating_add(u32::from(read == Some(&[round; 100][..])));
        let remote = near.at(0)?;
        far.post(Operation::Write(remote), &[round; 10])?;
        let ended = far.send_ends(1)?;
        let is_there = ended == "SUCCESS" && near.window_bytes(0, 10)? == [round; 10];
        back = back.saturating_add(u32::from(is_there));
    }
    notes.put(
        "20 rounds over the end",
        format_args!("{there} right, back: {back} right"),
    );
    Ok(())
}

fn s16_long_messages_are_cut_and_put_together<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    // Two packets each, the last of them not full.
    let wish = Wish {
        path_mtu: Mtu::B256,
        ..USUAL
    };
    let [mut near, mut far] = connected_as(rig, [wish; 2])?;
    let long: Vec<u8> = (0..=u8::MAX).chain(7..=u8::MAX).cycle().take(500).collect();
    let (first, rest) = long.split_at(SLOT_BYTES as usize);
    let slots = [far.slot(b"")?, far.slot(b"")?];
    far.post_receive(slots)?;
    let remote = far.at(3)?;
    let slots = [near.slot(first)?, near.slot(rest)?];
    near.post_slots(Operation::Send, slots, PostFlags::empty())?;
    let slots = [near.slot(first)?, near.slot(rest)?];
    near.post_slots(Operation::Write(remote), slots, PostFlags::empty())?;
    let slots = [
        near.slot(&vec![0; first.len()])?,
        near.slot(&vec![0; rest.len()])?,
    ];
    near.post_slots(Operation::Read(remote), slots, PostFlags::SIGNALED)?;
    let sent = near.sent(1)?;
    let ends = sent.iter().map(|sent| sent.retired.status);
    notes.put("sent", statuses(ends));
    let word = |bytes: &[u8]| either(bytes == long, "as sent", "otherwise");
    let received = far.received(1)?;
    notes.put("received", list(received.iter().map(|came| word(&came.payload))));
    notes.put("window", word(&far.window_bytes(3, long.len())?));
    // Behind those of the two requests before it.
    let slots = sent.iter().flat_map(|sent| sent.slots.iter().skip(4));
    let read: Vec<u8> = slots.flatten().copied().collect();
    notes.put("read", word(&read));
    Ok(())
}
