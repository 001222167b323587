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
//! | a question or an answer | [`BODY_BYTES_MAX`], or less where the peer has less |
//! | questions that are not answered yet, from each peer | [`DEPTH`]; then its next ones wait |
//!
//! A question stays in the registered memory it came in until it is answered, so a peer that asks faster than it is answered waits by itself, and
//! nothing grows. Questions from one peer come in order. A peer that leaves sends a farewell. A peer that dies is found within about three seconds:
//! with nothing heard from it for [`PROBE_AFTER`], its device is asked for a sign of life (`ChannelConfig::timeout` and `retry_count` say how long).
//! A process that is stopped is not dead: its device answers, and the call's deadline ends the wait. `doorbell::link::Links` detects within milliseconds,
//! uses several rails and reconnects; `doorbell::mesh::Mesh` is for members that talk among each other.

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::thread;

use doorbell::provider::{Network, Provider};
use doorbell::requests::{Asked, Ended, NotSentKind, REQUEST_HEADER_BYTES, Requests};
use doorbell::worker::FirstCause;
use doorbell::{
    ChannelConfig, Connection, Deadline, Event, Handle, Listener, Node, SendErrorKind, Turn, WcStatus,
    Worker, WorkerConfig,
};

use super::round::Round;

/// Peers of an endpoint at most.
pub(crate) const PEERS_MAX: u32 = 64;

/// Messages under way to a peer, and from it, at most: a question and an answer each way, and as much again of calls that were given up.
pub(crate) const DEPTH: u32 = 4;

/// With nothing heard from a peer for so long, its device is asked for a sign of life.
pub(crate) const PROBE_AFTER: Duration = Duration::from_secs(1);

/// The longest question, and the longest answer. In a round what everybody says is one answer: 64 peers may then say 120 bytes each.
pub(crate) const BODY_BYTES_MAX: u32 = 8192;

/// Names a peer, in the order they came. A name is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerId(u64);

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer {}", self.0)
    }
}

/// Something was not done, of a peer or of the endpoint.
#[derive(Debug)]
pub(crate) struct Error {
    pub(crate) peer: Option<PeerId>,
    pub(crate) why: Why,
}

