//! The two halves of a queue pair that is connected to itself.

use core::convert::Infallible;

use doorbell_core::in_flight::{InFlight, Request};
use doorbell_core::provider::{
    Arrival, ArrivalKind, CellsError, Operation, PostError, PostFlags, PushError, ReceiveBatch, ReceiveQueue,
    Refused, Rejected, Retired, SendBatch, SendQueue, WindowRange,
};
use doorbell_core::{Ticket, WcStatus, WorkId, WorkKind};

use crate::device::{DEVICE, Done};
use crate::memory::{Bytes, Word};

/// Requests in flight at most, each way: a power of two, which the table's storage must be.
pub(crate) const DEPTH: u32 = 16;

type Table = InFlight<Bytes, [Request<Bytes>; DEPTH as usize]>;

fn table(kind: WorkKind) -> Option<Table> {
    let requests = core::array::from_fn(|_| Request::default());
    InFlight::new(requests, kind, 0, DEPTH, 0).ok()
}

/// Requests that are staged and not posted.
#[derive(Clone, Copy, Debug, Default)]
struct Staged {
    messages: u32,
    signaled: Option<WorkId>,
    last: Option<WorkId>,
    written: Option<u64>,
}

/// The half that sends.
#[derive(Debug)]
pub(crate) struct Sends {
    table: Table,
    staged: Staged,
}

impl Sends {
    pub(crate) fn new() -> Option<Self> {
        Some(Self {
            table: table(WorkKind::Send)?,
            staged: Staged::default(),
        })
    }

    fn note(&mut self, operation: Operation, id: WorkId, flags: PostFlags) {
        let is_message = u32::from(operation.takes_receive());
        self.staged.messages = self.staged.messages.wrapping_add(is_message);
        self.staged.last = Some(id);
        if flags.contains(PostFlags::SIGNALED) {
            self.staged.signaled = Some(id);
        }
    }
}

impl SendQueue for Sends {
    type Slot = Bytes;
    type Window = Word;
    type Completion = Done;
    type Batch<'q> = &'q mut Self;
    type Cell<'q> = Infallible;

    fn furnish<I: IntoIterator<Item = Bytes>>(&mut self, _: I) -> Result<(), CellsError> {
        Err(CellsError::OtherMemory)
    }
    fn cell_bytes(&self) -> u32 {
        0
    }
    fn cell(&mut self) -> Result<Infallible, PushError> {
        Err(PushError::NoCells)
    }
    fn stage(&mut self) -> &mut Self {
        self.table.unstage(|_, _| ());
        self.staged = Staged::default();
        self
    }
    fn retire<F: FnMut(Ticket, Bytes)>(&mut self, done: &Done, each: F) -> Result<Retired, Rejected> {
        let range = self.table.retire(done.0, each)?;
        Ok(Retired {
            first: range.first,
            last: range.last,
            status: WcStatus::SUCCESS,
            vendor_error: 0,
        })
    }
    fn retire_done<F: FnMut(Ticket, Bytes)>(&mut self, done: &&Done, each: F) -> Option<Ticket> {
        self.table.retire_found(done.0, each)
    }
    fn in_flight(&self) -> u32 {
        self.table.in_flight()
    }
    fn room(&self) -> u32 {
        self.table.room()
    }
    fn rejected(&self) -> u64 {
        0
    }
}

impl<'q> SendBatch<'q> for &'q mut Sends {
    type Slot = Bytes;
    type Window = Word;

    fn push_ranges<const N: usize>(
        &mut self,
        operation: Operation,
        ranges: [WindowRange<'_, Word>; N],
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        PushError::check_ranges(operation, &ranges, flags)?;
        let (ticket, id) = self.table.stage([]).map_err(|_| PushError::Full)?;
        self.note(operation, id, flags);
        Ok(ticket)
    }
    fn push<const N: usize>(
        &mut self,
        operation: Operation,
        slots: [Bytes; N],
        flags: PostFlags,
    ) -> Result<Ticket, Refused<[Bytes; N]>> {
        let (ticket, id) = self.table.stage(slots).map_err(|item| Refused {
            reason: PushError::Full,
            item,
        })?;
        self.note(operation, id, flags);
        Ok(ticket)
    }
    fn push_inline(
        &mut self,
        operation: Operation,
        bytes: &'q [u8],
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        let (ticket, id) = self.table.stage([]).map_err(|_| PushError::Full)?;
        if matches!(operation, Operation::Write(_)) {
            self.staged.written = bytes.try_into().ok().map(u64::from_ne_bytes);
        }
        self.note(operation, id, flags);
        Ok(ticket)
    }
    fn cell_bytes(&self) -> u32 {
        0
    }
    fn cell(&mut self) -> Result<&mut [u8], PushError> {
        Err(PushError::NoCells)
    }
    fn push_cell(&mut self, _: Operation, _: u32, _: PostFlags) -> Result<Ticket, PushError> {
        Err(PushError::NoCells)
    }
    fn next(&self) -> Ticket {
        self.table.end()
    }
    fn staged(&self) -> u32 {
        self.table.staged()
    }
    fn signal_last(&mut self) {
        self.staged.signaled = self.staged.last;
    }
    fn ring_reporting<T, F>(self, _: T, _: F) -> Result<u32, PostError>
    where
        T: FnOnce(&mut PostError),
        F: FnMut(Ticket, Bytes),
    {
        let count = self.table.staged();
        self.table.post(count);
        let Staged {
            messages,
            signaled,
            written,
            ..
        } = self.staged;
        DEVICE.send(messages, signaled, written);
        Ok(count)
    }
}

/// The half that receives.
#[derive(Debug)]
pub(crate) struct Receives {
    table: Table,
}

impl Receives {
    pub(crate) fn new() -> Option<Self> {
        Some(Self {
            table: table(WorkKind::Receive)?,
        })
    }
}

impl ReceiveQueue for Receives {
    type Slot = Bytes;
    type Completion = Done;
    type Message = Bytes;
    type Batch<'q> = &'q mut Self;

    fn stage(&mut self) -> &mut Self {
        self
    }
    fn retire<F: FnMut(Ticket, Bytes)>(&mut self, done: &Done, each: F) -> Result<Arrival, Rejected> {
        let range = self.table.retire(done.0, each)?;
        Ok(Arrival {
            ticket: range.last,
            status: WcStatus::SUCCESS,
            kind: ArrivalKind::Send,
            payload_bytes: 8,
            immediate: None,
            vendor_error: 0,
        })
    }
    fn retire_message(&mut self, done: &&Done) -> Option<(Bytes, Option<u32>)> {
        Some((self.table.retire_oldest(done.0)?, None))
    }
    fn missing(&self) -> u32 {
        self.table.missing()
    }
    fn in_flight(&self) -> u32 {
        self.table.posted()
    }
    fn room(&self) -> u32 {
        self.table.room()
    }
    fn rejected(&self) -> u64 {
        0
    }
}

impl ReceiveBatch for &mut Receives {
    type Slot = Bytes;

    fn push<const N: usize>(&mut self, slots: [Bytes; N]) -> Result<Ticket, Refused<[Bytes; N]>> {
        let (ticket, id) = self.table.stage(slots).map_err(|item| Refused {
            reason: PushError::Full,
            item,
        })?;
        // The device has it from here on, which nothing here distinguishes from the call that follows.
        DEVICE.receive(id);
        Ok(ticket)
    }
    fn staged(&self) -> u32 {
        self.table.staged()
    }
    fn leave(self) {}
    fn ring(self) -> Result<u32, PostError> {
        let count = self.table.staged();
        self.table.post(count);
        Ok(count)
    }
}
