//! The bench the tests work on: a device, and pairs of connected queue pairs on it.

use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use doorbell_core::provider::{
    AddressVector, Arena as _, ArenaConfig, Completion as _, CompletionQueue as _, CompletionQueueConfig,
    Context as _, LentCompletion as _, ProtectionDomain as _, Provider as _, QueuePair as _, QueuePairConfig,
    QueuePairParts, ReadyToReceive, ReadyToSend, ReceiveBatch as _, ReceiveQueue as _, RemoteAccess,
    Slot as _,
};
use doorbell_core::{Mtu, PortReport, Psn, Qpn};
use doorbell_ffi::{
    Arena, Completion, CompletionQueue, Context, ProtectionDomain, QueuePair, Rdma, ReceiveQueue, Slot,
};

/// No wait of a test is longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The device and port to test on, or why there is none.
fn usable() -> Result<(Rdma, PortReport), String> {
    let rdma = crate::provider()?;
    let wanted = crate::wanted();
    let (mut chosen, mut reasons) = (None, Vec::new());
    rdma.scan(
        &mut |port| {
            if wanted
                .as_ref()
                .is_some_and(|wanted| *wanted != port.device.as_str())
            {
                return;
            }
            match port.usability() {
                Ok(()) if chosen.is_none() => chosen = Some(port.clone()),
                Ok(()) => {}
                Err(reason) => reasons.push(format!("{} port {}: {reason}", port.device, port.port)),
            }
        },
        &mut |device, error| eprintln!("{device}: {error}"),
    )
    .map_err(|error| error.to_string())?;
    let none = || match (&wanted, reasons.is_empty()) {
        (Some(wanted), true) => format!("there is no RDMA device {wanted}"),
        (None, true) => "there is no RDMA device".to_owned(),
        (_, false) => reasons.join("; "),
    };
    chosen.map(|port| (rdma, port)).ok_or_else(none)
}

/// A device, its protection domain, and the port to connect through.
pub(crate) struct Bench {
    pub(crate) rdma: Rdma,
    pub(crate) context: Context,
    pub(crate) domain: ProtectionDomain,
    pub(crate) port: PortReport,
    /// One test at a time: what leaks is counted for the process, and timers want a processor.
    pub(crate) alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

/// The bench for a test, or `None` where the test must be skipped.
pub(crate) fn bench(test: &str) -> Option<Bench> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (rdma, port) = match usable() {
        Ok(found) => found,
        Err(reason) => {
            assert!(!crate::is_required(), "{test} needs a device: {reason}");
            eprintln!("SKIPPED: {test}: {reason}");
            return None;
        }
    };
    let context = rdma.open(&port.device).expect("the device opens");
    let domain = context.protection_domain().expect("a protection domain");
    Some(Bench {
        rdma,
        context,
        domain,
        port,
        alone,
    })
}

/// Configuration of the test's queue pairs, on this channel.
pub(crate) const fn config(channel: u32) -> QueuePairConfig {
    QueuePairConfig {
        channel,
        send_depth: 16,
        receive_depth: 16,
        gather_max: 4,
        scatter_max: 4,
        inline_bytes_max: 64,
    }
}

/// One end of a connection, with completion queues of its own.
pub(crate) struct End {
    pub(crate) parts: QueuePairParts<Rdma>,
    pub(crate) sends: CompletionQueue,
    pub(crate) receives: CompletionQueue,
}

impl Bench {
    pub(crate) fn queue(&self) -> CompletionQueue {
        let config = CompletionQueueConfig {
            depth: 64,
            notify: false,
        };
        self.context
            .completion_queue(&config)
            .expect("a completion queue")
    }

    pub(crate) fn arena(&self, slots: u32, slot_bytes: u32) -> Arena {
        self.domain
            .arena(&ArenaConfig::new(slots, slot_bytes))
            .expect("an arena")
    }

    /// An end in RESET.
    pub(crate) fn end(&self, config: &QueuePairConfig) -> End {
        let (sends, receives) = (self.queue(), self.queue());
        let parts = self
            .domain
            .queue_pair(&sends, &receives, config)
            .expect("a queue pair");
        End {
            parts,
            sends,
            receives,
        }
    }

    /// Two ends, connected to each other.
    pub(crate) fn pair(&self) -> (End, End) {
        let (mut one, mut other) = (self.end(&config(1)), self.end(&config(2)));
        self.connect(&mut one.parts, &mut other.parts);
        (one, other)
    }

    pub(crate) fn receive_with(&self, peer: &QueuePairParts<Rdma>, psn: u32) -> ReadyToReceive {
        self.receive_from(peer.control.qpn(), psn)
    }

