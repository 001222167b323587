//! Calls of the interface in an order without reason, by several threads at once, with objects of every kind in every place. Each call returns,
//! none panics within the plugin, and nothing that was closed can be used again.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::ffi::{c_char, c_int, c_ulong, c_void};
use core::ptr::null_mut;
use core::time::Duration;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use doorbell_nccl::abi::properties::{NetAttributes, PropertiesV8, PropertiesV12, VirtualDeviceV12};
use doorbell_nccl::abi::{Logger, NcclResult, PTR_CUDA, PTR_HOST, Profiler};
use doorbell_nccl::{ncclNetPlugin_v8 as V8, ncclNetPlugin_v12 as V12};

const OK: NcclResult = NcclResult::SUCCESS;

/// Threads, and the calls that each makes.
const THREADS: u64 = 4;
const CALLS: usize = 4000;

/// Contexts of version 12 at a time, at most.
const CONTEXTS_MAX: usize = 2;

/// Bytes that are registered, again and again. They stay, whatever is closed.
const BYTES: usize = 1 << 20;

/// The longest that anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Receives of one request in the arrays of a call, which may name one more than is possible.
const PLACES: usize = 9;

/// Calls a slot of a table.
macro_rules! call {
    ($table:ident, $slot:ident, $($argument:expr),*) => {
        // SAFETY: pointers that are not NULL are valid for what the interface does with them, and objects are words that nobody follows.
        answered(stringify!($slot), unsafe { ($table.$slot.unwrap())($($argument),*) })
    };
}

/// No call ends as a fault of the plugin, which a panic is.
#[track_caller]
fn answered(what: &str, result: NcclResult) -> NcclResult {
    let known = [
        OK,
        NcclResult::SYSTEM_ERROR,
        NcclResult::INVALID_ARGUMENT,
        NcclResult::INVALID_USAGE,
        NcclResult::REMOTE_ERROR,
    ];
    assert!(known.contains(&result), "{what} returned {result:?}");
    result
}

/// Drops a line of the log. A variadic call with these arguments passes them as a fixed one does, on x86-64 and aarch64 Linux.
const unsafe extern "C" fn drop_line(
    _level: c_int,
    _flags: c_ulong,
    _file: *const c_char,
    _line: c_int,
    _format: *const c_char,
    _text: *const c_char,
) {
}

fn logger() -> Logger {
    type Fixed = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
    type Variadic = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
    // SAFETY: both are called alike with these arguments, as `drop_line` says.
    Logger(Some(unsafe {
        core::mem::transmute::<Fixed, Variadic>(drop_line)
    }))
}

/// Kinds of objects, as places in [`Pool::words`].
const CONTEXT: usize = 0;
const LISTENER: usize = 1;
const SEND: usize = 2;
const RECEIVE: usize = 3;
const MEMORY: usize = 4;
const REQUEST: usize = 5;
const KINDS: usize = 6;

/// All objects that the plugin has given out, closed ones included, and the handles of listeners.
#[derive(Default)]
struct Pool {
    words: [Vec<usize>; KINDS],
    handles: Vec<[u8; 128]>,
    contexts: usize,
}

/// The context of an object, as the bits of its word.
const fn context_of(word: usize) -> usize {
    word >> 4 & 0xff
}

struct Caller<'p> {
    random: u64,
    pool: &'p Mutex<Pool>,
    data: usize,
}

