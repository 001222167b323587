//! Messages of all sizes.

use doorbell_nccl::abi::NcclResult;

use super::Outcome;
use crate::peers::{Memory, Pair, eventually, fails, finish, receive, refused, send, told};
use crate::plugin::{Net, Object, Part};

/// Bytes sent, and bytes of the receive.
pub(crate) const SIZES: &[(usize, usize)] = &[
    (0, 0),
    (0, 8),
    (1, 1),
    (8, 8),
    (8, 4096),
    (512, 512),
    (4055, 4056),
    (4056, 4056),
    (4057, 4057),
    (4096, 4096),
    (4096, 65_536),
    (16_384, 16_384),
    (65_537, 65_537),
    (1 << 20, 1 << 20),
    (1_000_003, 1 << 20),
    (5 << 20, 5 << 20),
];

/// Each size arrives as it was sent, and as long as it was sent.
pub(super) fn messages(net: &Net) -> Outcome {
    let pair = Pair::connect(net)?;
    let (mut from, mut to) = pair.memory(5 << 20)?;
    let mut seed = 0_u32;
    for (sent, room) in SIZES.iter().copied() {
        for _ in 0..3 {
            seed = seed.wrapping_add(1);
            from.buffer.fill(0, sent, seed);
            to.buffer.fill(0, room, !seed);
            let receiving = receive(net, pair.receive, &[to.part(0, room, 3)])?;
            let sending = send(net, pair.send, from.part(0, sent, 3))?;
            let sizes = finish(net, &[receiving, sending])?;
            let both: Vec<_> = sizes.iter().map(|sizes| sizes.first().copied()).collect();
            let sent_int = i32::try_from(sent).ok();
            if both != [sent_int; 2] {
                return Err(format!("{sent} bytes to {room}: sizes {both:?}"));
            }
            to.buffer
                .check(0, sent, seed)
                .map_err(|why| format!("{sent} bytes to {room}: {why}"))?;
            if room > sent {
                // The bytes behind stay as they were.
                let behind = to.buffer.slice(0, room).to_vec();
                to.buffer.fill(0, room, !seed);
                if to.buffer.slice(sent, room - sent) != &behind[sent..] {
                    return Err(format!("{sent} bytes to {room}: more was written"));
                }
            }
        }
    }
    if told("iflush", net.flush(pair.receive, &[to.part(0, 8, 0)]))?.is_some() {
        return Err("a flush of host memory has a request".to_owned());
    }
    from.deregister()?;
    to.deregister()?;
    pair.close()?;
    Ok(format!("{} pairs of sizes", SIZES.len()))
}

/// As many requests as NCCL may have, at a time.
pub(super) fn in_flight(net: &Net) -> Outcome {
    const REQUESTS: usize = 32;
    const RECEIVES: usize = 8;
    const BYTES: usize = 8192;
    let pair = Pair::connect(net)?;
    let (mut from, mut to) = pair.memory(REQUESTS * RECEIVES * BYTES)?;
    from.buffer.fill(0, REQUESTS * RECEIVES * BYTES, 9);
    let place = |index: usize| (index * BYTES, BYTES - index, i32::try_from(index).unwrap_or(0));
    let mut receives = Vec::new();
    for request in 0..REQUESTS {
        let into: Vec<Part> = (0..RECEIVES)
            .map(|index| place(request * RECEIVES + index))
            .map(|(at, bytes, tag)| to.part(at, bytes, tag))
            .collect();
        receives.push(receive(net, pair.receive, &into)?);
    }
    let one = [to.part(0, 1, 0)];
    if told("irecv", net.receive(pair.receive, &one))?.is_some() {
        return Err("a receive beyond 32 was taken".to_owned());
    }
    let mut sends: Vec<Object> = Vec::new();
    let mut waiting: Vec<Part> = (0..REQUESTS * RECEIVES)
        .map(place)
        .map(|(at, bytes, tag)| from.part(at, bytes, tag))
        .collect();
    // From the last to the first: each finds its own receive by its tag.
    eventually("all sends", || {
        while let Some(next) = waiting.last() {
            let sent = net.send(pair.send, (next.data, next.bytes), next.tag, next.memory);
            let Some(sent) = told("isend", sent)? else { break };
            sends.push(sent);
            waiting.pop();
        }
        // The receiver goes on meanwhile, as NCCL's does. With all of them taken, its first receive may be done.
        if !waiting.is_empty() && told("test", net.test(receives[0]))?.is_some() {
            return Err("a receive is done, and its sends are not all taken".to_owned());
        }
        Ok(waiting.is_empty().then_some(()))
    })?;
    let sizes = finish(net, &receives)?;
    finish(net, &sends)?;
    for index in 0..REQUESTS * RECEIVES {
        let (at, bytes, _) = place(index);
        if sizes[index / RECEIVES][index % RECEIVES] != i32::try_from(bytes).unwrap_or(-1) {
            return Err(format!("message {index}: sizes {:?}", sizes[index / RECEIVES]));
        }
        let sent = from.buffer.slice(at, bytes).to_vec();
        if to.buffer.slice(at, bytes) != &sent[..] {
            return Err(format!("message {index} is not what was sent"));
        }
    }
    refused(
        "test of a done request",
        net.test(receives[0]),
        NcclResult::INVALID_ARGUMENT,
    )?;
    from.deregister()?;
    to.deregister()?;
    pair.close()?;
    Ok(format!("{REQUESTS} receives of {RECEIVES} messages"))
}

