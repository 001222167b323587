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
    /// Lets a link's peer reach a window. `windows` has the same memory as registered with each Worker's device, with the index
    /// of the Worker. Every connection announces it anew. Returns the number of the grant. `None` if there are as many grants as a link
    /// may have, if `access` allows nothing, or if one of the windows has no length.
    ///
    /// The window has to exist until it is withdrawn and the link is over: a peer's request for memory that is gone fails its
    /// connection. [`ChannelConfig::remote`](crate::ChannelConfig::remote) limits the access of the peer.
    pub fn grant(
        &mut self,
        id: LinkId,
        windows: &[(usize, RemoteWindow)],
        access: RemoteAccess,
    ) -> Option<u32> {
        self.core.link_mut(id)?.one_sided.ours.grant(windows, access)
    }

    /// Withdraws a grant, and notifies the link's peer. Requests that the peer made before may still be executed. If they must not, lend a
    /// part of a region instead ([`Links::lend_window`]).
    pub fn withdraw(&mut self, id: LinkId, window: u32) {
        if let Some(link) = self.core.link_mut(id) {
            link.one_sided.ours.withdraw(window);
        }
    }

    /// Makes a request of a window that the peer granted, from this offset on. Later polls post it, over any rail that leads to the
    /// window. [`LinkEvent::Fetched`](crate::link::LinkEvent::Fetched) or [`LinkEvent::Ended`](crate::link::LinkEvent::Ended) names it by the
    /// returned value. Requests without an end yet may be done in any order.
    ///
    /// # Errors
    /// [`RequestRefusal::Full`] is backpressure: poll, and try again. [`RequestRefusal::Over`] says why the link is over, for as long as
    /// [`Links::send`] does.
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
