//! Hosts, devices and ports: the objects of the network, and which of them reach each other.

use doorbell_core::provider::DataInOrder;
use doorbell_core::{Gid, GidEntry, PortReport, PortState, Qpn};

use super::World;
use crate::event::Event;
use crate::numbers::Numbers;
use crate::port::{ConfigError, PortConfig};
use crate::queue_pair::QueuePairKey;
use crate::quirks::Quirks;

/// Names a host of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostId(pub(crate) usize);

/// Names a device of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceId(pub(crate) usize);

/// A host.
pub(crate) struct HostState {
    pub(crate) name: String,
    pub(crate) quirks: Quirks,
    /// It vanished.
    pub(crate) is_dead: bool,
    /// It stands still.
    pub(crate) is_paused: bool,
    /// Events that wait until it moves again.
    pub(crate) waiting: Vec<Event>,
    /// How long it takes for each packet that comes in.
    pub(crate) slow_ns: u64,
    /// By how much its clock is ahead of the time of the fabric.
    pub(crate) ahead_ns: u64,
}

/// A device of a host.
pub(crate) struct Device {
    pub(crate) host: HostId,
    /// Its ports, by their places in the fabric.
    pub(crate) ports: Vec<u32>,
    pub(crate) data_in_order: DataInOrder,
    pub(crate) numbers: Numbers,
    /// Address of the next window.
    next_address: u64,
}

/// A port, at its place in the fabric.
pub(crate) struct PortPlace {
    pub(crate) device: DeviceId,
    pub(crate) report: PortReport,
    /// Until when it is busy sending.
    pub(crate) sends_until_ns: u64,
    /// Until when its host is busy with what came in, where that is slow.
    pub(crate) takes_until_ns: u64,
}

/// The way packets take from a port to another.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) link: u32,
    /// When it was found, in changes of the network.
    pub(crate) topology: u64,
}

/// Windows lie this far from zero and from each other, so that an address that is off by
/// less finds nothing.
const WINDOW_GAP_BYTES: u64 = 1 << 16;

impl World {
    /// Adds a host with its devices.
    pub(crate) fn add_host(
        &mut self,
        name: &str,
        ports: &[PortConfig],
        quirks: Quirks,
    ) -> Result<HostId, ConfigError> {
        let host = HostId(self.hosts.len());
        let mut devices: Vec<(&str, Device, Vec<PortReport>)> = Vec::new();
        for config in ports {
            let known = devices.iter_mut().find(|(name, ..)| *name == config.device);
            let number = known
                .as_ref()
                .map_or(1, |(.., reports)| reports.len().saturating_add(1));
            let report = config.report(u8::try_from(number).map_err(|_| ConfigError::TooManyPorts)?)?;
            match known {
                Some((_, device, reports)) => {
                    reports.push(report);
                    device.data_in_order = device.data_in_order.min(config.data_in_order);
                }
                None => {
                    let device = Device {
                        host,
                        ports: Vec::new(),
                        data_in_order: config.data_in_order,
                        numbers: Numbers::default(),
                        next_address: WINDOW_GAP_BYTES,
                    };
                    devices.push((&config.device, device, vec![report]));
                }
            }
        }
        let reports = devices.iter().flat_map(|(.., reports)| reports);
        let mut gids: Vec<Gid> = reports
            .flat_map(|report| report.gids.iter().map(|entry| entry.gid))
            .collect();
        gids.sort_unstable();
        let twice = gids
            .iter()
            .zip(gids.iter().skip(1))
            .find(|(gid, next)| gid == next);
        let taken = gids.iter().find(|gid| self.gids.contains_key(gid));
        if let Some(gid) = twice.map(|(gid, _)| gid).or(taken) {
            return Err(ConfigError::AddressTaken(gid.to_ip()));
        }
        for (_, mut device, reports) in devices {
            let id = DeviceId(self.devices.len());
            for report in reports {
                // There is no memory for 2^32 ports.
                let place = u32::try_from(self.ports.len()).unwrap_or(u32::MAX);
                self.gids
                    .extend(report.gids.iter().map(|entry| (entry.gid, place)));
                device.ports.push(place);
                self.ports.push(PortPlace {
                    device: id,
                    report,
                    sends_until_ns: 0,
                    takes_until_ns: 0,
                });
            }
            self.devices.push(device);
        }
        self.hosts.push(HostState {
            name: name.to_owned(),
            quirks,
            is_dead: false,
            is_paused: false,
            waiting: Vec::new(),
            slow_ns: 0,
            ahead_ns: 0,
        });
        self.faults.change();
        self.topology = self.topology.wrapping_add(1);
        Ok(host)
    }

