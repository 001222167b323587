//! Copies of memory that a device may write meanwhile, done outside the language.
//!
//! No access that Rust's own memory model knows of is right for such memory at any width:
//!
//! - A plain copy is a data race if the device writes meanwhile, and so undefined behaviour (Rust Reference,
//!   *Behavior considered undefined*: data races).
//! - Volatile access does not change that. Inside an allocation and among concurrent accesses, it counts as an
//!   access that is not atomic (`core::ptr::read_volatile`).
//! - Relaxed atomics are allowed, but only up to the width of a word. Two that overlap must be of one size unless
//!   both are loads (`core::sync::atomic`, *Memory model for atomic accesses*). Their rate is a fraction of
//!   `memcpy`'s.
//!
//! So the copies are calls of the C library's `memcpy` from an `asm!` block, which the compiler must treat as a
//! black box (Rust Reference, *Inline assembly*, rules for inline assembly). The compiler may not assume which
//! instructions the block has. The block may read and write the same memory as a foreign function. Its effect on
//! memory is then given by the processor's own memory model, as the device's is.
//!
//! The abstract machine sees one effect: bytes of the caller's own buffer, which nobody else reaches, hold some
//! values. Each value of a byte is valid. A call of `memcpy` as an `extern` function would not do: the compiler
//! knows that name, and may assume that nobody else writes.
//!
//! A copy guarantees one thing: each byte is one that was there at some time during the call. Which bytes of a write that
//! overlaps it are seen, and in which order, is not. Threads of this process that copy in and out at once have the same, so
//! that nothing needs an exclusive borrow.
//!
//! Aligned words are read, written and exchanged by `AtomicU64`, and by nothing else that the language sees: no sizes mix.

use core::arch::asm;
use core::sync::atomic::{Ordering, fence};

/// Copies `bytes` bytes.
///
/// # Safety
/// 1. Both ranges are mapped, one for reading and the other for writing, throughout the call.
/// 2. They do not overlap.
/// 3. The language knows at most one of the two ranges by reference: by an exclusive borrow, or by a shared
///    borrow if it is the range that is read. The other range, the window's, it knows by raw pointers alone.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    let memcpy: unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void =
        libc::memcpy;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: (memcpy(3), with the System V calling convention) Three arguments, each in its register. The stack
    // is aligned for a call, since the block does not declare `nostack`. The ranges are as the caller vouches.
    unsafe {
        asm!(
            "call {memcpy}",
            memcpy = in(reg) memcpy,
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rdx") bytes => _,
            lateout("rax") _,
            clobber_abi("C"),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: (memcpy(3), with the procedure call standard of AArch64) as above.
    unsafe {
        asm!(
            "blr {memcpy}",
            memcpy = in(reg) memcpy,
            inout("x0") to => _,
            inout("x1") from => _,
            inout("x2") bytes => _,
            clobber_abi("C"),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    compile_error!("windows are copied on x86-64 and aarch64 alone");
}

/// Reads a byte, then orders all later reads after it.
///
/// # Safety
/// The byte is mapped for reading throughout the call.
#[inline]
pub(super) unsafe fn load_u8(from: *const u8) -> u8 {
    let byte: u32;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: one load of a byte that is mapped, as the caller vouches.
    unsafe {
        asm!(
            "movzx {byte:e}, byte ptr [{from}]",
            byte = out(reg) byte,
            from = in(reg) from,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        asm!(
            "ldrb {byte:w}, [{from}]",
            byte = out(reg) byte,
            from = in(reg) from,
            options(nostack, preserves_flags),
        );
    }
    fence(Ordering::Acquire);
    let [byte, ..] = byte.to_le_bytes();
    byte
}
