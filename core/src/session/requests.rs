//! One-sided requests of a session. Each ends as done, or as unknown with the reason. A request is repeated only if
//! that is sound.
//!
//! The request may have been done before its rail failed, and packets of a WRITE may still be on their way. So a WRITE is
//! repeated only when the peer accepts nothing more from the old connection: the peer has confirmed that, or has accepted
//! the rail's next connection. A READ is repeated at once. An atomic is never repeated, since it might be done twice.

use core::time::Duration;

use super::{Epoch, FinalReason, SESSION_RAILS_MAX};
use crate::{Deadline, Instant};

/// The delay before a request that the local device refused is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// Identifies a request of a session, until the request's end is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    place: u32,
    generation: u32,
}

impl RequestId {
    /// The place of the request in the table.
    #[must_use]
    pub fn place(self) -> usize {
        usize::try_from(self.place).unwrap_or(usize::MAX)
    }
}

/// The treatment of a request whose rail fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is no fourth way")]
pub enum Repeat {
    /// The request is repeated at once: it changes nothing.
    AtOnce,
    /// The request is repeated when the peer accepts nothing more from the failed connection. It writes the same bytes again.
    OnceFenced,
    /// The request is not repeated, and it is unknown whether it was done.
    Never,
}

/// The reason why it is unknown whether a request was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnknownReason {
    /// The rail failed, and the request must not be repeated.
    RailFailed,
    /// The peer's device refused the request: wrong memory or missing rights.
    Denied,
    /// The peer withdrew the window.
    Withdrawn,
    /// No rail led to the window in time.
    NoRail,
    /// The local device accepted the request on no rail in time: it refused the post, or has no depth for READs and atomics.
    Refused,
    /// Rails led to the window, and none had room for the request in time: its queue or the Worker's memory was used up, or a limit of the
    /// class held the request back.
    NoRoom,
    /// The session is over.
    Over(FinalReason),
}

impl core::fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::RailFailed => {
                f.write_str("the rail failed, and an atomic is never posted twice: the outcome is unknown")
            }
            Self::Denied => f.write_str("the peer's device refused it"),
            Self::Withdrawn => f.write_str("the peer has withdrawn the window"),
            Self::NoRail => f.write_str("no rail led to the window in time"),
            Self::Refused => f.write_str("our device refused it"),
            Self::NoRoom => f.write_str("no rail to the window had room for it in time"),
            Self::Over(reason) => write!(f, "the link is over: {reason}"),
        }
    }
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "it is known or it is not")]
pub enum RequestEnd {
    /// The request was done; a request that may be repeated, possibly more than once.
    Done,
    /// The outcome is unknown.
    Unknown {
        /// Whether it was posted at all. If not, it was not done.
        was_posted: bool,
        /// The reason.
        reason: UnknownReason,
    },
}

/// The reason why a request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestRefusal {
    /// The maximum number of requests is open: backpressure.
    Full,
    /// The peer granted no such window, or withdrew it.
    NoWindow,
    /// Caller misuse: the request has more bytes than allowed.
    TooLong {
        /// The bytes of the request.
        bytes: u64,
        /// The maximum.
        bytes_max: u32,
    },
    /// Caller misuse: the request exceeds the window.
    OutOfWindow {
        /// The offset at which the request begins.
        offset: u64,
        /// The bytes of the request.
        bytes: u32,
        /// The bytes of the window.
        window_bytes: u64,
    },
    /// Caller misuse: an atomic at an address that is not a multiple of eight.
    Misaligned {
        /// The offset in the window.
        offset: u64,
    },
    /// Caller misuse: the window does not grant this operation.
    NotGranted,
    /// The session is being closed.
    Closing,
    /// The session is over.
    Over(FinalReason),
}

impl core::fmt::Display for RequestRefusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Over(reason) => return write!(f, "the session is over: {reason}"),
            Self::Full => "the limit on open requests is reached: poll, and try again",
            Self::NoWindow => "the peer has granted no such window, or withdrawn it: wait for another grant",
            Self::TooLong { bytes, bytes_max } => {
                return write!(
                    f,
                    "the request has {bytes} bytes, and {bytes_max} is the limit: send several requests"
                );
            }
            Self::OutOfWindow {
                offset,
                bytes,
                window_bytes,
            } => {
                return write!(
                    f,
                    "{bytes} bytes at offset {offset} exceed the window of {window_bytes} bytes: stay within it"
                );
            }
            Self::Misaligned { offset } => {
                return write!(
                    f,
                    "the atomic at offset {offset} is not aligned: use an address that is a multiple of 8"
                );
            }
            Self::NotGranted => "the window is not granted for this: let the peer grant the access",
            Self::Closing => "the session is being closed: begin a new link",
        })
    }
}

