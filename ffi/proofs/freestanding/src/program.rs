//! Parts that make a program of it: `main` for libc to call, and the panic handler.

use core::panic::PanicInfo;

/// Exit code of a run in which all went well: no other code means that.
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
