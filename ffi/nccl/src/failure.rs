//! The reason why a call failed, for NCCL and for its log.

use core::fmt;

use crate::abi::NcclResult;

/// A failed call: what NCCL gets, and what its log gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: NcclResult,
    /// `None` if the log has the cause already.
    pub(crate) why: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: NcclResult, why: impl fmt::Display) -> Self {
        Self {
            code,
            why: Some(why.to_string()),
        }
    }

    /// One whose cause was logged when it happened.
    pub(crate) const fn logged(code: NcclResult) -> Self {
        Self { code, why: None }
    }

    /// The reason, in words.
    pub(crate) fn words(&self) -> String {
        self.why
            .clone()
            .unwrap_or_else(|| format!("result {}", self.code.0))
    }

    /// Caller misuse: an argument is not valid.
    pub(crate) fn argument(why: impl fmt::Display) -> Self {
        Self::new(NcclResult::INVALID_ARGUMENT, why)
    }

    /// A call of the system or a device failed.
    pub(crate) fn system(why: impl fmt::Display) -> Self {
        Self::new(NcclResult::SYSTEM_ERROR, why)
    }
}
