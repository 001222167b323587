//! The listening side: one handshake with one peer.

use heapless::Vec;

use super::authentication::Role;
use super::session::{Session, rail_list};
use super::{
    Agreed, Authenticator, Cause, Established, Io, Misuse, Prepare, Stage, Step, Timing, Unauthenticated,
};
use crate::wire::{
    AdvertisedRail, Connect, Endpoint, Field, Frame, FrameBuffer, FrameKind, Hello, InstanceId, Nonce, Part,
    RAILS_MAX, Reason, Reject, TooManyRails, VersionRange, Welcome, WireError,
};
use crate::{Deadline, Instant};

/// Settings of a responder, given once at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponderConfig {
    /// The instance of the listener, as in its handle.
    pub instance: InstanceId,
    /// A random number, new for each attempt.
    pub nonce: Nonce,
    /// The time limits.
    pub timing: Timing,
    /// The versions that this side may speak, among those that this code implements. Default: all of them. A side with keys
    /// never speaks a version without authentication, even if it is listed here.
    pub versions: VersionRange,
}

/// The state machine of the listening side; see the [module](super) for the flow.
///
/// It has about 10 KiB with keys and a transcript: a frame being read, unsent bytes, and both sides' rails.
#[derive(Clone, Debug)]
pub struct Responder<A: Authenticator = Unauthenticated> {
    session: Session<A::Transcript>,
    config: ResponderConfig,
    keys: A,
    own_rails: Vec<AdvertisedRail, RAILS_MAX>,
    peer_rails: Vec<AdvertisedRail, RAILS_MAX>,
    hello: Option<(Hello, u8)>,
    request: Option<Connect>,
    local: Option<Endpoint>,
}

impl Responder {
    /// Starts a handshake without keys on an accepted stream.
    ///
    /// `rails` is the complete list of this side's rails, in its order of preference.
    ///
    /// # Errors
    /// There are more rails than a frame may list.
    pub fn new(
        config: ResponderConfig,
        rails: &[AdvertisedRail],
        now: Instant,
    ) -> Result<Self, TooManyRails> {
        Self::with(config, Unauthenticated, rails, now)
    }
}

