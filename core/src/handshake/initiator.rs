//! The connecting side of a handshake.

use heapless::Vec;

use super::authentication::Role;
use super::session::{Session, rail_list};
use super::{
    Agreed, Authenticator, Cause, Established, Io, Misuse, Prepare, Stage, Step, Timing, Unauthenticated,
};
use crate::wire::{
    AdvertisedRail, Connect, Endpoint, Field, Frame, FrameBuffer, FrameKind, Hello, InstanceId, KeyId, Nonce,
    Part, RAILS_MAX, Reason, Reject, TooManyRails, VersionRange, Welcome, WireError,
};
use crate::{Deadline, Gid, Instant};

/// Offset of the key's id in a Welcome.
const WELCOME_KEY_OFFSET: usize = 38;

/// Settings of an initiator, given once at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitiatorConfig {
    /// The instance of this side, random for each start.
    pub instance: InstanceId,
    /// The listener in the handle; `None` if only an address is known.
    pub listener: Option<InstanceId>,
    /// A random number, new for each attempt.
    pub nonce: Nonce,
    /// The time limits.
    pub timing: Timing,
    /// The versions that this side may speak, among those that this code implements. Default: all of them. A side with keys
    /// never speaks a version without authentication, even if it is listed here.
    pub versions: VersionRange,
}

/// The state machine of the connecting side; see the [module](super) for the flow.
///
/// It has about 9 KiB with keys and a transcript: a frame being read, unsent bytes, and the peer's rails.
#[derive(Clone, Debug)]
pub struct Initiator<A: Authenticator = Unauthenticated> {
    session: Session<A::Transcript>,
    config: InitiatorConfig,
    /// The key that proves its frames.
    key: Option<KeyId>,
    own_gids: Vec<Gid, RAILS_MAX>,
    peer_rails: Vec<AdvertisedRail, RAILS_MAX>,
    welcome: Option<Welcome>,
    offer: Option<Connect>,
    peer: Option<Endpoint>,
}

impl Initiator {
    /// Starts a handshake without keys on a stream that is connected, or still connecting.
    ///
    /// `rails` is the complete list of this side's rails, in its order of preference.
    ///
    /// # Errors
    /// There are more rails than a frame may list.
    pub fn new(
        config: InitiatorConfig,
        rails: &[AdvertisedRail],
        now: Instant,
    ) -> Result<Self, TooManyRails> {
        Self::with(config, &Unauthenticated, rails, now)
    }
}

impl<A: Authenticator> Initiator<A> {
    /// Starts a handshake with these keys; see [`Initiator::new`].
    ///
    /// # Errors
    /// There are more rails than a frame may list.
    pub fn with(
        mut config: InitiatorConfig,
        keys: &A,
        rails: &[AdvertisedRail],
        now: Instant,
    ) -> Result<Self, TooManyRails> {
        let (key, transcript) = keys.sending().unzip();
        config.versions = config.versions.spoken(key.is_some());
        let hello = Hello {
            versions: config.versions,
            initiator: config.instance,
            listener: config.listener,
            nonce: config.nonce,
            key,
        };
        let mut session = Session::new(Role::Initiator, config.timing, now, Stage::Welcome);
        if let Some(transcript) = transcript {
            session.prove_by(transcript);
        }
        let rails = rail_list(rails)?;
        session.say(FrameBuffer::hello(&hello, &rails), FrameKind::Hello);
        Ok(Self {
            session,
            config,
            key,
            own_gids: rails.iter().map(AdvertisedRail::gid).collect(),
            peer_rails: Vec::new(),
            welcome: None,
            offer: None,
            peer: None,
        })
    }

    /// Advances as far as received bytes, room for sending and the caller's answers allow.
    ///
    /// Bytes that arrived in time count even if this call is late. After a deadline, the machine does not wait any
    /// more.
    pub fn poll<I: Io + ?Sized>(&mut self, now: Instant, io: &mut I) -> Step {
        if self.session.end().is_none() {
            if let Err(cause) = self.advance(now, io) {
                self.session.fail(cause);
            }
        }
        if self.session.end().is_some() {
            self.session.flush_after_end(io);
        }
        self.step()
    }

