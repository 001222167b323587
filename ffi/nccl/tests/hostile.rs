//! A peer that connects a link to the plugin and says what no plugin says. It harms its own comms, and nobody else's.
#![expect(clippy::unwrap_used, reason = "tests")]

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::time::Duration;
use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use doorbell::link::{LinkConfig, LinkEvent, LinkId, Links, SessionEvent, TransferEvent, TransferOptions};
use doorbell::provider::PlacementConfig;
use doorbell::{Handle, Node, Trust, Worker, WorkerConfig};
use doorbell_nccl::abi::tables::NetV12;
use doorbell_nccl::abi::{Logger, NcclResult, PTR_CUDA, PTR_HOST, Profiler};
use doorbell_nccl::ncclNetPlugin_v12 as NET;

/// Faults and counts of the fake are the process's: one test at a time.
static SERIAL: Mutex<()> = Mutex::new(());

const SOON: Duration = Duration::from_secs(30);

/// Calls a slot of the table.
macro_rules! call {
    ($slot:ident, $($argument:expr),*) => {{
        let table: &NetV12 = &NET;
        // SAFETY: the arguments live through the call, and pointers are valid for what the interface does with them.
        unsafe { (table.$slot.unwrap())($($argument),*) }
    }};
}

#[path = "hostile/loans.rs"]
mod loans;
#[path = "hostile/sends.rs"]
mod sends;

fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(began.elapsed() < SOON, "{what}");
    }
}

/// The plugin's side: a context that listens.
struct Plugin {
    context: *mut c_void,
    listener: *mut c_void,
    handle: [u8; 128],
}

impl Plugin {
    fn new() -> Self {
        let (mut context, mut listener, mut handle) = (null_mut(), null_mut(), [0; 128]);
        let none = (Logger(None), Profiler(None));
        assert_eq!(
            call!(init, &raw mut context, 0, null_mut(), none.0, none.1),
            NcclResult::SUCCESS
        );
        let at = handle.as_mut_ptr().cast();
        assert_eq!(
            call!(listen, context, 0, at, &raw mut listener),
            NcclResult::SUCCESS
        );
        Self {
            context,
            listener,
            handle,
        }
    }

    fn accept(&self) -> Option<*mut c_void> {
        let mut comm = null_mut();
        let accepted = call!(accept, self.listener, &raw mut comm, null_mut());
        assert_eq!(accepted, NcclResult::SUCCESS);
        (!comm.is_null()).then_some(comm)
    }
}

/// Memory that is registered for a comm, and a receive into the beginning of it.
struct Receive {
    room: Box<[u8; 4096]>,
    memory: *mut c_void,
    comm: *mut c_void,
    request: *mut c_void,
}

impl Receive {
    fn new(comm: *mut c_void, bytes: usize) -> Self {
        let mut room = Box::new([0x5a; 4096]);
        let mut memory = null_mut();
        let data: *mut c_void = room.as_mut_ptr().cast();
        let registered = call!(reg_mr, comm, data, 4096, PTR_HOST, &raw mut memory);
        assert_eq!(registered, NcclResult::SUCCESS);
        let (mut data, mut sizes, mut tags, mut memories) = ([data], [bytes], [0], [memory]);
        let request = eventually("a receive is posted", || {
            let mut request = null_mut();
            let received = call!(
                irecv,
                comm,
                1,
                data.as_mut_ptr(),
                sizes.as_mut_ptr(),
                tags.as_mut_ptr(),
                memories.as_mut_ptr(),
                null_mut(),
                &raw mut request
            );
            assert_eq!(received, NcclResult::SUCCESS);
            (!request.is_null()).then_some(request)
        });
        Self {
            room,
            memory,
            comm,
            request,
        }
    }

    /// Whether it is done; an error is one.
    fn test(&self) -> Result<Option<c_int>, NcclResult> {
        let (mut done, mut size) = (0, -1);
        match call!(test, self.request, &raw mut done, &raw mut size) {
            NcclResult::SUCCESS => Ok((done == 1).then_some(size)),
            failed => Err(failed),
        }
    }

    /// It ends; nothing behind its bytes was written.
    fn end(self, bytes: usize) {
        assert_eq!(call!(dereg_mr, self.comm, self.memory), NcclResult::SUCCESS);
        assert!(self.room[bytes..].iter().all(|byte| *byte == 0x5a));
        assert_eq!(call!(close_recv, self.comm), NcclResult::SUCCESS);
    }
}

