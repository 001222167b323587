//! The functions in the tables. Each checks the caller's pointers, and calls a context.
//!
//! No panic leaves these functions. A failed call logs one line, unless the cause is already in the log.

mod describing;
mod memory;

use core::ffi::{c_int, c_void};
use core::panic::AssertUnwindSafe;
use core::ptr::NonNull;
use std::panic::catch_unwind;

use crate::abi::properties::{CommConfig, NetAttributes, NetDeviceHandle};
use crate::abi::{HANDLE_BYTES, Logger, NcclResult, Profiler};
use crate::context::{Context, Incoming, Outgoing};
use crate::failure::Failure;
use crate::frame::RECEIVES_MAX;
use crate::opaque::{Kind, Opaque};
use crate::places::Key;
use crate::settings::PluginSettings;
use crate::{log, registry};

pub(crate) use describing::{
    devices, get_properties_v8, get_properties_v9, get_properties_v11, get_properties_v12,
    make_virtual_device_v9, make_virtual_device_v12,
};
pub(crate) use memory::{deregister, iflush, register, register_dma_buf};

/// Runs a call, and returns its result code.
#[inline]
fn call(name: &str, work: impl FnOnce() -> Result<(), Failure>) -> NcclResult {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => NcclResult::SUCCESS,
        Ok(Err(failure)) => failed(name, failure),
        Err(_) => panicked(name),
    }
}

#[cold]
fn panicked(name: &str) -> NcclResult {
    log::warn(format_args!("{name}: a fault of the plugin: it panicked"));
    NcclResult::INTERNAL_ERROR
}

#[cold]
#[expect(
    clippy::needless_pass_by_value,
    reason = "it is dropped here, and not where a call does not fail"
)]
fn failed(name: &str, failure: Failure) -> NcclResult {
    if let Some(why) = failure.why() {
        log::warn(format_args!("{name}: {why}"));
    }
    failure.code()
}

/// Checks that a pointer of the caller is not NULL.
#[inline]
fn given<T>(pointer: *mut T, name: &str) -> Result<NonNull<T>, Failure> {
    NonNull::new(pointer).ok_or_else(|| is_null(name))
}

#[cold]
fn is_null(name: &str) -> Failure {
    Failure::argument(format_args!("{name} is NULL"))
}

/// Writes a result to the caller's memory, unless the pointer is NULL.
///
/// # Safety
/// The pointer is NULL or valid for writing.
unsafe fn give<T>(pointer: *mut T, value: T) {
    if let Some(pointer) = NonNull::new(pointer) {
        // SAFETY: by this function's contract.
        unsafe { pointer.write(value) };
    }
}

/// Reads an element of the caller's array.
///
/// # Safety
/// The array has this element.
unsafe fn element<T: Copy>(array: NonNull<T>, place: usize) -> T {
    // SAFETY: within the array, by this function's contract.
    let at = unsafe { array.add(place) };
    // SAFETY: as above.
    unsafe { at.read() }
}

/// Decodes a pointer that must name an object of one of these kinds.
#[inline]
fn object(pointer: *mut c_void, kinds: &[Kind], name: &str) -> Result<Opaque, Failure> {
    Opaque::of(pointer, kinds).ok_or_else(|| no_object(pointer, name))
}

#[cold]
fn no_object(pointer: *mut c_void, name: &str) -> Failure {
    Failure::argument(format_args!("{name} {pointer:p} is none of this plugin's"))
}

fn check_device(device: c_int) -> Result<(), Failure> {
    match device {
        0 => Ok(()),
        other => Err(Failure::argument(format_args!(
            "device {other}: there is device 0 alone"
        ))),
    }
}

fn settings() -> Result<PluginSettings, Failure> {
    let settings = PluginSettings::read(std::env::vars_os())?;
    for note in &settings.notes {
        log::info(note);
    }
    Ok(settings)
}

pub(crate) unsafe extern "C" fn init_v8(logger: Logger) -> NcclResult {
    log::set(logger);
    call("init", || registry::open_shared(settings).map(drop))
}

