//! The side that listens: one handshake with one peer.

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
    /// The instance of the listener, as its handle has it.
    pub instance: InstanceId,
    /// Random for each attempt.
    pub nonce: Nonce,
    /// How long it may take.
    pub timing: Timing,
    /// Versions that it may speak, of those that this code implements. Default all of them. A side that has keys speaks
    /// no version without them, whatever stands here.
    pub versions: VersionRange,
}

/// The state machine of the side that listens; see the [module](super) for the flow.
///
/// About 10 KiB, with keys and a transcript: it holds a frame being read, unsent bytes, and both sides' rails.
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
    /// Starts a handshake without keys on a stream that was accepted.
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
    /// Starts a handshake with these keys, as [`Responder::new`] does without.
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

    /// Moves as far as bytes, room and the caller's answers allow.
    ///
    /// Bytes that arrived in time count even if this call is late. After a deadline, the machine waits for nothing
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

    /// When to poll again at the latest.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.session.deadline()
    }

    /// Whether there are bytes to be sent: if so, the caller waits for room, too.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.session.has_unsent()
    }

    /// The peer's complete list of rails, empty before its Hello has come.
    #[must_use]
    pub fn peer_rails(&self) -> &[AdvertisedRail] {
        &self.peer_rails
    }

    /// The instance the peer says it is, `None` before its Hello has come. With keys it is proven once the Connect is.
    #[must_use]
    pub fn peer_instance(&self) -> Option<InstanceId> {
        self.hello.map(|(hello, _)| hello.initiator)
    }

    /// Answers [`Step::Prepare`]: the queue pair is in RTS and its receives are posted.
    ///
    /// `local` has the settings of this side's port; the peer gets the lower MTU of both.
    ///
    /// # Errors
    /// It is not the time for it, the rail is not the one the peer chose, or the endpoint is outside the wire's range.
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

    /// Gives up at any time; the next poll sends the reason to the peer.
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
                // `exchange` lets only the awaited kind pass, and this side awaits the three above.
                other => return Err(Cause::UnexpectedFrame(other.kind())),
            }
            self.session.take();
        }
        if self.session.stage() == Stage::LastWrite {
            // Not read on: what the peer sends after the handshake is not ours.
            self.session.flush(io)?;
            if !self.session.has_unsent() {
                self.session.finish(self.established()?);
                return Ok(());
            }
        }
        self.session.check_deadline(now)
    }

    /// A Hello has to name a key of ours if we have any, and none if we have none. It proves nothing yet: the Connect
    /// does.
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

    /// A Connect has to name rails that both sides listed.
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

    /// Returns the outcome of the handshake. A Ready that comes before all of it is known is out of turn.
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

/// A Hello has to name this listener, if it names one, and a version of ours; returns the version to speak.
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
