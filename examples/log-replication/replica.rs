//! One follower, as its leader sees it: what it has, what is on its way, and the memory batches go from.

use core::net::IpAddr;
use core::time::Duration;
use std::time::Instant;

use doorbell::provider::{ArenaConfig, Provider};
use doorbell::worker::{Arena, FirstCause};
use doorbell::{Connection, Event, Operation, PostFlags, RemoteAddress, RemoteWindow, Worker};

use super::around::{Failure, note_failure, words};
use super::log::{Log, place};

/// A batch on its way and one whose memory has not come home, each of two pieces.
const PIECES: u32 = 4;

/// One follower.
pub(crate) struct Replica<P: Provider> {
    pub(crate) at: Connection,
    pub(crate) address: IpAddr,
    /// Memory that batches are sent from: a copy of the bytes for each follower, since posted memory belongs
    /// to one request.
    arena: Arena<P>,
    /// Window of its log, once it announced it.
    window: Option<RemoteWindow>,
    /// End of the bytes on their way.
    sent: u64,
    /// When it last had all there was, or more than before.
    since: Instant,
    /// Up to here it has the log.
    pub(crate) acknowledged: u64,
    /// Why it was given up.
    pub(crate) lost: Option<String>,
}

impl<P: Provider> Replica<P> {
    pub(crate) fn new(at: Connection, workers: &mut [Worker<P>], batch_bytes: u32) -> Result<Self, Failure> {
        let worker = workers.get_mut(at.worker).ok_or("no such worker")?;
        Ok(Self {
            at,
            address: worker.channel(at.channel).ok_or("closed")?.peer().address(),
            arena: worker.arena(&ArenaConfig::new(PIECES, batch_bytes))?,
            window: None,
            sent: 0,
            since: Instant::now(),
            acknowledged: 0,
            lost: None,
        })
    }

    pub(crate) const fn is_here(&self) -> bool {
        self.lost.is_none()
    }

    /// Whether it said where its log is.
    pub(crate) const fn is_ready(&self) -> bool {
        self.window.is_some()
    }

    pub(crate) fn lose(&mut self, why: impl Into<String>) {
        self.lost.get_or_insert_with(|| why.into());
    }

    /// Gives it up when it has acknowledged nothing for too long of a log that ends at `end`.
    pub(crate) fn expire(&mut self, now: Instant, span: Duration, end: u64) {
        if self.acknowledged == end {
            self.since = now;
        } else if now.saturating_duration_since(self.since) > span {
            self.lose(format!("no acknowledgement within {} ms", span.as_millis()));
        }
    }

    pub(crate) fn note(&mut self, event: &Event<'_, P>, window_bytes: u64) {
        match event {
            Event::Received { message, .. } => {
                let payload = message.payload();
                if let Ok(window) = payload.try_into().map(RemoteWindow::from_bytes) {
                    if window.length_bytes() == window_bytes {
                        self.window = Some(window);
                    } else {
                        self.lose("its window is of another size");
                    }
                } else if let [place] = *words(payload).collect::<Vec<_>>() {
                    self.acknowledge(place);
                } else {
                    self.lose(format!("it sent {} bytes that mean nothing", payload.len()));
                }
            }
            Event::Failed { status, .. }
            | Event::ChannelFailed {
                cause: FirstCause { status, .. },
            } => {
                note_failure(&mut self.lost, *status);
            }
            Event::PeerClosed { .. } => self.lose("it left"),
            _ => {}
        }
    }

    /// It has the log up to `place`: one it was sent.
    fn acknowledge(&mut self, place: u64) {
        if place < self.acknowledged || place > self.sent {
            self.lose(format!(
                "it acknowledged byte {place}, and was sent up to {}",
                self.sent
            ));
        } else {
            self.acknowledged = place;
            self.since = Instant::now();
        }
    }

    /// Sends all whole entries that fit into a batch, unless one is on its way. Says how many entries.
    pub(crate) fn send(&mut self, worker: &mut Worker<P>, log: &Log) -> Result<usize, Failure> {
        let (true, true, Some(window)) = (self.is_here(), self.sent == self.acknowledged, &self.window)
        else {
            return Ok(0);
        };
        let end = log.whole_until(self.sent, u64::from(self.arena.slot_bytes()));
        let Some(channel) = worker.channel(self.at.channel) else {
            return Ok(0);
        };
        // Both pieces or none: WRITEs in order, and the word with the last.
        if end == self.sent || channel.room() < 2 || channel.credits() == 0 {
            return Ok(0);
        }
        let (first, second) = log.bytes(self.sent, end);
        let (at_first, at_second) = place(
            self.sent,
            first.len() + second.len(),
            window.length_bytes() as usize,
        );
        let pieces = [(first, at_first), (second, at_second)];
        let pieces: Vec<_> = pieces
            .into_iter()
            .filter(|(bytes, _)| !bytes.is_empty())
            .collect();
        let mut leases = Vec::new();
        for (bytes, _) in &pieces {
            let Some(mut lease) = self.arena.lease() else {
                // The batch before is acknowledged, and its memory not home yet: at the next turn.
                return Ok(0);
            };
            lease.fill(bytes)?;
            leases.push(lease);
        }
        // The low half of the place is enough: a window is smaller than that.
        let [a, b, c, d, ..] = end.to_le_bytes();
        let word = u32::from_le_bytes([a, b, c, d]);
        let mut batch = channel.batch();
        for (index, (lease, (bytes, at))) in leases.into_iter().zip(&pieces).enumerate() {
            let remote = RemoteAddress::within(window, at.start as u64, bytes.len() as u64);
            let remote = remote.ok_or("outside the window")?;
            let operation = if index + 1 == pieces.len() {
                Operation::WriteWithImmediate(remote, word)
            } else {
                Operation::Write(remote)
            };
            if let Err(error) = batch.push(operation, [lease], PostFlags::empty()) {
                let why = error.kind.to_string();
                drop(batch);
                self.lose(why);
                return Ok(0);
            }
        }
        match batch.ring() {
            Ok(_) => {
                let entries = log.entries_between(self.sent, end);
                self.sent = end;
                Ok(entries)
            }
            Err(error) => {
                self.lose(error.to_string());
                Ok(0)
            }
        }
    }
}
