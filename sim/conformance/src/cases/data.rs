//! Data: which receives are consumed, what is in them, and in which order (S17 to S20).

use std::thread;
use std::time::Instant;

use doorbell_core::provider::{
    ArrivalKind, DataInOrder, Operation, PostFlags, QueuePair, ReceiveQueue, SendBatch, SendQueue, Window,
};

use super::table;
use crate::notes::{either, list};
use crate::side::{QUICK, SLOT_BYTES, Wish, connected, disturbed, lost_and_repeated, note_struck};
use crate::{Disturbance, Notes, Rig, Trouble};

table! {
    17 s17_a_send_consumes_one_receive
        "one each, in the order in which they were posted"
        => "sent: SUCCESS SUCCESS; received: one/none two/0x01020304; receives left: 1";
    17 s17_a_write_with_immediate_consumes_one_receive_untouched
        "one; its bytes are in the window, and the receive's own are as they were"
        => "sent: SUCCESS; received: WRITE with 0x00000007 of 7 bytes, payload 0; window: .written.; receives left: 1";
    17 s17_write_and_read_consume_no_receive
        "none"
        => "sent: SUCCESS SUCCESS; read: here; received: nothing; receives left: 1";
    17 s17_a_message_gathers_and_scatters
        "elements are gathered in order, and scattered in order"
        => "sent: SUCCESS; received: 356 bytes as sent";
    17 s17_a_message_may_be_empty
        "a message without a byte consumes a receive, too"
        => "sent: SUCCESS SUCCESS; received: 0 0 bytes; receives left: 0";
    17 s17_the_receive_is_needed_when_the_immediate_comes
        "without one, a WRITE with immediate waits"
        => "before: nothing; after: SUCCESS; received: 0x00000001; window: late";
    18 s18_requests_complete_in_order_and_data_before_its_message
        "of one queue pair, in order; a message tells that all before it is there"
        => "completed: in order; at each message: its data was there";
    18 s18_what_waits_holds_back_what_follows
        "nothing overtakes a SEND that waits"
        => "before: nothing, window untouched; after: SUCCESS SUCCESS, window written";
    18 s18_behind_a_fence_earlier_fetches_are_done
        "IBV_SEND_FENCE waits for earlier READs and atomics"
        => "sent: SUCCESS; fetched: 1; behind it: 42; received: done";
    18 s18_a_fenced_write_waits_for_the_read
        "what a fenced WRITE replaces, the READ before it has seen"
        => "READs: 20 of what was there; window: 20 times written; packets: lost and repeated";
    19 s19_a_read_behind_a_write_sees_it
        "a WRITE's completion does not tell that a processor sees the bytes; a READ behind it does"
        => "written: SUCCESS; read back: 20 of 20; by the processor then: 20 of 20";
    20 s20_memory_is_whole_once_its_last_byte_is_told
        "memory may be polled only where the device says that bytes land in order"
        => "messages: 20; whole once told: 20";
}

fn word(immediate: Option<u32>) -> String {
    immediate.map_or("none".to_owned(), |word| format!("{word:#010x}"))
}

fn s17_a_send_consumes_one_receive<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(3)?;
    near.post(Operation::Send, b"one")?;
    near.post(Operation::SendWithImmediate(0x0102_0304), b"two")?;
    notes.put("sent", near.send_ends(2)?);
    let received = far.received(2)?;
    let each = received
        .iter()
        .map(|came| format!("{}/{}", came.text(), word(came.arrival.immediate)));
    notes.put("received", list(each));
    notes.put("receives left", far.receive.in_flight());
    Ok(())
}

fn s17_a_write_with_immediate_consumes_one_receive_untouched<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(2)?;
    let remote = far.at(10)?;
    near.post(Operation::WriteWithImmediate(remote, 7), b"written")?;
    notes.put("sent", near.send_ends(1)?);
    let received = far.received(1)?;
    let each = received.iter().map(|came| {
        let kind = either(
            came.arrival.kind == ArrivalKind::WriteWithImmediate,
            "WRITE",
            "another",
        );
        let (immediate, bytes) = (word(came.arrival.immediate), came.arrival.payload_bytes);
        format!(
            "{kind} with {immediate} of {bytes} bytes, payload {}",
            came.payload.len()
        )
    });
    notes.put("received", list(each));
    let window = far.window_bytes(9, 9)?;
    notes.put("window", String::from_utf8_lossy(&window).replace('\0', "."));
    notes.put("receives left", far.receive.in_flight());
    Ok(())
}

