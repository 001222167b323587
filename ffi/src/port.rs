//! The present state of one port of an open device: state, MTU, speed, and the GID table with the network interface and
//! address of each entry.

use core::mem::MaybeUninit;
use std::path::Path;

use doorbell_core::port::Name;
use doorbell_core::provider::{ProviderError, REQUEST_BYTES_MAX};
use doorbell_core::{Gid, GidEntry, GidKind, IpPrefix, Mtu, PortReport, PortState};
use rdma_sys::{ibv_gid_entry, ibv_port_attr};

use crate::context::ContextInner;
use crate::errno;
use crate::interface::Interface;
use crate::sysfs::{CLASS, Sysfs};

/// The most GIDs that are read of a device: filled entries of all its ports together.
///
/// The library refuses (EINVAL) a table that does not fit an attribute of the kernel, whose length has 16 bits. Reading a
/// larger one would mean opening the file of every entry, which takes seconds for a table of 1024.
const GIDS_MAX: usize = u16::MAX as usize / size_of::<ibv_gid_entry>();

/// Returns the report of a port.
///
/// # Errors
/// There is no such port, or the device refused.
pub(crate) fn report(
    context: &ContextInner,
    port: u8,
    interfaces: &[Interface],
) -> Result<PortReport, ProviderError> {
    let attributes = query(context, port)?;
    let sysfs = Sysfs::new(Path::new(CLASS), context.name());
    let mut report = PortReport {
        device: context.name().clone(),
        port,
        state: PortState(attributes.state.0),
        is_ethernet: u32::from(attributes.link_layer) == rdma_sys::IBV_LINK_LAYER_ETHERNET,
        active_mtu: mtu(attributes.active_mtu),
        mtu_max: mtu(attributes.max_mtu),
        speed_mbps: speed_mbps(attributes.active_speed, attributes.active_width),
        numa_node: sysfs.numa_node(),
        gids: Default::default(),
        gids_left_out: 0,
    };
    let table = gid_table(context, &sysfs, port, &attributes);
    report.take_gids(table.iter().map(|found| found.entry(interfaces)));
    Ok(report)
}

/// Returns the bytes of the longest message that a port carries. If the port reports 0, or less than it carries, the answer
/// is the limit of the transport.
///
/// # Errors
/// There is no such port, or the device refused the query, for example because it is gone.
pub(crate) fn request_bytes_max(context: &ContextInner, port: u8) -> Result<u32, ProviderError> {
    let reported = query(context, port)?.max_msg_sz;
    if reported == 0 || context.quirks().carries_more_than_reported {
        return Ok(REQUEST_BYTES_MAX);
    }
    Ok(reported.min(REQUEST_BYTES_MAX))
}

#[doc(alias = "ibv_query_port")]
fn query(context: &ContextInner, port: u8) -> Result<ibv_port_attr, ProviderError> {
    let mut attributes = MaybeUninit::<ibv_port_attr>::zeroed();
    // SAFETY: a live context and a writable structure (ibv_query_port(3)).
    let status = unsafe { rdma_sys::ibv_query_port(context.as_ptr(), port, attributes.as_mut_ptr()) };
    errno::from_value("ibv_query_port", status)?;
    // SAFETY: integers and integer newtypes only, zeroed before the call filled them in.
    Ok(unsafe { attributes.assume_init() })
}

fn mtu(raw: rdma_sys::ibv_mtu) -> Option<Mtu> {
    u8::try_from(raw.0).ok().and_then(Mtu::from_wire)
}

