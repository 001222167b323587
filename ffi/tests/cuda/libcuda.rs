//! Stands for libcuda: one GPU whose memory is a memory file.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

const NOT_SUPPORTED: c_int = 801;
const ADDRESS: u64 = 0x7f00_0020_0000;

fn lacks(what: &str) -> bool {
    std::env::var("LIBCUDA_LACKS").is_ok_and(|lacking| lacking == what)
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_: c_uint) -> c_int {
    if lacks("a GPU") { 100 } else { 0 }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(_: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: writable, as the caller vouches (cuGetErrorString).
    unsafe { text.write(c"no CUDA-capable device is detected".as_ptr()) };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, _: c_int) -> c_int {
    // SAFETY: writable, as the caller vouches (cuDeviceGet).
    unsafe { device.write(0) };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _: c_int) -> c_int {
    // SAFETY: writable, as the caller vouches (cuDeviceGetAttribute).
    unsafe { value.write(c_int::from(attribute == 124 && !lacks("exports"))) };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(_: *mut *mut c_void, _: c_int) -> c_int {
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(_: *mut c_void) -> c_int {
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, _: usize) -> c_int {
    // SAFETY: writable, as the caller vouches (cuMemAlloc).
    unsafe { address.write(ADDRESS) };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    if address == ADDRESS { 0 } else { NOT_SUPPORTED }
}
#[unsafe(no_mangle)]
extern "C" fn cuPointerSetAttribute(_: *const c_void, attribute: c_int, address: u64) -> c_int {
    if (attribute, address) == (6, ADDRESS) { 0 } else { NOT_SUPPORTED }
}

// SAFETY: declared as by libc: memfd_create(2), ftruncate(2), fcntl(2).
unsafe extern "C" {
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    fn ftruncate(fd: c_int, bytes: i64) -> c_int;
    fn fcntl(fd: c_int, command: c_int, ...) -> c_int;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    address: u64,
    bytes: usize,
    kind: c_int,
    _: c_ulonglong,
) -> c_int {
    if (address, kind) != (ADDRESS, 1) {
        return NOT_SUPPORTED;
    }
    // SAFETY: a text that ends.
    let fd = unsafe { memfd_create(c"gpu".as_ptr(), 3) };
    // SAFETY: a descriptor of its own.
    unsafe { ftruncate(fd, bytes as i64) };
    // SAFETY: as above. F_ADD_SEALS, F_SEAL_SHRINK: as udmabuf asks for.
    unsafe { fcntl(fd, 1033, 2) };
    // SAFETY: a writable descriptor, as the caller vouches.
    unsafe { handle.cast::<c_int>().write(fd) };
    0
}