impl Caller<'_> {
    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % limit
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// An object, mostly of this kind and mostly one of the last; or NULL, or a word that is nobody's.
    fn object(&mut self, kind: usize) -> *mut c_void {
        let (kind, nothing) = match self.below(20) {
            0 => (self.below(KINDS), false),
            1 => (kind, true),
            _ => (kind, false),
        };
        let back = if self.below(4) > 0 { 8 } else { usize::MAX };
        let (way, word) = (self.below(1 << 16), self.random as usize);
        let pool = self.pool.lock().unwrap();
        let words = &pool.words[kind];
        let word = match words.len() {
            0 => word,
            _ if nothing => [0, 1, usize::MAX, word][way % 4],
            count => words[count - 1 - way % count.min(back)],
        };
        core::ptr::without_provenance_mut(word)
    }

    /// An object, mostly of the context that another one is of.
    fn object_beside(&mut self, kind: usize, other: *mut c_void) -> *mut c_void {
        if self.below(8) == 0 {
            return self.object(kind);
        }
        let way = self.below(4);
        let pool = self.pool.lock().unwrap();
        let mut of_context = pool.words[kind].iter().rev().copied();
        let last = of_context
            .clone()
            .find(|word| context_of(*word) == context_of(other.addr()));
        let found = of_context
            .by_ref()
            .filter(|word| context_of(*word) == context_of(other.addr()))
            .nth(way);
        core::ptr::without_provenance_mut(found.or(last).unwrap_or(0))
    }

    fn keep(&self, kind: usize, made: *mut c_void) {
        if !made.is_null() {
            self.pool.lock().unwrap().words[kind].push(made.addr());
        }
    }

    /// An address in the memory, or shortly outside of it.
    fn address(&mut self) -> *mut c_void {
        let offset = self.one_of(&[0, 0, 0, 1, 4096, BYTES - 1, BYTES]);
        core::ptr::with_exposed_provenance_mut(self.data + offset)
    }

    fn size(&mut self) -> usize {
        let sizes = [
            0,
            0,
            1,
            7,
            4096,
            65_519,
            65_521,
            300_000,
            BYTES,
            BYTES + 1,
            1 << 31,
            usize::MAX,
        ];
        self.one_of(&sizes)
    }

    fn init(&mut self) {
        if self.below(2) == 0 {
            call!(V8, init, logger());
            return;
        }
        let is_full = {
            let mut pool = self.pool.lock().unwrap();
            let is_full = pool.contexts >= CONTEXTS_MAX;
            pool.contexts += usize::from(!is_full);
            is_full
        };
        if is_full {
            self.finalize();
            return;
        }
        let mut context = null_mut();
        let none = (null_mut(), Profiler(None));
        call!(V12, init, &raw mut context, 7, none.0, logger(), none.1);
        self.keep(CONTEXT, context);
    }

    fn finalize(&mut self) {
        let context = self.object(CONTEXT);
        if call!(V12, finalize, context) == OK {
            self.pool.lock().unwrap().contexts -= 1;
        }
    }

    fn describe(&mut self) {
        let device = self.one_of(&[0, 0, -1, 1, c_int::MAX]);
        let (mut count, mut made) = (0, 0);
        let mut old = core::mem::MaybeUninit::<PropertiesV8>::uninit();
        let mut new = core::mem::MaybeUninit::<PropertiesV12>::uninit();
        call!(V12, devices, &raw mut count);
        call!(V8, get_properties, device, old.as_mut_ptr());
        call!(V12, get_properties, device, new.as_mut_ptr());
        let mut list = VirtualDeviceV12 {
            count: self.one_of(&[1, 0, -1, 9, c_int::MAX]),
            devices: [self.one_of(&[0, 1, -1]); 8],
        };
        call!(V12, make_virtual_device, &raw mut made, &raw mut list);
        let mut attributes = core::mem::MaybeUninit::<NetAttributes>::zeroed();
        call!(V12, set_net_attr, self.object(CONTEXT), attributes.as_mut_ptr());
    }

    fn listen(&mut self) {
        let device = self.one_of(&[0, 0, 0, -1, 1]);
        let (mut listener, mut handle) = (null_mut(), [0_u8; 128]);
        let at = handle.as_mut_ptr().cast();
        let listens = match self.below(2) {
            0 => call!(V8, listen, device, at, &raw mut listener),
            _ => call!(V12, listen, self.object(CONTEXT), device, at, &raw mut listener),
        };
        if listens == OK {
            self.keep(LISTENER, listener);
            self.pool.lock().unwrap().handles.push(handle);
        }
    }

    /// Connects by a handle: of an open listener, of one that is closed since, with an attempt that is another's, or a changed one.
    fn connect(&mut self) {
        let (way, back) = (
            self.below(1 << 16),
            if self.below(4) > 0 { 4 } else { usize::MAX },
        );
        let Some((at, mut handle)) = ({
            let pool = self.pool.lock().unwrap();
            let count = pool.handles.len();
            let at = count.checked_sub(1).map(|last| last - way % count.min(back));
            at.map(|at| (at, pool.handles[at]))
        }) else {
            return;
        };
        match self.below(12) {
            0 => handle[self.below(128)] ^= 1 << self.below(8),
            1 => handle[16..20].copy_from_slice(&(self.random as u32).to_be_bytes()),
            _ => {}
        }
        let (mut comm, to) = (null_mut(), handle.as_mut_ptr().cast());
        match self.below(2) {
            0 => call!(V8, connect, 0, to, &raw mut comm, null_mut()),
            _ => call!(
                V12,
                connect,
                self.object(CONTEXT),
                0,
                to,
                &raw mut comm,
                null_mut()
            ),
        };
        self.keep(SEND, comm);
        // The next call goes on with the attempt that is noted there, mostly.
        if self.below(4) > 0 {
            self.pool.lock().unwrap().handles[at] = handle;
        }
    }

    fn accept(&mut self) {
        let mut comm = null_mut();
        call!(V12, accept, self.object(LISTENER), &raw mut comm, null_mut());
        self.keep(RECEIVE, comm);
    }

    fn register(&mut self) {
        let kind = self.one_of(&[SEND, RECEIVE]);
        let (comm, mut memory) = (self.object(kind), null_mut());
        let of = self.one_of(&[PTR_HOST, PTR_HOST, PTR_HOST, PTR_CUDA, 0, -1]);
        let bytes = self.one_of(&[BYTES, BYTES, BYTES, 4096, 0, usize::MAX, 1 << 63]);
        let data = core::ptr::with_exposed_provenance_mut(self.data);
        let data = if self.below(20) == 0 { null_mut() } else { data };
        match self.below(10) {
            0 => {
                let descriptor = self.one_of(&[-1, 0, 1 << 20]);
                let offset = self.one_of(&[0, 1, u64::MAX]);
                call!(
                    V12,
                    reg_mr_dma_buf,
                    comm,
                    data,
                    bytes,
                    of,
                    offset,
                    descriptor,
                    &raw mut memory
                )
            }
            _ => call!(V12, reg_mr, comm, data, bytes, of, &raw mut memory),
        };
        self.keep(MEMORY, memory);
    }

    fn deregister(&mut self) {
        let kind = self.one_of(&[SEND, RECEIVE]);
        call!(V12, dereg_mr, self.object(kind), self.object(MEMORY));
    }

    fn send(&mut self) {
        let (comm, mut request) = (self.object(SEND), null_mut());
        let memory = self.object_beside(MEMORY, comm);
        let (data, bytes, tag) = (self.address(), self.size(), self.below(3) as c_int);
        match self.below(2) {
            0 => call!(
                V8,
                isend,
                comm,
                data,
                bytes as c_int,
                tag,
                memory,
                &raw mut request
            ),
            _ => call!(
                V12,
                isend,
                comm,
                data,
                bytes,
                tag,
                memory,
                null_mut(),
                &raw mut request
            ),
        };
        self.keep(REQUEST, request);
    }

    fn receive(&mut self) {
        let (comm, mut request) = (self.object(RECEIVE), null_mut());
        let memory = self.object_beside(MEMORY, comm);
        let count = self.one_of(&[1, 1, 1, 2, 8, 8, 0, 9, -1, c_int::MIN]);
        let mut data = [(); PLACES].map(|()| self.address());
        let mut sizes = [(); PLACES].map(|()| self.size());
        let mut ints = sizes.map(|size| size as c_int);
        let mut tags = [(); PLACES].map(|()| self.below(3) as c_int);
        let mut memories = [(); PLACES].map(|()| match self.below(10) {
            0 => self.object(MEMORY),
            _ => memory,
        });
        let (data, tags, memories) = (data.as_mut_ptr(), tags.as_mut_ptr(), memories.as_mut_ptr());
        let (sizes, ints, to) = (sizes.as_mut_ptr(), ints.as_mut_ptr(), &raw mut request);
        match self.below(2) {
            0 => call!(V8, irecv, comm, count, data, ints, tags, memories, to),
            _ => call!(
                V12,
                irecv,
                comm,
                count,
                data,
                sizes,
                tags,
                memories,
                null_mut(),
                to
            ),
        };
        self.keep(REQUEST, request);
    }

    fn flush(&mut self) {
        let (comm, mut request) = (self.object(RECEIVE), null_mut());
        let count = self.one_of(&[1, 8, 0, 9, -1]);
        let mut data = [(); PLACES].map(|()| self.address());
        let mut sizes = [(); PLACES].map(|()| self.size() as c_int);
        let mut memories = [(); PLACES].map(|()| self.object(MEMORY));
        let (data, sizes, memories) = (data.as_mut_ptr(), sizes.as_mut_ptr(), memories.as_mut_ptr());
        call!(V12, iflush, comm, count, data, sizes, memories, &raw mut request);
        self.keep(REQUEST, request);
    }

    fn test(&mut self) {
        let (mut done, mut sizes) = (7, [-1_i32; PLACES]);
        let request = self.object(REQUEST);
        let to = if self.below(4) == 0 {
            null_mut()
        } else {
            sizes.as_mut_ptr()
        };
        call!(V12, test, request, &raw mut done, to);
        assert!([0, 1].contains(&done), "{done}");
    }

    fn close(&mut self) {
        match self.below(3) {
            0 => call!(V12, close_send, self.object(SEND)),
            1 => call!(V12, close_recv, self.object(RECEIVE)),
            _ => call!(V12, close_listen, self.object(LISTENER)),
        };
    }

    fn call_any(&mut self) {
        match self.below(200) {
            0..3 => self.init(),
            3 if self.below(4) == 0 => self.finalize(),
            3..6 => self.describe(),
            6..24 => self.listen(),
            24..54 => self.connect(),
            54..84 => self.accept(),
            84..98 => self.register(),
            98..101 => self.deregister(),
            101..130 => self.send(),
            130..155 => self.receive(),
            155..165 => self.flush(),
            165..196 => self.test(),
            _ => self.close(),
        }
    }
}

