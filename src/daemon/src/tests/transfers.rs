//! Tests of transfers: which bytes arrive, that memory is not written after it is given back, and each way in which a transfer ends.
//!
//! Each process has four ranges to give from, and four to take into. Offered bytes encode their giver. The giver overwrites them as soon
//! as it has them back.

use doorbell::Deadline;
use doorbell::interprocess::SharedBytes as _;
use doorbell::provider::Instant;

use super::world::{Chance, World, at};
use crate::endpoint::{ArenaTransfer, ArenaTransferEnd, EndpointRefusal, TRANSFERS_MAX};
use crate::name::EndpointAddress;
use crate::one_sided::{ArenaOffer, ArenaRange};
use crate::reason::{GoneReason, UndeliveredReason};
use crate::router::{Router, RouterLimits};

/// Maximum number of bytes of a transfer here: eight parts.
const BYTES: usize = 2048;
const PLACES: usize = 4;
const GIVE: usize = 1 << 14;
const TAKE: usize = GIVE + PLACES * BYTES;
const SPOILED: u8 = 0xee;

/// A range to give from or to take into.
#[derive(Clone, Default)]
struct TransferSlot {
    open: Option<(ArenaTransfer, Option<Offered>)>,
    /// The bytes at the end of the last transfer into the range.
    taken: Option<Vec<u8>>,
}

/// An offer, with the process that made it, and its number there.
#[derive(Clone, Copy)]
pub(crate) struct Offered {
    offer: ArenaOffer,
    to: EndpointAddress,
    giver: usize,
    number: u64,
}

#[derive(Default)]
pub(crate) struct Slots {
    given: [TransferSlot; PLACES],
    taken: [TransferSlot; PLACES],
    pub(crate) offered: Vec<Offered>,
    pub(crate) ends: Vec<(ArenaTransfer, ArenaTransferEnd, u64)>,
}

fn pattern(giver: usize, number: u64, bytes: usize) -> Vec<u8> {
    let word = |at: usize| ((giver as u64 + 1) << 48 | number << 24 | at as u64).to_le_bytes();
    (0..bytes / 8).flat_map(word).collect()
}

fn after(world: &World, time: u64) -> Deadline {
    Deadline::at(Instant::from_ns(world.now.to_ns() + time))
}

impl World {
    fn bytes_of(&self, process: usize, offset: usize, bytes: usize) -> Vec<u8> {
        let mut copy = vec![0; bytes];
        let arena = self.processes[process].endpoint.arena().unwrap();
        assert!(arena.copy_out(offset, &mut copy));
        copy
    }

    fn fill(&self, process: usize, offset: usize, bytes: &[u8]) {
        let arena = self.processes[process].endpoint.arena().unwrap();
        assert!(arena.copy_in(offset, bytes));
    }

    /// Offers this number of bytes from the first free range.
    fn offer(
        &mut self,
        process: usize,
        to: EndpointAddress,
        bytes: usize,
        deadline: Deadline,
    ) -> Option<ArenaTransfer> {
        let slots = &self.processes[process].transfers;
        let place = slots.given.iter().position(|place| place.open.is_none())?;
        let number = slots.offered.len() as u64;
        let offset = GIVE + place * BYTES;
        self.fill(process, offset, &pattern(process, number, bytes));
        let range = ArenaRange { offset, bytes };
        match self.processes[process].endpoint.offer(to, range, deadline) {
            Ok((id, offer)) => {
                let slots = &mut self.processes[process].transfers;
                let giver = process;
                slots.offered.push(Offered {
                    offer,
                    to,
                    giver,
                    number,
                });
                slots.given[place].open = Some((id, None));
                Some(id)
            }
            Err(EndpointRefusal::Full) => None,
            Err(refusal) => {
                assert!(self.processes[process].is_hostile, "{refusal}");
                None
            }
        }
    }

    /// Takes an offer into the first free range.
    fn take(&mut self, process: usize, offered: Offered, deadline: Deadline) -> Option<ArenaTransfer> {
        let slots = &self.processes[process].transfers;
        let place = slots.taken.iter().position(|place| place.open.is_none())?;
        self.check_place(process, place);
        let offset = TAKE + place * BYTES;
        self.fill(process, offset, &[0xaa; BYTES]);
        let client = &mut self.processes[process];
        let id = client.endpoint.take(&offered.offer, offset, deadline).unwrap();
        client.transfers.taken[place] = TransferSlot {
            open: Some((id, Some(offered))),
            taken: None,
        };
        Some(id)
    }

