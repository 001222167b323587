//! Promises of the seam beyond verbs, as tests over any provider: who owns a slot, which completions are
//! redeemed, and when slots come home. `sim/conformance` has the promises of verbs.
//!
//! Here is the rig they run on: two connected sides of it. Each test is generic over [`Rig`].

pub(crate) mod data;
pub(crate) mod datagrams;
pub(crate) mod detached;
pub(crate) mod every_packet;
pub(crate) mod hosts;
pub(crate) mod ownership;
pub(crate) mod ranges;
pub(crate) mod reset;
pub(crate) mod shared_receive;

use core::time::Duration;
use std::time::Instant;

pub(crate) use doorbell_conformance::End;
use doorbell_core::provider::{
    Arena, ArenaConfig, Arrival, Completion, CompletionQueue, CompletionQueueConfig, Context,
    LentCompletion as _, Operation, PostFlags, ProtectionDomain, Provider, QueuePair, QueuePairConfig,
    QueuePairParts, ReadyToReceive, ReadyToSend, ReceiveBatch, ReceiveQueue, RemoteAccess, RemoteAddress,
    Retired, SendBatch, SendQueue, Slot, Window, WindowConfig,
};
use doorbell_core::{Gid, Mtu, Psn, QpState, Qpn, Ticket, WcStatus};
use doorbell_sim::{Fabric, Host};

/// Two ports that reach each other.
pub(crate) trait Rig {
    type P: Provider;

    fn ends(&self) -> [End<Self::P>; 2];
}

/// Hosts `a` and `b` of a fabric that has none yet.
impl Rig for Fabric {
    type P = Host;

    fn ends(&self) -> [End<Host>; 2] {
        hosts::pair(self)
    }
}

pub(crate) const SLOTS: u32 = 32;
pub(crate) const SLOT_BYTES: u32 = 256;
pub(crate) const DEPTH: u32 = 8;
pub(crate) const INLINE_BYTES: u32 = 64;
pub(crate) const WINDOW_BYTES: usize = 8192;
/// Longer than anything takes that is not broken.
const DEADLINE: Duration = Duration::from_secs(10);

/// Deviations of one side from the usual configuration, for a test.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) completion_depth: u32,
    pub(crate) notify: bool,
    /// Rights of the peer through the queue pair, and to the window.
    pub(crate) through_queue_pair: RemoteAccess,
    pub(crate) to_window: RemoteAccess,
    pub(crate) path_mtu: Mtu,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
}

pub(crate) const USUAL: Wish = Wish {
    completion_depth: 64,
    notify: false,
    through_queue_pair: RemoteAccess::ALL,
    to_window: RemoteAccess::ALL,
    path_mtu: Mtu::B1024,
    max_rd_atomic: 4,
    max_dest_rd_atomic: 4,
    retry_count: 1,
    rnr_retry: 7,
};

/// All that one side has.
pub(crate) struct Side<P: Provider> {
    // Dropped in this order: the queue pair gives its slots back to the arena.
    pub(crate) control: P::QueuePair,
    pub(crate) send: P::SendQueue,
    pub(crate) receive: P::ReceiveQueue,
    pub(crate) send_completions: P::CompletionQueue,
    pub(crate) receive_completions: P::CompletionQueue,
    pub(crate) arena: P::Arena,
    pub(crate) window: P::Window,
    pub(crate) domain: P::ProtectionDomain,
    pub(crate) context: P::Context,
    pub(crate) end: End<P>,
}

/// The channel of every queue pair of the rig.
pub(crate) const CHANNEL: u32 = 5;

pub(crate) const QUEUE_PAIR: QueuePairConfig = QueuePairConfig {
    channel: CHANNEL,
    send_depth: DEPTH,
    receive_depth: DEPTH,
    gather_max: 2,
    scatter_max: 2,
    inline_bytes_max: INLINE_BYTES,
};

