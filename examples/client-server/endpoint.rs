//! Messages between a server and up to 64 clients, for whoever wants no verbs: connect, send, receive, broadcast, and
//! a round in which everybody hears everybody. This file is all of it, made to be copied.
//!
//! Each call that may have to wait takes a [`Deadline`], and each error says which peer it is about. To send, to receive, to
//! accept or to connect that ended at its deadline has changed nothing, and can be done again. A broadcast may have reached
//! some of the peers. A round that failed after it began to be told may be half over, and nothing tells it from the next:
//! it was the endpoint's last one ([`Error::RoundBroken`]). A server that has not heard all yet may try again.
//!
//! | bounded | by |
//! |---|---|
//! | peers | [`PEERS_MAX`] |
//! | a message | [`Settings::message_bytes_max`], or less where the peer has less |
//! | messages nobody has received yet, of each peer | [`Settings::messages_max`]; then its sends wait |
//!
//! A message that came stays in the registered memory it came in until it is received, so a peer that sends faster than
//! it is heard waits by itself, and nothing grows. Messages of one peer come in order. A peer that leaves says so. One that
//! dies is noticed by whoever waits, for its messages too, within about three seconds: while a call waits, the devices of all
//! peers are asked for a sign of life each [`PROBE_EVERY`], and one that gives none is given up after some two seconds more
//! (`ChannelConfig::timeout` and `retry_count`; a device may take up to four times as long). A process that is stopped is not
//! dead: its device answers, and the call's deadline is what ends it. For detection within milliseconds, several rails and
//! reconnection there are `doorbell::Links`, for members who talk among each other `doorbell::Mesh`. This stands on channels: a link
//! takes what comes whether anybody receives it or not, so that here each message would need a word of how many may follow; a
//! mesh says that word, and has 64 members in all, each of whom knows its rank.

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::thread;

use doorbell::vocabulary::provider::{Provider, ProviderError};
use doorbell::{
    Channel, ChannelConfig, ConnectError, Connection, Deadline, Event, FirstCause, Handle, Lease, Listener,
    Network, Node, NodeError, Operation, PostFlags, SendErrorKind, WcStatus, Worker, WorkerConfig,
};

/// Peers of an endpoint at most.
pub(crate) const PEERS_MAX: u32 = 64;

/// How often peers are asked for a sign of life while something is waited for.
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(1);

/// What an endpoint is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Peers at most, up to [`PEERS_MAX`]. There is memory for all of them from the beginning: a client needs one.
    pub(crate) peers_max: u32,
    /// The longest message. Default 8 KiB: in a round what everybody says is one message, and 64 peers may then say 120
    /// bytes each.
    pub(crate) message_bytes_max: u32,
    /// Messages of one peer that nobody has received yet, and messages under way to it, 2..=32. Default 16.
    pub(crate) messages_max: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            peers_max: PEERS_MAX,
            message_bytes_max: 8192,
            messages_max: 16,
        }
    }
}

/// Names a peer, in the order they came. A name is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerId(u32);

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {}", self.0)
    }
}

/// Why something was not done.
#[derive(Debug)]
pub(crate) enum Error {
    /// There is no device, or none that can be used.
    Node(NodeError),
    /// No connection.
    Connect(ConnectError),
    /// A device cannot be used any more.
    Device(ProviderError),
    /// Caller misuse: it does not listen, and nobody can be accepted.
    NotListening,
    /// As many peers as there may be are here.
    Full,
    /// Caller misuse: there is no such peer, or it was disconnected.
    NoSuchPeer(PeerId),
    /// Caller misuse: more bytes than fit into a message to this peer.
    TooLong {
        peer: PeerId,
        bytes: usize,
        bytes_max: usize,
    },
    /// Nothing came of it by the deadline: what was waited for, of whom.
    TimedOut {
        peer: Option<PeerId>,
        what: &'static str,
    },
    /// The peer left, or its connection failed. What had come of it was received before this was told.
    Gone { peer: PeerId, why: Why },
    /// One side is in a round of [`Endpoint::all_to_all`], and the other is not.
    OutOfStep(PeerId),
    /// A round has failed before: whose answers come next nobody could tell.
    RoundBroken,
}

