//! Arguments that are wrong.

use core::ffi::c_void;

use doorbell_nccl::abi::{NcclResult, PTR_CUDA};

use super::Outcome;
use crate::peers::{Memory, Pair, Rank, receive, refused, told};
use crate::plugin::{Net, Object, Part};

/// The first bytes of the handle of the plugin that this one replaces, in the order of this machine.
const OTHER_MAGIC: u32 = 0x4d45_5348;

/// Handles that are none are refused, and those of others: no process connects anywhere by them.
pub(super) fn garbage_handles(net: &Net) -> Outcome {
    let pair = Pair::connect(net)?;
    let mut tried = 0_u32;
    let mut try_handle = |what: &str, mut handle: [u8; 128]| {
        tried += 1;
        refused(
            what,
            net.connect(pair.a.context, &mut handle),
            NcclResult::INVALID_ARGUMENT,
        )
    };
    let mut word = 0x2545_f491_u32;
    for _ in 0..1000 {
        let handle = core::array::from_fn(|_| {
            word ^= word << 13;
            word ^= word >> 17;
            word ^= word << 5;
            word.to_le_bytes()[0]
        });
        try_handle("connect by random bytes", handle)?;
    }
    try_handle("connect by zeros", [0; 128])?;
    let mut other = [0; 128];
    other[..4].copy_from_slice(&OTHER_MAGIC.to_ne_bytes());
    other[4] = 255;
    try_handle("connect by another plugin's handle", other)?;
    for place in (0..16).chain(20..128) {
        let mut changed = pair.handle;
        changed[place] ^= 0x10;
        try_handle("connect by a changed handle", changed)?;
    }
    // Another's attempt that is noted there begins a new one.
    let mut noted = pair.handle;
    noted[16..20].copy_from_slice(&[0xff; 4]);
    let (send, receive) = crate::peers::connected(net, pair.a.context, &mut noted, pair.listener)?;
    told("closeSend", net.close_send(send))?;
    told("closeRecv", net.close_receive(receive))?;
    pair.close()?;
    Ok(format!("{tried} handles"))
}

/// NULL, numbers that are nobody's, and memory that is not registered.
pub(super) fn wrong_arguments(net: &Net) -> Outcome {
    let pair = Pair::connect(net)?;
    let argument = NcclResult::INVALID_ARGUMENT;
    let calls = net.call_with_nothing(pair.send);
    let mut count = calls.len();
    for (what, result) in calls {
        refused(what, result, argument)?;
    }
    let (from, to) = pair.memory(4096)?;
    let words = [
        1,
        0x1234,
        0xffff_ffff_ffff_fff7,
        pair.handle.as_ptr().addr(),
        pair.send.0.addr() ^ 0x100_0000,
    ];
    for word in words {
        let none = Object(core::ptr::without_provenance_mut::<c_void>(word));
        refused("test", net.test(none), argument)?;
        refused("closeSend", net.close_send(none), argument)?;
        refused("closeRecv", net.close_receive(none), argument)?;
        refused("closeListen", net.close_listener(none), argument)?;
        refused("deregMr", net.deregister(pair.send, none), argument)?;
        refused("regMr", net.register(none, from.buffer.at(0), 1), argument)?;
        refused("accept", net.accept(none), argument)?;
        let outgoing = net.send(none, (from.buffer.at(0), 1), 0, from.handle);
        refused("isend", outgoing, argument)?;
        refused("irecv", net.receive(none, &[to.part(0, 1, 0)]), argument)?;
        count += 9;
    }
    refused(
        "isend on a comm that receives",
        net.send(pair.receive, (from.buffer.at(0), 1), 0, from.handle),
        argument,
    )?;
    refused(
        "irecv on a comm that sends",
        net.receive(pair.send, &[from.part(0, 1, 0)]),
        argument,
    )?;
    refused(
        "closeSend of a comm that receives",
        net.close_send(pair.receive),
        argument,
    )?;
    refused(
        "regMr of a GPU's memory",
        net.register_as(pair.send, from.buffer.at(0), 1, PTR_CUDA),
        argument,
    )?;
    refused(
        "regMrDmaBuf",
        net.register_descriptor(pair.send),
        NcclResult::INVALID_USAGE,
    )?;
    let outside = |offset: usize, bytes: usize| Part {
        data: to.buffer.at(offset),
        bytes,
        tag: 0,
        memory: to.handle,
    };
    for (offset, bytes) in [
        (0, 4097),
        (4096, 1),
        (usize::MAX, 1),
        (0, usize::MAX),
        (0, (1 << 30) + 1),
    ] {
        refused(
            "irecv beyond the memory",
            net.receive(pair.receive, &[outside(offset, bytes)]),
            argument,
        )?;
    }
    let posted = receive(net, pair.receive, &[to.part(0, 4096, 0)])?;
    for (offset, bytes) in [(0, 4097), (1, 4096), (0, (1 << 30) + 1)] {
        let data = (from.buffer.at(offset), bytes);
        refused(
            "isend beyond the memory",
            net.send(pair.send, data, 0, from.handle),
            argument,
        )?;
    }
    refused("iflush of nothing", net.flush_nothing(pair.receive), argument)?;
    let others = [from.handle, to.handle, pair.listener, posted];
    count += objects_of_other_kinds(net, &pair, &from, &others)?;
    if net.has_contexts() {
        of_finalized_contexts(net)?;
        // Memory of one communicator is not another's.
        let data = (from.buffer.at(0), 1);
        refused(
            "isend of another's memory",
            net.send(pair.send, data, 0, to.handle),
            argument,
        )?;
        refused(
            "irecv into another's memory",
            net.receive(pair.receive, &[from.part(0, 1, 0)]),
            argument,
        )?;
        refused(
            "deregMr of another's memory",
            net.deregister(pair.send, to.handle),
            argument,
        )?;
    }
    from.deregister()?;
    to.deregister()?;
    pair.close()?;
    Ok(format!("{} calls", count + 16))
}

