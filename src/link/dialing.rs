//! Connecting the rails of a link: each between one port of ours and one rail of the peer's, looked for anew each time.

use core::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use doorbell_core::handshake::{Cause, HandshakeError};
use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::session::{Epoch, FinalReason};
use doorbell_core::wire::{AdvertisedRail, Handle, RejectReason, Resumption};
use doorbell_core::{Deadline, Instant};

use super::config::LinkConfig;
use super::rail::{At, Between, LinkRail};
use super::state::Link;
use crate::connecting::{Aim, Patience};
use crate::edge::signal::Signal;
use crate::error::ConnectError;
use crate::look::{LOOKED_WITHIN, Looking};
use crate::rails::Rails;
use crate::tell::tell;
use crate::{ChannelConfig, Connecting, Connection, Node, Worker};

/// Rails that are being looked for: our ports are looked at.
pub(super) struct Finding {
    looking: Looking,
    /// Those of the peer's.
    peers: Vec<AdvertisedRail>,
    /// Raised once they can be found, where our ports are looked at on another thread.
    signal: Option<Arc<Signal>>,
}

impl Finding {
    /// What becomes readable once they can be found.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.signal.as_ref()?.descriptor())
    }

    /// When to poll again at the latest.
    pub(super) const fn deadline(&self) -> Deadline {
        self.looking.deadline()
    }
}

/// The rails of a link to be, and the speed of each.
pub(super) fn rails_to(rails: &Rails, peers: &[AdvertisedRail]) -> Result<Vec<(Between, u32)>, ConnectError> {
    let found: Vec<_> = rails
        .pairs(peers)
        .iter()
        .filter_map(|paired| {
            let (device, port) = rails.port_of(paired.pair.local)?;
            let between = Between {
                device: device.into(),
                port,
                peer: *peers.get(paired.pair.peer)?,
            };
            let speed_mbps = u32::try_from(paired.speed.to_mbps()).unwrap_or(u32::MAX);
            tell!(
                info,
                "rail chosen",
                device = between.device,
                port = port,
                peers = between.peer,
                mbps = speed_mbps
            );
            Some((between, speed_mbps))
        })
        .collect();
    if found.is_empty() {
        // With the reason for each.
        if let Err(reason) = rails.route(peers) {
            tell!(warn, "no rail reaches the peer", reason = reason);
            return Err(reason.into());
        }
        return Err(ConnectError::NoRails);
    }
    Ok(found)
}

impl<P: Provider, N: Network> Link<P, N> {
    /// Goes by another handle of the same process: where it is reached by now. Says whether it is one.
    pub(super) fn reroute(
        &mut self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        handle: &Handle,
        now: Instant,
    ) -> bool {
        let is_same = self
            .handle
            .is_some_and(|known| known.instance() == handle.instance());
        if !is_same {
            return false;
        }
        self.handle = Some(*handle);
        let rails: Vec<_> = handle.rails().iter().collect();
        self.look_for(node, workers, rails, now);
        self.ask_for_rails();
        true
    }

    /// Goes by these rails of the peer, once our ports were looked at.
    pub(super) fn look_for(
        &mut self,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        peers: Vec<AdvertisedRail>,
        now: Instant,
    ) {
        // What was looked for before is of no more use.
        self.finding = None;
        let Ok(signal) = node.makers().signal() else {
            return;
        };
        let until = Deadline::after(now, LOOKED_WITHIN);
        if let Ok(looking) = Looking::begin(node, workers, signal.as_ref(), until) {
            self.finding = Some(Finding {
                looking,
                peers,
                signal,
            });
            self.take_found(node, workers, now);
        }
    }

    /// Goes by what was found, if our ports were looked at. Says whether nothing is looked for any more.
    pub(super) fn take_found(&mut self, node: &Node<P, N>, workers: &[Worker<P>], now: Instant) -> bool {
        let Some(finding) = &self.finding else {
            return true;
        };
        if let Some(signal) = &finding.signal {
            signal.take();
        }
        let Some(looked) = finding.looking.take(node, workers) else {
            return false;
        };
        let is_late = looked.is_err() && finding.looking.deadline().has_passed(now);
        let found = looked.and_then(|rails| rails_to(&rails, &finding.peers));
        let peers = self.finding.take().map(|finding| finding.peers);
        match (found, peers) {
            (Ok(found), _) => self.go_by(found, now),
            // The peer says once where it is by now. A look that is late is the pace of those that follow.
            (Err(reason), Some(peers)) if is_late => {
                tell!(
                    warn,
                    "the ports are not looked at in time: once more",
                    reason = reason
                );
                self.look_for(node, workers, peers, now);
                return false;
            }
            // Where nothing reaches it now, rails are tried as before.
            (Err(reason), _) => tell!(warn, "rails stay as they are", reason = reason),
        }
        true
    }

