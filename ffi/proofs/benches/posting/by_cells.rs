//! The loop on `ffi` by cells: each message is claimed in place, and completions retire what came before them.

use core::iter;

use doorbell_core::Ticket;
use doorbell_core::provider::{
    Arena as _, CompletionQueue as _, LoneCell as _, Operation, PostFlags, SendBatch as _, SendQueue as _,
};
use doorbell_ffi::{CompletionQueue, SendQueue};
use doorbell_proofs::Bare;

use crate::{DEPTH, Failure, MESSAGE_BYTES};

/// Posts so many batches; says how many messages were taken back.
pub(crate) fn run(batch: u32, batches: u32) -> Result<u64, Failure> {
    let mut bare = Bare::new(DEPTH).map_err(Failure::new)?;
    let Bare {
        send, sends, arena, ..
    } = &mut bare;
    send.furnish(iter::from_fn(|| arena.lease()))
        .map_err(Failure::new)?;
    Ok(measured_by_cells(send, sends, batch, batches))
}

/// The loop whose instructions are counted.
#[inline(never)]
fn measured_by_cells(
    send: &mut SendQueue,
    completions: &mut CompletionQueue,
    batch: u32,
    batches: u32,
) -> u64 {
    let mut done = 0_u64;
    for _ in 0..batches {
        let posted = match batch {
            1 => post_one(send),
            _ => post(send, batch),
        };
        if posted.is_none() {
            return done;
        }
        let mut retired = None;
        while retired != posted {
            let polled = completions.poll(|completion| {
                retired = send.retire_done(&completion, |_, slot| drop(slot));
            });
            if polled.is_err() || (retired.is_none() && polled != Ok(0)) {
                return done;
            }
        }
        done = done.wrapping_add(batch.into());
    }
    done
}

/// Posts one message by itself; its ticket.
#[inline(always)]
fn post_one(send: &mut SendQueue) -> Option<Ticket> {
    let cell = send.cell().ok()?;
    cell.post(Operation::Send, MESSAGE_BYTES, PostFlags::SIGNALED)
        .ok()
}

/// Posts several with one doorbell, of which the last is signaled; its ticket.
#[inline(always)]
fn post(send: &mut SendQueue, batch: u32) -> Option<Ticket> {
    let mut staged = send.stage();
    let mut last = None;
    for left in (0..batch).rev() {
        let flags = if left == 0 {
            PostFlags::SIGNALED
        } else {
            PostFlags::empty()
        };
        staged.cell().ok()?;
        last = Some(staged.push_cell(Operation::Send, MESSAGE_BYTES, flags).ok()?);
    }
    staged.ring().ok()?;
    last
}
