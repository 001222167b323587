//! What makes a program of it: `main` for libc to call, and where a panic would go.

use core::panic::PanicInfo;

/// What the program exits with where all went well: no code that means something else.
const RAN: i32 = 77;

/// Nothing here panics; a linked program needs the handler all the same.
#[panic_handler]
fn panicked(_: &PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// Runs it.
#[unsafe(no_mangle)]
pub extern "C" fn main() -> i32 {
    #[cfg(feature = "plant_alloc")]
    planted::allocates();
    #[cfg(feature = "plant_std")]
    planted::asks_std();
    if crate::run() { RAN } else { 1 }
}

#[cfg(feature = "plant_alloc")]
mod planted {
    extern crate alloc;

    pub(super) fn allocates() {
        core::hint::black_box(alloc::boxed::Box::new(0_u8));
    }
}

#[cfg(feature = "plant_std")]
mod planted {
    extern crate std;

    pub(super) fn asks_std() {
        core::hint::black_box(std::thread::panicking());
    }
}
