//! Cells: requests that go out from memory of the send queue (S4, S5, S29).

use core::iter;

use doorbell_core::provider::{
    Arena, ArenaConfig, CellsError, Context, LoneCell, Operation, PostFlags, ProtectionDomain, Provider,
    PushError, QueuePair, SendBatch, SendQueue,
};

use super::posting::word;
use super::table;
use crate::notes::{either, list};
use crate::side::{SLOT_BYTES, Side, connected};
use crate::{Notes, Rig, Trouble};

table! {
    5 s05_a_cell_is_used_again_once_its_request_is_done
        "messages of four times the depth, one of two written in place, the others inline, from a slot, with immediate, or of no bytes"
        => "arrived: each as it was written; in flight: 0";
    5 s05_cells_slots_and_inline_bytes_complete_in_posting_order
        "a signaled completion proves all before it done, whatever they went out from"
        => "done: 4; given back: slot; received: cell-1 inline slot cell-2";
    4 s04_a_cell_that_was_not_rung_is_the_next_ones
        "a batch that is dropped or forgotten posts nothing"
        => "dropped: still there; forgotten: still there; by itself: with its ticket; sent: SUCCESS; received: rung; then: nothing";
    29 s29_what_no_cell_can_do_is_refused
        "no cells, more bytes than a cell has, a READ, a full queue: refused when posted"
        => "without cells: refused; too few slots: refused; slots of another domain: refused; cells twice: refused; \
            too long: refused; a READ: refused; beyond the depth: refused; sent: SUCCESS";
}

/// Gives the send queue cells of the side's own slots.
fn furnish<P: Provider>(side: &mut Side<P>) -> Result<(), Trouble> {
    let Side { send, arena, .. } = side;
    Ok(send.furnish(iter::from_fn(|| arena.lease()))?)
}

/// Stages a message of this text from the next cell.
fn push<'q, B: SendBatch<'q>>(batch: &mut B, text: &str, flags: PostFlags) -> Result<(), Trouble> {
    let len_bytes = write(batch.cell()?, text);
    batch.push_cell(Operation::Send, len_bytes, flags)?;
    Ok(())
}

/// Writes a text to the beginning of a cell, and returns its length.
fn write(cell: &mut [u8], text: &str) -> u32 {
    if let Some(place) = cell.get_mut(..text.len()) {
        place.copy_from_slice(text.as_bytes());
    }
    u32::try_from(text.len()).unwrap_or(u32::MAX)
}

/// Kind of message that goes out beside one of a cell.
#[derive(Clone, Copy)]
enum Other {
    Inline,
    Slot,
    Immediate,
    Empty,
    Cell,
}

impl Other {
    const fn of(round: u32) -> Self {
        match round % 5 {
            0 => Self::Inline,
            1 => Self::Slot,
            2 => Self::Immediate,
            3 => Self::Empty,
            _ => Self::Cell,
        }
    }

    fn text(self, round: u32) -> String {
        match self {
            Self::Empty => String::new(),
            _ => format!("other of {round}"),
        }
    }

    fn push<'q, B: SendBatch<'q>>(
        self,
        batch: &mut B,
        text: &'q str,
        slot: Option<B::Slot>,
        flags: PostFlags,
    ) -> Result<(), Trouble> {
        let pushed = match (self, slot) {
            (_, Some(slot)) => batch
                .push(Operation::Send, [slot], flags)
                .map_err(|refused| refused.reason),
            (Self::Inline, _) => batch.push_inline(Operation::Send, text.as_bytes(), flags),
            (Self::Immediate, _) => {
                let len_bytes = write(batch.cell()?, text);
                batch.push_cell(Operation::SendWithImmediate(7), len_bytes, flags)
            }
            _ => return push(batch, text, flags),
        };
        pushed?;
        Ok(())
    }
}

/// Begins a batch of several kinds and does not ring: it is dropped, or forgotten.
fn leave<P: Provider>(side: &mut Side<P>, round: u32) -> Result<(), Trouble> {
    let slot = side.slot(b"left")?;
    let mut batch = side.send.stage();
    batch.push_inline(Operation::Send, b"left", PostFlags::empty())?;
    push(&mut batch, "left", PostFlags::empty())?;
    batch
        .push(Operation::Send, [slot], PostFlags::empty())
        .map_err(|refused| refused.reason)?;
    if round % 3 == 0 {
        core::mem::forget(batch);
    }
    Ok(())
}

