//! The verdict of an oracle.

use core::fmt;

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Which oracle spoke: a case is shrunk as long as it is the same one.
    pub(crate) oracle: &'static str,
    pub(crate) detail: String,
    /// When, in nanoseconds.
    pub(crate) at_ns: u64,
}

/// `Ok` if the oracles agree, or else the reason why not.
pub(crate) type Verdict<T = ()> = Result<T, Failure>;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ns: {}", self.oracle, self.at_ns, self.detail)
    }
}

/// A failure, whose time is filled in where it is known.
pub(crate) fn failure(oracle: &'static str, detail: impl Into<String>) -> Failure {
    Failure {
        oracle,
        detail: detail.into(),
        at_ns: 0,
    }
}

/// The oracle says so unless this holds.
pub(crate) fn ensure(holds: bool, oracle: &'static str, detail: impl FnOnce() -> String) -> Verdict {
    if holds {
        Ok(())
    } else {
        Err(failure(oracle, detail()))
    }
}
