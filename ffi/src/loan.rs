//! Loans of values: a lent value stays in its place, unless the borrower keeps it.

use core::fmt;
use core::ops::{Deref, DerefMut};

/// The loan of a value. The value stays in its place when the loan ends.
pub struct Loan<'h, T> {
    /// Holds a value as long as the loan exists: nothing else reaches it meanwhile, and `keep` ends the loan.
    home: &'h mut Option<T>,
}

impl<'h, T> Loan<'h, T> {
    /// Lends the value in this place, or returns `None` if there is none.
    #[inline(always)]
    pub const fn of(home: &'h mut Option<T>) -> Option<Self> {
        if home.is_some() { Some(Self { home }) } else { None }
    }

    /// Ends the loan and takes the value out of its place.
    #[inline(always)]
    #[must_use]
    pub fn keep(self) -> T {
        // SAFETY: the place has a value, as the type ensures.
        unsafe { self.home.take().unwrap_unchecked() }
    }
}

impl<T> Deref for Loan<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the place has a value, as the type ensures.
        unsafe { self.home.as_ref().unwrap_unchecked() }
    }
}

impl<T> DerefMut for Loan<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the place has a value, as the type ensures.
        unsafe { self.home.as_mut().unwrap_unchecked() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Loan<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loan").field(&**self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Loan;
    use core::panic::AssertUnwindSafe;
    use std::panic::{catch_unwind, resume_unwind};
    use std::rc::Rc;

    #[test]
    fn what_is_lent_stays_and_what_is_kept_does_not() {
        let value = Rc::new(());
        let mut home = Some(Rc::clone(&value));
        assert!(Rc::ptr_eq(&Loan::of(&mut home).unwrap(), &value));
        assert!(home.is_some() && Rc::strong_count(&value) == 2);
        let kept = Loan::of(&mut home).unwrap().keep();
        assert!(home.is_none() && Rc::strong_count(&value) == 2);
        assert!(Loan::of(&mut home).is_none());
        drop(kept);
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn a_loan_leads_to_the_value() {
        let mut home = Some(7);
        let mut loan = Loan::of(&mut home).unwrap();
        *loan += 1;
        assert_eq!(*loan, 8);
        assert_eq!(home, Some(8));
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
}
