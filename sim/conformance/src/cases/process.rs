//! Other acts of the process: it destroys objects, and starts children (S24, S32).

use core::time::Duration;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use doorbell_core::provider::{CompletionQueue, Context, Operation, PostFlags, RemoteAddress};

use super::table;
use crate::notes::{either, list, statuses};
use crate::side::{Side, USUAL, WITHOUT_DEPTH, Wish, connected, connected_as};
use crate::{Notes, Rig, Trouble};

table! {
    24 s24_a_notification_that_nobody_took_holds_up_nothing
        "destroying waits for events that were taken and not acknowledged, and for no others"
        => "destroyed: in time";
    24 s24_notifications_that_were_taken_hold_up_nothing
        "destroying waits for events that were taken and not acknowledged: the provider does that"
        => "taken: 2; destroyed: in time";
    24 s24_an_event_that_nobody_took_holds_up_nothing
        "nor do events of a queue pair"
        => "sent: REM_INV_REQ_ERR; destroyed: in time";
    24 s24_nothing_is_told_of_what_is_gone
        "events of a queue pair end with it"
        => "sent: REM_ACCESS_ERR; events: nothing";
    32 s32_a_child_changes_nothing
        "memory that is registered stays where it is when the process makes a child"
        => "children: 3; sent: SUCCESS SUCCESS SUCCESS; received: 3 as sent";
}

/// Longer than any destruction takes that does not wait for something.
const LONG: Duration = Duration::from_secs(20);

/// Whether it is gone in time: elsewhere, so that a wait without end is seen, and not shared.
fn destroyed<P: doorbell_core::provider::Provider>(sides: [Side<P>; 2]) -> &'static str {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        drop(sides);
        // The waiting thread may have gone.
        let _ = done.send(());
    });
    either(is_done.recv_timeout(LONG).is_ok(), "in time", "not in time")
}

const NOTIFYING: Wish = Wish {
    notify: true,
    ..USUAL
};

fn s24_a_notification_that_nobody_took_holds_up_nothing<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = connected_as(rig, [USUAL, NOTIFYING])?;
    far.post_receives(1)?;
    far.receive_completions.arm(false)?;
    near.post(Operation::Send, b"x")?;
    near.sent(1)?;
    notes.put("destroyed", destroyed([near, far]));
    Ok(())
}

fn s24_notifications_that_were_taken_hold_up_nothing<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = connected_as(rig, [USUAL, NOTIFYING])?;
    let mut taken = 0_u32;
    for _ in 0..2 {
        far.post_receives(1)?;
        far.receive_completions.arm(false)?;
        near.post(Operation::Send, b"x")?;
        near.sent(1)?;
        CompletionQueue::sleep([&far.receive_completions], far.patience.come)?;
        taken = taken.saturating_add(far.receive_completions.acknowledge()?);
        far.received(1)?;
    }
    notes.put("taken", taken);
    notes.put("destroyed", destroyed([near, far]));
    Ok(())
}

fn s24_an_event_that_nobody_took_holds_up_nothing<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = connected_as(rig, [USUAL, WITHOUT_DEPTH])?;
    let remote = far.at(0)?;
    near.post(Operation::Read(remote), &[0; 8])?;
    notes.put("sent", near.send_ends(1)?);
    notes.put("destroyed", destroyed([near, far]));
    Ok(())
}

fn s24_nothing_is_told_of_what_is_gone<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = connected(rig)?;
    let at = far.at(0)?;
    let before = RemoteAddress::new(at.address().wrapping_sub(1), at.rkey());
    near.post(Operation::Write(before), b"x")?;
    notes.put("sent", near.send_ends(1)?);
    let Side {
        control,
        send,
        receive,
        context,
        patience,
        ..
    } = far;
    drop((control, send, receive));
    let (mut told, began) = (0_u32, Instant::now());
    while began.elapsed() < patience.quiet || told == 0 {
        match context.next_event()? {
            Some(_) => told = told.saturating_add(1),
            None if began.elapsed() >= patience.quiet => break,
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
    notes.put("events", either(told == 0, "nothing", "some"));
    Ok(())
}

fn s32_a_child_changes_nothing<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    let (mut children, mut ends, mut right) = (0_u32, Vec::new(), 0_u32);
    for round in 1..=3_u8 {
        far.post_receives(1)?;
        let slot = near.slot(&[round; 200])?;
        rig.start_child()?;
        children = children.saturating_add(1);
        near.post_slots(Operation::Send, [slot], PostFlags::SIGNALED)?;
        ends.extend(near.sent(1)?.iter().map(|sent| sent.retired.status));
        let received = far.received(1)?;
        let is_right = received.first().is_some_and(|came| came.payload == [round; 200]);
        right = right.saturating_add(u32::from(is_right));
    }
    notes.put("children", children);
    notes.put("sent", statuses(ends));
    notes.put("received", list([format!("{right} as sent")]));
    Ok(())
}
