//! The ring against a device that takes as much of a chunk as the test says, and looks at what it got.

use std::collections::VecDeque;

use doorbell_core::in_flight::{InFlight, Request, storage_for};
use doorbell_core::provider::{Arena as _, ArenaConfig, Context as _, ProtectionDomain as _, Provider as _};
use doorbell_core::{WorkId, WorkKind};
use rdma_sys::ibv_recv_wr;

use super::ReceiveRing;
use crate::unposted::{self, Staging as _};
use crate::{Arena, Rdma, page_faults};

/// A ring whose positions begin where they come round.
fn ring(depth: u32) -> ReceiveRing {
    let requests = core::iter::repeat_with(Request::default).take(storage_for(depth).unwrap());
    let positions = InFlight::new(requests.collect(), WorkKind::Receive, 7, depth, 0x00ff_ffff);
    ReceiveRing::new(positions.unwrap())
}

fn arena(slots: u32) -> Arena {
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&doorbell_fake::library_path().unwrap()) }.unwrap();
    let rdma = Rdma::load().unwrap();
    let mut device = None;
    rdma.scan(
        &mut |port| device = device.take().or(Some(port.device.clone())),
        &mut |_, _| (),
    )
    .unwrap();
    let context = rdma.open(&device.unwrap()).unwrap();
    let domain = context.protection_domain().unwrap();
    domain.arena(&ArenaConfig::new(slots, 64)).unwrap()
}

/// A receive as the device has it: its id, and where its memory begins.
#[derive(Clone, Debug, PartialEq)]
struct Posted {
    id: WorkId,
    memory: Vec<u64>,
}

#[derive(Default)]
struct Device {
    receives: VecDeque<Posted>,
    /// The position of the next receive that is posted.
    next: Option<u64>,
}

/// Answer of the device to a chunk.
#[derive(Clone, Copy)]
enum Answer {
    All,
    /// The first that it refuses is named.
    Named(u32),
    /// A device that took so many, and names none.
    Unnamed(u32),
}

impl Device {
    /// Takes as much as the answer says. No memory is given to it twice.
    fn post(&mut self, ring: &mut ReceiveRing, answer: Answer) -> (i32, u32) {
        let staged = ring.staged();
        ring.submit(|first, refused| {
            let (mut next, mut count): (*mut ibv_recv_wr, u32) = (first, 0);
            let takes = match answer {
                Answer::All => u32::MAX,
                Answer::Named(takes) | Answer::Unnamed(takes) => takes,
            };
            // SAFETY: null, or a request of the ring, which is alive.
            while let Some(request) = unsafe { next.as_ref() } {
                if count == takes {
                    *refused = match answer {
                        Answer::Named(_) => next,
                        _ => core::ptr::null_mut(),
                    };
                    return libc::ENOMEM;
                }
                let elements = (0..usize::try_from(request.num_sge).unwrap()).map(|index| {
                    // SAFETY: there are as many elements as the request says.
                    let element = *unsafe { core::slice::from_raw_parts(request.sg_list, index + 1) }
                        .last()
                        .unwrap();
                    assert_eq!(element.length, 64);
                    element.addr
                });
                let id = WorkId::from_raw(request.wr_id);
                assert_eq!(
                    self.next.unwrap_or(id.position()),
                    id.position(),
                    "ids follow each other"
                );
                self.next = Some((id.position() + 1) % (1 << 40));
                let memory: Vec<_> = elements.collect();
                let of_others = self.receives.iter().flat_map(|receive| &receive.memory);
                assert!(
                    of_others.clone().all(|address| !memory.contains(address)),
                    "posted twice"
                );
                assert!(
                    self.receives.iter().all(|receive| receive.id != id),
                    "an id was used twice"
                );
                self.receives.push_back(Posted { id, memory });
                next = request.next;
                count += 1;
            }
            assert_eq!(count, staged, "the chunk is what was staged");
            0
        })
    }
}