impl core::error::Error for RequestRefusal {}

/// The state of a request. The caller only makes a table of these.
#[derive(Clone, Copy, Debug)]
pub struct KeptRequest {
    state: State,
    generation: u32,
    window: u32,
    repeat: Repeat,
    was_posted: bool,
    was_lost: bool,
    /// Whether its window was withdrawn.
    is_withdrawn: bool,
    /// Whether it ends instead of being repeated.
    is_given_up: bool,
    /// Whether the local device refused it at the last attempt.
    was_refused: bool,
    /// The time of the next attempt after that, until it has passed.
    again: Option<Deadline>,
    /// The deadline for a waiting request to be posted.
    until: Deadline,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Waits for a rail.
    Waiting,
    /// Posted on a rail's connection.
    Posted {
        rail: u8,
        epoch: Epoch,
    },
    /// Waits until the peer accepts nothing more from that connection.
    Fencing {
        rail: u8,
        epoch: Epoch,
    },
    /// Requests of another table execute it, and [`Requests::end_long`] ends it.
    Long,
    /// Ended; the end is not reported yet.
    Ended(RequestEnd),
}

impl Default for KeptRequest {
    fn default() -> Self {
        Self {
            state: State::Free,
            generation: 0,
            window: 0,
            repeat: Repeat::Never,
            was_posted: false,
            was_lost: false,
            is_withdrawn: false,
            is_given_up: false,
            was_refused: false,
            again: None,
            until: Deadline::at(Instant::from_ns(0)),
        }
    }
}

/// The requests of a session.
#[derive(Debug)]
pub struct Requests<T> {
    table: T,
    /// The number of places that are not free. If it is zero, the table is not searched.
    taken: u32,
    patience: Duration,
    /// For each rail, the connection from which the peer has to stop accepting requests.
    fences: [Option<Fence>; SESSION_RAILS_MAX as usize],
}

#[derive(Clone, Copy, Debug)]
struct Fence {
    epoch: Epoch,
    is_asked: bool,
}

impl<T: AsRef<[KeptRequest]> + AsMut<[KeptRequest]>> Requests<T> {
    /// An empty set, for as many requests as the table has places. A request that no rail accepts ends after `patience`.
    pub const fn new(table: T, patience: Duration) -> Self {
        Self {
            table,
            taken: 0,
            patience,
            fences: [None; SESSION_RAILS_MAX as usize],
        }
    }

    /// Accepts a request; `None` if there is no room.
    pub fn begin(&mut self, window: u32, repeat: Repeat, now: Instant) -> Option<RequestId> {
        self.begin_as(State::Waiting, (window, repeat), now)
    }

    /// Accepts a request that requests of another table execute. It waits for no rail, and only
    /// [`Requests::end_long`] ends it. `None` if there is no room.
    pub fn begin_long(&mut self, window: u32, now: Instant) -> Option<RequestId> {
        self.begin_as(State::Long, (window, Repeat::Never), now)
    }

    fn begin_as(&mut self, state: State, (window, repeat): (u32, Repeat), now: Instant) -> Option<RequestId> {
        let until = Deadline::after(now, self.patience);
        let (place, kept) = (0_u32..)
            .zip(self.table.as_mut())
            .find(|(_, kept)| kept.state == State::Free)?;
        let generation = kept.generation;
        *kept = KeptRequest {
            state,
            generation,
            window,
            repeat,
            until,
            ..KeptRequest::default()
        };
        self.taken = self.taken.saturating_add(1);
        Some(RequestId { place, generation })
    }

    /// All places, or none if all are free.
    fn places(&self) -> &[KeptRequest] {
        match self.taken {
            0 => &[],
            _ => self.table.as_ref(),
        }
    }

    fn places_mut(&mut self) -> &mut [KeptRequest] {
        match self.taken {
            0 => &mut [],
            _ => self.table.as_mut(),
        }
    }

    fn each(&mut self) -> impl Iterator<Item = &mut KeptRequest> {
        self.places_mut().iter_mut()
    }

    /// Returns the requests that wait for a rail and are due for an attempt, each with its window.
    pub fn waiting(&self, now: Instant) -> impl Iterator<Item = (RequestId, u32)> {
        (0_u32..).zip(self.places()).filter_map(move |(place, kept)| {
            let generation = kept.generation;
            let is_due = kept.again.is_none_or(|again| again.has_passed(now));
            let is_next = kept.state == State::Waiting && is_due;
            is_next.then_some((RequestId { place, generation }, kept.window))
        })
    }