/// Closes all that is open. Nothing is a second time, and no request is open afterwards.
fn close_all(pool: &Pool) {
    let word = |word: &usize| core::ptr::without_provenance_mut::<c_void>(*word);
    let [contexts, listeners, sends, receives, memories, requests] = &pool.words;
    for is_again in [false, true] {
        let closed = |result: NcclResult| assert!(!is_again || result != OK, "{result:?}");
        sends
            .iter()
            .map(word)
            .for_each(|comm| closed(call!(V12, close_send, comm)));
        receives
            .iter()
            .map(word)
            .for_each(|comm| closed(call!(V12, close_recv, comm)));
        listeners
            .iter()
            .map(word)
            .for_each(|listener| closed(call!(V12, close_listen, listener)));
    }
    for request in requests.iter().map(word) {
        let (mut done, mut size) = (0, [0; PLACES]);
        let ended = call!(V12, test, request, &raw mut done, size.as_mut_ptr());
        assert!(
            ended != OK || done == 1,
            "{request:p} is open, and its comm is closed"
        );
    }
    // The context of version 8 stays, and memory is given up by any comm of its context.
    for memory in memories {
        let mut comms = sends.iter().chain(receives);
        if let Some(comm) = comms.find(|comm| context_of(**comm) == context_of(*memory)) {
            call!(V12, dereg_mr, word(comm), word(memory));
        }
    }
    for is_again in [false, true] {
        for context in contexts.iter().map(word) {
            let finalized = call!(V12, finalize, context);
            assert!(
                !is_again || finalized == NcclResult::INVALID_ARGUMENT,
                "{finalized:?}"
            );
        }
    }
}

