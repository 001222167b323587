//! Tests of signaling, credits and announcements, over a queue that refuses the requests a test names.

use std::boxed::Box;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

use doorbell_core::in_flight::{InFlight, Request, storage_for};
use doorbell_core::provider::{
    CellsError, Completion, DetachedSlot, DomainId, LoneCell, Operation, OutOfWindow, Placement, PostError,
    PostFlags, ProviderError, PushError, Refused, Rejected, RemoteAddress, Retired, SendBatch, SendQueue,
    Slot, UnpostedReason, Window,
};
use doorbell_core::sync::{AtomicU64, Ordering};
use doorbell_core::wire::RemoteWindow;
use doorbell_core::{Qpn, Rkey, Ticket, WcStatus, WorkId, WorkKind};

use super::{Flow, RequestLimits, Sender, SenderConfig};
use crate::{Announcer, Credits, Granting, Grants, Statistics, WindowWord, marks_for};

/// A window of one word, which stands for the memory the peer writes to.
#[derive(Default)]
struct Word(AtomicU64);

impl Word {
    /// Writes as a peer's announcement does.
    fn announce(&self, count: u32) {
        let [a, b, c, d] = count.to_be_bytes();
        self.0.store(
            u64::from_ne_bytes([a, b, c, d, !a, !b, !c, !d]),
            Ordering::Relaxed,
        );
    }
}

impl Window for Word {
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
        0
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

struct Success(WorkId);

impl Completion for Success {
    fn work_id(&self) -> WorkId {
        self.0
    }
    fn status(&self) -> WcStatus {
        WcStatus::SUCCESS
    }
    fn qpn(&self) -> Qpn {
        Qpn::from_low_bits(0)
    }
}

type Table = InFlight<Bytes, Box<[Request<Bytes>]>>;

struct Queue {
    table: Table,
    /// Staged requests: their ids, and whether they are signaled.
    staged: Vec<(WorkId, bool)>,
    /// The same of what the device has.
    posted: Vec<(WorkId, bool)>,
    /// Inline bytes of the posted requests, and of the staged ones.
    inline: Vec<Vec<u8>>,
    staged_inline: Vec<(WorkId, Vec<u8>)>,
    /// How many of a doorbell the device takes.
    takes: usize,
    cells: Vec<[u8; CELL_BYTES]>,
}

const CELL_BYTES: usize = 16;

impl Queue {
    fn new(depth: u32) -> Self {
        let requests = core::iter::repeat_with(Request::default).take(storage_for(depth).unwrap());
        Self {
            table: InFlight::new(requests.collect(), WorkKind::Send, 0, depth, 0).unwrap(),
            staged: Vec::new(),
            posted: Vec::new(),
            inline: Vec::new(),
            staged_inline: Vec::new(),
            takes: usize::MAX,
            cells: Vec::new(),
        }
    }
}

/// The cell of the next request.
struct Cell<'q>(&'q mut Queue);

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
    fn retire<F: FnMut(Ticket, Bytes)>(&mut self, completion: Success, each: F) -> Result<Retired, Rejected> {
        let range = self.table.retire(completion.0, each)?;
        Ok(Retired {
            first: range.first,
            last: range.last,
            status: WcStatus::SUCCESS,
            vendor_error: 0,
        })
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
    fn staged(&self) -> u32 {
        self.table.staged()
    }
    fn signal_last(&mut self) {
        self.staged.last_mut().unwrap().1 = true;
    }
    fn ring_telling<T, F>(self, told: T, unposted: F) -> Result<u32, PostError>
    where
        T: FnOnce(&mut PostError),
        F: FnMut(Ticket, Bytes),
    {
        let taken = self.staged.len().min(self.takes);
        let refused = self.staged.len() - taken;
        let count = u32::try_from(taken).unwrap();
        self.table.post(count);
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
        told(&mut error);
        self.table.unstage(unposted);
        Err(error)
    }
}

type Tested = Sender<Queue, Box<[u8]>, Arc<Word>, Arc<Grants>, Arc<Statistics>>;
type TestedBatch<'q> = super::Batch<'q, Queue, Arc<Word>>;

