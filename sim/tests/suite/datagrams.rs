//! Datagram queue pairs: whose slots are when, and what an address handle names.

use doorbell_core::provider::{
    AddressVector, Arena, ArenaConfig, Completion as _, CompletionQueue, CompletionQueueConfig, Context,
    Datagram, DatagramBatch, DatagramConfig, DatagramPairParts, DatagramQueuePair, DatagramReceiveBatch,
    DatagramReceiveQueue, DatagramSendQueue, Destination, LentCompletion as _, PostFlags, ProtectionDomain,
    Provider, PushError, Retired, Slot,
};
use doorbell_core::{Psn, Qkey, WcStatus};

use super::{End, Rig, Side, USUAL, connected_as};

const KEY: Qkey = Qkey::from_low_bits(0x1122_3344);
const SLOTS: u32 = 8;
pub(crate) const SLOT_BYTES: u32 = 1024;
const DEPTH: u32 = 4;
const ADDRESSES: u32 = 2;

/// Objects of one end for datagrams, ready to send.
pub(crate) struct Office<P: Provider> {
    pub(crate) control: P::DatagramQueuePair,
    pub(crate) send: P::DatagramSendQueue,
    pub(crate) receive: P::DatagramReceiveQueue,
    pub(crate) send_completions: P::CompletionQueue,
    pub(crate) receive_completions: P::CompletionQueue,
    pub(crate) arena: P::Arena,
    pub(crate) vector: AddressVector,
}

impl<P: Provider> Office<P> {
    pub(crate) fn new(context: &P::Context, domain: &P::ProtectionDomain, end: &End<P>) -> Self {
        let queue = || {
            let config = CompletionQueueConfig {
                depth: 16,
                notify: false,
            };
            context.completion_queue(&config).unwrap()
        };
        let (send_completions, receive_completions) = (queue(), queue());
        let config = DatagramConfig {
            channel: 9,
            send_depth: DEPTH,
            receive_depth: DEPTH,
            gather_max: 2,
            inline_bytes_max: 32,
            addresses_max: ADDRESSES,
        };
        let parts = domain.datagram_queue_pair(&send_completions, &receive_completions, &config);
        let DatagramPairParts {
            mut control,
            send,
            receive,
        } = parts.unwrap();
        control.initialize(end.port, KEY).unwrap();
        control.ready_to_receive().unwrap();
        control.ready_to_send(Psn::from_low_bits(0)).unwrap();
        Self {
            control,
            send,
            receive,
            send_completions,
            receive_completions,
            arena: domain.arena(&ArenaConfig::new(SLOTS, SLOT_BYTES)).unwrap(),
            vector: end.way_to(end.gid),
        }
    }

    pub(crate) fn way_to(&mut self, other: &Self) -> Destination {
        let vector = AddressVector {
            destination: other.vector.destination,
            ..self.vector
        };
        Destination {
            address: self.send.address_handle(&vector).unwrap(),
            qpn: other.control.qpn(),
            qkey: KEY,
        }
    }

    pub(crate) fn slot(&mut self, bytes: &[u8]) -> P::Slot {
        let mut slot = self.arena.lease().unwrap();
        slot.buffer_mut()[..bytes.len()].copy_from_slice(bytes);
        slot.set_len_bytes(bytes.len());
        slot
    }

    pub(crate) fn post(&mut self, to: Destination, bytes: &[u8]) {
        let slot = self.slot(bytes);
        let mut batch = self.send.stage();
        let pushed = batch.push(to, [slot], PostFlags::SIGNALED);
        pushed.map_err(|refused| refused.reason).unwrap();
        assert_eq!(batch.ring(), Ok(1));
    }

    pub(crate) fn post_receive(&mut self) {
        let slot = self.arena.lease().unwrap();
        let mut batch = self.receive.stage();
        batch.push(slot).map_err(|refused| refused.reason).unwrap();
        assert_eq!(batch.ring(), Ok(1));
    }

