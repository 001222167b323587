//! Sizes and offsets of structures, which the library reports to C programs.

use core::ffi::{c_char, c_int};

use super::properties::{
    CommConfig, NetAttributes, NetDeviceHandle, PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12,
    VirtualDevice, VirtualDeviceV12,
};
use super::tables::{NetV8, NetV9, NetV10, NetV11, NetV12};

/// The size of a structure, and the offsets of its fields.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Layout {
    /// The name and the size of the structure.
    pub size: (&'static str, usize),
    /// The offsets, each with the names of structure and field. Names end with a NUL.
    pub fields: &'static [(&'static str, usize)],
}

impl Layout {
    pub(super) const fn new(size: (&'static str, usize), fields: &'static [(&'static str, usize)]) -> Self {
        Self { size, fields }
    }
}

/// All structures.
pub const LAYOUTS: &[Layout] = &[
    VirtualDevice::LAYOUT,
    VirtualDeviceV12::LAYOUT,
    PropertiesV8::LAYOUT,
    PropertiesV9::LAYOUT,
    PropertiesV11::LAYOUT,
    PropertiesV12::LAYOUT,
    CommConfig::LAYOUT,
    NetAttributes::LAYOUT,
    NetDeviceHandle::LAYOUT,
    NetV8::LAYOUT,
    NetV9::LAYOUT,
    NetV10::LAYOUT,
    NetV11::LAYOUT,
    NetV12::LAYOUT,
];

/// Writes the name and the value of a row, and returns 1; returns 0 if there are no more rows.
///
/// # Safety
/// `name` and `number` are valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn doorbell_nccl_layout(
    row: c_int,
    name: *mut *const c_char,
    number: *mut usize,
) -> c_int {
    let rows = LAYOUTS
        .iter()
        .flat_map(|layout| core::iter::once(&layout.size).chain(layout.fields));
    let Some((text, value)) = usize::try_from(row)
        .ok()
        .and_then(|row| rows.into_iter().nth(row))
    else {
        return 0;
    };
    // SAFETY: valid for writing, by this function's contract.
    unsafe { name.write(text.as_ptr().cast()) };
    // SAFETY: as above.
    unsafe { number.write(*value) };
    1
}
