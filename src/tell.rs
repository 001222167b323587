//! What the control plane tells of what happens: events of `tracing` where that feature is on, and else nothing.
//!
//! Nothing on the data path tells anything: a test holds its files to that. Values are told as they display themselves;
//! what a peer says is never told as it came.

/// Tells one event: its level, what happened, and the values that belong to it.
macro_rules! tell {
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

pub(crate) use tell;