impl<A: Authenticator> Responder<A> {
    /// Starts a handshake with these keys; see [`Responder::new`].
    ///
    /// # Errors
    /// There are more rails than a frame may list.
    pub fn with(
        mut config: ResponderConfig,
        keys: A,
        rails: &[AdvertisedRail],
        now: Instant,
    ) -> Result<Self, TooManyRails> {
        config.versions = config.versions.spoken(keys.sending().is_some());
        Ok(Self {
            session: Session::new(Role::Responder, config.timing, now, Stage::Hello),
            config,
            keys,
            own_rails: rail_list(rails)?,
            peer_rails: Vec::new(),
            hello: None,
            request: None,
            local: None,
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

    /// The peer's complete list of rails, empty before its Hello arrives.
    #[must_use]
    pub fn peer_rails(&self) -> &[AdvertisedRail] {
        &self.peer_rails
    }

    /// The instance that the peer reports; `None` before its Hello arrives. With keys, a valid Connect proves it.
    #[must_use]
    pub fn peer_instance(&self) -> Option<InstanceId> {
        self.hello.map(|(hello, _)| hello.initiator)
    }

    /// Answers [`Step::Prepare`]: the queue pair is in RTS and its receives are posted.
    ///
    /// `local` has the settings of this side's port; the peer gets the lower MTU of both.
    ///
    /// # Errors
    /// This is not the stage for it, the peer chose another rail, or a field of the endpoint is outside its range on the wire.
    pub fn accept(&mut self, now: Instant, local: Endpoint) -> Result<(), Misuse> {
        self.session.expect_stage(Stage::Prepare)?;
        let no_such_rail = Misuse::NoSuchLocalRail(local.rail);
        let request = self
            .request
            .filter(|request| request.peer_rail == local.rail)
            .ok_or(no_such_rail)?;
        let rail = self.own_rails.get(usize::from(local.rail)).ok_or(no_such_rail)?;
        if local.gid != rail.gid() {
            return Err(Misuse::GidNotOfRail);
        }
        let version = self.session.version();
        if let Some(field) = local.unsendable(version) {
            return Err(Misuse::Unsendable(field));
        }
        let mut endpoint = local;
        endpoint.parameters.mtu = Agreed::between(&local.parameters, &request.endpoint.parameters).mtu;
        self.local = Some(endpoint);
        let accept = Connect {
            endpoint,
            peer_rail: request.endpoint.rail,
        };
        self.session
            .say(FrameBuffer::accept(version, &accept), FrameKind::Accept);
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
        while self.session.stage() != Stage::LastWrite && self.session.exchange(io)? {
            match self.session.frame()? {
                Frame::Hello(frame) => {
                    let (hello, rails) = (frame.hello, frame.rails.iter().collect());
                    let version = check_hello(&self.config, &hello)?;
                    self.check_key(&hello)?;
                    self.hello = Some((hello, version));
                    self.peer_rails = rails;
                    self.session.speak(version);
                    let welcome = Welcome {
                        version,
                        listener: self.config.instance,
                        nonce: self.config.nonce,
                        key: hello.key,
                    };
                    self.session.say(
                        FrameBuffer::welcome(&welcome, &self.own_rails),
                        FrameKind::Welcome,
                    );
                    self.session.enter(now, Stage::Connect);
                }
                Frame::Connect(connect) => {
                    self.check_connect(&connect)?;
                    self.request = Some(connect);
                    self.session.enter(now, Stage::Prepare);
                }
                Frame::Ready => {
                    let ready = FrameBuffer::ready(self.session.version());
                    self.session.say(ready, FrameKind::Ready);
                    self.session.enter(now, Stage::LastWrite);
                }
                // `exchange` returns only the awaited kind, and this side awaits only the three above.
                other => return Err(Cause::UnexpectedFrame(other.kind())),
            }
            self.session.take();
        }
        if self.session.stage() == Stage::LastWrite {
            // No more is read: bytes after the handshake do not belong to it.
            self.session.flush(io)?;
            if !self.session.has_unsent() {
                self.session.finish(self.established()?);
                return Ok(());
            }
        }
        self.session.check_deadline(now)
    }

    /// Checks that a Hello names a key of this side if it has any, and none if it has none. The proof comes with the
    /// Connect.
    fn check_key(&mut self, hello: &Hello) -> Result<(), Cause> {
        let Some(key) = hello.key else {
            return match self.keys.sending() {
                Some(_) => Err(Cause::Unauthenticated),
                None => Ok(()),
            };
        };
        let transcript = self.keys.begin(key).ok_or(Cause::UnknownKey(key))?;
        self.session.prove_by(transcript);
        self.session.absorb_received();
        Ok(())
    }

    /// Checks that a Connect names rails that both sides listed.
    fn check_connect(&self, connect: &Connect) -> Result<(), Cause> {
        let mismatch = |field| {
            Err(Cause::Wire(WireError::in_endpoint(
                Part::Connect,
                field,
                Reason::Mismatch,
            )))
        };
        let Some(rail) = self.peer_rails.get(usize::from(connect.endpoint.rail)) else {
            return mismatch(Field::OwnRail);
        };
        if usize::from(connect.peer_rail) >= self.own_rails.len() {
            return mismatch(Field::PeerRail);
        }
        if rail.gid() != connect.endpoint.gid {
            return mismatch(Field::Gid);
        }
        Ok(())
    }

    fn step(&self) -> Step {
        match (self.session.end(), self.session.stage()) {
            (Some(Ok(established)), _) => Step::Connected(established),
            (Some(Err(error)), _) => Step::Failed(error),
            (None, Stage::Prepare) => self.request.map_or(Step::Pending, |request| {
                Step::Prepare(Prepare {
                    peer: request.endpoint,
                    local_rail: request.peer_rail,
                })
            }),
            (None, _) => Step::Pending,
        }
    }

    /// Returns the outcome of the handshake. A Ready that arrives before all parts of it are known is out of turn.
    fn established(&self) -> Result<Established, Cause> {
        self.outcome().ok_or(Cause::UnexpectedFrame(FrameKind::Ready))
    }

    fn outcome(&self) -> Option<Established> {
        let (local, peer, (hello, version)) = (self.local?, self.request?.endpoint, self.hello?);
        Some(Established {
            local,
            peer,
            agreed: Agreed::between(&local.parameters, &peer.parameters),
            peer_instance: hello.initiator,
            version,
            key: hello.key,
        })
    }
}

/// Checks that a Hello names this listener, if any, and a version of this side. Returns the version to speak.
fn check_hello(config: &ResponderConfig, hello: &Hello) -> Result<u8, Cause> {
    let (ours, theirs) = (config.versions, hello.versions);
    let version = ours.common(theirs).ok_or(Cause::Version { ours, theirs })?;
    match hello.listener {
        Some(meant) if meant != config.instance => Err(Cause::StaleHandle {
            meant,
            found: config.instance,
        }),
        _ => Ok(version),
    }
}