    fn of(&mut self, id: RequestId) -> Option<&mut KeptRequest> {
        let kept = self.table.as_mut().get_mut(id.place())?;
        (kept.generation == id.generation && kept.state != State::Free).then_some(kept)
    }

    /// Notes that a waiting request is posted on a rail's connection.
    pub fn posted(&mut self, id: RequestId, rail: u8, epoch: Epoch) {
        if let Some(kept) = self.of(id).filter(|kept| kept.state == State::Waiting) {
            kept.state = State::Posted { rail, epoch };
            (kept.was_posted, kept.was_refused, kept.again) = (true, false, None);
        }
    }

    /// Notes that the local device refused a waiting request. It is tried again a little later. If a rail leads to its window
    /// when its time is over, it ends with [`UnknownReason::Refused`].
    pub fn refused(&mut self, id: RequestId, now: Instant) {
        if let Some(kept) = self.of(id) {
            (kept.was_refused, kept.again) = (true, Some(Deadline::after(now, TRY_AGAIN)));
        }
    }

    /// Notes that a request is done, on the connection of its last post. Returns whether it was awaited there.
    pub fn done(&mut self, id: RequestId) -> bool {
        let kept = self.of(id);
        let Some(kept) = kept.filter(|kept| matches!(kept.state, State::Posted { .. })) else {
            return false;
        };
        kept.state = State::Ended(RequestEnd::Done);
        true
    }

    /// Ends a request of [`Requests::begin_long`].
    pub fn end_long(&mut self, id: RequestId, end: RequestEnd) {
        if let Some(kept) = self.of(id).filter(|kept| kept.state == State::Long) {
            kept.state = State::Ended(end);
        }
    }

    /// Gives a request up. If it waits for a rail, it ends for this reason. Otherwise it ends without being repeated; a request
    /// that waits for a fence ends after the fence.
    pub fn give_up(&mut self, id: RequestId, reason: UnknownReason) {
        match self.of(id) {
            Some(kept) if kept.state == State::Waiting => kept.end(reason),
            Some(kept) => kept.is_given_up = true,
            None => {}
        }
    }

    /// Notes that the peer's device refused a request. The rail's connection failed with it, and this may have been
    /// reported already.
    pub fn denied(&mut self, id: RequestId) {
        let kept = self.of(id);
        if let Some(kept) = kept.filter(|kept| kept.was_posted && !matches!(kept.state, State::Ended(_))) {
            kept.end(UnknownReason::Denied);
        }
    }

    /// Notes that a rail's connection is lost: each request posted on it waits, is repeated, or ends.
    pub fn rail_lost(&mut self, rail: u8, now: Instant) {
        let until = Deadline::after(now, self.patience);
        let mut fenced = None;
        for kept in self.each() {
            let State::Posted { rail: on, epoch } = kept.state else {
                continue;
            };
            if on != rail {
                continue;
            }
            // The patience counts from the first loss, even if the request is repeated several times.
            if !core::mem::replace(&mut kept.was_lost, true) {
                kept.until = until;
            }
            match kept.repeat {
                Repeat::Never => kept.end(UnknownReason::RailFailed),
                Repeat::AtOnce if kept.is_given_up => kept.end(UnknownReason::RailFailed),
                // The window is gone, so the request cannot be repeated.
                _ if kept.is_withdrawn => kept.end(UnknownReason::Withdrawn),
                Repeat::AtOnce => kept.state = State::Waiting,
                Repeat::OnceFenced => {
                    kept.state = State::Fencing { rail, epoch };
                    fenced = fenced.max(Some(epoch));
                }
            }
        }
        if let (Some(epoch), Some(fence)) = (fenced, self.fences.get_mut(usize::from(rail))) {
            *fence = Some(Fence {
                epoch,
                is_asked: false,
            });
        }
        // Frames sent over the lost rail may not have arrived, so fences are asked for again.
        for fence in self.fences.iter_mut().flatten() {
            fence.is_asked = false;
        }
    }

    /// Requests a fence of a rail's connection for other requests that it carried.
    pub fn fence(&mut self, rail: u8, epoch: Epoch) {
        if let Some(fence) = self.fences.get_mut(usize::from(rail)) {
            let known = fence.map_or(Epoch::NONE, |fence| fence.epoch);
            *fence = Some(Fence {
                epoch: epoch.max(known),
                is_asked: false,
            });
        }
    }

