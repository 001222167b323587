//! The part of a case of full links beside its hosts and lines. Host 0 accepts, and the others connect to it.

use doorbell::WorkerConfig;
use doorbell::link::LinkConfig;
use serde::{Deserialize, Serialize};

/// The limits of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FullCase {
    /// The limits of each host.
    pub(crate) rooms: Vec<LinkRoomCase>,
}

/// The limits of a host's links. The memory for them are its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkRoomCase {
    pub(crate) links_max: u32,
    pub(crate) links_per_address: u32,
    pub(crate) channels_max: u32,
    pub(crate) lease_share_percent: u32,
}

impl LinkRoomCase {
    pub(crate) const fn limit_links(&self, config: &mut LinkConfig) {
        (config.links_max, config.links_per_address) = (self.links_max, self.links_per_address);
    }

    pub(crate) const fn limit_worker(&self, config: &mut WorkerConfig) {
        config.channels_max = self.channels_max;
        config.lease_share_percent = self.lease_share_percent;
    }
}

/// Something that an end of a line does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FullAct {
    /// One more link of the line.
    Connect,
    /// This end closes one of the line's links.
    Close { nth: u8 },
    /// This end sends over one of them until it is refused.
    Flood { nth: u8, bytes: u16 },
}
