//! Refusals at posting, by all ways of posting: the rows of `docs/posting.md`, for any provider.
//!
//! Each row begins and ends with a connection that carries messages: what is refused fails nothing, takes no memory and
//! comes back as it was.

#[path = "ranges.rs"]
mod ranges;

use core::fmt::Debug;

use doorbell::provider::{ATOMIC_BYTES, Provider, PushError, Window as _};
use doorbell::worker::{SubmissionError, SubmitErrorKind, Submitter};
use doorbell::{
    Channel, ChannelId, Event, Lease, LocalWindow, Operation, PostFlags, RemoteAccess, RemoteAddress,
    RemoteWindow, SendError, SendErrorKind, WindowConfig, Worker,
};

/// Bytes of each window.
const WINDOW_BYTES: usize = 4096;

/// A connection: what posts, with more memory in a lease than the peer has in a receive, and its peer.
pub(crate) struct Two<P: Provider> {
    pub(crate) near: Worker<P>,
    pub(crate) from: ChannelId,
    pub(crate) submitter: Submitter<P>,
    pub(crate) far: Worker<P>,
    /// The receives that the peer has for this connection.
    pub(crate) receives: usize,
    /// Another Worker of the near host, in a protection domain of its own.
    pub(crate) other: Worker<P>,
    /// Requests at a window of the peer's, with all rights granted.
    pub(crate) all: LocalWindow<P>,
}

