//! Scenarios between hosts that share no subnet, and whose plugin relays.

use std::time::Instant;

use doorbell_nccl::abi::NcclResult;

use crate::between::{Done, Outcome, Place, passed};
use crate::hosts::unix_ns;
use crate::peers::{Memory, Rank, connected, eventually, finish, receive, send, told};
use crate::plugin::Object;

/// The rank that relays between the first two that are far from each other.
const RELAY: usize = 1;

/// Comms both ways between two ranks, of which this is one.
struct Both {
    rank: Rank,
    listener: Object,
    send: Object,
    receive: Object,
}

impl Both {
    fn new(place: &Place, rank: Rank, other: usize) -> Result<Self, String> {
        let (listener, handle) = told("listen", place.net.listen(rank.context))?;
        place.put(&format!("handle-{}", place.rank), &handle)?;
        let mut handle = place.handle(other)?;
        let (send, receive) = connected(&place.net, rank.context, &mut handle, listener)?;
        Ok(Self {
            rank,
            listener,
            send,
            receive,
        })
    }

    fn close(self, place: &Place) -> Result<(), String> {
        told("closeSend", place.net.close_send(self.send))?;
        told("closeRecv", place.net.close_receive(self.receive))?;
        told("closeListen", place.net.close_listener(self.listener))?;
        self.rank.finalize()
    }
}

/// The first two ranks that are far from each other.
fn far_pair(place: &Place) -> Result<(usize, usize), Done> {
    let pair = place.far.first().copied().filter(|_| place.is_relayed);
    pair.ok_or_else(|| Done::LeftOut("nothing is relayed".to_owned()))
}

/// Times of short and long messages, between neighbours and by a relay.
pub(crate) fn pace(place: &Place) -> Outcome {
    let (a, c) = match far_pair(place) {
        Ok(pair) => pair,
        Err(none) => return Ok(none),
    };
    let mut words = String::new();
    for (round, (one, other)) in [(a, RELAY), (a, c)].into_iter().enumerate() {
        let rank = Rank::new(&place.net)?;
        place.meet(&format!("begun-{round}"), place.ranks)?;
        let peer = match place.rank {
            of if of == one => Some(other),
            of if of == other => Some(one),
            _ => None,
        };
        match peer {
            Some(peer) => words.push_str(&timed(place, rank, (peer, place.rank == one), round)?),
            None => {
                place.meet(&format!("timed-{round}"), place.ranks)?;
                rank.finalize()?;
            }
        }
    }
    passed(if place.rank == a {
        words
    } else {
        "beside".to_owned()
    })
}

/// Ping-pong of 8 bytes, and then long messages one way.
fn timed(place: &Place, rank: Rank, (peer, is_first): (usize, bool), round: usize) -> Result<String, String> {
    const ROUNDS: usize = 40;
    const BYTES: usize = 4 << 20;
    const MESSAGES: usize = 1;
    let net = &place.net;
    let handles = format!("handle-{}", place.rank);
    let (listener, handle) = told("listen", net.listen(rank.context))?;
    place.put(&format!("{handles}-{round}"), &handle)?;
    let theirs = place.get(&format!("handle-{peer}-{round}"))?;
    let mut theirs = theirs
        .try_into()
        .map_err(|_| "a handle of another length".to_owned())?;
    let (sending, receiving) = connected(net, rank.context, &mut theirs, listener)?;
    let both = Both {
        rank,
        listener,
        send: sending,
        receive: receiving,
    };
    let (from, to) = (
        Memory::new(net, both.send, BYTES)?,
        Memory::new(net, both.receive, BYTES)?,
    );
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let came = receive(net, both.receive, &[to.part(0, 8, 0)])?;
        if is_first {
            let sent = send(net, both.send, from.part(0, 8, 0))?;
            finish(net, &[sent, came])?;
        } else {
            finish(net, &[came])?;
            let sent = send(net, both.send, from.part(0, 8, 0))?;
            finish(net, &[sent])?;
        }
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let median = times.get(ROUNDS / 2).copied().unwrap_or_default();
    let began = Instant::now();
    for _ in 0..MESSAGES {
        let request = match is_first {
            true => send(net, both.send, from.part(0, BYTES, 0))?,
            false => receive(net, both.receive, &[to.part(0, BYTES, 0)])?,
        };
        finish(net, &[request])?;
    }
    // The last of them is there.
    let last = match is_first {
        true => receive(net, both.receive, &[to.part(0, 8, 0)])?,
        false => send(net, both.send, from.part(0, 8, 0))?,
    };
    finish(net, &[last])?;
    let rate = (BYTES * MESSAGES) as f64 / 1e6 / began.elapsed().as_secs_f64();
    from.deregister()?;
    to.deregister()?;
    place.meet(&format!("timed-{round}"), place.ranks)?;
    both.close(place)?;
    Ok(format!(
        "with rank {peer} 8 bytes there and back take {:.2} ms, and long messages go at {rate:.1} MB/s; ",
        median.as_secs_f64() * 1e3
    ))
}

