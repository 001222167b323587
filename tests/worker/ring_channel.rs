//! One-sided messages over the simulated fabric: where bytes land in order, and where they do not.

use core::time::Duration;
use std::sync::mpsc;
use std::thread;

use crate::fabric::{End, LONG, pair, small};
use doorbell::provider::{DataInOrder, Window as _};
use doorbell::wire::{Publication, RingInvitation};
use doorbell::worker::{CloseProgress, RingChannel, RingConfig, RingError, RingOpening};
use doorbell::{
    Channel, ChannelConfig, ChannelId, Event, Listener, Operation, RemoteAccess, RemoteAddress,
    SendErrorKind, Turn, WindowConfig, Worker,
};
use doorbell_sim::{Fabric, Host};

/// An end with its rings.
struct Ringed {
    end: End,
    ring: RingChannel<Host>,
}

impl Ringed {
    fn send(&mut self, payload: &[u8]) -> Result<(), SendErrorKind> {
        let id = self.end.id();
        let channel = self.end.worker().channel(id).unwrap();
        self.ring.send_inline(channel, payload).map(drop)
    }

    fn poll(&mut self) {
        let Self { end, ring } = self;
        end.worker()
            .poll(|_, event| match event {
                Event::Written { immediate, .. } => ring.note_written(immediate),
                Event::Done { .. } => {}
                other => panic!("{other:?}"),
            })
            .unwrap();
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        self.poll();
        let id = self.end.id();
        let channel = self.end.worker().channel(id).unwrap();
        let mut room = [0; 1024];
        let bytes = self.ring.receive(channel, &mut room).unwrap()?;
        Some(room[..bytes].to_vec())
    }
}

fn open(end: End, config: &RingConfig) -> Ringed {
    let mut end = end;
    let (id, long) = (end.id(), end.node.within(LONG));
    let ring = RingChannel::open(end.worker(), id, config, long, |_, event| panic!("{event:?}"));
    Ringed {
        end,
        ring: ring.unwrap(),
    }
}

/// Two ends on devices that promise this.
fn ends(order: DataInOrder) -> (End, End) {
    ends_with(order, small())
}

fn ends_with(order: DataInOrder, config: ChannelConfig) -> (End, End) {
    let fabric = Fabric::new();
    let node = |name: &str, device: &str, address: &str| {
        let mut port = crate::fabric::port(device, address);
        port.data_in_order = order;
        crate::fabric::node(&fabric, name, vec![port])
    };
    let nodes = (
        node("a", "simA", "127.0.0.1/24"),
        node("b", "simB", "127.0.0.2/24"),
    );
    let (a, b) = crate::fabric::connect(nodes, config, config);
    (a, b.unwrap())
}

/// A second channel between them; its name on the side that connected the first.
fn beside(a: &mut End, b: &mut End) -> ChannelId {
    let mut listener = Listener::bind(&a.node, &a.workers, "127.0.0.1:0".parse().unwrap(), &small()).unwrap();
    let address = listener.address();
    let long = b.node.within(LONG);
    thread::scope(|scope| {
        let connecting = scope.spawn(|| b.node.connect_at(&mut b.workers, address, &small(), long));
        listener.accept(&a.node, &mut a.workers, long).unwrap();
        connecting.join().unwrap().unwrap().channel
    })
}

/// The same with rings of sixteen cells.
fn ringed(order: DataInOrder) -> (Ringed, Ringed) {
    ringed_over(ends(order))
}

fn ringed_over((a, b): (End, End)) -> (Ringed, Ringed) {
    let mut config = RingConfig::default();
    config.cells = 16;
    let other = thread::spawn(move || open(a, &config));
    let b = open(b, &config);
    (other.join().unwrap(), b)
}

#[test]
fn messages_arrive_in_order_whatever_the_device_promises() {
    for (order, publication) in [
        (DataInOrder::WholeMessage, Publication::Trailer),
        (DataInOrder::Aligned128, Publication::Trailer),
        (DataInOrder::No, Publication::Immediate),
    ] {
        let (mut a, mut b) = ringed(order);
        assert_eq!(a.ring.publications().sent, publication);
        assert_eq!(b.ring.publications().received, publication);
        let (mut sent, mut got) = ([0_u32; 2], [0_u32; 2]);
        while got != [1000, 1000] {
            for (side, from) in [&mut a, &mut b].into_iter().enumerate() {
                from.poll();
                while sent[side] < 1000 {
                    let payload = vec![side as u8; sent[side] as usize % 100];
                    let payload = [&sent[side].to_be_bytes(), payload.as_slice()].concat();
                    match from.send(&payload) {
                        Ok(()) => sent[side] += 1,
                        Err(kind) => {
                            assert_eq!(kind, SendErrorKind::WouldBlock);
                            break;
                        }
                    }
                }
            }
            for (side, to) in [&mut b, &mut a].into_iter().enumerate() {
                while let Some(payload) = to.receive() {
                    let number = got[side];
                    assert_eq!(payload[..4], number.to_be_bytes(), "{order:?}");
                    assert_eq!(payload[4..], vec![side as u8; number as usize % 100]);
                    got[side] += 1;
                }
            }
        }
    }
}