fn s17_write_and_read_consume_no_receive<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(1)?;
    let (remote, behind) = (far.at(0)?, far.at(1)?);
    near.post(Operation::Write(remote), b"there")?;
    near.post(Operation::Read(behind), b"....")?;
    let sent = near.sent(2)?;
    notes.put(
        "sent",
        crate::notes::statuses(sent.iter().map(|sent| sent.retired.status)),
    );
    let read = sent.last().map_or(&[][..], |sent| sent.bytes());
    notes.put("read", String::from_utf8_lossy(read));
    notes.put("received", far.stray_ends()?);
    notes.put("receives left", far.receive.in_flight());
    Ok(())
}

fn s17_a_message_gathers_and_scatters<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    let slots = [far.slot(b"")?, far.slot(b"")?];
    far.post_receive(slots)?;
    let long: Vec<u8> = (0..=u8::MAX).cycle().take(SLOT_BYTES as usize).collect();
    let short = long.get(..100).unwrap_or_default();
    let slots = [near.slot(&long)?, near.slot(short)?];
    near.post_slots(Operation::Send, slots, PostFlags::SIGNALED)?;
    notes.put("sent", near.send_ends(1)?);
    let whole = [&long[..], short].concat();
    let each = far.received(1)?.into_iter().map(|came| {
        let is_so = either(came.payload == whole, "as sent", "otherwise");
        format!("{} bytes {is_so}", came.payload.len())
    });
    notes.put("received", list(each));
    Ok(())
}

fn s17_a_message_may_be_empty<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(2)?;
    near.post_slots(Operation::Send, [], PostFlags::SIGNALED)?;
    let remote = far.at(0)?;
    near.post_slots(Operation::WriteWithImmediate(remote, 1), [], PostFlags::SIGNALED)?;
    notes.put("sent", near.send_ends(2)?);
    let received = far.received(2)?;
    let sizes = received.iter().map(|came| came.arrival.payload_bytes);
    notes.put("received", format_args!("{} bytes", list(sizes)));
    notes.put("receives left", far.receive.in_flight());
    Ok(())
}

fn s17_the_receive_is_needed_when_the_immediate_comes<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    let remote = far.at(0)?;
    near.post(Operation::WriteWithImmediate(remote, 1), b"late")?;
    notes.put("before", near.stray_ends()?);
    far.post_receives(1)?;
    notes.put("after", near.send_ends(1)?);
    let received = far.received(1)?;
    notes.put(
        "received",
        list(received.iter().map(|came| word(came.arrival.immediate))),
    );
    let window = far.window_bytes(0, 4)?;
    notes.put("window", String::from_utf8_lossy(&window));
    Ok(())
}

fn s18_requests_complete_in_order_and_data_before_its_message<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(4)?;
    let mut tickets = Vec::new();
    for round in 1..=4_u8 {
        let remote = far.at(u64::from(round).saturating_mul(64))?;
        near.post_with(Operation::Write(remote), &[round; 64], PostFlags::empty())?;
        tickets.push(near.post(Operation::Send, &[round])?);
    }
    // The messages first: the data that each announces is there when it comes.
    let (mut round, mut was_there) = (0_u8, 0_u32);
    while round < 4 {
        let came = far.received(1)?;
        if came.is_empty() {
            break;
        }
        for message in came {
            round = round.saturating_add(1);
            let data = far.window_bytes(usize::from(round).saturating_mul(64), 64)?;
            let is_whole = message.payload == [round] && data == [round; 64];
            was_there = was_there.saturating_add(u32::from(is_whole));
        }
    }
    let ends = near.sent(4)?;
    let order = ends.iter().map(|sent| sent.retired.last).eq(tickets);
    notes.put("completed", either(order, "in order", "out of order"));
    notes.put(
        "at each message",
        either(was_there == 4, "its data was there", "its data was missing"),
    );
    Ok(())
}

fn s18_what_waits_holds_back_what_follows<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    near.post(Operation::Send, b"first")?;
    let remote = far.at(0)?;
    near.post(Operation::Write(remote), b"second")?;
    let before = near.stray_ends()?;
    let is_untouched = far.window_bytes(0, 6)? == [0; 6];
    let window = either(is_untouched, "untouched", "written");
    notes.put("before", format_args!("{before}, window {window}"));
    far.post_receives(1)?;
    let after = near.send_ends(2)?;
    let is_written = far.window_bytes(0, 6)? == b"second";
    let window = either(is_written, "written", "not written");
    notes.put("after", format_args!("{after}, window {window}"));
    Ok(())
}

