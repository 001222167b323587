//! The one device that NCCL sees: all usable rails of this host, merged.
//!
//! A link uses all rails that reach its peer, so one device for each rail would describe a choice that does not exist. There is nothing
//! further to merge: `makeVDevice` accepts only this device, and returns it.

use core::ffi::{CStr, c_char, c_int};
use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use doorbell::Node;

use crate::abi::properties::{
    PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12, VirtualDevice, VirtualDeviceV12,
};
use crate::abi::{PTR_DMABUF, PTR_HOST};
use crate::failure::Failure;
use crate::frame::RECEIVES_MAX;
use crate::places::PLACES_MAX;

/// Maximum length of a message in bytes. `test` reports lengths as a C `int`.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// The reported speed if no port reports one.
const SPEED_UNKNOWN_MBPS: u32 = 10_000;

/// The number of devices.
pub(crate) const DEVICES: c_int = 1;

/// Properties of the device. The strings are never freed.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) name: CString,
    pci_path: Option<CString>,
    guid: u64,
    speed_mbps: c_int,
    port: c_int,
    /// The supported kinds of memory.
    pointer_support: c_int,
    /// The number of ports.
    pub(crate) rails: usize,
}

/// The device as it was when the first context was opened.
static DEVICE: OnceLock<Device> = OnceLock::new();

impl Device {
    /// Returns the device, if a context was opened.
    pub(crate) fn known() -> Option<&'static Self> {
        DEVICE.get()
    }

    /// Reads the rails of a node at the first call. `has_devices_memory` tells whether GPU memory is supported.
    pub(crate) fn look(node: &Node, has_devices_memory: bool) -> Result<&'static Self, Failure> {
        let rails = node.rails().map_err(Failure::system)?;
        let mut ports: Vec<_> = rails
            .iter()
            .filter(|rail| rail.source.is_ok())
            .map(|rail| (rail.device.as_str().to_owned(), rail.port, rail.speed_mbps))
            .collect();
        ports.sort();
        ports.dedup();
        Ok(DEVICE.get_or_init(|| Self::of(&ports, has_devices_memory)))
    }

    fn of(ports: &[(String, u8, u32)], has_devices_memory: bool) -> Self {
        let mut names: Vec<&str> = ports.iter().map(|(device, ..)| device.as_str()).collect();
        names.dedup();
        let speed = ports
            .iter()
            .fold(0_u32, |sum, (.., speed)| sum.saturating_add(*speed));
        let speed = if speed == 0 { SPEED_UNKNOWN_MBPS } else { speed };
        Self {
            name: CString::new(names.join("+")).unwrap_or_default(),
            pci_path: names.first().and_then(|name| pci_path(name)),
            guid: guid(ports),
            speed_mbps: c_int::try_from(speed).unwrap_or(c_int::MAX),
            port: ports.first().map_or(1, |(_, port, _)| c_int::from(*port)),
            pointer_support: match has_devices_memory {
                true => PTR_HOST | PTR_DMABUF,
                false => PTR_HOST,
            },
            rails: ports.len(),
        }
    }

    fn name(&self) -> *mut c_char {
        self.name.as_ptr().cast_mut()
    }

    fn pci_path(&self) -> *mut c_char {
        let path: Option<&CStr> = self.pci_path.as_deref();
        path.map_or(core::ptr::null_mut(), |path| path.as_ptr().cast_mut())
    }

    pub(crate) fn properties_v8(&self) -> PropertiesV8 {
        PropertiesV8 {
            name: self.name(),
            pci_path: self.pci_path(),
            guid: self.guid,
            pointer_support: self.pointer_support,
            registration_is_global: 1,
            speed_mbps: self.speed_mbps,
            port: self.port,
            latency_us: 0.0,
            comms_max: c_int::try_from(PLACES_MAX).unwrap_or(c_int::MAX),
            receives_max: c_int::try_from(RECEIVES_MAX).unwrap_or(1),
            device_type: 0,
            device_version: 0,
        }
    }

    pub(crate) fn properties_v9(&self) -> PropertiesV9 {
        let v8 = self.properties_v8();
        PropertiesV9 {
            name: v8.name,
            pci_path: v8.pci_path,
            guid: v8.guid,
            pointer_support: v8.pointer_support,
            registration_is_global: v8.registration_is_global,
            force_flush: 0,
            speed_mbps: v8.speed_mbps,
            port: v8.port,
            latency_us: v8.latency_us,
            comms_max: v8.comms_max,
            receives_max: v8.receives_max,
            device_type: v8.device_type,
            device_version: v8.device_version,
            virtual_device: VirtualDevice {
                count: DEVICES,
                devices: [0; 4],
            },
            message_bytes_max: MESSAGE_BYTES_MAX,
            collective_bytes_max: MESSAGE_BYTES_MAX,
        }
    }

    pub(crate) fn properties_v11(&self) -> PropertiesV11 {
        let v9 = self.properties_v9();
        PropertiesV11 {
            name: v9.name,
            pci_path: v9.pci_path,
            guid: v9.guid,
            pointer_support: v9.pointer_support,
            // From version 11 on, each communicator has a context, and registrations belong to a context.
            registration_is_global: 0,
            force_flush: v9.force_flush,
            speed_mbps: v9.speed_mbps,
            port: v9.port,
            latency_us: v9.latency_us,
            comms_max: v9.comms_max,
            receives_max: v9.receives_max,
            device_type: v9.device_type,
            device_version: v9.device_version,
            virtual_device: v9.virtual_device,
            message_bytes_max: v9.message_bytes_max,
            collective_bytes_max: v9.collective_bytes_max,
            multi_request_max: 1,
        }
    }

    pub(crate) fn properties_v12(&self) -> PropertiesV12 {
        let v11 = self.properties_v11();
        PropertiesV12 {
            name: v11.name,
            pci_path: v11.pci_path,
            guid: v11.guid,
            pointer_support: v11.pointer_support,
            registration_is_global: v11.registration_is_global,
            force_flush: v11.force_flush,
            speed_mbps: v11.speed_mbps,
            port: v11.port,
            latency_us: v11.latency_us,
            comms_max: v11.comms_max,
            receives_max: v11.receives_max,
            device_type: v11.device_type,
            device_version: v11.device_version,
            virtual_device: VirtualDeviceV12 {
                count: DEVICES,
                devices: [0; 8],
            },
            message_bytes_max: v11.message_bytes_max,
            collective_bytes_max: v11.collective_bytes_max,
            multi_request_max: v11.multi_request_max,
            rail: -1,
            plane: -1,
        }
    }
}

