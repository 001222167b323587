//! A peer that keeps a key: it writes all the time, connects again when it is cut off, and reaches nothing once the key is taken back.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use doorbell_core::WcStatus;
use doorbell_core::provider::{
    Arena as _, Completion as _, Operation, PostFlags, ProtectionDomain as _, RemoteAccess, RemoteAddress,
    SendBatch as _, SendQueue as _, Window as _, WindowConfig,
};
use doorbell_ffi::{Arena, Slot};

use super::bench::{Bench, End, PATIENCE, bench, poll, slot_with};

const BYTES: usize = 64 << 10;
const PART: Range<usize> = 4096..60 << 10;
/// WRITEs under way at a time.
const AHEAD: usize = 8;
const ROUNDS: u8 = 6;

/// Counts of the hostile peer.
#[derive(Default)]
struct Seen {
    done: AtomicU32,
    denied: AtomicU32,
    is_over: AtomicBool,
}

/// Writes 0xee over the range until it is told to end.
fn write_on(bench: &Bench, to: RemoteAddress, seen: &Seen) {
    let mut arena = bench.arena(16, u32::try_from(PART.len()).unwrap());
    let slots = (0..AHEAD).map(|_| slot_with(&mut arena, &vec![0xee; PART.len()]));
    let mut slots: Vec<Slot> = slots.collect();
    let mut ends: Option<(End, End)> = None;
    while !seen.is_over.load(Ordering::SeqCst) {
        let (one, _) = ends.get_or_insert_with(|| bench.pair());
        if let Err(status) = write(one, to, &mut slots) {
            assert_eq!(status, WcStatus::REM_ACCESS_ERR);
            seen.denied.fetch_add(1, Ordering::SeqCst);
            ends = None;
        } else {
            seen.done.fetch_add(1, Ordering::SeqCst);
        }
    }
    release(&mut arena, slots);
}

fn release(arena: &mut Arena, slots: Vec<Slot>) {
    for slot in slots {
        arena.release(slot);
    }
}

/// Posts a WRITE of each slot, and waits for all. The first status that is no success.
fn write(one: &mut End, to: RemoteAddress, slots: &mut Vec<Slot>) -> Result<(), WcStatus> {
    let mut batch = one.parts.send.stage();
    for slot in slots.drain(..) {
        batch
            .push(Operation::Write(to), [slot], PostFlags::SIGNALED)
            .unwrap();
    }
    assert_eq!(batch.ring(), Ok(u32::try_from(AHEAD).unwrap()));
    let mut outcome = Ok(());
    for completion in poll(&mut one.sends, AHEAD) {
        let retired = one
            .parts
            .send
            .retire(completion.lend(), |_, slot| slots.push(slot));
        let status = retired.unwrap().status;
        if !status.is_success() && outcome.is_ok() {
            outcome = Err(status);
        }
    }
    outcome
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_key_that_is_taken_back_opens_nothing_to_a_peer_that_writes_on() {
    let Some(bench) = bench("a_key_that_is_taken_back_opens_nothing_to_a_peer_that_writes_on") else {
        return;
    };
    let config = WindowConfig::new(BYTES, RemoteAccess::NONE);
    let memory = bench.domain.window(&config).unwrap();
    for round in 0..ROUNDS {
        let granted = bench
            .domain
            .window_of(&memory, PART, RemoteAccess::WRITE)
            .unwrap();
        let remote = granted.remote();
        let to = RemoteAddress::new(remote.address_of(0, PART.len() as u64).unwrap(), remote.rkey());
        let seen = Seen::default();
        std::thread::scope(|scope| {
            scope.spawn(|| write_on(&bench, to, &seen));
            wait_until("it writes", || seen.done.load(Ordering::SeqCst) > 2);
            // Taken back while WRITEs are under way: from here on the memory is ours alone.
            drop(granted);
            let ours = vec![round; BYTES];
            memory.copy_in(0, &ours).unwrap();
            let before = seen.denied.load(Ordering::SeqCst);
            wait_until("it tries again and again", || {
                seen.denied.load(Ordering::SeqCst) > before + 2
            });
            seen.is_over.store(true, Ordering::SeqCst);
            let mut now = vec![0; BYTES];
            memory.copy_out(0, &mut now).unwrap();
            assert!(now == ours, "round {round}: it wrote behind the revocation");
        });
    }
}