const PEERS_WORD: RemoteAddress = RemoteAddress::new(0x1000, Rkey(7));

/// Count at the start.
const START: u32 = u32::MAX - 3;

/// A sender whose caller may have so many requests in flight, with the peer's and our depth of
/// receives, the word the peer announces in, and the half that receives.
fn sender_with(
    depth: u32,
    unsignaled_max: u32,
    [theirs, ours]: [u32; 2],
) -> (Tested, Arc<Word>, Granting<Arc<Grants>>) {
    let depth = depth + 1;
    let word = Arc::new(Word::default());
    word.announce(START);
    let grants = Arc::new(Grants::new(START, ours));
    let flow = Flow {
        credits: Credits::new(START, theirs),
        word: WindowWord::new(word.clone(), 0).unwrap(),
        announcer: Announcer::new(grants.clone(), ours, PEERS_WORD),
    };
    let words = vec![0; marks_for(depth)].into();
    let sender = Sender::new(
        Queue::new(depth),
        words,
        flow,
        Arc::default(),
        &SenderConfig {
            unsignaled_max,
            limits: RequestLimits::of_memory(DomainId(0)),
        },
    )
    .unwrap();
    (sender, word, Granting::new(grants, ours))
}

fn sender(depth: u32, unsignaled_max: u32) -> Tested {
    sender_with(depth, unsignaled_max, [1 << 16, 0]).0
}

/// Rings one doorbell for this many requests.
fn ring(sender: &mut Tested, count: u32) -> Result<u32, PostError> {
    let mut batch = sender.stage();
    for _ in 0..count {
        batch
            .push(Operation::Send, [Bytes], PostFlags::empty())
            .map_err(|refused| refused.reason)
            .unwrap();
    }
    batch.ring()
}

fn signaled(sender: &Tested) -> Vec<bool> {
    sender
        .queue
        .posted
        .iter()
        .map(|(_, signaled)| *signaled)
        .collect()
}

/// Completes the first signaled request that has not completed.
fn complete(sender: &mut Tested) {
    let position = sender.queue.posted.iter().position(|(_, signaled)| *signaled);
    let (id, _) = sender
        .queue
        .posted
        .drain(..=position.unwrap())
        .next_back()
        .unwrap();
    sender.retire(Success(id), |_, _| (), |_| ()).unwrap();
}

#[test]
fn the_last_of_a_doorbell_is_signaled_by_policy() {
    let mut each = sender(16, 0);
    ring(&mut each, 3).unwrap();
    ring(&mut each, 1).unwrap();
    assert_eq!(signaled(&each), [false, false, true, true]);
    let mut some = sender(16, 3);
    for _ in 0..3 {
        ring(&mut some, 1).unwrap();
    }
    assert_eq!(signaled(&some), [false, false, true]);
    assert!(some.awaits_completion());
    complete(&mut some);
    assert!(!some.awaits_completion());
}

#[test]
fn the_last_of_a_doorbell_is_signaled_where_it_is_asked_for() {
    let mut sender = sender(16, 1000);
    sender.stage().signal_last();
    for count in [2, 1] {
        let mut batch = sender.stage();
        for _ in 0..count {
            let pushed = batch.push(Operation::Send, [Bytes], PostFlags::empty());
            assert!(pushed.is_ok());
        }
        batch.signal_last();
        batch.ring().unwrap();
        // It counts from there.
        ring(&mut sender, 1).unwrap();
    }
    assert_eq!(signaled(&sender), [false, true, false, true, false]);
}

#[test]
fn a_full_queue_always_has_a_completion_coming() {
    for depth in [1, 2, 3, 8, 16] {
        let mut sender = sender(depth, u32::MAX);
        for _ in 0..100 {
            while sender.room() > 0 {
                ring(&mut sender, 1).unwrap();
            }
            assert!(sender.awaits_completion(), "depth {depth}");
            complete(&mut sender);
        }
    }
}

#[test]
fn what_was_signaled_before_a_refusal_is_still_awaited() {
    let mut sender = sender(16, 0);
    ring(&mut sender, 1).unwrap();
    sender.queue.takes = 0;
    ring(&mut sender, 2).unwrap_err();
    assert!(sender.awaits_completion());
    complete(&mut sender);
    assert!(!sender.awaits_completion());
}

