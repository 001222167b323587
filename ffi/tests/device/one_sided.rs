//! WRITE, READ, WRITE with immediate and atomics, on windows of our own device.

use core::ptr::NonNull;

use doorbell_core::WcStatus;
use doorbell_core::provider::{
    Arena as _, ArrivalKind, Completion as _, Operation, PostFlags, RemoteAccess, RemoteAddress,
    SendBatch as _, SendQueue as _, Slot as _, Window as _, WindowConfig,
};
use doorbell_ffi::{Arena, Slot, StableMemory, Window};

use super::bench::{
    Bench, End, bench, poll, poll_success, post_receives, retire_sends, slot_with, take_arrival,
};

fn window(bench: &Bench, bytes: usize, remote: RemoteAccess) -> Window {
    use doorbell_core::provider::ProtectionDomain as _;
    bench
        .domain
        .window(&WindowConfig::new(bytes, remote))
        .expect("a window")
}

fn address(window: &Window, offset: u64) -> RemoteAddress {
    let remote = window.remote();
    RemoteAddress::new(
        remote.address_of(offset, 0).expect("within the window"),
        remote.rkey(),
    )
}

/// Posts one request, waits for its success, and gives its slots back.
fn run<const N: usize>(end: &mut End, operation: Operation, slots: [Slot; N]) -> Vec<Slot> {
    let mut batch = end.parts.send.stage();
    batch.push(operation, slots, PostFlags::SIGNALED).unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let completion = poll_success(&mut end.sends);
    let mut back = Vec::new();
    end.parts
        .send
        .retire(completion.lend(), |_, slot| back.push(slot))
        .unwrap();
    back
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + seed) as u8).collect()
}

#[test]
fn write_and_read() {
    let Some(bench) = bench("write_and_read") else {
        return;
    };
    let mut arena = bench.arena(8, 40_000);
    let window = window(&bench, 100_000, RemoteAccess::ALL);
    let (mut one, _other) = bench.pair();
    // Sizes around words and packets, at offsets that are aligned to nothing.
    for (seed, (offset, length)) in [
        (0, 1),
        (3, 8),
        (1, 64),
        (4091, 4097),
        (5, 40_000),
        (60_000, 40_000),
    ]
    .into_iter()
    .enumerate()
    {
        let bytes = pattern(length, seed);
        let slot = slot_with(&mut arena, &bytes);
        let back = run(
            &mut one,
            Operation::Write(address(&window, offset as u64)),
            [slot],
        );
        back.into_iter().for_each(|slot| arena.release(slot));
        // A READ that follows on the same queue pair shows what was written.
        let mut slot = arena.lease().unwrap();
        slot.buffer_mut().fill(0);
        slot.set_len_bytes(length);
        let back = run(&mut one, Operation::Read(address(&window, offset as u64)), [slot]);
        assert_eq!(back[0].payload(), bytes, "{offset} {length}");
        let mut copied = vec![0; length];
        window.copy_out(offset, &mut copied).unwrap();
        assert_eq!(copied, bytes);
        assert_eq!(window.load_u8(offset).unwrap(), bytes[0]);
    }
    // One READ into several slots, and one WRITE from several.
    let slots = [3_usize, 500, 1, 64].map(|length| slot_with(&mut arena, &pattern(length, length)));
    let whole: Vec<u8> = slots.iter().flat_map(|slot| slot.payload().to_vec()).collect();
    run(&mut one, Operation::Write(address(&window, 17)), slots);
    let slots = [100_usize, 400, 68].map(|length| slot_with(&mut arena, &vec![0; length]));
    let back = run(&mut one, Operation::Read(address(&window, 17)), slots);
    let seen: Vec<u8> = back.iter().flat_map(|slot| slot.payload().to_vec()).collect();
    assert_eq!(seen, whole);
}

