//! The receiving side: it takes each chunk into a slot of a region, writes the chunks in order, and compares the checksum.

use std::collections::BTreeMap;
use std::path::PathBuf;

use doorbell::link::{
    TransferEnd, TransferEvent, TransferId, TransferOptions, TransferRefusal, TransferRole,
};
use doorbell::memory::Region;
use doorbell::provider::{Network, Provider};

use super::Fault;
use super::line::Line;
use super::plan::Plan;
use super::sink::{OutputFile, Sink, WriteOutcome};
use super::wire::{Message, Sum};

pub(super) struct Receiver<P: Provider> {
    pub(super) path: PathBuf,
    /// Set after the sender's Begin message.
    pub(super) plan: Option<Plan>,
    /// Made before the link is connected: a live link must be polled, and the pages of much memory take longer than its peer waits.
    region: Option<Region<P>>,
    sink: Option<Sink>,
    free: Vec<usize>,
    /// The next chunk to join.
    next: u64,
    /// Chunks that are offered. Offers are sent over several rails, and may arrive in any order.
    offered: BTreeMap<u64, TransferId>,
    open: Vec<(TransferId, u64, usize)>,
    /// Chunks that are not written yet, since an earlier one is missing.
    landed: BTreeMap<u64, usize>,
    /// The next chunk to write.
    next_written: u64,
    bytes_landed: u64,
    bytes_written: u64,
    pub(super) duplicates: u64,
    end: Option<Sum>,
    is_ending: bool,
    /// The sum of all received bytes.
    pub(super) sum: Option<Sum>,
}

impl<P: Provider> Receiver<P> {
    pub(super) fn new(path: PathBuf, region: Option<Region<P>>) -> Self {
        Self {
            path,
            plan: None,
            region,
            sink: None,
            free: Vec::new(),
            next: 0,
            offered: BTreeMap::new(),
            open: Vec::new(),
            landed: BTreeMap::new(),
            next_written: 0,
            bytes_landed: 0,
            bytes_written: 0,
            duplicates: 0,
            end: None,
            is_ending: false,
            sum: None,
        }
    }

    /// The sum that the sender reported.
    pub(super) const fn sum_by_peer(&self) -> Option<Sum> {
        self.end
    }

    /// The number of received bytes.
    pub(super) fn landed_bytes<N: Network>(&self, line: &Line<P, N>) -> u64 {
        let open = self.open.iter().filter_map(|(id, ..)| {
            let counts = line.links.transfer_counts(line.link?, *id)?;
            Some(counts.landed_bytes)
        });
        open.fold(self.bytes_landed, u64::saturating_add)
    }

    /// Advances as far as possible. With `wait`, waits for the writing thread.
    pub(super) fn turn<N: Network>(&mut self, line: &mut Line<P, N>, wait: bool) -> Result<bool, Fault> {
        let Some(plan) = self.plan else {
            return Ok(false);
        };
        let mut has_moved = false;
        while self.join(line, plan)? {
            has_moved = true;
        }
        let Some(sink) = &mut self.sink else {
            return Ok(has_moved);
        };
        while let Some(slot) = self.landed.remove(&self.next_written) {
            sink.write(slot, plan.slot(slot), plan.length(self.next_written));
            self.next_written = self.next_written.saturating_add(1);
        }
        let is_all_ordered = self.next_written == plan.chunks() && !self.is_ending;
        if let Some(sum) = self.end.filter(|_| is_all_ordered) {
            self.is_ending = true;
            sink.end(sum);
        }
        while let Some(written) = sink.take(wait && sink.is_busy()) {
            has_moved = true;
            match written {
                WriteOutcome::Part => line.queue(&Message::Wrote),
                WriteOutcome::Slot { slot, bytes } => {
                    self.free.push(slot);
                    self.bytes_written = self.bytes_written.saturating_add(bytes);
                }
                WriteOutcome::All(sum) => {
                    self.sum = Some(sum);
                    let bytes = self.bytes_written;
                    line.queue(&Message::Answer { bytes, sum });
                    if self.end != Some(sum) {
                        return Err(Fault::here(Fault::different(Some(sum), self.end)));
                    }
                }
                WriteOutcome::Failed(why) => return Err(Fault::both(why)),
            }
        }
        Ok(has_moved)
    }

