//! The part of a case of limits beside its hosts and lines. Host 0 accepts, and the others connect to it.

use serde::{Deserialize, Serialize};

/// The limits of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CrowdCase {
    /// Handshakes advance beside the thread that accepts, and not by its listener.
    pub(crate) is_aside: bool,
    /// As of `HandshakeLimits`.
    pub(crate) under_way: usize,
    pub(crate) per_address: usize,
    pub(crate) unaccepted: u32,
    pub(crate) crowded_stage_ns: u64,
    /// `ChannelConfig::handshake_stage` of who accepts.
    pub(crate) stage_ns: u64,
    /// The Worker of each host.
    pub(crate) rooms: Vec<RoomCase>,
    /// Slots of each submitter, and the depth of its ring.
    pub(crate) submitters: [u32; 2],
    pub(crate) submissions_per_poll: u32,
}

/// The limits of a Worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoomCase {
    pub(crate) completion_depth: u32,
    pub(crate) channels_max: u32,
    pub(crate) channels_per_address: u32,
    pub(crate) lease_share_percent: u32,
}

/// Something that one end of a line does, or its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CrowdAct {
    /// One more channel of the line, while nobody else connects.
    Connect,
    /// One more of each line whose bit is set, all at once.
    Burst { lines: u8 },
    /// This end closes a channel of the line.
    Close { nth: u8 },
    /// A stream from the line's host that connects, says so much, and then nothing.
    Knock { says: Says },
    /// The oldest of those ends.
    HangUp,
    /// The application of this end's host leases so many slots more.
    Lease { count: u8 },
    /// It gives all back.
    Release,
    /// This end sends on a channel of the line until it is refused.
    Flood { nth: u8 },
    /// This end submits through the submitter of its host until it is refused.
    SubmitFlood { nth: u8 },
    /// All submitters of its host at once, so that each has its share of what is taken.
    Contend { nth: u8 },
}

/// How much a stream says that stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Says {
    Nothing,
    Hello,
    Connect,
}
