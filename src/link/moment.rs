//! The time and the random number of a poll, for sessions, which have neither a clock nor entropy.

use doorbell_core::Instant;

/// The time of a poll, and a random number for its backoffs.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) now: Instant,
    /// A random number that need not be secret.
    pub(super) random: u64,
}
