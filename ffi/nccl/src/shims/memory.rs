//! Registration, deregistration and flush of memory.

use core::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

use doorbell::memory::{DmabufError, DmabufRange};

use super::{call, element, given, object, registration};
use crate::abi::{NcclResult, PTR_CUDA, PTR_DMABUF, PTR_HOST};
use crate::failure::Failure;
use crate::frame::RECEIVES_MAX;
use crate::memory::Memory;
use crate::opaque::{Kind, Opaque};
use crate::places::Key;
use crate::registry;

const COMMS: &[Kind] = &[Kind::SendComm, Kind::ReceiveComm];

/// # Safety
/// The result is NULL or valid for writing. The memory is as [`Memory::register`] wants it, until `deregMr` returned without an error.
pub(crate) unsafe extern "C" fn register(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    memory: *mut *mut c_void,
) -> NcclResult {
    call("regMr", || {
        let result = given(memory, "mhandle")?;
        let comm = object(comm, COMMS, "comm")?;
        let base = given(data, "data")?.cast::<u8>();
        if kind != PTR_HOST {
            return Err(Failure::argument(format_args!(
                "memory of type {kind}: without a descriptor, host memory alone ({PTR_HOST}) is supported"
            )));
        }
        let end = base.addr().checked_add(bytes);
        if bytes == 0 || isize::try_from(bytes).is_err() || end.is_none() {
            return Err(Failure::argument(format_args!(
                "{bytes} bytes at {base:p} cannot be registered"
            )));
        }
        let key = registry::with(comm.context(), |context| {
            context.register(comm.key(), |node, workers| {
                // SAFETY: this function's contract.
                let registered = unsafe { Memory::register(node, workers, (base, bytes)) };
                registered.map_err(|error| Failure::system(format_args!("{bytes} bytes: {error}")))
            })
        })?;
        // SAFETY: valid for writing, by this function's contract.
        unsafe { result.write(Opaque::new(Kind::Memory, comm.context(), key).to_pointer()) };
        Ok(())
    })
}

/// Registers a dma-buf. The caller may close the descriptor afterwards. Requests name the memory by addresses from `data` on, which
/// are not dereferenced.
///
/// # Safety
/// The result is NULL or valid for writing.
pub(crate) unsafe extern "C" fn register_dma_buf(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    offset: u64,
    descriptor: c_int,
    memory: *mut *mut c_void,
) -> NcclResult {
    call("regMrDmaBuf", || {
        let usage = |why: &dyn core::fmt::Display| Failure::new(NcclResult::INVALID_USAGE, why);
        if descriptor < 0 {
            return Err(usage(&"there is no descriptor"));
        }
        let result = given(memory, "mhandle")?;
        let comm = object(comm, COMMS, "comm")?;
        if kind != PTR_CUDA && kind != PTR_DMABUF {
            return Err(Failure::argument(format_args!(
                "memory of type {kind} by a descriptor: that of a GPU alone ({PTR_CUDA}) is supported"
            )));
        }
        let range = DmabufRange {
            offset,
            bytes,
            iova: u64::try_from(data.addr()).unwrap_or(u64::MAX),
        };
        // SAFETY: not negative, and open while this is called: NCCL closes it afterwards. The kernel checks that it is a descriptor.
        let buffer = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let key = registry::with(comm.context(), |context| {
            context.open_flusher()?;
            context.register(comm.key(), |node, workers| {
                Memory::register_dmabuf(node, workers, buffer, range).map_err(|error| match error {
                    DmabufError::Unsupported(_) => usage(&error),
                    DmabufError::Provider(_) => Failure::system(format_args!("{bytes} bytes: {error}")),
                    _ => Failure::argument(error),
                })
            })
        })?;
        // SAFETY: valid for writing, by this function's contract.
        unsafe { result.write(Opaque::new(Kind::Memory, comm.context(), key).to_pointer()) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn deregister(comm: *mut c_void, memory: *mut c_void) -> NcclResult {
    call("deregMr", || {
        let comm = object(comm, COMMS, "comm")?;
        object(memory, &[Kind::Memory], "mhandle")?;
        let key = registration(memory, comm)?;
        registry::with(comm.context(), |context| context.deregister(key))
    })
}

/// Starts a flush. Host memory already has all bytes of a completed receive: without device memory, nothing is flushed and the request
/// is NULL.
///
/// # Safety
/// The result is NULL or valid for writing, and the arrays are NULL or valid for `count` elements.
pub(crate) unsafe extern "C" fn iflush(
    comm: *mut c_void,
    count: c_int,
    _data: *mut *mut c_void,
    sizes: *mut c_int,
    memories: *mut *mut c_void,
    result: *mut *mut c_void,
) -> NcclResult {
    call("iflush", || {
        let result = given(result, "request")?;
        // SAFETY: valid for writing, by this function's contract.
        unsafe { result.write(core::ptr::null_mut()) };
        let comm = object(comm, &[Kind::ReceiveComm], "recvComm")?;
        let mut keys = [Key::NONE; RECEIVES_MAX];
        let flushed = usize::try_from(count)
            .ok()
            .and_then(|count| keys.get_mut(..count));
        let flushed = flushed.ok_or_else(|| {
            Failure::argument(format_args!("iflush: up to {RECEIVES_MAX} receives are possible"))
        })?;
        for (place, key) in flushed.iter_mut().enumerate() {
            let (sizes, memories) = (given(sizes, "sizes")?, given(memories, "mhandles")?);
            // SAFETY: an element of an array of `count` elements, by this function's contract.
            let size = unsafe { element(sizes, place) };
            // SAFETY: as above.
            let memory = unsafe { element(memories, place) };
            if size > 0 {
                *key = registration(memory, comm)?;
            }
        }
        if let Some(flush) = registry::with(comm.context(), |context| context.flush(comm.key(), keys))? {
            let request = Opaque::new(Kind::Flush, comm.context(), flush).to_pointer();
            // SAFETY: as above.
            unsafe { result.write(request) };
        }
        Ok(())
    })
}
