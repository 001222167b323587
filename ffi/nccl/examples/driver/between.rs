//! Scenarios whose ranks are processes, on any hosts. The last rank is the one that ends, is killed or is stopped.

use std::fs;
use std::path::PathBuf;
use std::thread;

use doorbell_nccl::abi::{HANDLE_BYTES, NcclResult};

use crate::hosts::{LOOK_EVERY, unix_ns};
use crate::peers::{Memory, Rank, be_patient, connected, eventually, finish, receive, send, told};
use crate::plugin::{Net, Object, Part};
use crate::scenarios::messages::SIZES;
use crate::scenarios::rings::{Member, reduce};

/// The beginning of a list of far pairs between which the plugin relays.
const RELAYED: &str = "by:";

/// A few words of what was done; or why it was left out.
pub(crate) enum Done {
    Passed(String),
    LeftOut(String),
}

pub(crate) type Outcome = Result<Done, String>;
type Scenario = (&'static str, fn(&Place) -> Outcome);

/// All of them.
pub(crate) const SCENARIOS: &[Scenario] = &[
    ("connection", connection),
    ("sizes", sizes),
    ("grouped", grouped),
    ("in_flight", in_flight),
    ("all_reduce", all_reduce),
    ("all_pairs", all_pairs),
    ("far", far),
    ("closed", closed),
    ("killed", killed),
    ("stopped", stopped),
    ("pace", crate::relayed::pace),
    ("relay_killed", crate::relayed::relay_killed),
];

/// A rank, and the folder in which ranks meet.
pub(crate) struct Place {
    pub(crate) net: Net,
    folder: PathBuf,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Pairs of ranks that share no subnet.
    pub(crate) far: Vec<(usize, usize)>,
    /// Whether these are connected by relays.
    pub(crate) is_relayed: bool,
}

/// Runs the scenario of this name as one of its ranks.
pub(crate) fn run(net: &Net, arguments: &[String]) -> Outcome {
    let [name, folder, rank, ranks, far] = arguments else {
        return Err("--between wants SCENARIO FOLDER RANK RANKS FAR".to_owned());
    };
    let number = |text: &str| text.parse::<usize>().map_err(|_| format!("{text} is no number"));
    let (is_relayed, far) = far
        .strip_prefix(RELAYED)
        .map_or((false, &**far), |far| (true, far));
    let pairs = far.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
        let (a, b) = pair.split_once('-').ok_or_else(|| format!("{pair} is no pair"))?;
        Ok((number(a)?, number(b)?))
    });
    let place = Place {
        net: *net,
        folder: folder.into(),
        rank: number(rank)?,
        ranks: number(ranks)?,
        far: pairs.collect::<Result<_, String>>()?,
        is_relayed,
    };
    be_patient();
    let found = SCENARIOS.iter().find(|(known, _)| known == name);
    let (_, scenario) = found.ok_or_else(|| format!("no scenario {name}"))?;
    scenario(&place)
}

pub(crate) fn passed(words: impl Into<String>) -> Outcome {
    Ok(Done::Passed(words.into()))
}

