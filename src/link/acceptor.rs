//! Acceptance of peers: grants places on the Workers to handshakes, and accepts the connections that result.
//!
//! The module `handshakes` deals with slow, silent or hostile peers. This module never waits.

use core::fmt;
use core::net::SocketAddr;
use std::os::fd::BorrowedFd;

use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::wire::{AdvertisedRail, Handle, InstanceId};
use doorbell_core::{Deadline, Instant};

use super::dispatch::ChannelOwner;
use super::log::log_closed;
use super::rail::At;
use super::table::Core;
use crate::connect::acceptances::Acceptances;
use crate::connect::background::Background;
use crate::connect::handshakes::{HandshakeCounts, Handshakes};
use crate::connect::listener::{handle_of, is_selected};
use crate::error::ConnectError;
use crate::worker::Worker;

/// Limit on the requests and connections of one Worker that a poll handles. The next poll handles the others.
const ACCEPTED_MAX: usize = 64;

/// The handshakes of peers, and for each Worker the connections to accept.
pub(super) struct PeerAcceptor<P: Provider, N: Network> {
    /// The handle for peers, and the address of the listener. `None` if the links have no Worker.
    way: Option<(Handle, SocketAddr)>,
    handshakes: Advancing<P, N>,
    acceptances: Vec<Acceptances<P>>,
    /// Reason why one of the Workers accepts no peer any more.
    closed: Option<ConnectError>,
}

/// The code that advances the handshakes.
enum Advancing<P: Provider, N: Network> {
    /// A separate thread.
    Beside(#[expect(dead_code, reason = "its drop ends the thread")] Box<Background>),
    /// Each poll of the links.
    Here(Box<Handshakes<P, N>>),
    /// [`Handshakes`] that the caller polls.
    Elsewhere,
}

impl<P: Provider, N: Network> PeerAcceptor<P, N> {
    pub(super) fn beside((background, acceptances): (Background, Vec<Acceptances<P>>)) -> Self {
        Self {
            way: Some((*background.handle(), background.address())),
            handshakes: Advancing::Beside(Box::new(background)),
            acceptances,
            closed: None,
        }
    }

    pub(super) fn here((handshakes, acceptances): (Handshakes<P, N>, Vec<Acceptances<P>>)) -> Self {
        Self {
            way: Some((*handshakes.handle(), handshakes.address())),
            handshakes: Advancing::Here(Box::new(handshakes)),
            acceptances,
            closed: None,
        }
    }

    pub(super) fn elsewhere(acceptances: Vec<Acceptances<P>>) -> Self {
        Self {
            way: acceptances.first().map(Acceptances::way),
            handshakes: Advancing::Elsewhere,
            acceptances,
            closed: None,
        }
    }

    /// The handle for peers, if it is known.
    pub(super) const fn handle(&self) -> Option<&Handle> {
        match &self.way {
            Some((handle, _)) => Some(handle),
            None => None,
        }
    }

    /// Makes the handle of these rails. Returns it if it differs from the previous one.
    #[inline(never)] // It runs once a refresh, and would be compiled into each poll.
    pub(super) fn refresh(&mut self, advertised: &[AdvertisedRail], instance: InstanceId) -> Option<Handle> {
        let (known, address) = self.way.as_mut()?;
        // Without a rail that reaches the listener the old handle stays: the rail may return with the same address.
        let at = *address;
        let is_cut_off = known.rails().iter().all(|rail| is_selected(at, &rail))
            && !advertised.iter().any(|rail| is_selected(at, rail));
        if is_cut_off {
            return None;
        }
        let handle = handle_of(advertised, *address, instance).ok()?;
        let is_new = handle != *known;
        *known = handle;
        is_new.then_some(handle)
    }

    /// Counts of the handshakes.
    pub(super) fn counts(&self) -> HandshakeCounts {
        self.acceptances
            .first()
            .map_or_else(HandshakeCounts::default, Acceptances::counts)
    }

    /// Returns the reason of the last failed handshake, or of the port's last failure, once.
    pub(super) fn take_failure(&self) -> Option<ConnectError> {
        self.acceptances.first().and_then(Acceptances::take_failure)
    }

    /// Returns the reason why one of the Workers accepts no peer any more.
    pub(super) const fn closed(&self) -> Option<&ConnectError> {
        self.closed.as_ref()
    }

    /// When to poll again at the latest, if polls of the links advance the handshakes.
    pub(super) fn deadline(&self) -> Option<Deadline> {
        match &self.handshakes {
            Advancing::Here(handshakes) => handshakes.deadline(),
            Advancing::Beside(_) | Advancing::Elsewhere => None,
        }
    }

    /// Whether no descriptor wakes this thread when a peer is to be accepted, since the caller polls the handshakes.
    pub(super) fn is_unnoticed(&self) -> bool {
        let is_elsewhere = matches!(self.handshakes, Advancing::Elsewhere) && self.closed.is_none();
        is_elsewhere && self.acceptances.iter().any(|one| one.descriptor().is_none())
    }