impl<P: Provider> Side<P> {
    fn new(end: End<P>, wish: &Wish) -> Self {
        let context = end.provider.open(&end.device).unwrap();
        let domain = context.protection_domain().unwrap();
        let queue = CompletionQueueConfig {
            depth: wish.completion_depth,
            notify: wish.notify,
        };
        let send_completions = context.completion_queue(&queue).unwrap();
        let receive_completions = context.completion_queue(&queue).unwrap();
        let arena = domain.arena(&ArenaConfig::new(SLOTS, SLOT_BYTES)).unwrap();
        let window = domain
            .window(&WindowConfig::new(WINDOW_BYTES, wish.to_window))
            .unwrap();
        let parts = domain
            .queue_pair(&send_completions, &receive_completions, &QUEUE_PAIR)
            .unwrap();
        let QueuePairParts {
            control,
            send,
            receive,
        } = parts;
        Self {
            control,
            send,
            receive,
            send_completions,
            receive_completions,
            arena,
            window,
            domain,
            context,
            end,
        }
    }

    pub(crate) fn initialize(&mut self, wish: &Wish) {
        self.control
            .initialize(self.end.port, wish.through_queue_pair)
            .unwrap();
    }

    /// The attributes that connect us with a peer.
    pub(crate) fn to_receive(&self, wish: &Wish, peer: (Gid, Qpn)) -> ReadyToReceive {
        let (destination, destination_qpn) = peer;
        ReadyToReceive {
            address: self.end.way_to(destination),
            path_mtu: wish.path_mtu,
            destination_qpn,
            receive_psn: PSN,
            max_dest_rd_atomic: wish.max_dest_rd_atomic,
            min_rnr_timer: 12,
        }
    }

    pub(crate) fn name(&self) -> (Gid, Qpn) {
        (self.end.gid, self.control.qpn())
    }

    pub(crate) fn connect(&mut self, wish: &Wish, peer: (Gid, Qpn)) {
        self.initialize(wish);
        self.control
            .ready_to_receive(&self.to_receive(wish, peer))
            .unwrap();
        self.control.ready_to_send(&to_send(wish)).unwrap();
    }

    pub(crate) fn state(&self) -> QpState {
        self.control.state().unwrap()
    }

    /// A slot with these bytes in it.
    pub(crate) fn slot(&mut self, bytes: &[u8]) -> P::Slot {
        let mut slot = self.arena.lease().unwrap();
        slot.buffer_mut()[..bytes.len()].copy_from_slice(bytes);
        slot.set_len_bytes(bytes.len());
        slot
    }

    /// Posts one request with these bytes, signaled.
    pub(crate) fn post(&mut self, operation: Operation, bytes: &[u8]) -> Ticket {
        self.post_with(operation, bytes, PostFlags::SIGNALED)
    }

    pub(crate) fn post_with(&mut self, operation: Operation, bytes: &[u8], flags: PostFlags) -> Ticket {
        let slot = self.slot(bytes);
        self.post_slots(operation, [slot], flags)
    }

    pub(crate) fn post_slots<const N: usize>(
        &mut self,
        operation: Operation,
        slots: [P::Slot; N],
        flags: PostFlags,
    ) -> Ticket {
        let mut batch = self.send.stage();
        let ticket = batch
            .push(operation, slots, flags)
            .map_err(|refused| refused.reason)
            .unwrap();
        assert_eq!(batch.ring(), Ok(1));
        ticket
    }

    /// Posts receives of one slot each.
    pub(crate) fn post_receives(&mut self, count: u32) {
        let mut batch = self.receive.stage();
        for _ in 0..count {
            let slot = self.arena.lease().unwrap();
            batch.push([slot]).map_err(|refused| refused.reason).unwrap();
        }
        assert_eq!(batch.ring(), Ok(count));
    }

    /// Waits for so many requests to complete, and retires them.
    pub(crate) fn sent(&mut self, count: usize) -> Vec<Sent> {
        let completions = poll_until(&mut self.send_completions, count);
        completions
            .into_iter()
            .map(|completion| self.retire_send(completion))
            .collect()
    }

    pub(crate) fn retire_send(&mut self, completion: P::Completion) -> Sent {
        let mut slots = Vec::new();
        let retired = self.send.retire(completion.lend(), |ticket, slot| {
            slots.push((ticket, slot.payload().to_vec()))
        });
        Sent {
            retired: retired.unwrap(),
            slots,
        }
    }

