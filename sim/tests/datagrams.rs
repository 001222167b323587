//! Datagrams where packets are lost, doubled and late, and on devices that do otherwise than the book.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

#[expect(dead_code, reason = "another test program uses more of it")]
mod suite;

use doorbell_core::provider::{
    AddressVector, Arena as _, ArenaConfig, Completion as _, CompletionQueue as _, Context as _,
    DatagramBatch as _, DatagramQueuePair as _, DatagramReceiveBatch as _, DatagramReceiveQueue as _,
    DatagramSendQueue as _, LentCompletion as _, PostFlags, ProtectionDomain as _, Provider, Slot as _,
};
use doorbell_core::{Gid, Mtu, QpState, WcStatus};
use doorbell_sim::{Context, Fabric, Host, ProtectionDomain, Quirks};
use suite::datagrams::{Office, SLOT_BYTES};
use suite::hosts;

struct Room {
    fabric: Fabric,
    near: Office<Host>,
    far: Office<Host>,
    contexts: [Context; 2],
    domain: ProtectionDomain,
}

fn room(quirks: Quirks, plan: &str) -> Room {
    let fabric = Fabric::builder()
        .quirks(quirks)
        .plan(plan.parse().unwrap())
        .build();
    let ends = [("a", "10.0.0.1"), ("b", "10.0.0.2")]
        .map(|(name, address)| hosts::end(&fabric, name, address, Mtu::B256));
    let contexts = [0, 1].map(|which: usize| ends[which].provider.open("sim0").unwrap());
    let [near, far] = [0, 1].map(|which: usize| {
        let domain = contexts[which].protection_domain().unwrap();
        (Office::new(&contexts[which], &domain, &ends[which]), domain)
    });
    let ((near, domain), (far, _)) = (near, far);
    Room {
        fabric,
        near,
        far,
        contexts,
        domain,
    }
}

#[test]
fn what_is_lost_is_not_sent_again() {
    let mut room = room(
        Quirks::IBA,
        "drop 2nd datagram of a->b; corrupt 4th datagram of a->b",
    );
    let to = room.near.way_to(&room.far);
    let mut heard = Vec::new();
    for number in 1..=5_u8 {
        room.far.post_receive();
        room.near.post(to, &[number]);
        assert_eq!(room.near.sent().unwrap().status, WcStatus::SUCCESS);
        heard.extend(room.far.received().map(|(_, bytes)| bytes[0]));
        // A receive that nothing came for takes the next.
    }
    assert_eq!(heard, [1, 3, 5]);
    let tally = room.fabric.audit().unwrap();
    assert_eq!(
        (tally.packets.sent, tally.packets.lost, tally.packets.corrupt),
        (5, 1, 1)
    );
}

#[test]
fn what_comes_twice_takes_two_receives_and_what_is_late_is_overtaken() {
    let mut room = room(
        Quirks::IBA,
        "duplicate 1st datagram of a->b; reorder 2nd datagram of a->b",
    );
    let to = room.near.way_to(&room.far);
    (0..4).for_each(|_| room.far.post_receive());
    let mut batch = room.near.send.stage();
    for text in [b"1", b"2", b"3"] {
        batch.push_inline(to, text, PostFlags::SIGNALED).unwrap();
    }
    assert_eq!(batch.ring(), Ok(3));
    let (mut completions, mut heard) = (Vec::new(), Vec::new());
    while room
        .far
        .receive_completions
        .poll(|completion| completions.push(completion.keep()))
        .unwrap()
        > 0
    {}
    for completion in completions {
        let each = |_, slot: <Host as Provider>::Slot| heard.extend_from_slice(slot.payload());
        room.far.receive.retire(completion.lend(), each).unwrap();
    }
    assert_eq!(heard, b"1132");
    assert_eq!(room.fabric.audit().unwrap().packets.delivered, 4);
}

#[test]
fn memory_of_another_domain_fails_who_posted_it() {
    for sends in [true, false] {
        let mut room = room(Quirks::IBA, "");
        let to = room.near.way_to(&room.far);
        let which = usize::from(!sends);
        let foreign = room.contexts[which].protection_domain().unwrap();
        let mut arena = foreign.arena(&ArenaConfig::new(1, SLOT_BYTES)).unwrap();
        let mut slot = arena.lease().unwrap();
        slot.set_len_bytes(4);
        if sends {
            room.far.post_receive();
            let mut batch = room.near.send.stage();
            batch.push(to, [slot], PostFlags::empty()).unwrap();
            batch.ring().unwrap();
            assert_eq!(room.near.sent().unwrap().status, WcStatus::LOC_PROT_ERR);
            assert!(room.far.received().is_none());
        } else {
            let mut batch = room.far.receive.stage();
            batch.push(slot).unwrap();
            batch.ring().unwrap();
            room.near.post(to, b"what");
            assert_eq!(room.near.sent().unwrap().status, WcStatus::SUCCESS);
            let (came, bytes) = room.far.received().unwrap();
            assert_eq!((came.arrival.status, came.grh), (WcStatus::LOC_PROT_ERR, None));
            assert_eq!(bytes, b"");
        }
        // At the sender only the send queue fails.
        let (failed, state) = if sends {
            (&room.near, QpState::SendQueueError)
        } else {
            (&room.far, QpState::Error)
        };
        assert_eq!(failed.control.state(), Ok(state));
        assert!(arena.lease().is_some(), "it came home");
        room.fabric.audit().unwrap();
    }
}

#[test]
fn a_way_is_looked_for_when_it_is_made() {
    let mut room = room(Quirks::IBA, "");
    let mut vector = room.near.vector;
    let errno = |room: &mut Room, vector| room.near.send.address_handle(&vector).unwrap_err().errno;
    vector.destination = Gid::from_ip("10.0.0.77".parse().unwrap());
    assert_eq!(errno(&mut room, vector), 110, "nobody answers");
    vector.destination = Gid::from_ip("10.9.0.1".parse().unwrap());
    assert_eq!(errno(&mut room, vector), 101, "no route");
    let good = room.near.vector;
    for wrong in [
        AddressVector { port: 2, ..good },
        AddressVector {
            source_gid_index: 9,
            ..good
        },
        AddressVector {
            flow_label: 1 << 20,
            ..good
        },
        AddressVector {
            service_level: 16,
            ..good
        },
    ] {
        assert_eq!(errno(&mut room, wrong), 22);
    }
    drop(room.domain);
}
