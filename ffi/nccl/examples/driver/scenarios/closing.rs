//! Ends, expected and not.

use core::time::Duration;
use std::time::Instant;

use doorbell_nccl::abi::NcclResult;

use super::Outcome;
use crate::peers::{Memory, Pair, Rank, connected, eventually, fails, finish, receive, refused, send, told};
use crate::plugin::Net;

/// How long closeSend waits for a peer that is not run.
const CLOSE_SEND_WAITS: Duration = Duration::from_secs(1);

/// Memory is deregistered and comms are closed with requests in flight.
pub(super) fn in_flight_close(net: &Net) -> Outcome {
    // More than is moved until the first end.
    const BYTES: usize = 256 << 20;
    for order in 0..4 {
        let pair = Pair::connect(net)?;
        let (from, to) = pair.memory(BYTES)?;
        // Some receives that nothing comes for, one that is being filled, and one that is filled by a short message.
        let mut receives = vec![receive(net, pair.receive, &[to.part(0, BYTES, 1)])?];
        for _ in 0..4 {
            receives.push(receive(net, pair.receive, &[to.part(0, 64, 2)])?);
        }
        let sending = send(net, pair.send, from.part(0, BYTES, 1))?;
        let short = send(net, pair.send, from.part(0, 64, 2))?;
        for _ in 0..30 {
            if told("test", net.test(sending))?.is_some() || told("test", net.test(receives[0]))?.is_some() {
                return Err("256 MiB were moved at once".to_owned());
            }
            // The memory is registered by another thread.
            std::thread::sleep(core::time::Duration::from_millis(1));
        }
        match order {
            0 => {
                to.deregister()?;
                // Its requests end; the sender's, too.
                fails(net, receives[4], NcclResult::INVALID_USAGE)?;
                fails(net, sending, NcclResult::REMOTE_ERROR)?;
                finish(net, &[short])?;
                from.deregister()?;
                pair.close()?;
            }
            1 => {
                from.deregister()?;
                fails(net, sending, NcclResult::INVALID_USAGE)?;
                to.deregister()?;
                pair.close()?;
            }
            2 => {
                told("closeRecv", net.close_receive(pair.receive))?;
                fails(net, sending, NcclResult::REMOTE_ERROR)?;
                refused(
                    "closeRecv again",
                    net.close_receive(pair.receive),
                    NcclResult::INVALID_ARGUMENT,
                )?;
                told("closeSend", net.close_send(pair.send))?;
                told("closeListen", net.close_listener(pair.listener))?;
                // The registration's comm is closed, and the context has it still.
                let gave_up = net.deregister(pair.send, from.handle);
                told("deregMr", gave_up)?;
                told("deregMr", net.deregister(pair.receive, to.handle))?;
                pair.a.finalize()?;
                pair.b.finalize()?;
            }
            _ => {
                told("closeSend", net.close_send(pair.send))?;
                fails(net, receives[4], NcclResult::REMOTE_ERROR)?;
                refused(
                    "test of a closed comm's request",
                    net.test(sending),
                    NcclResult::INVALID_ARGUMENT,
                )?;
                told("closeRecv", net.close_receive(pair.receive))?;
                told("closeListen", net.close_listener(pair.listener))?;
                told("deregMr", net.deregister(pair.send, from.handle))?;
                told("deregMr", net.deregister(pair.receive, to.handle))?;
                pair.a.finalize()?;
                pair.b.finalize()?;
            }
        }
    }
    Ok("memory first, then comms, in four orders".to_owned())
}

