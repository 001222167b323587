//! The functions that describe the one device.

use core::ffi::c_int;

use super::{call, check_device, given};
use crate::abi::NcclResult;
use crate::abi::properties::{
    PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12, VirtualDevice, VirtualDeviceV12,
};
use crate::device::{DEVICES, Device};
use crate::failure::Failure;

/// # Safety
/// The pointer is NULL or valid for writing.
pub(crate) unsafe extern "C" fn devices(count: *mut c_int) -> NcclResult {
    call("devices", || {
        let count = given(count, "ndev")?;
        let none = || Failure::new(NcclResult::INVALID_USAGE, "init was not called, or failed");
        Device::known().ok_or_else(none)?;
        // SAFETY: valid for writing, by this function's contract.
        unsafe { count.write(DEVICES) };
        Ok(())
    })
}

/// Defines one function for each version of the properties.
macro_rules! get_properties {
    ($($name:ident: $properties:ty = $of:ident,)+) => {$(
        /// # Safety
        /// The pointer is NULL or valid for writing.
        pub(crate) unsafe extern "C" fn $name(device: c_int, properties: *mut $properties) -> NcclResult {
            call("getProperties", || {
                let properties = given(properties, "props")?;
                check_device(device)?;
                let none = || Failure::new(NcclResult::INVALID_USAGE, "init was not called, or failed");
                let known = Device::known().ok_or_else(none)?;
                // SAFETY: valid for writing, by this function's contract.
                unsafe { properties.write(known.$of()) };
                Ok(())
            })
        }
    )+};
}

get_properties! {
    get_properties_v8: PropertiesV8 = properties_v8,
    get_properties_v9: PropertiesV9 = properties_v9,
    get_properties_v11: PropertiesV11 = properties_v11,
    get_properties_v12: PropertiesV12 = properties_v12,
}

/// Defines one function for each version of the device list.
macro_rules! make_virtual_device {
    ($($name:ident: $list:ty,)+) => {$(
        /// Returns device 0 if it is the only one in the list. The device already stands for all rails, so there is nothing to
        /// merge.
        ///
        /// # Safety
        /// The pointers are NULL or valid.
        pub(crate) unsafe extern "C" fn $name(device: *mut c_int, list: *mut $list) -> NcclResult {
            call("makeVDevice", || {
                let device = given(device, "d")?;
                let list = given(list, "props")?;
                // SAFETY: valid, by this function's contract.
                let list = unsafe { list.read() };
                if (list.count, list.devices.first()) != (1, Some(&0)) {
                    return Err(Failure::argument(format_args!(
                        "{} devices, the first of them {}: device 0 alone can be in the list, and stands for all rails",
                        list.count,
                        list.devices.first().copied().unwrap_or_default()
                    )));
                }
                // SAFETY: valid for writing, by this function's contract.
                unsafe { device.write(0) };
                Ok(())
            })
        }
    )+};
}

make_virtual_device! {
    make_virtual_device_v9: VirtualDevice,
    make_virtual_device_v12: VirtualDeviceV12,
}
