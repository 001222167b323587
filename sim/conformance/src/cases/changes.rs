//! Changes of state beyond bringing a queue pair up and failing it: a send queue that drains and goes on, one that
//! failed alone, and the way back to RESET (S1).

use doorbell_core::provider::{
    Arena, DatagramQueuePair, Operation, PostFlags, Provider, ProviderError, QueuePair, ReceiveQueue,
    SendQueue,
};
use doorbell_core::{QpState, WcStatus};

use super::table;
use crate::notes::{asked, list, states, status_name};
use crate::office::ready;
use crate::side::{SLOTS, Side, USUAL, connected, sides};
use crate::{Notes, Rig, Trouble};

table! {
    1 s01_a_send_queue_drains_and_goes_on
        "RTS to SQD and back; what is posted meanwhile waits"
        => "to SQD: done, SQD; posted there: nothing; back: done, RTS; then: SUCCESS; behind another: SUCCESS; \
            received: later last";
    1 s01_only_what_is_ready_drains
        "SQD follows RTS alone, and what follows SQD is RTS alone, by the way back"
        => "to SQD of RESET INIT RTR: EINVAL EINVAL EINVAL; back of RTS: EINVAL; to INIT RTR RTS of SQD: EINVAL EINVAL EINVAL; \
            of ERR: EINVAL EINVAL";
    1 s01_every_state_may_be_reset
        "RESET, INIT, RTR, RTS, SQD and ERR to RESET"
        => "reset: done done done done done done; then: RESET RESET RESET RESET RESET RESET";
    1 s01_a_queue_pair_that_was_reset_begins_anew
        "what was posted is forgotten, and the queue pair can be connected again"
        => "reset: done done; completions: nothing; in flight: 0 0; slots: all home; again: SUCCESS; received: again";
    1 s01_a_datagram_that_fails_leaves_the_receives
        "of datagrams, a request that fails brings the queue pair to SQE: sends are flushed, receives stay, and it may go on"
        => "sent: LOC_PROT_ERR; state: SQE; posted there: WR_FLUSH_ERR; received: heard; back: done, RTS; then: SUCCESS, \
            received goes";
}

fn s01_a_send_queue_drains_and_goes_on<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(2)?;
    let outcome = asked(near.control.drain());
    notes.put("to SQD", format_args!("{outcome}, {}", near.state()?));
    // Only then it may go on.
    near.hears("SQ_DRAINED")?;
    near.post(Operation::Send, b"later")?;
    notes.put("posted there", near.stray_ends()?);
    let outcome = asked(near.control.resume());
    notes.put("back", format_args!("{outcome}, {}", near.state()?));
    let then = near.send_ends_soon(1)?;
    near.post(Operation::Send, b"last")?;
    let left = if then == "nothing" { 2 } else { 1 };
    notes.put("then", then);
    notes.put("behind another", near.send_ends(left)?);
    notes.put("received", list(far.received(2)?.iter().map(|came| came.text())));
    Ok(())
}

fn s01_only_what_is_ready_drains<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = sides(rig, [USUAL; 2])?;
    let to_receive = near.to_receive(far.name());
    let mut outcomes = vec![asked(near.control.drain())];
    near.initialize()?;
    outcomes.push(asked(near.control.drain()));
    near.control.ready_to_receive(&to_receive)?;
    outcomes.push(asked(near.control.drain()));
    notes.put("to SQD of RESET INIT RTR", list(outcomes));
    let to_send = near.wish.to_send();
    near.control.ready_to_send(&to_send)?;
    notes.put("back of RTS", asked(near.control.resume()));
    near.control.drain()?;
    let (port, access) = (near.end.port, near.wish.through_queue_pair);
    let outcomes = [
        asked(near.control.initialize(port, access)),
        asked(near.control.ready_to_receive(&to_receive)),
        asked(near.control.ready_to_send(&to_send)),
    ];
    notes.put("to INIT RTR RTS of SQD", list(outcomes));
    near.control.fail()?;
    let outcomes = [asked(near.control.drain()), asked(near.control.resume())];
    notes.put("of ERR", list(outcomes));
    Ok(())
}

fn reset<P: Provider>(side: &mut Side<P>) -> Result<(), ProviderError> {
    side.control.reset(&mut side.send, &mut side.receive)
}

fn s01_every_state_may_be_reset<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let (mut outcomes, mut reached) = (Vec::new(), Vec::new());
    for state in [
        QpState::Reset,
        QpState::Init,
        QpState::ReadyToReceive,
        QpState::ReadyToSend,
        QpState::SendQueueDrain,
        QpState::Error,
    ] {
        let [mut near, far] = sides(rig, [USUAL; 2])?;
        match state {
            QpState::Reset => {}
            QpState::Init => near.initialize()?,
            QpState::ReadyToReceive => near.enter_rtr(far.name())?,
            _ => near.connect(far.name())?,
        }
        match state {
            QpState::SendQueueDrain => {
                near.control.drain()?;
                near.hears("SQ_DRAINED")?;
            }
            QpState::Error => near.control.fail()?,
            _ => {}
        }
        outcomes.push(asked(reset(&mut near)));
        reached.push(near.state()?);
    }
    notes.put("reset", list(outcomes));
    notes.put("then", states(&reached));
    Ok(())
}

fn s01_a_queue_pair_that_was_reset_begins_anew<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    near.post_receives(2)?;
    // It waits for a receive, and would for ever.
    near.post(Operation::Send, b"lost")?;
    let outcomes = [asked(reset(&mut near)), asked(reset(&mut far))];
    notes.put("reset", list(outcomes));
    notes.put("completions", near.stray_ends()?);
    let in_flight = [near.send.in_flight(), near.receive.in_flight()];
    notes.put("in flight", list(in_flight));
    let home: Vec<_> = core::iter::from_fn(|| near.arena.lease()).collect();
    let are_home = home.len() == SLOTS as usize;
    notes.put("slots", if are_home { "all home" } else { "not all home" });
    home.into_iter().for_each(|slot| near.arena.release(slot));
    near.connect(far.name())?;
    far.connect(near.name())?;
    far.post_receives(1)?;
    near.post(Operation::Send, b"again")?;
    notes.put("again", near.send_ends(1)?);
    notes.put("received", list(far.received(1)?.iter().map(|came| came.text())));
    Ok(())
}

fn s01_a_datagram_that_fails_leaves_the_receives<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = ready(rig)?;
    near.post_receive()?;
    far.post_receive()?;
    let (to, back) = (near.way_to(&far)?, far.way_to(&near)?);
    let foreign = near.foreign_slot()?;
    near.post_slots(to, [foreign], PostFlags::SIGNALED)?;
    notes.put("sent", near.send_ends(1)?);
    let awaited = QpState::SendQueueError;
    notes.put("state", near.state_after(awaited)?);
    near.post(to, b"late")?;
    notes.put("posted there", near.send_ends(1)?);
    far.post(back, b"heard")?;
    far.send_ends(1)?;
    let came = near.received(1)?;
    notes.put(
        "received",
        list(came.iter().map(|(came, bytes)| match came.arrival.status {
            WcStatus::SUCCESS => String::from_utf8_lossy(bytes).into_owned(),
            status => status_name(status),
        })),
    );
    let outcome = asked(near.control.resume());
    notes.put("back", format_args!("{outcome}, {}", near.control.state()?));
    let goes = outcome == "done";
    notes.put(
        "then",
        if goes {
            near.delivers(to, b"goes", &mut far)?
        } else {
            near.loses(to, b"goes", &mut far)?
        },
    );
    Ok(())
}
