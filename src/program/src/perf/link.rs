//! The connection under test, and the steps of every test: preparing a message, posting it, waiting, checking what
//! arrived.
//!
//! The tests themselves define the order of the steps and the timed sections.

use core::time::Duration;
use std::thread;
use std::time::Instant;

use doorbell::provider::{Provider, Window};
use doorbell::{
    Channel, ChannelId, ChannelState, Event, Lease, LocalWindow, Operation, PostFlags, RemoteAddress,
    RemoteWindow, Worker,
};

use super::control::{Control, NAP};
use super::error::{PerfError, no_memory};
use super::message::MessageError;
use super::pattern::Mismatch;
use super::source::Source;
use super::test::{Op, Role, SENDS_A_TURN, Test};

/// Number of empty polls of a queue between two checks of the clock and the peer: some hundred microseconds. A power of
/// two.
pub(super) const LOOKS_AT_QUEUE: u32 = 1 << 13;
/// Number of polls of a memory byte between two checks of the clock and the peer.
pub(super) const LOOKS_AT_MEMORY: u32 = 1 << 17;
/// Time for which other bytes of a message may arrive after its last one, which is polled for.
const LATE: Duration = Duration::from_millis(10);
const MARK_BYTES: usize = 16;
/// Time for one READ or atomic, for the patience of a side that waits for the end of many.
const FETCHED_WITHIN: Duration = Duration::from_millis(10);
/// Longest time for all of them, since the peer chooses their number.
const ALL_FETCHED_WITHIN: Duration = Duration::from_secs(600);
/// Longest sleep of a side that waits for the end of a round.
const LONGEST_NAP: Duration = Duration::from_millis(2);

/// The connection under test on one side.
pub(crate) struct Link<P: Provider> {
    pub(super) worker: Worker<P>,
    pub(super) id: ChannelId,
    /// The window of this side, for the peer.
    pub(super) window: Option<LocalWindow<P>>,
    /// The window of the peer.
    pub(super) remote: RemoteWindow,
}

/// Counts of checked messages and of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) faults: u64,
    pub(crate) first_fault: Option<Mismatch>,
    /// Messages whose last byte, which is polled for, arrived before their other bytes.
    pub(crate) late: u64,
}

/// One side of one test while it runs.
pub(crate) struct Run<'r, P: Provider> {
    pub(super) test: &'r Test,
    pub(super) role: Role,
    pub(super) link: &'r mut Link<P>,
    pub(super) control: &'r mut Control<P>,
    /// The messages that this side sends.
    pub(super) source: Source,
    pub(super) tally: Tally,
    /// The next message, if posting copies it.
    pub(super) made: Vec<u8>,
    /// Bytes that were copied out of a window, to be checked.
    copy: Vec<u8>,
    spins: u32,
    idle_since: Option<Instant>,
}

/// A message that is ready to be posted.
pub(super) enum Outgoing<P: Provider> {
    /// In [`Run::made`], to be sent inline.
    Inline,
    /// In [`Run::made`], to be copied into a cell.
    Cell,
    Lease(Lease<P>),
}

/// A message that a completion reported.
pub(super) enum Arrival<P: Provider> {
    Message(Lease<P>),
    Written { payload_bytes: u32, immediate: u32 },
}

impl Tally {
    pub(super) fn note(&mut self, bytes: u64, outcome: Result<(), Mismatch>) {
        self.messages = self.messages.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        if let Err(mismatch) = outcome {
            self.faults = self.faults.saturating_add(1);
            self.first_fault.get_or_insert(mismatch);
        }
    }
}

impl<P: Provider> Link<P> {
    /// # Errors
    /// The channel was closed.
    #[inline]
    pub(super) fn channel(&mut self) -> Result<&mut Channel<P>, PerfError> {
        self.worker.channel(self.id).ok_or_else(no_channel)
    }

    /// Whether this number of requests cannot be posted now: the queue is full, or the peer has no receive for a
    /// message.
    ///
    /// # Errors
    /// The channel was closed.
    fn is_blocked(&mut self, requests: u32, is_message: bool) -> Result<bool, PerfError> {
        let channel = self.channel()?;
        Ok(channel.room() < requests || is_message && channel.credits() == 0)
    }

