//! The session: its calls and its state.

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

/// The role of a side in connecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are two sides")]
pub enum Role {
    /// This side connects, and reconnects when a rail fails.
    Initiator,
    /// The peer connects.
    Responder,
}

/// One ordered stream of messages in each direction between two processes, each delivered exactly once.
///
/// The caller keeps the bytes. Bytes to send are at the places of the outbox's table, and bytes of early fragments at
/// the places of the inbox's table.
#[derive(Debug)]
pub struct Session<O, I> {
    config: SessionConfig,
    role: Role,
    id: SessionId,
    /// The highest epoch so far.
    epoch: Epoch,
    rails: [Rail; SESSION_RAILS_MAX as usize],
    /// Rails from this index on were never used.
    rails_end: u8,
    outbox: Outbox<O>,
    inbox: Inbox<I>,
    /// The number of fragments that the peer accepts from its expected one on.
    peer_window: u64,
    owed: Owed,
    /// When the peer last acknowledged a fragment, or had none to acknowledge.
    progress_at: Instant,
    is_stalled: bool,
    phase: Phase,
    /// Whether a rail was ever attached.
    was_attached: bool,
    closing: Option<Closing>,
    /// Whether the caller awaits the end of a request other than a message.
    awaits_beside: bool,
    /// The number after the peer's last fragment, after its farewell.
    peer_end: Option<Sequence>,
    reported: Reported,
    counts: SessionCounts,
}

/// The pending acknowledgement to the peer.
#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    fragments: u32,
    since: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No rail was attached yet.
    Beginning {
        until: Deadline,
    },
    Connected,
    /// No rail is attached any more.
    Recovering {
        until: Deadline,
    },
    Over(FinalReason),
}

#[derive(Clone, Copy, Debug)]
struct Closing {
    until: Deadline,
    /// The rail over which the farewell was sent.
    farewell: Option<u8>,
    /// Whether a farewell was ever sent, over any rail.
    was_said: bool,
}

/// The reason why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinalReason {
    /// This side closed it.
    Closed,
    /// The peer closed it.
    PeerClosed,
    /// The peer's process is gone, and another process answers at every address. Or no rail was available in time, and another
    /// process answered at some address.
    PeerRestarted,
    /// No rail was available in time.
    Unreachable,
    /// The peer refused the session at its beginning.
    Refused(RefusalReason),
    /// The peer's process ended the session for this reason, or does not know it any more.
    EndedByPeer(RefusalReason),
    /// The peer broke the protocol.
    Violation(Violation),
    /// The peer's receives are too short for a fragment.
    Unsuitable,
    /// The session had as many connections as there are epochs.
    EpochsExhausted,
}

/// Behaviour that no honest peer shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// The peer acknowledged fragments that were not sent.
    AcknowledgedUnsent,
    /// The peer sent a fragment beyond the window, or out of place in its message.
    OutOfPlace,
    /// The peer dropped fragments that this side had not acknowledged.
    LetGo,
    /// The peer sent a message after its farewell, or a farewell that omits a received message.
    FarewellEarly,
    /// The peer sent an invalid frame, or a frame out of turn.
    Malformed,
    /// The peer's message is longer than this side accepts.
    TooLong,
    /// A fragment came early that is longer than this side's fragments, so that there is no room to keep it.
    FragmentTooLong,
}

/// The reason why a message was not accepted for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushRefusal {
    /// Too many fragments are unacknowledged: backpressure.
    Full,
    /// No rail is attached at the moment.
    Recovering,
    /// The message has more bytes than can be retained for retransmission.
    TooLong {
        /// The bytes of the message.
        bytes: u64,
        /// The maximum.
        bytes_max: u64,
    },
    /// The session is being closed.
    Closing,
    /// The session is over.
    Over(FinalReason),
}

/// An action for the caller. Except for [`Action::Connect`] and [`Action::Shut`], the session returns the action again
/// until the caller calls [`Session::did`], or [`Session::blocked`] for this turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Connect this rail, then call [`Session::connected`] or [`Session::connect_failed`].
    Connect {
        /// The rail.
        rail: u8,
        /// The epoch of the new connection.
        epoch: Epoch,
    },
    /// Send this first frame on the rail's new connection.
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
        /// The header of the fragment.
        header: SessionHeader,
        /// The fragment; its bytes are at its place.
        fragment: Fragment,
    },
    /// Send an acknowledgement without data.
    Acknowledge {
        /// The rail.
        rail: u8,
        /// The frame to send.
        header: SessionHeader,
    },
    /// Send a heartbeat, which the peer's transport answers without its process.
    Probe {
        /// The rail.
        rail: u8,
    },
    /// Send the farewell.
    Farewell {
        /// The rail.
        rail: u8,
        /// The frame to send.
        header: SessionHeader,
    },
    /// Fail and drop the rail's connection.
    Shut {
        /// The rail.
        rail: u8,
    },
}

