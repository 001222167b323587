//! The status of a work completion, as the device reports it.

use core::fmt;

/// The status of a work completion. It is an integer newtype, since a newer device or library may return unknown values.
///
/// Source: `ibv_poll_cq(3)`; InfiniBand Architecture volume 1, section 11.6.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WcStatus(pub u32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)+) => {
        impl WcStatus {
            $($(#[$doc])* pub const $name: Self = Self($value);)+

            /// Describes the status in a few words.
            #[must_use]
            pub const fn describe(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                    _ => "unknown status",
                }
            }
        }
    };
}

statuses! {
    /// The request was done.
    SUCCESS = 0, "success";
    /// The message is longer than the receive buffer or the queue pair allows.
    LOC_LEN_ERR = 1, "local length error: the message exceeds the receive";
    /// The queue pair could not execute the request.
    LOC_QP_OP_ERR = 2, "local queue pair operation error";
    /// The end-to-end context could not execute the request.
    LOC_EEC_OP_ERR = 3, "local EE context operation error";
    /// A gather or scatter element named memory that the queue pair may not use.
    LOC_PROT_ERR = 4, "local protection error: memory that the queue pair may not use";
    /// The request was flushed, not executed: the queue pair is in the error state.
    WR_FLUSH_ERR = 5, "flushed: the queue pair failed or was closed; another completion has the cause";
    /// A memory window could not be bound.
    MW_BIND_ERR = 6, "memory window bind error";
    /// The responder sent an unexpected response.
    BAD_RESP_ERR = 7, "bad response";
    /// Local memory could not be accessed for a one-sided request of the peer.
    LOC_ACCESS_ERR = 8, "local access error";
    /// The peer found the request invalid.
    REM_INV_REQ_ERR = 9, "remote invalid request: too long for the receive, or an operation that the peer does not serve";
    /// The peer's device refused the access: wrong key, bounds or rights.
    REM_ACCESS_ERR = 10, "remote access error: key, bounds or rights";
    /// The peer could not complete the request.
    REM_OP_ERR = 11, "remote operation error: the peer's device could not complete the request";
    /// The peer did not acknowledge within the retries.
    RETRY_EXC_ERR = 12, "transport retries exceeded: the peer does not answer";
    /// The peer had no receive posted within the retries.
    RNR_RETRY_EXC_ERR = 13, "receiver-not-ready retries exceeded: the peer posts no receives";
    /// Reliable-datagram domain violation.
    LOC_RDD_VIOL_ERR = 14, "local RDD violation";
    /// Invalid reliable-datagram request.
    REM_INV_RD_REQ_ERR = 15, "remote invalid RD request";
    /// The peer aborted the operation.
    REM_ABORT_ERR = 16, "remote aborted";
    /// Invalid end-to-end context number.
    INV_EECN_ERR = 17, "invalid EE context number";
    /// Invalid end-to-end context state.
    INV_EEC_STATE_ERR = 18, "invalid EE context state";
    /// The device failed.
    FATAL_ERR = 19, "fatal device error";
    /// The response did not come in time.
    RESP_TIMEOUT_ERR = 20, "response timeout";
    /// Another error of the device.
    GENERAL_ERR = 21, "general error";
}

impl WcStatus {
    /// Whether the request was done.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 == Self::SUCCESS.0
    }

    /// Whether the request was only flushed, so that another completion has the cause.
    #[must_use]
    pub const fn is_flush(self) -> bool {
        self.0 == Self::WR_FLUSH_ERR.0
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {})", self.describe(), self.0)
    }
}

impl core::error::Error for WcStatus {}

impl fmt::Debug for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WcStatus({}: {})", self.0, self.describe())
    }
}
