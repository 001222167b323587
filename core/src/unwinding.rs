//! A guard that runs a function only if a callback panics, and costs nothing otherwise.

use core::mem;

/// Calls its function if the scope is left by a panic.
///
/// Without a panic, [`OnUnwind::disarm`] ends the scope, at no cost. The function must not panic: a second panic aborts.
#[must_use = "a guard that is dropped calls its function"]
pub struct OnUnwind<F: FnMut()>(F);

impl<F: FnMut()> OnUnwind<F> {
    /// A guard that calls this function when it is dropped.
    #[inline(always)]
    pub const fn new(function: F) -> Self {
        Self(function)
    }

    /// Ends the scope without calling the function.
    #[inline(always)]
    pub fn disarm(self) {
        mem::forget(self);
    }
}

impl<F: FnMut()> Drop for OnUnwind<F> {
    // Inlined, so that the captured values stay in registers while nothing panics.
    #[inline(always)]
    fn drop(&mut self) {
        (self.0)();
    }
}

impl<F: FnMut()> core::fmt::Debug for OnUnwind<F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("OnUnwind").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::OnUnwind;
    use core::panic::AssertUnwindSafe;
    use std::boxed::Box;
    use std::panic::{catch_unwind, resume_unwind};

    #[test]
    fn only_a_panic_calls_it() {
        let mut called = 0;
        OnUnwind::new(|| called += 1).disarm();
        assert_eq!(called, 0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _guard = OnUnwind::new(|| called += 1);
            resume_unwind(Box::new("quiet"));
        }));
        assert!(outcome.is_err());
        assert_eq!(called, 1);
    }
}
