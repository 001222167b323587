//! Workers taken apart: sending on one half, polling each, and the requests that submitters leave to it.

use core::mem::ManuallyDrop;

use doorbell::provider::ArenaConfig;
use doorbell::worker::{ReceiveHalf, ReceiveWorker, SendHalf, SendWorker};
use doorbell::{
    Batch, ChannelId, Deadline, Event, Lease, Operation, PostFlags, Turn, Wait, WaitError, Woken, within,
};
use doorbell_core::provider::ProviderError;
use doorbell_proofs::{Pair, split};

use crate::channel::{A_MOMENT, fill, given_back, push, push_inline, ring};

#[cfg(feature = "panic_free")]
use no_panic::no_panic;

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn lease_of_half(half: &mut SendWorker) -> Option<Lease> {
    half.lease()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn release_to_half(half: &mut SendWorker, lease: Lease) {
    half.release(lease);
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn send_by_half(half: &mut SendHalf, lease: Lease) -> Option<Lease> {
    match half.send_lease(lease) {
        Ok(_) => None,
        Err(error) => error.item,
    }
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn post_by_half(half: &mut SendHalf, operation: Operation, lease: Lease) -> Option<Lease> {
    match half.post(operation, lease, PostFlags::empty()) {
        Ok(_) => None,
        Err(error) => error.item,
    }
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn post_inline_by_half(half: &mut SendHalf, operation: Operation, bytes: &[u8]) -> bool {
    half.post_inline(operation, bytes).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn begin_by_half(half: &mut SendHalf) -> Batch<'_> {
    half.batch()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn submit_to_half(half: &mut SendHalf, operation: Operation, lease: Lease) -> Option<Lease> {
    match half.submit(operation, lease, PostFlags::empty()) {
        Ok(()) => None,
        Err(error) => error.item,
    }
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn poll_sending(half: &mut SendWorker, done: &mut u64) -> Result<u32, ProviderError> {
    half.poll(|_: Turn<'_, _, SendHalf>, event| {
        if let Event::Done { .. } = event {
            *done = done.wrapping_add(1);
        }
    })
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn poll_receiving(half: &mut ReceiveWorker, received: &mut u64) -> Result<u32, ProviderError> {
    half.poll(|_: Turn<'_, _, ReceiveHalf>, event| {
        if let Event::Received { .. } = event {
            *received = received.wrapping_add(1);
        }
    })
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn wait_sending(
    half: &mut SendWorker,
    how: Wait,
    deadline: Deadline,
    done: &mut u64,
) -> Result<Woken, WaitError> {
    half.wait(how, deadline, |_: Turn<'_, _, SendHalf>, event| {
        if let Event::Done { .. } = event {
            *done = done.wrapping_add(1);
        }
    })
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn wait_receiving(
    half: &mut ReceiveWorker,
    how: Wait,
    deadline: Deadline,
    received: &mut u64,
) -> Result<Woken, WaitError> {
    half.wait(how, deadline, |_: Turn<'_, _, ReceiveHalf>, event| {
        if let Event::Received { .. } = event {
            *received = received.wrapping_add(1);
        }
    })
}

/// Messages of a round, each in its way.
const MESSAGES: u64 = 6;

/// Sends them; says whether all went.
fn messages(worker: &mut SendWorker, channel: ChannelId) -> Option<bool> {
    let bytes = [1; 64];
    let mut leases = [const { None }; 6];
    for place in &mut leases {
        let mut lease = lease_of_half(worker)?;
        *place = fill(&mut lease, &bytes).then_some(lease);
    }
    let [
        Some(one),
        Some(two),
        Some(header),
        Some(page),
        Some(own),
        Some(spare),
    ] = leases
    else {
        return None;
    };
    release_to_half(worker, spare);
    let half = worker.channel(channel)?;
    let is_sent = send_by_half(half, one).is_none()
        && post_by_half(half, Operation::SendWithImmediate(1), two).is_none()
        && post_inline_by_half(half, Operation::Send, &bytes)
        && submit_to_half(half, Operation::Send, own).is_none();
    let mut batch = begin_by_half(half);
    let is_staged =
        push(&mut batch, Operation::Send, [header, page]) && push_inline(&mut batch, Operation::Send, &bytes);
    Some(is_sent && is_staged && ring(batch) == Ok(2))
}

type Kept = (ManuallyDrop<SendWorker>, ManuallyDrop<ReceiveWorker>);

fn kept((sending, receiving): (SendWorker, ReceiveWorker)) -> Kept {
    (ManuallyDrop::new(sending), ManuallyDrop::new(receiving))
}

/// Runs all of it; says whether it did what it should.
pub(crate) fn run(pair: Pair) -> bool {
    let Pair { a, b, node, .. } = pair;
    let (to, back) = (a.channel, b.channel);
    let arena = ArenaConfig::new(32, 64);
    // Never dropped, with the rest of both ends: else destruction would be in line here.
    let _ends = ManuallyDrop::new((a.window, b.window, b.submitters, node));
    let mut submitters = ManuallyDrop::new(a.submitters);
    let [a_halves, b_halves] = [a.worker, b.worker].map(|worker| split(worker, &arena).map(kept));
    let (Some((mut a_sends, mut a_receives)), Some((mut b_sends, mut b_receives))) = (a_halves, b_halves)
    else {
        return false;
    };
    let (mut done, mut received) = (0, 0);
    let mut sent = 0_u64;
    for _ in 0..100 {
        for (half, channel) in [(&mut a_sends, to), (&mut b_sends, back)] {
            if messages(half, channel) == Some(true) {
                sent = sent.wrapping_add(MESSAGES);
            }
        }
        // The sending half announces receives, once the receiving half has reported them.
        let polled = [
            poll_sending(&mut a_sends, &mut done),
            poll_sending(&mut b_sends, &mut done),
            poll_receiving(&mut a_receives, &mut received),
            poll_receiving(&mut b_receives, &mut received),
            poll_sending(&mut a_sends, &mut done),
            poll_sending(&mut b_sends, &mut done),
        ];
        if polled.iter().any(Result::is_err) {
            return false;
        }
    }
    // Nothing but what is on its way: each waits until its deadline in the end, awake and asleep.
    for how in [Wait::Busy, Wait::SPIN_THEN_SLEEP] {
        for (sending, receiving) in [(&mut a_sends, &mut a_receives), (&mut b_sends, &mut b_receives)] {
            let mut waits = 0..1000;
            let over = Ok(Woken::Deadline);
            let is_over = waits.any(|_| wait_sending(sending, how, within(A_MOMENT), &mut done) == over)
                && waits.any(|_| wait_receiving(receiving, how, within(A_MOMENT), &mut received) == over);
            if !is_over {
                return false;
            }
        }
    }
    sent == 200 * MESSAGES
        && received == sent
        && done > 0
        && given_back(&mut *submitters, to, ManuallyDrop::into_inner(a_sends))
}