/// A peer that is no plugin.
struct Hostile {
    node: Arc<Node>,
    workers: Vec<Worker>,
    links: Links,
    link: LinkId,
    heard: Vec<Vec<u8>>,
    is_over: bool,
    was_without_rail: bool,
}

impl Hostile {
    fn connect(plugin: &Plugin) -> Self {
        let node = Arc::new(Node::open(Trust::unauthenticated_on_purpose()).unwrap());
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let mut links = Links::new(&node, &workers, &LinkConfig::default()).unwrap();
        let length = usize::from(plugin.handle[5]);
        let handle = Handle::from_bytes(&plugin.handle[20..20 + length]).unwrap();
        let link = links.connect(&node, &workers, &handle).unwrap();
        Self {
            node,
            workers,
            links,
            link,
            heard: Vec::new(),
            is_over: false,
            was_without_rail: false,
        }
    }

    fn poll(&mut self) {
        let Self {
            heard,
            is_over,
            was_without_rail,
            ..
        } = self;
        let each = |_, event: LinkEvent<'_>| match event {
            LinkEvent::Received { message } => heard.push(message.to_vec()),
            LinkEvent::Session(SessionEvent::Final { .. }) => *is_over = true,
            LinkEvent::Session(SessionEvent::Recovering) => *was_without_rail = true,
            _ => {}
        };
        self.links.poll(&self.node, &mut self.workers, each).unwrap();
    }

    fn say(&mut self, message: &[u8]) {
        eventually("a message is taken", || {
            let sent = self.links.send(self.link, message);
            self.poll();
            sent.ok()
        });
    }

    /// Says where its lifelines are, as a plugin does.
    fn say_hello(&mut self) -> TcpListener {
        let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
        let listener = listener.unwrap();
        let port = u32::from(listener.local_addr().unwrap().port());
        self.say(&frame(HELLO, 0, [0; 4], port.to_be_bytes(), &[]));
        listener
    }

    /// A message of this kind.
    fn hear(&mut self, kind: u8) -> Vec<u8> {
        self.hear_beside(kind, || {})
    }

    /// The same, while something else goes on.
    fn hear_beside(&mut self, kind: u8, mut beside: impl FnMut()) -> Vec<u8> {
        eventually("a message of the plugin", || {
            self.poll();
            beside();
            let found = self.heard.iter().position(|message| message[0] == kind)?;
            Some(self.heard.remove(found))
        })
    }

    /// The plugin ends the link.
    fn is_shut(&mut self) {
        eventually("the plugin ends the link", || {
            self.poll();
            self.is_over.then_some(())
        });
    }

    /// Connects a comm, as a plugin does. Returns it, and its number at the plugin.
    fn open(&mut self, plugin: &Plugin) -> (*mut c_void, [u8; 4]) {
        let listener = word(&plugin.handle[8..12]);
        self.say(&frame(OPEN, 0, listener, [0, 0, 0, 9], &[]));
        let comm = eventually("a comm is accepted", || {
            self.poll();
            plugin.accept()
        });
        let opened = self.hear(OPENED);
        assert_eq!(opened[4..8], [0, 0, 0, 9]);
        (comm, word(&opened[8..12]))
    }
}

const OPEN: u8 = 1;
const OPENED: u8 = 2;
const REFUSED: u8 = 3;
const CLOSE: u8 = 4;
const CLEAR: u8 = 5;
const EAGER: u8 = 6;
const EXCESS: u8 = 7;
const HELLO: u8 = 8;

fn word(bytes: &[u8]) -> [u8; 4] {
    bytes.try_into().unwrap()
}

/// The bytes of a message.
fn frame(kind: u8, count: u8, to: [u8; 4], number: [u8; 4], body: &[u8]) -> Vec<u8> {
    [&[kind, 1, count, 0], &to[..], &number, &[0; 4], body].concat()
}

fn fake() {
    let path = doorbell_fake::library_path().unwrap();
    // SAFETY: the fake was built from this workspace and stands for libibverbs of the machine's ABI.
    unsafe { rdma_sys::load_from(&path) }.unwrap();
    // SAFETY: no other thread runs yet that reads the environment.
    unsafe { std::env::set_var("DOORBELL_UNAUTHENTICATED", "true") };
}

