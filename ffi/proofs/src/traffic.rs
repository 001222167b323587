//! Traffic both ways over every part of the data path. Leases are filled, then sent alone, in batches and inline,
//! gathered, signaled and not. There are one-sided operations, messages through one-sided rings, submissions, and
//! answers from within a poll. Leases are released and dropped, and queues run into their ends.

use core::fmt;
use core::time::Duration;

use doorbell::provider::Window as _;
use doorbell::worker::{RingChannel, SubmitErrorKind};
use doorbell::{
    Deadline, Event, Lease, LocalWindow, Message, Operation, PostFlags, RemoteAddress, SendErrorKind, Turn,
    Wait, Woken, Worker, within,
};
use doorbell_core::wire::RING_TRAILER_BYTES;

use crate::{End, Pair};

/// Bytes of a message: its number, and filling.
pub(crate) const MESSAGE_BYTES: usize = 64;

/// Bytes of one that goes through a ring.
const RINGED_BYTES: u32 = 64 + RING_TRAILER_BYTES;

/// The words that messages with one carry: to be answered, and not.
const ANSWER_THIS: u32 = 1;
pub(crate) const NO_ANSWER: u32 = 2;

/// So many rounds go between two that run the queues full.
pub(crate) const ROUNDS_TO_FLOOD: u64 = 16;

/// Polls for what a phase posted, at most. Everything is done after a few.
pub(crate) const POLLS_MAX: u32 = 10_000;

/// How long is waited for nothing.
pub(crate) const A_MOMENT: Duration = Duration::from_millis(1);

/// Requests of a batch.
const BATCH: u64 = 8;

/// Traffic that does not flow as it should: a proof of anything would mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck(pub(crate) &'static str);

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for Stuck {}

/// Requests of an end whose messages are yet to arrive, or whose data is yet to come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owed {
    messages: u64,
    written: u64,
    fetched: u64,
    ringed: u64,
}

/// The traffic of a pair.
#[derive(Debug)]
pub struct Traffic {
    pair: Pair,
    /// Rings of a, and of b.
    rings: [RingChannel; 2],
    /// Requests by a to b, and by b to a.
    owed: [Owed; 2],
    /// The number of the next message.
    next: u64,
    requests: u64,
    rounds: u64,
    would_block: u64,
    /// Messages of the rings that immediates reported.
    announced: u64,
    is_wrong: bool,
}

impl Traffic {
    /// None so far.
    #[must_use]
    pub const fn new(pair: Pair, rings: [RingChannel; 2]) -> Self {
        Self {
            pair,
            rings,
            owed: [Owed {
                messages: 0,
                written: 0,
                fetched: 0,
                ringed: 0,
            }; 2],
            next: 0,
            requests: 0,
            rounds: 0,
            would_block: 0,
            announced: 0,
            is_wrong: false,
        }
    }

    /// Requests posted so far.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// How often one was handed back, there being no room or credit.
    #[must_use]
    pub const fn would_block(&self) -> u64 {
        self.would_block
    }