/// Why a peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It disconnected.
    Left,
    /// A request failed.
    Failed(WcStatus),
    /// A message was refused.
    Refused(SendErrorKind),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(error) => error.fmt(f),
            Self::Connect(error) => error.fmt(f),
            Self::Device(error) => error.fmt(f),
            Self::NotListening => f.write_str("this endpoint does not listen"),
            Self::Full => f.write_str("as many peers as there may be are connected"),
            Self::NoSuchPeer(peer) => write!(f, "there is no {peer}"),
            Self::TooLong {
                peer,
                bytes,
                bytes_max,
            } => {
                write!(f, "a message of {bytes} bytes to {peer}, which takes {bytes_max}")
            }
            Self::TimedOut {
                peer: Some(peer),
                what,
            } => write!(f, "no {what} {peer} by the deadline"),
            Self::TimedOut { peer: None, what } => write!(f, "no {what} anybody by the deadline"),
            Self::Gone { peer, why } => write!(f, "{peer} {why}"),
            Self::OutOfStep(peer) => write!(
                f,
                "{peer} is in a round and this side is not, or the other way round"
            ),
            Self::RoundBroken => f.write_str("a round has failed before: begin with a new endpoint"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => f.write_str("has left"),
            Self::Failed(status) => write!(f, "is lost: {status}"),
            Self::Refused(kind) => write!(f, "is lost: {kind}"),
        }
    }
}

impl core::error::Error for Error {}

impl From<NodeError> for Error {
    fn from(error: NodeError) -> Self {
        Self::Node(error)
    }
}

impl From<ConnectError> for Error {
    fn from(error: ConnectError) -> Self {
        Self::Connect(error)
    }
}

impl From<ProviderError> for Error {
    fn from(error: ProviderError) -> Self {
        Self::Device(error)
    }
}

/// What a message is: two bits of the word it is sent with. The others number it, since devices are known that deliver the
/// last message again as a connection fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The application's.
    Plain,
    /// What a client says in a round.
    Said,
    /// What all said in it.
    Heard,
    /// The peer leaves.
    Farewell,
}

impl Kind {
    /// As `number` of the messages to a peer.
    pub(super) const fn word(self, number: u32) -> u32 {
        (number << 2) | self as u32
    }

    /// What came as the message of this number; nothing where it is another.
    pub(super) const fn of(word: u32, number: u32) -> Option<Self> {
        if word >> 2 != number << 2 >> 2 {
            return None;
        }
        match word & 3 {
            0 => Some(Self::Plain),
            1 => Some(Self::Said),
            2 => Some(Self::Heard),
            _ => Some(Self::Farewell),
        }
    }
}

/// A peer, and what came of it.
struct Peer<P: Provider> {
    at: Connection,
    /// How many messages were sent to it, and how many came.
    sent: u32,
    came: u32,
    /// What nobody has received yet, in the memory it came in.
    inbox: VecDeque<(Kind, Lease<P>)>,
    gone: Option<Why>,
}

/// One side: a server with its clients, or a client.
pub(crate) struct Endpoint<'n, P: Provider, N: Network> {
    node: &'n Node<P, N>,
    settings: Settings,
    workers: Vec<Worker<P>>,
    listener: Option<Listener<P, N>>,
    peers: BTreeMap<PeerId, Peer<P>>,
    next: u32,
    /// Whose message was received last: the next is somebody else's, where one came.
    heard_last: PeerId,
    /// Whether a round began and came to no end.
    is_round_broken: bool,
    /// When peers are to be asked for a sign of life.
    probe_at: Deadline,
}

