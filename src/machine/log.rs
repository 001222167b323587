//! Log events of the control plane: events of `tracing` if that feature is on, else nothing.
//!
//! Nothing on the data path logs: a test checks its files. Values are logged as they display themselves; text of a peer is
//! never logged as it came.

/// Logs one event: its level, its text, and the values that belong to it.
macro_rules! log {
    ($level:ident, $what:literal $(, $name:ident = $value:expr)* $(,)?) => {{
        #[cfg(feature = "tracing")]
        tracing::$level!(target: "doorbell", $($name = %$value,)* $what);
        // The values are looked at by the compiler alone.
        #[cfg(not(feature = "tracing"))]
        if false {
            $(let _ = &$value;)*
        }
    }};
}

pub(crate) use log;