/// Returns the speed of a link in Mbit/s for its speed and width codes, or 0 if one of them is not known.
///
/// Source: InfiniBand Architecture volume 1, section 14.2.5.6 (PortInfo:LinkSpeedActive and
/// LinkWidthActive); `ibv_query_port(3)`; Linux include/rdma/ib_verbs.h.
fn speed_mbps(speed: u8, width: u8) -> u32 {
    let lane = match speed {
        1 => 2_500,
        2 => 5_000,
        // QDR, and FDR10, whose coding is more efficient.
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    u32::saturating_mul(lane, lanes)
}

/// A filled entry of a GID table, found through the library or through sysfs.
struct Found {
    index: u32,
    gid: Gid,
    kind: GidKind,
    /// The index of its network interface, if the library gives it.
    interface_index: Option<u32>,
    /// The name of its network interface, if sysfs gives it.
    interface_name: Option<String>,
}

impl Found {
    /// Returns the entry, with the facts of its interface that this network namespace has.
    fn entry(&self, interfaces: &[Interface]) -> GidEntry {
        let interface = self.interface(interfaces);
        GidEntry {
            index: self.index,
            gid: self.gid,
            kind: self.kind,
            interface: interface.and_then(|interface| Name::try_from(interface.name.as_str()).ok()),
            address: interface.and_then(|interface| self.address(interface)),
        }
    }

    /// Returns the interface, if it is in this namespace.
    ///
    /// The number and the name are each unique only within one namespace, so both must agree if both are known. Even
    /// then the interface may be another one, unless it also has the address of the GID ([`Found::address`]).
    fn interface<'a>(&self, interfaces: &'a [Interface]) -> Option<&'a Interface> {
        if self.interface_index.is_none() && self.interface_name.is_none() {
            return None;
        }
        interfaces.iter().find(|interface| {
            self.interface_index.is_none_or(|index| index == interface.index)
                && self
                    .interface_name
                    .as_ref()
                    .is_none_or(|name| *name == interface.name)
        })
    }

    fn address(&self, interface: &Interface) -> Option<IpPrefix> {
        let ip = self.gid.to_ip();
        interface
            .addresses
            .iter()
            .copied()
            .find(|address| address.address() == ip)
    }
}

/// Returns the kind of an entry for the library's number.
fn kind_of(number: u32, gid: Gid, is_ethernet: bool) -> GidKind {
    match rdma_sys::ibv_gid_type(number) {
        rdma_sys::IBV_GID_TYPE_IB if !is_ethernet => GidKind::Infiniband,
        // On Ethernet the kernel's first kind is RoCE version 1.
        rdma_sys::IBV_GID_TYPE_IB | rdma_sys::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        rdma_sys::IBV_GID_TYPE_ROCE_V2 => roce_v2(gid),
        rdma_sys::ibv_gid_type(other) => GidKind::Unknown(other),
    }
}

/// Returns the kind of an entry for the kernel's words in sysfs.
fn kind_in_words(words: &str, gid: Gid, is_ethernet: bool) -> GidKind {
    match words {
        "RoCE v2" => roce_v2(gid),
        "IB/RoCE v1" if is_ethernet => GidKind::RoceV1,
        "IB/RoCE v1" => GidKind::Infiniband,
        _ => GidKind::Unknown(u32::MAX),
    }
}

const fn roce_v2(gid: Gid) -> GidKind {
    if gid.to_ip().is_ipv4() {
        GidKind::RoceV2Ipv4
    } else {
        GidKind::RoceV2Ipv6
    }
}

/// Returns the filled entries of a port's GID table, in order.
///
/// They come from the library if it provides them (rdma-core 32 and newer), and otherwise from sysfs.
fn gid_table(context: &ContextInner, sysfs: &Sysfs, port: u8, attributes: &ibv_port_attr) -> Vec<Found> {
    let is_ethernet = u32::from(attributes.link_layer) == rdma_sys::IBV_LINK_LAYER_ETHERNET;
    if let Some(entries) = query_table(context) {
        return entries
            .iter()
            .filter(|entry| entry.port_num == u32::from(port))
            .map(|entry| {
                // SAFETY: every member of the union is the same 16 bytes.
                let gid = Gid(unsafe { entry.gid.raw });
                Found {
                    index: entry.gid_index,
                    gid,
                    kind: kind_of(entry.gid_type, gid, is_ethernet),
                    interface_index: Some(entry.ndev_ifindex).filter(|index| *index != 0),
                    interface_name: sysfs.gid_interface(port, entry.gid_index),
                }
            })
            .collect();
    }
    let length = u32::try_from(attributes.gid_tbl_len).unwrap_or(0);
    sysfs
        .gids(port, length)
        .into_iter()
        .map(|found| Found {
            index: found.index,
            gid: found.gid,
            kind: kind_in_words(&found.kind, found.gid, is_ethernet),
            interface_index: None,
            interface_name: found.interface,
        })
        .collect()
}