impl Place {
    /// Writes a file that is whole, or not there.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> Result<(), String> {
        let beside = self.folder.join(format!("{name}.unfinished"));
        let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, self.folder.join(name)));
        written.map_err(|error| format!("{name}: {error}"))
    }

    fn has(&self, name: &str) -> bool {
        self.folder.join(name).exists()
    }

    /// Waits for a file.
    pub(crate) fn get(&self, name: &str) -> Result<Vec<u8>, String> {
        eventually(name, || {
            let read = fs::read(self.folder.join(name)).ok();
            if read.is_none() {
                thread::sleep(LOOK_EVERY);
            }
            Ok(read)
        })
    }

    pub(crate) fn handle(&self, rank: usize) -> Result<[u8; HANDLE_BYTES], String> {
        let bytes = self.get(&format!("handle-{rank}"))?;
        bytes
            .try_into()
            .map_err(|_| "a handle of another length".to_owned())
    }

    /// Waits until all ranks have come this far, or all but the last one.
    pub(crate) fn meet(&self, name: &str, ranks: usize) -> Result<(), String> {
        self.put(&format!("{name}-{}", self.rank), b"")?;
        (0..ranks).try_for_each(|rank| self.get(&format!("{name}-{rank}")).map(drop))
    }

    const fn next(&self) -> usize {
        (self.rank + 1) % self.ranks
    }

    const fn last(&self) -> usize {
        self.ranks - 1
    }

    fn is_far(&self, a: usize, b: usize) -> bool {
        !self.is_relayed && self.far.contains(&(a.min(b), a.max(b)))
    }

    /// Ranks side by side that share no subnet: there is no ring then.
    fn no_ring(&self) -> Option<Done> {
        let broken = (0..self.ranks).map(|rank| (rank, (rank + 1) % self.ranks));
        let (a, b) = broken.into_iter().find(|(a, b)| self.is_far(*a, *b))?;
        Some(Done::LeftOut(format!(
            "ranks {a} and {b} are side by side in a ring, and share no subnet"
        )))
    }

    /// Connects the ring.
    fn member(&self) -> Result<Member, String> {
        let rank = Rank::new(&self.net)?;
        let (listener, handle) = told("listen", self.net.listen(rank.context))?;
        self.put(&format!("handle-{}", self.rank), &handle)?;
        let mut next = self.handle(self.next())?;
        let (send, receive) = connected(&self.net, rank.context, &mut next, listener)?;
        Ok(Member {
            rank,
            listener,
            send,
            receive,
        })
    }

    pub(crate) fn seed(&self, rank: usize, round: usize) -> u32 {
        u32::try_from(rank * 1000 + round).unwrap_or(0)
    }

    fn before(&self) -> usize {
        (self.rank + self.ranks - 1) % self.ranks
    }
}

/// Memory of both directions of a member.
fn memory(member: &Member, bytes: usize) -> Result<(Memory, Memory), String> {
    let net = &member.rank.net;
    Ok((
        Memory::new(net, member.send, bytes)?,
        Memory::new(net, member.receive, bytes)?,
    ))
}

/// Comms are made and closed, and made again.
fn connection(place: &Place) -> Outcome {
    if let Some(none) = place.no_ring() {
        return Ok(none);
    }
    let member = place.member()?;
    let mut more = Vec::new();
    for _ in 0..8 {
        let mut handle = place.handle(place.next())?;
        more.push(connected(
            &place.net,
            member.rank.context,
            &mut handle,
            member.listener,
        )?);
    }
    for (send, receive) in more {
        told("closeSend", place.net.close_send(send))?;
        told("closeRecv", place.net.close_receive(receive))?;
    }
    place.meet("closed", place.ranks)?;
    member.close()?;
    passed("9 comms each way")
}

/// Each size goes to the next rank, and arrives as it was sent.
fn sizes(place: &Place) -> Outcome {
    if let Some(none) = place.no_ring() {
        return Ok(none);
    }
    let member = place.member()?;
    let net = &place.net;
    let (mut from, mut to) = memory(&member, 5 << 20)?;
    for (round, (sent, room)) in SIZES.iter().copied().enumerate() {
        from.buffer.fill(0, sent, place.seed(place.rank, round));
        let receiving = receive(net, member.receive, &[to.part(0, room, 3)])?;
        let sending = send(net, member.send, from.part(0, sent, 3))?;
        let sizes = finish(net, &[receiving, sending])?;
        if sizes.iter().any(|sizes| usize::try_from(sizes[0]) != Ok(sent)) {
            return Err(format!("{sent} bytes to {room}: sizes {sizes:?}"));
        }
        to.buffer
            .check(0, sent, place.seed(place.before(), round))
            .map_err(|why| format!("{sent} bytes to {room}: {why}"))?;
    }
    from.deregister()?;
    to.deregister()?;
    place.meet("closed", place.ranks)?;
    member.close()?;
    passed(format!("{} pairs of sizes", SIZES.len()))
}

