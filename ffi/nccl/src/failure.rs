//! The reason why a call failed, for NCCL and for its log.

use core::fmt;

use crate::abi::NcclResult;

/// A failed call: what NCCL gets, and what its log gets. It is one word, so that a call that does not fail moves no more than that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure(Box<(NcclResult, Option<String>)>);

impl Failure {
    #[cold]
    pub(crate) fn new(code: NcclResult, why: impl fmt::Display) -> Self {
        Self(Box::new((code, Some(why.to_string()))))
    }

    /// One whose cause was logged when it happened.
    #[cold]
    pub(crate) fn logged(code: NcclResult) -> Self {
        Self(Box::new((code, None)))
    }

    pub(crate) const fn code(&self) -> NcclResult {
        self.0.0
    }

    /// The reason; `None` if the log has it already.
    pub(crate) fn why(&self) -> Option<&str> {
        self.0.1.as_deref()
    }

    /// The reason, in words.
    pub(crate) fn words(&self) -> String {
        self.why()
            .map_or_else(|| format!("result {}", self.code().0), str::to_owned)
    }

    /// Caller misuse: an argument is not valid.
    #[cold]
    pub(crate) fn argument(why: impl fmt::Display) -> Self {
        Self::new(NcclResult::INVALID_ARGUMENT, why)
    }

    /// A call of the system or a device failed.
    #[cold]
    pub(crate) fn system(why: impl fmt::Display) -> Self {
        Self::new(NcclResult::SYSTEM_ERROR, why)
    }
}
