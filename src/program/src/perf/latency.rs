//! Latency: one message at a time, each timed separately.
//!
//! The timed section lasts from just before the post until polling returns the answer. The next
//! message is created, and the last one is checked, outside of it. The listening side prepares its
//! answer, posts it during the poll that returns the message, and checks afterwards.

use hdrhistogram::Histogram;
use quanta::Clock;
use serde::Serialize;

use doorbell::provider::{Provider, Window};
use doorbell::{Event, Lease, Operation, PostFlags};

use super::atomic::Counter;
use super::error::PerfError;
use super::link::{
    Arrival, LOOKS_AT_MEMORY, LOOKS_AT_QUEUE, Outgoing, Run, check_word, operation, post, remote_place,
};
use super::pattern::arrival_byte;
use super::progress::Progress;
use super::ring;
use super::test::{Op, Role, Test};

/// The longest time that the histogram can record: 100 s.
const LONGEST_NS: u64 = 100_000_000_000;
/// Iterations between updates of the progress, a power of two.
const PROGRESS_EVERY: u64 = 64;

/// The times of one test.
pub(super) struct Times {
    pub(super) clock: Clock,
    histogram: Histogram<u64>,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
    warmup: u64,
}

/// The result of a latency test. Times are one-way for messages (half of the round trip, as in
/// perftest), and the whole round trip for operations that fetch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    pub(crate) is_one_way: bool,
    pub(crate) min_ns: f64,
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
    pub(crate) p99_9_ns: f64,
    pub(crate) max_ns: f64,
    pub(crate) mean_ns: f64,
    /// Messages whose last byte, which is polled for, arrived before their other bytes.
    pub(crate) late: u64,
}

impl Times {
    pub(super) fn new(test: &Test) -> Result<Self, PerfError> {
        Ok(Self {
            clock: Clock::new(),
            histogram: Histogram::new_with_bounds(1, LONGEST_NS, 3).map_err(|_| PerfError::NoMemory)?,
            sum_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
            warmup: test.warmup,
        })
    }

    /// Records a time, unless it belongs to the warm-up.
    pub(super) fn note(&mut self, sequence: u64, start: u64, end: u64) {
        if sequence >= self.warmup {
            self.record(self.clock.delta_as_nanos(start, end));
        }
    }

    pub(super) fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.max(1));
        self.sum_ns = self.sum_ns.saturating_add(u128::from(ns));
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// The percentiles. One-way times are half of the measured times.
    #[expect(
        clippy::cast_precision_loss,
        reason = "times of seconds in nanoseconds have 31 bits"
    )]
    pub(super) fn summary(&self, is_one_way: bool, late: u64) -> Latency {
        let part = if is_one_way { 0.5 } else { 1.0 };
        let count = self.histogram.len();
        // The histogram returns the largest value of a bucket, so the result is limited to the
        // range of the measured times.
        let quantile = |quantile| {
            let ns = self.histogram.value_at_quantile(quantile);
            ns.min(self.max_ns).max(self.min_ns) as f64 * part
        };
        Latency {
            count,
            is_one_way,
            min_ns: if count == 0 {
                0.0
            } else {
                self.min_ns as f64 * part
            },
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            p99_9_ns: quantile(0.999),
            max_ns: self.max_ns as f64 * part,
            mean_ns: if count == 0 {
                0.0
            } else {
                self.sum_ns as f64 / count as f64 * part
            },
            late,
        }
    }
}

/// The client's side.
///
/// # Errors
/// The test could not be completed. Wrong bytes are counted, and are not an error here.
pub(super) fn measure<P: Provider>(
    run: &mut Run<'_, P>,
    progress: &mut Progress,
) -> Result<Latency, PerfError> {
    let mut times = Times::new(run.test)?;
    match run.test.op {
        Op::Send | Op::WriteImm => exchange(run, &mut times, progress)?,
        Op::Write => write_and_poll(run, &mut times, progress)?,
        Op::Ring => ring::exchange(run, &mut times, progress)?,
        Op::Read | Op::FetchAdd | Op::CompareSwap => fetch(run, &mut times, progress)?,
    }
    Ok(times.summary(!run.test.op.fetches(), run.tally().late))
}

/// The listener's side.
///
/// # Errors
/// As for [`measure`].
pub(super) fn answer<P: Provider>(run: &mut Run<'_, P>) -> Result<(), PerfError> {
    match run.test.op {
        Op::Send | Op::WriteImm => reply(run),
        Op::Write => poll_and_write(run),
        Op::Ring => ring::reply(run),
        Op::Read => {
            run.await_mark(0)?;
            run.send_mark(0)
        }
        Op::FetchAdd | Op::CompareSwap => {
            run.await_mark(0)?;
            let mut counter = run.source.counter(Role::Listener);
            // The client chose the number.
            for sequence in 0..run.test.total() {
                counter.step(sequence);
                run.idle(LOOKS_AT_MEMORY)?;
            }
            run.check_word_at_rest(run.test.total(), &mut counter)?;
            run.send_mark(0)
        }
    }
}

