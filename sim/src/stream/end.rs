//! One end of a stream. It knows neither links nor other ends: segments and times are given to it, and taken
//! from it.

use core::net::SocketAddr;
use std::collections::VecDeque;

use doorbell_core::handshake::IoError;

use super::{BUFFER_BYTES, CONNECT_RETRY_NS, Kind, RETRIES_MAX, RETRY_NS, SEGMENT_BYTES, Segment, StreamKey};
use crate::errno::{ECONNREFUSED, ECONNRESET, ETIMEDOUT};
use crate::world::HostId;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The peer was asked, and did not answer yet.
    Connecting,
    /// The peer asked, was answered, and did not say anything since.
    Answering,
    /// Bytes may go.
    Open,
    /// Nothing goes any more, for this reason.
    Dead(i32),
}

/// One end.
pub(crate) struct StreamState {
    pub(crate) host: HostId,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The other end, once it is known.
    pub(crate) peer: Option<StreamKey>,
    phase: Phase,
    /// Bytes that came and were not read.
    unread: VecDeque<u8>,
    /// The place in the stream up to which all came. Its end counts as a byte.
    came: u64,
    has_peer_ended: bool,
    /// Bytes that the peer did not acknowledge, from the place `acknowledged` on.
    unanswered: VecDeque<u8>,
    acknowledged: u64,
    /// How many bytes were ever written.
    written: u64,
    /// The place up to which all was sent.
    sent: u64,
    /// Nobody has it any more: it ends behind what was written.
    is_dropped: bool,
    retries: u32,
    /// When to send again.
    retry_at_ns: Option<u64>,
    /// Number that distinguishes it from timers that were set before.
    timer: u32,
    /// Whether the timer is scheduled.
    is_timer_scheduled: bool,
    /// Whether a caller or a port owns it.
    has_owner: bool,
    /// Kind of a segment without bytes that is to be sent.
    says: Option<Kind>,
}

impl StreamState {
    /// The end of the host that connects.
    pub(crate) fn connecting(host: HostId, local: SocketAddr, remote: SocketAddr, now_ns: u64) -> Self {
        let mut made = Self::new(host, local, remote, Phase::Connecting);
        made.says = Some(Kind::Connect);
        made.set_timer(now_ns);
        made
    }

    /// The end of the host that is connected to.
    pub(crate) fn answering(
        host: HostId,
        local: SocketAddr,
        remote: SocketAddr,
        peer: Option<StreamKey>,
        now_ns: u64,
    ) -> Self {
        let mut made = Self::new(host, local, remote, Phase::Answering);
        made.peer = peer;
        made.says = Some(Kind::Accept);
        made.set_timer(now_ns);
        made
    }

    fn new(host: HostId, local: SocketAddr, remote: SocketAddr, phase: Phase) -> Self {
        Self {
            host,
            local,
            remote,
            peer: None,
            phase,
            unread: VecDeque::new(),
            came: 0,
            has_peer_ended: false,
            unanswered: VecDeque::new(),
            acknowledged: 0,
            written: 0,
            sent: 0,
            is_dropped: false,
            retries: 0,
            retry_at_ns: None,
            timer: 0,
            is_timer_scheduled: true,
            has_owner: phase == Phase::Connecting,
            says: None,
        }
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.phase == Phase::Connecting
    }

    /// Whether the peer that asked is known to have heard the answer.
    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether reading gives something else than that nothing is there yet.
    pub(crate) fn is_readable(&self) -> bool {
        let is_over = self.has_peer_ended || matches!(self.phase, Phase::Dead(_));
        is_over || !self.unread.is_empty()
    }

    /// Whether writing does.
    pub(crate) fn is_writable(&self) -> bool {
        match self.phase {
            Phase::Open => self.unanswered.len() < BUFFER_BYTES,
            Phase::Dead(_) => true,
            Phase::Connecting | Phase::Answering => false,
        }
    }

    /// Whether a segment from there is for it: else there is no such stream. There is none if the end is dead,
    /// or if another end than its peer answers an old question.
    pub(crate) fn hears(&self, from: Option<StreamKey>) -> bool {
        let is_peer = from.is_none() || self.peer.is_none() || self.peer == from;
        is_peer && !matches!(self.phase, Phase::Dead(_))
    }

