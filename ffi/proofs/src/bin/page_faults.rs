//! Proves that the data path, once warm, touches no page for the first time: the kernel counts no
//! fault of the thread.
//!
//! `--plant` touches a fresh page half way, which must be found.

use core::error::Error;
use core::ffi::c_long;
use core::mem;
use core::ptr;
use std::io;
use std::process::ExitCode;

use doorbell_proofs::{Apart, Pair, Traffic, arguments};

/// Requests before anything is counted: every lease and every place of every queue is used by then.
const WARM_UP: u64 = 20_000;

const PAGE_BYTES: usize = 4096;

/// Page faults of this thread so far: those that were answered from memory, and from storage.
fn faults() -> io::Result<[c_long; 2]> {
    // SAFETY: integers only, for which zero bytes are a value.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: a writable structure (getrusage(2)).
    if unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok([usage.ru_minflt, usage.ru_majflt])
}

/// Locks touched pages in memory, whatever else the machine does. Untouched pages are left alone, so that a first
/// touch is still a fault.
fn keep_what_was_touched() {
    // SAFETY: takes plain numbers (mlockall(2)).
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT) } != 0 {
        let error = io::Error::last_os_error();
        println!("pages are not kept in memory ({error}): where memory is scarce, faults may not be ours");
    }
}

/// Touches a page that nobody touched before.
fn touch_a_fresh_page() -> io::Result<()> {
    // SAFETY: a new private mapping at an address of the kernel's choice touches no memory that
    // exists (mmap(2)).
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            PAGE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just mapped, writable, and ours.
    unsafe { page.cast::<u8>().write_volatile(1) };
    Ok(())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = arguments()?;
    let mut pair = Pair::connect()?;
    let rings = pair.rings()?;
    let mut traffic = Traffic::new(pair, rings);
    let mut apart = Apart::new(Pair::connect()?)?;
    traffic.run(WARM_UP)?;
    traffic.wait()?;
    apart.run(WARM_UP)?;
    apart.wait()?;
    keep_what_was_touched();
    // Once, so that the function itself is in place.
    faults()?;
    let half = arguments.requests.div_ceil(2);
    let quarter = arguments.requests.div_ceil(4);
    let before = faults()?;
    traffic.run(half)?;
    apart.run(quarter)?;
    if arguments.plant {
        touch_a_fresh_page()?;
    }
    apart.wait()?;
    apart.run(quarter)?;
    traffic.wait()?;
    traffic.run(half)?;
    let after = faults()?;
    let [minor, major] = [0, 1].map(|kind: usize| {
        let count = |all: [c_long; 2]| all.get(kind).copied().unwrap_or(0);
        count(after).wrapping_sub(count(before))
    });
    println!(
        "{minor} minor page faults, {major} major, {} requests, {} times backpressure",
        traffic.requests().saturating_add(apart.requests()),
        traffic.would_block().saturating_add(apart.would_block())
    );
    println!("rings are published by {}", traffic.rings_are_published_by());
    Ok(if minor == 0 && major == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
