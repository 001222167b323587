//! Posting: what is staged, refused and handed back (S4, S29).

use doorbell_core::provider::{
    Operation, PostFlags, PushError, QueuePair, ReceiveBatch, ReceiveQueue, SendBatch, SendQueue, Slot,
};

use super::table;
use crate::notes::{either, list};
use crate::side::connected;
use crate::{Notes, Rig, Trouble};

table! {
    4 s04_what_was_staged_before_a_refused_request_is_posted
        "a list stops at the first bad request; those before it are posted"
        => "refused: too long inline, handed back whole; posted: 1; sent: SUCCESS; received: good; then: nothing";
    4 s04_receives_that_a_batch_leaves_are_posted_by_the_next
        "one call posts what several batches staged; a batch that is dropped or forgotten takes what was left with it"
        => "left: 2; posted meanwhile: 0; posted: 3; in order: a b c; behind a dropped batch: 0; behind a forgotten one: 0; room: whole";
    29 s29_more_than_was_granted_is_refused
        "too many inline bytes or elements, a full queue: refused when posted"
        => "elements: refused; inline bytes: refused; sends beyond the depth: refused; receives beyond the depth: refused; the depth itself: all sent";
    29 s29_what_makes_no_sense_is_refused
        "a READ inline, an atomic without its eight bytes"
        => "READ inline: refused; atomic without a slot: refused; posted: 0";
}

fn s04_what_was_staged_before_a_refused_request_is_posted<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(2)?;
    let long_bytes = near.control.limits().inline_bytes_max.saturating_add(1) as usize;
    let (good, bad) = (near.slot(b"good")?, near.slot(&vec![0; long_bytes])?);
    let mut batch = near.send.stage();
    batch.push(Operation::Send, [good], PostFlags::SIGNALED)?;
    let refused = match batch.push(Operation::Send, [bad], PostFlags::INLINE) {
        Ok(_) => "nothing".to_owned(),
        Err(refused) => {
            let [slot] = refused.item;
            let whole = either(
                slot.len_bytes() == long_bytes,
                "handed back whole",
                "handed back otherwise",
            );
            match refused.reason {
                PushError::InlineTooLong { bytes, bytes_max } if bytes > bytes_max => {
                    format!("too long inline, {whole}")
                }
                other => format!("{other}, {whole}"),
            }
        }
    };
    let posted = batch.ring()?;
    notes.put("refused", refused);
    notes.put("posted", posted);
    notes.put("sent", near.send_ends(1)?);
    notes.put("received", list(far.received(1)?.iter().map(|came| came.text())));
    notes.put("then", far.stray_ends()?);
    Ok(())
}

fn s04_receives_that_a_batch_leaves_are_posted_by_the_next<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    let room = far.receive.room();
    for _ in 0..2 {
        let slot = far.slot(b"")?;
        let kept = far.receive.restage(slot);
        kept.map_err(|_| Trouble("no room for a receive".into()))?;
    }
    let slot = far.slot(b"")?;
    let mut batch = far.receive.stage();
    notes.put("left", batch.staged());
    batch.push([slot])?;
    batch.leave();
    notes.put("posted meanwhile", far.receive.in_flight());
    notes.put("posted", far.receive.stage().ring()?);
    for text in ["a", "b", "c"] {
        near.post(Operation::Send, text.as_bytes())?;
        near.sent(1)?;
    }
    notes.put(
        "in order",
        far.received(3)?
            .iter()
            .map(|came| came.text())
            .collect::<Vec<_>>()
            .join(" "),
    );
    for (how, is_dropped) in [
        ("behind a dropped batch", true),
        ("behind a forgotten one", false),
    ] {
        let slots = [far.slot(b"")?, far.slot(b"")?];
        let [left, pushed] = slots;
        let mut batch = far.receive.stage();
        batch.push([left])?;
        batch.leave();
        let mut batch = far.receive.stage();
        batch.push([pushed])?;
        if is_dropped {
            drop(batch);
        } else {
            core::mem::forget(batch);
        }
        notes.put(how, far.receive.stage().staged());
    }
    let is_whole = far.receive.room() == room;
    notes.put("room", either(is_whole, "whole", "less"));
    Ok(())
}

pub(super) const fn word(refused: bool) -> &'static str {
    either(refused, "refused", "taken")
}

fn s29_more_than_was_granted_is_refused<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    let limits = near.control.limits();
    let slots = [
        near.slot(b"x")?,
        near.slot(b"x")?,
        near.slot(b"x")?,
        near.slot(b"x")?,
    ];
    let outcome = near.send.stage().push(Operation::Send, slots, PostFlags::empty());
    // A device may grant more than was asked for, up to what the traits know.
    notes.put("elements", word(outcome.is_err() || limits.gather_max >= 4));
    let long = vec![0; limits.inline_bytes_max.saturating_add(1) as usize];
    let outcome = near
        .send
        .stage()
        .push_inline(Operation::Send, &long, PostFlags::empty());
    notes.put("inline bytes", word(outcome.is_err()));

    let mut batch = near.send.stage();
    for _ in 0..limits.send_depth {
        batch.push_inline(Operation::Send, b"x", PostFlags::SIGNALED)?;
    }
    let outcome = batch.push_inline(Operation::Send, b"x", PostFlags::empty());
    notes.put("sends beyond the depth", word(outcome == Err(PushError::Full)));
    batch.ring()?;
    let depth = far.control.limits().receive_depth;
    far.post_receives(depth)?;
    let slot = far.slot(b"")?;
    let outcome = far.receive.stage().push([slot]);
    notes.put(
        "receives beyond the depth",
        word(outcome.is_err_and(|refused| refused.reason == PushError::Full)),
    );
    let sent = near.sent(limits.send_depth.min(depth) as usize)?;
    let good = sent
        .iter()
        .filter(|sent| sent.retired.status.is_success())
        .count();
    let all = good == limits.send_depth.min(depth) as usize;
    notes.put("the depth itself", either(all, "all sent", "not all sent"));
    Ok(())
}

fn s29_what_makes_no_sense_is_refused<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = connected(rig)?;
    let remote = far.at(0)?;
    let mut batch = near.send.stage();
    let read = batch.push_inline(Operation::Read(remote), b"", PostFlags::empty());
    notes.put("READ inline", word(read == Err(PushError::NotInline)));
    let atomic = batch.push(Operation::FetchAndAdd { remote, add: 1 }, [], PostFlags::empty());
    let reason = atomic.map(drop).map_err(|refused| refused.reason);
    notes.put(
        "atomic without a slot",
        word(reason == Err(PushError::AtomicNeedsEightBytes)),
    );
    notes.put("posted", batch.ring()?);
    Ok(())
}