/// The peer opens its ring and writes into ours while we look away, so that its invitation and its first
/// message are polled together.
#[test]
fn what_is_written_right_behind_the_invitation_is_not_lost() {
    for order in [DataInOrder::WholeMessage, DataInOrder::No] {
        let (mut a, mut b) = ends(order);
        let beside = beside(&mut a, &mut b);
        let lease = b.lease(b"look here");
        b.worker().channel(beside).unwrap().send_lease(lease).unwrap();
        let (looks_away, is_away) = mpsc::channel();
        let (has_written, is_written) = mpsc::channel();
        let writer = thread::spawn(move || {
            is_away.recv().unwrap();
            let (id, long) = (b.id(), b.node.within(LONG));
            let config = RingConfig::default();
            // Its message on the other channel is done meanwhile.
            let ring = RingChannel::open(b.worker(), id, &config, long, |_, _| {});
            let mut b = Ringed {
                end: b,
                ring: ring.unwrap(),
            };
            b.send(b"first").unwrap();
            has_written.send(()).unwrap();
            b
        });
        let (id, long) = (a.id(), a.node.within(LONG));
        let config = RingConfig::default();
        let ring = RingChannel::open(a.worker(), id, &config, long, |turn, event| {
            assert!(turn.channel.id() != id, "{event:?}");
            looks_away.send(()).unwrap();
            is_written.recv().unwrap();
        });
        let mut a = Ringed {
            end: a,
            ring: ring.unwrap(),
        };
        assert_eq!(a.receive(), Some(b"first".to_vec()), "{order:?}");
        drop(writer.join().unwrap());
    }
}

#[test]
fn a_lease_goes_out_with_its_trailer() {
    let (mut a, mut b) = ringed(DataInOrder::WholeMessage);
    let (lease, id) = (a.end.lease(b"from a lease"), a.end.id());
    let channel = a.end.worker().channel(id).unwrap();
    a.ring.send(channel, lease).unwrap();
    assert_eq!(b.receive(), Some(b"from a lease".to_vec()));
    // Longer than a cell: handed back as it was.
    let lease = a.end.lease(&[7; 121]);
    let channel = a.end.worker().channel(id).unwrap();
    let refused = a.ring.send(channel, lease).unwrap_err();
    let too_long = SendErrorKind::TooLong {
        bytes: 121,
        bytes_max: 120,
    };
    assert_eq!(refused.kind, too_long);
    assert_eq!(refused.item.unwrap().payload(), [7; 121]);
    assert_eq!(a.send(&[7; 121]), Err(too_long));
}

#[test]
fn a_message_that_is_too_long_to_be_copied_is_refused_by_the_limit_of_the_copy() {
    let (a, b) = ends(DataInOrder::WholeMessage);
    let mut config = RingConfig::default();
    (config.cells, config.cell_bytes) = (2, 2048);
    let other = thread::spawn(move || open(a, &config));
    let _b = open(b, &config);
    let mut a = other.join().unwrap();
    for bytes in [1017, 1024, 1025] {
        let bytes_max = 1016;
        assert_eq!(
            a.send(&vec![7; bytes]),
            Err(SendErrorKind::TooLong { bytes, bytes_max })
        );
    }
}

#[test]
fn a_full_ring_is_back_pressure_and_loses_nothing() {
    let (mut a, mut b) = ringed(DataInOrder::WholeMessage);
    let mut sent = 0_u8;
    loop {
        a.poll();
        match a.send(&[sent]) {
            Ok(()) => sent += 1,
            Err(kind) => break assert_eq!(kind, SendErrorKind::WouldBlock),
        }
    }
    assert_eq!(sent, 16);
    for number in 0..sent {
        assert_eq!(b.receive(), Some(vec![number]));
    }
    assert_eq!(b.receive(), None);
    a.poll();
    assert_eq!(a.send(b"again"), Ok(()));
    assert_eq!(b.receive(), Some(b"again".to_vec()));
}

