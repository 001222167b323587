//! The loop on `ffi`: a batch is staged, pushed and rung, completions are polled and redeemed.

use doorbell_core::provider::{
    AddressVector, Arena as _, ArenaConfig, CompletionQueue as _, CompletionQueueConfig, Context as _,
    Operation, PostFlags, ProtectionDomain as _, Provider as _, QueuePair as _, QueuePairConfig,
    QueuePairParts, ReadyToReceive, ReadyToSend, RemoteAccess, SendBatch as _, SendQueue as _, Slot as _,
};
use doorbell_core::{Mtu, Psn, Qpn};
use doorbell_ffi::{Arena, CompletionQueue, Rdma, SendQueue};

use crate::{DEPTH, Failure, MESSAGE_BYTES};

/// Posts so many batches; says how many messages were taken back.
pub(crate) fn run(batch: u32, batches: u32) -> Result<u64, Failure> {
    let rdma = Rdma::load().map_err(Failure::new)?;
    let device = rdma.devices().map_err(Failure::new)?;
    let device = device.first().ok_or(Failure::new("the fake has no device"))?;
    let port = device
        .ports
        .first()
        .ok_or(Failure::new("the device has no port"))?;
    let gid = port.gids.first().ok_or(Failure::new("the port has no GID"))?;
    let context = rdma.open(&device.name).map_err(Failure::new)?;
    let domain = context.protection_domain().map_err(Failure::new)?;
    let config = CompletionQueueConfig {
        depth: DEPTH,
        notify: false,
    };
    let completions = || context.completion_queue(&config).map_err(Failure::new);
    let (mut sends, receives) = (completions()?, completions()?);
    let config = QueuePairConfig {
        channel: 1,
        send_depth: DEPTH,
        receive_depth: 1,
        gather_max: 4,
        scatter_max: 1,
        inline_bytes_max: 0,
    };
    let parts = domain
        .queue_pair(&sends, &receives, &config)
        .map_err(Failure::new)?;
    let QueuePairParts {
        mut control,
        mut send,
        receive: _receive,
    } = parts;
    control.initialize(1, RemoteAccess::ALL).map_err(Failure::new)?;
    let receive = ReadyToReceive {
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
        destination_qpn: Qpn::new(doorbell_fake::NULL_QPN).ok_or(Failure::new("no such number"))?,
        receive_psn: Psn::from_low_bits(0),
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
    };
    control.ready_to_receive(&receive).map_err(Failure::new)?;
    let ready = ReadyToSend {
        send_psn: Psn::from_low_bits(0),
        max_rd_atomic: 1,
        timeout: 14,
        retry_count: 6,
        rnr_retry: 7,
    };
    control.ready_to_send(&ready).map_err(Failure::new)?;
    let config = ArenaConfig::new(DEPTH, MESSAGE_BYTES);
    let mut arena = domain.arena(&config).map_err(Failure::new)?;
    Ok(measured_by_guard(
        &mut send, &mut sends, &mut arena, batch, batches,
    ))
}

/// What is counted.
#[inline(never)]
fn measured_by_guard(
    send: &mut SendQueue,
    completions: &mut CompletionQueue,
    arena: &mut Arena,
    batch: u32,
    batches: u32,
) -> u64 {
    let mut done = 0_u64;
    for _ in 0..batches {
        let mut staged = send.stage();
        for left in (0..batch).rev() {
            let Some(mut slot) = arena.lease() else {
                return done;
            };
            slot.set_len_bytes(MESSAGE_BYTES as usize);
            let flags = if left == 0 {
                PostFlags::SIGNALED
            } else {
                PostFlags::empty()
            };
            if staged.push(Operation::Send, [slot], flags).is_err() {
                return done;
            }
        }
        if staged.ring().is_err() {
            return done;
        }
        let before = done;
        while done == before {
            let polled = completions.poll(|completion| {
                let retired = send.retire(completion, |_, slot| arena.release(slot));
                done = match retired {
                    Ok(retired) if retired.status.is_success() => done.wrapping_add(retired.count()),
                    _ => u64::MAX,
                };
            });
            if polled.is_err() {
                return done;
            }
        }
    }
    done
}