    /// Way by which messages of the rings were reported so far. If bytes do not land in order, each has an
    /// immediate.
    #[must_use]
    pub const fn rings_are_published_by(&self) -> &'static str {
        if self.announced > 0 {
            "immediates"
        } else {
            "trailers"
        }
    }

    /// Goes on until so many requests more are posted and done.
    ///
    /// # Errors
    /// Something was refused, failed, lost or wrong.
    pub fn run(&mut self, requests: u64) -> Result<(), Stuck> {
        let end = self.requests.saturating_add(requests);
        while self.requests < end {
            self.round()?;
        }
        Ok(())
    }

    /// Waits at both ends until nothing came for a moment, awake and asleep, once messages were refused for want of a
    /// credit and the peer has posted receives again.
    ///
    /// # Errors
    /// As for [`Traffic::run`]; or it did not wait until the end.
    pub fn wait(&mut self) -> Result<(), Stuck> {
        for how in [Wait::Busy, Wait::SPIN_THEN_SLEEP] {
            self.flood(Side::A)?;
            self.settle()?;
            self.outlast(how)?;
        }
        Ok(())
    }

    /// Waits at both ends until nothing came for a moment.
    ///
    /// # Errors
    /// A Worker cannot be waited for, or it did not wait until the end.
    pub fn outlast(&mut self, how: Wait) -> Result<(), Stuck> {
        let Pair { a, b, .. } = &mut self.pair;
        let mut ends = [Woken::Progress; 2];
        for (end, woken) in [a, b].into_iter().zip(&mut ends) {
            let mut waits = 0..POLLS_MAX;
            while *woken == Woken::Progress && waits.next().is_some() {
                *woken = end
                    .worker
                    .wait(how, within(A_MOMENT), |_, _| ())
                    .map_err(|_| Stuck("a Worker cannot be waited for"))?;
            }
        }
        if ends != [Woken::Deadline; 2] {
            return Err(Stuck("a wait does not end"));
        }
        Ok(())
    }

    /// Waits at both ends for what is there already: each finds it at once, and arms and sleeps for nothing.
    ///
    /// # Errors
    /// As for [`Traffic::run`]; or nothing was found.
    pub fn find(&mut self, deadline: Deadline) -> Result<(), Stuck> {
        for how in [Wait::Busy, Wait::SpinThenSleep { spins: 0 }] {
            for (of, to) in [(Side::A, Side::B), (Side::B, Side::A)] {
                self.alone(of)?;
                self.take_in(to, Some((how, deadline)))?;
                self.settle()?;
            }
        }
        Ok(())
    }

    fn round(&mut self) -> Result<(), Stuck> {
        for of in [Side::A, Side::B] {
            self.alone(of)?;
            self.settle()?;
            self.cells(of)?;
            self.settle()?;
            self.batch(of)?;
            self.settle()?;
            self.one_sided(of)?;
            self.settle()?;
            self.ring(of)?;
            self.settle()?;
            self.submitted(of)?;
            self.settle()?;
            if self.rounds % ROUNDS_TO_FLOOD == 0 {
                self.flood(of)?;
                self.settle()?;
            }
        }
        self.rounds = self.rounds.wrapping_add(1);
        Ok(())
    }

    /// One message in a lease, one inline, and one inline that is answered.
    fn alone(&mut self, of: Side) -> Result<(), Stuck> {
        let number = self.number();
        let bytes = message(number);
        let (from, _) = self.ends(of);
        let lease = filled(&mut from.worker, number)?;
        let channel = from.channel().ok_or(Stuck("the channel is closed"))?;
        channel
            .send_lease(lease)
            .map_err(|_| Stuck("a message alone was refused"))?;
        for word in [NO_ANSWER, ANSWER_THIS] {
            channel
                .post_inline(Operation::SendWithImmediate(word), &bytes)
                .map_err(|_| Stuck("a message inline was refused"))?;
        }
        let [ours, theirs] = self.owed(of);
        ours.messages = ours.messages.wrapping_add(3);
        theirs.messages = theirs.messages.wrapping_add(1);
        self.requests = self.requests.wrapping_add(3);
        Ok(())
    }

    /// Messages and WRITEs from cells, copied and claimed, by themselves and for one doorbell. A claim and a batch are dropped before.
    fn cells(&mut self, of: Side) -> Result<(), Stuck> {
        let refused = Stuck("a message from a cell was refused");
        let number = self.number();
        let bytes = message(number);
        let (from, to) = self.ends(of);
        let target = part_of(&to.window, MESSAGE_BYTES as u64)?;
        let none = PostFlags::empty();
        let channel = from.channel().ok_or(refused)?;
        drop(channel.claim(MESSAGE_BYTES).map_err(|_| refused)?);
        channel.send(&bytes).map_err(|_| refused)?;
        let mut claim = channel.claim(MESSAGE_BYTES).map_err(|_| refused)?;
        claim.bytes().copy_from_slice(&bytes);
        claim.send().map_err(|_| refused)?;
        let claim = channel.claim(MESSAGE_BYTES).map_err(|_| refused)?;
        claim
            .post(Operation::WriteWithImmediate(target, NO_ANSWER), none)
            .map_err(|_| refused)?;
        for is_rung in [false, true] {
            let mut batch = channel.batch();
            batch.send(&bytes).map_err(|_| refused)?;
            let mut claim = batch.claim(MESSAGE_BYTES).map_err(|_| refused)?;
            claim.bytes().copy_from_slice(&bytes);
            claim.send().map_err(|_| refused)?;
            let claim = batch.claim(MESSAGE_BYTES).map_err(|_| refused)?;
            claim.push(Operation::Write(target), none).map_err(|_| refused)?;
            if is_rung && batch.ring() != Ok(3) {
                return Err(refused);
            }
        }
        let [ours, _] = self.owed(of);
        ours.messages = ours.messages.wrapping_add(4);
        ours.written = ours.written.wrapping_add(1);
        self.requests = self.requests.wrapping_add(6);
        Ok(())
    }

    /// Requests of many kinds for one doorbell.
    fn batch(&mut self, of: Side) -> Result<(), Stuck> {
        let refused = Stuck("a batch was refused");
        let number = self.number();
        let bytes = message(number);
        let (from, to) = self.ends(of);
        let target = part_of(&to.window, MESSAGE_BYTES as u64)?;
        let mut leases = [const { None }; 7];
        for place in &mut leases {
            *place = Some(filled(&mut from.worker, number)?);
        }
        let [
            Some(first),
            Some(header),
            Some(page),
            Some(written),
            Some(announced),
            Some(word),
            Some(last),
        ] = leases
        else {
            return Err(refused);
        };
        let channel = from.channel().ok_or(refused)?;
        let mut batch = channel.batch();
        let none = PostFlags::empty();
        let is_staged = batch.push(Operation::Send, [first], none).is_ok()
            && batch.push(Operation::Send, [header, page], none).is_ok()
            && batch.push(Operation::Write(target), [written], none).is_ok()
            && batch
                .push(
                    Operation::WriteWithImmediate(target, NO_ANSWER),
                    [announced],
                    none,
                )
                .is_ok()
            && batch
                .push(
                    Operation::SendWithImmediate(NO_ANSWER),
                    [word],
                    PostFlags::SIGNALED,
                )
                .is_ok()
            && batch.push_inline(Operation::Send, &bytes, none).is_ok()
            && batch.push_inline(Operation::Write(target), &bytes, none).is_ok()
            && batch.push(Operation::Send, [last], PostFlags::INLINE).is_ok();
        if !is_staged || u64::from(batch.staged()) != BATCH {
            return Err(refused);
        }
        let posted = batch.ring().map_err(|_| refused)?;
        if u64::from(posted) != BATCH {
            return Err(refused);
        }
        let [ours, _] = self.owed(of);
        ours.messages = ours.messages.wrapping_add(5);
        ours.written = ours.written.wrapping_add(1);
        self.requests = self.requests.wrapping_add(BATCH);
        Ok(())
    }

    /// Posts the operations that bring data back, and some of ranges of a window.
    fn one_sided(&mut self, of: Side) -> Result<(), Stuck> {
        let refused = Stuck("a one-sided request was refused");
        let (from, to) = self.ends(of);
        let (bytes, remote) = (
            part_of(&to.window, MESSAGE_BYTES as u64)?,
            part_of(&to.window, 8)?,
        );
        let operations = [
            Operation::Read(bytes),
            Operation::FetchAndAdd { remote, add: 1 },
            Operation::CompareAndSwap {
                remote,
                compare: 0,
                swap: 1,
            },
        ];
        for operation in operations {
            let mut lease = from.worker.lease().ok_or(refused)?;
            lease.set_len_bytes(MESSAGE_BYTES);
            let channel = from.channel().ok_or(refused)?;
            channel
                .post(operation, lease, PostFlags::SIGNALED)
                .map_err(|_| refused)?;
        }
        let channel = from.worker.channel(from.channel).ok_or(refused)?;
        let ranges = [from.window.range(1024, 24), from.window.range(2048, 8)];
        for operation in [Operation::Write(bytes), Operation::Read(bytes)] {
            channel
                .post_ranges(operation, ranges, PostFlags::SIGNALED)
                .map_err(|_| refused)?;
        }
        let [ours, _] = self.owed(of);
        ours.fetched = ours.fetched.wrapping_add(3);
        self.requests = self.requests.wrapping_add(5);
        Ok(())
    }

    /// Two messages through the one-sided ring.
    fn ring(&mut self, of: Side) -> Result<(), Stuck> {
        let refused = Stuck("a message through the ring was refused");
        let number = self.number();
        let Self {
            pair: Pair { a, b, .. },
            rings: [ring_a, ring_b],
            ..
        } = self;
        let (from, ring) = match of {
            Side::A => (a, ring_a),
            Side::B => (b, ring_b),
        };
        let lease = filled(&mut from.worker, number)?;
        let channel = from.channel().ok_or(refused)?;
        ring.send_inline(channel, &message(number)).map_err(|_| refused)?;
        ring.send(channel, lease).map_err(|_| refused)?;
        let [ours, _] = self.owed(of);
        ours.ringed = ours.ringed.wrapping_add(2);
        self.requests = self.requests.wrapping_add(2);
        Ok(())
    }

    /// Sends by submitters, and by the thread that polls with them: messages and WRITEs, more than a ring holds,
    /// through either kind of ring.
    fn submitted(&mut self, of: Side) -> Result<(), Stuck> {
        let refused = Stuck("a submission was refused");
        let number = self.number();
        let (from, to) = self.ends(of);
        let target = part_of(&to.window, MESSAGE_BYTES as u64)?;
        let End {
            worker,
            channel,
            submitters,
            ..
        } = from;
        let none = PostFlags::empty();
        let operations = [
            Operation::Send,
            Operation::Write(target),
            Operation::WriteWithImmediate(target, NO_ANSWER),
            Operation::SendWithImmediate(NO_ANSWER),
        ];
        // In the same doorbell, by the thread that polls.
        for operation in [Operation::Send, Operation::Write(target)] {
            let lease = filled(worker, number)?;
            let channel = worker.channel(*channel).ok_or(refused)?;
            channel.submit(operation, lease, none).map_err(|_| refused)?;
        }
        let mut submitted = 0_u64;
        for submitter in submitters {
            for operation in operations.into_iter().cycle() {
                let mut lease = submitter.lease().ok_or(refused)?;
                lease.fill(&message(number)).map_err(|_| refused)?;
                match submitter.submit(*channel, operation, lease, none) {
                    Ok(()) => submitted = submitted.wrapping_add(1),
                    Err(error) if error.kind == SubmitErrorKind::WouldBlock => {
                        submitter.release(error.lease.ok_or(refused)?);
                        break;
                    }
                    Err(_) => return Err(refused),
                }
            }
            if submitter.failure().is_some() {
                return Err(Stuck("a submission failed"));
            }
        }
        // Each ring twice over all operations.
        if submitted != 16 || worker.channel(*channel).is_none() {
            return Err(refused);
        }
        let [ours, _] = self.owed(of);
        ours.messages = ours.messages.wrapping_add(9);
        ours.written = ours.written.wrapping_add(4);
        self.requests = self.requests.wrapping_add(submitted).wrapping_add(2);
        Ok(())
    }

    /// Messages until one is handed back.
    fn flood(&mut self, of: Side) -> Result<(), Stuck> {
        let refused = Stuck("a message was refused for another reason than that there is no credit");
        loop {
            let number = self.number();
            let (from, _) = self.ends(of);
            let lease = filled(&mut from.worker, number)?;
            let channel = from.channel().ok_or(refused)?;
            let credits = channel.credits();
            match channel.send_lease(lease) {
                Ok(_) => {
                    let [ours, _] = self.owed(of);
                    ours.messages = ours.messages.wrapping_add(1);
                    self.requests = self.requests.wrapping_add(1);
                }
                Err(error) => {
                    let lease = error.item.ok_or(refused)?;
                    if error.kind != SendErrorKind::WouldBlock || credits != 0 {
                        return Err(refused);
                    }
                    from.worker.release(lease);
                    self.would_block = self.would_block.wrapping_add(1);
                    return Ok(());
                }
            }
        }
    }

    /// Polls both until all that was sent has arrived.
    fn settle(&mut self) -> Result<(), Stuck> {
        for _ in 0..POLLS_MAX {
            self.poll(Side::A)?;
            self.poll(Side::B)?;
            if self.owed == [Owed::default(); 2] {
                return Ok(());
            }
        }
        Err(Stuck("what was sent does not arrive"))
    }

    fn poll(&mut self, of: Side) -> Result<(), Stuck> {
        self.take_in(of, None)
    }

    /// Polls one end, or waits at it for something that is there.
    fn take_in(&mut self, of: Side, wait: Option<(Wait, Deadline)>) -> Result<(), Stuck> {
        let Self {
            pair: Pair { a, b, .. },
            rings: [ring_a, ring_b],
            owed: [by_a, by_b],
            requests,
            announced,
            is_wrong,
            ..
        } = self;
        let (end, ring, ours, theirs) = match of {
            Side::A => (a, ring_a, by_a, by_b),
            Side::B => (b, ring_b, by_b, by_a),
        };
        // Tending with nothing to do costs no more than is proven of polling.
        let is_tended = *requests % 2 == 1;
        let each = |turn: Turn<'_>, event: Event<'_>| match event {
            Event::Received { message, immediate } => {
                *is_wrong |= !take(turn, message, immediate, requests);
                theirs.messages = theirs.messages.wrapping_sub(1);
            }
            Event::Written {
                payload_bytes: RINGED_BYTES,
                immediate,
            } => {
                ring.note_written(immediate);
                *announced = announced.wrapping_add(1);
            }
            Event::Written {
                payload_bytes,
                immediate,
            } => {
                *is_wrong |= payload_bytes as usize != MESSAGE_BYTES || immediate != NO_ANSWER;
                theirs.written = theirs.written.wrapping_sub(1);
            }
            Event::Fetched { data, .. } => {
                drop(data);
                ours.fetched = ours.fetched.wrapping_sub(1);
            }
            Event::Done { .. } => {}
            _ => *is_wrong = true,
        };
        let progress = match wait {
            None if is_tended => end.worker.poll_tending(each).map(|_| Woken::Progress).ok(),
            None => end.worker.poll(each).map(|_| Woken::Progress).ok(),
            Some((how, deadline)) => end.worker.wait(how, deadline, each).ok(),
        };
        match progress {
            Some(Woken::Progress) => {}
            Some(_) => return Err(Stuck("a wait finds nothing")),
            None => return Err(Stuck("polling failed")),
        }
        let channel = end.channel().ok_or(Stuck("the channel is closed"))?;
        let mut bytes = [0; MESSAGE_BYTES];
        while let Some(length) = ring
            .receive(channel, &mut bytes)
            .map_err(|_| Stuck("the ring holds what is no message"))?
        {
            *is_wrong |= length != MESSAGE_BYTES || number_of(&bytes) == 0;
            theirs.ringed = theirs.ringed.wrapping_sub(1);
        }
        if *is_wrong {
            return Err(Stuck("something failed, or arrived as another thing was sent"));
        }
        Ok(())
    }

    fn number(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// Returns the sending end, then the receiving end.
    const fn ends(&mut self, of: Side) -> (&mut End, &mut End) {
        let Pair { a, b, .. } = &mut self.pair;
        match of {
            Side::A => (a, b),
            Side::B => (b, a),
        }
    }

    /// Returns the open requests by a side, then those by the other.
    const fn owed(&mut self, of: Side) -> [&mut Owed; 2] {
        let [by_a, by_b] = &mut self.owed;
        match of {
            Side::A => [by_a, by_b],
            Side::B => [by_b, by_a],
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Side {
    A,
    B,
}

/// Looks at a message, answers it where that is asked for, and gives the memory back, one way or
/// the other. Says whether it is as it was sent.
fn take(mut turn: Turn<'_>, message: Message<'_>, immediate: Option<u32>, requests: &mut u64) -> bool {
    let number = number_of(message.payload());
    let is_whole = message.len_bytes() % MESSAGE_BYTES == 0;
    match immediate {
        Some(ANSWER_THIS) => {
            *requests = requests.wrapping_add(1);
            return turn.channel.send_lease(message.keep()).is_ok();
        }
        Some(NO_ANSWER) | None if number % 2 == 0 => turn.release(message.keep()),
        Some(NO_ANSWER) | None => drop(message),
        Some(_) => return false,
    }
    is_whole && number != 0
}

/// A message of this number: every word of it.
pub(crate) fn message(number: u64) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    for word in bytes.chunks_exact_mut(size_of::<u64>()) {
        word.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// The number of a message; none where its words differ, or there are none.
pub(crate) fn number_of(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(size_of::<u64>());
    let first = words.next().unwrap_or_default();
    if words.any(|word| word != first) {
        return 0;
    }
    first.try_into().map_or(0, u64::from_le_bytes)
}

fn filled(worker: &mut Worker, number: u64) -> Result<Lease, Stuck> {
    let mut lease = worker.lease().ok_or(Stuck("there is no memory to lease"))?;
    lease
        .fill(&message(number))
        .map_err(|_| Stuck("a lease holds less than a message"))?;
    Ok(lease)
}

/// The first bytes of a window, for its peer.
pub(crate) fn part_of(window: &LocalWindow, bytes: u64) -> Result<RemoteAddress, Stuck> {
    let window = window.remote();
    RemoteAddress::within(&window, 0, bytes).ok_or(Stuck("the window is too small"))
}
