//! Moves bytes by a transfer of a link, for callgrind to count: `transfer_instructions SIDE MIB`, with a libibverbs whose queue pairs find each
//! other in one process.
//!
//! SIDE is `giver` or `taker`. Its polls are counted while bytes move: from the first byte at the taker to the last one. The function
//! `measured_poll` holds them, and nothing else. Threads that register memory work before that or behind it.
//! Both sides have default settings, but for the times that a program needs under an instrument.

mod opened;

use std::sync::Arc;

use doorbell::link::{
    FinalReason, LinkEvent, LinkId, Links, SessionEvent, TransferEnd, TransferEvent, TransferId,
    TransferOptions,
};
use doorbell::memory::Region;
use doorbell::provider::PlacementConfig;
use doorbell::{Node, Worker};

use opened::{Failure, open};

struct Side {
    node: Arc<Node>,
    workers: Vec<Worker>,
    links: Links,
    region: Region,
    link: Option<LinkId>,
    is_connected: bool,
    over: Option<FinalReason>,
    offered: Option<TransferId>,
    end: Option<TransferEnd>,
}

impl Side {
    fn new(bytes: usize) -> Result<Self, Failure> {
        let (node, workers, links) = open(|_| {})?;
        let region = node.region(&workers, bytes, &PlacementConfig::DEFAULT)?;
        Ok(Self {
            node,
            workers,
            links,
            region,
            link: None,
            is_connected: false,
            over: None,
            offered: None,
            end: None,
        })
    }

    #[inline(always)]
    fn turn(&mut self) -> Result<(), Failure> {
        let Self {
            node,
            workers,
            links,
            link,
            is_connected,
            over,
            offered,
            end,
            ..
        } = self;
        links.poll(node, workers, |id, event| match event {
            LinkEvent::Accepted => *link = Some(id),
            LinkEvent::Session(SessionEvent::Connected) => *is_connected = true,
            LinkEvent::Session(SessionEvent::Final { reason }) => *over = Some(reason),
            LinkEvent::Transfer { transfer, event } => match event {
                TransferEvent::Offered { .. } => *offered = Some(transfer),
                TransferEvent::Ended { end: how, .. } => *end = Some(how),
                _ => {}
            },
            _ => {}
        })?;
        match over {
            Some(reason) => Err(format!("the link ended: {reason}").into()),
            None => Ok(()),
        }
    }
}

#[inline(never)]
fn measured_poll(side: &mut Side) -> Result<(), Failure> {
    side.turn()
}

/// Else the compiler makes both functions one, and both sides are counted.
#[inline(never)]
fn poll(side: &mut Side) -> Result<(), Failure> {
    core::hint::black_box(side).turn()
}

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let mut word = || words.next().ok_or("SIDE MIB");
    let (what, mib) = (word()?, word()?.parse::<usize>()?);
    let counts_giver = match what.as_str() {
        "giver" => true,
        "taker" => false,
        other => return Err(format!("there is no side {other}").into()),
    };
    let bytes = mib.checked_mul(1 << 20).ok_or("too many")?;
    let (mut giver, mut taker) = (Side::new(bytes)?, Side::new(bytes)?);
    giver.region.copy_in(0, &vec![7; bytes])?;
    let handle = taker
        .links
        .listen_polled(&taker.node, &taker.workers, "0.0.0.0:0".parse()?)?;
    let link = giver.links.connect(&giver.node, &giver.workers, &handle)?;
    giver.link = Some(link);
    while !giver.is_connected || !taker.is_connected {
        poll(&mut giver)?;
        poll(&mut taker)?;
    }
    let options = TransferOptions::default();
    let part = (&giver.region, 0, u64::try_from(bytes)?);
    giver.links.offer(&giver.node, link, part, &options)?;
    let at_taker = taker.region.clone();
    let is_there = |at| {
        let mut byte = [0];
        let copied = at_taker.copy_out(at, &mut byte);
        copied.map(|()| byte == [7])
    };
    let mut polls = 0_u64;
    while giver.end.is_none() || taker.end.is_none() {
        let (counted, other) = match counts_giver {
            true => (&mut giver, &mut taker),
            false => (&mut taker, &mut giver),
        };
        if is_there(0)? && !is_there(bytes.saturating_sub(1))? {
            measured_poll(counted)?;
            polls = polls.saturating_add(1);
        } else {
            poll(counted)?;
        }
        poll(other)?;
        if let (Some(offered), Some(link)) = (taker.offered.take(), taker.link) {
            taker
                .links
                .join(&taker.node, (link, offered), (&taker.region, 0), &options)?;
        }
    }
    if [giver.end, taker.end] != [Some(TransferEnd::Done); 2] {
        return Err(format!("the transfer ended as {:?} and {:?}", giver.end, taker.end).into());
    }
    let mut last = [0; 8];
    taker.region.copy_out(bytes.saturating_sub(8), &mut last)?;
    if last != [7; 8] {
        return Err("the last bytes did not come".into());
    }
    println!("{mib} MiB, {polls} polls of the {what}");
    Ok(())
}
