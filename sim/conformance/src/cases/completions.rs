//! Completions: when there is one, its content, and the consequences of a failure (S5 to S7).

use doorbell_core::provider::{
    ArrivalKind, Operation, PostFlags, QueuePair, ReceiveQueue, RemoteAddress, SendBatch, SendQueue,
};
use doorbell_core::{QpState, Rkey, WcStatus};

use super::table;
use crate::notes::{either, list, status_name, statuses};
use crate::side::{USUAL, Wish, connected, connected_as};
use crate::{Notes, Rig, Trouble};

table! {
    5 s05_a_success_completes_only_if_signaled
        "no completion for a success that is not signaled; the next covers it"
        => "unsignaled: nothing; signaled: SUCCESS for 3 requests; bytes: a b c";
    5 s05_an_error_completes_unsignaled
        "an error always makes a completion"
        => "sent: REM_ACCESS_ERR";
    6 s06_one_cause_then_everything_is_flushed_in_order
        "one error that is no flush, then ERR, and all the rest flushed, in order"
        => "sends: RNR_RETRY_EXC_ERR WR_FLUSH_ERR WR_FLUSH_ERR, in order; state: ERR; receives: WR_FLUSH_ERR WR_FLUSH_ERR, in order; in flight: 0 0; peer: nothing";
    6 s06_a_queue_pair_that_is_failed_flushes_all
        "what was posted is flushed when the queue pair is brought to ERR"
        => "sends: WR_FLUSH_ERR WR_FLUSH_ERR; receives: WR_FLUSH_ERR WR_FLUSH_ERR";
    6 s06_what_came_does_not_come_again
        "a message comes once, though its queue pair fails right behind it"
        => "received: once WR_FLUSH_ERR WR_FLUSH_ERR WR_FLUSH_ERR; state: ERR";
    7 s07_a_failure_tells_nothing_but_its_status
        "on an error only the status, the request and the vendor's word hold"
        => "status: WR_FLUSH_ERR; kind: failed; bytes: 0; immediate: none; payload: 0";
}

fn s05_a_success_completes_only_if_signaled<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(3)?;
    near.post_with(Operation::Send, b"a", PostFlags::empty())?;
    near.post_with(Operation::Send, b"b", PostFlags::empty())?;
    far.received(2)?;
    notes.put("unsignaled", near.stray_ends()?);
    near.post(Operation::Send, b"c")?;
    let sent = near.sent(1)?;
    let ends = statuses(sent.iter().map(|sent| sent.retired.status));
    let count: u64 = sent.iter().map(|sent| sent.retired.count()).sum();
    notes.put("signaled", format_args!("{ends} for {count} requests"));
    let slots = sent.iter().flat_map(|sent| &sent.slots);
    notes.put("bytes", list(slots.map(|slot| String::from_utf8_lossy(slot))));
    Ok(())
}

fn s05_an_error_completes_unsignaled<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, _far] = connected(rig)?;
    let nowhere = RemoteAddress::new(0x1000, Rkey(0x00be_ef00));
    near.post_with(Operation::Write(nowhere), b"x", PostFlags::empty())?;
    notes.put("sent", near.send_ends(1)?);
    Ok(())
}

fn s06_one_cause_then_everything_is_flushed_in_order<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let impatient = Wish {
        rnr_retry: 0,
        ..USUAL
    };
    let [mut near, mut far] = connected_as(rig, [impatient, USUAL])?;
    near.post_receives(2)?;
    let mut batch = near.send.stage();
    let mut tickets = Vec::new();
    for _ in 0..3 {
        tickets.push(batch.push_inline(Operation::Send, b"nobody waits", PostFlags::empty())?);
    }
    batch.ring()?;
    let sent = near.sent(3)?;
    let order = either(
        sent.iter().map(|sent| sent.retired.last).eq(tickets),
        "in order",
        "out of order",
    );
    let ends = statuses(sent.iter().map(|sent| sent.retired.status));
    notes.put("sends", format_args!("{ends}, {order}"));
    notes.put("state", near.state_after(QpState::Error)?);
    let received = near.received(2)?;
    let ends = statuses(received.iter().map(|received| received.arrival.status));
    let places: Vec<_> = received
        .iter()
        .map(|received| received.arrival.ticket.position())
        .collect();
    let order = either(places.is_sorted(), "in order", "out of order");
    notes.put("receives", format_args!("{ends}, {order}"));
    let left = [near.send.in_flight(), near.receive.in_flight()];
    notes.put("in flight", list(left));
    notes.put("peer", far.stray_ends()?);
    Ok(())
}

fn s06_a_queue_pair_that_is_failed_flushes_all<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, _far] = connected(rig)?;
    near.post_receives(2)?;
    // Nobody posts a receive: they wait.
    near.post_with(Operation::Send, b"one", PostFlags::empty())?;
    near.post_with(Operation::Send, b"two", PostFlags::empty())?;
    near.control.fail()?;
    notes.put("sends", near.send_ends(2)?);
    notes.put("receives", near.receive_ends(2)?);
    Ok(())
}

fn s06_what_came_does_not_come_again<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(4)?;
    near.post(Operation::Send, b"once")?;
    let mut received = far.received(1)?;
    far.control.fail()?;
    received.extend(far.received(3)?);
    let each = received.iter().map(|received| match received.arrival.status {
        WcStatus::SUCCESS => received.text(),
        status => status_name(status),
    });
    notes.put("received", list(each));
    notes.put("state", far.state_after(QpState::Error)?);
    Ok(())
}

fn s07_a_failure_tells_nothing_but_its_status<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, _far] = connected(rig)?;
    near.post_receives(1)?;
    near.control.fail()?;
    let received = near.received(1)?;
    let received = received.first().ok_or(Trouble::new("nothing completed"))?;
    let arrival = &received.arrival;
    notes.put("status", statuses([arrival.status]));
    let failed = arrival.kind == ArrivalKind::Failed;
    notes.put("kind", either(failed, "failed", "another"));
    notes.put("bytes", arrival.payload_bytes);
    notes.put("immediate", either(arrival.immediate.is_none(), "none", "one"));
    notes.put("payload", received.payload.len());
    Ok(())
}
