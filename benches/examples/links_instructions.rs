//! Polls links that have nothing to do, for callgrind to count: `links_instructions SIDE LINKS POLLS`, with a libibverbs whose queue
//! pairs find each other in one process.
//!
//! SIDE is `connecting`, or `listening`, which accepts peers beside. Only the times differ from the defaults: under an instrument
//! everything takes longer, and no sign of life is asked for while polls are counted. The function `measured_poll` holds one poll of
//! the links and nothing else.

mod opened;

use std::sync::Arc;

use doorbell::link::{FinalReason, LinkEvent, Links, SessionEvent};
use doorbell::{Node, Worker};

use opened::{Failure, SOON, open};

struct Side {
    node: Arc<Node>,
    workers: Vec<Worker>,
    links: Links,
    connected: u32,
    over: Option<FinalReason>,
}

impl Side {
    fn new() -> Result<Self, Failure> {
        let (node, workers, links) = open(|config| {
            config.channel.probe_after = None;
            config.session.recover_within = SOON;
            config.session.heartbeat_idle = SOON;
        })?;
        Ok(Self {
            node,
            workers,
            links,
            connected: 0,
            over: None,
        })
    }

    /// Polls once; returns the number of events.
    #[inline(always)]
    fn turn(&mut self) -> Result<u32, Failure> {
        let Self {
            node,
            workers,
            links,
            connected,
            over,
        } = self;
        let mut events = 0_u32;
        links.poll(node, workers, |_, event| {
            events = events.saturating_add(1);
            match event {
                LinkEvent::Session(SessionEvent::Connected) => *connected = connected.saturating_add(1),
                LinkEvent::Session(SessionEvent::Final { reason }) => *over = Some(reason),
                _ => {}
            }
        })?;
        match over {
            Some(reason) => Err(format!("the link ended: {reason}").into()),
            None => Ok(events),
        }
    }
}

#[inline(never)]
fn measured_poll(side: &mut Side) -> Result<u32, Failure> {
    side.turn()
}

/// Else the compiler makes both functions one, and all polls are counted.
#[inline(never)]
fn poll(side: &mut Side) -> Result<u32, Failure> {
    core::hint::black_box(side).turn()
}

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let mut word = || words.next().ok_or("SIDE LINKS POLLS");
    let (side, links, polls) = (word()?, word()?.parse::<u32>()?, word()?.parse::<u32>()?);
    let (mut here, mut there) = (Side::new()?, Side::new()?);
    let handle = there
        .links
        .listen(&there.node, &there.workers, "0.0.0.0:0".parse()?)?;
    for _ in 0..links {
        here.links.connect(&here.node, &here.workers, &handle)?;
    }
    while here.connected < links || there.connected < links {
        poll(&mut here)?;
        poll(&mut there)?;
        // An instrument runs one thread at a time, and another one does the handshakes.
        std::thread::yield_now();
    }
    // All rails are up, and all is acknowledged, once nothing happens for a while.
    let mut quiet = 0_u32;
    while quiet < 1000 {
        let events = poll(&mut here)?.saturating_add(poll(&mut there)?);
        quiet = if events == 0 { quiet.saturating_add(1) } else { 0 };
    }
    let counted = match side.as_str() {
        "connecting" => &mut here,
        "listening" => &mut there,
        other => return Err(format!("there is no side {other}").into()),
    };
    for _ in 0..polls {
        if measured_poll(counted)? > 0 {
            return Err("something happened".into());
        }
    }
    println!("{polls} polls of {links} links, {side}");
    Ok(())
}
