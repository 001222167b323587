//! Questions and answers between a server and up to 64 clients, for a program that wants no verbs: connect, ask, answer, ask everybody, and a
//! round in which everybody hears everybody.
//!
//! [`doorbell::requests`] does the work: it matches answers to questions, ends each question at its deadline, and drops an answer that comes
//! later. So a question or a round that ended at its deadline can be asked again, and the old answer is never taken for the new one. Here is what is
//! about several peers: their names, questions in turn, and errors that name the peer.
//!
//! | bounded | by |
//! |---|---|
//! | peers | [`PEERS_MAX`] |
//! | a question or an answer | [`Settings::body_bytes_max`], or less where the peer has less |
//! | questions that are not answered yet, from each peer | [`DEPTH`]; then its next ones wait |
//!
//! A question stays in the registered memory it came in until it is answered, so a peer that asks faster than it is answered waits by itself, and
//! nothing grows. Questions from one peer come in order. A peer that leaves says so. A peer that dies is found within about three seconds: with nothing
//! heard from it for [`PROBE_AFTER`], its device is asked for a sign of life (`ChannelConfig::timeout` and `retry_count` say how long). A process that
//! is stopped is not dead: its device answers, and the call's deadline ends the wait. `doorbell::Links` detects within milliseconds, uses several rails
//! and reconnects; `doorbell::Mesh` is for members who talk among each other.

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::thread;

use doorbell::requests::{Asked, Ended, NotSentKind, REQUEST_HEADER_BYTES, Requests};
use doorbell::vocabulary::provider::{Provider, ProviderError};
use doorbell::{
    ChannelConfig, CloseError, ConnectError, Connection, Deadline, Event, FirstCause, Handle, Listener,
    Network, Node, NodeError, SendErrorKind, Turn, WcStatus, Worker, WorkerConfig,
};

/// Peers of an endpoint at most.
pub(crate) const PEERS_MAX: u32 = 64;

/// Messages under way to a peer, and from it, at most: a question and an answer each way, and as much again of calls that were given up.
pub(crate) const DEPTH: u32 = 4;

/// With nothing heard from a peer for so long, its device is asked for a sign of life.
pub(crate) const PROBE_AFTER: Duration = Duration::from_secs(1);

/// What an endpoint is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Peers at most, up to [`PEERS_MAX`]. There is memory for all of them from the beginning: a client needs one.
    pub(crate) peers_max: u32,
    /// The longest question, and the longest answer. Default 8 KiB: in a round what everybody says is one answer, and 64 peers may
    /// then say 120 bytes each.
    pub(crate) body_bytes_max: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            peers_max: PEERS_MAX,
            body_bytes_max: 8192,
        }
    }
}

/// Names a peer, in the order they came. A name is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerId(u64);

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
    /// Caller misuse: more bytes than fit into a question to this peer, or into the memory that its question came in.
    TooLong { peer: PeerId, kind: NotSentKind },
    /// Nothing came of it by the deadline: what was waited for, of whom.
    TimedOut {
        peer: Option<PeerId>,
        what: &'static str,
    },
    /// The peer left, or its connection failed. What it had asked before is heard before this is told.
    Gone { peer: PeerId, why: Why },
    /// The connection was not closed cleanly.
    NotClosed { peer: PeerId, error: CloseError },
    /// The peer's answer is none of a round.
    NoRound(PeerId),
}

/// Why a peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It disconnected.
    Left,
    /// A request failed.
    Failed(WcStatus),
    /// A message was refused.
    Refused(NotSentKind),
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
            Self::TooLong { peer, kind } => write!(f, "to {peer}: {kind}"),
            Self::TimedOut {
                peer: Some(peer),
                what,
            } => write!(f, "no {what} {peer} by the deadline"),
            Self::TimedOut { peer: None, what } => write!(f, "no {what} anybody by the deadline"),
            Self::Gone { peer, why } => write!(f, "{peer} {why}"),
            Self::NotClosed { peer, error } => write!(f, "{peer}: {error}"),
            Self::NoRound(peer) => write!(f, "the answer of {peer} is none of a round"),
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

/// A peer, and what came of it.
struct Peer<P: Provider> {
    at: Connection,
    /// The question that it was asked, until that has an end.
    requests: Requests<()>,
    /// The answer to it.
    answer: Option<Vec<u8>>,
    /// Its questions that are not answered yet, in the memory they came in.
    inbox: VecDeque<Asked<P>>,
    gone: Option<Why>,
}