/// Why something was not done.
#[derive(Debug)]
pub(crate) enum Why {
    /// The peer disconnected. Its earlier questions are heard before this end.
    Left,
    /// The connection failed, with the first cause. Told as [`Why::Left`] is.
    Lost(WcStatus),
    /// The deadline passed: the name of the event that was waited for.
    TimedOut(&'static str),
    /// A message was refused: too long, say.
    Refused(NotSentKind),
    /// Caller misuse, or an answer that is not what was asked for.
    Wrong(&'static str),
    /// There is no device, no connection, or no clean end of one.
    Failed(Box<dyn core::error::Error + Send + Sync>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(peer) = self.peer {
            write!(f, "{peer}")?;
            f.write_str(if matches!(self.why, Why::Left | Why::Lost(_)) {
                " "
            } else {
                ": "
            })?;
        }
        match &self.why {
            Why::Left => f.write_str("has left"),
            Why::Lost(status) => write!(f, "is lost: {status}"),
            Why::TimedOut(what) => write!(f, "no {what} by the deadline"),
            Why::Refused(kind) => kind.fmt(f),
            Why::Wrong(what) => f.write_str(what),
            Why::Failed(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for Error {}

impl Error {
    fn of(peer: PeerId, why: Why) -> Self {
        Self {
            peer: Some(peer),
            why,
        }
    }

    fn wrong(what: &'static str) -> Self {
        let why = Why::Wrong(what);
        Self { peer: None, why }
    }

    fn failed(error: impl core::error::Error + Send + Sync + 'static) -> Self {
        let why = Why::Failed(Box::new(error));
        Self { peer: None, why }
    }
}

/// Why a peer is gone: it left, or its connection failed.
#[derive(Clone, Copy)]
enum Gone {
    Left,
    Lost(WcStatus),
}

impl Gone {
    fn error(self, peer: PeerId) -> Error {
        match self {
            Self::Left => Error::of(peer, Why::Left),
            Self::Lost(status) => Error::of(peer, Why::Lost(status)),
        }
    }
}

/// A peer, and its end.
struct Peer<P: Provider> {
    at: Connection,
    /// The question that it was asked, until that has an end.
    requests: Requests<()>,
    /// The answer to it.
    answer: Option<Vec<u8>>,
    /// Its questions that are not answered yet, in the memory they came in.
    inbox: VecDeque<Asked<P>>,
    gone: Option<Gone>,
}

/// One side: a server with its clients, or a client.
pub(crate) struct Endpoint<'n, P: Provider, N: Network> {
    node: &'n Node<P, N>,
    peers_max: u32,
    workers: Vec<Worker<P>>,
    listener: Option<Listener<P, N>>,
    /// By name, which is also the word of the application's own on the channel.
    peers: BTreeMap<PeerId, Peer<P>>,
    next: u64,
    /// The peer whose question was taken last: the next is another's, where one came.
    heard_last: PeerId,
}

impl<'n, P: Provider, N: Network> Endpoint<'n, P, N> {
    /// Takes memory for so many peers, up to [`PEERS_MAX`], on every device that can be used; nobody is connected yet.
    pub(crate) fn init(node: &'n Node<P, N>, peers_max: u32) -> Result<Self, Error> {
        let peers_max = peers_max.clamp(1, PEERS_MAX);
        let mut config = WorkerConfig::for_channels(peers_max, BODY_BYTES_MAX + REQUEST_HEADER_BYTES as u32);
        // As much for what is under way to a peer as for what comes of it.
        config.slots = peers_max * DEPTH * 2;
        Ok(Self {
            node,
            peers_max,
            workers: node.workers(&config).map_err(Error::failed)?,
            listener: None,
            peers: BTreeMap::new(),
            next: 0,
            heard_last: PeerId(0),
        })
    }

    /// Lets peers connect at this address (port 0: any free one); they need the handle to.
    pub(crate) fn listen(&mut self, address: SocketAddr) -> Result<&Handle, Error> {
        let listener =
            Listener::bind(self.node, &self.workers, address, &channel()).map_err(Error::failed)?;
        Ok(self.listener.insert(listener).handle())
    }

    /// Waits for one peer.
    pub(crate) fn accept(&mut self, deadline: Deadline) -> Result<PeerId, Error> {
        self.has_room()?;
        let listener = self.listener.as_mut();
        let listener = listener.ok_or(Error::wrong("this endpoint does not listen"))?;
        let at = listener.accept(self.node, &mut self.workers, deadline);
        Ok(self.add(at.map_err(Error::failed)?))
    }

    /// Connects to the endpoint that handed out the handle.
    pub(crate) fn connect(&mut self, handle: &Handle, deadline: Deadline) -> Result<PeerId, Error> {
        self.has_room()?;
        let at = self.node.connect(&mut self.workers, handle, &channel(), deadline);
        Ok(self.add(at.map_err(Error::failed)?))
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
            // Peers behind the last one first, then the others.
            let heard = peers
                .clone()
                .find(|(is_before, _, peer)| !is_before && has_news(peer));
            if let Some((_, id, _)) = heard.or_else(|| peers.find(|(_, _, peer)| has_news(peer))) {
                self.heard_last = id;
                let (peer, _) = self.peer(id)?;
                let gone = peer.gone.unwrap_or(Gone::Left);
                return peer
                    .inbox
                    .pop_front()
                    .map(|asked| (id, asked))
                    .ok_or(gone.error(id));
            }
            self.pause(deadline, None, "question")?;
        }
    }

    /// Answers a question. Without room by the deadline there is no answer, and the peer finds out by its own deadline.
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
            return Err(Error::of(to, Why::Refused(kind)));
        };
        loop {
            let (peer, worker) = self.peer(to)?;
            if let Some(gone) = peer.gone {
                return Err(gone.error(to));
            }
            let channel = worker.channel(peer.at.channel).ok_or(no_such(to))?;
            match channel.send_lease(message) {
                Ok(_) => return Ok(()),
                Err(error) => match (error.kind, error.item) {
                    (SendErrorKind::WouldBlock, Some(back)) => message = back,
                    (kind, _) => return Err(Error::of(to, Why::Refused(NotSentKind::Channel(kind)))),
                },
            }
            self.pause(deadline, Some(to), "room for an answer")?;
            self.poll()?;
        }
    }

    /// A round of a client: sends a message to the server, and receives the messages of all.
    pub(crate) fn all_to_all(
        &mut self,
        server: PeerId,
        message: &[u8],
        deadline: Deadline,
    ) -> Result<Round, Error> {
        let heard = self.ask(server, message, deadline)?;
        Round::parse(&heard).ok_or(Error::of(server, Why::Wrong("the answer is none of a round")))
    }

    /// A round of the server: receives from one client after the other, and sends the messages of all to each. Returns the peers that are gone, and
    /// did not receive it. A round that ended at its deadline took no question, or answered only some.
    pub(crate) fn serve_all_to_all(&mut self, deadline: Deadline) -> Result<Vec<PeerId>, Error> {
        let peers: Vec<_> = self.peers().collect();
        for &id in &peers {
            self.until(id, deadline, "question", |peer| {
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
                None => gone.push(peer),
                Some(Err(error)) if matches!(error.why, Why::Left | Why::Lost(_)) => gone.push(peer),
                Some(outcome) => outcome?,
            }
        }
        Ok(gone)
    }

    /// Closes the connection to a peer behind all that was sent to it, and forgets it, with its questions.
    pub(crate) fn disconnect(&mut self, peer: PeerId, deadline: Deadline) -> Result<(), Error> {
        let at = self.peer(peer)?.0.at;
        let Self { workers, peers, .. } = self;
        let worker = workers.get_mut(at.worker).ok_or(no_such(peer))?;
        let closed = worker.close(at.channel, deadline, |turn, event| note(peers, turn, event));
        match self.peers.remove(&peer).and_then(|peer| peer.gone) {
            // Nothing more can be lost of it.
            Some(Gone::Left) => Ok(()),
            Some(gone) => Err(gone.error(peer)),
            None => closed.map_err(|error| Error::of(peer, Why::Failed(Box::new(error)))),
        }
    }

    fn has_room(&self) -> Result<(), Error> {
        if self.peers.len() < self.peers_max as usize {
            return Ok(());
        }
        Err(Error::wrong("as many peers as there may be are connected"))
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
            requests: Requests::new(1, BODY_BYTES_MAX as usize),
            answer: None,
            inbox: VecDeque::with_capacity(DEPTH as usize),
            gone: None,
        };
        self.peers.insert(id, peer);
        id
    }

    /// A peer, and the Worker that has its channel.
    fn peer(&mut self, id: PeerId) -> Result<(&mut Peer<P>, &mut Worker<P>), Error> {
        let peer = self.peers.get_mut(&id).ok_or(no_such(id))?;
        let worker = self.workers.get_mut(peer.at.worker);
        Ok((peer, worker.ok_or(no_such(id))?))
    }

    /// Sends a question. Waits while the peer has no room.
    fn begin(&mut self, to: PeerId, question: &[u8], deadline: Deadline) -> Result<(), Error> {
        loop {
            self.poll()?;
            let (peer, worker) = self.peer(to)?;
            if let Some(gone) = peer.gone {
                return Err(gone.error(to));
            }
            match peer
                .requests
                .send(worker, peer.at.channel, question, deadline, ())
            {
                Ok(_) => {
                    peer.answer = None;
                    return Ok(());
                }
                Err(refused) if refused.kind.is_temporary() => {}
                Err(refused) => return Err(Error::of(to, Why::Refused(refused.kind))),
            }
            self.pause(deadline, Some(to), "room for a question")?;
        }
    }

    /// Waits for the end of the question that a peer was asked.
    fn answer_of(&mut self, from: PeerId, deadline: Deadline) -> Result<Vec<u8>, Error> {
        self.until(from, deadline, "answer", |peer| peer.requests.in_flight() == 0)?;
        let (peer, _) = self.peer(from)?;
        let timed_out = Error::of(from, Why::TimedOut("answer"));
        let error = peer.gone.map_or(timed_out, |gone| gone.error(from));
        peer.answer.take().ok_or(error)
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
            let polled = worker.poll_tending(|turn, event| note(peers, turn, event));
            polled.map_err(Error::failed)?;
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
            let why = Why::TimedOut(what);
            return Err(Error { peer, why });
        }
        thread::yield_now();
        Ok(())
    }
}

fn no_such(peer: PeerId) -> Error {
    Error::of(peer, Why::Wrong("there is no such peer, or it was disconnected"))
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
fn note<P: Provider>(peers: &mut BTreeMap<PeerId, Peer<P>>, mut turn: Turn<'_, P>, event: Event<'_, P>) {
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
        Some(Event::Received { message, .. }) => peer.inbox.extend(Asked::of(message).ok()),
        Some(Event::PeerClosed { .. }) => {
            peer.gone.get_or_insert(Gone::Left);
        }
        // A flush is the consequence of another failure, which may be reported after it.
        Some(
            Event::Failed { status, .. }
            | Event::ChannelFailed {
                cause: FirstCause { status, .. },
            },
        ) if peer
            .gone
            .is_none_or(|gone| matches!(gone, Gone::Lost(first) if first.is_flush())) =>
        {
            peer.gone = Some(Gone::Lost(status));
        }
        _ => {}
    }
}
