//! The public data path: leases, channels, batches, polling.

use core::time::Duration;

use doorbell::provider::{Provider, Rdma, Window as _, WindowRange};
use doorbell::worker::{RingChannel, SendWorker, Submission, SubmissionError, Submitter};
use doorbell::{
    Batch, Channel, ChannelId, Deadline, Event, Lease, Operation, PostFlags, RemoteAddress, Turn, Wait,
    WaitError, Woken, Worker, within,
};
use doorbell_core::provider::{PostError, ProviderError};
use doorbell_proofs::{End, Pair, destroy};

#[cfg(feature = "panic_free")]
use no_panic::no_panic;

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn lease(worker: &mut Worker) -> Option<Lease> {
    worker.lease()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
pub(crate) fn fill(lease: &mut Lease, bytes: &[u8]) -> bool {
    lease.fill(bytes).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
pub(crate) fn payload(lease: &Lease) -> &[u8] {
    lease.payload()
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
    match channel.send_lease(lease) {
        Ok(_) => None,
        Err(error) => error.item,
    }
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn send_copied(channel: &mut Channel, bytes: &[u8]) -> bool {
    channel.send(bytes).is_ok()
}

/// Copies as many bytes as both have.
#[inline]
fn copy(bytes: &mut [u8], from: &[u8]) {
    for (byte, from) in bytes.iter_mut().zip(from) {
        *byte = *from;
    }
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn send_claimed(channel: &mut Channel, bytes: &[u8]) -> bool {
    let Ok(mut claim) = channel.claim(bytes.len()) else {
        return false;
    };
    copy(claim.bytes(), bytes);
    claim.send().is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn post_claimed(channel: &mut Channel, operation: Operation, bytes: &[u8]) -> bool {
    let Ok(mut claim) = channel.claim(bytes.len()) else {
        return false;
    };
    copy(claim.bytes(), bytes);
    claim.truncate(bytes.len());
    claim.post(operation, PostFlags::empty()).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn drop_claim(channel: &mut Channel) -> bool {
    channel.claim(8).map(drop).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn push_copied(batch: &mut Batch<'_>, bytes: &[u8]) -> bool {
    batch.send(bytes).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn push_claimed(batch: &mut Batch<'_>, bytes: &[u8]) -> bool {
    let Ok(mut claim) = batch.claim(bytes.len()) else {
        return false;
    };
    copy(claim.bytes(), bytes);
    claim.send().is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn submit_own(channel: &mut Channel, operation: Operation, lease: Lease) -> Option<Lease> {
    match channel.submit(operation, lease, PostFlags::empty()) {
        Ok(()) => None,
        Err(error) => error.item,
    }
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn post(channel: &mut Channel, operation: Operation, lease: Lease) -> Option<Lease> {
    match channel.post(operation, lease, PostFlags::SIGNALED) {
        Ok(_) => None,
        Err(error) => error.item,
    }
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn post_inline(channel: &mut Channel, operation: Operation, bytes: &[u8]) -> bool {
    channel.post_inline(operation, bytes).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn post_ranges(
    channel: &mut Channel,
    operation: Operation,
    ranges: [WindowRange<'_, <Rdma as Provider>::Window>; 2],
) -> bool {
    channel
        .post_ranges(operation, ranges, PostFlags::SIGNALED)
        .is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn begin(channel: &mut Channel) -> Batch<'_> {
    channel.batch()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
pub(crate) fn push<const N: usize>(batch: &mut Batch<'_>, operation: Operation, leases: [Lease; N]) -> bool {
    batch.push(operation, leases, PostFlags::SIGNALED).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
pub(crate) fn push_inline<'q>(batch: &mut Batch<'q>, operation: Operation, bytes: &'q [u8]) -> bool {
    batch.push_inline(operation, bytes, PostFlags::empty()).is_ok()
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
pub(crate) fn ring(batch: Batch<'_>) -> Result<u32, PostError> {
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
fn submit_as(
    submitter: &mut Submitter,
    channel: ChannelId,
    operation: Operation,
    lease: Lease,
) -> Option<Lease> {
    match submitter.submit(channel, operation, lease, PostFlags::empty()) {
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

pub(crate) const A_MOMENT: Duration = Duration::from_millis(1);

/// Counts of the events of a poll.
#[derive(Debug, Default)]
struct Counts {
    received: u64,
    written: u64,
    fetched: u64,
    done: u64,
    failed: u64,
}

impl Counts {
    #[inline]
    fn note(&mut self, mut turn: Turn<'_>, event: Event<'_>) {
        match event {
            Event::Received { message, .. } => {
                self.received = self.received.wrapping_add(1);
                if self.received % 2 == 0 {
                    turn.release(message.keep());
                }
            }
            Event::Written { .. } => self.written = self.written.wrapping_add(1),
            Event::Fetched { data, .. } => {
                self.fetched = self.fetched.wrapping_add(1);
                turn.release(data);
            }
            Event::Done { .. } => self.done = self.done.wrapping_add(1),
            _ => self.failed = self.failed.wrapping_add(1),
        }
    }
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn poll(worker: &mut Worker, counts: &mut Counts) -> Result<u32, ProviderError> {
    worker.poll(|turn, event| counts.note(turn, event))
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn wait(worker: &mut Worker, deadline: Deadline, counts: &mut Counts) -> Result<Woken, WaitError> {
    worker.wait(Wait::Busy, deadline, |turn, event| counts.note(turn, event))
}

#[cfg_attr(feature = "panic_free", no_panic)]
#[inline(never)]
fn wait_asleep(worker: &mut Worker, deadline: Deadline, counts: &mut Counts) -> Result<Woken, WaitError> {
    worker.wait(Wait::SPIN_THEN_SLEEP, deadline, |turn, event| {
        counts.note(turn, event)
    })
}

fn messages(from: &mut End) -> Option<u64> {
    let bytes = [1; 64];
    let mut leases = [const { None }; 4];
    for place in &mut leases {
        let mut lease = lease(&mut from.worker)?;
        let is_filled = fill(&mut lease, &bytes) && payload(&lease) == bytes;
        *place = is_filled.then_some(lease);
    }
    let [Some(alone), Some(header), Some(page), Some(spare)] = leases else {
        return None;
    };
    let channel = from.channel()?;
    if credits(channel) < 8
        || send(channel, alone).is_some()
        || !post_inline(channel, Operation::Send, &bytes)
    {
        return None;
    }
    let mut batch = begin(channel);
    if !push(&mut batch, Operation::Send, [header, page]) || !push_inline(&mut batch, Operation::Send, &bytes)
    {
        return None;
    }
    if ring(batch) != Ok(2) {
        return None;
    }
    let channel = from.channel()?;
    if !drop_claim(channel) || !send_copied(channel, &bytes) || !send_claimed(channel, &bytes) {
        return None;
    }
    let mut batch = begin(channel);
    if !push_copied(&mut batch, &bytes) || !push_claimed(&mut batch, &bytes) || ring(batch) != Ok(2) {
        return None;
    }
    let other = lease(&mut from.worker)?;
    release(&mut from.worker, spare);
    drop_lease(other);
    Some(8)
}

/// Posts the other operations, alone, in a batch, and inline if they can be. Returns how many are reported to the
/// peer, and how many bring data back.
fn other_operations(from: &mut End, remote: RemoteAddress) -> Option<(u64, u64)> {
    let word = [1; 8];
    let announced = Operation::WriteWithImmediate(remote, 1);
    let compare_and_swap = Operation::CompareAndSwap {
        remote,
        compare: 0,
        swap: 1,
    };
    let fetching = [
        Operation::Read(remote),
        Operation::FetchAndAdd { remote, add: 1 },
        compare_and_swap,
    ];
    for operation in [Operation::Write(remote), announced].into_iter().chain(fetching) {
        let mut lease = lease(&mut from.worker)?;
        if !fill(&mut lease, &word) || post(from.channel()?, operation, lease).is_some() {
            return None;
        }
    }
    let mut leases = [const { None }; 5];
    for place in &mut leases {
        let mut lease = lease(&mut from.worker)?;
        *place = fill(&mut lease, &word).then_some(lease);
    }
    let [Some(header), Some(page), Some(read), Some(added), Some(swapped)] = leases else {
        return None;
    };
    let channel = from.worker.channel(from.channel)?;
    let ranges = [from.window.range(1024, 8), from.window.range(2048, 8)];
    if !post_inline(channel, Operation::Write(remote), &word)
        || !post_claimed(channel, Operation::Write(remote), &word)
        || !post_ranges(channel, Operation::Write(remote), ranges)
        || !post_ranges(channel, Operation::Read(remote), ranges)
    {
        return None;
    }
    let [reading, adding, swapping] = fetching;
    let mut batch = begin(channel);
    let is_staged = push(&mut batch, announced, [header, page])
        && push(&mut batch, reading, [read])
        && push(&mut batch, adding, [added])
        && push(&mut batch, swapping, [swapped])
        && push_inline(&mut batch, announced, &word);
    if !is_staged || ring(batch) != Ok(5) {
        return None;
    }
    for submitter in &mut from.submitters {
        let mut lease = lease_to_submit(submitter)?;
        if !fill(&mut lease, &word) || submit_as(submitter, from.channel, announced, lease).is_some() {
            return None;
        }
    }
    let mut own = lease(&mut from.worker)?;
    if !fill(&mut own, &word) || submit_own(from.channel()?, announced, own).is_some() {
        return None;
    }
    Some((6, 6))
}

/// A message by each submitter, and one by the thread that polls; says how many.
fn submissions(from: &mut End) -> Option<u64> {
    let mut own = lease(&mut from.worker)?;
    if !fill(&mut own, &[1; 64]) || submit_own(from.channel()?, Operation::Send, own).is_some() {
        return None;
    }
    let mut submitted = 1_u64;
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
pub(crate) fn given_back(submitters: &mut [Submitter], to: ChannelId, worker: SendWorker) -> bool {
    let is_submitted = submitters.iter_mut().all(|submitter| {
        lease_to_submit(submitter).is_some_and(|lease| submit(submitter, to, lease).is_none())
    });
    destroy(worker);
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

fn poll_both(pair: &mut Pair, at_a: &mut Counts, at_b: &mut Counts) -> bool {
    let polled = [
        poll(&mut pair.a.worker, at_a),
        poll(&mut pair.b.worker, at_b),
        poll(&mut pair.a.worker, at_a),
    ];
    polled.iter().all(Result::is_ok)
}

/// Runs all of it; says whether it did what it should.
pub(crate) fn run(pair: &mut Pair, rings: &mut [RingChannel; 2]) -> bool {
    let (mut sent, mut announced, mut fetched) = (0_u64, 0_u64, 0_u64);
    let Some(remote) = RemoteAddress::within(&pair.b.window.remote(), 0, 16) else {
        return false;
    };
    let (mut at_a, mut at_b) = (Counts::default(), Counts::default());
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
        // Submitted requests go out as a polls.
        if !poll_both(pair, &mut at_a, &mut at_b) {
            return false;
        }
        let Some((more_announced, more_fetched)) = other_operations(&mut pair.a, remote) else {
            return false;
        };
        (announced, fetched) = (
            announced.wrapping_add(more_announced),
            fetched.wrapping_add(more_fetched),
        );
        if !poll_both(pair, &mut at_a, &mut at_b) {
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
        && at_b.written == announced
        && at_a.fetched == fetched
        && at_a.done > 0
        && at_a.failed == 0
        && at_b.failed == 0
}
