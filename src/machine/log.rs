//! Log events of the control plane: `tracing` events if the feature `tracing` is on, and nothing otherwise.
//!
//! The data path does not log: a test checks its files. Values are logged by their `Display`; text from a peer is never logged
//! unescaped.

/// Logs one event, with its level, its text, and its values.
macro_rules! log {
    ($level:ident, $what:literal $(, $name:ident = $value:expr)* $(,)?) => {{
        #[cfg(feature = "tracing")]
        tracing::$level!(target: "doorbell", $($name = %$value,)* $what);
        // The values are only compiled, so that they do not count as unused.
        #[cfg(not(feature = "tracing"))]
        if false {
            $(let _ = &$value;)*
        }
    }};
}

pub(crate) use log;
