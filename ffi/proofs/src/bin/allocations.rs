//! Proves that the data path calls no allocator: every call of the thread that runs it is counted. Others
//! have their own: the one that destroys what is closed may only just be starting.
//!
//! `--plant` allocates half way, which must be found.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::error::Error;
use core::hint::black_box;
use std::alloc::System;
use std::process::ExitCode;

use doorbell_proofs::{Apart, Pair, Traffic, arguments};

/// The system's allocator, with a count of each thread's calls.
struct Counting;

thread_local! {
    /// Without a destructor or anything to make first: it may be used in the allocator itself.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    CALLS.set(CALLS.get().wrapping_add(1));
}

// SAFETY: every method does what the system's allocator does, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's obligation, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, bytes) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count();
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = arguments()?;
    let mut pair = Pair::connect()?;
    let rings = pair.rings()?;
    let mut traffic = Traffic::new(pair, rings);
    let mut apart = Apart::new(Pair::connect()?)?;
    let half = arguments.requests.div_ceil(2);
    let quarter = arguments.requests.div_ceil(4);
    let before = CALLS.get();
    traffic.run(half)?;
    apart.run(quarter)?;
    if arguments.plant {
        drop(black_box(Box::new(0_u8)));
    }
    apart.wait()?;
    apart.run(quarter)?;
    traffic.wait()?;
    traffic.run(half)?;
    let calls = CALLS.get().wrapping_sub(before);
    println!(
        "{calls} calls of the allocator, {} requests, {} times backpressure",
        traffic.requests().saturating_add(apart.requests()),
        traffic.would_block().saturating_add(apart.would_block())
    );
    println!("rings are published by {}", traffic.rings_are_published_by());
    Ok(if calls == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
