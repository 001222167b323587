//! A receiver over a queue whose device takes what the test lets it take.

use core::mem::ManuallyDrop;
use std::collections::VecDeque;
use std::sync::Arc;
use std::vec::Vec;

use doorbell_core::in_flight::{InFlight, Request, storage_for};
use doorbell_core::provider::{
    Arrival, ArrivalKind, PostError, PushError, ReceiveBatch, ReceiveQueue, Refused, Rejected, RemoteAddress,
};
use doorbell_core::{Rkey, Ticket, WcStatus, WorkId, WorkKind};

use super::{Receiver, ReceiverConfig};
use crate::sender::tests::Bytes;
use crate::shared::tests::{Ended, Memory, posted_of};
use crate::{Announcer, Grants, Statistics};

const DEPTH: u32 = 8;

struct Queue {
    table: InFlight<Bytes, Vec<Request<Bytes>>>,
    staged: Vec<WorkId>,
    left: usize,
    /// Receives that the device has, the next one first.
    posted: VecDeque<WorkId>,
    /// How many of the next post the device takes.
    takes: usize,
}

struct Batch<'q>(&'q mut Queue);

impl ReceiveQueue for Queue {
    type Slot = Bytes;
    type Completion = Ended;
    type Message = Bytes;
    type Batch<'q> = Batch<'q>;

    fn stage(&mut self) -> Batch<'_> {
        if self.staged.len() != self.left {
            drop(Batch(self));
        }
        Batch(self)
    }
    fn retire<F: FnMut(Ticket, Bytes)>(&mut self, completion: &Ended, each: F) -> Result<Arrival, Rejected> {
        let range = self.table.retire(completion.id, each)?;
        let kind = match completion.status {
            WcStatus::SUCCESS => ArrivalKind::Send,
            _ => ArrivalKind::Failed,
        };
        Ok(Arrival {
            ticket: range.last,
            status: completion.status,
            kind,
            payload_bytes: 7,
            immediate: None,
            vendor_error: 3,
        })
    }
    fn retire_message(&mut self, completion: &&Ended) -> Option<(Bytes, Option<u32>)> {
        if completion.status != WcStatus::SUCCESS {
            return None;
        }
        Some((self.table.retire_oldest(completion.id)?, Some(9)))
    }
    fn in_flight(&self) -> u32 {
        self.table.posted()
    }
    fn room(&self) -> u32 {
        self.table.room()
    }
    fn missing(&self) -> u32 {
        self.table.missing()
    }
    fn rejected(&self) -> u64 {
        0
    }
}

impl ReceiveBatch for Batch<'_> {
    type Slot = Bytes;

    fn push<const N: usize>(&mut self, slots: [Bytes; N]) -> Result<Ticket, Refused<[Bytes; N]>> {
        let (ticket, id) = self.0.table.stage(slots).map_err(|item| Refused {
            reason: PushError::Full,
            item,
        })?;
        self.0.staged.push(id);
        Ok(ticket)
    }
    fn staged(&self) -> u32 {
        self.0.table.staged()
    }
    fn leave(self) {
        let Batch(queue) = &mut *ManuallyDrop::new(self);
        queue.left = queue.staged.len();
    }
    fn ring(self) -> Result<u32, PostError> {
        let Queue {
            table,
            staged,
            posted,
            takes,
            ..
        } = &mut *self.0;
        let count = staged.len().min(*takes);
        table.post(count as u32);
        posted.extend(&staged[..count]);
        posted_of(count, staged.len())
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.0.table.unstage(|_, _| ());
        self.0.staged.clear();
        self.0.left = 0;
    }
}

type Tested = Receiver<Queue, Arc<Grants>, Arc<Statistics>>;

/// A receiver that has posted all its receives, and posts again so many at once.
fn filled(repost_batch: u32) -> (Tested, Arc<Grants>, Memory) {
    filled_to(DEPTH, repost_batch)
}

