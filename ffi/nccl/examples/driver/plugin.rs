//! A plugin, whichever version of its tables is used.

use core::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use core::ptr::null_mut;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use doorbell_nccl::abi::properties::{
    PropertiesV8, PropertiesV9, PropertiesV11, PropertiesV12, VirtualDevice, VirtualDeviceV12,
};
use doorbell_nccl::abi::tables::{NetV8, NetV9, NetV10, NetV11, NetV12};
use doorbell_nccl::abi::{HANDLE_BYTES, Logger, NcclResult, PTR_HOST, Profiler};

/// The lines of the log since the scenario began.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// An object of the plugin's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object(pub(crate) *mut c_void);

// SAFETY: a word that is handed back to the plugin, which may be called from any thread.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

/// Lines with what failed, and with the plugin's own word for it.
pub(crate) fn log() -> Vec<String> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

pub(crate) fn clear_log() {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// NCCL's function is variadic. A caller that passes one string behind the format `%s` passes it as a fixed argument is passed, on
/// x86-64 and aarch64 Linux.
unsafe extern "C" fn hear(
    level: c_int,
    _flags: c_ulong,
    _file: *const c_char,
    _line: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: the plugin's format is a string.
    let format = unsafe { CStr::from_ptr(format) };
    let line = if format == c"%s" {
        // SAFETY: the argument of `%s` is a string.
        let text = unsafe { CStr::from_ptr(text) };
        format!("{level} {}", text.to_string_lossy())
    } else {
        format!("{level} a format that is not %s: {}", format.to_string_lossy())
    };
    if std::env::var_os("NCCL_DRIVER_VERBOSE").is_some() {
        eprintln!("{line}");
    }
    LOG.lock().unwrap_or_else(PoisonError::into_inner).push(line);
}

fn logger() -> Logger {
    type Fixed = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
    type Variadic = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
    // SAFETY: both are called alike with these arguments, as `hear` says.
    let variadic = unsafe { core::mem::transmute::<Fixed, Variadic>(hear) };
    Logger(Some(variadic))
}

#[derive(Clone, Copy)]
enum Table {
    V8(&'static NetV8),
    V9(&'static NetV9),
    V10(&'static NetV10),
    V11(&'static NetV11),
    V12(&'static NetV12),
}

/// The words for a plugin that lacks a version.
pub(crate) const NO_TABLE: &str = "has no table of version";

/// A loaded plugin.
#[derive(Clone, Copy)]
pub(crate) struct Net {
    pub(crate) version: u32,
    table: Table,
}

/// Calls a slot that is alike in all versions.
macro_rules! on {
    ($net:expr, $slot:ident ( $($argument:expr),* $(,)? )) => {{
        let slot = match $net.table {
            Table::V8(table) => table.$slot,
            Table::V9(table) => table.$slot,
            Table::V10(table) => table.$slot,
            Table::V11(table) => table.$slot,
            Table::V12(table) => table.$slot,
        };
        match slot {
            // SAFETY: the interface's function, with arguments that live through the call.
            Some(slot) => done(unsafe { slot($($argument),*) }),
            None => Err(NcclResult::INVALID_USAGE),
        }
    }};
}

/// Calls a slot of one version.
macro_rules! call {
    ($slot:expr, $($argument:expr),* $(,)?) => {
        match $slot {
            // SAFETY: the interface's function, with arguments that live through the call.
            Some(slot) => done(unsafe { slot($($argument),*) }),
            None => Err(NcclResult::INVALID_USAGE),
        }
    };
}

const fn done(result: NcclResult) -> Result<(), NcclResult> {
    match result {
        NcclResult::SUCCESS => Ok(()),
        failed => Err(failed),
    }
}

fn object(pointer: *mut c_void) -> Option<Object> {
    (!pointer.is_null()).then_some(Object(pointer))
}

/// Facts of the device.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) name: String,
    pub(crate) path: Option<String>,
    pub(crate) guid: u64,
    pub(crate) pointers: c_int,
    pub(crate) speed: c_int,
    pub(crate) comms_max: c_int,
    pub(crate) receives_max: c_int,
    pub(crate) bytes_max: usize,
}

impl Net {
    pub(crate) fn load(path: &str, version: u32) -> Result<Self, String> {
        let file = CString::new(path).map_err(|_| "a path with a NUL".to_owned())?;
        // SAFETY: a C string; what its initialisers do is the plugin's (dlopen(3)).
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: a string of this thread, or NULL (dlerror(3)).
            let why = text(unsafe { libc::dlerror() });
            return Err(format!("{path} cannot be loaded: {}", why.unwrap_or_default()));
        }
        let symbol = CString::new(format!("ncclNetPlugin_v{version}")).unwrap_or_default();
        // SAFETY: a handle that stays, and a C string (dlsym(3)).
        let table = unsafe { libc::dlsym(library, symbol.as_ptr()) };
        if table.is_null() {
            return Err(format!("{path} {NO_TABLE} {version}"));
        }
        let table = match version {
            // SAFETY: by its name the symbol is a table of its version, in a library that stays.
            8 => Table::V8(unsafe { &*table.cast() }),
            // SAFETY: as above.
            9 => Table::V9(unsafe { &*table.cast() }),
            // SAFETY: as above.
            10 => Table::V10(unsafe { &*table.cast() }),
            // SAFETY: as above.
            11 => Table::V11(unsafe { &*table.cast() }),
            // SAFETY: as above.
            12 => Table::V12(unsafe { &*table.cast() }),
            _ => return Err("versions 8 to 12 are known".to_owned()),
        };
        Ok(Self { version, table })
    }

    /// Whether each communicator has a context of its own.
    pub(crate) const fn has_contexts(&self) -> bool {
        self.version >= 11
    }

    pub(crate) fn init(&self) -> Result<Object, NcclResult> {
        let mut context = null_mut();
        let none = Profiler(None);
        match self.table {
            Table::V8(table) => call!(table.init, logger())?,
            Table::V9(table) => call!(table.init, logger())?,
            Table::V10(table) => call!(table.init, logger(), none)?,
            Table::V11(table) => call!(table.init, &raw mut context, 7, null_mut(), logger(), none)?,
            Table::V12(table) => call!(table.init, &raw mut context, 7, null_mut(), logger(), none)?,
        }
        Ok(Object(context))
    }

    pub(crate) fn finalize(&self, context: Object) -> Result<(), NcclResult> {
        match self.table {
            Table::V11(table) => call!(table.finalize, context.0),
            Table::V12(table) => call!(table.finalize, context.0),
            _ => Ok(()),
        }
    }

    pub(crate) fn devices(&self) -> Result<c_int, NcclResult> {
        let mut count = 0;
        on!(self, devices(&raw mut count))?;
        Ok(count)
    }

    pub(crate) fn facts(&self, device: c_int) -> Result<Facts, NcclResult> {
        macro_rules! facts {
            ($table:ident, $properties:ty, |$of:ident| $bytes_max:expr) => {{
                let mut written = core::mem::MaybeUninit::<$properties>::zeroed();
                call!($table.get_properties, device, written.as_mut_ptr())?;
                // SAFETY: all fields may be zero, and the plugin has written them.
                let $of = unsafe { written.assume_init() };
                Facts {
                    name: text($of.name).unwrap_or_default(),
                    path: text($of.pci_path),
                    guid: $of.guid,
                    pointers: $of.pointer_support,
                    speed: $of.speed_mbps,
                    comms_max: $of.comms_max,
                    receives_max: $of.receives_max,
                    bytes_max: $bytes_max,
                }
            }};
        }
        Ok(match self.table {
            Table::V8(table) => facts!(table, PropertiesV8, |of| 1 << 30),
            Table::V9(table) => facts!(table, PropertiesV9, |of| of.message_bytes_max),
            Table::V10(table) => facts!(table, PropertiesV9, |of| of.message_bytes_max),
            Table::V11(table) => facts!(table, PropertiesV11, |of| of.message_bytes_max),
            Table::V12(table) => facts!(table, PropertiesV12, |of| of.message_bytes_max),
        })
    }

    /// Makes a device of these; `None` where the version or the plugin has no such call.
    pub(crate) fn make_device(&self, of: &[c_int]) -> Option<Result<c_int, NcclResult>> {
        let (mut made, count) = (-1, c_int::try_from(of.len()).unwrap_or(-1));
        macro_rules! make {
            ($table:ident, $list:ident, $most:literal) => {{
                let mut devices = [-1; $most];
                for (to, device) in devices.iter_mut().zip(of) {
                    *to = *device;
                }
                let mut list = $list { count, devices };
                $table.make_virtual_device?;
                call!($table.make_virtual_device, &raw mut made, &raw mut list)
            }};
        }
        let outcome = match self.table {
            Table::V8(_) => return None,
            Table::V9(table) => make!(table, VirtualDevice, 4),
            Table::V10(table) => make!(table, VirtualDevice, 4),
            Table::V11(table) => make!(table, VirtualDevice, 4),
            Table::V12(table) => make!(table, VirtualDeviceV12, 8),
        };
        Some(outcome.map(|()| made))
    }

    pub(crate) fn listen(&self, context: Object) -> Result<(Object, [u8; HANDLE_BYTES]), NcclResult> {
        let (mut handle, mut listener) = ([0; HANDLE_BYTES], null_mut());
        let at = handle.as_mut_ptr().cast();
        match self.table {
            Table::V8(table) => call!(table.listen, 0, at, &raw mut listener)?,
            Table::V9(table) => call!(table.listen, 0, at, &raw mut listener)?,
            Table::V10(table) => call!(table.listen, 0, at, &raw mut listener)?,
            Table::V11(table) => call!(table.listen, context.0, 0, at, &raw mut listener)?,
            Table::V12(table) => call!(table.listen, context.0, 0, at, &raw mut listener)?,
        }
        Ok((Object(listener), handle))
    }

    pub(crate) fn connect(
        &self,
        context: Object,
        handle: &mut [u8; HANDLE_BYTES],
    ) -> Result<Option<Object>, NcclResult> {
        let mut comm = null_mut();
        let (at, to, no) = (handle.as_mut_ptr().cast(), &raw mut comm, null_mut());
        match self.table {
            Table::V8(table) => call!(table.connect, 0, at, to, no)?,
            Table::V9(table) => call!(table.connect, 0, at, to, no)?,
            Table::V10(table) => call!(table.connect, 0, null_mut(), at, to, no)?,
            Table::V11(table) => call!(table.connect, context.0, 0, at, to, no)?,
            Table::V12(table) => call!(table.connect, context.0, 0, at, to, no)?,
        }
        Ok(object(comm))
    }

    pub(crate) fn accept(&self, listener: Object) -> Result<Option<Object>, NcclResult> {
        let mut comm = null_mut();
        on!(self, accept(listener.0, &raw mut comm, null_mut()))?;
        Ok(object(comm))
    }

    pub(crate) fn register(
        &self,
        comm: Object,
        data: *mut c_void,
        bytes: usize,
    ) -> Result<Object, NcclResult> {
        self.register_as(comm, data, bytes, PTR_HOST)
    }

    pub(crate) fn register_as(
        &self,
        comm: Object,
        data: *mut c_void,
        bytes: usize,
        kind: c_int,
    ) -> Result<Object, NcclResult> {
        let mut memory = null_mut();
        on!(self, reg_mr(comm.0, data, bytes, kind, &raw mut memory))?;
        Ok(Object(memory))
    }

    pub(crate) fn register_descriptor(&self, comm: Object) -> Result<(), NcclResult> {
        let mut memory = null_mut();
        on!(
            self,
            reg_mr_dma_buf(comm.0, null_mut(), 4096, PTR_HOST, 0, -1, &raw mut memory)
        )
    }

    pub(crate) fn deregister(&self, comm: Object, memory: Object) -> Result<(), NcclResult> {
        on!(self, dereg_mr(comm.0, memory.0))
    }

    pub(crate) fn send(
        &self,
        comm: Object,
        (data, bytes): (*mut c_void, usize),
        tag: c_int,
        memory: Object,
    ) -> Result<Option<Object>, NcclResult> {
        let mut request = null_mut();
        let (to, no) = (&raw mut request, null_mut());
        let int = c_int::try_from(bytes).unwrap_or(-1);
        match self.table {
            Table::V8(table) => call!(table.isend, comm.0, data, int, tag, memory.0, to)?,
            Table::V9(table) => call!(table.isend, comm.0, data, bytes, tag, memory.0, to)?,
            Table::V10(table) => call!(table.isend, comm.0, data, bytes, tag, memory.0, no, to)?,
            Table::V11(table) => call!(table.isend, comm.0, data, bytes, tag, memory.0, no, to)?,
            Table::V12(table) => call!(table.isend, comm.0, data, bytes, tag, memory.0, no, to)?,
        }
        Ok(object(request))
    }

    pub(crate) fn receive(&self, comm: Object, into: &[Part]) -> Result<Option<Object>, NcclResult> {
        let mut data: Vec<_> = into.iter().map(|one| one.data).collect();
        let mut tags: Vec<_> = into.iter().map(|one| one.tag).collect();
        let mut sizes: Vec<_> = into.iter().map(|one| one.bytes).collect();
        let mut ints: Vec<_> = sizes
            .iter()
            .map(|bytes| c_int::try_from(*bytes).unwrap_or(-1))
            .collect();
        let mut memories: Vec<_> = into.iter().map(|one| one.memory.0).collect();
        let count = c_int::try_from(into.len()).unwrap_or(-1);
        // As NCCL marks a request whose completion it does not need.
        let mut request = core::ptr::without_provenance_mut(1);
        let (to, no) = (&raw mut request, null_mut());
        let (data, sizes, ints) = (data.as_mut_ptr(), sizes.as_mut_ptr(), ints.as_mut_ptr());
        let (tags, memories) = (tags.as_mut_ptr(), memories.as_mut_ptr());
        match self.table {
            Table::V8(table) => call!(table.irecv, comm.0, count, data, ints, tags, memories, to)?,
            Table::V9(table) => call!(table.irecv, comm.0, count, data, sizes, tags, memories, to)?,
            Table::V10(table) => call!(table.irecv, comm.0, count, data, sizes, tags, memories, no, to)?,
            Table::V11(table) => call!(table.irecv, comm.0, count, data, sizes, tags, memories, no, to)?,
            Table::V12(table) => call!(table.irecv, comm.0, count, data, sizes, tags, memories, no, to)?,
        }
        Ok(object(request))
    }

    /// Says whether a flush of receives has a request to wait for.
    pub(crate) fn flush(&self, comm: Object, of: &[Part]) -> Result<Option<Object>, NcclResult> {
        let mut data: Vec<_> = of.iter().map(|one| one.data).collect();
        let sizes = of.iter().map(|one| c_int::try_from(one.bytes).unwrap_or(-1));
        let mut sizes: Vec<_> = sizes.collect();
        let mut memories: Vec<_> = of.iter().map(|one| one.memory.0).collect();
        let (data, sizes, memories) = (data.as_mut_ptr(), sizes.as_mut_ptr(), memories.as_mut_ptr());
        let count = c_int::try_from(of.len()).unwrap_or(-1);
        let mut request = null_mut();
        on!(
            self,
            iflush(comm.0, count, data, sizes, memories, &raw mut request)
        )?;
        Ok(object(request))
    }

    /// A flush of a receive of which nothing is said.
    pub(crate) fn flush_nothing(&self, comm: Object) -> Result<(), NcclResult> {
        let (no, sizes, mut request) = (null_mut(), null_mut(), null_mut());
        on!(self, iflush(comm.0, 1, no, sizes, no, &raw mut request))
    }

    /// The sizes of a request that is done.
    pub(crate) fn test(&self, request: Object) -> Result<Option<[c_int; 8]>, NcclResult> {
        let (mut done, mut sizes) = (7, [-1; 8]);
        on!(self, test(request.0, &raw mut done, sizes.as_mut_ptr()))?;
        Ok((done == 1).then_some(sizes))
    }

    pub(crate) fn close_send(&self, comm: Object) -> Result<(), NcclResult> {
        on!(self, close_send(comm.0))
    }

    pub(crate) fn close_receive(&self, comm: Object) -> Result<(), NcclResult> {
        on!(self, close_recv(comm.0))
    }

    pub(crate) fn close_listener(&self, listener: Object) -> Result<(), NcclResult> {
        on!(self, close_listen(listener.0))
    }

    /// Calls with NULL where the interface allows none.
    pub(crate) fn call_with_nothing(&self, comm: Object) -> Vec<(&'static str, Result<(), NcclResult>)> {
        let no = null_mut::<c_void>();
        let mut results = vec![
            ("devices", on!(self, devices(null_mut()))),
            ("accept", on!(self, accept(no, null_mut(), null_mut()))),
            (
                "regMr without a comm",
                on!(self, reg_mr(no, no, 1, PTR_HOST, null_mut())),
            ),
            ("regMr without memory", self.register(comm, no, 1).map(drop)),
            (
                "regMr of no bytes",
                self.register(comm, 4096 as *mut c_void, 0).map(drop),
            ),
            ("deregMr", on!(self, dereg_mr(comm.0, no))),
            (
                "iflush",
                on!(
                    self,
                    iflush(no, 1, null_mut(), null_mut(), null_mut(), null_mut())
                ),
            ),
            ("test without done", on!(self, test(no, null_mut(), null_mut()))),
            ("test of no request", self.test(Object(no)).map(drop)),
            ("closeSend", self.close_send(Object(no))),
            ("closeRecv", self.close_receive(Object(no))),
            ("closeListen", self.close_listener(Object(no))),
        ];
        if let Table::V8(table) = self.table {
            let properties = null_mut();
            results.push(("getProperties", call!(table.get_properties, 0, properties)));
            results.push(("listen", call!(table.listen, 0, no, null_mut())));
            results.push(("connect", call!(table.connect, 0, no, null_mut(), null_mut())));
            results.push(("isend", call!(table.isend, comm.0, no, 0, 0, no, null_mut())));
            let (data, sizes) = (null_mut(), null_mut());
            let mut request = no;
            let (tags, to) = (null_mut(), &raw mut request);
            results.push((
                "irecv",
                call!(table.irecv, comm.0, 1, data, sizes, tags, data, to),
            ));
        }
        if let Table::V12(table) = self.table {
            let properties = null_mut();
            results.push(("getProperties", call!(table.get_properties, 0, properties)));
            let none = (Logger(None), Profiler(None));
            results.push((
                "init",
                call!(table.init, null_mut(), 0, null_mut(), none.0, none.1),
            ));
            results.push(("listen", call!(table.listen, no, 0, no, null_mut())));
            results.push(("connect", call!(table.connect, no, 0, no, null_mut(), null_mut())));
            results.push(("finalize", call!(table.finalize, no)));
            results.push(("setNetAttr", call!(table.set_net_attr, no, null_mut())));
        }
        results
    }
}

/// Memory for one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) data: *mut c_void,
    pub(crate) bytes: usize,
    pub(crate) tag: c_int,
    pub(crate) memory: Object,
}

fn text(string: *const c_char) -> Option<String> {
    if string.is_null() {
        return None;
    }
    // SAFETY: a string of the plugin's that stays.
    let string = unsafe { CStr::from_ptr(string) };
    Some(string.to_string_lossy().into_owned())
}