/// Messages of several tags fill one receive.
fn grouped(place: &Place) -> Outcome {
    const EACH: usize = 70_000;
    if let Some(none) = place.no_ring() {
        return Ok(none);
    }
    let member = place.member()?;
    let net = &place.net;
    let most = told("getProperties", net.facts(0))?.receives_max;
    let count = usize::try_from(most).unwrap_or(0).min(8);
    let (mut from, mut to) = memory(&member, EACH * count.max(1))?;
    let bytes = |index: usize| [0, 8, 4056, 5000, 65_537, 1, 16_384, 70_000][index];
    let tag = |index: usize| i32::try_from(index * 7).unwrap_or(0);
    if count >= 2 {
        let into: Vec<Part> = (0..count)
            .map(|index| to.part(index * EACH, bytes(index), tag(index)))
            .collect();
        let receiving = receive(net, member.receive, &into)?;
        let mut requests = vec![receiving];
        for index in (0..count).rev() {
            from.buffer
                .fill(index * EACH, bytes(index), place.seed(place.rank, index));
            requests.push(send(
                net,
                member.send,
                from.part(index * EACH, bytes(index), tag(index)),
            )?);
        }
        let sizes = finish(net, &requests)?;
        for index in 0..count {
            if usize::try_from(sizes[0][index]) != Ok(bytes(index)) {
                return Err(format!("sizes {sizes:?}"));
            }
            to.buffer
                .check(index * EACH, bytes(index), place.seed(place.before(), index))?;
        }
    }
    from.deregister()?;
    to.deregister()?;
    place.meet("closed", place.ranks)?;
    member.close()?;
    match count {
        2.. => passed(format!("{count} messages in one receive")),
        _ => Ok(Done::LeftOut(format!("maxRecvs is {most}"))),
    }
}

/// As many receives as NCCL may have, at a time.
fn in_flight(place: &Place) -> Outcome {
    const REQUESTS: usize = 32;
    const BYTES: usize = 20_000;
    if let Some(none) = place.no_ring() {
        return Ok(none);
    }
    let member = place.member()?;
    let net = &place.net;
    let (mut from, mut to) = memory(&member, REQUESTS * BYTES)?;
    let mut requests = Vec::new();
    for request in 0..REQUESTS {
        requests.push(receive(
            net,
            member.receive,
            &[to.part(request * BYTES, BYTES, 0)],
        )?);
    }
    for request in 0..REQUESTS {
        let bytes = BYTES - request;
        from.buffer
            .fill(request * BYTES, bytes, place.seed(place.rank, request));
        requests.push(send(net, member.send, from.part(request * BYTES, bytes, 0))?);
    }
    let sizes = finish(net, &requests)?;
    for (request, sizes) in sizes.iter().take(REQUESTS).enumerate() {
        if usize::try_from(sizes[0]) != Ok(BYTES - request) {
            return Err(format!("message {request}: sizes {sizes:?}"));
        }
        to.buffer.check(
            request * BYTES,
            BYTES - request,
            place.seed(place.before(), request),
        )?;
    }
    from.deregister()?;
    to.deregister()?;
    place.meet("closed", place.ranks)?;
    member.close()?;
    passed(format!("{REQUESTS} receives"))
}

/// Each rank gets the sums of all.
fn all_reduce(place: &Place) -> Outcome {
    if let Some(none) = place.no_ring() {
        return Ok(none);
    }
    let member = place.member()?;
    for words in [1, 1000, 200_003] {
        reduce(&member, place.rank, place.ranks, words)?;
    }
    place.meet("closed", place.ranks)?;
    member.close()?;
    passed("1, 1,000 and 200,003 words")
}

