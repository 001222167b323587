//! The scenarios.

mod closing;
mod hostile;
pub(crate) mod messages;
pub(crate) mod rings;

use doorbell_nccl::abi::{PTR_CUDA, PTR_HOST};

use crate::peers::{Pair, Rank, connected, refused, told};
use crate::plugin::Net;
use doorbell_nccl::abi::NcclResult;

/// A few words of what was done, or the reason of a failure.
pub(crate) type Outcome = Result<String, String>;

/// A name, and what is done.
type Scenario = (&'static str, fn(&Net) -> Outcome);

/// All of them.
pub(crate) const SCENARIOS: &[Scenario] = &[
    ("properties", properties),
    ("virtual_devices", virtual_devices),
    ("connection", connection),
    ("messages", messages::messages),
    ("in_flight", messages::in_flight),
    ("grouped", messages::grouped),
    ("tags", messages::tags),
    ("excess", messages::excess),
    ("registrations", messages::registrations),
    ("reuse_listener", reuse_listener),
    ("ring", rings::ring),
    ("all_reduce", rings::all_reduce),
    ("threads", rings::threads),
    ("in_flight_close", closing::in_flight_close),
    ("last_message", closing::last_message),
    ("peer_gone", closing::peer_gone),
    ("not_accepted", closing::not_accepted),
    ("listener_gone", closing::listener_gone),
    ("after_close", closing::after_close),
    ("garbage_handles", hostile::garbage_handles),
    ("wrong_arguments", hostile::wrong_arguments),
];

/// The device is described, and nothing is claimed that is not there.
fn properties(net: &Net) -> Outcome {
    let rank = Rank::new(net)?;
    let count = told("devices", net.devices())?;
    if count < 1 {
        return Err(format!("{count} devices"));
    }
    let facts = told("getProperties", net.facts(0))?;
    let again = told("getProperties", net.facts(0))?;
    if facts.pointers & PTR_HOST == 0 || facts.pointers & PTR_CUDA != 0 {
        return Err(format!("ptrSupport {}", facts.pointers));
    }
    if facts.name.is_empty() || facts.guid == 0 || facts.guid != again.guid {
        return Err(format!("{facts:?}, then {again:?}"));
    }
    if facts.speed <= 1000 || facts.comms_max < 64 || facts.receives_max < 1 || facts.bytes_max < 1 << 30 {
        return Err(format!("{facts:?}"));
    }
    if facts
        .path
        .as_deref()
        .is_some_and(|path| !path.starts_with("/sys/devices/"))
    {
        return Err(format!("pciPath {:?}", facts.path));
    }
    refused(
        "getProperties of no device",
        net.facts(count),
        NcclResult::INVALID_ARGUMENT,
    )?;
    rank.finalize()?;
    Ok(format!("{count} devices, the first of them {facts:?}"))
}

/// A list of one device is that device; a list that names none, one that is not there, or one twice is refused.
fn virtual_devices(net: &Net) -> Outcome {
    let rank = Rank::new(net)?;
    let count = told("devices", net.devices())?;
    let Some(made) = net.make_device(&[0]) else {
        rank.finalize()?;
        return Ok("there is no makeVDevice".to_owned());
    };
    let made = told("makeVDevice", made)?;
    let (of, made_of) = (
        told("getProperties", net.facts(0))?,
        told("getProperties", net.facts(made))?,
    );
    if made_of.speed < of.speed || made_of.name.is_empty() {
        return Err(format!("of {of:?} was made {made_of:?}"));
    }
    for wrong in [&[][..], &[count], &[-1], &[0, 0], &[0, count]] {
        match net.make_device(wrong) {
            Some(Err(NcclResult::INVALID_ARGUMENT | NcclResult::INVALID_USAGE)) => {}
            other => return Err(format!("makeVDevice of {wrong:?}: {other:?}")),
        }
    }
    rank.finalize()?;
    Ok(format!("device {made} of device 0"))
}

/// Comms are made and closed, many times.
fn connection(net: &Net) -> Outcome {
    for _ in 0..5 {
        Pair::connect(net)?.close()?;
    }
    let pair = Pair::connect(net)?;
    let mut comms = Vec::new();
    for _ in 0..64 {
        let (listener, mut handle) = told("listen", net.listen(pair.b.context))?;
        let (send, receive) = connected(net, pair.a.context, &mut handle, listener)?;
        comms.push((listener, send, receive));
    }
    for (listener, send, receive) in comms {
        told("closeListen", net.close_listener(listener))?;
        told("closeRecv", net.close_receive(receive))?;
        told("closeSend", net.close_send(send))?;
    }
    pair.close()?;
    Ok("5 pairs one after the other, and 64 comms at a time".to_owned())
}

/// One listener takes several comms, by copies of its handle and by the same bytes again.
fn reuse_listener(net: &Net) -> Outcome {
    let pair = Pair::connect(net)?;
    let mut comms = Vec::new();
    // The same memory again: connect may have kept something there.
    let mut kept = pair.handle;
    for _ in 0..3 {
        comms.push(connected(net, pair.a.context, &mut kept, pair.listener)?);
    }
    // Three attempts at a time.
    let mut copies = [pair.handle; 3];
    let (mut sends, mut receives) = ([None; 3], Vec::new());
    crate::peers::eventually("three at a time", || {
        for (copy, send) in copies.iter_mut().zip(&mut sends) {
            if send.is_none() {
                *send = told("connect", net.connect(pair.a.context, copy))?;
            }
        }
        receives.extend(told("accept", net.accept(pair.listener))?);
        Ok((sends.iter().all(Option::is_some) && receives.len() == 3).then_some(()))
    })?;
    if told("accept", net.accept(pair.listener))?.is_some() {
        return Err("one more was accepted than connected".to_owned());
    }
    comms.extend(sends.into_iter().flatten().zip(receives));
    for (send, receive) in comms {
        told("closeSend", net.close_send(send))?;
        told("closeRecv", net.close_receive(receive))?;
    }
    pair.close()?;
    Ok("7 comms of one handle".to_owned())
}