fn s18_behind_a_fence_earlier_fetches_are_done<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(1)?;
    far.window.copy_in(0, &1_u64.to_ne_bytes())?;
    let remote = far.at(0)?;
    let (fetched, behind) = (near.slot(&[0; 8])?, near.slot(&[0; 8])?);
    let mut batch = near.send.stage();
    batch.push(
        Operation::FetchAndAdd { remote, add: 41 },
        [fetched],
        PostFlags::empty(),
    )?;
    batch.push(Operation::Read(remote), [behind], PostFlags::FENCE)?;
    batch.push_inline(Operation::Send, b"done", PostFlags::FENCE | PostFlags::SIGNALED)?;
    batch.ring()?;
    let sent = near.sent(1)?;
    notes.put(
        "sent",
        crate::notes::statuses(sent.iter().map(|sent| sent.retired.status)),
    );
    let mut words = sent
        .iter()
        .flat_map(|sent| &sent.slots)
        .filter_map(|slot| slot.first_chunk::<8>().map(|bytes| u64::from_ne_bytes(*bytes)));
    notes.put("fetched", list(words.next()));
    notes.put("behind it", list(words.next()));
    notes.put("received", list(far.received(1)?.iter().map(|came| came.text())));
    Ok(())
}

fn s18_a_fenced_write_waits_for_the_read<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    // If an answer is lost, the READ is done again (S15): behind the WRITE, had the WRITE not
    // waited.
    let patient = Wish {
        retry_count: 6,
        ..QUICK
    };
    let [mut near, far] = disturbed(rig, Disturbance::LostAndRepeated, patient)?;
    let (mut seen, mut written) = (0_u32, 0_u32);
    for round in 0..20_u8 {
        far.window.copy_in(0, &[round; 200])?;
        let remote = far.at(0)?;
        near.post_with(Operation::Read(remote), &[0xff; 200], PostFlags::empty())?;
        let flags = PostFlags::SIGNALED | PostFlags::FENCE;
        near.post_with(Operation::Write(remote), &[0xee; 200], flags)?;
        let sent = near.sent(1)?;
        let read = sent.first().and_then(|sent| sent.slots.first());
        seen = seen.saturating_add(u32::from(read.is_some_and(|read| *read == [round; 200])));
        let is_written = far.window_bytes(0, 200)? == [0xee; 200];
        written = written.saturating_add(u32::from(is_written));
    }
    notes.put("READs", format_args!("{seen} of what was there"));
    notes.put("window", format_args!("{written} times written"));
    note_struck(rig, notes, lost_and_repeated)
}

fn s19_a_read_behind_a_write_sees_it<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = connected(rig)?;
    let (mut ends, mut back, mut seen) = (Vec::new(), 0_u32, 0_u32);
    for round in 1..=20_u8 {
        let remote = far.at(0)?;
        near.post(Operation::Write(remote), &[round; 200])?;
        near.post(Operation::Read(remote), &[0; 200])?;
        let sent = near.sent(2)?;
        ends.extend(sent.first().map(|sent| sent.retired.status.is_success()));
        let read = sent.last().is_some_and(|sent| sent.bytes() == [round; 200]);
        back = back.saturating_add(u32::from(read));
        let visible = far.window_bytes(0, 200)? == [round; 200];
        seen = seen.saturating_add(u32::from(visible));
    }
    let all = either(ends.iter().all(|good| *good), "SUCCESS", "failed");
    notes.put("written", all);
    notes.put("read back", format_args!("{back} of 20"));
    notes.put("by the processor then", format_args!("{seen} of 20"));
    Ok(())
}

fn s20_memory_is_whole_once_its_last_byte_is_told<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    let may_poll = far.control.data_in_order() >= DataInOrder::WholeMessage;
    let (mut messages, mut whole) = (0_u32, 0_u32);
    for round in 1..=20_u8 {
        let remote = far.at(0)?;
        if may_poll {
            near.post(Operation::Write(remote), &[round; 250])?;
            let began = Instant::now();
            // The last byte shows that all before it is there.
            while far.window.load_u8(249)? != round && began.elapsed() < far.patience.come {
                thread::yield_now();
            }
        } else {
            far.post_receives(1)?;
            near.post(Operation::WriteWithImmediate(remote, 0), &[round; 250])?;
            far.received(1)?;
        }
        let is_whole = far.window_bytes(0, 250)? == [round; 250];
        whole = whole.saturating_add(u32::from(is_whole));
        messages = messages.saturating_add(1);
        near.sent(1)?;
    }
    notes.put("messages", messages);
    notes.put("whole once told", whole);
    Ok(())
}