/// Each rank connects to each other one that it reaches, and sends its number there, with more behind it.
fn all_pairs(place: &Place) -> Outcome {
    const BYTES: usize = 100_000;
    let net = &place.net;
    let rank = Rank::new(net)?;
    let (listener, handle) = told("listen", net.listen(rank.context))?;
    place.put(&format!("handle-{}", place.rank), &handle)?;
    let others = (0..place.ranks).filter(|other| *other != place.rank && !place.is_far(*other, place.rank));
    let others: Vec<usize> = others.collect();
    let mut handles = others
        .iter()
        .map(|other| place.handle(*other))
        .collect::<Result<Vec<_>, _>>()?;
    let (mut sends, mut receives): (Vec<Option<Object>>, Vec<Object>) =
        (vec![None; others.len()], Vec::new());
    eventually("all pairs", || {
        for (send, handle) in sends.iter_mut().zip(&mut handles) {
            if send.is_none() {
                *send = told("connect", net.connect(rank.context, handle))?;
            }
        }
        receives.extend(told("accept", net.accept(listener))?);
        Ok((sends.iter().all(Option::is_some) && receives.len() == others.len()).then_some(()))
    })?;
    let mut came = Vec::new();
    let into = receives
        .iter()
        .map(|comm| Memory::new(net, *comm, BYTES))
        .collect::<Result<Vec<_>, _>>()?;
    let mut requests = Vec::new();
    for (comm, into) in receives.iter().zip(&into) {
        requests.push(receive(net, *comm, &[into.part(0, BYTES, 0)])?);
    }
    let mut from = Vec::new();
    for comm in sends.iter().copied().flatten() {
        let mut memory = Memory::new(net, comm, BYTES)?;
        memory.buffer.fill(8, BYTES - 8, place.seed(place.rank, 5));
        memory
            .buffer
            .slice(0, 8)
            .copy_from_slice(&(place.rank as u64).to_be_bytes());
        requests.push(send(net, comm, memory.part(0, BYTES, 0))?);
        from.push(memory);
    }
    finish(net, &requests)?;
    for mut into in into {
        let bytes = into.buffer.slice(0, 8).try_into().unwrap_or_default();
        let rank = usize::try_from(u64::from_be_bytes(bytes)).unwrap_or(usize::MAX);
        if rank < place.ranks {
            into.buffer.check(8, BYTES - 8, place.seed(rank, 5))?;
        }
        came.push(rank);
        into.deregister()?;
    }
    came.sort_unstable();
    if came != others {
        return Err(format!(
            "messages of ranks {came:?} came, and {others:?} is right"
        ));
    }
    from.into_iter().try_for_each(Memory::deregister)?;
    place.meet("closed", place.ranks)?;
    for comm in sends.into_iter().flatten() {
        told("closeSend", net.close_send(comm))?;
    }
    for comm in receives {
        told("closeRecv", net.close_receive(comm))?;
    }
    told("closeListen", net.close_listener(listener))?;
    rank.finalize()?;
    passed(format!("with ranks {others:?}"))
}

/// A rank that shares no subnet is connected to by way of others, or refused. It is not waited for without end.
fn far(place: &Place) -> Outcome {
    if place.far.is_empty() {
        return Ok(Done::LeftOut("every two hosts share a subnet".to_owned()));
    }
    let net = &place.net;
    let rank = Rank::new(net)?;
    let (listener, handle) = told("listen", net.listen(rank.context))?;
    place.put(&format!("handle-{}", place.rank), &handle)?;
    let mut words = "nobody to connect to".to_owned();
    for (from, to) in &place.far {
        if *from == place.rank {
            let mut handle = place.handle(*to)?;
            let attempt = eventually("connect is refused", || {
                match net.connect(rank.context, &mut handle) {
                    Ok(None) => Ok(None),
                    other => Ok(Some(other)),
                }
            })?;
            words = match attempt {
                Ok(Some(comm)) => {
                    told("closeSend", net.close_send(comm))?;
                    format!("connected to rank {to}: the plugin relays")
                }
                Err(NcclResult(code)) if place.is_relayed => {
                    return Err(format!("connect to rank {to} returned {code}, and relays are on"));
                }
                Err(NcclResult(code)) => format!("connect to rank {to} returned {code}"),
                Ok(None) => continue,
            };
        }
    }
    place.put(&format!("tried-{}", place.rank), b"")?;
    for other in 0..place.ranks {
        eventually("the other ranks", || {
            if let Some(comm) = told("accept", net.accept(listener))? {
                told("closeRecv", net.close_receive(comm))?;
            }
            Ok(place.has(&format!("tried-{other}")).then_some(()))
        })?;
    }
    told("closeListen", net.close_listener(listener))?;
    rank.finalize()?;
    passed(words)
}

