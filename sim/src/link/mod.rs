//! Links: the way from one port to another, with the faults that are put round it.

pub(crate) mod fault;

use crate::event::Event;

/// Properties of every link of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// How long a packet is under way, in nanoseconds, once its last bit was sent.
    pub latency_ns: u64,
    /// Megabits per second; `None` is what the sending port says of itself.
    pub bandwidth_mbps: Option<u32>,
}

impl Default for LinkConfig {
    /// A microsecond, which two hosts in one rack are apart, at the speed of the port.
    fn default() -> Self {
        Self {
            latency_ns: 1000,
            bandwidth_mbps: None,
        }
    }
}

impl LinkConfig {
    /// How long it takes to send so many bytes at the speed of a port.
    pub(crate) fn sending_ns(&self, bytes: u64, port_mbps: u32) -> u64 {
        let mbps = u64::from(self.bandwidth_mbps.unwrap_or(port_mbps).max(1));
        bytes.saturating_mul(8000).div_ceil(mbps)
    }
}

/// The way from one port to another.
pub(crate) struct Link {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// It carries nothing.
    pub(crate) is_cut: bool,
    /// The faults round it, by their places.
    pub(crate) faults: Vec<usize>,
    /// Version of the plan that the faults are of.
    pub(crate) version: u64,
    /// Packet that is held back until another overtakes it on the way to the other port.
    pub(crate) held: Option<Event>,
    /// Number of that packet among those it held.
    pub(crate) holds: u32,
}

/// Every link that is used.
#[derive(Default)]
pub(crate) struct Links {
    links: Vec<Link>,
    /// For each port, for each port, one more than the place of the link between them.
    places: Vec<Vec<u32>>,
}

impl Links {
    /// The link between two ports; it is made where it is new.
    pub(crate) fn between(&mut self, from: u32, to: u32) -> u32 {
        let (row, column) = (from as usize, to as usize);
        if self.places.len() <= row {
            self.places.resize_with(row.saturating_add(1), Vec::new);
        }
        let Some(row) = self.places.get_mut(row) else {
            return 0;
        };
        if row.len() <= column {
            row.resize(column.saturating_add(1), 0);
        }
        let Some(place) = row.get_mut(column) else {
            return 0;
        };
        if let Some(known) = place.checked_sub(1) {
            return known;
        }
        self.links.push(Link {
            from,
            to,
            is_cut: false,
            faults: Vec::new(),
            version: 0,
            held: None,
            holds: 0,
        });
        // There is no memory for 2^32 links.
        *place = u32::try_from(self.links.len()).unwrap_or(u32::MAX);
        place.saturating_sub(1)
    }

    pub(crate) fn get_mut(&mut self, link: u32) -> Option<&mut Link> {
        self.links.get_mut(link as usize)
    }
}