    /// Waits for so many receives to complete, and retires them.
    pub(crate) fn received(&mut self, count: usize) -> Vec<Received> {
        let completions = poll_until(&mut self.receive_completions, count);
        completions
            .into_iter()
            .map(|completion| self.retire_receive(completion))
            .collect()
    }

    pub(crate) fn retire_receive(&mut self, completion: P::Completion) -> Received {
        let mut payload = Vec::new();
        let arrival = self.receive.retire(completion.lend(), |_, slot| {
            payload.extend_from_slice(slot.payload())
        });
        Received {
            arrival: arrival.unwrap(),
            payload,
        }
    }

    /// How one request ended.
    pub(crate) fn status(&mut self) -> WcStatus {
        self.sent(1)[0].retired.status
    }

    /// An address in the window, for the peer.
    pub(crate) fn at(&self, offset: u64) -> RemoteAddress {
        let remote = self.window.remote();
        RemoteAddress::new(remote.address_of(offset, 0).unwrap(), remote.rkey())
    }

    pub(crate) fn window_bytes(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut copy = vec![0; bytes];
        self.window.copy_out(offset, &mut copy).unwrap();
        copy
    }

    /// How many slots can be leased.
    pub(crate) fn slots_home(&mut self) -> u32 {
        let slots: Vec<_> = core::iter::from_fn(|| self.arena.lease()).collect();
        let count = u32::try_from(slots.len()).unwrap();
        slots.into_iter().for_each(|slot| self.arena.release(slot));
        count
    }
}

/// A request that was retired, with what its slots hold.
pub(crate) struct Sent {
    pub(crate) retired: Retired,
    pub(crate) slots: Vec<(Ticket, Vec<u8>)>,
}

/// A receive that was retired, with what it holds.
pub(crate) struct Received {
    pub(crate) arrival: Arrival,
    pub(crate) payload: Vec<u8>,
}

/// The last but one, so that every longer exchange wraps round (S16).
pub(crate) const PSN: Psn = Psn::from_low_bits(0x00ff_fffe);

pub(crate) const fn to_send(wish: &Wish) -> ReadyToSend {
    ReadyToSend {
        send_psn: PSN,
        max_rd_atomic: wish.max_rd_atomic,
        timeout: 10,
        retry_count: wish.retry_count,
        rnr_retry: wish.rnr_retry,
    }
}

/// Takes exactly so many completions.
pub(crate) fn poll_until<Q: CompletionQueue>(queue: &mut Q, count: usize) -> Vec<Q::Completion> {
    let begin = Instant::now();
    let mut taken = Vec::new();
    while taken.len() < count {
        queue.poll(|completion| taken.push(completion.keep())).unwrap();
        assert!(
            begin.elapsed() < DEADLINE,
            "{} of {count} completions came",
            taken.len()
        );
    }
    assert_eq!(taken.len(), count, "more completions than requests that are due");
    taken
}

/// Polls once; that nothing comes is all there is to see.
pub(crate) fn poll_nothing<Q: CompletionQueue>(queue: &mut Q) {
    let count = queue
        .poll(|completion| panic!("{:?} completed", completion.work_id()))
        .unwrap();
    assert_eq!(count, 0);
}

/// Both sides, with their queue pairs in RESET.
pub(crate) fn sides<R: Rig>(rig: &R, wishes: [Wish; 2]) -> [Side<R::P>; 2] {
    let [near, far] = rig.ends();
    [Side::new(near, &wishes[0]), Side::new(far, &wishes[1])]
}

/// Both sides, connected.
pub(crate) fn connected_as<R: Rig>(rig: &R, wishes: [Wish; 2]) -> [Side<R::P>; 2] {
    let [mut near, mut far] = sides(rig, wishes);
    near.connect(&wishes[0], far.name());
    far.connect(&wishes[1], near.name());
    [near, far]
}

/// Both sides, connected as usual.
pub(crate) fn connected<R: Rig>(rig: &R) -> [Side<R::P>; 2] {
    connected_as(rig, [USUAL; 2])
}
