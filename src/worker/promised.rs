//! Resources of a Worker that are promised to a connection before it exists.

use std::sync::Arc;

use doorbell_core::provider::{CompletionQueue, Provider, ReceivesClaim};
use doorbell_core::wire::CreditWord;
use doorbell_hotpath::{Grants, Share, WindowWord};

use super::Reservation;

/// Resources that a Worker promised to a channel, on its own thread; the queue pair may be made on another. Dropped, they are
/// free again.
pub(crate) struct Promised<P: Provider> {
    pub(crate) sends: <P::CompletionQueue as CompletionQueue>::Claim,
    pub(crate) receives: ReceivesClaim<P>,
    pub(crate) word: WindowWord<Arc<P::Window>>,
    /// The word, as it is sent to the peer.
    pub(crate) credit: CreditWord,
    // Goes last: then the place may be another's.
    pub(crate) reservation: Arc<Reservation>,
}

/// The receives that a peer may use from the start.
pub(crate) struct Supply<P: Provider> {
    pub(crate) grants: Arc<Grants>,
    pub(crate) receives: Supplied<P>,
}

/// Source of a channel's receives.
pub(crate) enum Supplied<P: Provider> {
    /// Memory for as many as the queue pair's own queue is deep, to be posted.
    Own(Vec<P::Slot>),
    /// They are posted.
    Shared(Share<Arc<Grants>>),
}