#[test]
fn write_with_immediate_consumes_a_receive_and_leaves_it_alone() {
    let Some(bench) = bench("write_with_immediate") else {
        return;
    };
    let mut arena = bench.arena(8, 64);
    let window = window(&bench, 4096, RemoteAccess::WRITE);
    let (mut sender, mut receiver) = bench.pair();
    post_receives(&mut receiver.parts.receive, &mut arena, 2);
    let slot = slot_with(&mut arena, b"by the side");
    let write = Operation::WriteWithImmediate(address(&window, 9), 0xdead_beef);
    run(&mut sender, write, [slot]);
    let completion = poll_success(&mut receiver.receives);
    let (arrival, bytes) = take_arrival(&mut receiver, completion);
    assert_eq!(arrival.kind, ArrivalKind::WriteWithImmediate);
    assert_eq!(arrival.immediate, Some(0xdead_beef));
    assert_eq!(arrival.payload_bytes, 11);
    assert_eq!(bytes, [b""]);
    let mut copied = [0; 11];
    window.copy_out(9, &mut copied).unwrap();
    assert_eq!(&copied, b"by the side");
    // Inline, and without a byte.
    let mut batch = sender.parts.send.stage();
    let write = Operation::WriteWithImmediate(address(&window, 0), 7);
    batch
        .push_inline(write, b"", PostFlags::SIGNALED | PostFlags::SOLICITED)
        .unwrap();
    assert_eq!(batch.ring(), Ok(1));
    let completion = poll_success(&mut sender.sends);
    retire_sends(&mut sender, &mut arena, completion);
    let completion = poll_success(&mut receiver.receives);
    let (arrival, _) = take_arrival(&mut receiver, completion);
    assert_eq!((arrival.immediate, arrival.payload_bytes), (Some(7), 0));
}

#[test]
fn atomics() {
    let Some(bench) = bench("atomics") else { return };
    let mut arena = bench.arena(4, 64);
    let window = window(&bench, 4096, RemoteAccess::ALL);
    let (mut one, _other) = bench.pair();
    let remote = address(&window, 8);
    window.copy_in(8, &100_u64.to_ne_bytes()).unwrap();
    let mut atomic = |operation| {
        let back = run(&mut one, operation, [arena.lease().unwrap()]);
        assert_eq!(back[0].len_bytes(), 8);
        let before = u64::from_ne_bytes(back[0].payload().try_into().unwrap());
        back.into_iter().for_each(|slot| arena.release(slot));
        before
    };
    assert_eq!(atomic(Operation::FetchAndAdd { remote, add: 5 }), 100);
    assert_eq!(
        atomic(Operation::FetchAndAdd {
            remote,
            add: u64::MAX
        }),
        105
    );
    assert_eq!(
        atomic(Operation::CompareAndSwap {
            remote,
            compare: 104,
            swap: 7
        }),
        104
    );
    assert_eq!(
        atomic(Operation::CompareAndSwap {
            remote,
            compare: 104,
            swap: 9
        }),
        7
    );
    assert_eq!(window.load_u64(8), Ok(7));
    assert!(window.load_u64(4).is_err());
}

#[test]
fn a_chain_of_operations_rings_once() {
    let Some(bench) = bench("a_chain_of_operations_rings_once") else {
        return;
    };
    let mut arena = bench.arena(16, 64);
    let window = window(&bench, 4096, RemoteAccess::ALL);
    let (mut sender, mut receiver) = bench.pair();
    post_receives(&mut receiver.parts.receive, &mut arena, 2);
    let flag = 1_u64.to_ne_bytes();
    let mut batch = sender.parts.send.stage();
    let slot = slot_with(&mut arena, b"payload");
    batch
        .push(Operation::Write(address(&window, 0)), [slot], PostFlags::empty())
        .unwrap();
    batch
        .push_inline(Operation::Write(address(&window, 64)), &flag, PostFlags::empty())
        .unwrap();
    let mut slot = arena.lease().unwrap();
    slot.set_len_bytes(7);
    batch
        .push(Operation::Read(address(&window, 0)), [slot], PostFlags::empty())
        .unwrap();
    let add = Operation::FetchAndAdd {
        remote: address(&window, 64),
        add: 41,
    };
    batch
        .push(add, [arena.lease().unwrap()], PostFlags::FENCE)
        .unwrap();
    let done = b"done";
    batch
        .push_inline(Operation::Send, done, PostFlags::FENCE | PostFlags::SIGNALED)
        .unwrap();
    assert_eq!(batch.ring(), Ok(5));
    let completion = poll_success(&mut sender.sends);
    let mut back = Vec::new();
    let retired = sender
        .parts
        .send
        .retire(completion.lend(), |_, slot| back.push(slot.payload().to_vec()))
        .unwrap();
    assert_eq!(retired.count(), 5);
    assert_eq!(back, [b"payload".to_vec(), b"payload".to_vec(), flag.to_vec()]);
    let completion = poll_success(&mut receiver.receives);
    assert_eq!(take_arrival(&mut receiver, completion).1, [b"done"]);
    assert_eq!(window.load_u64(64), Ok(42));
}

