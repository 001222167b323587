//! Logging by NCCL's function.

use core::fmt;
use std::ffi::CString;
use std::io::Write as _;
use std::sync::{PoisonError, RwLock};

use crate::abi::{LOG_INFO, LOG_INIT_AND_NET, LOG_WARN, Logger};

/// The function that NCCL passed last.
static LOGGER: RwLock<Logger> = RwLock::new(Logger(None));

/// Sets the log function.
pub(crate) fn set(logger: Logger) {
    if logger.0.is_some() {
        *LOGGER.write().unwrap_or_else(PoisonError::into_inner) = logger;
    }
}

/// Logs a warning. Without a function of NCCL, the text goes to standard error.
pub(crate) fn warn(what: impl fmt::Display) {
    let text = format!("NET/doorbell : {what}");
    if !log(LOG_WARN, &text) {
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

/// Logs information.
pub(crate) fn info(what: impl fmt::Display) {
    let _ = log(LOG_INFO, &format!("NET/doorbell : {what}"));
}

/// Logs a line. Returns false if there is no function.
fn log(level: core::ffi::c_int, text: &str) -> bool {
    let Logger(Some(logger)) = *LOGGER.read().unwrap_or_else(PoisonError::into_inner) else {
        return false;
    };
    // A NUL would end the line early.
    let text: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
    let Ok(text) = CString::new(text) else {
        return false;
    };
    // SAFETY: NCCL's function, with a format that takes one string. The strings live during the call. NCCL keeps its function as
    // long as the plugin is loaded.
    unsafe {
        logger(
            level,
            LOG_INIT_AND_NET,
            c"doorbell".as_ptr(),
            0,
            c"%s".as_ptr(),
            text.as_ptr(),
        );
    }
    true
}