/// The result of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is something to do with it, or not")]
pub enum Received {
    /// The expected fragment: deliver it, then call [`Session::take_held`].
    InOrder,
    /// A fragment ahead of the expected one: keep its bytes at this place.
    Early {
        /// The place.
        place: usize,
    },
    /// The frame has no data for the application.
    Nothing,
    /// A frame other than a message, over an attached rail: the caller handles it.
    Beside,
}

/// The rail of an accepted connection, and whether it replaces another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The rail.
    pub rail: u8,
    /// Whether the rail has another connection, which the caller has to shut.
    pub replaces: bool,
}

/// An event of a session, for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionEvent {
    /// The first rail is attached.
    Connected,
    /// The last rail failed. Unacknowledged messages are kept, and will be retransmitted.
    Recovering,
    /// A rail is attached again.
    Recovered,
    /// A rail came up.
    RailUp {
        /// The rail.
        rail: u8,
    },
    /// A rail failed.
    RailDown {
        /// The rail.
        rail: u8,
    },
    /// The peer's session has acknowledged all fragments up to this one.
    Done {
        /// The last fragment.
        through: Sequence,
    },
    /// The peer's transport answers, but its process acknowledges no messages: backpressure.
    Stalled,
    /// The peer's process acknowledges messages again.
    Resumed,
    /// The session is over, and it cannot be known whether the peer has this message.
    Unknown {
        /// The last fragment of the message.
        sequence: Sequence,
        /// Whether it was sent at all. If not, the peer does not have it.
        was_sent: bool,
        /// The reason for the end of the session.
        reason: FinalReason,
    },
    /// The session is over. No event follows.
    Final {
        /// The reason.
        reason: FinalReason,
    },
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionCounts {
    /// Fragments sent, retransmissions included.
    pub sent: u64,
    /// Fragments that were retransmitted after their rail failed; `sent` counts them, too.
    pub sent_again: u64,
    /// Fragments that were written into memory that the peer lent, retransmissions included; `sent` counts them, too.
    pub placed: u64,
    /// Fragments that arrived ahead of the expected one.
    pub early: u64,
    /// Fragments that arrived more than once.
    pub duplicates: u64,
    /// Frames of another epoch than that of their connection.
    pub old_epoch: u64,
    /// Acknowledgements that were sent without data.
    pub acknowledgements: u64,
    /// Heartbeats sent.
    pub probes: u64,
    /// Rails given up because they did not answer.
    pub rails_dead: u64,
    /// How many times the last rail was lost.
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

/// The fragments of a message that was accepted for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsent {
    /// The first fragment.
    pub first: Sequence,
    /// The last fragment, which identifies the message in events.
    pub last: Sequence,
}