    /// Returns the next connection for which a fence has to be sent to the peer.
    pub fn fence_due(&self) -> Option<(u8, Epoch)> {
        (0_u8..).zip(&self.fences).find_map(|(rail, fence)| {
            let fence = fence.as_ref().filter(|fence| !fence.is_asked)?;
            Some((rail, fence.epoch))
        })
    }

    /// Notes that the fence of a rail's connection was sent.
    pub fn fence_asked(&mut self, rail: u8) {
        if let Some(Some(fence)) = self.fences.get_mut(usize::from(rail)) {
            fence.is_asked = true;
        }
    }

    /// Notes that the peer accepts nothing more from a rail's connections up to this one.
    pub fn fenced(&mut self, rail: u8, through: Epoch) {
        for kept in self.each() {
            if let State::Fencing { rail: of, epoch } = kept.state {
                if of == rail && epoch <= through {
                    match kept.repeat {
                        Repeat::AtOnce | Repeat::OnceFenced if !kept.is_given_up => {
                            kept.state = State::Waiting
                        }
                        _ => kept.end(UnknownReason::RailFailed),
                    }
                }
            }
        }
        if let Some(fence) = self.fences.get_mut(usize::from(rail)) {
            fence.take_if(|fence| fence.epoch <= through);
        }
    }

    /// Notes that a window is withdrawn. Waiting requests for it end. Posted requests end by their completion, or with their
    /// rail.
    pub fn withdrawn(&mut self, window: u32) {
        for kept in self.each().filter(|kept| kept.window == window) {
            kept.is_withdrawn = true;
            if kept.waits() {
                kept.end(UnknownReason::Withdrawn);
            }
        }
    }

    /// Makes requests due whose time of another attempt has come. Such a request waits for a rail like any other: no time
    /// announces it again. Returns the first request that no rail accepted in time, with its window: end it by
    /// [`Requests::end_late`], and call again.
    pub fn look_at_deadlines(&mut self, now: Instant) -> Option<(RequestId, u32)> {
        let mut late = None;
        for (place, kept) in (0_u32..).zip(self.places_mut()) {
            kept.again.take_if(|again| again.has_passed(now));
            if late.is_none() && kept.waits() && kept.until.has_passed(now) {
                let generation = kept.generation;
                late = Some((RequestId { place, generation }, kept.window));
            }
        }
        late
    }

    /// Ends a waiting request that no rail accepted in time. `is_reached` tells whether a rail leads to its window now.
    pub fn end_late(&mut self, id: RequestId, is_reached: bool) {
        if let Some(kept) = self.of(id).filter(|kept| kept.waits()) {
            kept.end(match kept.state {
                State::Waiting if is_reached && kept.was_refused => UnknownReason::Refused,
                State::Waiting if is_reached => UnknownReason::NoRoom,
                _ => UnknownReason::NoRail,
            });
        }
    }

    /// The earliest deadline of a waiting request.
    pub fn wake(&self) -> Option<Deadline> {
        let open = self.places().iter().filter(|kept| kept.waits());
        open.map(|kept| kept.again.map_or(kept.until, |again| again.min(kept.until)))
            .min()
    }

    /// Whether any request has not ended.
    pub fn is_any_open(&self) -> bool {
        self.places().iter().any(KeptRequest::is_open)
    }

    /// Notes that the session is over: all open requests end, except those of [`Requests::begin_long`].
    pub fn over(&mut self, reason: FinalReason) {
        for kept in self
            .each()
            .filter(|kept| kept.is_open() && kept.state != State::Long)
        {
            kept.end(UnknownReason::Over(reason));
        }
    }

    /// Returns the next end, until there is none, and frees its place.
    pub fn poll_end(&mut self) -> Option<(RequestId, RequestEnd)> {
        let ended = (0_u32..).zip(self.places_mut()).find_map(|(place, kept)| {
            let State::Ended(end) = kept.state else {
                return None;
            };
            let generation = kept.generation;
            kept.state = State::Free;
            kept.generation = generation.wrapping_add(1);
            Some((RequestId { place, generation }, end))
        });
        self.taken = self.taken.saturating_sub(u32::from(ended.is_some()));
        ended
    }
}

impl KeptRequest {
    const fn is_open(&self) -> bool {
        !matches!(self.state, State::Free | State::Ended(_))
    }

    /// Whether it waits to be posted, for the first time or again.
    const fn waits(&self) -> bool {
        matches!(self.state, State::Waiting | State::Fencing { .. })
    }

    fn end(&mut self, reason: UnknownReason) {
        let was_posted = self.was_posted;
        self.state = State::Ended(RequestEnd::Unknown { was_posted, reason });
    }
}

#[cfg(test)]
mod tests;
