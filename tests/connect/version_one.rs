//! Channels between sides that speak version 1 of the handshake, which has no farewell: none is sent, and requests and probes find the
//! end of one.

use core::net::SocketAddr;
use core::time::Duration;

use crate::fabric::{End, LONG, connect_notified, port};
use doorbell::provider::{Clock, Instant, Io, IoError, Network, NetworkError, Waited};
use doorbell::wire::{Frame, FrameHeader, FrameKind};
use doorbell::worker::CloseProgress;
use doorbell::{
    ChannelConfig, ChannelState, Deadline, Event, Node, Notify, Operation, Trust, Wait, WcStatus,
};
use doorbell_sim::{Acceptor, Fabric, Host, Stream};

/// The network of a host of old: its Hello says that it speaks no version behind this one.
pub(crate) struct Old(pub(crate) Host, pub(crate) u8);

pub(crate) struct OldStream(Stream, u8);

/// The bytes of a frame's header.
const HEADER_BYTES: usize = 10;

/// The same Hello, of a side that knows no version behind this one. Version 1 has no place for a key.
fn of_old(hello: &[u8], newest: u8) -> Vec<u8> {
    let key_bytes = if newest == 1 { 4 } else { 0 };
    let mut old = hello[..hello.len() - key_bytes].to_vec();
    let body_bytes = u16::try_from(old.len() - HEADER_BYTES).unwrap();
    old[8..HEADER_BYTES].copy_from_slice(&body_bytes.to_be_bytes());
    old[HEADER_BYTES + 1] = newest;
    let parsed = Frame::parse(&old).unwrap();
    assert_eq!(parsed.kind(), FrameKind::Hello);
    old
}

impl Io for OldStream {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, IoError> {
        self.0.read(buffer)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, IoError> {
        let is_hello = FrameHeader::parse(bytes).is_ok_and(|header| header.kind == FrameKind::Hello);
        if !is_hello {
            return self.0.write(bytes);
        }
        let old = of_old(bytes, self.1);
        let written = self.0.write(&old)?;
        assert_eq!(written, old.len(), "there is room for a Hello");
        Ok(bytes.len())
    }
}

impl doorbell::provider::Stream for OldStream {
    fn is_connecting(&self) -> bool {
        self.0.is_connecting()
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        self.0.peer_address()
    }
}

impl Clock for Old {
    fn now(&self) -> Instant {
        self.0.now()
    }
}

impl Network for Old {
    type Stream = OldStream;
    type Acceptor = Acceptor;

    fn connect(&self, to: SocketAddr) -> Result<OldStream, NetworkError> {
        self.0.connect(to).map(|stream| OldStream(stream, self.1))
    }

    fn listen(&self, at: SocketAddr) -> Result<Acceptor, NetworkError> {
        self.0.listen(at)
    }

    fn accept(&self, at: &Acceptor) -> Result<Option<OldStream>, NetworkError> {
        Ok(self.0.accept(at)?.map(|stream| OldStream(stream, self.1)))
    }

    fn wait<'s>(
        &self,
        acceptor: Option<&'s Acceptor>,
        streams: impl Iterator<Item = Waited<'s, OldStream>>,
        deadline: Deadline,
    ) -> Result<(), NetworkError> {
        let streams = streams.map(|waited| Waited {
            stream: &waited.stream.0,
            has_unsent: waited.has_unsent,
        });
        self.0.wait(acceptor, streams, deadline)
    }

    fn random(&self, into: &mut [u8]) -> Result<(), NetworkError> {
        self.0.random(into)
    }
}