/// A message that no plugin sends ends the link, and the requests of its comms.
fn ends_its_link(plugin: &Plugin, what: &str, message: impl Fn([u8; 4], [u8; 4]) -> Vec<u8>) {
    let mut hostile = Hostile::connect(plugin);
    let (comm, number) = hostile.open(plugin);
    let receive = Receive::new(comm, 8);
    let request = word(&hostile.hear(CLEAR)[8..12]);
    hostile.say(&message(number, request));
    hostile.is_shut();
    let ended = eventually(what, || {
        hostile.poll();
        Some(receive.test()).filter(|ended| *ended != Ok(None))
    });
    assert_eq!(ended, Err(NcclResult::REMOTE_ERROR), "{what}");
    receive.end(0);
}

/// A message that comes too late, or is for nobody, changes nothing.
fn changes_nothing(plugin: &Plugin, message: impl Fn([u8; 4], [u8; 4]) -> Vec<u8>) {
    let mut hostile = Hostile::connect(plugin);
    let (comm, number) = hostile.open(plugin);
    let receive = Receive::new(comm, 8);
    let request = word(&hostile.hear(CLEAR)[8..12]);
    hostile.say(&message(number, request));
    hostile.say(&frame(EAGER, 0, number, request, b"seven b"));
    let size = eventually("the receive is done", || {
        hostile.poll();
        receive.test().unwrap()
    });
    assert_eq!((size, &receive.room[..8]), (7, &b"seven b\x5a"[..]));
    receive.end(7);
}

#[test]
fn a_peer_that_breaks_the_rules_harms_its_own_comms_alone() {
    let _guard = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    fake();
    let plugin = Plugin::new();
    // One that says nothing, all the time.
    let mut silent = Hostile::connect(&plugin);
    let (quiet, victim) = silent.open(&plugin);
    let waiting = Receive::new(quiet, 8);
    let victims = word(&silent.hear(CLEAR)[8..12]);
    // Its process runs: somebody listens.
    let lifelines = silent.say_hello();

    ends_its_link(&plugin, "a message without bytes", |_, _| Vec::new());
    ends_its_link(&plugin, "text", |_, _| b"GET / HTTP/1.1\r\n\r\n".to_vec());
    ends_its_link(&plugin, "lifelines at no port", |_, _| {
        frame(HELLO, 0, [0; 4], [0; 4], &[])
    });
    ends_its_link(&plugin, "a port that is none", |_, _| {
        frame(HELLO, 0, [0; 4], [0, 1, 0, 0], &[])
    });
    ends_its_link(&plugin, "a kind that is none", |to, request| {
        frame(99, 0, to, request, &[])
    });
    ends_its_link(&plugin, "more bytes than the receive has", |to, request| {
        frame(EAGER, 0, to, request, b"nine bytes")
    });
    ends_its_link(
        &plugin,
        "an answer to a comm that was not asked for",
        |to, request| frame(OPENED, 0, to, request, &[]),
    );
    ends_its_link(&plugin, "receives at a comm that receives", |to, request| {
        frame(CLEAR, 1, to, request, &[0; 12])
    });
    ends_its_link(&plugin, "nine receives", |to, request| {
        frame(CLEAR, 9, to, request, &[0; 108])
    });
    // The numbers of another's comm and of its request, as if they had been seen.
    ends_its_link(&plugin, "bytes for another's receive", |_, _| {
        frame(EAGER, 0, victim, victims, b"stolen")
    });
    ends_its_link(&plugin, "the end of another's comm", |_, _| {
        frame(CLOSE, 0, victim, [0; 4], &[])
    });
    ends_its_link(&plugin, "an error of another's receive", |_, _| {
        frame(EXCESS, 0, victim, victims, &[0; 8])
    });
    // Numbers that nobody has.
    for guess in 0..8_u32 {
        changes_nothing(&plugin, |to, request| {
            let to = u32::from_be_bytes(to).wrapping_add(4096 + guess).to_be_bytes();
            frame(EAGER, 0, to, request, b"late")
        });
    }
    changes_nothing(&plugin, |to, request| {
        let late = u32::from_be_bytes(request).wrapping_add(32).to_be_bytes();
        frame(EAGER, 0, to, late, b"late")
    });
    changes_nothing(&plugin, |to, request| frame(EAGER, 1, to, request, b"behind"));
    changes_nothing(&plugin, |to, request| {
        let late = u32::from_be_bytes(request).wrapping_add(32).to_be_bytes();
        frame(EXCESS, 0, to, late, &[0; 8])
    });
    changes_nothing(&plugin, |_, _| frame(CLOSE, 0, [0xff; 4], [0; 4], &[]));
    // A listener that is none: it is refused, and the comm beside goes on.
    changes_nothing(&plugin, |_, _| frame(OPEN, 0, [0xff; 4], [0, 0, 0, 7], &[]));
    transfers_that_nobody_wants(&plugin);
    comms_without_end(&plugin);
    bytes_for_memory_of_a_device(&plugin);

    // The silent one was not harmed: its process may be stopped, but it is there.
    assert_eq!(waiting.test(), Ok(None));
    its_process_ends(&plugin);
    its_process_ends_within_a_transfer(&plugin);
    // Its last message comes before its end.
    silent.say(&frame(EAGER, 0, victim, victims, b"last"));
    drop(lifelines);
    let size = eventually("its last message is there", || waiting.test().unwrap());
    assert_eq!((size, &waiting.room[..5]), (4, &b"last\x5a"[..]));
    waiting.end(4);
    drop(silent);
    assert_eq!(call!(close_listen, plugin.listener), NcclResult::SUCCESS);
    assert_eq!(call!(finalize, plugin.context), NcclResult::SUCCESS);
}

