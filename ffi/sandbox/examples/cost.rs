//! The time of calls that the broker answers, on a stand-in for a device: run it alone, and under `doorbell broker`.
//!
//! The policy has `devices = ["uverbs0"]` and `stand_ins = { uverbs0 = "/dev/null" }`. Alone, it opens the stand-in itself.
#![expect(clippy::arithmetic_side_effects, clippy::unwrap_used, reason = "an example")]

use std::ffi::CStr;
use std::time::Instant;

const BATCHES: u32 = 40;
const ROUNDS: u32 = 500;

/// Prints the time of a call: the least mean of a batch, since other programs only add to it.
fn mean(name: &str, mut call: impl FnMut()) {
    let batches = (0..BATCHES).map(|_| {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            call();
        }
        start.elapsed().as_nanos() / u128::from(ROUNDS)
    });
    println!("{name}: {} ns", batches.min().unwrap());
}

fn open(path: &CStr) -> i32 {
    // SAFETY: a path (open(2)).
    unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }
}

fn main() {
    let (device, stand_in) = (c"/dev/infiniband/uverbs0", c"/dev/null");
    let path = if open(device) >= 0 { device } else { stand_in };
    println!("{}", path.to_str().unwrap());
    mean("a call that is not trapped", || {
        // SAFETY: no argument (getppid(2)).
        unsafe { libc::getppid() };
    });
    mean("a stat of another file", || drop(std::fs::metadata("/etc")));
    mean("a stat of the device", || {
        drop(std::fs::metadata(path.to_str().unwrap()))
    });
    mean("an open of the device and a close", || {
        // SAFETY: a descriptor that was just opened (close(2)).
        unsafe { libc::close(open(path)) };
    });
    let number = open(path);
    let mut doorbell = [0_u32; 8];
    doorbell[0] = 28;
    doorbell[1] = 1 << 16 | 8;
    mean("a doorbell", || {
        // SAFETY: a descriptor and 32 bytes (write(2)).
        unsafe { libc::write(number, doorbell.as_ptr().cast(), 32) };
    });
}