    /// Checks that nothing was written into a range after the end of its transfer.
    fn check_place(&self, process: usize, place: usize) {
        if let Some(taken) = &self.processes[process].transfers.taken[place].taken {
            let is_same = *taken == self.bytes_of(process, TAKE + place * BYTES, BYTES);
            assert!(is_same, "written after the end of a transfer");
        }
    }

    pub(super) fn transfer_ended(
        &mut self,
        process: usize,
        transfer: ArenaTransfer,
        end: ArenaTransferEnd,
        bytes: u64,
    ) {
        self.processes[process]
            .transfers
            .ends
            .push((transfer, end, bytes));
        let slots = &mut self.processes[process].transfers;
        let is_it = |place: &TransferSlot| place.open.as_ref().is_some_and(|(id, _)| *id == transfer);
        if let Some(place) = slots.given.iter().position(is_it) {
            slots.given[place].open = None;
            self.fill(process, GIVE + place * BYTES, &[SPOILED; BYTES]);
            return;
        }
        let place = slots.taken.iter().position(is_it);
        let place = place.expect("the end of a transfer that is open");
        let (_, offered) = slots.taken[place].open.take().unwrap();
        let offered = offered.unwrap();
        let there = self.bytes_of(process, TAKE + place * BYTES, BYTES);
        let is_spoiled = self.processes[process].is_hostile || self.processes[offered.giver].is_hostile;
        if end == ArenaTransferEnd::Done && !is_spoiled {
            assert_eq!(bytes, offered.offer.bytes);
            let expected = pattern(offered.giver, offered.number, bytes as usize);
            assert!(there[..bytes as usize] == expected, "done with other bytes");
        }
        assert!(bytes <= offered.offer.bytes);
        self.processes[process].transfers.taken[place].taken = Some(there);
    }

    /// Checks that each transfer has ended when all deadlines have passed.
    pub(super) fn check_transfers(&self) {
        for (index, process) in self.processes.iter().enumerate() {
            if process.is_hostile || !process.is_alive {
                continue;
            }
            (0..PLACES).for_each(|place| self.check_place(index, place));
            if self.blocked_at(index) == u64::MAX {
                let mut all = process.transfers.given.iter().chain(&process.transfers.taken);
                assert!(
                    all.all(|place| place.open.is_none()),
                    "a transfer of {index} has no end"
                );
            }
        }
    }

    pub(super) fn offer_something(&mut self, process: usize, chance: &mut Chance) {
        if self.processes[process].is_alive {
            let to = at(chance.below(self.routers.len()) as u32, chance.below(2) as u32);
            let deadline = after(self, 50 + chance.below(800) as u64);
            self.offer(process, to, 8 + 8 * chance.below(BYTES / 8), deadline);
        }
    }

    pub(super) fn take_something(&mut self, giver: usize, chance: &mut Chance) {
        let Some(offered) = self.processes[giver].transfers.offered.last().copied() else {
            return;
        };
        let job = self.processes[giver].job;
        let meant =
            |other: &super::world::Process| other.address == offered.to && other.job == job && other.is_alive;
        // Sometimes a process takes an offer that was made to another one.
        let named = self.processes.iter().position(meant);
        let takes = named.filter(|_| !chance.one_in(8)).unwrap_or(giver);
        if self.processes[takes].is_alive {
            let deadline = after(self, 50 + chance.below(800) as u64);
            self.take(takes, offered, deadline);
        }
    }

    pub(super) fn cancel_something(&mut self, process: usize, chance: &mut Chance) {
        let slots = &self.processes[process].transfers;
        let all: Vec<_> = slots.given.iter().chain(&slots.taken).collect();
        if let Some((id, _)) = all[chance.below(all.len())].open {
            assert!(self.processes[process].endpoint.cancel(id));
        }
    }

