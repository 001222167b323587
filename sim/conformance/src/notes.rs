//! Observations of a case, in words, and what kept it from observing more.

use core::fmt::{self, Display, Write as _};

use doorbell_core::provider::{
    AsyncEvent, CellsError, MemoryError, OutOfWindow, PostError, ProviderError, PushError, Refused, Rejected,
    UnpostedReason,
};
use doorbell_core::{QpState, Qpn, WcStatus};

/// Observations so far: `what: how; what: how`.
#[derive(Clone, Debug, Default)]
pub struct Notes(String);

impl Notes {
    /// Notes the outcome of a step.
    pub fn put(&mut self, what: &str, how: impl Display) {
        let between = if self.0.is_empty() { "" } else { "; " };
        // A text takes everything.
        let _ = write!(self.0, "{between}{what}: {how}");
    }

    /// All of it.
    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }
}

/// Why a case could not go on. It is part of what was observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble(pub String);

impl Trouble {
    /// In these words.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for Trouble {}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<ProviderError> for Trouble {
    fn from(error: ProviderError) -> Self {
        Self(error.to_string())
    }
}

impl From<MemoryError> for Trouble {
    fn from(error: MemoryError) -> Self {
        Self(error.to_string())
    }
}

impl From<PushError> for Trouble {
    fn from(error: PushError) -> Self {
        Self(error.to_string())
    }
}

impl From<CellsError> for Trouble {
    fn from(error: CellsError) -> Self {
        Self(error.to_string())
    }
}

impl From<PostError> for Trouble {
    fn from(error: PostError) -> Self {
        Self(error.to_string())
    }
}

impl From<UnpostedReason> for Trouble {
    fn from(reason: UnpostedReason) -> Self {
        match reason {
            UnpostedReason::Push(reason) => reason.into(),
            UnpostedReason::Post(error) => error.into(),
        }
    }
}

impl From<Rejected> for Trouble {
    fn from(error: Rejected) -> Self {
        Self(error.to_string())
    }
}

impl From<OutOfWindow> for Trouble {
    fn from(error: OutOfWindow) -> Self {
        Self(error.to_string())
    }
}

impl<T> From<Refused<T>> for Trouble {
    fn from(refused: Refused<T>) -> Self {
        refused.reason.into()
    }
}

/// Words for several things, in order; for none, a word too.
pub(crate) fn list<T: Display>(things: impl IntoIterator<Item = T>) -> String {
    let mut text = String::new();
    for thing in things {
        let between = if text.is_empty() { "" } else { " " };
        let _ = write!(text, "{between}{thing}");
    }
    if text.is_empty() {
        text.push_str("nothing");
    }
    text
}

/// How something that was asked for went: done, or refused with an error's number.
pub(crate) fn asked<T>(outcome: Result<T, ProviderError>) -> String {
    match outcome {
        Ok(_) => "done".to_owned(),
        Err(error) => errno_name(error.errno),
    }
}

fn errno_name(errno: i32) -> String {
    match errno {
        22 => "EINVAL".to_owned(),
        95 => "EOPNOTSUPP".to_owned(),
        other => format!("errno {other}"),
    }
}

/// The name of a status in C, without what all have in front.
pub(crate) fn status_name(status: WcStatus) -> String {
    let name = match status {
        WcStatus::SUCCESS => "SUCCESS",
        WcStatus::LOC_LEN_ERR => "LOC_LEN_ERR",
        WcStatus::LOC_QP_OP_ERR => "LOC_QP_OP_ERR",
        WcStatus::LOC_PROT_ERR => "LOC_PROT_ERR",
        WcStatus::WR_FLUSH_ERR => "WR_FLUSH_ERR",
        WcStatus::BAD_RESP_ERR => "BAD_RESP_ERR",
        WcStatus::LOC_ACCESS_ERR => "LOC_ACCESS_ERR",
        WcStatus::REM_INV_REQ_ERR => "REM_INV_REQ_ERR",
        WcStatus::REM_ACCESS_ERR => "REM_ACCESS_ERR",
        WcStatus::REM_OP_ERR => "REM_OP_ERR",
        WcStatus::RETRY_EXC_ERR => "RETRY_EXC_ERR",
        WcStatus::RNR_RETRY_EXC_ERR => "RNR_RETRY_EXC_ERR",
        other => return format!("status {}", other.0),
    };
    name.to_owned()
}

/// The names of statuses, in order.
pub(crate) fn statuses(all: impl IntoIterator<Item = WcStatus>) -> String {
    list(all.into_iter().map(status_name))
}

/// The names of states, in order.
pub(crate) fn states(all: &[QpState]) -> String {
    list(all)
}

/// The name of an event; a queue pair is `own` or another.
pub(crate) fn event_name(event: AsyncEvent, own: Qpn) -> String {
    let about = |name: &str, qpn: Qpn| {
        if qpn == own {
            name.to_owned()
        } else {
            format!("{name} of another")
        }
    };
    match event {
        AsyncEvent::QueuePairFatal(qpn) => about("QP_FATAL", qpn),
        AsyncEvent::QueuePairAccess(qpn) => about("QP_ACCESS_ERR", qpn),
        AsyncEvent::QueuePairRequest(qpn) => about("QP_REQ_ERR", qpn),
        AsyncEvent::CommunicationEstablished(qpn) => about("COMM_EST", qpn),
        AsyncEvent::SendQueueDrained(qpn) => about("SQ_DRAINED", qpn),
        AsyncEvent::LastReceiveReached(qpn) => about("QP_LAST_WQE_REACHED", qpn),
        AsyncEvent::SharedReceiveLimit(_) => "SRQ_LIMIT_REACHED".to_owned(),
        AsyncEvent::SharedReceiveFatal(_) => "SRQ_ERR".to_owned(),
        AsyncEvent::CompletionQueueError => "CQ_ERR".to_owned(),
        AsyncEvent::PortActive(_) => "PORT_ACTIVE".to_owned(),
        AsyncEvent::PortError(_) => "PORT_ERR".to_owned(),
        AsyncEvent::GidChange(_) => "GID_CHANGE".to_owned(),
        AsyncEvent::DeviceFatal => "DEVICE_FATAL".to_owned(),
        other => format!("{other:?}"),
    }
}

/// A yes or a no in the words of the case.
pub(crate) const fn either(is_so: bool, yes: &'static str, no: &'static str) -> &'static str {
    if is_so { yes } else { no }
}