    /// The handshakes, if polls of the links advance them.
    pub(super) fn polled_here(&self) -> Option<&Handshakes<P, N>> {
        match &self.handshakes {
            Advancing::Here(handshakes) => Some(handshakes),
            Advancing::Beside(_) | Advancing::Elsewhere => None,
        }
    }

    /// Descriptors that become readable when there is something to accept.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.acceptances.iter().filter_map(Acceptances::descriptor)
    }

    /// Grants places, and accepts connections, without waiting. A peer whose connection is accepted has to send its first frame, which
    /// names the link, within `attach_within`.
    pub(super) fn poll(&mut self, workers: &mut [Worker<P>], core: &mut Core<P, N>, now: Instant) {
        loop {
            if let Advancing::Here(handshakes) = &mut self.handshakes {
                handshakes.poll();
            }
            let mut has_granted = false;
            for (index, (acceptances, worker)) in self.acceptances.iter_mut().zip(&mut *workers).enumerate() {
                let mut turns = 0..ACCEPTED_MAX;
                while turns.next().is_some() {
                    let is_asked = acceptances.is_asked();
                    let grant = |request: &_, worker: &mut _| core.grant((index, worker), request);
                    match acceptances.poll_accept_where(worker, grant) {
                        Ok(Some(channel)) => {
                            let at = At {
                                worker: index,
                                channel,
                            };
                            let until = Deadline::after(now, core.config.session.attach_within);
                            core.routes.set(at, ChannelOwner::Unclaimed(until));
                        }
                        Ok(None) if is_asked => has_granted = true,
                        Ok(None) => break,
                        // This Worker accepts no further peer. A failed handshake is not reported here.
                        Err(error) => {
                            if self.closed.is_none() {
                                log_closed(&error);
                                self.closed = Some(error);
                            }
                            break;
                        }
                    }
                    // At the limit, requests may be left that no signal announces again.
                    core.taken.note(0, turns.is_empty());
                }
            }
            // A granted place lets the handshake advance, so it is polled again.
            if !has_granted || !matches!(self.handshakes, Advancing::Here(_)) {
                break;
            }
        }
    }
}

impl<P: Provider, N: Network> fmt::Debug for PeerAcceptor<P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerAcceptor")
            .field("handle", &self.handle())
            .field("acceptances", &self.acceptances)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use doorbell_core::wire::SpeedClass;
    use doorbell_core::{Gid, IpPrefix};
    use doorbell_sim::Host;

    use super::*;

    fn rail(address: &str) -> AdvertisedRail {
        let address = address.parse().unwrap();
        let prefix = IpPrefix::new(address, 24).unwrap();
        AdvertisedRail::new(prefix, Gid::from_ip(address), SpeedClass(7)).unwrap()
    }

    fn addresses(handle: &Handle) -> Vec<String> {
        let rails = handle.rails().iter();
        rails.map(|rail| rail.address().address().to_string()).collect()
    }

    fn ours() -> InstanceId {
        InstanceId::new(7).unwrap()
    }

    #[test]
    fn a_handle_lists_the_rails_that_reach_the_listener() {
        let (four, other, six) = (rail("10.0.0.1"), rail("10.1.0.1"), rail("fd00::1"));
        for (at, advertised, listed) in [
            (
                "0.0.0.0:7000",
                vec![six, four, other],
                vec!["10.0.0.1", "10.1.0.1"],
            ),
            ("[::]:7000", vec![six, four], vec!["fd00::1", "10.0.0.1"]),
            ("10.1.0.1:7000", vec![six, four, other], vec!["10.1.0.1"]),
            ("[fd00::1]:7000", vec![six, four], vec!["fd00::1"]),
            // Peers are given the listener's address instead of the handle.
            ("0.0.0.0:7000", vec![six], vec!["fd00::1"]),
            ("192.168.0.1:7000", vec![six, four], vec!["fd00::1", "10.0.0.1"]),
        ] {
            let handle = handle_of(&advertised, at.parse().unwrap(), ours()).unwrap();
            assert_eq!(addresses(&handle), listed, "{at}");
        }
    }

    #[test]
    fn a_listener_whose_rail_goes_away_keeps_its_handle() {
        let (own, other, six) = (rail("10.0.0.1"), rail("10.1.0.1"), rail("fd00::1"));
        for (at, own, rest) in [
            ("10.0.0.1:7000", vec![own], vec![other, six]),
            ("0.0.0.0:7000", vec![own, other], vec![six]),
        ] {
            let address = at.parse().unwrap();
            let all = [own.clone(), rest.clone()].concat();
            let handle = handle_of(&all, address, ours()).unwrap();
            let mut acceptor = PeerAcceptor::<Host, Host> {
                way: Some((handle, address)),
                handshakes: Advancing::Elsewhere,
                acceptances: Vec::new(),
                closed: None,
            };
            assert_eq!(acceptor.refresh(&rest, ours()), None, "{at}");
            assert_eq!(acceptor.refresh(&[], ours()), None, "{at}");
            assert_eq!(acceptor.refresh(&own, ours()), None, "{at}");
            assert_eq!(acceptor.handle(), Some(&handle), "{at}");
        }
    }
}
