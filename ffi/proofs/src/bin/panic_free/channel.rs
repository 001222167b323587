//! The public data path: leases, channels, batches, polling.

use core::time::Duration;

use doorbell::{
    Batch, Channel, ChannelId, Deadline, Event, Lease, Operation, PostFlags, RingChannel, Submission,
    SubmissionError, Submitter, Turn, Wait, WaitError, Woken, Worker, within,
};
use doorbell_core::provider::{PostError, ProviderError};
use doorbell_proofs::{End, Pair};

#[cfg(feature = "panic_free")]
use no_panic::no_panic;

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn lease(worker: &mut Worker) -> Option<Lease> {
    worker.lease()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn fill(lease: &mut Lease, bytes: &[u8]) -> bool {
    lease.fill(bytes).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn release(worker: &mut Worker, lease: Lease) {
    worker.release(lease);
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn drop_lease(lease: Lease) {
    drop(lease);
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn send(channel: &mut Channel, lease: Lease) -> Option<Lease> {
    match channel.send(lease) {
        Ok(_) => None,
        Err(error) => error.item,
    }
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn post_inline(channel: &mut Channel, bytes: &[u8]) -> bool {
    channel.post_inline(Operation::Send, bytes).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn begin(channel: &mut Channel) -> Batch<'_> {
    channel.batch()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn push(batch: &mut Batch<'_>, leases: [Lease; 2]) -> bool {
    batch.push(Operation::Send, leases, PostFlags::SIGNALED).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn push_inline<'q>(batch: &mut Batch<'q>, bytes: &'q [u8]) -> bool {
    batch
        .push_inline(Operation::Send, bytes, PostFlags::empty())
        .is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn ring(batch: Batch<'_>) -> Result<u32, PostError> {
    batch.ring()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn credits(channel: &Channel) -> u32 {
    channel.credits()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn ring_send_inline(ring: &mut RingChannel, channel: &mut Channel, bytes: &[u8]) -> bool {
    ring.send_inline(channel, bytes).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn ring_send(ring: &mut RingChannel, channel: &mut Channel, lease: Lease) -> Option<Lease> {
    match ring.send(channel, lease) {
        Ok(_) => None,
        Err(error) => error.item,
    }
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn ring_receive(ring: &mut RingChannel, channel: &mut Channel, into: &mut [u8]) -> Option<usize> {
    ring.receive(channel, into).unwrap_or_default()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn lease_to_submit(submitter: &mut Submitter) -> Option<Lease> {
    submitter.lease()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn submit(submitter: &mut Submitter, channel: ChannelId, lease: Lease) -> Option<Lease> {
    match submitter.send(channel, lease) {
        Ok(()) => None,
        Err(error) => error.lease,
    }
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn release_to_submitter(submitter: &mut Submitter, lease: Lease) {
    submitter.release(lease);
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn failure(submitter: &mut Submitter) -> Option<Submission> {
    submitter.failure()
}

const A_MOMENT: Duration = Duration::from_millis(1);

/// What polling told.
#[derive(Debug, Default)]
struct Told {
    received: u64,
    done: u64,
    failed: u64,
}

impl Told {
    #[inline]
    fn note(&mut self, mut turn: Turn<'_>, event: Event) {
        match event {
            Event::Received { message, .. } => {
                self.received = self.received.wrapping_add(1);
                turn.release(message);
            }
            Event::Done { .. } => self.done = self.done.wrapping_add(1),
            _ => self.failed = self.failed.wrapping_add(1),
        }
    }
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn poll(worker: &mut Worker, told: &mut Told) -> Result<u32, ProviderError> {
    worker.poll_open(|turn, event| told.note(turn, event))
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn wait(worker: &mut Worker, deadline: Deadline, told: &mut Told) -> Result<Woken, WaitError> {
    worker.wait_open(Wait::Busy, deadline, |turn, event| told.note(turn, event))
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn wait_asleep(worker: &mut Worker, deadline: Deadline, told: &mut Told) -> Result<Woken, WaitError> {
    worker.wait_open(Wait::SPIN_THEN_SLEEP, deadline, |turn, event| {
        told.note(turn, event)
    })
}

fn messages(from: &mut End) -> Option<u64> {
    let bytes = [1; 64];
    let mut leases = [const { None }; 4];
    for place in &mut leases {
        let mut lease = lease(&mut from.worker)?;
        *place = fill(&mut lease, &bytes).then_some(lease);
    }
    let [Some(alone), Some(header), Some(page), Some(spare)] = leases else {
        return None;
    };
    let channel = from.channel()?;
    if credits(channel) < 4 || send(channel, alone).is_some() || !post_inline(channel, &bytes) {
        return None;
    }
    let mut batch = begin(channel);
    if !push(&mut batch, [header, page]) || !push_inline(&mut batch, &bytes) {
        return None;
    }
    if ring(batch) != Ok(2) {
        return None;
    }
    let other = lease(&mut from.worker)?;
    release(&mut from.worker, spare);
    drop_lease(other);
    Some(4)
}

/// A message by each submitter; says how many.
fn submissions(from: &mut End) -> Option<u64> {
    let mut submitted = 0_u64;
    for submitter in &mut from.submitters {
        let mut lease = lease_to_submit(submitter)?;
        if !fill(&mut lease, &[1; 64]) || submit(submitter, from.channel, lease).is_some() {
            return None;
        }
        submitted = submitted.wrapping_add(1);
        let unused = lease_to_submit(submitter)?;
        release_to_submitter(submitter, unused);
    }
    Some(submitted)
}

/// A message by each submitter that is not posted before its Worker goes: whether it comes back, and no other.
pub(crate) fn given_back<W>(submitters: &mut [Submitter], to: ChannelId, worker: W) -> bool {
    let is_submitted = submitters.iter_mut().all(|submitter| {
        lease_to_submit(submitter).is_some_and(|lease| submit(submitter, to, lease).is_none())
    });
    drop(worker);
    is_submitted
        && submitters.iter_mut().all(|submitter| {
            let Some(Submission { error, lease, .. }) = failure(submitter) else {
                return false;
            };
            let is_back = lease
                .map(|lease| release_to_submitter(submitter, lease))
                .is_some();
            is_back && error == SubmissionError::WorkerGone && failure(submitter).is_none()
        })
}

/// Two messages through the ring, from a to b; says whether they came.
fn through_the_ring(pair: &mut Pair, [from, to]: &mut [RingChannel; 2]) -> Option<bool> {
    let bytes = [1; 64];
    let mut message = lease(&mut pair.a.worker)?;
    let is_filled = fill(&mut message, &bytes);
    let channel = pair.a.channel()?;
    let is_sent =
        is_filled && ring_send_inline(from, channel, &bytes) && ring_send(from, channel, message).is_none();
    let channel = pair.b.channel()?;
    let mut into = [0; 64];
    let received = [(); 3].map(|()| ring_receive(to, channel, &mut into));
    Some(is_sent && received == [Some(64), Some(64), None] && into == bytes)
}

/// Runs all of it; says whether it did what it should.
pub(crate) fn run(pair: &mut Pair, rings: &mut [RingChannel; 2]) -> bool {
    let mut sent = 0_u64;
    let (mut at_a, mut at_b) = (Told::default(), Told::default());
    for _ in 0..100 {
        let Some(messages) = messages(&mut pair.a) else {
            return false;
        };
        let Some(submitted) = submissions(&mut pair.a) else {
            return false;
        };
        sent = sent.wrapping_add(messages).wrapping_add(submitted);
        if through_the_ring(pair, rings) != Some(true) {
            return false;
        }
        // What is submitted goes out as a polls.
        let polled = [
            poll(&mut pair.a.worker, &mut at_a),
            poll(&mut pair.b.worker, &mut at_b),
            poll(&mut pair.a.worker, &mut at_a),
        ];
        if polled.iter().any(Result::is_err) {
            return false;
        }
    }
    // Nothing is under way any more: each waits until its deadline, awake and asleep.
    let waited = [
        wait(&mut pair.a.worker, within(A_MOMENT), &mut at_a),
        wait_asleep(&mut pair.b.worker, within(A_MOMENT), &mut at_b),
    ];
    waited == [Ok(Woken::Deadline); 2]
        && at_b.received == sent
        && at_a.done > 0
        && at_a.failed == 0
        && at_b.failed == 0
}
