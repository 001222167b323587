//! Keys, bounds, rights and sizes: what a device refuses, how that ends on either side (S8 to S11).
//!
//! The local key that may not be used (S8, S11) is that of a slot of another protection domain, and not one whose registration
//! is gone. No safe caller has such a slot, since an arena stays registered until all its slots are home.

use doorbell_core::provider::{
    Context, Operation, PostFlags, ProtectionDomain, Provider, RemoteAccess, RemoteAddress, WindowConfig,
};
use doorbell_core::{QpState, Rkey};

use super::table;
use crate::notes::{either, list, states, statuses};
use crate::side::{SLOT_BYTES, Side, USUAL, WINDOW_BYTES, Wish, connected, connected_as};
use crate::{Notes, Rig, Trouble};

table! {
    8 s08_a_slot_of_another_domain_is_not_sent
        "a gather element that may not be used: LOC_PROT_ERR, ERR"
        => "sent: LOC_PROT_ERR; state: ERR; peer: nothing";
    8 s08_inline_bytes_need_no_key
        "what goes inline is not looked up"
        => "sent: SUCCESS; received: 4 bytes";
    9 s09_a_wrong_key_opens_nothing
        "REM_ACCESS_ERR, and the responder is in ERR"
        => "WRITE: REM_ACCESS_ERR, ERR ERR; READ: REM_ACCESS_ERR, ERR ERR; atomic: REM_ACCESS_ERR, ERR ERR; receives: WR_FLUSH_ERR WR_FLUSH_ERR WR_FLUSH_ERR; window: untouched";
    9 s09_nothing_beyond_the_window_is_reached
        "bounds are those of the registration"
        => "to the end: SUCCESS; WRITE over the end: REM_ACCESS_ERR, ERR ERR; READ over the end: REM_ACCESS_ERR, ERR ERR; before the start: REM_ACCESS_ERR, ERR ERR; round the end of all addresses: REM_ACCESS_ERR, ERR ERR";
    9 s09_the_right_of_the_window_is_needed
        "REMOTE_WRITE, REMOTE_READ and REMOTE_ATOMIC of the registration"
        => "READ of read-only: SUCCESS; WRITE: REM_ACCESS_ERR, ERR ERR; atomic: REM_ACCESS_ERR, ERR ERR; READ of write-only: REM_ACCESS_ERR, ERR ERR";
    9 s09_the_right_of_the_queue_pair_to_write_is_needed
        "the queue pair's access flags hold, too"
        => "READ: SUCCESS; WRITE: REM_ACCESS_ERR, ERR ERR; window: untouched";
    9 s09_the_right_of_the_queue_pair_to_run_atomics_is_needed
        "the queue pair's access flags hold, too"
        => "atomic: REM_ACCESS_ERR, ERR ERR; window: untouched";
    9 s09_a_refused_write_with_immediate_fails_the_receive
        "its receive completes in error, by LOC_ACCESS_ERR"
        => "sent: REM_ACCESS_ERR; received: LOC_ACCESS_ERR WR_FLUSH_ERR; states: ERR ERR";
    9 s09_a_window_that_is_gone_is_closed
        "a key ends with its registration"
        => "WRITE: REM_ACCESS_ERR, ERR ERR";
    9 s09_a_window_of_another_domain_is_closed
        "key and queue pair are of one protection domain"
        => "WRITE: REM_ACCESS_ERR, ERR ERR";
    10 s10_a_receive_that_is_too_small_fails_both
        "sender REM_INV_REQ_ERR, receiver LOC_LEN_ERR, both in ERR"
        => "sent: REM_INV_REQ_ERR; received: LOC_LEN_ERR WR_FLUSH_ERR; states: ERR ERR";
    10 s10_a_receive_that_just_fits_is_enough
        "up to its last byte"
        => "sent: SUCCESS; received: 256 bytes";
    11 s11_a_receive_of_another_domain_fails_both
        "sender REM_OP_ERR, receiver LOC_PROT_ERR"
        => "sent: REM_OP_ERR; received: LOC_PROT_ERR; states: ERR ERR";
}

const READ_ONLY: RemoteAccess = RemoteAccess::READ;
/// To READ and to run atomics, not to WRITE.
const NO_WRITE: RemoteAccess = RemoteAccess {
    write: false,
    read: true,
    atomic: true,
};
/// To READ and to WRITE, not to run atomics.
const NO_ATOMIC: RemoteAccess = RemoteAccess {
    write: true,
    read: true,
    atomic: false,
};