    /// The next request that ended, if one did.
    pub(crate) fn sent(&mut self) -> Option<Retired> {
        let completion = next::<P>(&mut self.send_completions)?;
        let retired = self.send.retire(completion.lend(), |_, slot| drop(slot));
        let again = self.send.retire(completion.lend(), |_, _| panic!("twice"));
        assert!(again.is_err(), "it is redeemed once");
        Some(retired.unwrap())
    }

    /// The next receive that ended, if one did, with what it holds.
    pub(crate) fn received(&mut self) -> Option<(Datagram, Vec<u8>)> {
        let completion = next::<P>(&mut self.receive_completions)?;
        let mut bytes = Vec::new();
        let came = self.receive.retire(completion.lend(), |_, slot| {
            bytes.extend_from_slice(slot.payload())
        });
        let again = self.receive.retire(completion.lend(), |_, _| panic!("twice"));
        assert!(again.is_err(), "it is redeemed once");
        Some((came.unwrap(), bytes))
    }

    /// How many slots are home.
    fn free(&mut self) -> usize {
        free(&mut self.arena)
    }
}

fn free(arena: &mut impl Arena) -> usize {
    let all: Vec<_> = core::iter::from_fn(|| arena.lease()).collect();
    all.len()
}

/// The next completion; others that came with it are dropped.
fn next<P: Provider>(queue: &mut P::CompletionQueue) -> Option<P::Completion> {
    let mut taken = None;
    queue
        .poll(|completion| taken = taken.take().or(Some(completion.keep())))
        .unwrap();
    taken
}

/// Both ends, beside a connection.
struct Two<P: Provider> {
    near: Office<P>,
    far: Office<P>,
    _sides: [Side<P>; 2],
}

fn two<R: Rig>(rig: &R) -> Two<R::P> {
    let sides = connected_as(rig, [USUAL; 2]);
    let [near, far] = [&sides[0], &sides[1]].map(|side| Office::new(&side.context, &side.domain, &side.end));
    Two {
        near,
        far,
        _sides: sides,
    }
}

pub(crate) fn a_slot_moves_in_and_comes_back_with_what_came<R: Rig>(rig: &R) {
    let Two {
        mut near,
        mut far,
        _sides,
    } = two(rig);
    let to = near.way_to(&far);
    for round in 1..20_u8 {
        far.post_receive();
        near.post(to, &[round; 100]);
        assert_eq!((far.receive.in_flight(), near.send.in_flight()), (1, 1));
        assert_eq!(
            (near.free(), far.free()),
            (SLOTS as usize - 1, SLOTS as usize - 1)
        );
        assert_eq!(near.sent().unwrap().status, WcStatus::SUCCESS);
        let (came, bytes) = far.received().unwrap();
        assert_eq!((came.arrival.payload_bytes, &bytes[..]), (100, &[round; 100][..]));
        assert_eq!(came.source_qpn, near.control.qpn());
        assert_eq!((near.free(), far.free()), (SLOTS as usize, SLOTS as usize));
    }
    // Each was redeemed once more, in vain.
    assert_eq!((near.send.rejected(), far.receive.rejected()), (19, 19));
}

pub(crate) fn behind_a_dropped_completion_slots_come_back_empty<R: Rig>(rig: &R) {
    let Two {
        mut near,
        mut far,
        _sides,
    } = two(rig);
    let to = near.way_to(&far);
    for text in [b"first", b"other"] {
        far.post_receive();
        near.post(to, text);
    }
    let (mut taken, mut back) = (None, Vec::new());
    far.receive_completions
        .poll(|completion| taken = Some(completion.keep()))
        .unwrap();
    let came = far.receive.retire(taken.unwrap().lend(), |_, slot| {
        back.push(slot.payload().to_vec())
    });
    assert_eq!(came.unwrap().arrival.payload_bytes, 5);
    assert_eq!(back, [&b""[..], b"other"]);
    // The places of both headers are free again.
    (0..DEPTH).for_each(|_| far.post_receive());
}

