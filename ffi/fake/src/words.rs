//! Words of the functions that describe a value.

use core::ffi::{CStr, c_char};

/// The word for a value, by its number in a list; one that is not there is unknown.
fn word(words: &'static [&'static CStr], number: u32) -> *const c_char {
    words.get(number as usize).copied().unwrap_or(c"unknown").as_ptr()
}

/// By `ibv_wc_status`.
pub(crate) fn status(number: u32) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"success",
        c"local length error",
        c"local queue pair operation error",
        c"local end-to-end context error",
        c"local protection error",
        c"flushed",
        c"memory window bind error",
        c"bad response",
        c"local access error",
        c"remote invalid request",
        c"remote access error",
        c"remote operation error",
        c"retries exceeded",
        c"receiver-not-ready retries exceeded",
    ];
    word(WORDS, number)
}

/// By `ibv_node_type`.
pub(crate) fn node_type(number: u32) -> *const c_char {
    word(&[c"unknown", c"channel adapter"], number)
}

/// By `ibv_port_state`.
pub(crate) fn port_state(number: u32) -> *const c_char {
    const WORDS: &[&CStr] = &[c"no change", c"down", c"init", c"armed", c"active", c"deferred"];
    word(WORDS, number)
}

/// By `ibv_event_type`.
pub(crate) fn event(number: u32) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"completion queue error",
        c"queue pair fatal",
        c"queue pair request error",
        c"queue pair access error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration failed",
        c"device fatal",
        c"port active",
        c"port error",
        c"LID change",
        c"partition key change",
        c"subnet manager change",
        c"shared receive queue error",
        c"shared receive queue limit",
        c"last receive reached",
        c"client reregister",
        c"GID change",
        c"work queue fatal",
    ];
    word(WORDS, number)
}
