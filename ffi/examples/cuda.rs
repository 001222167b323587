//! Registers memory of an NVIDIA GPU with an RDMA device, so that peers reach it without a copy through this host.
//!
//! It opens libcuda at run time, and says what is missing: the driver, a GPU, one that exports dma-bufs, an RDMA device that
//! imports them. Sources: the CUDA driver API (`cuMemGetHandleForAddressRange`), `ibv_reg_mr(3)`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example")]

use core::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use core::ptr::NonNull;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::process::ExitCode;

use doorbell_core::provider::{Context as _, Provider as _, RemoteAccess, Window as _};
use doorbell_ffi::{DmabufRange, Rdma};

/// Bytes of GPU memory: a multiple of the host's pages, as the export asks for.
const BYTES: usize = 2 << 20;

const DMA_BUF_SUPPORTED: c_int = 124;
const HANDLE_IS_DMA_BUF: c_int = 1;
const SYNC_MEMOPS: c_int = 6;

/// Declares functions of libcuda, which are looked up by name. Each returns zero, or an error number.
macro_rules! cuda {
    ($($name:ident($($argument:ty),*);)+) => {
        #[expect(non_snake_case, reason = "the names of the driver API")]
        struct Cuda {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)+
        }

        impl Cuda {
            /// Opens the library and looks all of them up.
            fn open(library: &CStr) -> Result<Self, String> {
                // SAFETY: a text that ends (dlopen(3)); a driver's library has nothing unsound in its constructors.
                let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
                let missing = format!("{library:?} cannot be opened: install the NVIDIA driver");
                let handle = NonNull::new(handle).ok_or(missing)?;
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: a library that stays open, and a text that ends (dlsym(3)).
                        let symbol = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr().cast()) };
                        let symbol = NonNull::new(symbol).ok_or(concat!(stringify!($name), " is missing: the driver is too old"))?;
                        // SAFETY: the driver API declares the function of this name so.
                        unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(symbol.as_ptr()) }
                    },)+
                })
            }
        }
    };
}

cuda! {
    cuInit(c_uint);
    cuGetErrorString(c_int, *mut *const c_char);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    cuDevicePrimaryCtxRetain(*mut *mut c_void, c_int);
    cuCtxSetCurrent(*mut c_void);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuPointerSetAttribute(*const c_void, c_int, u64);
    cuMemGetHandleForAddressRange(*mut c_void, u64, usize, c_int, c_ulonglong);
}

impl Cuda {
    /// Names the call that failed, and why.
    fn check(&self, call: &str, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        let mut text = core::ptr::null();
        // SAFETY: a writable pointer; the text is static (cuGetErrorString).
        unsafe { (self.cuGetErrorString)(status, &raw mut text) };
        if text.is_null() {
            return Err(format!("{call} failed with {status}"));
        }
        // SAFETY: a static text that ends.
        let text = unsafe { CStr::from_ptr(text) };
        Err(format!("{call} failed: {} ({status})", text.to_string_lossy()))
    }
}

/// Allocates memory of the first GPU, and returns its address and a descriptor of it.
fn export(cuda: &Cuda) -> Result<(u64, OwnedFd), String> {
    // SAFETY: takes a number (cuInit).
    cuda.check("cuInit", unsafe { (cuda.cuInit)(0) })?;
    let mut device = 0;
    // SAFETY: a writable number (cuDeviceGet).
    cuda.check("cuDeviceGet", unsafe { (cuda.cuDeviceGet)(&raw mut device, 0) })?;
    let mut exports = 0;
    // SAFETY: a writable number, and a device (cuDeviceGetAttribute).
    let status = unsafe { (cuda.cuDeviceGetAttribute)(&raw mut exports, DMA_BUF_SUPPORTED, device) };
    cuda.check("cuDeviceGetAttribute", status)?;
    if exports == 0 {
        return Err(
            "this GPU exports no dma-buf: that needs the open kernel modules, CUDA 11.7 and Linux 5.12"
                .into(),
        );
    }
    let mut context = core::ptr::null_mut();
    // SAFETY: a writable pointer, and a device (cuDevicePrimaryCtxRetain).
    let status = unsafe { (cuda.cuDevicePrimaryCtxRetain)(&raw mut context, device) };
    cuda.check("cuDevicePrimaryCtxRetain", status)?;
    // SAFETY: the context just retained (cuCtxSetCurrent).
    cuda.check("cuCtxSetCurrent", unsafe { (cuda.cuCtxSetCurrent)(context) })?;
    let mut address = 0;
    // SAFETY: a writable number (cuMemAlloc).
    cuda.check("cuMemAlloc", unsafe {
        (cuda.cuMemAlloc_v2)(&raw mut address, BYTES)
    })?;
    let on: c_uint = 1;
    // SAFETY: a readable number, and memory just allocated (cuPointerSetAttribute). Copies of CUDA then keep the order of a NIC's.
    let status = unsafe { (cuda.cuPointerSetAttribute)((&raw const on).cast(), SYNC_MEMOPS, address) };
    cuda.check("cuPointerSetAttribute", status)?;
    let mut fd: c_int = -1;
    // SAFETY: a writable descriptor, and memory just allocated (cuMemGetHandleForAddressRange).
    let status = unsafe {
        (cuda.cuMemGetHandleForAddressRange)((&raw mut fd).cast(), address, BYTES, HANDLE_IS_DMA_BUF, 0)
    };
    cuda.check("cuMemGetHandleForAddressRange", status)?;
    // SAFETY: open, and given to this caller alone.
    Ok((address, unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Registers GPU memory with the first device that imports dma-bufs, and says what a peer needs to reach it.
pub(crate) fn register(rdma: &Rdma, library: &CStr) -> Result<String, String> {
    let cuda = Cuda::open(library)?;
    let (address, fd) = export(&cuda)?;
    let devices = rdma.devices().map_err(|error| error.to_string())?;
    let found = devices.iter().find(|device| device.imports_dmabuf == Some(true));
    let found = found.ok_or_else(|| {
        let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
        format!("none of the RDMA devices {names:?} imports dma-bufs")
    })?;
    let context = rdma.open(&found.name).map_err(|error| error.to_string())?;
    let domain = context.protection_domain().map_err(|error| error.to_string())?;
    let range = DmabufRange {
        offset: 0,
        bytes: BYTES,
        iova: address,
    };
    let region = domain.register_dmabuf(fd.as_fd(), range, RemoteAccess::ALL);
    let region = region.map_err(|error| error.to_string())?;
    // The registration holds the memory, so the descriptor is not needed any more.
    drop(fd);
    let said = format!("{}: {:?}", found.name, region.remote());
    drop(region);
    // SAFETY: allocated here, and registered no more (cuMemFree).
    cuda.check("cuMemFree", unsafe { (cuda.cuMemFree_v2)(address) })?;
    Ok(said)
}

fn main() -> ExitCode {
    let said = Rdma::load().map_err(|error| error.to_string());
    match said.and_then(|rdma| register(&rdma, c"libcuda.so.1")) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