/// A message whose send was done arrives, although its sender is gone at once.
pub(super) fn last_message(net: &Net) -> Outcome {
    for round in 0..5_u32 {
        let pair = Pair::connect(net)?;
        let (mut from, mut to) = pair.memory(4096)?;
        from.buffer.fill(0, 1000, round);
        let receiving = receive(net, pair.receive, &[to.part(0, 1000, 0)])?;
        let sending = send(net, pair.send, from.part(0, 1000, 0))?;
        finish(net, &[sending])?;
        from.deregister()?;
        let began = Instant::now();
        told("closeSend", net.close_send(pair.send))?;
        // The peer has it by now, or was not run for as long as closeSend waits.
        if told("test", net.test(receiving))?.is_none() {
            if began.elapsed() < CLOSE_SEND_WAITS {
                return Err("closeSend returned before the peer had the message".to_owned());
            }
            finish(net, &[receiving])?;
        }
        pair.a.finalize()?;
        to.buffer.check(0, 1000, round)?;
        to.deregister()?;
        told("closeRecv", net.close_receive(pair.receive))?;
        told("closeListen", net.close_listener(pair.listener))?;
        pair.b.finalize()?;
    }
    Ok("5 times".to_owned())
}

/// Requests end with an error once the peer is gone.
pub(super) fn peer_gone(net: &Net) -> Outcome {
    let pair = Pair::connect(net)?;
    let (from, to) = pair.memory(1 << 20)?;
    let receives: Vec<_> = (0..3)
        .map(|_| receive(net, pair.receive, &[to.part(0, 4096, 0)]))
        .collect::<Result<_, _>>()?;
    from.deregister()?;
    if net.has_contexts() {
        pair.a.finalize()?;
    } else {
        told("closeSend", net.close_send(pair.send))?;
    }
    for receive in receives {
        fails(net, receive, NcclResult::REMOTE_ERROR)?;
    }
    let one = [to.part(0, 1, 0)];
    eventually("a refused irecv", || match net.receive(pair.receive, &one) {
        Ok(None) => Ok(None),
        Ok(Some(request)) => fails(net, request, NcclResult::REMOTE_ERROR).map(Some),
        other => refused("irecv", other, NcclResult::REMOTE_ERROR).map(Some),
    })?;
    if crate::plugin::log().is_empty() {
        return Err("the log has no line".to_owned());
    }
    to.deregister()?;
    told("closeRecv", net.close_receive(pair.receive))?;
    told("closeListen", net.close_listener(pair.listener))?;
    pair.b.finalize()?;
    Ok("3 receives".to_owned())
}

/// A listener that nobody accepts at does not hold up who connects, nor its own end.
pub(super) fn not_accepted(net: &Net) -> Outcome {
    let (a, b) = (Rank::new(net)?, Rank::new(net)?);
    let (listener, handle) = told("listen", net.listen(b.context))?;
    let mut sends = Vec::new();
    for _ in 0..4 {
        let mut copy = handle;
        sends.push(eventually("connect", || {
            told("connect", net.connect(a.context, &mut copy))
        })?);
    }
    // The second is closed before it is accepted: it is accepted all the same, and its requests fail.
    told("closeSend", net.close_send(sends.remove(1)))?;
    let mut receives = Vec::new();
    for _ in 0..4 {
        receives.push(eventually("accept", || told("accept", net.accept(listener)))?);
    }
    if told("accept", net.accept(listener))?.is_some() {
        return Err("more was accepted than connected".to_owned());
    }
    let memory = Memory::new(net, receives[1], 8)?;
    let one = [memory.part(0, 8, 0)];
    eventually("a refused irecv", || match net.receive(receives[1], &one) {
        Ok(None) => Ok(None),
        Ok(Some(request)) => fails(net, request, NcclResult::REMOTE_ERROR).map(Some),
        other => refused("irecv", other, NcclResult::REMOTE_ERROR).map(Some),
    })?;
    memory.deregister()?;
    let late = connected(net, a.context, &mut handle.clone(), listener)?;
    receives.push(late.1);
    sends.push(late.0);
    told("closeListen", net.close_listener(listener))?;
    let mut copy = handle;
    eventually("a refused connect", || match net.connect(a.context, &mut copy) {
        Ok(None) => Ok(None),
        other => refused("connect", other, NcclResult::REMOTE_ERROR).map(Some),
    })?;
    refused("accept", net.accept(listener), NcclResult::INVALID_ARGUMENT)?;
    for send in sends {
        told("closeSend", net.close_send(send))?;
    }
    for receive in receives {
        told("closeRecv", net.close_receive(receive))?;
    }
    a.finalize()?;
    b.finalize()?;
    Ok("5 comms, one of them closed before".to_owned())
}

