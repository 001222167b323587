//! The tables of functions, one for each version.

use core::ffi::{c_char, c_int, c_void};
use core::mem::{offset_of, size_of};

use super::properties::{
    CommConfig, NetAttributes, NetDeviceHandle, PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12,
    VirtualDevice, VirtualDeviceV12,
};
use super::{Layout, Logger, NcclResult, Profiler};

/// Defines a table: a name, and functions in order.
macro_rules! table {
    ($(#[$of_struct:meta])* $name:ident as $c:literal, $size:literal {
        $($slot:ident $in_c:literal ($($argument:ty),*),)+
    }) => {
        $(#[$of_struct])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $name {
            /// The name of the plugin.
            pub name: *const c_char,
            $(
                #[doc = concat!("`", $in_c, "`")]
                pub $slot: Option<unsafe extern "C" fn($($argument),*) -> NcclResult>,
            )+
        }

        // SAFETY: a table is never written to, and its name is a string that stays valid.
        unsafe impl Sync for $name {}

        impl $name {
            /// The size and offsets.
            pub const LAYOUT: Layout = Layout::new(
                (concat!($c, "\0"), size_of::<Self>()),
                &[
                    (concat!($c, ".name\0"), offset_of!(Self, name)),
                    $((concat!($c, ".", $in_c, "\0"), offset_of!(Self, $slot)),)+
                ],
            );
        }

        const _: () = assert!(size_of::<$name>() == $size);
        const _: () = {
            // The fields are in order, one pointer each.
            let fields = $name::LAYOUT.fields;
            let mut place = 0;
            while place < fields.len() {
                #[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
                {
                    assert!(fields[place].1 == place * size_of::<*const c_char>());
                    place += 1;
                }
            }
        };
    };
}

table! {
    /// Version 8, of NCCL 2.20 to 2.23.
    NetV8 as "ncclNet_v8_t", 152 {
        init "init" (Logger),
        devices "devices" (*mut c_int),
        get_properties "getProperties" (c_int, *mut PropertiesV8),
        listen "listen" (c_int, *mut c_void, *mut *mut c_void),
        connect "connect" (c_int, *mut c_void, *mut *mut c_void, *mut *mut NetDeviceHandle),
        accept "accept" (*mut c_void, *mut *mut c_void, *mut *mut NetDeviceHandle),
        reg_mr "regMr" (*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void),
        reg_mr_dma_buf "regMrDmaBuf" (*mut c_void, *mut c_void, usize, c_int, u64, c_int, *mut *mut c_void),
        dereg_mr "deregMr" (*mut c_void, *mut c_void),
        isend "isend" (*mut c_void, *mut c_void, c_int, c_int, *mut c_void, *mut *mut c_void),
        irecv "irecv" (*mut c_void, c_int, *mut *mut c_void, *mut c_int, *mut c_int, *mut *mut c_void, *mut *mut c_void),
        iflush "iflush" (*mut c_void, c_int, *mut *mut c_void, *mut c_int, *mut *mut c_void, *mut *mut c_void),
        test "test" (*mut c_void, *mut c_int, *mut c_int),
        close_send "closeSend" (*mut c_void),
        close_recv "closeRecv" (*mut c_void),
        close_listen "closeListen" (*mut c_void),
        get_device_mr "getDeviceMr" (*mut c_void, *mut c_void, *mut *mut c_void),
        irecv_consumed "irecvConsumed" (*mut c_void, c_int, *mut c_void),
    }
}

table! {
    /// Version 9, of NCCL 2.24 and 2.25.
    NetV9 as "ncclNet_v9_t", 160 {
        init "init" (Logger),
        devices "devices" (*mut c_int),
        get_properties "getProperties" (c_int, *mut PropertiesV9),
        listen "listen" (c_int, *mut c_void, *mut *mut c_void),
        connect "connect" (c_int, *mut c_void, *mut *mut c_void, *mut *mut NetDeviceHandle),
        accept "accept" (*mut c_void, *mut *mut c_void, *mut *mut NetDeviceHandle),
        reg_mr "regMr" (*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void),
        reg_mr_dma_buf "regMrDmaBuf" (*mut c_void, *mut c_void, usize, c_int, u64, c_int, *mut *mut c_void),
        dereg_mr "deregMr" (*mut c_void, *mut c_void),
        isend "isend" (*mut c_void, *mut c_void, usize, c_int, *mut c_void, *mut *mut c_void),
        irecv "irecv" (*mut c_void, c_int, *mut *mut c_void, *mut usize, *mut c_int, *mut *mut c_void, *mut *mut c_void),
        iflush "iflush" (*mut c_void, c_int, *mut *mut c_void, *mut c_int, *mut *mut c_void, *mut *mut c_void),
        test "test" (*mut c_void, *mut c_int, *mut c_int),
        close_send "closeSend" (*mut c_void),
        close_recv "closeRecv" (*mut c_void),
        close_listen "closeListen" (*mut c_void),
        get_device_mr "getDeviceMr" (*mut c_void, *mut c_void, *mut *mut c_void),
        irecv_consumed "irecvConsumed" (*mut c_void, c_int, *mut c_void),
        make_virtual_device "makeVDevice" (*mut c_int, *mut VirtualDevice),
    }
}