    /// By how much a host's clock is ahead of the time of the fabric.
    pub(crate) fn ahead_ns(&self, host: HostId) -> u64 {
        self.hosts.get(host.0).map_or(0, |host| host.ahead_ns)
    }

    pub(crate) fn device(&self, device: DeviceId) -> Option<&Device> {
        self.devices.get(device.0)
    }

    /// How the devices of a device's host are.
    pub(crate) fn quirks(&self, device: DeviceId) -> &Quirks {
        let host = self
            .device(device)
            .and_then(|device| self.hosts.get(device.host.0));
        host.map_or(&Quirks::IBA, |host| &host.quirks)
    }

    /// The port of a device that has this number.
    pub(crate) fn port(&self, device: DeviceId, number: u8) -> Option<&PortReport> {
        let index = usize::from(number).checked_sub(1)?;
        let place = *self.device(device)?.ports.get(index)?;
        Some(&self.port_at(place)?.report)
    }

    pub(crate) fn port_at(&self, place: u32) -> Option<&PortPlace> {
        self.ports.get(place as usize)
    }

    /// Every port of a host.
    pub(crate) fn ports_of(&self, host: HostId) -> impl Iterator<Item = &PortReport> {
        let devices = self.devices.iter().filter(move |device| device.host == host);
        devices
            .flat_map(|device| &device.ports)
            .filter_map(|place| Some(&self.port_at(*place)?.report))
    }

    /// The device of a host that has this name.
    pub(crate) fn find_device(&self, host: HostId, name: &str) -> Option<DeviceId> {
        let has_name = |device: &Device| {
            let mut reports = device.ports.iter().filter_map(|place| self.port_at(*place));
            reports.any(|port| port.report.device.as_str() == name)
        };
        let mut all = (0..).map(DeviceId).zip(&self.devices);
        let (found, _) = all.find(|(_, device)| device.host == host && has_name(device))?;
        Some(found)
    }

    /// A queue pair number that no live queue pair of the device has.
    pub(crate) fn draw_qpn(&mut self, device: DeviceId) -> Option<Qpn> {
        self.devices.get_mut(device.0)?.numbers.draw()
    }

    pub(crate) fn assign_qpn(&mut self, device: DeviceId, qpn: Qpn, key: Option<QueuePairKey>) {
        if let Some(device) = self.devices.get_mut(device.0) {
            device.numbers.assign(qpn, key);
        }
    }

    /// Draws the address of a window of this size, at a page of its own.
    pub(crate) fn draw_address(&mut self, device: DeviceId, bytes: usize) -> Option<u64> {
        let device = self.devices.get_mut(device.0)?;
        let address = device.next_address;
        device.next_address = address
            .checked_add(bytes as u64)?
            .checked_next_multiple_of(WINDOW_GAP_BYTES)?
            .checked_add(WINDOW_GAP_BYTES)?;
        Some(address)
    }

    /// The port that a `RoCEv2` GID belongs to.
    fn endpoint(&self, gid: Gid) -> Option<(u32, &PortReport, &GidEntry)> {
        let place = *self.gids.get(&gid)?;
        let report = &self.port_at(place)?.report;
        let entry = report.usable_gids().find(|entry| entry.gid == gid)?;
        Some((place, report, entry))
    }

    /// The ports that packets between two GIDs leave and arrive at: both are active and on one
    /// subnet, each by its own prefix; or they are one port.
    pub(crate) fn ends(&self, from: Gid, to: Gid) -> Option<[u32; 2]> {
        let (from_place, from_port, from_entry) = self.endpoint(from)?;
        let (to_place, to_port, to_entry) = self.endpoint(to)?;
        let active = from_port.state == PortState::ACTIVE && to_port.state == PortState::ACTIVE;
        let on_link =
            |ours: &GidEntry, theirs: Gid| ours.address.is_some_and(|prefix| prefix.contains(theirs.to_ip()));
        let one_subnet = on_link(from_entry, to) && on_link(to_entry, from);
        (active && (from_place == to_place || one_subnet)).then_some([from_place, to_place])
    }
}
