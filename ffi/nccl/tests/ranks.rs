//! Ranks that differ: in the version of the interface, which does not matter, and in their keys, which does. Ranks by a relay that is attacked.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use core::ptr::null_mut;
use core::time::Duration;
use std::sync::Mutex;
use std::time::Instant;

use doorbell_nccl::abi::{Logger, NcclResult, PTR_HOST, Profiler};
use doorbell_nccl::{ncclNetPlugin_v8 as V8, ncclNetPlugin_v12 as V12};

/// Lines of the log.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Takes a line. A variadic call with these arguments passes them as a fixed one does, on x86-64 and aarch64 Linux.
unsafe extern "C" fn hear(
    _level: c_int,
    _flags: c_ulong,
    _file: *const c_char,
    _line: c_int,
    _format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: the plugin's format has one string, which is this.
    let text = unsafe { CStr::from_ptr(text) };
    LOG.lock().unwrap().push(text.to_string_lossy().into_owned());
}

fn logger() -> Logger {
    type Fixed = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
    type Variadic = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
    // SAFETY: both are called alike with these arguments, as `hear` says.
    Logger(Some(unsafe { core::mem::transmute::<Fixed, Variadic>(hear) }))
}

/// Calls a slot of a table.
macro_rules! call {
    ($table:ident, $slot:ident, $($argument:expr),*) => {
        // SAFETY: the arguments live through the call, and pointers are valid for what the interface does with them.
        unsafe { ($table.$slot.unwrap())($($argument),*) }
    };
}

fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
    }
}

const OK: NcclResult = NcclResult::SUCCESS;

/// A rank of version 12 that listens.
struct Listening {
    context: *mut c_void,
    listener: *mut c_void,
    handle: [u8; 128],
}

impl Listening {
    fn new() -> Self {
        let (mut context, mut listener, mut handle) = (null_mut(), null_mut(), [0; 128]);
        assert_eq!(
            call!(
                V12,
                init,
                &raw mut context,
                0,
                null_mut(),
                logger(),
                Profiler(None)
            ),
            OK
        );
        let at: *mut [u8; 128] = &raw mut handle;
        assert_eq!(call!(V12, listen, context, 0, at.cast(), &raw mut listener), OK);
        Self {
            context,
            listener,
            handle,
        }
    }

    fn close(self) {
        assert_eq!(call!(V12, close_listen, self.listener), OK);
        assert_eq!(call!(V12, finalize, self.context), OK);
    }
}

/// Sets variables that `init` reads.
fn set(variables: &[(&str, &str)]) {
    for (name, value) in variables {
        // SAFETY: the threads that run read no variables.
        unsafe { std::env::set_var(name, value) };
    }
}

#[test]
fn versions_may_differ_and_keys_may_not() {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    set(&[("DOORBELL_UNAUTHENTICATED", "true")]);
    assert_eq!(call!(V8, init, logger()), OK);
    version_8_sends_to_version_12();
    devices::memory_of_devices();
    keys_differ();
    relay::is_attacked();
}

/// Both sides of a comm. `connect` gets the bytes of the handle, and the place of its side.
fn comm(
    what: &str,
    to: &mut Listening,
    connect: impl Fn(*mut c_void, *mut *mut c_void) -> NcclResult,
) -> (*mut c_void, *mut c_void) {
    let (mut send, mut receive): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
    let handle: *mut c_void = to.handle.as_mut_ptr().cast();
    eventually(what, || {
        if send.is_null() {
            assert_eq!(connect(handle, &raw mut send), OK);
        }
        if receive.is_null() {
            assert_eq!(call!(V12, accept, to.listener, &raw mut receive, null_mut()), OK);
        }
        (!send.is_null() && !receive.is_null()).then_some(())
    });
    (send, receive)
}

