//! Completion queues that overrun and notify, and events that devices raise by themselves (S21, S23, S30).

use core::time::Duration;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use doorbell_core::QpState;
use doorbell_core::provider::{
    CompletionQueue, Operation, PostFlags, QueuePair, RemoteAccess, SendBatch, SendQueue,
};

use super::table;
use crate::notes::{asked, either, list};
use crate::side::{Side, USUAL, WITHOUT_DEPTH, Wish, connected, connected_as, sides};
use crate::{Notes, Rig, Trouble};

table! {
    21 s21_a_send_queue_that_overruns_is_lost
        "CQ_ERR, the completion queue is of no use, its queue pair fails"
        => "events: CQ_ERR QP_FATAL; the queue: of no use; state: ERR";
    21 s21_a_receive_queue_that_overruns_is_lost
        "CQ_ERR, the completion queue is of no use, its queue pair fails"
        => "events: CQ_ERR QP_FATAL; the queue: of no use; state: ERR";
    23 s23_a_notification_is_one_shot
        "armed once, it notifies once; what was there before does not notify"
        => "unarmed: 0; armed behind a completion: 0; then: 1; again: 0; completions: 4";
    23 s23_solicited_completions_notify
        "armed for these, others do not notify"
        => "a plain one: 0; a solicited one: 1";
    23 s23_failed_completions_count_as_solicited
        "an error notifies whoever is armed for solicited ones"
        => "flushed: 1";
    23 s23_a_queue_made_without_cannot_be_armed
        "without a completion channel there is no notification"
        => "arm: refused; take: refused; sleep: refused; descriptor: none";
    23 s23_no_wake_up_is_lost
        "arm, poll once more, sleep: in this order nothing is missed"
        => "messages: 50; lost: 0";
    30 s30_the_first_packet_of_a_queue_pair_in_rtr_is_told
        "COMM_EST, once"
        => "sent: SUCCESS SUCCESS; events: COMM_EST; state: RTR";
    30 s30_a_refused_access_is_told
        "QP_ACCESS_ERR, where no receive is there to tell of it (S9)"
        => "sent: REM_ACCESS_ERR; events: QP_ACCESS_ERR";
    30 s30_a_refused_write_with_immediate_is_told_by_its_receive
        "the receive's own completion tells (S9)"
        => "sent: REM_ACCESS_ERR; events: nothing";
    30 s30_a_refused_request_is_told
        "QP_REQ_ERR"
        => "sent: REM_INV_REQ_ERR; events: QP_REQ_ERR";
    30 s30_a_send_queue_that_drained_is_told
        "SQ_DRAINED, once what had begun is done"
        => "meanwhile: nothing nothing; sent: SUCCESS; events: SQ_DRAINED";
    30 s30_a_device_that_breaks_is_told
        "DEVICE_FATAL"
        => "device: told";
    30 s30_a_port_that_goes_and_comes_is_told
        "PORT_ERR and PORT_ACTIVE"
        => "down: told; up: told";
    30 s30_a_new_address_is_told
        "GID_CHANGE"
        => "address: told";
}

fn notifying(rig_wish: Wish) -> Wish {
    Wish {
        notify: true,
        ..rig_wish
    }
}

const SMALL: Wish = Wish {
    depth: 32,
    completion_depth: 2,
    ..USUAL
};

const ROOMY: Wish = Wish { depth: 32, ..USUAL };

/// Sends so many messages, without retiring anything.
fn send_all<P: doorbell_core::provider::Provider>(side: &mut Side<P>, count: u32) -> Result<(), Trouble> {
    for _ in 0..count {
        let mut batch = side.send.stage();
        batch.push_inline(Operation::Send, b"x", PostFlags::SIGNALED)?;
        batch.ring()?;
    }
    Ok(())
}

/// Whether a queue that overran can still be polled.
fn usefulness<Q: CompletionQueue>(queue: &mut Q) -> &'static str {
    let mut came = 0_u32;
    match queue.poll(|_| came = came.saturating_add(1)) {
        Err(_) => "of no use",
        Ok(0) => "empty",
        Ok(_) => "polled on",
    }
}