    fn receive_from(&self, peer: Qpn, psn: u32) -> ReadyToReceive {
        let gid = self.port.usable_gids().next().expect("a usable GID");
        ReadyToReceive {
            address: AddressVector {
                destination: gid.gid,
                source_gid_index: u8::try_from(gid.index).unwrap(),
                port: self.port.port,
                hop_limit: 64,
                traffic_class: 0,
                flow_label: 0,
                service_level: 0,
            },
            path_mtu: self.port.active_mtu.unwrap_or(Mtu::B1024),
            destination_qpn: peer,
            receive_psn: Psn::from_low_bits(psn),
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        }
    }

    pub(crate) const fn send_with(psn: u32) -> ReadyToSend {
        ReadyToSend {
            send_psn: Psn::from_low_bits(psn),
            max_rd_atomic: 1,
            timeout: 14,
            retry_count: 6,
            // Without end: a thread that has to post receives may wait long for a processor.
            rnr_retry: 7,
        }
    }

    /// Brings both ends to RTS, each with the other as its peer.
    pub(crate) fn connect(&self, one: &mut QueuePairParts<Rdma>, other: &mut QueuePairParts<Rdma>) {
        self.connect_controls(&mut one.control, &mut other.control);
    }

    /// The same, of their control sides alone.
    pub(crate) fn connect_controls(&self, one: &mut QueuePair, other: &mut QueuePair) {
        self.connect_with(one, other, RemoteAccess::ALL);
    }

    /// The same, each letting its peer do what is said.
    pub(crate) fn connect_with(&self, one: &mut QueuePair, other: &mut QueuePair, access: RemoteAccess) {
        let (psn_one, psn_other) = (0x00ff_fffd, 0x12_3456);
        let (to_one, to_other) = (
            self.receive_from(other.qpn(), psn_other),
            self.receive_from(one.qpn(), psn_one),
        );
        for (end, receive, send) in [
            (one, to_one, Self::send_with(psn_one)),
            (other, to_other, Self::send_with(psn_other)),
        ] {
            end.initialize(self.port.port, access).expect("INIT");
            end.ready_to_receive(&receive).expect("RTR");
            end.ready_to_send(&send).expect("RTS");
        }
    }
}

/// Polls until `count` completions came, in order.
#[track_caller]
pub(crate) fn poll(queue: &mut CompletionQueue, count: usize) -> Vec<Completion> {
    let deadline = Instant::now() + PATIENCE;
    let mut polled = Vec::new();
    while polled.len() < count {
        queue
            .poll(|completion| polled.push(completion.keep()))
            .expect("the queue polls");
        assert!(
            Instant::now() < deadline,
            "{} of {count} completions came",
            polled.len()
        );
    }
    assert_eq!(polled.len(), count, "more completions than expected: {polled:?}");
    polled
}

/// The one completion that comes, a success.
#[track_caller]
pub(crate) fn poll_success(queue: &mut CompletionQueue) -> Completion {
    let completion = poll(queue, 1).pop().unwrap();
    assert!(completion.status().is_success(), "{completion:?}");
    completion
}

/// A slot that holds these bytes.
pub(crate) fn slot_with(arena: &mut Arena, bytes: &[u8]) -> Slot {
    let mut slot = arena.lease().expect("a free slot");
    slot.buffer_mut()[..bytes.len()].copy_from_slice(bytes);
    slot.set_len_bytes(bytes.len());
    slot
}

/// Posts receives of one slot each.
pub(crate) fn post_receives(queue: &mut ReceiveQueue, arena: &mut Arena, count: u32) {
    let mut batch = queue.stage();
    for _ in 0..count {
        batch.push([arena.lease().expect("a free slot")]).expect("room");
    }
    assert_eq!(batch.ring(), Ok(count));
}

/// Redeems a completion whose slots are of no interest.
pub(crate) fn retire_sends(end: &mut End, arena: &mut Arena, completion: Completion) -> u64 {
    use doorbell_core::provider::SendQueue as _;
    let retired = end
        .parts
        .send
        .retire(completion.lend(), |_, slot| arena.release(slot))
        .expect("one of ours");
    assert!(retired.status.is_success(), "{retired:?}");
    retired.count()
}

/// Takes what a receive brought: its bytes, slot by slot.
pub(crate) fn take_arrival(
    end: &mut End,
    completion: Completion,
) -> (doorbell_core::provider::Arrival, Vec<Vec<u8>>) {
    let mut bytes = Vec::new();
    let arrival = end
        .parts
        .receive
        .retire(completion.lend(), |_, slot| bytes.push(slot.payload().to_vec()))
        .expect("one of ours");
    (arrival, bytes)
}