impl<'n, P: Provider, N: Network> Endpoint<'n, P, N> {
    /// Takes memory on every device that can be used; nobody is connected yet.
    pub(crate) fn init(node: &'n Node<P, N>, settings: &Settings) -> Result<Self, Error> {
        let mut settings = *settings;
        settings.peers_max = settings.peers_max.clamp(1, PEERS_MAX);
        settings.messages_max = settings.messages_max.clamp(2, 32);
        let mut config = WorkerConfig::default();
        // As much for what is under way to a peer as for what comes of it.
        config.slots = settings.peers_max * settings.messages_max * 2;
        config.slot_bytes = settings.message_bytes_max;
        config.channels_max = settings.peers_max;
        Ok(Self {
            node,
            settings,
            workers: node.workers(&config)?,
            listener: None,
            peers: BTreeMap::new(),
            next: 0,
            heard_last: PeerId(0),
            is_round_broken: false,
            probe_at: node.within(PROBE_EVERY),
        })
    }

    /// Lets peers connect at this address (port 0: any free one); they need the handle to.
    pub(crate) fn listen(&mut self, address: SocketAddr) -> Result<&Handle, Error> {
        let listener = Listener::bind(self.node, &self.workers, address, &self.channel())?;
        Ok(self.listener.insert(listener).handle())
    }

    /// Waits for one peer.
    pub(crate) fn accept(&mut self, deadline: Deadline) -> Result<PeerId, Error> {
        self.has_room()?;
        let listener = self.listener.as_mut().ok_or(Error::NotListening)?;
        let at = listener.accept(self.node, &mut self.workers, deadline)?;
        Ok(self.add(at))
    }

    /// Connects to whoever handed out the handle.
    pub(crate) fn connect(&mut self, handle: &Handle, deadline: Deadline) -> Result<PeerId, Error> {
        self.has_room()?;
        let channel = self.channel();
        let at = self.node.connect(&mut self.workers, handle, &channel, deadline)?;
        Ok(self.add(at))
    }