/// The relay is killed in the midst of messages both ways.
pub(crate) fn relay_killed(place: &Place) -> Outcome {
    const BYTES: usize = 64 << 20;
    let (a, c) = match far_pair(place) {
        Ok(pair) => pair,
        Err(none) => return Ok(none),
    };
    let net = &place.net;
    let rank = Rank::new(net)?;
    place.meet("begun", place.ranks)?;
    if place.rank != a && place.rank != c {
        if place.rank == RELAY {
            place.get(&format!("flows-{a}"))?;
            place.get(&format!("flows-{c}"))?;
            place.put(&format!("kill-{RELAY}"), b"")?;
            eventually("its end", || Ok(None::<()>))?;
        }
        place.get("killed")?;
        place.get(&format!("failed-{a}"))?;
        place.get(&format!("failed-{c}"))?;
        rank.finalize()?;
        return passed("beside");
    }
    let other = if place.rank == a { c } else { a };
    let both = Both::new(place, rank, other)?;
    let (mut from, to) = (
        Memory::new(net, both.send, BYTES)?,
        Memory::new(net, both.receive, BYTES)?,
    );
    from.buffer.fill(0, 64, place.seed(place.rank, 1));
    let receives = [
        receive(net, both.receive, &[to.part(0, BYTES, 0)])?,
        receive(net, both.receive, &[to.part(0, 64, 1)])?,
    ];
    let sending = send(net, both.send, from.part(0, BYTES, 0))?;
    let began = Instant::now();
    while began.elapsed().as_millis() < 200 {
        if told("test", net.test(sending))?.is_some() {
            return Err("64 MiB were relayed at once".to_owned());
        }
    }
    place.put(&format!("flows-{}", place.rank), b"")?;
    let mut words = String::new();
    for (what, request) in [
        ("a receive", receives[0]),
        ("a receive", receives[1]),
        ("the send", sending),
    ] {
        let code = eventually("a request fails", || match net.test(request) {
            Ok(None) => Ok(None),
            Ok(Some(_)) => Err(format!("{what} is done, and its relay was killed")),
            Err(NcclResult(code)) => Ok(Some(code)),
        })?;
        let killed = String::from_utf8(place.get("killed")?).unwrap_or_default();
        let killed: u128 = killed.parse().unwrap_or(0);
        let after = unix_ns().saturating_sub(killed) as f64 / 1e6;
        words.push_str(&format!("{what} failed with {code} after {after:.1} ms; "));
        if NcclResult(code) != NcclResult::REMOTE_ERROR {
            return Err(words);
        }
    }
    place.put(&format!("failed-{}", place.rank), b"")?;
    place.get(&format!("failed-{other}"))?;
    from.deregister()?;
    to.deregister()?;
    both.close(place)?;
    passed(words)
}
