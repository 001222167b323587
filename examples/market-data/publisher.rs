//! The publisher: keeps the newest cell of every instrument, and for each subscriber the list of those that
//! it has not been sent yet.

use core::fmt::{self, Display};
use core::net::IpAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::fs;
use std::thread;
use std::time::Instant;

use doorbell::provider::{Network, Provider};
use doorbell::wire::PrivateData;
use doorbell::worker::FirstCause;
use doorbell::{
    ChannelConfig, ChannelId, Connection, Event, Handle, Listener, Node, Operation, PostFlags, RemoteAddress,
    RemoteWindow, SendErrorKind, Worker, WorkerConfig,
};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::Publish;
use super::around::{Failure, Progress, Report, mix, note_failure, rate, words};
use super::cell::{CELL_BYTES, Quote};

/// Quotes made between two looks at the connections, at most.
const BURST: u64 = 16;

/// First message of a publisher to a peer that connects.
pub(crate) struct Greeting {
    pub(crate) instruments: u32,
    /// Names the running kernel: processes with the same share a clock.
    pub(crate) boot: Vec<u8>,
}

impl Greeting {
    pub(crate) fn new(instruments: u32) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            instruments,
            boot: boot.trim().into(),
        }
    }

    pub(crate) fn to_private_data(&self) -> Result<PrivateData, Failure> {
        let bytes = [&self.instruments.to_le_bytes(), self.boot.as_slice()].concat();
        PrivateData::new(&bytes).map_err(|_| "the name of this boot is too long".into())
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (instruments, boot) = bytes.split_first_chunk()?;
        Some(Self {
            instruments: u32::from_le_bytes(*instruments),
            boot: boot.into(),
        })
    }
}

/// Report of a publisher.
#[derive(Debug, Serialize)]
pub(crate) struct Published {
    pub(crate) role: &'static str,
    pub(crate) instruments: u32,
    pub(crate) published: u64,
    pub(crate) seconds: f64,
    pub(crate) published_per_s: f64,
    pub(crate) subscribers: Vec<Row>,
    pub(crate) failures: Vec<String>,
}

/// One subscriber, as its publisher saw it.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) address: IpAddr,
    /// Quotes written to it.
    pub(crate) written: u64,
    /// Quotes that newer ones replaced before they were written.
    pub(crate) conflated_here: u64,
    /// Number of written quotes that it says it saw.
    pub(crate) delivered: Option<u64>,
    /// And how many it does not have that were the last of their instrument.
    pub(crate) last_missing: Option<u64>,
    /// Why it was given up.
    pub(crate) lost: Option<String>,
}

struct Subscriber {
    at: Connection,
    address: IpAddr,
    /// Window of its cells, once it announced it.
    cells: Option<RemoteWindow>,
    /// Instruments with a quote newer than it was sent: each at most once, the one that waited longest first.
    waiting: VecDeque<usize>,
    /// Whether an instrument is among them.
    waits: Vec<bool>,
    written: u64,
    conflated: u64,
    /// Quotes delivered, and last ones missing, as it says at the end.
    summary: Option<[u64; 2]>,
    lost: Option<String>,
}

impl Subscriber {
    fn new<P: Provider>(at: Connection, workers: &mut [Worker<P>], instruments: usize) -> Option<Self> {
        let address = workers.get_mut(at.worker)?.channel(at.channel)?.peer().address();
        Some(Self {
            at,
            address,
            cells: None,
            waiting: VecDeque::with_capacity(instruments),
            waits: vec![false; instruments],
            written: 0,
            conflated: 0,
            summary: None,
            lost: None,
        })
    }

    /// A quote is newer than what it was sent.
    fn outdate(&mut self, instrument: usize) {
        let Some(waits) = self.waits.get_mut(instrument) else {
            return;
        };
        if *waits {
            // The one that waited is never sent: this is the conflation.
            self.conflated += 1;
        } else {
            *waits = true;
            self.waiting.push_back(instrument);
        }
    }