/// One side: a server with its clients, or a client.
pub(crate) struct Endpoint<'n, P: Provider, N: Network> {
    node: &'n Node<P, N>,
    settings: Settings,
    workers: Vec<Worker<P>>,
    listener: Option<Listener<P, N>>,
    /// By name, which is also the word of the application's own on the channel.
    peers: BTreeMap<PeerId, Peer<P>>,
    next: u64,
    /// The peer whose question was taken last: the next is another's, where one came.
    heard_last: PeerId,
}

impl<'n, P: Provider, N: Network> Endpoint<'n, P, N> {
    /// Takes memory on every device that can be used; nobody is connected yet.
    pub(crate) fn init(node: &'n Node<P, N>, settings: &Settings) -> Result<Self, Error> {
        let mut settings = *settings;
        settings.peers_max = settings.peers_max.clamp(1, PEERS_MAX);
        let mut config = WorkerConfig::for_channels(settings.peers_max, slot_bytes(&settings));
        // As much for what is under way to a peer as for what comes of it.
        config.slots = settings.peers_max * DEPTH * 2;
        Ok(Self {
            node,
            settings,
            workers: node.workers(&config)?,
            listener: None,
            peers: BTreeMap::new(),
            next: 0,
            heard_last: PeerId(0),
        })
    }

    /// Lets peers connect at this address (port 0: any free one); they need the handle to.
    pub(crate) fn listen(&mut self, address: SocketAddr) -> Result<&Handle, Error> {
        let listener = Listener::bind(self.node, &self.workers, address, &channel())?;
        Ok(self.listener.insert(listener).handle())
    }

    /// Waits for one peer.
    pub(crate) fn accept(&mut self, deadline: Deadline) -> Result<PeerId, Error> {
        self.has_room()?;
        let listener = self.listener.as_mut().ok_or(Error::NotListening)?;
        let at = listener.accept(self.node, &mut self.workers, deadline)?;
        Ok(self.add(at))
    }

    /// Connects to the endpoint that handed out the handle.
    pub(crate) fn connect(&mut self, handle: &Handle, deadline: Deadline) -> Result<PeerId, Error> {
        self.has_room()?;
        let at = self
            .node
            .connect(&mut self.workers, handle, &channel(), deadline)?;
        Ok(self.add(at))
    }

