//! The provider's own half of it: the posting guards of `ffi`, and what completions give back.

use doorbell_core::Rkey;
use doorbell_core::provider::{
    Arena as _, CompletionQueue as _, Operation, PostError, PostFlags, ProviderError, ReceiveBatch as _,
    ReceiveQueue as _, RemoteAddress, SendBatch as _, SendQueue as _, Slot as _,
};
use doorbell_ffi::{Arena, CompletionQueue, ReceiveQueue, SendBatch, SendQueue, Slot};
use doorbell_proofs::{Bare, SLOT_BYTES};

#[cfg(feature = "panic_free")]
use no_panic::no_panic;

/// Requests in flight at most, each way.
pub(crate) const DEPTH: u32 = 64;

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn lease_slot(arena: &mut Arena) -> Option<Slot> {
    arena.lease()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn stage(send: &mut SendQueue) -> SendBatch<'_> {
    send.stage()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn push_slot(batch: &mut SendBatch<'_>, operation: Operation, slot: Slot, flags: PostFlags) -> bool {
    batch.push(operation, [slot], flags).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn push_bytes<'q>(batch: &mut SendBatch<'q>, operation: Operation, bytes: &'q [u8]) -> bool {
    batch.push_inline(operation, bytes, PostFlags::SIGNALED).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn ring_doorbell(batch: SendBatch<'_>) -> Result<u32, PostError> {
    batch.ring()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn drop_batch(batch: SendBatch<'_>) {
    drop(batch);
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn post_receive(receive: &mut ReceiveQueue, slot: Slot) -> Result<u32, PostError> {
    let mut batch = receive.stage();
    if batch.push([slot]).is_err() {
        return Ok(0);
    }
    batch.ring()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn poll_and_retire(
    completions: &mut CompletionQueue,
    send: &mut SendQueue,
    arena: &mut Arena,
    done: &mut u64,
) -> Result<u32, ProviderError> {
    completions.poll(|completion| {
        let retired = send.retire(completion, |_, slot| arena.release(slot));
        if let Ok(retired) = retired {
            *done = done.wrapping_add(retired.count());
        }
    })
}

/// Each operation: to a queue pair that is nobody's they are done, and nothing comes of them.
const OPERATIONS: [Operation; 7] = {
    let remote = RemoteAddress::new(0, Rkey(0));
    [
        Operation::Send,
        Operation::SendWithImmediate(1),
        Operation::Write(remote),
        Operation::WriteWithImmediate(remote, 1),
        Operation::Read(remote),
        Operation::FetchAndAdd { remote, add: 1 },
        Operation::CompareAndSwap {
            remote,
            compare: 0,
            swap: 1,
        },
    ]
};

/// One of each operation, by itself.
fn each_operation(bare: &mut Bare, done: &mut u64) -> Option<u64> {
    for operation in OPERATIONS {
        let mut slot = lease_slot(&mut bare.arena)?;
        slot.set_len_bytes(8);
        let mut batch = stage(&mut bare.send);
        let is_staged = push_slot(&mut batch, operation, slot, PostFlags::SIGNALED);
        if !is_staged || ring_doorbell(batch) != Ok(1) {
            return None;
        }
        poll_and_retire(&mut bare.sends, &mut bare.send, &mut bare.arena, done).ok()?;
    }
    Some(OPERATIONS.len() as u64)
}

fn round(bare: &mut Bare, done: &mut u64) -> Option<u64> {
    let bytes = [2; SLOT_BYTES as usize];
    let mut slots = [const { None }; 3];
    for place in &mut slots {
        let mut slot = lease_slot(&mut bare.arena)?;
        slot.set_len_bytes(SLOT_BYTES as usize);
        *place = Some(slot);
    }
    let [Some(first), Some(second), Some(third)] = slots else {
        return None;
    };
    let mut batch = stage(&mut bare.send);
    let is_staged = push_slot(&mut batch, Operation::Send, first, PostFlags::empty())
        && push_slot(&mut batch, Operation::Send, second, PostFlags::SIGNALED)
        && push_bytes(&mut batch, Operation::Send, &bytes);
    if !is_staged || ring_doorbell(batch) != Ok(3) {
        return None;
    }
    let mut batch = stage(&mut bare.send);
    if !push_slot(&mut batch, Operation::Send, third, PostFlags::SIGNALED) {
        return None;
    }
    drop_batch(batch);
    poll_and_retire(&mut bare.sends, &mut bare.send, &mut bare.arena, done).ok()?;
    Some(3)
}

/// Runs all of it; says whether it did what it should.
pub(crate) fn run(bare: &mut Bare) -> bool {
    let (mut posted, mut done) = (0_u64, 0_u64);
    for _ in 0..100 {
        match round(bare, &mut done).zip(each_operation(bare, &mut done)) {
            Some((some, each)) => posted = posted.wrapping_add(some).wrapping_add(each),
            None => return false,
        }
    }
    for left in (0..=DEPTH).rev() {
        let Some(slot) = lease_slot(&mut bare.arena) else {
            return false;
        };
        // One more than there is room for.
        if post_receive(&mut bare.receive, slot) != Ok(u32::from(left != 0)) {
            return false;
        }
    }
    posted == done
}
