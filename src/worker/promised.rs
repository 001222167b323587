//! Resources of a Worker that are reserved for a connection before its queue pair exists.

use std::sync::Arc;

use doorbell_core::provider::{CompletionQueue, Provider, ReceivesClaim};
use doorbell_core::wire::CreditWord;
use doorbell_hotpath::{Grants, Share, WindowWord};

use super::Reservation;

/// Resources that a Worker reserved for a channel. The Worker's thread reserves them; another thread may make the queue pair.
/// Dropping the value releases them.
pub(crate) struct Promised<P: Provider> {
    pub(crate) sends: <P::CompletionQueue as CompletionQueue>::Claim,
    pub(crate) receives: ReceivesClaim<P>,
    pub(crate) word: WindowWord<Arc<P::Window>>,
    /// Address and key of the credit word, as the handshake sends them to the peer.
    pub(crate) credit: CreditWord,
    // Dropped last: from then on the index may go to another channel.
    pub(crate) reservation: Arc<Reservation>,
}

/// The receives that a peer may use from the start of the connection.
pub(crate) struct Supply<P: Provider> {
    pub(crate) grants: Arc<Grants>,
    pub(crate) receives: Supplied<P>,
}

/// Source of a channel's receives.
pub(crate) enum Supplied<P: Provider> {
    /// Slots for the queue pair's own receive queue, one for each entry, still to be posted.
    Own(Vec<P::Slot>),
    /// A share of the shared receives, which are posted already.
    Shared(Share<Arc<Grants>>),
}