    fn end_of(&self, process: usize, transfer: ArenaTransfer) -> Option<ArenaTransferEnd> {
        let mut ends = self.processes[process].transfers.ends.iter();
        ends.find(|(id, ..)| *id == transfer).map(|(_, end, _)| *end)
    }
}

/// Starts an unfinished transfer between a giver and a taker, which is on the same node or on another.
fn begun(far: bool, parts: usize) -> (World, (usize, ArenaTransfer), (usize, ArenaTransfer)) {
    let mut world = World::new(2);
    let giver = world.attach(0, 1, 0).unwrap();
    let taker = world.attach(u32::from(far), 1, 1).unwrap();
    let long = after(&world, 1 << 30);
    let to = world.processes[taker].address;
    let given = world.offer(giver, to, BYTES, long).unwrap();
    world.settle();
    let offered = world.processes[giver].transfers.offered[0];
    let taken = world.take(taker, offered, long).unwrap();
    for _ in 0..parts {
        world.read(taker);
        world.poll(0);
        world.poll(1);
        world.carry(1);
    }
    (world, (giver, given), (taker, taken))
}

#[test]
fn all_bytes_arrive_and_both_sides_learn_of_it() {
    for far in [false, true] {
        let (mut world, (giver, given), (taker, taken)) = begun(far, 0);
        let mut landed = 0;
        for _ in 0..200 {
            world.read(taker);
            if let Some(bytes) = world.processes[taker].endpoint.landed(taken) {
                assert!(bytes >= landed);
                landed = bytes;
            }
            world.poll(0);
            world.poll(1);
            world.carry(1);
        }
        assert!(landed > 0, "progress");
        world.settle();
        assert_eq!(world.end_of(giver, given), Some(ArenaTransferEnd::Done));
        assert_eq!(world.end_of(taker, taken), Some(ArenaTransferEnd::Done));
        // A ring of four slots holds one transfer of two parts at a time, and still 64 transfers succeed.
        for _ in 0..64 {
            let long = after(&world, 1 << 30);
            let to = world.processes[taker].address;
            world.offer(giver, to, BYTES, long).unwrap();
            world.settle();
            let offered = *world.processes[giver].transfers.offered.last().unwrap();
            world.take(taker, offered, long).unwrap();
            world.settle();
        }
        for process in [giver, taker] {
            let ends = &world.processes[process].transfers.ends;
            let done = ends.iter().filter(|(_, end, _)| *end == ArenaTransferEnd::Done);
            assert_eq!((done.count(), ends.len()), (65, 65), "{far}");
        }
        assert!(!world.processes[taker].endpoint.has_transfers());
        world.check();
    }
}

#[test]
fn each_side_can_end_it_and_the_other_one_learns_why() {
    for (far, parts) in [(false, 0), (false, 2), (true, 0), (true, 3), (true, 6)] {
        for giver_ends in [false, true] {
            for by_deadline in [false, true] {
                let (mut world, mut one, mut other) = begun(far, parts);
                if giver_ends {
                    core::mem::swap(&mut one, &mut other);
                }
                // `one` ends the transfer.
                let ours = if by_deadline {
                    world.now = Instant::from_ns(1 << 31);
                    // The other side does not check its clock meanwhile.
                    ArenaTransferEnd::Deadline
                } else {
                    assert!(world.processes[one.0].endpoint.cancel(one.1));
                    ArenaTransferEnd::Cancelled
                };
                world.read(one.0);
                if by_deadline {
                    world.now = Instant::from_ns(2);
                }
                world.settle();
                assert_eq!(
                    world.end_of(one.0, one.1),
                    Some(ours),
                    "{far} {parts} {giver_ends}"
                );
                assert_eq!(world.end_of(other.0, other.1), Some(ArenaTransferEnd::ByPeer));
                assert!(!world.processes[one.0].endpoint.cancel(one.1), "it is over");
                world.check();
            }
        }
    }
}