pub(crate) fn an_unrung_batch_sends_its_slots_home<R: Rig>(rig: &R) {
    let Two {
        mut near,
        mut far,
        _sides,
    } = two(rig);
    let to = near.way_to(&far);
    let slots = [near.slot(b"a"), near.slot(b"b")];
    let mut batch = near.send.stage();
    let pushed = batch.push(to, slots, PostFlags::SIGNALED);
    pushed.map_err(|refused| refused.reason).unwrap();
    batch.push_inline(to, b"c", PostFlags::empty()).unwrap();
    assert_eq!(batch.staged(), 2);
    drop(batch);
    assert_eq!((near.free(), near.send.in_flight()), (SLOTS as usize, 0));
    let slot = far.slot(b"");
    let mut batch = far.receive.stage();
    batch.push(slot).map_err(|refused| refused.reason).unwrap();
    drop(batch);
    assert_eq!((far.free(), far.receive.in_flight()), (SLOTS as usize, 0));
    (0..DEPTH).for_each(|_| far.post_receive());
}

pub(crate) fn what_never_completed_goes_home_with_its_queue_pair<R: Rig>(rig: &R) {
    let Two { mut far, _sides, .. } = two(rig);
    (0..DEPTH).for_each(|_| far.post_receive());
    let Office {
        control,
        send,
        receive,
        mut arena,
        ..
    } = far;
    drop(receive);
    assert_eq!(free(&mut arena), (SLOTS - DEPTH) as usize);
    drop((send, control));
    assert_eq!(free(&mut arena), SLOTS as usize);
}

pub(crate) fn an_address_handle_is_named_until_it_is_released<R: Rig>(rig: &R) {
    let Two {
        mut near,
        mut far,
        _sides,
    } = two(rig);
    let to = near.way_to(&far);
    let back = far.way_to(&near);
    let refusal = |office: &mut Office<R::P>, to| {
        let slot = office.slot(b"x");
        let outcome = office.send.stage().push(to, [slot], PostFlags::SIGNALED);
        let refused = outcome.unwrap_err();
        assert_eq!(refused.item[0].payload(), b"x");
        let inline = office.send.stage().push_inline(to, b"x", PostFlags::SIGNALED);
        assert_eq!(inline, Err(refused.reason));
        refused.reason
    };
    // Another's, even at the same place.
    assert_eq!(refusal(&mut near, back), PushError::UnknownAddress);
    far.post_receive();
    near.post(to, b"before");
    near.send.release(to.address);
    assert_eq!(refusal(&mut near, to), PushError::UnknownAddress);
    // Its place is taken as long as what was posted before may name it.
    let vector = near.vector;
    near.send.address_handle(&vector).unwrap();
    assert!(near.send.address_handle(&vector).is_err());
    assert!(near.sent().unwrap().status.is_success());
    let again = near.way_to(&far);
    assert_eq!(again.address.place, to.address.place);
    assert_eq!(refusal(&mut near, to), PushError::UnknownAddress);
    assert_eq!(far.received().unwrap().1, b"before");
}

pub(crate) fn a_full_queue_hands_slots_back<R: Rig>(rig: &R) {
    let Two {
        mut near,
        mut far,
        _sides,
    } = two(rig);
    let to = near.way_to(&far);
    (0..DEPTH).for_each(|_| near.post(to, b"full"));
    let slot = near.slot(b"one more");
    let refused = near
        .send
        .stage()
        .push(to, [slot], PostFlags::SIGNALED)
        .unwrap_err();
    assert_eq!(
        (refused.reason, refused.item[0].payload()),
        (PushError::Full, &b"one more"[..])
    );
    let slots = [near.slot(b"a"), near.slot(b"b"), near.slot(b"c")];
    let refused = near
        .send
        .stage()
        .push(to, slots, PostFlags::SIGNALED)
        .unwrap_err();
    assert!(matches!(
        refused.reason,
        PushError::TooManySegments { segments: 3, .. }
    ));
    (0..DEPTH).for_each(|_| far.post_receive());
    let slot = far.slot(b"one more");
    let refused = far.receive.stage().push(slot).unwrap_err();
    assert_eq!(
        (refused.reason, refused.item.payload()),
        (PushError::Full, &b"one more"[..])
    );
}
