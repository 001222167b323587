//! How many peers were refused for who or where they are.

use doorbell_core::handshake::Cause;
use doorbell_core::wire::RejectReason;

use crate::error::ConnectError;

/// Peers a listener refused for who or where they are, or that refused it.
///
/// Zero where all is well: what grows is keys that were not changed everywhere, or somebody who tries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusals {
    /// They proved nothing, and a proof was asked.
    pub unauthenticated: u64,
    /// They named a key that the other side does not have.
    pub unknown_key: u64,
    /// Their proof was wrong.
    pub wrong_key: u64,
    /// Their address, or that of their rail, was in none of the subnets.
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
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        }
    }
}