#[test]
fn what_was_posted_of_a_refused_doorbell_is_known_done_by_the_next() {
    let mut sender = sender(16, u32::MAX);
    sender.queue.takes = 2;
    ring(&mut sender, 4).unwrap_err();
    assert_eq!(signaled(&sender), [false, false]);
    sender.queue.takes = usize::MAX;
    // A doorbell for nothing settles nothing.
    assert_eq!(ring(&mut sender, 0), Ok(0));
    ring(&mut sender, 1).unwrap();
    assert_eq!(signaled(&sender), [false, false, true]);
    ring(&mut sender, 1).unwrap();
    assert_eq!(signaled(&sender), [false, false, true, false]);
    complete(&mut sender);
    assert_eq!(sender.in_flight(), 1);
}

#[test]
fn one_request_that_is_all_a_refused_doorbell_posted_is_told_by_an_announcement() {
    let mut sender = sender(16, u32::MAX);
    sender.queue.takes = 1;
    ring(&mut sender, 2).unwrap_err();
    assert!(sender.has_untold() && sender.awaits_completion());
    sender.queue.takes = usize::MAX;
    assert_eq!(sender.announce(), Ok(true));
    assert_eq!(signaled(&sender), [false, true]);
    complete(&mut sender);
    assert!(!sender.has_untold() && !sender.awaits_completion());
    assert_eq!(sender.in_flight(), 0);
}

#[test]
fn what_was_posted_of_a_refused_doorbell_is_told_by_an_announcement() {
    for unsignaled_max in [0, 3, u32::MAX] {
        let (mut sender, _, _) = sender_with(16, unsignaled_max, [64, 4]);
        ring(&mut sender, 1).unwrap();
        assert!(!sender.has_untold());
        sender.queue.takes = 0;
        ring(&mut sender, 4).unwrap_err();
        assert!(!sender.has_untold(), "nothing was taken");
        assert_eq!(sender.announce(), Ok(true));
        assert_eq!(announced(&sender), []);
        sender.queue.takes = 2;
        ring(&mut sender, 4).unwrap_err();
        assert!(sender.has_untold() && sender.awaits_completion());
        // Refused, it is still to be made.
        sender.queue.takes = 0;
        sender.announce().unwrap_err();
        assert!(sender.has_untold());
        sender.queue.takes = usize::MAX;
        // The announcement carries a count that the peer knows, since there is no higher one.
        assert_eq!(sender.announce(), Ok(true));
        assert_eq!(announced(&sender), [4]);
        assert_eq!(signaled(&sender).last(), Some(&true));
        assert!(!sender.has_untold() && sender.awaits_completion());
        while sender.awaits_completion() {
            complete(&mut sender);
        }
        assert_eq!((sender.in_flight(), sender.credits()), (0, 61));
        assert_eq!(sender.announce(), Ok(true));
        assert_eq!(announced(&sender), [4], "once");
        assert_eq!(sender.statistics.refused.value(), 3);
    }
}

/// Counts that were announced, in order.
fn announced(sender: &Tested) -> Vec<u32> {
    sender
        .queue
        .inline
        .iter()
        .map(|bytes| u32::from_be_bytes(bytes[..4].try_into().unwrap()))
        .map(|count| count.wrapping_sub(START))
        .collect()
}