fn s05_a_cell_is_used_again_once_its_request_is_done<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    furnish(&mut near)?;
    let rounds = near.control.limits().send_depth.saturating_mul(2);
    let mut as_written = true;
    for round in 0..rounds {
        far.post_receives(2)?;
        // Not at first: what is left of a batch is tidied up, and so might hide what a doorbell leaves.
        if round >= rounds / 2 {
            leave(&mut near, round)?;
        }
        let other = Other::of(round);
        let mut texts = [format!("cell of {round}"), other.text(round)];
        let slot = match other {
            Other::Slot => Some(near.slot(texts[1].as_bytes())?),
            _ => None,
        };
        let mut batch = near.send.stage();
        // In turns, so that each place of the queue has all of them before its cell's message.
        if round / 5 % 2 == 0 {
            push(&mut batch, &texts[0], PostFlags::empty())?;
            other.push(&mut batch, &texts[1], slot, PostFlags::SIGNALED)?;
            batch.ring()?;
        } else {
            other.push(&mut batch, &texts[1], slot, PostFlags::empty())?;
            push(&mut batch, &texts[0], PostFlags::SIGNALED)?;
            batch.ring()?;
            texts.swap(0, 1);
        }
        near.sent(1)?;
        let came = far.received(2)?;
        as_written &= came.iter().zip(&texts).all(|(came, text)| came.text() == *text);
    }
    notes.put(
        "arrived",
        either(as_written, "each as it was written", "otherwise"),
    );
    notes.put("in flight", near.send.in_flight());
    Ok(())
}

fn s05_cells_slots_and_inline_bytes_complete_in_posting_order<R: Rig>(
    rig: &R,
    notes: &mut Notes,
) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    furnish(&mut near)?;
    far.post_receives(4)?;
    let slot = near.slot(b"slot")?;
    let mut batch = near.send.stage();
    push(&mut batch, "cell-1", PostFlags::empty())?;
    batch.push_inline(Operation::Send, b"inline", PostFlags::empty())?;
    batch.push(Operation::Send, [slot], PostFlags::empty())?;
    push(&mut batch, "cell-2", PostFlags::SIGNALED)?;
    batch.ring()?;
    let sent = near.sent(1)?;
    let done = sent.first().map_or(0, |sent| sent.retired.count());
    let slots = sent.iter().flat_map(|sent| &sent.slots);
    let given_back = slots.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    notes.put("done", done);
    notes.put("given back", list(given_back));
    notes.put("received", list(far.received(4)?.iter().map(|came| came.text())));
    Ok(())
}

fn s04_a_cell_that_was_not_rung_is_the_next_ones<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    furnish(&mut near)?;
    far.post_receives(2)?;
    for (how, is_dropped) in [("dropped", true), ("forgotten", false)] {
        let mut batch = near.send.stage();
        push(&mut batch, how, PostFlags::SIGNALED)?;
        push(&mut batch, "another", PostFlags::SIGNALED)?;
        if is_dropped {
            drop(batch);
        } else {
            core::mem::forget(batch);
        }
        let is_there = near.send.cell()?.bytes().starts_with(how.as_bytes());
        notes.put(how, either(is_there, "still there", "gone"));
    }
    let mut cell = near.send.cell()?;
    let len_bytes = write(cell.bytes(), "rung");
    let ticket = cell.ticket();
    let posted = cell.post(Operation::Send, len_bytes, PostFlags::SIGNALED)?;
    notes.put(
        "by itself",
        either(posted == ticket, "with its ticket", "with another"),
    );
    notes.put("sent", near.send_ends(1)?);
    notes.put("received", list(far.received(1)?.iter().map(|came| came.text())));
    notes.put("then", far.stray_ends()?);
    Ok(())
}

fn s29_what_no_cell_can_do_is_refused<R: Rig>(rig: &R, notes: &mut Notes) -> Result<(), Trouble> {
    let [mut near, mut far] = connected(rig)?;
    let remote = far.at(0)?;
    let depth = near.control.limits().send_depth;
    let mut batch = near.send.stage();
    let without = batch.cell().err();
    notes.put("without cells", word(without == Some(PushError::NoCells)));
    drop(batch);

    let one = near.slot(b"")?;
    let too_few = near.send.furnish([one]);
    let expected = CellsError::TooFew {
        slots: 1,
        needed: depth,
    };
    notes.put("too few slots", word(too_few == Err(expected)));
    let domain = near.context.protection_domain()?;
    let mut foreign = domain.arena(&ArenaConfig::new(depth, SLOT_BYTES))?;
    let other = near.send.furnish(iter::from_fn(|| foreign.lease()));
    notes.put(
        "slots of another domain",
        word(other == Err(CellsError::OtherMemory)),
    );
    furnish(&mut near)?;
    let again = furnish(&mut near);
    notes.put("cells twice", word(again.is_err()));

    far.post_receives(depth)?;
    let mut batch = near.send.stage();
    let bytes_max = SLOT_BYTES;
    let bytes = bytes_max.saturating_add(1);
    let too_long = batch.push_cell(Operation::Send, bytes, PostFlags::empty());
    let expected = PushError::CellTooLong { bytes, bytes_max };
    notes.put("too long", word(too_long == Err(expected)));
    let read = batch.push_cell(Operation::Read(remote), 8, PostFlags::empty());
    notes.put("a READ", word(read == Err(PushError::NotInline)));
    for left in (0..depth).rev() {
        let flags = if left == 0 {
            PostFlags::SIGNALED
        } else {
            PostFlags::empty()
        };
        push(&mut batch, "x", flags)?;
    }
    let full = batch.cell().err();
    notes.put("beyond the depth", word(full == Some(PushError::Full)));
    batch.ring()?;
    notes.put("sent", near.send_ends(1)?);
    Ok(())
}
