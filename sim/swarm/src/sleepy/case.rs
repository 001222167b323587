//! The part of a case of sleeping hosts beside its hosts and lines.

use serde::{Deserialize, Serialize};

/// How the hosts of a run sleep, and what is submitted to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SleepCase {
    /// Only solicited messages wake a host. Otherwise all messages do.
    pub(crate) is_solicited: bool,
    pub(crate) probe_after_ns: u64,
    /// How long each end of a line waits for the answer to a probe, in milliseconds. Zero leaves that to the device's retries.
    #[serde(default)]
    pub(crate) probe_timeouts_ms: [u32; 2],
    pub(crate) lease_share_percent: u32,
    pub(crate) submissions_per_poll: u32,
    /// Submitters with a ring of their own, and those that share one.
    pub(crate) submitters: [usize; 2],
    /// Slots of each, and the depth of its ring.
    pub(crate) submitter: [u32; 2],
    /// Slots of the half that sends, while a Worker is apart.
    pub(crate) half_slots: u32,
}

/// Something that one end of a line does, or its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SleepAct {
    /// So many messages, as soon as each is taken.
    Send {
        count: u8,
        way: Way,
        bytes: u16,
        is_solicited: bool,
    },
    /// As many in every way at once: none gets far ahead of the others.
    Race {
        count: u8,
    },
    /// The next messages stay with the application of this host.
    Hold {
        count: u8,
    },
    /// They go back.
    LetGo,
    /// This end closes its channel.
    Close {
        within_ns: u64,
    },
    /// The Worker of the host is taken apart, and put together again.
    Split,
    Join,
    /// One of the submitters of the host goes.
    DropSubmitter {
        which: u8,
    },
    /// The host waits in one call, while nobody else does anything.
    Wait {
        spins: u8,
        ns: u64,
    },
}

/// How a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Way {
    /// Posted to the channel.
    Own,
    /// Posted by a batch of its own.
    Batch,
    /// Submitted to the channel, by the thread that has the Worker.
    Deferred,
    /// From another thread.
    Submitter(u8),
}

impl Way {
    /// Which order it keeps.
    pub(crate) const fn stream(self) -> usize {
        match self {
            Self::Own | Self::Batch => 0,
            Self::Deferred => 1,
            Self::Submitter(which) => 2 + which as usize,
        }
    }
}