    /// Writes what waits, as far as there is room on the way: one doorbell for all of it.
    fn write<P: Provider>(&mut self, worker: &mut Worker<P>, newest: &[[u8; CELL_BYTES]]) {
        let (Some(channel), Some(cells)) = (worker.channel(self.at.channel), &self.cells) else {
            return;
        };
        if self.waiting.is_empty() || self.lost.is_some() {
            return;
        }
        let mut batch = channel.batch();
        while let Some(&instrument) = self.waiting.front() {
            let place = RemoteAddress::within(cells, (instrument * CELL_BYTES) as u64, CELL_BYTES as u64);
            let (Some(place), Some(cell)) = (place, newest.get(instrument)) else {
                self.lost = Some("its window is too small".into());
                return;
            };
            let staged = batch.claim(CELL_BYTES).and_then(|mut claim| {
                claim.bytes().copy_from_slice(cell);
                claim.push(Operation::Write(place), PostFlags::empty())
            });
            match staged {
                Ok(_) => {}
                Err(SendErrorKind::WouldBlock) => break,
                Err(kind) => {
                    self.lost = Some(kind.to_string());
                    return;
                }
            }
            self.waiting.pop_front();
            if let Some(waits) = self.waits.get_mut(instrument) {
                *waits = false;
            }
        }
        let staged = u64::from(batch.staged());
        if staged > 0 {
            match batch.ring() {
                Ok(_) => self.written += staged,
                Err(error) => self.lost = Some(error.to_string()),
            }
        }
    }

    fn note<P: Provider>(&mut self, event: &Event<'_, P>) {
        match event {
            Event::Received { message, .. } => {
                let payload = message.payload();
                if let Ok(window) = payload.try_into() {
                    self.cells = Some(RemoteWindow::from_bytes(window));
                } else if let [delivered, missing] = *words(payload).collect::<Vec<_>>() {
                    self.summary = Some([delivered, missing]);
                } else {
                    self.lost = Some(format!("it sent {} bytes that mean nothing", payload.len()));
                }
            }
            // One that said what it saw may go.
            Event::Failed { status, .. }
            | Event::ChannelFailed {
                cause: FirstCause { status, .. },
            } if self.summary.is_none() => {
                note_failure(&mut self.lost, *status);
            }
            _ => {}
        }
    }

    const fn is_here(&self) -> bool {
        self.lost.is_none()
    }
}

/// All subscribers, and the Workers their channels are on.
struct Audience<P: Provider> {
    workers: Vec<Worker<P>>,
    subscribers: Vec<Subscriber>,
}

impl<P: Provider> Audience<P> {
    /// Takes what came from all subscribers.
    fn poll(&mut self) -> Result<(), Failure> {
        let Self { workers, subscribers } = self;
        let mut count = 0;
        for (index, worker) in workers.iter_mut().enumerate() {
            count += worker.poll(|turn, event| {
                if let Some(subscriber) = find(subscribers, index, turn.channel.id()) {
                    subscriber.note(&event);
                }
            })?;
        }
        if count == 0 {
            // Channels of subscribers that left are closed while there is nothing else to do.
            workers.iter_mut().for_each(Worker::tend);
            // On a machine with fewer processors than threads, the others get theirs.
            thread::yield_now();
        }
        Ok(())
    }

    fn outdate(&mut self, instrument: usize) {
        for subscriber in &mut self.subscribers {
            subscriber.outdate(instrument);
        }
    }

    fn write(&mut self, newest: &[[u8; CELL_BYTES]]) {
        for subscriber in &mut self.subscribers {
            if let Some(worker) = self.workers.get_mut(subscriber.at.worker) {
                subscriber.write(worker, newest);
            }
        }
    }

    /// Goes on until all subscribers that are still here are there, or the time is up.
    fn until(
        &mut self,
        patience: Duration,
        mut turn: impl FnMut(&mut Self),
        is_there: impl Fn(&Subscriber) -> bool,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + patience;
        let awaited = |subscriber: &Subscriber| subscriber.is_here() && !is_there(subscriber);
        while self.subscribers.iter().any(awaited) && Instant::now() < deadline {
            turn(self);
            self.poll()?;
        }
        for subscriber in self
            .subscribers
            .iter_mut()
            .filter(|subscriber| awaited(subscriber))
        {
            subscriber.lost = Some(format!("nothing came from it for {} s", patience.as_secs()));
        }
        Ok(())
    }