    /// All peers that were not disconnected, in the order they came.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.peers.keys().copied()
    }

    /// Sends a message: it is copied, and on its way when this returns. Waits while the peer has no room.
    pub(crate) fn send(&mut self, to: PeerId, message: &[u8], deadline: Deadline) -> Result<(), Error> {
        self.send_as(Kind::Plain, to, message, deadline)
    }

    /// Sends a message to each peer in turn; the first one to whom it cannot be sent ends it.
    pub(crate) fn broadcast(&mut self, message: &[u8], deadline: Deadline) -> Result<(), Error> {
        let peers: Vec<_> = self.peers().collect();
        peers
            .into_iter()
            .try_for_each(|peer| self.send(peer, message, deadline))
    }

    /// Waits for the next message of a peer.
    pub(crate) fn recv(&mut self, from: PeerId, deadline: Deadline) -> Result<Vec<u8>, Error> {
        self.await_kind(Kind::Plain, from, deadline)?;
        self.take(from)
    }

    /// Waits for the next message of anybody. Whoever was heard last has to wait for the others.
    pub(crate) fn recv_any(&mut self, deadline: Deadline) -> Result<(PeerId, Vec<u8>), Error> {
        loop {
            self.poll()?;
            let after = PeerId(self.heard_last.0 + 1);
            let mut in_turn = self.peers.range(after..).chain(self.peers.range(..after));
            let heard = in_turn.find(|(_, peer)| !peer.inbox.is_empty() || peer.gone.is_some());
            if let Some((&peer, _)) = heard {
                self.heard_last = peer;
                return Ok((peer, self.recv(peer, deadline)?));
            }
            self.pause(deadline, None, "message of")?;
        }
    }

    /// A round, of a client: says something to the server, and hears what everybody said.
    pub(crate) fn all_to_all(
        &mut self,
        server: PeerId,
        message: &[u8],
        deadline: Deadline,
    ) -> Result<Round, Error> {
        self.has_whole_rounds()?;
        self.send_as(Kind::Said, server, message, deadline)?;
        // An answer that comes after this call would be taken for the next round's.
        self.is_round_broken = true;
        self.await_kind(Kind::Heard, server, deadline)?;
        let heard = self.take(server)?;
        let round = Round::parse(&heard).ok_or(Error::OutOfStep(server))?;
        self.is_round_broken = false;
        Ok(round)
    }

    /// A round, of the server: hears one client after the other, and tells each what all of them said. Gives those
    /// who are gone, and did not hear it.
    pub(crate) fn serve_all_to_all(&mut self, deadline: Deadline) -> Result<Vec<PeerId>, Error> {
        self.has_whole_rounds()?;
        let peers: Vec<_> = self.peers().collect();
        let mut gone = Vec::new();
        // Nothing is taken before all of it is there.
        for &peer in &peers {
            match self.await_kind(Kind::Said, peer, deadline) {
                Err(Error::Gone { .. }) => gone.push(peer),
                outcome => outcome?,
            }
        }
        let said = |peer: &PeerId| Some(self.peers.get(peer)?.inbox.front()?.1.payload());
        let said: Vec<_> = peers
            .iter()
            .map(|peer| said(peer).filter(|_| !gone.contains(peer)))
            .collect();
        let mut round = Round::join(&said);
        for peer in peers.iter().filter(|peer| !gone.contains(peer)) {
            self.fits(*peer, round.len())?;
        }
        // Some hear it now, and may begin the next one.
        self.is_round_broken = true;
        for (own, &peer) in (0_u16..).zip(&peers) {
            if gone.contains(&peer) {
                continue;
            }
            self.take(peer)?;
            Round::address(&mut round, own);
            match self.send_as(Kind::Heard, peer, &round, deadline) {
                Err(Error::Gone { .. }) => gone.push(peer),
                outcome => outcome?,
            }
        }
        self.is_round_broken = false;
        Ok(gone)
    }

    /// Whether each round so far came to its end.
    const fn has_whole_rounds(&self) -> Result<(), Error> {
        if self.is_round_broken {
            return Err(Error::RoundBroken);
        }
        Ok(())
    }

    /// Says farewell to a peer, waits until all that was sent to it is there, and forgets it, with what it
    /// said and nobody has received.
    pub(crate) fn disconnect(&mut self, peer: PeerId, deadline: Deadline) -> Result<(), Error> {
        let farewell = self.send_as(Kind::Farewell, peer, &[], deadline);
        let at = self.peers.get(&peer).ok_or(Error::NoSuchPeer(peer))?.at;
        let Self { workers, peers, .. } = self;
        let worker = workers.get_mut(at.worker).ok_or(Error::NoSuchPeer(peer))?;
        let closed = worker.close(at.channel, deadline, |mut turn, event| {
            let from = turn.channel.id();
            let of = |peer: &&mut Peer<P>| peer.at.worker == at.worker && peer.at.channel == from;
            if let Some(unused) = peers.values_mut().find(of).and_then(|peer| peer.note(event)) {
                turn.release(unused);
            }
        });
        let was = self.peers.remove(&peer);
        match (was.and_then(|peer| peer.gone), farewell) {
            // Nothing more can be lost of it.
            (Some(Why::Left), _) => Ok(()),
            (Some(why), _) => Err(Error::Gone { peer, why }),
            (None, Err(error)) => Err(error),
            (None, Ok(())) if closed.is_err() => Err(Error::TimedOut {
                peer: Some(peer),
                what: "sign that all came to",
            }),
            (None, Ok(())) => Ok(()),
        }
    }

    fn channel(&self) -> ChannelConfig {
        let mut config = ChannelConfig::default();
        config.send_depth = self.settings.messages_max;
        config.receive_depth = self.settings.messages_max;
        config.repost_batch = (self.settings.messages_max / 4).max(1);
        config
    }

    fn has_room(&self) -> Result<(), Error> {
        let is_full = self.peers.len() >= self.settings.peers_max as usize;
        if is_full { Err(Error::Full) } else { Ok(()) }
    }

    fn add(&mut self, at: Connection) -> PeerId {
        let id = PeerId(self.next);
        self.next += 1;
        let inbox = VecDeque::with_capacity(self.settings.messages_max as usize);
        let peer = Peer {
            at,
            sent: 0,
            came: 0,
            inbox,
            gone: None,
        };
        self.peers.insert(id, peer);
        id
    }

    /// Whether a message of so many bytes fits.
    fn fits(&mut self, peer: PeerId, bytes: usize) -> Result<(), Error> {
        let at = self.peers.get(&peer).ok_or(Error::NoSuchPeer(peer))?.at;
        let channel = self
            .workers
            .get_mut(at.worker)
            .and_then(|worker| worker.channel(at.channel));
        let theirs = channel.ok_or(Error::NoSuchPeer(peer))?.peer().message_bytes_max();
        let bytes_max = theirs.min(self.settings.message_bytes_max) as usize;
        if bytes <= bytes_max {
            return Ok(());
        }
        Err(Error::TooLong {
            peer,
            bytes,
            bytes_max,
        })
    }

    fn send_as(&mut self, kind: Kind, to: PeerId, message: &[u8], deadline: Deadline) -> Result<(), Error> {
        self.fits(to, message.len())?;
        loop {
            self.poll()?;
            let peer = self.peers.get_mut(&to).ok_or(Error::NoSuchPeer(to))?;
            if let Some(why) = peer.gone {
                return Err(Error::Gone { peer: to, why });
            }
            let worker = self
                .workers
                .get_mut(peer.at.worker)
                .ok_or(Error::NoSuchPeer(to))?;
            if let Some(mut lease) = worker.lease() {
                // It fits: that was looked at.
                let _ = lease.fill(message);
                let channel = worker.channel(peer.at.channel).ok_or(Error::NoSuchPeer(to))?;
                let operation = Operation::SendWithImmediate(kind.word(peer.sent));
                match channel.post(operation, lease, PostFlags::empty()) {
                    Ok(_) => {
                        peer.sent = peer.sent.wrapping_add(1);
                        return Ok(());
                    }
                    Err(error) if error.kind == SendErrorKind::WouldBlock => {}
                    Err(error) => peer.gone = Some(Why::Refused(error.kind)),
                }
            }
            self.pause(deadline, Some(to), "room for a message to")?;
        }
    }

    /// Waits until a message of a peer is there, and it is of this kind.
    fn await_kind(&mut self, kind: Kind, from: PeerId, deadline: Deadline) -> Result<(), Error> {
        loop {
            self.poll()?;
            let peer = self.peers.get(&from).ok_or(Error::NoSuchPeer(from))?;
            match (peer.inbox.front(), peer.gone) {
                (Some((came, _)), _) if *came == kind => return Ok(()),
                (Some(_), _) => return Err(Error::OutOfStep(from)),
                (None, Some(why)) => return Err(Error::Gone { peer: from, why }),
                (None, None) => self.pause(deadline, Some(from), "message of")?,
            }
        }
    }

    /// Takes the oldest message of a peer, and lets its memory receive again.
    fn take(&mut self, from: PeerId) -> Result<Vec<u8>, Error> {
        let peer = self.peers.get_mut(&from).ok_or(Error::NoSuchPeer(from))?;
        let (_, lease) = peer.inbox.pop_front().ok_or(Error::NoSuchPeer(from))?;
        let message = lease.payload().to_vec();
        if let Some(worker) = self.workers.get_mut(peer.at.worker) {
            worker.release(lease);
        }
        Ok(message)
    }

    /// Takes what came, from all peers. Never waits.
    fn poll(&mut self) -> Result<(), Error> {
        let Self { workers, peers, .. } = self;
        for (index, worker) in workers.iter_mut().enumerate() {
            worker.poll(|mut turn, event| {
                let from = turn.channel.id();
                let of = |peer: &&mut Peer<P>| peer.at.worker == index && peer.at.channel == from;
                if let Some(unused) = peers.values_mut().find(of).and_then(|peer| peer.note(event)) {
                    turn.release(unused);
                }
            })?;
        }
        Ok(())
    }

    /// Leaves the processor to others, unless the deadline has passed.
    fn pause(&mut self, deadline: Deadline, peer: Option<PeerId>, what: &'static str) -> Result<(), Error> {
        let now = self.node.network().now();
        if deadline.has_passed(now) {
            return Err(Error::TimedOut { peer, what });
        }
        if self.probe_at.has_passed(now) {
            self.probe_at = Deadline::after(now, PROBE_EVERY);
            for peer in self.peers.values().filter(|peer| peer.gone.is_none()) {
                let worker = self.workers.get_mut(peer.at.worker);
                let channel = worker.and_then(|worker| worker.channel(peer.at.channel));
                // Where there is no room, something is under way that fails just as well.
                let _ = channel.map(Channel::probe);
            }
        }
        thread::yield_now();
        Ok(())
    }
}