/// Objects of this plugin, in the places of others. Returns the number of calls.
fn objects_of_other_kinds(net: &Net, pair: &Pair, from: &Memory, others: &[Object]) -> Result<usize, String> {
    let argument = NcclResult::INVALID_ARGUMENT;
    let data = (from.buffer.at(0), 1);
    for none in others {
        refused("closeSend", net.close_send(*none), argument)?;
        refused("closeRecv", net.close_receive(*none), argument)?;
        refused("regMr", net.register(*none, data.0, 1), argument)?;
        refused("isend", net.send(*none, data, 0, from.handle), argument)?;
        refused("irecv", net.receive(*none, &[from.part(0, 1, 0)]), argument)?;
        refused("iflush", net.flush(*none, &[from.part(0, 1, 0)]), argument)?;
        refused("deregMr", net.deregister(*none, from.handle), argument)?;
    }
    let comms = [pair.send, pair.receive, pair.listener];
    for none in comms {
        refused("isend of it", net.send(pair.send, data, 0, none), argument)?;
        refused("deregMr of it", net.deregister(pair.send, none), argument)?;
        refused("test of it", net.test(none), argument)?;
    }
    for none in [pair.send, pair.receive, from.handle] {
        refused("accept", net.accept(none), argument)?;
        refused("closeListen", net.close_listener(none), argument)?;
    }
    if net.has_contexts() {
        for none in [pair.send, pair.listener, from.handle] {
            refused("finalize", net.finalize(none), argument)?;
            refused("listen", net.listen(none), argument)?;
        }
    }
    Ok(others.len() * 7 + comms.len() * 3 + 6)
}

/// Numbers of a context that is finalized are nobody's, also once another one was made.
fn of_finalized_contexts(net: &Net) -> Result<(), String> {
    let argument = NcclResult::INVALID_ARGUMENT;
    let other = Rank::new(net)?;
    let finalized = other.context;
    let (listener, mut handle) = told("listen", net.listen(finalized))?;
    other.finalize()?;
    let next = Rank::new(net)?;
    let (listens, _) = told("listen", net.listen(next.context))?;
    refused("finalize again", net.finalize(finalized), argument)?;
    refused("listen", net.listen(finalized), argument)?;
    refused("connect", net.connect(finalized, &mut handle), argument)?;
    refused("accept", net.accept(listener), argument)?;
    refused("closeListen", net.close_listener(listener), argument)?;
    told("closeListen", net.close_listener(listens))?;
    next.finalize()
}
