//! The C interface of a net plugin, versions 8 to 12: values, properties and tables.
//!
//! Sizes and offsets are checked at compile time. A C program of the tests compares them with its own definitions.

mod layout;
pub mod properties;
pub mod tables;

use core::ffi::{c_char, c_int, c_ulong, c_void};

pub use layout::{LAYOUTS, Layout, doorbell_nccl_layout};

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct NcclResult(pub c_int);

impl NcclResult {
    /// The call was executed. If it left its result NULL, NCCL has to call it again.
    pub const SUCCESS: Self = Self(0);
    /// A call of CUDA failed. This plugin makes none.
    pub const UNHANDLED_CUDA_ERROR: Self = Self(1);
    /// A system call or a device failed.
    pub const SYSTEM_ERROR: Self = Self(2);
    /// An error of the plugin.
    pub const INTERNAL_ERROR: Self = Self(3);
    /// An argument is invalid.
    pub const INVALID_ARGUMENT: Self = Self(4);
    /// The call is invalid in this state.
    pub const INVALID_USAGE: Self = Self(5);
    /// The peer failed, or cannot be reached.
    pub const REMOTE_ERROR: Self = Self(6);
    /// The call is in progress.
    pub const IN_PROGRESS: Self = Self(7);
}

/// Length of the handle that a listener gives to a peer.
pub const HANDLE_BYTES: usize = 128;

/// Maximum number of open requests of a comm, each of up to `maxRecvs` receives.
pub const REQUESTS_MAX: usize = 32;

/// Host memory.
pub const PTR_HOST: c_int = 1;

/// GPU memory.
pub const PTR_CUDA: c_int = 2;

/// Memory that a dma-buf descriptor names.
pub const PTR_DMABUF: c_int = 4;

/// Levels of the log.
pub const LOG_WARN: c_int = 2;
/// See [`LOG_WARN`].
pub const LOG_INFO: c_int = 3;

/// The subsystems of a log line.
pub const LOG_INIT_AND_NET: c_ulong = 1 | 16;

/// The function that writes to NCCL's log. Its arguments are level, subsystems, file, line, format and the arguments of the
/// format.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Logger(
    /// The function.
    pub Option<unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...)>,
);

/// A function of NCCL's profiler, which this plugin does not call.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Profiler(
    /// The function.
    pub Option<unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> NcclResult>,
);
