//! The session itself: its calls, and its state.

mod act;
mod attach;
mod receive;
mod report;

use core::fmt;

use super::rail::Rail;
use super::{
    Epoch, Fragment, HealthState, Inbox, Kept, Outbox, Retained, SESSION_RAILS_MAX, SESSION_WINDOW_MAX,
    Sequence, SessionConfig, SessionId,
};
use crate::wire::{AttachParameters, RefusalReason, SessionHeader};
use crate::{Deadline, Instant};

use report::Reported;

/// Which of the two sides connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are two sides")]
pub enum Role {
    /// This side connects, and again when a rail fails.
    Initiator,
    /// The peer connects.
    Responder,
}

/// One ordered stream of messages each way between two processes, each message exactly once.
///
/// The caller keeps the bytes: of what is to be sent at the places of the outbox's table, of what is early at those
/// of the inbox's.
#[derive(Debug)]
pub struct Session<O, I> {
    config: SessionConfig,
    role: Role,
    id: SessionId,
    /// The highest there was.
    epoch: Epoch,
    rails: [Rail; SESSION_RAILS_MAX as usize],
    /// All rails from this one on were never used.
    rails_end: u8,
    outbox: Outbox<O>,
    inbox: Inbox<I>,
    /// Fragments the peer takes from the one it expects.
    peer_window: u64,
    owed: Owed,
    /// When the peer last acknowledged something, or had nothing to.
    progress_at: Instant,
    is_stalled: bool,
    phase: Phase,
    /// Whether there ever was a rail.
    was_attached: bool,
    closing: Option<Closing>,
    /// Whether the caller awaits the end of a request that is no message.
    awaits_beside: bool,
    /// The number after the peer's last fragment, once it said farewell.
    peer_end: Option<Sequence>,
    reported: Reported,
    counts: SessionCounts,
}

/// Acknowledgement that the peer is owed.
#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    fragments: u32,
    since: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There was no rail yet.
    Beginning {
        until: Deadline,
    },
    Connected,
    /// There is none any more.
    Recovering {
        until: Deadline,
    },
    Over(FinalReason),
}

#[derive(Clone, Copy, Debug)]
struct Closing {
    until: Deadline,
    /// The rail over which farewell was said.
    farewell: Option<u8>,
    /// Whether it ever was, over any rail.
    was_said: bool,
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinalReason {
    /// It was closed here.
    Closed,
    /// The peer closed it.
    PeerClosed,
    /// The peer's process is gone, and another one is at every address. Or no rail was available in time, and another
    /// process was at some address.
    PeerRestarted,
    /// No rail was available in time.
    Unreachable,
    /// The peer refused it from the beginning.
    Refused(RefusalReason),
    /// The peer's process has ended the session for a reason of its own, or does not know it any more.
    EndedByPeer(RefusalReason),
    /// The peer broke the protocol.
    Violation(Violation),
    /// The peer takes no message as long as a fragment.
    Unsuitable,
    /// The epochs ran out: there were as many connections as there are epochs.
    EpochsExhausted,
}

/// Behaviour that no honest peer shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// It acknowledged fragments that were not sent.
    AcknowledgedUnsent,
    /// It sent beyond the window, or a fragment that is out of place in its message.
    OutOfPlace,
    /// It dropped fragments that this side had not acknowledged.
    LetGo,
    /// It said farewell before its last message.
    FarewellEarly,
    /// It sent a frame that is none, or one out of turn.
    Malformed,
    /// Its message is longer than this side takes.
    TooLong,
    /// A fragment came early that is longer than this side's fragments, so that there is no room to keep it.
    FragmentTooLong,
}

/// Why a message was not taken in to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushRefusal {
    /// The peer has not acknowledged enough: backpressure.
    Full,
    /// There is no rail at the moment.
    Recovering,
    /// The message has more bytes than are kept until the peer acknowledges them.
    TooLong {
        /// The bytes of the message.
        bytes: u64,
        /// The most there may be.
        bytes_max: u64,
    },
    /// The session is being closed.
    Closing,
    /// The session is over.
    Over(FinalReason),
}

