//! The requester's table: the open requests, and their ends. Nothing here sends or receives.

use core::fmt;

use doorbell_core::session::FinalReason;
use doorbell_core::wire::{CorrelationId, RequestHeader, RequestKind, WireError};
use doorbell_core::{Deadline, Instant, WcStatus};

use super::Framing;
use crate::worker::channel::ChannelId;

/// The open requests to one peer, each with a context of the application.
///
/// The table has memory for `in_flight_max` entries, and for one message with the longest body.
///
/// # Waiting
/// No call of the table waits. Wait on the Worker, at most until [`Requests::wake`]. Pass each event to [`Requests::take`], and call
/// [`Requests::expire`] after each wait. A wait that sleeps needs a Worker with notification
/// ([`WorkerConfig::notify`](crate::WorkerConfig::notify)).
///
/// ```
/// use doorbell::provider::Provider;
/// use doorbell::requests::{Ended, Requests};
/// use doorbell::{Clock, Wait, WaitError, Worker};
///
/// /// Waits until each request has ended, by its deadline at the latest.
/// fn finish<P: Provider>(requests: &mut Requests<&str>, worker: &mut Worker<P>) -> Result<(), WaitError> {
///     let ended = |name: &str, end: Ended<'_>| println!("{name}: {end:?}");
///     while let Some(wake) = requests.wake() {
///         worker.wait(Wait::Busy, wake, |mut turn, event| {
///             requests.take(&mut turn, event, ended);
///         })?;
///         requests.expire(worker.context().now(), ended);
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Requests<T> {
    entries: Box<[RequestEntry<T>]>,
    /// The indices of free entries.
    free: Vec<u32>,
    /// A lower bound of all deadlines.
    earliest: Option<Deadline>,
    /// Requests that the next call of [`Requests::expire`] fails, with the reason: a flush was reported and its cause was not, or a callback
    /// panicked while these requests were failed.
    failing: Option<(Those, RequestFailure)>,
    /// The channel whose failure last ended requests, if no request was begun since. Further reports of its failure are ignored.
    gone: Option<ChannelId>,
    counts: RequestCounts,
    pub(super) framing: Framing,
}

#[derive(Debug)]
struct RequestEntry<T> {
    /// Number of requests that have used the entry, modulo 2^32.
    generation: u32,
    waiting: Option<(Deadline, T)>,
    /// The channel that the request was sent over, if the table sent it over one.
    over: Option<ChannelId>,
}

/// Requests that fail together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Those {
    All,
    /// Requests sent over this channel, and those that the table did not send over any.
    Of(ChannelId),
}

impl Those {
    fn are(self, over: Option<ChannelId>) -> bool {
        match self {
            Self::All => true,
            Self::Of(channel) => over.is_none_or(|over| over == channel),
        }
    }
}

/// Counts since the table was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestCounts {
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that were answered in time.
    pub answered: u64,
    /// Requests whose deadline passed.
    pub timed_out: u64,
    /// Requests that the application cancelled.
    pub cancelled: u64,
    /// Requests that failed with their channel or link.
    pub failed: u64,
    /// Dropped answers to requests that had ended, repeated answers included.
    pub late: u64,
    /// Dropped answers to requests that were never sent, or were sent over another channel. An honest peer sends none.
    pub unasked: u64,
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended<'m> {
    /// The answer arrived, with this body.
    Answered(&'m [u8]),
    /// The deadline passed. The peer may have executed the request, or may still do so.
    TimedOut,
    /// The channel or link failed, for this reason. The peer may have executed the request.
    Failed(RequestFailure),
}

/// Reason why several requests failed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestFailure {
    /// The channel failed, with the first cause that was reported.
    Channel(WcStatus),
    /// The peer closed the channel before it answered.
    PeerClosed,
    /// The link is over.
    Link(FinalReason),
    /// The application gave the peer up.
    GivenUp,
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channel(status) => write!(f, "the channel failed: {status}"),
            Self::PeerClosed => f.write_str("the peer closed the channel before it answered"),
            Self::Link(reason) => write!(f, "the link is over: {reason}"),
            Self::GivenUp => f.write_str("the peer was given up"),
        }
    }
}

impl core::error::Error for RequestFailure {}

