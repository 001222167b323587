//! One-sided messages over the simulated fabric: where bytes land in order, and where they do not.

mod fabric;

use core::time::Duration;
use std::thread;

use doorbell::vocabulary::provider::DataInOrder;
use doorbell::{Event, Publication, RingChannel, RingConfig, RingError, SendErrorKind, within};
use doorbell_sim::{Fabric, Host};
use fabric::{End, SOON, pair, small};

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
    let id = end.id();
    let ring = RingChannel::open(end.worker(), id, config, within(SOON), |_, event| {
        panic!("{event:?}")
    });
    Ringed {
        end,
        ring: ring.unwrap(),
    }
}

/// Two ends with rings of sixteen cells, on devices that promise this.
fn ringed(order: DataInOrder) -> (Ringed, Ringed) {
    let fabric = Fabric::new();
    let node = |name: &str, device: &str, address: &str| {
        let mut port = fabric::port(device, address);
        port.data_in_order = order;
        fabric::node(&fabric, name, vec![port])
    };
    let nodes = (
        node("a", "simA", "127.0.0.1/24"),
        node("b", "simB", "127.0.0.2/24"),
    );
    let (a, b) = fabric::connect(nodes, small(), small());
    let b = b.unwrap();
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
    a.worker().channel(id).unwrap().send(lease).unwrap();
    let id = b.id();
    let config = RingConfig::default();
    let refused = RingChannel::open(b.worker(), id, &config, within(SOON), |_, _| {});
    assert!(matches!(refused, Err(RingError::Invitation(_))), "{refused:?}");
    // It was refused above; now nobody says anything.
    let silent = RingChannel::open(
        b.worker(),
        id,
        &config,
        within(Duration::from_millis(20)),
        |_, _| {},
    );
    assert!(matches!(silent, Err(RingError::TimedOut)), "{silent:?}");
    let mut odd = RingConfig::default();
    odd.cells = 3;
    let refused = RingChannel::open(b.worker(), id, &odd, within(SOON), |_, _| {});
    assert!(matches!(refused, Err(RingError::Config)), "{refused:?}");
}
