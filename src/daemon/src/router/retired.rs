//! Detached clients whose memory is still mapped.

use crate::client_state::Client;

/// Memory of up to this size is unmapped at once.
const BYTES_MIN: u64 = 1 << 20;

/// A detached client. Dropping it unmaps its memory, and frees the pages if the process is gone. For a large arena this takes up to a
/// second.
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