    pub(crate) const fn has_owner(&self) -> bool {
        self.has_owner
    }

    pub(crate) const fn own(&mut self) {
        self.has_owner = true;
    }

    /// Whether nothing is left to do for an end that nobody has.
    pub(crate) fn is_over(&self) -> bool {
        match self.phase {
            Phase::Dead(_) => self.is_dropped || !self.has_owner,
            Phase::Connecting => self.is_dropped,
            Phase::Answering => false,
            Phase::Open => self.is_dropped && self.acknowledged == self.end(),
        }
    }

    /// The place behind all that is to be sent, as is known now: its end counts as a byte.
    const fn end(&self) -> u64 {
        self.written.saturating_add(self.is_dropped as u64)
    }

    /// Reads what came.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize, IoError> {
        let count = into.len().min(self.unread.len());
        for (to, byte) in into.iter_mut().zip(self.unread.drain(..count)) {
            *to = byte;
        }
        match self.phase {
            _ if count > 0 || into.is_empty() || self.has_peer_ended => Ok(count),
            Phase::Dead(errno) => Err(failure(errno)),
            _ => Err(IoError::WouldBlock),
        }
    }

    /// Takes bytes to be sent, as many as there is room for.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        let room = match self.phase {
            Phase::Open => BUFFER_BYTES.saturating_sub(self.unanswered.len()),
            Phase::Dead(errno) => return Err(failure(errno)),
            Phase::Connecting | Phase::Answering => 0,
        };
        let count = room.min(bytes.len());
        if count == 0 && !bytes.is_empty() {
            return Err(IoError::WouldBlock);
        }
        self.unanswered.extend(bytes.iter().take(count));
        self.written = self.written.saturating_add(count as u64);
        Ok(count)
    }

    /// Nobody has it any more.
    pub(crate) const fn let_go(&mut self) {
        self.is_dropped = true;
    }

    /// Its host vanished, and its owner with it.
    pub(crate) fn kill(&mut self) {
        self.die(ECONNRESET);
    }

    /// A segment came for it.
    pub(crate) fn on_segment(&mut self, from: Option<StreamKey>, kind: Kind, now_ns: u64) {
        match (self.phase, kind) {
            (Phase::Dead(_), _) => (),
            (Phase::Connecting, Kind::Refused | Kind::Reset) => self.die(ECONNREFUSED),
            // The refusal was late: there is a listener by now.
            (_, Kind::Refused) => (),
            (_, Kind::Reset) => self.die(ECONNRESET),
            (Phase::Connecting, Kind::Accept) => {
                self.peer = from;
                self.open(now_ns);
                self.says = Some(Kind::Came(0));
            }
            // It did not hear the answer.
            (_, Kind::Accept) => self.says = Some(Kind::Came(self.came)),
            (Phase::Answering, Kind::Connect) => self.says = Some(Kind::Accept),
            (Phase::Answering, kind @ (Kind::Bytes { .. } | Kind::Came(_))) => {
                self.open(now_ns);
                self.on_segment(from, kind, now_ns);
            }
            (Phase::Open, Kind::Bytes { at, bytes, ends }) => self.on_bytes(at, &bytes, ends),
            (Phase::Open, Kind::Came(place)) => self.on_came(place, now_ns),
            (Phase::Open | Phase::Connecting, _) => (),
        }
    }

    fn open(&mut self, now_ns: u64) {
        self.phase = Phase::Open;
        self.retries = 0;
        self.set_timer(now_ns);
    }

    fn on_bytes(&mut self, at: u64, bytes: &[u8], ends: bool) {
        let room = BUFFER_BYTES.saturating_sub(self.unread.len());
        // Bytes that came before, are behind a gap, or find no room are sent again.
        if at == self.came && !self.has_peer_ended && bytes.len() <= room {
            self.unread.extend(bytes);
            self.has_peer_ended = ends;
            let count = (bytes.len() as u64).saturating_add(u64::from(ends));
            self.came = self.came.saturating_add(count);
        }
        self.says = Some(Kind::Came(self.came));
    }

    fn on_came(&mut self, place: u64, now_ns: u64) {
        if place <= self.acknowledged || place > self.sent {
            return;
        }
        let bytes = place.min(self.written).saturating_sub(self.acknowledged);
        let count = usize::try_from(bytes)
            .unwrap_or(usize::MAX)
            .min(self.unanswered.len());
        self.unanswered.drain(..count);
        self.acknowledged = place;
        self.retries = 0;
        self.set_timer(now_ns);
    }

    fn die(&mut self, errno: i32) {
        self.phase = Phase::Dead(errno);
        self.says = None;
        self.retry_at_ns = None;
    }

    /// The next segment to be sent.
    pub(crate) fn poll_transmit(&mut self, from: StreamKey, now_ns: u64) -> Option<Segment> {
        let kind = self.says.take().or_else(|| self.next_bytes(now_ns))?;
        Some(Segment {
            from: Some(from),
            to: self.peer,
            source: self.local,
            destination: self.remote,
            kind,
        })
    }

    fn next_bytes(&mut self, now_ns: u64) -> Option<Kind> {
        if self.phase != Phase::Open || self.sent == self.end() {
            return None;
        }
        let at = self.sent;
        let skipped = usize::try_from(at.saturating_sub(self.acknowledged)).ok()?;
        let bytes: Vec<u8> = self
            .unanswered
            .iter()
            .skip(skipped)
            .take(SEGMENT_BYTES)
            .copied()
            .collect();
        self.sent = at.saturating_add(bytes.len() as u64);
        let ends = self.is_dropped && self.sent == self.written;
        if ends {
            self.sent = self.end();
        }
        if self.retry_at_ns.is_none() {
            self.set_timer(now_ns);
        }
        Some(Kind::Bytes { at, bytes, ends })
    }

    /// Sets the timer anew, where something is unanswered.
    fn set_timer(&mut self, now_ns: u64) {
        let first_ns = match self.phase {
            Phase::Connecting | Phase::Answering => Some(CONNECT_RETRY_NS),
            Phase::Open if self.acknowledged < self.sent => Some(RETRY_NS),
            Phase::Open | Phase::Dead(_) => None,
        };
        self.timer = self.timer.wrapping_add(1);
        self.is_timer_scheduled = false;
        self.retry_at_ns = first_ns.map(|span_ns| {
            let span_ns = span_ns.checked_shl(self.retries).unwrap_or(u64::MAX);
            now_ns.saturating_add(span_ns)
        });
    }

    /// When it wants to be woken, and the number to do it by, where that is new.
    pub(crate) fn take_timer(&mut self) -> Option<(u64, u32)> {
        let is_known = core::mem::replace(&mut self.is_timer_scheduled, true);
        let at_ns = self.retry_at_ns.filter(|_| !is_known)?;
        Some((at_ns, self.timer))
    }

    #[cfg(test)]
    pub(crate) const fn retry_at_ns(&self) -> Option<u64> {
        self.retry_at_ns
    }

    /// Whether it still waits for the timer of this number.
    pub(crate) const fn awaits_timer(&self, number: u32) -> bool {
        self.retry_at_ns.is_some() && self.timer == number
    }

    /// The time came that it waited for: what is unanswered is sent again, or the peer given up.
    pub(crate) fn on_timer(&mut self, now_ns: u64) {
        self.retries = self.retries.saturating_add(1);
        if self.retries > RETRIES_MAX {
            self.die(ETIMEDOUT);
            return;
        }
        match self.phase {
            Phase::Connecting => self.says = Some(Kind::Connect),
            Phase::Answering => self.says = Some(Kind::Accept),
            Phase::Open | Phase::Dead(_) => (),
        }
        self.set_timer(now_ns);
        self.sent = self.acknowledged;
    }
}

/// Error of reads and writes on a dead stream.
const fn failure(errno: i32) -> IoError {
    if errno == ECONNRESET {
        IoError::Closed
    } else {
        IoError::Failed(errno)
    }
}
