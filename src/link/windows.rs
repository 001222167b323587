//! The calls of [`Links`] about windows that the two sides of a link grant each other.

use doorbell_core::network::Network;
use doorbell_core::provider::{Provider, RemoteAccess};
use doorbell_core::session::{RequestId, RequestRefusal};
use doorbell_core::wire::RemoteWindow;

use super::event::LinkId;
use super::links::Links;
use super::one_sided::Request;
use crate::connect::node::Node;

impl<P: Provider, N: Network> Links<P, N> {
    /// Grants a link's peer access to a window. `windows` has the same memory as registered with each Worker's device, with the index of the
    /// Worker. The grant is announced on every connection. Returns the number of the grant. Returns `None` at the limit on grants of a link,
    /// if `access` allows nothing, if `windows` is empty, or if one of the windows has no length.
    ///
    /// The window has to exist until the grant is withdrawn and the link is over: a peer's request to memory that is gone fails the
    /// connection. [`ChannelConfig::remote`](crate::ChannelConfig::remote) limits the access of the peer.
    pub fn grant(
        &mut self,
        id: LinkId,
        windows: &[(usize, RemoteWindow)],
        access: RemoteAccess,
    ) -> Option<u32> {
        let link = self.core.link_mut(id).filter(|_| !windows.is_empty())?;
        link.one_sided.ours.grant(windows, access)
    }

    /// Withdraws a grant, and notifies the link's peer. The key stays valid, so the peer's requests may still be executed. If they must not,
    /// lend a part of a region instead ([`Links::lend_window`]).
    pub fn withdraw(&mut self, id: LinkId, window: u32) {
        if let Some(link) = self.core.link_mut(id) {
            link.one_sided.ours.withdraw(window);
        }
    }

    /// Begins a request to a window that the peer granted, at this offset. Later polls post it, over any rail with a key for the window.
    /// [`LinkEvent::Fetched`](crate::link::LinkEvent::Fetched) or [`LinkEvent::Ended`](crate::link::LinkEvent::Ended) reports its end with the
    /// returned id. Open requests may be executed in any order.
    ///
    /// # Errors
    /// [`RequestRefusal::Full`] is backpressure: poll, and try again. [`RequestRefusal::Over`] has the reason of the link's end, for as long
    /// as [`Links::send`] returns it.
    pub fn request(
        &mut self,
        node: &Node<P, N>,
        id: LinkId,
        (window, offset): (u32, u64),
        request: &Request<'_>,
    ) -> Result<RequestId, RequestRefusal> {
        let Some(link) = self.core.link_mut(id) else {
            return Err(self
                .core
                .over(id)
                .map_or(RequestRefusal::Closing, RequestRefusal::Over));
        };
        let asked = link.ask((window, offset), request, node.network.now());
        self.waiting
            .note_refused(matches!(asked, Err(RequestRefusal::Full)));
        asked
    }
}