/// Action that a session wants done. Except for [`Action::Connect`] and [`Action::Shut`], it returns the action again
/// until [`Session::did`], or [`Session::blocked`] for this turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Connect this rail; then [`Session::connected`] or [`Session::connect_failed`].
    Connect {
        /// The rail.
        rail: u8,
        /// The epoch of the connection, if it comes about.
        epoch: Epoch,
    },
    /// Say this first on the rail's new connection.
    Attach {
        /// The rail.
        rail: u8,
        /// The frame to send.
        said: AttachParameters,
    },
    /// Send a fragment.
    Transmit {
        /// The rail.
        rail: u8,
        /// The header in front of the fragment.
        header: SessionHeader,
        /// The fragment; its bytes are at its place.
        fragment: Fragment,
    },
    /// Send an acknowledgement alone.
    Acknowledge {
        /// The rail.
        rail: u8,
        /// The frame to send.
        header: SessionHeader,
    },
    /// Ask the peer's transport, and not its process, for a sign of life.
    Probe {
        /// The rail.
        rail: u8,
    },
    /// Say farewell.
    Farewell {
        /// The rail.
        rail: u8,
        /// The frame to send.
        header: SessionHeader,
    },
    /// Fail the rail's connection, and forget it.
    Shut {
        /// The rail.
        rail: u8,
    },
}

/// Result of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is something to do with it, or not")]
pub enum Received {
    /// The next fragment: deliver it, then ask [`Session::take_held`].
    InOrder,
    /// A fragment ahead of the one expected: keep its bytes at this place.
    Early {
        /// The place.
        place: usize,
    },
    /// No data for the application.
    Nothing,
    /// A frame beside the messages, over a connection that is a rail: the caller acts on it.
    Beside,
}

/// The rail that a connection became, and whether it replaces another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The rail.
    pub rail: u8,
    /// Whether the rail has another connection, which is to be shut.
    pub replaces: bool,
}

/// Event of a session, for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionEvent {
    /// The first rail is there.
    Connected,
    /// The last rail failed. Unacknowledged messages are kept, and will be retransmitted.
    Recovering,
    /// There is a rail again.
    Recovered,
    /// A rail is used.
    RailUp {
        /// The rail.
        rail: u8,
    },
    /// A rail failed.
    RailDown {
        /// The rail.
        rail: u8,
    },
    /// All messages up to the one this fragment ends are with the peer's session.
    Done {
        /// The last fragment.
        through: Sequence,
    },
    /// The peer's transport answers, but its process takes no messages: backpressure.
    Stalled,
    /// The peer's process takes messages again.
    Resumed,
    /// It will never be known whether the peer has this message: the session is over.
    Unknown {
        /// The last fragment of the message.
        sequence: Sequence,
        /// Whether it was sent at all: if not, the peer does not have it.
        was_sent: bool,
        /// Why.
        reason: FinalReason,
    },
    /// The session is over. Nothing comes after it.
    Final {
        /// Why.
        reason: FinalReason,
    },
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionCounts {
    /// Fragments sent, each time.
    pub sent: u64,
    /// Fragments that were retransmitted after their rail failed; `sent` counts them, too.
    pub sent_again: u64,
    /// Fragments that were written into memory that the peer lent, each time; `sent` counts them, too.
    pub placed: u64,
    /// Fragments that arrived before one that they follow.
    pub early: u64,
    /// Fragments that arrived again.
    pub duplicates: u64,
    /// Frames of another epoch than the connection they came over.
    pub old_epoch: u64,
    /// Acknowledgements that were sent alone.
    pub acknowledgements: u64,
    /// Signs of life asked for.
    pub probes: u64,
    /// Rails given up because they did not answer.
    pub rails_dead: u64,
    /// Times there was no rail.
    pub recoveries: u64,
}

impl SessionCounts {
    /// Adds the counters of two sessions.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            sent: self.sent.saturating_add(other.sent),
            sent_again: self.sent_again.saturating_add(other.sent_again),
            placed: self.placed.saturating_add(other.placed),
            early: self.early.saturating_add(other.early),
            duplicates: self.duplicates.saturating_add(other.duplicates),
            old_epoch: self.old_epoch.saturating_add(other.old_epoch),
            acknowledgements: self.acknowledgements.saturating_add(other.acknowledgements),
            probes: self.probes.saturating_add(other.probes),
            rails_dead: self.rails_dead.saturating_add(other.rails_dead),
            recoveries: self.recoveries.saturating_add(other.recoveries),
        }
    }
}