    /// The latest time to poll again.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.session.deadline()
    }

    /// Whether there are unsent bytes. If so, the caller waits for room, too.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.session.has_unsent()
    }

    /// The peer's complete list of rails, empty before [`Step::ChooseRail`].
    #[must_use]
    pub fn peer_rails(&self) -> &[AdvertisedRail] {
        &self.peer_rails
    }

    /// The instance that the peer reports; `None` before [`Step::ChooseRail`].
    #[must_use]
    pub fn peer_instance(&self) -> Option<InstanceId> {
        Some(self.welcome?.listener)
    }

    /// Answers [`Step::ChooseRail`] with the queue pair to connect to the peer's rail `peer_rail`.
    ///
    /// The MTU in `local` is that of this side's port. The MTU of the connection is known when the peer accepts.
    ///
    /// # Errors
    /// This is not the stage for it, a rail does not exist, or a field of the endpoint is outside its range on the wire.
    pub fn offer(&mut self, now: Instant, local: Endpoint, peer_rail: u8) -> Result<(), Misuse> {
        self.session.expect_stage(Stage::ChooseRail)?;
        let own_gid = self.own_gids.get(usize::from(local.rail));
        let own_gid = own_gid.ok_or(Misuse::NoSuchLocalRail(local.rail))?;
        if usize::from(peer_rail) >= self.peer_rails.len() {
            return Err(Misuse::NoSuchPeerRail(peer_rail));
        }
        if local.gid != *own_gid {
            return Err(Misuse::GidNotOfRail);
        }
        let version = self.session.version();
        if let Some(field) = local.unsendable(version) {
            return Err(Misuse::Unsendable(field));
        }
        let connect = Connect {
            endpoint: local,
            peer_rail,
        };
        self.offer = Some(connect);
        self.session
            .say(FrameBuffer::connect(version, &connect), FrameKind::Connect);
        self.session.enter(now, Stage::Accept);
        Ok(())
    }

    /// Answers [`Step::Prepare`]: the queue pair is in RTS and its receives are posted.
    ///
    /// # Errors
    /// This is not the stage for it.
    pub fn ready(&mut self, now: Instant) -> Result<(), Misuse> {
        self.session.expect_stage(Stage::Prepare)?;
        let ready = FrameBuffer::ready(self.session.version());
        self.session.say(ready, FrameKind::Ready);
        self.session.enter(now, Stage::Ready);
        Ok(())
    }

    /// Rejects the connection, at any stage. The next poll sends the reason to the peer.
    ///
    /// # Errors
    /// The handshake is over already.
    pub fn reject(&mut self, reject: Reject) -> Result<(), Misuse> {
        self.session.reject(reject)
    }

    fn advance<I: Io + ?Sized>(&mut self, now: Instant, io: &mut I) -> Result<(), Cause> {
        while self.session.exchange(io)? {
            match self.session.frame()? {
                Frame::Welcome(frame) => {
                    let (welcome, rails) = (frame.welcome, frame.rails.iter().collect());
                    check_welcome(&self.config, self.key, &welcome)?;
                    self.session.speak(welcome.version);
                    self.welcome = Some(welcome);
                    self.peer_rails = rails;
                    self.session.enter(now, Stage::ChooseRail);
                }
                Frame::Accept(accept) => {
                    self.check_accept(&accept)?;
                    self.peer = Some(accept.endpoint);
                    self.session.enter(now, Stage::Prepare);
                }
                Frame::Ready => {
                    self.session.take();
                    self.session.finish(self.established()?);
                    return Ok(());
                }
                // `exchange` returns only the awaited kind, and this side awaits only the three above.
                other => return Err(Cause::UnexpectedFrame(other.kind())),
            }
            self.session.take();
        }
        self.session.check_deadline(now)
    }

    /// Checks that an Accept answers the offer.
    fn check_accept(&self, accept: &Connect) -> Result<(), Cause> {
        let mismatch = |field| {
            Err(Cause::Wire(WireError::in_endpoint(
                Part::Accept,
                field,
                Reason::Mismatch,
            )))
        };
        let Some(offer) = self.offer else {
            return mismatch(Field::PeerRail);
        };
        if accept.peer_rail != offer.endpoint.rail {
            return mismatch(Field::PeerRail);
        }
        if accept.endpoint.rail != offer.peer_rail {
            return mismatch(Field::OwnRail);
        }
        let rail = self.peer_rails.get(usize::from(offer.peer_rail));
        if rail.is_none_or(|rail| rail.gid() != accept.endpoint.gid) {
            return mismatch(Field::Gid);
        }
        if accept.endpoint.parameters.mtu > offer.endpoint.parameters.mtu {
            return mismatch(Field::Mtu);
        }
        Ok(())
    }

    fn step(&self) -> Step {
        match (self.session.end(), self.session.stage()) {
            (Some(Ok(established)), _) => Step::Connected(established),
            (Some(Err(error)), _) => Step::Failed(error),
            (None, Stage::ChooseRail) => Step::ChooseRail,
            (None, Stage::Prepare) => match (self.peer, self.offer) {
                (Some(peer), Some(offer)) => Step::Prepare(Prepare {
                    peer,
                    local_rail: offer.endpoint.rail,
                }),
                _ => Step::Pending,
            },
            (None, _) => Step::Pending,
        }
    }

    /// Returns the outcome of the handshake. A Ready that arrives before all parts of it are known is out of turn.
    fn established(&self) -> Result<Established, Cause> {
        self.outcome().ok_or(Cause::UnexpectedFrame(FrameKind::Ready))
    }

    fn outcome(&self) -> Option<Established> {
        let (local, peer, welcome) = (self.offer?.endpoint, self.peer?, self.welcome?);
        Some(Established {
            local,
            peer,
            agreed: Agreed::between(&local.parameters, &peer.parameters),
            peer_instance: welcome.listener,
            version: welcome.version,
            key: self.key,
        })
    }
}

/// Checks that a Welcome is from the listener in the handle, in an offered version, and with the same key.
fn check_welcome(config: &InitiatorConfig, key: Option<KeyId>, welcome: &Welcome) -> Result<(), Cause> {
    let ours = config.versions;
    let theirs = VersionRange::new(welcome.version, welcome.version).unwrap_or(ours);
    if ours.common(theirs).is_none() {
        return Err(Cause::Version { ours, theirs });
    }
    if welcome.key != key {
        return Err(Cause::Wire(WireError::new(
            Part::Welcome,
            Field::KeyId,
            WELCOME_KEY_OFFSET,
            Reason::Mismatch,
        )));
    }
    match config.listener {
        Some(meant) if meant != welcome.listener => Err(Cause::StaleHandle {
            meant,
            found: welcome.listener,
        }),
        _ => Ok(()),
    }
}