#[test]
fn what_is_no_invitation_is_told() {
    let (mut a, mut b) = pair();
    let (lease, id) = (a.lease(b"hello"), a.id());
    a.worker().channel(id).unwrap().send_lease(lease).unwrap();
    let (id, long) = (b.id(), b.node.within(LONG));
    let config = RingConfig::default();
    let refused = RingChannel::open(b.worker(), id, &config, long, |_, _| {});
    assert!(matches!(refused, Err(RingError::Invitation(_))), "{refused:?}");
    // It was refused above; now nobody says anything.
    let soon = b.worker().within(Duration::from_millis(20));
    let silent = RingChannel::open(b.worker(), id, &config, soon, |_, _| {});
    assert!(matches!(silent, Err(RingError::TimedOut)), "{silent:?}");
    let mut odd = RingConfig::default();
    odd.cells = 3;
    let refused = RingChannel::open(b.worker(), id, &odd, long, |_, _| {});
    assert!(matches!(refused, Err(RingError::Config { .. })), "{refused:?}");
}

/// A device may have taken a message that it refuses without naming it, so no other message may go into its cell.
#[test]
fn a_refusal_that_names_no_message_ends_the_channel() {
    for (order, is_lease) in [DataInOrder::WholeMessage, DataInOrder::No]
        .into_iter()
        .flat_map(|order| [(order, false), (order, true)])
    {
        let (mut a, mut b) = ringed(order);
        let fabric = a.end.node.provider().fabric().clone();
        fabric.follow(&"fail 1st unclear-post of a with 5".parse().unwrap());
        let refused = if is_lease {
            let (lease, id) = (a.end.lease(b"unclear"), a.end.id());
            let channel = a.end.worker().channel(id).unwrap();
            let refused = a.ring.send(channel, lease).unwrap_err();
            assert!(refused.item.is_none());
            refused.kind
        } else {
            a.send(b"unclear").unwrap_err()
        };
        assert!(matches!(refused, SendErrorKind::Post(error) if error.unposted == 0));
        let _ = a.send(b"next");
        fabric.run_for(Duration::from_millis(1));
        let came: Vec<_> = core::iter::from_fn(|| b.receive()).collect();
        assert!(came.is_empty() || came == [b"unclear"], "{order:?}: {came:?}");
        a.end
            .until(|event| matches!(event, Event::ChannelFailed { .. }).then_some(()));
    }
}

/// The peer invites us and has no receive left for our own invitation.
#[test]
fn an_invitation_that_cannot_be_sent_is_given_up_in_time() {
    let (mut a, mut b) = pair();
    let id = a.id();
    loop {
        let lease = a.lease(b"in the way");
        match a.worker().channel(id).unwrap().send_lease(lease) {
            Ok(_) => {}
            Err(error) => break assert_eq!(error.kind, SendErrorKind::WouldBlock),
        }
    }
    let window = WindowConfig::new(2 * 64 + 64, RemoteAccess::WRITE);
    let window = b.worker().window(&window).unwrap().remote();
    let invitation = RingInvitation::new(window, 2, 64, Publication::Immediate).unwrap();
    let (lease, b_id) = (b.lease(&invitation.to_bytes()), b.id());
    b.worker().channel(b_id).unwrap().send_lease(lease).unwrap();
    let soon = a.worker().within(Duration::from_millis(50));
    let config = RingConfig::default();
    let refused = RingChannel::open(a.worker(), id, &config, soon, |_, _| {});
    assert!(matches!(refused, Err(RingError::TimedOut)), "{refused:?}");
}