    /// Polls for completions; `each` gets every event except failures.
    ///
    /// # Errors
    /// The connection failed.
    #[inline]
    pub(super) fn poll(
        &mut self,
        mut each: impl FnMut(&mut Channel<P>, Event<'_, P>),
    ) -> Result<u32, PerfError> {
        let mut failed = false;
        let count = self.worker.poll(|turn, event| match event {
            Event::Failed { .. } | Event::ChannelFailed { .. } | Event::PeerClosed { .. } => failed = true,
            event => each(turn.channel, event),
        })?;
        if failed { Err(self.failure()) } else { Ok(count) }
    }

    #[cold]
    fn failure(&mut self) -> PerfError {
        match self.channel() {
            Ok(channel) => PerfError::Channel {
                what: WHAT,
                state: channel.state(),
            },
            Err(error) => error,
        }
    }

    /// Returns the window of this side.
    ///
    /// # Errors
    /// The test needs no window.
    pub(super) fn window(&self) -> Result<&LocalWindow<P>, PerfError> {
        self.window.as_ref().ok_or_else(no_memory)
    }

    /// Returns the window of this side, for writing.
    ///
    /// # Errors
    /// The test needs no window.
    pub(super) fn window_mut(&mut self) -> Result<&mut LocalWindow<P>, PerfError> {
        self.window.as_mut().ok_or_else(no_memory)
    }
}

const WHAT: &str = "connection under test";

/// Posts one message.
///
/// # Errors
/// The message was not posted.
#[inline]
pub(super) fn post<P: Provider>(
    channel: &mut Channel<P>,
    operation: Operation,
    outgoing: Outgoing<P>,
    made: &[u8],
) -> Result<(), PerfError> {
    match outgoing {
        Outgoing::Inline => channel.post_inline(operation, made)?,
        Outgoing::Cell => {
            let mut claim = channel.claim(made.len())?;
            claim.bytes().copy_from_slice(made);
            claim.post(operation, PostFlags::empty())?
        }
        Outgoing::Lease(lease) => channel
            .post(operation, lease, PostFlags::empty())
            .map_err(|refused| refused.kind)?,
    };
    Ok(())
}

impl<'r, P: Provider> Run<'r, P> {
    pub(crate) fn new(
        test: &'r Test,
        role: Role,
        token: u64,
        link: &'r mut Link<P>,
        control: &'r mut Control<P>,
    ) -> Self {
        Self {
            test,
            role,
            link,
            control,
            source: Source::new(test, role, token),
            tally: Tally::default(),
            made: vec![0; test.bytes()],
            copy: vec![0; test.bytes()],
            spins: 0,
            idle_since: None,
        }
    }

    /// The counts so far.
    pub(crate) const fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Creates the next message. If a message arrives while this waits for memory, it is stored in `early`.
    ///
    /// # Errors
    /// No memory was returned in time, or the connection failed.
    pub(super) fn prepare(
        &mut self,
        sequence: u64,
        early: &mut Option<Arrival<P>>,
    ) -> Result<Outgoing<P>, PerfError> {
        let is_message = self.test.op.takes_receives();
        while self.link.is_blocked(SENDS_A_TURN, is_message)? {
            self.collect(early)?;
        }
        if self.test.is_inline() || self.test.is_by_cells() {
            self.source.write(sequence, &mut self.made);
            return Ok(if self.test.is_inline() {
                Outgoing::Inline
            } else {
                Outgoing::Cell
            });
        }
        let mut lease = loop {
            match self.link.worker.lease() {
                Some(lease) => break lease,
                None => self.collect(early)?,
            }
        };
        self.source.write_into(sequence, &mut lease)?;
        Ok(Outgoing::Lease(lease))
    }

    fn collect(&mut self, early: &mut Option<Arrival<P>>) -> Result<(), PerfError> {
        let count = self.link.poll(|_, event| {
            if let Some(arrival) = Arrival::of(event) {
                *early = Some(arrival);
            }
        })?;
        if count == 0 {
            self.idle(LOOKS_AT_QUEUE)
        } else {
            Ok(())
        }
    }

    /// Called after each empty poll. From time to time it checks the clock and the peer.
    ///
    /// # Errors
    /// Nothing arrived for too long, or the peer gave up.
    #[inline]
    pub(super) fn idle(&mut self, looks: u32) -> Result<(), PerfError> {
        self.spins = self.spins.wrapping_add(1);
        if self.spins & looks.wrapping_sub(1) == 0 {
            return self.check_idle(self.control.timeout());
        }
        Ok(())
    }

    /// Records that something arrived from the peer.
    #[inline]
    pub(super) fn moved(&mut self) {
        self.idle_since = None;
    }

    #[cold]
    fn check_idle(&mut self, patience: Duration) -> Result<(), PerfError> {
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= patience {
            return Err(PerfError::Stalled {
                what: "message",
                waited: patience,
            });
        }
        self.control.check_peer()
    }