#[test]
fn the_death_of_either_process_ends_it_with_the_reason() {
    for (far, parts) in [(false, 1), (false, 2), (true, 2), (true, 3), (true, 6)] {
        for giver_dies in [false, true] {
            let (mut world, mut one, mut other) = begun(far, parts);
            if giver_dies {
                core::mem::swap(&mut one, &mut other);
            }
            world.kill(one.0, GoneReason::Died);
            world.settle();
            let end = world.end_of(other.0, other.1);
            let gone = [
                Some(ArenaTransferEnd::Gone(GoneReason::Died)),
                // A part that arrived after the end. Its refusal is handled first.
                Some(ArenaTransferEnd::Refused(UndeliveredReason::NoEndpoint)),
            ];
            assert!(gone.contains(&end), "{far} {parts} {giver_dies}: {end:?}");
            world.check();
        }
    }
}

#[test]
fn a_transfer_that_is_done_stays_done_if_its_taker_ends_next() {
    for far in [false, true] {
        let (mut world, (giver, given), (taker, taken)) = begun(far, 0);
        while world.end_of(taker, taken).is_none() {
            world.read(taker);
            world.poll(0);
            world.poll(1);
            world.carry(9);
        }
        // The report of its end is in flight, followed by the end of the process.
        world.poll(usize::from(far));
        world.kill(taker, GoneReason::Died);
        world.carry(9);
        world.settle();
        assert_eq!(world.end_of(giver, given), Some(ArenaTransferEnd::Done));
        world.check();
    }
}

#[test]
fn the_end_of_a_daemon_ends_them_and_nothing_comes_later() {
    for (far, node) in [(false, 0), (true, 0), (true, 1)] {
        for parts in 0..4 {
            let (mut world, (giver, given), (taker, taken)) = begun(far, 3);
            world.restart(node, parts);
            world.settle();
            world.now = Instant::from_ns(1 << 31);
            world.settle();
            let ends = [
                world.end_of(giver, given).unwrap(),
                world.end_of(taker, taken).unwrap(),
            ];
            let own = [0, u32::from(far)].map(|of| of == node);
            for (end, is_own) in ends.into_iter().zip(own) {
                let is_right = match end {
                    ArenaTransferEnd::DaemonEnded => is_own,
                    ArenaTransferEnd::Gone(GoneReason::NodeLost)
                    | ArenaTransferEnd::Refused(UndeliveredReason::Unknown) => !is_own,
                    _ => false,
                };
                assert!(is_right, "{far} {node} {parts}: {end:?}");
            }
            world.check();
        }
    }
}

#[test]
fn an_offer_that_is_wrong_or_for_somebody_else_is_refused() {
    let (mut world, (giver, _), (taker, _)) = begun(false, 0);
    world.settle();
    let stranger = world.attach(0, 1, 7).unwrap();
    let long = after(&world, 1 << 30);
    let to = world.processes[taker].address;
    world.offer(giver, to, 512, long).unwrap();
    let mut offered = *world.processes[giver].transfers.offered.last().unwrap();
    let taken = world.take(stranger, offered, long).unwrap();
    world.settle();
    assert_eq!(world.end_of(stranger, taken), Some(ArenaTransferEnd::ByPeer));
    offered.offer.bytes = 1024;
    let taken = world.take(taker, offered, long).unwrap();
    world.settle();
    let refused = ArenaTransferEnd::Refused(UndeliveredReason::OutOfGrant);
    assert_eq!(world.end_of(taker, taken), Some(refused));
    let endpoint = &mut world.processes[taker].endpoint;
    offered.offer.bytes = u64::MAX;
    let refusal = endpoint.take(&offered.offer, 0, long).unwrap_err();
    assert!(matches!(refusal, EndpointRefusal::OutOfArena { .. }));
    offered.offer.bytes = 8;
    for _ in 0..TRANSFERS_MAX {
        endpoint.take(&offered.offer, 0, long).unwrap();
    }
    let refusal = endpoint.take(&offered.offer, 0, long).unwrap_err();
    assert_eq!(refusal, EndpointRefusal::TooManyTransfers);
}