/// Range of the fragments of a message that are not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsent {
    /// The first fragment.
    pub first: Sequence,
    /// The last one, by which the message is named in events.
    pub last: Sequence,
}

impl<O, I> Session<O, I>
where
    O: AsRef<[Retained]> + AsMut<[Retained]>,
    I: AsRef<[Kept]> + AsMut<[Kept]>,
{
    /// Makes a session that is not connected yet. It ends if it is not connected within the time to recover. The tables
    /// hold the fragments to send, and the fragments that are early.
    pub fn new(config: SessionConfig, role: Role, id: SessionId, tables: (O, I), now: Instant) -> Self {
        Self {
            config,
            role,
            id,
            epoch: Epoch::NONE,
            rails: [const { Rail::unused() }; SESSION_RAILS_MAX as usize],
            rails_end: 0,
            outbox: Outbox::new(tables.0),
            inbox: Inbox::new(tables.1),
            peer_window: 0,
            owed: Owed::default(),
            progress_at: now,
            is_stalled: false,
            phase: Phase::Beginning {
                until: Deadline::after(now, config.recover_within),
            },
            was_attached: false,
            closing: None,
            awaits_beside: false,
            peer_end: None,
            reported: Reported::default(),
            counts: SessionCounts::default(),
        }
    }

    /// Its name.
    pub const fn id(&self) -> SessionId {
        self.id
    }

    /// Which side it is.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Returns its settings.
    pub const fn config(&self) -> &SessionConfig {
        &self.config
    }

    /// Why it is over, if it is.
    pub const fn over(&self) -> Option<FinalReason> {
        match self.phase {
            Phase::Over(reason) => Some(reason),
            _ => None,
        }
    }

    /// Whether there is a rail.
    pub const fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Connected)
    }

    /// Whether the peer's transport answers, and its process takes no messages.
    pub const fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// All rails from this number on were never used: loops over rails end there.
    pub const fn rails_end(&self) -> u8 {
        self.rails_end
    }

    fn rails(&self) -> &[Rail] {
        self.rails.get(..usize::from(self.rails_end)).unwrap_or_default()
    }

    fn rails_mut(&mut self) -> &mut [Rail] {
        self.rails
            .get_mut(..usize::from(self.rails_end))
            .unwrap_or_default()
    }

    /// How a rail is.
    pub fn rail_state(&self, rail: u8) -> HealthState {
        self.rails
            .get(usize::from(rail))
            .filter(|rail| rail.is_usable())
            .map_or(HealthState::Down, |rail| rail.health.state())
    }

    /// The epoch of a rail's connection, or of the last one it had.
    pub fn rail_epoch(&self, rail: u8) -> Epoch {
        self.rails
            .get(usize::from(rail))
            .map_or(Epoch::NONE, |rail| rail.epoch)
    }

    /// When a rail last gave a sign of life: something arrived, or a request completed. Kept when it fails: how long it was silent
    /// until then.
    pub fn rail_heard_at(&self, rail: u8) -> Option<Instant> {
        self.rails.get(usize::from(rail))?.heard_at
    }

    /// Returns its counters.
    pub fn counts(&self) -> SessionCounts {
        SessionCounts {
            early: self.inbox.early(),
            duplicates: self.inbox.duplicates(),
            ..self.counts
        }
    }

    /// The fragment of the peer's that is taken next.
    pub const fn expected(&self) -> Sequence {
        self.inbox.expected()
    }

    /// Fragments that are kept, and not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        self.outbox.next().since(self.outbox.oldest())
    }

    /// Whether everything that was given to it is acknowledged.
    pub fn is_drained(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Whether it is being closed here.
    pub const fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// How many bytes each fragment of a message has but the last, where a rail carries so many at most.
    pub fn fragment_bytes(&self, rail_bytes_max: u32) -> u32 {
        self.config.fragment_bytes.min(rail_bytes_max).max(1)
    }

    /// Takes in a message of so many bytes, in fragments of at most so many: all of it, or nothing. The caller puts its
    /// bytes to the places of the fragments ([`Session::kept`]).
    ///
    /// # Errors
    /// [`PushRefusal`]: nothing was taken in.
    pub fn push(&mut self, bytes: u64, fragment_bytes: u32) -> Result<Unsent, PushRefusal> {
        self.take_in((bytes, fragment_bytes), false)
    }

    /// Takes in a message of one fragment as [`Session::push`] does. Returns its number, and the place of its bytes.
    ///
    /// # Errors
    /// [`PushRefusal`]: nothing was taken in.
    #[inline]
    pub fn push_whole(&mut self, bytes: u32) -> Result<(Sequence, usize), PushRefusal> {
        self.check_takes()?;
        let sequence = self.outbox.next();
        let place = self.outbox.push(bytes, true, true, false);
        Ok((sequence, place.ok_or(PushRefusal::Full)?))
    }

    /// Takes in a message as [`Session::push`] does, whose fragments are written into memory that the peer lent.
    ///
    /// # Errors
    /// [`PushRefusal`]: nothing was taken in.
    pub fn push_placed(&mut self, bytes: u64, fragment_bytes: u32) -> Result<Unsent, PushRefusal> {
        self.take_in((bytes, fragment_bytes), true)
    }

    fn take_in(
        &mut self,
        (bytes, fragment_bytes): (u64, u32),
        is_placed: bool,
    ) -> Result<Unsent, PushRefusal> {
        self.check_takes()?;
        let each = u64::from(fragment_bytes.max(1));
        let count = bytes.div_ceil(each).max(1);
        if count > self.outbox.capacity() {
            return Err(PushRefusal::TooLong {
                bytes,
                bytes_max: self.outbox.capacity().saturating_mul(each),
            });
        }
        if count > self.outbox.room() {
            return Err(PushRefusal::Full);
        }
        let first = self.outbox.next();
        let (mut left, mut number) = (bytes, 0_u64);
        while number < count {
            let these = left.min(each);
            left = left.saturating_sub(these);
            let is_last = number.saturating_add(1) == count;
            // Below 2^32, being no more than a fragment's.
            let these = u32::try_from(these).unwrap_or(u32::MAX);
            if self.outbox.push(these, number == 0, is_last, is_placed).is_none() {
                return Err(PushRefusal::Full);
            }
            number = number.saturating_add(1);
        }
        Ok(Unsent {
            first,
            last: self.outbox.next().before(),
        })
    }

    /// Whether a message may be taken in now.
    #[inline]
    const fn check_takes(&self) -> Result<(), PushRefusal> {
        match self.phase {
            Phase::Over(reason) => Err(PushRefusal::Over(reason)),
            _ if self.closing.is_some() => Err(PushRefusal::Closing),
            Phase::Connected => Ok(()),
            Phase::Beginning { .. } | Phase::Recovering { .. } => Err(PushRefusal::Recovering),
        }
    }

    /// A fragment that is not acknowledged.
    pub fn kept(&self, sequence: Sequence) -> Option<Fragment> {
        self.outbox.get(sequence)
    }

    /// Closes the session once everything is acknowledged and nothing is awaited beside messages, and at the deadline
    /// in any case. It takes nothing more in. If it is called again, the earliest deadline counts.
    pub fn close(&mut self, until: Deadline) {
        let closing = self.closing.get_or_insert(Closing {
            until,
            farewell: None,
            was_said: false,
        });
        closing.until = closing.until.min(until);
    }

    /// Notes whether a request of the caller's, beside messages, has not ended yet. A session that is being closed
    /// waits for it, too.
    pub fn await_beside(&mut self, awaits: bool) {
        self.awaits_beside = awaits;
    }

    /// Whether everything that was given to it has ended, messages and requests beside them.
    fn has_nothing_open(&self) -> bool {
        self.outbox.is_empty() && !self.awaits_beside
    }

    /// Ends it, for a reason that the caller has found.
    pub fn fail(&mut self, reason: FinalReason) {
        self.end(reason);
    }

    fn end(&mut self, reason: FinalReason) {
        if matches!(self.phase, Phase::Over(_)) {
            return;
        }
        self.phase = Phase::Over(reason);
        self.is_stalled = false;
        for rail in &mut self.rails {
            rail.detach(None);
        }
    }

    /// Returns the last frame's reason for each connection that is shut: why the session is over. `None` if the peer
    /// ended it, or if a farewell said so already.
    pub fn last_word(&self) -> Option<RefusalReason> {
        let reason = self.over()?;
        let has_said = self.closing.is_some_and(|closing| closing.farewell.is_some());
        match reason {
            FinalReason::PeerClosed | FinalReason::EndedByPeer(_) | FinalReason::Refused(_) => None,
            FinalReason::Closed if has_said => None,
            _ => Some(reason.to_refusal()),
        }
    }

    fn window_announced(&self) -> u32 {
        u32::try_from(self.inbox.window())
            .unwrap_or(u32::MAX)
            .min(SESSION_WINDOW_MAX)
    }
}