/// A peer announces messages: before it invited us, or so many after its invitation. Says how opening ends.
fn told_while_opening(is_invited: bool, told: u32) -> Result<(), RingError> {
    let (mut a, mut b) = ends(DataInOrder::No);
    let (a_id, b_id) = (a.id(), b.id());
    let mut config = RingConfig::default();
    config.cells = 4;
    let long = a.worker().within(LONG);
    let mut opening = RingChannel::begin_open(a.worker(), a_id, &config, long).unwrap();
    let window = b.worker().window(&WindowConfig::new(4096, RemoteAccess::WRITE));
    let remote = window.as_ref().unwrap().remote();
    let their_window = a.worker().window(&WindowConfig::new(4096, RemoteAccess::WRITE));
    let written = RemoteAddress::within(&their_window.as_ref().unwrap().remote(), 0, 8).unwrap();
    let channel = b.worker().channel(b_id).unwrap();
    let tell = |channel: &mut Channel<Host>, times: u32| {
        for immediate in 0..times {
            channel
                .post_inline(Operation::WriteWithImmediate(written, immediate), &[0; 8])
                .unwrap();
        }
    };
    let invitation = RingInvitation::new(remote, 4, 128, Publication::Immediate).unwrap();
    if is_invited {
        channel
            .post_inline(Operation::Send, &invitation.to_bytes())
            .unwrap();
    }
    tell(channel, told);
    let outcome = loop {
        if let Some(outcome) = opening.poll(a.worker(), |_, event| panic!("{event:?}")) {
            break outcome;
        }
        b.worker().poll(|_, _| {}).unwrap();
    };
    outcome.map(drop)
}

#[test]
fn a_peer_that_tells_of_messages_there_cannot_be_is_refused_at_once() {
    assert_eq!(told_while_opening(true, 4), Ok(()));
    assert_eq!(told_while_opening(true, 5), Err(RingError::OutOfTurn));
    assert_eq!(told_while_opening(false, 1), Err(RingError::OutOfTurn));
}

/// Goes on with openings on one Worker that is polled here; the rings that are there now.
fn go_on(
    worker: &mut Worker<Host>,
    openings: &mut [RingOpening<Host>; 2],
    rings: &mut [Option<RingChannel<Host>>; 2],
) {
    worker
        .poll(|turn, event| {
            let id = turn.channel.id();
            let mut left = Some(event);
            for (opening, ring) in openings.iter_mut().zip(&mut *rings) {
                left = match (left, ring) {
                    (Some(event), None) => opening.hear(id, event),
                    (left, _) => left,
                };
            }
            assert!(matches!(left, None | Some(Event::Done { .. })), "{left:?}");
        })
        .unwrap();
    for (opening, ring) in openings.iter_mut().zip(rings) {
        if ring.is_none() {
            *ring = opening.advance(worker).transpose().unwrap();
        }
    }
}

#[test]
fn several_are_opened_on_one_worker_at_once() {
    let (mut a, mut b) = ends(DataInOrder::WholeMessage);
    let beside = beside(&mut a, &mut b);
    let (a_id, b_id) = (a.id(), b.id());
    let a_beside = a.worker().channels().find(|id| *id != a_id).unwrap();
    let config = RingConfig::default();
    let begin = |end: &mut End, ids: [ChannelId; 2]| {
        let long = end.worker().within(LONG);
        ids.map(|id| RingChannel::begin_open(end.worker(), id, &config, long).unwrap())
    };
    let mut at_a = begin(&mut a, [a_id, a_beside]);
    let mut at_b = begin(&mut b, [b_id, beside]);
    let (mut a_rings, mut b_rings) = ([None, None], [None, None]);
    while a_rings.iter().chain(&b_rings).any(Option::is_none) {
        go_on(a.worker(), &mut at_a, &mut a_rings);
        go_on(b.worker(), &mut at_b, &mut b_rings);
    }
    // Each leads to where it was opened.
    for (ring, id) in a_rings.iter_mut().flatten().zip([a_id, a_beside]) {
        let channel = a.worker().channel(id).unwrap();
        ring.send_inline(channel, &[u8::from(id == a_beside)]).unwrap();
    }
    for (number, (ring, id)) in b_rings.iter_mut().flatten().zip([b_id, beside]).enumerate() {
        let mut room = [0; 8];
        let channel = b.worker().channel(id).unwrap();
        let read = loop {
            if let Some(bytes) = ring.receive(channel, &mut room).unwrap() {
                break bytes;
            }
        };
        assert_eq!((read, usize::from(room[0])), (1, number));
    }
}

/// Both kinds of rings, on channels that the Worker closes by itself.
fn closing_by_itself(order: DataInOrder) -> (Ringed, Ringed) {
    let mut config = small();
    config.close_when_lost = true;
    ringed_over(ends_with(order, config))
}