/// Receives that wait when the last rank ends; the first of them has its message.
struct Waiting {
    member: Member,
    from: Memory,
    to: Memory,
    receives: Vec<Object>,
}

/// Connects a ring, passes one message on, and leaves three receives waiting at each rank.
fn waiting(place: &Place) -> Result<Waiting, String> {
    let member = place.member()?;
    let net = &place.net;
    let (mut from, mut to) = memory(&member, 1 << 20)?;
    from.buffer.fill(0, 8, place.seed(place.rank, 1));
    let mut receives = (0..4)
        .map(|at| receive(net, member.receive, &[to.part(at * 64, 64, 0)]))
        .collect::<Result<Vec<_>, _>>()?;
    let sending = send(net, member.send, from.part(0, 8, 0))?;
    let first = receives.remove(0);
    if place.rank == place.last() {
        // Its last message before its end: sent, as far as it knows.
        finish(net, &[sending])?;
        finish(net, &[first])?;
    } else {
        finish(net, &[first, sending])?;
    }
    to.buffer.check(0, 8, place.seed(place.before(), 1))?;
    place.meet("waits", place.ranks)?;
    Ok(Waiting {
        member,
        from,
        to,
        receives,
    })
}

impl Waiting {
    /// Receives from a rank that runs are waiting still.
    fn goes_on(&self, place: &Place) -> Result<(), String> {
        for request in &self.receives {
            if told(
                "test of a receive from a rank that runs",
                place.net.test(*request),
            )?
            .is_some()
            {
                return Err("a receive is done that nothing was sent to".to_owned());
            }
        }
        Ok(())
    }

    /// All receives fail; the milliseconds since the time in a file.
    fn fail(&self, place: &Place, since: &str) -> Result<String, String> {
        let (mut at, mut codes) = (Vec::new(), Vec::new());
        for request in &self.receives {
            let code = eventually("a receive from the rank that ended fails", || {
                match place.net.test(*request) {
                    Ok(None) => Ok(None),
                    Ok(Some(sizes)) => Err(format!("a receive is done that nothing was sent to: {sizes:?}")),
                    Err(NcclResult(code)) => Ok(Some(code)),
                }
            })?;
            at.push(unix_ns());
            codes.push(code);
        }
        let began = String::from_utf8(place.get(since)?).unwrap_or_default();
        let began: u128 = began.parse().unwrap_or(0);
        let after = |at: &u128| at.saturating_sub(began) as f64 / 1e6;
        let (first, last) = (at.first().map(after), at.last().map(after));
        Ok(format!(
            "receives failed with {codes:?}, {:.1} to {:.1} ms after",
            first.unwrap_or_default(),
            last.unwrap_or_default()
        ))
    }

    /// Sends fail, at once or once they were taken.
    fn send_fails(&self, place: &Place) -> Result<(), String> {
        let (net, mut request) = (&place.net, None);
        eventually("a send to the rank that ended fails", || {
            let part = self.from.part(0, 1 << 20, 0);
            match request {
                None => match net.send(self.member.send, (part.data, 64), 0, part.memory) {
                    Err(_) => return Ok(Some(())),
                    Ok(sent) => request = sent,
                },
                Some(sent) => match net.test(sent) {
                    Err(_) => return Ok(Some(())),
                    Ok(Some(_)) => request = None,
                    Ok(None) => {}
                },
            }
            Ok(None)
        })
    }

