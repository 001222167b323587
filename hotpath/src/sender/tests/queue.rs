//! A queue that refuses the requests a test names, with the memory it works on.

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use doorbell_core::in_flight::{InFlight, Request, storage_for};
use doorbell_core::provider::{
    CellsError, Completion, DetachedSlot, DomainId, LentCompletion, LoneCell, Operation, OutOfWindow,
    Placement, PostError, PostFlags, ProviderError, PushError, Refused, Rejected, Retired, RevokeError,
    SendBatch, SendQueue, Slot, UnpostedReason, Window, WindowRange,
};
use doorbell_core::sync::{AtomicU64, Ordering};
use doorbell_core::wire::RemoteWindow;
use doorbell_core::{Qpn, Rkey, Ticket, WcStatus, WorkId, WorkKind};

use super::PEERS_WORD;

/// A window of one word, which stands for the memory the peer writes to.
#[derive(Default)]
pub(super) struct Word(AtomicU64);

impl Word {
    /// Writes as a peer's announcement does.
    pub(super) fn announce(&self, count: u32) {
        let [a, b, c, d] = count.to_be_bytes();
        self.0.store(
            u64::from_ne_bytes([a, b, c, d, !a, !b, !c, !d]),
            Ordering::Relaxed,
        );
    }
}

impl Window for Word {
    fn domain(&self) -> DomainId {
        DomainId(0)
    }
    fn is_in_flight(&self) -> bool {
        false
    }
    fn deregister(&mut self) -> Result<(), RevokeError> {
        unreachable!()
    }
    fn bytes(&self) -> usize {
        8
    }
    fn placement(&self) -> Placement {
        Placement::unplaced(8, 8)
    }
    fn remote(&self) -> RemoteWindow {
        RemoteWindow::new(0, 8, Rkey(0))
    }
    fn copy_out(&self, _: usize, _: &mut [u8]) -> Result<(), OutOfWindow> {
        unreachable!()
    }
    fn copy_in(&self, _: usize, _: &[u8]) -> Result<(), OutOfWindow> {
        unreachable!()
    }
    fn load_u8(&self, _: usize) -> Result<u8, OutOfWindow> {
        unreachable!()
    }
    fn store_u64(&self, _: usize, _: u64) -> Result<(), OutOfWindow> {
        unreachable!()
    }
    fn compare_exchange_u64(&self, _: usize, _: u64, _: u64) -> Result<u64, OutOfWindow> {
        unreachable!()
    }
    fn load_u64(&self, offset: usize) -> Result<u64, OutOfWindow> {
        if offset == 0 {
            return Ok(self.0.load(Ordering::Relaxed));
        }
        Err(OutOfWindow {
            offset,
            bytes: 8,
            window_bytes: 8,
        })
    }
}

/// A slot without memory.
pub(crate) struct Bytes;

impl Slot for Bytes {
    fn domain(&self) -> DomainId {
        DomainId(0)
    }

    fn index(&self) -> u32 {
        0
    }
    fn capacity_bytes(&self) -> usize {
        0
    }
    fn len_bytes(&self) -> usize {
        7
    }
    fn set_len_bytes(&mut self, _: usize) {}
    fn payload(&self) -> &[u8] {
        &[]
    }
    fn buffer_mut(&mut self) -> &mut [u8] {
        &mut []
    }
    fn detach(self) -> DetachedSlot {
        unreachable!("nothing here goes to another thread")
    }
}

pub(super) struct Success(pub(super) WorkId);

impl Completion for Success {
    type Lent<'c> = &'c Self;

    fn lend(&self) -> &Self {
        self
    }
}

impl LentCompletion for &Success {
    type Kept = Success;

    fn work_id(&self) -> WorkId {
        self.0
    }
    fn status(&self) -> WcStatus {
        WcStatus::SUCCESS
    }
    fn qpn(&self) -> Qpn {
        Qpn::from_low_bits(0)
    }
    fn keep(self) -> Success {
        Success(self.0)
    }
}

type Table = InFlight<Bytes, Box<[Request<Bytes>]>>;

pub(super) struct Queue {
    pub(super) table: Table,
    /// Staged requests: their ids, and whether they are signaled.
    pub(super) staged: Vec<(WorkId, bool)>,
    /// The same of what the device has.
    pub(super) posted: Vec<(WorkId, bool)>,
    /// Inline bytes of the posted requests, and of the staged ones.
    pub(super) inline: Vec<Vec<u8>>,
    pub(super) staged_inline: Vec<(WorkId, Vec<u8>)>,
    /// How many of a doorbell the device takes.
    pub(super) takes: usize,
    /// The device refuses doorbells and does not say what it took: it has nothing of them.
    pub(super) is_unclear: bool,
    pub(super) cells: Vec<[u8; CELL_BYTES]>,
}

pub(super) const CELL_BYTES: usize = 16;

impl Queue {
    pub(super) fn new(depth: u32) -> Self {
        let requests = core::iter::repeat_with(Request::default).take(storage_for(depth).unwrap());
        Self {
            table: InFlight::new(requests.collect(), WorkKind::Send, 0, depth, 0).unwrap(),
            staged: Vec::new(),
            posted: Vec::new(),
            inline: Vec::new(),
            staged_inline: Vec::new(),
            takes: usize::MAX,
            is_unclear: false,
            cells: Vec::new(),
        }
    }
}

/// The cell of the next request.
pub(super) struct Cell<'q>(&'q mut Queue);

impl Queue {
    fn next_cell(&mut self) -> Result<Cell<'_>, PushError> {
        let place = self.table.vacancy().ok_or(PushError::Full)?.place();
        self.cells.get(place).ok_or(PushError::NoCells)?;
        Ok(Cell(self))
    }
}