pub(crate) unsafe extern "C" fn init_v10(logger: Logger, _profiler: Profiler) -> NcclResult {
    log::set(logger);
    call("init", || registry::open_shared(settings).map(drop))
}

/// # Safety
/// The pointers are NULL or valid.
pub(crate) unsafe extern "C" fn init_v11(
    context: *mut *mut c_void,
    _communicator: u64,
    config: *mut CommConfig,
    logger: Logger,
    _profiler: Profiler,
) -> NcclResult {
    log::set(logger);
    call("init", || {
        let result = given(context, "ctx")?;
        let mut settings = settings()?;
        if let Some(config) = NonNull::new(config) {
            // SAFETY: valid, by this function's contract.
            let config = unsafe { config.read() };
            let class = u8::try_from(config.traffic_class).ok();
            if let Some(class) = class.filter(|_| !settings.has_traffic_class) {
                settings.values.link.channel.traffic_class = class;
            }
        }
        let place = registry::open(&settings)?;
        let context = Opaque::new(Kind::Context, place, Key(1)).to_pointer();
        // SAFETY: valid for writing, by this function's contract.
        unsafe { result.write(context) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn finalize(context: *mut c_void) -> NcclResult {
    call("finalize", || {
        let context = object(context, &[Kind::Context], "ctx")?;
        registry::close(context.context())
    })
}

/// Accepts hints, which have no effect here.
pub(crate) unsafe extern "C" fn set_net_attributes(
    context: *mut c_void,
    _attributes: *mut NetAttributes,
) -> NcclResult {
    call("setNetAttr", || {
        object(context, &[Kind::Context], "ctx").map(drop)
    })
}

/// # Safety
/// The pointers are NULL or valid; `handle` has 128 bytes.
unsafe fn listen(
    place: u8,
    device: c_int,
    handle: *mut c_void,
    listener: *mut *mut c_void,
) -> Result<(), Failure> {
    let handle = given(handle, "handle")?.cast::<[u8; HANDLE_BYTES]>();
    let listener = given(listener, "listenComm")?;
    check_device(device)?;
    let (key, bytes) = registry::with(place, Context::listen)?;
    // SAFETY: 128 bytes, by this function's contract.
    unsafe { handle.write(bytes) };
    // SAFETY: valid for writing, by this function's contract.
    unsafe { listener.write(Opaque::new(Kind::Listener, place, key).to_pointer()) };
    Ok(())
}

/// # Safety
/// As for [`listen`].
pub(crate) unsafe extern "C" fn listen_v8(
    device: c_int,
    handle: *mut c_void,
    listener: *mut *mut c_void,
) -> NcclResult {
    call("listen", || {
        let place = registry::shared()?;
        // SAFETY: this function's contract.
        unsafe { listen(place, device, handle, listener) }
    })
}

/// # Safety
/// As for [`listen`].
pub(crate) unsafe extern "C" fn listen_v11(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    listener: *mut *mut c_void,
) -> NcclResult {
    call("listen", || {
        let context = object(context, &[Kind::Context], "ctx")?;
        // SAFETY: this function's contract.
        unsafe { listen(context.context(), device, handle, listener) }
    })
}

/// # Safety
/// The pointers are NULL or valid; `handle` has 128 bytes.
unsafe fn connect(
    place: u8,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
) -> Result<(), Failure> {
    let handle = given(handle, "handle")?.cast::<[u8; HANDLE_BYTES]>();
    let comm = given(comm, "sendComm")?;
    // SAFETY: valid for writing, by this function's contract.
    unsafe { comm.write(core::ptr::null_mut()) };
    check_device(device)?;
    // SAFETY: 128 bytes, by this function's contract.
    let mut bytes = unsafe { handle.read() };
    let connected = registry::with(place, |context| context.connect(&mut bytes));
    // SAFETY: as above.
    unsafe { handle.write(bytes) };
    if let Some(key) = connected? {
        // SAFETY: valid for writing, by this function's contract.
        unsafe { comm.write(Opaque::new(Kind::SendComm, place, key).to_pointer()) };
    }
    Ok(())
}

/// # Safety
/// As for [`connect`].
pub(crate) unsafe extern "C" fn connect_v8(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _device_handle: *mut *mut NetDeviceHandle,
) -> NcclResult {
    call("connect", || {
        let place = registry::shared()?;
        // SAFETY: this function's contract.
        unsafe { connect(place, device, handle, comm) }
    })
}

/// # Safety
/// As for [`connect`].
pub(crate) unsafe extern "C" fn connect_v10(
    device: c_int,
    _config: *mut CommConfig,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    device_handle: *mut *mut NetDeviceHandle,
) -> NcclResult {
    // SAFETY: this function's contract.
    unsafe { connect_v8(device, handle, comm, device_handle) }
}

/// # Safety
/// As for [`connect`].
pub(crate) unsafe extern "C" fn connect_v11(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    _device_handle: *mut *mut NetDeviceHandle,
) -> NcclResult {
    call("connect", || {
        let context = object(context, &[Kind::Context], "ctx")?;
        // SAFETY: this function's contract.
        unsafe { connect(context.context(), device, handle, comm) }
    })
}

/// # Safety
/// The pointers are NULL or valid for writing.
pub(crate) unsafe extern "C" fn accept(
    listener: *mut c_void,
    comm: *mut *mut c_void,
    _device_handle: *mut *mut NetDeviceHandle,
) -> NcclResult {
    call("accept", || {
        let comm = given(comm, "recvComm")?;
        // SAFETY: valid for writing, by this function's contract.
        unsafe { comm.write(core::ptr::null_mut()) };
        let listener = object(listener, &[Kind::Listener], "listenComm")?;
        let place = listener.context();
        if let Some(key) = registry::with(place, |context| context.accept(listener.key()))? {
            // SAFETY: as above.
            unsafe { comm.write(Opaque::new(Kind::ReceiveComm, place, key).to_pointer()) };
        }
        Ok(())
    })
}

/// Returns the registration that a pointer names, which must belong to the comm's context. Returns [`Key::NONE`] for
/// NULL.
#[inline]
fn registration(memory: *mut c_void, comm: Opaque) -> Result<Key, Failure> {
    match comm.beside(memory, Kind::Memory) {
        Some(memory) => Ok(memory.key()),
        None => no_registration(memory),
    }
}

#[cold]
fn no_registration(memory: *mut c_void) -> Result<Key, Failure> {
    if memory.is_null() {
        return Ok(Key::NONE);
    }
    object(memory, &[Kind::Memory], "mhandle")?;
    Err(Failure::argument(
        "the memory is registered with another communicator",
    ))
}

/// # Safety
/// The result is NULL or valid for writing.
unsafe fn send(
    comm: *mut c_void,
    (data, bytes): (*mut c_void, usize),
    tag: c_int,
    memory: *mut c_void,
    result: *mut *mut c_void,
) -> Result<(), Failure> {
    let result = given(result, "request")?;
    // SAFETY: valid for writing, by this function's contract.
    unsafe { result.write(core::ptr::null_mut()) };
    let comm = object(comm, &[Kind::SendComm], "sendComm")?;
    let outgoing = Outgoing {
        address: data.addr(),
        bytes,
        memory: registration(memory, comm)?,
        tag,
    };
    let request = registry::with(comm.context(), |context| context.send(comm, outgoing))?;
    // SAFETY: as above.
    unsafe { result.write(request.to_pointer()) };
    Ok(())
}

/// # Safety
/// As for [`send`].
pub(crate) unsafe extern "C" fn isend_v8(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    tag: c_int,
    memory: *mut c_void,
    result: *mut *mut c_void,
) -> NcclResult {
    // A negative size becomes a size that is too long.
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: this function's contract.
    unsafe { isend_v9(comm, data, bytes, tag, memory, result) }
}

/// # Safety
/// As for [`send`].
pub(crate) unsafe extern "C" fn isend_v9(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    memory: *mut c_void,
    result: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: this function's contract.
    unsafe { isend_v10(comm, data, bytes, tag, memory, core::ptr::null_mut(), result) }
}

/// # Safety
/// As for [`send`].
pub(crate) unsafe extern "C" fn isend_v10(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    memory: *mut c_void,
    _profile: *mut c_void,
    result: *mut *mut c_void,
) -> NcclResult {
    call("isend", || {
        // SAFETY: this function's contract.
        unsafe { send(comm, (data, bytes), tag, memory, result) }
    })
}

/// Checks the number of messages of a receive.
#[cold]
fn check_count(count: c_int) -> Result<u8, Failure> {
    let count = u8::try_from(count).ok();
    let count = count.filter(|count| (1..=RECEIVES_MAX).contains(&usize::from(*count)));
    let none = || Failure::argument(format_args!("irecv: 1 to {RECEIVES_MAX} messages are possible"));
    count.ok_or_else(none)
}

#[cold]
fn negative() -> Failure {
    Failure::argument("irecv: a size is negative")
}

/// # Safety
/// The pointers are NULL or valid, each array for `count` elements.
unsafe fn receive<S: Copy + TryInto<usize>>(
    comm: *mut c_void,
    count: c_int,
    (data, sizes): (*mut *mut c_void, *mut S),
    (tags, memories): (*mut c_int, *mut *mut c_void),
    result: *mut *mut c_void,
) -> Result<(), Failure> {
    let result = given(result, "request")?;
    // The caller may have stored a marker which says that the completion is optional. The marker is ignored.
    // SAFETY: valid for writing, by this function's contract.
    unsafe { result.write(core::ptr::null_mut()) };
    let comm = object(comm, &[Kind::ReceiveComm], "recvComm")?;
    let (data, sizes) = (given(data, "data")?, given(sizes, "sizes")?);
    let (tags, memories) = (given(tags, "tags")?, given(memories, "mhandles")?);
    let request = if count == 1 {
        let arrays = Arrays {
            data,
            sizes,
            tags,
            memories,
        };
        // Most receives are of one message, which is read before the lock is taken.
        // SAFETY: an element of arrays of one element, by this function's contract.
        let one = unsafe { arrays.incoming(0, comm) }?;
        registry::with(comm.context(), |context| context.receive(comm, one))?
    } else {
        // SAFETY: this function's contract.
        unsafe { receive_several(comm, count, data, sizes, tags, memories) }?
    };
    // SAFETY: as above.
    unsafe { result.write(request.to_pointer()) };
    Ok(())
}

/// Posts a receive of several messages. Its arguments are single values: a structure would be in memory before each receive of one message.
///
/// # Safety
/// The arrays have `count` elements.
#[inline(never)]
unsafe fn receive_several<S: Copy + TryInto<usize>>(
    comm: Opaque,
    count: c_int,
    data: NonNull<*mut c_void>,
    sizes: NonNull<S>,
    tags: NonNull<c_int>,
    memories: NonNull<*mut c_void>,
) -> Result<Opaque, Failure> {
    let count = check_count(count)?;
    let arrays = Arrays {
        data,
        sizes,
        tags,
        memories,
    };
    registry::with(comm.context(), |context| {
        context.receive_several(comm, count, |place| {
            // SAFETY: one of `count` elements, by this function's contract.
            unsafe { arrays.incoming(place, comm) }
        })
    })
}

/// The arrays that describe the messages of a receive.
#[derive(Clone, Copy)]
struct Arrays<S> {
    data: NonNull<*mut c_void>,
    sizes: NonNull<S>,
    tags: NonNull<c_int>,
    memories: NonNull<*mut c_void>,
}

impl<S: Copy + TryInto<usize>> Arrays<S> {
    /// Reads the description of one message.
    ///
    /// # Safety
    /// Each array has this element.
    #[inline(always)]
    unsafe fn incoming(self, place: usize, comm: Opaque) -> Result<Incoming, Failure> {
        // SAFETY: by this function's contract.
        let address = unsafe { element(self.data, place) };
        // SAFETY: as above.
        let size = unsafe { element(self.sizes, place) };
        // SAFETY: as above.
        let tag = unsafe { element(self.tags, place) };
        // SAFETY: as above.
        let memory = unsafe { element(self.memories, place) };
        Ok(Incoming {
            address: address.addr(),
            bytes: size.try_into().map_err(|_| negative())?,
            memory: registration(memory, comm)?,
            tag,
        })
    }
}

/// # Safety
/// As for [`receive`].
pub(crate) unsafe extern "C" fn irecv_v8(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    memories: *mut *mut c_void,
    result: *mut *mut c_void,
) -> NcclResult {
    call("irecv", || {
        // SAFETY: this function's contract.
        unsafe { receive(comm, count, (data, sizes), (tags, memories), result) }
    })
}

/// # Safety
/// As for [`receive`].
pub(crate) unsafe extern "C" fn irecv_v9(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    memories: *mut *mut c_void,
    result: *mut *mut c_void,
) -> NcclResult {
    let profiles = core::ptr::null_mut();
    // SAFETY: this function's contract.
    unsafe { irecv_v10(comm, count, data, sizes, tags, memories, profiles, result) }
}

/// # Safety
/// As for [`receive`].
pub(crate) unsafe extern "C" fn irecv_v10(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    memories: *mut *mut c_void,
    _profiles: *mut *mut c_void,
    result: *mut *mut c_void,
) -> NcclResult {
    call("irecv", || {
        // SAFETY: this function's contract.
        unsafe { receive(comm, count, (data, sizes), (tags, memories), result) }
    })
}

const REQUESTS: &[Kind] = &[Kind::Receive, Kind::Sent, Kind::Send, Kind::Flush];

/// # Safety
/// `done` is NULL or valid for writing, and `sizes` is NULL or valid for as many as the request has messages.
pub(crate) unsafe extern "C" fn test(
    pointer: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> NcclResult {
    call("test", || {
        let done = given(done, "done")?;
        // SAFETY: valid for writing, by this function's contract.
        unsafe { done.write(0) };
        let request = object(pointer, REQUESTS, "request")?;
        let each = |place, size| {
            let size = c_int::try_from(size).unwrap_or(c_int::MAX);
            // SAFETY: NULL, or one of as many as the request has messages, by this function's contract.
            unsafe { give(sizes.wrapping_add(if sizes.is_null() { 0 } else { place }), size) };
        };
        let is_done = registry::with(request.context(), |context| {
            if request.is(Kind::Receive) {
                context.test_receive(request.comm(), request.slot(), each)
            } else if request.is(Kind::Sent) {
                context.test_sent(request.bytes(), each)
            } else if request.is(Kind::Send) {
                context.test_send(request.comm(), request.slot(), each)
            } else {
                context.test_flush(request.key())
            }
        })?;
        if is_done {
            // SAFETY: as above.
            unsafe { done.write(1) };
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn close_send(comm: *mut c_void) -> NcclResult {
    call("closeSend", || {
        let comm = object(comm, &[Kind::SendComm], "sendComm")?;
        registry::with(comm.context(), |context| context.close_send(comm.key()))
    })
}

pub(crate) unsafe extern "C" fn close_receive(comm: *mut c_void) -> NcclResult {
    call("closeRecv", || {
        let comm = object(comm, &[Kind::ReceiveComm], "recvComm")?;
        registry::with(comm.context(), |context| context.close_receive(comm.key()))
    })
}

pub(crate) unsafe extern "C" fn close_listener(listener: *mut c_void) -> NcclResult {
    call("closeListen", || {
        let listener = object(listener, &[Kind::Listener], "listenComm")?;
        registry::with(listener.context(), |context| {
            context.close_listener(listener.key())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{Failure, NcclResult, call};

    #[test]
    fn a_panic_does_not_leave_a_call() {
        assert_eq!(call("test", || panic!("planted")), NcclResult::INTERNAL_ERROR);
        let failed = call("test", || Err(Failure::logged(NcclResult::REMOTE_ERROR)));
        assert_eq!(failed, NcclResult::REMOTE_ERROR);
        assert_eq!(call("test", || Ok(())), NcclResult::SUCCESS);
    }
}
