//! The common parts of both machines: frames over a stream, the stage, its deadlines, and failing.

use heapless::Vec;

use super::authentication::{Proven, Role};
use super::{Cause, Established, HandshakeError, Io, IoError, Misuse, Stage, Timing, Transcript};
use crate::wire::{
    AdvertisedRail, ENDPOINT_FRAME_BYTES_MAX, FRAME_BYTES_MAX, FRAME_HEADER_BYTES, Field, Frame, FrameBuffer,
    FrameHeader, FrameKind, Part, RAILS_MAX, READY_FRAME_BYTES_MAX, REJECT_FRAME_BYTES, Reason, Reject, Tag,
    TooManyRails, VERSION_OLDEST, WireError,
};
use crate::{Deadline, Instant};

/// The maximum number of bytes that one side sends in a handshake: its rails, its endpoint, Ready, a Reject.
///
/// A peer that answers before it has read a frame cannot make this side send more.
const UNSENT_BYTES_MAX: usize =
    FRAME_BYTES_MAX + ENDPOINT_FRAME_BYTES_MAX + READY_FRAME_BYTES_MAX + REJECT_FRAME_BYTES;

/// The offset of the version in the header of a frame.
const VERSION_OFFSET: usize = 4;

/// The bytes of a stream as frames, read one at a time, and never beyond the end of a frame.
#[derive(Clone, Debug)]
struct FrameStream {
    received: [u8; FRAME_BYTES_MAX],
    received_bytes: usize,
    unsent: Vec<u8, UNSENT_BYTES_MAX>,
    sent_bytes: usize,
}

impl FrameStream {
    const fn new() -> Self {
        Self {
            received: [0; FRAME_BYTES_MAX],
            received_bytes: 0,
            unsent: Vec::new(),
            sent_bytes: 0,
        }
    }

    fn queue(&mut self, frame: &FrameBuffer) {
        if self.is_flushed() {
            self.unsent.clear();
            self.sent_bytes = 0;
        }
        // There is room for all that one handshake sends.
        let _ = self.unsent.extend_from_slice(frame.as_bytes());
    }

    fn is_flushed(&self) -> bool {
        self.sent_bytes >= self.unsent.len()
    }

    fn flush<I: Io + ?Sized>(&mut self, io: &mut I) -> Result<(), Cause> {
        while let Some(rest) = self.unsent.get(self.sent_bytes..).filter(|rest| !rest.is_empty()) {
            match io.write(rest) {
                Ok(0) | Err(IoError::WouldBlock) => return Ok(()),
                Ok(bytes) if bytes > rest.len() => return Err(Cause::StreamMiscounted),
                Ok(bytes) => self.sent_bytes = self.sent_bytes.saturating_add(bytes),
                Err(IoError::Closed) => return Err(Cause::PeerClosed),
                Err(IoError::Failed(errno)) => return Err(Cause::Stream(errno)),
            }
        }
        Ok(())
    }

    /// Reads more bytes. Returns whether a complete frame was received.
    fn receive<I: Io + ?Sized>(&mut self, io: &mut I) -> Result<bool, Cause> {
        loop {
            let wanted = if self.received_bytes < FRAME_HEADER_BYTES {
                FRAME_HEADER_BYTES
            } else {
                FrameHeader::parse(&self.received)
                    .map_err(Cause::Wire)?
                    .frame_bytes()
            };
            // An accepted header never announces more bytes than the buffer has.
            let room = self
                .received
                .get_mut(self.received_bytes..wanted)
                .unwrap_or_default();
            if room.is_empty() {
                return Ok(true);
            }
            match io.read(room) {
                Ok(0) | Err(IoError::Closed) => return Err(Cause::PeerClosed),
                Ok(bytes) if bytes > room.len() => return Err(Cause::StreamMiscounted),
                Ok(bytes) => self.received_bytes = self.received_bytes.saturating_add(bytes),
                Err(IoError::WouldBlock) => return Ok(false),
                Err(IoError::Failed(errno)) => return Err(Cause::Stream(errno)),
            }
        }
    }