/// Takes the slot of the oldest receive, as the queue does.
fn take_oldest(ring: &mut ReceiveRing, id: WorkId, sequence: u64) -> Option<crate::Slot> {
    Some(ring.retire_oldest(id, sequence, ring.places())?.take())
}

fn address(slot: &crate::Slot) -> u64 {
    slot.start().as_ptr().expose_provenance() as u64
}

#[test]
fn a_receive_that_ends_gives_back_the_memory_that_the_device_had() {
    for depth in [1, 2, 3, 5, 8] {
        let mut arena = arena(16);
        let (mut ring, mut device) = (ring(depth), Device::default());
        let (mut sequence, mut put_back) = (0, 0);
        for round in 0..200_u32 {
            for index in 0..ring.positions().room() {
                // Some come back at once, as memory of messages does, and some were elsewhere.
                let staged = if (round + index) % 5 == 3 && arena.free_slots() > 2 {
                    ring.stage([(); 2].map(|()| arena.lease().unwrap())).is_ok()
                } else {
                    arena.lease().is_some_and(|slot| ring.stage([slot]).is_ok())
                };
                assert!(staged);
            }
            assert_eq!(device.post(&mut ring, Answer::All).0, 0);
            let ends = 1 + round % depth;
            for _ in 0..ends {
                let Posted { id, memory } = device.receives.pop_front().unwrap();
                sequence += 1;
                if let Some(slot) = take_oldest(&mut ring, id, sequence) {
                    assert_eq!(memory, [address(&slot)]);
                    assert!(!ring.has_lent(sequence - 1));
                    if round % 3 == 1 || !ring.has_lent(sequence) {
                        arena.release(slot);
                    } else {
                        core::mem::forget(slot);
                        // SAFETY: the ring lent it, and it is given up.
                        unsafe { ring.put_back() };
                        put_back += 1;
                    }
                } else {
                    assert_eq!(memory.len(), 2, "it is not a message in one slot");
                    let mut back = Vec::new();
                    ring.retire(id, |_, slot| back.push(slot)).unwrap();
                    assert_eq!(back.iter().map(address).collect::<Vec<_>>(), memory);
                    back.into_iter().for_each(|slot| arena.release(slot));
                }
                assert!(take_oldest(&mut ring, id, sequence).is_none(), "a duplicate");
                assert!(ring.retire(id, |_, _| ()).is_err(), "a duplicate");
                if let Some(behind) = device.receives.get(1) {
                    assert!(
                        take_oldest(&mut ring, behind.id, sequence).is_none(),
                        "it is not the next one"
                    );
                }
            }
            assert_eq!(ring.positions().posted() as usize, device.receives.len());
        }
        assert_eq!(put_back > 0, depth.is_power_of_two(), "{depth}");
        drop(ring);
        assert_eq!(arena.free_slots(), 16, "{depth}");
    }
}

#[test]
fn a_chunk_that_is_refused_whole_or_in_part_is_posted_later_and_nothing_twice() {
    for depth in [1, 4, 6, 16] {
        let mut arena = arena(depth);
        let (mut ring, mut device) = (ring(depth), Device::default());
        for round in 0..300_u32 {
            while let Some(slot) = arena.lease() {
                ring.stage([slot]).unwrap();
            }
            let staged = ring.staged();
            let takes = round % 7 % (staged + 1);
            let answer = match round % 4 {
                0 => Answer::Named(0),
                1 => Answer::Named(takes),
                2 => Answer::Unnamed(takes),
                _ => Answer::All,
            };
            let had = device.receives.len() as u32;
            let (status, posted) = device.post(&mut ring, answer);
            let has = device.receives.len() as u32 - had;
            match answer {
                Answer::Unnamed(_) if status != 0 => {
                    assert_eq!(posted, staged, "the device may have all of them");
                    // The ring runs dry of those that it did not take: they never end, and nothing is posted in their places.
                    assert_eq!((ring.staged(), ring.positions().posted()), (0, had + staged));
                    // It is over here: the next one begins anew.
                    drop(core::mem::replace(&mut ring, self::ring(depth)));
                    device = Device::default();
                    assert_eq!(arena.free_slots(), depth);
                    continue;
                }
                _ => assert_eq!(posted, has),
            }
            assert_eq!(ring.staged(), staged - posted);
            unposted::discard(&mut ring);
            assert_eq!(ring.positions().posted() as usize, device.receives.len());
            assert_eq!(
                arena.free_slots(),
                depth - ring.positions().posted(),
                "the rest is at home"
            );
            for _ in 0..(round % 3).min(device.receives.len() as u32) {
                let Posted { id, memory } = device.receives.pop_front().unwrap();
                let slot = take_oldest(&mut ring, id, 1).unwrap();
                assert_eq!(memory, [address(&slot)]);
                arena.release(slot);
            }
        }
    }
}

