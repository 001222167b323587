//! Clients that are detached and whose memory is still mapped.

use crate::client_state::Client;

/// Memory of so many bytes is unmapped at once.
const BYTES_MIN: u64 = 1 << 20;

/// A client that is detached. Dropping it unmaps its memory, and frees the pages if its process is gone: up to a second for a large arena.
#[derive(Debug)]
pub struct Retired(Box<Client>);

impl Retired {
    pub(super) fn new(client: Client) -> Option<Self> {
        (client.layout.bytes() > BYTES_MIN).then(|| Self(Box::new(client)))
    }

    /// The user of the process.
    #[must_use]
    pub const fn user(&self) -> u32 {
        self.0.who.uid
    }
}