/// A peer that connects comms that nobody has accepted yet leaves room for those of others.
fn comms_without_end(plugin: &Plugin) {
    let listener = word(&plugin.handle[8..12]);
    let answer = |hostile: &mut Hostile| {
        let found = hostile
            .heard
            .iter()
            .position(|message| [OPENED, REFUSED].contains(&message[0]))?;
        Some(hostile.heard.remove(found)[0])
    };
    let mut hostile = Hostile::connect(plugin);
    let mut answers = Vec::new();
    for number in 0..600_u32 {
        hostile.say(&frame(OPEN, 0, listener, number.to_be_bytes(), &[]));
        answers.extend(answer(&mut hostile));
    }
    eventually("each comm is opened or refused", || {
        hostile.poll();
        answers.extend(answer(&mut hostile));
        (answers.len() == 600).then_some(())
    });
    let opened = answers.iter().filter(|kind| **kind == OPENED).count();
    assert_eq!(opened, 512);
    let mut honest = Hostile::connect(plugin);
    honest.say(&frame(OPEN, 0, listener, [0, 0, 0, 9], &[]));
    let kind = eventually("the honest peer has its answer", || {
        honest.poll();
        answer(&mut honest)
    });
    assert_eq!(kind, OPENED);
    for _ in 0..=opened {
        let comm = eventually("a comm is accepted", || plugin.accept());
        assert_eq!(call!(close_recv, comm), NcclResult::SUCCESS);
    }
}

/// A peer whose links go on, and whose process has no lifelines any more, ends with all that waits for it.
fn its_process_ends(plugin: &Plugin) {
    let mut hostile = Hostile::connect(plugin);
    let (comm, _) = hostile.open(plugin);
    let receive = Receive::new(comm, 8);
    let lifelines = hostile.say_hello();
    for _ in 0..3 {
        // A stream that breaks is no end.
        drop(lifelines.accept().unwrap());
        assert_eq!(receive.test(), Ok(None));
    }
    let began = Instant::now();
    drop(lifelines);
    let ended = eventually("its end is noticed", || {
        hostile.poll();
        Some(receive.test()).filter(|ended| *ended != Ok(None))
    });
    assert_eq!(ended, Err(NcclResult::REMOTE_ERROR));
    println!(
        "the end of a peer's process is noticed after {:?}",
        began.elapsed()
    );
    receive.end(0);
    hostile.is_shut();
}

/// A transfer that the peer has begun ends as its fault, and its memory is free.
fn its_process_ends_within_a_transfer(plugin: &Plugin) {
    let mut hostile = Hostile::connect(plugin);
    let (comm, number) = hostile.open(plugin);
    let receive = Receive::new(comm, 4096);
    let request = u32::from_be_bytes(word(&hostile.hear(CLEAR)[8..12]));
    let lifelines = hostile.say_hello();
    drop(lifelines.accept().unwrap());
    let region = hostile
        .node
        .region(&hostile.workers, 4096, &PlacementConfig::DEFAULT)
        .unwrap();
    let mut options = TransferOptions::default();
    options.tag = u64::from(u32::from_be_bytes(number)) << 32 | u64::from(request) << 3;
    let offer = (&region, 0, 4096);
    hostile
        .links
        .offer(&hostile.node, hostile.link, offer, &options)
        .unwrap();
    // The offer goes out and is taken, and nothing moves: this side is polled no more.
    hostile.poll();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(50) {
        assert_eq!(receive.test(), Ok(None));
    }
    drop(lifelines);
    let ended = eventually("the transfer ends", || {
        Some(receive.test()).filter(|ended| *ended != Ok(None))
    });
    assert_eq!(ended, Err(NcclResult::REMOTE_ERROR));
    receive.end(0);
}

