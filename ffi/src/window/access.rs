//! Copies of memory that a device may write at the same time, done outside the language.
//!
//! Rust's memory model has no access that is suitable for such memory at every width:
//!
//! - A plain copy is a data race if the device writes meanwhile, and so undefined behaviour (Rust Reference,
//!   *Behavior considered undefined*: data races).
//! - Volatile access does not change that. Inside an allocation and among concurrent accesses, it counts as an
//!   access that is not atomic (`core::ptr::read_volatile`).
//! - Relaxed atomics are allowed, but only up to the width of a word. Two that overlap must be of one size unless
//!   both are loads (`core::sync::atomic`, *Memory model for atomic accesses*). Their rate is a fraction of
//!   the rate of `memcpy`.
//!
//! So the copies are calls of the C library's `memcpy` from an `asm!` block, which the compiler must treat as a
//! black box (Rust Reference, *Inline assembly*, rules for inline assembly). The compiler may not assume which
//! instructions the block has. The block may read and write the same memory as a foreign function. Its effect on
//! memory then follows the processor's memory model, as the effect of the device does.
//!
//! The abstract machine sees one effect: bytes of the caller's buffer, which nothing else reaches, have some values. Every
//! value of a byte is valid. A call of `memcpy` as an `extern` function would not be enough: the compiler knows that name,
//! and may assume that nothing else writes.
//!
//! A copy guarantees only that each byte is one that was there at some time during the call. It does not guarantee which
//! bytes of an overlapping write are seen, or in which order. The same holds between threads of this process that copy in
//! and out at the same time, so nothing needs an exclusive borrow.
//!
//! Aligned words are reached only by accesses of `AtomicU64`, as far as the language sees, so sizes are not mixed.

use core::arch::asm;
use core::sync::atomic::{Ordering, fence};

/// Copies `bytes` bytes.
///
/// # Safety
/// 1. Both ranges are mapped, one for reading and the other for writing, throughout the call.
/// 2. They do not overlap.
/// 3. The language knows at most one of the two ranges by reference: by an exclusive borrow, or by a shared
///    borrow if it is the range that is read. It knows any other range, which is a window's, only by raw pointers.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    let memcpy: unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void =
        libc::memcpy;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: (memcpy(3), with the System V calling convention) Three arguments, each in its register. The stack
    // is aligned for a call, since the block does not declare `nostack`. The ranges are valid, as the caller vouches.
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

/// Reads a byte, and orders all later accesses after it.
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