/// A receive of several messages is done once all of them are there.
pub(super) fn grouped(net: &Net) -> Outcome {
    let pair = Pair::connect(net)?;
    let (mut from, mut to) = pair.memory(1 << 20)?;
    const EACH: usize = 1 << 17;
    for count in 1..=8_usize {
        let bytes = |index: usize| [0, 8, 4056, 5000, 100_000, 1, 16_384, 131_072][index];
        let into: Vec<Part> = (0..count)
            .map(|index| to.part(index * EACH, bytes(index), i32::try_from(index).unwrap_or(0) * 7))
            .collect();
        let receiving = receive(net, pair.receive, &into)?;
        let mut sends = Vec::new();
        for index in (0..count).rev() {
            if told("test", net.test(receiving))?.is_some() {
                return Err(format!("done with {index} of {count} messages missing"));
            }
            let seed = u32::try_from(count * 8 + index).unwrap_or(0);
            from.buffer.fill(index * EACH, bytes(index), seed);
            let tag = i32::try_from(index).unwrap_or(0) * 7;
            sends.push(send(net, pair.send, from.part(index * EACH, bytes(index), tag))?);
        }
        let sizes = finish(net, &[receiving])?;
        finish(net, &sends)?;
        for index in 0..count {
            let seed = u32::try_from(count * 8 + index).unwrap_or(0);
            to.buffer.check(index * EACH, bytes(index), seed)?;
            if sizes[0][index] != i32::try_from(bytes(index)).unwrap_or(-1) {
                return Err(format!("sizes {sizes:?}"));
            }
        }
        if sizes[0][count..].iter().any(|size| *size != -1) {
            return Err(format!("more than {count} sizes were written: {sizes:?}"));
        }
    }
    let one = to.part(0, 1, 0);
    refused(
        "irecv of none",
        net.receive(pair.receive, &[]),
        NcclResult::INVALID_ARGUMENT,
    )?;
    refused(
        "irecv of 9",
        net.receive(pair.receive, &[one; 9]),
        NcclResult::INVALID_ARGUMENT,
    )?;
    refused(
        "iflush of 9",
        net.flush(pair.receive, &[one; 9]),
        NcclResult::INVALID_ARGUMENT,
    )?;
    from.deregister()?;
    to.deregister()?;
    pair.close()?;
    Ok("1 to 8 messages in one receive".to_owned())
}

/// A send waits for a receive of its tag, and receives of one tag are filled in order.
pub(super) fn tags(net: &Net) -> Outcome {
    let pair = Pair::connect(net)?;
    let (mut from, mut to) = pair.memory(4096)?;
    let try_send = |at: usize, tag: i32| {
        let from = from.part(at, 1, tag);
        told(
            "isend",
            net.send(pair.send, (from.data, from.bytes), tag, from.memory),
        )
    };
    for _ in 0..1000 {
        if try_send(0, 1)?.is_some() {
            return Err("a send without a receive was taken".to_owned());
        }
    }
    let receives: Vec<_> = [5, 5, 6]
        .into_iter()
        .enumerate()
        .map(|(at, tag)| receive(net, pair.receive, &[to.part(at, 1, tag)]))
        .collect::<Result<_, _>>()?;
    for _ in 0..1000 {
        if try_send(0, 1)?.is_some() {
            return Err("a send of another tag was taken".to_owned());
        }
    }
    from.buffer.slice(0, 3).copy_from_slice(b"abc");
    let mut sends = Vec::new();
    for (at, tag) in [(0, 6), (1, 5), (2, 5)] {
        sends.push(send(net, pair.send, from.part(at, 1, tag))?);
    }
    finish(net, &sends)?;
    finish(net, &receives)?;
    let came = to.buffer.slice(0, 3).to_vec();
    if came != b"bca" {
        return Err(format!("{came:?}"));
    }
    from.deregister()?;
    to.deregister()?;
    pair.close()?;
    Ok("receives are filled by tag, and in order".to_owned())
}