fn s21_a_send_queue_that_overruns_is_lost<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected_as(rig, [SMALL, ROOMY])?;
    let count = near.send_completions.depth().saturating_add(1);
    far.post_receives(count)?;
    send_all(&mut near, count)?;
    // They are all done once the peer has them all.
    far.received(count as usize)?;
    notes.put("events", near.events()?);
    notes.put("the queue", usefulness(&mut near.send_completions));
    notes.put("state", near.state()?);
    Ok(())
}

fn s21_a_receive_queue_that_overruns_is_lost<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected_as(rig, [ROOMY, SMALL])?;
    let count = far.receive_completions.depth().saturating_add(1);
    far.post_receives(count)?;
    send_all(&mut near, count)?;
    near.sent(count as usize)?;
    notes.put("events", far.events()?);
    notes.put("the queue", usefulness(&mut far.receive_completions));
    notes.put("state", far.state_after(QpState::Error)?);
    Ok(())
}

/// How many notifications come in a while.
fn notified<P: doorbell_core::provider::Provider>(side: &mut Side<P>) -> Result<u32, Trouble> {
    let (mut count, began) = (0_u32, Instant::now());
    loop {
        count = count.saturating_add(side.receive_completions.acknowledge()?);
        if began.elapsed() >= side.patience.quiet {
            return Ok(count);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn s23_a_notification_is_one_shot<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected_as(rig, [USUAL, notifying(USUAL)])?;
    far.post_receives(4)?;
    near.post(Operation::Send, b"before")?;
    near.sent(1)?;
    notes.put("unarmed", notified(&mut far)?);
    far.receive_completions.arm(false)?;
    notes.put("armed behind a completion", notified(&mut far)?);
    near.post(Operation::Send, b"first")?;
    near.post(Operation::Send, b"second")?;
    near.sent(2)?;
    notes.put("then", notified(&mut far)?);
    near.post(Operation::Send, b"third")?;
    near.sent(1)?;
    notes.put("again", notified(&mut far)?);
    notes.put("completions", far.received(4)?.len());
    Ok(())
}

fn s23_solicited_completions_notify<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected_as(rig, [USUAL, notifying(USUAL)])?;
    far.post_receives(2)?;
    far.receive_completions.arm(true)?;
    near.post(Operation::Send, b"quiet")?;
    near.sent(1)?;
    notes.put("a plain one", notified(&mut far)?);
    near.post_with(
        Operation::Send,
        b"loud",
        PostFlags::SIGNALED | PostFlags::SOLICITED,
    )?;
    near.sent(1)?;
    notes.put("a solicited one", notified(&mut far)?);
    Ok(())
}

fn s23_failed_completions_count_as_solicited<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [_near, mut far] = connected_as(rig, [USUAL, notifying(USUAL)])?;
    far.post_receives(1)?;
    far.receive_completions.arm(true)?;
    far.control.fail()?;
    notes.put("flushed", notified(&mut far)?);
    Ok(())
}

fn s23_a_queue_made_without_cannot_be_armed<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, _far] = connected(rig)?;
    let queue = &mut near.send_completions;
    let word = |refused| either(refused, "refused", "taken");
    notes.put("arm", word(asked(queue.arm(false)) != "done"));
    notes.put("take", word(asked(queue.acknowledge()) != "done"));
    let sleep = CompletionQueue::sleep([&*queue], Duration::ZERO);
    notes.put("sleep", word(sleep.is_err()));
    notes.put(
        "descriptor",
        either(queue.notification().is_none(), "none", "one"),
    );
    Ok(())
}

/// Messages that must each wake the receiver, or be found by it.
const WOKEN: u32 = 50;

fn s23_no_wake_up_is_lost<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected_as(rig, [USUAL, notifying(USUAL)])?;
    let long = Duration::from_secs(20);
    let (go, next) = mpsc::channel();
    let sending = thread::spawn(move || -> Result<(), Trouble> {
        while next.recv().is_ok() {
            near.post(Operation::Send, b"wake up")?;
            near.sent(1)?;
        }
        Ok(())
    });
    let (mut messages, mut lost) = (0_u32, 0_u32);
    for _ in 0..WOKEN {
        far.post_receives(1)?;
        far.receive_completions.acknowledge()?;
        far.receive_completions.arm(false)?;
        // From now on the message may come, before or while this one sleeps.
        if go.send(()).is_err() {
            break;
        }
        let began = Instant::now();
        while far.receive_completions.acknowledge()? == 0 {
            CompletionQueue::sleep([&far.receive_completions], long)?;
            if began.elapsed() >= long {
                lost = lost.saturating_add(1);
                break;
            }
        }
        let received = far.received(1)?;
        messages = messages.saturating_add(u32::try_from(received.len()).unwrap_or(u32::MAX));
        if received.is_empty() {
            break;
        }
    }
    drop(go);
    sending
        .join()
        .map_err(|_| Trouble::new("the sender panicked"))??;
    notes.put("messages", messages);
    notes.put("lost", lost);
    Ok(())
}