#[doc(alias = "ibv_query_gid_table")]
fn query_table(context: &ContextInner) -> Option<Vec<ibv_gid_entry>> {
    // SAFETY: integers and a union of integers, for which zero bytes are a value.
    let nothing: ibv_gid_entry = unsafe { core::mem::zeroed() };
    let mut entries = vec![nothing; GIDS_MAX];
    // SAFETY: the context is live, and there is room for the stated number of entries (ibv_query_gid_table(3)).
    let count =
        unsafe { rdma_sys::ibv_query_gid_table(context.as_ptr(), entries.as_mut_ptr(), entries.len(), 0) };
    // A negative count is a negated errno: the library or kernel does not support this, or the table is larger.
    entries.truncate(usize::try_from(count).ok()?);
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::{Found, kind_in_words, kind_of, speed_mbps};
    use crate::interface::Interface;
    use doorbell_core::{Gid, GidKind, IpPrefix};

    fn gid(text: &str) -> Gid {
        Gid::from_ip(text.parse().unwrap())
    }

    #[test]
    fn speeds_of_links() {
        for (speed, width, mbps) in [
            (1, 1, 2_500),
            (2, 2, 20_000),
            (4, 1, 10_000),
            (32, 2, 100_000),
            (64, 2, 200_000),
            (128, 2, 400_000),
            (128, 4, 800_000),
            (32, 16, 50_000),
            (0, 2, 0),
            (3, 2, 0),
            (32, 3, 0),
        ] {
            assert_eq!(speed_mbps(speed, width), mbps, "{speed} {width}");
        }
    }

    #[test]
    fn kinds_of_gids() {
        let (v4, v6) = (gid("10.0.0.1"), gid("fe80::1"));
        let v2 = rdma_sys::IBV_GID_TYPE_ROCE_V2.0;
        assert_eq!(kind_of(v2, v4, true), GidKind::RoceV2Ipv4);
        assert_eq!(kind_of(v2, v6, true), GidKind::RoceV2Ipv6);
        assert_eq!(kind_of(1, v4, true), GidKind::RoceV1);
        assert_eq!(kind_of(0, v6, true), GidKind::RoceV1);
        assert_eq!(kind_of(0, v6, false), GidKind::Infiniband);
        assert_eq!(kind_of(77, v6, true), GidKind::Unknown(77));
        assert_eq!(kind_in_words("RoCE v2", v4, true), GidKind::RoceV2Ipv4);
        assert_eq!(kind_in_words("RoCE v2", v6, true), GidKind::RoceV2Ipv6);
        assert_eq!(kind_in_words("IB/RoCE v1", v6, true), GidKind::RoceV1);
        assert_eq!(kind_in_words("IB/RoCE v1", v6, false), GidKind::Infiniband);
        assert_eq!(kind_in_words("RoCE v9", v6, true), GidKind::Unknown(u32::MAX));
    }

    fn found(index: Option<u32>, name: Option<&str>) -> Found {
        Found {
            index: 1,
            gid: gid("10.0.0.1"),
            kind: GidKind::RoceV2Ipv4,
            interface_index: index,
            interface_name: name.map(str::to_owned),
        }
    }

    #[test]
    fn an_interface_counts_only_where_all_agrees() {
        let prefix = IpPrefix::new("10.0.0.1".parse().unwrap(), 25).unwrap();
        let here = [Interface {
            name: "eth0".to_owned(),
            index: 3,
            addresses: vec![prefix],
        }];
        let entry = found(Some(3), Some("eth0")).entry(&here);
        assert_eq!(entry.interface.as_deref(), Some("eth0"));
        assert_eq!(entry.address, Some(prefix));
        assert_eq!(found(None, Some("eth0")).entry(&here).address, Some(prefix));
        assert_eq!(found(Some(3), None).entry(&here).address, Some(prefix));
        for elsewhere in [
            found(Some(4), Some("eth0")),
            found(Some(3), Some("eth1")),
            found(None, None),
            found(Some(9), None),
        ] {
            let entry = elsewhere.entry(&here);
            assert_eq!((entry.interface, entry.address), (None, None));
        }
        let other = [Interface {
            name: "eth0".to_owned(),
            index: 3,
            addresses: vec![],
        }];
        let entry = found(Some(3), Some("eth0")).entry(&other);
        assert_eq!(entry.interface.as_deref(), Some("eth0"));
        assert_eq!(entry.address, None);
    }
}