/// How a request ends, and in which states that leaves the two.
pub(super) fn end_of<P: Provider>(
    near: &mut Side<P>,
    far: &Side<P>,
    operation: Operation,
    bytes: usize,
) -> Result<String, Trouble> {
    near.post_with(operation, &vec![9; bytes], PostFlags::SIGNALED)?;
    end_of_posted(near, far)
}

/// How the request that was posted ends, and in which states that leaves the two.
pub(super) fn end_of_posted<P: Provider>(near: &mut Side<P>, far: &Side<P>) -> Result<String, Trouble> {
    let ends = near.send_ends(1)?;
    if ends == "SUCCESS" {
        return Ok(ends);
    }
    let after = [
        near.state_after(QpState::Error)?,
        far.state_after(QpState::Error)?,
    ];
    Ok(format!("{ends}, {}", states(&after)))
}

fn untouched<P: Provider>(side: &Side<P>) -> Result<&'static str, Trouble> {
    let bytes = side.window_bytes(0, WINDOW_BYTES)?;
    Ok(either(
        bytes.iter().all(|byte| *byte == 0),
        "untouched",
        "written to",
    ))
}

/// A one-sided request: its name, what its peer wishes, and what it is.
struct Way(&'static str, Wish, fn(RemoteAddress) -> Operation);

fn add_one(remote: RemoteAddress) -> Operation {
    Operation::FetchAndAdd { remote, add: 1 }
}

fn s08_a_slot_of_another_domain_is_not_sent<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(1)?;
    let slot = near.foreign_slot()?;
    near.post_slots(Operation::Send, [slot], PostFlags::empty())?;
    notes.put("sent", near.send_ends(1)?);
    notes.put("state", near.state_after(QpState::Error)?);
    notes.put("peer", far.stray_ends()?);
    Ok(())
}

fn s08_inline_bytes_need_no_key<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(1)?;
    let slot = near.foreign_slot()?;
    near.post_slots(Operation::Send, [slot], PostFlags::SIGNALED | PostFlags::INLINE)?;
    notes.put("sent", near.send_ends(1)?);
    notes.put("received", sizes(&far.received(1)?));
    Ok(())
}

fn sizes(received: &[crate::side::Received]) -> String {
    list(
        received
            .iter()
            .map(|came| format!("{} bytes", came.payload.len())),
    )
}

fn s09_a_wrong_key_opens_nothing<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let ways: [Way; 3] = [
        Way("WRITE", USUAL, Operation::Write),
        Way("READ", USUAL, Operation::Read),
        Way("atomic", USUAL, add_one),
    ];
    let (mut flushed, mut is_untouched) = (Vec::new(), true);
    for Way(name, wish, operation) in ways {
        let [mut near, mut far] = connected_as(rig, [USUAL, wish])?;
        far.post_receives(1)?;
        let at = far.at(0)?;
        let (address, rkey) = (at.address(), at.rkey());
        let wrong = RemoteAddress::new(address, Rkey(rkey.0 ^ 0x00ff_ff00));
        notes.put(name, end_of(&mut near, &far, operation(wrong), 8)?);
        flushed.extend(far.received(1)?.iter().map(|came| came.arrival.status));
        is_untouched &= untouched(&far)? == "untouched";
    }
    notes.put("receives", statuses(flushed));
    notes.put("window", either(is_untouched, "untouched", "written to"));
    Ok(())
}

fn s09_nothing_beyond_the_window_is_reached<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let end = WINDOW_BYTES as u64;
    let [mut near, far] = connected(rig)?;
    let last = far.at(end.saturating_sub(8))?;
    notes.put("to the end", end_of(&mut near, &far, Operation::Write(last), 8)?);
    let over = end.saturating_sub(7);
    let [mut near, far] = connected(rig)?;
    let write = Operation::Write(far.at(over)?);
    notes.put("WRITE over the end", end_of(&mut near, &far, write, 8)?);
    let [mut near, far] = connected(rig)?;
    let read = Operation::Read(far.at(over)?);
    notes.put("READ over the end", end_of(&mut near, &far, read, 8)?);
    let [mut near, far] = connected(rig)?;
    let at = far.at(0)?;
    let (address, rkey) = (at.address(), at.rkey());
    let before = RemoteAddress::new(address.wrapping_sub(1), rkey);
    notes.put(
        "before the start",
        end_of(&mut near, &far, Operation::Write(before), 8)?,
    );
    let [mut near, far] = connected(rig)?;
    let round = RemoteAddress::new(u64::MAX.wrapping_sub(3), far.at(0)?.rkey());
    notes.put(
        "round the end of all addresses",
        end_of(&mut near, &far, Operation::Write(round), 8)?,
    );
    Ok(())
}