    /// Checks a message that a completion reported, and returns its memory.
    ///
    /// # Errors
    /// The message has the wrong length, or is of the wrong kind.
    pub(super) fn check_arrival(
        &mut self,
        sequence: u64,
        first: u64,
        arrival: Arrival<P>,
    ) -> Result<(), PerfError> {
        match (arrival, self.test.op) {
            (Arrival::Message(message), Op::Send) => {
                self.check_length(message.len_bytes())?;
                let outcome = self.source.theirs.check(sequence, message.payload());
                self.tally.note(message.len_bytes() as u64, outcome);
                self.link.worker.release(message);
                Ok(())
            }
            (
                Arrival::Written {
                    payload_bytes,
                    immediate: word,
                },
                Op::WriteImm,
            ) => {
                self.check_length(payload_bytes as usize)?;
                let announced = check_word(sequence, u64::from(immediate(sequence)), u64::from(word));
                self.check_window(sequence, first, announced)
            }
            _ => Err(UNASKED),
        }
    }

    pub(super) fn check_length(&self, bytes: usize) -> Result<(), PerfError> {
        let expected = self.test.bytes();
        if bytes == expected {
            return Ok(());
        }
        Err(MessageError::Length { bytes, expected }.into())
    }

    /// Checks a message in the window, unless `before` says that it is wrong already.
    ///
    /// # Errors
    /// There is no window.
    pub(super) fn check_window(
        &mut self,
        sequence: u64,
        first: u64,
        before: Result<(), Mismatch>,
    ) -> Result<(), PerfError> {
        let place = self.test.place_of(sequence, first);
        let window = self.link.window()?;
        let check = |copy: &mut [u8]| {
            window.copy_out(place, copy).map_err(|_| PerfError::NoMemory)?;
            Ok::<_, PerfError>(if self.test.is_polled() {
                self.source.theirs.check_polled(sequence, copy)
            } else {
                self.source
                    .theirs
                    .check(self.test.content_of(sequence, first), copy)
            })
        };
        let mut outcome = check(&mut self.copy)?;
        // A device may write the bytes of a message in any order. The last byte, which is polled for, may arrive before
        // the others. Such a message is late, but not wrong.
        if outcome.is_err() && self.test.is_polled() {
            let begun = Instant::now();
            while outcome.is_err() && begun.elapsed() < LATE {
                outcome = check(&mut self.copy)?;
            }
            self.tally.late = self.tally.late.saturating_add(u64::from(outcome.is_ok()));
        }
        self.tally.note(self.copy.len() as u64, before.and(outcome));
        Ok(())
    }

    /// Returns a lease for the bytes of a READ or an atomic, filled with zeros.
    ///
    /// # Errors
    /// No lease is free.
    pub(super) fn blank(&mut self) -> Result<Lease<P>, PerfError> {
        let mut lease = self.link.worker.lease().ok_or_else(no_memory)?;
        let bytes = self.test.bytes();
        lease.buffer_mut().get_mut(..bytes).ok_or_else(no_memory)?.fill(0);
        lease.set_len_bytes(bytes);
        Ok(lease)
    }

    /// Sends the mark that ends a round to the peer, on the connection under test, after all messages that were posted
    /// before.
    ///
    /// # Errors
    /// The mark was not posted, or the connection failed.
    pub(super) fn send_mark(&mut self, round: u64) -> Result<(), PerfError> {
        let mut early = None;
        while self.link.is_blocked(1, true)? {
            self.collect(&mut early)?;
        }
        let mut claim = self.link.channel()?.claim(MARK_BYTES)?;
        claim.bytes().copy_from_slice(&mark(round));
        claim.post(Operation::Send, PostFlags::SIGNALED)?;
        Ok(())
    }

    /// Waits for the peer's mark at the end of a round, with increasing pauses: the peer is busy with the round, and if
    /// both sides share a host, every poll takes time from it.
    ///
    /// # Errors
    /// The mark did not arrive in time, or another message arrived.
    pub(super) fn await_mark(&mut self, round: u64) -> Result<(), PerfError> {
        let mut nap = NAP;
        // A side whose memory is read sees nothing before the mark.
        let unseen = if self.test.op.fetches() {
            u32::try_from(self.test.total()).unwrap_or(u32::MAX)
        } else {
            0
        };
        let fetched = FETCHED_WITHIN.saturating_mul(unseen).min(ALL_FETCHED_WITHIN);
        let patience = self.control.timeout().saturating_add(fetched);
        loop {
            let mut came = None;
            let count = self.link.poll(|_, event| {
                if let Some(arrival) = Arrival::of(event) {
                    came = Some(arrival);
                }
            })?;
            match came {
                Some(Arrival::Message(message)) => {
                    self.moved();
                    return self.check_mark(round, message);
                }
                Some(Arrival::Written { .. }) => return Err(UNASKED),
                None if count == 0 => {
                    self.check_idle(patience)?;
                    thread::sleep(nap);
                    nap = nap.saturating_mul(2).min(LONGEST_NAP);
                }
                None => {}
            }
        }
    }