fn exchange<P: Provider>(
    run: &mut Run<'_, P>,
    times: &mut Times,
    progress: &mut Progress,
) -> Result<(), PerfError> {
    let mut early = None;
    for sequence in 0..run.test.total() {
        let outgoing = run.prepare(sequence, &mut early)?;
        let operation = operation(run.test, &run.link.remote, sequence, 0)?;
        let clock = &times.clock;
        let made = &run.made;
        let start = clock.raw();
        post(run.link.channel()?, operation, outgoing, made)?;
        let (end, arrival) = loop {
            let mut arrived = None;
            run.link.poll(|_, event| {
                if let Some(arrival) = Arrival::of(event) {
                    arrived = Some((clock.raw(), arrival));
                }
            })?;
            match arrived {
                Some(arrived) => break arrived,
                None => run.idle(LOOKS_AT_QUEUE)?,
            }
        };
        run.moved();
        times.note(sequence, start, end);
        run.check_arrival(sequence, 0, arrival)?;
        tick(progress, sequence);
    }
    Ok(())
}

fn reply<P: Provider>(run: &mut Run<'_, P>) -> Result<(), PerfError> {
    for sequence in 0..run.test.total() {
        let mut early = None;
        let outgoing = run.prepare(sequence, &mut early)?;
        let operation = operation(run.test, &run.link.remote, sequence, 0)?;
        let arrival = match early {
            Some(arrival) => {
                post(run.link.channel()?, operation, outgoing, &run.made)?;
                arrival
            }
            None => await_and_post(run, operation, outgoing)?,
        };
        run.moved();
        run.check_arrival(sequence, 0, arrival)?;
    }
    Ok(())
}

/// Waits for the client's message, and posts the reply as soon as polling returns it.
fn await_and_post<P: Provider>(
    run: &mut Run<'_, P>,
    operation: Operation,
    outgoing: Outgoing<P>,
) -> Result<Arrival<P>, PerfError> {
    let mut reply = Some(outgoing);
    loop {
        let mut arrived = None;
        let mut posted = Ok(());
        let made = &run.made;
        run.link.poll(|channel, event| {
            if let Some(arrival) = Arrival::of(event) {
                if let Some(outgoing) = reply.take() {
                    posted = post(channel, operation, outgoing, made);
                }
                arrived = Some(arrival);
            }
        })?;
        posted?;
        match arrived {
            Some(arrival) => return Ok(arrival),
            None => run.idle(LOOKS_AT_QUEUE)?,
        }
    }
}

fn write_and_poll<P: Provider>(
    run: &mut Run<'_, P>,
    times: &mut Times,
    progress: &mut Progress,
) -> Result<(), PerfError> {
    let mut early = None;
    for sequence in 0..run.test.total() {
        let outgoing = run.prepare(sequence, &mut early)?;
        let operation = operation(run.test, &run.link.remote, sequence, 0)?;
        let made = &run.made;
        let start = times.clock.raw();
        post(run.link.channel()?, operation, outgoing, made)?;
        await_byte(run, sequence)?;
        let end = times.clock.raw();
        run.moved();
        times.note(sequence, start, end);
        run.check_window(sequence, 0, Ok(()))?;
        // The poll takes completions, which return the memory of posted messages.
        run.link.poll(|_, _| {})?;
        tick(progress, sequence);
    }
    Ok(())
}

fn poll_and_write<P: Provider>(run: &mut Run<'_, P>) -> Result<(), PerfError> {
    let mut early = None;
    for sequence in 0..run.test.total() {
        let outgoing = run.prepare(sequence, &mut early)?;
        let operation = operation(run.test, &run.link.remote, sequence, 0)?;
        await_byte(run, sequence)?;
        let made = &run.made;
        post(run.link.channel()?, operation, outgoing, made)?;
        run.moved();
        run.check_window(sequence, 0, Ok(()))?;
        run.link.poll(|_, _| {})?;
    }
    Ok(())
}

/// Waits until the last byte of the peer's message has arrived.
#[inline]
fn await_byte<P: Provider>(run: &mut Run<'_, P>, sequence: u64) -> Result<(), PerfError> {
    let last = run.test.bytes().saturating_sub(1);
    let place = run.test.place_of(sequence, 0).saturating_add(last);
    let expected = arrival_byte(sequence);
    let mut looks = 0_u32;
    loop {
        let byte = run.link.window()?.load_u8(place);
        if byte.map_err(|_| PerfError::NoMemory)? == expected {
            return Ok(());
        }
        looks = looks.wrapping_add(1);
        if looks & LOOKS_AT_MEMORY.wrapping_sub(1) == 0 {
            // Only completions report a failed connection.
            run.link.poll(|_, _| {})?;
            run.idle(1)?;
        }
    }
}