fn filled_to(depth: u32, repost_batch: u32) -> (Tested, Arc<Grants>, Memory) {
    let requests = core::iter::repeat_with(Request::default);
    let requests = requests.take(storage_for(depth).unwrap()).collect();
    let queue = Queue {
        table: InFlight::new(requests, WorkKind::Receive, 0, depth, 0).unwrap(),
        staged: Vec::new(),
        left: 0,
        posted: VecDeque::new(),
        takes: usize::MAX,
    };
    let grants = Arc::new(Grants::new(0, depth));
    let config = ReceiverConfig { repost_batch };
    let mut receiver = Receiver::new(queue, Arc::clone(&grants), Arc::default(), &config);
    let mut memory = Memory(depth);
    assert_eq!(receiver.fill(&mut memory), Ok(depth));
    (receiver, grants, memory)
}

/// Memory comes back, or none does, and receives are posted where they are to be.
fn repost(receiver: &mut Tested, slot: Option<Bytes>, memory: &mut Memory) -> Result<u32, PostError> {
    if receiver.put_back(slot, memory) {
        receiver.repost(memory)
    } else {
        Ok(0)
    }
}

/// The next receive ends.
fn end(receiver: &mut Tested, status: WcStatus) -> (Arrival, Option<Bytes>) {
    let id = receiver.queue.posted.pop_front().expect("a receive");
    let sequence = 0;
    receiver.retire(&Ended { id, status, sequence }).unwrap()
}

#[test]
fn memory_that_came_back_waits_until_a_batch_is_missing() {
    let (mut receiver, _, mut memory) = filled(3);
    for round in 1..=4_u32 {
        for missing in 1..3 {
            let (arrival, slot) = end(&mut receiver, WcStatus::SUCCESS);
            assert!(arrival.status.is_success() && slot.is_some());
            assert_eq!(repost(&mut receiver, slot, &mut memory), Ok(0));
            assert_eq!(
                (receiver.staged(), receiver.in_flight()),
                (missing, DEPTH - missing)
            );
            assert!(!receiver.is_short());
        }
        let (_, slot) = end(&mut receiver, WcStatus::SUCCESS);
        assert!(receiver.is_short());
        assert_eq!(repost(&mut receiver, slot, &mut memory), Ok(3));
        assert_eq!((receiver.staged(), receiver.in_flight()), (0, DEPTH));
        assert_eq!(receiver.received(), 3 * round);
        let counted = receiver.statistics.snapshot();
        assert_eq!(counted.received, u64::from(3 * round));
        assert_eq!(counted.received_bytes, u64::from(7 * 3 * round));
        assert_eq!(counted.receives_posted, u64::from(DEPTH + 3 * round));
    }
    assert_eq!(memory.0, 0, "none passed the free list");
}

/// The next receive is taken as a message, if it is one.
fn message(receiver: &mut Tested, status: WcStatus) -> Option<(Bytes, Option<u32>)> {
    let id = *receiver.queue.posted.front()?;
    let sequence = 0;
    let message = receiver.retire_message(&&Ended { id, status, sequence })?;
    receiver.queue.posted.pop_front();
    Some(message)
}

#[test]
fn a_message_is_taken_with_the_senders_word_and_counted() {
    let (mut receiver, _, mut memory) = filled(4);
    assert!(message(&mut receiver, WcStatus::WR_FLUSH_ERR).is_none());
    assert_eq!(receiver.in_flight(), DEPTH, "nothing was taken");
    for count in 1..=20 {
        let (slot, immediate) = message(&mut receiver, WcStatus::SUCCESS).expect("a message");
        assert_eq!(immediate, Some(9));
        repost(&mut receiver, Some(slot), &mut memory).unwrap();
        let counted = receiver.statistics.snapshot();
        assert_eq!((counted.received, counted.received_bytes), (count, 7 * count));
        assert_eq!(u64::from(receiver.received()), count);
    }
    assert!(receiver.cause().is_none());
}

