//! Proves that the data path calls no allocator: every call of this process is counted.
//!
//! `--plant` allocates half way, which must be found.

use core::alloc::{GlobalAlloc, Layout};
use core::error::Error;
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};
use std::alloc::System;
use std::process::ExitCode;

use doorbell_proofs::{Pair, Traffic, arguments};

/// The system's allocator, with a count of the calls of all threads.
struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every method does what the system's allocator does, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's obligation, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, bytes) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let told = arguments()?;
    let mut traffic = Traffic::new(Pair::connect()?);
    let half = told.requests.div_ceil(2);
    let before = CALLS.load(Ordering::Relaxed);
    traffic.run(half)?;
    if told.plant {
        drop(black_box(Box::new(0_u8)));
    }
    traffic.run(half)?;
    let calls = CALLS.load(Ordering::Relaxed).wrapping_sub(before);
    println!(
        "{calls} calls of the allocator, {} requests, {} times back-pressure",
        traffic.requests(),
        traffic.would_block()
    );
    Ok(if calls == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