fn version_8_sends_to_version_12() {
    let mut to = Listening::new();
    let (send, receive) = comm("a comm", &mut to, |handle, send| {
        call!(V8, connect, 0, handle, send, null_mut())
    });
    let (mut bytes, mut room) = (*b"versions", [0_u8; 16]);
    let (mut from, mut into) = (null_mut(), null_mut());
    let data: [*mut c_void; 2] = [bytes.as_mut_ptr().cast(), room.as_mut_ptr().cast()];
    assert_eq!(call!(V8, reg_mr, send, data[0], 8, PTR_HOST, &raw mut from), OK);
    assert_eq!(
        call!(V12, reg_mr, receive, data[1], 16, PTR_HOST, &raw mut into),
        OK
    );
    let (mut receiving, mut sending): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
    let (mut at, mut size, mut tag, mut memory) = (data[1], 16_usize, 5, into);
    let (at, size, tag, memory) = (&raw mut at, &raw mut size, &raw mut tag, &raw mut memory);
    eventually("both requests", || {
        if receiving.is_null() {
            let to = &raw mut receiving;
            assert_eq!(
                call!(V12, irecv, receive, 1, at, size, tag, memory, null_mut(), to),
                OK
            );
        }
        assert_eq!(call!(V8, isend, send, data[0], 8, 5, from, &raw mut sending), OK);
        (!sending.is_null()).then_some(())
    });
    let (mut done, mut came) = (0, 0);
    eventually("the message", || {
        assert_eq!(call!(V12, test, receiving, &raw mut done, &raw mut came), OK);
        (done == 1).then_some(())
    });
    assert_eq!((came, &room[..9]), (8, &b"versions\0"[..]));
    eventually("the send", || {
        assert_eq!(call!(V8, test, sending, &raw mut done, &raw mut came), OK);
        (done == 1).then_some(())
    });
    assert_eq!(call!(V8, dereg_mr, send, from), OK);
    assert_eq!(call!(V12, dereg_mr, receive, into), OK);
    assert_eq!(call!(V8, close_send, send), OK);
    assert_eq!(call!(V12, close_recv, receive), OK);
    to.close();
}

/// A rank with another key is refused, and both sides' logs say why.
fn keys_differ() {
    let keys = |name: &str, key: &str| {
        let path = std::env::temp_dir().join(format!("doorbell-nccl-{name}-{}", std::process::id()));
        std::fs::write(&path, format!("1:{key}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, mode).unwrap();
        path
    };
    let ours = keys(
        "ours",
        "6a09e667bb67ae853c6ef372a54ff53a510e527f9b05688c1f83d9ab5be0cd19",
    );
    let theirs = keys(
        "theirs",
        "cbbb9d5d629a292a9159015a152fecd867332667eb44a8708eb44a87db0c2e0d",
    );
    set(&[
        ("DOORBELL_UNAUTHENTICATED", "false"),
        ("DOORBELL_KEY_FILE", ours.to_str().unwrap()),
        ("DOORBELL_LINK_RECOVER_WITHIN", "3s"),
    ]);
    let to = Listening::new();
    set(&[("DOORBELL_KEY_FILE", theirs.to_str().unwrap())]);
    let from = Listening::new();
    LOG.lock().unwrap().clear();
    let (mut send, mut handle) = (null_mut(), to.handle);
    let handle: *mut c_void = handle.as_mut_ptr().cast();
    let ended = eventually("connect ends", || {
        let outcome = call!(V12, connect, from.context, 0, handle, &raw mut send, null_mut());
        assert!(send.is_null(), "a rank with another key was connected");
        let (mut accepted, no) = (null_mut(), null_mut());
        assert_eq!(call!(V12, accept, to.listener, &raw mut accepted, no), OK);
        assert!(accepted.is_null(), "a rank with another key was accepted");
        (outcome != OK).then_some(outcome)
    });
    assert_eq!(ended, NcclResult::REMOTE_ERROR);
    let log = LOG.lock().unwrap().join("\n");
    assert!(log.contains("key"), "{log}");
    from.close();
    to.close();
    std::fs::remove_file(ours).unwrap();
    std::fs::remove_file(theirs).unwrap();
}

#[path = "ranks/devices.rs"]
mod devices;
#[path = "ranks/relay.rs"]
mod relay;
