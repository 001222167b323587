//! The side that submits: a Worker, and threads that send through it.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::thread;
use std::time::Instant;

use doorbell::provider::{Network, Provider};
use doorbell::worker::{
    CloseProgress, FirstCause, SubmissionError, SubmitErrorKind, Submitter, SubmitterConfig,
};
use doorbell::{ChannelConfig, ChannelId, Connection, Event, Handle, Lease, Node, Wait, Worker};

use super::{CHANNELS, CLOSED, Failure, MESSAGES, Message, PATIENCE, SUBMITTERS, worker_config};

/// Slots of each submitter, which is how much of it is under way at most.
const SLOTS: u32 = 32;

/// More than one poll takes is submitted within this once nobody polls, or it never is.
const FILLED_WITHIN: Duration = Duration::from_secs(5);

/// Fates of a thread's messages that were submitted while the Worker went.
#[derive(Clone, Copy, Default)]
struct Fates {
    /// Posted and not known how they ended.
    unknown: u32,
    /// Never posted.
    given_back: u32,
}

/// Signals between the threads and the Worker's thread.
#[derive(Default)]
struct Signals {
    /// Messages submitted so far.
    submitted: AtomicU32,
    /// Messages that failed with the channel that was closed.
    failed: AtomicU32,
    /// Threads all of whose messages are done or reported.
    settled: AtomicU32,
    /// The Worker is about to go.
    goes: AtomicBool,
    /// Messages submitted since then.
    late: AtomicU32,
}

/// A thread that submits.
struct Sending<'a, P: Provider> {
    submitter: Submitter<P>,
    who: u32,
    channels: &'a [ChannelId],
    signals: &'a Signals,
    fates: Fates,
    deadline: Instant,
}