    /// The received bytes that were not taken yet.
    fn received(&self) -> &[u8] {
        self.received.get(..self.received_bytes).unwrap_or_default()
    }

    fn frame(&self) -> Result<Frame<'_>, Cause> {
        Frame::parse(self.received()).map_err(Cause::Wire)
    }

    /// The Reject in the receive buffer, if it is a complete one.
    fn rejection(&self) -> Option<Reject> {
        match self.frame() {
            Ok(Frame::Reject(reject)) => Some(reject),
            _ => None,
        }
    }
}

/// A handshake under way, of either side.
#[derive(Clone, Debug)]
pub(super) struct Session<T> {
    stream: FrameStream,
    role: Role,
    /// The version of all frames from Welcome on, after it is chosen.
    version: Option<u8>,
    /// Transcript of both sides under the key that proves it; `None` without a key, or before one is agreed.
    proven: Option<Proven<T>>,
    timing: Timing,
    stage: Stage,
    stage_deadline: Deadline,
    whole_deadline: Deadline,
    /// The outcome, if the handshake is over.
    end: Option<Result<Established, HandshakeError>>,
}

impl<T: Transcript> Session<T> {
    pub(super) fn new(role: Role, timing: Timing, now: Instant, stage: Stage) -> Self {
        Self {
            stream: FrameStream::new(),
            role,
            version: None,
            proven: None,
            timing,
            stage,
            stage_deadline: Deadline::after(now, timing.stage),
            whole_deadline: Deadline::after(now, timing.whole),
            end: None,
        }
    }

    pub(super) const fn stage(&self) -> Stage {
        self.stage
    }

    pub(super) const fn end(&self) -> Option<Result<Established, HandshakeError>> {
        self.end
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.stream.is_flushed()
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.stage_deadline.min(self.whole_deadline)
    }

    pub(super) fn enter(&mut self, now: Instant, stage: Stage) {
        self.stage = stage;
        self.stage_deadline = Deadline::after(now, self.timing.stage);
    }

    /// Sends `frame`, with a tag if there is a key.
    pub(super) fn say(&mut self, frame: FrameBuffer, kind: FrameKind) {
        let frame = match &mut self.proven {
            None => frame,
            Some(proven) if kind == FrameKind::Hello => {
                proven.absorb(frame.as_bytes());
                frame
            }
            Some(proven) => frame.tagged(|covered| proven.seal(self.role, kind, covered)),
        };
        self.stream.queue(&frame);
    }

    /// From now on, both sides prove their frames with this transcript.
    pub(super) fn prove_by(&mut self, transcript: T) {
        self.proven = Some(Proven::new(transcript));
    }

    /// Appends a received frame without a tag to the transcript.
    pub(super) fn absorb_received(&mut self) {
        if let Some(proven) = &mut self.proven {
            proven.absorb(self.stream.received());
        }
    }

    /// From now on, both sides speak this version.
    pub(super) const fn speak(&mut self, version: u8) {
        self.version = Some(version);
    }

    /// Returns the version that both sides speak; the oldest version until it is chosen.
    pub(super) fn version(&self) -> u8 {
        self.version.unwrap_or(VERSION_OLDEST)
    }

    pub(super) const fn finish(&mut self, established: Established) {
        self.end = Some(Ok(established));
    }