#[test]
fn a_window_grants_what_it_was_made_with() {
    let Some(bench) = bench("a_window_grants_what_it_was_made_with") else {
        return;
    };
    let mut arena = bench.arena(4, 64);
    let read_only = window(&bench, 4096, RemoteAccess::READ);
    for operation in [
        Operation::Write(address(&read_only, 0)),
        Operation::FetchAndAdd {
            remote: address(&read_only, 0),
            add: 1,
        },
    ] {
        let (mut one, _other) = bench.pair();
        let mut batch = one.parts.send.stage();
        let slot = slot_with(&mut arena, &[1; 8]);
        batch.push(operation, [slot], PostFlags::empty()).unwrap();
        assert_eq!(batch.ring(), Ok(1));
        // S5: an error makes a completion, signaled or not.
        let completion = poll(&mut one.sends, 1).pop().unwrap();
        let retired = one
            .parts
            .send
            .retire(completion.lend(), |_, slot| arena.release(slot))
            .unwrap();
        assert_eq!(retired.status, WcStatus::REM_ACCESS_ERR);
    }
    assert_eq!(read_only.load_u64(0), Ok(0));
    assert_eq!(arena.free_slots(), 4);
}

#[test]
fn a_window_has_no_bytes_beyond_its_end() {
    let Some(bench) = bench("a_window_has_no_bytes_beyond_its_end") else {
        return;
    };
    let window = window(&bench, 100, RemoteAccess::ALL);
    let mut bytes = [0; 101];
    assert_eq!(window.bytes(), 100);
    assert!(window.copy_out(0, &mut bytes).is_err());
    assert!(window.copy_out(0, &mut bytes[..100]).is_ok());
    assert!(window.copy_out(100, &mut bytes[..0]).is_ok());
    assert!(window.copy_in(100, &bytes[..1]).is_err());
    assert!(window.copy_in(usize::MAX, &bytes[..2]).is_err());
    assert!(window.load_u8(99).is_ok());
    assert!(window.load_u8(100).is_err());
    assert!(window.load_u64(88).is_ok());
    assert!(window.load_u64(96).is_err());
    // Words: as whole ones, aligned, and within the window.
    window.store_u64(88, 0x0102_0304_0506_0708).unwrap();
    assert_eq!(window.load_u8(88), Ok(0x0102_0304_0506_0708_u64.to_ne_bytes()[0]));
    assert_eq!(window.compare_exchange_u64(88, 0, 1), Ok(0x0102_0304_0506_0708));
    assert_eq!(
        window.compare_exchange_u64(88, 0x0102_0304_0506_0708, 5),
        Ok(0x0102_0304_0506_0708)
    );
    assert_eq!(window.load_u64(88), Ok(5));
    for outside in [1, 81, 96, usize::MAX - 7] {
        assert!(window.store_u64(outside, 0).is_err());
        assert!(window.compare_exchange_u64(outside, 0, 0).is_err());
    }
    assert_eq!(window.load_u64(88), Ok(5));
    // Every alignment of beginning and end.
    for offset in 0..17 {
        for length in 0..40 {
            let written = pattern(length, offset);
            window.copy_in(offset, &written).unwrap();
            let mut read = vec![0; length];
            window.copy_out(offset, &mut read).unwrap();
            assert_eq!(read, written);
        }
    }
}

