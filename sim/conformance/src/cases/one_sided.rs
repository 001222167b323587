//! Rights, atomics, and how many READs and atomics may be under way (S26 to S28).

use doorbell_core::provider::{Operation, PostFlags, QueuePair, RemoteAccess, SendBatch, SendQueue, Window};

use super::refused::{end_of, end_of_posted};
use super::table;
use crate::notes::list;
use crate::side::{Sent, USUAL, WITHOUT_DEPTH, Wish, connected, connected_as};
use crate::{Notes, Rig, Trouble};

table! {
    26 s26_each_right_alone_can_be_registered_and_used
        "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE, which they bring"
        => "WRITE alone: SUCCESS; atomic alone: SUCCESS; READ alone: SUCCESS";
    27 s27_atomics_work_on_words
        "FETCH_ADD and CMP_SWAP give what was there before"
        => "sent: SUCCESS SUCCESS SUCCESS SUCCESS; before: 41 42 42 1; word: 0; received: nothing";
    27 s27_an_atomic_must_be_aligned
        "an address that is no multiple of eight: REM_INV_REQ_ERR"
        => "atomic: REM_INV_REQ_ERR, ERR ERR; words: 0 0";
    28 s28_a_responder_without_depth_refuses_reads
        "max_dest_rd_atomic 0: REM_INV_REQ_ERR"
        => "READ: REM_INV_REQ_ERR, ERR ERR";
    28 s28_a_responder_without_depth_refuses_atomics
        "max_dest_rd_atomic 0: REM_INV_REQ_ERR"
        => "atomic: REM_INV_REQ_ERR, ERR ERR; word: 0";
    28 s28_a_requester_without_depth_stalls
        "max_rd_atomic 0: a READ waits, and what follows it"
        => "WRITE: SUCCESS; READ: nothing; state: RTS; when failed: WR_FLUSH_ERR";
    28 s28_a_requester_goes_on_as_its_depth_allows
        "more READs and atomics than may be under way are done one after the other"
        => "sent: 8 of 8; before: 0 1 2 3; READs: 4 right";
}

fn s26_each_right_alone_can_be_registered_and_used<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let atomic = RemoteAccess {
        write: false,
        read: false,
        atomic: true,
    };
    let rights = [
        ("WRITE alone", RemoteAccess::WRITE),
        ("atomic alone", atomic),
        ("READ alone", RemoteAccess::READ),
    ];
    for (name, right) in rights {
        let wish = Wish {
            to_window: right,
            ..USUAL
        };
        let [mut near, far] = connected_as(rig, [USUAL, wish])?;
        let remote = far.at(0)?;
        let operation = match (right.write, right.atomic) {
            (true, _) => Operation::Write(remote),
            (_, true) => Operation::FetchAndAdd { remote, add: 1 },
            _ => Operation::Read(remote),
        };
        notes.put(name, end_of(&mut near, &far, operation, 8)?);
    }
    Ok(())
}

fn s27_atomics_work_on_words<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    far.window.copy_in(8, &41_u64.to_ne_bytes())?;
    let remote = far.at(8)?;
    let swap = |compare, swap| Operation::CompareAndSwap {
        remote,
        compare,
        swap,
    };
    near.post(Operation::FetchAndAdd { remote, add: 1 }, &[])?;
    near.post(swap(41, 1), &[])?;
    near.post(swap(42, 1), &[])?;
    near.post(
        Operation::FetchAndAdd {
            remote,
            add: u64::MAX,
        },
        &[],
    )?;
    let sent = near.sent(4)?;
    notes.put(
        "sent",
        crate::notes::statuses(sent.iter().map(|sent| sent.retired.status)),
    );
    notes.put("before", list(sent.iter().filter_map(Sent::word)));
    notes.put("word", far.window.load_u64(8)?);
    notes.put("received", far.stray_ends()?);
    Ok(())
}

fn s27_an_atomic_must_be_aligned<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = connected(rig)?;
    let remote = far.at(4)?;
    let add = Operation::FetchAndAdd { remote, add: 1 };
    if near.post(add, &[0; 8]).is_ok() {
        notes.put("atomic", end_of_posted(&mut near, &far)?);
    } else {
        let after = [near.state()?, far.state()?];
        notes.put("atomic", format_args!("refused when posted, {}", list(after)));
    }
    let words = [far.window.load_u64(0)?, far.window.load_u64(8)?];
    notes.put("words", list(words));
    Ok(())
}

fn s28_a_responder_without_depth_refuses_reads<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = connected_as(rig, [USUAL, WITHOUT_DEPTH])?;
    let read = Operation::Read(far.at(0)?);
    notes.put("READ", end_of(&mut near, &far, read, 8)?);
    Ok(())
}

fn s28_a_responder_without_depth_refuses_atomics<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, far] = connected_as(rig, [USUAL, WITHOUT_DEPTH])?;
    let remote = far.at(0)?;
    let add = Operation::FetchAndAdd { remote, add: 1 };
    notes.put("atomic", end_of(&mut near, &far, add, 8)?);
    notes.put("word", far.window.load_u64(0)?);
    Ok(())
}

fn s28_a_requester_without_depth_stalls<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let wish = Wish {
        max_rd_atomic: 0,
        ..USUAL
    };
    let [mut near, far] = connected_as(rig, [wish, USUAL])?;
    let remote = far.at(0)?;
    near.post(Operation::Write(remote), b"goes")?;
    near.post(Operation::Read(remote), &[0; 4])?;
    notes.put("WRITE", near.send_ends(1)?);
    let more = near.stray_ends()?;
    notes.put("READ", &more);
    if more == "nothing" {
        notes.put("state", near.state()?);
        near.control.fail()?;
        notes.put("when failed", near.send_ends(1)?);
    }
    Ok(())
}

fn s28_a_requester_goes_on_as_its_depth_allows<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let wish = Wish {
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        ..USUAL
    };
    let [mut near, far] = connected_as(rig, [wish; 2])?;
    far.window.copy_in(64, &[7; 100])?;
    let (word, place) = (far.at(0)?, far.at(64)?);
    let mut slots = Vec::new();
    for _ in 0..4 {
        slots.push([near.slot(&[0; 8])?, near.slot(&[0; 100])?]);
    }
    let mut batch = near.send.stage();
    for [fetched, read] in slots {
        let add = Operation::FetchAndAdd { remote: word, add: 1 };
        batch.push(add, [fetched], PostFlags::SIGNALED)?;
        batch.push(Operation::Read(place), [read], PostFlags::SIGNALED)?;
    }
    batch.ring()?;
    let sent = near.sent(8)?;
    let good = sent
        .iter()
        .filter(|sent| sent.retired.status.is_success())
        .count();
    notes.put("sent", format_args!("{good} of 8"));
    let adds = sent.iter().step_by(2).filter_map(Sent::word);
    notes.put("before", list(adds));
    let reads = sent.iter().skip(1).step_by(2);
    let right = reads.filter(|sent| sent.bytes() == [7; 100]).count();
    notes.put("READs", format_args!("{right} right"));
    Ok(())
}