fn s09_the_right_of_the_window_is_needed<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let read_only = Wish {
        to_window: READ_ONLY,
        ..USUAL
    };
    let write_only = Wish {
        to_window: RemoteAccess::WRITE,
        ..USUAL
    };
    let ways: [Way; 4] = [
        Way("READ of read-only", read_only, Operation::Read),
        Way("WRITE", read_only, Operation::Write),
        Way("atomic", read_only, add_one),
        Way("READ of write-only", write_only, Operation::Read),
    ];
    for Way(name, wish, operation) in ways {
        let [mut near, far] = connected_as(rig, [USUAL, wish])?;
        let operation = operation(far.at(0)?);
        notes.put(name, end_of(&mut near, &far, operation, 8)?);
    }
    Ok(())
}

fn s09_the_right_of_the_queue_pair_to_write_is_needed<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let wish = Wish {
        through_queue_pair: NO_WRITE,
        ..USUAL
    };
    let [mut near, far] = connected_as(rig, [USUAL, wish])?;
    let remote = far.at(0)?;
    notes.put("READ", end_of(&mut near, &far, Operation::Read(remote), 8)?);
    notes.put("WRITE", end_of(&mut near, &far, Operation::Write(remote), 8)?);
    notes.put("window", untouched(&far)?);
    Ok(())
}

fn s09_the_right_of_the_queue_pair_to_run_atomics_is_needed<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let wish = Wish {
        through_queue_pair: NO_ATOMIC,
        ..USUAL
    };
    let [mut near, far] = connected_as(rig, [USUAL, wish])?;
    let remote = far.at(0)?;
    notes.put("atomic", end_of(&mut near, &far, add_one(remote), 8)?);
    notes.put("window", untouched(&far)?);
    Ok(())
}

fn s09_a_refused_write_with_immediate_fails_the_receive<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let wish = Wish {
        to_window: READ_ONLY,
        ..USUAL
    };
    let [mut near, mut far] = connected_as(rig, [USUAL, wish])?;
    far.post_receives(2)?;
    let remote = far.at(0)?;
    near.post(Operation::WriteWithImmediate(remote, 1), b"x")?;
    fails_both(near, far, 2, notes)
}

/// Notes how a request ends, and how so many receives of the peer do.
fn fails_both<P: Provider>(
    mut near: Side<P>,
    mut far: Side<P>,
    receives: usize,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    notes.put("sent", near.send_ends(1)?);
    notes.put("received", far.receive_ends(receives)?);
    let after = [
        near.state_after(QpState::Error)?,
        far.state_after(QpState::Error)?,
    ];
    notes.put("states", states(&after));
    Ok(())
}

fn s09_a_window_that_is_gone_is_closed<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    let remote = far.at(0)?;
    let config = WindowConfig::new(64, RemoteAccess::ALL);
    far.window = far.domain.window(&config)?;
    notes.put("WRITE", end_of(&mut near, &far, Operation::Write(remote), 1)?);
    Ok(())
}

fn s09_a_window_of_another_domain_is_closed<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    let domain = far.context.protection_domain()?;
    far.window = domain.window(&WindowConfig::new(64, RemoteAccess::ALL))?;
    let remote = far.at(0)?;
    notes.put("WRITE", end_of(&mut near, &far, Operation::Write(remote), 1)?);
    Ok(())
}

fn s10_a_receive_that_is_too_small_fails_both<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(2)?;
    let slots = [near.slot(&[1; SLOT_BYTES as usize])?, near.slot(b"x")?];
    near.post_slots(Operation::Send, slots, PostFlags::empty())?;
    fails_both(near, far, 2, notes)
}

fn s10_a_receive_that_just_fits_is_enough<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.post_receives(1)?;
    near.post(Operation::Send, &[1; SLOT_BYTES as usize])?;
    notes.put("sent", near.send_ends(1)?);
    notes.put("received", sizes(&far.received(1)?));
    Ok(())
}

fn s11_a_receive_of_another_domain_fails_both<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    let slot = far.foreign_slot()?;
    far.post_receive([slot])?;
    near.post(Operation::Send, b"x")?;
    fails_both(near, far, 1, notes)
}
