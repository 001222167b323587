//! Detached slots: what is attached again, once, and what never is.

use doorbell_core::provider::{
    Arena, ArenaConfig, Attacher, DetachedSlot, Operation, PostFlags, ProtectionDomain, Provider, Slot,
};

use super::{Rig, SLOT_BYTES, SLOTS, Side, connected};

/// A slot of a side, detached with these bytes in it.
fn detached<P: Provider>(side: &mut Side<P>, bytes: &[u8]) -> DetachedSlot {
    side.slot(bytes).detach()
}

/// Asserts that these words attach nothing, nor any that are like them.
fn attaches_nothing<P: Provider>(side: &mut Side<P>, words: DetachedSlot) {
    for words in [
        words,
        DetachedSlot {
            tag: words.tag.wrapping_add(1),
            ..words
        },
        DetachedSlot {
            tag: words.tag.wrapping_sub(1),
            ..words
        },
    ] {
        assert!(side.arena.attach(words).is_none(), "{words:?}");
    }
}

pub(crate) fn a_detached_slot_is_attached_once<R: Rig>(rig: &R) {
    let [mut near, _far] = connected(rig);
    let words = detached(&mut near, b"kept");
    assert_eq!(words.len_bytes, 4);
    assert_eq!(near.slots_home(), SLOTS - 1, "it is nobody's to lease");
    let slot = near.arena.attach(words).unwrap();
    assert_eq!(slot.payload(), b"kept");
    attaches_nothing(&mut near, words);
    near.arena.release(slot);
    assert_eq!(near.slots_home(), SLOTS);
    attaches_nothing(&mut near, words);
}

pub(crate) fn a_slot_detached_elsewhere_brings_its_bytes<R: Rig>(rig: &R) {
    let [mut near, _far] = connected(rig);
    let slots: Vec<_> = core::iter::from_fn(|| near.arena.lease()).collect();
    let filling = std::thread::spawn(move || {
        let fill = |(mark, mut slot): (u8, <R::P as Provider>::Slot)| {
            slot.buffer_mut().fill(mark);
            slot.set_len_bytes(usize::from(mark));
            slot.detach()
        };
        (0..).zip(slots).map(fill).collect::<Vec<_>>()
    });
    for (mark, words) in (0_u8..).zip(filling.join().unwrap()) {
        let slot = near.arena.attach(words).unwrap();
        assert_eq!(slot.payload(), vec![mark; usize::from(mark)]);
    }
    assert_eq!(near.slots_home(), SLOTS);
}

pub(crate) fn what_is_not_detached_is_not_attached<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let words = detached(&mut near, b"x");
    let slot = near.arena.attach(words).unwrap();
    // Leased.
    attaches_nothing(&mut near, words);
    // Posted.
    near.post_slots(Operation::Send, [slot], PostFlags::SIGNALED);
    attaches_nothing(&mut near, words);
    far.post_receives(1);
    near.sent(1);
    // Free.
    attaches_nothing(&mut near, words);
    // Never given out, or no slot at all.
    for index in [0, SLOTS - 1, SLOTS, u32::MAX] {
        for tag in [0, 1, words.tag & !0xffff, words.tag & !0xffff | 1, u32::MAX] {
            let made_up = DetachedSlot {
                index,
                len_bytes: 1,
                tag,
            };
            assert!(near.arena.attach(made_up).is_none(), "{made_up:?}");
        }
    }
    assert_eq!(near.slots_home(), SLOTS);
}

pub(crate) fn words_of_another_arena_attach_nothing<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let mut other = near.domain.arena(&ArenaConfig::new(SLOTS, SLOT_BYTES)).unwrap();
    let (ours, theirs) = (detached(&mut near, b"ours"), detached(&mut far, b"theirs"));
    let others = other.lease().unwrap().detach();
    for foreign in [ours, theirs] {
        assert!(other.attach(foreign).is_none());
    }
    attaches_nothing(&mut near, theirs);
    attaches_nothing(&mut near, others);
    assert_eq!(near.arena.attach(ours).unwrap().payload(), b"ours");
    assert_eq!(far.arena.attach(theirs).unwrap().payload(), b"theirs");
    assert!(other.attach(others).is_some());
}

pub(crate) fn the_length_of_words_is_cut<R: Rig>(rig: &R) {
    let [mut near, _far] = connected(rig);
    let words = DetachedSlot {
        len_bytes: u32::MAX,
        ..detached(&mut near, b"x")
    };
    let slot = near.arena.attach(words).unwrap();
    assert_eq!(slot.len_bytes(), slot.capacity_bytes());
}

pub(crate) fn lost_words_keep_their_slot_out<R: Rig>(rig: &R) {
    let [mut near, _far] = connected(rig);
    detached(&mut near, b"lost");
    let words = detached(&mut near, b"kept");
    assert_eq!(near.slots_home(), SLOTS - 2);
    // Words of a slot that was detached a second time differ from its earlier words.
    let again = near.arena.attach(words).unwrap().detach();
    attaches_nothing(&mut near, words);
    assert_eq!(near.arena.attach(again).unwrap().payload(), b"kept");
    assert_eq!(near.slots_home(), SLOTS - 1);
}

pub(crate) fn of_threads_that_attach_a_slot_one_gets_it<R: Rig>(rig: &R) {
    let [mut near, _far] = connected(rig);
    let attacher = near.arena.attacher();
    for round in 0..50_u8 {
        let words = detached(&mut near, &[round]);
        let slots: Vec<_> = std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(|| attacher.clone().attach(words)));
            threads
                .into_iter()
                .filter_map(|thread| thread.join().unwrap())
                .collect()
        });
        let [slot] = slots.try_into().map_err(|_| "one").unwrap();
        assert_eq!(slot.payload(), [round]);
        assert!(attacher.owns(&slot));
        attaches_nothing(&mut near, words);
        if round % 2 == 0 {
            near.arena.release(slot);
        }
    }
    assert_eq!(near.slots_home(), SLOTS);
}

pub(crate) fn an_attacher_outlives_its_arena<R: Rig>(rig: &R) {
    let [mut near, mut far] = connected(rig);
    let mut other = near.domain.arena(&ArenaConfig::new(2, SLOT_BYTES)).unwrap();
    let attacher = other.attacher();
    let mut slot = other.lease().unwrap();
    slot.buffer_mut()[..4].copy_from_slice(b"late");
    slot.set_len_bytes(4);
    let words = slot.detach();
    assert!(!attacher.owns(&near.slot(b"x")));
    drop(other);
    // Sent after the arena is gone, by what was made of words.
    let slot = attacher.attach(words).unwrap();
    assert!(attacher.attach(words).is_none());
    far.post_receives(1);
    near.post_slots(Operation::Send, [slot], PostFlags::SIGNALED);
    near.sent(1);
    drop(attacher);
    assert_eq!(near.slots_home(), SLOTS);
}
