//! Interrupts: SIGINT or SIGTERM ends the command and notifies the peer. A second signal ends it
//! immediately.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::sync::Arc;

use signal_hook::consts::signal::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::report::Failure;

/// The reason, for this side and for the peer.
pub(super) const WHY: &str = "interrupted by a signal";

/// Whether the command was interrupted.
#[derive(Clone, Debug, Default)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Handles the signals from now on.
    ///
    /// # Errors
    /// A signal handler cannot be installed.
    pub(super) fn heeded() -> io::Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM] {
            // Registered first, so that it acts only on a signal after the one that sets the flag.
            flag::register_conditional_shutdown(
                signal,
                128_i32.saturating_add(signal),
                Arc::clone(&interrupt.0),
            )?;
            flag::register(signal, Arc::clone(&interrupt.0))?;
        }
        Ok(interrupt)
    }

    pub(super) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// The command was interrupted.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.is_raised() { ended() } else { Ok(()) }
    }
}

/// # Errors
/// Always: the command was interrupted.
pub(super) fn ended<T>() -> Result<T, Failure> {
    Err(WHY.into())
}