table! {
    /// Version 10, of NCCL 2.26 and 2.27.
    NetV10 as "ncclNet_v10_t", 160 {
        init "init" (Logger, Profiler),
        devices "devices" (*mut c_int),
        get_properties "getProperties" (c_int, *mut PropertiesV9),
        listen "listen" (c_int, *mut c_void, *mut *mut c_void),
        connect "connect" (c_int, *mut CommConfig, *mut c_void, *mut *mut c_void, *mut *mut NetDeviceHandle),
        accept "accept" (*mut c_void, *mut *mut c_void, *mut *mut NetDeviceHandle),
        reg_mr "regMr" (*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void),
        reg_mr_dma_buf "regMrDmaBuf" (*mut c_void, *mut c_void, usize, c_int, u64, c_int, *mut *mut c_void),
        dereg_mr "deregMr" (*mut c_void, *mut c_void),
        isend "isend" (*mut c_void, *mut c_void, usize, c_int, *mut c_void, *mut c_void, *mut *mut c_void),
        irecv "irecv" (*mut c_void, c_int, *mut *mut c_void, *mut usize, *mut c_int, *mut *mut c_void, *mut *mut c_void, *mut *mut c_void),
        iflush "iflush" (*mut c_void, c_int, *mut *mut c_void, *mut c_int, *mut *mut c_void, *mut *mut c_void),
        test "test" (*mut c_void, *mut c_int, *mut c_int),
        close_send "closeSend" (*mut c_void),
        close_recv "closeRecv" (*mut c_void),
        close_listen "closeListen" (*mut c_void),
        get_device_mr "getDeviceMr" (*mut c_void, *mut c_void, *mut *mut c_void),
        irecv_consumed "irecvConsumed" (*mut c_void, c_int, *mut c_void),
        make_virtual_device "makeVDevice" (*mut c_int, *mut VirtualDevice),
    }
}

/// Versions 11 and 12 differ only in the properties and the virtual devices.
macro_rules! newest {
    ($(#[$of_struct:meta])* $name:ident as $c:literal, $properties:ty, $virtual_device:ty) => {
        table! {
            $(#[$of_struct])*
            $name as $c, 176 {
                init "init" (*mut *mut c_void, u64, *mut CommConfig, Logger, Profiler),
                devices "devices" (*mut c_int),
                get_properties "getProperties" (c_int, *mut $properties),
                listen "listen" (*mut c_void, c_int, *mut c_void, *mut *mut c_void),
                connect "connect" (*mut c_void, c_int, *mut c_void, *mut *mut c_void, *mut *mut NetDeviceHandle),
                accept "accept" (*mut c_void, *mut *mut c_void, *mut *mut NetDeviceHandle),
                reg_mr "regMr" (*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void),
                reg_mr_dma_buf "regMrDmaBuf" (*mut c_void, *mut c_void, usize, c_int, u64, c_int, *mut *mut c_void),
                dereg_mr "deregMr" (*mut c_void, *mut c_void),
                isend "isend" (*mut c_void, *mut c_void, usize, c_int, *mut c_void, *mut c_void, *mut *mut c_void),
                irecv "irecv" (*mut c_void, c_int, *mut *mut c_void, *mut usize, *mut c_int, *mut *mut c_void, *mut *mut c_void, *mut *mut c_void),
                iflush "iflush" (*mut c_void, c_int, *mut *mut c_void, *mut c_int, *mut *mut c_void, *mut *mut c_void),
                test "test" (*mut c_void, *mut c_int, *mut c_int),
                close_send "closeSend" (*mut c_void),
                close_recv "closeRecv" (*mut c_void),
                close_listen "closeListen" (*mut c_void),
                get_device_mr "getDeviceMr" (*mut c_void, *mut c_void, *mut *mut c_void),
                irecv_consumed "irecvConsumed" (*mut c_void, c_int, *mut c_void),
                make_virtual_device "makeVDevice" (*mut c_int, *mut $virtual_device),
                finalize "finalize" (*mut c_void),
                set_net_attr "setNetAttr" (*mut c_void, *mut NetAttributes),
            }
        }
    };
}

newest! {
    /// Version 11, of NCCL 2.28 and 2.29.
    NetV11 as "ncclNet_v11_t", PropertiesV11, VirtualDevice
}

newest! {
    /// Version 12, of NCCL 2.30.
    NetV12 as "ncclNet_v12_t", PropertiesV12, VirtualDeviceV12
}
