//! A value that is lent: it goes back when the loan ends, unless it is kept.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

/// A value, and the place that it goes back to when the loan is dropped.
///
/// A loan that is forgotten leaks its value, and the place stays empty.
pub struct Loan<'h, T> {
    /// There until the drop, or until `keep` takes it.
    value: ManuallyDrop<T>,
    home: &'h mut Option<T>,
}

impl<'h, T> Loan<'h, T> {
    /// Lends what is in this place; `None` where nothing is.
    #[inline(always)]
    pub fn of(home: &'h mut Option<T>) -> Option<Self> {
        let value = ManuallyDrop::new(home.take()?);
        Some(Self { value, home })
    }

    /// Ends the loan without giving the value back.
    #[inline(always)]
    #[must_use]
    pub fn keep(self) -> T {
        let mut loan = ManuallyDrop::new(self);
        // SAFETY: taken once: the loan, which is not dropped, is gone behind this call.
        unsafe { ManuallyDrop::take(&mut loan.value) }
    }
}

impl<T> Deref for Loan<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Loan<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Loan<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: taken once: here, where the loan is dropped and `keep` has not taken it.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        *self.home = Some(value);
    }
}

impl<T: fmt::Debug> fmt::Debug for Loan<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loan").field(&*self.value).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Loan;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::rc::Rc;

    #[test]
    fn what_is_lent_goes_back_and_what_is_kept_does_not() {
        let value = Rc::new(());
        let mut home = Some(Rc::clone(&value));
        drop(Loan::of(&mut home).unwrap());
        assert!(home.is_some() && Rc::strong_count(&value) == 2);
        let kept = Loan::of(&mut home).unwrap().keep();
        assert!(home.is_none() && Rc::strong_count(&value) == 2);
        assert!(Loan::of(&mut home).is_none());
        drop(kept);
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn a_panic_ends_the_loan() {
        let mut home = Some(Box::new(7));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _loan = Loan::of(&mut home).unwrap();
            resume_unwind(Box::new("the borrower's"))
        }));
        assert!(outcome.is_err() && home == Some(Box::new(7)));
    }

    #[test]
    fn a_loan_that_is_forgotten_leaves_its_place_empty() {
        let value = Rc::new(());
        let mut home = Some(Rc::clone(&value));
        core::mem::forget(Loan::of(&mut home));
        assert!(home.is_none() && Rc::strong_count(&value) == 2);
    }
}
