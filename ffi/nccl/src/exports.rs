//! The tables that NCCL looks up, newest version first.

use core::ffi::CStr;

use crate::abi::tables::{NetV8, NetV9, NetV10, NetV11, NetV12};
use crate::shims;

/// The name of the plugin, for `NCCL_NET`.
const NAME: &CStr = c"doorbell";

/// Defines a table. The listed entries are the same in all tables.
macro_rules! table {
    ($(#[$of:meta])* $symbol:ident: $table:ident { $($slot:ident: $function:ident,)+ }) => {
        $(#[$of])*
        #[unsafe(no_mangle)]
        pub static $symbol: $table = $table {
            name: NAME.as_ptr(),
            devices: Some(shims::devices),
            accept: Some(shims::accept),
            reg_mr: Some(shims::register),
            reg_mr_dma_buf: Some(shims::register_dma_buf),
            dereg_mr: Some(shims::deregister),
            iflush: Some(shims::iflush),
            test: Some(shims::test),
            close_send: Some(shims::close_send),
            close_recv: Some(shims::close_receive),
            close_listen: Some(shims::close_listener),
            // Only plugins with device offload provide these functions.
            get_device_mr: None,
            irecv_consumed: None,
            $($slot: Some(shims::$function),)+
        };
    };
}

table! {
    /// Version 8.
    ncclNetPlugin_v8: NetV8 {
        init: init_v8,
        get_properties: get_properties_v8,
        listen: listen_v8,
        connect: connect_v8,
        isend: isend_v8,
        irecv: irecv_v8,
    }
}

table! {
    /// Version 9.
    ncclNetPlugin_v9: NetV9 {
        init: init_v8,
        get_properties: get_properties_v9,
        listen: listen_v8,
        connect: connect_v8,
        isend: isend_v9,
        irecv: irecv_v9,
        make_virtual_device: make_virtual_device_v9,
    }
}

table! {
    /// Version 10.
    ncclNetPlugin_v10: NetV10 {
        init: init_v10,
        get_properties: get_properties_v9,
        listen: listen_v8,
        connect: connect_v10,
        isend: isend_v10,
        irecv: irecv_v10,
        make_virtual_device: make_virtual_device_v9,
    }
}

table! {
    /// Version 11.
    ncclNetPlugin_v11: NetV11 {
        init: init_v11,
        get_properties: get_properties_v11,
        listen: listen_v11,
        connect: connect_v11,
        isend: isend_v10,
        irecv: irecv_v10,
        finalize: finalize,
        set_net_attr: set_net_attributes,
        make_virtual_device: make_virtual_device_v9,
    }
}

table! {
    /// Version 12.
    ncclNetPlugin_v12: NetV12 {
        init: init_v11,
        get_properties: get_properties_v12,
        listen: listen_v11,
        connect: connect_v11,
        isend: isend_v10,
        irecv: irecv_v10,
        finalize: finalize,
        set_net_attr: set_net_attributes,
        make_virtual_device: make_virtual_device_v12,
    }
}
