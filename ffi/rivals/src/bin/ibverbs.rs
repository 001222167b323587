//! The loop by the crate `ibverbs`, as far as it goes: each SEND is posted by itself and has a completion of its own,
//! and there is no WRITE.

use clap::Parser as _;
use doorbell_rivals::{Arguments, DEPTH, Failure, MESSAGE_BYTES, Op, Peer, RECEIVES};
use ibverbs::{CompletionQueue, MemoryRegion, QueuePair, ibv_wc};

/// Completions taken with one poll at most.
const COMPLETIONS_MAX: usize = 16;

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    if arguments.op == Op::Write {
        return Err("the crate has no WRITE".into());
    }
    let devices = ibverbs::devices()?;
    let device = devices.iter().find(|device| {
        let name = device.name();
        name.is_some_and(|name| name.to_bytes() == arguments.device.as_bytes())
    });
    let context = device.ok_or("no such device")?.open()?;
    let cq = context.create_cq(i32::try_from(DEPTH + RECEIVES)?, 0)?;
    let pd = context.alloc_pd()?;
    let mut region = pd.allocate::<u8>(MESSAGE_BYTES)?;
    let prepared = pd
        .create_qp(&cq, &cq, ibverbs::ibv_qp_type::IBV_QPT_RC)
        .set_gid_index(arguments.gid_index)
        .set_timeout(18)
        .set_max_send_wr(u32::try_from(DEPTH)?)
        .set_max_recv_wr(u32::try_from(RECEIVES)?)
        .build()?;
    let mut peer = Peer::meet(&arguments)?;
    let theirs = peer.exchange(&prepared.endpoint())?;
    let mut qp = prepared.handshake(theirs)?;
    if !arguments.connect {
        for _ in 0..RECEIVES {
            receive(&mut qp, &mut region)?;
        }
    }
    peer.exchange(&())?;
    if arguments.connect {
        let found = pump(&mut qp, &cq, &mut region, &arguments)?;
        println!("polls that found something: {found}");
        return Ok(());
    }
    answer(&mut qp, &cq, &mut region, arguments.iterations)?;
    peer.wait_for_its_end()
}

/// Posts all messages, and polls until they are done. Says how many polls found something.
#[inline(never)]
fn pump(
    qp: &mut QueuePair<'_>,
    cq: &CompletionQueue<'_>,
    region: &mut MemoryRegion<u8>,
    arguments: &Arguments,
) -> Result<u64, Failure> {
    let mut completions = [ibv_wc::default(); COMPLETIONS_MAX];
    let (mut posted, mut done, mut found) = (0, 0, 0);
    while done < arguments.iterations {
        if posted < arguments.iterations && posted - done + arguments.list <= DEPTH {
            for _ in 0..arguments.list {
                posted += 1;
                // SAFETY: nobody writes to the region, and it outlives every request: all of them are waited for.
                unsafe { qp.post_send(region, ..MESSAGE_BYTES, posted) }?;
            }
            continue;
        }
        let completed = cq.poll(&mut completions)?;
        if !completed.is_empty() {
            found += 1;
        }
        for completion in completed.iter() {
            if let Some((status, _)) = completion.error() {
                return Err(format!("a completion with status {status:?}").into());
            }
            done = completion.wr_id();
        }
    }
    Ok(found)
}

/// Takes messages until all are there.
fn answer(
    qp: &mut QueuePair<'_>,
    cq: &CompletionQueue<'_>,
    region: &mut MemoryRegion<u8>,
    messages: u64,
) -> Result<(), Failure> {
    let mut completions = [ibv_wc::default(); COMPLETIONS_MAX];
    let mut taken = 0;
    while taken < messages {
        for completion in cq.poll(&mut completions)?.iter() {
            if let Some((status, _)) = completion.error() {
                return Err(format!("a receive with status {status:?}").into());
            }
            taken += 1;
            receive(qp, region)?;
        }
    }
    Ok(())
}

fn receive(qp: &mut QueuePair<'_>, region: &mut MemoryRegion<u8>) -> Result<(), Failure> {
    // SAFETY: nobody reads the region, and it outlives the queue pair.
    Ok(unsafe { qp.post_receive(region, ..MESSAGE_BYTES, 0) }?)
}