/// Memory of a device takes transfers alone, and the peer hears so: its bytes in a message are an error.
fn bytes_for_memory_of_a_device(plugin: &Plugin) {
    let mut hostile = Hostile::connect(plugin);
    let (comm, number) = hostile.open(plugin);
    let file = doorbell_fake::memory_file(4096).unwrap();
    let (at, by) = (core::ptr::without_provenance_mut(1 << 46), file.as_raw_fd());
    let (mut memory, mut request) = (null_mut(), null_mut());
    let registered = call!(reg_mr_dma_buf, comm, at, 4096, PTR_CUDA, 0, by, &raw mut memory);
    assert_eq!(registered, NcclResult::SUCCESS);
    let ([mut at], [mut size], [mut tag], [mut of]) = ([at], [8_usize], [0], [memory]);
    let (at, size, tag, of) = (&raw mut at, &raw mut size, &raw mut tag, &raw mut of);
    let posted = call!(irecv, comm, 1, at, size, tag, of, null_mut(), &raw mut request);
    assert_eq!((posted, request.is_null()), (NcclResult::SUCCESS, false));
    let clear = hostile.hear(CLEAR);
    assert_eq!(clear[2..4], [1, 1]);
    hostile.say(&frame(EAGER, 0, number, word(&clear[8..12]), b"bytes"));
    hostile.is_shut();
    let (mut done, mut came) = (0, 0);
    let ended = eventually("the receive ends", || {
        hostile.poll();
        let ended = call!(test, request, &raw mut done, &raw mut came);
        (ended != NcclResult::SUCCESS || done == 1).then_some(ended)
    });
    assert_eq!(ended, NcclResult::REMOTE_ERROR);
    assert_eq!(call!(dereg_mr, comm, memory), NcclResult::SUCCESS);
    assert_eq!(call!(close_recv, comm), NcclResult::SUCCESS);
}

/// Transfers for no receive, and longer ones than the receive, are declined.
fn transfers_that_nobody_wants(plugin: &Plugin) {
    let mut hostile = Hostile::connect(plugin);
    let (comm, number) = hostile.open(plugin);
    let receive = Receive::new(comm, 8);
    let request = u32::from_be_bytes(word(&hostile.hear(CLEAR)[8..12]));
    let Hostile {
        node,
        workers,
        links,
        link,
        ..
    } = &mut hostile;
    let region = node.region(workers, 65_536, &PlacementConfig::DEFAULT).unwrap();
    let tag = |to: u32, request: u32, index: u64| u64::from(to) << 32 | u64::from(request) << 3 | index;
    let number = u32::from_be_bytes(number);
    let wrong = [
        (0, 8),
        (u64::MAX, 8),
        (tag(number, request, 0), 9),
        (tag(number, request, 1), 8),
        (tag(number, request.wrapping_add(1), 0), 8),
        (tag(number ^ 4096, request, 0), 8),
    ];
    for (tag, bytes) in wrong {
        let mut options = TransferOptions::default();
        options.tag = tag;
        let began = Instant::now();
        let offered = links.offer(node, *link, (&region, 0, bytes), &options).unwrap();
        let mut end = None;
        while end.is_none() {
            assert!(began.elapsed() < SOON);
            let each = |_, event: LinkEvent<'_>| {
                if let LinkEvent::Transfer {
                    transfer,
                    event: TransferEvent::Ended { end: how, .. },
                } = event
                {
                    end = (transfer == offered).then_some(how);
                }
            };
            links.poll(node, workers, each).unwrap();
        }
        let end = end.unwrap().to_string();
        assert_eq!(end, "ended by the peer: refused by the application", "{tag:#x}");
    }
    assert_eq!(receive.test(), Ok(None));
    assert_eq!(call!(close_recv, comm), NcclResult::SUCCESS);
    assert_eq!(call!(dereg_mr, comm, receive.memory), NcclResult::SUCCESS);
    assert!(receive.room.iter().all(|byte| *byte == 0x5a));
}
