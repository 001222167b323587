//! A subscriber: looks at the cells in its own memory, as often as it likes.

use core::fmt::{self, Display};
use core::time::Duration;
use std::thread;
use std::time::Instant;

use doorbell::provider::{Network, Provider, Window as _};
use doorbell::worker::FirstCause;
use doorbell::{ChannelConfig, Event, LocalWindow, Node, RemoteAccess, WindowConfig, Worker, WorkerConfig};
use serde::Serialize;

use super::around::{Failure, Latencies, Percentiles, Progress, Report, note_failure, words};
use super::cell::{Book, CELL_BYTES, Quote};
use super::publisher::{Greeting, monotonic_ns};
use super::{INSTRUMENTS_MAX, Subscribe};

/// Report of a subscriber.
#[derive(Debug, Serialize)]
pub(crate) struct Subscribed {
    pub(crate) role: &'static str,
    pub(crate) instruments: usize,
    /// Quotes there were, as the publisher says.
    pub(crate) published: u64,
    /// Quotes seen.
    pub(crate) delivered: u64,
    /// Quotes that newer ones replaced before they were seen, here or at the publisher.
    pub(crate) conflated: u64,
    /// Looks that found a write under way.
    pub(crate) torn_looks: u64,
    pub(crate) went_back: u64,
    pub(crate) not_genuine: u64,
    pub(crate) last_missing: u64,
    /// From the publisher's clock to the look that saw it; where both are on one host.
    pub(crate) latency: Option<Percentiles>,
    pub(crate) failures: Vec<String>,
}

/// Connects, looks until the publisher says that this was all, and compares.
///
/// # Errors
/// There is no device, the publisher cannot be reached, the connection failed, or nothing came for too long.
pub(crate) fn run<P: Provider>(
    node: &Node<P, impl Network>,
    arguments: &Subscribe,
) -> Result<Subscribed, Failure> {
    let patience = Duration::from_secs(arguments.patience_s);
    let mut config = WorkerConfig::default();
    // Room for the last message, of which there is one; the others are short, and few.
    config.slot_bytes = INSTRUMENTS_MAX * 8;
    config.slots = 64;
    let mut workers = node.workers(&config)?;
    let mut config = ChannelConfig::default();
    config.receive_depth = 8;
    config.repost_batch = 1;
    let to = node.connect(&mut workers, &arguments.handle, &config, node.within(patience))?;
    let worker = workers.get_mut(to.worker).ok_or("no such worker")?;
    let channel = worker.channel(to.channel).ok_or("closed")?;
    let greeting = Greeting::parse(channel.peer().private_data()).ok_or("the peer is no publisher")?;
    if greeting.instruments > INSTRUMENTS_MAX {
        return Err(format!(
            "{} instruments, and {INSTRUMENTS_MAX} at most",
            greeting.instruments
        )
        .into());
    }
    let instruments = greeting.instruments as usize;
    let is_same_clock = !greeting.boot.is_empty() && greeting.boot == Greeting::new(0).boot;

    // Only the channel's own device can use a window, so it is made now, and announced.
    let window = worker.window(&WindowConfig::new(instruments * CELL_BYTES, RemoteAccess::WRITE))?;
    let channel = worker.channel(to.channel).ok_or("closed")?;
    channel.send(&window.remote().to_bytes())?;

    let mut board = Board {
        window,
        instruments,
        book: Book::new(instruments),
        latencies: is_same_clock.then(Latencies::new).transpose()?,
    };
    let last = watch(worker, &mut board, arguments)?;
    let book = &mut board.book;
    let published = book.finish(&last);
    let channel = worker.channel(to.channel).ok_or("closed")?;
    let summary = [book.delivered, book.last_missing].map(u64::to_le_bytes).concat();
    channel.send(&summary)?;
    worker.close(to.channel, worker.within(patience), |_, _| {})?;
    Ok(Subscribed {
        role: "subscriber",
        instruments,
        published,
        delivered: book.delivered,
        conflated: book.conflated,
        torn_looks: book.torn,
        went_back: book.went_back,
        not_genuine: book.not_genuine,
        last_missing: book.last_missing,
        latency: board.latencies.as_ref().and_then(Latencies::percentiles),
        failures: book.failures(published),
    })
}

/// The cells, and what was seen in them.
struct Board<W> {
    window: W,
    instruments: usize,
    book: Book,
    /// Latencies, if the publisher's clock is this host's.
    latencies: Option<Latencies>,
}

impl<W: doorbell::provider::Window> Board<W> {
    /// Looks at every cell; says whether there was news.
    fn look(&mut self) -> Result<bool, Failure> {
        let mut news = false;
        for instrument in 0..self.instruments {
            let Some(quote) = look(&self.window, instrument, &mut self.book)? else {
                continue;
            };
            news = true;
            if let Some(latencies) = &mut self.latencies {
                let since_ns = monotonic_ns().saturating_sub(quote.published_ns);
                latencies.note(Duration::from_nanos(since_ns));
            }
        }
        Ok(news)
    }
}

/// Looks until the publisher says that this was all; gives the last quotes there were, as it says.
fn watch<P: Provider>(
    worker: &mut Worker<P>,
    board: &mut Board<LocalWindow<P>>,
    arguments: &Subscribe,
) -> Result<Vec<u64>, Failure> {
    let patience = Duration::from_secs(arguments.patience_s);
    let mut progress = Progress::new();
    let mut last_news = Instant::now();
    let mut last: Option<Vec<u64>> = None;
    loop {
        let news = board.look()?;
        // Told the end before this look, it was the last one: everything is in place, and nothing is written.
        if let Some(last) = last {
            return Ok(last);
        }
        let mut failed = None;
        let came = worker.poll(|_, event| match event {
            Event::Received { message, .. } => {
                last = Some(words(message.payload()).collect());
            }
            Event::Failed { status, .. }
            | Event::ChannelFailed {
                cause: FirstCause { status, .. },
            } => {
                note_failure(&mut failed, status);
            }
            _ => {}
        })?;
        if let Some(why) = failed {
            return Err(why.into());
        }
        let now = Instant::now();
        if news || came > 0 {
            last_news = now;
        } else if now - last_news > patience {
            return Err(format!("nothing came for {} s", arguments.patience_s).into());
        }
        progress.tell(now, || {
            let Book {
                delivered, conflated, ..
            } = &board.book;
            format!("seen {delivered} quotes, {conflated} conflated")
        });
        match arguments.away_us {
            0 => thread::yield_now(),
            away_us => thread::sleep(Duration::from_micros(away_us)),
        }
    }
}

/// Looks at one cell; gives its quote where it is news. A torn quote is left for the next look.
fn look<W: doorbell::provider::Window>(
    window: &W,
    instrument: usize,
    book: &mut Book,
) -> Result<Option<Quote>, Failure> {
    let offset = instrument * CELL_BYTES;
    // The sequence alone says that there is nothing new.
    if u64::from_le(window.load_u64(offset)?) == book.seen(instrument) {
        return Ok(None);
    }
    let mut cell = [0; CELL_BYTES];
    window.copy_out(offset, &mut cell)?;
    Ok(book.note(instrument, Quote::read(&cell)))
}

impl Report for Subscribed {
    fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl Display for Subscribed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "saw {} of {} quotes, {} conflated, {} looks at a write under way",
            self.delivered, self.published, self.conflated, self.torn_looks
        )?;
        match &self.latency {
            Some(latency) => writeln!(f, "  latency {latency}"),
            None => writeln!(f, "  no latency: the publisher has another clock"),
        }
    }
}