    /// Tells all subscribers that this was all, and the last sequence of each instrument.
    fn tell_end(&mut self, last: &[u64]) -> Result<(), Failure> {
        let bytes: Vec<u8> = last.iter().flat_map(|sequence| sequence.to_le_bytes()).collect();
        for subscriber in self
            .subscribers
            .iter_mut()
            .filter(|subscriber| subscriber.is_here())
        {
            let worker = self
                .workers
                .get_mut(subscriber.at.worker)
                .ok_or("no such worker")?;
            if let Err(kind) = worker.send(subscriber.at.channel, &bytes) {
                subscriber.lost = Some(kind.to_string());
            }
        }
        Ok(())
    }
}

fn find(subscribers: &mut [Subscriber], worker: usize, channel: ChannelId) -> Option<&mut Subscriber> {
    let is_it =
        |subscriber: &&mut Subscriber| subscriber.at.worker == worker && subscriber.at.channel == channel;
    subscribers.iter_mut().find(is_it)
}

/// Waits for subscribers, publishes, and asks them what they saw.
///
/// # Errors
/// There is no device, not all subscribers came in time, or a Worker cannot be used.
pub(crate) fn run<P: Provider>(
    node: &Node<P, impl Network>,
    arguments: &Publish,
    announce: impl FnOnce(&Handle) -> Result<(), Failure>,
) -> Result<Published, Failure> {
    let patience = Duration::from_secs(arguments.patience_s);
    let instruments = arguments.instruments as usize;
    let mut audience = gather(node, arguments, announce)?;
    audience.until(patience, |_| {}, |subscriber| subscriber.cells.is_some())?;

    let mut newest = vec![[0; CELL_BYTES]; instruments];
    let mut sequences = vec![0_u64; instruments];
    let mut published = 0;
    let mut progress = Progress::new();
    let began = Instant::now();
    while published < arguments.updates && audience.subscribers.iter().any(Subscriber::is_here) {
        let now = Instant::now();
        let due = match arguments.rate {
            0 => arguments.updates,
            rate => due(rate, now - began).min(arguments.updates),
        };
        let burst = due.saturating_sub(published).min(BURST);
        for _ in 0..burst {
            let instrument = pick(published, instruments);
            let (Some(cell), Some(sequence)) = (newest.get_mut(instrument), sequences.get_mut(instrument))
            else {
                return Err("no such instrument".into());
            };
            *sequence += 1;
            *cell = Quote::of(instrument as u64, *sequence, monotonic_ns()).to_cell();
            published += 1;
            audience.outdate(instrument);
        }
        audience.write(&newest);
        audience.poll()?;
        progress.tell(now, || format!("published {published} of {}", arguments.updates));
    }
    let span = began.elapsed();

    // Waiting quotes go out, then the end, behind them.
    let all_sent = |subscriber: &Subscriber| subscriber.waiting.is_empty();
    audience.until(patience, |audience| audience.write(&newest), all_sent)?;
    // A place in the queue for it.
    let deadline = Instant::now() + patience;
    while audience.is_full() && Instant::now() < deadline {
        audience.poll()?;
    }
    audience.tell_end(&sequences)?;
    audience.until(patience, |_| {}, |subscriber| subscriber.summary.is_some())?;
    Ok(report(arguments, published, span, &audience.subscribers))
}

impl<P: Provider> Audience<P> {
    /// Whether the queue to a subscriber that is still here takes nothing more.
    fn is_full(&mut self) -> bool {
        let Self { workers, subscribers } = self;
        subscribers
            .iter()
            .filter(|subscriber| subscriber.is_here())
            .any(|subscriber| {
                let worker = workers.get_mut(subscriber.at.worker);
                let channel = worker.and_then(|worker| worker.channel(subscriber.at.channel));
                channel.is_some_and(|channel| channel.room() == 0)
            })
    }
}