#[test]
fn while_nothing_is_to_be_looked_after_nothing_is_due() {
    let depths = (1..=9).flat_map(|depth| (1..=9).map(move |batch| (depth, batch)));
    for ((depth, batch), is_kept) in depths.flat_map(|both| [(both, false), (both, true)]) {
        let (mut receiver, grants, mut memory) = filled_to(depth, batch);
        let mut announcer = Announcer::new(&*grants, depth, RemoteAddress::new(0, Rkey(0)));
        let (mut quiet, mut announced) = (0, 0);
        for number in 0..10 * depth {
            // If memory is kept, two messages in three give theirs back at last.
            let mut slot = message(&mut receiver, WcStatus::SUCCESS).map(|message| message.0);
            if is_kept {
                slot = None;
                memory.0 += u32::from(number % 3 != 0);
            }
            if !receiver.put_back(slot, &mut memory) {
                assert!(!receiver.is_announcement_due() && !receiver.is_short());
                quiet += 1;
                continue;
            }
            receiver.repost(&mut memory).unwrap();
            if receiver.is_announcement_due() {
                let due = announcer.alone().expect("an announcement");
                due.receipt.note_announced(due.count);
                announced += 1;
            }
        }
        assert!(announced > 0, "{depth} {batch}");
        let each = batch.clamp(1, (depth / 2).max(1));
        assert!(
            is_kept || quiet == 10 * depth - 10 * depth / each,
            "{depth} {batch}"
        );
    }
}

#[test]
fn memory_that_is_kept_is_replaced_as_far_as_there_is_some() {
    let (mut receiver, _, mut memory) = filled(3);
    for _ in 0..3 {
        end(&mut receiver, WcStatus::SUCCESS);
    }
    assert_eq!(repost(&mut receiver, None, &mut memory), Ok(0));
    assert!(receiver.is_short());
    memory.0 = 2;
    assert_eq!(repost(&mut receiver, None, &mut memory), Ok(2));
    assert_eq!((receiver.in_flight(), memory.0), (DEPTH - 1, 0));
    assert!(!receiver.is_short());
    let [one, other] = [(); 2].map(|()| end(&mut receiver, WcStatus::SUCCESS).1);
    assert_eq!(
        repost(&mut receiver, one, &mut memory),
        Ok(1),
        "three are missing"
    );
    assert_eq!(repost(&mut receiver, other, &mut memory), Ok(0));
    memory.0 = 5;
    end(&mut receiver, WcStatus::SUCCESS);
    assert_eq!(
        repost(&mut receiver, None, &mut memory),
        Ok(3),
        "one that waited, and two"
    );
    assert_eq!((receiver.in_flight(), memory.0), (DEPTH, 3));
}

#[test]
fn receives_that_the_device_refuses_are_posted_again() {
    let (mut receiver, _, mut memory) = filled(2);
    receiver.queue.takes = 1;
    let [one, other] = [(); 2].map(|()| end(&mut receiver, WcStatus::SUCCESS).1);
    assert_eq!(
        repost(&mut receiver, one, &mut memory).map_err(|error| error.posted),
        Ok(1)
    );
    let error = repost(&mut receiver, other, &mut memory);
    assert_eq!(error, Ok(0), "one is missing");
    let lost = end(&mut receiver, WcStatus::SUCCESS).1;
    let error = repost(&mut receiver, lost, &mut memory).unwrap_err();
    assert_eq!((error.posted, error.unposted), (1, 1));
    assert_eq!((receiver.in_flight(), receiver.staged()), (DEPTH - 1, 0));
    assert_eq!(receiver.received(), 3, "only what is posted is counted as posted");
    (receiver.queue.takes, memory.0) = (usize::MAX, 1);
    let slot = end(&mut receiver, WcStatus::SUCCESS).1;
    assert_eq!(repost(&mut receiver, slot, &mut memory), Ok(2));
    assert_eq!(receiver.in_flight(), DEPTH);
}

#[test]
fn a_failure_is_no_message() {
    let (mut receiver, grants, mut memory) = filled(8);
    assert!(receiver.cause().is_none() && !receiver.is_announcement_due());
    let (arrival, slot) = end(&mut receiver, WcStatus::WR_FLUSH_ERR);
    assert_eq!(receiver.received(), 0);
    let cause = receiver.cause().expect("a cause");
    assert_eq!(
        (cause.status, cause.ticket, cause.vendor_error),
        (arrival.status, arrival.ticket, 3)
    );
    for _ in 0..3 {
        end(&mut receiver, WcStatus::SUCCESS);
    }
    assert_eq!(receiver.received(), 3);
    assert_eq!(receiver.statistics.snapshot().received, 3);
    // Half the queue is the most that waits.
    memory.0 = 3;
    assert_eq!(repost(&mut receiver, slot, &mut memory), Ok(4));
    assert!(receiver.is_announcement_due(), "half the depth is not announced");
    drop(grants);
}
