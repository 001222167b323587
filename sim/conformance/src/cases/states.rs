//! States: which transitions there are, what they check, and when posting is allowed (S1 to S3).

use doorbell_core::provider::{
    Arena, Operation, PostFlags, ProviderError, PushError, QueuePair, ReadyToReceive, ReadyToSend,
    ReceiveBatch, ReceiveQueue, RemoteAccess, SendBatch, SendQueue,
};
use doorbell_core::{Mtu, QpState};

use super::table;
use crate::notes::{asked, list, states};
use crate::side::{Side, USUAL, connected, sides};
use crate::{Notes, Rig, Trouble};

table! {
    1 s01_transitions_out_of_order_are_refused
        "RESET, INIT, RTR, RTS, in this order and no other; RESET to ERR is none"
        => "out of order: nothing is taken; in order: INIT RTR RTS";
    1 s01_every_state_but_reset_may_fail
        "INIT, RTR, RTS and ERR itself to ERR"
        => "of RESET: EINVAL; of INIT: done; of RTR: done; of RTS: done; of ERR: done; at last: ERR ERR ERR";
    2 s02_a_bad_modify_changes_nothing
        "attributes out of range are refused, and the state stays"
        => "bad: nothing is taken; good: INIT RTR RTS";
    3 s03_posting_is_allowed_by_state
        "receives from INIT on, sends from RTS on"
        => "send: RESET INIT RTR refused, RTS taken; receive: RESET refused, INIT RTR RTS taken";
    3 s03_a_receive_posted_in_init_takes_the_first_message
        "a receive may be posted before the queue pair is ready to receive"
        => "sent: SUCCESS; received: early";
    3 s03_a_send_posted_in_error_is_flushed
        "accepted, and flushed"
        => "sent: WR_FLUSH_ERR";
    3 s03_a_receive_posted_in_error_is_flushed
        "accepted, and flushed"
        => "those before: WR_FLUSH_ERR; received: WR_FLUSH_ERR";
}

fn s01_transitions_out_of_order_are_refused<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset};
    let [mut near, far] = sides(rig, [USUAL; 2])?;
    let to_receive = near.to_receive(far.name());
    let mut taken = Vec::new();
    let mut reached = Vec::new();
    let ways: [(QpState, &[QpState]); 4] = [
        (Reset, &[ReadyToReceive, ReadyToSend, Error]),
        (Init, &[Init, ReadyToSend]),
        (ReadyToReceive, &[Init, ReadyToReceive]),
        (ReadyToSend, &[Init, ReadyToReceive, ReadyToSend]),
    ];
    for (state, out_of_order) in ways {
        if state != Reset {
            enter(&mut near, state, &to_receive)?;
            reached.push(near.state()?);
        }
        for next in out_of_order {
            let outcome = enter(&mut near, *next, &to_receive);
            if asked(outcome) != "EINVAL" || near.state()? != state {
                taken.push(format!("{state} to {next}"));
            }
        }
    }
    near.control.fail()?;
    for next in [Init, ReadyToReceive, ReadyToSend] {
        if enter(&mut near, next, &to_receive).is_ok() {
            taken.push(format!("ERR to {next}"));
        }
    }
    notes.put("out of order", taken_or_nothing(&taken));
    notes.put("in order", states(&reached));
    Ok(())
}

fn taken_or_nothing(taken: &[String]) -> String {
    if taken.is_empty() {
        "nothing is taken".to_owned()
    } else {
        list(taken)
    }
}

fn enter<P: doorbell_core::provider::Provider>(
    side: &mut Side<P>,
    next: QpState,
    to_receive: &ReadyToReceive,
) -> Result<(), ProviderError> {
    match next {
        QpState::Init => side.control.initialize(side.end.port, RemoteAccess::ALL),
        QpState::ReadyToReceive => side.control.ready_to_receive(to_receive),
        QpState::ReadyToSend => side.control.ready_to_send(&side.wish.to_send()),
        _ => side.control.fail(),
    }
}

fn s01_every_state_but_reset_may_fail<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = sides(rig, [USUAL; 2])?;
    notes.put("of RESET", asked(near.control.fail()));
    near.initialize()?;
    notes.put("of INIT", asked(near.control.fail()));
    let [mut in_rtr, _peer] = sides(rig, [USUAL; 2])?;
    in_rtr.enter_rtr(far.name())?;
    notes.put("of RTR", asked(in_rtr.control.fail()));
    let [mut in_rts, _peer] = connected(rig)?;
    notes.put("of RTS", asked(in_rts.control.fail()));
    notes.put("of ERR", asked(in_rts.control.fail()));
    let ends = [near.state()?, in_rtr.state()?, in_rts.state()?];
    notes.put("at last", states(&ends));
    Ok(())
}

