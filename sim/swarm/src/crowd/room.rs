//! The room of a Worker, computed from its configuration and from the channels that the run knows of.
//!
//! Source: the documentation of `WorkerConfig`, `ChannelConfig` and `HandshakeLimits`.

use core::ops::RangeInclusive;

use doorbell::ConnectError;

use crate::case::{HostCase, LineCase};
use crate::crowd::case::RoomCase;

/// The places that a channel takes, or a handshake that already has a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// The stranger or the channel that it is of.
    pub(crate) number: u32,
    /// The host that connected, where this one accepted.
    pub(crate) from: Option<usize>,
    pub(crate) is_unfinished: bool,
    sends: u32,
    receives: u32,
}

impl Held {
    /// Returns the places of one end of a line. It has one send more than its depth, for announcements of receives.
    pub(crate) fn of(line: &LineCase, end: usize, number: u32, from: Option<usize>) -> Self {
        Self {
            number,
            from,
            is_unfinished: false,
            sends: line.send_depth + 1,
            receives: line.receive_depths[end],
        }
    }
}

/// Why one more is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    ChannelsFrom(usize),
    Channels,
    Share {
        receives_left: u32,
    },
    Room {
        sends_left: u32,
        receives_left: u32,
    },
    Slots {
        receives_left: u32,
        slots: u32,
        leases_kept: u32,
    },
    Memory,
    Unaccepted,
    Unfinished(usize),
}

impl Refusal {
    /// Whether the product says the same; `host_of` finds whose an address is.
    pub(crate) fn is(
        self,
        error: &ConnectError,
        host_of: impl Fn(core::net::IpAddr) -> Option<usize>,
    ) -> bool {
        match (self, error) {
            (Self::ChannelsFrom(host), ConnectError::TooManyChannelsFrom { address, .. })
            | (Self::Unfinished(host), ConnectError::TooManyUnfinishedFrom { address, .. }) => {
                host_of(*address) == Some(host)
            }
            (Self::Channels, ConnectError::TooManyChannels { .. })
            | (Self::Memory, ConnectError::NoMemory)
            | (Self::Unaccepted, ConnectError::TooManyUnaccepted { .. }) => true,
            (
                Self::Share { receives_left },
                ConnectError::NoShare {
                    receives_left: told, ..
                },
            ) => receives_left == *told,
            (
                Self::Room {
                    sends_left,
                    receives_left,
                },
                ConnectError::NoRoom {
                    sends_left: sends,
                    receives_left: receives,
                },
            ) => (sends_left, receives_left) == (*sends, *receives),
            (
                Self::Slots {
                    receives_left,
                    slots,
                    leases_kept,
                },
                ConnectError::NoSlots {
                    receives_left: receives,
                    slots: all,
                    leases_kept: kept,
                },
            ) => (receives_left, slots, leases_kept) == (*receives, *all, *kept),
            _ => false,
        }
    }
}

/// The room of a Worker.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    case: RoomCase,
    slots: u32,
    shared: Option<u32>,
    /// Slots that the application has.
    pub(crate) leased: u32,
    pub(crate) held: Vec<Held>,
}

impl Room {
    pub(crate) const fn new(case: RoomCase, host: &HostCase) -> Self {
        Self {
            case,
            slots: host.slots,
            shared: host.shared_receives,
            leased: 0,
            held: Vec::new(),
        }
    }

    fn sends_left(&self) -> u32 {
        let taken: u32 = self.held.iter().map(|held| held.sends).sum();
        self.case.completion_depth.saturating_sub(taken)
    }

    fn receives_taken(&self) -> u32 {
        self.held.iter().map(|held| held.receives).sum()
    }

    fn receives_left(&self) -> u32 {
        let depth = self.shared.unwrap_or(self.case.completion_depth);
        depth.saturating_sub(self.receives_taken())
    }

    /// At least one slot, unless the share is none.
    const fn leases_kept(&self) -> u32 {
        (self.slots * self.case.lease_share_percent).div_ceil(100)
    }

    fn free_least(&self) -> u32 {
        let posted = self.shared.unwrap_or_else(|| self.receives_taken());
        self.slots.saturating_sub(posted + self.leased)
    }

    /// Returns how many slots may be leased now, while nothing is under way. Some shared receives may wait to be
    /// posted again, so this is a range.
    pub(crate) fn free(&self) -> RangeInclusive<u32> {
        let least = self.free_least();
        least..=least + self.shared.unwrap_or(0)
    }

    pub(crate) const fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Every reason for which one more is refused; none where it is to be let in.
    pub(crate) fn refusals(&self, more: Held) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        let RoomCase {
            channels_max,
            channels_per_address,
            ..
        } = self.case;
        let of_address = |held: &&Held| held.from == more.from;
        if let Some(from) = more.from.filter(|_| channels_per_address < channels_max) {
            if self.held.iter().filter(of_address).count() >= channels_per_address as usize {
                refusals.push(Refusal::ChannelsFrom(from));
            }
        }
        if self.held.len() >= channels_max as usize {
            refusals.push(Refusal::Channels);
        }
        let (sends_left, receives_left) = (self.sends_left(), self.receives_left());
        if self.is_shared() && more.receives > receives_left {
            refusals.push(Refusal::Share { receives_left });
        } else if more.sends > sends_left || more.receives > receives_left {
            refusals.push(Refusal::Room {
                sends_left,
                receives_left,
            });
        }
        let kept = self.leases_kept();
        if !self.is_shared() {
            let receives_left = (self.slots - kept).saturating_sub(self.receives_taken());
            if more.receives > receives_left {
                refusals.push(Refusal::Slots {
                    receives_left,
                    slots: self.slots,
                    leases_kept: kept,
                });
            }
            if more.receives > self.free_least() {
                refusals.push(Refusal::Memory);
            }
        }
        if let Some(from) = more.from {
            let unfinished = self
                .held
                .iter()
                .filter(of_address)
                .filter(|held| held.is_unfinished);
            let places_left = channels_max.saturating_sub(self.held.len() as u32);
            let mut left = places_left
                .min(sends_left / more.sends)
                .min(receives_left / more.receives);
            if !self.is_shared() {
                left = left.min(self.free_least().saturating_sub(kept) / more.receives);
            }
            if holds_too_much(unfinished.count() as u32, left) {
                refusals.push(Refusal::Unfinished(from));
            }
        }
        refusals
    }
}

/// Whether one that has so many unfinished would hold more, with one more, than is left for others of so much.
pub(crate) const fn holds_too_much(unfinished: u32, left: u32) -> bool {
    unfinished > 0 && unfinished + 1 > left.saturating_sub(1)
}
