//! A host that speaks by the document and has a queue pair: it knows nothing of what the product is made of.

use core::net::Ipv4Addr;

use doorbell::provider::{
    AddressVector, Arena as _, ArenaConfig, ArrivalKind, Completion as _, CompletionQueue as _,
    CompletionQueueConfig, Context as _, Gid, LentCompletion as _, Mtu, ProtectionDomain as _, Provider, Psn,
    Qpn, QueuePair as _, QueuePairConfig, QueuePairParts, ReadyToReceive, ReadyToSend, ReceiveBatch as _,
    ReceiveQueue as _, Rkey, SendBatch as _, SendQueue as _, Slot as _, Window as _,
};
use doorbell::{Operation, PostFlags, RemoteAccess, RemoteAddress, WindowConfig};
use doorbell_sim::Host;

use crate::by_document::{self, Offer};

/// Messages that are on their way at most.
const SEND_DEPTH: u32 = 16;
const SLOT_BYTES: u32 = 256;

/// A completed receive.
#[derive(Debug)]
pub(super) enum Came {
    Message(Vec<u8>),
    Told { bytes: u32, word: u32 },
    Failed,
}

/// All that it has.
pub(super) struct Other {
    // In this order they go.
    control: <Host as Provider>::QueuePair,
    send: <Host as Provider>::SendQueue,
    receive: <Host as Provider>::ReceiveQueue,
    sends: <Host as Provider>::CompletionQueue,
    receives: <Host as Provider>::CompletionQueue,
    arena: <Host as Provider>::Arena,
    window: <Host as Provider>::Window,
    #[expect(dead_code, reason = "it is there to be dropped last")]
    domain: <Host as Provider>::ProtectionDomain,
    context: <Host as Provider>::Context,
    offer: Offer,
    peer: Option<Offer>,
    /// Since the connection was made.
    posted: u32,
    came: u32,
    pub(super) sent: u32,
    pub(super) has_failed: bool,
}

type Outcome<T> = Result<T, String>;

fn text(error: impl core::fmt::Debug) -> String {
    format!("{error:?}")
}

impl Other {
    pub(super) fn new(host: &Host, address: Ipv4Addr, receives: u32, start: u32) -> Outcome<Self> {
        let context = host.open("sim0").map_err(text)?;
        let domain = context.protection_domain().map_err(text)?;
        let queue = CompletionQueueConfig {
            depth: 256,
            notify: false,
        };
        let (sends, of_receives) = (
            context.completion_queue(&queue).map_err(text)?,
            context.completion_queue(&queue).map_err(text)?,
        );
        let arena = domain.arena(&ArenaConfig::new(128, SLOT_BYTES)).map_err(text)?;
        let window = domain
            .window(&WindowConfig::new(64, RemoteAccess::ALL))
            .map_err(text)?;
        let config = QueuePairConfig {
            channel: 0,
            send_depth: 2 * SEND_DEPTH,
            receive_depth: receives.max(1),
            gather_max: 1,
            scatter_max: 1,
            inline_bytes_max: 64,
        };
        let QueuePairParts {
            control,
            send,
            receive,
        } = domain.queue_pair(&sends, &of_receives, &config).map_err(text)?;
        let word = window.remote();
        let report = context.port(1).map_err(text)?;
        let mtu_bytes = report.active_mtu.map_or(256, Mtu::bytes);
        let offer = Offer {
            gid: by_document::gid(address),
            qpn: control.qpn().to_u32(),
            psn: start & 0x00ff_ffff,
            // 1 stands for 256 bytes, and each step doubles.
            mtu: (mtu_bytes.ilog2() - 7) as u8,
            reads_wanted: 1,
            reads_served: 1,
            own_rail: 0,
            peer_rail: 0,
            receive_depth: receives,
            slot_bytes: SLOT_BYTES,
            credit_address: word.address(),
            credit_rkey: word.rkey().0,
            credit_start: start,
        };
        Ok(Self {
            control,
            send,
            receive,
            sends,
            receives: of_receives,
            arena,
            window,
            domain,
            context,
            offer,
            peer: None,
            posted: 0,
            came: 0,
            sent: 0,
            has_failed: false,
        })
    }

    pub(super) const fn offer(&self) -> Offer {
        self.offer
    }

    /// Its queue pair receives and sends.
    pub(super) fn connect(&mut self, peer: Offer) -> Outcome<()> {
        let report = self.context.port(1).map_err(text)?;
        let own = Gid(self.offer.gid);
        let entry = report.gids.iter().find(|entry| entry.gid == own);
        let entry = entry.ok_or("the port has not the address that was told")?;
        self.control.initialize(1, RemoteAccess::ALL).map_err(text)?;
        self.control
            .ready_to_receive(&ReadyToReceive {
                address: AddressVector {
                    destination: Gid(peer.gid),
                    source_gid_index: entry.index as u8,
                    port: 1,
                    hop_limit: 64,
                    traffic_class: 0,
                    flow_label: 0,
                    service_level: 0,
                },
                path_mtu: Mtu::from_bytes(128 << peer.mtu.min(self.offer.mtu)).unwrap_or(Mtu::B256),
                destination_qpn: Qpn::new(peer.qpn).ok_or("no queue pair")?,
                receive_psn: Psn::new(peer.psn).ok_or("no packet sequence number")?,
                max_dest_rd_atomic: 1,
                min_rnr_timer: 12,
            })
            .map_err(text)?;
        self.peer = Some(peer);
        self.post(self.offer.receive_depth)?;
        self.control
            .ready_to_send(&ReadyToSend {
                send_psn: Psn::new(self.offer.psn).ok_or("no packet sequence number")?,
                max_rd_atomic: 1,
                timeout: 14,
                retry_count: 6,
                rnr_retry: 6,
            })
            .map_err(text)
    }

