//! The one port of a device: its state, and its GID and key tables.

use core::ffi::c_int;

use rdma_sys::{ibv_context, ibv_gid, ibv_gid_entry, ibv_mtu, ibv_port_attr, ibv_port_state};

use crate::context::OpenDevice;
use crate::control::{Call, Value};
use crate::{faults, interfaces};

/// How many entries the GID table has.
pub(crate) const GIDS_MAX: usize = 32;

/// The only partition key there is: the default one, with full membership.
pub(crate) const PKEY: u16 = 0xffff;

/// A 25 Gb/s lane, and four of them.
///
/// Source: InfiniBand Architecture volume 1, section 14.2.5.6.
const SPEED: u8 = 32;
const WIDTH: u8 = 2;

/// The most that one packet carries.
pub(crate) const MTU_BYTES: u32 = 4096;

/// `LinkUp`. Source: InfiniBand Architecture volume 1, section 14.2.5.6 (PortPhysicalState).
const LINK_UP: u8 = 5;

/// Attributes of a port, as `ibv_query_port(3)` returns them.
///
/// # Errors
/// `EINVAL`: there is no such port.
pub(crate) fn attributes(port: u32) -> Result<ibv_port_attr, c_int> {
    if port != 1 {
        return Err(libc::EINVAL);
    }
    // SAFETY: integers and integer newtypes only, for which zero bytes are a value.
    let mut attributes: ibv_port_attr = unsafe { core::mem::zeroed() };
    attributes.state = ibv_port_state(faults::value(Value::PortState, ibv_port_state::IBV_PORT_ACTIVE.0));
    attributes.max_mtu = ibv_mtu::IBV_MTU_4096;
    attributes.active_mtu = ibv_mtu(faults::value(Value::ActiveMtu, ibv_mtu::IBV_MTU_4096.0));
    attributes.gid_tbl_len = c_int::try_from(GIDS_MAX).unwrap_or(0);
    attributes.max_msg_sz = 1 << 31;
    attributes.pkey_tbl_len = 1;
    attributes.active_width = WIDTH;
    attributes.active_speed = u8::try_from(faults::value(Value::ActiveSpeed, SPEED.into())).unwrap_or(0);
    attributes.phys_state = LINK_UP;
    let link_layer = faults::value(Value::LinkLayer, rdma_sys::IBV_LINK_LAYER_ETHERNET);
    attributes.link_layer = u8::try_from(link_layer).unwrap_or(0);
    Ok(attributes)
}

/// The operation behind `ibv_query_port`, in the extended context.
pub(crate) unsafe extern "C" fn query_extended(
    context: *mut ibv_context,
    port: u8,
    place: *mut ibv_port_attr,
    bytes: usize,
) -> c_int {
    if let Some(error) = faults::due(Call::QueryPort) {
        return error;
    }
    let mut attributes = match attributes(u32::from(port)) {
        Ok(attributes) => attributes,
        Err(error) => return error,
    };
    // SAFETY: an open device's, as callers of verbs vouch (ibv_query_port(3)).
    if unsafe { OpenDevice::of(context) }.device().is_down() {
        attributes.state = ibv_port_state::IBV_PORT_DOWN;
    }
    // A caller may know a shorter structure; the fields after the common part stay its own.
    let bytes = bytes.min(size_of::<ibv_port_attr>());
    // SAFETY: the caller has room for the bytes it says (verbs_context.query_port).
    unsafe { core::ptr::copy_nonoverlapping((&raw const attributes).cast::<u8>(), place.cast(), bytes) };
    0
}

/// The filled entries of the GID table.
pub(crate) fn gids() -> Vec<ibv_gid_entry> {
    let Some(interface) = interfaces::chosen() else {
        return Vec::new();
    };
    let entry = |(index, raw): (u32, &[u8; 16])| ibv_gid_entry {
        gid: ibv_gid { raw: *raw },
        gid_index: index,
        port_num: 1,
        gid_type: faults::value(Value::GidType, rdma_sys::IBV_GID_TYPE_ROCE_V2.0),
        ndev_ifindex: interface.index,
    };
    (0..)
        .zip(interface.gids.iter().take(GIDS_MAX))
        .map(entry)
        .collect()
}

/// One entry of the GID table of a port; `None` where it is empty.
///
/// # Errors
/// `EINVAL`: there is no such port or index.
pub(crate) fn gid(port: u32, index: u32) -> Result<Option<ibv_gid_entry>, c_int> {
    if port != 1 || index as usize >= GIDS_MAX {
        return Err(libc::EINVAL);
    }
    Ok(gids().into_iter().find(|entry| entry.gid_index == index))
}