/// Listens until all subscribers are connected.
fn gather<P: Provider>(
    node: &Node<P, impl Network>,
    arguments: &Publish,
    announce: impl FnOnce(&Handle) -> Result<(), Failure>,
) -> Result<Audience<P>, Failure> {
    let instruments = arguments.instruments as usize;
    let mut config = WorkerConfig::default();
    // The last message has a word for each instrument.
    config.slot_bytes = config.slot_bytes.max(arguments.instruments * 8);
    let mut workers = node.workers(&config)?;
    let mut config = ChannelConfig::default();
    // The queue is the way that can be full: what is in it is on its way, and cannot be replaced by newer.
    config.send_depth = arguments.in_flight;
    config.cell_bytes = CELL_BYTES as u32;
    config.receive_depth = 8;
    config.repost_batch = 1;
    config.private_data = Greeting::new(arguments.instruments).to_private_data()?;
    let mut listener = Listener::bind(node, &workers, "[::]:0".parse()?, &config)?;
    announce(listener.handle())?;
    let deadline = node.within(Duration::from_secs(arguments.patience_s));
    let mut subscribers = Vec::new();
    for _ in 0..arguments.subscribers {
        let at = listener.accept(node, &mut workers, deadline)?;
        subscribers.push(Subscriber::new(at, &mut workers, instruments).ok_or("no such channel")?);
    }
    Ok(Audience { workers, subscribers })
}

/// The monotonic clock, which all processes of one kernel share.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanoseconds)
}

/// How many quotes are due after this long.
fn due(per_second: u64, since: Duration) -> u64 {
    let due = u128::from(per_second) * since.as_micros() / 1_000_000;
    u64::try_from(due).unwrap_or(u64::MAX)
}

/// The instrument of a quote: some trade much more than others.
fn pick(number: u64, instruments: usize) -> usize {
    let (chance, count) = (mix(number), instruments as u64);
    let skewed = (chance % count) * ((chance >> 32) % count) / count;
    usize::try_from(skewed).unwrap_or_default()
}

fn report(arguments: &Publish, published: u64, span: Duration, subscribers: &[Subscriber]) -> Published {
    let rows: Vec<_> = subscribers.iter().map(Subscriber::row).collect();
    let mut failures: Vec<String> = Vec::new();
    if published < arguments.updates {
        failures.push(format!("ended after {published} quotes: no subscriber was left"));
    }
    for row in &rows {
        if let Some(lost) = &row.lost {
            failures.push(format!("subscriber {}: {lost}", row.address));
        }
        if let Some(missing @ 1..) = row.last_missing {
            failures.push(format!(
                "subscriber {}: {missing} last quotes are missing",
                row.address
            ));
        }
        if row.lost.is_none() && row.written + row.conflated_here != published {
            let accounted = row.written + row.conflated_here;
            failures.push(format!(
                "subscriber {}: {accounted} quotes of {published}",
                row.address
            ));
        }
    }
    Published {
        role: "publisher",
        instruments: arguments.instruments,
        published,
        seconds: span.as_secs_f64(),
        published_per_s: rate(published, span),
        subscribers: rows,
        failures,
    }
}

impl Subscriber {
    fn row(&self) -> Row {
        Row {
            address: self.address,
            written: self.written,
            conflated_here: self.conflated,
            delivered: self.summary.map(|[delivered, _]| delivered),
            last_missing: self.summary.map(|[_, missing]| missing),
            lost: self.lost.clone(),
        }
    }
}

impl Report for Published {
    fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "published {} quotes of {} instruments, {} a second",
            self.published, self.instruments, self.published_per_s
        )?;
        for row in &self.subscribers {
            let delivered = row.delivered.map_or("-".into(), |count| count.to_string());
            writeln!(
                f,
                "  to {}: {} written, {} conflated here, {delivered} seen there",
                row.address, row.written, row.conflated_here
            )?;
        }
        Ok(())
    }
}
