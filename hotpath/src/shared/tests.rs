//! Many peers and one queue, in any order of what they do: no message finds a receiver that is not ready, and no
//! channel is left without.

use std::boxed::Box;
use std::collections::VecDeque;
use std::sync::Arc;

use std::vec::Vec;

use doorbell_core::provider::{
    Arena, Arrival, ArrivalKind, Attacher, Completion, DetachedSlot, LentCompletion, Placement, PostError,
    ProviderError, PushError, ReceiveBatch, Refused, Rejected, RemoteAddress, SharedReceiveQueue,
};
use doorbell_core::shared_in_flight::{Entry, SharedInFlight, entries_for};
use doorbell_core::sync::{AtomicU32, Ordering};
use doorbell_core::{Qpn, Rkey, SharedReceiveId, Ticket, WcStatus, WorkId};
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};

use super::{Share, SharedReceiver, Taken};
use crate::sender::tests::Bytes;
use crate::{Announcer, Grants, Statistics};

/// How many slots are free.
#[derive(Clone)]
pub(crate) struct Memory(pub(crate) u32);

impl Attacher for Memory {
    type Slot = Bytes;

    fn attach(&self, _: DetachedSlot) -> Option<Bytes> {
        unreachable!()
    }
    fn owns(&self, _: &Bytes) -> bool {
        unreachable!()
    }
}

impl Arena for Memory {
    type Slot = Bytes;
    type Attacher = Self;

    fn lease(&mut self) -> Option<Bytes> {
        self.0 = self.0.checked_sub(1)?;
        Some(Bytes)
    }
    fn release(&mut self, _: Bytes) {
        self.0 += 1;
    }
    fn attach(&mut self, _: DetachedSlot) -> Option<Bytes> {
        unreachable!()
    }
    fn attacher(&self) -> Self {
        unreachable!()
    }
    fn slots(&self) -> u32 {
        unreachable!()
    }
    fn free_slots(&mut self) -> u32 {
        unreachable!()
    }
    fn slot_bytes(&self) -> u32 {
        unreachable!()
    }
    fn placement(&self) -> Placement {
        unreachable!()
    }
}

pub(crate) struct Ended {
    pub(crate) id: WorkId,
    pub(crate) status: WcStatus,
    pub(crate) sequence: u64,
}

impl Completion for Ended {
    type Lent<'c> = &'c Self;

    fn lend(&self) -> &Self {
        self
    }
}

impl LentCompletion for &Ended {
    type Kept = Ended;

    fn work_id(&self) -> WorkId {
        self.id
    }
    fn status(&self) -> WcStatus {
        self.status
    }
    fn qpn(&self) -> Qpn {
        unreachable!("whose it is the tests know")
    }
    fn keep(self) -> Ended {
        unreachable!("nothing here comes early")
    }
}

struct Queue {
    table: SharedInFlight<Bytes, Box<[Entry<Bytes>]>>,
    staged: Vec<WorkId>,
    /// Receives that the device has, the next one first.
    posted: VecDeque<WorkId>,
    ended: u64,
    /// How many of the next post the device takes.
    takes: Arc<AtomicU32>,
}

impl SharedReceiveQueue for Queue {
    type Slot = Bytes;
    type Completion = Ended;
    type Batch<'q> = &'q mut Queue;
    type Claim = ();

