//! Members that are known by their address: asked for their handles, until there is a link, and again once there is none.

use core::net::SocketAddr;
use core::time::Duration;

use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::rank::Rank;
use doorbell_core::session::Backoff;
use doorbell_core::wire::Handle;
use doorbell_core::{Deadline, Instant};

use super::config::MeshError;
use super::membership::Mesh;
use super::unlinked::NotLinked;
use crate::error::ConnectError;
use crate::look::{LOOKED_WITHIN, Looking};
use crate::tell::tell;
use crate::{Asking, Node, Worker};

/// How long a member may take to answer, and how long a link may take to come of it.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// A member, where it is asked.
pub(super) struct Sought<N: Network> {
    rank: Rank,
    address: SocketAddr,
    asking: Option<Asking<N>>,
    /// What it answered, while our ports are looked at.
    looking: Option<(Handle, Looking)>,
    /// Not before.
    next: Deadline,
    attempts_failed: u32,
    /// Why the last question came to nothing, until one is answered.
    failure: Option<ConnectError>,
}

impl<N: Network> Sought<N> {
    pub(super) const fn new(rank: Rank, address: SocketAddr) -> Self {
        Self {
            rank,
            address,
            asking: None,
            looking: None,
            next: Deadline::at(Instant::from_ns(0)),
            attempts_failed: 0,
            failure: None,
        }
    }

    pub(super) const fn is(&self, rank: Rank) -> bool {
        self.rank.number() == rank.number()
    }

    /// When to poll again at the latest.
    pub(super) fn wake(&self) -> Deadline {
        let looking = self.looking.as_ref().map(|(_, looking)| looking.deadline());
        let asking = self.asking.as_ref().map(Asking::deadline);
        looking.or(asking).unwrap_or(self.next)
    }

    pub(super) const fn is_asking(&self) -> bool {
        self.asking.is_some() || self.looking.is_some()
    }

    /// Why it was not found.
    pub(super) fn failure(&self) -> Option<NotLinked<'_>> {
        let (address, why) = (self.address, self.failure.as_ref()?);
        Some(NotLinked::NotFound { address, why })
    }

    fn failed(&mut self, why: ConnectError, backoff: &Backoff, now: Instant, chance: u64) {
        tell!(
            warn,
            "a member was not found",
            rank = self.rank,
            at = self.address,
            reason = why
        );
        self.failure = Some(why);
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
                (sought.asking, sought.attempts_failed, sought.failure) = (None, 0, None);
                sought.looking = None;
                sought.next = Deadline::after(now, backoff.longest);
                continue;
            }
            if sought.looking.is_some() {
                self.link_to_found(index, node, workers, now);
                continue;
            }
            // What is not secret differs from member to member all the same.
            let chance = now.to_ns() ^ self.state.config.started ^ u64::from(rank.number());
            let Some(asking) = &mut sought.asking else {
                if sought.next.has_passed(now) {
                    match node.begin_ask(sought.address, Deadline::after(now, ANSWERED_WITHIN)) {
                        Ok(asking) => sought.asking = Some(asking),
                        Err(error) => sought.failed(error, &backoff, now, chance),
                    }
                }
                continue;
            };
            match asking.poll(node) {
                None => {}
                Some(Err(error)) => sought.failed(error, &backoff, now, chance),
                Some(Ok(handle)) => {
                    (sought.asking, sought.failure) = (None, None);
                    sought.next = Deadline::after(now, ANSWERED_WITHIN);
                    let until = Deadline::after(now, LOOKED_WITHIN);
                    // Whoever waits for the mesh looks now and then, without a signal.
                    match Looking::begin(node, workers, None, until) {
                        Ok(looking) => {
                            sought.looking = Some((handle, looking));
                            self.link_to_found(index, node, workers, now);
                        }
                        Err(error) => self.state.note_not_begun(rank, Some(error.into())),
                    }
                }
            }
        }
    }

    /// Links to one that answered, once our ports were looked at.
    fn link_to_found(&mut self, index: usize, node: &Node<P, N>, workers: &[Worker<P>], now: Instant) {
        let Some(sought) = self.sought.get_mut(index) else {
            return;
        };
        let Some((handle, looking)) = &sought.looking else {
            return;
        };
        let Some(found) = looking.take(node, workers) else {
            return;
        };
        let (rank, handle) = (sought.rank, *handle);
        sought.looking = None;
        // A link is to come of it from now on: the look was not the member's time.
        sought.next = Deadline::after(now, ANSWERED_WITHIN);
        let outcome = self.connect_by(node, workers, (rank, &handle), |links| {
            links.connect_over(node, &found?, &handle)
        });
        // Where no rail reaches it others are to be between, until one does: that is noted where it is found.
        if let Err(MeshError::Link(error)) = outcome {
            self.state.note_not_begun(rank, Some(error));
        }
    }
}