/// Returns the sysfs path of a device's PCI function, or `None` for a software device.
fn pci_path(device: &str) -> Option<CString> {
    let path = fs::canonicalize(Path::new("/sys/class/infiniband").join(device).join("device")).ok()?;
    let path = path.to_str()?;
    path.starts_with("/sys/devices/")
        .then(|| CString::new(path).ok())
        .flatten()
}

/// FNV-1a hash of node GUIDs, device names and ports. All processes of a host that use the same ports report the same value.
fn guid(ports: &[(String, u8, u32)]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for (device, port, _) in ports {
        let of = Path::new("/sys/class/infiniband").join(device).join("node_guid");
        // A device without an entry in sysfs has no node GUID. The boot ID of this host takes its place.
        let identifier = fs::read(of).or_else(|_| fs::read("/proc/sys/kernel/random/boot_id"));
        add(&identifier.unwrap_or_default());
        add(device.as_bytes());
        add(&[*port]);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::{Device, SPEED_UNKNOWN_MBPS, guid};

    fn port(device: &str, port: u8, speed: u32) -> (String, u8, u32) {
        (device.to_owned(), port, speed)
    }

    #[test]
    fn all_ports_are_one_device_with_the_sum_of_their_speeds() {
        let ports = [port("a", 1, 100_000), port("a", 2, 100_000), port("b", 1, 25_000)];
        let device = Device::of(&ports, false);
        assert_eq!(device.name.to_str(), Ok("a+b"));
        assert_eq!((device.speed_mbps, device.rails), (225_000, 3));
        assert!(device.pci_path.is_none() && device.properties_v12().pci_path.is_null());
        assert_eq!(device.properties_v12().pointer_support, 1);
        let unknown = Device::of(&[port("a", 1, 0)], true);
        assert_eq!(unknown.properties_v8().pointer_support, 1 | 4);
        assert_eq!(u32::try_from(unknown.speed_mbps), Ok(SPEED_UNKNOWN_MBPS));
    }

    #[test]
    fn other_ports_are_another_device() {
        let one = [port("a", 1, 1)];
        assert_eq!(guid(&one), guid(&[port("a", 1, 2)]));
        for other in [port("a", 2, 1), port("b", 1, 1)] {
            assert_ne!(guid(&one), guid(&[other]));
        }
    }
}
