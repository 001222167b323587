//! Log events of the daemon: events of `tracing` if that feature is on, else nothing.
//!
//! Nothing that runs for a message logs. Events that a process brings about go through a `Quota`.

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