    /// The frame that [`Self::exchange`] received.
    pub(super) fn frame(&self) -> Result<Frame<'_>, Cause> {
        self.stream.frame()
    }

    /// Drops the received frame, to make room for the next one.
    pub(super) const fn take(&mut self) {
        self.stream.received_bytes = 0;
    }

    /// Sends unsent bytes, as far as there is room.
    pub(super) fn flush<I: Io + ?Sized>(&mut self, io: &mut I) -> Result<(), Cause> {
        self.stream.flush(io)
    }

    /// Sends unsent bytes and reads waiting bytes. Returns whether the awaited frame was received.
    ///
    /// A Reject is an error at any stage, and so is any other frame than the awaited one.
    pub(super) fn exchange<I: Io + ?Sized>(&mut self, io: &mut I) -> Result<bool, Cause> {
        let flushed = self.stream.flush(io);
        let received = self.stream.receive(io);
        if let Some(reject) = self.stream.rejection() {
            // A peer that rejects also closes the stream, so its Reject takes precedence over a failed write.
            return Err(Cause::RejectedByPeer(reject));
        }
        flushed?;
        if !received? {
            return Ok(false);
        }
        let kind = self.stream.frame()?.kind();
        if self.stage.awaited() != Some(kind) {
            return Err(Cause::UnexpectedFrame(kind));
        }
        self.check_version()?;
        self.check_tag(kind)?;
        Ok(true)
    }

    /// Checks that a frame has the chosen version.
    fn check_version(&self) -> Result<(), Cause> {
        let header = FrameHeader::parse(self.stream.received()).map_err(Cause::Wire)?;
        match self.version {
            Some(version) if version != header.version => Err(Cause::Wire(WireError::new(
                Part::FrameHeader,
                Field::Version,
                VERSION_OFFSET,
                Reason::Mismatch,
            ))),
            _ => Ok(()),
        }
    }

    /// Checks the proof of a frame. With a key, each frame needs a valid proof. Without a key, a proof cannot be
    /// checked, and is an error.
    fn check_tag(&mut self, kind: FrameKind) -> Result<(), Cause> {
        let (covered, tag) = Tag::split(self.stream.received());
        match (&mut self.proven, tag) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err(Cause::Wire(WireError::new(
                kind.part(),
                Field::Tag,
                covered.len(),
                Reason::Mismatch,
            ))),
            (Some(_), None) => Err(Cause::Unauthenticated),
            (Some(proven), Some(tag)) => {
                if proven.seal(self.role.peer(), kind, covered) == tag {
                    Ok(())
                } else {
                    Err(Cause::WrongKey)
                }
            }
        }
    }

    /// Fails if the time limit of this stage, or of the whole handshake, has passed.
    pub(super) fn check_deadline(&self, now: Instant) -> Result<(), Cause> {
        if self.whole_deadline.has_passed(now) {
            return Err(Cause::WholeTimedOut);
        }
        if self.stage_deadline.has_passed(now) {
            return Err(Cause::StageTimedOut);
        }
        Ok(())
    }

    /// Ends the handshake with an error, and queues a Reject if the peer does not know of it.
    pub(super) fn fail(&mut self, cause: Cause) -> HandshakeError {
        let error = HandshakeError {
            stage: self.stage,
            cause,
        };
        if self.end.is_none() {
            if let Some(reject) = error.reject() {
                self.stream.queue(&FrameBuffer::reject(&reject));
            }
            self.end = Some(Err(error));
        }
        error
    }

    /// Sends the remaining bytes after the end, if the stream still accepts them.
    pub(super) fn flush_after_end<I: Io + ?Sized>(&mut self, io: &mut I) {
        if self.stream.flush(io).is_err() {
            // The outcome is known already, so this failure is not reported.
            self.stream.unsent.clear();
        }
    }

    /// Refuses a call of the caller that does not belong to this stage.
    pub(super) fn expect_stage(&self, stage: Stage) -> Result<(), Misuse> {
        if self.end.is_some() {
            return Err(Misuse::Over);
        }
        if self.stage == stage {
            Ok(())
        } else {
            Err(Misuse::OutOfTurn(self.stage))
        }
    }

    /// Rejects the connection for the caller.
    pub(super) fn reject(&mut self, reject: Reject) -> Result<(), Misuse> {
        if self.end.is_some() {
            return Err(Misuse::Over);
        }
        self.fail(Cause::RejectedHere(reject));
        Ok(())
    }
}

/// The rails as a list that a frame can carry.
pub(super) fn rail_list(rails: &[AdvertisedRail]) -> Result<Vec<AdvertisedRail, RAILS_MAX>, TooManyRails> {
    Vec::from_slice(rails).map_err(|()| TooManyRails { rails: rails.len() })
}
