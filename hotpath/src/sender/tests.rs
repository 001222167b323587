//! What is signaled, over a queue that refuses what it is told to refuse.

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use doorbell_core::in_flight::{InFlight, storage_for};
use doorbell_core::provider::{
    Completion, DetachedSlot, Operation, PostError, PostFlags, ProviderError, PushError, Refused, Rejected,
    Retired, SendBatch, SendQueue, Slot,
};
use doorbell_core::{Ticket, WcStatus, WorkId, WorkKind};

use super::{Sender, SenderConfig, kept_words_for};

struct Bytes;

impl Slot for Bytes {
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
}

type Table = InFlight<Bytes, Box<[u32]>, Box<[Option<Bytes>]>>;

struct Queue {
    table: Table,
    /// What is staged: its id, and whether it is signaled.
    staged: Vec<(WorkId, bool)>,
    /// The same of what the device has.
    posted: Vec<(WorkId, bool)>,
    /// How many of a doorbell the device takes.
    takes: usize,
}

impl Queue {
    fn new(depth: u32) -> Self {
        let (words, places) = storage_for(depth).unwrap();
        let slots = core::iter::repeat_with(|| None).take(places).collect();
        Self {
            table: InFlight::new(vec![0; words].into(), slots, WorkKind::Send, 0, depth, 0).unwrap(),
            staged: Vec::new(),
            posted: Vec::new(),
            takes: usize::MAX,
        }
    }
}

impl SendQueue for Queue {
    type Slot = Bytes;
    type Completion = Success;
    type Batch<'q> = &'q mut Queue;

    fn stage(&mut self) -> &mut Queue {
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
    fn push_inline(&mut self, _: Operation, _: &'q [u8], _: PostFlags) -> Result<Ticket, PushError> {
        Err(PushError::NotInline)
    }
    fn staged(&self) -> u32 {
        self.table.staged()
    }
    fn signal_last(&mut self) {
        self.staged.last_mut().unwrap().1 = true;
    }
    fn ring_returning<F: FnMut(Ticket, Bytes)>(self, unposted: F) -> Result<u32, PostError> {
        let taken = self.staged.len().min(self.takes);
        let refused = self.staged.len() - taken;
        let count = u32::try_from(taken).unwrap();
        self.table.post(count);
        self.posted.extend(self.staged.drain(..).take(taken));
        if refused == 0 {
            return Ok(count);
        }
        self.table.unstage(unposted);
        Err(PostError {
            posted: count,
            unposted: u32::try_from(refused).unwrap(),
            cause: ProviderError {
                call: "post",
                errno: 12,
            },
        })
    }
}

type Tested = Sender<Queue, Box<[u64]>>;

fn sender(depth: u32, unsignaled_max: u32) -> Tested {
    let kept = vec![0; kept_words_for(depth)].into();
    Sender::new(Queue::new(depth), kept, &SenderConfig { unsignaled_max }).unwrap()
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
