//! Proves that the data path makes no system call. Neither does a wait that finds something at once, nor a busy
//! wait of any length on a host that reads the clock without a call. All run under a filter that kills the
//! process at every system call except writing the verdict and exiting.
//!
//! `--plant` calls `sched_yield` half way, which must kill it.

use core::error::Error;
use core::time::Duration;
use std::io;

use doorbell::{Wait, within};
use doorbell_proofs::{Apart, Pair, Stuck, Traffic, allow_only_verdict, arguments};

/// The verdict, the only bytes that can be written in the end.
static VERDICT: &[u8] = b"no system call\n";

/// Requests before the filter: what is looked up once is found by then.
const WARM_UP: u64 = 1000;

/// Waits for what is there, at each end and of each kind: fewer polls than between two looks at the clock, which not
/// every host has without a call.
const WAITS: u32 = 32;

/// Further away than this takes.
const PATIENCE: Duration = Duration::from_secs(3600);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = arguments()?;
    let is_clock_free = is_clock_free()?;
    let mut pair = Pair::connect()?;
    let rings = pair.rings()?;
    let mut traffic = Traffic::new(pair, rings);
    let mut apart = Apart::new(Pair::connect()?)?;
    traffic.run(WARM_UP)?;
    apart.run(WARM_UP)?;
    println!("rings are published by {}", traffic.rings_are_published_by());
    if is_clock_free {
        println!("waits look at the clock");
    } else {
        println!("SKIPPED: waits that look at the clock: on this host that is a system call");
    }
    let half = arguments.requests.div_ceil(2);
    let quarter = arguments.requests.div_ceil(4);
    let deadline = within(PATIENCE);
    allow_only_verdict(VERDICT)?;
    let mut run = || {
        for _ in 0..WAITS {
            traffic.find(deadline)?;
            apart.find(deadline)?;
        }
        if is_clock_free {
            traffic.outlast(Wait::Busy)?;
            apart.outlast(Wait::Busy)?;
        }
        traffic.run(half)?;
        apart.run(quarter)?;
        if arguments.plant {
            // SAFETY: takes nothing (sched_yield(2)).
            unsafe { libc::sched_yield() };
        }
        apart.run(quarter)?;
        traffic.run(half)
    };
    let flowed: Result<(), Stuck> = run();
    if flowed.is_ok() {
        // SAFETY: readable bytes, and as many as are said (write(2)).
        unsafe { libc::write(libc::STDOUT_FILENO, VERDICT.as_ptr().cast(), VERDICT.len()) };
    }
    // Nothing may be dropped or flushed any more.
    // SAFETY: ends the process (_exit(2)).
    unsafe { libc::_exit(i32::from(flowed.is_err())) }
}

/// Whether this host reads the time without a system call, as most do by the vDSO. A child that may make none
/// asks the C library, apart from the proof.
fn is_clock_free() -> io::Result<bool> {
    // SAFETY: no other thread is there yet, so that the child may go on as this process would (fork(2)).
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let mut now = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let is_filtered = allow_only_verdict(VERDICT).is_ok();
            // SAFETY: a writable structure that outlives the call (clock_gettime(2)).
            let status = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
            // SAFETY: ends the child (_exit(2)).
            unsafe { libc::_exit(i32::from(!is_filtered || status != 0)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: a writable integer (waitpid(2)).
            if unsafe { libc::waitpid(child, &raw mut status, 0) } != child {
                return Err(io::Error::last_os_error());
            }
            if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSYS {
                return Ok(false);
            }
            if !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != 0 {
                return Err(io::Error::other("the child that asks the clock failed"));
            }
            Ok(true)
        }
    }
}