impl Cell<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        let place = self.0.table.vacancy().unwrap().place();
        &mut self.0.cells[place]
    }
    fn push(&mut self, bytes: u32, flags: PostFlags) -> Ticket {
        let bytes = self.bytes()[..bytes as usize].into();
        let (ticket, id, _) = self.0.table.vacancy().unwrap().stage();
        self.0.staged.push((id, flags.contains(PostFlags::SIGNALED)));
        self.0.staged_inline.push((id, bytes));
        ticket
    }
}

impl LoneCell for Cell<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        Cell::bytes(self)
    }
    fn ticket(&self) -> Ticket {
        self.0.table.next()
    }
    fn post(mut self, _: Operation, bytes: u32, flags: PostFlags) -> Result<Ticket, UnpostedReason> {
        let ticket = self.push(bytes, flags);
        self.0.ring()?;
        Ok(ticket)
    }
}

impl SendQueue for Queue {
    type Slot = Bytes;
    type Window = Word;
    type Completion = Success;
    type Batch<'q> = &'q mut Queue;
    type Cell<'q> = Cell<'q>;

    fn furnish<I: IntoIterator<Item = Bytes>>(&mut self, _: I) -> Result<(), CellsError> {
        self.cells = vec![[0; CELL_BYTES]; self.table.places()];
        Ok(())
    }
    fn cell_bytes(&self) -> u32 {
        self.cells.first().map_or(0, |cell| cell.len() as u32)
    }
    fn cell(&mut self) -> Result<Cell<'_>, PushError> {
        self.stage();
        self.next_cell()
    }
    fn stage(&mut self) -> &mut Queue {
        self.table.unstage(|_, _| ());
        self.staged.clear();
        self.staged_inline.clear();
        self
    }
    fn retire<F: FnMut(Ticket, Bytes)>(
        &mut self,
        completion: &Success,
        each: F,
    ) -> Result<Retired, Rejected> {
        let range = self.table.retire(completion.0, each)?;
        Ok(Retired {
            first: range.first,
            last: range.last,
            status: WcStatus::SUCCESS,
            vendor_error: 0,
        })
    }
    fn retire_done<F: FnMut(Ticket, Bytes)>(&mut self, completion: &&Success, each: F) -> Option<Ticket> {
        self.table.retire_found(completion.0, each)
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

impl<'q> SendBatch<'q> for &'q mut Queue {
    type Slot = Bytes;
    type Window = Word;

    fn push_ranges<const N: usize>(
        &mut self,
        operation: Operation,
        ranges: [WindowRange<'_, Word>; N],
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        PushError::check_ranges(operation, &ranges, flags)?;
        let slots = ranges.map(|_| Bytes);
        self.push(operation, slots, flags)
            .map_err(|refused| refused.reason)
    }
    fn push<const N: usize>(
        &mut self,
        _: Operation,
        slots: [Bytes; N],
        flags: PostFlags,
    ) -> Result<Ticket, Refused<[Bytes; N]>> {
        let (ticket, id) = self.table.stage(slots).map_err(|item| Refused {
            reason: PushError::Full,
            item,
        })?;
        self.staged.push((id, flags.contains(PostFlags::SIGNALED)));
        Ok(ticket)
    }
    fn push_inline(
        &mut self,
        operation: Operation,
        bytes: &'q [u8],
        flags: PostFlags,
    ) -> Result<Ticket, PushError> {
        if let Operation::Write(to) = operation {
            assert_eq!(to, PEERS_WORD);
        }
        let (ticket, id) = self.table.stage([]).map_err(|_| PushError::Full)?;
        self.staged.push((id, flags.contains(PostFlags::SIGNALED)));
        self.staged_inline.push((id, bytes.into()));
        Ok(ticket)
    }
    fn cell_bytes(&self) -> u32 {
        SendQueue::cell_bytes(*self)
    }
    fn cell(&mut self) -> Result<&mut [u8], PushError> {
        self.next_cell()?;
        let place = self.table.vacancy().unwrap().place();
        Ok(&mut self.cells[place])
    }
    fn push_cell(&mut self, _: Operation, bytes: u32, flags: PostFlags) -> Result<Ticket, PushError> {
        Ok(self.next_cell()?.push(bytes, flags))
    }
    fn next(&self) -> Ticket {
        self.table.end()
    }
    fn staged(&self) -> u32 {
        self.table.staged()
    }
    fn signal_last(&mut self) {
        self.staged.last_mut().unwrap().1 = true;
    }
    fn ring_reporting<T, F>(self, reported: T, unposted: F) -> Result<u32, PostError>
    where
        T: FnOnce(&mut PostError),
        F: FnMut(Ticket, Bytes),
    {
        let taken = self.staged.len().min(self.takes);
        let refused = self.staged.len() - taken;
        let count = u32::try_from(taken).unwrap();
        self.table.post(count);
        if self.is_unclear {
            self.staged.clear();
            self.staged_inline.clear();
            let mut error = PostError {
                posted: count,
                unposted: 0,
                cause: ProviderError {
                    call: "post",
                    errno: 5,
                },
            };
            reported(&mut error);
            return Err(error);
        }
        self.posted.extend(self.staged.drain(..).take(taken));
        for (id, bytes) in core::mem::take(&mut self.staged_inline) {
            if self.posted.iter().any(|(posted, _)| *posted == id) {
                self.inline.push(bytes);
            }
        }
        if refused == 0 {
            return Ok(count);
        }
        let mut error = PostError {
            posted: count,
            unposted: u32::try_from(refused).unwrap(),
            cause: ProviderError {
                call: "post",
                errno: 12,
            },
        };
        reported(&mut error);
        self.table.unstage(unposted);
        Err(error)
    }
}