/// A row: its name, which stands in the table, and what it does.
pub(crate) type Row<P> = (&'static str, fn(&mut Two<P>));

/// The rows that need nothing of the connection but what every one has.
pub(crate) fn rows<P: Provider + Debug>() -> Vec<Row<P>> {
    vec![
        ("message_too_long", message_too_long),
        ("message_that_just_fits", message_that_just_fits),
        ("written_past_the_range", written_past_the_range),
        ("read_past_the_range", read_past_the_range),
        ("range_past_the_window", range_past_the_window),
        ("right_not_granted", right_not_granted),
        ("read_into_a_fresh_lease", read_into_a_fresh_lease),
        ("atomic_not_aligned", atomic_not_aligned),
        ("atomic_without_a_word", atomic_without_a_word),
        ("inline_too_long", inline_too_long),
        ("inline_that_fetches", inline_that_fetches),
        ("claim_too_long", claim_too_long),
        ("claim_that_fetches", claim_that_fetches),
        ("gathered_of_too_many", gathered_of_too_many),
        ("memory_of_another_worker", memory_of_another_worker),
        ("range_past_the_own_window", ranges::range_past_the_own_window),
        ("range_of_another_worker", ranges::range_of_another_worker),
        ("range_inline", ranges::range_inline),
        (
            "range_with_a_fault_of_leases",
            ranges::range_with_a_fault_of_leases,
        ),
        ("queue_without_room", queue_without_room),
        ("peer_without_receives", peer_without_receives),
        ("submitted_memory_of_elsewhere", submitted_memory_of_elsewhere),
        ("submitted_that_fetches", submitted_that_fetches),
    ]
}

/// The rows that want a connection without READs and atomics.
pub(crate) fn rows_without_fetches<P: Provider + Debug>() -> Vec<Row<P>> {
    vec![("fetched_where_none_was_agreed", fetched_where_none_was_agreed)]
}

/// A request that is posted on a channel that failed is accepted, and fails by its completion (S3).
pub(crate) fn posted_where_it_failed<P: Provider + Debug>(two: &mut Two<P>) {
    let before = two.leasable();
    two.channel().shut().unwrap();
    let lease = two.lease(2048);
    let ticket = two.channel().send_lease(lease).unwrap();
    let status = two.until(|event| match event {
        Event::Failed { ticket: of, status } if of == ticket => Some(status),
        _ => None,
    });
    assert!(status.is_flush(), "{status}");
    // With it came what was posted for receiving.
    assert!(two.leasable() >= before);
}

/// Runs rows on a connection, which is there before each and behind it.
pub(crate) fn run<P: Provider + Debug>(two: &mut Two<P>, rows: Vec<Row<P>>) {
    two.carries_messages();
    let before = two.leasable();
    for (name, row) in rows {
        println!("{name}");
        row(two);
        two.carries_messages();
        assert_eq!(two.leasable(), before, "{name}: all memory is home");
    }
}

impl<P: Provider + Debug> Two<P> {
    fn channel(&mut self) -> &mut Channel<P> {
        self.near.channel(self.from).expect("the channel")
    }

    fn lease(&mut self, bytes: usize) -> Lease<P> {
        let mut lease = self.near.lease().expect("memory");
        assert!(lease.capacity_bytes() >= bytes, "a lease holds {bytes}");
        lease.set_len_bytes(bytes);
        lease
    }

    fn message_bytes_max(&mut self) -> usize {
        self.channel().peer().message_bytes_max() as usize
    }

    /// The number of leases that there is memory for.
    fn leasable(&mut self) -> [usize; 2] {
        let near: Vec<_> = core::iter::from_fn(|| self.near.lease()).collect();
        let submitted: Vec<_> = core::iter::from_fn(|| self.submitter.lease()).collect();
        [near.len(), submitted.len()]
    }

    /// Polls both sides until one of the near events is awaited.
    fn until<T>(&mut self, mut wanted: impl FnMut(Event<'_, P>) -> Option<T>) -> T {
        let mut found = None;
        // Bounded by polls: a simulated fabric's time passes by them. A device has the seconds they take.
        for _ in 0..200_000_000_u64 {
            self.far.poll(|_, _| ()).unwrap();
            self.near
                .poll(|_, event| found = found.take().or_else(|| wanted(event)))
                .unwrap();
            if let Some(found) = found {
                return found;
            }
        }
        panic!("nothing came")
    }

    /// Sends a message, which arrives, and nothing came before it.
    fn carries_messages(&mut self) {
        let lease = self.lease(8);
        let ticket = self
            .channel()
            .post(Operation::Send, lease, PostFlags::SIGNALED)
            .unwrap();
        let (mut came, mut is_done) = (Vec::new(), false);
        for _ in 0..200_000_000_u64 {
            self.far
                .poll(|_, event| match event {
                    Event::Received { message, .. } => came.push(message.len_bytes()),
                    Event::Done { .. } => {}
                    event => panic!("{event:?}"),
                })
                .unwrap();
            self.near
                .poll(|_, event| match event {
                    Event::Done { through } => is_done |= through == ticket,
                    event => panic!("{event:?}"),
                })
                .unwrap();
            if is_done && !came.is_empty() {
                assert_eq!(came, [8]);
                return;
            }
        }
        panic!("the message did not arrive: {came:?}")
    }

    /// Posts by every way that a lease can go: by itself, submitted to the poll, and in a batch. Each refuses it so, and
    /// hands it back as it was.
    fn refused(&mut self, operation: Operation, bytes: usize, kind: SendErrorKind) {
        let (flags, id) = (PostFlags::empty(), self.from);
        for way in 0..3 {
            let lease = self.lease(bytes);
            let channel = self.near.channel(id).unwrap();
            let error: SendError<Lease<P>> = match way {
                0 => channel.post(operation, lease, flags).unwrap_err(),
                1 => channel.submit(operation, lease, flags).unwrap_err(),
                _ => {
                    let mut batch = channel.batch();
                    let error = batch.push(operation, [lease], flags).unwrap_err();
                    assert_eq!(batch.staged(), 0);
                    SendError {
                        kind: error.kind,
                        item: error.item.map(|[lease]| lease),
                    }
                }
            };
            assert_eq!(error.kind, kind, "{operation:?} by way {way}");
            assert_eq!(error.item.expect("it is handed back").len_bytes(), bytes);
        }
    }

    /// Gathers from two leases; it is refused so, and both are handed back.
    fn refused_gathered(&mut self, operation: Operation, bytes: [usize; 2], kind: SendErrorKind) {
        let leases = bytes.map(|bytes| self.lease(bytes));
        let mut batch = self.channel().batch();
        let error = batch.push(operation, leases, PostFlags::empty()).unwrap_err();
        assert_eq!(error.kind, kind, "{operation:?}, gathered");
        let back = error.item.expect("they are handed back");
        assert_eq!(back.map(|lease| lease.len_bytes()), bytes);
    }

    /// Posts bytes of a claim, by themselves and in a batch; each refuses them so.
    fn refused_claimed(&mut self, operation: Operation, bytes: usize, kind: SendErrorKind) {
        let flags = PostFlags::empty();
        let claim = self.channel().claim(bytes).unwrap();
        assert_eq!(claim.post(operation, flags), Err(kind), "{operation:?}, claimed");
        let mut batch = self.channel().batch();
        let claim = batch.claim(bytes).unwrap();
        assert_eq!(claim.push(operation, flags), Err(kind), "{operation:?}, claimed");
        assert_eq!(batch.staged(), 0);
    }

    /// Posts bytes inline, by themselves and in a batch; each refuses them so.
    fn refused_inline(&mut self, operation: Operation, bytes: &[u8], kind: SendErrorKind) {
        assert_eq!(
            self.channel().post_inline(operation, bytes),
            Err(kind),
            "{operation:?}"
        );
        let mut batch = self.channel().batch();
        assert_eq!(batch.push_inline(operation, bytes, PostFlags::empty()), Err(kind));
    }

    /// The bytes at an offset of the peer's window.
    fn at(&self, offset: u64, bytes: u64) -> RemoteAddress {
        RemoteAddress::within(&self.all.remote(), offset, bytes).expect("within the window")
    }

    /// A window of the peer's that grants so much.
    fn granting(&mut self, access: RemoteAccess) -> LocalWindow<P> {
        self.far.window(&WindowConfig::new(WINDOW_BYTES, access)).unwrap()
    }
}

/// Makes the window that the rows go by.
pub(crate) fn window<P: Provider + Debug>(worker: &mut Worker<P>) -> LocalWindow<P> {
    worker
        .window(&WindowConfig::new(WINDOW_BYTES, RemoteAccess::ALL))
        .unwrap()
}

fn refused(reason: PushError) -> SendErrorKind {
    SendErrorKind::Refused(reason)
}

fn past(bytes: u64, bytes_max: u32) -> SendErrorKind {
    refused(PushError::OutOfWindow { bytes, bytes_max })
}

fn message_too_long<P: Provider + Debug>(two: &mut Two<P>) {
    let bytes_max = two.message_bytes_max();
    let bytes = bytes_max + 1;
    let kind = SendErrorKind::TooLong { bytes, bytes_max };
    for operation in [Operation::Send, Operation::SendWithImmediate(7)] {
        two.refused(operation, bytes, kind);
        two.refused_gathered(operation, [bytes_max, 1], kind);
        two.refused_inline(operation, &vec![1; bytes], kind);
    }
    let lease = two.lease(bytes);
    let error = two.channel().send_lease(lease).unwrap_err();
    assert_eq!(error.kind, kind);
    assert!(error.item.is_some());
    // A submitter knows the channel by its name alone: the Worker refuses what it posts.
    let mut lease = two.submitter.lease().unwrap();
    lease.set_len_bytes(bytes);
    let index = lease.index();
    two.submitter.send(two.from, lease).unwrap();
    for _ in 0..4 {
        two.near.poll(|_, event| panic!("{event:?}")).unwrap();
    }
    let told = two.submitter.failure().expect("it is told");
    assert_eq!((told.channel, told.index), (two.from, index));
    let (bytes, bytes_max) = (u32::try_from(bytes).unwrap(), u32::try_from(bytes_max).unwrap());
    assert_eq!(told.error, SubmissionError::TooLong { bytes, bytes_max });
    assert_eq!(told.lease.expect("it comes back").len_bytes(), bytes as usize);
}

fn message_that_just_fits<P: Provider + Debug>(two: &mut Two<P>) {
    let bytes_max = two.message_bytes_max();
    let lease = two.lease(bytes_max);
    two.channel().send_lease(lease).unwrap();
    let pieces = [two.lease(bytes_max - 1), two.lease(1)];
    let mut batch = two.channel().batch();
    batch.push(Operation::Send, pieces, PostFlags::SIGNALED).unwrap();
    batch.ring().unwrap();
    let mut came = Vec::new();
    while came.len() < 2 {
        two.near.poll(|_, _| ()).unwrap();
        two.far
            .poll(|_, event| match event {
                Event::Received { message, .. } => came.push(message.len_bytes()),
                Event::Done { .. } => {}
                event => panic!("{event:?}"),
            })
            .unwrap();
    }
    assert_eq!(came, [bytes_max; 2]);
    // A WRITE with immediate uses a receive and none of its bytes: it may be as long as the window allows.
    let longer = bytes_max + 1;
    let operation = Operation::WriteWithImmediate(two.at(0, WINDOW_BYTES as u64), 9);
    let lease = two.lease(longer);
    two.channel().post(operation, lease, PostFlags::SIGNALED).unwrap();
    let mut written = None;
    while written.is_none() {
        two.near.poll(|_, _| ()).unwrap();
        two.far
            .poll(|_, event| {
                if let Event::Written {
                    payload_bytes,
                    immediate,
                } = event
                {
                    written = Some((payload_bytes as usize, immediate));
                }
            })
            .unwrap();
    }
    assert_eq!(written, Some((longer, 9)));
}

fn written_past_the_range<P: Provider + Debug>(two: &mut Two<P>) {
    for (offset, range) in [(0, 8_u32), (WINDOW_BYTES as u64 - 8, 8), (16, 0)] {
        let remote = two.at(offset, range.into());
        let bytes = range as usize + 1;
        let kind = past(bytes as u64, range);
        for operation in [Operation::Write(remote), Operation::WriteWithImmediate(remote, 1)] {
            two.refused(operation, bytes, kind);
            two.refused_gathered(operation, [range as usize, 1], kind);
            two.refused_inline(operation, &vec![1; bytes], kind);
            two.refused_claimed(operation, bytes, kind);
            let mut lease = two.submitter.lease().unwrap();
            lease.set_len_bytes(bytes);
            let error = two
                .submitter
                .submit(two.from, operation, lease, PostFlags::empty())
                .unwrap_err();
            let bytes_max = range;
            assert_eq!(error.kind, SubmitErrorKind::OutOfWindow { bytes, bytes_max });
            assert_eq!(error.lease.expect("it is handed back").len_bytes(), bytes);
        }
    }
}

fn read_past_the_range<P: Provider + Debug>(two: &mut Two<P>) {
    let operation = Operation::Read(two.at(WINDOW_BYTES as u64 - 8, 8));
    two.refused(operation, 9, past(9, 8));
    two.refused_gathered(operation, [8, 1], past(9, 8));
}

fn range_past_the_window<P: Provider + Debug>(two: &mut Two<P>) {
    let window = two.all.remote();
    let end = WINDOW_BYTES as u64;
    for (offset, bytes) in [(0, end + 1), (end, 1), (end - 7, 8), (u64::MAX, 2), (end + 1, 0)] {
        assert_eq!(
            RemoteAddress::within(&window, offset, bytes),
            None,
            "{offset} {bytes}"
        );
    }
    // A hostile peer's word about its window is taken for no more than that.
    let hostile = RemoteWindow::new(u64::MAX - 3, u64::MAX, window.rkey());
    assert_eq!(RemoteAddress::within(&hostile, 0, 8), None);
}

fn right_not_granted<P: Provider + Debug>(two: &mut Two<P>) {
    let kind = refused(PushError::NotGranted);
    let [read, write, atomic] = [
        RemoteAccess::READ,
        RemoteAccess::WRITE,
        RemoteAccess {
            write: false,
            read: false,
            atomic: true,
        },
    ]
    .map(|access| two.granting(access));
    let at = |window: &LocalWindow<P>| RemoteAddress::within(&window.remote(), 0, 8).unwrap();
    for window in [&read, &atomic] {
        let remote = at(window);
        for operation in [Operation::Write(remote), Operation::WriteWithImmediate(remote, 1)] {
            two.refused(operation, 8, kind);
            two.refused_inline(operation, b"8 bytes.", kind);
            let mut lease = two.submitter.lease().unwrap();
            lease.set_len_bytes(8);
            let error = two
                .submitter
                .submit(two.from, operation, lease, PostFlags::empty())
                .unwrap_err();
            assert_eq!(error.kind, SubmitErrorKind::NotGranted);
        }
    }
    for window in [&write, &atomic] {
        for bytes in [0, 8] {
            two.refused(Operation::Read(at(window)), bytes, kind);
        }
    }
    for window in [&read, &write] {
        let remote = at(window);
        two.refused(Operation::FetchAndAdd { remote, add: 1 }, 8, kind);
    }
    // A window whose rights were not announced is left to the peer's device.
    let untold = read.remote().without_access();
    let remote = RemoteAddress::within(&untold, 0, 8).unwrap();
    assert_eq!(remote.write_bytes_max(), 8);
}

fn read_into_a_fresh_lease<P: Provider + Debug>(two: &mut Two<P>) {
    let fetched = |two: &mut Two<P>, operation, lease| {
        two.channel().post(operation, lease, PostFlags::SIGNALED).unwrap();
        two.until(|event| match event {
            Event::Fetched { data, .. } => Some(data.len_bytes()),
            _ => None,
        })
    };
    let capacity = two.near.lease().unwrap().capacity_bytes();
    let whole = WINDOW_BYTES.min(capacity);
    // The range is the length; a lease of its own length takes that.
    for (range, length, bytes) in [(24, 0, 24), (WINDOW_BYTES, 0, whole), (24, 9, 9), (0, 0, 0)] {
        let operation = Operation::Read(two.at(0, range as u64));
        let lease = two.lease(length);
        assert_eq!(fetched(two, operation, lease), bytes, "{range} into {length}");
    }
    let raw = two.all.remote();
    let lease = two.lease(0);
    if capacity <= WINDOW_BYTES {
        let operation = Operation::Read(RemoteAddress::new(raw.address(), raw.rkey()));
        assert_eq!(
            fetched(two, operation, lease),
            capacity,
            "of a bare address the whole lease"
        );
    }
    // Scattered into several, in order, in a batch.
    let range = capacity + 16;
    let leases = [two.lease(0), two.lease(0)];
    let operation = Operation::Read(two.at(0, range.min(WINDOW_BYTES) as u64));
    let mut batch = two.channel().batch();
    batch.push(operation, leases, PostFlags::SIGNALED).unwrap();
    batch.ring().unwrap();
    let mut lengths = Vec::new();
    two.until(|event| {
        if let Event::Fetched { data, .. } = event {
            lengths.push(data.len_bytes());
        }
        (lengths.len() == 2).then_some(())
    });
    let range = range.min(WINDOW_BYTES);
    assert_eq!(lengths, [range.min(capacity), range.saturating_sub(capacity)]);
}

fn atomic_not_aligned<P: Provider + Debug>(two: &mut Two<P>) {
    for offset in 1..u64::from(ATOMIC_BYTES) {
        let remote = two.at(offset, 8);
        let kind = refused(PushError::Misaligned {
            address: remote.address(),
        });
        two.refused(Operation::FetchAndAdd { remote, add: 1 }, 8, kind);
        let swap = Operation::CompareAndSwap {
            remote,
            compare: 0,
            swap: 1,
        };
        two.refused(swap, 0, kind);
    }
    assert_eq!(two.all.load_u64(0), Ok(0));
}

fn atomic_without_a_word<P: Provider + Debug>(two: &mut Two<P>) {
    let remote = two.at(0, 4);
    two.refused(Operation::FetchAndAdd { remote, add: 1 }, 8, past(8, 4));
    let remote = two.at(0, 8);
    let add = Operation::FetchAndAdd { remote, add: 1 };
    let kind = refused(PushError::AtomicNeedsEightBytes);
    two.refused_gathered(add, [8, 8], kind);
    let mut batch = two.channel().batch();
    let error = batch.push(add, [], PostFlags::empty()).unwrap_err();
    assert_eq!(error.kind, kind);
}

fn inline_too_long<P: Provider + Debug>(two: &mut Two<P>) {
    let bytes_max = two.channel().limits().inline_bytes_max;
    let bytes = bytes_max + 1;
    let kind = refused(PushError::InlineTooLong { bytes, bytes_max });
    two.refused_inline(Operation::Send, &vec![1; bytes as usize], kind);
    let lease = two.lease(bytes as usize);
    let error = two
        .channel()
        .post(Operation::Send, lease, PostFlags::INLINE)
        .unwrap_err();
    assert_eq!(error.kind, kind);
}

fn inline_that_fetches<P: Provider + Debug>(two: &mut Two<P>) {
    let kind = refused(PushError::NotInline);
    let remote = two.at(0, 8);
    two.refused_inline(Operation::Read(remote), b"", kind);
    for operation in [Operation::Read(remote), Operation::FetchAndAdd { remote, add: 1 }] {
        let lease = two.lease(0);
        let error = two
            .channel()
            .post(operation, lease, PostFlags::INLINE)
            .unwrap_err();
        assert_eq!(error.kind, kind);
        assert_eq!(error.item.expect("it is handed back").len_bytes(), 0, "as it was");
    }
}

fn claim_too_long<P: Provider + Debug>(two: &mut Two<P>) {
    let cell_bytes = two.channel().cell_bytes() as usize;
    let too_long = |bytes| SendErrorKind::TooLong {
        bytes,
        bytes_max: cell_bytes,
    };
    for bytes in [cell_bytes + 1, usize::MAX] {
        assert_eq!(two.channel().claim(bytes).map(drop), Err(too_long(bytes)));
        assert_eq!(two.channel().batch().claim(bytes).map(drop), Err(too_long(bytes)));
    }
    let most = cell_bytes.max(two.channel().limits().inline_bytes_max as usize);
    let kind = SendErrorKind::TooLong {
        bytes: most + 1,
        bytes_max: most,
    };
    assert_eq!(two.channel().send(&vec![1; most + 1]), Err(kind));
    drop(two.channel().claim(cell_bytes).expect("it just fits"));
}

fn claim_that_fetches<P: Provider + Debug>(two: &mut Two<P>) {
    let remote = two.at(0, 8);
    for operation in [Operation::Read(remote), Operation::FetchAndAdd { remote, add: 1 }] {
        two.refused_claimed(operation, 8, refused(PushError::NotInline));
    }
}

fn gathered_of_too_many<P: Provider + Debug>(two: &mut Two<P>) {
    let segments_max = two.channel().limits().gather_max;
    if segments_max >= 4 {
        println!("the device grants all that there can be");
        return;
    }
    let leases = [(); 4].map(|()| two.lease(1));
    let mut batch = two.channel().batch();
    let error = batch
        .push(Operation::Send, leases, PostFlags::empty())
        .unwrap_err();
    let kind = refused(PushError::TooManySegments {
        segments: 4,
        segments_max,
    });
    assert_eq!(error.kind, kind);
    assert!(error.item.is_some());
}

fn memory_of_another_worker<P: Provider + Debug>(two: &mut Two<P>) {
    let kind = refused(PushError::OtherMemory);
    let foreign = |two: &mut Two<P>, bytes| {
        let mut lease = two.other.lease().unwrap();
        lease.set_len_bytes(bytes);
        lease
    };
    let remote = two.at(0, WINDOW_BYTES as u64);
    // Longer than what goes inline by itself: that is copied, and needs no key.
    let bytes = two.channel().limits().inline_bytes_max as usize + 1;
    for operation in [Operation::Send, Operation::Write(remote), Operation::Read(remote)] {
        let lease = foreign(two, bytes);
        let error = two
            .channel()
            .post(operation, lease, PostFlags::empty())
            .unwrap_err();
        assert_eq!(error.kind, kind, "{operation:?}");
        assert_eq!(error.item.expect("it is handed back").len_bytes(), bytes);
        let lease = foreign(two, bytes);
        let error = two
            .channel()
            .submit(operation, lease, PostFlags::empty())
            .unwrap_err();
        assert_eq!(error.kind, kind, "{operation:?}");
        let leases = [two.lease(8), foreign(two, bytes)];
        let mut batch = two.channel().batch();
        let error = batch.push(operation, leases, PostFlags::empty()).unwrap_err();
        assert_eq!(error.kind, kind, "{operation:?}");
    }
    let lease = foreign(two, 8);
    two.channel()
        .post(Operation::Write(remote), lease, PostFlags::INLINE)
        .unwrap();
}

/// Posts until it is refused for the time being, with the lease handed back; then polls until all is home.
fn until_blocked<P: Provider + Debug>(
    two: &mut Two<P>,
    operation: Operation,
    mut between: impl FnMut(&mut Two<P>),
) -> usize {
    let before = two.leasable();
    let mut posted = 0;
    let error = loop {
        let lease = two.lease(8);
        match two.channel().post(operation, lease, PostFlags::SIGNALED) {
            Ok(_) => posted += 1,
            Err(error) => break error,
        }
        between(two);
    };
    assert_eq!(error.kind, SendErrorKind::WouldBlock);
    assert_eq!(error.item.expect("it is handed back").len_bytes(), 8);
    while two.leasable() != before {
        two.near.poll(|_, _| ()).unwrap();
        two.far.poll(|_, _| ()).unwrap();
    }
    posted
}

fn queue_without_room<P: Provider + Debug>(two: &mut Two<P>) {
    let room = two.channel().room() as usize;
    let operation = Operation::Write(two.at(0, 8));
    assert_eq!(until_blocked(two, operation, |_| ()), room);
}

fn peer_without_receives<P: Provider + Debug>(two: &mut Two<P>) {
    let credits = two.channel().credits() as usize;
    let posted = until_blocked(two, Operation::Send, |two| {
        while two.channel().in_flight() > 0 {
            two.near.poll(|_, _| ()).unwrap();
        }
    });
    // An earlier announcement of the peer may still be on its way when the first is posted.
    assert!(
        (credits..=two.receives).contains(&posted),
        "{posted} of {credits} and {}",
        two.receives
    );
    while two.channel().credits() == 0 {
        two.far.poll(|_, _| ()).unwrap();
        two.near.poll(|_, _| ()).unwrap();
    }
}

fn submitted_memory_of_elsewhere<P: Provider + Debug>(two: &mut Two<P>) {
    let lease = two.lease(8);
    let error = two.submitter.send(two.from, lease).unwrap_err();
    assert_eq!(error.kind, SubmitErrorKind::OtherMemory);
    assert!(error.lease.is_some());
}

fn submitted_that_fetches<P: Provider + Debug>(two: &mut Two<P>) {
    let lease = two.submitter.lease().unwrap();
    let operation = Operation::Read(two.at(0, 8));
    let error = two
        .submitter
        .submit(two.from, operation, lease, PostFlags::empty())
        .unwrap_err();
    assert_eq!(error.kind, SubmitErrorKind::BringsDataBack);
    assert!(error.lease.is_some());
}

fn fetched_where_none_was_agreed<P: Provider + Debug>(two: &mut Two<P>) {
    assert_eq!(two.channel().peer().rd_atomic_max(), 0);
    let remote = two.at(0, 8);
    let kind = refused(PushError::NoFetches);
    for bytes in [0, 8] {
        two.refused(Operation::Read(remote), bytes, kind);
        two.refused(Operation::FetchAndAdd { remote, add: 1 }, bytes, kind);
    }
}