    /// All peers that were not disconnected, in the order they came.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.peers.keys().copied()
    }

    /// Asks a peer, and waits for its answer.
    pub(crate) fn ask(&mut self, to: PeerId, question: &[u8], deadline: Deadline) -> Result<Vec<u8>, Error> {
        self.begin(to, question, deadline)?;
        self.answer_of(to, deadline)
    }

    /// Asks all peers at once, and waits until each has answered. The first one that does not ends it.
    pub(crate) fn ask_all(&mut self, question: &[u8], deadline: Deadline) -> Result<(), Error> {
        let peers: Vec<_> = self.peers().collect();
        for &peer in &peers {
            self.begin(peer, question, deadline)?;
        }
        peers
            .into_iter()
            .try_for_each(|peer| self.answer_of(peer, deadline).map(drop))
    }

    /// Waits for the next question of any peer. The peer that was heard last has to wait for the others.
    pub(crate) fn next(&mut self, deadline: Deadline) -> Result<(PeerId, Asked<P>), Error> {
        loop {
            self.poll()?;
            let after = PeerId(self.heard_last.0 + 1);
            let mut peers = self.peers.iter().map(|(id, peer)| (*id < after, *id, peer));
            let has_news = |peer: &Peer<P>| !peer.inbox.is_empty() || peer.gone.is_some();
            // Those behind the last one first, then those before it.
            let heard = peers
                .clone()
                .find(|(is_before, _, peer)| !is_before && has_news(peer));
            if let Some((_, id, _)) = heard.or_else(|| peers.find(|(_, _, peer)| has_news(peer))) {
                self.heard_last = id;
                let (peer, _) = self.peer(id)?;
                let question = peer.inbox.pop_front();
                let why = peer.gone.unwrap_or(Why::Left);
                return question.map_or(Err(Error::Gone { peer: id, why }), |asked| Ok((id, asked)));
            }
            self.pause(deadline, None, "question of")?;
        }
    }

    /// Answers a question. Without room by the deadline there is no answer, and the peer's own deadline tells it so.
    pub(crate) fn answer(
        &mut self,
        to: PeerId,
        question: Asked<P>,
        answer: &[u8],
        deadline: Deadline,
    ) -> Result<(), Error> {
        let (bytes, bytes_max) = (answer.len(), question.answer_bytes_max());
        let Ok(mut message) = question.answer(answer) else {
            let kind = NotSentKind::TooLong { bytes, bytes_max };
            return Err(Error::TooLong { peer: to, kind });
        };
        loop {
            let (peer, worker) = self.peer(to)?;
            if let Some(why) = peer.gone {
                return Err(Error::Gone { peer: to, why });
            }
            let channel = worker.channel(peer.at.channel).ok_or(Error::NoSuchPeer(to))?;
            match channel.send(message) {
                Ok(_) => return Ok(()),
                Err(error) => match (error.kind, error.item) {
                    (SendErrorKind::WouldBlock, Some(back)) => message = back,
                    (kind, _) => return Err(peer.refused(to, NotSentKind::Channel(kind))),
                },
            }
            self.pause(deadline, Some(to), "room for an answer to")?;
            self.poll()?;
        }
    }

    /// A round, of a client: says something to the server, and hears what everybody said.
    pub(crate) fn all_to_all(
        &mut self,
        server: PeerId,
        message: &[u8],
        deadline: Deadline,
    ) -> Result<Round, Error> {
        let heard = self.ask(server, message, deadline)?;
        Round::parse(&heard).ok_or(Error::NoRound(server))
    }

    /// A round, of the server: hears one client after the other, and tells each what all of them said. Gives those
    /// who are gone, and did not hear it. A round that ended at its deadline took no question, or was told to some.
    pub(crate) fn serve_all_to_all(&mut self, deadline: Deadline) -> Result<Vec<PeerId>, Error> {
        let peers: Vec<_> = self.peers().collect();
        for &id in &peers {
            self.until(id, deadline, "question of", |peer| {
                !peer.inbox.is_empty() || peer.gone.is_some()
            })?;
        }
        let questions = self.peers.values_mut().map(|peer| peer.inbox.pop_front());
        let questions: Vec<_> = questions.collect();
        let said: Vec<_> = questions
            .iter()
            .map(|question| question.as_ref().map(Asked::body))
            .collect();
        let mut round = Round::join(&said);
        let mut gone = Vec::new();
        for (own, (peer, question)) in (0_u16..).zip(peers.into_iter().zip(questions)) {
            Round::address(&mut round, own);
            let told = question.map(|question| self.answer(peer, question, &round, deadline));
            match told {
                None | Some(Err(Error::Gone { .. })) => gone.push(peer),
                Some(outcome) => outcome?,
            }
        }
        Ok(gone)
    }

    /// Closes the connection to a peer behind all that was sent to it, and forgets it, with its questions.
    pub(crate) fn disconnect(&mut self, peer: PeerId, deadline: Deadline) -> Result<(), Error> {
        let at = self.peers.get(&peer).ok_or(Error::NoSuchPeer(peer))?.at;
        let Self { workers, peers, .. } = self;
        let worker = workers.get_mut(at.worker).ok_or(Error::NoSuchPeer(peer))?;
        let closed = worker.close(at.channel, deadline, |turn, event| note(peers, turn, event));
        match self.peers.remove(&peer).and_then(|peer| peer.gone) {
            // Nothing more can be lost of it.
            Some(Why::Left) => Ok(()),
            Some(why) => Err(Error::Gone { peer, why }),
            None => closed.map_err(|error| Error::NotClosed { peer, error }),
        }
    }

    fn has_room(&self) -> Result<(), Error> {
        let is_full = self.peers.len() >= self.settings.peers_max as usize;
        if is_full { Err(Error::Full) } else { Ok(()) }
    }

    fn add(&mut self, at: Connection) -> PeerId {
        let id = PeerId(self.next);
        self.next += 1;
        if let Some(channel) = self
            .workers
            .get_mut(at.worker)
            .and_then(|worker| worker.channel(at.channel))
        {
            channel.set_user(id.0);
        }
        let peer = Peer {
            at,
            requests: Requests::new(1, self.settings.body_bytes_max as usize),
            answer: None,
            inbox: VecDeque::with_capacity(DEPTH as usize),
            gone: None,
        };
        self.peers.insert(id, peer);
        id
    }

    /// A peer, and the Worker that has its channel.
    fn peer(&mut self, id: PeerId) -> Result<(&mut Peer<P>, &mut Worker<P>), Error> {
        let peer = self.peers.get_mut(&id).ok_or(Error::NoSuchPeer(id))?;
        let worker = self.workers.get_mut(peer.at.worker);
        Ok((peer, worker.ok_or(Error::NoSuchPeer(id))?))
    }

    /// Sends a question. Waits while the peer has no room.
    fn begin(&mut self, to: PeerId, question: &[u8], deadline: Deadline) -> Result<(), Error> {
        loop {
            self.poll()?;
            let (peer, worker) = self.peer(to)?;
            if let Some(why) = peer.gone {
                return Err(Error::Gone { peer: to, why });
            }
            match peer
                .requests
                .send(worker, peer.at.channel, question, deadline, ())
            {
                Ok(_) => {
                    peer.answer = None;
                    return Ok(());
                }
                Err(refused) if refused.kind.is_back_pressure() => {}
                Err(refused) => return Err(peer.refused(to, refused.kind)),
            }
            self.pause(deadline, Some(to), "room for a question to")?;
        }
    }

    /// Waits for the end of the question that a peer was asked.
    fn answer_of(&mut self, from: PeerId, deadline: Deadline) -> Result<Vec<u8>, Error> {
        self.until(from, deadline, "answer of", |peer| peer.requests.in_flight() == 0)?;
        let (peer, _) = self.peer(from)?;
        match (peer.answer.take(), peer.gone) {
            (Some(answer), _) => Ok(answer),
            (None, Some(why)) => Err(Error::Gone { peer: from, why }),
            (None, None) => Err(Error::TimedOut {
                peer: Some(from),
                what: "answer of",
            }),
        }
    }

    /// Waits until something is so of a peer.
    fn until(
        &mut self,
        id: PeerId,
        deadline: Deadline,
        what: &'static str,
        is_so: impl Fn(&Peer<P>) -> bool,
    ) -> Result<(), Error> {
        loop {
            self.poll()?;
            if is_so(self.peer(id)?.0) {
                return Ok(());
            }
            self.pause(deadline, Some(id), what)?;
        }
    }

    /// Takes what came, from all peers, and ends questions whose deadlines have passed. Never waits.
    fn poll(&mut self) -> Result<(), Error> {
        let Self { workers, peers, .. } = self;
        for worker in workers {
            worker.poll(|turn, event| note(peers, turn, event))?;
        }
        let now = self.node.network().now();
        for peer in self.peers.values_mut() {
            peer.requests.expire(now, |(), _| {});
        }
        Ok(())
    }

    /// Leaves the processor to others, unless the deadline has passed.
    fn pause(&self, deadline: Deadline, peer: Option<PeerId>, what: &'static str) -> Result<(), Error> {
        if deadline.has_passed(self.node.network().now()) {
            return Err(Error::TimedOut { peer, what });
        }
        thread::yield_now();
        Ok(())
    }
}