impl FinalReason {
    /// Returns the reason that the peer gets.
    #[must_use]
    pub const fn to_refusal(self) -> RefusalReason {
        match self {
            Self::Closed | Self::PeerClosed => RefusalReason::OVER,
            Self::Violation(Violation::TooLong | Violation::FragmentTooLong) => RefusalReason::TOO_LONG,
            Self::Violation(_) => RefusalReason::BROKEN,
            Self::PeerRestarted
            | Self::Unreachable
            | Self::Refused(_)
            | Self::EndedByPeer(_)
            | Self::Unsuitable
            | Self::EpochsExhausted => RefusalReason::GIVEN_UP,
        }
    }
}

impl fmt::Display for FinalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it was closed"),
            Self::PeerClosed => f.write_str("the peer closed it"),
            Self::PeerRestarted => {
                f.write_str("another process answers at the peer's addresses: the peer was restarted")
            }
            Self::Unreachable => f.write_str("the peer could not be reached in time"),
            Self::Refused(reason) => write!(f, "the peer refused the link: {reason}"),
            Self::EndedByPeer(reason) => match *reason {
                RefusalReason::GIVEN_UP => {
                    f.write_str("the peer ended the link: no rail to this side in time")
                }
                RefusalReason::BROKEN => {
                    f.write_str("the peer ended the link: a frame of this side broke the protocol")
                }
                RefusalReason::TOO_LONG => {
                    f.write_str("the peer ended the link: a message exceeds the peer's message_bytes_max, or a fragment its fragment_bytes")
                }
                RefusalReason::UNKNOWN_SESSION => {
                    f.write_str("the peer ended the link earlier, and has no record of the reason")
                }
                other => write!(f, "the peer ended the link: {other}"),
            },
            Self::Violation(violation) => write!(f, "the peer broke the rules: {violation}"),
            Self::Unsuitable => f.write_str("the peer's receives are shorter than a fragment"),
            Self::EpochsExhausted => f.write_str("the link was connected 2^32 times: begin a new link"),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AcknowledgedUnsent => "it acknowledged what was not sent",
            Self::OutOfPlace => "it sent a fragment that is out of place",
            Self::LetGo => "it dropped what was not acknowledged",
            Self::FarewellEarly => "it said farewell before its last message",
            Self::Malformed => "it sent an invalid frame, or a frame out of turn",
            Self::TooLong => "its message is longer than this side accepts",
            Self::FragmentTooLong => "its fragment came early and is longer than fragment_bytes of this side: use the same on both sides",
        })
    }
}

impl fmt::Display for PushRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the peer has not acknowledged enough: poll, and try again"),
            Self::Recovering => f.write_str("there is no rail at the moment: poll, and try again"),
            Self::TooLong { bytes, bytes_max } => write!(
                f,
                "the message has {bytes} bytes, and {bytes_max} is the limit: send less, or raise message_bytes_max and retained"
            ),
            Self::Closing => f.write_str("the session is being closed: begin a new link"),
            Self::Over(reason) => write!(f, "the session is over: {reason}"),
        }
    }
}

impl core::error::Error for PushRefusal {}