impl<O, I> Session<O, I>
where
    O: AsRef<[Retained]> + AsMut<[Retained]>,
    I: AsRef<[Kept]> + AsMut<[Kept]>,
{
    /// Makes a session that is not connected yet. It ends if it is not connected within `recover_within`. The tables
    /// are for the fragments to send, and for early fragments.
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

    /// The id of the session.
    pub const fn id(&self) -> SessionId {
        self.id
    }

    /// The role of this side.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Returns the settings.
    pub const fn config(&self) -> &SessionConfig {
        &self.config
    }

    /// The reason why the session is over, if it is.
    pub const fn over(&self) -> Option<FinalReason> {
        match self.phase {
            Phase::Over(reason) => Some(reason),
            _ => None,
        }
    }

    /// Whether a rail is attached.
    pub const fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Connected)
    }

    /// Whether the peer's transport answers, but its process acknowledges no messages.
    pub const fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Rails from this number on were never used; loops over rails end there.
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

    /// The health of a rail.
    pub fn rail_state(&self, rail: u8) -> HealthState {
        self.rails
            .get(usize::from(rail))
            .filter(|rail| rail.is_usable())
            .map_or(HealthState::Down, |rail| rail.health.state())
    }

    /// The epoch of a rail's connection, or of its last one.
    pub fn rail_epoch(&self, rail: u8) -> Epoch {
        self.rails
            .get(usize::from(rail))
            .map_or(Epoch::NONE, |rail| rail.epoch)
    }

    /// The time of a rail's last sign of life: a frame arrived, or a request completed. It is kept after a failure, and shows how long the
    /// rail was silent before.
    pub fn rail_heard_at(&self, rail: u8) -> Option<Instant> {
        self.rails.get(usize::from(rail))?.heard_at
    }

    /// Returns the counters.
    pub fn counts(&self) -> SessionCounts {
        SessionCounts {
            early: self.inbox.early(),
            duplicates: self.inbox.duplicates(),
            ..self.counts
        }
    }

    /// The fragment that is expected from the peer.
    pub const fn expected(&self) -> Sequence {
        self.inbox.expected()
    }

    /// The number of unacknowledged fragments.
    pub fn unacknowledged(&self) -> u64 {
        self.outbox.next().since(self.outbox.oldest())
    }

    /// Whether all fragments are acknowledged.
    pub fn is_drained(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Whether this side is closing the session.
    pub const fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// The bytes of each fragment of a message except the last, if a rail carries at most `rail_bytes_max`.
    pub fn fragment_bytes(&self, rail_bytes_max: u32) -> u32 {
        self.config.fragment_bytes.min(rail_bytes_max).max(1)
    }

    /// Accepts a message of `bytes` bytes, in fragments of at most `fragment_bytes`: either all of it, or nothing. The caller
    /// puts its bytes at the places of the fragments ([`Session::kept`]).
    ///
    /// # Errors
    /// [`PushRefusal`]: nothing was accepted.
    pub fn push(&mut self, bytes: u64, fragment_bytes: u32) -> Result<Unsent, PushRefusal> {
        self.take_in((bytes, fragment_bytes), false)
    }

    /// The place of the bytes of the next fragment.
    #[inline]
    pub const fn next_place(&self) -> usize {
        self.outbox.next_place()
    }

    /// Accepts a message of one fragment, as [`Session::push`] does, at [`Session::next_place`]. Returns its number.
    ///
    /// # Errors
    /// [`PushRefusal`]: nothing was accepted.
    #[inline(always)]
    pub fn push_whole(&mut self, bytes: u32) -> Result<Sequence, PushRefusal> {
        self.check_takes()?;
        let sequence = self.outbox.next();
        match self.outbox.push(bytes, true, true, false) {
            Some(_) => Ok(sequence),
            None => Err(PushRefusal::Full),
        }
    }

    /// Accepts a message as [`Session::push`] does, whose fragments are written into memory that the peer lent.
    ///
    /// # Errors
    /// [`PushRefusal`]: nothing was accepted.
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
            // Below 2^32, since it is at most `fragment_bytes`.
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

    /// Whether a message can be accepted now.
    #[inline]
    const fn check_takes(&self) -> Result<(), PushRefusal> {
        if self.closing.is_some() {
            return Err(self.refusal());
        }
        match self.phase {
            Phase::Connected => Ok(()),
            _ => Err(self.refusal()),
        }
    }

    #[cold]
    const fn refusal(&self) -> PushRefusal {
        match self.phase {
            Phase::Over(reason) => PushRefusal::Over(reason),
            _ if self.closing.is_some() => PushRefusal::Closing,
            _ => PushRefusal::Recovering,
        }
    }

    /// An unacknowledged fragment.
    pub fn kept(&self, sequence: Sequence) -> Option<Fragment> {
        self.outbox.get(sequence)
    }

    /// Closes the session after all messages are acknowledged and all other requests have ended, and at the deadline in any
    /// case. From now on the session accepts no messages. After several calls, the earliest deadline counts.
    pub fn close(&mut self, until: Deadline) {
        let closing = self.closing.get_or_insert(Closing {
            until,
            farewell: None,
            was_said: false,
        });
        closing.until = closing.until.min(until);
    }

    /// Notes whether a request of the caller other than a message has not ended yet. A closing session waits for it,
    /// too.
    pub fn await_beside(&mut self, awaits: bool) {
        self.awaits_beside = awaits;
    }

    /// Whether all messages and all other requests have ended.
    fn has_nothing_open(&self) -> bool {
        self.outbox.is_empty() && !self.awaits_beside
    }

    /// Ends the session for a reason that the caller found.
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

    /// Returns the reason for the end of the session, which the caller sends in the last frame on each connection. `None` if
    /// the peer ended the session, or if a farewell was sent already.
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
    /// Returns the reason to send to the peer.
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