#[test]
fn a_message_without_a_receive_is_handed_back() {
    let (mut sender, word, _) = sender_with(16, 0, [3, 0]);
    let mut batch = sender.stage();
    for _ in 0..3 {
        batch
            .push(Operation::Send, [Bytes], PostFlags::empty())
            .map_err(|refused| refused.reason)
            .unwrap();
    }
    let at = RemoteAddress::new(0, Rkey(0));
    for message in [
        Operation::Send,
        Operation::SendWithImmediate(1),
        Operation::WriteWithImmediate(at, 1),
    ] {
        let refused = batch.push(message, [Bytes], PostFlags::empty()).unwrap_err();
        assert_eq!(refused.reason, PushError::NoCredit);
        assert_eq!(
            batch.push_inline(message, b"", PostFlags::empty()),
            Err(PushError::NoCredit)
        );
    }
    // An operation that takes no receive needs no credit.
    for other in [Operation::Write(at), Operation::Read(at)] {
        assert!(batch.push(other, [Bytes], PostFlags::empty()).is_ok());
    }
    assert_eq!(batch.ring(), Ok(5));
    assert_eq!(sender.credits(), 0);
    assert!(ring_one(&mut sender).is_err());
    word.announce(START.wrapping_add(4));
    assert_eq!(sender.credits(), 1);
    ring_one(&mut sender).unwrap();
    assert_eq!(ring_one(&mut sender), Err(PushError::NoCredit));
}

/// A batch of these.
fn staged<'q>(sender: &'q mut Tested, operations: &[Operation]) -> super::Batch<'q, Queue, Arc<Word>> {
    let mut batch = sender.stage();
    for operation in operations {
        assert!(batch.push(*operation, [Bytes], PostFlags::empty()).is_ok());
    }
    batch
}

fn ring_one(sender: &mut Tested) -> Result<(), PushError> {
    let mut batch = sender.stage();
    batch
        .push(Operation::Send, [Bytes], PostFlags::empty())
        .map_err(|refused| refused.reason)?;
    batch.ring().unwrap();
    Ok(())
}

#[test]
fn credits_come_back_of_what_was_not_posted() {
    let (mut sender, _, _) = sender_with(16, 0, [4, 0]);
    // Dropped.
    let _ = staged(&mut sender, &[Operation::Send; 4]);
    assert_eq!(sender.credits(), 4);
    // The last two are refused, one of them a message.
    let write = Operation::Write(PEERS_WORD);
    sender.queue.takes = 3;
    let mixed = [Operation::Send, write, Operation::Send, write, Operation::Send];
    let error = staged(&mut sender, &mixed).ring().unwrap_err();
    assert_eq!((error.posted, error.unposted), (3, 2));
    assert_eq!(sender.credits(), 2);
}

#[test]
fn what_no_honest_peer_announces_is_not_believed() {
    let (mut sender, word, _) = sender_with(16, 0, [4, 0]);
    for _ in 0..4 {
        ring_one(&mut sender).unwrap();
    }
    for lie in [0, 3, 9, 1 << 30, u32::MAX] {
        word.announce(START.wrapping_add(lie));
        assert_eq!(sender.credits(), 0, "{lie}");
        assert_eq!(ring_one(&mut sender), Err(PushError::NoCredit), "{lie}");
    }
    word.announce(START.wrapping_add(8));
    assert_eq!(sender.credits(), 4);
}

#[test]
fn a_quarter_is_announced_with_what_goes_out() {
    let (mut sender, _, mut granting) = sender_with(16, 0, [64, 8]);
    granting.note_posted(1);
    ring(&mut sender, 1).unwrap();
    assert_eq!(announced(&sender), []);
    granting.note_posted(1);
    // Nothing goes out with a batch of nothing, nor with one that is dropped.
    assert_eq!(ring(&mut sender, 0), Ok(0));
    assert_eq!(staged(&mut sender, &[Operation::Send]).staged(), 1);
    assert_eq!(announced(&sender), []);
    assert_eq!(ring(&mut sender, 3), Ok(3));
    assert_eq!(announced(&sender), [10]);
    assert_eq!(
        signaled(&sender),
        [true, false, false, false, true],
        "in front, and not signaled"
    );
    assert_eq!(sender.in_flight(), 4);
    ring(&mut sender, 1).unwrap();
    assert_eq!(announced(&sender), [10], "once");
}

