//! Bandwidth: many messages in flight, timed by the round.
//!
//! The messages of a round are created before it and checked after it: the length of a round is limited by the memory
//! for its messages. The timed section lasts from just before the first post to the completion of the last message. A
//! mark on the same connection, after the messages, ends the round for the listener. The listener returns a mark, after
//! which the client begins the next round.

use core::ops::Range;
use std::collections::VecDeque;

use quanta::Clock;
use serde::Serialize;

use doorbell::provider::Provider;
use doorbell::{Batch, Event, Lease, Operation, PostFlags, SendErrorKind};

use super::atomic::Counter;
use super::error::{PerfError, no_memory};
use super::link::{Arrival, LOOKS_AT_QUEUE, RemotePlaces, Run, UNASKED, operation, remote_place};
use super::progress::Progress;
use super::test::{Op, Role, Round, Test};

/// The result of a bandwidth test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Bandwidth {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) rounds: u64,
    /// The sum of the timed sections.
    pub(crate) elapsed_ns: u64,
    /// Post calls in the timed sections.
    pub(crate) doorbells: u64,
    pub(crate) messages_per_second: f64,
    pub(crate) bytes_per_second: f64,
}

impl Bandwidth {
    /// Adds a round.
    fn add(&mut self, messages: u64, message_bytes: u32, ns: u64, doorbells: u64) {
        self.messages = self.messages.saturating_add(messages);
        let bytes = messages.saturating_mul(u64::from(message_bytes));
        self.bytes = self.bytes.saturating_add(bytes);
        self.rounds = self.rounds.saturating_add(1);
        self.elapsed_ns = self.elapsed_ns.saturating_add(ns);
        self.doorbells = self.doorbells.saturating_add(doorbells);
        self.messages_per_second = per_second(self.messages, self.elapsed_ns);
        self.bytes_per_second = per_second(self.bytes, self.elapsed_ns);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate of six digits or so is meant")]
fn per_second(count: u64, ns: u64) -> f64 {
    count as f64 * 1e9 / ns.max(1) as f64
}

/// The messages of a round, created before it begins.
enum RoundMessages<P: Provider> {
    /// The messages in sequence. Posting copies them: inline, or into a cell.
    Copied(Vec<u8>),
    /// Messages, or space for the fetched bytes.
    Leases(VecDeque<Lease<P>>),
}

/// The client's side.
///
/// # Errors
/// The test could not be run to its end. Wrong bytes are counted and are no error here.
pub(super) fn measure<P: Provider>(
    run: &mut Run<'_, P>,
    progress: &mut Progress,
) -> Result<Bandwidth, PerfError> {
    let clock = Clock::new();
    let mut found = Bandwidth::default();
    let mut posting = run.source.counter(Role::Client);
    let mut checking = posting;
    let capacity = capacity_of(run.test);
    let mut stock = if run.test.is_inline() || run.test.is_by_cells() {
        RoundMessages::Copied(Vec::with_capacity(capacity.saturating_mul(run.test.bytes())))
    } else {
        RoundMessages::Leases(VecDeque::with_capacity(capacity))
    };
    let mut fetched = Vec::with_capacity(capacity);
    for (number, round) in (0_u64..).zip(run.test.rounds()) {
        stock.fill(run, round)?;
        let start = clock.raw();
        let doorbells = pump(run, round, &mut stock, &mut posting, &mut fetched)?;
        let end = clock.raw();
        run.send_mark(number)?;
        if run.test.op.fetches() && fetched.len() as u64 != round.count {
            return Err(UNASKED);
        }
        for (sequence, data) in round.sequences().zip(fetched.drain(..)) {
            run.check_fetched(sequence, data, &mut checking);
        }
        run.await_mark(number)?;
        if round.counts {
            let ns = clock.delta_as_nanos(start, end);
            found.add(round.count, run.test.message_bytes, ns, doorbells);
        }
        progress.reached(round.sequences().end);
    }
    Ok(found)
}

/// The listener's side.
///
/// # Errors
/// As for [`measure`].
pub(super) fn answer<P: Provider>(run: &mut Run<'_, P>) -> Result<(), PerfError> {
    let mut counter = run.source.counter(Role::Listener);
    let mut arrivals = Vec::with_capacity(capacity_of(run.test));
    let mut rounds = run.test.rounds().peekable();
    let mut number = 0_u64;
    while let Some(round) = rounds.next() {
        if run.test.op.takes_receives() {
            gather(run, number, round, &mut arrivals)?;
        } else {
            run.await_mark(number)?;
        }
        match run.test.op {
            Op::Send | Op::WriteImm => {
                for (sequence, arrival) in round.sequences().zip(arrivals.drain(..)) {
                    run.check_arrival(sequence, round.first, arrival)?;
                }
            }
            Op::Write => {
                for sequence in run.test.checkable(round) {
                    run.check_window(sequence, round.first, Ok(()))?;
                }
            }
            Op::Read => {
                if let Some(next) = rounds.peek() {
                    run.source
                        .fill_window(run.link.window_mut()?, next.first, next.count)?;
                }
            }
            Op::FetchAdd | Op::CompareSwap => {
                for sequence in round.sequences() {
                    counter.step(sequence);
                }
                run.check_word_at_rest(round.sequences().end, &mut counter)?;
            }
            Op::Ring => return Err(PerfError::NoBandwidthOf(Op::Ring)),
        }
        run.send_mark(number)?;
        number = number.saturating_add(1);
    }
    Ok(())
}

/// Collects the arrivals of a round, up to the mark that follows them.
fn gather<P: Provider>(
    run: &mut Run<'_, P>,
    number: u64,
    round: Round,
    arrivals: &mut Vec<Arrival<P>>,
) -> Result<(), PerfError> {
    let with_mark = round.count.saturating_add(1);
    while (arrivals.len() as u64) < with_mark {
        let mut too_many = false;
        let before = arrivals.len();
        run.link.poll(|_, event| {
            if let Some(arrival) = Arrival::of(event) {
                if arrivals.len() as u64 == with_mark {
                    too_many = true;
                } else {
                    arrivals.push(arrival);
                }
            }
        })?;
        if too_many {
            return Err(UNASKED);
        }
        if arrivals.len() == before {
            run.idle(LOOKS_AT_QUEUE)?;
        } else {
            run.moved();
        }
    }
    match arrivals.pop() {
        Some(Arrival::Message(mark)) => run.check_mark(number, mark),
        _ => Err(UNASKED),
    }
}

/// Number of empty polls after which less than a batch is posted, if the peer's receives suffice for no more. The peer
/// may announce new receives only after some of these are used.
const PATIENCE_LOOKS: u32 = 1 << 16;

/// Posts a round, and waits for its completion. The messages in flight never exceed the depth or the peer's receives.
/// Returns the number of doorbells.
///
/// It is never inlined: a measurement counts its instructions by its name, without the instructions that create
/// messages.
#[inline(never)]
fn pump<P: Provider>(
    run: &mut Run<'_, P>,
    round: Round,
    stock: &mut RoundMessages<P>,
    counter: &mut Counter,
    fetched: &mut Vec<Lease<P>>,
) -> Result<u64, PerfError> {
    let mut depth = run
        .test
        .depth
        .min(run.test.send_depth(run.role).saturating_sub(1));
    if run.test.buffers > 0 {
        depth = depth.min(run.test.buffers);
    }
    let is_message = run.test.op.takes_receives();
    let mut batch_max = u64::from(run.test.batch.min(depth));
    if is_message {
        // A batch cannot exceed the total number of the peer's receives.
        batch_max = batch_max.min(u64::from(run.link.channel()?.peer().receive_depth()));
    }
    let mut doorbells = 0_u64;
    let mut posted = 0_u64;
    let mut looks = 0_u32;
    loop {
        let channel = run.link.channel()?;
        let in_flight = channel.in_flight();
        let mut want = batch_max.min(round.count.saturating_sub(posted));
        if want == 0 && in_flight == 0 {
            return Ok(doorbells);
        }
        let mut room = depth.saturating_sub(in_flight).min(channel.room());
        if is_message {
            room = room.min(channel.credits());
            if looks >= PATIENCE_LOOKS && room > 0 {
                want = want.min(u64::from(room));
            }
        }
        if want > 0 && u64::from(room) >= want {
            // If a batch leaves no room for another, its last request is signaled. Otherwise the completion of the
            // unsignaled requests might never come.
            let tells = u64::from(room) < want.saturating_mul(2);
            post_batch(run, round, posted, want, tells, stock, counter)?;
            posted = posted.saturating_add(want);
            doorbells = doorbells.saturating_add(1);
            looks = 0;
            continue;
        }
        let mut unasked = false;
        let count = run.link.poll(|_, event| match event {
            Event::Fetched { data, .. } => fetched.push(data),
            Event::Received { .. } | Event::Written { .. } => unasked = true,
            _ => {}
        })?;
        if unasked {
            return Err(UNASKED);
        }
        if count == 0 {
            looks = looks.saturating_add(1);
            run.idle(LOOKS_AT_QUEUE)?;
        } else {
            looks = 0;
            run.moved();
        }
    }
}

/// The messages of one doorbell.
struct Requests {
    sequences: Range<u64>,
    /// Whether the last message is signaled.
    tells: bool,
}

impl Requests {
    /// The last message, and its flags.
    const fn last(&self) -> (u64, PostFlags) {
        let flags = if self.tells {
            PostFlags::SIGNALED
        } else {
            PostFlags::empty()
        };
        (self.sequences.end.saturating_sub(1), flags)
    }
}

/// Posts `count` messages of a round with one doorbell, after the first `posted` ones. `tells` makes the last message
/// signaled.
#[inline]
fn post_batch<P: Provider>(
    run: &mut Run<'_, P>,
    round: Round,
    posted: u64,
    count: u64,
    tells: bool,
    stock: &mut RoundMessages<P>,
    counter: &mut Counter,
) -> Result<(), PerfError> {
    let (test, remote) = (run.test, run.link.remote);
    let first = round.first.saturating_add(posted);
    let end = first.saturating_add(count);
    if test.buffers > 0 {
        stock.take_again(run, count)?;
    }
    let requests = Requests {
        sequences: first..end,
        // The last message of a round is signaled: its completion retires all others.
        tells: tells || end == round.sequences().end,
    };
    match (stock, test.op) {
        (RoundMessages::Copied(bytes), Op::Send) if test.is_by_cells() => {
            let messages = messages_from(bytes, test, posted);
            post_cells(run, messages, requests, || Ok(Operation::Send))
        }
        (RoundMessages::Copied(bytes), Op::Write) if test.is_by_cells() => {
            let mut places = RemotePlaces::from(test, &remote, posted);
            let write = || places.next().map(Operation::Write);
            post_cells(run, messages_from(bytes, test, posted), requests, write)
        }
        (RoundMessages::Leases(leases), Op::Send) => {
            post_leases(run, leases, requests, || Ok(Operation::Send))
        }
        (RoundMessages::Leases(leases), Op::Write) => {
            let mut places = RemotePlaces::from(test, &remote, posted);
            post_leases(run, leases, requests, || places.next().map(Operation::Write))
        }
        (stock, _) => post_others(run, round, stock, requests, counter),
    }
}

/// Posts requests of any kind with one doorbell.
fn post_others<P: Provider>(
    run: &mut Run<'_, P>,
    round: Round,
    stock: &mut RoundMessages<P>,
    requests: Requests,
    counter: &mut Counter,
) -> Result<(), PerfError> {
    let (test, remote, source) = (run.test, run.link.remote, run.source);
    let (last, last_flags) = requests.last();
    let (copied, mut leases) = match stock {
        RoundMessages::Copied(bytes) => (Some(bytes.as_slice()), None),
        RoundMessages::Leases(leases) => (None, Some(leases)),
    };
    let mut batch = run.link.channel()?.batch();
    for sequence in requests.sequences {
        let operation = if test.op.is_atomic() {
            let word = remote_place(test, &remote, sequence, round.first)?;
            let operation = counter.request(sequence, word, source.is_planted(sequence));
            counter.step(sequence);
            operation
        } else {
            operation(test, &remote, sequence, round.first)?
        };
        let flags = if sequence == last {
            last_flags
        } else {
            PostFlags::empty()
        };
        match copied {
            Some(bytes) => {
                let index = sequence.saturating_sub(round.first);
                let message = messages_from(bytes, test, index).next();
                let message = message.ok_or_else(no_memory)?;
                if test.is_by_cells() {
                    push_cell(&mut batch, message, operation, flags)?;
                } else {
                    batch.push_inline(operation, message, flags)?;
                }
            }
            None => {
                let lease = leases.as_mut().and_then(|leases| leases.pop_front());
                let lease = lease.ok_or_else(no_memory)?;
                batch
                    .push(operation, [lease], flags)
                    .map_err(|refused| refused.kind)?;
            }
        }
    }
    let rung = batch.ring();
    rung.map_err(|error| PerfError::Send(SendErrorKind::Post(error)))?;
    Ok(())
}

/// Posts leases in sequence with one doorbell. If all have the same kind of operation, which is known at compile time,
/// little has to be decided for each.
#[inline(always)]
fn post_leases<P: Provider>(
    run: &mut Run<'_, P>,
    leases: &mut VecDeque<Lease<P>>,
    requests: Requests,
    mut operation: impl FnMut() -> Result<Operation, PerfError>,
) -> Result<(), PerfError> {
    let (last, flags) = requests.last();
    let channel = run.link.channel()?;
    if requests.sequences.start == last {
        let lease = leases.pop_front().ok_or_else(no_memory)?;
        let posted = channel.post(operation()?, lease, flags);
        return posted.map(drop).map_err(|refused| refused.kind.into());
    }
    let mut batch = channel.batch();
    for _ in requests.sequences.start..last {
        let lease = leases.pop_front().ok_or_else(no_memory)?;
        batch
            .push(operation()?, [lease], PostFlags::empty())
            .map_err(|refused| refused.kind)?;
    }
    let lease = leases.pop_front().ok_or_else(no_memory)?;
    batch
        .push(operation()?, [lease], flags)
        .map_err(|refused| refused.kind)?;
    batch
        .ring()
        .map_err(|error| PerfError::Send(SendErrorKind::Post(error)))?;
    Ok(())
}

/// Copies messages into cells and posts them with one doorbell, as [`post_leases`] posts leases.
#[inline(always)]
fn post_cells<'b, P: Provider>(
    run: &mut Run<'_, P>,
    mut messages: impl Iterator<Item = &'b [u8]>,
    requests: Requests,
    mut operation: impl FnMut() -> Result<Operation, PerfError>,
) -> Result<(), PerfError> {
    let (last, flags) = requests.last();
    let channel = run.link.channel()?;
    if requests.sequences.start == last {
        let message = messages.next().ok_or_else(no_memory)?;
        let mut claim = channel.claim(message.len())?;
        claim.bytes().copy_from_slice(message);
        claim.post(operation()?, flags)?;
        return Ok(());
    }
    let mut batch = channel.batch();
    for _ in requests.sequences.start..last {
        let message = messages.next().ok_or_else(no_memory)?;
        push_cell(&mut batch, message, operation()?, PostFlags::empty())?;
    }
    let message = messages.next().ok_or_else(no_memory)?;
    push_cell(&mut batch, message, operation()?, flags)?;
    batch
        .ring()
        .map_err(|error| PerfError::Send(SendErrorKind::Post(error)))?;
    Ok(())
}

/// Pushes a message that is copied into a cell.
#[inline(always)]
fn push_cell<P: Provider>(
    batch: &mut Batch<'_, P>,
    message: &[u8],
    operation: Operation,
    flags: PostFlags,
) -> Result<(), PerfError> {
    let mut claim = batch.claim(message.len())?;
    claim.bytes().copy_from_slice(message);
    claim.push(operation, flags)?;
    Ok(())
}

/// The messages of a round from this index on, if posting copies them.
#[inline]
fn messages_from<'b>(bytes: &'b [u8], test: &Test, index: u64) -> impl Iterator<Item = &'b [u8]> + use<'b> {
    let start = usize::try_from(index)
        .unwrap_or(usize::MAX)
        .saturating_mul(test.bytes());
    bytes
        .get(start..)
        .unwrap_or_default()
        .chunks_exact(test.bytes().max(1))
}