impl<P: Provider> Peer<P> {
    /// Notes what happened; gives back memory that is of no use.
    fn note(&mut self, event: Event<P>) -> Option<Lease<P>> {
        match event {
            Event::Received { message, immediate } => {
                let Some(kind) = immediate.and_then(|word| Kind::of(word, self.came)) else {
                    return Some(message);
                };
                self.came = self.came.wrapping_add(1);
                if kind == Kind::Farewell {
                    self.gone = Some(Why::Left);
                    return Some(message);
                }
                self.inbox.push_back((kind, message));
            }
            // A flush is the consequence of another failure, which may be told after it.
            Event::Failed { status, .. }
            | Event::ChannelFailed {
                cause: FirstCause { status, .. },
            } => match self.gone {
                None => self.gone = Some(Why::Failed(status)),
                Some(Why::Failed(first)) if first.is_flush() => self.gone = Some(Why::Failed(status)),
                Some(_) => {}
            },
            _ => {}
        }
        None
    }
}

/// What everybody said in a round.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// Which of the messages is one's own.
    pub(crate) own: usize,
    /// The messages, in the order the clients came; nothing of one that is gone.
    pub(crate) messages: Vec<Option<Vec<u8>>>,
}

impl Round {
    /// In the place of a length: nothing was said.
    const NOTHING: u32 = u32::MAX;