/// Threads copy in and out at once: every byte is one that a thread wrote, and words that are exchanged are
/// counted exactly.
#[test]
fn threads_share_a_window() {
    const ROUNDS: u64 = 2_000;
    let Some(bench) = bench("threads_share_a_window") else {
        return;
    };
    let window = window(&bench, 4096, RemoteAccess::ALL);
    let window = &window;
    std::thread::scope(|scope| {
        for value in [1_u8, 2] {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    window.copy_in(9, &[value; 3000]).unwrap();
                }
            });
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let mut before = window.load_u64(4000).unwrap();
                    loop {
                        let found = window.compare_exchange_u64(4000, before, before + 1).unwrap();
                        if found == before {
                            break;
                        }
                        before = found;
                    }
                }
            });
        }
        let mut bytes = [0; 3000];
        for _ in 0..ROUNDS {
            window.copy_out(9, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte <= 2));
        }
    });
    assert_eq!(window.load_u64(4000), Ok(2 * ROUNDS));
    assert!([1, 2].contains(&window.load_u8(9).unwrap()));
    assert_eq!(window.load_u8(8), Ok(0));
    assert_eq!(window.load_u8(3009), Ok(0));
}

/// Memory of the test's own, given back to nobody.
struct Lent(NonNull<u8>, usize);
// SAFETY: leaked bytes that only the value has.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}
// SAFETY: leaked, initialised, and reached through nothing else; tests do not fork.
unsafe impl StableMemory for Lent {
    fn region(&self) -> (NonNull<u8>, usize) {
        (self.0, self.1)
    }
}

impl Lent {
    fn new(bytes: usize) -> Self {
        let memory = Box::leak(vec![0_u8; bytes].into_boxed_slice());
        Self(NonNull::from(memory).cast(), bytes)
    }
}

#[test]
fn adopted_memory_serves_as_well() {
    let Some(bench) = bench("adopted_memory_serves_as_well") else {
        return;
    };
    let mut arena: Arena = bench.domain.adopt_arena(Lent::new(4096), 100).unwrap();
    assert!(arena.slots() >= 31 && arena.slot_bytes() == 128);
    let window = bench
        .domain
        .adopt_window(Lent::new(1000), RemoteAccess::ALL)
        .unwrap();
    let (mut sender, _receiver) = bench.pair();
    let slot = slot_with(&mut arena, b"lent");
    run(&mut sender, Operation::Write(address(&window, 996)), [slot]);
    let mut copied = [0; 4];
    window.copy_out(996, &mut copied).unwrap();
    assert_eq!(&copied, b"lent");
    assert!(bench.domain.adopt_arena(Lent::new(64), 100).is_err());
}

#[test]
fn one_request_gathers_from_our_memory_and_from_adopted() {
    let Some(bench) = bench("one_request_gathers_from_our_memory_and_from_adopted") else {
        return;
    };
    const PAGE_BYTES: u32 = 4096;
    let mut headers = bench.arena(4, 64);
    let mut pages = bench
        .domain
        .adopt_arena(Lent::new(3 * PAGE_BYTES as usize + 63), PAGE_BYTES)
        .unwrap();
    assert_eq!(pages.slots(), 3);
    // Memory that an engine lends is taken as it is: nothing was asked of the machine for it.
    assert_eq!(pages.placement().shortfalls().count(), 0);
    let window = window(&bench, 8192, RemoteAccess::ALL);
    let (mut sender, _receiver) = bench.pair();
    for round in 0..3 {
        let header = slot_with(&mut headers, b"a page follows:");
        let body = pattern(PAGE_BYTES as usize, round);
        let page = slot_with(&mut pages, &body);
        assert_eq!(page.index() as usize, round, "in the order they lie in");
        run(
            &mut sender,
            Operation::Write(address(&window, 64)),
            [header, page],
        );
        let mut copied = vec![0; 15 + PAGE_BYTES as usize];
        window.copy_out(64, &mut copied).unwrap();
        assert_eq!(&copied[..15], b"a page follows:");
        assert!(copied[15..] == body);
    }
    assert_eq!((headers.free_slots(), pages.free_slots()), (4, 3));
    // Pages are distinguished by their index, and their bytes are as they were.
    let mut back: Vec<_> = core::iter::from_fn(|| pages.lease()).collect();
    back.sort_by_key(Slot::index);
    for (round, page) in back.iter_mut().enumerate() {
        page.set_len_bytes(PAGE_BYTES as usize);
        assert!(page.payload() == pattern(PAGE_BYTES as usize, round));
    }
}