    /// Goes by these rails.
    pub(super) fn go_by(&mut self, found: Vec<(Between, u32)>, now: Instant) {
        for (between, speed_mbps) in found {
            let is_of_port = |rail: &&mut LinkRail<P, N>| {
                let known = rail.between.as_ref();
                known.is_some_and(|known| (&known.device, known.port) == (&between.device, between.port))
            };
            if let Some(rail) = self.rails.iter_mut().find(is_of_port) {
                rail.between = Some(between);
            } else if let Some(rail) = self.session.add_rail(speed_mbps, now) {
                if let Some(rail) = self.rail_mut(rail) {
                    rail.between = Some(between);
                }
            }
        }
    }

    /// Begins to connect a rail, over what addresses its port has now.
    pub(super) fn dial(
        &self,
        rail: u8,
        epoch: Epoch,
        node: &Node<P, N>,
        workers: &[Worker<P>],
        config: &LinkConfig,
    ) -> Result<Connecting<P, N>, ConnectError> {
        let between = self
            .rails
            .get(usize::from(rail))
            .and_then(|rail| rail.between.as_ref());
        let (Some(between), Some(handle)) = (between, &self.handle) else {
            return Err(ConnectError::NoRails);
        };
        let patience = Patience::OnceLooked(config.session.attach_within);
        // The handshake proves it; what is said first on the connection has to be the same.
        let channel = ChannelConfig {
            session: Some(Resumption {
                session: self.session.id(),
                epoch: epoch.to_u32(),
                next_sequence: self.session.expected().0,
            }),
            ..config.channel
        };
        let aim = Aim::Rail {
            handle: *handle,
            device: between.device.clone(),
            port: between.port,
            peer: between.peer,
        };
        node.begin(workers, aim, &channel, patience)
    }

    /// Goes on with the rails that are being connected; `made` gets each channel that came of it.
    pub(super) fn poll_connecting(
        &mut self,
        node: &Node<P, N>,
        workers: &mut [Worker<P>],
        (now, random): (Instant, u64),
        frame_bytes: usize,
        mut made: impl FnMut(u8, At),
    ) {
        let mut has_failed = false;
        for (index, rail) in (0_u8..).zip(&mut self.rails) {
            if self.session.over().is_some() {
                rail.connecting = None;
            }
            let Some(outcome) = rail
                .connecting
                .as_mut()
                .and_then(|connecting| connecting.poll(node, workers))
            else {
                continue;
            };
            rail.connecting = None;
            match outcome {
                Ok(Connection { worker, channel }) => {
                    let at = At { worker, channel };
                    let peer = rail
                        .between
                        .as_ref()
                        .map(|between| between.peer.address().address());
                    rail.attach(at, peer.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)));
                    self.session.connected(index, now);
                    made(index, at);
                    if !takes(workers, at, frame_bytes) {
                        self.session.fail(FinalReason::Unsuitable);
                    }
                }
                Err(error) => {
                    self.session.connect_failed(index, is_gone(&error), now, random);
                    rail.note_failure(error);
                    has_failed = true;
                }
            }
        }
        if has_failed {
            // Of rails that the handle has no room for nobody says that they are others by now.
            self.ask_for_rails();
        }
    }
}

/// Whether a channel's peer takes frames as long as ours.
pub(super) fn takes<P: Provider>(workers: &mut [Worker<P>], at: At, frame_bytes: usize) -> bool {
    workers
        .get_mut(at.worker)
        .and_then(|worker| worker.channel(at.channel))
        .is_some_and(|channel| {
            usize::try_from(channel.peer().message_bytes_max()).is_ok_and(|bytes| bytes >= frame_bytes)
        })
}

/// Whether the process that handed out the handle is not there any more, and another is.
fn is_gone(error: &ConnectError) -> bool {
    match error {
        ConnectError::Handshake(HandshakeError { cause, .. }) => match cause {
            Cause::StaleHandle { .. } => true,
            Cause::RejectedByPeer(reject) => reject.reason == RejectReason::STALE_HANDLE,
            _ => false,
        },
        _ => false,
    }
}