    /// All that was said as one message: whom it is for, and of each its length and itself.
    pub(super) fn join(said: &[Option<&[u8]>]) -> Vec<u8> {
        let mut joined = vec![0; size_of::<u16>()];
        for message in said {
            // No device has messages of 4 GiB.
            let length = message.map_or(Ok(Self::NOTHING), |message| message.len().try_into());
            joined.extend(length.unwrap_or(Self::NOTHING).to_be_bytes());
            joined.extend(message.unwrap_or_default());
        }
        joined
    }

    /// Says whom it is for.
    pub(super) fn address(joined: &mut [u8], own: u16) {
        if let Some(first) = joined.first_chunk_mut() {
            *first = own.to_be_bytes();
        }
    }

    pub(super) fn parse(joined: &[u8]) -> Option<Self> {
        let (own, mut rest) = joined.split_first_chunk()?;
        let own = usize::from(u16::from_be_bytes(*own));
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let (length, behind) = rest.split_first_chunk()?;
            let length = u32::from_be_bytes(*length);
            let bytes = if length == Self::NOTHING {
                0
            } else {
                length as usize
            };
            let (message, behind) = behind.split_at_checked(bytes)?;
            messages.push((length != Self::NOTHING).then(|| message.to_vec()));
            rest = behind;
        }
        (own < messages.len()).then_some(Self { own, messages })
    }
}
