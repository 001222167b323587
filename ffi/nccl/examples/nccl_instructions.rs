//! Moves messages between two contexts of this process, for callgrind to count: `nccl_instructions CALL BYTES MESSAGES`, with a libibverbs
//! whose queue pairs find each other in one process.
//!
//! CALL is `isend`, `test-send`, `irecv` or `test-receive`. A receive is known to the sender before its `isend`, and its bytes have come
//! before its `test`: the polls in between are not counted. The function `measured_call` holds one call and nothing else.

use core::error::Error;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use doorbell_nccl::abi::tables::NetV12;
use doorbell_nccl::abi::{Logger, NcclResult, PTR_HOST, Profiler};
use doorbell_nccl::ncclNetPlugin_v12 as NET;

type Failure = Box<dyn Error>;

/// Polls of both sides after which all is on its way.
const POLLS: u32 = 6;

/// Calls a slot of the table.
macro_rules! call {
    ($slot:ident, $($argument:expr),*) => {{
        let table: &NetV12 = &NET;
        let slot = table.$slot.ok_or("no such call")?;
        // SAFETY: the arguments live through the call, and pointers are valid for what the interface does with them.
        match unsafe { slot($($argument),*) } {
            NcclResult::SUCCESS => Ok::<(), Failure>(()),
            NcclResult(code) => Err(format!("{}: {code}", stringify!($slot)).into()),
        }
    }};
}

#[inline(never)]
fn measured_call(call: &mut dyn FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    call()
}

fn counted(is: bool, call: &mut dyn FnMut() -> Result<(), Failure>) -> Result<(), Failure> {
    if is { measured_call(call) } else { call() }
}

/// A context that listens.
struct Side {
    context: *mut c_void,
    listener: *mut c_void,
    handle: [u8; 128],
}

impl Side {
    fn new() -> Result<Self, Failure> {
        let (mut context, mut listener, mut handle) = (null_mut(), null_mut(), [0; 128]);
        let none = (Logger(None), Profiler(None));
        call!(init, &raw mut context, 0, null_mut(), none.0, none.1)?;
        let at: *mut [u8; 128] = &raw mut handle;
        call!(listen, context, 0, at.cast(), &raw mut listener)?;
        Ok(Self {
            context,
            listener,
            handle,
        })
    }

    /// Polls its links.
    fn poll(&self) -> Result<*mut c_void, Failure> {
        let mut comm = null_mut();
        call!(accept, self.listener, &raw mut comm, null_mut())?;
        Ok(comm)
    }
}

fn done(request: *mut c_void) -> Result<bool, Failure> {
    let (mut done, mut size): (c_int, c_int) = (0, 0);
    call!(test, request, &raw mut done, &raw mut size)?;
    Ok(done == 1)
}

/// Settings, but for the library: under an instrument everything takes longer, and no sign of life is due meanwhile.
const SETTINGS: [(&str, &str); 6] = [
    ("DOORBELL_UNAUTHENTICATED", "true"),
    ("DOORBELL_TIMEOUT", "300s"),
    ("DOORBELL_LINK_RECOVER_WITHIN", "300s"),
    ("DOORBELL_LINK_DEAD_AFTER", "100s"),
    ("DOORBELL_LINK_SUSPECT_AFTER", "90s"),
    ("DOORBELL_LINK_HEARTBEAT_IDLE", "80s"),
];

fn main() -> Result<(), Failure> {
    for (name, value) in SETTINGS {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(name, value) };
    }
    let mut words = std::env::args().skip(1);
    let mut word = || words.next().ok_or("CALL BYTES MESSAGES");
    let (what, bytes, messages) = (word()?, word()?.parse::<usize>()?, word()?.parse::<u32>()?);
    let is = |one: &str| what == one;
    let (here, mut there) = (Side::new()?, Side::new()?);
    let at: *mut [u8; 128] = &raw mut there.handle;
    let (mut send, mut receive): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
    while send.is_null() || receive.is_null() {
        if send.is_null() {
            call!(connect, here.context, 0, at.cast(), &raw mut send, null_mut())?;
        }
        if receive.is_null() {
            receive = there.poll()?;
        }
        // An instrument runs one thread at a time, and another one does the handshakes.
        std::thread::yield_now();
    }
    let (mut from, mut to) = (vec![1_u8; bytes.max(1)], vec![0_u8; bytes.max(1)]);
    let data: [*mut c_void; 2] = [from.as_mut_ptr().cast(), to.as_mut_ptr().cast()];
    let mut memory: [*mut c_void; 2] = [null_mut(); 2];
    call!(reg_mr, send, data[0], bytes.max(1), PTR_HOST, &raw mut memory[0])?;
    call!(
        reg_mr,
        receive,
        data[1],
        bytes.max(1),
        PTR_HOST,
        &raw mut memory[1]
    )?;
    let ([mut into], [mut size], [mut tag], [mut handle]) = ([data[1]], [bytes], [0], [memory[1]]);
    let (into, size, tag, handle) = (&raw mut into, &raw mut size, &raw mut tag, &raw mut handle);
    for _ in 0..messages {
        let (mut receiving, mut sending): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
        counted(is("irecv"), &mut || {
            let request = &raw mut receiving;
            call!(irecv, receive, 1, into, size, tag, handle, null_mut(), request)
        })?;
        for _ in 0..POLLS {
            there.poll()?;
            here.poll()?;
        }
        counted(is("isend"), &mut || {
            let request = &raw mut sending;
            call!(isend, send, data[0], bytes, 0, memory[0], null_mut(), request)
        })?;
        if receiving.is_null() || sending.is_null() {
            return Err("there was no room for a request".into());
        }
        let mut is_done = false;
        counted(is("test-send"), &mut || {
            is_done = done(sending)?;
            Ok(())
        })?;
        while !is_done {
            there.poll()?;
            is_done = done(sending)?;
        }
        for _ in 0..POLLS {
            here.poll()?;
            there.poll()?;
        }
        is_done = false;
        counted(is("test-receive"), &mut || {
            is_done = done(receiving)?;
            Ok(())
        })?;
        if !is_done && is("test-receive") {
            return Err("a message of which all was polled has not come".into());
        }
        // The memory of a transfer may be withdrawn after its sender knows of its end.
        while !is_done {
            here.poll()?;
            is_done = done(receiving)?;
        }
    }
    println!("{messages} messages of {bytes} bytes, {what}");
    Ok(())
}