fn s30_the_first_packet_of_a_queue_pair_in_rtr_is_told<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = sides(rig, [USUAL; 2])?;
    near.connect(far.name())?;
    far.enter_rtr(near.name())?;
    far.post_receives(2)?;
    near.post(Operation::Send, b"first")?;
    let first = near.send_ends(1)?;
    near.post(Operation::Send, b"second")?;
    notes.put("sent", list([first, near.send_ends(1)?]));
    notes.put("events", far.events()?);
    notes.put("state", far.state()?);
    Ok(())
}

const READ_ONLY: Wish = Wish {
    to_window: RemoteAccess::READ,
    ..USUAL
};

fn s30_a_refused_access_is_told<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = connected_as(rig, [USUAL, READ_ONLY])?;
    let remote = far.at(0)?;
    near.post(Operation::Write(remote), b"x")?;
    notes.put("sent", near.send_ends(1)?);
    notes.put("events", far.events()?);
    Ok(())
}

fn s30_a_refused_write_with_immediate_is_told_by_its_receive<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = connected_as(rig, [USUAL, READ_ONLY])?;
    far.post_receives(1)?;
    let remote = far.at(0)?;
    near.post(Operation::WriteWithImmediate(remote, 1), b"x")?;
    notes.put("sent", near.send_ends(1)?);
    notes.put("events", far.events()?);
    Ok(())
}

fn s30_a_refused_request_is_told<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = connected_as(rig, [USUAL, WITHOUT_DEPTH])?;
    let remote = far.at(0)?;
    near.post(Operation::Read(remote), &[0; 8])?;
    notes.put("sent", near.send_ends(1)?);
    notes.put("events", far.events()?);
    Ok(())
}

fn s30_a_port_that_goes_and_comes_is_told<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [near, _far] = sides(rig, [USUAL; 2])?;
    near.events()?;
    let word = |told| either(told, "told", "nothing");
    let down = rig.set_port(false);
    let told = match &down {
        Ok(()) => word(near.hears("PORT_ERR")?).to_owned(),
        Err(trouble) => trouble.to_string(),
    };
    notes.put("down", told);
    if down.is_ok() {
        rig.set_port(true)?;
        notes.put("up", word(near.hears("PORT_ACTIVE")?));
    }
    Ok(())
}

fn s30_a_new_address_is_told<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [near, _far] = sides(rig, [USUAL; 2])?;
    near.events()?;
    let told = match rig.change_address() {
        Ok(()) => either(near.hears("GID_CHANGE")?, "told", "nothing").to_owned(),
        Err(trouble) => trouble.to_string(),
    };
    notes.put("address", list([told]));
    Ok(())
}

fn s30_a_send_queue_that_drained_is_told<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    near.post(Operation::Send, b"x")?;
    // So that it has begun: it waits for a receive.
    near.events()?;
    near.control.drain()?;
    // Time for another try.
    let done = near.stray_ends()?;
    notes.put("meanwhile", list([done, near.events()?]));
    far.post_receives(1)?;
    notes.put("sent", near.send_ends_soon(1)?);
    notes.put("events", near.events()?);
    Ok(())
}

fn s30_a_device_that_breaks_is_told<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [near, far] = sides(rig, [USUAL; 2])?;
    near.events()?;
    let told = match rig.break_device() {
        Ok(()) => near
            .hears_soon("DEVICE_FATAL")
            .map(|heard| either(heard, "told", "nothing").to_owned()),
        Err(trouble) => Ok(trouble.to_string()),
    };
    // The cases behind this one need the device, with any outcome of this one.
    drop((near, far));
    let mended = rig.mend_device();
    notes.put("device", told?);
    mended
}