/// Tries to make a pair of comms with memory of the one that receives, and a receive.
fn one_pair(
    caller: &Caller<'_>,
    context: *mut c_void,
    listener: *mut c_void,
    mut handle: [u8; 128],
) -> Option<(*mut c_void, *mut c_void, *mut c_void, *mut c_void)> {
    let (mut sends, mut receives): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
    let began = Instant::now();
    while sends.is_null() || receives.is_null() {
        assert!(began.elapsed() < PATIENCE, "no pair of comms");
        let to = handle.as_mut_ptr().cast();
        if sends.is_null() && call!(V12, connect, context, 0, to, &raw mut sends, null_mut()) != OK {
            return None;
        }
        if receives.is_null() {
            call!(V12, accept, listener, &raw mut receives, null_mut());
        }
    }
    let (mut memory, mut data): (*mut c_void, _) =
        (null_mut(), core::ptr::with_exposed_provenance_mut(caller.data));
    let registered = call!(V12, reg_mr, receives, data, BYTES, PTR_HOST, &raw mut memory);
    let (mut request, mut size, mut tag): (*mut c_void, _, _) = (null_mut(), 4096, 0);
    while registered == OK && request.is_null() {
        assert!(began.elapsed() < PATIENCE, "no receive");
        let (at, size, tag, memory) = (&raw mut data, &raw mut size, &raw mut tag, &raw mut memory);
        let to = &raw mut request;
        if call!(V12, irecv, receives, 1, at, size, tag, memory, null_mut(), to) != OK {
            return None;
        }
    }
    (!request.is_null()).then_some((sends, receives, memory, request))
}

