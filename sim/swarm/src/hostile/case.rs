//! The part of a case with a lying host beside its hosts and lines. Host 0 accepts, and hosts 1 and 2 are honest. The
//! last host lies, or speaks by the document.

use serde::{Deserialize, Serialize};

/// The random values of such a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostileCase {
    /// Receives that the host has which speaks by the document, and the count from which it is told of others.
    pub(crate) receives: u32,
    pub(crate) start: u32,
    pub(crate) stage_ns: u64,
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HostileAct {
    /// An honest host connects, where it is not, and each side sends so many messages.
    Honest { count: u8 },
    /// A stream says one frame with one wrong field, and all before it right.
    Lie { number: u8 },
    /// A stream says so much, and then bytes of the fuzzers, or frames that were said before.
    Noise { says: u8, number: u8 },
    /// A host connects by the document.
    Other,
    /// It sends so many messages, as far as it has credits.
    OtherSends { count: u8 },
    /// It is sent so many.
    OtherIsSent { count: u8 },
    /// It posts receives again, and announces them.
    OtherPosts,
    /// It writes something into its peer's word that is no announcement.
    OtherLies { how: u8 },
    /// It says farewell, rightly or not.
    OtherLeaves { how: u8 },
    /// Its peer closes.
    OtherIsLeft,
}