#[test]
fn a_completion_that_is_dropped_is_covered_by_a_later_one_and_a_panic_loses_nothing() {
    let mut arena = arena(8);
    let (mut ring, mut device) = (ring(4), Device::default());
    for panics in [false, true].repeat(5) {
        for _ in 0..4 {
            ring.stage([(); 2].map(|()| arena.lease().unwrap())).unwrap();
        }
        device.post(&mut ring, Answer::All);
        let last = device.receives.drain(..).next_back().unwrap().id;
        assert!(
            take_oldest(&mut ring, last, 1).is_none(),
            "it is not the next one"
        );
        let mut calls = 0;
        let outcome = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
            let _ = ring.retire(last, |_, slot| {
                calls += 1;
                assert!(!panics || calls < 4, "the callback's own");
                arena.release(slot);
            });
        }));
        assert_eq!((outcome.is_err(), calls), (panics, if panics { 4 } else { 8 }));
        assert_eq!((ring.positions().in_flight(), arena.free_slots()), (0, 8));
    }
}

#[test]
fn a_slot_is_put_back_where_it_was_only_if_nothing_came_between() {
    let mut arena = arena(8);
    let mut ring = ring(4);
    let mut device = Device::default();
    for between in 0..7 {
        while let (true, Some(slot)) = (ring.positions().room() > 0, arena.lease()) {
            ring.stage([slot]).unwrap();
        }
        device.post(&mut ring, Answer::All);
        let id = device.receives.pop_front().unwrap().id;
        let slot = take_oldest(&mut ring, id, 7).unwrap();
        assert!(ring.has_lent(7) && !ring.has_lent(6));
        match between {
            0 => {}
            1 => drop(ring.stage([arena.lease().unwrap()]).unwrap()),
            2 => unposted::discard(&mut ring),
            3 => ring.unlend(),
            4 => {
                let id = device.receives.pop_front().unwrap().id;
                arena.release(take_oldest(&mut ring, id, 8).unwrap());
                assert!(!ring.has_lent(8), "a place is empty before it");
            }
            5 => {
                let id = device.receives.pop_front().unwrap().id;
                ring.retire(id, |_, slot| arena.release(slot)).unwrap();
            }
            _ => {
                ring.drain();
                device = Device::default();
            }
        }
        assert_eq!(ring.has_lent(7), between == 0, "{between}");
        arena.release(slot);
    }
}

#[test]
fn a_ring_is_in_place_and_may_move() {
    const DEPTH: u32 = 1 << 12;
    let mut ring = ring(DEPTH);
    let before = page_faults::minor();
    for _ in 0..DEPTH {
        ring.stage([]).unwrap();
    }
    assert_eq!(page_faults::minor() - before, 0);
    let (mut moved, mut device) = (Box::new(ring), Device::default());
    assert_eq!(device.post(&mut moved, Answer::All), (0, DEPTH));
    assert_eq!(device.post(&mut moved, Answer::All), (0, 0));
}
