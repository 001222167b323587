//! The part of a case that is about transfers of links.

use serde::{Deserialize, Serialize};

/// How one host has transfers, where that is not the default. Spans are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TransfersCase {
    pub(crate) piece_bytes: u32,
    pub(crate) pieces_ahead: u32,
    pub(crate) transfers_max: u32,
    pub(crate) progress_every: u64,
    pub(crate) drain_within: u64,
}

/// A transfer that an end of a line begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BeginCase {
    /// Whether the end that begins gives the bytes.
    pub(crate) gives: bool,
    pub(crate) bytes: u32,
    /// Bytes of the memory of each side in front of the range.
    pub(crate) offset: u16,
    pub(crate) priority: u8,
    /// The time in which each side has it done, from when that side began or joined; 0 for no limit.
    pub(crate) within_ns: [u64; 2],
    pub(crate) answer: AnswerCase,
}

/// Answer of the other side to an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AnswerCase {
    Joins { after_ns: u64 },
    Declines { after_ns: u64 },
    Never,
}

impl AnswerCase {
    /// When it answers an offer that came at this time.
    pub(crate) const fn at_ns(self, now_ns: u64) -> Option<u64> {
        match self {
            Self::Joins { after_ns } | Self::Declines { after_ns } => Some(now_ns.saturating_add(after_ns)),
            Self::Never => None,
        }
    }
}