impl<P: Provider> RoundMessages<P> {
    /// Creates the messages of a round, or space for the bytes that it fetches.
    fn fill(&mut self, run: &mut Run<'_, P>, round: Round) -> Result<(), PerfError> {
        match self {
            Self::Copied(bytes) => {
                let count = usize::try_from(round.count).unwrap_or(usize::MAX);
                bytes.resize(count.saturating_mul(run.test.bytes()), 0);
                let messages = bytes.chunks_exact_mut(run.test.bytes());
                for (sequence, message) in round.sequences().zip(messages) {
                    run.source.write(sequence, message);
                }
            }
            Self::Leases(leases) if run.test.buffers > 0 => {
                // All free memory gets the same bytes, so that any of it can be used.
                while let Some(mut lease) = run.link.worker.lease() {
                    run.source.write_into(round.first, &mut lease)?;
                    leases.push_back(lease);
                }
                leases.drain(..).for_each(|lease| run.link.worker.release(lease));
            }
            Self::Leases(leases) => {
                for sequence in round.sequences() {
                    let mut lease = run.blank()?;
                    if !run.test.op.fetches() {
                        run.source.write_into(sequence, &mut lease)?;
                    }
                    leases.push_back(lease);
                }
            }
        }
        Ok(())
    }
}

impl<P: Provider> RoundMessages<P> {
    /// Takes free memory, which still holds a message.
    #[inline]
    fn take_again(&mut self, run: &mut Run<'_, P>, count: u64) -> Result<(), PerfError> {
        if let Self::Leases(leases) = self {
            for _ in 0..count {
                let mut lease = run.link.worker.lease().ok_or_else(no_memory)?;
                lease.set_len_bytes(run.test.bytes());
                leases.push_back(lease);
            }
        }
        Ok(())
    }
}

/// The number of messages of a round, and the mark after them.
fn capacity_of(test: &Test) -> usize {
    usize::try_from(test.round_messages().saturating_add(1)).unwrap_or(usize::MAX)
}
