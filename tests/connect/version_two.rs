//! Links with a peer that speaks an older version of the wire format: messages pass, and no frame is sent that the peer does not know.

use core::time::Duration;
use std::sync::Arc;

use crate::fabric::port;
use crate::version_one::Old;
use doorbell::link::{
    EndReason, LinkConfig, LinkEvent, LinkId, Links, SessionEvent, TransferEnd, TransferEvent, TransferId,
    TransferOptions, TransferOutcome, TransferRefusal,
};
use doorbell::memory::Region;
use doorbell::provider::PlacementConfig;
use doorbell::{Node, Trust, Worker, WorkerConfig};
use doorbell_sim::{Fabric, Host};

/// A process with its links, and what it was told.
struct Side {
    node: Arc<Node<Host, Old>>,
    workers: Vec<Worker<Host>>,
    links: Links<Host, Old>,
    region: Region<Host>,
    link: Option<LinkId>,
    is_connected: bool,
    messages: u32,
    offered: u32,
    ends: Vec<(TransferId, TransferEnd)>,
}

impl Side {
    /// One whose Hello says that this version is its newest.
    fn new(fabric: &Fabric, name: &str, address: &str, newest: u8) -> Self {
        let host = fabric.host(name, vec![port("sim", address)]).unwrap();
        let trust = Trust::unauthenticated_on_purpose();
        let node = Arc::new(Node::with(host.clone(), Old(host, newest), trust).unwrap());
        let workers = node.workers(&WorkerConfig::default()).unwrap();
        let links = Links::new(&node, &workers, &LinkConfig::default()).unwrap();
        let region = node.region(&workers, 4096, &PlacementConfig::DEFAULT).unwrap();
        Self {
            node,
            workers,
            links,
            region,
            link: None,
            is_connected: false,
            messages: 0,
            offered: 0,
            ends: Vec::new(),
        }
    }

    fn poll(&mut self) {
        let Self {
            link,
            is_connected,
            messages,
            offered,
            ends,
            ..
        } = self;
        let each = |id, event: LinkEvent<'_>| match event {
            LinkEvent::Session(SessionEvent::Connected) => (*link, *is_connected) = (Some(id), true),
            LinkEvent::Session(SessionEvent::Final { reason }) => panic!("{reason}"),
            LinkEvent::Received { .. } => *messages += 1,
            LinkEvent::Transfer { transfer, event } => match event {
                TransferEvent::Offered { .. } => *offered += 1,
                TransferEvent::Ended { end, .. } => ends.push((transfer, end)),
                other => panic!("{other:?}"),
            },
            _ => {}
        };
        self.links.poll(&self.node, &mut self.workers, each).unwrap();
    }

    fn begin(&mut self, offers: bool) -> Result<TransferId, TransferRefusal> {
        let (link, options) = (self.link.unwrap(), TransferOptions::default());
        let what = (&self.region, 0, 4096);
        match offers {
            true => self.links.offer(&self.node, link, what, &options),
            false => self.links.ask(&self.node, link, what, &options),
        }
    }
}

fn run(fabric: &Fabric, sides: &mut [Side; 2], ms: u64) {
    let until = fabric.now().after(Duration::from_millis(ms));
    while fabric.now() < until {
        sides.iter_mut().for_each(Side::poll);
        fabric.run_until(fabric.now().after(Duration::from_micros(50)));
    }
}

fn sides(newest: u8) -> (Fabric, [Side; 2]) {
    let fabric = Fabric::new();
    let mut a = Side::new(&fabric, "a", "10.0.0.1/24", newest);
    let mut b = Side::new(&fabric, "b", "10.0.0.2/24", newest);
    let handle = b
        .links
        .listen_polled(&b.node, &b.workers, "[::]:0".parse().unwrap())
        .unwrap();
    a.link = Some(a.links.connect(&a.node, &a.workers, &handle).unwrap());
    (fabric, [a, b])
}

#[test]
fn a_peer_of_version_2_is_offered_no_transfer_and_asked_for_none() {
    let (fabric, mut sides) = sides(2);
    // Begun before it is known whom the link leads to.
    let early = [true, false].map(|offers| sides[0].begin(offers).unwrap());
    run(&fabric, &mut sides, 100);
    let unsupported = TransferEnd::Here(EndReason::UNSUPPORTED);
    assert_eq!(sides[0].ends, early.map(|id| (id, unsupported)));
    for side in &mut sides {
        assert!(side.is_connected);
        for offers in [true, false] {
            let refused = side.begin(offers).unwrap_err();
            assert_eq!(refused, TransferRefusal::Unsupported { version: 2 });
        }
        let link = side.link.unwrap();
        side.links.send(link, b"a message").unwrap();
    }
    run(&fabric, &mut sides, 400);
    for side in &sides {
        assert_eq!((side.messages, side.offered), (1, 0));
        let totals = side.links.transfer_totals();
        assert_eq!((totals.offered, totals.taken_bytes), (0, 0));
        let refused = totals.ended(TransferOutcome::Refused);
        assert_eq!(
            (totals.begun, refused),
            (side.ends.len() as u64, side.ends.len() as u64)
        );
    }
    assert!(sides[1].ends.is_empty());
}

#[test]
fn a_peer_of_version_3_is() {
    let (fabric, mut sides) = sides(3);
    sides[0].begin(true).unwrap();
    run(&fabric, &mut sides, 100);
    sides[1].begin(false).unwrap();
    run(&fabric, &mut sides, 100);
    assert!(sides.iter().all(|side| side.offered == 1 && side.ends.is_empty()));
}

#[test]
fn long_messages_are_written_into_memory_of_a_peer_of_version_4_and_of_none_before() {
    for (newest, is_lent) in [(2, false), (3, false), (4, true)] {
        let (fabric, mut sides) = sides(newest);
        run(&fabric, &mut sides, 50);
        let before = fabric.registrations();
        fabric.capture(100_000);
        for _ in 0..3 {
            for side in &mut sides {
                side.links.send(side.link.unwrap(), &[7; 100_000]).unwrap();
            }
            run(&fabric, &mut sides, 50);
        }
        for side in &sides {
            let counts = side.links.counts(side.link.unwrap());
            assert_eq!(
                (side.messages, counts.placed > 0),
                (3, is_lent),
                "version {newest}"
            );
        }
        // An older peer takes neither frame for one.
        let kinds: Vec<_> = fabric
            .take_captured()
            .iter()
            .filter_map(|frame| kind(&frame.bytes))
            .collect();
        let is_said = [15, 16].map(|kind| kinds.contains(&kind));
        assert_eq!(is_said, [is_lent; 2], "version {newest}");
        assert!(kinds.contains(&2), "acknowledgements are seen");
        assert_eq!(fabric.registrations() > before, is_lent);
    }
}

/// The kind of the frame of a session that a packet carries, if it is a SEND of one packet.
///
/// Source: InfiniBand Architecture volume 1, section 9.2 (BTH), and annex A17.
fn kind(packet: &[u8]) -> Option<u8> {
    let ip = match packet.get(12..14)? {
        [0x86, 0xdd] => 40,
        _ => 20,
    };
    let transport = packet.get(14 + ip + 8..)?;
    // SEND only.
    (*transport.first()? == 0x04).then(|| transport.get(13).copied())?
}