#[test]
fn a_turn_ends_after_so_many_bytes_so_that_others_have_theirs() {
    let mut world = World::new(1);
    let limits = RouterLimits {
        turn_bytes: 256,
        ..RouterLimits::default()
    };
    world.routers[0] = Router::new(crate::name::NodeNumber(0), &limits);
    let (giver, taker) = (world.attach(0, 1, 0).unwrap(), world.attach(0, 1, 1).unwrap());
    let long = after(&world, 1 << 30);
    let given = world.offer(giver, at(0, 1), BYTES, long);
    world.settle();
    let offered = world.processes[giver].transfers.offered[0];
    world.take(taker, offered, long);
    world.read(taker);
    // Two parts are requested. Each takes a turn.
    for done in 1..=2 {
        world.poll(0);
        assert_eq!(world.routers[0].counts().operations, done);
    }
    world.settle();
    assert_eq!(world.end_of(giver, given.unwrap()), Some(ArenaTransferEnd::Done));
}

#[test]
fn transfers_of_one_process_ask_for_parts_in_turn() {
    let mut world = World::new(1);
    let (giver, taker) = (world.attach(0, 1, 0).unwrap(), world.attach(0, 1, 1).unwrap());
    let long = after(&world, 1 << 30);
    for _ in 0..PLACES {
        world.offer(giver, at(0, 1), BYTES, long).unwrap();
        world.settle();
    }
    // Two parts in total are in flight at a time: fewer than there are transfers.
    let taken: Vec<_> = (0..PLACES)
        .map(|at| {
            let offered = world.processes[giver].transfers.offered[at];
            world.take(taker, offered, long).unwrap()
        })
        .collect();
    while world.processes[taker].transfers.ends.is_empty() {
        world.read(taker);
        world.poll(0);
    }
    for id in taken {
        let landed = world.processes[taker].endpoint.landed(id);
        assert!(
            landed.is_none_or(|landed| landed >= BYTES as u64 / 2),
            "{landed:?}"
        );
    }
}

/// The giver reads nothing, and its ring is full. It learns of the end of the transfer when it reads, and the taker continues meanwhile.
#[test]
fn a_giver_that_does_not_read_holds_up_no_taker() {
    for far in [false, true] {
        let (mut world, (giver, given), (taker, _)) = begun(far, 0);
        let [other, friend] = [2, 3].map(|endpoint| world.attach(0, 1, endpoint).unwrap());
        world.processes[giver].is_reading = false;
        let long = after(&world, 1 << 30);
        let to = world.processes[taker].address;
        for _ in 1..PLACES {
            world.offer(giver, to, BYTES, long).unwrap();
            world.processes[giver].endpoint.flush();
            world.settle();
        }
        // Another process fills the ring of the giver, and is its only sender.
        let mut sent = 0;
        for _ in 0..10 {
            sent += u64::from(world.send(other, at(0, 0), 0));
            world.settle();
        }
        assert!(sent < 10, "more than its ring and that of the giver hold");
        for number in 1..PLACES {
            let offered = world.processes[giver].transfers.offered[number];
            world.take(taker, offered, long).unwrap();
        }
        world.settle();
        let ends = &world.processes[taker].transfers.ends;
        let done = ends.iter().filter(|(_, end, _)| *end == ArenaTransferEnd::Done);
        assert_eq!((done.count(), ends.len()), (PLACES, PLACES), "{far}");
        assert!(!world.processes[taker].endpoint.has_transfers(), "all is over");
        assert!(world.send(taker, at(0, 3), 0));
        world.settle();
        assert_eq!(
            world.processes[friend].received, 1,
            "{far}: what the taker sends next"
        );
        assert_eq!(world.end_of(giver, given), None);
        // The giver has not taken its range back, so the taker may take it again. The giver then gets no second report.
        let offered = world.processes[giver].transfers.offered[0];
        for _ in 0..5 {
            let again = world.take(taker, offered, long).unwrap();
            world.settle();
            assert_eq!(world.end_of(taker, again), Some(ArenaTransferEnd::Done));
        }
        let ends: u64 = world.routers[0].kept_reports();
        assert!(ends <= PLACES as u64, "{ends}");
        world.processes[giver].is_reading = true;
        world.settle();
        let ends = &world.processes[giver].transfers.ends;
        let done = ends.iter().filter(|(_, end, _)| *end == ArenaTransferEnd::Done);
        assert_eq!((done.count(), ends.len()), (PLACES, PLACES), "{far}");
        assert_eq!(world.processes[giver].received, sent, "and each message");
        world.check();
    }
}