fn fetch<P: Provider>(
    run: &mut Run<'_, P>,
    times: &mut Times,
    progress: &mut Progress,
) -> Result<(), PerfError> {
    let mut counter = run.source.counter(Role::Client);
    for sequence in 0..run.test.total() {
        let lease = run.blank()?;
        let operation = if run.test.op.is_atomic() {
            counter.request(
                sequence,
                remote_place(run.test, &run.link.remote, sequence, 0)?,
                run.source.is_planted(sequence),
            )
        } else {
            operation(run.test, &run.link.remote, sequence, 0)?
        };
        let clock = &times.clock;
        let start = clock.raw();
        let channel = run.link.channel()?;
        channel
            .post(operation, lease, PostFlags::SIGNALED)
            .map_err(|refused| refused.kind)?;
        let (end, data) = loop {
            let mut fetched = None;
            run.link.poll(|_, event| {
                if let Event::Fetched { data, .. } = event {
                    fetched = Some((clock.raw(), data));
                }
            })?;
            match fetched {
                Some(fetched) => break fetched,
                None => run.idle(LOOKS_AT_QUEUE)?,
            }
        };
        run.moved();
        times.note(sequence, start, end);
        run.check_fetched(sequence, data, &mut counter);
        tick(progress, sequence);
    }
    run.send_mark(0)?;
    run.await_mark(0)
}

impl<P: Provider> Run<'_, P> {
    /// Checks the bytes of a READ or an atomic.
    pub(super) fn check_fetched(&mut self, sequence: u64, data: Lease<P>, counter: &mut Counter) {
        let outcome = if self.test.op.is_atomic() {
            let mut word = [0; size_of::<u64>()];
            for (byte, value) in word.iter_mut().zip(data.payload()) {
                *byte = *value;
            }
            let got = u64::from_ne_bytes(word);
            let outcome = check_word(sequence, counter.value(), got);
            counter.see(got);
            counter.step(sequence);
            outcome
        } else {
            self.source
                .theirs
                .check(self.test.content_of(sequence, 0), data.payload())
                .map_err(|mut mismatch| {
                    mismatch.sequence = sequence;
                    mismatch
                })
        };
        self.tally.note(data.len_bytes() as u64, outcome);
        self.link.worker.release(data);
    }

    /// Checks the word on which atomics operate, after `sequence` of them.
    ///
    /// # Errors
    /// There is no window.
    pub(super) fn check_word_at_rest(
        &mut self,
        sequence: u64,
        counter: &mut Counter,
    ) -> Result<(), PerfError> {
        let word = self.link.window()?.load_u64(0).map_err(|_| PerfError::NoMemory)?;
        let outcome = check_word(sequence, counter.value(), word);
        counter.see(word);
        self.tally.note(size_of::<u64>() as u64, outcome);
        Ok(())
    }
}

pub(super) fn tick(progress: &mut Progress, sequence: u64) {
    if sequence & PROGRESS_EVERY.wrapping_sub(1) == 0 {
        progress.reached(sequence);
    }
}

#[cfg(test)]
mod tests {
    use doorbell::provider::Mtu;

    use super::Times;
    use crate::perf::test::{Kind, Op, Test};

    fn times(warmup: u64) -> Times {
        Times::new(&Test {
            kind: Kind::Latency,
            op: Op::Send,
            message_bytes: 8,
            iterations: 1,
            warmup,
            inline_bytes_max: 0,
            batch: 1,
            depth: 1,
            unsignaled_max: 0,
            buffers: 0,
            traffic_class: 0,
            mtu_max: Mtu::B256,
            plant: None,
        })
        .unwrap()
    }

    #[test]
    fn percentiles_are_those_of_the_times_to_a_thousandth() {
        let mut times = times(0);
        for ns in (1..=100_000).rev() {
            times.record(ns);
        }
        let whole = times.summary(false, 0);
        let near = |got: f64, exact: f64| (got - exact).abs() <= exact / 1000.0;
        assert_eq!(
            (whole.count, whole.min_ns, whole.max_ns, whole.mean_ns),
            (100_000, 1.0, 100_000.0, 50_000.5)
        );
        assert!(
            near(whole.p50_ns, 50_000.0) && near(whole.p99_ns, 99_000.0) && near(whole.p99_9_ns, 99_900.0)
        );
        // One-way times are half of the measured times.
        let half = times.summary(true, 3);
        assert_eq!(half.p99_ns * 2.0, whole.p99_ns);
        assert_eq!(
            (half.min_ns, half.max_ns, half.mean_ns, half.late),
            (0.5, 50_000.0, 25_000.25, 3)
        );
    }

    #[test]
    fn percentiles_never_leave_the_times_there_were() {
        let mut times = times(0);
        times.record(1_234_567);
        let one = times.summary(false, 0);
        assert!(
            [
                one.min_ns,
                one.p50_ns,
                one.p99_ns,
                one.p99_9_ns,
                one.max_ns,
                one.mean_ns
            ]
            .iter()
            .all(|ns| *ns == 1_234_567.0)
        );
        times.record(u64::MAX / 2);
        assert!(times.summary(false, 0).p99_ns <= times.summary(false, 0).max_ns);
    }

    #[test]
    fn the_warm_up_does_not_count() {
        let mut times = times(2);
        for sequence in 0..5 {
            times.note(sequence, 0, 1000);
        }
        assert_eq!(times.summary(false, 0).count, 3);
        assert_eq!(super::Times::summary(&self::times(0), true, 0).count, 0);
    }
}