/// Bytes of a message, the header of a request among them.
fn slot_bytes(settings: &Settings) -> u32 {
    settings.body_bytes_max + REQUEST_HEADER_BYTES as u32
}

fn channel() -> ChannelConfig {
    let mut config = ChannelConfig::default();
    config.send_depth = DEPTH;
    config.receive_depth = DEPTH;
    config.repost_batch = 1;
    config.probe_after = Some(PROBE_AFTER);
    config
}

/// Notes what happened on a channel.
fn note<P: Provider>(peers: &mut BTreeMap<PeerId, Peer<P>>, mut turn: Turn<'_, P>, event: Event<P>) {
    let Some(peer) = peers.get_mut(&PeerId(turn.channel.user())) else {
        return;
    };
    let Peer { requests, answer, .. } = peer;
    let event = requests.take(&mut turn, event, |(), end| {
        if let Ended::Answered(body) = end {
            *answer = Some(body.to_vec());
        }
    });
    match event {
        Some(Event::Received { message, .. }) => match Asked::of(message) {
            Ok(question) => peer.inbox.push_back(question),
            Err(message) => turn.release(message),
        },
        Some(Event::PeerClosed { .. }) => {
            peer.gone.get_or_insert(Why::Left);
        }
        // A flush is the consequence of another failure, which may be told after it.
        Some(
            Event::Failed { status, .. }
            | Event::ChannelFailed {
                cause: FirstCause { status, .. },
            },
        ) => match peer.gone {
            None => peer.gone = Some(Why::Failed(status)),
            Some(Why::Failed(first)) if first.is_flush() => peer.gone = Some(Why::Failed(status)),
            Some(_) => {}
        },
        _ => {}
    }
}

impl<P: Provider> Peer<P> {
    /// A message to it was refused: too long, or the peer is gone by it.
    fn refused(&mut self, peer: PeerId, kind: NotSentKind) -> Error {
        match kind {
            NotSentKind::TooLong { .. } | NotSentKind::Channel(SendErrorKind::TooLong { .. }) => {
                Error::TooLong { peer, kind }
            }
            _ => Error::Gone {
                peer,
                why: *self.gone.get_or_insert(Why::Refused(kind)),
            },
        }
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

    /// All that was said, as one answer: whom it is for, then each message behind its length.
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