    fn close(self) -> Result<(), String> {
        self.from.deregister()?;
        self.to.deregister()?;
        self.member.close()
    }
}

/// The ranks that are left go on with each other.
fn others_go_on(place: &Place, waiting: &mut Waiting) -> Result<(), String> {
    let net = &place.net;
    let (last, rank) = (place.last(), place.rank);
    let mut requests = Vec::new();
    if rank + 1 < last {
        waiting.from.buffer.fill(0, 64, place.seed(rank, 2));
        for _ in 0..3 {
            requests.push(send(net, waiting.member.send, waiting.from.part(0, 64, 0))?);
        }
    }
    if rank > 0 {
        requests.append(&mut waiting.receives);
    }
    finish(net, &requests)?;
    if rank > 0 {
        waiting.to.buffer.check(64, 64, place.seed(rank - 1, 2))?;
    }
    Ok(())
}

/// The end of the last rank, as each rank that is left sees it.
fn left(place: &Place, mut waiting: Waiting, since: &str) -> Outcome {
    let mut words = "its neighbours are others".to_owned();
    if place.rank == 0 {
        words = waiting.fail(place, since)?;
    } else {
        place.get(since)?;
        waiting.goes_on(place)?;
    }
    if place.next() == place.last() {
        waiting.send_fails(place)?;
        words.push_str("; sends to it fail");
    }
    // Nobody sends to one that has yet to look.
    place.meet("looked", place.last())?;
    others_go_on(place, &mut waiting)?;
    place.meet("left", place.last())?;
    waiting.close()?;
    passed(words)
}

/// The last rank closes all it has, with requests of others waiting for it.
fn closed(place: &Place) -> Outcome {
    if let Some(none) = place.no_ring() {
        return Ok(none);
    }
    let waiting = waiting(place)?;
    if place.rank != place.last() {
        return left(place, waiting, "ended");
    }
    place.put("ended", unix_ns().to_string().as_bytes())?;
    waiting.close()?;
    passed("it closed all it had")
}

/// The last rank is killed.
fn killed(place: &Place) -> Outcome {
    if let Some(none) = place.no_ring() {
        return Ok(none);
    }
    let waiting = waiting(place)?;
    if place.rank != place.last() {
        return left(place, waiting, "killed");
    }
    place.put(&format!("kill-{}", place.rank), b"")?;
    eventually("its end", || waiting.goes_on(place).map(|()| None::<()>))?;
    Err("it was not killed".to_owned())
}

/// The last rank is stopped for some seconds: nothing fails, and all go on.
fn stopped(place: &Place) -> Outcome {
    if let Some(none) = place.no_ring() {
        return Ok(none);
    }
    let mut waiting = waiting(place)?;
    if place.rank == place.last() {
        place.put(&format!("stop-{}", place.rank), b"")?;
    }
    eventually("the last rank goes on", || {
        waiting.goes_on(place)?;
        Ok(place.has("continued").then_some(()))
    })?;
    // Nobody sends to one that has yet to look.
    place.meet("again", place.ranks)?;
    waiting.from.buffer.fill(0, 64, place.seed(place.rank, 3));
    let net = &place.net;
    let mut requests = core::mem::take(&mut waiting.receives);
    for _ in 0..3 {
        requests.push(send(net, waiting.member.send, waiting.from.part(0, 64, 0))?);
    }
    finish(net, &requests)?;
    waiting.to.buffer.check(64, 64, place.seed(place.before(), 3))?;
    place.meet("closed", place.ranks)?;
    waiting.close()?;
    passed("nothing failed, and all went on")
}
