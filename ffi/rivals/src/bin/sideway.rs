//! The loop by the crate `sideway`, with its basic queue pair: the extended one needs calls that Soft-RoCE's provider
//! has had right only since rdma-core 64.

use std::sync::Arc;

use clap::Parser as _;
use doorbell_rivals::{Arguments, COMPLETION_EVERY, DEPTH, Failure, MESSAGE_BYTES, Op, Peer, RECEIVES};
use serde::{Deserialize, Serialize};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::completion::{BasicCompletionQueue, GenericCompletionQueue, PollCompletionQueueError};
use sideway::ibverbs::device::{DeviceInfo as _, DeviceList};
use sideway::ibverbs::device_context::Mtu;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, PostSendGuard as _, QueuePair, QueuePairAttribute, QueuePairState, SetScatterGatherEntry as _,
    WorkRequestFlags,
};

const PORT: u8 = 1;
const PSN: u32 = 0;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Place {
    qp_number: u32,
    gid: [u8; 16],
    rkey: u32,
    address: u64,
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let devices = DeviceList::new()?;
    let device = devices.iter().find(|device| device.name() == arguments.device);
    let context = device.ok_or("no such device")?.open()?;
    let pd = context.alloc_pd()?;
    let memory = vec![0_u8; MESSAGE_BYTES];
    // SAFETY: the memory is not moved or freed before the region, which is dropped first.
    let region = unsafe {
        pd.reg_mr(
            memory.as_ptr() as usize,
            memory.len(),
            AccessFlags::LocalWrite | AccessFlags::RemoteWrite,
        )
    }?;
    let cq = context
        .create_cq_builder()
        .setup_cqe(u32::try_from(DEPTH + RECEIVES)?)
        .build()?;
    let queues = GenericCompletionQueue::from(Arc::clone(&cq));
    let mut qp = pd
        .create_qp_builder()
        .setup_send_cq(queues.clone())
        .setup_recv_cq(queues)
        .setup_max_send_wr(u32::try_from(DEPTH)?)
        .setup_max_recv_wr(u32::try_from(RECEIVES)?)
        .build()?;
    let mut attribute = QueuePairAttribute::new();
    attribute
        .setup_state(QueuePairState::Init)
        .setup_pkey_index(0)
        .setup_port(PORT)
        .setup_access_flags(AccessFlags::LocalWrite | AccessFlags::RemoteWrite);
    qp.modify(&attribute)?;
    if !arguments.connect {
        for _ in 0..RECEIVES {
            receive(&mut qp, &region)?;
        }
    }
    let mut peer = Peer::meet(&arguments)?;
    let theirs = peer.exchange(&Place {
        qp_number: qp.qp_number(),
        gid: context.query_gid(PORT, arguments.gid_index)?.raw,
        rkey: region.rkey(),
        address: region.get_ptr() as u64,
    })?;
    connect(&mut qp, &theirs, u8::try_from(arguments.gid_index)?)?;
    peer.exchange(&())?;
    if arguments.connect {
        let found = pump(&mut qp, &cq, &region, &theirs, &arguments)?;
        println!("polls that found something: {found}");
        return Ok(());
    }
    if arguments.op == Op::Send {
        answer(&mut qp, &cq, &region, arguments.iterations)?;
    }
    peer.wait_for_its_end()
}

fn connect(qp: &mut BasicQueuePair, theirs: &Place, gid_index: u8) -> Result<(), Failure> {
    let mut route = AddressHandleAttribute::new();
    route
        .setup_port(PORT)
        .setup_grh_src_gid_index(gid_index)
        .setup_grh_dest_gid(&Gid { raw: theirs.gid })
        .setup_grh_hop_limit(64);
    let mut attribute = QueuePairAttribute::new();
    attribute
        .setup_state(QueuePairState::ReadyToReceive)
        .setup_path_mtu(Mtu::Mtu4096)
        .setup_dest_qp_num(theirs.qp_number)
        .setup_rq_psn(PSN)
        .setup_max_dest_read_atomic(0)
        .setup_min_rnr_timer(12)
        .setup_address_vector(&route);
    qp.modify(&attribute)?;
    let mut attribute = QueuePairAttribute::new();
    attribute
        .setup_state(QueuePairState::ReadyToSend)
        .setup_sq_psn(PSN)
        .setup_timeout(18)
        .setup_retry_cnt(6)
        .setup_rnr_retry(7)
        .setup_max_read_atomic(0);
    qp.modify(&attribute)?;
    Ok(())
}

/// Posts all messages, and polls until they are done. Says how many polls found something.
#[inline(never)]
fn pump(
    qp: &mut BasicQueuePair,
    cq: &BasicCompletionQueue,
    region: &MemoryRegion,
    theirs: &Place,
    arguments: &Arguments,
) -> Result<u64, Failure> {
    let (lkey, address) = (region.lkey(), region.get_ptr() as u64);
    let (mut posted, mut done, mut found) = (0, 0, 0);
    while done < arguments.iterations {
        if posted < arguments.iterations && posted - done + arguments.list <= DEPTH {
            let mut guard = qp.start_post_send();
            for _ in 0..arguments.list {
                posted += 1;
                let flags = if posted % COMPLETION_EVERY == 0 || posted == arguments.iterations {
                    WorkRequestFlags::Signaled
                } else {
                    WorkRequestFlags::none()
                };
                let request = guard.construct_wr(posted, flags);
                let request = match arguments.op {
                    Op::Send => request.setup_send(),
                    Op::Write => request.setup_write(theirs.rkey, theirs.address),
                };
                // SAFETY: the region covers these bytes, and outlives the queue pair.
                unsafe { request.setup_sge(lkey, address, MESSAGE_BYTES as u32) };
            }
            guard.post()?;
            continue;
        }
        match cq.start_poll() {
            Ok(completions) => {
                found += 1;
                for completion in completions {
                    if completion.status() != 0 {
                        return Err(format!("a completion with status {}", completion.status()).into());
                    }
                    done = completion.wr_id();
                }
            }
            Err(PollCompletionQueueError::CompletionQueueEmpty) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// Takes messages until all are there.
fn answer(
    qp: &mut BasicQueuePair,
    cq: &BasicCompletionQueue,
    region: &MemoryRegion,
    messages: u64,
) -> Result<(), Failure> {
    let mut taken = 0;
    while taken < messages {
        let Ok(completions) = cq.start_poll() else {
            continue;
        };
        for completion in completions {
            if completion.status() != 0 {
                return Err(format!("a receive with status {}", completion.status()).into());
            }
            taken += 1;
            receive(qp, region)?;
        }
    }
    Ok(())
}

fn receive(qp: &mut BasicQueuePair, region: &MemoryRegion) -> Result<(), Failure> {
    let mut guard = qp.start_post_recv();
    let request = guard.construct_wr(0);
    // SAFETY: the region covers these bytes, outlives the queue pair, and nobody reads them.
    unsafe { request.setup_sge(region.lkey(), region.get_ptr() as u64, MESSAGE_BYTES as u32) };
    Ok(guard.post()?)
}
