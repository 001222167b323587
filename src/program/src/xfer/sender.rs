//! The sending side: it reads chunks into a region, offers each as a transfer, and sends the checksum at the end.

use doorbell::link::{TransferEnd, TransferEvent, TransferId, TransferOptions, TransferRefusal};
use doorbell::memory::Region;
use doorbell::provider::{Network, Provider};

use super::Fault;
use super::line::Line;
use super::plan::Plan;
use super::source::{Part, Read, Source};
use super::wire::{Message, Sum, VERSION};

pub(super) struct Sender<P: Provider> {
    pub(super) plan: Plan,
    region: Option<Region<P>>,
    source: Source,
    /// The next chunk to be read.
    next: u64,
    free: Vec<usize>,
    /// Chunks in memory that are not offered yet, in order.
    read: std::collections::VecDeque<(u64, usize)>,
    open: Vec<(TransferId, u64, usize)>,
    chunks_done: u64,
    bytes_done: u64,
    pub(super) repeated_bytes: u64,
    has_begun: bool,
    is_ready: bool,
    pub(super) sum: Option<Sum>,
    has_ended: bool,
    /// The receiver's sum.
    pub(super) answer: Option<Sum>,
}

impl<P: Provider> Sender<P> {
    pub(super) fn new(plan: Plan, region: Option<Region<P>>, source: Source) -> Self {
        Self {
            plan,
            region,
            source,
            next: 0,
            free: (0..plan.slots).rev().collect(),
            read: std::collections::VecDeque::new(),
            open: Vec::new(),
            chunks_done: 0,
            bytes_done: 0,
            repeated_bytes: 0,
            has_begun: false,
            is_ready: false,
            sum: None,
            has_ended: false,
            answer: None,
        }
    }

    /// The number of bytes that the receiver has.
    pub(super) fn landed_bytes<N: Network>(&self, line: &Line<P, N>) -> u64 {
        let open = self.open.iter().filter_map(|(id, ..)| {
            let counts = line.links.transfer_counts(line.link?, *id)?;
            Some(counts.landed_bytes)
        });
        open.fold(self.bytes_done, u64::saturating_add)
    }

    /// Advances as far as possible. With `wait`, waits for the reading thread.
    pub(super) fn turn<N: Network>(&mut self, line: &mut Line<P, N>, wait: bool) -> Result<bool, Fault> {
        self.order();
        let mut has_moved = false;
        while let Some(read) = self.source.take(wait && self.source.is_busy()) {
            has_moved = true;
            match read {
                Read::Chunk { chunk, slot } => self.read.push_back((chunk, slot)),
                Read::All(sum) => self.sum = Some(sum),
                Read::Failed(why) => return Err(Fault::both(why)),
            }
        }
        if line.open().is_none() {
            return Ok(has_moved);
        }
        if !self.has_begun {
            self.has_begun = true;
            let Plan {
                bytes,
                chunk_bytes,
                has_checksum,
                ..
            } = self.plan;
            line.queue(&Message::Begin {
                bytes,
                chunk_bytes,
                has_checksum,
            });
        }
        while self.is_ready && self.offer(line)? {
            has_moved = true;
        }
        if let Some(sum) = self.sum.filter(|_| !self.has_ended && self.is_all_done()) {
            self.has_ended = true;
            let bytes = self.plan.bytes;
            line.queue(&Message::End { bytes, sum });
        }
        Ok(has_moved)
    }

    /// Whether the receiver is ready, and has every chunk.
    const fn is_all_done(&self) -> bool {
        self.is_ready && self.chunks_done == self.plan.chunks()
    }

    fn order(&mut self) {
        while self.next < self.plan.chunks() {
            let Some(slot) = self.free.pop() else {
                return;
            };
            let chunk = self.next;
            self.source.order(Part {
                chunk,
                slot,
                offset: self.plan.slot(slot),
                bytes: self.plan.length(chunk),
            });
            self.next = self.next.saturating_add(1);
        }
        self.source.ordered_all();
    }

    /// Offers the next chunk. Returns whether one was offered.
    fn offer<N: Network>(&mut self, line: &mut Line<P, N>) -> Result<bool, Fault> {
        let (Some((chunk, slot)), Some(link)) = (self.read.front().copied(), line.open()) else {
            return Ok(false);
        };
        let Some(region) = &self.region else {
            return Ok(false);
        };
        let priority = priority(chunk);
        // The priorities begin again, and no later chunk may overtake an earlier one.
        if priority == u8::MAX && !self.open.is_empty() {
            return Ok(false);
        }
        let mut options = TransferOptions::default();
        options.tag = chunk;
        options.priority = priority;
        let part = (region, self.plan.slot(slot), self.plan.length(chunk));
        match line.links.offer(&line.node, link, part, &options) {
            Ok(id) => self.open.push((id, chunk, slot)),
            Err(TransferRefusal::Full { .. } | TransferRefusal::Closing | TransferRefusal::Over(_)) => {
                return Ok(false);
            }
            Err(refusal) => return Err(Fault::both(format!("chunk {chunk}: {refusal}"))),
        }
        self.read.pop_front();
        Ok(true)
    }

    pub(super) fn handle_message(&mut self, message: Message) -> Result<(), Fault> {
        match message {
            Message::Ready if self.has_begun && !self.is_ready => self.is_ready = true,
            // Its arrival is progress.
            Message::Wrote if self.is_ready => {}
            Message::Answer { bytes, sum } if self.has_ended && self.answer.is_none() => {
                self.answer = Some(sum);
                if self.sum != Some(sum) || bytes != self.plan.bytes {
                    return Err(Fault::here(Fault::different(self.sum, Some(sum))));
                }
            }
            Message::Failed { why } => return Err(Fault::here(format!("the receiver gave up: {why}"))),
            _ => {
                return Err(Fault::both(format!(
                    "the receiver broke version {VERSION} of the protocol"
                )));
            }
        }
        Ok(())
    }

    pub(super) fn handle_transfer(&mut self, id: TransferId, event: TransferEvent) -> Result<(), Fault> {
        let TransferEvent::Ended { end, counts, error } = event else {
            return Ok(());
        };
        let Some(at) = self.open.iter().position(|(open, ..)| *open == id) else {
            return Ok(());
        };
        let (_, chunk, slot) = self.open.swap_remove(at);
        self.repeated_bytes = self.repeated_bytes.saturating_add(counts.repeated_bytes);
        match end {
            TransferEnd::Done => {
                self.free.push(slot);
                self.chunks_done = self.chunks_done.saturating_add(1);
                self.bytes_done = self.bytes_done.saturating_add(self.plan.length(chunk));
                Ok(())
            }
            // The end of the link follows, with its reason.
            TransferEnd::Over(_) => Ok(()),
            end => Err(Fault::of_chunk(chunk, end, error)),
        }
    }

    /// The chunks under way, in order, each with its priority.
    #[cfg(test)]
    pub(super) fn open(&self) -> Vec<(u64, u8)> {
        let open = self.open.iter().map(|(_, chunk, _)| (*chunk, priority(*chunk)));
        let mut open: Vec<_> = open.collect();
        open.sort_unstable();
        open
    }

    /// Cancels all transfers.
    pub(super) fn cancel<N: Network>(&mut self, line: &mut Line<P, N>) {
        for (id, ..) in self.open.drain(..) {
            line.cancel(id);
        }
    }
}

/// Earlier chunks have a higher priority, so that the receiver can write one while the next is transferred. The order
/// repeats every 256 chunks.
fn priority(chunk: u64) -> u8 {
    u8::MAX.wrapping_sub(chunk.to_le_bytes()[0])
}
