//! Members that are known by their address: asked for their handles, until there is a link, and again once there is none.

use core::net::SocketAddr;
use core::time::Duration;

use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::rank::Rank;
use doorbell_core::session::Backoff;
use doorbell_core::{Deadline, Instant};

use crate::{Asking, Node, Worker};

use super::membership::Mesh;

/// How long a member may take to answer, and how long a link may take to come of it.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// A member, where it is asked.
pub(super) struct Sought<N: Network> {
    rank: Rank,
    address: SocketAddr,
    asking: Option<Asking<N>>,
    /// Not before.
    next: Deadline,
    attempts_failed: u32,
}

impl<N: Network> Sought<N> {
    pub(super) const fn new(rank: Rank, address: SocketAddr) -> Self {
        Self {
            rank,
            address,
            asking: None,
            next: Deadline::at(Instant::from_ns(0)),
            attempts_failed: 0,
        }
    }

    pub(super) const fn is(&self, rank: Rank) -> bool {
        self.rank.number() == rank.number()
    }

    /// When to poll again at the latest.
    pub(super) fn wake(&self) -> Deadline {
        self.asking.as_ref().map_or(self.next, Asking::deadline)
    }

    fn failed(&mut self, backoff: &Backoff, now: Instant, chance: u64) {
        self.asking = None;
        self.attempts_failed = self.attempts_failed.saturating_add(1);
        self.next = Deadline::after(now, backoff.wait(self.attempts_failed, chance));
    }
}

impl<P: Provider, N: Network> Mesh<P, N> {
    /// Asks those that no link leads to, and links to those that answered.
    pub(super) fn seek(&mut self, node: &Node<P, N>, workers: &[Worker<P>], now: Instant) {
        let backoff = self.state.config.link.session.backoff;
        for index in 0..self.sought.len() {
            let Some(rank) = self.sought.get(index).map(|sought| sought.rank) else {
                break;
            };
            let is_linked = self.is_linked(rank);
            let Some(sought) = self.sought.get_mut(index) else {
                break;
            };
            if is_linked {
                (sought.asking, sought.attempts_failed) = (None, 0);
                sought.next = Deadline::after(now, backoff.longest);
                continue;
            }
            // What is not secret differs from member to member all the same.
            let chance = now.to_ns() ^ self.state.config.started ^ u64::from(rank.number());
            let Some(asking) = &mut sought.asking else {
                if sought.next.has_passed(now) {
                    match node.begin_ask(sought.address, Deadline::after(now, ANSWERED_WITHIN)) {
                        Ok(asking) => sought.asking = Some(asking),
                        Err(_) => sought.failed(&backoff, now, chance),
                    }
                }
                continue;
            };
            match asking.poll(node) {
                None => {}
                Some(Err(_)) => sought.failed(&backoff, now, chance),
                Some(Ok(handle)) => {
                    sought.asking = None;
                    sought.next = Deadline::after(now, ANSWERED_WITHIN);
                    // Where no rail reaches it others are to be between, until one does.
                    let _ = self.connect(node, workers, rank, &handle);
                }
            }
        }
    }
}