/// Makes an object of each kind: a pair of comms with memory, and a receive.
fn make_one_of_each(caller: &Caller<'_>) {
    let (mut context, mut listener, mut given) = (null_mut(), null_mut(), [0_u8; 128]);
    let none = (null_mut(), Profiler(None));
    let made = call!(V12, init, &raw mut context, 7, none.0, logger(), none.1);
    assert_eq!(made, OK);
    let listens = call!(
        V12,
        listen,
        context,
        0,
        given.as_mut_ptr().cast(),
        &raw mut listener
    );
    assert_eq!(listens, OK);
    let began = Instant::now();
    // A comm of an attempt that took longer than it may, which may be the one that was accepted, takes no receive.
    let (sends, receives, memory, request) = loop {
        assert!(began.elapsed() < PATIENCE, "no pair of comms");
        if let Some(pair) = one_pair(caller, context, listener, given) {
            break pair;
        }
    };
    let made = [context, listener, sends, receives, memory, request];
    made.into_iter()
        .enumerate()
        .for_each(|(kind, made)| caller.keep(kind, made));
    let mut pool = caller.pool.lock().unwrap();
    pool.handles.push(given);
    pool.contexts += 1;
}

#[test]
fn every_call_returns_whatever_it_is_given() {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    for (name, value) in [("DOORBELL_UNAUTHENTICATED", "true"), ("DOORBELL_TIMEOUT", "1s")] {
        // SAFETY: no other thread runs yet that reads the environment.
        unsafe { std::env::set_var(name, value) };
    }
    let seed = std::env::var("DOORBELL_SEED").map_or(1, |seed| seed.parse().unwrap());
    // Bytes that this program does not look at again.
    let data = Box::leak(vec![0_u8; BYTES].into_boxed_slice())
        .as_mut_ptr()
        .expose_provenance();
    let pool = Mutex::new(Pool::default());
    make_one_of_each(&Caller {
        random: 1,
        pool: &pool,
        data,
    });
    thread::scope(|scope| {
        for number in 0..THREADS {
            let random = (seed * THREADS + number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut caller = Caller {
                random,
                pool: &pool,
                data,
            };
            scope.spawn(move || (0..CALLS).for_each(|_| caller.call_any()));
        }
    });
    let pool = pool.into_inner().unwrap();
    let made = pool.words.each_ref().map(Vec::len);
    println!("seed {seed}: objects of each kind: {made:?}");
    assert!(made.iter().all(|count| *count > 0), "{made:?}");
    close_all(&pool);
}