impl<P: Provider> Sending<'_, P> {
    /// Takes what failed, each with its reason.
    fn take_failures(&mut self) -> Result<(), Failure> {
        let closed = self.channels.get(CLOSED as usize).copied();
        let goes = self.signals.goes.load(Ordering::Relaxed);
        while let Some(failed) = self.submitter.failure() {
            let of_closed = Some(failed.channel) == closed;
            match failed.error {
                SubmissionError::NoChannel
                | SubmissionError::ChannelFailed(_)
                | SubmissionError::Ended(_)
                | SubmissionError::Unknown
                    if of_closed =>
                {
                    self.signals.failed.fetch_add(1, Ordering::Relaxed);
                }
                SubmissionError::Unknown if goes => self.fates.unknown += 1,
                SubmissionError::WorkerGone if goes => self.fates.given_back += 1,
                error => return Err(format!("a message failed: {error}").into()),
            }
            if let Some(lease) = failed.lease {
                self.submitter.release(lease);
            }
        }
        if Instant::now() > self.deadline {
            return Err("not in time".into());
        }
        Ok(())
    }

    /// Memory, once some is home.
    fn lease(&mut self) -> Result<Lease<P>, Failure> {
        loop {
            if let Some(lease) = self.submitter.lease() {
                return Ok(lease);
            }
            self.take_failures()?;
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Submits one; says whether the Worker takes any.
    fn submit(&mut self, to: ChannelId, message: Message) -> Result<bool, Failure> {
        let mut lease = self.lease()?;
        lease.fill(&message.to_bytes())?;
        loop {
            let refused = match self.submitter.send(to, lease) {
                Ok(()) => return Ok(true),
                Err(refused) => refused,
            };
            match refused.kind {
                SubmitErrorKind::WouldBlock => lease = refused.lease.ok_or("no lease")?,
                SubmitErrorKind::WorkerGone => return Ok(false),
                kind => return Err(kind.to_string().into()),
            }
            self.take_failures()?;
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Waits until all memory is home: each submission is done, or was reported.
    fn settle(&mut self) -> Result<(), Failure> {
        loop {
            self.take_failures()?;
            let home: Vec<_> = core::iter::from_fn(|| self.submitter.lease()).collect();
            let is_all = home.len() == SLOTS as usize;
            home.into_iter().for_each(|lease| self.submitter.release(lease));
            if is_all {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn send_all(&mut self) -> Result<(), Failure> {
        for number in 0..MESSAGES {
            for (channel, id) in (0..).zip(self.channels) {
                let who = self.who;
                if !self.submit(*id, Message::Counted { who, channel, number })? {
                    return Err("the Worker is gone".into());
                }
                self.signals.submitted.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.settle()
    }

    /// Goes on until the Worker takes no more, and waits for what it gives back.
    fn send_late(&mut self) -> Result<(), Failure> {
        let last = self.channels.last().copied().ok_or("no channel")?;
        // With all memory under way, there is nothing more to submit.
        for _ in 0..SLOTS {
            if !self.submit(last, Message::Late)? {
                break;
            }
            self.signals.late.fetch_add(1, Ordering::Relaxed);
        }
        self.settle()
    }

    fn run(mut self) -> Result<Fates, Failure> {
        let sent = self.send_all();
        self.signals.settled.fetch_add(1, Ordering::Release);
        sent?;
        while !self.signals.goes.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(1));
        }
        self.send_late()?;
        Ok(self.fates)
    }
}

/// The Worker's thread: posts submissions, closes a channel meanwhile, and announces the end to the other side.
fn post<P: Provider>(
    worker: &mut Worker<P>,
    ids: &[ChannelId],
    signals: &Signals,
    deadline: Instant,
) -> Result<(), Failure> {
    let first = ids.first().copied().ok_or("no channel")?;
    let closed = ids.get(CLOSED as usize).copied().ok_or("no channel")?;
    let wait = |worker: &mut Worker<P>| {
        let (mut failed, mut is_done) = (None, false);
        let sleep = worker.within(Duration::from_millis(20));
        worker.wait_tending(Wait::SPIN_THEN_SLEEP, sleep, |turn, event| match event {
            Event::Failed { status, .. }
            | Event::ChannelFailed {
                cause: FirstCause { status, .. },
            } if turn.channel.id() != closed => {
                failed = Some(format!("a channel failed: {status}"));
            }
            Event::Done { .. } if turn.channel.id() == first => is_done = true,
            _ => {}
        })?;
        if Instant::now() > deadline {
            failed.get_or_insert("not in time".into());
        }
        failed.map_or(Ok(is_done), |why| Err(Failure::from(why)))
    };
    let all = SUBMITTERS * CHANNELS * MESSAGES;
    while signals.submitted.load(Ordering::Relaxed) < all / 4 {
        wait(worker)?;
    }
    // Without patience: what is in flight is flushed.
    worker.begin_close(closed, worker.within(Duration::ZERO))?;
    while signals.settled.load(Ordering::Acquire) < SUBMITTERS
        || worker.close_progress(closed) == CloseProgress::UnderWay
    {
        wait(worker)?;
    }
    let submitted = SUBMITTERS * MESSAGES;
    let done = submitted.saturating_sub(signals.failed.load(Ordering::Relaxed));
    worker.send(first, &Message::End { submitted, done }.to_bytes())?;
    while !wait(worker)? {}
    Ok(())
}

/// Connects, has all threads send, and reports the outcome.
pub(super) fn run<P: Provider, N: Network>(node: &Node<P, N>, handle: &Handle) -> Result<(), Failure> {
    let mut workers = node.workers(&worker_config())?;
    let connected: Vec<_> = (0..CHANNELS)
        .map(|_| {
            let deadline = node.within(PATIENCE);
            node.connect(&mut workers, handle, &ChannelConfig::default(), deadline)
        })
        .collect::<Result<_, _>>()?;
    let ids: Vec<_> = connected.iter().map(|connection| connection.channel).collect();
    let at = connected.first().map_or(0, |first| first.worker);
    if connected.iter().any(|Connection { worker, .. }| *worker != at) {
        return Err("the channels are on different Workers".into());
    }
    let worker = workers.get_mut(at).ok_or("no such worker")?;

    // Two with a ring each, the others share one.
    let mut config = SubmitterConfig::default();
    config.slots = SLOTS;
    config.slot_bytes = 64;
    config.depth = SLOTS * 2;
    let mut submitters = worker.submitters(SUBMITTERS as usize - 2, &config)?;
    submitters.push(worker.submitter(&config)?);
    submitters.push(worker.submitter(&config)?);

    let (signals, deadline) = (Signals::default(), Instant::now() + PATIENCE);
    let (posted, fates) = thread::scope(|scope| {
        let sending: Vec<_> = (0..)
            .zip(submitters)
            .map(|(who, submitter)| Sending {
                submitter,
                who,
                channels: &ids,
                signals: &signals,
                fates: Fates::default(),
                deadline,
            })
            .map(|sending| scope.spawn(move || sending.run()))
            .collect();
        let posted = match workers.get_mut(at) {
            Some(worker) => post(worker, &ids, &signals, deadline),
            None => Err("no such worker".into()),
        };
        signals.goes.store(true, Ordering::Release);
        // Meanwhile the rings fill. One poll posts a part of them, and nobody asks how that ends.
        let (share, since) = (worker_config().submissions_per_poll, Instant::now());
        while signals.late.load(Ordering::Relaxed) <= share && since.elapsed() < FILLED_WITHIN {
            thread::sleep(Duration::from_millis(1));
        }
        if let Some(worker) = workers.get_mut(at) {
            let _polled = worker.poll(|_, _| {});
        }
        drop(workers);
        let fates: Vec<_> = sending.into_iter().map(|sending| sending.join()).collect();
        (posted, fates)
    });
    posted?;
    let mut all = Fates::default();
    for fates in fates {
        let fates = fates.map_err(|_| "a thread panicked")??;
        all.unknown += fates.unknown;
        all.given_back += fates.given_back;
    }
    println!(
        "{} messages were submitted, {} failed with the channel that was closed",
        signals.submitted.load(Ordering::Relaxed),
        signals.failed.load(Ordering::Relaxed)
    );
    println!(
        "{} messages as the Worker went, {} unknown, {} given back",
        signals.late.load(Ordering::Relaxed),
        all.unknown,
        all.given_back
    );
    println!("all memory is home");
    Ok(())
}
