//! A queue pair of `ffi` alone, connected to nobody: its requests complete and deliver nothing.

use core::error::Error;

use doorbell_core::provider::{
    AddressVector, ArenaConfig, CompletionQueueConfig, Context as _, ProtectionDomain as _, Provider as _,
    QueuePair as _, QueuePairConfig, QueuePairParts, ReadyToReceive, ReadyToSend, RemoteAccess,
};
use doorbell_core::{Mtu, Psn, Qpn};
use doorbell_ffi::{Arena, CompletionQueue, QueuePair, Rdma, ReceiveQueue, SendQueue};

/// Bytes of a slot.
pub const SLOT_BYTES: u32 = 64;

/// The queue pair, and what it needs.
#[derive(Debug)]
#[non_exhaustive]
pub struct Bare {
    /// Queue that sends.
    pub send: SendQueue,
    /// Queue that receives: nothing ever comes.
    pub receive: ReceiveQueue,
    /// Completion queue of the sends.
    pub sends: CompletionQueue,
    /// Memory to send.
    pub arena: Arena,
    _control: QueuePair,
}

impl Bare {
    /// Makes one on the first device, for so many requests in flight each way, and twice as many
    /// slots. The library is settled on by then.
    ///
    /// # Errors
    /// There is no such library or device, or it refuses.
    // Never in line: see `split`.
    // SAFETY: no other symbol has this name.
    #[unsafe(export_name = "doorbell_proofs_bare")]
    pub fn new(depth: u32) -> Result<Self, Box<dyn Error>> {
        let rdma = Rdma::load()?;
        let devices = rdma.devices()?;
        let device = devices.first().ok_or("the fake has no device")?;
        let port = device.ports.first().ok_or("the device has no port")?;
        let gid = port.gids.first().ok_or("the port has no GID")?;
        let context = rdma.open(&device.name)?;
        let domain = context.protection_domain()?;
        let config = CompletionQueueConfig { depth, notify: false };
        let sends = context.completion_queue(&config)?;
        let receives = context.completion_queue(&config)?;
        let config = QueuePairConfig {
            channel: 1,
            send_depth: depth,
            receive_depth: depth,
            gather_max: 4,
            scatter_max: 1,
            inline_bytes_max: SLOT_BYTES,
        };
        let QueuePairParts {
            mut control,
            send,
            receive,
        } = domain.queue_pair(&sends, &receives, &config)?;
        control.initialize(1, RemoteAccess::ALL)?;
        control.ready_to_receive(&ReadyToReceive {
            address: AddressVector {
                destination: gid.gid,
                source_gid_index: 0,
                port: 1,
                hop_limit: 64,
                traffic_class: 0,
                flow_label: 0,
                service_level: 0,
            },
            path_mtu: Mtu::B1024,
            destination_qpn: Qpn::new(doorbell_fake::NULL_QPN).ok_or("no such number")?,
            receive_psn: Psn::from_low_bits(0),
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        })?;
        control.ready_to_send(&ReadyToSend {
            send_psn: Psn::from_low_bits(0),
            max_rd_atomic: 1,
            timeout: 14,
            retry_count: 6,
            rnr_retry: 7,
        })?;
        let arena = domain.arena(&ArenaConfig::new(depth.saturating_mul(2), SLOT_BYTES))?;
        Ok(Self {
            send,
            receive,
            sends,
            arena,
            _control: control,
        })
    }
}