/// A send that is longer than its receive ends as an error at both sides, and nothing else does.
pub(super) fn excess(net: &Net) -> Outcome {
    let pair = Pair::connect(net)?;
    let (mut from, mut to) = pair.memory(1 << 20)?;
    for (sent, room) in [(1, 0), (9, 8), (100_000, 99_999)] {
        to.buffer.fill(0, 1 << 20, 1);
        let receiving = receive(net, pair.receive, &[to.part(0, room, 0)])?;
        let sending = send(net, pair.send, from.part(0, sent, 0))?;
        fails(net, sending, NcclResult::INVALID_USAGE)?;
        fails(net, receiving, NcclResult::INVALID_USAGE)?;
        to.buffer.check(0, 1 << 20, 1)?;
        let wanted = format!("{sent} bytes");
        let lines = crate::plugin::log();
        if lines.iter().filter(|line| line.contains(&wanted)).count() < 2 {
            return Err(format!("the log does not say so of both sides: {lines:?}"));
        }
    }
    // The comm goes on.
    from.buffer.fill(0, 8, 5);
    let receiving = receive(net, pair.receive, &[to.part(0, 8, 0)])?;
    let sending = send(net, pair.send, from.part(0, 8, 0))?;
    finish(net, &[receiving, sending])?;
    to.buffer.check(0, 8, 5)?;
    from.deregister()?;
    to.deregister()?;
    pair.close()?;
    Ok("both requests fail, and the comm goes on".to_owned())
}

/// Messages of one size, one by one.
pub(crate) fn one_by_one(net: &Net, arguments: &[String]) -> Outcome {
    let numbers = arguments.iter().map(|text| text.parse::<usize>());
    let numbers: Vec<usize> = numbers
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    let [bytes, rounds] = numbers[..] else {
        return Err("--count wants BYTES ROUNDS".to_owned());
    };
    let pair = Pair::connect(net)?;
    let (from, to) = pair.memory(bytes)?;
    for _ in 0..rounds {
        let receiving = receive(net, pair.receive, &[to.part(0, bytes, 0)])?;
        // Both ranks are on this thread: one that is not called does not go on.
        let sending = eventually("isend", || {
            if told("test", net.test(receiving))?.is_some() {
                return Err("a receive is done that nothing was sent to".to_owned());
            }
            let from = from.part(0, bytes, 0);
            told("isend", net.send(pair.send, (from.data, bytes), 0, from.memory))
        })?;
        finish(net, &[sending, receiving])?;
    }
    from.deregister()?;
    to.deregister()?;
    pair.close()?;
    Ok(format!("{rounds} messages of {bytes} bytes"))
}

/// Ranges that overlap are registrations of their own, and go one by one. A range without bytes, or that wraps, is refused.
pub(super) fn registrations(net: &Net) -> Outcome {
    const BYTES: usize = 8192;
    let pair = Pair::connect(net)?;
    let (mut from, mut to) = pair.memory(8 * BYTES)?;
    let at = to.buffer.at(0);
    let top = core::ptr::without_provenance_mut(usize::MAX - 4095);
    let wrong = [
        ("no bytes", at, 0),
        ("NULL", core::ptr::null_mut(), BYTES),
        ("too many bytes", at, usize::MAX),
        ("one byte too many", at, 1 << 63),
        ("a range that wraps", top, BYTES),
    ];
    for (what, data, bytes) in wrong {
        let registered = net.register(pair.receive, data, bytes);
        refused(what, registered, NcclResult::INVALID_ARGUMENT)?;
    }
    // The middle of the first one, and all of it once more.
    let inner = told(
        "regMr",
        net.register(pair.receive, to.buffer.at(2 * BYTES), 4 * BYTES),
    )?;
    let same = told("regMr", net.register(pair.receive, at, 8 * BYTES))?;
    let all = [to.handle, inner, same];
    let mut seed = 0;
    let mut message = |to: &mut Memory, memory: Object, place: usize| {
        seed += 1;
        from.buffer.fill(0, BYTES, seed);
        let part = Part {
            memory,
            ..to.part(place * BYTES, BYTES, 0)
        };
        let receiving = receive(net, pair.receive, &[part])?;
        let sending = send(net, pair.send, from.part(0, BYTES, 0))?;
        finish(net, &[receiving, sending])?;
        if told("iflush", net.flush(pair.receive, &[part]))?.is_some() {
            return Err("a flush of host memory has a request".to_owned());
        }
        to.buffer.check(place * BYTES, BYTES, seed)
    };
    for place in [2, 5, 2, 3] {
        for memory in all {
            message(&mut to, memory, place)?;
        }
    }
    told("deregMr", net.deregister(pair.receive, same))?;
    for memory in [to.handle, inner] {
        message(&mut to, memory, 3)?;
    }
    for (memory, place) in [(same, 3), (inner, 1), (inner, 6)] {
        let part = Part {
            memory,
            ..to.part(place * BYTES, BYTES, 0)
        };
        let posted = net.receive(pair.receive, &[part]);
        refused("irecv", posted, NcclResult::INVALID_ARGUMENT)?;
    }
    told("deregMr", net.deregister(pair.receive, inner))?;
    message(&mut to, all[0], 0)?;
    from.deregister()?;
    to.deregister()?;
    pair.close()?;
    Ok("three registrations of one range".to_owned())
}
