//! The moment of a poll, for sessions: they have no clock and no randomness of their own.

use doorbell_core::Instant;

/// The time of a poll, and a random number for its backoffs.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) now: Instant,
    /// Randomness that need not be secret.
    pub(super) random: u64,
}