    fn claim(&self) {}
    fn stage(&mut self) -> &mut Queue {
        self.table.unstage(|_, _| ());
        self.staged.clear();
        self
    }
    fn retire<F: FnMut(Ticket, Bytes)>(&mut self, completion: &Ended, each: F) -> Result<Arrival, Rejected> {
        let ticket = self.table.retire(completion.id, completion.sequence, each)?;
        Ok(Arrival {
            ticket,
            status: completion.status,
            kind: ArrivalKind::Send,
            payload_bytes: 1,
            immediate: None,
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
    fn id(&self) -> SharedReceiveId {
        SharedReceiveId(0)
    }
    fn number(&self) -> u32 {
        0
    }
    fn set_limit(&mut self, _: u32) -> Result<(), ProviderError> {
        Ok(())
    }
}

impl ReceiveBatch for &mut Queue {
    type Slot = Bytes;

    fn push<const N: usize>(&mut self, slots: [Bytes; N]) -> Result<Ticket, Refused<[Bytes; N]>> {
        let (ticket, id) = self.table.stage(slots).map_err(|item| Refused {
            reason: PushError::Full,
            item,
        })?;
        self.staged.push(id);
        Ok(ticket)
    }
    fn staged(&self) -> u32 {
        self.table.staged()
    }
    fn leave(self) {}
    fn ring(self) -> Result<u32, PostError> {
        let staged = core::mem::take(&mut self.staged);
        let count = staged.len().min(self.takes.load(Ordering::Relaxed) as usize);
        self.table.post(count as u32);
        self.table.unstage(|_, _| ());
        self.posted.extend(&staged[..count]);
        posted_of(count, staged.len())
    }
}

/// The outcome of a post of so many receives, of which the device took the first ones.
pub(crate) fn posted_of(taken: usize, staged: usize) -> Result<u32, PostError> {
    if taken == staged {
        return Ok(taken as u32);
    }
    Err(PostError {
        posted: taken as u32,
        unposted: (staged - taken) as u32,
        cause: ProviderError {
            call: "post",
            errno: 12,
        },
    })
}

/// Announcements arrive as they are made, here.
const NOWHERE: RemoteAddress = RemoteAddress::new(0, Rkey(0));

/// A channel, with what its peer knows.
struct Channel {
    share: Share<Arc<Grants>>,
    announcer: Announcer<Arc<Grants>>,
    receives: u32,
    /// Messages its peer may send still, as was announced to it.
    credits: u32,
    announced: u32,
    is_hungry: bool,
}

/// A Worker with all its peers, each as eager as it may be.
struct World {
    receiver: SharedReceiver<Queue, Arc<Statistics>>,
    takes: Arc<AtomicU32>,
    memory: Memory,
    /// Messages the application looks at.
    held: u32,
    channels: Vec<Channel>,
    depth: u32,
    not_ready: u32,
}

impl World {
    fn new(depth: u32, memory: u32, batch: u32) -> Self {
        let entries = core::iter::repeat_with(Entry::default).take(entries_for(depth).unwrap());
        let takes = Arc::new(AtomicU32::new(u32::MAX));
        let queue = Queue {
            table: SharedInFlight::new(entries.collect(), 0, depth).unwrap(),
            staged: Vec::new(),
            posted: VecDeque::new(),
            ended: 0,
            takes: Arc::clone(&takes),
        };
        let mut world = Self {
            receiver: SharedReceiver::new(queue, Arc::default(), batch),
            takes,
            memory: Memory(memory),
            held: 0,
            channels: Vec::new(),
            depth,
            not_ready: 0,
        };
        assert_eq!(world.receiver.fill(&mut world.memory), Ok(depth.min(memory)));
        world
    }

    /// Admits a channel where its share fits.
    fn open(&mut self, receives: u32, batch: u32) -> bool {
        let promised: u32 = self.channels.iter().map(|channel| channel.receives).sum();
        if promised + receives > self.depth {
            return false;
        }
        let grants = Arc::new(Grants::new(0, receives));
        self.receiver.want();
        self.receiver.replenish(&mut self.memory).unwrap();
        let Some(share) = self.receiver.open(Arc::clone(&grants), receives, batch) else {
            return false;
        };
        self.channels.push(Channel {
            share,
            announcer: Announcer::new(grants, receives, NOWHERE),
            receives,
            credits: receives,
            announced: receives,
            is_hungry: false,
        });
        true
    }

    /// A message of a peer, and what the Worker does with it. Says whether it had a credit.
    fn send(&mut self, at: usize) -> bool {
        let channel = &mut self.channels[at];
        if channel.credits == 0 {
            return false;
        }
        channel.credits -= 1;
        assert_eq!(self.receive(at, WcStatus::SUCCESS), Some(Taken::Message));
        true
    }

    fn receive(&mut self, at: usize, status: WcStatus) -> Option<Taken> {
        let queue = self.receiver.queue_mut();
        let Some(id) = queue.posted.pop_front() else {
            self.not_ready += 1;
            return None;
        };
        queue.ended += 1;
        let ended = Ended {
            id,
            status,
            sequence: queue.ended,
        };
        let held = &mut self.held;
        let arrival = self.receiver.retire(&ended, |_, _| *held += 1).unwrap();
        let channel = &mut self.channels[at];
        let taken = self.receiver.charge(&mut channel.share, &arrival);
        if taken == Taken::Message {
            channel.is_hungry |= !self.receiver.grant(&mut channel.share);
            channel.announce();
        }
        Some(taken)
    }

    /// Runs the steps at the end of each poll.
    fn tend(&mut self) -> Result<u32, PostError> {
        let outcome = self.receiver.replenish(&mut self.memory);
        let hungry = |channel: &&mut Channel| channel.is_hungry && channel.share.cause().is_none();
        for channel in self.channels.iter_mut().filter(hungry) {
            channel.is_hungry = !self.receiver.grant(&mut channel.share);
            channel.announce();
        }
        outcome
    }

    /// The application gives memory back.
    fn give_back(&mut self, count: u32) {
        let count = count.min(self.held);
        self.held -= count;
        self.memory.0 += count;
    }

    fn close(&mut self, at: usize) {
        let gone = self.channels.swap_remove(at);
        self.receiver.release(gone.share.granted());
    }

    /// Asserts the invariants.
    fn check(&self) {
        let granted: u32 = self.channels.iter().map(|channel| channel.share.granted()).sum();
        assert_eq!(granted, self.receiver.granted());
        assert!(
            granted <= self.receiver.queue().in_flight(),
            "no more than is posted"
        );
        for channel in &self.channels {
            assert!(
                channel.credits <= channel.share.granted(),
                "no more than was granted"
            );
            assert!(channel.share.granted() <= channel.receives);
        }
        assert_eq!(self.not_ready, 0);
    }
}

impl Channel {
    /// Announces by itself what is due to be.
    fn announce(&mut self) {
        if !self.share.is_announcement_due() {
            return;
        }
        let announcement = self.announcer.alone().expect("what is due");
        self.credits += announcement.count - self.announced;
        self.announced = announcement.count;
        announcement.receipt.note_announced(self.announced);
    }
}

#[test]
fn a_share_of_one_goes_on_though_batches_are_large() {
    let mut world = World::new(8, 8, 16);
    for _ in 0..8 {
        assert!(world.open(1, 16));
    }
    assert!(!world.open(1, 16), "there is no room for another");
    for round in 0..100 {
        assert!(world.send(round % 8), "round {round}");
        world.give_back(1);
        assert_eq!(world.tend(), Ok(1));
        world.check();
    }
}

#[test]
fn with_receives_to_spare_they_are_posted_in_batches() {
    let mut world = World::new(64, 64, 16);
    assert!(world.open(4, 16) && world.open(4, 16));
    let mut posts = Vec::new();
    for round in 0..160 {
        assert!(world.send(round % 2), "round {round}");
        world.give_back(1);
        posts.push(world.tend().unwrap());
        world.check();
    }
    posts.retain(|posted| *posted > 0);
    assert_eq!(posts, [16; 10], "for all channels at once");
}

#[test]
fn memory_that_comes_back_late_is_shared_by_those_who_need_it() {
    let mut world = World::new(8, 8, 1);
    assert!(world.open(4, 1) && world.open(4, 1));
    while world.send(0) || world.send(1) {}
    assert_eq!((world.held, world.receiver.spare()), (8, 0));
    for _ in 0..3 {
        assert_eq!(world.tend(), Ok(0));
        assert!(world.receiver.is_wanted(), "to be looked for at each poll");
    }
    world.give_back(5);
    assert_eq!(world.tend(), Ok(5));
    world.check();
    let credits: Vec<u32> = world.channels.iter().map(|channel| channel.credits).collect();
    assert_eq!(credits, [4, 1]);
    assert!(world.receiver.is_wanted());
    world.give_back(3);
    assert_eq!(world.tend(), Ok(3));
    assert!(!world.receiver.is_wanted());
    assert!(world.send(1) && world.send(1));
}

#[test]
fn a_peer_that_takes_more_than_its_share_is_found_out_once() {
    let mut world = World::new(8, 16, 4);
    assert!(world.open(2, 1) && world.open(6, 1));
    for _ in 0..2 {
        assert_eq!(world.receive(0, WcStatus::SUCCESS), Some(Taken::Message));
    }
    assert_eq!(world.channels[0].share.cause(), None);
    assert_eq!(world.receive(0, WcStatus::SUCCESS), Some(Taken::Overdrawn));
    assert_eq!(world.receive(0, WcStatus::SUCCESS), Some(Taken::OverdrawnAgain));
    let cause = world.channels[0].share.cause().unwrap();
    assert_eq!(cause.status, WcStatus::GENERAL_ERR);
    // The receives it took are posted again at once, and none of them counts for its own share.
    assert_eq!(world.tend(), Ok(4));
    assert_eq!(world.receive(0, WcStatus::SUCCESS), Some(Taken::OverdrawnAgain));
    assert_eq!(world.tend(), Ok(1), "however little is missing");
    assert_eq!(world.channels[1].share.granted(), 6);
    assert!(world.receiver.queue().in_flight() >= world.receiver.granted());
}

#[test]
fn a_receive_of_another_channel_that_fails_counts_for_none_of_the_share() {
    let mut world = World::new(8, 8, 4);
    assert!(world.open(2, 1) && world.open(6, 1));
    for _ in 0..2 {
        assert_eq!(world.receive(0, WcStatus::SUCCESS), Some(Taken::Message));
    }
    assert_eq!(world.channels[0].share.received(), 2);
    assert_eq!(world.receive(0, WcStatus::LOC_LEN_ERR), Some(Taken::Failed));
    assert_eq!(world.channels[0].share.received(), 2);
    // The other channel lacks that receive, however little is missing.
    world.give_back(3);
    assert_eq!(world.tend(), Ok(3));
    assert!(world.receiver.queue().in_flight() >= world.receiver.granted());
}

#[test]
fn a_receive_that_fails_is_not_granted_again_and_closing_gives_the_rest_back() {
    let mut world = World::new(8, 8, 4);
    assert!(world.open(5, 1) && world.open(3, 1));
    assert_eq!(world.receive(0, WcStatus::LOC_LEN_ERR), Some(Taken::Failed));
    world.give_back(1);
    assert_eq!(world.tend(), Ok(0), "one is not needed");
    assert_eq!(
        (world.channels[0].share.granted(), world.receiver.granted()),
        (4, 7)
    );
    assert!(!world.open(5, 1));
    world.close(0);
    assert_eq!(world.tend(), Ok(1));
    assert!(world.open(5, 1));
    world.check();
}

#[test]
fn what_the_device_refuses_is_tried_again() {
    let mut world = World::new(8, 8, 4);
    assert!(world.open(8, 4));
    for _ in 0..4 {
        assert!(world.send(0));
    }
    world.give_back(4);
    world.takes.store(1, Ordering::Relaxed);
    assert!(matches!(
        world.tend(),
        Err(PostError {
            posted: 1,
            unposted: 3,
            ..
        })
    ));
    assert!(world.receiver.is_wanted());
    // Here what was not posted does not come home: it is the double's.
    world.memory.0 += 3;
    world.takes.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(world.tend(), Ok(3));
    world.check();
    assert_eq!(world.channels[0].share.granted(), 8);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize),
    Tend,
    GiveBack(u32),
    Open(u32, u32),
    Close(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step =
        (0_u8..14, any::<usize>(), 1_u32..9, 0_u32..20).prop_map(|(kind, at, count, batch)| match kind {
            0..=5 => Step::Send(at),
            6..=8 => Step::Tend,
            9..=11 => Step::GiveBack(count),
            12 => Step::Open(count, batch),
            _ => Step::Close(at),
        });
    proptest::collection::vec(step, 0..400)
}

proptest! {
    #[test]
    fn nothing_is_granted_that_is_not_posted_and_nobody_is_left_without(
        depth in 1_u32..40,
        more in 0_u32..20,
        batch in 0_u32..50,
        steps in steps(),
    ) {
        let mut world = World::new(depth, depth + more, batch);
        for step in steps {
            let count = world.channels.len();
            match step {
                Step::Send(at) if count > 0 => {
                    world.send(at % count);
                }
                Step::Close(at) if count > 0 => world.close(at % count),
                Step::Tend => {
                    world.tend().unwrap();
                }
                Step::GiveBack(receives) => world.give_back(receives),
                Step::Open(receives, batch) => {
                    world.open(receives, batch);
                }
                _ => {}
            }
            world.check();
        }
        // Once all memory is back, every peer may send as long as it likes, all its share of it.
        for _ in 0..3 {
            for at in 0..world.channels.len() {
                for _ in 0..3 * world.channels[at].receives {
                    world.give_back(u32::MAX);
                    world.tend().unwrap();
                    prop_assert!(world.send(at), "a peer is left without");
                    world.check();
                }
            }
        }
        // And with nobody left there is room for one that has it all.
        while !world.channels.is_empty() {
            world.close(0);
        }
        world.give_back(u32::MAX);
        prop_assert_eq!(world.receiver.granted(), 0);
        prop_assert!(world.open(depth, batch));
    }
}