    /// Posts so many receives.
    fn post(&mut self, count: u32) -> Outcome<()> {
        let mut batch = self.receive.stage();
        for _ in 0..count {
            let slot = self.arena.lease().ok_or("no slot is left")?;
            batch.push([slot]).map_err(text)?;
        }
        batch.ring().map_err(text)?;
        self.posted = self.posted.wrapping_add(count);
        Ok(())
    }

    /// Receives that are posted.
    pub(super) const fn waiting(&self) -> u32 {
        self.posted.wrapping_sub(self.came)
    }

    /// Posts what was used again, and announces all of it.
    pub(super) fn repost(&mut self) -> Outcome<()> {
        self.post(self.offer.receive_depth - self.waiting())?;
        let start = self.peer.map_or(0, |peer| peer.credit_start);
        self.write(&by_document::announcement(start.wrapping_add(self.posted)))
    }

    /// Writes into the word in which its peer is told of receives.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Outcome<()> {
        let word = self.word()?;
        self.request(Operation::Write(word), bytes)
    }

    /// Writes into that word by a WRITE with this immediate.
    pub(super) fn write_telling(&mut self, bytes: &[u8], immediate: u32) -> Outcome<()> {
        let word = self.word()?;
        self.sent = self.sent.wrapping_add(1);
        self.request(Operation::WriteWithImmediate(word, immediate), bytes)
    }

    fn word(&self) -> Outcome<RemoteAddress> {
        let peer = self.peer.ok_or("not connected")?;
        Ok(RemoteAddress::new(peer.credit_address, Rkey(peer.credit_rkey)))
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.sent = self.sent.wrapping_add(1);
        self.request(Operation::Send, bytes)
    }

    fn request(&mut self, operation: Operation, bytes: &[u8]) -> Outcome<()> {
        let mut slot = self.arena.lease().ok_or("no slot is left")?;
        slot.buffer_mut()[..bytes.len()].copy_from_slice(bytes);
        slot.set_len_bytes(bytes.len());
        let mut batch = self.send.stage();
        batch.push(operation, [slot], PostFlags::SIGNALED).map_err(text)?;
        batch.ring().map(drop).map_err(text)
    }

    pub(super) const fn start(&self) -> u32 {
        self.offer.credit_start
    }

    pub(super) fn peer_start(&self) -> u32 {
        self.peer.map_or(0, |peer| peer.credit_start)
    }

    /// The word in which it is told.
    pub(super) fn told(&self) -> Outcome<[u8; 8]> {
        let mut word = [0; 8];
        self.window.copy_out(0, &mut word).map_err(text)?;
        Ok(word)
    }

    /// How many messages it may send: what its peer announced, where that can be. `None` where it announced what it cannot have.
    pub(super) fn credits(&self) -> Outcome<Option<u32>> {
        let peer = self.peer.ok_or("not connected")?;
        let start = self.offer.credit_start;
        let known = by_document::announced(self.told()?).unwrap_or(start.wrapping_add(peer.receive_depth));
        // Nothing is announced before the first is used.
        let known = if known.wrapping_sub(start) < peer.receive_depth {
            start.wrapping_add(peer.receive_depth)
        } else {
            known
        };
        let credits = known.wrapping_sub(start).wrapping_sub(self.sent);
        Ok((credits <= peer.receive_depth).then_some(credits))
    }

    /// Takes what completed.
    pub(super) fn poll(&mut self) -> Outcome<Vec<Came>> {
        let mut ended = Vec::new();
        self.sends.poll(|one| ended.push(one.keep())).map_err(text)?;
        for one in ended {
            let arena = &mut self.arena;
            let retired = self
                .send
                .retire(one.lend(), |_, slot| arena.release(slot))
                .map_err(text)?;
            self.has_failed |= !retired.status.is_success();
        }
        let mut arrived = Vec::new();
        self.receives.poll(|one| arrived.push(one.keep())).map_err(text)?;
        let mut all = Vec::new();
        for one in arrived {
            let mut bytes = Vec::new();
            let arena = &mut self.arena;
            let arrival = self.receive.retire(one.lend(), |_, slot| {
                bytes.extend_from_slice(slot.payload());
                arena.release(slot);
            });
            let arrival = arrival.map_err(text)?;
            self.came = self.came.wrapping_add(1);
            all.push(match arrival.kind {
                ArrivalKind::Send => Came::Message(bytes),
                ArrivalKind::WriteWithImmediate => Came::Told {
                    bytes: arrival.payload_bytes,
                    word: arrival.immediate.unwrap_or(0),
                },
                _ => Came::Failed,
            });
        }
        Ok(all)
    }
}