/// Two that agreed on version 1, on channels that end as by default. One thread does all: time passes in its waits alone.
fn pair() -> (Fabric, End<Old>, End<Old>) {
    let fabric = Fabric::builder().driven().build();
    let nodes =
        [("a", "simA", "127.0.0.1/24"), ("b", "simB", "127.0.0.2/24")].map(|(name, device, address)| {
            let host = fabric.host(name, vec![port(device, address)]).unwrap();
            Node::with(host.clone(), Old(host, 1), Trust::unauthenticated_on_purpose()).unwrap()
        });
    let (mut config, default) = (crate::fabric::small(), ChannelConfig::default());
    config.close_when_lost = default.close_when_lost;
    config.probe_after = Some(Duration::from_secs(1));
    (config.timeout, config.retry_count) = (10, 3);
    let [a, b] = nodes;
    let (server, client) = connect_notified((a, b), config, config, Notify::Every);
    (fabric, server, client.unwrap())
}

/// The events of a side.
#[derive(Debug, Default, PartialEq, Eq)]
struct EventCounts {
    received: u32,
    failed: Vec<WcStatus>,
    requests_failed: u32,
}

impl EventCounts {
    /// Waits until the Worker has closed the channel by itself.
    fn until_gone(end: &mut End<Old>) -> Self {
        let mut told = Self::default();
        let (id, long) = (end.id(), end.worker().within(LONG));
        while end.worker().close_progress(id) != CloseProgress::Closed(Ok(())) {
            assert!(!long.has_passed(end.node.network().now()), "{told:?}");
            // Its going is no event, which would end a wait.
            let (how, soon) = (Wait::SpinThenSleep { spins: 4 }, Duration::from_millis(20));
            let soon = end.worker().within(soon);
            end.worker()
                .wait_tending(how, soon, |_, event| match event {
                    Event::Received { .. } => told.received += 1,
                    Event::ChannelFailed { cause } => told.failed.push(cause.status),
                    Event::Failed { .. } => told.requests_failed += 1,
                    Event::Done { .. } => {}
                    // A farewell would be a message that nobody sent.
                    other => panic!("{other:?}"),
                })
                .unwrap();
        }
        let state = end.worker().state(id).unwrap();
        assert!(matches!(state, ChannelState::Failed { .. }), "{state:?}");
        assert_eq!(end.worker().channels().count(), 0);
        told
    }
}

fn send(end: &mut End<Old>, messages: u32) {
    let id = end.id();
    for number in 0..messages {
        let channel = end.worker().channel(id).unwrap();
        channel
            .post_inline(Operation::Send, &number.to_be_bytes())
            .unwrap();
    }
}

/// Its probe finds a peer that closed, or was dropped, and said nothing; all that it had sent is there.
#[test]
fn a_side_that_only_receives_finds_the_end_by_its_probe() {
    for is_dropped in [false, true] {
        let (fabric, mut a, mut b) = pair();
        send(&mut b, 3);
        fabric.run_for(Duration::from_millis(1));
        let (id, long) = (b.id(), b.worker().within(LONG));
        if is_dropped {
            drop(b);
        } else {
            assert_eq!(b.worker().close(id, long, |_, _| {}), Ok(()));
        }
        let began = fabric.now();
        let told = EventCounts::until_gone(&mut a);
        let expected = EventCounts {
            received: 3,
            failed: vec![WcStatus::RETRY_EXC_ERR],
            requests_failed: 0,
        };
        assert_eq!(told, expected);
        let took = Deadline::at(fabric.now()).remaining(began);
        assert!(took < Duration::from_millis(1300), "{took:?}");
    }
}

/// Its own request finds one; each request gets its error.
#[test]
fn a_side_that_sends_finds_the_end_by_its_requests() {
    let (_fabric, mut a, mut b) = pair();
    let (id, long) = (b.id(), b.worker().within(LONG));
    assert_eq!(b.worker().close(id, long, |_, _| {}), Ok(()));
    send(&mut a, 5);
    let told = EventCounts::until_gone(&mut a);
    let expected = EventCounts {
        received: 0,
        failed: vec![WcStatus::RETRY_EXC_ERR],
        requests_failed: 5,
    };
    assert_eq!(told, expected);
}
