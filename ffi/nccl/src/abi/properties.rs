//! The properties of a device, and other structures that are passed in calls.

use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};

use super::Layout;

/// Defines a structure of the interface. Its size and the offset of each field are checked at compile time,
/// and reported to C.
macro_rules! structure {
    ($(#[$of_struct:meta])* $name:ident as $c:literal, $size:literal {
        $($(#[$of_field:meta])* $field:ident: $kind:ty = $offset:literal $in_c:literal,)+
    }) => {
        $(#[$of_struct])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $name {
            $($(#[$of_field])* pub $field: $kind,)+
        }

        impl $name {
            /// The size and offsets.
            pub const LAYOUT: Layout = Layout::new(
                (concat!($c, "\0"), size_of::<Self>()),
                &[$((concat!($c, ".", $in_c, "\0"), offset_of!(Self, $field)),)+],
            );
        }

        const _: () = assert!(size_of::<$name>() == $size);
        $(const _: () = assert!(offset_of!($name, $field) == $offset);)+
    };
}

structure! {
    /// The physical devices of a virtual device: versions 9 to 11.
    VirtualDevice as "ncclNetVDeviceProps_v9_t", 20 {
        /// Number of devices.
        count: c_int = 0 "ndevs",
        /// Their indices.
        devices: [c_int; 4] = 4 "devs",
    }
}

structure! {
    /// The physical devices of a virtual device: version 12.
    VirtualDeviceV12 as "ncclNetVDeviceProps_v12_t", 36 {
        /// Number of devices.
        count: c_int = 0 "ndevs",
        /// Their indices.
        devices: [c_int; 8] = 4 "devs",
    }
}

structure! {
    /// Properties of version 8.
    PropertiesV8 as "ncclNetProperties_v8_t", 64 {
        /// The name: a string that stays valid.
        name: *mut c_char = 0 "name",
        /// The path under /sys/devices: a string that stays valid, or NULL for a device that is not on a
        /// PCI bus.
        pci_path: *mut c_char = 8 "pciPath",
        /// Identifies the chip: devices with equal values are on one chip.
        guid: u64 = 16 "guid",
        /// Kinds of memory that can be registered.
        pointer_support: c_int = 24 "ptrSupport",
        /// Whether a registration is valid for all comms.
        registration_is_global: c_int = 28 "regIsGlobal",
        /// The speed in megabits per second.
        speed_mbps: c_int = 32 "speed",
        /// The number of the port.
        port: c_int = 36 "port",
        /// The latency in microseconds.
        latency_us: f32 = 40 "latency",
        /// Maximum number of comms.
        comms_max: c_int = 44 "maxComms",
        /// Maximum number of receives of a request.
        receives_max: c_int = 48 "maxRecvs",
        /// The kind of device: 0 is the host's.
        device_type: c_int = 52 "netDeviceType",
        /// The version of that kind.
        device_version: c_int = 56 "netDeviceVersion",
    }
}

/// Properties of version 9 and later: the common fields, and those of the version.
macro_rules! since_v9 {
    ($(#[$of_struct:meta])* $name:ident as $c:literal, $size:literal { $($rest:tt)* }) => {
        structure! {
            $(#[$of_struct])*
            $name as $c, $size {
                /// As in version 8.
                name: *mut c_char = 0 "name",
                /// As in version 8.
                pci_path: *mut c_char = 8 "pciPath",
                /// As in version 8.
                guid: u64 = 16 "guid",
                /// As in version 8.
                pointer_support: c_int = 24 "ptrSupport",
                /// As in version 8.
                registration_is_global: c_int = 28 "regIsGlobal",
                /// Whether a flush is needed after each receive into GPU memory.
                force_flush: c_int = 32 "forceFlush",
                /// As in version 8.
                speed_mbps: c_int = 36 "speed",
                /// As in version 8.
                port: c_int = 40 "port",
                /// As in version 8.
                latency_us: f32 = 44 "latency",
                /// As in version 8.
                comms_max: c_int = 48 "maxComms",
                /// As in version 8.
                receives_max: c_int = 52 "maxRecvs",
                /// As in version 8.
                device_type: c_int = 56 "netDeviceType",
                /// As in version 8.
                device_version: c_int = 60 "netDeviceVersion",
                $($rest)*
            }
        }
    };
}

since_v9! {
    /// Properties of versions 9 and 10.
    PropertiesV9 as "ncclNetProperties_v9_t", 104 {
        /// The physical devices.
        virtual_device: VirtualDevice = 64 "vProps",
        /// Maximum length of a message in bytes.
        message_bytes_max: usize = 88 "maxP2pBytes",
        /// Maximum length of a collective operation of the network in bytes.
        collective_bytes_max: usize = 96 "maxCollBytes",
    }
}

since_v9! {
    /// Properties of version 11.
    PropertiesV11 as "ncclNetProperties_v11_t", 112 {
        /// As in version 9.
        virtual_device: VirtualDevice = 64 "vProps",
        /// As in version 9.
        message_bytes_max: usize = 88 "maxP2pBytes",
        /// As in version 9.
        collective_bytes_max: usize = 96 "maxCollBytes",
        /// Maximum number of parts that the network merges into one request.
        multi_request_max: c_int = 104 "maxMultiRequestSize",
    }
}

since_v9! {
    /// Properties of version 12.
    PropertiesV12 as "ncclNetProperties_v12_t", 128 {
        /// As in version 9.
        virtual_device: VirtualDeviceV12 = 64 "vProps",
        /// As in version 9.
        message_bytes_max: usize = 104 "maxP2pBytes",
        /// As in version 9.
        collective_bytes_max: usize = 112 "maxCollBytes",
        /// As in version 11.
        multi_request_max: c_int = 120 "maxMultiRequestSize",
        /// The rail of the fabric; -1 is unknown.
        rail: i16 = 124 "railId",
        /// The plane of the fabric; -1 is unknown.
        plane: i16 = 126 "planeId",
    }
}

structure! {
    /// The requested configuration of a comm.
    CommConfig as "ncclNetCommConfig_t", 4 {
        /// The IP traffic class; -1 is none.
        traffic_class: c_int = 0 "trafficClass",
    }
}

structure! {
    /// Hints about the traffic in one direction.
    NetTraffic as "ncclNetCommAttr_t", 16 {
        /// Maximum number of peers at a time.
        peers_max: i32 = 0 "maxConcurrentPeers",
        /// Minimum number of peers at a time.
        peers_min: i32 = 4 "minConcurrentPeers",
        /// Maximum number of flows to a peer.
        flows_max: i32 = 8 "maxFlowsPerPeer",
        /// Minimum number of flows to a peer.
        flows_min: i32 = 12 "minFlowsPerPeer",
    }
}

structure! {
    /// Hints about the traffic of a communicator.
    NetAttributes as "ncclNetAttr_t", 44 {
        /// Traffic that it sends.
        send: NetTraffic = 0 "sendCommAttr",
        /// Traffic that it receives.
        receive: NetTraffic = 16 "recvCommAttr",
        /// The operations.
        operation: u32 = 32 "op",
        /// The algorithms.
        algorithm: u32 = 36 "algo",
        /// The protocols.
        protocol: u32 = 40 "proto",
    }
}

structure! {
    /// The part of a comm that GPU kernels can use. This plugin has none.
    NetDeviceHandle as "ncclNetDeviceHandle_t", 32 {
        /// The kind of device.
        device_type: c_int = 0 "netDeviceType",
        /// The version of that kind.
        device_version: c_int = 4 "netDeviceVersion",
        /// Memory for the kernels.
        handle: *mut c_void = 8 "handle",
        /// Its size.
        bytes: usize = 16 "size",
        /// Whether the proxy thread has to make progress.
        needs_proxy: c_int = 24 "needsProxyProgress",
    }
}
