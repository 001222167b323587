//! The part of a case of requests that is beside its hosts and lines.

use serde::{Deserialize, Serialize};

/// How the hosts of a run ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RequestsCase {
    /// Places of each end's table, by line.
    pub(crate) places: Vec<[u32; 2]>,
    /// The longest body that the tables are made for.
    pub(crate) body_bytes_max: u32,
    /// Requests that a host keeps until it answers them: it drops others.
    pub(crate) kept_max: u32,
    pub(crate) probe_after_ns: u64,
}

/// Something that one end of a line does, or its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RequestAct {
    /// The line is connected, where neither end has a channel.
    Connect,
    /// So many requests, each as soon as there is room for it.
    Ask { count: u8, question: Question },
    /// A request in flight is cancelled, or one that has ended, where none is in flight.
    Cancel { nth: u8 },
    /// The application gives the peer up: each request of this end fails.
    GiveUp,
    /// The answer that this end gave last is sent again.
    Again,
    /// An answer to no request.
    Unasked { how: u8 },
    /// A message that neither asks nor answers.
    Plain { bytes: u16 },
    /// This end closes its channel.
    Close { within_ns: u64 },
    /// The Worker of the host is dropped with all its channels, and another made.
    Leave,
}

/// A request, and what the peer does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) bytes: u16,
    /// From when it is sent to its deadline.
    pub(crate) within_ns: u64,
    /// From when it comes until it is answered.
    pub(crate) handled_ns: u64,
    /// The length of the answer's body, where there is an answer.
    pub(crate) answer: Option<u16>,
}