/// A peer fills its ring, sends a message beside it and goes, by closing or with its Worker. The end comes behind all of that, and
/// the ring is read after the Worker closed the channel.
#[test]
fn what_was_written_before_the_peer_closed_is_read_behind_its_end() {
    for order in [DataInOrder::WholeMessage, DataInOrder::No] {
        for (is_dropped, is_read_at_once) in [(false, true), (false, false), (true, false)] {
            let (mut a, mut b) = closing_by_itself(order);
            let beside = b.end.id();
            // With immediates each message of the ring takes a receive, as does the one beside it.
            for number in 0..12 {
                b.send(&[number]).unwrap();
            }
            let channel = b.end.worker().channel(beside).unwrap();
            channel.post_inline(Operation::Send, b"beside").unwrap();
            let long = b.end.node.within(LONG);
            if is_dropped {
                drop(b);
            } else {
                let mut done =
                    |_: Turn<'_, Host>, event: Event<'_, Host>| assert!(matches!(event, Event::Done { .. }));
                assert_eq!(b.end.worker().close(beside, long, &mut done), Ok(()));
            }
            let (mut came, mut ends) = (0, Vec::new());
            let id = a.end.id();
            while ends.is_empty() {
                let Ringed { end, ring } = &mut a;
                end.worker()
                    .poll(|_, event| match event {
                        Event::Written { immediate, .. } => ring.note_written(immediate),
                        Event::Received { message, .. } => {
                            assert_eq!(message.payload(), b"beside");
                            came += 1;
                        }
                        Event::PeerClosed { all_arrived } => ends.push((all_arrived, came)),
                        other => panic!("{other:?}"),
                    })
                    .unwrap();
            }
            assert_eq!(ends, [(true, 1)], "{order:?}");
            let mut room = [0; 8];
            let mut numbers = Vec::new();
            if is_read_at_once {
                let channel = a.end.worker().channel(id).unwrap();
                while let Some(bytes) = a.ring.receive(channel, &mut room).unwrap() {
                    numbers.extend_from_slice(&room[..bytes]);
                }
            }
            while a.end.worker().close_progress(id) != CloseProgress::Closed(Ok(())) {
                // The count of read messages goes to a peer that is gone, and fails.
                let mut unread = |_: Turn<'_, Host>, event: Event<'_, Host>| {
                    assert!(matches!(event, Event::Failed { .. }))
                };
                a.end.worker().poll_tending(&mut unread).unwrap();
            }
            assert!(a.end.worker().channel(id).is_none());
            while let Some(bytes) = a.ring.receive_left(&mut room).unwrap() {
                numbers.extend_from_slice(&room[..bytes]);
            }
            assert_eq!(numbers, (0..12).collect::<Vec<_>>(), "{order:?}");
        }
    }
}

/// A peer opens its ring, writes and goes while we look away: its invitation, its messages and its end are polled together.
#[test]
fn a_ring_whose_peer_closed_at_once_is_opened_and_read() {
    for order in [DataInOrder::WholeMessage, DataInOrder::No] {
        let (mut a, mut b) = ends(order);
        let (a_id, b_id) = (a.id(), b.id());
        let (config, long) = (RingConfig::default(), a.worker().within(LONG));
        let mut ours = RingChannel::begin_open(a.worker(), a_id, &config, long).unwrap();
        let mut theirs = RingChannel::begin_open(b.worker(), b_id, &config, long).unwrap();
        // Its invitation goes, and ours is not polled for.
        assert!(ours.advance(a.worker()).is_none());
        let mut ring = loop {
            if let Some(ring) = theirs.poll(b.worker(), |_, event| panic!("{event:?}")) {
                break ring.unwrap();
            }
        };
        ring.send_inline(b.worker().channel(b_id).unwrap(), b"last words")
            .unwrap();
        b.worker().close(b_id, long, |_, _| {}).unwrap();
        let mut ends = 0;
        let opened = ours.poll(a.worker(), |_, event| {
            assert!(
                matches!(event, Event::PeerClosed { all_arrived: true }),
                "{event:?}"
            );
            ends += 1;
        });
        let (mut ring, mut room) = (opened.unwrap().unwrap(), [0; 16]);
        assert_eq!(
            (ends, ring.receive_left(&mut room)),
            (1, Ok(Some(10))),
            "{order:?}"
        );
        assert_eq!(&room[..10], b"last words");
        assert_eq!(ring.receive_left(&mut room), Ok(None));
    }
    // One that goes without an invitation opens none.
    let (mut a, mut b) = pair();
    let (a_id, b_id, long) = (a.id(), b.id(), a.worker().within(LONG));
    b.worker().close(b_id, long, |_, _| {}).unwrap();
    let opened = RingChannel::open(a.worker(), a_id, &RingConfig::default(), long, |_, _| {});
    assert!(matches!(opened, Err(RingError::PeerClosed)), "{opened:?}");
}
