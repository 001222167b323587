//! Counts of peers that were refused because of their key or address.

use doorbell_core::handshake::Cause;
use doorbell_core::wire::RejectReason;

use crate::error::ConnectError;

/// Counts of handshakes that failed because of a key or an address. Peers that refused the listener's key or address count, too.
///
/// All counts are zero in normal operation. They grow if a key was not changed on all hosts, or if somebody tries to intrude.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusals {
    /// Handshakes in which the connecting side has no key and the listener requires one. The reverse counts as `unknown_key`.
    pub unauthenticated: u64,
    /// Handshakes with a key id that the other side does not have.
    pub unknown_key: u64,
    /// Handshakes in which the proof of the key was wrong.
    pub wrong_key: u64,
    /// Handshakes in which the address of one side, or of its rail, is outside the subnets of the other side's
    /// [`Trust::only_from`](crate::Trust::only_from).
    pub address: u64,
}

impl Refusals {
    pub(crate) const fn count(&mut self, error: &ConnectError) {
        let Some(count) = self.of(error) else { return };
        *count = count.saturating_add(1);
    }

    const fn of(&mut self, error: &ConnectError) -> Option<&mut u64> {
        match error {
            ConnectError::NotAllowed(_) => Some(&mut self.address),
            ConnectError::Handshake(error) => match error.cause {
                Cause::Unauthenticated => Some(&mut self.unauthenticated),
                Cause::UnknownKey(_) => Some(&mut self.unknown_key),
                Cause::WrongKey => Some(&mut self.wrong_key),
                Cause::RejectedByPeer(reject) => match reject.reason {
                    RejectReason::UNAUTHENTICATED => Some(&mut self.unauthenticated),
                    RejectReason::UNKNOWN_KEY => Some(&mut self.unknown_key),
                    RejectReason::WRONG_KEY => Some(&mut self.wrong_key),
                    RejectReason::NOT_ALLOWED => Some(&mut self.address),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        }
    }
}