/// One attribute out of its range: its name, and how it is put there.
struct Spoiled<T>(&'static str, fn(&mut T));

fn s02_a_bad_modify_changes_nothing<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = sides(rig, [USUAL; 2])?;
    let (mut taken, mut reached) = (Vec::new(), Vec::new());
    if near.control.initialize(200, RemoteAccess::ALL).is_ok() || near.state()? != QpState::Reset {
        taken.push("port".to_owned());
    }
    near.initialize()?;
    reached.push(near.state()?);
    let good = near.to_receive(far.name());
    let bad: [Spoiled<ReadyToReceive>; 6] = [
        Spoiled("min_rnr_timer", |wanted| wanted.min_rnr_timer = 32),
        Spoiled("flow_label", |wanted| wanted.address.flow_label = 1 << 20),
        Spoiled("service_level", |wanted| wanted.address.service_level = 16),
        Spoiled("source_gid_index", |wanted| wanted.address.source_gid_index = 250),
        Spoiled("port of the path", |wanted| wanted.address.port = 200),
        // The rigs' ports have less.
        Spoiled("path_mtu", |wanted| wanted.path_mtu = Mtu::B4096),
    ];
    for Spoiled(name, spoil) in bad {
        let mut wanted = good;
        spoil(&mut wanted);
        if near.control.ready_to_receive(&wanted).is_ok() || near.state()? != QpState::Init {
            taken.push(name.to_owned());
            break;
        }
    }
    if taken.is_empty() {
        near.control.ready_to_receive(&good)?;
    }
    reached.push(near.state()?);
    let bad: [Spoiled<ReadyToSend>; 4] = [
        Spoiled("timeout 0", |wanted| wanted.timeout = 0),
        Spoiled("timeout 32", |wanted| wanted.timeout = 32),
        Spoiled("retry_count", |wanted| wanted.retry_count = 8),
        Spoiled("rnr_retry", |wanted| wanted.rnr_retry = 8),
    ];
    for Spoiled(name, spoil) in bad {
        let mut wanted = near.wish.to_send();
        spoil(&mut wanted);
        if near.control.ready_to_send(&wanted).is_ok() || near.state()? != QpState::ReadyToReceive {
            taken.push(name.to_owned());
            break;
        }
    }
    near.control.ready_to_send(&near.wish.to_send())?;
    reached.push(near.state()?);
    notes.put("bad", taken_or_nothing(&taken));
    notes.put("good", states(&reached));
    Ok(())
}

/// Notes in which state a send and a receive cannot be staged now, and in which they can.
fn try_posting<P: doorbell_core::provider::Provider>(
    side: &mut Side<P>,
    ways: &mut [[Vec<String>; 2]; 2],
) -> Result<(), Trouble> {
    let state = side.state()?.to_string();
    let slot = side.slot(b"x")?;
    let send = side
        .send
        .stage()
        .push(Operation::Send, [slot], PostFlags::empty());
    let slot = side.arena.lease().ok_or(Trouble::new("no slot is left"))?;
    let receive = side.receive.stage().push([slot]);
    let reasons = [
        send.err().map(|refused| refused.reason),
        receive.err().map(|refused| refused.reason),
    ];
    for ([refused, taken], reason) in ways.iter_mut().zip(reasons) {
        match reason {
            None => taken.push(state.clone()),
            Some(PushError::State(_)) => refused.push(state.clone()),
            Some(other) => return Err(other.into()),
        }
    }
    Ok(())
}

fn s03_posting_is_allowed_by_state<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = sides(rig, [USUAL; 2])?;
    let to_receive = near.to_receive(far.name());
    let mut ways = <[[Vec<String>; 2]; 2]>::default();
    try_posting(&mut near, &mut ways)?;
    for state in [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend] {
        enter(&mut near, state, &to_receive)?;
        try_posting(&mut near, &mut ways)?;
    }
    for (what, [refused, taken]) in ["send", "receive"].into_iter().zip(&ways) {
        notes.put(
            what,
            format_args!("{} refused, {} taken", list(refused), list(taken)),
        );
    }
    Ok(())
}

fn s03_a_receive_posted_in_init_takes_the_first_message<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = sides(rig, [USUAL; 2])?;
    near.connect(far.name())?;
    far.initialize()?;
    far.post_receives(1)?;
    let to_receive = far.to_receive(near.name());
    far.control.ready_to_receive(&to_receive)?;
    near.post(Operation::Send, b"early")?;
    notes.put("sent", near.send_ends(1)?);
    notes.put("received", list(far.received(1)?.iter().map(|came| came.text())));
    Ok(())
}

fn s03_a_send_posted_in_error_is_flushed<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, _far] = connected(rig)?;
    near.control.fail()?;
    near.post_with(Operation::Send, b"x", PostFlags::empty())?;
    notes.put("sent", near.send_ends(1)?);
    Ok(())
}

fn s03_a_receive_posted_in_error_is_flushed<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, _far] = connected(rig)?;
    near.post_receives(1)?;
    near.control.fail()?;
    // Once these came, what flushes has done its work.
    notes.put("those before", near.receive_ends(1)?);
    near.stray_ends()?;
    near.post_receives(1)?;
    notes.put("received", near.receive_ends(1)?);
    Ok(())
}