#[test]
fn announcements_by_themselves_are_nobodys_requests() {
    let (mut sender, _, mut granting) = sender_with(16, 0, [64, 4]);
    assert_eq!(sender.announce(), Ok(true));
    assert_eq!(announced(&sender), []);
    granting.note_posted(1);
    assert!(!granting.is_due(4));
    granting.note_posted(1);
    assert!(granting.is_due(4));
    assert_eq!(sender.announce(), Ok(true));
    assert!(!granting.is_due(4));
    assert_eq!(announced(&sender), [6]);
    assert_eq!(signaled(&sender), [false]);
    assert_eq!((sender.in_flight(), sender.room()), (0, 15));
    assert!(!sender.awaits_completion());
    let first = {
        let mut batch = sender.stage();
        let pushed = batch.push(Operation::Send, [Bytes], PostFlags::empty());
        let ticket = pushed.map_err(|refused| refused.reason).unwrap();
        batch.ring().unwrap();
        ticket
    };
    let outcome = retire_next(&mut sender);
    assert_eq!((outcome.retired.count(), outcome.through), (2, Some(first)));
    assert_eq!((sender.in_flight(), sender.room()), (0, 16));
}

/// Completes the first signaled request that has not completed.
fn retire_next(sender: &mut Tested) -> super::Outcome {
    let position = sender.queue.posted.iter().position(|(_, signaled)| *signaled);
    let (id, _) = sender
        .queue
        .posted
        .drain(..=position.unwrap())
        .next_back()
        .unwrap();
    sender.retire(Success(id), |_, _| (), |_| ()).unwrap()
}

#[test]
fn a_side_that_only_receives_announces_without_end() {
    for depth in [1, 2, 3, 16] {
        let (mut sender, _, mut granting) = sender_with(depth, 0, [4, 4]);
        for round in 1..=1000 {
            granting.note_posted(2);
            while sender.announce() == Ok(false) {
                // One of the requests in flight is signaled, and it is no request of the caller.
                assert_eq!(retire_next(&mut sender).through, None);
            }
            assert_eq!(announced(&sender).last(), Some(&(4 + 2 * round)), "depth {depth}");
        }
        assert_eq!(sender.in_flight(), 0);
    }
}

#[test]
fn a_place_is_kept_for_an_announcement_whatever_is_posted() {
    for depth in [1, 2, 7, 16] {
        let (mut sender, _, mut granting) = sender_with(depth, u32::MAX, [1 << 16, 4]);
        assert_eq!(sender.room(), depth);
        for _ in 0..depth {
            ring_one(&mut sender).unwrap();
        }
        assert_eq!(sender.room(), 0);
        assert_eq!(ring_one(&mut sender), Err(PushError::Full));
        granting.note_posted(2);
        assert_eq!(sender.announce(), Ok(true), "depth {depth}");
        granting.note_posted(2);
        assert_eq!(sender.announce(), Ok(false), "the place is taken");
        assert!(sender.awaits_completion());
        while sender.announce() == Ok(false) {
            retire_next(&mut sender);
        }
        assert_eq!(announced(&sender), [6, 8]);
    }
}

#[test]
fn with_an_announcement_in_front_there_is_as_much_room_as_was_told() {
    let (mut sender, _, mut granting) = sender_with(4, 0, [64, 4]);
    ring(&mut sender, 3).unwrap();
    granting.note_posted(1);
    assert_eq!(sender.room(), 1);
    ring(&mut sender, 1).unwrap();
    assert_eq!(announced(&sender), [5]);
    assert_eq!(sender.room(), 0);
}

#[test]
fn a_refused_announcement_is_made_again() {
    let (mut sender, _, mut granting) = sender_with(16, 0, [64, 4]);
    granting.note_posted(2);
    sender.queue.takes = 0;
    let error = sender.announce().unwrap_err();
    assert_eq!((error.posted, error.unposted), (0, 0), "none of the caller's");
    let error = ring(&mut sender, 2).unwrap_err();
    assert_eq!((error.posted, error.unposted), (0, 2));
    assert!(granting.is_due(4));
    sender.queue.takes = 2;
    let error = ring(&mut sender, 2).unwrap_err();
    assert_eq!((error.posted, error.unposted), (1, 1));
    assert_eq!(announced(&sender), [6]);
    assert_eq!((sender.credits(), sender.in_flight()), (63, 1));
    sender.queue.takes = usize::MAX;
    ring(&mut sender, 1).unwrap();
    assert_eq!(announced(&sender), [6], "once");
}

mod cells;
mod lone;
