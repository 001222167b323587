//! The reason why a call failed, for NCCL and for its log.

use core::fmt;

use crate::abi::NcclResult;

/// A failed call: the result code for NCCL, and the reason for its log. The type is one word, so that a successful call moves
/// little memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure(Box<(NcclResult, Option<String>)>);

impl Failure {
    #[cold]
    pub(crate) fn new(code: NcclResult, why: impl fmt::Display) -> Self {
        Self(Box::new((code, Some(why.to_string()))))
    }

    /// Creates a failure whose cause is already in the log.
    #[cold]
    pub(crate) fn logged(code: NcclResult) -> Self {
        Self(Box::new((code, None)))
    }

    pub(crate) const fn code(&self) -> NcclResult {
        self.0.0
    }

    /// Returns the reason, or `None` if it is already in the log.
    pub(crate) fn why(&self) -> Option<&str> {
        self.0.1.as_deref()
    }

    /// Returns the reason as text.
    pub(crate) fn words(&self) -> String {
        self.why()
            .map_or_else(|| format!("result {}", self.code().0), str::to_owned)
    }

    /// Creates the failure of a call with an invalid argument.
    #[cold]
    pub(crate) fn argument(why: impl fmt::Display) -> Self {
        Self::new(NcclResult::INVALID_ARGUMENT, why)
    }

    /// Creates the failure of a call that needed the system or a device.
    #[cold]
    pub(crate) fn system(why: impl fmt::Display) -> Self {
        Self::new(NcclResult::SYSTEM_ERROR, why)
    }
}
