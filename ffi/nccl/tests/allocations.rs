//! Messages allocate nothing once memory is warm: neither the calls of NCCL's nor the polls within them.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::time::Duration;
use std::alloc::System;
use std::time::Instant;

use doorbell_nccl::abi::tables::NetV12;
use doorbell_nccl::abi::{Logger, NcclResult, PTR_HOST, Profiler};
use doorbell_nccl::ncclNetPlugin_v12 as NET;

/// Counts what this thread allocates.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: each call goes to the system's allocator as it is, and counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls a slot of the table.
macro_rules! call {
    ($slot:ident, $($argument:expr),*) => {{
        let table: &NetV12 = &NET;
        // SAFETY: the arguments live through the call, and pointers are valid for what the interface does with them.
        let result = unsafe { (table.$slot.unwrap())($($argument),*) };
        assert_eq!(result, NcclResult::SUCCESS, stringify!($slot));
    }};
}

fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
    }
}

/// Two contexts, and a comm from the first to the second.
struct Pair {
    send: *mut c_void,
    receive: *mut c_void,
}

impl Pair {
    fn connect() -> Self {
        let (mut a, mut b, mut listener, mut handle) = (null_mut(), null_mut(), null_mut(), [0_u8; 128]);
        for context in [&mut a, &mut b] {
            call!(
                init,
                &raw mut *context,
                0,
                null_mut(),
                Logger(None),
                Profiler(None)
            );
        }
        let at: *mut c_void = handle.as_mut_ptr().cast();
        call!(listen, b, 0, at, &raw mut listener);
        let (mut send, mut receive): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
        eventually("a comm", || {
            if send.is_null() {
                call!(connect, a, 0, at, &raw mut send, null_mut());
            }
            if receive.is_null() {
                call!(accept, listener, &raw mut receive, null_mut());
            }
            (!send.is_null() && !receive.is_null()).then_some(())
        });
        Self { send, receive }
    }

    /// Moves a message. Both sides' calls are made.
    fn message(&self, bytes: usize, data: [*mut c_void; 2], memory: [*mut c_void; 2]) {
        let (mut receiving, mut sending): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
        let ([mut to], [mut size], [mut tag], [mut into]) = ([data[1]], [bytes], [0], [memory[1]]);
        let (to, size, tag, into) = (&raw mut to, &raw mut size, &raw mut tag, &raw mut into);
        eventually("a receive", || {
            call!(
                irecv,
                self.receive,
                1,
                to,
                size,
                tag,
                into,
                null_mut(),
                &raw mut receiving
            );
            (!receiving.is_null()).then_some(())
        });
        let (mut done, mut came): (c_int, c_int) = (0, 0);
        eventually("a send", || {
            // Both ranks are on this thread: one that is not called does not go on.
            call!(test, receiving, &raw mut done, &raw mut came);
            call!(
                isend,
                self.send,
                data[0],
                bytes,
                0,
                memory[0],
                null_mut(),
                &raw mut sending
            );
            (!sending.is_null()).then_some(())
        });
        for request in [sending, receiving] {
            eventually("its end", || {
                call!(test, request, &raw mut done, &raw mut came);
                (done == 1).then_some(())
            });
            assert_eq!(usize::try_from(came), Ok(bytes));
        }
    }
}

#[test]
fn messages_allocate_nothing() {
    const ROOM: usize = 65_536;
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    // SAFETY: no other thread runs yet that reads the environment.
    unsafe { std::env::set_var("DOORBELL_UNAUTHENTICATED", "true") };
    let pair = Pair::connect();
    let (mut from, mut to) = (vec![1_u8; ROOM], vec![0_u8; ROOM]);
    let data: [*mut c_void; 2] = [from.as_mut_ptr().cast(), to.as_mut_ptr().cast()];
    let mut memory: [*mut c_void; 2] = [null_mut(); 2];
    let comms = [pair.send, pair.receive];
    for ((comm, data), memory) in comms.into_iter().zip(data).zip(&mut memory) {
        call!(reg_mr, comm, data, ROOM, PTR_HOST, &raw mut *memory);
    }
    // Short ones are copied, and 4,056 bytes are the longest of them.
    for bytes in [0, 8, 4056] {
        for _ in 0..500 {
            pair.message(bytes, data, memory);
        }
        let before = COUNT.get();
        for _ in 0..1000 {
            pair.message(bytes, data, memory);
        }
        assert_eq!(COUNT.get() - before, 0, "1,000 messages of {bytes} bytes");
    }
    // The counter counts.
    let before = COUNT.get();
    drop(core::hint::black_box(vec![0_u8; 16]));
    assert_eq!(COUNT.get() - before, 1);
}
