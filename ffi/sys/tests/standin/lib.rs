// A stand-in for libibverbs: what `standin.rs` compiles and loads. It has the functions whose effects that
// test looks at; the test appends an empty one for every other function that `load` requires.

use core::ffi::{c_int, c_uint, c_void};

#[repr(C)]
struct Anything([u8; 0]);

fn pointer<T>(address: usize) -> *mut T {
    core::ptr::without_provenance_mut(address)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut c_void {
    // SAFETY: the caller passes the address of its count.
    unsafe { count.write(3) };
    pointer(0x1000)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_srq(pd: *mut Anything, attr: *mut usize) -> *mut Anything {
    // The first field of the attributes is the caller's context pointer.
    // SAFETY: the caller passes attributes whose first field is a pointer, of the size of `usize`.
    pointer(pd.addr() + unsafe { attr.read() })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_qp(pd: *mut Anything, attr: *mut usize) -> *mut Anything {
    // SAFETY: the caller passes attributes whose first field is a pointer, of the size of `usize`.
    pointer(pd.addr() + unsafe { attr.read() })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_device(_context: *mut Anything, attr: *mut u8) -> c_int {
    // SAFETY: the caller passes attributes, which begin with bytes.
    unsafe { attr.write(b'4') };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_port(_context: *mut Anything, port: u8, attr: *mut u32) -> c_int {
    // SAFETY: the caller passes attributes, which begin with a state of four bytes.
    unsafe { attr.write(u32::from(port)) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(_pd: *mut Anything, _addr: *mut c_void, _length: usize, access: c_int) -> *mut Anything {
    pointer(0xa000 + access as usize)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    _pd: *mut Anything,
    _addr: *mut c_void,
    _length: usize,
    iova: u64,
    _access: c_uint,
) -> *mut Anything {
    pointer(iova as usize)
}

#[unsafe(no_mangle)]
extern "C" fn _ibv_query_gid_ex(
    _context: *mut Anything,
    port: u32,
    index: u32,
    _entry: *mut Anything,
    _flags: u32,
    entry_size: usize,
) -> c_int {
    (port * 10_000 + index * 1_000) as c_int + entry_size as c_int
}
