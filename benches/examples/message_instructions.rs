//! Moves messages over a link, for callgrind to count: `message_instructions WAY SIDE BYTES COUNT`, with a libibverbs whose queue pairs find
//! each other in one process.
//!
//! WAY is `fragments`, by `Links::send` in fragments of slots, `placed`, by `Links::send` into memory that the receiver lent, or `transfers`, by one transfer for
//! each message. SIDE is `sender` or `receiver`. Its calls are
//! counted: the functions `measured_…` hold them, and nothing else. Both sides have default settings, but for the times that a program
//! needs under an instrument.

mod opened;

use std::sync::Arc;

use doorbell::link::{
    FinalReason, LinkEvent, LinkId, Links, PushRefusal, SessionEvent, TransferEnd, TransferEvent, TransferId,
    TransferOptions,
};
use doorbell::memory::Region;
use doorbell::provider::PlacementConfig;
use doorbell::{Node, Worker};

use opened::{Failure, open};

/// Messages under way, where they are transfers.
const AHEAD: u64 = 4;

struct Side {
    node: Arc<Node>,
    workers: Vec<Worker>,
    links: Links,
    region: Region,
    link: Option<LinkId>,
    is_connected: bool,
    over: Option<FinalReason>,
    offered: Vec<TransferId>,
    /// Messages that came, and transfers that are done.
    done: u64,
    failed: Option<TransferEnd>,
}

impl Side {
    fn new(bytes: usize, is_placed: bool) -> Result<Self, Failure> {
        let (node, workers, links) = open(|config| {
            config.placed_bytes = if is_placed { config.placed_bytes } else { 0 };
            config.place_messages_over = bytes.saturating_sub(1);
        })?;
        let region = node.region(&workers, bytes, &PlacementConfig::DEFAULT)?;
        Ok(Self {
            node,
            workers,
            links,
            region,
            link: None,
            is_connected: false,
            over: None,
            offered: Vec::with_capacity(64),
            done: 0,
            failed: None,
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
            done,
            failed,
            ..
        } = self;
        links.poll(node, workers, |id, event| match event {
            LinkEvent::Accepted => *link = Some(id),
            LinkEvent::Received { .. } => *done = done.wrapping_add(1),
            LinkEvent::Session(SessionEvent::Connected) => *is_connected = true,
            LinkEvent::Session(SessionEvent::Final { reason }) => *over = Some(reason),
            LinkEvent::Transfer { transfer, event } => match event {
                TransferEvent::Offered { .. } => offered.push(transfer),
                TransferEvent::Ended {
                    end: TransferEnd::Done,
                    ..
                } => *done = done.wrapping_add(1),
                TransferEvent::Ended { end, .. } => *failed = Some(end),
                _ => {}
            },
            _ => {}
        })?;
        match (over, failed) {
            (Some(reason), _) => Err(format!("the link ended: {reason}").into()),
            (_, Some(end)) => Err(format!("a transfer ended: {end:?}").into()),
            _ => Ok(()),
        }
    }

    /// Sends a message, or begins its transfer. Says whether there was room.
    #[inline(always)]
    fn send(&mut self, message: &[u8], is_transfer: bool) -> Result<bool, Failure> {
        let link = self.link.ok_or("there is no link")?;
        if is_transfer {
            let part = (&self.region, 0, u64::try_from(message.len())?);
            self.links
                .offer(&self.node, link, part, &TransferOptions::default())?;
            return Ok(true);
        }
        match self.links.send(link, message) {
            Ok(_) => Ok(true),
            Err(PushRefusal::Full) => Ok(false),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Joins the transfers that were offered.
    #[inline(always)]
    fn join(&mut self) -> Result<(), Failure> {
        let link = self.link.ok_or("there is no link")?;
        for offered in self.offered.drain(..) {
            let options = TransferOptions::default();
            self.links
                .join(&self.node, (link, offered), (&self.region, 0), &options)?;
        }
        Ok(())
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

#[inline(never)]
fn measured_send(side: &mut Side, message: &[u8], is_transfer: bool) -> Result<bool, Failure> {
    side.send(message, is_transfer)
}

#[inline(never)]
fn send(side: &mut Side, message: &[u8], is_transfer: bool) -> Result<bool, Failure> {
    core::hint::black_box(side).send(message, is_transfer)
}

#[inline(never)]
fn measured_join(side: &mut Side) -> Result<(), Failure> {
    side.join()
}

#[inline(never)]
fn join(side: &mut Side) -> Result<(), Failure> {
    core::hint::black_box(side).join()
}

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let mut word = || words.next().ok_or("WAY SIDE BYTES COUNT");
    let (way, side) = (word()?, word()?);
    let (bytes, count) = (word()?.parse::<usize>()?, word()?.parse::<u64>()?);
    let is_transfer = match way.as_str() {
        "fragments" | "placed" => false,
        "transfers" => true,
        other => return Err(format!("there is no way {other}").into()),
    };
    let is_placed = way == "placed";
    let counts_sender = match side.as_str() {
        "sender" => true,
        "receiver" => false,
        other => return Err(format!("there is no side {other}").into()),
    };
    let (mut sender, mut receiver) = (Side::new(bytes, is_placed)?, Side::new(bytes, is_placed)?);
    let handle = receiver
        .links
        .listen_polled(&receiver.node, &receiver.workers, "0.0.0.0:0".parse()?)?;
    let link = sender.links.connect(&sender.node, &sender.workers, &handle)?;
    sender.link = Some(link);
    while !sender.is_connected || !receiver.is_connected {
        poll(&mut sender)?;
        poll(&mut receiver)?;
    }
    let message = vec![7; bytes];
    let mut warm = 0_u64;
    while is_placed && sender.links.counts(link).placed == 0 {
        // Memory is made by threads, after the first message.
        let was_sent = send(&mut sender, &message, false)?;
        warm = warm.saturating_add(u64::from(was_sent));
        poll(&mut sender)?;
        poll(&mut receiver)?;
    }
    while receiver.done < warm {
        poll(&mut sender)?;
        poll(&mut receiver)?;
    }
    receiver.done = 0;
    let (mut sent, mut polls) = (0_u64, 0_u64);
    while receiver.done < count || (is_transfer && sender.done < count) {
        let has_room = !is_transfer || sent.saturating_sub(sender.done) < AHEAD;
        if sent < count && has_room {
            let was_sent = match counts_sender {
                true => measured_send(&mut sender, &message, is_transfer)?,
                false => send(&mut sender, &message, is_transfer)?,
            };
            sent = sent.saturating_add(u64::from(was_sent));
        }
        if counts_sender {
            measured_poll(&mut sender)?;
            poll(&mut receiver)?;
            join(&mut receiver)?;
        } else {
            poll(&mut sender)?;
            measured_poll(&mut receiver)?;
            measured_join(&mut receiver)?;
        }
        polls = polls.saturating_add(1);
    }
    println!("{count} messages of {bytes} bytes by {way}, {polls} polls of the {side}");
    Ok(())
}
