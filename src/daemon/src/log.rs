//! Log events of the daemon: events of `tracing` if that feature is on, else nothing.
//!
//! The code path of a message never logs. Events that a process can cause are limited by a `Quota`.

/// Logs an event: its level, its text, and its named values.
macro_rules! log {
    ($level:ident, $what:literal $(, $name:ident = $value:expr)* $(,)?) => {{
        #[cfg(feature = "tracing")]
        tracing::$level!(target: "doorbell", $($name = %$value,)* $what);
        // Only type-checks the values.
        #[cfg(not(feature = "tracing"))]
        if false {
            $(let _ = &$value;)*
        }
    }};
}

pub(crate) use log;