/// A listener that is closed with comms that nobody has accepted: the other side's requests end, and no comm is left behind.
pub(super) fn listener_gone(net: &Net) -> Outcome {
    let (a, b) = (Rank::new(net)?, Rank::new(net)?);
    for is_connected in [true, false] {
        let (mut listener, mut handle) = told("listen", net.listen(b.context))?;
        let mut send = None;
        if is_connected {
            send = Some(eventually("connect", || {
                told("connect", net.connect(a.context, &mut handle))
            })?);
        } else {
            // A caller that is not run within its first call may find the comm open.
            eventually("a comm that is not connected yet", || {
                let Some(early) = told("connect", net.connect(a.context, &mut handle))? else {
                    return Ok(Some(()));
                };
                told("closeSend", net.close_send(early))?;
                told("closeListen", net.close_listener(listener))?;
                (listener, handle) = told("listen", net.listen(b.context))?;
                Ok(None)
            })?;
        }
        told("closeListen", net.close_listener(listener))?;
        if let Some(send) = send {
            let memory = Memory::new(net, send, 8)?;
            eventually("a refused isend", || {
                match net.send(send, (memory.buffer.at(0), 8), 0, memory.handle) {
                    Ok(None) => Ok(None),
                    Ok(Some(request)) => fails(net, request, NcclResult::REMOTE_ERROR).map(Some),
                    other => refused("isend", other, NcclResult::REMOTE_ERROR).map(Some),
                }
            })?;
            memory.deregister()?;
            told("closeSend", net.close_send(send))?;
        } else {
            eventually("a refused connect", || {
                match net.connect(a.context, &mut handle) {
                    Ok(None) => Ok(None),
                    other => refused("connect", other, NcclResult::REMOTE_ERROR).map(Some),
                }
            })?;
        }
    }
    a.finalize()?;
    b.finalize()?;
    Ok("with a comm that was connected, and one that was not".to_owned())
}

/// Nothing of a comm that is closed can be used.
pub(super) fn after_close(net: &Net) -> Outcome {
    let argument = NcclResult::INVALID_ARGUMENT;
    let pair = Pair::connect(net)?;
    let (from, to) = pair.memory(64)?;
    let receiving = receive(net, pair.receive, &[to.part(0, 8, 0)])?;
    told("closeRecv", net.close_receive(pair.receive))?;
    refused("test", net.test(receiving), argument)?;
    refused("irecv", net.receive(pair.receive, &[to.part(0, 8, 0)]), argument)?;
    refused("iflush", net.flush(pair.receive, &[to.part(0, 8, 0)]), argument)?;
    refused("regMr", net.register(pair.receive, to.buffer.at(0), 8), argument)?;
    told("closeSend", net.close_send(pair.send))?;
    let data = (from.buffer.at(0), 8);
    refused("isend", net.send(pair.send, data, 0, from.handle), argument)?;
    refused("closeSend again", net.close_send(pair.send), argument)?;
    told("closeListen", net.close_listener(pair.listener))?;
    refused("closeListen again", net.close_listener(pair.listener), argument)?;
    refused("accept", net.accept(pair.listener), argument)?;
    from.deregister()?;
    told("deregMr", net.deregister(pair.receive, to.handle))?;
    refused("deregMr again", net.deregister(pair.receive, to.handle), argument)?;
    pair.a.finalize()?;
    pair.b.finalize()?;
    Ok("9 calls".to_owned())
}