    /// # Errors
    /// The message is not the mark of this round.
    pub(super) fn check_mark(&mut self, round: u64, message: Lease<P>) -> Result<(), PerfError> {
        let is_it = message.payload() == mark(round);
        self.link.worker.release(message);
        if is_it { Ok(()) } else { Err(UNASKED) }
    }
}

impl<P: Provider> Arrival<P> {
    /// Converts an event to an arrival, if it is one.
    #[inline]
    pub(super) fn of(event: Event<'_, P>) -> Option<Self> {
        match event {
            Event::Received { message, .. } => Some(Self::Message(message.keep())),
            Event::Written {
                payload_bytes,
                immediate,
            } => Some(Self::Written {
                payload_bytes,
                immediate,
            }),
            _ => None,
        }
    }
}

/// Returns the address of this sequence's message in the peer's window. `first` is the first sequence of its round.
///
/// # Errors
/// The peer's window is too small.
#[inline]
pub(super) fn remote_place(
    test: &Test,
    remote: &RemoteWindow,
    sequence: u64,
    first: u64,
) -> Result<RemoteAddress, PerfError> {
    RemotePlaces::from(test, remote, sequence.wrapping_sub(first)).next()
}

/// The addresses of a round's messages in the peer's window, in order.
pub(super) struct RemotePlaces<'r> {
    remote: &'r RemoteWindow,
    /// Offset of the next message.
    at: u64,
    end: u64,
    place_bytes: u64,
    message_bytes: u64,
}

impl<'r> RemotePlaces<'r> {
    /// Begins with the message with this index in its round.
    #[inline]
    pub(super) fn from(test: &Test, remote: &'r RemoteWindow, index: u64) -> Self {
        let place_bytes = u64::from(test.place_bytes());
        Self {
            remote,
            at: test.place_of(index, 0) as u64,
            end: test.places().saturating_mul(place_bytes),
            place_bytes,
            message_bytes: u64::from(test.message_bytes),
        }
    }

    /// # Errors
    /// The peer's window is too small for it.
    #[inline]
    pub(super) fn next(&mut self) -> Result<RemoteAddress, PerfError> {
        let address = self.remote.address_of(self.at, self.message_bytes);
        self.at = self.at.saturating_add(self.place_bytes);
        if self.at >= self.end {
            self.at = 0;
        }
        match address {
            Some(address) => Ok(RemoteAddress::new(address, self.remote.rkey())),
            None => Err(PerfError::Message(MessageError::Field {
                field: "window's length",
                value: self.remote.length_bytes(),
            })),
        }
    }
}

#[cold]
const fn no_channel() -> PerfError {
    PerfError::Channel {
        what: WHAT,
        state: ChannelState::Open,
    }
}

/// Returns the operation that posts this sequence's message. Not for atomics.
///
/// # Errors
/// The peer's window is too small.
#[inline]
pub(super) fn operation(
    test: &Test,
    remote: &RemoteWindow,
    sequence: u64,
    first: u64,
) -> Result<Operation, PerfError> {
    if test.op == Op::Send {
        return Ok(Operation::Send);
    }
    let place = remote_place(test, remote, sequence, first)?;
    Ok(match test.op {
        Op::WriteImm => Operation::WriteWithImmediate(place, immediate(sequence)),
        Op::Write => Operation::Write(place),
        _ => Operation::Read(place),
    })
}

/// The peer sent something that a correct peer never sends.
pub(super) const UNASKED: PerfError = PerfError::Unexpected {
    wanted: "the next message of the test",
    got: "something else",
};

/// The immediate with which a WRITE announces a message.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the low half tells neighbours apart"
)]
pub(super) const fn immediate(sequence: u64) -> u32 {
    sequence as u32
}

/// Checks a word that is transferred as a unit.
///
/// # Errors
/// The word differs.
#[inline]
pub(super) fn check_word(sequence: u64, expected: u64, got: u64) -> Result<(), Mismatch> {
    if expected == got {
        return Ok(());
    }
    Err(Mismatch {
        sequence,
        offset: 0,
        expected,
        got,
    })
}

fn mark(round: u64) -> [u8; MARK_BYTES] {
    let mut bytes = [0; MARK_BYTES];
    for (byte, value) in bytes
        .iter_mut()
        .zip(b"dbPfmark".iter().copied().chain(round.to_be_bytes()))
    {
        *byte = value;
    }
    bytes
}
