//! A rail of a link: its channel, the one that is being made, and what is in flight.

use std::collections::VecDeque;

use doorbell_core::Ticket;
use doorbell_core::network::Network;
use doorbell_core::provider::Provider;
use doorbell_core::wire::AdvertisedRail;

use crate::{ChannelId, Connecting};

/// A channel that is a rail's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) worker: usize,
    pub(super) channel: ChannelId,
}

/// Which port of ours and which rail of the peer's it is between.
#[derive(Clone, Debug)]
pub(super) struct Between {
    pub(super) device: String,
    pub(super) port: u8,
    pub(super) peer: AdvertisedRail,
}

pub(super) struct LinkRail<P: Provider, N: Network> {
    /// Of the side that connects.
    pub(super) between: Option<Between>,
    pub(super) connecting: Option<Connecting<P, N>>,
    pub(super) at: Option<At>,
    /// What was posted and has not completed, each with the bytes of its backlog.
    in_flight: VecDeque<(Ticket, u64)>,
}

impl<P: Provider, N: Network> LinkRail<P, N> {
    pub(super) fn new(between: Option<Between>, send_depth: u32) -> Self {
        let room = usize::try_from(send_depth).unwrap_or(0).saturating_add(1);
        Self {
            between,
            connecting: None,
            at: None,
            in_flight: VecDeque::with_capacity(room),
        }
    }

    /// Makes a channel the rail's; gives the one it had.
    pub(super) fn attach(&mut self, at: At) -> Option<At> {
        self.in_flight.clear();
        self.at.replace(at)
    }

    /// Forgets its channel.
    pub(super) fn detach(&mut self) -> Option<At> {
        self.in_flight.clear();
        self.at.take()
    }

    pub(super) fn posted(&mut self, ticket: Ticket, backlog: u64) {
        self.in_flight.push_back((ticket, backlog));
    }

    /// All up to a request are done: how many, and of how many bytes.
    pub(super) fn completed(&mut self, through: Ticket) -> (u32, u64) {
        let (mut requests, mut bytes) = (0_u32, 0_u64);
        while let Some((ticket, backlog)) = self.in_flight.front() {
            // Positions are counted on and on; what is later is nearly all the way round.
            if through.position().wrapping_sub(ticket.position()) > u64::MAX / 2 {
                break;
            }
            requests = requests.saturating_add(1);
            bytes = bytes.saturating_add(*backlog);
            self.in_flight.pop_front();
        }
        (requests, bytes)
    }
}
