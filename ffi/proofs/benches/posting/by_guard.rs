//! The loop on `ffi`: a batch is staged, pushed and rung, completions are polled and redeemed.

use doorbell_core::provider::{
    Arena as _, CompletionQueue as _, Operation, PostFlags, SendBatch as _, SendQueue as _, Slot as _,
};
use doorbell_ffi::{Arena, CompletionQueue, SendQueue};
use doorbell_proofs::Bare;

use crate::{DEPTH, Failure, MESSAGE_BYTES};

/// Posts so many batches; says how many messages were taken back.
pub(crate) fn run(batch: u32, batches: u32) -> Result<u64, Failure> {
    let mut bare = Bare::new(DEPTH).map_err(Failure::new)?;
    let Bare {
        send, sends, arena, ..
    } = &mut bare;
    Ok(measured_by_guard(send, sends, arena, batch, batches))
}

/// The loop whose instructions are counted.
#[inline(never)]
fn measured_by_guard(
    send: &mut SendQueue,
    completions: &mut CompletionQueue,
    arena: &mut Arena,
    batch: u32,
    batches: u32,
) -> u64 {
    let mut done = 0_u64;
    for _ in 0..batches {
        let mut staged = send.stage();
        for left in (0..batch).rev() {
            let Some(mut slot) = arena.lease() else {
                return done;
            };
            slot.set_len_bytes(MESSAGE_BYTES as usize);
            let flags = if left == 0 {
                PostFlags::SIGNALED
            } else {
                PostFlags::empty()
            };
            if staged.push(Operation::Send, [slot], flags).is_err() {
                return done;
            }
        }
        if staged.ring().is_err() {
            return done;
        }
        let before = done;
        while done == before {
            let polled = completions.poll(|completion| {
                let retired = send.retire(completion, |_, slot| arena.release(slot));
                done = match retired {
                    Ok(retired) if retired.status.is_success() => done.wrapping_add(retired.count()),
                    _ => u64::MAX,
                };
            });
            if polled.is_err() {
                return done;
            }
        }
    }
    done
}