/// The meaning of a message to the requester.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Heard<'m, T> {
    /// The answer to a request, which it ends: the request's context, and the answer's body.
    Answer(T, &'m [u8]),
    /// An answer to a request that has ended, counted in [`RequestCounts::late`]: the request's id, and the answer's body. The
    /// first such answer to a request that timed out shows that the peer executed it. Others are repetitions.
    Late(CorrelationId, &'m [u8]),
    /// An answer to no request of its channel, counted in [`RequestCounts::unasked`].
    Unasked,
    /// A request of the peer: its id, and its body.
    Request(CorrelationId, &'m [u8]),
    /// A message that is neither a request nor an answer.
    Other(WireError),
}

impl<T> Requests<T> {
    /// Makes a table for 1 to 2^20 open requests, with bodies of at most 2^30 bytes. A value outside of these limits stands for the
    /// nearest limit.
    #[must_use]
    pub fn new(in_flight_max: u32, body_bytes_max: usize) -> Self {
        let in_flight_max = in_flight_max.clamp(1, 1 << 20);
        let entry = |_| RequestEntry {
            generation: 0,
            waiting: None,
            over: None,
        };
        Self {
            entries: (0..in_flight_max).map(entry).collect(),
            free: (0..in_flight_max).rev().collect(),
            earliest: None,
            failing: None,
            gone: None,
            counts: RequestCounts::default(),
            framing: Framing::new(body_bytes_max),
        }
    }

    /// Returns the number of open requests.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.entries.len().saturating_sub(self.free.len())
    }

    /// Returns the number of further requests that may be sent now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// The counts.
    #[must_use]
    pub const fn counts(&self) -> RequestCounts {
        self.counts
    }

    /// When to call [`Requests::expire`] at the latest. The time may be before the first deadline. `None` if no request is open.
    #[must_use]
    pub fn wake(&self) -> Option<Deadline> {
        self.earliest.filter(|_| self.in_flight() > 0)
    }

    /// Begins a request that the caller sends itself, with [`RequestHeader::new`] in front. If it is not sent after all, call
    /// [`Requests::cancel`]. The table does not know the request's channel, so the next report of a failure of any channel ends it.
    ///
    /// # Errors
    /// The table is full. The context is returned.
    pub fn begin(&mut self, deadline: Deadline, context: T) -> Result<CorrelationId, T> {
        self.gone = None;
        if self.in_flight() == 0 {
            // No request is left of those that a pending failure concerns.
            (self.earliest, self.failing) = (None, None);
        }
        let Some((index, entry)) = self
            .free
            .last()
            .and_then(|index| Some((*index, self.entries.get_mut(*index as usize)?)))
        else {
            return Err(context);
        };
        self.free.pop();
        entry.generation = entry.generation.wrapping_add(1);
        (entry.waiting, entry.over) = (Some((deadline, context)), None);
        let earliest = self.earliest.unwrap_or(deadline);
        self.earliest = Some(earliest.min(deadline));
        self.counts.sent = self.counts.sent.wrapping_add(1);
        Ok(CorrelationId(
            u64::from(entry.generation) << 32 | u64::from(index),
        ))
    }

    /// Notes the channel that a request was sent over.
    pub(super) fn note_sent(&mut self, id: CorrelationId, channel: ChannelId) {
        let index = u32::try_from(id.0 & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.over = Some(channel);
        }
    }

    /// Handles a message of the peer that arrived over a link, or by other means of the caller. An answer ends its request regardless of the
    /// channel that the request was sent over. For a message of a channel call [`Requests::hear_from`].
    #[inline]
    pub fn hear<'m>(&mut self, message: &'m [u8]) -> Heard<'m, T> {
        self.hear_over(None, message)
    }

    /// Handles a message of the peer that arrived over a channel. An answer does not end a request that was sent over another channel.
    /// Channels of different Workers may have equal ids: use a separate table for each Worker.
    #[inline]
    pub fn hear_from<'m>(&mut self, channel: ChannelId, message: &'m [u8]) -> Heard<'m, T> {
        self.hear_over(Some(channel), message)
    }

    #[inline]
    fn hear_over<'m>(&mut self, channel: Option<ChannelId>, message: &'m [u8]) -> Heard<'m, T> {
        match RequestHeader::parse(message) {
            Ok((RequestKind::Answer, id, _)) if self.is_over_another(id, channel) => {
                self.counts.unasked = self.counts.unasked.wrapping_add(1);
                Heard::Unasked
            }
            Ok((RequestKind::Answer, id, body)) => match self.end(id) {
                Ok(context) => {
                    self.counts.answered = self.counts.answered.wrapping_add(1);
                    Heard::Answer(context, body)
                }
                Err(true) => {
                    self.counts.late = self.counts.late.wrapping_add(1);
                    Heard::Late(id, body)
                }
                Err(false) => {
                    self.counts.unasked = self.counts.unasked.wrapping_add(1);
                    Heard::Unasked
                }
            },
            Ok((_, id, body)) => Heard::Request(id, body),
            Err(error) => Heard::Other(error),
        }
    }

    /// Whether this request is open, and was sent over another channel than this one.
    #[inline]
    fn is_over_another(&self, id: CorrelationId, channel: Option<ChannelId>) -> bool {
        let index = u32::try_from(id.0 & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        let entry = self.entries.get(index as usize);
        // The entry may have been reused for a later request.
        let is_open =
            |entry: &&RequestEntry<T>| entry.waiting.is_some() && entry.generation == (id.0 >> 32) as u32;
        let over = entry.filter(is_open).and_then(|entry| entry.over);
        over.zip(channel).is_some_and(|(over, channel)| over != channel)
    }

    /// Cancels a request. Returns its context, or `None` if the request has ended. The peer is not notified.
    pub fn cancel(&mut self, id: CorrelationId) -> Option<T> {
        let context = self.end(id).ok()?;
        self.counts.cancelled = self.counts.cancelled.wrapping_add(1);
        Some(context)
    }

    /// Removes a request that was not sent.
    pub(super) fn take_back(&mut self, id: CorrelationId) -> Option<T> {
        let context = self.end(id).ok()?;
        self.counts.sent = self.counts.sent.wrapping_sub(1);
        Some(context)
    }

    /// Ends the requests whose deadlines have passed. The call checks one word, and passes over the table only if a deadline may have passed.
    /// The time is that of the Worker's clock, `worker.context().now()` ([`Clock`](crate::provider::Clock)), like the deadlines of
    /// `worker.within`.
    #[inline]
    pub fn expire(&mut self, now: Instant, each: impl FnMut(T, Ended<'_>)) {
        if self.earliest.is_some_and(|earliest| earliest.has_passed(now)) {
            self.expire_due(now, each);
        }
    }

    fn expire_due(&mut self, now: Instant, mut each: impl FnMut(T, Ended<'_>)) {
        if let Some((those, reason)) = self.failing {
            self.fail_those(those, reason, &mut each);
        }
        // `earliest` is set last: if the callback panics, the next call handles the rest.
        for index in (0..).take(self.entries.len()) {
            let entry = self.entries.get_mut(index as usize);
            let is_due = |(deadline, _): &mut (Deadline, T)| deadline.has_passed(now);
            if let Some((_, context)) = entry.and_then(|entry| entry.waiting.take_if(is_due)) {
                self.free.push(index);
                self.counts.timed_out = self.counts.timed_out.wrapping_add(1);
                each(context, Ended::TimedOut);
            }
        }
        self.earliest = self.next_deadline();
    }

    fn next_deadline(&self) -> Option<Deadline> {
        let waiting = self.entries.iter().filter_map(|entry| entry.waiting.as_ref());
        waiting.map(|(deadline, _)| *deadline).min()
    }

    /// Ends all requests for this reason, if the channel or the link is of no further use. If the callback panics, the next call of
    /// [`Requests::expire`] ends the others.
    pub fn fail(&mut self, reason: RequestFailure, mut each: impl FnMut(T, Ended<'_>)) {
        self.fail_those(Those::All, reason, &mut each);
    }

    fn fail_those(&mut self, those: Those, reason: RequestFailure, mut each: impl FnMut(T, Ended<'_>)) {
        if self.in_flight() == 0 {
            return;
        }
        self.fail_soon(those, reason);
        for index in (0..).take(self.entries.len()) {
            let entry = self.entries.get_mut(index as usize);
            let entry = entry.filter(|entry| those.are(entry.over));
            if let Some((_, context)) = entry.and_then(|entry| entry.waiting.take()) {
                self.free.push(index);
                self.counts.failed = self.counts.failed.wrapping_add(1);
                each(context, Ended::Failed(reason));
            }
        }
        (self.earliest, self.failing) = (self.next_deadline(), None);
        if let Those::Of(channel) = those {
            self.gone = Some(channel);
        }
    }

    fn fail_soon(&mut self, those: Those, reason: RequestFailure) {
        (self.earliest, self.failing) = (Some(Deadline::at(Instant::from_ns(0))), Some((those, reason)));
    }

    /// Notes that a channel failed, and ends the requests that were sent over it. A flush may be reported before its cause, in the same poll.
    /// So after a flush the requests end by [`Requests::expire`], or when the cause is reported.
    pub(super) fn note_failure(
        &mut self,
        channel: ChannelId,
        reason: RequestFailure,
        mut each: impl FnMut(T, Ended<'_>),
    ) {
        if self.gone == Some(channel) || self.in_flight() == 0 {
            return;
        }
        let those = Those::Of(channel);
        if let Some((before, reason)) = self.failing.filter(|(before, _)| *before != those) {
            self.fail_those(before, reason, &mut each);
        }
        match reason {
            RequestFailure::Channel(status) if status.is_flush() => self.fail_soon(those, reason),
            _ => self.fail_those(those, reason, each),
        }
    }

    /// Ends a request, and returns its context.
    ///
    /// # Errors
    /// The request has ended (`true`), or there never was such a request (`false`).
    fn end(&mut self, id: CorrelationId) -> Result<T, bool> {
        let index = u32::try_from(id.0 & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        let generation = (id.0 >> 32) as u32;
        let entry = self.entries.get_mut(index as usize).ok_or(false)?;
        if generation != entry.generation {
            // The distance is modulo 2^32. Generations from 1 to the current one were used by earlier requests.
            let ago = entry.generation.wrapping_sub(generation);
            return Err(ago < entry.generation);
        }
        let (_, context) = entry.waiting.take().ok_or(generation != 0)?;
        self.free.push(index);
        Ok(context)
    }
}