    /// Joins the transfer of the next chunk, if it is offered and a slot is free.
    fn join<N: Network>(&mut self, line: &mut Line<P, N>, plan: Plan) -> Result<bool, Fault> {
        let chunk = self.next;
        // In order: a later chunk would occupy a slot while it waits for this one.
        let (Some(id), Some(link)) = (self.offered.get(&chunk).copied(), line.open()) else {
            return Ok(false);
        };
        let (Some(region), Some(slot)) = (&self.region, self.free.last().copied()) else {
            return Ok(false);
        };
        let options = TransferOptions::default();
        let joined = line
            .links
            .join(&line.node, (link, id), (region, plan.slot(slot)), &options);
        match joined {
            Ok(()) => {}
            Err(TransferRefusal::Closing | TransferRefusal::Over(_)) => return Ok(false),
            Err(refusal) => return Err(Fault::both(format!("chunk {chunk}: {refusal}"))),
        }
        self.offered.remove(&chunk);
        self.next = self.next.saturating_add(1);
        self.free.pop();
        self.open.push((id, chunk, slot));
        Ok(true)
    }

    pub(super) fn handle_message<N: Network>(
        &mut self,
        line: &mut Line<P, N>,
        message: Message,
    ) -> Result<(), Fault> {
        match message {
            Message::Begin {
                bytes,
                chunk_bytes,
                has_checksum,
            } if self.plan.is_none() => {
                let memory_bytes = self.region.as_ref().map_or(0, Region::bytes);
                let memory_bytes = u64::try_from(memory_bytes).unwrap_or(u64::MAX);
                let mut plan = Plan::of_peer(bytes, chunk_bytes, memory_bytes).map_err(Fault::both)?;
                plan.has_checksum = has_checksum;
                let place = OutputFile::create(&self.path).map_err(Fault::both)?;
                let sink = Sink::start(place, self.region.clone(), has_checksum);
                let sink = sink.map_err(|error| Fault::both(format!("starting a thread: {error}")))?;
                self.sink = Some(sink);
                self.free = (0..plan.slots).rev().collect();
                self.plan = Some(plan);
                line.queue(&Message::Ready);
            }
            Message::End { bytes, sum } if self.end.is_none() => {
                let plan = self.plan.filter(|plan| plan.bytes == bytes);
                if plan.is_none_or(|plan| self.next != plan.chunks()) {
                    return Err(broken("the end came before all chunks"));
                }
                self.end = Some(sum);
            }
            Message::Failed { why } => return Err(Fault::here(format!("the sender gave up: {why}"))),
            _ => return Err(broken("a message came out of turn")),
        }
        Ok(())
    }

    pub(super) fn handle_transfer(&mut self, id: TransferId, event: TransferEvent) -> Result<(), Fault> {
        match event {
            TransferEvent::Offered { role, bytes, tag } => {
                let plan = self
                    .plan
                    .filter(|plan| self.end.is_none() && tag < plan.chunks() && bytes == plan.length(tag));
                let is_new = tag >= self.next && !self.offered.contains_key(&tag);
                if plan.is_none() || !is_new || role != TransferRole::Taker {
                    return Err(broken("a transfer is none of the next chunks"));
                }
                self.offered.insert(tag, id);
            }
            TransferEvent::Ended { end, counts, error } => {
                self.offered.retain(|_, offered| *offered != id);
                let Some(at) = self.open.iter().position(|(open, ..)| *open == id) else {
                    return Ok(());
                };
                let (_, chunk, slot) = self.open.swap_remove(at);
                self.duplicates = self.duplicates.saturating_add(counts.duplicates);
                match end {
                    TransferEnd::Done => {
                        self.landed.insert(chunk, slot);
                        self.bytes_landed = self.bytes_landed.saturating_add(counts.landed_bytes);
                    }
                    // The end of the link follows, with its reason.
                    TransferEnd::Over(_) => {}
                    end => return Err(Fault::of_chunk(chunk, end, error)),
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Cancels all transfers.
    pub(super) fn cancel<N: Network>(&mut self, line: &mut Line<P, N>) {
        for (id, ..) in self.open.drain(..) {
            line.cancel(id);
        }
        for id in core::mem::take(&mut self.offered).into_values() {
            line.cancel(id);
        }
    }

    /// Gives up the file, unless it gets its name already. Returns whether it did so. The file's thread writes no queued slot any more, and
    /// removes an incomplete file. Nothing waits for it here: the link is polled, so that the peer gets the reason.
    pub(super) fn let_go(&mut self) -> bool {
        self.sink.as_mut().is_none_or(Sink::give_up)
    }

    /// Whether the file gets its name.
    pub(super) fn is_naming(&self) -> bool {
        self.sink.as_ref().is_some_and(Sink::is_naming)
    }

    /// Has another thread give the file its name, which reports its end to the result.
    #[cfg(test)]
    pub(super) fn name_by(&mut self, end: Option<Sum>) -> std::sync::mpsc::Sender<WriteOutcome> {
        let (sink, to) = Sink::naming();
        (self.sink, self.end, self.is_ending) = (Some(sink), end, true);
        to
    }
}

fn broken(how: &str) -> Fault {
    Fault::both(format!("the sender broke the protocol: {how}"))
}
